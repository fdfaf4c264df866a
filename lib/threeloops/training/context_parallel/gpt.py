"""The course's GPT on a part of each sequence per rank: only attention needs the other ranks."""

from functools import partial

import torch.distributed as dist
from torch import Tensor, nn

from threeloops.models.gpt import GPT
from threeloops.training.context_parallel.order import Order, token_positions
from threeloops.training.context_parallel.ring import ring_attention

__all__ = ["context_parallelize"]


def context_parallelize(
    model: GPT, group: dist.ProcessGroup | None = None, *, order: Order = "zigzag", seconds_per_pair: float = 0.0
) -> None:
    """Let the model, in place, take this rank's tokens of each sequence, `tokens[:, token_positions(…)]`.

    The loss is the mean over these tokens, and the gradients are those of this rank's loss. Average both over the
    ranks, as data parallelism does. If ranks have different numbers of targets that count, weight by them.

    Raises ValueError for a model with a sliding window, which the ring does not support.
    """
    if model.config.sliding_window is not None:
        raise ValueError(
            f"sliding_window = {model.config.sliding_window}: ring attention sees all earlier keys; use a model "
            "without a window"
        )
    model.rotation = _OwnPositions(model.rotation, group, order)
    for block in model.blocks:
        block.attention.attend = partial(ring_attention, group=group, order=order, seconds_per_pair=seconds_per_pair)


class _OwnPositions(nn.Module):
    """Rotary positions of the tokens that this rank has of each sequence."""

    def __init__(self, rotation: nn.Module, group: dist.ProcessGroup | None, order: Order) -> None:
        super().__init__()
        self.rotation = rotation
        self.order = order
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)

    def forward(self, start: int | Tensor, length: int) -> tuple[Tensor, ...]:
        tokens = length * self.size
        positions = token_positions(tokens, self.rank, self.size, self.order)
        return tuple(table[..., positions, :] for table in self.rotation(start, tokens))
