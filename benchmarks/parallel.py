"""The ways of cutting a model, on the virtual cluster, each beside torch's own."""

from __future__ import annotations

from threeloops_grader.machine.provenance import Provenance

from benchmarks.parallel_pipeline import pipeline_facts, pipeline_predictions, pipeline_rows
from benchmarks.parallel_plans import plan_facts, plan_note, plan_predictions
from benchmarks.parallel_sharded import sharded_predictions, sharded_rows
from benchmarks.parallel_tensor import tensor_rows
from benchmarks.result import Result

__all__ = ["measure"]


def measure(about: Provenance, *, quick: bool = False) -> Result:
    """Virtual times are the same in every run; `quick` compares fewer pipeline schedules, and leaves out gloo's.

    Raises Unmeasured where the processes of a part fail.
    """
    sizes = ((2, 4), (2, 4, 8)) if quick else ((2, 3, 4, 8, 16), (1, 2, 3, 4, 8, 16, 32, 64))
    schedules, placements = pipeline_facts(*sizes), plan_facts()
    return Result(
        "parallel",
        about,
        {"quick": quick},
        [*sharded_rows(), *tensor_rows(), *pipeline_rows()],
        {"pipeline schedules beside torch's": schedules, "placements beside published ones": placements},
        [*sharded_predictions(), *([] if quick else pipeline_predictions()), *plan_predictions()],
        [
            "sharded: fully_shard overlaps on CUDA streams; here its reduce-scatters block the ranks, and without its "
            "asynchronous mode its all-gathers too. If all reduce-scatters but the last were hidden, as streams could, "
            "its step would be as long as ours",
            plan_note(placements),
            "plans: kernels are assumed to reach 60% of the peak whatever their size, so runs of small models, and on "
            "GPUs of lower power, are slower than predicted; throughput with float8 is not modelled",
            "pipeline: torch's tables are simulated by our simulator; its runtimes are not compared",
        ],
    )
