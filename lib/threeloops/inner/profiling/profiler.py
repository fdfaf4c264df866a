"""A profile: what one call of a function cost, operator by operator, as plain data.

torch.profiler records; this file reads the recording. A `Profile` holds the events of the trace and computes all
else from them (operators, gaps, peak memory), so a profile that was recorded elsewhere and shipped as JSON answers
the same questions as one taken here.

What the profiler cannot know: its own cost, some microseconds an operator on the host, is part of `cpu_us`.
"""

import json
import os
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from threeloops.inner.profiling.annotations import annotate, annotate_modules
from threeloops.inner.profiling.gaps import Gap, find_gaps
from threeloops.inner.profiling.operators import Bound, Operator, bound, cheapest_call_us, grouped, single_calls
from threeloops.inner.profiling.peak_memory import PeakMemory, peak_memory
from threeloops.inner.profiling.trace import ANNOTATION, ON_DEVICE, Event, from_chrome, to_chrome

if TYPE_CHECKING:
    from threeloops.hardware.accelerators import Accelerator

__all__ = ["Gap", "Operator", "PeakMemory", "Profile", "annotate", "annotate_modules", "profile"]

WINDOW = "threeloops.profile"
RANKED_BY = ("cpu_us", "device_us", "calls", "bytes", "flops")


