"""Scales for FP8 tensors, from the largest magnitudes of the steps before.

float8_e4m3fn spans 448 down to 0.002: a tensor has to be multiplied into that range first. The best scale needs the
tensor's own largest magnitude (amax), that is, one more pass over it before the cast. Delayed scaling uses the amax of
earlier steps instead, and records this one's while the tensor passes by. The recipe of NVIDIA's Transformer Engine
(transformer_engine/common/recipe/delayed_scaling.cu): scale = largest · 2^(−margin) / amax, in float32.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from threeloops.inner.formats import FLOAT32, FloatFormat

SMALLEST_SCALE, LARGEST_SCALE = FLOAT32.smallest_normal, FLOAT32.largest
"""Both have a reciprocal that is finite and not zero."""
LARGEST_MARGIN = 64


@dataclass(frozen=True)
class Recipe:
    """`margin`: how many powers of two to stay below the format's largest number; `history_length`: steps that are
    remembered; `amax`: take the largest of them, or the latest. Raises ValueError naming the field that cannot be."""

    margin: int = 0
    history_length: int = 1024
    amax: Literal["max", "most_recent"] = "max"

    def __post_init__(self) -> None:
        if not -LARGEST_MARGIN <= self.margin <= LARGEST_MARGIN:
            raise ValueError(f"margin = {self.margin}: expected {-LARGEST_MARGIN} to {LARGEST_MARGIN} powers of two")
        if self.history_length < 1:
            raise ValueError(f"history_length = {self.history_length}: expected at least one step")
        if self.amax not in ("max", "most_recent"):
            raise ValueError(f"amax = {self.amax!r}: expected 'max' or 'most_recent'")

    def highest(self, format: FloatFormat) -> float:
        """What the largest magnitude is scaled to, in float32."""
        return float(np.float32(format.largest * 2.0**-self.margin))


@dataclass(frozen=True)
class ScaleState:
    """The factor for the next tensor, and the amaxes that it follows from, oldest first."""

    scale: float = 1.0
    history: tuple[float, ...] = ()


def after_tensor(state: ScaleState, amax: float, format: FloatFormat, recipe: Recipe) -> ScaleState:
    """The state after a tensor whose largest magnitude, before scaling, was `amax`: it has a say from now on.

    A history of zeros keeps the scale. So does an `amax` that is not finite; it is not remembered. (Transformer Engine
    remembers it, and the scale stands still until it has left the window.)
    """
    if amax < 0:
        raise ValueError(f"amax = {amax}: expected the largest magnitude of a tensor, at least 0")
    with np.errstate(over="ignore"):
        amax = float(np.float32(amax))
    if not math.isfinite(amax):
        return state
    history = (*state.history, amax)[-recipe.history_length :]
    reference = max(history) if recipe.amax == "max" else history[-1]
    if reference == 0:
        return ScaleState(state.scale, history)
    with np.errstate(over="ignore"):
        scale = float(np.float32(recipe.highest(format)) / np.float32(reference))
    return ScaleState(min(max(scale, SMALLEST_SCALE), LARGEST_SCALE), history)
