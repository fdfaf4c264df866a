"""`threeloops doctor`: report what works on this machine, what does not, and the next step for each.

It tries everything instead of assuming it: kernels are interpreted and compiled, ranks communicate, the sandbox starts.
Each check runs in a separate process (`threeloops_grader.doctor.preflight`), so nothing here imports torch or
initialises CUDA.
"""

import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from threeloops.hardware.capability import Gpu, Machine, capabilities

from threeloops_grader.authoring.labs import course_root
from threeloops_grader.doctor.finding import Finding
from threeloops_grader.doctor.findings import Answer, judge
from threeloops_grader.machine.child_process import run_child
from threeloops_grader.machine.installed import origin, requirements

__all__ = ["Diagnosis", "diagnose", "render"]

_SECONDS = 40.0
"""Enough to import torch from a cold disk on a busy machine: a check that is late is reported as broken."""
_COMPILE = {"TRITON_INTERPRET": None, "THREELOOPS_COMPILE_ONLY": "1"}
_ENVIRONMENT: dict[str, dict[str, str | None]] = {
    "interpreter": {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
    "compiler": {**_COMPILE, "CUDA_VISIBLE_DEVICES": ""},
    "ranks": {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    "gpu": _COMPILE,
}


@dataclass(frozen=True)
class Diagnosis:
    """Everything that the doctor found. `machine` is None if the probe itself failed."""

    findings: tuple[Finding, ...]
    versions: dict[str, str | None]
    machine: Machine | None
    usable_gpus: tuple[int, ...]
    seconds: float

    def __getitem__(self, name: str) -> Finding:
        return next(f for f in self.findings if f.name == name)

    @property
    def can_run(self) -> bool:
        """Whether the course can run: the interpreter alone is enough to earn every point."""
        return self["interpreter"].status == "ok"

    def to_dict(self) -> dict[str, Any]:
        return {"can_run": self.can_run, **asdict(self), "seconds": round(self.seconds, 2)}


def diagnose(seconds: float = _SECONDS, ask: Callable[[str, float], Answer] | None = None) -> Diagnosis:
    """Run all checks within about `seconds`. `ask` runs one check of `preflight`; tests pass their own."""
    started = time.monotonic()

    def tried(check: str) -> Answer:
        return (ask or _ask_child)(check, max(1.0, started + seconds - time.monotonic()))

    names = ("machine", "interpreter", "compiler", "ranks", "cxx", "sandbox", "surroundings")
    with ThreadPoolExecutor(max_workers=3) as workers:
        answers = dict(zip(names, workers.map(tried, names), strict=True))
    machine = _as_machine(answers["machine"]["machine"]) if answers["machine"]["ok"] else None
    report = capabilities(machine) if machine else None
    if report and report.gpu.available:
        answers["gpu"] = tried("gpu")
    wanted = requirements()
    return Diagnosis(
        findings=tuple(judge(answers, machine, report, wanted, shutil.disk_usage(course_root()).free, origin())),
        versions={r.name: r.installed for r in wanted},
        machine=machine,
        usable_gpus=report.usable_devices if report else (),
        seconds=time.monotonic() - started,
    )


def _ask_child(check: str, seconds: float) -> Answer:
    """Return the answer of one check, run in a process of its own. `ok` is false for a crash or a timeout, too."""
    done = run_child(["-m", "threeloops_grader.doctor.preflight", check], seconds, changes=_ENVIRONMENT.get(check))
    return done.answer or {"ok": False, "error": done.why, "late": done.returncode is None}


def _as_machine(record: dict[str, Any]) -> Machine:
    """Return the probe's record, read back from JSON by hand: the doctor runs where only PyTorch's own packages are."""
    gpus = tuple(Gpu(**{**gpu, "capability": tuple(gpu["capability"])}) for gpu in record["gpus"])
    return Machine(**{**record, "gpus": gpus, "supported_archs": tuple(record["supported_archs"])})


def render(diagnosis: Diagnosis, console: Console) -> None:
    """Print the diagnosis as a table of at most one screen."""
    marks = {"ok": "[green]ok[/]", "missing": "[yellow]missing[/]", "broken": "[red]broken[/]"}
    columns = Column(no_wrap=True), Column(no_wrap=True, style="bold"), Column()
    table = Table(*columns, box=None, show_header=False, pad_edge=False)
    for finding in diagnosis.findings:
        step = f" [cyan]→ {finding.next_step}[/]" if finding.next_step else ""
        table.add_row(marks[finding.status], finding.name, finding.sentence.replace("[", r"\[") + step)
    console.print(table)
    if diagnosis.can_run:
        console.print("[green]The course runs here.[/] What is missing is skipped with its reason.")
    else:
        console.print("[red]The course cannot run here yet:[/] it needs the interpreter. Take the step above first.")
