"""Liger's operations as its package has them, each with the bytes that its kernels ask for, counted by hand.

An operation runs forward and backward on float32 inputs whose sizes are not powers of two. Its bytes are written as a
formula of the sizes, from reading what the kernels load and store. An atomic update is a load and a store. On a CPU
Liger launches one program where it would launch one for every multiprocessor.

Most tolerances are those of Liger's own tests in float32 (test/transformers of its repository). Its tests have none in
float32 for cross entropy of a shard, cross entropy with a distance, or linear and KL divergence: those are chosen here.
The values are compared with torch in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F

__all__ = ["OPERATIONS", "Operation"]

Tensors = Sequence[Any]
WORD, INDEX = 4, 8
"""Bytes of a float32 and of an int64."""

R, C = 6, 100
"""Rows and columns of most inputs."""
B, S, QUERY_HEADS, KEY_HEADS, D = 2, 5, 6, 3, 24
"""Batch, sequence, heads and head dimension of the rotary embeddings."""
V, H = 100, 32
"""Vocabulary and hidden size of the losses."""
IGNORED = -100
EPS = 1e-6
UPSTREAM = 3.0
"""The gradient of a loss. If it were 1, Liger would leave out the kernel that multiplies by it."""


@dataclass(frozen=True)
class Operation:
    """`function`: Liger's autograd function, as MODULE:NAME in `liger_kernel.ops`. `inputs`: its first arguments, and
    `settings` the others. `reference`: the same operation in torch. `requested`: bytes of a forward and a backward
    pass. `instead`: names of the module to replace, for functions that ask for a GPU."""

    name: str
    function: str
    inputs: Callable[[], Tensors]
    settings: Tensors
    reference: Callable[..., Any]
    requested: int
    atol: float
    rtol: float
    instead: tuple[tuple[str, Any], ...] = ()

    def liger(self, inputs: Tensors) -> list[torch.Tensor]:
        """Outputs and gradients as Liger's kernels compute them."""
        module, name = self.function.split(":")
        place = import_module(f"liger_kernel.ops.{module}")
        with ExitStack() as stack:
            for attribute, value in self.instead:
                stack.enter_context(mock.patch.object(place, attribute, value))
            return results(lambda *tensors: getattr(place, name).apply(*tensors, *self.settings), inputs)

    def torch(self, inputs: Tensors) -> list[torch.Tensor]:
        """Outputs and gradients in float64."""
        return results(self.reference, [in_float64(value) for value in inputs])


def results(function: Callable[..., Any], inputs: Tensors) -> list[torch.Tensor]:
    """Outputs and gradients of a function of copies of `inputs`, which it may overwrite."""
    leaves = [copied(value) for value in inputs]
    # Some of Liger's functions write over their inputs, which autograd does not allow for leaves.
    outputs = function(*[value.clone() if isinstance(value, torch.Tensor) else value for value in leaves])
    outputs = [value for value in (outputs if isinstance(outputs, tuple) else (outputs,)) if value is not None]
    kept = [value.detach().clone() for value in outputs]
    torch.autograd.backward(outputs, [upstream(value) for value in outputs])
    return kept + [value.grad for value in leaves if isinstance(value, torch.Tensor) and value.requires_grad]


