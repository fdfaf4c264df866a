"""`make evidence`: measure what this machine can measure, and record why the rest could not be measured.

It needs no network and no `.git`, installs nothing, and writes neither the host's name nor paths. The parts come in
three groups, the most valuable first: faults (the GPU tests, every kernel against float64, every lab), numbers (times
and rates) and the record (a graded class, and the kernels beside other tools). Each part runs in a process of its own
with a time limit, so one that fails, hangs or crashes does not stop the others. A call ends within its budget. Results
are written as soon as they are known, and the next call continues from there.
"""

import itertools
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from rich.console import Console
from rich.markup import escape
from threeloops.files import replace_text

from threeloops_grader.authoring.labs import all_labs
from threeloops_grader.doctor.doctor import Diagnosis, diagnose
from threeloops_grader.evidence.counters import hardware_counters
from threeloops_grader.evidence.gpu_tests import gpu_tests
from threeloops_grader.evidence.parts import (
    Group,
    NotDone,
    Part,
    Unfinished,
    benchmark,
    kernel_errors,
    kernel_times,
    solution,
)
from threeloops_grader.evidence.rehearsal import rehearse
from threeloops_grader.evidence.result_rows import begin
from threeloops_grader.machine.provenance import Device, Provenance, anonymous, provenance

__all__ = ["CannotCollect", "collect", "dry_run"]

_BUDGET = 525.0
"""Seconds per call. Machines that are lent by the call often give ten minutes, including their start."""
_DOCTOR_SECONDS = 150.0
"""The doctor's time limit. On a cold machine the first import of torch alone may take a minute."""
_LEAST_SECONDS = 5.0
"""A part is not started with less time than this."""
_ERROR_SHARES = 8
_MOST_AT_ONCE = 8
_BYTES_EACH = 12 << 30
"""GPU memory per part, if several run at the same time."""
_SOFTWARE = ("recorded", "commit", "modified", "sources_sha256", "versions")
"""The entries of a provenance that say which software measured, and when."""
_ROWS = "unfinished"
"""The folder in which parts keep rows until all parts are finished."""

_Status = Literal["ok", "SKIPPED", "failed"]


@dataclass(frozen=True)
class _Outcome:
    """The outcome of one part. `reason` is empty if the status is ok. The next call retries a part that is not
    `finished`.

    `earlier` is the software with which it was measured, if that is not the software of the last call. Such an outcome
    is kept until the part has run again, and it is not finished.
    """

    name: str
    status: _Status
    reason: str
    seconds: float
    result: Any = None
    finished: bool = True
    earlier: dict[str, Any] | None = None


