"""The operators of a trace: the time of each on host and device, its compulsory work, and its limit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from threeloops.inner.profiling.recorded_cost import compulsory_bytes, flops, memory_events
from threeloops.inner.profiling.trace import ON_DEVICE, CallTree, Event, launches

__all__ = ["Bound", "Operator", "bound", "cheapest_call_us", "operators"]

if TYPE_CHECKING:
    from threeloops.hardware.accelerators import Accelerator

Bound = Literal["compute", "memory", "overhead", "unknown"]


@dataclass(frozen=True)
class Operator:
    """All calls of one operator that the program made, with all their callees.

    cpu_us: microseconds on the host, each counted for one operator only. device_us: microseconds of the kernels and
    copies that it launched, 0 on a CPU. bytes: compulsory traffic, or None if the trace does not tell. flops: the FLOPs
    of matmuls, convolutions and attention.
    """

    name: str
    calls: int
    cpu_us: float
    device_us: float
    bytes: int | None
    flops: int


def operators(events: Sequence[Event], device: str) -> list[Operator]:
    """Return the operators in the order of their first call, and by its own name each kernel that no call accounts
    for."""
    groups: dict[str, list[Operator]] = {}
    for call in _single_calls(events, device):
        groups.setdefault(call.name, []).append(call)
    return [_sum(group) for group in groups.values()]


def _single_calls(events: Sequence[Event], device: str) -> Iterator[Operator]:
    tree = CallTree(events)
    launched_by = launches(events)
    work: dict[int, list[Event]] = {}
    for kernel in (event for event in events if event.category in ON_DEVICE):
        launch = launched_by.get(kernel.correlation)
        call = tree.at(launch.thread, launch.start_us) if launch else None
        if call is None:
            yield Operator(kernel.name, 1, 0.0, kernel.duration_us, None, 0)
        else:
            work.setdefault(id(call.owner), []).append(kernel)
    memory = memory_events(events, device)
    for call in tree:
        if call.owner is call:
            yield Operator(
                call.name,
                1,
                call.own_us,
                sum(kernel.duration_us for kernel in work.get(id(call), [])),
                compulsory_bytes(call, memory),
                flops(call) if call.is_aten else 0,
            )


def _sum(calls: Sequence[Operator]) -> Operator:
    sizes = [call.bytes for call in calls if call.bytes is not None]
    return Operator(
        calls[0].name,
        len(calls),
        sum(call.cpu_us for call in calls),
        sum(call.device_us for call in calls),
        sum(sizes) if len(sizes) == len(calls) else None,
        sum(call.flops for call in calls),
    )


def bound(operator: Operator, accelerator: "Accelerator", dtype: object, dispatch_us: float | None = None) -> Bound:
    """Return what limits `operator` on `accelerator`, per call, by `threeloops.inner.roofline.classify`.

    On a GPU (dispatch_us None) the host issues the operator in `cpu_us` while the device works for `device_us`. On a
    CPU one thread does both: `dispatch_us` of each call go to issuing it, and the rest is work. An operator without
    work (a view) is "overhead". One with unknown bytes is "unknown".
    """
    from threeloops.inner.costs import Work
    from threeloops.inner.roofline import classify

    if operator.bytes is None:
        return "unknown"
    if operator.bytes == 0 and operator.flops == 0:
        return "overhead"
    if dispatch_us is None:
        issue_us = operator.cpu_us
        busy_us = operator.device_us
    else:
        issue_us = dispatch_us * operator.calls
        busy_us = max(0.0, operator.cpu_us - issue_us)
    work = Work(operator.bytes, operator.flops)
    return classify(work, accelerator, dtype, measured_seconds=busy_us / 1e6, launch_seconds=issue_us / 1e6)


def cheapest_call_us(operators: Sequence[Operator]) -> float:
    """Return the host microseconds per call of the cheapest ATen operator, nearly all of which are the cost of the call
    itself."""
    return min((entry.cpu_us / entry.calls for entry in operators if entry.name.startswith("aten::")), default=0.0)
