"""A recorded trace as plain data: events on a time line, and the tree of calls that they nest into.

The format is Google's *Trace Event Format*, which PyTorch's profiler (Kineto) writes and chrome://tracing, Perfetto and
the TensorBoard plugin read. Operators, gaps and memory are computed from it alone, so that a trace recorded on another
machine, or written by hand, is understood in the same way.
"""

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "ALLOCATION", "ANNOTATION", "Call", "CallTree", "Event", "LAUNCH", "MEMORY", "ON_DEVICE", "PYTHON", "from_chrome",
    "is_operator", "is_python", "launches", "python_place", "to_chrome",
]  # fmt: skip

_OPERATOR = "cpu_op"
ANNOTATION = "user_annotation"
MEMORY = "cpu_instant_event"
ALLOCATION = "[memory]"
"""The name of the events of MEMORY that are allocations and frees. "[OutOfMemory]" events have no address."""
PYTHON = "python_function"
LAUNCH = ("cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver", "privateuse1_runtime", "privateuse1_driver")
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_CATEGORIES = {_OPERATOR, ANNOTATION, MEMORY, PYTHON, *LAUNCH, *ON_DEVICE}
_OLDER = {
    "Operator": _OPERATOR, "Runtime": "cuda_runtime", "Kernel": "kernel", "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset", "Python": PYTHON,
}  # fmt: skip
"""Kineto's names of 2021 and 2022."""
_NO_WORK = {
    "Trace", "Traces", "ac2g", "async_cpu_to_gpu", "async_gpu", "collective_comm", "cuda_event", "cuda_profiler_range",
    "cuda_sync", "external_correlation", "forward_backward", "fwdbwd", "gpu_pm_counter", "gpu_user_annotation",
    "overhead",
}  # fmt: skip
"""Categories without work of their own: marks, and copies of other events."""

_LEFT_OUT = {"Ev Idx", "Record function id", "finished", "Fwd thread id", "Sequence number", "Total Reserved"}
"""A third of the bytes of a trace, which nothing here and no viewer uses."""
_ARGUMENTS = {
    "correlation": int, "device": int, "Addr": int, "Bytes": int, "Device Type": int, "Input Dims": list,
    "Input type": list, "Input Strides": list, "Concrete Inputs": list,
}  # fmt: skip
_COMPILED_GRAPH = "CompiledFxGraph"


@dataclass(frozen=True)
class Event:
    """An activity between `start_us` and `end_us` (microseconds from the start of the trace) on one thread or stream.

    category: one of CATEGORIES. args: the recorder's notes, under Kineto's names ("Input Dims", "correlation", …).
    """

    name: str
    category: str
    start_us: float
    duration_us: float
    thread: int | str
    process: int | str = 0
    args: dict[str, Any] = field(default_factory=dict)

    @property
    def end_us(self) -> float:
        return self.start_us + self.duration_us

    @property
    def correlation(self) -> int:
        """The number that a launch and its kernel share, −1 without one."""
        return self.args.get("correlation", -1)

    @property
    def device(self) -> int | str:
        """The number of the device that did the work. Kineto also uses it as the process of such an event."""
        return self.args.get("device", self.process)


def from_chrome(trace: dict) -> tuple[Event, ...]:
    """Return the events of CATEGORIES in the order of their start, the first of them at 0. Calls of Python may begin
    before.

    Raises ValueError when `trace` is not a Chrome trace, when an event is malformed, and for work that is not
    understood: of an unknown category, as other accelerators have, or kernels that were launched and not recorded.
    """
    if not isinstance(trace, dict) or not isinstance(trace.get("traceEvents"), list):
        raise ValueError("trace has no list 'traceEvents': expected a Chrome trace as torch.profiler exports it")
    raw_events: list[tuple[dict, str]] = []
    unknown: Counter[str] = Counter()
    for number, raw in enumerate(trace["traceEvents"]):
        if not isinstance(raw, dict):
            raise ValueError(f"event {number} is {str(raw)[:60]!r}: expected an object")
        category = raw.get("cat")
        kind = raw.get("ph")
        if not isinstance(category, str) or kind not in ("X", "i"):
            continue
        category = _OLDER.get(category, category)
        if category in _CATEGORIES:
            if wrong := _malformed(raw, category):
                raise ValueError(f"event {number} ({str(raw.get('name'))[:60]}): {wrong}")
            raw_events.append((raw, category))
        elif kind == "X" and category not in _NO_WORK:
            unknown[category] += 1
    _require_understood(raw_events, unknown)
    origin = min((raw["ts"] for raw, category in raw_events if category != PYTHON), default=0.0)
    events = [
        Event(
            raw["name"],
            category,
            round(raw["ts"] - origin, 3),  # nanoseconds, which is the resolution of the recorder's clock
            round(raw.get("dur", 0.0), 3),
            raw.get("tid", 0),
            raw.get("pid", 0),
            {name: value for name, value in raw.get("args", {}).items() if name not in _LEFT_OUT},
        )
        for raw, category in raw_events
    ]
    return tuple(sorted(events, key=lambda event: (event.start_us, -event.duration_us)))


def _require_understood(raw_events: list[tuple[dict, str]], unknown: Counter[str]) -> None:
    if unknown:
        counted = ", ".join(f"{count} of {category!r}" for category, count in unknown.items())
        raise ValueError(
            f"trace has events of categories that are not understood: {counted}. Their device would look idle: "
            "expected a trace of a CPU or of GPUs; remove these events if they stand for no work"
        )
    launched = next(
        (raw for raw, category in raw_events if category in LAUNCH and "launch" in raw["name"].lower()), None
    )
    if launched and not any(category in ON_DEVICE for _, category in raw_events):
        raise ValueError(
            f"trace has launches ({launched['name']}) and no kernels: the device would look idle; record with "
            "ProfilerActivity.CUDA and without a session of CUPTI counters"
        )


