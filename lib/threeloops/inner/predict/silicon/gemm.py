"""Products of matrices: tiles on multiprocessors beside the traffic of the operands."""

from dataclasses import dataclass

import numpy as np

from threeloops.inner.predict.silicon.constants import constant
from threeloops.inner.predict.silicon.sheet import L2_SPEED, Sheet, Sizes, overlapped, share_left

__all__ = ["Gemm", "QuantizingGemm", "gemm_seconds"]

_TILES = (
    (256, 128), (128, 256), (128, 128), (128, 64), (64, 256), (64, 128), (64, 64), (128, 32), (64, 32), (64, 16),
)  # fmt: skip
"""The tiles of an output that a library offers, as rows and columns."""
_SPLITS = (1, 2, 3, 4, 6, 8, 16, 32)
"""The parts into which the sum over k may be cut, for more programs."""
_STEP = 64
"""Elements of k that a program multiplies at a time."""
_SHORTEST = 128
"""The shortest part of k that is worth a program of its own."""
_COPIES = 5
"""The published measurements cycle through copies of the weights that exceed the L2 together, but at most so many."""


@dataclass(frozen=True)
class Gemm:
    """Constants of one device and dtype. Seconds, or shares of what the data sheet says."""

    start: float = constant(2.5e-6, 1e-6, 3e-5)
    """Seconds from one launch to the next inside a CUDA graph."""
    reach: float = constant(0.85, 0.3, 1.0)
    """Share of the sheet's FLOP/s that a large tile reaches."""
    feed: float = constant(7.0, 0.1, 60.0)
    """How much slower small tiles are, which load more operands per product: 1 + feed · (rows + columns) / (rows ·
    columns)."""
    tail: float = constant(1e-6, 1e-8, 1e-5)
    """Seconds of a program before and after its products."""
    wave: float = constant(0.2, 0.02, 1.0)
    """1 if programs run in whole waves, near 0 if the last wave is spread over all multiprocessors."""
    stream: float = constant(0.8, 0.3, 1.0)
    """Share of the sheet's bandwidth that a large operand gets."""
    keep: float = constant(0.8, 0.1, 1.2)
    """Share of the L2 in which operands survive until they are used again. It may exceed 1, because a part of slightly
    more than fits survives."""
    draw: float = constant(1.0, 0.2, 20.0)
    """How much one multiprocessor can load, relative to an equal share of the bandwidth."""
    join: float = constant(1e-6, 1e-8, 2e-5)
    """Seconds to add the parts of a sum over k, besides their traffic."""
    latency: float = constant(6e-7, 1e-8, 5e-6)
    """Seconds until the first operands arrive from memory."""
    step: float = constant(1e-8, 1e-9, 1e-6)
    """The least seconds for 64 elements of k, even for a small tile."""
    sharpness: float = constant(2.8, 1.0, 8.0)
    """How well computing and loading overlap (`overlapped`)."""


@dataclass(frozen=True)
class QuantizingGemm(Gemm):
    """A product in fp8, after a kernel that quantizes the bf16 activations."""

    quantize: float = constant(1e-6, 1e-9, 2e-5)
    """Seconds to start that kernel."""


def gemm_seconds(device: Sheet, m: Sizes, n: Sizes, k: Sizes, constants: Gemm, *, warm: bool = True) -> np.ndarray:
    """Return the seconds of y = x·wᵀ, for x (m, k), w (n, k) and y (m, n) in 16 bits.

    The product is in bf16 with the constants of a `Gemm`, and in fp8 with those of a `QuantizingGemm`. `warm`: whether
    weights are still in the L2 from an earlier call, as in the published measurements: these cycle through up to
    five copies. In an L2 of 96 MiB, five copies of 20 MB stay, and so does a single one of 100 MB. In a model the other
    layers' weights have replaced them.

    A library chooses among tiles and cuts of k; so does this, by its own times. The formula follows the design of
    CUTLASS (https://github.com/NVIDIA/cutlass): tiles, split k, and programs that share the bandwidth.
    """
    m, n, k = (np.asarray(size, dtype=float) for size in (m, n, k))
    quantizes = isinstance(constants, QuantizingGemm)
    element = 1.0 if quantizes else 2.0
    rate = device.rate("fp8" if quantizes else "bf16") * constants.reach / device.multiprocessors
    weights = element * n * k
    inputs = element * m * k
    outputs = 2 * m * n
    room = constants.keep * device.l2
    copies = np.clip(np.ceil(device.l2 / weights), 1, _COPIES)
    cold = share_left(copies * weights + inputs + outputs, room, 16) if warm else 1.0
    from_dram = weights * cold + (inputs + outputs) * share_left(inputs + outputs, room, 4)
    from_l2 = weights + inputs + outputs - from_dram
    loaded = from_dram / (device.bandwidth * constants.stream) + from_l2 / (device.bandwidth * L2_SPEED)
    computed = np.full(np.broadcast(m, n, k).shape, np.inf)
    for rows, columns in _TILES:
        for parts in _SPLITS:
            seconds = _tiled(device, (m, n, k), (rows, columns, parts), element, constants, rate)
            computed = np.minimum(computed, seconds)
    first = constants.latency * from_dram / (from_dram + 1e5)
    seconds = constants.start + first + overlapped(computed, loaded, constants.sharpness)
    if isinstance(constants, QuantizingGemm):
        written = 3 * m * k  # reads bf16 and writes fp8
        half_cold = 0.5 + 0.5 * share_left(written, room, 4)
        seconds = seconds + constants.quantize + written * half_cold / (device.bandwidth * constants.stream)
    return seconds


def _tiled(
    device: Sheet,
    shape: tuple[np.ndarray, np.ndarray, np.ndarray],
    cut: tuple[int, int, int],
    element: float,
    constants: Gemm,
    rate: float,
) -> np.ndarray:
    """Return the seconds of all programs with these tiles and this cut of k, or ∞ if the parts of k are too short.

    `rate` is what one multiprocessor computes, in FLOP/s.
    """
    m, n, k = shape
    rows, columns, parts = cut
    slowed = 1 + constants.feed * (rows + columns) / (rows * columns)
    step = np.maximum(2 * rows * columns * _STEP / rate * slowed, constants.step)
    steps = np.ceil(k / parts / _STEP)
    operands = np.minimum(rows, m) + np.minimum(columns, n)
    draw = constants.draw * device.bandwidth / device.multiprocessors
    program = overlapped(steps * step, steps * _STEP * element * operands / draw, constants.sharpness) + constants.tail
    turns = np.ceil(m / rows) * np.ceil(n / columns) * parts / device.multiprocessors
    waves = np.where(turns < 1, 1, (1 - constants.wave) * turns + constants.wave * np.ceil(turns))
    if parts == 1:
        return waves * program
    joined = waves * program + parts * m * n * 4 / (device.bandwidth * L2_SPEED) + constants.join
    return np.where(k / parts >= _SHORTEST, joined, np.inf)
