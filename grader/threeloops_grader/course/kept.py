"""The last green run of each lab. `make course` skips a lab while nothing that it depends on has changed."""

import json
import os
import platform
import shutil
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

__all__ = ["keep", "kept", "state"]

_TOOLS = ("bwrap", "g++", "gcc", "nginx", "prometheus", "redis-server", "sbatch", "slurmctld", "strace")
"""Programs that labs and the grader use if they are installed."""


def state(lab: Lab, device: str, sandbox: str) -> str:
    """Return a hash over everything that a run of the lab depends on: the lab with its deep dives, data and picture,
    the library, the grader, every installed package, Python, the device, the processor, the sandbox, and the programs
    that are there."""
    packages = sorted(f"{package.name}=={package.version}" for package in distributions())
    machine = platform.platform(), read_cpu()[0]["name"], len(os.sched_getaffinity(0))
    tools = [shutil.which(name) for name in _TOOLS]
    settings = sorted((k, v) for k, v in os.environ.items() if k.startswith(("THREELOOPS_", "TRITON_", "CUDA_VISIBLE")))
    more = [(path.name, path) for path in (notebook.source for notebook in lab.notebooks[1:])]
    more += [(lab.opening.name, lab.opening)] if lab.opening.is_file() else []
    more += [(f"{CODE.name}/{path.name}", path) for path in sorted((CODE / "benchmarks").glob("evidence/*/*.json"))]
    return sha256_of(more, fingerprint(lab, None, device, sandbox, packages, machine, tools, settings))


def keep(outcome: LabOutcome, folder: Path, at: str) -> None:
    """Note a green run beside its executed notebooks in `folder`; a run with a fault is never kept."""
    _record(folder).unlink(missing_ok=True)
    if outcome.faults:
        return
    whole = {
        "state": at,
        "notebooks": _hash(outcome.lab, folder),
        "seconds": [run.seconds for run in outcome.executed],
        "verified_on": outcome.verified_on,
        "grades": {name: asdict(record) for name, record in outcome.grades.items()},
        "expected": outcome.expected,
    }
    replace_text(_record(folder), json.dumps(whole, indent=1) + "\n")


def kept(lab: Lab, folder: Path, at: str) -> LabOutcome | None:
    """Return the green run in `folder`, if it was made in the state `at` and its notebooks have not changed since."""
    try:
        saved = json.loads(_record(folder).read_text(encoding="utf-8"))
        if (saved["state"], saved["notebooks"]) != (at, _hash(lab, folder)):
            return None
        notebooks = [nbformat.read(folder / f"{notebook.stem}.ipynb", as_version=4) for notebook in lab.notebooks]
        executed = [Executed(n, seconds) for n, seconds in zip(notebooks, saved["seconds"], strict=True)]
        grades = {name: Record.from_dict(record) for name, record in saved["grades"].items()}
        return LabOutcome(lab, executed, saved["verified_on"], grades, saved["expected"], before=True)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _record(folder: Path) -> Path:
    return folder / "green.json"


def _hash(lab: Lab, folder: Path) -> str:
    return sha256_of((notebook.stem, folder / f"{notebook.stem}.ipynb") for notebook in lab.notebooks)
