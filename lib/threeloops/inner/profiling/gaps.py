"""Gaps: the times when a device had nothing to do, and why.

A GPU works off a queue that the host fills. It idles when the queue runs dry, because the next kernel was launched too
late (launch-bound), because the host waited for the device and queued nothing (host synchronisation), or for another
reason: the host was busy outside all operators, or a queued kernel waited on the device itself.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from threeloops.inner.profiling.trace import LAUNCH, ON_DEVICE, CallTree, Event, is_python, launches, python_place

__all__ = ["Cause", "Gap", "find_gaps"]

Cause = Literal["launch-bound", "host synchronisation", "other"]
_Interval = tuple[float, float]

_WAITS_FOR_DEVICE = {
    "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaFree", "cudaFreeHost",
    "cudaMemcpy", "cudaMemcpy2D", "cudaMemcpy3D", "cudaMemcpyPeer", "cudaMemcpyFromSymbol", "cudaMemcpyToSymbol",
    "cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize", "cuMemFree_v2", "cuMemFreeHost",
    "cuMemcpy", "cuMemcpyDtoH_v2", "cuMemcpyHtoD_v2", "cuMemcpyDtoD_v2",
    "hipDeviceSynchronize", "hipStreamSynchronize", "hipEventSynchronize", "hipFree", "hipHostFree",
    "hipMemcpy", "hipMemcpy2D", "hipMemcpyWithStream", "hipMemcpyDtoH", "hipMemcpyHtoD", "hipMemcpyPeer",
}  # fmt: skip
"""Calls that always block the host."""
_PAGEABLE = "Pageable"
"""Part of the name of a copy to or from unpinned memory. Its call blocks the host, even if named "Async"."""


@dataclass(frozen=True)
class Gap:
    """An idle stretch (microseconds) between the end of `before` and the start of `after`."""

    start_us: float
    duration_us: float
    cause: Cause
    reason: str
    before: str
    after: str
    device: int | str = 0


def find_gaps(
    events: Sequence[Event], device: str, *, minimum_us: float = 1.0, issue_limit_us: float = 100.0
) -> tuple[Gap, ...]:
    """Find idle stretches of at least `minimum_us` between the first and the last work, in the order of time.

    On a GPU ("cuda"): times when no kernel, copy or memset ran on any stream of it; each GPU has gaps of its own. On a
    CPU: times when the thread that ran most of the operators was in none. A host that ran no operator for longer than
    `issue_limit_us` is judged to have done something other than issuing work, for which Python takes some microseconds;
    on a CPU only this limit distinguishes "launch-bound" from "other". If the trace has calls of Python
    (`with_stack=True`), the reason names the innermost one that took at least half of the time.

    Raises ValueError for negative limits.
    """
    for name, value in (("minimum_us", minimum_us), ("issue_limit_us", issue_limit_us)):
        if value < 0:
            raise ValueError(f"{name} = {value}: expected microseconds ≥ 0")
    tree = CallTree(events)
    python = CallTree(events, is_python)
    if device == "cpu":
        return _cpu_gaps(tree, python, minimum_us, issue_limit_us)
    return _gpu_gaps(events, tree, python, minimum_us, issue_limit_us)


def _cpu_gaps(tree: CallTree, python: CallTree, minimum_us: float, issue_limit_us: float) -> tuple[Gap, ...]:
    if not tree.roots:
        return ()
    busiest = max(tree.roots, key=lambda thread: sum(root.event.duration_us for root in tree.roots[thread]))
    gaps = []
    for before, after in _idle_between([root.event for root in tree.roots[busiest]], minimum_us):
        duration = after.start_us - before.end_us
        cause: Cause = "other" if duration > issue_limit_us else "launch-bound"
        place = python_place(python.during(busiest, before.end_us, after.start_us))
        if cause == "other":
            reason = _was_away(duration, issue_limit_us, place)
        else:
            inside = f", in {place}," if place else ""
            reason = f"{duration:.1f} µs passed in Python and dispatch{inside} before {after.name} was called"
        gaps.append(Gap(before.end_us, duration, cause, reason, before.name, after.name))
    return tuple(gaps)


def _gpu_gaps(
    events: Sequence[Event], tree: CallTree, python: CallTree, minimum_us: float, issue_limit_us: float
) -> tuple[Gap, ...]:
    launched_by = launches(events)
    blocking = {e.correlation for e in events if e.category in ON_DEVICE and _PAGEABLE in e.name} - {-1}
    waits = [e for e in events if e.name in _WAITS_FOR_DEVICE or (e.category in LAUNCH and e.correlation in blocking)]
    host_calls: dict[int | str, list[_Interval]] = {}
    for event in [event for event in events if event.category in LAUNCH] + [call.event for call in tree]:
        host_calls.setdefault(event.thread, []).append((event.start_us, event.end_us))
    host_busy = {thread: _merge(calls) for thread, calls in host_calls.items()}

    work: dict[int | str, list[Event]] = {}
    for event in events:
        if event.category in ON_DEVICE:
            work.setdefault(event.device, []).append(event)
    gaps = []
    for before, after in (pair for of_device in work.values() for pair in _idle_between(of_device, minimum_us)):
        start = before.end_us
        end = after.start_us
        launch = launched_by.get(after.correlation)
        cause: Cause = "other"
        if launch is None:
            reason = "the trace does not record who launched the next kernel"
        elif launch.end_us <= start:
            reason = f"{after.name} was already queued: it waited on the device (an event, another stream, latency)"
        elif (away := _longest_uncovered(start, launch.start_us, host_busy[launch.thread])) and away[1] - away[
            0
        ] > issue_limit_us:
            place = python_place(python.during(launch.thread, *away))
            reason = _was_away(away[1] - away[0], issue_limit_us, place)
        elif wait := next((wait for wait in waits if wait.start_us <= start < wait.end_us <= end), None):
            cause = "host synchronisation"
            caller = tree.at(wait.thread, wait.start_us)
            reason = f"the host waited in {wait.name}{f' for {caller.owner.name}' if caller else ''} until the device "
            reason += f"had run dry, and launched {after.name} only {launch.start_us - wait.end_us:.1f} µs later"
        else:
            cause = "launch-bound"
            caller = tree.at(launch.thread, launch.start_us)
            reason = f"the queue was empty: {launch.name}{f' of {caller.owner.name}' if caller else ''} came "
            reason += f"{max(0.0, launch.start_us - start):.1f} µs after the device had finished"
        gaps.append(Gap(start, end - start, cause, reason, before.name, after.name, after.device))
    return tuple(sorted(gaps, key=lambda gap: gap.start_us))


def _was_away(stretch_us: float, limit_us: float, place: str) -> str:
    doing = (
        f"it was in {place}" if place else "Python code, data loading, a wait for the GIL or for the operating system"
    )
    return f"the host ran no operator for {stretch_us:.1f} µs at a stretch (limit {limit_us:g} µs): {doing}"


def _idle_between(work: Iterable[Event], minimum_us: float) -> list[tuple[Event, Event]]:
    """Return pairs (last to end, next to start) with nothing running in between for at least `minimum_us`."""
    pairs = []
    latest = None
    for event in sorted(work, key=lambda event: event.start_us):
        if latest is not None and event.start_us > latest.end_us and event.start_us - latest.end_us >= minimum_us:
            pairs.append((latest, event))
        if latest is None or event.end_us > latest.end_us:
            latest = event
    return pairs


def _merge(intervals: Iterable[_Interval]) -> list[_Interval]:
    """Return the union of intervals as disjoint intervals in ascending order."""
    union: list[_Interval] = []
    for start, end in sorted(intervals):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((start, end))
    return union


def _longest_uncovered(start: float, end: float, union: list[_Interval]) -> _Interval:
    """Return the longest part of [start, end] that the disjoint, ascending intervals of `union` leave free."""
    if end <= start:
        return start, start
    first = bisect_left(union, start, key=lambda interval: interval[1])
    last = bisect_right(union, end, key=lambda interval: interval[0])
    free = []
    free_from = start
    for covered_start, covered_end in union[first:last]:
        free.append((free_from, covered_start))
        free_from = max(free_from, covered_end)
    longest = max([*free, (free_from, end)], key=lambda part: part[1] - part[0])
    return longest if longest[1] > longest[0] else (start, start)
