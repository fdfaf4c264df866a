"""How far published times scatter.

For each series of times, `least_error` finds the curve that never falls as tokens are added and has the least error,
with all times in sight. A prediction can be closer only if it lets more tokens take less time.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from scipy.optimize import linprog
from threeloops.hardware.measured import measured

__all__ = ["least_error", "scatter"]

_SERIES = ("device", "comm_backend", "phase", "ep_size", "hidden_size", "topk", "num_experts", "sms")


def scatter() -> dict[tuple[str, str, str], float]:
    """Return the least mean |p/m − 1| of DeepEP's exchanges by device, library and phase."""
    table = measured("moe_all_to_all")
    series = defaultdict(list)
    columns = [table[name] for name in _SERIES]
    for key, tokens, seconds in zip(zip(*columns, strict=True), table["num_tokens"], table["seconds"], strict=True):
        series[key].append((tokens, seconds))
    errors = defaultdict(list)
    for key, points in series.items():
        errors[key[:3]] += least_error([seconds for _, seconds in sorted(points)])
    return {key: float(np.mean(off)) for key, off in errors.items()}


def least_error(times: list[float]) -> list[float]:
    """Return |p/m − 1| of each of these times m, for the p that never falls and has the least sum of errors."""
    n = len(times)
    inverse = np.diag(1 / np.array(times))
    both = np.block([[inverse, -np.eye(n)], [-inverse, -np.eye(n)]])
    steps = np.hstack([np.eye(n)[:-1] - np.eye(n)[1:], np.zeros((n - 1, n))])
    limits = np.r_[np.ones(n), -np.ones(n), np.zeros(n - 1)]
    found = linprog(np.r_[np.zeros(n), np.ones(n)], A_ub=np.vstack([both, steps]), b_ub=limits)
    return [float(off) for off in found.x[n:]]
