"""AWQ (Lin et al. 2023): inputs that are large need precise weights, so make those weights larger.

Input channel i of a layer is divided by sᵢ and its column of weights multiplied by sᵢ. The outputs stay the same. The
rounding error that reaches them through channel i becomes sᵢ times smaller, as long as sᵢ does not determine its
group's scale. s = (mean |x|)^α, where a grid search chooses the α with the least error of the outputs (section 3.2,
equations 4, 5).

The division costs nothing, because it is folded into the producer of the channel: the weights of a norm, or the rows of
the previous layer. (Rows are quantised independently, and scaling a row leaves its codes unchanged, apart from the
rounding of its scales.)
"""

# ruff: noqa: F722, F821  the strings are jaxtyping shapes, not forward references

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from threeloops.models.gpt import Block
from threeloops.product.quantized.calibration import InputStatistics
from threeloops.product.quantized.gptq import output_error
from threeloops.product.quantized.group import Scheme, quantize_weight

__all__ = ["fold_scales", "search_scales"]

_STEPS = 20


def search_scales(
    weights: Sequence[Float[Tensor, "rows columns"]],
    statistics: InputStatistics,
    scheme: Scheme,
    *,
    tied: tuple[int, int] = (1, 1),
) -> Float[Tensor, "columns"]:
    """Return the divisor of each input channel, for layers that all read the same inputs.

    α = 0, which divides by 1, is on the grid, so the error on the calibration's inputs is never above that of plain
    rounding. Channels that are made from one channel are `tied`, (how many, how far apart), and get the same divisor:
    for 4 query heads of 64 dimensions that share a head of values, (4, 64).
    """
    together = torch.cat([weight.detach().double() for weight in weights])
    copies, distance = tied
    size = statistics.mean_abs.view(-1, copies, distance).mean(1, keepdim=True).expand(-1, copies, -1).flatten()
    if not size.any():
        return torch.ones_like(size)
    size = size.clamp(min=1e-4 * float(size.max()))  # a channel that is always 0 is not worth an infinite scale
    best = torch.ones_like(size)
    least = torch.inf
    for step in range(_STEPS):
        scales = size ** (step / _STEPS)
        scales = scales / (scales.max() * scales.min()).sqrt()
        rounded = quantize_weight(together * scales, scheme).dequantize(torch.float64) / scales
        if (error := output_error(together, rounded, statistics.gram)) < least:
            best = scales
            least = error
    return best


@torch.no_grad()
def fold_scales(block: Block, statistics: dict[str, InputStatistics], scheme: Scheme) -> None:
    """Scale the channels between the layers of a block in place, so that later rounding causes less error.

    The block computes the same function as before. Layers that make the channels of others are scaled first, so that
    each search sees the weights that will be rounded.
    """
    attention = block.attention
    mlp = block.mlp
    shared = attention.heads // attention.kv_heads
    head_dim = attention.output.in_features // attention.heads
    scales = search_scales([attention.output.weight], statistics["attention.output"], scheme, tied=(shared, head_dim))
    attention.output.weight *= scales
    _divide_rows(attention.qkv, scales.view(attention.kv_heads, shared, head_dim)[:, 0].flatten())

    scales = search_scales([mlp.down.weight], statistics["mlp.down"], scheme)
    mlp.down.weight *= scales
    _divide_rows(mlp.up, scales)

    for norm, name, layers in (
        (block.attention_norm, "attention.qkv", [attention.qkv]),
        (block.mlp_norm, "mlp.gate", [mlp.gate, mlp.up]),
    ):
        scales = search_scales([layer.weight for layer in layers], statistics[name], scheme)
        norm.weight /= scales
        for layer in layers:
            layer.weight *= scales


def _divide_rows(layer: nn.Linear, scales: Float[Tensor, "rows"]) -> None:
    """Divide the last outputs of a layer by `scales`, one for each: their rows of weights, and their biases."""
    layer.weight[-len(scales) :] /= scales[:, None]
    if layer.bias is not None:
        layer.bias[-len(scales) :] /= scales
