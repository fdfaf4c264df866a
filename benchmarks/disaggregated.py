"""Disaggregated serving: four services on four GPUs in virtual time, tiers of a cache, and two real engines here."""

from __future__ import annotations

from threeloops.product.service.engine import EngineSpec
from threeloops_grader.machine.provenance import Provenance

from benchmarks.disaggregated_real import process_rows, real_rows
from benchmarks.disaggregated_services import DEVICE, GPUS, HANDOVER, SERVICES, Ways, balance_rows, goodput_rows
from benchmarks.disaggregated_tiers import TIERS, tier_rows
from benchmarks.progress import finished
from benchmarks.result import Prediction, Result, Series
from benchmarks.serving import new_engine, new_model

__all__ = ["measure"]

PARTIES = {"together": "one engine", "apart": "a prefill and a decode engine"}


def measure(about: Provenance, *, quick: bool = False) -> Result:
    """Simulate, and measure two engines, on the CPU. `quick` takes one trace of each kind, and a coarser search."""
    real, facts = real_rows(new_model(), new_engine, 16 if quick else 60, 1 if quick else 3)
    finished("one prefill side and one decode side")
    seeds, precision = (1, 0.3) if quick else (2, 0.05)
    series = _processes(10 if quick else 40)
    predictions: list[Prediction] = []
    for service in SERVICES:
        ways = Ways(service, seeds, precision)
        series += goodput_rows(ways)
        predictions += balance_rows(ways)
        finished(service.name)
    series += tier_rows(200 if quick else 800, seeds + 1)
    return Result(
        "disaggregated",
        about,
        {
            "quick": quick,
            "traces of each service": seeds,
            "precision of the search": precision,
            "GPUs": f"{GPUS} {DEVICE}",
            "latency of the link, s": HANDOVER.link.latency,
            "bandwidth of the link, bytes/s": HANDOVER.link.bandwidth,
        },
        series,
        {
            "services": {
                service.name: {
                    "requests": service.requests,
                    "prompt, tokens": service.prompt,
                    "answer, tokens": service.output,
                    "time to first token, s": service.slo.ttft,
                    "time per output token, s": service.slo.tpot,
                }
                for service in SERVICES
            },
            "one prefill side and one decode side": facts,
            "tiers below the GPU's memory": {
                tier.name: {"blocks": tier.blocks, "latency, s": tier.latency, "bandwidth, bytes/s": tier.bandwidth}
                for tier in TIERS[1:]
            },
            "blocks in the GPU's memory": TIERS[0].blocks,
        },
        [*predictions, *real],
        [
            "goodput and tiers are computed: steps take as long as the sum of their kernels, fitted to published "
            "measurements, and the link and the tiers are assumptions that the settings and facts name",
            "goodput: the highest rate at which 90% of the requests meet both limits, divided by the number of GPUs; "
            "one sample for each trace",
            "goodput of a split: flow balance with mean lengths, and no queue, beside the simulation",
            "one prefill side and one decode side: the course's engine on this CPU, predicted from steps of a single "
            "engine; latencies are in CPU seconds of one thread",
        ],
    )


def _processes(requests: int) -> list[Series]:
    """Return the times of single requests to real processes: one engine, or two with a socket between them."""
    samples = process_rows(EngineSpec("tiny", blocks=256, block_size=16, threads=1), requests)
    series = []
    for name, seconds in samples.items():
        by, _, what = name.partition(": ")
        series.append(Series(f"{what}, processes", PARTIES[by], "s", tuple(seconds), peer=by == "together"))
    return series
