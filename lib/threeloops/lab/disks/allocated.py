"""Measure what a call allocates, from inside its own process.

`threeloops.resident` measures from outside, where nobody can forge the result, but cannot tell a mapped file from a
tensor. This module can. Use it beside a measurement from outside, because a student's process could report less.
"""

import os
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Allocated", "allocated"]


@dataclass(frozen=True)
class Allocated:
    """The allocations of one call. Mapped files do not count."""

    tensors: list[int]
    """Bytes of each allocation that PyTorch made on the CPU, in order."""
    objects: int
    """The most bytes that Python's objects and NumPy's arrays held at once."""


def allocated(function: Callable[..., Any], *arguments: Any) -> Allocated:
    """Call `function(*arguments)`, drop its result, and return what it allocated."""
    import torch

    # Kineto reads this when the first profiler starts; below 6 some versions print a greeting on stderr.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    tracemalloc.start()
    try:
        with torch.autograd.profiler.profile(profile_memory=True) as recording:
            function(*arguments)
        objects = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    events = recording.kineto_results.events()
    mapping = [range(e.start_ns(), e.start_ns() + e.duration_ns() + 1) for e in events if e.name() == "aten::from_file"]
    memory = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    tensors = [size for at, size in memory if size > 0 and not any(at in span for span in mapping)]
    return Allocated(tensors, objects)
