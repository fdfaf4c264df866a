"""The surroundings of the course on a machine: a writable home, git, a network, a browser, memory.

`survey` looks, and `judge_surroundings` interprets. Nothing here stops the course, and no packet is sent.
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from threeloops.places import base_folder, record_folder

from threeloops_grader.authoring.labs import LabLimits
from threeloops_grader.doctor.finding import Finding
from threeloops_grader.machine.installed import Origin

__all__ = ["judge_surroundings", "survey"]


@dataclass(frozen=True)
class _Cache:
    """A folder that a program writes to: the variable that names it, else its place, and the loss without it."""

    program: str
    variable: str
    default: Callable[[], Path]
    lost: str

    @property
    def folder(self) -> Path:
        """The folder. Raises RuntimeError if there is no home folder at all."""
        named = os.environ.get(self.variable)
        return Path(named).expanduser() if named else self.default()


_CACHES = (
    _Cache("Jupyter", "JUPYTER_DATA_DIR", lambda: base_folder("data") / "jupyter", "it does not start"),
    _Cache("Triton", "TRITON_CACHE_DIR", lambda: Path.home() / ".triton/cache", "it compiles no kernel"),
    _Cache("matplotlib", "MPLCONFIGDIR", lambda: base_folder("cache") / "matplotlib", "it looks for fonts every time"),
    _Cache("threeloops", "THREELOOPS_HOME", record_folder, "`status` forgets which checks have passed"),
)

_BROWSERS = ("chromium", "google-chrome", "chromium-browser")
_NEEDED_MEMORY_BYTES = 4 << 30
_DEFAULT_ROUTE = "00000000"


def survey() -> dict[str, Any]:
    """Return the record that `judge_surroundings` reads. It is plain data, so that it can leave the process that
    looks."""
    return {
        "unwritable": [cache.program for cache in _CACHES if not _can_write(cache)],
        "record": _record(),
        "git": shutil.which("git") is not None,
        "network": _has_default_route(),
        "browser": next((name for name in _BROWSERS if shutil.which(name)), None),
        "memory_bytes": _memory_bytes(),
    }


def _record() -> str:
    """Return the folder of the learner's record, as a person would type it, or "" without a home folder."""
    try:
        folder, mine = record_folder(), Path.home()
    except RuntimeError:
        return ""
    return f"~/{folder.relative_to(mine)}" if folder.is_relative_to(mine) else str(folder)


def _can_write(cache: _Cache) -> bool:
    """Return whether the folder, or the nearest one above it that is there, can be written. It makes nothing."""
    try:
        folder = cache.folder
        there = next(existing for existing in (folder, *folder.parents) if existing.exists())
        return there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    except (OSError, RuntimeError):
        return False


def _has_default_route() -> bool | None:
    """Return whether the kernel knows a way out of this machine (Linux; None elsewhere)."""
    try:
        routes = Path("/proc/net/route").read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return None
    return any(line.split()[1] == _DEFAULT_ROUTE for line in routes if line.strip())


def _memory_bytes() -> int:
    """Return the memory that processes here may use: the machine's, or less if a control group limits it."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        limit = "max"
    whole = psutil.virtual_memory().total
    return min(whole, int(limit)) if limit.isdecimal() else whole


def judge_surroundings(seen: dict[str, Any], origin: Origin) -> list[Finding]:
    """Return one finding for each part of the survey, with the next step if something is missing.

    Only a checkout has newer releases in git and tests that need a browser.
    """
    findings = [
        _home(seen["unwritable"], seen["record"]),
        _memory(seen["memory_bytes"], origin),
        _network(seen["network"], origin),
    ]
    return [*findings, _git(seen["git"]), _browser(seen["browser"])] if origin == "checkout" else findings


def _home(unwritable: list[str], record: str) -> Finding:
    if not unwritable:
        programs = ", ".join(cache.program for cache in _CACHES)
        record_place = f"your record of passed checks is in {record} (THREELOOPS_HOME names another folder)"
        return Finding("home", "ok", f"{programs} can write their folders; {record_place}")
    lost = [f"{c.program} ({c.variable}): {c.lost}" for c in _CACHES if c.program in unwritable]
    step = 'name a home that can be written: export HOME="$PWD/work"'
    return Finding("home", "broken", f"cannot be written by {'; '.join(lost)}", step)


def _memory(have: int, origin: Origin) -> Finding:
    sentence = f"{have / 2**30:.1f} GiB for the course"
    if have >= _NEEDED_MEMORY_BYTES:
        return Finding("memory", "ok", sentence)
    step = "close other programs and notebooks"
    if origin == "checkout":
        step += ", run one lab at a time (threeloops course --jobs 1) and grade with --jobs 1"
    most = LabLimits().memory_mb / 1024
    return Finding("memory", "broken", f"{sentence}: one graded submission may take {most:g} GiB", step)


def _git(there: bool) -> Finding:
    if there:
        return Finding("git", "ok", "newer releases of the course come with `git pull`")
    sentence = "not installed: labs and grading run without it, records name no commit"
    return Finding("git", "missing", sentence, "apt install git, or take newer releases as a download")


def _network(there: bool | None, origin: Origin) -> Finding:
    if there is False:
        sentence = "no route out of this machine: labs, checks and grading need none"
        fetch = "`pip download` with the wheel" if origin == "wheel" else "`make wheels`"
        return Finding("network", "missing", sentence, f"only installing needs one: {fetch}, elsewhere")
    return Finding("network", "ok", "needed only to install: labs, checks and grading work offline")


def _browser(name: str | None) -> Finding:
    if name:
        return Finding("browser", "ok", f"{name}, for the tests of pages; labs open in any browser")
    sentence = "no Chromium: the tests of pages are skipped, labs open in any browser"
    return Finding("browser", "missing", sentence, "apt install chromium, if you change the course")
