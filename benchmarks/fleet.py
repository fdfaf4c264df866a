"""The fleet: real replicas beside what virtual time foretold of them, and ways to scale over a bursty day."""

from __future__ import annotations

import tempfile
from pathlib import Path

from threeloops.product.fleet.real import Nginx, NginxError
from threeloops_grader.machine.provenance import Provenance

from benchmarks.fleet_policies import policy_rows
from benchmarks.fleet_real import real_rows
from benchmarks.result import Result, Unmeasured

__all__ = ["measure"]


def measure(about: Provenance, *, quick: bool = False) -> Result:
    """`quick` takes a shorter trace and a shorter day. Raises Unmeasured without NGINX."""
    try:
        with tempfile.TemporaryDirectory() as folder, Nginx(Path(folder)):
            pass
    except NginxError as error:
        raise Unmeasured(str(error)) from None
    trace, day = (8.0, 900.0) if quick else (90.0, 3600.0)
    predictions, series, facts = real_rows(trace)
    return Result(
        "fleet",
        about,
        {"quick": quick, "seconds of the trace": trace, "seconds of the day": day},
        [*series, *policy_rows(day)],
        facts,
        predictions,
        [
            "predictions: the same trace, policies and cost of a step in virtual time; the real replicas are processes "
            "behind NGINX whose device is a clock (a step sleeps for what it would take on an L4), so HTTP, queues, "
            "batches and failures are real, and the device is not: not measured on a GPU",
            "policies: in virtual time, and the same in every run; the day is compressed and the cold start is not",
            "costs are in replica-hours: multiply by the price of one, with its source and date",
        ],
    )
