"""A watchdog for hangs: it says which rank is behind, in which collective, and since when.

As in torch's Flight Recorder (torch/csrc/distributed/c10d/FlightRecorder.hpp, analysed by torch/distributed/
flight_recorder), each rank keeps its last collectives in a ring buffer: their number in the group, their sizes, the
line that called them, and when they began and ended. When one takes too long, a thread asks all ranks to write their
buffers down, even ranks that wait for nothing, since the culprit is usually one of them. The culprit is a rank that has
not entered the first collective that others have entered.

    with FlightRecorder() as recorder, Watchdog(recorder, folder, timeout=600):
        train()

prints, on one of the ranks:

    rank 2 has not entered all_reduce #1041 of group world, in which ranks 0, 1, 3 wait for 600.0 s (train.py:88). …

torch's recorder sees the work of NCCL on a GPU. This one sees calls of collectives written as
`torch.distributed.all_reduce(…)`, on any backend. It does not see `send`, `recv`, `isend`, `irecv` or batches of them,
collectives of objects, functional collectives, collectives that torch's own DDP begins in C++, or functions that were
imported by name before the recorder started. A rank that hangs in one of these is reported as not having entered the
next visible one.
"""

import functools
import inspect
import json
import os
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from threeloops.places import source_name
from threeloops.training.cluster.programs.actor import is_library

__all__ = ["Called", "FlightRecorder", "Watchdog", "diagnose", "first_alarm"]

_WATCHED = tuple(
    name
    for name in (
        "all_gather",
        "all_gather_into_tensor",
        "all_gather_single",
        "all_reduce",
        "all_to_all",
        "all_to_all_single",
        "barrier",
        "broadcast",
        "gather",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_single",
        "reduce_scatter_tensor",
        "scatter",
    )
    if hasattr(dist, name)  # torch 2.13 has new names for two of them
)
_UNEVEN = ("all_to_all", "all_to_all_single")
"""Ranks may call them with different numbers of elements, for example if experts get different numbers of tokens."""


@dataclass
class Called:
    """One collective on one rank. `number` counts the collectives of its group from 1. Times are seconds of this rank's
    clock."""

    number: int
    group: str
    ranks: tuple[int, ...]
    what: str
    elements: int
    where: str
    begun: float
    ended: float | None = None

    @property
    def name(self) -> str:
        return f"{self.what} #{self.number} of group {self.group}"


class FlightRecorder:
    """A context that records the last `capacity` collectives that this rank calls.

    Args:
        clock: by default the machine's; on the virtual cluster `threeloops.training.cluster.now`.
    """

    def __init__(self, capacity: int = 256, clock: Callable[[], float] = time.monotonic) -> None:
        if capacity < 1:
            raise ValueError(f"capacity = {capacity}: expected to keep 1 collective or more")
        self._calls: deque[Called] = deque(maxlen=capacity)
        self._lock = threading.Lock()  # a deque that gets another call while it is iterated over raises
        self._numbers: dict[str, int] = defaultdict(int)
        self.clock = clock

    def __enter__(self) -> "FlightRecorder":
        self._plain = {name: getattr(dist, name) for name in _WATCHED}
        for name, function in self._plain.items():
            setattr(dist, name, self._noting(name, function))
        return self

    def __exit__(self, *_: Any) -> None:
        for name, function in self._plain.items():
            setattr(dist, name, function)

    @property
    def calls(self) -> list[Called]:
        """The recorded calls in their current state, oldest first."""
        with self._lock:
            calls = list(self._calls)
        return [replace(call) for call in calls]

    def _noting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def noted(*arguments: Any, **options: Any) -> Any:
            given = signature.bind(*arguments, **options).arguments
            call = self._begin(name, given.get("group"), next(iter(given.values()), None))
            try:
                work = function(*arguments, **options)
            except BaseException:
                call.ended = self.clock()  # a survivor of a lost rank goes on without it
                raise
            if given.get("async_op") and work is not None:
                return _Noted(work, call, self.clock)
            call.ended = self.clock()
            return work

        return noted

    def _begin(self, what: str, group: Any, data: Any) -> Called:
        name = "world" if group is None or group is dist.group.WORLD else group.group_name
        tensors = data if isinstance(data, (list, tuple)) else [data]
        elements = sum(tensor.numel() for tensor in tensors if isinstance(tensor, torch.Tensor))
        ranks = tuple(dist.get_process_group_ranks(group))
        where = _caller()
        begun = self.clock()
        with self._lock:
            self._numbers[name] += 1
            call = Called(self._numbers[name], name, ranks, what, elements, where, begun)
            self._calls.append(call)
        return call


