"""The cost of failures: simulated beside closed forms, and one published run beside what another one predicts."""

from __future__ import annotations

import time
from typing import Any

from threeloops.training.elastic.goodput import (
    MEASURED,
    RSC1_JOBS,
    RSC1_PER_NODE_DAY,
    Account,
    Job,
    best_interval,
    cluster_mtbf,
    daly_first_order,
    daly_interval,
    failures_per_node_day,
    save_worth,
    simulate,
    spares_needed,
    useful_share,
    young_interval,
)
from threeloops_grader.machine.provenance import Provenance

from benchmarks.result import Prediction, Result, Series

__all__ = ["measure"]

_YEAR, _HOUR, _MINUTE = 365 * 86400.0, 3600.0, 60.0
_LLAMA3 = failures_per_node_day(MEASURED[0])
_OURS = "threeloops simulator"


def measure(about: Provenance, *, quick: bool = False) -> Result:
    """`quick` simulates fewer years. All but the time that a simulation takes is the same in every run."""
    years = 2 if quick else 10
    return Result(
        "elastic",
        about,
        {"simulated years": years},
        _speed(),
        {"best intervals beside Young's and Daly's": _intervals(), "claims": _claims()},
        [*_goodput(years), *_published()],
        [
            "goodput: failures are exponential and spares enough, as the closed form assumes; the share that is not "
            "useful is compared besides, since it is small",
            "published: the rate of unexpected interruptions of Llama 3 405B per node-day, times the node-days of the "
            "other run; a rate of one cluster need not be that of another, as OPT's shows",
        ],
    )


_JOBS = {
    "2,048 nodes as Llama 3's, best interval": Job(
        2048, 86400 / _LLAMA3, best_interval(30, 86400 / _LLAMA3 / 2048), save=30, restart=480, detect=120
    ),
    "the same, every 5 minutes": Job(2048, 86400 / _LLAMA3, 300, save=30, restart=480, detect=120),
    "the same, asynchronous: 2 s, usable after 3 minutes": Job(
        2048, 86400 / _LLAMA3, best_interval(2, 86400 / _LLAMA3 / 2048), save=2, restart=480, detect=120, flush=180
    ),
    "128 nodes, best interval": Job(
        128, 86400 / _LLAMA3, best_interval(30, 86400 / _LLAMA3 / 128), save=30, restart=480, detect=120
    ),
    "an hour between failures, saves of 10 minutes": Job(64, 64 * _HOUR, best_interval(600, _HOUR), 600, 300),
}


def _goodput(years: int) -> list[Prediction]:
    found = []
    for name, job in _JOBS.items():
        account = sum((simulate(job, _YEAR, seed) for seed in range(years)), Account())
        mtbf = job.node_mtbf / job.nodes
        expected = useful_share(job.interval, job.save, job.detect + job.restart, mtbf, job.flush)
        found.append(Prediction("share that is useful", name, _OURS, "", expected, account.useful_share))
        found.append(Prediction("share that is not", name, _OURS, "", 1 - expected, 1 - account.useful_share))
    return found


def _published() -> list[Prediction]:
    found = [
        Prediction("failures", f"{run.source}: {run.what}", run.source, "", run.predicted(_LLAMA3), run.failures)
        for run in MEASURED[1:]
    ]
    for gpus, hours in RSC1_JOBS.items():
        expected = cluster_mtbf(86400 / RSC1_PER_NODE_DAY, gpus // 8)
        case = f"jobs of {gpus:,} GPUs, from the rate per node-day of the same cluster"
        found.append(Prediction("mean time to failure", case, "rsc1", "s", expected, hours * _HOUR))
    expected = cluster_mtbf(86400 / _LLAMA3, 2048)
    found.append(
        Prediction("mean time to failure", "16,384 GPUs, from Llama 3's rate", "rsc1", "s", expected, 1.8 * _HOUR)
    )
    return found


def _speed() -> list[Series]:
    """A simulated year of 16,384 GPUs, each with a life of its own."""
    job, samples = Job(16_384, 8 * 86400 / _LLAMA3, 800, save=30, restart=600), []
    for seed in range(5):
        begin = time.perf_counter()
        simulate(job, _YEAR, seed)
        samples.append(time.perf_counter() - begin)
    return [Series("a simulated year of 16,384 GPUs", _OURS, "s", tuple(samples))]


def _intervals() -> list[dict[str, Any]]:
    """Return intervals in minutes and the cost of each choice: its wall time divided by that of the best choice."""
    rows = []
    for mtbf in (_HOUR, 3.09 * _HOUR, 24 * _HOUR):
        for save in (2.0, 30.0, 300.0):
            best = useful_share(best_interval(save, mtbf), save, 600, mtbf)
            choices = {
                "Young 1974": young_interval(save, mtbf),
                "Daly 2006, first order": daly_first_order(save, mtbf, 600),
                "Daly 2006, higher order": daly_interval(save, mtbf),
            }
            rows.append(
                {
                    "hours between failures": mtbf / _HOUR,
                    "save": save,
                    "best": best_interval(save, mtbf) / _MINUTE,
                    **{name: interval / _MINUTE for name, interval in choices.items()},
                    **{
                        f"{name}: longer by": best / useful_share(interval, save, 600, mtbf) - 1
                        for name, interval in choices.items()
                    },
                }
            )
    return rows


def _claims() -> dict[str, Any]:
    claimed, published = cluster_mtbf(10 * _YEAR, 10_000), cluster_mtbf(86400 / _LLAMA3, 2048)
    return {
        "hours between failures of 10,000 GPUs that fail every 10 years": claimed / _HOUR,
        "hours between interruptions of 16,384 GPUs, Llama 3 405B": published / _HOUR,
        "years between interruptions per GPU, Llama 3 405B": published * 16_384 / _YEAR,
        "seconds of a save for which 5 minutes are best, 10,000 GPUs as claimed": save_worth(300, claimed),
        "seconds of a save for which 5 minutes are best, Llama 3 405B": save_worth(300, published),
        "spares for Llama 3 405B if a repair takes a day, 99% of failures": spares_needed(published, 86400.0),
    }