def copied(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.detach().clone().requires_grad_(value.requires_grad)


def in_float64(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return value
    wide = value.detach().to(torch.complex128 if value.is_complex() else torch.float64)
    return wide.requires_grad_(value.requires_grad)


def upstream(output: torch.Tensor) -> torch.Tensor:
    """The gradient that comes back to an output: UPSTREAM for a loss, else a fixed pattern."""
    if not output.ndim:
        return torch.full_like(output, UPSTREAM)
    return torch.linspace(-1, 1, output.numel(), dtype=torch.float64).to(output.dtype).reshape(output.shape)


def random(*shape: int, differentiable: bool = True) -> torch.Tensor:
    made = torch.randn(shape)
    return made.requires_grad_() if differentiable else made


def rms(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


def added_rms(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return rms(x + residual) * weight, x + residual


def poly(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return weight[0] * rms(x**3) + weight[1] * rms(x**2) + weight[2] * rms(x) + bias


def modulated(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return rms(x) * weight * (1 + scale[:, None]) + shift[:, None]


def sparsemax(x: torch.Tensor) -> torch.Tensor:
    ordered = x.sort(-1, descending=True).values
    ranks = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
    support = (1 + ranks * ordered > ordered.cumsum(-1)).sum(-1, keepdim=True)
    threshold = (ordered.cumsum(-1).gather(-1, support - 1) - 1) / support
    return (x - threshold).clamp(min=0)


def jensen_shannon(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """Return the Jensen-Shannon divergence of log-probabilities, with equal weights."""
    middle = torch.log((student.exp() + teacher.exp()) / 2)
    both = (F.kl_div(middle, each, reduction="sum", log_target=True) for each in (teacher, student))
    return sum(both, torch.zeros((), dtype=student.dtype)) / (2 * len(student))


def linear_jensen_shannon(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return jensen_shannon((x @ w.T).log_softmax(-1), (y @ v.T).log_softmax(-1))


def linear_divergence(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.kl_div((x @ weight.T).log_softmax(-1), target, reduction="batchmean")


def distance(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p - q).abs().sum() / 2 / len(p)


def entropy_and_distance(
    student: torch.Tensor, teacher: torch.Tensor, target: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    apart = (student.softmax(-1) - teacher.softmax(-1)).abs().sum(-1) / 2
    kept = target != IGNORED
    return F.cross_entropy(student, target, reduction="none"), apart.where(kept, torch.zeros_like(apart))


def parallel_entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view(target.shape)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def rotary(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return rotated(q, cos[:, None], sin[:, None]), rotated(k, cos[:, None], sin[:, None])


SECTIONS = (4, 3, 5)
"""Features of half a head that rotate by time, height and width."""


def multimodal_rotary(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = (
        torch.cat([part[axis % 3] for axis, part in enumerate(table.split(SECTIONS * 2, -1))], -1)
        for table in (cos, sin)
    )
    return rotary(q, k, cos, sin)


def complex_rotary(q: torch.Tensor, k: torch.Tensor, turns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    def turned(x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns[None, :, None]).flatten(3)

    return turned(q), turned(k)


def multi_token_attention(scores: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    mixed = F.conv2d(scores.masked_fill(future, -1e9).softmax(-1), weight, bias, padding=1)
    return mixed.masked_fill(future, 0.0)


def residual_attention(values: torch.Tensor, query: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
    weights = (rms(values) * norm @ query).softmax(0)
    return (weights[..., None] * values).sum(0)


def rotary_inputs() -> Tensors:
    angles = torch.rand(1, S, D // 2).repeat(1, 1, 2)
    return [random(B, QUERY_HEADS, S, D), random(B, KEY_HEADS, S, D), angles.cos(), angles.sin()]


def multimodal_inputs() -> Tensors:
    angles = torch.rand(3, B, S, D // 2).repeat(1, 1, 1, 2)
    return [random(B, QUERY_HEADS, S, D), random(B, KEY_HEADS, S, D), angles.cos(), angles.sin()]


def complex_inputs() -> Tensors:
    turns = torch.polar(torch.ones(S, D // 2), torch.rand(S, D // 2))
    return [random(B, S, QUERY_HEADS, D), random(B, S, KEY_HEADS, D), turns]


def targets() -> torch.Tensor:
    """The class of every row; that of the last is to be ignored."""
    return torch.cat((torch.randint(0, V, (R - 1,)), torch.tensor([IGNORED])))


def distributions(*logarithm: bool) -> Tensors:
    """Probabilities or their logarithms; the first are differentiable."""
    made = [torch.randn(R, V).log_softmax(-1) if each else torch.randn(R, V).softmax(-1) for each in logarithm]
    return [made[0].requires_grad_(), *made[1:]]


ENTROPY = (R - 1) * (INDEX + WORD * (3 * V + 3)) + INDEX + WORD * V
"""Rows with a class: the class, the logits twice and their gradients, the class's logit and gradient, the loss. The
ignored row: the class and the gradients."""


def scaling(rows: int, columns: int) -> int:
    """Bytes to multiply a gradient in place: a factor for every row, and each element loaded and stored."""
    return WORD * rows * (1 + 2 * columns)


TOKENS, HEADS = B * S, QUERY_HEADS + KEY_HEADS
PROGRAMS = 20
"""The number of multiprocessors that Liger assumes for a device that does not tell it."""
CHANNELS, GROUPS, PIXELS = 12, 3, 35
FEW = CHANNELS // GROUPS
LENGTH, MAPS = 13, 2
BLOCKS, TABLE = 3, 10

OPERATIONS = (
    Operation("RMSNorm", "rms_norm:LigerRMSNormFunction", lambda: [random(R, C), random(C)],
              (EPS, 0.0, "llama", False), lambda x, w: rms(x) * w,
              WORD * (R * (3 * C + 1) + C + R * (3 * C + 1) + C), 1e-4, 1e-6),
    Operation("LayerNorm", "layer_norm:LigerLayerNormFunction", lambda: [random(R, C), random(C), random(C)], (EPS,),
              lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b, EPS),
              WORD * (R * (4 * C + 2) + C + R * (3 * C + 2) + 2 * C), 1e-5, 1e-5),
    Operation("GroupNorm", "group_norm:LigerGroupNormFunction",
              lambda: [random(R, CHANNELS, PIXELS), random(CHANNELS), random(CHANNELS)], (CHANNELS, GROUPS, EPS),
              lambda x, w, b: F.group_norm(x, GROUPS, w, b, EPS),
              WORD * R * GROUPS * (5 * FEW * PIXELS + 2 + 2 + FEW * (2 + 5 * PIXELS + 2 * 2)), 1e-4, 1e-4),
    Operation("add and RMSNorm", "fused_add_rms_norm:LigerFusedAddRMSNormFunction",
              lambda: [random(R, C), random(R, C), random(C)], (EPS,), added_rms,
              WORD * (R * (5 * C + 1) + C + R * (4 * C + 1) + C), 1e-4, 1e-6),
    Operation("PolyNorm", "poly_norm:LigerPolyNormFunction", lambda: [random(R, C), random(3), random()],
              (EPS, False), poly, WORD * (R * (2 * C + 7) + 3 + R * (3 * C + 3) + 4), 3e-4, 1e-6),
    Operation("modulated RMSNorm", "modulated_rms_norm:LigerModulatedRMSNormFunction",
              lambda: [random(B, S, C), random(C), random(B, C), random(B, C)], (EPS, 0.0, "llama", False), modulated,
              WORD * (TOKENS * (5 * C + 1) + C + TOKENS * (4 * C + 1 + 2 * 2 * C) + C), 1e-4, 1e-6),
    Operation("softmax", "softmax:LigerSoftmaxFunction", lambda: [random(R, C)], (), lambda x: x.softmax(-1),
              WORD * R * 5 * C, 1e-5, 1e-5),
    Operation("sparsemax", "sparsemax:LigerSparsemaxFunction", lambda: [random(R, C)], (-1,), sparsemax,
              WORD * R * (3 + 5) * C, 1e-5, 1e-5),
    Operation("SwiGLU", "swiglu:LigerSiLUMulFunction", lambda: [random(R, C), random(R, C)], (),
              lambda a, b: F.silu(a) * b, WORD * R * (3 + 5) * C, 1e-4, 1e-6),
    Operation("SwiGLU of one tensor", "swiglu:LigerFusedGateUpSiLUMulFunction", lambda: [random(R, 2 * C)], (),
              lambda y: F.silu(y[:, :C]) * y[:, C:], WORD * R * (3 + 5) * C, 1e-4, 1e-6),
    Operation("GEGLU", "geglu:LigerGELUMulFunction", lambda: [random(R, C), random(R, C)], (),
              lambda a, b: F.gelu(a, approximate="tanh") * b, WORD * R * (3 + 5) * C, 1e-5, 1e-5),
    Operation("squared ReLU", "relu_squared:LigerReLUSquaredFunction", lambda: [random(R, C)], (),
              lambda x: x.relu().square(), WORD * R * (2 + 3) * C, 1e-5, 1e-5),
    Operation("dynamic tanh", "dyt:LigerDyTFunction", lambda: [random(R, C), random(1), random(C), random(C)], (),
              lambda x, alpha, gamma, beta: (alpha * x).tanh() * gamma + beta,
              WORD * (R * (4 * C + 1) + PROGRAMS * (3 * C + 2) + R * 3 * C), 1e-5, 1e-3,
              (("infer_device", lambda: "npu"), ("get_npu_core_count", lambda: PROGRAMS))),
    Operation("cross entropy", "cross_entropy:LigerCrossEntropyFunction", lambda: [random(R, V), targets()], (None,),
              F.cross_entropy, ENTROPY + scaling(R, V), 1e-8, 1e-6),
    Operation("linear and cross entropy", "fused_linear_cross_entropy:LigerFusedLinearCrossEntropyFunction",
              lambda: [random(R, H), random(V, H), targets()], (), lambda x, w, y: F.cross_entropy(x @ w.T, y),
              ENTROPY + scaling(R, H) + scaling(V, H), 1e-5, 5e-4),
    Operation("cross entropy of a shard", "vocab_parallel_cross_entropy:LigerVocabParallelCEFunction",
              lambda: [random(R, 1, V), targets()[:, None]], (None, IGNORED, 0.0, "pytorch", "global"),
              parallel_entropy, R * (INDEX + WORD * (2 * V + 3)) + WORD * (R - 1)
              + (R - 1) * (INDEX + WORD * (2 * V + 2)) + INDEX + WORD * V, 1e-5, 1e-5),
    Operation("cross entropy and distance", "fused_ce_tvd:LigerFusedCETVDFunction",
              lambda: [random(R, V), random(R, V, differentiable=False), targets()], (IGNORED,), entropy_and_distance,
              (R - 1) * (INDEX + WORD * (4 * V + 6) + INDEX + WORD * (3 * V + 5)) + 2 * INDEX + WORD * (5 + V),
              1e-5, 1e-5),
    Operation("KL divergence", "kl_div:LigerKLDivLossFunction", lambda: distributions(True, False), ("batchmean",),
              lambda x, y: F.kl_div(x, y, reduction="batchmean"), WORD * R * (2 * V + 1 + 2 * V), 1e-8, 1e-6),
    Operation("linear and KL divergence", "fused_linear_kl_div:LigerFusedLinearKLDivFunction",
              lambda: [random(R, H), random(V, H), torch.randn(R, V).softmax(-1)], (), linear_divergence,
              WORD * R * (6 * V + 1) + scaling(R, H) + scaling(V, H), 1e-5, 5e-4),
    Operation("Jensen-Shannon divergence", "jsd:LigerJSDFunction", lambda: distributions(True, True), (),
              jensen_shannon, WORD * R * 4 * V, 1e-7, 1e-6),
    Operation("linear and Jensen-Shannon", "fused_linear_jsd:LigerFusedLinearJSDFunction",
              lambda: [random(R, H), random(V, H), torch.randn(R, H), torch.randn(V, H)],
              (), linear_jensen_shannon, WORD * R * 4 * V + scaling(R, H) + scaling(V, H), 1e-5, 5e-4),
    Operation("total variation", "tvd:LigerTVDLossFunction", lambda: distributions(False, False), (), distance,
              WORD * R * (3 * V + 1), 1e-8, 1e-6),
    Operation("RoPE", "rope:LigerRopeFunction", rotary_inputs, (), rotary,
              WORD * 2 * TOKENS * (D + 2 * D * HEADS), 1e-5, 1e-5),
    Operation("multimodal RoPE", "qwen2vl_mrope:LigerQwen2VLMRopeFunction", multimodal_inputs, (SECTIONS,),
              multimodal_rotary, WORD * 2 * TOKENS * (D + 2 * D * HEADS), 1e-5, 1e-5),
    Operation("complex RoPE", "llama4_rope:LigerLlama4RopeFunction", complex_inputs, (), complex_rotary,
              WORD * 2 * TOKENS * (QUERY_HEADS * D + 2 * D * HEADS), 1e-5, 1e-5),
    Operation("embedding", "experimental.embedding:LigerEmbeddingFunction",
              lambda: [random(TABLE, C), torch.randint(0, TABLE, (R,))], (), lambda table, at: table[at],
              2 * R * INDEX + WORD * R * C * (2 + 1 + 2), 1e-6, 1e-5),
    Operation("multi-token attention", "multi_token_attention:LigerMultiTokenAttentionFunction",
              lambda: [random(1, MAPS, LENGTH, LENGTH), random(MAPS, MAPS, 3, 3), random(MAPS)], (1, 1),
              multi_token_attention,
              WORD * MAPS * (2 * (math.comb(LENGTH + 1, 2) + LENGTH**2) + 2 * LENGTH**2 + 2 * 2 * LENGTH**2),
              1e-4, 1e-4),
    Operation("attention over residuals", "attn_res:LigerAttnResFunction",
              lambda: [random(BLOCKS, R, C), random(C), random(C)], (EPS,), residual_attention,
              WORD * R * (3 * C + BLOCKS * (2 * C + 2) + 7 * C + BLOCKS * (3 * C + 2)), 1e-3, 1e-4),
)  # fmt: skip
"""Loads and stores are counted per row, program or token, in the order of the kernels."""
