"""The cost of failures in closed form.

All times are seconds. A job that needs all of its nodes fails whenever one of them does. With exponential lifetimes its
mean time between failures M is that of a node divided by their number. Between two saves it works for `interval` (τ)
and stops for `save` (C). After a failure it takes `recovery` (R) until it works again, from the last checkpoint:
detection, restart and load together. Failures may also come during saves and recoveries.

The expected time for one interval of work and its save is then exactly

    E = e^(R/M) · M · (e^((τ + C)/M) − 1)

(Daly 2006, "A higher order estimate of the optimum checkpoint interval for restart dumps", section 3). An asynchronous
save stops the job for C and becomes usable F seconds later. The same renewal argument applies: after a failure the next
usable checkpoint is R + τ + C + F away, and otherwise τ + C. So F counts as if recovery took longer, R + F, as long as
the flush is over before the next save begins, F ≤ τ.
"""

import math

__all__ = [
    "check_times",
    "cluster_mtbf",
    "expected_seconds",
    "spares_needed",
    "useful_share",
]


def check_times(save: float, mtbf: float, recovery: float = 0.0) -> None:
    """Raise ValueError unless these are times that the model knows."""
    if not (0 < save < math.inf and 0 < mtbf < math.inf and 0 <= recovery < math.inf):
        raise ValueError(
            f"save = {save} s, mtbf = {mtbf} s, recovery = {recovery} s: expected positive times, and recovery ≥ 0"
        )


def cluster_mtbf(node_mtbf: float, nodes: int) -> float:
    """Mean time between failures of a job on `nodes` nodes whose lives are exponential and independent."""
    if nodes < 1 or not 0 < node_mtbf < math.inf:
        raise ValueError(f"node_mtbf = {node_mtbf} s, nodes = {nodes}: expected a positive time, and 1 or more")
    return node_mtbf / nodes


def expected_seconds(interval: float, save: float, recovery: float, mtbf: float, flush: float = 0.0) -> float:
    """Expected time until `interval` seconds of work are done and saved, failures and all: E of this module's head."""
    check_times(save, mtbf, recovery)
    if not interval > 0 or not 0 <= flush <= interval:
        raise ValueError(
            f"interval = {interval} s, flush = {flush} s: expected a positive interval, and a flush that is over "
            "before the next save begins; save less often, or simulate"
        )
    return math.exp((recovery + flush) / mtbf) * mtbf * math.expm1((interval + save) / mtbf)


def useful_share(interval: float, save: float, recovery: float, mtbf: float, flush: float = 0.0) -> float:
    """Goodput: the share of the time that goes into work which is kept."""
    return interval / expected_seconds(interval, save, recovery, mtbf, flush)


def spares_needed(mtbf: float, repair: float, risk: float = 0.01) -> int:
    """Return how many hot spares are needed so that at most a share `risk` of failures has to wait for a repair.

    Failures of the job come at rate 1/M, and each holds a node for `repair` seconds. With unlimited spares, the number
    of nodes in repair when one more fails is Poisson with mean repair/M, whatever the distribution of repair times
    (M/G/∞). That failure finds a spare if fewer nodes are in repair than there are spares.
    """
    if not (mtbf > 0 and 0 <= repair < math.inf and 0 < risk < 1):
        raise ValueError(f"mtbf = {mtbf} s, repair = {repair} s, risk = {risk}: expected > 0, ≥ 0, and between 0 and 1")
    if not (mean := repair / mtbf):
        return 1
    chances: list[float] = []  # that so many are in repair; further ones add nothing to a sum of `risk`
    while len(chances) <= mean or chances[-1] > risk * 2**-53:
        chances.append(math.exp(-mean + len(chances) * math.log(mean) - math.lgamma(len(chances) + 1)))
    waits = 0.0  # summed from the smallest, since a small risk is lost beside what is near 1
    while len(chances) > 1 and waits + chances[-1] <= risk:
        waits += chances.pop()
    return len(chances)
