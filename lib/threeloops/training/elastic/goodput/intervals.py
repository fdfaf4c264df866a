"""How long to work between two saves, by estimates and in the exact model of `closed_form`.

The best interval depends on neither the recovery nor the flush of an asynchronous save.
"""

import math

from threeloops.training.elastic.goodput.closed_form import check_times

__all__ = ["best_interval", "daly_first_order", "daly_interval", "save_worth", "young_interval"]


def young_interval(save: float, mtbf: float) -> float:
    """√(2CM): Young 1974, "A first order approximation to the optimum checkpoint interval"."""
    check_times(save, mtbf)
    return math.sqrt(2 * save * mtbf)


def daly_first_order(save: float, mtbf: float, recovery: float) -> float:
    """√(2C(M + R)): Daly's first-order model, in which failures come during work alone. Its R is of no use in the
    exact model: see `best_interval`."""
    check_times(save, mtbf, recovery)
    return math.sqrt(2 * save * (mtbf + recovery))


def daly_interval(save: float, mtbf: float) -> float:
    """Daly's higher-order estimate (2006, equation 37): within 0.7% of the best interval for saves up to M/2."""
    check_times(save, mtbf)
    if save >= 2 * mtbf:
        return mtbf
    ratio = save / (2 * mtbf)
    return math.sqrt(2 * save * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save


def best_interval(save: float, mtbf: float) -> float:
    """The interval with the least expected time per second of work, within about ε·√(M/2C) of itself, ε = 2⁻⁵².

    dE/dτ = E/τ leads to ln(1 − τ/M) + τ/M + C/M = 0. The left side falls from C/M to −∞ for τ/M from 0 to 1, so
    bisection finds its root. (In terms of Lambert's function τ = M · (1 + W(−e^(−1 − C/M))).)
    """
    check_times(save, mtbf)
    low = 0.0
    high = 1.0
    while low < (middle := (low + high) / 2) < high:
        if math.log1p(-middle) + middle + save / mtbf > 0:
            low = middle
        else:
            high = middle
    return low * mtbf


def save_worth(interval: float, mtbf: float) -> float:
    """How long a save would have to stop the job for this interval to be the best: the inverse of `best_interval`.

    A fixed habit ("every 5 minutes") is right for exactly one such cost.
    """
    if not 0 < interval < mtbf:
        raise ValueError(f"interval = {interval} s: expected more than 0 and less than mtbf = {mtbf} s")
    ratio = interval / mtbf
    return -mtbf * (math.log1p(-ratio) + ratio)
