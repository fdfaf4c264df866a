"""`make evidence`: measure what this machine can measure and write it down, with the reason for all that it cannot.

Needs no network and no `.git`, installs nothing, and writes neither host name nor paths. The parts come in three
groups, the most valuable first: faults (the tests of the GPU, every kernel against float64, every lab), numbers (times
and rates), and the record (what a class and the kernels look like beside other tools). Each part runs in a process of
its own within a limit; a part that fails, hangs or crashes never stops the others. A call ends within its budget, what
was measured is on disk as soon as it is known, and the next call goes on from there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from rich.console import Console
from rich.markup import escape
from threeloops.files import replace_text

from grader.doctor.doctor import Diagnosis, diagnose
from grader.evidence.counters import hardware_counters
from grader.evidence.parts import (
    Failed,
    Group,
    Part,
    Skipped,
    Unfinished,
    benchmark,
    kernel_errors,
    kernel_times,
    solution,
)
from grader.evidence.rows import begin
from grader.evidence.tests import gpu_tests
from grader.machine.child import CODE
from grader.machine.provenance import Device, Provenance, anonymous, course, provenance

EVIDENCE = CODE / "benchmarks" / "evidence"
BUDGET = 525.0
"""Seconds of one call. Machines that are lent by the call often give ten minutes, set-up included."""
DOCTOR_SECONDS = 150.0
"""The first import of torch on a cold machine alone may take a minute."""
LEAST_SECONDS = 5.0
"""A part that would get less than this is not begun."""
ERROR_SHARES = 8
MOST_AT_ONCE = 8
BYTES_EACH = 12 << 30
"""Memory of the GPU for each part that runs beside others."""


@dataclass(frozen=True)
class Outcome:
    """What became of one part; `reason` is empty where the status is ok. Another call tries what is not `finished`."""

    name: str
    status: Literal["ok", "SKIPPED", "failed"]
    reason: str
    seconds: float
    result: Any = None
    finished: bool = True


@dataclass
class Evidence:
    """What is known of one device, from one call or several. `complete`: no part is left for another call."""

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

    @property
    def rows(self) -> Path:
        """Where parts keep rows until all are finished."""
        return self.folder / "unfinished"

    def note(self, outcome: Outcome) -> None:
        """Put an outcome in the place of an earlier one of the same part, and write everything down."""
        self.outcomes = [o for o in self.outcomes if o.name != outcome.name] + [outcome]
        self.write()

    def finished(self, part: Part) -> bool:
        return any(o.name == part.name and o.finished for o in self.outcomes)

    def write(self) -> None:
        about = {**asdict(self.provenance), "verified_on": self.provenance.verified_on}
        parts = [asdict(o) for o in self.outcomes]
        self.folder.mkdir(parents=True, exist_ok=True)
        found = anonymous({"provenance": about, "complete": self.complete, "parts": parts})
        replace_text(self.path, json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


class NoSuchDevice(Exception):
    """The device that was asked for is not here, or the machine could not be read at all."""


class NoSuchPart(Exception):
    """`--part` names neither a part nor a group; the message lists both."""


def collect(
    device: str = "auto",
    out: Path = EVIDENCE,
    console: Console | None = None,
    wanted: Sequence[str] = (),
    budget: float = BUDGET,
) -> int:
    """Collect evidence on `device` ("auto", "cpu" or "cuda") below `out` for at most `budget` seconds, saying how it
    goes: all parts, or those that are `wanted` by their name or their group.

    Returns the exit code: 0 nothing failed, 1 a part failed (the others are written), 2 the device or part is not here.
    """
    console = console or Console()
    try:
        evidence = gather(device, out, console, wanted, budget)
    except (NoSuchDevice, NoSuchPart) as error:
        console.print(f"[red]evidence:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        return 2
    _summarise(evidence, console)
    return 1 if evidence.failed else 0


def gather(device: str, out: Path, console: Console, wanted: Sequence[str] = (), budget: float = BUDGET) -> Evidence:
    """Run the parts that no earlier call has finished, each for as long as it may and as is left of the budget. Where
    all of them are finished they are done anew.

    Raises:
        NoSuchDevice: `device` is "cuda" and no GPU can be used.
        NoSuchPart: `wanted` names none.
    """
    deadline = time.monotonic() + budget
    diagnosis = diagnose(seconds=min(DOCTOR_SECONDS, budget))
    about = choose(diagnosis, device)
    gpu = diagnosis["gpu"]
    if device == "auto" and about.device == "cpu" and gpu.status == "broken":
        said = f"The CPU is measured, since the GPU cannot be used: {gpu.sentence}"
        console.print(f"[bold yellow]{escape(said)}[/]", highlight=False, soft_wrap=True)
    evidence = resumed(about, out / about.slug)
    parts = list(plan(diagnosis, about.device, evidence.folder))
    chosen = selected(parts, wanted)
    undone = [part for part in chosen if not evidence.finished(part)]
    if not undone:
        undone = chosen
        for part in chosen:
            if part.rows:
                part.rows.unlink(missing_ok=True)
    _announce(undone, len(chosen), deadline - time.monotonic(), console)
    examined = Outcome("doctor", "ok", "", round(diagnosis.seconds, 2), diagnosis.to_dict())
    if not diagnosis.can_run:
        examined = Outcome("doctor", "failed", diagnosis["interpreter"].sentence, examined.seconds, examined.result)
    evidence.complete = False
    _note(evidence, examined, console)
    for batch in batches(undone):
        for outcome in attempts(batch, deadline, side_by_side(about), about.key):
            _note(evidence, outcome, console)
    evidence.complete = all(map(evidence.finished, parts))
    evidence.write()
    if evidence.complete:
        shutil.rmtree(evidence.rows, ignore_errors=True)
    return evidence


def plan(diagnosis: Diagnosis, device: Device, folder: Path) -> Iterator[Part]:
    """All parts, the most valuable first: what is left out when time runs out stands last."""
    gpu, sandbox = diagnosis["gpu"], diagnosis["sandbox"]
    no_gpu = gpu.sentence if gpu.status != "ok" else "the CPU was asked for"
    rows = folder / "unfinished"
    yield gpu_tests(device, no_gpu, rows / "gpu_tests.jsonl")
    for i in range(ERROR_SHARES):
        yield kernel_errors(device, no_gpu, rows / f"kernel_errors_{i}.jsonl", (i, ERROR_SHARES))
    for slug in labs():
        yield solution(slug, device)
    yield benchmark("roofline", device, folder, group="numbers")
    yield kernel_times(device, no_gpu, rows / "kernel_times.jsonl")
    yield benchmark("precision", device, folder, group="numbers")
    yield hardware_counters(device, no_gpu)
    yield benchmark("memory", device, folder, group="numbers")
    yield benchmark("grading", device, folder, None if sandbox.status == "ok" else sandbox.sentence)
    yield benchmark("kernels", device, folder)


def selected(parts: Sequence[Part], wanted: Sequence[str]) -> list[Part]:
    """The parts that are meant by their names or by the names of their groups; all where nothing is named."""
    for name in wanted:
        if not any(name in (part.name, part.group) for part in parts):
            known = ", ".join([*get_args(Group), *(part.name for part in parts)])
            raise NoSuchPart(f"there is no part {name!r}; the groups and parts are {known}")
    return [part for part in parts if not wanted or part.name in wanted or part.group in wanted]


def batches(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Parts that may run beside each other, in the order given: one that times something is a batch of its own."""
    batch: list[Part] = []
    for part in parts:
        if part.alone and batch:
            yield batch
            batch = []
        batch.append(part)
        if part.alone:
            yield batch
            batch = []
    if batch:
        yield batch


