"""Disaggregated serving in virtual time: four services on four GPUs, each split in every way, and tiers of a cache."""

from __future__ import annotations

from threeloops_grader.machine.provenance import Provenance

from benchmarks.disaggregated_services import DEVICE, GPUS, HANDOVER, SERVICES, Ways, balance_rows, goodput_rows
from benchmarks.disaggregated_tiers import TIERS, tier_rows
from benchmarks.progress import finished
from benchmarks.result import Prediction, Result, Series

__all__ = ["measure"]


def measure(about: Provenance, *, quick: bool = False) -> Result:
    """Simulate on the CPU. `quick` takes shorter traces, one of each kind, and a coarser search."""
    requests, seeds, precision = (40, 1, 0.2) if quick else (100, 2, 0.05)
    series: list[Series] = []
    predictions: list[Prediction] = []
    for service in SERVICES:
        ways = Ways(service, requests, seeds, precision)
        series += goodput_rows(ways)
        predictions += balance_rows(ways)
        finished(service.name)
    series += tier_rows(200 if quick else 800, seeds + 1)
    return Result(
        "disaggregated",
        about,
        {
            "quick": quick,
            "requests": requests,
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
                    "prompt, tokens": service.prompt,
                    "answer, tokens": service.output,
                    "time to first token, s": service.slo.ttft,
                    "time per output token, s": service.slo.tpot,
                }
                for service in SERVICES
            },
            "tiers": {tier.name: [tier.blocks, tier.latency, tier.bandwidth] for tier in TIERS},
        },
        predictions,
        [
            "everything here is computed: steps take as long as the sum of their kernels, fitted to published "
            "measurements, and the link and the tiers are assumptions that the settings and facts name",
            "goodput: the highest rate at which 90% of the requests meet both limits, divided by the number of GPUs; "
            "one sample for each trace",
            "predictions: flow balance with mean lengths, and no queue, beside the simulation",
        ],
    )
