"""Published training runs beside the sum of their kernels. No constant of it was fitted to a run.

The assumptions about a run follow from its source alone. Runs that a planner cannot be held to (float8, microbatches
that are not printed) are left out, as they are when `step_time` is compared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from threeloops.training.by_kernels import Assumptions, kernel_step
from threeloops.training.planning import PUBLISHED, PublishedRun, step_time

__all__ = ["judged_training", "seconds_by_kernels"]

_SOURCES = {
    "megatron": Assumptions(attention="unfused"),
    "llama3": Assumptions(attention="fastest"),
    "torchtitan": Assumptions(power=500 / 700, bandwidth=2.4e12),
}
"""The assumptions about each source.

Megatron's attention of 2021 writes the scores. Llama 3's paper does not name its kernel, but it appeared in the month
of FlashAttention-3. torchtitan called torch's FlashAttention-2, on cards of 500 W.
"""


def seconds_by_kernels(run: PublishedRun, **changed: Any) -> float:
    """The seconds of a run's step, with assumptions of its source that may be replaced by name."""
    assumed = replace(_SOURCES[run.source], **changed)
    return kernel_step(run.model, run.machine, run.plan, run.device, assumed).seconds


def judged_training() -> dict[str, dict[str, float]]:
    """Errors by source and over all: n, mean and largest |p/m − 1|, median of p/m; and the mean of `step_time`."""
    runs = [run for run in PUBLISHED if not run.unlike]
    ratios = np.array([seconds_by_kernels(run) / run.seconds for run in runs])
    present = np.array([step_time(run.model, run.machine, run.plan).seconds / run.seconds for run in runs])
    sources = np.array([run.source for run in runs])
    table: dict[str, dict[str, float]] = {}
    for name in (*_SOURCES, "all"):
        mask = (sources == name) | (name == "all")
        off = np.abs(ratios[mask] - 1)
        table[name] = {
            "n": int(mask.sum()),
            "mean": round(float(off.mean()), 4),
            "largest": round(float(off.max()), 4),
            "bias": round(float(np.median(ratios[mask])), 4),
            "mean of step_time": round(float(np.abs(present[mask] - 1).mean()), 4),
        }
    return table