def side_by_side(about: Provenance) -> int:
    """How many parts the machine bears at a time: two cores each, and some of the GPU's memory."""
    cores = (os.cpu_count() or 1) // 2
    room = about.memory_bytes // BYTES_EACH if about.device == "cuda" else MOST_AT_ONCE
    return max(1, min(MOST_AT_ONCE, cores, room))


def attempts(parts: Sequence[Part], deadline: float, at_once: int, about: str) -> Iterator[Outcome]:
    """The outcomes of these parts as they come; `about` says what their rows hold for."""
    for part in parts:
        if part.rows:
            begin(part.rows, about)
    if len(parts) == 1 or at_once == 1:
        for part in parts:
            yield attempt_until(part, deadline)
        return
    with ThreadPoolExecutor(at_once) as pool:
        waiting = [pool.submit(attempt_until, part, deadline) for part in parts]
        for done in as_completed(waiting):
            yield done.result()


def resumed(about: Provenance, folder: Path) -> Evidence:
    """What earlier calls found on this device with the same sources and packages; nothing where either has changed."""
    fresh = Evidence(about, folder)
    try:
        found = json.loads(fresh.path.read_text(encoding="utf-8"))
        now = anonymous(json.loads(about.key))
        then = {name: found["provenance"].get(name) for name in now} | {"recorded": None}
        if then == now:
            fresh.outcomes = [Outcome(**part) for part in found["parts"]]
    except (OSError, ValueError, KeyError, TypeError):  # no file, or one of an older form: measured anew
        fresh.outcomes = []
    return fresh


