"""The ways of cutting a model, on the virtual cluster, each beside torch's own."""

from __future__ import annotations

from benchmarks.parallel_sharded import sharded_predictions, sharded_rows
from benchmarks.result import Result
from grader.machine.provenance import Provenance


def measure(about: Provenance, *, quick: bool = False) -> Result:
    """Virtual times are the same in every run, so `quick` changes nothing."""
    return Result(
        "parallel", about, {"quick": quick},
        series=[*sharded_rows()],
        predictions=[*sharded_predictions()],
        notes=[
            "sharded: fully_shard overlaps on CUDA streams; here its reduce-scatters block the ranks, and without its "
            "asynchronous mode its all-gathers too. If all reduce-scatters but the last were hidden, as streams could, "
            "its step would be as long as ours",
        ],
    )  # fmt: skip
