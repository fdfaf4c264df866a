"""Latency by pointer chase: each load's address is the value of the load before it, so no two loads overlap.

The addresses form one random ring through the working set, one stop per cache line: no prefetcher can guess the next
stop, and every line is visited before any is visited again. While the working set fits a cache, a load costs that
cache's latency; each capacity it outgrows shows as a step. Source: Saavedra and Smith, "Measuring cache and TLB
performance and their effect on benchmark run times", IEEE Transactions on Computers 44(10), 1995.
"""

import ctypes
import mmap
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from threeloops.hardware import device
from threeloops.inner.timing import cuda_clock

__all__ = ["NotMeasurable", "chase_kernel", "latency", "latency_of_spread", "ring"]

_LINE_BYTES = {"cpu": 64, "cuda": 128}
_LOADS = {"cpu": 1 << 18, "cuda": 50_000}
_WARM_UP_LINES = 1 << 20

_C_SOURCE = """
#include <stddef.h>
size_t chase(const size_t *ring, size_t at, size_t loads) {
    while (loads--) at = ring[at];
    return at;
}
"""


@triton.jit
def chase_kernel(ring, place, loads):
    """Follow `ring` for `loads` steps from the index in `place` and leave the last index there. One load in flight."""
    at = tl.load(place)
    for _ in range(loads):
        at = tl.load(ring + at)
    tl.store(place, at)


class NotMeasurable(RuntimeError):
    """This machine cannot chase pointers fast enough. The message says what is missing."""


def ring(lines: int, line_elements: int, seed: int) -> NDArray[np.int64]:
    """Make one random cycle through `lines` cache lines, as the index of the next stop at the first element of each
    line.

    The order of visits is shuffled and closed, so every single cycle is equally likely. A shuffled array would fall
    into several cycles, and the chase would stay in part of the working set. Shape: (lines · line_elements,).
    """
    for name, value in (("lines", lines), ("line_elements", line_elements)):
        if value < 1:
            raise ValueError(f"{name} = {value}: expected at least 1")
    stops = np.random.default_rng(seed).permutation(lines)
    following = _zeros_in_small_pages(lines * line_elements)
    following[stops * line_elements] = np.roll(stops, -1) * line_elements
    return following


def _zeros_in_small_pages(elements: int) -> NDArray[np.int64]:
    """Make zeros in pages of the smallest size. For large arrays NumPy asks Linux for pages of 2 MiB, and those are so
    few that the TLB holds them all."""
    memory = mmap.mmap(-1, 8 * elements)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with suppress(OSError):  # a Linux kernel without huge pages refuses the advice
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, np.int64)


def latency(working_set_bytes: int, on: str | None = None, seed: int = 0, repeats: int = 5) -> list[float]:
    """Measure the seconds of a dependent load in a working set of this many bytes, one sample per repeat.

    Each sample continues where the one before it stopped. If all started at line 0, none would leave the first part of
    a long ring, and a cache that holds this part would pass for memory. A warm-up lap of up to 2²⁰ lines comes first.
    On a GPU the time of an empty chase is subtracted. Raises NotMeasurable if there is neither a GPU nor a C compiler,
    since an interpreted loop is slower than any memory.
    """
    on = on or device()
    return latency_of_spread(max(working_set_bytes // _LINE_BYTES[on], 1), 1, on, seed, repeats)


def latency_of_spread(lines: int, spacing: int, on: str | None = None, seed: int = 0, repeats: int = 5) -> list[float]:
    """Measure `latency` for this many lines, one in every `spacing`. The same number of lines then needs more pages,
    which a TLB may not hold.

    With spacing 64 on a CPU, each line lies in a 4 KiB page of its own, and translating its address costs time as well.
    But addresses a power of two apart also share a few sets of every cache. Spacing 65 spreads them over all sets.
    """
    on = on or device()
    following = ring(lines, spacing * _LINE_BYTES[on] // 8, seed)
    loads = _LOADS[on]
    follow = _follow_on_gpu(following) if on == "cuda" else _follow_on_cpu(following)
    if on == "cuda":
        # Triton compiles separate kernels for an argument of 1 and for multiples of 16. Compile them here, not between
        # the events of the first sample.
        follow(1), follow(loads)
    follow(min(lines, _WARM_UP_LINES))
    return [(follow(loads) - (follow(1) if on == "cuda" else 0.0)) / loads for _ in range(repeats)]


def _follow_on_cpu(following: NDArray[np.int64]) -> Callable[[int], float]:
    chase = _compiled_chase()
    at = 0

    def follow(loads: int) -> float:
        nonlocal at
        pointer = following.ctypes.data
        started = time.perf_counter()
        at = chase(pointer, at, loads)
        return time.perf_counter() - started

    return follow


def _follow_on_gpu(following: NDArray[np.int64]) -> Callable[[int], float]:
    on_device, place = torch.from_numpy(following).cuda(), torch.zeros(1, dtype=torch.int64, device="cuda")

    def follow(loads: int) -> float:
        return cuda_clock(lambda: chase_kernel[(1,)](on_device, place, loads, num_warps=1))

    return follow


@cache
def _compiled_chase() -> Callable[[int, int, int], int]:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NotMeasurable("no C compiler (cc, gcc or clang) is on PATH: install one, or use the recorded curves")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "chase.c")
        library = Path(folder, "chase.so")
        source.write_text(_C_SOURCE)
        command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise NotMeasurable(f"{Path(compiler).name} does not compile here: {done.stderr.strip().splitlines()[-1:]}")
        chase = ctypes.CDLL(str(library)).chase
    chase.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    chase.restype = ctypes.c_size_t
    return chase
