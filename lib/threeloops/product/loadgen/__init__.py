"""Load for an engine: traces made from a seed, their replay on either clock, and the metrics.

>>> arrivals = trace(poisson(20), 500, lognormal(200, 0.8, 8, 700), uniform(16, 128))
>>> done = replay(engine, arrivals, vocabulary=256)     # engine.clock says whether it is measured or predicted
>>> metrics = measure(done.requests, SLO(ttft=0.5, tpot=0.05))
>>> metrics.ttft.p99, metrics.itl.p99, metrics.throughput, metrics.goodput
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.product.loadgen.metrics import SLO, Metrics, Percentiles, highest_rate, measure
    from threeloops.product.loadgen.replay import Replay, ReplayedStep, replay, replaying
    from threeloops.product.loadgen.trace import (
        Arrival,
        Lengths,
        bursty,
        conversations,
        load_trace,
        lognormal,
        mixture,
        on_off,
        poisson,
        prompt_tokens,
        requests_of,
        save_trace,
        trace,
        uniform,
    )
else:
    import_on_demand(__name__)

__all__ = [
    "Arrival", "Lengths", "Metrics", "Percentiles", "Replay", "ReplayedStep", "SLO", "bursty", "conversations",
    "highest_rate", "load_trace", "lognormal", "measure", "mixture", "on_off", "poisson", "prompt_tokens", "replay",
    "replaying", "requests_of", "save_trace", "trace", "uniform",
]  # fmt: skip
