"""Hold what a DeepSpeed configuration asks for, as plain values."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch

__all__ = ["DeepSpeedSettings", "LearningRate", "LossScale"]


@dataclass(frozen=True)
class LossScale:
    """The loss scale of float16 training. A dynamic one doubles after `window` good steps and halves after
    `hysteresis` bad ones."""

    initial: float
    dynamic: bool
    window: int
    hysteresis: int
    smallest: float


@dataclass(frozen=True)
class LearningRate:
    """A schedule of learning rates: a warmup from `first` to `highest`, and after it `decay` down to `last`.

    >>> for group in optimizer.param_groups:
    ...     group["lr"] = settings.learning_rate(step)

    DeepSpeed updates the rate after each step of the optimizer, and its first update still gives `first`. So steps 0
    and 1 have the same rate, and the warmup ends at step `warmup_steps` + 1.
    """

    first: float
    highest: float
    last: float
    warmup_steps: int
    total_steps: int | None
    """Steps from the start to `last`; None without a decay."""
    warmup: Literal["log", "linear"]
    decay: Literal["none", "linear", "cosine"]
    initial: float
    """The rate of step 0."""

    def __call__(self, step: int) -> float:
        """The rate of a step of the optimizer, counted from 0."""
        if step < 1:
            return self.initial
        iteration = step - 1
        if iteration < self.warmup_steps:
            log = math.log(iteration + 1) / math.log(self.warmup_steps)
            return self.first + (self.highest - self.first) * (
                log if self.warmup == "log" else iteration / self.warmup_steps
            )
        if self.total_steps is None or self.decay == "none":
            return self.highest
        steps = max(1, self.total_steps - self.warmup_steps)
        if self.decay == "linear":
            share = max(0.0, (self.total_steps - iteration) / steps)
        else:
            share = (1 + math.cos(math.pi * min(1.0, (iteration - self.warmup_steps + 1) / steps))) / 2
        return self.last + (self.highest - self.last) * share


@dataclass(frozen=True)
class DeepSpeedSettings:
    """The settings of a configuration. `notes` lists keys that are mapped to something else or have no effect here."""

    world_size: int
    micro_batch: int
    """Samples per rank and backward."""
    accumulation_steps: int
    stage: int
    reduce_bucket_elements: int
    gather_bucket_elements: int
    units_in_flight: int
    """Units in flight in stage 3: 2, or 1 if the configuration does not prefetch."""
    overlap_communication: bool
    dtype: torch.dtype
    """The dtype of parameters and gradients; masters and states are float32."""
    loss_scale: LossScale | None
    gradient_clipping: float | None
    optimizer_class: type[torch.optim.Optimizer] | None
    """The optimizer's class, or None if the configuration leaves it to the program."""
    optimizer_options: dict[str, Any]
    learning_rate: LearningRate | None
    """The learning-rate schedule, or None if the configuration has none."""
    offload_optimizer: str | None
    """The place where DeepSpeed would keep the optimizer's states: "cpu", or a folder on NVMe. See `notes`."""
    notes: tuple[str, ...]

    @property
    def train_batch(self) -> int:
        """Samples of all ranks per step."""
        return self.micro_batch * self.accumulation_steps * self.world_size

    @property
    def bucket_cap_mb(self) -> float:
        """`reduce_bucket_elements` in MiB, as `ZeroOptimizer` and `DDP` take it."""
        return self.reduce_bucket_elements * self.dtype.itemsize / 2**20
