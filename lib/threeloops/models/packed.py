"""The same model with its matrices laid out for this CPU.

PyTorch hands products in float32 to MKL, which on AMD's processors takes about twice the time that oneDNN needs.
oneDNN reads a matrix in tiles, so each is copied into that order once ("packed"; PyTorch's own compiler does the same
when it freezes a model). A packed product also gives a row the same bits whatever rows are computed beside it, which
MKL's does not. The price is memory: the packed copy stands beside the weights, which stay as they are.
"""

import copy

import torch
from torch import Tensor, nn

from threeloops.models.gpt import GPT

__all__ = ["packed"]


def packed(model: GPT) -> GPT:
    """A model that computes what `model` does, with its weights, and packs each matrix when it is first needed.

    The weights stay those of `model`: a matrix that is replaced or changed in place is packed anew. (A change through
    `.data` cannot be seen.) Returns `model` itself if nothing can be packed: its weights are not in float32 on an x86
    CPU, or this PyTorch has no oneDNN.
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
    """The same module, with the same parameters, around other linear layers. Whatever is not plain stays as it is."""
    if type(module) is nn.Linear:
        hooked = module._forward_hooks or module._forward_pre_hooks
        # Nobody can see whether a weight made under torch.inference_mode() has changed.
        return module if hooked or module.weight.is_inference() else _PackedLinear(module)
    copied = copy.copy(module)
    copied._modules = {name: child and _copied(child) for name, child in module._modules.items()}
    return copied


class _PackedLinear(nn.Module):
    """Multiplies by the weight of `linear`, in oneDNN's order."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self._parameters = linear._parameters  # one dictionary, so that a parameter that is replaced is seen
        # The weight that was packed, and its version. In a tuple, since a module registers parameters among its own.
        self._made_of: tuple[Tensor, int] = torch.empty(0), -1
        self._packed: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self._parameters["weight"], self._parameters["bias"]
        assert weight is not None, "a linear layer has a weight"
        made_of, version = self._made_of
        if weight is not made_of or weight._version != version:
            # Without a batch size oneDNN takes a layout that is good for any, from one row to a prompt of many.
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
            self._made_of = weight, weight._version
        return torch.ops.mkldnn._linear_pointwise.default(x, self._packed, bias, "none", [], "")