class _Noted:
    """The handle of an asynchronous collective, which ends for the program when it has waited for it."""

    def __init__(self, work: Any, call: Called, clock: Callable[[], float]) -> None:
        self._work = work
        self._call = call
        self._clock = clock

    def wait(self, *arguments: Any, **options: Any) -> Any:
        try:
            return self._work.wait(*arguments, **options)
        finally:
            self._call.ended = self._clock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _caller() -> str:
    frame: Any = sys._getframe(1)
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else f"{source_name(frame.f_code.co_filename)}:{frame.f_lineno}"


def first_alarm(records: Mapping[int, Sequence[Called]], timeout: float) -> float | None:
    """Return when a collective had first taken `timeout` seconds on a rank, or None. The ranks' clocks must agree."""
    late = [
        call.begun + timeout
        for calls in records.values()
        for call in calls
        if call.ended is None or call.ended > call.begun + timeout
    ]
    return min(late, default=None)


def diagnose(records: Mapping[int, Sequence[Called]], at: float, ranks: Iterable[int] = ()) -> str:
    """Say which rank holds up which others, from the records of each rank until `at`. "" if nobody waits.

    Args:
        ranks: all ranks that should have left a record, if some may not have.
    """
    recorded = {rank: [_as_of(call, at) for call in calls if call.begun <= at] for rank, calls in records.items()}
    lines = [
        f"rank {rank} has left no record: its process is gone, or cannot run" for rank in ranks if rank not in recorded
    ]
    waiting = [(call, rank) for rank, calls in recorded.items() for call in calls if call.ended is None]
    for group in sorted({call.group for call, _ in waiting}):
        first = min(call.number for call, _ in waiting if call.group == group)
        inside = {rank: call for call, rank in waiting if (call.group, call.number) == (group, first)}
        lines.append(_about(next(iter(inside.values())), inside, recorded, at))
    return "\n".join(lines)


def _about(call: Called, inside: Mapping[int, Called], recorded: Mapping[int, Sequence[Called]], at: float) -> str:
    """Describe the first collective of a group that has not ended everywhere."""
    since = at - min(entered.begun for entered in inside.values())
    who = _ranks(inside)
    line = _lines(inside.values())
    wait = "waits" if len(inside) == 1 else "wait"
    others = {
        rank: [other for other in recorded.get(rank, []) if other.group == call.group]
        for rank in call.ranks
        if rank not in inside
    }
    absent = [rank for rank, calls in others.items() if not any(other.number >= call.number for other in calls)]
    if absent:
        last = "; ".join(_last(rank, others[rank], at) for rank in absent if rank in recorded)
        have = "has" if len(absent) == 1 else "have"
        return f"{_ranks(absent)} {have} not entered {call.name}, in which {who} {wait} for {since:.1f} s ({line})." + (
            f" {last}" if last else ""
        )
    kinds = defaultdict(list)
    for rank, entered in inside.items():
        kinds[entered.what if entered.what in _UNEVEN else f"{entered.what} of {entered.elements:,}"].append(rank)
    if len(kinds) > 1:
        made = "; ".join(
            f"{_ranks(those)}: {kind} ({_lines(inside[rank] for rank in those)})" for kind, those in kinds.items()
        )
        return f"ranks disagree about collective #{call.number} of group {call.group}: {made}"
    hint = "and the others have left it" if others else "and no rank is behind: look at the network between them"
    return f"{who} {wait} for the end of {call.name} for {since:.1f} s ({line}), {hint}"


