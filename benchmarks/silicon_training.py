"""Published training runs beside the sum of their kernels, whose constants were not fitted to a run.

Runs whose microbatches are not printed are left out. Runs in float8 count here, also for predictions from the rates of
a machine, which get its float8 rate.
"""

from __future__ import annotations

import numpy as np
from threeloops.training.by_kernels import SOURCES, published_runs, seconds_by_kernels
from threeloops.training.planning import PublishedRun, step_time

__all__ = ["judged_training"]

_LONG = 8192
"""Tokens of a sequence, above which attention decides the time of a step."""


def judged_training() -> dict[str, dict[str, float]]:
    """Errors by source: n, mean and largest |p/m − 1|, median of p/m; and the mean by the rates of the machine.

    "15 dense runs" are those of Megatron-LM, Llama 3 and torchtitan in 16 bits. llm-foundry has a row per device, and
    another one for long sequences.
    """
    runs = published_runs()
    ratios = np.array([seconds_by_kernels(run) / run.seconds for run in runs])
    present = np.array([step_time(run.model, run.machine, run.plan).seconds / run.seconds for run in runs])
    names = np.array([_group(run) for run in runs])
    order = sorted(set(names), key=lambda name: (list(SOURCES).index(name.split(",")[0]), name))
    first = np.isin(names, ("megatron", "llama3", "torchtitan"))
    table: dict[str, dict[str, float]] = {}
    for name, mask in (*((name, names == name) for name in order), ("15 dense runs", first)):
        off = np.abs(ratios[mask] - 1)
        table[name] = {
            "n": int(mask.sum()),
            "mean": round(float(off.mean()), 4),
            "largest": round(float(off.max()), 4),
            "bias": round(float(np.median(ratios[mask])), 4),
            "mean by rates": round(float(np.abs(present[mask] - 1).mean()), 4),
        }
    return table


def _group(run: PublishedRun) -> str:
    if run.source == "llm-foundry":
        longer = " with long sequences" if run.plan.sequence > _LONG else ""
        return f"{run.source}, {run.device}{longer}"
    return f"{run.source}, float8" if run.source == "torchtitan" and run.machine.product_flops else run.source
