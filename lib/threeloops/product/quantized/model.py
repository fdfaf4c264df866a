"""A GPT whose linear layers have weights of few bits."""

# ruff: noqa: F722  the strings are jaxtyping shapes, not forward references

import copy
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor, nn

from threeloops.models.gpt import GPT, Block
from threeloops.product.quantized.awq import fold_scales, search_scales
from threeloops.product.quantized.calibration import Calibration, InputStatistics
from threeloops.product.quantized.gptq import gptq
from threeloops.product.quantized.group import QuantizedWeight, Scheme, quantize_weight
from threeloops.product.quantized.linear import QuantizedLinear

__all__ = ["AlreadyQuantizedError", "Method", "quantize", "weight_bytes"]

Method = Literal["rtn", "gptq", "awq"]

_STAGES = (("attention.qkv",), ("attention.output",), ("mlp.gate", "mlp.up"), ("mlp.down",))
"""The linear layers of a block in the order in which tokens meet them. Layers of one stage read the same inputs."""
_LAYERS = tuple(name for stage in _STAGES for name in stage)


class AlreadyQuantizedError(ValueError):
    """The model has layers of few bits already. Rounding them again would add errors and save nothing."""


def quantize(
    model: GPT,
    method: Method = "rtn",
    scheme: Scheme | None = None,
    *,
    calibration: Int[Tensor, "sequences tokens"] | None = None,
    head: bool = False,
    act_order: bool = False,
) -> GPT:
    """Return a copy of `model` with its linear layers in `scheme`. `model` itself is never changed.

    "rtn" rounds to the nearest. "gptq" and "awq" use `calibration`, tokens like those that the model will meet, on
    their way through the layers that are quantised already. Embedding, norms and head keep their dtype, because the
    head turns small errors into other tokens. With `head=True` it is quantised too. If it shares its matrix with the
    embedding, the embedding keeps the matrix. `act_order` is an option of GPTQ.

    Raises AlreadyQuantizedError, and ValueError for arguments that do not fit.
    """
    scheme = scheme or Scheme()
    if method not in ("rtn", "gptq", "awq"):
        raise ValueError(f"method = {method!r}: expected 'rtn', 'gptq' or 'awq'")
    if (calibration is None) != (method == "rtn"):
        raise ValueError(
            f"method = {method!r} with calibration = {None if calibration is None else 'tokens'}: expected tokens, "
            "(sequences, tokens), for 'gptq' and 'awq', and none for 'rtn'"
        )
    if act_order and method != "gptq":
        raise ValueError(f"act_order with method = {method!r}: expected 'gptq', whose order it changes")
    layers = [name for name, module in model.named_modules() if isinstance(module, QuantizedLinear)]
    if layers:
        raise AlreadyQuantizedError(
            f"{len(layers)} layers of the model are quantised, {layers[0]} for one: expected a model that is not; "
            "start from the weights that it was made of"
        )
    made = copy.deepcopy(model)
    if calibration is None:
        for block in made.blocks:
            _round(block, scheme)
        if head:
            _replace(made, "head", quantize_weight(made.head.weight, scheme))
        return made
    through = Calibration(made, calibration)
    for block in made.blocks:
        assert isinstance(block, Block)
        if method == "awq":
            fold_scales(block, through.statistics(block, _LAYERS), scheme)
            _round(block, scheme)
        else:
            for stage in _STAGES:
                gram = through.statistics(block, stage[:1])[stage[0]].gram
                for name in stage:
                    weight = block.get_submodule(name).weight
                    _replace(block, name, gptq(weight, gram, scheme, act_order=act_order))
        through.advance(block)
    if head:
        _calibrated_head(made, through.after(made.norm), method, scheme, act_order)
    return made


@torch.no_grad()
def _calibrated_head(model: GPT, statistics: InputStatistics, method: Method, scheme: Scheme, act_order: bool) -> None:
    if method == "gptq":
        quantized = gptq(model.head.weight, statistics.gram, scheme, act_order=act_order)
    else:
        scales = search_scales([model.head.weight], statistics, scheme)
        quantized = quantize_weight(model.head.weight * scales, scheme)  # not in place: it may be the embedding's too
        model.norm.weight /= scales
    _replace(model, "head", quantized)


def _round(block: nn.Module, scheme: Scheme) -> None:
    for name in _LAYERS:
        _replace(block, name, quantize_weight(block.get_submodule(name).weight, scheme))


def _replace(parent: nn.Module, name: str, weight: QuantizedWeight) -> None:
    layer = parent.get_submodule(name)
    path, _, leaf = name.rpartition(".")
    setattr(parent.get_submodule(path), leaf, QuantizedLinear(weight, layer.bias, layer.weight.dtype))


def weight_bytes(model: nn.Module) -> int:
    """Return the bytes of a model's tensors, quantised or not. A tensor that two layers share counts once."""
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in model.state_dict().values()}.values())
