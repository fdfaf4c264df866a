"""Tensors into FP8 and back: a scale, a saturating cast, and the amax that the next scale is made of.

Scales, amaxes and their history are tensors on the device of what they scale: a host that asked for one of them would
wait for all kernels before it, in every layer anew. On a GPU the next scale, the cast and the amax are compiled
together by `torch.compile`; eager operators would each read the tensor again.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from threeloops.inner.formats import FLOAT8_E4M3FN, FLOAT8_E5M2, FloatFormat
from threeloops.inner.precision.delayed_scaling import LARGEST_SCALE, SMALLEST_SCALE, Recipe, ScaleState

State = tuple[Tensor, Tensor, Tensor]
"""Scale, history and count of a place in a model, as `next_scale` has them."""
Before = tuple[Tensor, Tensor, Tensor, Tensor, float, bool]
"""What `next_scale` takes."""
TORCH_DTYPES = {FLOAT8_E4M3FN: torch.float8_e4m3fn, FLOAT8_E5M2: torch.float8_e5m2}


@dataclass(frozen=True)
class Quantised:
    """FP8 `values` of any shape that stand for values / scale; `scale` is a float32 scalar on their device."""

    values: Tensor
    scale: Tensor

    def dequantised(self) -> Tensor:
        return self.values.float() / self.scale


def quantise(x: Tensor, scale: float | Tensor, format: FloatFormat) -> Quantised:
    """x · scale, saturated at the format's largest number and rounded to nearest even; NaN stays."""
    factor = torch.as_tensor(scale, dtype=torch.float32, device=x.device)
    cast = compiled(_cast) if x.is_cuda else _cast
    values = cast(x.detach().contiguous().view(-1), factor, format.largest, TORCH_DTYPES[format])
    return Quantised(values.view(x.shape), factor)


def _cast(x: Tensor, scale: Tensor, largest: float, dtype: torch.dtype) -> Tensor:
    """Saturation is explicit: e5m2 would make an infinity of what exceeds it, and e4m3fn NaN up to torch 2.11."""
    return (x.float() * scale).clamp(-largest, largest).to(dtype)


def next_scale(
    scale: Tensor, history: Tensor, remembered: Tensor, amax: Tensor, highest: float, most_recent: bool
) -> State:
    """`after_tensor` without a host: the scale, history and count after a tensor of this amax.

    `history` is a ring of float32 in which `remembered` amaxes were written so far; places not written yet are zero.
    `highest` is what the largest amax shall be scaled to.
    """
    finite = amax.isfinite()
    here = torch.arange(len(history), device=history.device) == remembered % len(history)
    history = torch.where(here & finite, amax, history)
    reference = amax if most_recent else history.amax()
    # Tensor by tensor: a Python number over a tensor would be a reciprocal first, and rounded twice.
    wanted = (torch.full_like(reference, highest) / reference).clamp(SMALLEST_SCALE, LARGEST_SCALE)
    return torch.where(finite & (reference > 0), wanted, scale), history, remembered + finite


def _pass(x: Tensor, before: Before, largest: float, dtype: torch.dtype) -> tuple[Tensor, State, Tensor]:
    """The values of x, the state with which they were made, and the amax of x."""
    state = next_scale(*before)
    return _cast(x, state[0], largest, dtype), state, x.abs().amax().float()


@functools.cache
def compiled(function: Callable) -> Callable:
    return torch.compile(function, dynamic=True)


class Scaler(nn.Module):
    """The delayed scale of one place in a model: quantises what passes, and remembers its amax.

    Its buffers are part of the model's state: a training that goes on from a checkpoint goes on with its scales. They
    stay float32 whatever the model is cast to. In `eval` mode nothing is remembered.
    """

    scale: Tensor
    history: Tensor
    remembered: Tensor
    amax: Tensor

    def __init__(self, format: FloatFormat, recipe: Recipe) -> None:
        super().__init__()
        self.format, self.recipe = format, recipe
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("history", torch.zeros(recipe.history_length))
        self.register_buffer("remembered", torch.zeros((), dtype=torch.int64))
        # Of the latest tensor, for the next: until then its scale is there to quantise the same tensor again.
        self.register_buffer("amax", torch.full((), math.nan))

    def forward(self, x: Tensor, again: bool = False) -> Quantised:
        """Quantised with the scale from the tensors before; this one's amax counts from the next on.

        `again`: x is the latest tensor once more, as when a forward pass is recomputed, and gets the same scale.
        """
        if again or not self.training or not x.numel():
            return quantise(x, self.scale if again else next_scale(*self._before)[0], self.format)
        once = compiled(_pass) if x.is_cuda else _pass
        # Flat, so that one compilation does for all shapes.
        flat = x.detach().contiguous().view(-1)
        values, state, self.amax = once(flat, self._before, self.format.largest, TORCH_DTYPES[self.format])
        self.scale, self.history, self.remembered = state
        return Quantised(values.view(x.shape), self.scale)

    @property
    def state(self) -> ScaleState:
        """The scale for the next tensor and the amaxes behind it, for people and tests: waits for the device."""
        scale, history, remembered = next_scale(*self._before)
        count, length = int(remembered), len(history)
        order = range(max(0, count - length), count)
        return ScaleState(float(scale), tuple(float(history[number % length]) for number in order))

    @property
    def _before(self) -> Before:
        highest, most_recent = self.recipe.highest(self.format), self.recipe.amax == "most_recent"
        return self.scale, self.history, self.remembered, self.amax, highest, most_recent

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Scaler":
        """Follow the model to another device, but to no other dtype."""
        for name, buffer in self.named_buffers(recurse=False):
            self.register_buffer(name, buffer.to(fn(buffer).device))
        return self
