"""Published training runs by the sum of their kernels, with what their sources say about them.

To the runs of `planning.PUBLISHED`, `runs.csv` adds those of sources that were read in November 2026:

- "llm-foundry": MosaicML, mosaicml/llm-foundry, scripts/train/benchmarking/README.md (commit 4952183, April 2024): all
  rows in 16 bits of MPT models with FSDP. FlashAttention in Triton, and no compiler. The network of the H100s is not
  printed: 400 Gb/s per GPU here.
- "fms-fsdp": IBM, foundation-model-stack/fms-fsdp, README.md (commit 0d31998): the two rows with FSDP. The network is
  not printed: 200 Gb/s per GPU here.
- "torchtitan": pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md: tables 1 and 3, float8.
- "torchtitan on H200": the same repository, llama3_8b_h200_2025-06_torchtitan_trainy_whitefiber.md (June 2025).
- "Megatron-Bridge": NVIDIA, NVIDIA-NeMo/Megatron-Bridge, docs/performance-summary.md (commit 00b7660), container 25.11:
  the dense models on H100 and B200.
"""

import csv
from dataclasses import replace
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from threeloops.hardware.accelerators import accelerator
from threeloops.training.by_kernels.assumptions import Assumptions
from threeloops.training.by_kernels.kernels import KernelCosts
from threeloops.training.planning.model import Transformer
from threeloops.training.planning.plan import Machine, Plan
from threeloops.training.planning.published import PUBLISHED, PublishedRun, node
from threeloops.training.planning.time import step_time

__all__ = ["SOURCES", "published_runs", "seconds_by_kernels"]

SOURCES = MappingProxyType(
    {
        "megatron": Assumptions(attention="unfused"),
        "llama3": Assumptions(attention="fastest"),
        "torchtitan": Assumptions(power=500 / 700, bandwidth=2.4e12),
        "torchtitan on H200": Assumptions(),
        "fms-fsdp": Assumptions(),
        "Megatron-Bridge": Assumptions(attention="fastest", overlap=1.0),
        "llm-foundry": Assumptions(),
    }
)
"""The assumptions about each source. No constant was fitted to a run; docs/predictions.md names the assumptions that
were chosen with errors of runs in sight.

Megatron's attention of 2021 writes the scores. Llama 3's paper does not name its kernel, but it appeared in the month
of FlashAttention-3. torchtitan called torch's FlashAttention-2, on cards of 500 W. Megatron-Bridge uses Transformer
Engine, with cuDNN's attention, and hides tensor parallelism's collectives behind products. llm-foundry's attention in
Triton is counted as FlashAttention-2, which is faster.
"""

_TEXT = ("source", "name", "device", "recompute")
_SIZES = ("layers", "width", "heads", "kv_heads", "hidden", "vocabulary")
_PLAN = ("batch", "sequence", "dp", "cp", "pp", "tp", "microbatch", "chunks", "zero")


@cache
def published_runs() -> tuple[PublishedRun, ...]:
    """Return all runs whose source prints everything that a prediction needs, and whose plan is modelled."""
    runs = []
    for run in PUBLISHED:
        if run.unlike == "float8":
            runs.append(replace(run, machine=_in_fp8(run.machine, run.device), unlike=""))
        elif not run.unlike:
            runs.append(run)
    table = files("threeloops.training.by_kernels") / "runs.csv"
    rows = csv.DictReader(table.read_text(encoding="utf-8").splitlines())
    return (*runs, *map(_run, rows))


def _run(row: dict[str, str]) -> PublishedRun:
    source, name, device, recompute = (row[column] for column in _TEXT)
    counts = {column: int(text) for column, text in row.items() if column not in _TEXT}
    sizes = {column: counts[column] for column in _SIZES}
    model = Transformer(**sizes, gated=bool(counts["gated"]), tied=bool(counts["tied"]))
    settings = {column: counts[column] for column in _PLAN}
    plan = Plan(**settings, recompute=recompute)  # type: ignore[arg-type]
    machine = node(device, counts["link_gbits"] / 8 * 1e9)
    if counts["fp8"]:
        machine = _in_fp8(machine, device)
    seconds = plan.batch * plan.sequence / plan.gpus / counts["tokens_per_gpu"]
    return PublishedRun(source, name, model, machine, plan, seconds, device=device)


def _in_fp8(machine: Machine, device: str) -> Machine:
    share = machine.flops / machine.peak_flops
    return replace(machine, product_flops=share * accelerator(device).rate("fp8"))


def seconds_by_kernels(run: PublishedRun, assumed: Assumptions | None = None) -> float:
    """Return the seconds of a run's step, with the assumptions of its source unless others are given."""
    costs = KernelCosts(run.device, assumed or SOURCES[run.source])
    return step_time(run.model, run.machine, run.plan, costs).seconds
