"""Time a newcomer's way from the clone to the first green card: `git clone`, `make lab`, one exercise in a browser.

Downloads depend on the network, so they are measured apart. The wheels are fetched first; then `make lab` runs with a
pip that sees those wheels and no index. Everything else is new: the clone, the environment, the home folder with its
caches. Nobody reads or thinks here, so the seconds are those in which a newcomer waits.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from threeloops_grader.authoring.labs import Lab, find_lab
from threeloops_grader.authoring.manifest import manifest
from threeloops_grader.machine.child_process import CODE
from threeloops_grader.machine.provenance import Provenance

from benchmarks.result import Result, Series, Unmeasured
from scripts.make_venv import CPU_WHEELS

_GOAL_SECONDS = 240.0
_BY = "a newcomer's machine"
_CLONE, _ENVIRONMENT, _ADDRESS = "git clone", "make lab: the environment", "make lab: JupyterLab until its address"
_OPEN, _CARD = "the address opened: until the notebook shows", "the first exercise: from a new kernel to its green card"
_TOTAL, _DOWNLOADS = "all of these: from the clone to the first green card", "apart: downloading the wheels"
_LIMIT_SECONDS, _BROWSER_SECONDS = 1800.0, 300.0
_BROWSERS = ("chromium", "google-chrome", "chromium-browser")
_MADE = "  done in"
"""How scripts/make_venv.py ends the line of a step; the last one stands where the environment is complete."""
_URL = re.compile(r"http://(?:localhost|127\.0\.0\.1):\d+/lab\S*")


@dataclass
class _Started:
    """`make lab`, or JupyterLab alone, once it has printed its address."""

    seconds: float
    url: str
    lines: list[tuple[float, str]] = field(default_factory=list)
    """Each line before the address, and the second at which it came."""

    @property
    def environment_seconds(self) -> float:
        return max((second for second, line in self.lines if line.startswith(_MADE)), default=0.0)

    @property
    def steps(self) -> list[str]:
        """The lines printed while the environment was made, each with its time, without the addresses of indexes."""
        made = [(second, line) for second, line in self.lines if second <= self.environment_seconds]
        return [f"{second:.1f} s: {line.partition(' from http')[0].strip()}" for second, line in made]


def measure(about: Provenance, *, quick: bool) -> Result:
    """One newcomer. `quick` takes the environment that runs this instead of making one, and downloads nothing."""
    if missing := [name for name in ("git", "make") if not shutil.which(name)]:
        raise Unmeasured(f"{' and '.join(missing)}: not installed, and a newcomer needs it (apt install …)")
    browser, load = _browser(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        downloads = [] if quick else [_downloads(scratch / "wheels")]
        clone = scratch / "threeloops"
        cloning = _timed(["git", "clone", "--quiet", "--no-local", str(CODE), str(clone)])
        command, variables = _quick_lab(scratch) if quick else _make_lab(scratch)
        with _printing_its_address(command, clone, variables) as started:
            opening, card = first_card(browser, started.url)
        steps = {
            _CLONE: cloning,
            **({} if quick else {_ENVIRONMENT: started.environment_seconds}),
            _ADDRESS: started.seconds - started.environment_seconds,
            _OPEN: opening,
            _CARD: card,
        }
        facts: dict[str, Any] = {"load before": load}
        if not quick:
            wheels = [path.stat().st_size for path in (scratch / "wheels").iterdir()]
            facts |= {"wheels": len(wheels), "bytes of the wheels": sum(wheels)}
            facts |= {"goal, s": _GOAL_SECONDS, "within the goal": sum(steps.values()) <= _GOAL_SECONDS}
            facts["the environment, step by step"] = started.steps
    series = [Series(what, _BY, "s", (seconds,)) for what, seconds in steps.items()]
    series += [Series(_TOTAL, _BY, "s", (sum(steps.values()),))]
    series += [Series(_DOWNLOADS, _BY, "s", (seconds,)) for seconds in downloads]
    goal = f"goal: {_GOAL_SECONDS:.0f} s without downloads on two cores; it took {sum(steps.values()):.0f} s"
    note = "the environment of the benchmark was used, so making one is not in the sum" if quick else goal
    return Result("first_hour", about, {"quick": quick}, series, facts, notes=[note])


def first_card(browser: str, url: str) -> tuple[float, float]:
    """Open lab 00 in a new browser, answer its first exercise and run its check.

    Returns the seconds until the notebook shows, and from then on until the check's green card does.

    Raises:
        Unmeasured: the card is red, or nothing came in time.
    """
    from playwright.sync_api import TimeoutError, sync_playwright

    lab = find_lab("00")
    exercise = manifest(lab).exercises[0]
    order = [cell.id for cell in nbformat.read(lab.released, as_version=4).cells]
    answer = _answer(lab, exercise.id)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, chromium_sandbox=os.geteuid() != 0)
        page = chromium.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(_BROWSER_SECONDS * 1000)
        cells = page.locator(".jp-Notebook .jp-Cell")
        started = time.perf_counter()
        try:
            page.goto(url)
            cells.first.get_by_role("heading").wait_for()
            opened = time.perf_counter()
            page.get_by_text("| Idle").wait_for()  # as the status bar says: before that, a cell is not run
            cells.first.click()
            for _ in range(order.index(exercise.id)):  # the setup cell, and whatever stands before the exercise
                page.keyboard.press("Shift+Enter")
            cells.nth(order.index(exercise.id)).locator(".cm-content").click()
            page.keyboard.press("Control+A")
            page.keyboard.insert_text(answer)
            page.keyboard.press("Shift+Enter")
            page.keyboard.press("Shift+Enter")
            card = cells.nth(order.index(exercise.tests[0])).locator(".jp-OutputArea-output").first
            card.wait_for()
            ended = time.perf_counter()
            said = card.inner_text()
        except TimeoutError as error:
            raise Unmeasured(f"no card came: {str(error).splitlines()[0]}") from None
        finally:
            chromium.close()
    if not said.startswith("✓"):
        raise Unmeasured(f"the check of {exercise.id} shows: {said[:200]}")
    return opened - started, ended - opened


def _answer(lab: Lab, exercise: str) -> str:
    return next(cell.source for cell in lab.master().cells if cell.id == exercise)


def _browser() -> str:
    try:
        import playwright  # noqa: F401
    except ModuleNotFoundError:
        raise Unmeasured("playwright is not installed; requirements-test.txt pins it") from None
    found = next((path for name in _BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        raise Unmeasured("no Chromium: apt install chromium")
    return found


def _downloads(folder: Path) -> float:
    """Fetch every wheel that `make lab` installs on a machine without a GPU; returns the seconds.

    As there, torch comes with CUDA and all that it needs if PyTorch's own index cannot be reached.
    """
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-cache-dir", "--dest", str(folder)]
    pins = (CODE / "requirements.txt").read_text(encoding="utf-8").splitlines()
    (torch,) = (line for line in pins if line.startswith("torch=="))
    others = [line.partition("#")[0].strip() for line in pins if line.partition("#")[0].strip() and line != torch]
    small = ["--no-deps", "--retries", "1", "--timeout", "15", "--index-url", CPU_WHEELS]
    try:
        seconds = _timed([*fetch, *small, torch])
    except Unmeasured:
        seconds = _timed([*fetch, torch])
    return seconds + _timed([*fetch, "--no-deps", *others])


def _timed(command: Sequence[str]) -> float:
    """The seconds that a command takes. Raises Unmeasured with its last lines if it fails."""
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join((done.stdout + done.stderr).strip().splitlines()[-3:])
        raise Unmeasured(f"{Path(command[0]).name} {' '.join(command[1:4])} failed: {said}")
    return time.perf_counter() - started


def _make_lab(scratch: Path) -> tuple[list[str], dict[str, str]]:
    """Return a newcomer's command and its environment, in which pip takes the wheels from the disk."""
    command = ["make", "lab", f"PYTHON={sys.executable}", "ARGS=--no-browser --ServerApp.port=0"]
    wheels = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(scratch / "wheels"), "PIP_NO_CACHE_DIR": "1"}
    return command, _variables(scratch) | wheels