def _malformed(raw: dict, category: str) -> str:
    """Name the malformed field of an event and the expected value. Return "" if no field is malformed."""
    start: Any = raw.get("ts")
    duration: Any = raw.get("dur", 0.0)
    args = raw.get("args", {})
    for name, value in (("ts", start), ("dur", duration)):
        if type(value) not in (int, float) or not math.isfinite(value):
            return f"{name} = {value!r}: expected microseconds"
    if duration < 0:
        return f"dur = {duration}: expected 0 or more"
    if not isinstance(raw.get("name"), str):
        return f"name = {raw.get('name')!r}: expected text"
    if not isinstance(args, dict):
        return f"args = {args!r}: expected an object"
    for name in ("tid", "pid"):
        if not isinstance(raw.get(name, 0), (int, str)):
            return f"{name} = {raw[name]!r}: expected a number or text"
    for name, kind in _ARGUMENTS.items():
        if name in args and not isinstance(args[name], kind):
            return f"{name} = {args[name]!r}: expected {'a number' if kind is int else 'a list'}"
    if not _are_numbers(args.get("Input Dims", [])):
        return f"Input Dims = {args['Input Dims']!r}: expected the lengths of each input"
    if not all(isinstance(kind, str) for kind in args.get("Input type", [])):
        return f"Input type = {args['Input type']!r}: expected names of types"
    allocates = category == MEMORY and raw["name"] == ALLOCATION
    if allocates and (lacking := [name for name in ("Addr", "Bytes") if name not in args]):
        return f"it has no {lacking[0]!r}: expected those of an allocation"
    return ""


def _are_numbers(values: list) -> bool:
    return all(_are_numbers(value) if type(value) is list else type(value) is int for value in values)


def to_chrome(events: Iterable[Event], device_name: str = "") -> dict:
    """Return a Chrome trace of `events`, for chrome://tracing, ui.perfetto.dev and the TensorBoard plugin."""
    rows = []
    for event in events:
        row: dict[str, Any] = {"name": event.name, "cat": event.category, "pid": event.process, "tid": event.thread}
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
    belong to it. Autograd nodes and compiled regions own only the work that no ATen operator below them does.
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
    """The operator calls of every thread, nested by time; or calls of another kind."""

    def __init__(self, events: Iterable[Event], of: "Callable[[Event], bool] | None" = None):
        self.roots: dict[int | str, list[Call]] = {}
        open_calls: dict[int | str, list[Call]] = {}
        for event in sorted(filter(of or is_operator, events), key=lambda event: (event.start_us, -event.duration_us)):
            stack = open_calls.setdefault(event.thread, [])
            while stack and stack[-1].event.end_us <= event.start_us:
                stack.pop()
            call = Call(event, parent=stack[-1] if stack else None)
            (stack[-1].children if stack else self.roots.setdefault(event.thread, [])).append(call)
            stack.append(call)

    def __iter__(self) -> Iterator[Call]:
        """Iterate over all calls, callers before their callees."""
        for roots in self.roots.values():
            for root in roots:
                yield from root.walk()

    def at(self, thread: int | str, time_us: float) -> Call | None:
        """Return the innermost call that `thread` was in at `time_us`, or None."""
        innermost = None
        calls = self.roots.get(thread, [])
        while calls:
            index = bisect_right(calls, time_us, key=lambda call: call.event.start_us) - 1
            if index < 0 or calls[index].event.end_us < time_us:
                break
            innermost = calls[index]
            calls = calls[index].children
        return innermost

    def during(self, thread: int | str, start_us: float, end_us: float) -> Call | None:
        """Return the innermost call that `thread` was in for at least half of this time, or None."""
        innermost = None
        calls = self.roots.get(thread, [])
        while calls:
            first = bisect_right(calls, start_us, key=lambda call: call.event.end_us)
            last = bisect_right(calls, end_us, key=lambda call: call.event.start_us)
            inside = [
                call
                for call in calls[first:last]
                if 2 * (min(call.event.end_us, end_us) - max(call.event.start_us, start_us)) >= end_us - start_us
            ]
            if not inside:
                break
            innermost = inside[0]
            calls = inside[0].children
        return innermost


def launches(events: Iterable[Event]) -> dict[int, Event]:
    """Return the runtime call that launched each kernel or copy, by correlation number."""
    return {event.correlation: event for event in events if event.category in LAUNCH and event.correlation != -1}


def is_operator(event: Event) -> bool:
    # Inductor marks a compiled graph as an annotation, but on a CPU the fused kernels have no other event.
    return event.category == _OPERATOR or event.name.startswith(f"## Call {_COMPILED_GRAPH}")


def is_python(event: Event) -> bool:
    return event.category == PYTHON


def python_place(call: Call | None) -> str:
    """Return a call of Python as "collate_fn, data.py:41", and one of C with the function that made it, or "" for
    none."""
    if call is None:
        return ""
    if match := re.fullmatch(r"(.*)\((\d+)\): (.*)", call.event.name):
        return f"{match[3]}, {match[1]}:{match[2]}"
    caller = python_place(call.parent)
    return f"{call.event.name} of {caller}" if caller else call.event.name