@dataclass(frozen=True)
class Profile:
    """One recorded call. device: "cpu" or "cuda". wall_us: from the call to the end of its last kernel."""

    device: str
    device_name: str
    wall_us: float
    events: tuple[Event, ...]

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """By name, the costliest on the device first."""
        return self._grouped(lambda operator: operator.name)

    @cached_property
    def by_shape(self) -> tuple[Operator, ...]:
        """By name and argument shapes: each is one point of a roofline."""
        return self._grouped(lambda operator: (operator.name, operator.shapes))

    def top(self, k: int, by: str | None = None) -> tuple[Operator, ...]:
        """The `k` operators with the most of `by`: "device_us" (default on a GPU), "cpu_us" (default on a CPU), …

        Raises ValueError for an unknown quantity or a negative `k`.
        """
        by = by or self._device_time
        if by not in RANKED_BY:
            raise ValueError(f"by = {by!r}: expected one of {', '.join(RANKED_BY)}")
        if k < 0:
            raise ValueError(f"k = {k}: expected a number of operators ≥ 0")
        return tuple(sorted(self.operators, key=lambda operator: getattr(operator, by) or 0, reverse=True)[:k])

    def gaps(self, minimum_us: float = 1.0, *, issue_limit_us: float = 100.0) -> tuple[Gap, ...]:
        """When the device (on a CPU: the thread that runs the operators) was idle, and why; see `find_gaps`."""
        return find_gaps(self.events, self.device, minimum_us=minimum_us, issue_limit_us=issue_limit_us)

    def classify(
        self, accelerator: "Accelerator", dtype: object = "fp32", *, dispatch_us: float | None = None
    ) -> dict[str, Bound]:
        """What limits each operator on `accelerator`: "compute", "memory", "overhead", or "unknown" (no bytes known).

        See `operators.bound`. dispatch_us: for a CPU, host microseconds that a call costs before
        any work; by default what a call of the cheapest operator of this profile took.
        """
        if self.device == "cpu" and dispatch_us is None:
            dispatch_us = cheapest_call_us(self.operators)
        return {operator.name: bound(operator, accelerator, dtype, dispatch_us) for operator in self.operators}

    @cached_property
    def peak_memory(self) -> PeakMemory:
        """The peak of activation memory; 0 bytes when nothing was allocated."""
        return peak_memory(self.events, self.device, outside=WINDOW)

    def save_chrome(self, path: str | Path) -> Path:
        """Write a trace that chrome://tracing and ui.perfetto.dev open."""
        path = Path(path)
        path.write_text(json.dumps(to_chrome(self.events, self.device_name)))
        return path

    def save_tensorboard(self, folder: str | Path) -> Path:
        """Write the trace under the name that TensorBoard's PyTorch profiler plugin looks for; returns its path."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        return self.save_chrome(folder / f"{socket.gethostname()}_{os.getpid()}.{time.time_ns()}.pt.trace.json")

    def to_dict(self) -> dict:
        """Plain data for JSON; `from_dict` reads it back."""
        return {
            "device": self.device,
            "device_name": self.device_name,
            "wall_us": self.wall_us,
            "events": [asdict(event) for event in self.events],
        }

    @classmethod
    def from_dict(cls, record: dict) -> "Profile":
        """Raises ValueError naming what is missing."""
        missing = {"device", "device_name", "wall_us", "events"} - set(record)
        if missing:
            raise ValueError(f"record lacks {', '.join(sorted(missing))}: expected what Profile.to_dict wrote")
        events = tuple(Event(**event) for event in record["events"])
        return cls(record["device"], record["device_name"], record["wall_us"], events)

    @classmethod
    def from_chrome(cls, trace: dict, device_name: str = "") -> "Profile":
        """The profile in a Chrome trace of torch.profiler, whoever recorded it.

        Of a trace that `profile` recorded only the profiled call counts; of any other the whole.
        """
        events = from_chrome(trace)
        window = next((event for event in events if event.category == ANNOTATION and event.name == WINDOW), None)
        if window is not None:
            events = tuple(
                replace(event, start_us=round(event.start_us - window.start_us, 3))
                for event in events
                if window.start_us <= event.start_us <= window.end_us
            )
        device = "cuda" if any(event.category in ON_DEVICE for event in events) else "cpu"
        end = max((event.end_us for event in events), default=0.0)
        wall_us = window.duration_us if window is not None else end
        return cls(device, device_name, wall_us, events)

    @property
    def _device_time(self) -> str:
        return "cpu_us" if self.device == "cpu" else "device_us"

    def _grouped(self, key: Callable[[Operator], object]) -> tuple[Operator, ...]:
        groups = grouped(list(single_calls(self.events, self.device)), key)
        return tuple(sorted(groups, key=lambda operator: getattr(operator, self._device_time), reverse=True))


def profile(fn: Callable, *inputs: object, device: str | None = None, warmup: int = 3) -> Profile:
    """Record one call `fn(*inputs)` after `warmup` calls; `fn` may be a module or any function.

    device: "cpu" or "cuda", by default where the tensors of `inputs` and the parameters of `fn` are. On a GPU the
    call counts until its last kernel has ended. Gradients are recorded as the caller's grad mode says.

    Raises TypeError or ValueError naming the argument that is wrong.
    """
    import torch
    from torch.profiler import ProfilerActivity, record_function

    if not callable(fn):
        raise TypeError(f"fn = {fn!r}: expected a module or a function; pass it without calling it")
    if warmup < 0:
        raise ValueError(f"warmup = {warmup}: expected a number of calls ≥ 0")
    device = (device or _device_of(fn, inputs)).partition(":")[0]
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device = {device!r}: expected 'cpu' or 'cuda'")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device = 'cuda': no CUDA device is visible here; use device='cpu'")

    def synchronise():
        if device == "cuda":
            torch.cuda.synchronize()

    for _ in range(warmup):
        fn(*inputs)
    synchronise()
    # Kineto reads this when the first profiler starts; below 6 some versions greet on stderr.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    with torch.profiler.profile(activities=activities, record_shapes=True, profile_memory=True) as recording:
        with record_function(WINDOW):
            result = fn(*inputs)
            synchronise()
        del result  # lives to the end of the window, as for a caller who uses it
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recording.export_chrome_trace(str(path))
        trace = json.loads(path.read_text())
    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    return Profile.from_chrome(trace, name)


def _device_of(fn: Callable, inputs: tuple) -> str:
    import torch

    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    if isinstance(fn, torch.nn.Module):
        tensors += list(fn.parameters())
    return "cuda" if any(tensor.is_cuda for tensor in tensors) else "cpu"
