"""Float32 masters of 16-bit parameters: the optimiser moves the masters, the model sees them rounded.

A step of learning moves a weight by perhaps a ten-thousandth of itself. bfloat16 has eight significant bits, its
neighbours lie up to 1/128 of the weight apart: the step is rounded away, every time. PyTorch's optimisers keep no
masters; this module does.
"""

from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import partial

import torch
from torch import Tensor, nn

LOW = (torch.float16, torch.bfloat16)


class MasterWeights:
    """An optimiser for `parameters`, those in 16 bits by way of float32 masters, others directly.

    `make_optimizer` takes the list of masters: `MasterWeights(model.parameters(), lambda p: torch.optim.AdamW(p))`.
    The backward pass adds each 16-bit gradient to its master's, in float32, and frees it: clip the gradients of
    `masters`. A step lets the optimiser move the masters and rounds these into the model. Masters cost four bytes a
    parameter, their gradients four more.
    Raises ValueError for no parameters.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    ) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        if not self.parameters:
            raise ValueError("parameters: none needs a gradient; expected model.parameters(), not an iterator used up")
        self.masters = [nn.Parameter(p.detach().float()) if p.dtype in LOW else p for p in self.parameters]
        self.optimizer = make_optimizer(self.masters)
        for parameter, master in self._pairs():
            parameter.register_post_accumulate_grad_hook(partial(_hand_over, master))

    @property
    def param_groups(self) -> list[dict]:
        """The optimiser's groups, of masters and their gradients: what a loss scaler or a schedule works on."""
        return self.optimizer.param_groups

    @torch.no_grad()
    def step(self) -> None:
        self.optimizer.step()
        for parameter, master in self._pairs():
            parameter.copy_(master)

    def zero_grad(self) -> None:
        """Before every backward pass that begins a step, whether the last step was taken or skipped."""
        self.optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict:
        """A copy of masters and optimiser state. The 16-bit weights are not enough to resume: they are rounded."""
        return {
            "masters": [m.detach().clone() for m in self.masters],
            "optimizer": deepcopy(self.optimizer.state_dict()),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict) -> None:
        saved = state["masters"]
        shapes, expected = [tuple(m.shape) for m in saved], [tuple(m.shape) for m in self.masters]
        if shapes != expected:
            raise ValueError(f"masters of shapes {shapes}: expected {expected}, those of this model's parameters")
        for parameter, master, value in zip(self.parameters, self.masters, saved, strict=True):
            master.copy_(value)
            parameter.copy_(master)
        self.optimizer.load_state_dict(state["optimizer"])

    def _pairs(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        return [(p, m) for p, m in zip(self.parameters, self.masters, strict=True) if p is not m]


def _hand_over(master: nn.Parameter, parameter: Tensor) -> None:
    """Move the gradient that has just been accumulated from a 16-bit parameter to its master."""
    gradient = parameter.grad.float()
    master.grad = gradient if master.grad is None else master.grad + gradient
    parameter.grad = None


def lost_updates(weights: Tensor, updates: Tensor) -> Tensor:
    """Where `weights` + `updates`, rounded to the dtype of `weights`, is the old weight though the update is not zero.
    Same shapes; bool. The sum is taken in float32, as a fused optimiser takes it: only the format of the weights loses.
    """
    if weights.shape != updates.shape:
        raise ValueError(f"updates of shape {tuple(updates.shape)}: expected {tuple(weights.shape)}, that of weights")
    moved = (weights.float() + updates.float()).to(weights.dtype)
    return (moved == weights) & (updates != 0)
