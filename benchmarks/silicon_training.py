"""Published training runs beside the sum of their kernels. No constant of it was fitted to a run.

Runs that a planner cannot be held to (float8, microbatches that are not printed) are left out, as they are when the rates
of a machine are compared.
"""

from __future__ import annotations

import numpy as np
from threeloops.training.by_kernels import SOURCES, seconds_by_kernels
from threeloops.training.planning import PUBLISHED, step_time

__all__ = ["judged_training"]


def judged_training() -> dict[str, dict[str, float]]:
    """Errors by source and over all: n, mean and largest |p/m − 1|, median of p/m; and the mean by rates."""
    runs = [run for run in PUBLISHED if not run.unlike]
    ratios = np.array([seconds_by_kernels(run) / run.seconds for run in runs])
    present = np.array([step_time(run.model, run.machine, run.plan).seconds / run.seconds for run in runs])
    sources = np.array([run.source for run in runs])
    table: dict[str, dict[str, float]] = {}
    for name in (*SOURCES, "all"):
        mask = (sources == name) | (name == "all")
        off = np.abs(ratios[mask] - 1)
        table[name] = {
            "n": int(mask.sum()),
            "mean": round(float(off.mean()), 4),
            "largest": round(float(off.max()), 4),
            "bias": round(float(np.median(ratios[mask])), 4),
            "mean by rates": round(float(np.abs(present[mask] - 1).mean()), 4),
        }
    return table
