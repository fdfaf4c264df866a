"""The sizes of a GPT, and what they cost in parameters and arithmetic."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from threeloops.models.rope_scaling import RopeScaling
from threeloops.units import require_whole

__all__ = ["GPTConfig"]


@dataclass(frozen=True)
class GPTConfig:
    """Sizes of a GPT, and what distinguishes the published models that share its shape.

    With fewer `kv_heads` than `heads`, groups of query heads share a key and a value head. `head_dim` 0 stands for
    width / heads. `dataclasses.replace` keeps `head_dim`, so to change the width or the heads, give `head_dim=0` too.
    The rest is off by default:

    - `qkv_bias`: a bias on queries, keys and values, as in Qwen2.
    - `qk_norm`: an RMSNorm of each head's queries and keys before they are rotated, as in Qwen3.
    - `sliding_window`: a token sees itself and the `sliding_window` − 1 tokens before it, as in Mistral.
    - `rope_scaling`: rotary positions stretched to longer sequences, as in Llama 3.1.

    Fused kernels compute in the one dtype of all weights; autocast has no effect on them. Raises ValueError naming the
    size that does not fit.
    """

    vocabulary_size: int
    layers: int
    heads: int
    kv_heads: int
    width: int
    mlp_width: int
    max_sequence: int
    tied_embeddings: bool = True
    norm_epsilon: float = 1e-5
    rope_base: float = 10_000.0
    qkv_bias: bool = False
    qk_norm: bool = False
    head_dim: int = 0
    sliding_window: int | None = None
    rope_scaling: RopeScaling | None = None
    kernels: Literal["eager", "fused"] = "eager"

    def __post_init__(self) -> None:
        optional = () if self.sliding_window is None else ("sliding_window",)
        sizes = ("vocabulary_size", "layers", "heads", "kv_heads", "width", "mlp_width", "max_sequence", *optional)
        require_whole(**{name: getattr(self, name) for name in sizes})
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads = {self.kv_heads}: expected a divisor of heads = {self.heads}")
        if self.head_dim == 0:
            if self.width % (2 * self.heads):
                raise ValueError(
                    f"width = {self.width}: expected a multiple of 2·heads = {2 * self.heads}; rotary positions rotate "
                    "the dimensions of a head in pairs; or give head_dim"
                )
            object.__setattr__(self, "head_dim", self.width // self.heads)
        if not isinstance(self.head_dim, int) or self.head_dim < 2 or self.head_dim % 2:
            raise ValueError(
                f"head_dim = {self.head_dim!r}: expected an even number, at least 2; rotary positions rotate the "
                "dimensions of a head in pairs"
            )
        for name in ("norm_epsilon", "rope_base"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"{name} = {value!r}: expected a positive number")
        if self.kernels not in ("eager", "fused"):
            raise ValueError(f"kernels = {self.kernels!r}: expected 'eager' (PyTorch) or 'fused' (Triton)")

    @classmethod
    def tiny(cls, **changes: Any) -> "GPTConfig":
        """About a hundred thousand parameters: for tests, and for a laptop."""
        sizes = {"vocabulary_size": 256, "layers": 2, "heads": 4, "kv_heads": 2, "width": 64, "mlp_width": 192}
        return cls(**{**sizes, "max_sequence": 128, **changes})

    @classmethod
    def small(cls, **changes: Any) -> "GPTConfig":
        """Return a configuration with as many parameters as GPT-2's smallest model, 124 million."""
        sizes = {"vocabulary_size": 50_304, "layers": 12, "heads": 12, "kv_heads": 12, "width": 768, "mlp_width": 2048}
        return cls(**{**sizes, "max_sequence": 1024, **changes})

    @property
    def qkv_widths(self) -> tuple[int, int, int]:
        """Rows of the query, key and value projections, in the order in which one matrix holds them."""
        return self.heads * self.head_dim, self.kv_heads * self.head_dim, self.kv_heads * self.head_dim

    @property
    def matmul_parameters(self) -> int:
        """Weights of the matrices that every token is multiplied by: without norms and the embedding's look-up."""
        attention = (sum(self.qkv_widths) + self.qkv_widths[0]) * self.width
        return self.layers * (attention + 3 * self.width * self.mlp_width) + self.vocabulary_size * self.width

    def parameters_count(self) -> int:
        """Trainable parameters; a tied embedding counts once."""
        embedding = 0 if self.tied_embeddings else self.vocabulary_size * self.width
        biases = self.layers * sum(self.qkv_widths) if self.qkv_bias else 0
        head_norms = self.layers * 2 * self.head_dim if self.qk_norm else 0
        return self.matmul_parameters + embedding + biases + head_norms + (2 * self.layers + 1) * self.width

    def flops_per_token(self, sequence: int, *, causal: bool = True) -> float:
        """FLOPs per token of a forward pass over `sequence` tokens; a training step needs three times that.

        Two for each weight of a matrix, and 4·heads·head_dim per layer for each visible key: (sequence + 1) / 2 on
        average without a window, or all of them with `causal=False`, the convention of published model FLOPs
        utilisations. Norms, rotations, activations and the softmax are left out.
        """
        window = min(sequence, self.sliding_window or sequence)
        keys = window - window * (window - 1) / (2 * sequence) if causal else window
        return 2 * self.matmul_parameters + 4 * self.layers * self.qkv_widths[0] * keys
