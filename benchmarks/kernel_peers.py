"""Who else computes what our kernels compute: torch's own operators, and Liger where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from threeloops.inner.kernels.catalog import Entry
from threeloops.inner.kernels.catalog.rows_functions import linear_gradients, loss_and_gradient
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.kernel_part import LIGER, OURS, TORCH
from benchmarks.peer_packages import why_absent


def torch_own(entry: Entry) -> Callable[..., Any]:
    """torch's operator on the entry's own inputs; where torch has none, the reference is what one would write in it."""
    return entry.peers.get(TORCH, entry.reference)


def no_liger() -> str | None:
    """Why Liger cannot be compared with here; None if it can."""
    return why_absent("liger_kernel", "liger-kernel")


Party = Callable[..., Any] | str
"""A function of the entry's inputs, or why there is none."""


def parties(entry: Entry, *, compiled: bool) -> dict[str, Party]:
    """All who compute what `entry` does, ours and torch's first; `compiled`: torch's through `torch.compile` too."""
    found: dict[str, Party] = {OURS: entry.launch, TORCH: torch_own(entry)}
    if compiled:
        found["torch.compile"] = through_compiler(torch_own(entry))
    if entry.name in LIGER_FUNCTIONS:
        found[LIGER] = no_liger() or LIGER_FUNCTIONS[entry.name]
    if entry.name.startswith("flash_attention"):
        found |= {name: with_backend(torch_own(entry), backend) for name, backend in SDPA.items()}
    return found | {name: function for name, function in entry.peers.items() if function is not found[TORCH]}


SDPA = {"FlashAttention-2 in torch": SDPBackend.FLASH_ATTENTION, "cuDNN in torch": SDPBackend.CUDNN_ATTENTION}
"""Backends that torch can be told to use for scaled_dot_product_attention. It raises if they refuse the shape."""


def with_backend(function: Callable[..., Any], backend: SDPBackend) -> Callable[..., Any]:
    """`function`, with its scaled_dot_product_attention done by `backend` and no other."""

    def call(*inputs: Any) -> Any:
        with sdpa_kernel(backend):
            return function(*inputs)

    return call


def through_compiler(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile for exact shapes; its import takes seconds, so only when it is called."""

    @cache
    def made() -> Callable[..., Any]:
        return torch.compile(function, dynamic=False)

    return lambda *inputs: made()(*inputs)


def liger_softmax(x: torch.Tensor) -> torch.Tensor:
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    return LigerSoftmaxFunction.apply(x)


def liger_rmsnorm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    # eps, offset, casting mode ("llama": the scale is applied in x's dtype), in place
    return LigerRMSNormFunction.apply(x, weight, 1e-6, 0.0, "llama", False)


def liger_layernorm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return LigerLayerNormFunction.apply(x, weight, bias, 1e-5)


def liger_cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Call Liger's cross-entropy. If the logits need a gradient, its forward pass overwrites them with it."""
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

    returned = LigerCrossEntropyFunction.apply(logits, targets, None)
    return returned[0] if isinstance(returned, tuple) else returned


def liger_fused_linear(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    returned = LigerFusedLinearCrossEntropyFunction.apply(hidden, weight, targets)
    return returned[0] if isinstance(returned, tuple) else returned


LIGER_FUNCTIONS: Mapping[str, Callable[..., torch.Tensor]] = {
    "softmax": liger_softmax,
    "rmsnorm": liger_rmsnorm,
    "layernorm": liger_layernorm,
    "cross_entropy": liger_cross_entropy,
    "cross_entropy_and_gradient": loss_and_gradient(liger_cross_entropy),
    "fused_linear_cross_entropy_and_gradients": linear_gradients(liger_fused_linear),
}
"""Liger's functions by the name of our entry, on our entry's inputs."""
