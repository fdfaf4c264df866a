"""The cost of the meter for a kernel, timed in a process of its own: `python -m benchmarks.meter_kernels`.

Share (i, 4): the meter (even) or triton-viz (odd), in the course's interpreter (0, 1) or in Triton's as it ships
(2, 3), each in turns with the plain interpreter. Times are this process's CPU seconds, since the interpreter is one
thread and other processes may be busy.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

# Read when Triton and triton-viz are imported. By default triton-viz runs one program and skips its loads and stores:
# here it counts what the meter counts, all programs of a kernel that computes its result.
os.environ |= {
    "TRITON_INTERPRET": "1",
    "PROFILER_ENABLE_BLOCK_SAMPLING": "0",
    "PROFILER_ENABLE_LOAD_STORE_SKIPPING": "0",
    "PROFILER_DISABLE_BUFFER_LOAD_CHECK": "1",
}

import torch
import triton
import triton.language as tl
from threeloops.inner import interpreter
from threeloops.inner.meter import meter

from benchmarks.kernel_part import Row, Share, answer
from benchmarks.peer_packages import why_absent

PLAIN, METER, METER_L2, TRITON_VIZ = "plain interpreter", "meter", "meter, L2 of an H100", "triton-viz profiler"
INTERPRETERS = ("the course's interpreter", "Triton's interpreter")


@triton.jit
def saxpy_kernel(x, y, a, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(y + offsets, a * tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask=mask)


@triton.jit
def softmax_kernel(x, y, columns, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * columns + tl.arange(0, BLOCK)
    mask = tl.arange(0, BLOCK) < columns
    row = tl.load(x + offsets, mask=mask, other=float("-inf"))
    numerator = tl.exp(row - tl.max(row, axis=0))
    tl.store(y + offsets, numerator / tl.sum(numerator, axis=0), mask=mask)


@triton.jit
def matmul_kernel(a, b, c, n, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, n, BK):
        tile_a = tl.load(a + rows[:, None] * n + start + depth[None, :])
        tile_b = tl.load(b + (start + depth[:, None]) * n + columns[None, :])
        total = tl.dot(tile_a, tile_b, total)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(tl.float16))


@triton.jit
def attention_kernel(q, k, v, out, n, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    features = tl.arange(0, D)
    queries = tl.load(q + rows[:, None] * D + features[None, :])
    highest = tl.full((BM,), float("-inf"), tl.float32)
    weight = tl.zeros((BM,), tl.float32)
    total = tl.zeros((BM, D), tl.float32)
    for start in range(0, n, BN):
        columns = start + tl.arange(0, BN)
        keys = tl.load(k + columns[:, None] * D + features[None, :])
        values = tl.load(v + columns[:, None] * D + features[None, :])
        scores = tl.dot(queries, tl.trans(keys))
        new = tl.maximum(highest, tl.max(scores, axis=1))
        probabilities = tl.exp(scores - new[:, None])
        scale = tl.exp(highest - new)
        weight = weight * scale + tl.sum(probabilities, axis=1)
        total = tl.dot(probabilities.to(values.dtype), values, total * scale[:, None])
        highest = new
    tl.store(out + rows[:, None] * D + features[None, :], (total / weight[:, None]).to(tl.float16))


@triton.jit
def gather_kernel(x, places, y, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(y + offsets, tl.load(x + tl.load(places + offsets, mask=mask, other=0), mask=mask), mask=mask)


@dataclass(frozen=True)
class Case:
    """A kernel with its grid, arguments and constants, and the bytes that its lanes ask for, in closed form."""

    name: str
    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, int]
    requested: int

    def run(self, kernel: Any = None) -> None:
        (kernel or self.kernel)[self.grid](*self.arguments, **self.constants)


Party = Callable[[Case], tuple[float, int | None]]
"""Runs a case once: CPU seconds, and the bytes that it counted."""


def cases(quick: bool) -> list[Case]:
    rows, columns, n = 128 if quick else 256, 1000, 256
    elements, tokens, width = 2**17 if quick else 2**18, 256 if quick else 512, 64
    half = torch.float16
    x, y, picked = torch.randn(elements), torch.randn(elements), torch.zeros(elements)
    places = torch.randint(0, elements, (elements,))
    matrix = torch.randn(rows, columns)
    a, b, c = torch.randn(n, n).to(half), torch.randn(n, n).to(half), torch.zeros(n, n, dtype=half)
    q, k, v = (torch.randn(tokens, width).to(half) for _ in range(3))
    tiles, blocks = n // 64, tokens // 64
    return [
        Case("saxpy", saxpy_kernel, (elements // 4096,), (x, y, 2.0, elements), {"BLOCK": 4096}, 12 * elements),
        Case("softmax", softmax_kernel, (rows,), (matrix, torch.zeros_like(matrix), columns), {"BLOCK": 1024},
             8 * matrix.numel()),
        Case("matmul", matmul_kernel, (tiles, tiles), (a, b, c, n), {"BM": 64, "BN": 64, "BK": 32},
             2 * (2 * n * n * tiles + n * n)),
        Case("attention", attention_kernel, (blocks,), (q, k, v, torch.zeros_like(q), tokens),
             {"D": width, "BM": 64, "BN": 64}, 2 * tokens * width * (2 + 2 * blocks)),
        Case("random gather", gather_kernel, (elements // 4096,), (x, places, picked, elements), {"BLOCK": 4096},
             16 * elements),
    ]  # fmt: skip


def rows(quick: bool, share: Share) -> Iterator[Row]:
    """A row for each kernel and party: CPU seconds of every run and the bytes it counted, or why it took no part."""
    shipped, peer = divmod(share[0], 2)
    if not shipped:
        interpreter.enable_without_gpu()
    absent = no_triton_viz() if peer else None
    for case in cases(quick):
        about = {"interpreter": INTERPRETERS[shipped], "kernel": case.name, "requested_bytes": case.requested}
        parties: dict[str, Party] = {PLAIN: lambda case: (timed(case.run), None)}
        parties |= {TRITON_VIZ: with_triton_viz} if peer else {METER: metered, METER_L2: metered_with_l2}
        if not absent:
            try:
                yield from ({**about, **row} for row in in_turns(case, parties, 3 if quick else 5))
            except Exception as error:
                # It may have left the interpreter in pieces: no further kernel is run here.
                absent = f"fails on {case.name}: {type(error).__name__}: {str(error).strip().splitlines()[-1]}"
        if absent:
            yield {**about, "by": TRITON_VIZ if peer else METER, "not_measured": absent}


def in_turns(case: Case, parties: dict[str, Party], rounds: int) -> list[Row]:
    seconds: dict[str, list[float]] = {name: [] for name in parties}
    counted: dict[str, int | None] = {}
    for _ in range(1 + rounds):
        for name, party in parties.items():
            spent, counted[name] = party(case)
            seconds[name].append(spent)
    # The first run imports and fills caches.
    return [{"by": name, "seconds": seconds[name][1:], "counted_bytes": counted[name]} for name in parties]


def timed(call: Callable[[], Any]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def metered(case: Case, l2: str | None = None) -> tuple[float, int]:
    started = time.process_time()
    with meter(l2) as traffic:
        case.run()
    return time.process_time() - started, traffic.total.requested_bytes


def metered_with_l2(case: Case) -> tuple[float, int]:
    return metered(case, "H100 SXM")


def with_triton_viz(case: Case) -> tuple[float, int]:
    import triton_viz
    from triton_viz.clients import Profiler

    profiler = Profiler()
    kernel = triton_viz.trace(profiler)(case.kernel)
    with redirect_stdout(sys.stderr):
        spent = timed(lambda: case.run(kernel))
    triton_viz.clear()
    return spent, int(profiler.load_bytes.total_bytes_true + profiler.store_bytes.total_bytes_true)


def no_triton_viz() -> str | None:
    """Why triton-viz cannot be compared with here; None if it can."""
    if absent := why_absent("triton_viz", "triton-viz"):
        return absent
    try:
        import triton_viz  # noqa: F401
    except ImportError as error:
        return f"triton-viz cannot be imported: {error}"
    return None


if __name__ == "__main__":
    answer(lambda quick, share: iter([({"share": list(share)}, lambda: rows(quick, share))]))
