"""Grouped products: each expert multiplies the tokens that chose it."""

from dataclasses import dataclass

import numpy as np

from threeloops.inner.predict.silicon.constants import constant
from threeloops.inner.predict.silicon.experts.routing import ROWS, Loads
from threeloops.inner.predict.silicon.sheet import L2_SPEED, Sheet, Sizes, overlapped, share_left

__all__ = ["Experts", "QuantizedExperts", "experts_seconds"]

_COLUMNS = (128, 256)
"""Outputs that a program computes for each of its tokens."""
_FEW = 8
"""The number of experts whose set-up takes half of `fill`."""


@dataclass(frozen=True)
class Experts:
    """Constants of one device in bf16. Seconds, or shares of what the data sheet says."""

    start: float = constant(1.5e-5, 1e-6, 1e-4)
    """Seconds of a layer with nothing to do: routing, sorting, two products, and the sum over a token's experts."""
    fill: float = constant(1e-5, 1e-8, 1e-4)
    """Seconds to set up many experts' products."""
    reach: float = constant(0.8, 0.2, 1.0)
    """Share of the sheet's FLOP/s."""
    stream: float = constant(0.9, 0.3, 1.0)
    """Share of the sheet's bandwidth."""
    keep: float = constant(0.3, 0.02, 1.0)
    """Share of the L2 in which weights survive until the next call."""
    draw: float = constant(2.0, 0.2, 20.0)
    """How much one multiprocessor can load, relative to an equal share of the bandwidth."""
    again: float = constant(0.2, 1e-3, 1.0)
    """Share of the weights that the second block of an expert's tokens loads again, if they do not fit the L2."""
    move: float = constant(1.5, 0.1, 10.0)
    """Seconds to sort, activate and sum, relative to their traffic at the sheet's bandwidth."""
    sharpness: float = constant(2.0, 1.0, 8.0)
    """How well computing and loading overlap (`overlapped`)."""


@dataclass(frozen=True)
class QuantizedExperts(Experts):
    """Constants of one device in fp8. They include quantizing the tokens."""


def experts_seconds(
    device: Sheet,
    tokens: Sizes,
    width: Sizes,
    hidden: Sizes,
    on_busiest: Loads,
    constants: Experts,
    *,
    warm: bool = True,
) -> np.ndarray:
    """Return the seconds of a layer of experts on the busiest rank, without the exchange of tokens.

    Each expert is a gated MLP: (width → 2 · hidden), then (hidden → width), in bf16, or in fp8 with `QuantizedExperts`.
    All `tokens` are routed, and `on_busiest` (from `loads`) tells how many this rank computes. `warm`: whether weights
    small enough for the L2 are still there from the last call, as in the published measurements. In a model the other
    layers' weights have replaced them.

    The weights of every expert that any token chose are loaded, so few tokens cost nearly as much as many. A program
    takes a block of one expert's tokens. Libraries choose the size of blocks; so does this, by its own times.
    """
    tokens, width, hidden = (np.asarray(size, dtype=float) for size in (tokens, width, hidden))
    quantized = isinstance(constants, QuantizedExperts)
    element = 1.0 if quantized else 2.0
    rate = device.rate("fp8" if quantized else "bf16") * constants.reach
    room = constants.keep * device.l2
    cold = share_left(3 * element * on_busiest.active * width * hidden, room, 8) if warm else 1.0
    seconds = constants.start + constants.fill * on_busiest.active / (on_busiest.active + _FEW)
    for outputs, inputs in ((2 * hidden, width), (width, hidden)):
        seconds = seconds + _product(device, outputs, inputs, on_busiest, constants, rate, element, cold)
    copies = on_busiest.tokens * (6 * width + 6 * hidden) + 4 * tokens * width
    return seconds + constants.move * copies * share_left(copies, room, 1) / device.bandwidth


def _product(
    device: Sheet,
    outputs: np.ndarray,
    inputs: np.ndarray,
    on_busiest: Loads,
    constants: Experts,
    rate: float,
    element: float,
    cold: Sizes,
) -> np.ndarray:
    """Return the seconds of one product of all experts, with the best size of blocks. `rate`: FLOP/s of the device."""
    expert = element * outputs * inputs
    weights = on_busiest.active * expert
    memory = device.bandwidth * constants.stream
    first = weights * cold / memory + weights * (1 - cold) / (device.bandwidth * L2_SPEED)
    lost = share_left(expert, constants.keep * device.l2, 4) * constants.again
    best = np.full(weights.shape, np.inf)
    for rows, blocks in zip(ROWS, on_busiest.blocks, strict=True):
        loaded = first + np.maximum(blocks - on_busiest.active, 0) * expert * lost / memory
        for columns in _COLUMNS:
            program = np.maximum(
                2 * rows * columns * inputs / rate,
                element * inputs * (rows + columns) / (constants.draw * device.bandwidth),
            )  # times the multiprocessors, among which the programs are divided
            programs = np.maximum(blocks * np.ceil(outputs / columns), device.multiprocessors)
            best = np.minimum(best, overlapped(programs * program, loaded, constants.sharpness))
    return best
