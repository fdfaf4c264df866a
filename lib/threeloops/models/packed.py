"""A copy of a model that computes in fewer and faster steps on this CPU, with the same weights.

PyTorch passes float32 products to MKL. On AMD's processors MKL takes about twice as long as oneDNN. oneDNN reads a
matrix in tiles, so this module copies ("packs") each matrix into that order once. PyTorch's compiler does the same when
it freezes a model. Packing has a second advantage: oneDNN gives a row the same bits no matter which rows are computed
with it, and MKL does not. The price is memory, because the original weights are kept next to the packed copies.

A step of decoding computes so little that every operator counts. A product by oneDNN takes about 10 µs before it reads
a weight, so an MLP multiplies by its first two matrices at once, and an RMSNorm takes four operators instead of nine.
"""

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from threeloops.models.gpt import GPT, MLP, RMSNorm
from threeloops.models.gpt_operations import OPERATIONS

__all__ = ["packed"]


def packed(model: GPT) -> GPT:
    """Copy a model so that it packs each matrix when the matrix is first used.

    The copy shares its weights with `model`. If a matrix is replaced or changed in place, the copy packs it again. It
    does not notice a change through `.data`. A layer with hooks stays as it is, but hooks that are added to the copy
    later may not be called. If the weights are not float32 on an x86 CPU, or this PyTorch lacks oneDNN, nothing can be
    packed and the function returns `model` itself.
    """
    weight = model.head.weight
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or not _has_packed_products():
        return model
    copied = _copied(model)
    assert isinstance(copied, GPT)
    return copied


def _has_packed_products() -> bool:
    operations = torch.ops.mkldnn
    return (
        torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512", "AMX")
        and hasattr(operations, "_linear_pointwise")
        and hasattr(operations, "_reorder_linear_weight")
    )


def _copied(module: nn.Module) -> nn.Module:
    """Copy a module with the same parameters and packed linear layers. A layer that cannot be packed is shared."""
    if type(module) is nn.Linear:
        return _PackedLinear(module) if _can_be_packed(module) else module
    if type(module) is MLP and all(map(_can_be_joined, (module.gate, module.up))) and not _has_hooks(module):
        return _PackedMLP(module)
    if type(module) is RMSNorm and module.normalise is OPERATIONS["eager"].rms_norm and not _has_hooks(module):
        return _RMSNorm(module)
    copied = copy.copy(module)
    copied._modules = {name: child and _copied(child) for name, child in module._modules.items()}
    return copied


def _can_be_packed(linear: nn.Module) -> bool:
    # PyTorch counts no versions of a weight made under torch.inference_mode(), so a change would go unnoticed.
    return type(linear) is nn.Linear and not _has_hooks(linear) and not linear.weight.is_inference()


def _can_be_joined(linear: nn.Module) -> bool:
    return _can_be_packed(linear) and linear.bias is None


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


class _PackedLinear(nn.Module):
    """Linear layers that read the same input, as one layer. It multiplies by a packed copy of their weights.

    A layer among several must not have a bias.
    """

    def __init__(self, *linears: nn.Linear):
        super().__init__()
        self._parameters = linears[0]._parameters  # shared, so that a replaced parameter is seen here
        self._owners = [linear._parameters for linear in linears]
        self._packed: Tensor | None = None
        self._weights: list[Tensor] = []  # were packed; while they are kept, no other object can have their ids
        self._made_of: list[tuple[int, int]] = []  # their ids and versions

    def forward(self, x: Tensor) -> Tensor:
        weights, bias = [owner["weight"] for owner in self._owners], self._parameters["bias"]
        if torch.is_grad_enabled() and (x.requires_grad or any(weight.requires_grad for weight in weights)):
            # The packed product has no gradient.
            return torch.cat([functional.linear(x, weight, bias) for weight in weights], -1)
        if [(id(weight), weight._version) for weight in weights] != self._made_of:
            # Without a batch size, oneDNN chooses a layout that suits any number of rows.
            self._packed = torch.ops.mkldnn._reorder_linear_weight(torch.cat(weights).detach(), None)
            self._weights, self._made_of = weights, [(id(weight), weight._version) for weight in weights]
        return torch.ops.mkldnn._linear_pointwise.default(x, self._packed, bias, "none", [], "")

    __call__ = forward  # looking for hooks takes about as long as a small operator


class _PackedMLP(nn.Module):
    """An MLP that multiplies by its first two matrices at once."""

    def __init__(self, mlp: MLP):
        super().__init__()
        self.gate, self.up, self.down = mlp.gate, mlp.up, _copied(mlp.down)
        self._gate_and_up = (_PackedLinear(mlp.gate, mlp.up),)  # a tuple is not registered as a module

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self._gate_and_up[0](x).chunk(2, -1)
        return self.down(functional.silu(gate) * up)

    __call__ = forward


class _RMSNorm(nn.Module):
    """RMSNorm in four operators: √n · x / √(‖x‖² + n·ε) · weight, for rows of n elements."""

    def __init__(self, norm: RMSNorm):
        super().__init__()
        self._parameters = norm._parameters
        size = norm.weight.numel()
        self._root = math.sqrt(size)
        with torch.inference_mode(False):  # so that gradients can be computed with these tensors
            self._zero, self._floor = torch.zeros(()), torch.tensor(math.sqrt(size * norm.epsilon))

    def forward(self, x: Tensor) -> Tensor:
        length = torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self._floor)
        return torch.addcdiv(self._zero, x, length, value=self._root) * self._parameters["weight"]

    __call__ = forward
