"""What a trace says about each operator: its time on host and device, its compulsory work, and what limits it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from threeloops.inner.profiling.recorded_cost import compulsory_bytes, flops, memory_events
from threeloops.inner.profiling.trace import ON_DEVICE, CallTree, Event, launches

if TYPE_CHECKING:
    from threeloops.hardware.accelerators import Accelerator

Bound = Literal["compute", "memory", "overhead", "unknown"]


@dataclass(frozen=True)
class Operator:
    """All calls of one operator: the ones that the program made, with everything that these called in turn.

    calls: how often. cpu_us: microseconds on the host, counted once: the operators of a profile add up. device_us:
    microseconds of the kernels and copies that it launched; 0 on a CPU. bytes: compulsory traffic, None where the
    trace does not tell. flops: of matmuls, convolutions and attention. shapes: the distinct shapes of its arguments.
    kernels: distinct names of what ran on the device.
    """

    name: str
    calls: int
    cpu_us: float
    device_us: float
    bytes: int | None
    flops: int
    shapes: tuple = ()
    kernels: tuple[str, ...] = ()


def single_calls(events: Sequence[Event], device: str) -> Iterator[Operator]:
    """Every call that owns its cost, and every kernel that no call accounts for."""
    tree, launched_by = CallTree(events), launches(events)
    work: dict[int, list[Event]] = {}
    for kernel in (event for event in events if event.category in ON_DEVICE):
        launch = launched_by.get(kernel.args.get("correlation", -1))
        call = tree.at(launch.thread, launch.start_us) if launch else None
        if call is None:
            yield Operator(kernel.name, 1, 0.0, kernel.duration_us, None, 0, kernels=(kernel.name,))
        else:
            work.setdefault(id(call.owner), []).append(kernel)
    memory = memory_events(events, device)
    for call in tree:
        if call.owner is not call:
            continue
        kernels = work.get(id(call), [])
        yield Operator(
            call.name,
            1,
            call.own_us,
            sum(kernel.duration_us for kernel in kernels),
            compulsory_bytes(call, memory),
            flops(call) if call.is_aten else 0,
            (_as_tuples(call.event.args.get("Input Dims", [])),),
            tuple(sorted({kernel.name for kernel in kernels})),
        )


def grouped(calls: Sequence[Operator], key: Callable[[Operator], object]) -> list[Operator]:
    """Calls with the same key added up, in the order in which each key first appears."""
    groups: dict[object, list[Operator]] = {}
    for call in calls:
        groups.setdefault(key(call), []).append(call)
    return [_added(group) for group in groups.values()]


def bound(operator: Operator, accelerator: "Accelerator", dtype: object, dispatch_us: float | None = None) -> Bound:
    """What limits `operator` on `accelerator`, as `threeloops.inner.roofline.classify` judges it, per call.

    On a GPU (dispatch_us None) the host issues the operator in `cpu_us` while the device works for `device_us`. On a
    CPU one thread does both: `dispatch_us` of each call go to issuing it, the rest is work. An operator without work
    (a view) is "overhead"; one whose bytes the trace does not tell is "unknown".
    """
    from threeloops.inner.costs import Work
    from threeloops.inner.roofline import classify

    if operator.bytes is None:
        return "unknown"
    if operator.bytes == 0 and operator.flops == 0:
        return "overhead"
    if dispatch_us is None:
        issue_us, busy_us = operator.cpu_us, operator.device_us
    else:
        issue_us = dispatch_us * operator.calls
        busy_us = max(0.0, operator.cpu_us - issue_us)
    return classify(
        Work(operator.bytes, operator.flops),
        accelerator,
        dtype,
        measured_seconds=busy_us / 1e6,
        launch_seconds=issue_us / 1e6,
    )


def cheapest_call_us(operators: Sequence[Operator]) -> float:
    """Microseconds a call of the cheapest ATen operator on the host: nearly all of it is the price of calling."""
    return min((entry.cpu_us / entry.calls for entry in operators if entry.name.startswith("aten::")), default=0.0)


def _added(operators: Sequence[Operator]) -> Operator:
    known = [operator.bytes for operator in operators if operator.bytes is not None]
    return Operator(
        operators[0].name,
        sum(operator.calls for operator in operators),
        sum(operator.cpu_us for operator in operators),
        sum(operator.device_us for operator in operators),
        sum(known) if len(known) == len(operators) else None,
        sum(operator.flops for operator in operators),
        tuple(dict.fromkeys(shapes for operator in operators for shapes in operator.shapes)),
        tuple(sorted({kernel for operator in operators for kernel in operator.kernels})),
    )


def _as_tuples(dims: list) -> tuple:
    return tuple(_as_tuples(entry) if isinstance(entry, list) else entry for entry in dims)
