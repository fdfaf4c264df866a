"""A copy of a model whose matrices are laid out ("packed") for this CPU.

PyTorch passes float32 products to MKL. On AMD's processors MKL takes about twice as long as oneDNN. oneDNN reads a
matrix in tiles, so this module copies each matrix into that order once. PyTorch's compiler does the same when it
freezes a model. Packing has a second advantage: oneDNN gives a row the same bits no matter which rows are computed
with it, and MKL does not. The price is memory, because the original weights are kept next to the packed copies.
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from threeloops.models.gpt import GPT

__all__ = ["packed"]


def packed(model: GPT) -> GPT:
    """Copy a model so that it packs each matrix when the matrix is first used.

    The copy shares its weights with `model`. If a matrix is replaced or changed in place, the copy packs it again. It
    does not notice a change through `.data`. If the weights are not float32 on an x86 CPU, or this PyTorch lacks
    oneDNN, nothing can be packed and the function returns `model` itself.
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
        hooked = module._forward_hooks or module._forward_pre_hooks
        # PyTorch counts no versions of a weight made under torch.inference_mode(), so a change would go unnoticed.
        return module if hooked or module.weight.is_inference() else _PackedLinear(module)
    copied = copy.copy(module)
    copied._modules = {name: child and _copied(child) for name, child in module._modules.items()}
    return copied


class _PackedLinear(nn.Module):
    """A linear layer that multiplies by a packed copy of the weight of `linear`."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self._parameters = linear._parameters  # shared, so that a replaced parameter is seen here
        # The weight that was packed, and its version. The tuple keeps nn.Module from registering it as a parameter.
        self._made_of: tuple[Tensor, int] = torch.empty(0), -1
        self._packed: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self._parameters["weight"], self._parameters["bias"]
        assert weight is not None, "a linear layer has a weight"
        if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
            return functional.linear(x, weight, bias)  # the packed product has no gradient
        made_of, version = self._made_of
        if weight is not made_of or weight._version != version:
            # Without a batch size, oneDNN chooses a layout that suits any number of rows.
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
            self._made_of = weight, weight._version
        return torch.ops.mkldnn._linear_pointwise.default(x, self._packed, bias, "none", [], "")
