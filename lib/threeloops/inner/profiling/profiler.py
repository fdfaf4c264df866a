"""A profile: what one call of a function cost, operator by operator, and ranges that mark the parts of a program.

A `Profile` computes everything (operators, gaps, peak memory) from the events that torch.profiler recorded, so a trace
from another machine answers the same questions as one recorded here. The profiler's own cost, some microseconds per
operator on the host, is part of `cpu_us`.
"""

import json
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from threeloops.inner.profiling.gaps import Gap, find_gaps
from threeloops.inner.profiling.operators import Bound, Operator, bound, cheapest_call_us, operators
from threeloops.inner.profiling.peak_memory import PeakMemory, peak_memory
from threeloops.inner.profiling.trace import ANNOTATION, ON_DEVICE, PYTHON, Event, from_chrome, to_chrome

if TYPE_CHECKING:
    from torch import nn

    from threeloops.hardware.accelerators import Accelerator

__all__ = ["Gap", "Operator", "PeakMemory", "Profile", "annotate", "annotate_modules", "profile"]

_WINDOW = "threeloops.profile"
_RANKED_BY = ("cpu_us", "device_us", "calls", "bytes", "flops")


@dataclass(frozen=True)
class Profile:
    """One recorded call. device: "cpu" or "cuda". wall_us: from the call to the end of its last kernel."""

    device: str
    device_name: str
    wall_us: float
    events: tuple[Event, ...]

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """The operators by name, the costliest on the device first."""
        return self._ranked(operators(self.events, self.device), self._device_time)

    def top(self, k: int, by: str | None = None) -> tuple[Operator, ...]:
        """Return the `k` operators with the most of `by`: "device_us" (default on a GPU), "cpu_us" (default on a CPU),
        …

        Raises ValueError for an unknown quantity or a negative `k`.
        """
        by = by or self._device_time
        if by not in _RANKED_BY:
            raise ValueError(f"by = {by!r}: expected one of {', '.join(_RANKED_BY)}")
        if k < 0:
            raise ValueError(f"k = {k}: expected a number of operators ≥ 0")
        return self._ranked(self.operators, by)[:k]

    def gaps(self, minimum_us: float = 1.0, *, issue_limit_us: float = 100.0) -> tuple[Gap, ...]:
        """Return when and why the device (on a CPU, the thread that runs operators) was idle. See `find_gaps`."""
        return find_gaps(self.events, self.device, minimum_us=minimum_us, issue_limit_us=issue_limit_us)

    def classify(
        self, accelerator: "Accelerator", dtype: object = "fp32", *, dispatch_us: float | None = None
    ) -> dict[str, Bound]:
        """Return what limits each operator on `accelerator` (see `operators.bound`).

        dispatch_us: for a CPU, host microseconds that a call costs before any work. The default is the time of a call
        of this profile's cheapest operator.
        """
        if self.device == "cpu" and dispatch_us is None:
            dispatch_us = cheapest_call_us(self.operators)
        return {operator.name: bound(operator, accelerator, dtype, dispatch_us) for operator in self.operators}

    @cached_property
    def peak_memory(self) -> PeakMemory:
        return peak_memory(self.events, self.device, outside=_WINDOW)

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

    @classmethod
    def from_chrome(cls, trace: dict, device_name: str = "") -> "Profile":
        """Return the profile in a Chrome trace of torch.profiler. It covers the profiled call if `profile` recorded it,
        else all.

        Raises ValueError when `trace` is not a Chrome trace, or has work that is not understood; see `from_chrome`.
        """
        events = from_chrome(trace)
        window = next((event for event in events if event.category == ANNOTATION and event.name == _WINDOW), None)
        if window is not None:
            events = tuple(
                replace(event, start_us=round(event.start_us - window.start_us, 3))
                for event in events
                if window.start_us <= event.start_us <= window.end_us
            )
        device = "cuda" if any(event.category in ON_DEVICE for event in events) else "cpu"
        wall_us = window.duration_us if window else max((e.end_us for e in events if e.category != PYTHON), default=0.0)
        return cls(device, device_name, wall_us, events)

    @property
    def _device_time(self) -> str:
        return "cpu_us" if self.device == "cpu" else "device_us"

    @staticmethod
    def _ranked(operators: Iterable[Operator], by: str) -> tuple[Operator, ...]:
        return tuple(sorted(operators, key=lambda operator: getattr(operator, by) or 0, reverse=True))


def profile(fn: Callable, *inputs: object, device: str | None = None, warmup: int = 3) -> Profile:
    """Record one call `fn(*inputs)` after `warmup` calls. `fn` may be a module or any function.

    device: "cpu" or "cuda", by default where the tensors of `inputs` and the parameters of `fn` are. On a GPU the call
    counts until its last kernel has ended. Gradients are recorded if the caller's grad mode says so.

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
    # Kineto reads this when the first profiler starts; below 6 some versions print a greeting on stderr.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    with torch.profiler.profile(activities=activities, record_shapes=True, profile_memory=True) as recording:
        with record_function(_WINDOW):
            result = fn(*inputs)
            synchronise()
        del result  # kept to the end of the window, as by a caller who uses it
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


@contextmanager
def annotate(name: str) -> Iterator[None]:
    """Mark a range of the program in the profile and, if there is CUDA, as an NVTX range for Nsight Systems."""
    import torch

    with ExitStack() as ranges:
        ranges.enter_context(torch.profiler.record_function(name))
        if torch.cuda.is_available():
            torch.cuda.nvtx.range_push(name)
            ranges.callback(torch.cuda.nvtx.range_pop)
        yield


@contextmanager
def annotate_modules(model: "nn.Module") -> Iterator[None]:
    """Mark the forward pass of every named submodule of `model` ("layer1.0.conv2") while the context lasts.

    Do not use it for compiled models, because hooks would change the compiled code.
    """
    import torch

    open_ranges: list = []

    def leave(module, inputs, output):
        open_ranges.pop().__exit__(None, None, None)

    with ExitStack() as hooks:
        for path, module in model.named_modules():
            if path:

                def enter(module, inputs, path=path):
                    open_ranges.append(torch.profiler.record_function(path))
                    open_ranges[-1].__enter__()

                hooks.enter_context(module.register_forward_pre_hook(enter))
                hooks.enter_context(module.register_forward_hook(leave, always_call=True))
        yield
