"""Statistics of the inputs of a model's layers, layer by layer: second moments and mean sizes.

Nothing else about the inputs is needed: an error of the weights, D, costs Σ ‖D x‖² = tr(D (Σ x xᵀ) Dᵀ) in the outputs.
"""

# ruff: noqa: F722, F821  the strings are jaxtyping shapes, not forward references

from collections.abc import Iterable
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from threeloops.models.gpt import GPT, Block

__all__ = ["Calibration", "InputStatistics"]


class InputStatistics:
    """`gram`, Σ x xᵀ, and `mean_abs`, the mean of |x|, of all inputs of a layer so far, in float64."""

    def __init__(self, columns: int, device: torch.device | str):
        self.gram: Float[Tensor, "columns columns"] = torch.zeros(columns, columns, dtype=torch.float64, device=device)
        self._sum_abs = torch.zeros(columns, dtype=torch.float64, device=device)
        self._rows = 0

    @property
    def mean_abs(self) -> Float[Tensor, "columns"]:
        return self._sum_abs / max(1, self._rows)

    def add(self, x: Float[Tensor, "... columns"]) -> None:
        x = x.detach().flatten(0, -2).double()
        self.gram += x.T @ x
        self._sum_abs += x.abs().sum(0)
        self._rows += len(x)


class Calibration:
    """Tokens on their way through the blocks of a GPT. Layers that are quantised already shape the inputs of later
    layers, as in GPTQ: take the `statistics` of a block, change its weights, and `advance` through it."""

    def __init__(self, model: GPT, tokens: Int[Tensor, "sequences tokens"], batch: int = 8):
        self._check(model, tokens)
        device = model.embedding.weight.device
        with torch.no_grad():
            self._hidden = [model.embedding(part.to(device)) for part in tokens.split(batch)]
            self._rotation = model.rotation(0, tokens.shape[1])

    @torch.no_grad()
    def statistics(self, block: Block, names: Iterable[str]) -> dict[str, InputStatistics]:
        """Collect statistics of the inputs of the layers of `block` with these names, such as "mlp.down"."""
        layers = {name: block.get_submodule(name) for name in names}
        statistics = {
            name: InputStatistics(layer.in_features, self._hidden[0].device)  # type: ignore[arg-type]
            for name, layer in layers.items()
        }

        def observe(name: str, module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            statistics[name].add(arguments[0])

        hooks = [layer.register_forward_pre_hook(partial(observe, name)) for name, layer in layers.items()]
        try:
            for hidden in self._hidden:
                block(hidden, self._rotation)
        finally:
            for hook in hooks:
                hook.remove()
        return statistics

    @torch.no_grad()
    def advance(self, block: Block) -> None:
        self._hidden = [block(hidden, self._rotation) for hidden in self._hidden]

    @torch.no_grad()
    def after(self, norm: nn.Module) -> InputStatistics:
        """Collect statistics of the head's input, once the tokens have passed all blocks."""
        statistics = InputStatistics(self._hidden[0].shape[-1], self._hidden[0].device)
        for hidden in self._hidden:
            statistics.add(norm(hidden))
        return statistics

    @staticmethod
    def _check(model: GPT, tokens: Tensor) -> None:
        config = model.config
        if tokens.ndim != 2 or not tokens.numel():
            raise ValueError(
                f"calibration tokens have shape {tuple(tokens.shape)}: expected (sequences, tokens), neither of them 0"
            )
        if tokens.shape[1] > config.max_sequence:
            raise ValueError(
                f"calibration sequences have {tokens.shape[1]} tokens: expected at most max_sequence = "
                f"{config.max_sequence}; cut them"
            )
        if tokens.min() < 0 or tokens.max() >= config.vocabulary_size:
            raise ValueError(
                f"calibration tokens go from {int(tokens.min())} to {int(tokens.max())}: expected 0 to "
                f"{config.vocabulary_size - 1}, the model's vocabulary; use its own tokeniser"
            )
