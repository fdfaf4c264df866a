"""A GPT in the shape of today's large models, small enough to read: later labs train, split and serve it.

RMSNorm before each sublayer (Zhang & Sennrich 2019), rotary positions (Su et al. 2021), grouped-query attention
(Ainslie et al. 2023), SwiGLU (Shazeer 2020) and no biases, as in Llama. `GPTConfig` lists what Qwen2, Qwen3, Mistral
and Llama 3.1 do differently. Embedding, blocks, norm and head are separate modules, so that a pipeline stage can hold
some of them. `kernels="fused"` computes the same with the course's Triton kernels in place of PyTorch's operators.
"""

# ruff: noqa: F722, F821  the strings are jaxtyping shapes, not forward references

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from threeloops.models.gpt_config import GPTConfig
from threeloops.models.gpt_operations import OPERATIONS, Rotation
from threeloops.models.rope_scaling import RopeScaling, plain_frequencies

__all__ = ["Attention", "Block", "GPT", "KeyValueCache", "MLP", "RMSNorm", "RotaryPositions"]


class KeyValueCache(Protocol):
    """The keys and values of earlier tokens in one layer, for decoding."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, attention: Callable[..., Tensor]) -> Tensor:
        """Keep k and v of the new tokens, (batch, kv_heads, new, head_dim), and return the attention of q, (batch,
        heads, new, head_dim), over all that is kept. `attention(q, k, v)` is the model's own, whose queries belong to
        the last keys; a cache whose keys do not lie in one tensor brings its own.
        """
        ...


class RMSNorm(nn.Module):
    """x / √(mean(x²) + ε) · weight over the last dimension: LayerNorm without the mean and the shift.

    The last dimension has `size` elements, the model's width by default.
    """

    def __init__(self, config: GPTConfig, size: int | None = None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size or config.width))
        self.epsilon = config.norm_epsilon
        self.normalise = OPERATIONS[config.kernels].rms_norm

    def forward(self, x: Float[Tensor, "... width"]) -> Float[Tensor, "... width"]:
        return self.normalise(x, self.weight, self.epsilon)


class RotaryPositions(nn.Module):
    """Rotary positions: pair i of a head, dimensions i and i + head_dim / 2, is rotated by position ·
    base^(−2i / head_dim), so the product of a query and a key depends only on the distance between them. `scaling`
    changes these frequencies.
    """

    def __init__(self, head_dim: int, max_sequence: int, base: float, scaling: RopeScaling | None = None):
        super().__init__()
        self.head_dim = head_dim
        self.max_sequence = max_sequence
        self.base = base
        self.scaling = scaling
        self._make_table()

    def _make_table(self, device: torch.device | None = None) -> None:
        frequencies = plain_frequencies(self.head_dim, self.base)
        if self.scaling is not None:
            frequencies = self.scaling.frequencies(frequencies, self.base)
        positions = torch.arange(self.max_sequence, dtype=torch.float64, device=device)
        angles = torch.outer(positions, torch.tensor(frequencies, dtype=torch.float64, device=device))
        amplitude = self.scaling.amplitude if self.scaling is not None else 1.0
        self.register_buffer("cosines", (angles.cos() * amplitude).float(), persistent=False)
        self.register_buffer("sines", (angles.sin() * amplitude).float(), persistent=False)

    def _apply(self, fn: Callable, recurse: bool = True) -> "RotaryPositions":
        # Recomputed, not converted: conversion to bfloat16 would round the positions, and `to_empty` would lose them.
        super()._apply(fn, recurse)
        self._make_table(self.cosines.device)
        return self

    def forward(self, start: int | Int[Tensor, "batch"], length: int) -> Rotation:
        """Cosines and sines of positions start … start + length − 1, (length, head_dim / 2), in float32.

        If `start` is a tensor, each sequence has its own start. Then the values are repeated for both halves of a head,
        with the signs that the halves need: (cosines, cosines) and (−sines, sines), (batch, 1, length, head_dim).
        """
        if isinstance(start, Tensor):
            positions = start.view(-1, 1, 1) + torch.arange(length, device=start.device)
            cosines, sines = (functional.embedding(positions, table) for table in (self.cosines, self.sines))
            return torch.cat((cosines, cosines), -1), torch.cat((-sines, sines), -1)
        if not 0 <= start <= self.max_sequence - length:
            raise ValueError(
                f"positions {start} … {start + length - 1}: expected positions within max_sequence = "
                f"{self.max_sequence}; shorten the sequence or raise max_sequence in the configuration"
            )
        return self.cosines[start : start + length], self.sines[start : start + length]


class Attention(nn.Module):
    """Causal self-attention. `attend` can be replaced by any function of q (batch, heads, queries, head_dim) and k, v
    (batch, kv_heads, keys, head_dim) whose queries belong to the last keys.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.heads = config.heads
        self.kv_heads = config.kv_heads
        self.qkv = nn.Linear(config.width, sum(config.qkv_widths), bias=config.qkv_bias)
        self.output = nn.Linear(config.qkv_widths[0], config.width, bias=False)
        self.query_norm = RMSNorm(config, config.head_dim) if config.qk_norm else None
        self.key_norm = RMSNorm(config, config.head_dim) if config.qk_norm else None
        self.project = OPERATIONS[config.kernels].project
        self.attend = OPERATIONS[config.kernels].attend
        if config.sliding_window is not None:
            self.attend = partial(self.attend, window=config.sliding_window)

    def forward(
        self, x: Float[Tensor, "batch tokens width"], rotation: Rotation, cache: KeyValueCache | None = None
    ) -> Float[Tensor, "batch tokens width"]:
        norms = None if self.query_norm is None else (self.query_norm, self.key_norm)
        q, k, v = self.project(x, self.qkv, self.heads, self.kv_heads, rotation, norms)  # batch heads tokens head_dim
        attended = self.attend(q, k, v) if cache is None else cache.attend(q, k, v, self.attend)
        return self.output(attended.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """SwiGLU: one projection, through SiLU, gates the other."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.gate = nn.Linear(config.width, config.mlp_width, bias=False)
        self.up = nn.Linear(config.width, config.mlp_width, bias=False)
        self.down = nn.Linear(config.mlp_width, config.width, bias=False)

    def forward(self, x: Float[Tensor, "... width"]) -> Float[Tensor, "... width"]:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """One layer: attention, then the MLP; each reads a normalised copy of the residual stream and adds to it."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.attention_norm = RMSNorm(config)
        self.attention = Attention(config)
        self.mlp_norm = RMSNorm(config)
        self.mlp = MLP(config)

    def forward(
        self, x: Float[Tensor, "batch tokens width"], rotation: Rotation, cache: KeyValueCache | None = None
    ) -> Float[Tensor, "batch tokens width"]:
        x = x + self.attention(self.attention_norm(x), rotation, cache)
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """Embedding, blocks, norm, head. A pipeline stage runs a slice of `blocks` with the same `rotation`."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary_size, config.width)
        self.rotation = RotaryPositions(config.head_dim, config.max_sequence, config.rope_base, config.rope_scaling)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config)
        self.head = nn.Linear(config.width, config.vocabulary_size, bias=False)
        if config.tied_embeddings:
            self.head.weight = self.embedding.weight
        self.loss = OPERATIONS[config.kernels].loss
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw every weight again from torch's generator. Call it after `to_empty` of a model made on "meta".

        Weights are normal with deviation 0.02 (GPT-2). The 2·layers projections that add to the residual stream get
        0.02 / √(2·layers), so that the stream begins at the same size in deep and shallow models.
        """
        for name, weight in self.named_parameters():
            if weight.ndim == 1:
                weight.fill_(0 if name.endswith("bias") else 1)
            else:
                adds = name.endswith(("attention.output.weight", "mlp.down.weight"))
                weight.normal_(std=0.02 / math.sqrt(2 * self.config.layers) if adds else 0.02)

    def forward(
        self,
        tokens: Int[Tensor, "batch tokens"],
        targets: Int[Tensor, "batch tokens"] | None = None,
        *,
        start: int | Int[Tensor, "batch"] = 0,
        caches: Sequence[KeyValueCache] | None = None,
    ) -> Float[Tensor, "batch tokens vocabulary"] | Float[Tensor, ""]:
        """Return logits, or with `targets` the mean cross-entropy in nats. A target of −100 does not count.

        For decoding, pass only the new tokens, the position `start` of the first (one for all sequences, or one per
        sequence) and one cache per layer. Raises ValueError if tokens or caches do not fit.
        """
        if targets is not None and targets.shape != tokens.shape:
            raise ValueError(
                f"targets has shape {tuple(targets.shape)}: expected {tuple(tokens.shape)}, that of tokens"
            )
        x = self.hidden(tokens, start=start, caches=caches)
        return self.head(x) if targets is None else self.loss(x, self.head, targets)

    def hidden(
        self,
        tokens: Int[Tensor, "batch tokens"],
        *,
        start: int | Int[Tensor, "batch"] = 0,
        caches: Sequence[KeyValueCache] | None = None,
    ) -> Float[Tensor, "batch tokens width"]:
        """Return what the head reads. A decoder needs the logits of a sequence's last token only, and calls the head
        itself.

        Arguments and errors are those of `forward`.
        """
        if tokens.ndim != 2:
            raise ValueError(
                f"tokens has shape {tuple(tokens.shape)}: expected (batch, tokens); add a batch with [None]"
            )
        if caches is not None and len(caches) != len(self.blocks):
            raise ValueError(f"caches: {len(caches)} of them; expected one for each of the {len(self.blocks)} layers")
        blocks = list(self.blocks)  # fewer than len(self.blocks) if they are recomputed in segments
        if caches is not None and len(blocks) != len(self.blocks):
            raise ValueError(
                f"caches for {len(self.blocks)} layers in {len(blocks)} segments: expected a cache for each that runs; "
                "decode under torch.no_grad(), where nothing is recomputed and layers run one by one"
            )
        x = self.embedding(tokens)
        rotation = self.rotation(start, tokens.shape[1])
        for layer, block in enumerate(blocks):
            x = block(x, rotation, caches[layer] if caches else None)
        return self.norm(x)
