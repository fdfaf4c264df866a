"""DiLoCo: replicas that take many steps alone, and then agree on one step together.

Source: Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models" (arXiv:2311.08105),
algorithm 1. A replica is a region: a cluster with fast links inside and slow ones to the others. Each takes H steps
with an optimizer of its own, usually AdamW. How far it has moved is its outer gradient. The mean of these is applied to
the weights that all of them started from, by SGD with Nesterov momentum. So the regions exchange one all-reduce of the
size of the model every H steps, and none of the states of their own optimizers.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["DiLoCo"]


class DiLoCo:
    """The outer optimizer. Every region makes one, with equal parameters of one dtype, and calls `step` every H inner
    steps.

    Args:
        rate, momentum: of the outer step. The defaults are those of the paper, section 3.2.
        send_dtype: the outer gradient is rounded to this dtype before it is sent, to send fewer bytes. By default it is
            not rounded.
    """

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        *,
        rate: float = 0.7,
        momentum: float = 0.9,
        send_dtype: torch.dtype | None = None,
    ) -> None:
        self._parameters = list(parameters)
        if not self._parameters:
            raise ValueError("there is no parameter: pass model.parameters(), as a list if they are read twice")
        self._start = torch.nn.Parameter(self._flat())  # where all regions began
        self._outer = torch.optim.SGD([self._start], lr=rate, momentum=momentum, nesterov=momentum > 0)
        self._send_dtype = send_dtype or self._start.dtype

    @torch.no_grad()
    def step(self, group: dist.ProcessGroup | None = None) -> None:
        """Average the outer gradients of the regions in `group`, take the outer step, and go on from its weights.

        If the all-reduce raises an error, because a region is gone, nothing has changed. The regions that are left can
        call it again with a group of their own. What the lost region had learned since the last outer step is lost with
        it.
        """
        moved = (self._start - self._flat()).to(self._send_dtype)
        moved.div_(dist.get_world_size(group))
        dist.all_reduce(moved, group=group)
        self._start.grad = moved.to(self._start.dtype)
        self._outer.step()
        parts = self._start.split([parameter.numel() for parameter in self._parameters])
        for parameter, values in zip(self._parameters, parts, strict=True):
            parameter.copy_(values.view(parameter.shape))

    def _flat(self) -> Tensor:
        return torch.cat([parameter.detach().reshape(-1) for parameter in self._parameters])
