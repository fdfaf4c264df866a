"""The last run of each lab. `make course` skips a lab while nothing that its green run depends on has changed."""

import json
import os
import platform
import shutil
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import distributions
from pathlib import Path

import nbformat
from threeloops.files import replace_text
from threeloops.hardware.inventory import read_cpu

from threeloops_grader.authoring.labs import Lab
from threeloops_grader.course.execute import Executed, LabOutcome
from threeloops_grader.grading.fingerprint import fingerprint
from threeloops_grader.grading.records import Record
from threeloops_grader.machine.child_process import CODE
from threeloops_grader.machine.provenance import sha256_of

__all__ = ["finished", "keep", "kept", "set_aside", "source", "state"]

_TOOLS = ("bwrap", "g++", "gcc", "nginx", "prometheus", "redis-server", "sbatch", "slurmctld", "strace")
"""Programs that labs and the grader use if they are installed."""

_COLOURS = ("green", "red")


def source(lab: Lab) -> str:
    """Return a hash over the lab with its deep dives, data and picture, the evidence that it shows, the library, the
    grader, and the versions of the packages that the course needs."""
    more = [(path.name, path) for path in (notebook.source for notebook in lab.notebooks[1:])]
    more += [(lab.opening.name, lab.opening)] if lab.opening.is_file() else []
    more += [(f"{CODE.name}/{path.name}", path) for path in sorted((CODE / "benchmarks").glob("evidence/*/*.json"))]
    return sha256_of(more, fingerprint(lab, None))


def state(lab: Lab, device: str, sandbox: str) -> str:
    """Return a hash over everything that a run of the lab depends on: its `source`, every installed package, the
    device, the processor, the sandbox, and the programs that are there."""
    packages = sorted(f"{package.name}=={package.version}" for package in distributions())
    machine = platform.platform(), read_cpu()[0]["name"], len(os.sched_getaffinity(0))
    tools = [shutil.which(name) for name in _TOOLS]
    settings = sorted((k, v) for k, v in os.environ.items() if k.startswith(("THREELOOPS_", "TRITON_", "CUDA_VISIBLE")))
    return sha256_of([], source(lab), repr((device, sandbox, packages, machine, tools, settings)))


def keep(outcome: LabOutcome, folder: Path, at: str, of_source: str = "") -> None:
    """Note a run beside its executed notebooks in `folder`. A run with a fault gets a note of its own, so it is never
    taken for a green one."""
    _forget(folder)
    whole = {
        "state": at,
        "source": of_source,
        "sandbox": outcome.sandbox,
        "notebooks": _hash(outcome.lab, folder),
        "seconds": [run.seconds for run in outcome.executed],
        "errors": [run.error for run in outcome.executed],
        "verified_on": outcome.verified_on,
        "grades": {name: asdict(record) for name, record in outcome.grades.items()},
        "expected": outcome.expected,
        "faults": outcome.faults,
    }
    replace_text(_record(folder, "red" if outcome.faults else "green"), json.dumps(whole, indent=1) + "\n")


def _forget(folder: Path) -> None:
    """Remove the notes of earlier runs."""
    for colour in _COLOURS:
        _record(folder, colour).unlink(missing_ok=True)


def set_aside(folder: Path) -> Callable[[], None]:
    """Forget the notes of earlier runs. The function that is returned brings them back, unless there is a new one."""
    notes = {path: path.read_text(encoding="utf-8") for c in _COLOURS if (path := _record(folder, c)).is_file()}
    _forget(folder)

    def bring_back() -> None:
        is_new = any(_record(folder, colour).is_file() for colour in _COLOURS)
        for path, text in ({} if is_new else notes).items():
            replace_text(path, text)

    return bring_back


def kept(lab: Lab, folder: Path, at: str) -> LabOutcome | None:
    """Return the green run in `folder`, if it was made in the state `at` and its notebooks have not changed since."""
    outcome = _load(lab, folder, "green", "state", at)
    if outcome is not None:
        outcome.before = True
    return outcome


def finished(lab: Lab, folder: Path, of_source: str) -> LabOutcome | None:
    """Return the run in `folder`, green or not, wherever it ran, if it is of this source."""
    return _load(lab, folder, "green", "source", of_source) or _load(lab, folder, "red", "source", of_source)


def _load(lab: Lab, folder: Path, colour: str, name: str, value: str) -> LabOutcome | None:
    try:
        saved = json.loads(_record(folder, colour).read_text(encoding="utf-8"))
        if (saved[name], saved["notebooks"]) != (value, _hash(lab, folder)):
            return None
        notebooks = [nbformat.read(folder / f"{notebook.stem}.ipynb", as_version=4) for notebook in lab.notebooks]
        runs = zip(notebooks, saved["seconds"], saved["errors"], strict=True)
        grades = {name: Record.from_dict(record) for name, record in saved["grades"].items()}
        executed = [Executed(*run) for run in runs]
        more = {"expected": saved["expected"], "faults": saved["faults"], "sandbox": saved["sandbox"]}
        return LabOutcome(lab, executed, saved["verified_on"], grades, **more)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _record(folder: Path, colour: str) -> Path:
    return folder / f"{colour}.json"


def _hash(lab: Lab, folder: Path) -> str:
    """Return a hash over the executed notebooks. A notebook that was never written counts as empty."""
    paths = [folder / f"{notebook.stem}.ipynb" for notebook in lab.notebooks]
    return sha256_of((path.stem, path) for path in paths if path.is_file())
