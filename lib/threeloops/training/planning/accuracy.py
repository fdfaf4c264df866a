"""The error of predicted step times, from the published runs that the planner models in full."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from threeloops.hardware.accelerators import accelerator
from threeloops.training.planning.published import PUBLISHED, PublishedRun
from threeloops.training.planning.time import step_time

__all__ = ["StepError", "step_error"]

_FEWEST_RUNS = 5
"""Runs on one accelerator from which its own errors are used."""


@dataclass(frozen=True)
class StepError:
    """Factors by which published steps took longer than predicted ones."""

    low: float
    """One run in ten was faster than the prediction times this."""
    high: float
    """One run in ten was slower than the prediction times this."""
    spread: float
    """The share by which two plans on one accelerator must differ: below it, they are a tie. It is the standard
    deviation of the factors' logarithms, because an error that all runs share does not matter for the comparison."""
    runs: int
    devices: tuple[str, ...]
    """The accelerators on which they ran."""


def _by_rates(run: PublishedRun) -> float:
    return step_time(run.model, run.machine, run.plan).seconds


@cache
def step_error(name: str, predicted: Callable[[PublishedRun], float] = _by_rates) -> StepError:
    """Return the errors of `predicted`, the seconds of a run's step, for the accelerator called `name`: those of
    published runs on it, or of all published runs if there are fewer than five. Runs that differ from the model
    (`PublishedRun.unlike`) do not count."""
    runs = [run for run in PUBLISHED if not run.unlike]
    own = [run for run in runs if run.device == accelerator(name).name]
    chosen = own if len(own) >= _FEWEST_RUNS else runs
    factors = [run.seconds / predicted(run) for run in chosen]
    low, high = np.quantile(factors, (0.1, 0.9))
    devices = tuple(sorted({run.device for run in chosen}))
    return StepError(float(low), float(high), float(np.std(np.log(factors))), len(chosen), devices)
