"""A part of the evidence: the hardware counters of a few kernels, read by Nsight Compute."""

import csv
import io
import shutil
import sys
from typing import Any

from threeloops_grader.evidence.parts import Failed, Part, Skipped, finish, run_tidily

__all__ = ["hardware_counters"]

_KERNELS = "regex:saxpy_kernel|rmsnorm_kernel|softmax.*kernel|matmul_kernel|flash_attention_kernel"
_METRICS = (
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "lts__t_sectors_op_read.sum",
    "lts__t_sectors_op_write.sum",
    "gpu__time_duration.sum",
    "launch__registers_per_thread",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
)
_BECOME = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
"""The child process becomes the profiler, so that both are ended when the time is up."""
_COLUMNS = ("Kernel Name", "Metric Name", "Metric Unit", "Metric Value")


def hardware_counters(no_gpu: str) -> Part:
    """Collect the hardware counters of each kernel of `benchmarks.hardware_counters`, at unchanged clocks."""

    def run(seconds: float) -> dict[str, Any]:
        if (ncu := shutil.which("ncu")) is None:
            raise Skipped("ncu (Nsight Compute) is not installed")
        options = ["--clock-control", "none", "-k", _KERNELS, "--metrics", ",".join(_METRICS), "--csv"]
        command = [ncu, *options, sys.executable, "-m", "benchmarks.hardware_counters"]
        done = run_tidily(["-c", _BECOME, *command], seconds, "cuda")
        counters = _parse(done.stdout)
        finish(done, counters)
        if not counters:
            lines = done.stdout.strip().splitlines()
            raise Failed(f"ncu counted nothing: {lines[-1] if lines else 'it said nothing'}")
        return {"counters": counters}

    return Part("hardware counters", 90, run, "numbers", unavailable=no_gpu)


def _parse(printed: str) -> list[dict[str, str]]:
    """Return the rows of ncu's CSV among other printed lines: one per kernel and metric."""
    lines = [line for line in printed.splitlines() if line.startswith('"')]
    rows = csv.DictReader(io.StringIO("\n".join(lines)))
    return [{name: row[name] for name in _COLUMNS} for row in rows if all(row.get(name) for name in _COLUMNS[:2])]
