"""The backward pass of attention alone, beside its forward pass: ours, FlashAttention-2 and cuDNN as torch has them.

Published tables of attention times hold forward passes only, so a training step is often predicted with the rule that
the backward pass takes 2.5 times as long: five matrix products where the forward pass has two. Here that ratio is
measured. FLOP/s count those five products (10 · head_dim FLOPs per pair of query and key that attends), as papers do;
kernels that compute two of them twice get no credit for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import torch
from threeloops.inner.costs import visible_pairs
from threeloops.inner.kernels.attention.flash_attention import flash_attention
from threeloops.inner.timing import benchmark
from threeloops_grader.machine.provenance import Provenance
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.kernel_part import OURS
from benchmarks.result import Result, Series, Unmeasured

FLASH, CUDNN = "FlashAttention-2 in torch", "cuDNN in torch"
SAMPLES, QUICK_SAMPLES = 30, 10
LARGEST_DIFFERENCE = 0.02
"""RMS of a gradient's difference from FlashAttention-2's over the RMS of that gradient; bf16 rounds to 2⁻⁹."""

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Shape:
    """(batch, heads, tokens, head_dim) of the queries; keys and values have `kv_heads` heads and as many tokens."""

    batch: int
    heads: int
    kv_heads: int
    tokens: int
    head_dim: int
    causal: bool

    def __str__(self) -> str:
        heads = f"{self.heads}" if self.heads == self.kv_heads else f"{self.heads}/{self.kv_heads}"
        mask = "causal" if self.causal else "full"
        return f"{self.batch} × {heads} heads × {self.tokens:,} tokens × {self.head_dim}, {mask}"

    @property
    def pairs(self) -> float:
        return self.batch * self.heads * visible_pairs(self.tokens, self.tokens, self.causal)

    @property
    def forward_flops(self) -> float:
        return 4 * self.head_dim * self.pairs

    @property
    def backward_flops(self) -> float:
        return 10 * self.head_dim * self.pairs


TOKENS = 16384
"""Tokens per batch, so that every shape fills the device."""
SHAPES = [
    *(Shape(TOKENS // n, 2048 // d, 2048 // d, n, d, causal)
      for d, causal, n in product((64, 128), (False, True), (512, 2048, 8192, 16384))),
    *(Shape(TOKENS // n, 32, 8, n, 128, True) for n in (2048, 8192)),
]  # fmt: skip


def measure(provenance: Provenance, *, quick: bool = False) -> Result:
    """Seconds of both passes, for every shape and party, in bfloat16. Raises Unmeasured without a GPU."""
    if provenance.device != "cuda":
        raise Unmeasured("not measured, since there is no GPU here")
    samples = QUICK_SAMPLES if quick else SAMPLES
    series, facts = [], {"shapes": {str(shape): asdict(shape) for shape in SHAPES}, "rates": [], "not_measured": []}
    for shape in SHAPES:
        measured = {}
        inputs = draw(shape, "cuda")
        expected = gradients(parties(shape)[FLASH], inputs)
        for by, attention in parties(shape).items():
            try:
                require_alike(gradients(attention, inputs), expected)
                measured[by] = times(attention, inputs, samples)
            except (RuntimeError, ValueError) as error:
                reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                facts["not_measured"].append({"shape": str(shape), "by": by, "reason": reason})
        for index, which in enumerate(("forward", "backward")):
            for by, seconds in measured.items():
                series.append(Series(f"{which}, {shape}", by, "s", seconds[index], "lower", by == FLASH))
        facts["rates"] += [rate(shape, by, seconds) for by, seconds in measured.items()]
    settings = {"quick": quick, "samples": samples, "dtype": "bfloat16"}
    return Result("attention_backward", provenance, settings, series, facts, notes=notes(facts))


def parties(shape: Shape) -> dict[str, Attention]:
    found: dict[str, Attention] = {OURS: lambda q, k, v: flash_attention(q, k, v, causal=shape.causal)}
    return found | {
        FLASH: by_torch(shape, SDPBackend.FLASH_ATTENTION),
        CUDNN: by_torch(shape, SDPBackend.CUDNN_ATTENTION),
    }


def by_torch(shape: Shape, backend: SDPBackend) -> Attention:
    """torch's attention by one backend and no other; it raises RuntimeError where that refuses the shape."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(
                q, k, v, is_causal=shape.causal, enable_gqa=shape.heads != shape.kv_heads
            )

    return attention


def draw(shape: Shape, device: str) -> tuple[Tensor, ...]:
    """q, k, v and the gradient of the output, standard normal, in bfloat16."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(heads: int) -> Tensor:
        size = (shape.batch, heads, shape.tokens, shape.head_dim)
        return torch.randn(size, device=device, dtype=torch.bfloat16, generator=generator)

    return normal(shape.heads), normal(shape.kv_heads), normal(shape.kv_heads), normal(shape.heads)


def gradients(attention: Attention, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    *leaves, output_gradient = (value.detach() for value in inputs)
    leaves = [leaf.requires_grad_() for leaf in leaves]
    return torch.autograd.grad(attention(*leaves), leaves, output_gradient)


def require_alike(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    """Raises ValueError where a gradient is another one than FlashAttention-2's: its time is then worth nothing."""
    for name, ours, theirs in zip(("dq", "dk", "dv"), found, expected, strict=True):
        size = theirs.float().square().mean().sqrt().item()
        difference = (ours.float() - theirs.float()).square().mean().sqrt().item()
        if not difference <= LARGEST_DIFFERENCE * size:
            raise ValueError(f"{name} differs from {FLASH} by {difference:.3g} RMS, where its own RMS is {size:.3g}")


def times(
    attention: Attention, inputs: tuple[Tensor, ...], samples: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Seconds of the forward pass, and of the backward pass alone, on graphs that are kept."""
    *leaves, output_gradient = (value.detach() for value in inputs)
    leaves = [leaf.requires_grad_() for leaf in leaves]
    device = output_gradient.device.type
    forward = benchmark(lambda: attention(*leaves), tuple, device=device, samples=samples)
    output = attention(*leaves)

    def backward() -> Any:
        return torch.autograd.grad(output, leaves, output_gradient, retain_graph=True)

    return forward.seconds, benchmark(backward, tuple, device=device, samples=samples).seconds


def rate(shape: Shape, by: str, seconds: tuple[tuple[float, ...], tuple[float, ...]]) -> dict[str, Any]:
    forward, backward = (sorted(each)[len(each) // 2] for each in seconds)
    return {
        "shape": str(shape),
        "by": by,
        "forward_flops_per_second": shape.forward_flops / forward,
        "backward_flops_per_second": shape.backward_flops / backward,
        "backward_over_forward": backward / forward,
    }


def notes(facts: dict[str, Any]) -> list[str]:
    said = []
    for by in (OURS, FLASH, CUDNN):
        found = [row for row in facts["rates"] if row["by"] == by]
        if found:
            ratios = sorted(row["backward_over_forward"] for row in found)
            best = max(row["backward_flops_per_second"] for row in found)
            said.append(
                f"{by}: the backward pass takes {ratios[0]:.2f} to {ratios[-1]:.2f} times as long as the forward pass "
                f"(median {ratios[len(ratios) // 2]:.2f}), at most {best / 1e12:.0f} TFLOP/s"
            )
    return said + [f"{row['by']}, {row['shape']}: {row['reason']}" for row in facts["not_measured"]]
