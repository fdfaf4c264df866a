"""The error of predicted step times, from the published runs that the planner models in full."""

import math
from collections import Counter
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
    """Factors by which published steps took longer than predicted ones. Every source counts the same, however many runs
    it has."""

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
def step_error(
    name: str,
    runs: tuple[PublishedRun, ...] = PUBLISHED,
    predicted: Callable[[PublishedRun], float] = _by_rates,
) -> StepError:
    """Return the errors of `predicted` for the accelerator called `name`: those of the runs on it, or of all runs if
    fewer than five ran on it.

    `predicted` returns the seconds of a run's step. Runs that differ from the model (`PublishedRun.unlike`) do not
    count.
    """
    like = [run for run in runs if not run.unlike]
    own = [run for run in like if run.device == accelerator(name).name]
    chosen = own if len(own) >= _FEWEST_RUNS else like
    factors = np.array([run.seconds / predicted(run) for run in chosen])
    of_source = Counter(run.source for run in chosen)
    weights = np.array([1 / of_source[run.source] for run in chosen]) / len(of_source)
    low, high = (_quantile(factors, weights, share) for share in (0.1, 0.9))
    logs = np.log(factors)
    spread = math.sqrt(np.average((logs - np.average(logs, weights=weights)) ** 2, weights=weights))
    return StepError(low, high, spread, len(chosen), tuple(sorted({run.device for run in chosen})))


def _quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """Return the value below which `share` of the weights lie, interpolated between neighbours."""
    order = np.argsort(values)
    centres = np.cumsum(weights[order]) - weights[order] / 2
    return float(np.interp(share, centres, values[order]))
