"""The accountant's inputs about a training step: the model's sizes, the batch, the formats, and the policies."""

from dataclasses import dataclass
from typing import Literal, Protocol

from threeloops.inner.memory.recompute import require_divisor
from threeloops.units import require_whole

__all__ = ["Model", "TrainingStep"]

_DTYPE_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_STATES = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
"""Numbers that an optimizer keeps for each parameter."""

_UNKNOWN = ("qkv_bias", "qk_norm", "sliding_window")
"""Settings of a model whose tensors nobody counts here."""


class Model(Protocol):
    """The sizes of a GPT; `threeloops.models.gpt_config.GPTConfig` has them all."""

    @property
    def vocabulary_size(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def mlp_width(self) -> int: ...
    @property
    def max_sequence(self) -> int: ...
    @property
    def tied_embeddings(self) -> bool: ...
    @property
    def kernels(self) -> str: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def qkv_widths(self) -> tuple[int, int, int]: ...
    def parameters_count(self) -> int: ...


@dataclass(frozen=True)
class TrainingStep:
    """One training step of a model.

    dtype: the dtype of parameters, gradients and activations. masters: the optimizer keeps float32 copies of the
    parameters, and its states in float32. Gradients stay in `dtype`, as in the published 16 bytes per parameter
    (`inner.precision.amp.MasterWeights`, which keeps gradients in float32, holds two more). layers_per_segment: keep
    only the input of each segment of this many layers and recompute the rest (None: keep all). attention: "flash" never
    holds scores, "scores" keeps the probabilities of all heads. device: on a "cpu" PyTorch's RMSNorm runs as single
    operators, which keep its normalised input, and the heads are copied side by side; on "cuda" it does neither
    (assumed, not measured on a GPU yet).

    Raises ValueError naming the quantity that does not fit.
    """

    model: Model
    batch: int
    sequence: int
    dtype: str = "float32"
    optimizer: str = "adamw"
    masters: bool = False
    layers_per_segment: int | None = None
    attention: Literal["flash", "scores"] = "flash"
    device: Literal["cpu", "cuda"] = "cpu"

    def __post_init__(self) -> None:
        require_whole(batch=self.batch, sequence=self.sequence)
        if self.model.layers < 1:
            raise ValueError(f"layers = {self.model.layers}: expected at least 1")
        for name in _UNKNOWN:
            if value := getattr(self.model, name, None):
                raise ValueError(
                    f"{name} = {value!r}: the accountant does not know what this keeps; use a model without it, or "
                    "measure with LiveStorage"
                )
        if self.sequence > self.model.max_sequence:
            raise ValueError(f"sequence = {self.sequence}: expected at most max_sequence = {self.model.max_sequence}")
        for name, choices in (
            ("dtype", _DTYPE_BYTES),
            ("optimizer", _STATES),
            ("attention", ("flash", "scores")),
            ("device", ("cpu", "cuda")),
        ):
            if (value := getattr(self, name)) not in choices:
                raise ValueError(f"{name} = {value!r}: expected one of {', '.join(choices)}")
        if self.layers_per_segment is not None:
            require_divisor(self.model.layers, self.layers_per_segment)

    @property
    def tokens(self) -> int:
        return self.batch * self.sequence

    @property
    def fused(self) -> bool:
        """Whether the course's Triton kernels run in place of PyTorch's operators."""
        return self.model.kernels == "fused"

    @property
    def decomposed_norm(self) -> bool:
        """Whether RMSNorm runs as single operators, each of which keeps its own inputs."""
        return self.device == "cpu" and not self.fused

    @property
    def keeps_stream(self) -> bool:
        """Whether a norm keeps the residual stream itself; a decomposed one in 16 bits keeps a float32 copy of it."""
        return self.element == self.wide or not self.decomposed_norm

    @property
    def heads_are_copied(self) -> bool:
        """Whether heads are copied to lie side by side. If no scores are formed, a single head needs no copy. Several
        heads need none in PyTorch's own attention on a GPU."""
        return self.attention == "scores" or (self.model.heads > 1 and (self.fused or self.device == "cpu"))

    @property
    def element(self) -> int:
        """Bytes of an element of parameters, gradients and activations."""
        return _DTYPE_BYTES[self.dtype]

    @property
    def wide(self) -> int:
        """Bytes of an element in the parts that the model computes in at least float32: norms, rotations, the loss."""
        return max(self.element, 4)

    @property
    def stream(self) -> int:
        """The residual stream: a vector of the model's width per token."""
        return self.tokens * self.model.width * self.element

    @property
    def parameters(self) -> int:
        return self.model.parameters_count() * self.element

    @property
    def master_bytes(self) -> int:
        return self.model.parameters_count() * 4 if self.masters else 0

    @property
    def states(self) -> int:
        element = 4 if self.masters else self.element
        return _STATES[self.optimizer] * self.model.parameters_count() * element

    @property
    def tables(self) -> int:
        """Cosines and sines of the rotary positions, float32."""
        return 2 * self.model.max_sequence * (self.model.head_dim // 2) * 4

    @property
    def inputs(self) -> int:
        """Tokens and targets, int64."""
        return 2 * self.tokens * 8
