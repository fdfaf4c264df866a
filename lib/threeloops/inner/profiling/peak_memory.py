"""The peak of activation memory: how much is held at once, when, and on whose behalf."""

from collections.abc import Sequence
from dataclasses import dataclass

from threeloops.inner.profiling.recorded_cost import memory_events
from threeloops.inner.profiling.trace import CallTree, Event, enclosing_annotations


@dataclass(frozen=True)
class PeakMemory:
    """The most activation memory held at once, when it was reached, and by which operator's allocation.

    bytes: storage allocated on the device since the profiled call began and not yet freed: activations, outputs,
    workspaces and gradients made meanwhile; not the parameters and inputs, which existed before. On a GPU blocks
    count in the sizes that PyTorch's allocator rounds to. within: ranges around it, outermost first, such as the
    modules that `annotate_modules` marks. operator: None when it was allocated outside all operators.
    """

    bytes: int
    at_us: float
    operator: str | None
    within: tuple[str, ...]


def peak_memory(events: Sequence[Event], device: str, *, outside: str = "") -> PeakMemory:
    """The first moment at which the most is held; 0 bytes when nothing was allocated.

    device: "cpu" or "cuda". outside: a range around everything, not worth naming in `within`.

    Computed from the allocator's own events, which are exact on CPU and GPU alike and see what no module hook sees:
    workspaces inside an operator, tensors saved for backward, and the moment at which each is freed.
    """
    held: dict[int, int] = {}
    current, peak, at_peak = 0, 0, None
    for change in memory_events(events, device):
        if change.args["Bytes"] > 0:
            held[change.args["Addr"]] = change.args["Bytes"]
            current += change.args["Bytes"]
        else:  # what was allocated before the profile began was never counted, and its end is not either
            current -= held.pop(change.args["Addr"], 0)
        if current > peak:
            peak, at_peak = current, change
    if at_peak is None:
        return PeakMemory(0, 0.0, None, ())
    call = CallTree(events).at(at_peak.thread, at_peak.start_us)
    ranges = enclosing_annotations(events, at_peak.thread, at_peak.start_us)
    within = tuple(name for name in ranges if name != outside)
    return PeakMemory(peak, at_peak.start_us, call.owner.name if call else None, within)
