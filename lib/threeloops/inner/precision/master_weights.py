"""Float32 masters of 16-bit parameters: the optimiser moves the masters, the model sees them rounded.

A step of learning moves a weight by perhaps a ten-thousandth of itself. bfloat16 has eight significant bits, its
neighbours lie up to 1/128 of the weight apart: the step is rounded away, every time. PyTorch's optimisers keep no
masters; this module does.
"""

import weakref
from collections.abc import Callable, Iterable
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

LOW = (torch.float16, torch.bfloat16)

_newest = WeakTensorKeyDictionary()
"""Of each 16-bit parameter that has had masters, a weak reference to the `MasterWeights` made last. A parameter has one
hook for good, which looks here: two hooks would contend for one gradient."""


class MasterWeights:
    """An optimiser for `parameters`, those in 16 bits by way of float32 masters, others directly.

    `make_optimizer` takes the list of masters: `MasterWeights(model.parameters(), lambda p: torch.optim.AdamW(p))`.
    The backward pass adds each 16-bit gradient to its master's, in float32, and frees it: clip the gradients of
    `masters`. A step lets the optimiser move the masters and rounds these into the model. Masters cost four bytes a
    parameter, their gradients four more.

    Made again for the same parameters, as when a notebook's cell is run twice, the newer one takes over: the masters
    begin at the model's weights, and the older one steps no more. One that nobody holds is freed.
    Raises ValueError for no parameters.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    ) -> None:
        self.parameters = [p for p in dict.fromkeys(parameters) if p.requires_grad]
        if not self.parameters:
            raise ValueError("parameters: none needs a gradient; expected model.parameters(), not an iterator used up")
        self.masters = [nn.Parameter(p.detach().float()) if p.dtype in LOW else p for p in self.parameters]
        self.optimizer = make_optimizer(self.masters)
        self._master_of = {p: m for p, m in zip(self.parameters, self.masters, strict=True) if p is not m}
        for parameter in self._master_of:
            if parameter not in _newest:
                parameter.register_post_accumulate_grad_hook(_hand_over)
            _newest[parameter] = weakref.ref(self)

    @property
    def param_groups(self) -> list[dict]:
        """The optimiser's groups, of masters and their gradients: what a loss scaler or a schedule works on."""
        return self.optimizer.param_groups

    @torch.no_grad()
    def step(self) -> None:
        """Raises RuntimeError where newer masters have taken over."""
        self._require_newest()
        self.optimizer.step()
        self._round_into_model()

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
        """Raises ValueError where `state` does not fit, before anything is overwritten; RuntimeError as `step`."""
        self._require_newest()
        saved = state["masters"]
        shapes, expected = [tuple(m.shape) for m in saved], [tuple(m.shape) for m in self.masters]
        if shapes != expected:
            raise ValueError(f"masters of shapes {shapes}: expected {expected}, those of this model's parameters")
        self.optimizer.load_state_dict(state["optimizer"])  # first: the optimiser may refuse it
        for master, value in zip(self.masters, saved, strict=True):
            master.copy_(value)
        self._round_into_model()

    def _round_into_model(self) -> None:
        for parameter, master in self._master_of.items():
            parameter.copy_(master)

    def _require_newest(self) -> None:
        lost = sum(_owner(parameter) is not self for parameter in self._master_of)
        if lost:
            raise RuntimeError(
                f"{lost} of {len(self._master_of)} parameters hand their gradients to newer masters, or to none: "
                "expected the MasterWeights made last for this model; use that one, or make this one anew"
            )


def _owner(parameter: Tensor) -> MasterWeights | None:
    """Who takes the gradient; nobody where that one has been freed, or where the parameter is a copy without hooks."""
    newest = _newest.get(parameter)
    return newest() if newest else None


def _hand_over(parameter: Tensor) -> None:
    """Move the gradient that has just been accumulated from a 16-bit parameter to its master, if it has one still."""
    owner = _owner(parameter)
    if owner is None:
        return
    master, gradient = owner._master_of[parameter], parameter.grad.float()
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
