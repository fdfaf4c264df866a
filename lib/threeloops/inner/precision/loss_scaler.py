"""Dynamic loss scaling (Micikevicius et al. 2017, arXiv:1710.03740).

The loss is multiplied by a scale before the backward pass and the gradients are divided by it afterwards, so that small
gradients survive float16. The scale is doubled every so often, and halved after a step that is skipped because its
gradients overflowed. `after_step` decides, in the arithmetic of `torch.amp.GradScaler` (float32 times a float64 factor,
rounded to float32); `LossScaler` acts.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from threeloops.inner.precision.formats import FLOAT32

__all__ = ["LossScaler", "Optimizer", "SMALLEST_SCALE", "ScaleUnderflow", "ScalerState", "StepReport", "after_step"]

SMALLEST_SCALE = FLOAT32.smallest_normal
_UNSCALED = (torch.float32, torch.bfloat16, torch.float64)
"""Gradients of these dtypes can be divided by the scale without losing small values again."""


class ScaleUnderflow(FloatingPointError):
    """Raised if too many steps in a row were skipped, and no smaller scale is left to try."""


@dataclass(frozen=True)
class ScalerState:
    """`clean_steps` counts the steps since the scale last changed, `skipped_steps` those just skipped in a row.

    The scale is rounded to float32, as torch keeps it. Raises ValueError naming the invalid field.
    """

    scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    clean_steps: int = 0
    skipped_steps: int = 0

    def __post_init__(self) -> None:
        with np.errstate(over="ignore"):
            scale = float(np.float32(self.scale))
        for name, holds, expected in (
            ("scale", SMALLEST_SCALE <= scale < math.inf, f"a finite float32 number of at least {SMALLEST_SCALE:g}"),
            ("growth_factor", 1 < self.growth_factor < math.inf, "a number above 1"),
            ("backoff_factor", 0 < self.backoff_factor < 1, "a number between 0 and 1"),
            ("growth_interval", self.growth_interval >= 1, "at least one step"),
        ):
            if not holds:
                raise ValueError(f"{name} = {getattr(self, name)}: expected {expected}")
        object.__setattr__(self, "scale", scale)


def after_step(state: ScalerState, overflow: bool) -> ScalerState:
    """Return the state after a step. `overflow` says whether its gradients held an infinity or NaN.

    A scale that would grow beyond float32 stays. Raises ScaleUnderflow if torch's scale would become zero, which turns
    all later gradients into NaN.
    """
    if overflow:
        scale = float(np.float32(state.scale * state.backoff_factor))
        if scale < SMALLEST_SCALE:
            raise ScaleUnderflow(
                f"scale = {state.scale:g} and {state.skipped_steps + 1} steps in a row overflowed: expected finite "
                "gradients by now. A smaller scale will not help: look for NaN in the data, or for an infinite loss"
            )
        return replace(state, scale=scale, clean_steps=0, skipped_steps=state.skipped_steps + 1)
    if state.clean_steps + 1 < state.growth_interval:
        return replace(state, clean_steps=state.clean_steps + 1, skipped_steps=0)
    with np.errstate(over="ignore"):
        grown = float(np.float32(state.scale * state.growth_factor))
    return replace(state, scale=grown if math.isfinite(grown) else state.scale, clean_steps=0, skipped_steps=0)


class Optimizer(Protocol):
    """The part of a torch optimizer, or of `MasterWeights`, that a scaler uses."""

    @property
    def param_groups(self) -> list[dict]: ...

    def step(self) -> object: ...


@dataclass(frozen=True)
class StepReport:
    """The scales and counts of one step. `scale` is the one that the gradients carried, `next_scale` the one of the
    next loss. `infinite` and `nan` count such elements in all gradients."""

    skipped: bool
    scale: float
    next_scale: float
    infinite: int
    nan: int

    def __str__(self) -> str:
        if not self.skipped:
            return f"step taken at scale {self.scale:g}"
        only_nan = ", but NaN is no overflow: look at the forward pass" if self.nan and not self.infinite else ""
        return (
            f"step skipped at scale {self.scale:g}: {self.infinite} infinite and {self.nan} NaN gradients; "
            f"the scale is now {self.next_scale:g}{only_nan}"
        )


class LossScaler:
    """Scales losses and skips the steps that overflowed; `state` is all that a checkpoint needs.

    A training step: `scaler.scale(loss).backward()`, then `report = scaler.step(optimizer)`.
    """

    def __init__(self, state: ScalerState | None = None) -> None:
        self.state = state or ScalerState()

    def scale(self, loss: Tensor) -> Tensor:
        return loss * loss.new_tensor(self.state.scale, dtype=torch.float32)

    def step(self, optimizer: Optimizer) -> StepReport:
        """Divide the gradients by the scale in place, let `optimizer` step if all are finite, and update the scale.

        torch looks for infinities before it divides. This method looks afterwards, since dividing by a scale below 1
        can make one. Raises TypeError, before any gradient is touched, for dtypes and layouts that cannot be divided,
        such as float16 (`MasterWeights` keeps float32 gradients). Raises ValueError if there is no gradient, and
        ScaleUnderflow as `after_step` does.
        """
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if not gradients:
            raise ValueError("no parameter has a gradient: call scaler.scale(loss).backward() before scaler.step")
        values = [_stored_values(gradient) for gradient in gradients]
        inverse = float(np.float32(1.0 / self.state.scale))  # as torch: exact where the scale is a power of two
        for value in values:
            value.mul_(inverse)
        skipped = not _all_finite(values)
        infinite = sum(int(torch.isinf(v).sum()) for v in values) if skipped else 0
        nan = sum(int(torch.isnan(v).sum()) for v in values) if skipped else 0
        if not skipped:
            optimizer.step()
        before = self.state
        self.state = after_step(self.state, skipped)
        return StepReport(skipped, before.scale, self.state.scale, infinite, nan)


def _stored_values(gradient: Tensor) -> Tensor:
    """Return the elements of `gradient`, sharing its memory. A sparse one may store a row twice. Summing the two is
    left to the optimizer, as in torch's scaler. Raises TypeError for a dtype or layout that cannot be unscaled."""
    if gradient.dtype not in _UNSCALED:
        dtype = str(gradient.dtype).removeprefix("torch.")
        raise TypeError(
            f"a {dtype} gradient: expected float32, bfloat16 or float64; unscaled in float16, small values become zero "
            "again. MasterWeights keeps float32 gradients of float16 weights"
        )
    if gradient.layout not in (torch.strided, torch.sparse_coo):
        raise TypeError(f"a gradient of layout {gradient.layout}: expected torch.strided or torch.sparse_coo")
    return gradient._values() if gradient.is_sparse else gradient


def _all_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether no element is infinite or NaN. The smallest and largest element of each tensor show both, so this
    reads each tensor once and waits for the GPU once."""
    extremes = [extreme for tensor in tensors if tensor.numel() for extreme in torch.aminmax(tensor)]
    return not extremes or bool(torch.stack(extremes).isfinite().all())
