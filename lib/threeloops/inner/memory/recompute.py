"""Recomputation: keep the input of every segment of k layers, and compute the rest again in the backward pass.

With b bytes for a layer's input and c bytes for all that a layer keeps (its input included), L layers in segments of k
hold at most (L/k)·b + k·c at once: the inputs of all segments, and everything of the recomputed one. (The input of the
recomputed segment is in both terms. The second time it stands for the incoming gradient, which is as large.) The
minimum is at k = √(L·b/c) (Chen et al. 2016, arXiv:1604.06174, whose √L is the case b = c). The price is one more
forward pass, a third of a step's arithmetic. Selective recomputation keeps the results of matrix products, which are
expensive, and computes only the rest again (Korthikanti et al. 2022, arXiv:2205.05198).
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

__all__ = ["MATRIX_PRODUCTS", "Segments", "best_segment", "divisors", "require_divisor", "segment_peak"]

MATRIX_PRODUCTS = frozenset(
    getattr(torch.ops.aten, name).default
    for name in (
        "mm",
        "bmm",
        "addmm",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
    )
    if hasattr(torch.ops.aten, name)
)


def require_divisor(layers: int, layers_per_segment: int) -> None:
    """Check that segments divide the layers evenly. Raises ValueError, naming the quantity, if not."""
    if layers < 1:
        raise ValueError(f"layers = {layers}: expected at least 1")
    if layers_per_segment < 1 or layers % layers_per_segment:
        raise ValueError(
            f"layers_per_segment = {layers_per_segment}: expected a divisor of layers = {layers}: "
            + ", ".join(map(str, divisors(layers)))
        )


def divisors(layers: int) -> list[int]:
    return [k for k in range(1, layers + 1) if layers % k == 0]


def segment_peak(layers: int, layers_per_segment: int, input_bytes: float, layer_bytes: float) -> float:
    """Return (L/k)·b + k·c, the peak of activation bytes in a backward pass that recomputes segment after segment."""
    require_divisor(layers, layers_per_segment)
    return layers // layers_per_segment * input_bytes + layers_per_segment * layer_bytes


def best_segment(layers: int, input_bytes: float, layer_bytes: float) -> int:
    """Return the divisor of `layers` with the lowest peak. Of equal ones it is the smallest."""
    return min(divisors(layers), key=lambda k: segment_peak(layers, k, input_bytes, layer_bytes))


class _Segment(nn.Module):
    """Layers as one, whose forward pass keeps only its input and the results of the operators in `keep`."""

    def __init__(self, layers: nn.Sequential | nn.ModuleList, keep: frozenset):
        super().__init__()
        self.layers = layers
        self.keep = keep

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        if not torch.is_grad_enabled():
            return self._run(x, *context)
        contexts = partial(create_selective_checkpoint_contexts, self._policy)
        selective = {"context_fn": contexts} if self.keep else {}
        return checkpoint(self._run, x, *context, use_reentrant=False, **selective)

    def _policy(self, _: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if operator in self.keep else CheckpointPolicy.PREFER_RECOMPUTE

    def _run(self, x: Tensor, *context: Any) -> Tensor:
        for layer in self.layers:
            x = layer(x, *context)
        return x


class Segments(nn.ModuleList):
    """The same layers under the same names, but iterating over them with gradients enabled gives segments.

    `model.blocks = Segments(model.blocks, 4)` changes how the course GPT trains, but not its parameters or state dict.
    Indices, slices, and iteration without gradients give the layers themselves. `keep` are the operators whose results
    are kept, such as MATRIX_PRODUCTS. Raises ValueError if the segments do not divide the layers.
    """

    def __init__(self, layers: nn.ModuleList, layers_per_segment: int, keep: frozenset = frozenset()):
        require_divisor(len(layers), layers_per_segment)
        super().__init__(nn.ModuleList.__iter__(layers))  # the layers themselves, even of other Segments
        self.layers_per_segment = layers_per_segment
        self.keep = keep

    def __iter__(self) -> Iterator[nn.Module]:
        layers = list(super().__iter__())
        if not torch.is_grad_enabled():
            yield from layers  # decoding gives each layer its own cache
            return
        for first in range(0, len(layers), self.layers_per_segment):
            yield _Segment(nn.ModuleList(layers[first : first + self.layers_per_segment]), self.keep)

    def __getitem__(self, index: int | slice) -> Any:
        return nn.ModuleList(nn.ModuleList.__iter__(self))[index]
