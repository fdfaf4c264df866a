"""`make evidence`: measure what this machine can measure and write it down, with the reason for all that it cannot.

Needs no network and no `.git`, installs nothing, and writes neither host name nor paths. Each part runs in a process of
its own within a limit; a part that fails, hangs or crashes never stops the others. What was measured is on disk as soon
as its part is done.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from threeloops.files import replace_text

from grader.child import CODE
from grader.doctor import Diagnosis, diagnose
from grader.evidence_parts import Failed, Part, Skipped, benchmark, gpu_tests, solution
from grader.provenance import Device, Provenance, anonymous, course, provenance

EVIDENCE = CODE / "benchmarks" / "evidence"
CPU_SECONDS, GPU_SECONDS = 340.0, 450.0
DOCTOR_SECONDS = 60.0
LEAST_SECONDS = 5.0
"""A part that would get less than this is not begun."""


@dataclass(frozen=True)
class Outcome:
    """What became of one part; `reason` is empty where the status is ok."""

    name: str
    status: Literal["ok", "SKIPPED", "failed"]
    reason: str
    seconds: float
    result: Any = None


@dataclass
class Evidence:
    """One run on one device. `complete` is false in the file of a run that was cut off."""

    provenance: Provenance
    folder: Path
    outcomes: list[Outcome] = field(default_factory=list)
    complete: bool = False

    @property
    def failed(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.status == "failed"]

    @property
    def path(self) -> Path:
        return self.folder / "evidence.json"

    def write(self) -> None:
        about = {**asdict(self.provenance), "verified_on": self.provenance.verified_on}
        parts = [asdict(o) for o in self.outcomes]
        self.folder.mkdir(parents=True, exist_ok=True)
        found = anonymous({"provenance": about, "complete": self.complete, "parts": parts})
        replace_text(self.path, json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


class NoSuchDevice(Exception):
    """The device that was asked for is not here, or the machine could not be read at all."""


def collect(device: str = "auto", out: Path = EVIDENCE, console: Console | None = None) -> int:
    """Collect evidence on `device` ("auto", "cpu" or "cuda") below `out`, saying how it goes.

    Returns the exit code: 0 nothing failed, 1 a part failed (the others are written), 2 the device is not here.
    """
    console = console or Console()
    try:
        evidence = gather(device, out, console)
    except NoSuchDevice as error:
        console.print(f"[red]evidence:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        return 2
    console.print(f"Written to {evidence.path}", markup=False, highlight=False, soft_wrap=True)
    return 1 if evidence.failed else 0


def gather(device: str, out: Path, console: Console, total_seconds: float | None = None) -> Evidence:
    """Run every part, each for as long as it may and as is left of the whole.

    Raises:
        NoSuchDevice: `device` is "cuda" and no GPU can be used.
    """
    started = time.monotonic()
    diagnosis = diagnose(seconds=DOCTOR_SECONDS)
    about = choose(diagnosis, device)
    evidence = Evidence(about, out / about.slug)
    examined = Outcome("doctor", "ok", "", round(diagnosis.seconds, 2), diagnosis.to_dict())
    if not diagnosis.can_run:
        examined = Outcome("doctor", "failed", diagnosis["interpreter"].sentence, examined.seconds, examined.result)
    _note(evidence, examined, console)
    deadline = started + (total_seconds or (CPU_SECONDS if about.device == "cpu" else GPU_SECONDS))
    for part in plan(diagnosis, about.device, evidence.folder):
        _note(evidence, attempt(part, deadline - time.monotonic()), console)
    evidence.complete = True
    evidence.write()
    return evidence


def plan(diagnosis: Diagnosis, device: Device, folder: Path) -> Iterator[Part]:
    """The parts, in order of importance: what is left out when time runs out stands last."""
    gpu, sandbox = diagnosis["gpu"], diagnosis["sandbox"]
    yield gpu_tests(device, gpu.sentence if gpu.status != "ok" else "the CPU was asked for")
    yield benchmark("roofline", device, folder)
    for slug in labs():
        yield solution(slug, device)
    yield benchmark("grading", device, folder, None if sandbox.status == "ok" else sandbox.sentence)


def labs() -> list[str]:
    """The course's labs by the names of their folders, as `grader.labs.all_labs` finds them; needs no jupytext."""
    folders = sorted((course() / "solutions").glob("[0-9][0-9]_*"))
    return [p.name for p in folders if re.fullmatch(r"\d\d_[a-z0-9_]+", p.name) and (p / f"{p.name}.py").is_file()]


def choose(diagnosis: Diagnosis, device: str) -> Provenance:
    """Where to measure. A GPU counts only where a kernel really ran on it."""
    if diagnosis.machine is None:
        raise NoSuchDevice(f"{diagnosis['platform'].sentence}; without that no number has a device")
    works = diagnosis["gpu"].status == "ok"
    if device == "cuda" and not works:
        raise NoSuchDevice(f"no GPU to measure on: {diagnosis['gpu'].sentence}; --device cpu measures without")
    if device == "cpu" or not works:
        return provenance(diagnosis.machine, "cpu")
    return provenance(diagnosis.machine, "cuda", diagnosis.usable_gpus[0])


def attempt(part: Part, seconds_left: float) -> Outcome:
    """Run one part; whatever happens to it becomes its outcome."""
    if seconds_left < LEAST_SECONDS:
        return Outcome(part.name, "SKIPPED", "the time for collecting evidence was used up", 0.0)
    started, result = time.monotonic(), None
    status: Literal["ok", "SKIPPED", "failed"] = "ok"
    try:
        result, reason = part.run(min(part.seconds, seconds_left)), ""
    except Skipped as why:
        status, reason = "SKIPPED", str(why)
    except Failed as why:
        status, reason = "failed", str(why)
    except Exception as error:  # a fault of ours is still no reason to lose the other parts
        status, reason = "failed", f"{type(error).__name__}: {error}"
    return Outcome(part.name, status, reason, round(time.monotonic() - started, 2), result)


def _note(evidence: Evidence, outcome: Outcome, console: Console) -> None:
    evidence.outcomes.append(outcome)
    evidence.write()
    colour = {"ok": "green", "SKIPPED": "yellow", "failed": "red"}[outcome.status]
    reason = f"  {escape(outcome.reason)}" if outcome.reason else ""
    line = f"[{colour}]{outcome.status:<7}[/] {outcome.name} [dim]{outcome.seconds:.0f} s[/]{reason}"
    console.print(line, highlight=False)
