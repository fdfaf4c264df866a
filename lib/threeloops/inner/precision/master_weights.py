"""Float32 masters of 16-bit parameters: the optimizer moves the masters, and the model gets them rounded.

A step of learning moves a weight by perhaps a ten-thousandth of itself, but neighbouring bfloat16 numbers lie up to
1/128 of the weight apart: without masters, which PyTorch's optimizers do not keep, every step is rounded away.
"""

import weakref
from collections.abc import Callable, Iterable
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

__all__ = ["MasterWeights"]

_LOW = (torch.float16, torch.bfloat16)

_newest = WeakTensorKeyDictionary()
"""16-bit parameter → weak reference to the newest `MasterWeights` for it. Each parameter keeps one hook, which looks
here: two hooks would contend for one gradient."""


class MasterWeights:
    """An optimizer for `parameters`: 16-bit ones through float32 masters, others directly.

    `make_optimizer` takes the list of masters: `MasterWeights(model.parameters(), lambda p: torch.optim.AdamW(p))`.
    The backward pass adds each 16-bit gradient to its master's, in float32, and frees it, so clip the gradients of
    `masters`. Masters cost four bytes per parameter, their gradients four more.

    When it is made again for the same parameters, as when a notebook cell is run twice, the newer one takes over from
    the model's current weights, and the older one refuses to step. Raises ValueError for no parameters.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    ) -> None:
        self.parameters = [p for p in dict.fromkeys(parameters) if p.requires_grad]
        if not self.parameters:
            raise ValueError("parameters: none needs a gradient; expected model.parameters(), not a used iterator")
        self.masters = [nn.Parameter(p.detach().float()) if p.dtype in _LOW else p for p in self.parameters]
        self.optimizer = make_optimizer(self.masters)
        self._master_of = {p: m for p, m in zip(self.parameters, self.masters, strict=True) if p is not m}
        for parameter in self._master_of:
            if parameter not in _newest:
                parameter.register_post_accumulate_grad_hook(_hand_over)
            _newest[parameter] = weakref.ref(self)

    @property
    def param_groups(self) -> list[dict]:
        """The optimizer's groups, with masters and their gradients, for a loss scaler or a schedule."""
        return self.optimizer.param_groups

    @torch.no_grad()
    def step(self) -> None:
        """Take a step. Raises RuntimeError if newer masters have taken over."""
        self._require_newest()
        self.optimizer.step()
        self._round_into_model()

    def zero_grad(self) -> None:
        """Call before every backward pass that begins a step, even if the last step was skipped."""
        self.optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> dict:
        """Return a copy of masters and optimizer state. The rounded 16-bit weights alone are not enough to resume."""
        return {
            "masters": [m.detach().clone() for m in self.masters],
            "optimizer": deepcopy(self.optimizer.state_dict()),
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict) -> None:
        """Load a state. Raises ValueError if `state` does not fit, before anything is overwritten, and RuntimeError as
        `step` does."""
        self._require_newest()
        saved = state["masters"]
        shapes = [tuple(m.shape) for m in saved]
        expected = [tuple(m.shape) for m in self.masters]
        if shapes != expected:
            raise ValueError(f"masters of shapes {shapes}: expected {expected}, the shapes of this model's parameters")
        self.optimizer.load_state_dict(state["optimizer"])  # first: the optimizer may refuse it
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
                "expected the MasterWeights made last for this model; use that one, or make a new one"
            )


def _owner(parameter: Tensor) -> MasterWeights | None:
    """Return the object that takes the gradient, or None if it was freed or the parameter is a copy without hooks."""
    newest = _newest.get(parameter)
    return newest() if newest else None


def _hand_over(parameter: Tensor) -> None:
    """Move the newly accumulated gradient of a 16-bit parameter to its master, if it still has one."""
    owner = _owner(parameter)
    if owner is None:
        return
    master = owner._master_of[parameter]
    gradient = parameter.grad.float()
    master.grad = gradient if master.grad is None else master.grad + gradient
    parameter.grad = None