@dataclass
class _Evidence:
    """The outcomes on one device, from one call or several. `complete`: no part is left for another call."""

    provenance: Provenance
    folder: Path
    outcomes: list[_Outcome] = field(default_factory=list)
    complete: bool = False

    @property
    def path(self) -> Path:
        return self.folder / "evidence.json"

    @property
    def failed(self) -> list[_Outcome]:
        return [o for o in self.outcomes if o.status == "failed"]

    def finished(self, part: Part) -> bool:
        return any(o.name == part.name and o.finished for o in self.outcomes)

    def note(self, outcome: _Outcome, console: Console) -> None:
        """Print an outcome, replace an earlier one of the same part by it, and write everything to disk."""
        self.outcomes = [o for o in self.outcomes if o.name != outcome.name] + [outcome]
        self.write()
        console.print(_line(outcome), highlight=False)

    def write(self) -> None:
        about = {**asdict(self.provenance), "verified_on": self.provenance.verified_on}
        parts = [asdict(o) for o in self.outcomes]
        self.folder.mkdir(parents=True, exist_ok=True)
        contents = anonymous({"provenance": about, "complete": self.complete, "parts": parts})
        replace_text(self.path, json.dumps(contents, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


class CannotCollect(Exception):
    """There is no such device or part. The message lists the existing ones."""


def collect(
    device: str, out: Path, console: Console, wanted: Sequence[str] = (), budget: float = _BUDGET
) -> Literal[0, 1, 2]:
    """Collect evidence on `device` ("auto", "cpu" or "cuda") in a folder below `out`, for at most `budget` seconds.

    Runs the parts that no earlier call has finished, out of all of them or of those that `wanted` names by part or
    group. If all are finished, they run again. Returns the exit code: 0 nothing failed, 1 a part failed (the others are
    written), 2 there is no such device or part.
    """
    deadline = time.monotonic() + budget
    diagnosis = diagnose(seconds=min(_DOCTOR_SECONDS, budget))
    try:
        about = _choose(diagnosis, device)
        evidence = _resumed(about, out / about.slug)
        gpu = diagnosis["gpu"]
        sandbox = diagnosis["sandbox"]
        no_gpu = gpu.sentence if gpu.status != "ok" else "the CPU was asked for" if about.device == "cpu" else ""
        no_sandbox = "" if sandbox.status == "ok" else sandbox.sentence
        parts = list(_plan(no_gpu, no_sandbox, about.device, evidence.folder))
        chosen = _selected(parts, wanted)
    except CannotCollect as error:
        console.print(f"[red]evidence:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        return 2
    if device == "auto" and about.device == "cpu" and gpu.status == "broken":
        notice = f"The CPU is measured, since the GPU cannot be used: {gpu.sentence}"
        console.print(f"[bold yellow]{escape(notice)}[/]", highlight=False, soft_wrap=True)
    undone = [part for part in chosen if not evidence.finished(part)]
    if not undone:
        undone = chosen
        for part in chosen:
            if part.rows:
                part.rows.unlink(missing_ok=True)
    _announce(undone, len(chosen), deadline - time.monotonic(), console)
    evidence.complete = False
    why = "" if diagnosis.can_run else diagnosis["interpreter"].sentence
    seconds = round(diagnosis.seconds, 2)
    evidence.note(_Outcome("doctor", "failed" if why else "ok", why, seconds, diagnosis.to_dict()), console)
    for batch in _batches(undone):
        for outcome in _attempts(batch, deadline, _side_by_side(about), about.key):
            evidence.note(outcome, console)
    evidence.complete = all(map(evidence.finished, parts))
    evidence.write()
    if evidence.complete:
        shutil.rmtree(evidence.folder / _ROWS, ignore_errors=True)
    _summarise(evidence, console)
    return 1 if evidence.failed else 0


def dry_run(device: str, out: Path, console: Console, wanted: Sequence[str] = ()) -> Literal[0, 1, 2]:
    """Print the commands that `collect` would run if everything works, and check that the modules and files in them
    exist.

    Returns the exit code: 0 everything exists, 1 something is missing, 2 there is no such part.
    """
    no_gpu = "the CPU was asked for" if device == "cpu" else ""
    try:
        parts = _selected(list(_plan(no_gpu, "", "cpu" if device == "cpu" else "cuda", out)), wanted)
    except CannotCollect as error:
        console.print(f"[red]evidence:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        return 2
    complete = True
    for line, missing in (rehearsed for part in parts for rehearsed in rehearse(part)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
        for reason in missing:
            complete = False
            console.print(f"  {reason}", style="red", markup=False, highlight=False, soft_wrap=True)
    return 0 if complete else 1


def _choose(diagnosis: Diagnosis, device: str) -> Provenance:
    """Choose where to measure. A GPU counts only if a kernel has run on it. Raises CannotCollect."""
    if diagnosis.machine is None:
        raise CannotCollect(f"{diagnosis['platform'].sentence}; without that no number has a device")
    works = diagnosis["gpu"].status == "ok"
    if device == "cuda" and not works:
        raise CannotCollect(f"no GPU to measure on: {diagnosis['gpu'].sentence}; --device cpu measures without")
    if device == "cpu" or not works:
        return provenance(diagnosis.machine, "cpu")
    return provenance(diagnosis.machine, "cuda", diagnosis.usable_gpus[0])


def _resumed(about: Provenance, folder: Path) -> _Evidence:
    """Return the outcomes of earlier calls on this device. Parts measured with other sources or packages must run
    again."""
    fresh = _Evidence(about, folder)
    with suppress(OSError, ValueError, KeyError, TypeError):  # no file, or one in an older format: measure again
        before = json.loads(fresh.path.read_text(encoding="utf-8"))
        then = before["provenance"]
        now = anonymous(json.loads(about.key))
        changed = {name for name in now if then.get(name) != now[name]} - {"recorded"}
        if changed <= set(_SOFTWARE):
            fresh.outcomes = [_Outcome(**part) for part in before["parts"]]
            if changed:
                software = {name: then.get(name) for name in _SOFTWARE}
                fresh.outcomes = [replace(o, finished=False, earlier=o.earlier or software) for o in fresh.outcomes]
    return fresh


def _plan(no_gpu: str, no_sandbox: str, device: Device, folder: Path) -> Iterator[Part]:
    """Yield all parts, the most valuable first, so that the least valuable are left out when time runs out."""
    rows = folder / _ROWS
    yield gpu_tests(no_gpu, rows / "gpu_tests.jsonl")
    for i in range(_ERROR_SHARES):
        yield kernel_errors(no_gpu, rows / f"kernel_errors_{i}.jsonl", (i, _ERROR_SHARES))
    for lab in all_labs():
        yield solution(lab.slug, device)
    yield benchmark("roofline", device, folder, group="numbers")
    yield kernel_times(no_gpu, rows / "kernel_times.jsonl")
    yield benchmark("precision", device, folder, group="numbers")
    yield hardware_counters(no_gpu)
    yield benchmark("attention_backward", device, folder, no_gpu, group="numbers")
    yield benchmark("sustained", device, folder, no_gpu, group="numbers")
    yield benchmark("memory", device, folder, group="numbers")
    yield benchmark("grading", device, folder, no_sandbox)
    yield benchmark("kernels", device, folder)


def _selected(parts: Sequence[Part], wanted: Sequence[str]) -> list[Part]:
    """Return the parts whose name or group is `wanted`, or all if none is named. Raises CannotCollect."""
    for name in wanted:
        if not any(name in (part.name, part.group) for part in parts):
            choices = ", ".join([*get_args(Group), *(part.name for part in parts)])
            raise CannotCollect(f"there is no part {name!r}; the groups and parts are {choices}")
    return [part for part in parts if not wanted or part.name in wanted or part.group in wanted]


def _batches(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Group parts that may run at the same time, in the given order. A part that times something is a batch of its
    own."""
    for alone, group in itertools.groupby(parts, lambda part: part.alone):
        batch = list(group)
        yield from ([part] for part in batch) if alone else [batch]


def _side_by_side(about: Provenance) -> int:
    """Return how many parts may run at the same time: each needs two cores, and memory of the GPU."""
    cores = (os.cpu_count() or 1) // 2
    room = about.memory_bytes // _BYTES_EACH if about.device == "cuda" else _MOST_AT_ONCE
    return max(1, min(_MOST_AT_ONCE, cores, room))


def _attempts(parts: Sequence[Part], deadline: float, at_once: int, about: str) -> Iterator[_Outcome]:
    """Yield the outcomes of these parts as they finish. `about` says what their rows apply to, and `deadline` is
    monotonic time."""

    def until_deadline(part: Part) -> _Outcome:
        return _attempt(part, deadline - time.monotonic())

    for part in parts:
        if part.rows:
            begin(part.rows, about)
    if len(parts) == 1 or at_once == 1:
        yield from map(until_deadline, parts)
        return
    with ThreadPoolExecutor(at_once) as pool:
        for done in as_completed([pool.submit(until_deadline, part) for part in parts]):
            yield done.result()


def _attempt(part: Part, seconds_left: float) -> _Outcome:
    """Run one part. Anything that happens to it becomes its outcome."""
    if part.unavailable:
        return _Outcome(part.name, "SKIPPED", part.unavailable, 0.0)
    if seconds_left < _LEAST_SECONDS:
        return _Outcome(part.name, "SKIPPED", "the time for collecting evidence was used up", 0.0, finished=False)
    started = time.monotonic()
    reason = ""
    result = None
    finished = True
    status: _Status = "ok"
    try:
        result = part.run(min(part.seconds, seconds_left))
    except NotDone as why:
        status, reason, result, finished = why.status, str(why), why.result, not why.again
        if isinstance(why, Unfinished) and part.rows:
            finished = False
        if isinstance(why, Unfinished) and seconds_left < part.seconds:
            status = "SKIPPED"
            finished = False
            reason += f": the budget of the call left {seconds_left:.0f} s, and the part may take {part.seconds:.0f} s"
    except Exception as error:  # even a fault of this harness must not cost the other parts
        status, reason = "failed", f"{type(error).__name__}: {error}"
    return _Outcome(part.name, status, reason, round(time.monotonic() - started, 2), result, finished)


def _announce(parts: Sequence[Part], of: int, seconds: float, console: Console) -> None:
    console.print(f"{len(parts)} of {of} parts to do, {seconds:.0f} s left in this call:", highlight=False)
    for group in get_args(Group):
        here = [f"{part.name} ≤ {part.seconds:.0f} s" for part in parts if part.group == group]
        if here:
            console.print(f"  {group}: {' · '.join(here)}", highlight=False, soft_wrap=True)


def _line(outcome: _Outcome) -> str:
    colour = {"ok": "green", "SKIPPED": "yellow", "failed": "red"}[outcome.status]
    reason = f"  {escape(outcome.reason)}" if outcome.reason else ""
    return f"[{colour}]{outcome.status:<7}[/] {outcome.name} [dim]{outcome.seconds:.0f} s[/]{reason}"


def _summarise(evidence: _Evidence, console: Console) -> None:
    """Print the last lines, which name the failures for a reader who sees only the end of the output."""
    good = sum(outcome.status == "ok" for outcome in evidence.outcomes)
    console.print(f"\n{good} of {len(evidence.outcomes)} parts are well on {evidence.provenance.verified_on}.")
    for outcome in evidence.failed:
        console.print(_line(outcome), highlight=False)
    if unfinished := ", ".join(outcome.name for outcome in evidence.outcomes if not outcome.finished):
        console.print(f"Left for another call of the same command: {unfinished}", markup=False, highlight=False)
    console.print(f"Written to {evidence.path}", markup=False, highlight=False, soft_wrap=True)
