"""Tensors into FP8 and back: a scale, a saturating cast, and the amax that the next scale is made of.

On a GPU the cast and the amax are one pass over the tensor, compiled by `torch.compile`; eager operators would read it
five times. The amax stays on the GPU until the next tensor asks for a scale, so that the host does not wait for a step
that it has just launched.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from threeloops.inner.formats import FLOAT8_E4M3FN, FLOAT8_E5M2, FloatFormat
from threeloops.inner.precision.delayed_scaling import Recipe, ScaleState, after_tensor

TORCH_DTYPES = {FLOAT8_E4M3FN: torch.float8_e4m3fn, FLOAT8_E5M2: torch.float8_e5m2}


@dataclass(frozen=True)
class Quantised:
    """FP8 `values` of any shape that stand for values / scale."""

    values: Tensor
    scale: float

    def dequantised(self) -> Tensor:
        return self.values.float() / self.scale


def _cast_and_amax(x: Tensor, scale: Tensor, largest: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Saturation is explicit: e5m2 would make an infinity of what exceeds it, and e4m3fn NaN up to torch 2.11."""
    single = x.float()
    return (single * scale).clamp(-largest, largest).to(dtype), single.abs().amax()


@functools.cache
def _compiled() -> Callable[[Tensor, Tensor, float, torch.dtype], tuple[Tensor, Tensor]]:
    return torch.compile(_cast_and_amax, dynamic=True)


def cast_and_amax(x: Tensor, scale: float, format: FloatFormat) -> tuple[Quantised, Tensor]:
    """x · scale, saturated at the format's largest number and rounded to nearest even, and max |x| as a float32 scalar
    on the device of x; NaN stays in both."""
    if not x.numel():
        return Quantised(x.to(TORCH_DTYPES[format]), scale), x.new_zeros((), dtype=torch.float32)
    cast = _compiled() if x.is_cuda else _cast_and_amax
    # Flat, and the scale as a tensor: one compilation does for all shapes and scales.
    factor = torch.full((), scale, dtype=torch.float32, device=x.device)
    values, amax = cast(x.detach().contiguous().view(-1), factor, format.largest, TORCH_DTYPES[format])
    return Quantised(values.view(x.shape), scale), amax


def quantise(x: Tensor, scale: float, format: FloatFormat) -> Quantised:
    """x · scale in `format`, as `cast_and_amax` makes it."""
    return cast_and_amax(x, scale, format)[0]


class Scaler:
    """The delayed scale of one place in a model: quantises what passes, and remembers its amax."""

    def __init__(self, format: FloatFormat, recipe: Recipe) -> None:
        self.format, self.recipe = format, recipe
        self._state, self._latest_amax = ScaleState(), None

    @property
    def state(self) -> ScaleState:
        """The scale for the next tensor; waits for the GPU where the last tensor's amax is not there yet."""
        if self._latest_amax is not None:
            self._state = after_tensor(self._state, float(self._latest_amax), self.format, self.recipe)
            self._latest_amax = None
        return self._state

    def __call__(self, x: Tensor) -> Quantised:
        """Quantised with the scale from the tensors before; this one's amax counts from the next on."""
        quantised, self._latest_amax = cast_and_amax(x, self.state.scale, self.format)
        return quantised