def _quick_lab(scratch: Path) -> tuple[list[str], dict[str, str]]:
    command = [sys.executable, "-m", "threeloops_grader.cli", "lab", "00", "--", "--no-browser", "--ServerApp.port=0"]
    clone = scratch / "threeloops"
    return command, _variables(scratch) | {"PYTHONPATH": f"{clone / 'lib'}:{clone / 'grader'}"}


def _variables(scratch: Path) -> dict[str, str]:
    """The environment of a user who has just got an account: nothing of this one's settings, caches and packages."""
    home = scratch / "home"
    home.mkdir()
    ours = ("PYTHON", "PIP_", "VIRTUAL_ENV", "CONDA", "JUPYTER", "JPY_", "THREELOOPS_", "XDG_", "TRITON", "MPL", "MAKE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return kept | {"HOME": str(home), "PYTHONUNBUFFERED": "1"}


@contextmanager
def _printing_its_address(command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> Iterator[_Started]:
    """Run a command that starts JupyterLab, until it has printed the address; it ends with the block."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    limit = threading.Timer(_LIMIT_SECONDS, _end, [process])
    limit.start()
    try:
        lines: list[tuple[float, str]] = []
        assert process.stdout is not None
        for line in process.stdout:
            now = time.perf_counter() - began
            if url := _URL.search(line):
                threading.Thread(target=process.stdout.read, daemon=True).start()  # or it would block on a full pipe
                yield _Started(now, url[0], lines)
                return
            lines.append((now, line.rstrip("\n")))
        said = " ".join(line for _, line in lines[-3:])
        raise Unmeasured(f"{' '.join(command[:2])} printed no address: {said}")
    finally:
        limit.cancel()
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """End it with all that it started, kernels included: JupyterLab ends those when it is asked to end itself."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
