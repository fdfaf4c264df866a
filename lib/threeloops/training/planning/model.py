"""The sizes of a decoder-only transformer that a plan depends on: parameters, FLOPs, and the needs of backward."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

__all__ = ["Recompute", "Transformer"]

Recompute = Literal["none", "selective", "full"]
"""The part that backward computes again. "selective" keeps the results of attention and of every other matmul, like
torchtitan. "full" keeps only the input of each layer."""


@dataclass(frozen=True)
class Transformer:
    """Grouped-query attention and an MLP, gated (SwiGLU) or not, without biases. Embedding and head are two matrices,
    or one (`tied`).

    With `experts`, every layer has that many MLPs, and each token passes through `experts_per_token` of them and
    through `shared_experts` more. Routing is taken as balanced. With `adapter_rank`, only LoRA adapters of this rank
    are trained, one on every matmul of a layer (Hu et al. 2021), and all other weights are frozen in `frozen_bits`
    bits (about 4.13 for QLoRA: Dettmers et al. 2023).
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    """The width of the MLP, or of one expert."""
    vocabulary: int
    gated: bool = True
    tied: bool = False
    head_dim: int = 0
    """The width of one head; 0 stands for width / heads."""
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    adapter_rank: int = 0
    """0: all weights are trained."""
    frozen_bits: float = 16.0

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "kv_heads", "hidden", "vocabulary"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: expected 1 or more")
        for name in ("head_dim", "experts", "experts_per_token", "shared_experts", "adapter_rank"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} = {getattr(self, name)}: expected 0 or more")
        if (self.width % self.heads and not self.head_dim) or self.heads % self.kv_heads:
            raise ValueError(
                f"width = {self.width}, heads = {self.heads}, kv_heads = {self.kv_heads}: expected each to be a "
                "multiple of the next (or give head_dim, if heads do not divide the width)"
            )
        if not self.experts and (self.experts_per_token or self.shared_experts):
            raise ValueError(
                f"experts_per_token = {self.experts_per_token}, shared_experts = {self.shared_experts}: expected 0, "
                "because there are no experts; give experts"
            )
        if self.experts and not 1 <= self.experts_per_token <= self.experts:
            raise ValueError(
                f"experts_per_token = {self.experts_per_token}: expected 1 to experts = {self.experts}; how many "
                "experts does the router choose for a token?"
            )
        if not 0 < self.frozen_bits <= 32:
            raise ValueError(f"frozen_bits = {self.frozen_bits}: expected more than 0, and at most 32")

    @property
    def attention_width(self) -> int:
        """The width of one token's queries."""
        return self.heads * (self.head_dim or self.width // self.heads)

    @property
    def kv_width(self) -> int:
        """The width of one token's keys, and of its values."""
        return self.attention_width // self.heads * self.kv_heads

    @property
    def active_hidden(self) -> int:
        """The width of all MLPs through which one token passes."""
        return self.hidden * (self.experts_per_token + self.shared_experts if self.experts else 1)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of each matmul of a layer, in the order in which it runs: those of one token."""
        mlp = ("gate", "up") if self.gated else ("up",)
        return {
            "query": (self.width, self.attention_width),
            "key": (self.width, self.kv_width),
            "value": (self.width, self.kv_width),
            "output": (self.attention_width, self.width),
            **dict.fromkeys(mlp, (self.width, self.active_hidden)),
            "down": (self.active_hidden, self.width),
        }

    @cached_property
    def matrices(self) -> dict[str, int]:
        """The weights of each matmul of a layer that one token uses, in the order in which it runs."""
        return {name: inputs * outputs for name, (inputs, outputs) in self.shapes.items()}

    @property
    def mlp_matrices(self) -> int:
        """The matrices of one MLP: gate, up and down, or the last two."""
        return 3 if self.gated else 2

    @property
    def expert_parameters(self) -> int:
        """All experts that the router chooses from, in one layer."""
        return self.experts * self.mlp_matrices * self.width * self.hidden

    @property
    def idle_parameters(self) -> int:
        """The experts of one layer that the router does not choose for a token."""
        return (self.experts - self.experts_per_token) * self.mlp_matrices * self.width * self.hidden

    @cached_property
    def layer_parameters(self) -> int:
        """All weights of one layer: every expert, the router and both norms."""
        return sum(self.matrices.values()) + self.idle_parameters + self.width * self.experts + 2 * self.width

    @property
    def embedding_parameters(self) -> int:
        """The number of parameters of the embedding, or of the head."""
        return self.vocabulary * self.width

    @property
    def parameters(self) -> int:
        """All parameters, adapters not included."""
        return self.layers * self.layer_parameters + (2 - self.tied) * self.embedding_parameters + self.width

    @property
    def active_parameters(self) -> int:
        """The parameters that one token uses."""
        return self.parameters - self.layers * self.idle_parameters

    @property
    def adapter_parameters(self) -> int:
        """The trained parameters of one layer's adapters: rank · (inputs + outputs) of each matrix."""
        attention = sum(sum(self.shapes[name]) for name in ("query", "key", "value", "output"))
        mlps = self.experts + self.shared_experts if self.experts else 1
        return self.adapter_rank * (attention + mlps * self.mlp_matrices * (self.width + self.hidden))

    def layer_flops(self, tokens: int, sequence: int) -> float:
        """Forward of one layer; causal attention, which looks at half of the sequence on average."""
        return tokens * (2 * sum(self.matrices.values()) + 2 * sequence * self.attention_width + self._adapter_flops)

    def backward_flops(self, tokens: int, sequence: int) -> float:
        """Backward of one layer, without recomputation: gradients of inputs and weights, or (with adapters) of inputs
        only."""
        if not self.adapter_rank:
            return 2 * self.layer_flops(tokens, sequence)
        products = 2 * sum(self.matrices.values())
        return tokens * (products + 2 * (2 * sequence * self.attention_width + self._adapter_flops))

    @property
    def _adapter_flops(self) -> int:
        """FLOPs of the adapters in one layer's forward, per token."""
        return 2 * self.adapter_rank * sum(sum(shape) for shape in self.shapes.values())

    def head_flops(self, tokens: int) -> float:
        """Forward of the head."""
        return 2 * tokens * self.embedding_parameters

    @property
    def head_passes(self) -> int:
        """How many times `head_flops` the head needs in forward and backward: 3, or 2 if it is frozen."""
        return 2 if self.adapter_rank else 3

    def step_flops(self, batch: int, sequence: int) -> float:
        """Forward and backward of `batch` sequences, without recomputation."""
        tokens = batch * sequence
        layer = self.layer_flops(tokens, sequence) + self.backward_flops(tokens, sequence)
        return self.layers * layer + self.head_passes * self.head_flops(tokens)

    def recomputed_flops(self, tokens: int, sequence: int, recompute: Recompute) -> float:
        """Return the part of `layer_flops` that backward repeats."""
        if recompute == "selective":
            return 2 * tokens * sum(list(self.matrices.values())[1::2])
        return self.layer_flops(tokens, sequence) if recompute == "full" else 0.0

    def saved(self, recompute: Recompute) -> int:
        """Return the 16-bit elements that one layer keeps for backward, per token.

        Without recomputation, these are the inputs and outputs of both norms, the tensors that attention and the MLP's
        nonlinearity need (the latter is one kernel), and the inputs of the last matmuls of attention and MLP. That is
        32 of the 34 bytes per token and width of Korthikanti et al. 2022 (table 2, attention recomputed). The other two
        are dropout masks. With experts, the tokens as sent to each and as returned by each are kept too.
        """
        if recompute == "full":
            return self.width
        sent = 2 * self.experts_per_token * self.width
        if recompute == "selective":
            products = sum(outputs for _, outputs in list(self.shapes.values())[::2])
            return self.width + self.attention_width + products + sent
        attention = 2 * self.attention_width + 2 * self.kv_width
        return 4 * self.width + attention + self.mlp_matrices * self.active_hidden + sent
