"""FP8 training: per-tensor scales with a delayed amax history, and a linear layer that uses them.

layer = Fp8Linear(512, 2048, recipe=Recipe(history_length=16))
layer(x).sum().backward()                   # emulated on a CPU, on FP8 tensor cores where there are any

float8_e4m3fn spans 448 down to 0.002, so a tensor must first be scaled into that range. The best scale needs the
tensor's own largest magnitude (amax), one more pass over it before the cast. Delayed scaling uses the amax of earlier
steps instead and records this one's along the way, as in NVIDIA's Transformer Engine
(transformer_engine/common/recipe/delayed_scaling.cu): scale = largest · 2^(−margin) / amax, in float32. Scales and
amaxes stay on the device: a host that reads one would wait for all earlier kernels, in every layer. On a GPU
`torch.compile` fuses scale, cast and amax, while eager operators need one pass for each.

Activations and weights are float8_e4m3fn; gradients, which span more, are float8_e5m2. If the hardware can multiply FP8
(compute capability 8.9 and up), `torch._scaled_mm` is used. Otherwise the same FP8 numbers are multiplied in float32.
Each product is exact in float32, but the sums differ by more than their order explains: Hopper's FP8 tensor cores keep
about 14 bits of a running sum (DeepSeek-V3 technical report, arXiv:2412.19437, section 3.3.2).
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from threeloops.inner.precision.formats import FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT32, FloatFormat

SMALLEST_SCALE = FLOAT32.smallest_normal
LARGEST_SCALE = FLOAT32.largest
"""Both have a reciprocal that is finite and not zero."""
_LARGEST_MARGIN = 64


@dataclass(frozen=True)
class Recipe:
    """`margin`: powers of two to stay below the format's largest number; `history_length`: how many amaxes to remember;
    `amax`: whether the largest or the latest of them counts. Raises ValueError naming the invalid field."""

    margin: int = 0
    history_length: int = 1024
    amax: Literal["max", "most_recent"] = "max"

    def __post_init__(self) -> None:
        if not -_LARGEST_MARGIN <= self.margin <= _LARGEST_MARGIN:
            raise ValueError(f"margin = {self.margin}: expected {-_LARGEST_MARGIN} to {_LARGEST_MARGIN} powers of two")
        if self.history_length < 1:
            raise ValueError(f"history_length = {self.history_length}: expected at least one step")
        if self.amax not in ("max", "most_recent"):
            raise ValueError(f"amax = {self.amax!r}: expected 'max' or 'most_recent'")

    def highest(self, format: FloatFormat) -> float:
        """Return the float32 number that the largest magnitude is scaled to."""
        return float(np.float32(format.largest * 2.0**-self.margin))


@dataclass(frozen=True)
class ScaleState:
    """The factor for the next tensor, and the amaxes that it is computed from, oldest first."""

    scale: float = 1.0
    history: tuple[float, ...] = ()


def after_tensor(state: ScaleState, amax: float, format: FloatFormat, recipe: Recipe) -> ScaleState:
    """Return the state after a tensor whose largest magnitude, before scaling, was `amax`.

    A history of zeros keeps the scale. So does an `amax` that is not finite, which is not remembered. (Transformer
    Engine remembers it and keeps the scale until it has left the window.)
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


_State = tuple[Tensor, Tensor, Tensor]
"""Scale, history and the number of amaxes remembered, as `_next_scale` returns them."""
_Before = tuple[Tensor, Tensor, Tensor, Tensor, float, bool]
"""The arguments of `_next_scale`."""
_TORCH_DTYPES = {FLOAT8_E4M3FN: torch.float8_e4m3fn, FLOAT8_E5M2: torch.float8_e5m2}


@dataclass(frozen=True)
class Quantised:
    """FP8 `values` of any shape that stand for values / scale; `scale` is a float32 scalar on their device."""

    values: Tensor
    scale: Tensor

    def dequantised(self) -> Tensor:
        return self.values.float() / self.scale


def quantise(x: Tensor, scale: float | Tensor, format: FloatFormat) -> Quantised:
    """Return x · scale, saturated at the format's largest number and rounded to nearest even. NaN stays."""
    factor = torch.as_tensor(scale, dtype=torch.float32, device=x.device)
    cast = _compiled(_cast) if x.is_cuda else _cast
    values = cast(x.detach().contiguous().view(-1), factor, format.largest, _TORCH_DTYPES[format])
    return Quantised(values.view(x.shape), factor)


