"""The peak of activation memory: how much is held at once, and which operator reaches the peak."""

from collections.abc import Sequence
from dataclasses import dataclass

from threeloops.inner.profiling.recorded_cost import memory_events
from threeloops.inner.profiling.trace import ANNOTATION, CallTree, Event, is_operator

__all__ = ["PeakMemory", "peak_memory"]


@dataclass(frozen=True)
class PeakMemory:
    """The most activation memory held at once, and which operator's allocation reached it.

    bytes: storage allocated on the device since the profiled call began and not yet freed: activations, outputs,
    workspaces and gradients made meanwhile; not the parameters and inputs, which existed before. On a GPU blocks
    count in the sizes to which PyTorch's allocator rounds. operator: None for an allocation outside all operators.
    within: the ranges around it, outermost first, such as the modules that `annotate_modules` marks.
    """

    bytes: int
    operator: str | None
    within: tuple[str, ...]


def peak_memory(events: Sequence[Event], device: str, *, outside: str = "") -> PeakMemory:
    """Find the first moment at which the most memory is held on "cpu" or "cuda". It is 0 bytes if nothing was
    allocated.

    `outside` is a range around everything, left out of `within`. The allocator's own events, from which this is
    computed, are exact and contain memory that no module hook sees: workspaces inside an operator, tensors saved for
    the backward pass, and the moment at which each is freed.
    """
    held: dict[int, int] = {}
    current = 0
    peak = 0
    at_peak = None
    for change in memory_events(events, device):
        if change.args["Bytes"] > 0:
            held[change.args["Addr"]] = change.args["Bytes"]
            current += change.args["Bytes"]
        else:  # storage from before the profile was never counted, and neither is its end
            current -= held.pop(change.args["Addr"], 0)
        if current > peak:
            peak = current
            at_peak = change
    if at_peak is None:
        return PeakMemory(0, None, ())
    thread = at_peak.thread
    moment = at_peak.start_us
    ranges = [event for event in events if event.category == ANNOTATION and not is_operator(event)]
    around = [event.name for event in ranges if event.thread == thread and event.start_us <= moment <= event.end_us]
    call = CallTree(events).at(thread, moment)
    return PeakMemory(peak, call.owner.name if call else None, tuple(name for name in around if name != outside))
