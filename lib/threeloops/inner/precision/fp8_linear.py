"""A linear layer in FP8: activations and weights as float8_e4m3fn, gradients, which span more, as float8_e5m2.

Where the hardware multiplies FP8 (`torch._scaled_mm`, compute capability 8.9 on), it does; elsewhere the same FP8
numbers are multiplied in float32. The product of two FP8 numbers is exact in float32; the sums differ. The emulation
adds in float32, and Hopper's FP8 tensor cores keep about 14 bits of a running sum (DeepSeek-V3 technical report,
arXiv:2412.19437, section 3.3.2), so their results differ by more than the order of addition explains, and the more
terms a sum has, the more.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from threeloops.inner.formats import FLOAT8_E4M3FN, FLOAT8_E5M2
from threeloops.inner.precision.delayed_scaling import Recipe
from threeloops.inner.precision.fp8_cast import Quantised, Scaler

TILE = 16
"""`torch._scaled_mm` takes matrices whose sides are multiples of this."""


def multiplies_fp8(x: Tensor) -> bool:
    """Whether the hardware under `x` has FP8 tensor cores."""
    return x.is_cuda and torch.cuda.get_device_capability(x.device) >= (8, 9)


def product(a: Quantised, b: Quantised, dtype: torch.dtype, *, hardware: bool) -> Tensor:
    """a @ bᵀ in `dtype`, for a of shape (m, k) and b of shape (n, k); at most one of them e5m2.

    Raises ValueError for sides that the hardware does not take.
    """
    inverse_a, inverse_b = a.scale.reciprocal(), b.scale.reciprocal()
    if not hardware:
        with torch.autocast(a.values.device.type, enabled=False):  # it would multiply in fewer bits
            return ((a.values.float() @ b.values.float().t()) * inverse_a * inverse_b).to(dtype)
    for name, size in (("m", a.values.shape[0]), ("n", b.values.shape[0]), ("k", a.values.shape[1])):
        if size % TILE:
            raise ValueError(f"{name} = {size}: expected a multiple of {TILE} for FP8 tensor cores; pad it")
    # The hardware wants k to run along memory in both: b is row-major as (n, k), so its transpose is column-major.
    return torch._scaled_mm(a.values.contiguous(), b.values.contiguous().t(), inverse_a, inverse_b, out_dtype=dtype)


class _Fp8Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: "Fp8Linear") -> Tensor:
        ctx.layer, ctx.dtypes = layer, (x.dtype, weight.dtype)
        again = torch._C._current_graph_task_id() != -1  # within a backward pass: activations are recomputed
        a, b = layer.input_scaler(x, again), layer.weight_scaler(weight, again)
        ctx.save_for_backward(a.values, a.scale, b.values, b.scale)
        return product(a, b, x.dtype, hardware=multiplies_fp8(x))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        saved = ctx.saved_tensors
        x, weight = Quantised(*saved[:2]), Quantised(*saved[2:])
        quantised, hardware = ctx.layer.gradient_scaler(gradient), multiplies_fp8(gradient)
        for_input = product(quantised, _transposed(weight), ctx.dtypes[0], hardware=hardware)
        for_weight = product(_transposed(quantised), _transposed(x), ctx.dtypes[1], hardware=hardware)
        return for_input, for_weight, None


def _transposed(q: Quantised) -> Quantised:
    return Quantised(q.values.t(), q.scale)


class Fp8Linear(nn.Module):
    """x @ weightᵀ + bias with all three products of a training step in FP8. The weight itself stays as it is, float32
    or bfloat16; x has shape (…, inputs) and decides the dtype of the result. `state_dict` holds the scales as well."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, recipe: Recipe | None = None) -> None:
        super().__init__()
        plain = nn.Linear(inputs, outputs, bias=bias)
        self.weight, self.bias = plain.weight, plain.bias
        recipe = recipe or Recipe()
        self.input_scaler = Scaler(FLOAT8_E4M3FN, recipe)
        self.weight_scaler = Scaler(FLOAT8_E4M3FN, recipe)
        self.gradient_scaler = Scaler(FLOAT8_E5M2, recipe)

    @classmethod
    def of(cls, linear: nn.Linear, recipe: Recipe | None = None) -> "Fp8Linear":
        """The same layer in FP8: it shares the parameters of `linear`."""
        made = cls(1, 1, bias=False, recipe=recipe).to(linear.weight.device)
        made.weight, made.bias = linear.weight, linear.bias
        return made

    def forward(self, x: Tensor) -> Tensor:
        flat = _Fp8Product.apply(x.reshape(-1, x.shape[-1]), self.weight, self)
        result = flat.reshape(*x.shape[:-1], self.weight.shape[0])
        return result if self.bias is None else result + self.bias.to(result.dtype)


def with_fp8_linears(model: nn.Module, recipe: Recipe | None = None, *, but: tuple[str, ...] = ()) -> nn.Module:
    """`model`, its linear layers replaced by FP8 ones of the same parameters, in place; those whose last name is in
    `but`, such as ("head",), stay. The first and last layers of a network often do. A layer that a model uses under two
    names stays one layer. A model that is itself a linear layer cannot be replaced in place: its replacement is
    returned."""
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