def _last(rank: int, calls: Sequence[Called], at: float) -> str:
    if not calls:
        return f"Rank {rank} has entered none of this group that is still on record"
    call = calls[-1]
    when = f"ended {at - call.ended:.1f} s ago" if call.ended is not None else "has not ended"
    return f"The last of rank {rank} was {call.what} #{call.number} ({call.where}), which {when}"


def _as_of(call: Called, at: float) -> Called:
    return replace(call, ended=None) if call.ended is not None and call.ended > at else call


def _ranks(ranks: Iterable[int]) -> str:
    ordered = sorted(ranks)
    return f"rank{'s' * (len(ordered) > 1)} {', '.join(map(str, ordered))}"


def _lines(calls: Iterable[Called]) -> str:
    return ", ".join(sorted({call.where for call in calls if call.where}))


class Watchdog:
    """A thread that makes all ranks write their records into `folder` when a collective takes longer than `timeout`
    seconds on this rank or another. The first rank that asks then reports the result of `diagnose`.

    Use it as a context, after the process group was made. `folder` is shared by all ranks, and new for each start of
    the job.

    Args:
        on_hang: gets the diagnosis. By default it is printed. To have an agent start all ranks again, end the process.
        patience: the seconds that other ranks may take to write, once they have looked.
        poll: seconds between two looks, the same on all ranks.
    """

    def __init__(
        self,
        recorder: FlightRecorder,
        folder: Path | str,
        timeout: float,
        on_hang: Callable[[str], None] | None = None,
        patience: float = 10.0,
        poll: float = 1.0,
    ) -> None:
        if not (timeout > 0 and patience >= 0 and poll > 0):
            raise ValueError(f"timeout = {timeout} s, patience = {patience} s, poll = {poll} s: expected > 0, ≥ 0, > 0")
        self._recorder = recorder
        self._folder = Path(folder)
        self._timeout = timeout
        self._on_hang = on_hang or (lambda message: print(message, file=sys.stderr, flush=True))
        self._patience = patience
        self._poll = poll
        self._rank = dist.get_rank()
        self._size = dist.get_world_size()
        self._stop, self._thread = threading.Event(), threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Watchdog":
        self._folder.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        asked = self._folder / "asked"
        while not self._stop.wait(self._poll):
            calls = self._recorder.calls
            waiting = [call for call in calls if call.ended is None]  # what ended late is none of a watchdog's business
            late = first_alarm({self._rank: waiting}, self._timeout)
            mine = late is not None and late <= self._recorder.clock() and _create(asked)
            if mine or asked.exists():
                self._write(calls)
                if mine:
                    self._on_hang(self._read())
                return

    def _write(self, calls: Sequence[Called]) -> None:
        """Times as seconds before now, since clocks of machines differ."""
        now = self._recorder.clock()
        data = [
            asdict(replace(call, begun=call.begun - now, ended=None if call.ended is None else call.ended - now))
            for call in calls
        ]
        new = self._folder / f"new {self._rank}"
        new.write_text(json.dumps(data))
        os.replace(new, self._folder / f"rank {self._rank}")

    def _read(self) -> str:
        deadline = time.monotonic() + self._poll + self._patience  # others look once per `poll`
        paths = {rank: self._folder / f"rank {rank}" for rank in range(self._size)}
        while time.monotonic() < deadline and not all(path.exists() for path in paths.values()):
            time.sleep(min(self._poll, 0.1))
        records = {
            rank: [Called(**{**call, "ranks": tuple(call["ranks"])}) for call in json.loads(path.read_text())]
            for rank, path in paths.items()
            if path.exists()
        }
        return diagnose(records, 0.0, range(self._size))


def _create(path: Path) -> bool:
    """Whether this call made the file."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
