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
    or one (`tied`)."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int
    gated: bool = True
    tied: bool = False

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "kv_heads", "hidden", "vocabulary"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: expected 1 or more")
        if self.width % self.heads or self.heads % self.kv_heads:
            raise ValueError(
                f"width = {self.width}, heads = {self.heads}, kv_heads = {self.kv_heads}: expected each to be a "
                "multiple of the next"
            )

    @property
    def kv_width(self) -> int:
        """The width of one token's keys, and of its values."""
        return self.width // self.heads * self.kv_heads

    @cached_property
    def matrices(self) -> dict[str, int]:
        """Weights of each matmul of a layer, in the order in which it runs."""
        mlp = {"gate": self.hidden, "up": self.hidden} if self.gated else {"up": self.hidden}
        outputs = {"query": self.width, "key": self.kv_width, "value": self.kv_width, "output": self.width, **mlp}
        return {name: self.width * size for name, size in outputs.items()} | {"down": self.hidden * self.width}

    @cached_property
    def layer_parameters(self) -> int:
        return sum(self.matrices.values()) + 2 * self.width

    @property
    def embedding_parameters(self) -> int:
        """The number of parameters of the embedding, or of the head."""
        return self.vocabulary * self.width

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + (2 - self.tied) * self.embedding_parameters + self.width

    def layer_flops(self, tokens: int, sequence: int) -> float:
        """Forward of one layer; causal attention, which looks at half of the sequence on average."""
        return tokens * (2 * sum(self.matrices.values()) + 2 * sequence * self.width)

    def head_flops(self, tokens: int) -> float:
        return 2 * tokens * self.embedding_parameters

    def step_flops(self, batch: int, sequence: int) -> float:
        """Forward and backward of `batch` sequences, without recomputation."""
        tokens = batch * sequence
        return 3 * (self.layers * self.layer_flops(tokens, sequence) + self.head_flops(tokens))

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
        are dropout masks.
        """
        if recompute == "full":
            return self.width
        if recompute == "selective":
            outputs = {"query": self.width, "value": self.kv_width, "down": self.width}
            outputs |= {"gate": self.hidden} if self.gated else {"up": self.hidden}
            return self.width + self.width + sum(outputs[name] for name in list(self.matrices)[::2] if name in outputs)
        return 6 * self.width + 2 * self.kv_width + (3 if self.gated else 2) * self.hidden
