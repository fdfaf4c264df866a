"""A recorded trace as plain data: events on a time line, and the tree of calls that they nest into.

The format is Google's *Trace Event Format*, which PyTorch's profiler (Kineto) writes and chrome://tracing, Perfetto and
the TensorBoard plugin read. Operators, gaps and memory are computed from it alone, so that a trace recorded on another
machine, or written by hand, is understood in the same way.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "ANNOTATION", "Call", "CallTree", "Event", "LAUNCH", "MEMORY", "ON_DEVICE", "from_chrome", "is_operator",
    "launches", "to_chrome",
]  # fmt: skip

_OPERATOR = "cpu_op"
ANNOTATION = "user_annotation"
MEMORY = "cpu_instant_event"
LAUNCH = ("cuda_runtime", "cuda_driver")
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_CATEGORIES = {_OPERATOR, ANNOTATION, MEMORY, *LAUNCH, *ON_DEVICE}

_LEFT_OUT = {"Ev Idx", "Record function id", "finished", "Fwd thread id", "Sequence number", "Total Reserved"}
"""A third of the bytes of a trace, which nothing here and no viewer uses."""
_COMPILED_GRAPH = "CompiledFxGraph"


@dataclass(frozen=True)
class Event:
    """Something between `start_us` and `end_us` (microseconds from the start of the trace) on one thread or stream.

    category: one of CATEGORIES. args: what the recorder noted, under Kineto's names ("Input Dims", "correlation", …).
    """

    name: str
    category: str
    start_us: float
    duration_us: float
    thread: int
    process: int = 0
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def end_us(self) -> float:
        return self.start_us + self.duration_us

    @property
    def correlation(self) -> int:
        """The number that a launch and its kernel share, −1 without one."""
        return self.args.get("correlation", -1)


def from_chrome(trace: dict) -> tuple[Event, ...]:
    """The events of CATEGORIES in the order of their start, the first of them at 0.

    Raises ValueError when `trace` is not a Chrome trace.
    """
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise ValueError("trace has no list 'traceEvents': expected a Chrome trace as torch.profiler exports it")
    known = [raw for raw in trace["traceEvents"] if raw.get("cat") in _CATEGORIES and raw.get("ph") in ("X", "i")]
    origin = min((raw["ts"] for raw in known), default=0.0)
    events = [
        Event(
            raw["name"],
            raw["cat"],
            round(raw["ts"] - origin, 3),  # nanoseconds, which is the resolution of the recorder's clock
            round(raw.get("dur", 0.0), 3),
            raw.get("tid", 0),
            raw.get("pid", 0),
            {name: value for name, value in raw.get("args", {}).items() if name not in _LEFT_OUT},
        )
        for raw in known
    ]
    return tuple(sorted(events, key=lambda event: (event.start_us, -event.duration_us)))


def to_chrome(events: Iterable[Event], device_name: str = "") -> dict:
    """A Chrome trace of `events`, for chrome://tracing, ui.perfetto.dev and the TensorBoard plugin."""
    rows = []
    for event in events:
        row = {"name": event.name, "cat": event.category, "pid": event.process, "tid": event.thread}
        row |= {"ts": event.start_us, "args": event.args}
        instant = event.category == MEMORY
        rows.append(row | ({"ph": "i", "s": "t"} if instant else {"ph": "X", "dur": event.duration_us}))
    devices = {event.args.get("device", 0) for event in events if event.category in ON_DEVICE}
    properties = [{"id": device, "name": device_name} for device in sorted(devices)]
    return {"schemaVersion": 1, "displayTimeUnit": "ms", "deviceProperties": properties, "traceEvents": rows}


@dataclass
class Call:
    """An operator event and the operators that it called.

    owner: the call that its cost is reported for. The calls below an ATen operator (`aten::linear` calls `aten::addmm`)
    belong to it; autograd nodes and compiled regions own only what no ATen operator below them does.
    """

    event: Event
    parent: "Call | None" = None
    children: list["Call"] = field(default_factory=list)

    @property
    def name(self) -> str:
        is_graph = self.event.name.startswith(f"## Call {_COMPILED_GRAPH}")
        return _COMPILED_GRAPH if is_graph else self.event.name

    @property
    def is_aten(self) -> bool:
        return self.event.name.startswith("aten::")

    @property
    def owner(self) -> "Call":
        above = self.parent.owner if self.parent else self
        return above if above.is_aten else self

    @property
    def own_us(self) -> float:
        """Microseconds in this call that belong to no other owner."""
        if self.is_aten:
            return self.event.duration_us
        beneath = sum(child.event.duration_us for child in self.children)
        return max(0.0, self.event.duration_us - beneath)  # times are rounded to nanoseconds

    def walk(self) -> Iterator["Call"]:
        yield self
        for child in self.children:
            yield from child.walk()


class CallTree:
    """The operator calls of every thread, nested by time."""

    def __init__(self, events: Iterable[Event]):
        self.roots: dict[int, list[Call]] = {}
        open_calls: dict[int, list[Call]] = {}
        for event in sorted(filter(is_operator, events), key=lambda event: (event.start_us, -event.duration_us)):
            stack = open_calls.setdefault(event.thread, [])
            while stack and stack[-1].event.end_us <= event.start_us:
                stack.pop()
            call = Call(event, parent=stack[-1] if stack else None)
            (stack[-1].children if stack else self.roots.setdefault(event.thread, [])).append(call)
            stack.append(call)

    def __iter__(self) -> Iterator[Call]:
        """All calls, callers before their callees."""
        for roots in self.roots.values():
            for root in roots:
                yield from root.walk()

    def at(self, thread: int, time_us: float) -> Call | None:
        """The innermost call that `thread` was in at `time_us`, or None."""
        found, calls = None, self.roots.get(thread, [])
        while calls:
            index = bisect_right(calls, time_us, key=lambda call: call.event.start_us) - 1
            if index < 0 or calls[index].event.end_us < time_us:
                break
            found, calls = calls[index], calls[index].children
        return found


def launches(events: Iterable[Event]) -> dict[int, Event]:
    """The runtime call that launched each kernel or copy, by correlation number."""
    return {event.correlation: event for event in events if event.category in LAUNCH and event.correlation != -1}


def is_operator(event: Event) -> bool:
    # Inductor marks a compiled graph as an annotation, but on a CPU the fused kernels have no other event.
    return event.category == _OPERATOR or event.name.startswith(f"## Call {_COMPILED_GRAPH}")
