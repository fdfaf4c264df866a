"""Data-parallel steps on the virtual cluster: our DDP beside torch's, at the same bucket sizes.

Times are virtual, so one sample is enough: each run gives the same. The model is the same for both, layers that take
stated seconds, and all ranks begin each step at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
from threeloops.training.cluster import Cluster, Run, advance_to, charge, synchronize, uniform
from threeloops.training.cluster.machine.calls import COMMUNICATION, COMPUTE
from threeloops.training.data_parallel import DDP

from benchmarks.result import Series

__all__ = ["ddp_rows"]

OURS, TORCHS = "threeloops DDP", "torch DDP"
RANKS, LATENCY, BANDWIDTH = 4, 10e-6, 1e9
LAYERS, WIDTH, FORWARD, BACKWARD = 8, 256, 0.1e-3, 0.2e-3
BUCKETS_MB = (100.0, 1.0, 0.5, 0.25)
STEPS, PERIOD = 3, 0.05


def ddp_rows() -> list[Series]:
    """Step time, share of communication that is not hidden, and bytes per rank, by bucket size; the first step beside a
    later one, since torch begins with a single bucket."""
    run = Cluster(uniform(RANKS, LATENCY, BANDWIDTH)).run(_program)
    rows = []
    for cap, step in product(BUCKETS_MB, (0, STEPS - 1)):
        of_both = [(by, _of_step(run, PERIOD * (1 + _index(cap, by) * STEPS + step))) for by in (OURS, TORCHS)]
        which = "first step" if step == 0 else f"step {step + 1}"
        size = "one bucket" if cap * 2**20 >= LAYERS * WIDTH**2 * 4 else f"buckets of {cap:g} MiB"
        for by, found in of_both:
            rows.append(Series(f"{size}, {which}", by, "s", (found.seconds,), peer=by == TORCHS))
        for by, found in of_both:
            rows.append(Series(f"{size}, {which}: exposed share", by, "", (found.exposed,), peer=by == TORCHS))
        for by, found in of_both:
            rows.append(Series(f"{size}, {which}: sent per rank", by, "bytes", (found.bytes,), peer=by == TORCHS))
    return rows


class _Layer(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return charge(super().forward(x), FORWARD, BACKWARD)


def _index(cap: float, by: str) -> int:
    return 2 * BUCKETS_MB.index(cap) + (OURS, TORCHS).index(by)


def _program() -> None:
    """Each step begins at a multiple of the period, the same on all ranks."""
    for cap in BUCKETS_MB:
        for by in (OURS, TORCHS):
            torch.manual_seed(0)
            model = torch.nn.Sequential(*[_Layer(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])
            ddp: torch.nn.Module
            if by == OURS:
                ddp = DDP(model, bucket_cap_mb=cap, first_bucket_mb=cap)
            else:
                ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=cap)
            for step in range(STEPS):
                advance_to(PERIOD * (1 + _index(cap, by) * STEPS + step))
                ddp.zero_grad()
                ddp(torch.ones(1, WIDTH)).sum().backward()
                synchronize()


@dataclass(frozen=True)
class _Step:
    seconds: float
    exposed: float
    """Share of the communication during which nothing was computed."""
    bytes: int


def _of_step(run: Run, begin: float) -> _Step:
    """The step that begins at this time, on rank 0."""
    end = begin + PERIOD / 2
    spans = [span for span in run.spans if span.rank == 0 and begin - 1e-9 <= span.start < end]
    computing = [span for span in spans if span.timeline == COMPUTE and span.what in ("forward", "backward")]
    jobs = [span for span in spans if span.timeline == COMMUNICATION and span.what == "all_reduce"]
    seconds = max(span.end for span in computing + jobs) - begin
    communication = sum(span.end - span.start for span in jobs)
    computed = sum(span.end - span.start for span in computing)
    sent = sum(m.size for m in run.messages if m.source == 0 and begin - 1e-9 <= m.ready < begin + seconds)
    return _Step(seconds, (seconds - computed) / communication, sent)