def _cast(x: Tensor, scale: Tensor, largest: float, dtype: torch.dtype) -> Tensor:
    """Cast and saturate explicitly, because torch's casts overflow in e5m2 to infinity, and in e4m3fn up to torch 2.11
    to NaN."""
    return (x.float() * scale).clamp(-largest, largest).to(dtype)


def _next_scale(
    scale: Tensor, history: Tensor, remembered: Tensor, amax: Tensor, highest: float, most_recent: bool
) -> _State:
    """Compute `after_tensor` on the device, without waiting for it.

    `history` is a float32 ring buffer in which `remembered` amaxes were written so far, zero elsewhere. `highest` is
    the value to which the largest amax is scaled.
    """
    finite = amax.isfinite()
    here = torch.arange(len(history), device=history.device) == remembered % len(history)
    history = torch.where(here & finite, amax, history)
    reference = amax if most_recent else history.amax()
    # Tensor by tensor: torch computes number / tensor as number * reciprocal, which rounds twice.
    wanted = (torch.full_like(reference, highest) / reference).clamp(SMALLEST_SCALE, LARGEST_SCALE)
    return torch.where(finite & (reference > 0), wanted, scale), history, remembered + finite


def _pass(x: Tensor, before: _Before, largest: float, dtype: torch.dtype) -> tuple[Tensor, _State, Tensor]:
    """Return the values of x, the state that they were scaled with, and the amax of x."""
    state = _next_scale(*before)
    return _cast(x, state[0], largest, dtype), state, x.abs().amax().float()


@functools.cache
def _compiled(function: Callable) -> Callable:
    return torch.compile(function, dynamic=True)


class Scaler(nn.Module):
    """The delayed scale of one place in a model: quantises tensors and remembers their amaxes, except in `eval` mode.

    Its buffers are part of the model's state, so checkpoints keep the scales. They stay float32 when the model is cast.
    """

    scale: Tensor
    history: Tensor
    remembered: Tensor
    amax: Tensor

    def __init__(self, format: FloatFormat, recipe: Recipe) -> None:
        super().__init__()
        self.format = format
        self.recipe = recipe
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("history", torch.zeros(recipe.history_length))
        self.register_buffer("remembered", torch.zeros((), dtype=torch.int64))
        # The latest tensor's amax counts from the next tensor on: until then, `again` needs the old scale.
        self.register_buffer("amax", torch.full((), math.nan))

    def forward(self, x: Tensor, again: bool = False) -> Quantised:
        """Quantise with the scale from earlier tensors. `again`: x is the latest tensor once more, as when a forward
        pass is recomputed, and gets the same scale."""
        if again or not self.training or not x.numel():
            return quantise(x, self.scale if again else _next_scale(*self._before)[0], self.format)
        once = _compiled(_pass) if x.is_cuda else _pass
        # Flat, so that one compilation serves all shapes.
        flat = x.detach().contiguous().view(-1)
        values, state, self.amax = once(flat, self._before, self.format.largest, _TORCH_DTYPES[self.format])
        self.scale, self.history, self.remembered = state
        return Quantised(values.view(x.shape), self.scale)

    @property
    def state(self) -> ScaleState:
        """The scale for the next tensor and the amaxes behind it. Waits for the device."""
        scale, history, remembered = _next_scale(*self._before)
        count = int(remembered)
        length = len(history)
        order = range(max(0, count - length), count)
        return ScaleState(float(scale), tuple(float(history[number % length]) for number in order))

    @property
    def _before(self) -> _Before:
        highest = self.recipe.highest(self.format)
        most_recent = self.recipe.amax == "most_recent"
        return self.scale, self.history, self.remembered, self.amax, highest, most_recent

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Scaler":
        """Follow the model to another device, but not to another dtype."""
        for name, buffer in self.named_buffers(recurse=False):
            self.register_buffer(name, buffer.to(fn(buffer).device))
        return self


_TILE = 16
"""`torch._scaled_mm` takes only matrices whose sides are multiples of this."""


def _multiplies_fp8(x: Tensor) -> bool:
    """Return whether the hardware under `x` has FP8 tensor cores."""
    return x.is_cuda and torch.cuda.get_device_capability(x.device) >= (8, 9)


