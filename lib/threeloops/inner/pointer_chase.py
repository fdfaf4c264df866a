"""Latency by pointer chase: each load's address is the value of the load before, so no two of them overlap.

The addresses form one random ring through the working set, one stop a cache line: no prefetcher can guess the next
stop, and every line is visited before any is visited again. While the working set fits a cache, a load costs that
cache's latency; each capacity it outgrows shows as a step. Source: Saavedra and Smith, "Measuring cache and TLB
performance and their effect on benchmark run times", IEEE Transactions on Computers 44(10), 1995.
"""

import ctypes
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from threeloops.hardware import device

_LINE_BYTES = {"cpu": 64, "cuda": 128}
_LOADS = {"cpu": 1_000_000, "cuda": 50_000}
_WARM_UP_LINES = 1 << 20

_C_SOURCE = """
#include <stddef.h>
size_t chase(const size_t *ring, size_t at, size_t loads) {
    while (loads--) at = ring[at];
    return at;
}
"""


@triton.jit
def chase_kernel(ring, end, loads):
    """Follow `ring` for `loads` steps from index 0; one program, one load in flight."""
    at = tl.load(ring)
    for _ in range(loads - 1):
        at = tl.load(ring + at)
    tl.store(end, at)


class NotMeasurable(RuntimeError):
    """This machine has no means to chase pointers fast enough; the message says what is missing."""


def ring(lines: int, line_elements: int, seed: int) -> NDArray[np.int64]:
    """One random cycle through `lines` cache lines, as the index of the next stop at the first element of each line.

    Sattolo's algorithm draws every single cycle with equal probability; a shuffled order that falls into several
    cycles would stay in a part of the working set. Returns int64 of shape (lines · line_elements,).
    """
    for name, value in (("lines", lines), ("line_elements", line_elements)):
        if value < 1:
            raise ValueError(f"{name} = {value}: expected at least 1")
    generator = np.random.default_rng(seed)
    stops = generator.permutation(lines)
    following = np.zeros(lines * line_elements, np.int64)
    following[stops * line_elements] = np.roll(stops, -1) * line_elements
    return following


def latency(working_set_bytes: int, on: str | None = None, seed: int = 0, repeats: int = 5) -> list[float]:
    """Seconds a dependent load takes in a working set of so many bytes: one sample a repeat, after a warm-up lap.

    On a GPU the time of an empty chase is taken off. Raises NotMeasurable where there is neither a GPU nor a C
    compiler: an interpreted loop is slower than any memory.
    """
    on = on or device()
    return latency_of_spread(max(working_set_bytes // _LINE_BYTES[on], 1), 1, on, seed, repeats)


def latency_of_spread(lines: int, spacing: int, on: str | None = None, seed: int = 0, repeats: int = 5) -> list[float]:
    """The same for so many lines, one in every `spacing`: the lines fit where they fit, their pages may not.

    With spacing 64 on a CPU each line lies in a page of 4 KiB of its own, and translating its address costs as well.
    """
    on = on or device()
    following = ring(lines, spacing * _LINE_BYTES[on] // 8, seed)
    loads = max(_LOADS[on], min(2 * lines, _WARM_UP_LINES))
    follow = _follow_on_gpu(following) if on == "cuda" else _follow_on_cpu(following)
    follow(min(lines, _WARM_UP_LINES))
    follow(loads)
    return [(follow(loads) - (follow(1) if on == "cuda" else 0.0)) / loads for _ in range(repeats)]


def _follow_on_cpu(following: NDArray[np.int64]) -> Callable[[int], float]:
    chase = _compiled_chase()
    pointer = following.ctypes.data

    def follow(loads: int) -> float:
        started = time.perf_counter()
        chase(pointer, 0, loads)
        return time.perf_counter() - started

    return follow


def _follow_on_gpu(following: NDArray[np.int64]) -> Callable[[int], float]:
    on_device, end = torch.from_numpy(following).cuda(), torch.zeros(1, dtype=torch.int64, device="cuda")

    def follow(loads: int) -> float:
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        chase_kernel[(1,)](on_device, end, loads, num_warps=1)
        after.record()
        after.synchronize()
        return before.elapsed_time(after) / 1e3

    return follow


@cache
def _compiled_chase() -> Callable[[int, int, int], int]:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NotMeasurable("no C compiler (cc, gcc or clang) is on PATH: install one, or use the recorded curves")
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "chase.c"), Path(folder, "chase.so")
        source.write_text(_C_SOURCE)
        command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise NotMeasurable(f"{Path(compiler).name} does not compile here: {done.stderr.strip().splitlines()[-1:]}")
        chase = ctypes.CDLL(str(library)).chase
    chase.argtypes, chase.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t], ctypes.c_size_t
    return chase
