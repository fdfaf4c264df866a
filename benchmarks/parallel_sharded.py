"""Sharded steps on the virtual cluster: our FSDP and ZeroOptimizer beside torch's `fully_shard` (FSDP2) and our DDP.

Times are virtual, so one sample is enough: each run gives the same. The model is the same for all, layers that take
stated seconds, each a unit or a bucket of its own, and all ranks begin each step at once.

FSDP2 relies on CUDA streams for its overlap, and on ranks without a GPU its collectives block. So it stands here twice:
as it is, and with asynchronous all-gathers that are prefetched one layer ahead, which is the most that it can hide
here. Its reduce-scatters block in both; what streams would hide of them is not measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from threeloops.training.cluster import Cluster, Run, advance_to, charge, now, synchronize, uniform
from threeloops.training.cluster.machine.calls import COMMUNICATION, COMPUTE
from threeloops.training.data_parallel import DDP
from threeloops.training.sharded import FSDP, LiveBytes, ZeroOptimizer, bytes_sent, model_states

from benchmarks.result import Prediction, Series

__all__ = ["sharded_predictions", "sharded_rows"]

OURS_DDP, ZERO, OURS = "threeloops DDP", "threeloops ZeRO-2", "threeloops FSDP"
TORCHS, PREFETCHED = "torch fully_shard", "torch fully_shard, async and prefetched"
RANKS, LATENCY, BANDWIDTH = 4, 10e-6, 1e9
LAYERS, WIDTH, FORWARD, BACKWARD = 8, 256, 0.3e-3, 0.6e-3
SIZES = [WIDTH**2] * LAYERS
LAYER_MB = WIDTH**2 * 4 / 2**20
STEPS, PERIOD = 3, 0.05

_Step = Callable[[torch.Tensor], None]


def sharded_rows() -> list[Series]:
    """Step time, share of communication that is not hidden, and bytes per rank, of the last of some steps."""
    run = _run()
    found = {by: _last_step(run, by) for by in _PARTIES}
    rows = []
    for field, unit, what in (
        ("seconds", "s", "step"),
        ("exposed", "", "exposed share of communication"),
        ("bytes", "bytes", "sent per rank"),
    ):
        for by, step in found.items():
            rows.append(Series(f"sharded, {what}", by, unit, (getattr(step, field),), peer=by == PREFETCHED))
    return rows


def sharded_predictions() -> list[Prediction]:
    """Model states and bytes sent beside their closed forms. States are the bytes of tensors alive after a step."""
    predictions = []
    run = _run()
    for stage, by in ((0, OURS_DDP), (2, ZERO), (3, OURS)):
        predicted = bytes_sent(SIZES, RANKS, stage, parameter_bytes=4, gradient_bytes=4)[0]
        case = f"stage {stage}, float32"
        predictions.append(
            Prediction("bytes sent per rank", case, "virtual cluster", "bytes", predicted, _last_step(run, by).bytes)
        )
    for dtype, narrow in ((torch.float32, 4), (torch.bfloat16, 2)):
        for stage, alive in Cluster(RANKS).run(_states, dtype).results[0].items():
            states = model_states(
                SIZES, RANKS, stage, parameter_bytes=narrow, gradient_bytes=narrow, master_bytes=8 - 2 * narrow
            )
            case = f"stage {stage}, {str(dtype).removeprefix('torch.')}"
            predictions.append(Prediction("model states", case, "LiveBytes", "bytes", states.total, alive))
    return predictions


@cache
def _run() -> Run:
    return Cluster(uniform(RANKS, LATENCY, BANDWIDTH)).run(_program)


class _Layer(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return charge(super().forward(x), FORWARD, BACKWARD)


def _trainer(module: torch.nn.Module) -> _Step:
    optimizer = torch.optim.AdamW(module.parameters())

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        module(x).sum().backward()
        optimizer.step()

    return step


def _ddp(model: torch.nn.Sequential) -> _Step:
    return _trainer(DDP(model, bucket_cap_mb=LAYER_MB, first_bucket_mb=LAYER_MB))


def _zero(model: torch.nn.Sequential, stage: int = 2) -> _Step:
    zero = ZeroOptimizer(model, torch.optim.AdamW, stage=stage, bucket_cap_mb=LAYER_MB, first_bucket_mb=LAYER_MB)

    def step(x: torch.Tensor) -> None:
        zero.zero_grad()
        model(x).sum().backward()
        zero.step()

    return step


def _fsdp(model: torch.nn.Sequential) -> _Step:
    return _trainer(FSDP(model, model))


def _torchs(model: torch.nn.Sequential, prefetched: bool = False) -> _Step:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (RANKS,))
    layers = [fully_shard(layer, mesh=mesh) for layer in model]
    fully_shard(model, mesh=mesh)
    if prefetched:
        for layer, following in zip(layers[:-1], layers[1:], strict=True):
            layer.set_modules_to_forward_prefetch([following])
            following.set_modules_to_backward_prefetch([layer])
        model._set_unshard_async_op(True)
    return _trainer(model)


_PARTIES: dict[str, Callable[[torch.nn.Sequential], _Step]] = {
    OURS_DDP: _ddp,
    ZERO: _zero,
    OURS: _fsdp,
    TORCHS: _torchs,
    PREFETCHED: lambda model: _torchs(model, prefetched=True),
}


def _begin(by: str, step: int) -> float:
    return PERIOD * (1 + list(_PARTIES).index(by) * STEPS + step)


def _program() -> dict[str, float]:
    """Seconds of the last step of each party. Each begins at a multiple of the period, the same on all ranks."""
    seconds = {}
    for by, prepare in _PARTIES.items():
        torch.manual_seed(0)
        step = prepare(torch.nn.Sequential(*[_Layer(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]))
        for number in range(STEPS):
            advance_to(_begin(by, number))
            step(torch.ones(1, WIDTH))
            synchronize()
            seconds[by] = now() - _begin(by, number)
    return seconds


@dataclass(frozen=True)
class _LastStep:
    seconds: float
    exposed: float
    """Share of the communication during which nothing was computed."""
    bytes: int


def _last_step(run: Run, by: str) -> _LastStep:
    """Return the last step of rank 0."""
    begin, seconds = _begin(by, STEPS - 1), run.results[0][by]
    end = begin + seconds - 1e-9
    spans = [span for span in run.spans if span.rank == 0 and begin - 1e-9 <= span.start < end]
    computed = sum(s.end - s.start for s in spans if s.timeline == COMPUTE and s.what in ("forward", "backward"))
    communication = sum(span.end - span.start for span in spans if span.timeline == COMMUNICATION)
    sent = sum(m.size for m in run.messages if m.source == 0 and begin - 1e-9 <= m.ready < end)
    return _LastStep(seconds, (seconds - computed) / communication, sent)


def _states(dtype: torch.dtype) -> dict[int, int]:
    """Return the live bytes of each stage after a step, with its gradients still alive."""
    found = {}
    for stage in (1, 2, 3):
        with LiveBytes() as live:
            model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]).to(dtype)
            step = _fsdp(model) if stage == 3 else _zero(model, stage)
            step(torch.ones(1, WIDTH, dtype=dtype))
            found[stage] = live.now()
            del model, step
    return found