def labs() -> list[str]:
    """The course's labs by the names of their folders, as `authoring.labs.all_labs` finds them; needs no jupytext."""
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


def attempt_until(part: Part, deadline: float) -> Outcome:
    """Run one part that may begin later than now; `deadline` by `time.monotonic`."""
    return attempt(part, deadline - time.monotonic())


def attempt(part: Part, seconds_left: float) -> Outcome:
    """Run one part; whatever happens to it becomes its outcome."""
    if seconds_left < LEAST_SECONDS:
        return Outcome(part.name, "SKIPPED", "the time for collecting evidence was used up", 0.0, finished=False)
    started, result, finished = time.monotonic(), None, True
    status: Literal["ok", "SKIPPED", "failed"] = "ok"
    try:
        result, reason = part.run(min(part.seconds, seconds_left)), ""
    except Skipped as why:
        status, reason, result = "SKIPPED", str(why), why.result
    except Failed as why:
        status, reason, result, finished = "failed", str(why), why.result, not why.again
    except Unfinished as why:
        cut_off = seconds_left < part.seconds
        status, result, finished = (
            "SKIPPED" if cut_off else "failed",
            why.result,
            not (cut_off or part.rows or why.again),
        )
        reason = str(why)
        if cut_off:
            reason += f": the budget of the call left {seconds_left:.0f} s, and the part may take {part.seconds:.0f} s"
    except Exception as error:  # a fault of ours is still no reason to lose the other parts
        status, reason = "failed", f"{type(error).__name__}: {error}"
    return Outcome(part.name, status, reason, round(time.monotonic() - started, 2), result, finished)


def _announce(parts: Sequence[Part], of: int, seconds: float, console: Console) -> None:
    """The plan: what comes, in which order, and the most that each part may take."""
    console.print(f"{len(parts)} of {of} parts to do, {seconds:.0f} s left in this call:", highlight=False)
    for group in get_args(Group):
        here = [f"{part.name} ≤ {part.seconds:.0f} s" for part in parts if part.group == group]
        if here:
            console.print(f"  {group}: {' · '.join(here)}", highlight=False, soft_wrap=True)


def _note(evidence: Evidence, outcome: Outcome, console: Console) -> None:
    evidence.note(outcome)
    console.print(_line(outcome), highlight=False)


def _line(outcome: Outcome) -> str:
    colour = {"ok": "green", "SKIPPED": "yellow", "failed": "red"}[outcome.status]
    reason = f"  {escape(outcome.reason)}" if outcome.reason else ""
    return f"[{colour}]{outcome.status:<7}[/] {outcome.name} [dim]{outcome.seconds:.0f} s[/]{reason}"


def _summarise(evidence: Evidence, console: Console) -> None:
    """The last lines, for whoever sees only the end of the output."""
    left = [outcome for outcome in evidence.outcomes if not outcome.finished]
    good = sum(outcome.status == "ok" for outcome in evidence.outcomes)
    console.print(f"\n{good} of {len(evidence.outcomes)} parts are well on {evidence.provenance.verified_on}.")
    for outcome in evidence.failed:
        console.print(_line(outcome), highlight=False)
    if left:
        names = ", ".join(outcome.name for outcome in left)
        console.print(f"Left for another call of the same command: {names}", markup=False, highlight=False)
    console.print(f"Written to {evidence.path}", markup=False, highlight=False, soft_wrap=True)