def product(a: Quantised, b: Quantised, dtype: torch.dtype, *, hardware: bool) -> Tensor:
    """Compute a @ bᵀ in `dtype`, for a of shape (m, k) and b of shape (n, k), at most one of them in e5m2.

    Raises ValueError for sides that the hardware cannot multiply.
    """
    inverse_a = a.scale.reciprocal()
    inverse_b = b.scale.reciprocal()
    if not hardware:
        with torch.autocast(a.values.device.type, enabled=False):  # which would multiply in fewer bits
            return ((a.values.float() @ b.values.float().t()) * inverse_a * inverse_b).to(dtype)
    for name, size in (("m", a.values.shape[0]), ("n", b.values.shape[0]), ("k", a.values.shape[1])):
        if size % _TILE:
            raise ValueError(f"{name} = {size}: expected a multiple of {_TILE} for FP8 tensor cores; pad it")
    # The hardware wants k contiguous in both operands: b is row-major as (n, k), so its transpose is column-major.
    return torch._scaled_mm(a.values.contiguous(), b.values.contiguous().t(), inverse_a, inverse_b, out_dtype=dtype)


class _Fp8Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: "Fp8Linear") -> Tensor:
        ctx.layer = layer
        ctx.dtypes = (x.dtype, weight.dtype)
        again = torch._C._current_graph_task_id() != -1  # in a backward pass: activations are being recomputed
        a = layer.input_scaler(x, again)
        b = layer.weight_scaler(weight, again)
        ctx.save_for_backward(a.values, a.scale, b.values, b.scale)
        return product(a, b, x.dtype, hardware=_multiplies_fp8(x))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        saved = ctx.saved_tensors
        x = Quantised(*saved[:2])
        weight = Quantised(*saved[2:])
        quantised = ctx.layer.gradient_scaler(gradient)
        hardware = _multiplies_fp8(gradient)
        for_input = product(quantised, _transposed(weight), ctx.dtypes[0], hardware=hardware)
        for_weight = product(_transposed(quantised), _transposed(x), ctx.dtypes[1], hardware=hardware)
        return for_input, for_weight, None


def _transposed(q: Quantised) -> Quantised:
    return Quantised(q.values.t(), q.scale)


class Fp8Linear(nn.Module):
    """x @ weightᵀ + bias for x of shape (…, inputs), with all three products of a training step in FP8. The weight
    stays float32 or bfloat16; the result has the dtype of x. `state_dict` includes the scales."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, recipe: Recipe | None = None) -> None:
        super().__init__()
        plain = nn.Linear(inputs, outputs, bias=bias)
        self.weight = plain.weight
        self.bias = plain.bias
        recipe = recipe or Recipe()
        self.input_scaler = Scaler(FLOAT8_E4M3FN, recipe)
        self.weight_scaler = Scaler(FLOAT8_E4M3FN, recipe)
        self.gradient_scaler = Scaler(FLOAT8_E5M2, recipe)

    @classmethod
    def of(cls, linear: nn.Linear, recipe: Recipe | None = None) -> "Fp8Linear":
        """Return the same layer in FP8: it shares the parameters of `linear`."""
        made = cls(1, 1, bias=False, recipe=recipe).to(linear.weight.device)
        made.weight = linear.weight
        made.bias = linear.bias
        return made

    def forward(self, x: Tensor) -> Tensor:
        flat = _Fp8Product.apply(x.reshape(-1, x.shape[-1]), self.weight, self)
        result = flat.reshape(*x.shape[:-1], self.weight.shape[0])
        return result if self.bias is None else result + self.bias.to(result.dtype)


def with_fp8_linears(model: nn.Module, recipe: Recipe | None = None, *, but: tuple[str, ...] = ()) -> nn.Module:
    """Replace the linear layers of `model`, in place, by FP8 layers with the same parameters, and return it. Layers
    whose last name is in `but`, such as ("head",), stay. A model that is itself a linear layer is not changed: its
    replacement is returned."""
    if type(model) is nn.Linear:
        return Fp8Linear.of(model, recipe)
    replaced: dict[nn.Module, nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if type(child) is nn.Linear and name not in but:
                if child not in replaced:
                    replaced[child] = Fp8Linear.of(child, recipe)
                setattr(parent, name, replaced[child])
    return model


__all__ = [
    "Fp8Linear", "LARGEST_SCALE", "Quantised", "Recipe", "SMALLEST_SCALE", "ScaleState", "Scaler", "after_tensor",
    "product", "quantise", "with_fp8_linears",
]  # fmt: skip
