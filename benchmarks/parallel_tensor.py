"""Tensor parallelism: what a block sends, how long its step takes, and torch's `parallelize_module` beside ours.

Bytes and times are of the virtual cluster, the same in each run. torch's tensor parallelism needs C++ functional
collectives, which a virtual rank does not have, so both are compared on two gloo processes: values, and the number of
collectives as torch's own CommDebugMode counts them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from threeloops.hardware.accelerators import accelerator
from threeloops.models.gpt import GPT, Block
from threeloops.models.gpt_config import GPTConfig
from threeloops.training.cluster import Cluster, Run, advance_to, charge, now, one_node, run_on_processes
from threeloops.training.cluster.machine.calls import COMMUNICATION
from threeloops.training.tensor_parallel import block_traffic, gpt_plan, parallelize
from torch import Tensor, nn

from benchmarks.result import Series

__all__ = ["tensor_rows"]

OURS, SEQUENCE, FORMULA, TORCHS = (
    "threeloops",
    "threeloops, sequence parallel",
    "closed form",
    "torch parallelize_module",
)
DEVICE, RANKS, TOKENS = "H100 SXM", 8, 256
CONFIG = GPTConfig(vocabulary_size=64, layers=1, heads=8, kv_heads=8, width=512, mlp_width=1024, max_sequence=TOKENS)
SMALL = GPTConfig.tiny(layers=1, kv_heads=4, width=32, mlp_width=48, max_sequence=16)
ELEMENT = 2


def tensor_rows() -> list[Series]:
    """Collectives and bytes per block beside their closed form, the time of a block's step with and without sequence
    parallelism, and values and collectives beside torch's."""
    return [*_traffic_and_time(), *_beside_torch()]


def _traffic_and_time() -> list[Series]:
    runs = {by: Cluster(one_node(DEVICE, RANKS)).run(_charged_block, by == SEQUENCE) for by in (OURS, SEQUENCE)}
    rows = []
    for number, way in enumerate(("forward", "backward")):
        for by, run in runs.items():
            closed = block_traffic(TOKENS, CONFIG.width, RANKS, ELEMENT, sequence_parallel=by == SEQUENCE)[number]
            which = f"{way} of a block" + (", sequence parallel" if by == SEQUENCE else "")
            start = 1.0 + number
            rows += [
                Series(f"{which}: collectives", OURS, "", (_collectives(run, start),)),
                Series(f"{which}: collectives", FORMULA, "", (closed.collectives,), peer=True),
                Series(f"{which}: sent per rank", OURS, "bytes", (_sent(run, start) / RANKS,)),
                Series(f"{which}: sent per rank", FORMULA, "bytes", (closed.bytes / RANKS,), peer=True),
            ]
        for by, run in runs.items():
            seconds = max(result[number] for result in run.results)
            rows.append(Series(f"{way} of a block on {RANKS} {DEVICE}", by, "s", (seconds,), peer=by == OURS))
    for by, run in runs.items():
        rows.append(Series("kept for backward per rank", by, "bytes", (run.results[0][2],), peer=by == OURS))
    return rows


def _charged_block(sequence_parallel: bool) -> tuple[float, float, int]:
    """Seconds of a block's forward and backward on this rank, which begin at 1 s and 2 s, and the bytes of activations
    that autograd keeps between them."""
    torch.manual_seed(0)
    model = GPT(CONFIG).bfloat16()
    parallelize(model, gpt_plan(sequence_parallel=sequence_parallel))
    block = _charged(model.blocks[0])
    own = TOKENS // RANKS if sequence_parallel else TOKENS
    x = torch.ones(1, own, CONFIG.width, dtype=torch.bfloat16, requires_grad=True)
    rotation = model.rotation(0, TOKENS)
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    advance_to(1)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = block(x, rotation)
    forward = now() - 1
    for given in (*block.parameters(), *rotation):
        kept.pop(given.untyped_storage().data_ptr(), None)
    advance_to(2)
    out.sum().backward()
    return forward, now() - 2, sum(kept.values())


def _charged(block: Block) -> Block:
    """Its matrix products at the device's peak, and norms at its memory bandwidth: read and written once forward, and
    with the gradient once more backward."""
    device = accelerator(DEVICE)
    for module in block.modules():
        if (weight := getattr(module, "weight", None)) is None:
            continue
        if weight.ndim == 2:
            seconds = 2 * weight.numel() * TOKENS / device.rate("bf16")
            module.register_forward_hook(_charge(lambda x, seconds=seconds: seconds, 2))
        else:
            module.register_forward_hook(_charge(lambda x: 2 * x.nbytes / device.memory_bandwidth, 1.5))
    return block


def _charge(seconds: Any, backward: float) -> Any:
    return lambda module, arguments, out: charge(out, seconds(out), backward * seconds(out))


def _collectives(run: Run, start: float) -> int:
    spans = [span for span in run.spans if span.rank == 0 and span.timeline == COMMUNICATION]
    return sum(start <= span.start < start + 1 for span in spans)


def _sent(run: Run, start: float) -> int:
    return sum(message.size for message in run.messages if start <= message.ready < start + 1)


@dataclass(frozen=True)
class _Step:
    output: Tensor
    gradient: Tensor
    forward: int
    backward: int
    """Collectives."""


def _beside_torch() -> list[Series]:
    ours, theirs = run_on_processes("gloo", 2, _both)[0]
    rows = []
    for way in ("forward", "backward"):
        for by, step in ((OURS, ours), (TORCHS, theirs)):
            count = getattr(step, way)
            rows.append(Series(f"{way} of a block on gloo: collectives", by, "", (count,), peer=by == TORCHS))
    torch.manual_seed(0)
    model, x = GPT(SMALL).double(), _input()
    out = model.blocks[0](x, model.rotation(0, x.shape[1]))
    out.square().sum().backward()
    for by, step in ((OURS, ours), (TORCHS, theirs)):
        off = max(_off(step.output, out), _off(step.gradient, x.grad))
        rows.append(Series("largest error against one process, float64", by, "", (off,), peer=by == TORCHS))
    return rows


def _off(found: Tensor, expected: Tensor) -> float:
    return ((found - expected).abs().max() / expected.abs().max()).item()


def _input() -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 8, SMALL.width, generator=generator, dtype=torch.float64, requires_grad=True)


def _both() -> tuple[_Step, _Step]:
    found = []
    for cut in (_cut_by_us, _cut_by_torch):
        torch.manual_seed(0)
        model = GPT(SMALL).double()
        cut(model)
        found.append(_step(model.blocks[0], _input(), model.rotation(0, 8)))
    return found[0], found[1]


def _step(block: nn.Module, x: Tensor, rotation: Any) -> _Step:
    from torch.distributed.tensor.debug import CommDebugMode

    with CommDebugMode() as forward:
        out = block(x, rotation)
    with CommDebugMode() as backward:
        out.square().sum().backward()
    return _Step(out.detach(), x.grad, forward.get_total_counts(), backward.get_total_counts())


def _cut_by_us(model: GPT) -> None:
    parallelize(model, gpt_plan())


def _cut_by_torch(model: GPT) -> None:
    """The plan of torch's tutorial for a Llama: column-wise into attention and the MLP, row-wise out of them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    size, block = dist.get_world_size(), model.blocks[0]
    attention = block.attention
    # Its shards are consecutive rows, and the rows of a rank's heads are not: put them beside one another first.
    parts = [part.chunk(size) for part in attention.qkv.weight.detach().split(SMALL.qkv_widths)]
    attention.qkv.weight = nn.Parameter(torch.cat([part[each] for each in range(size) for part in parts]))
    attention.heads, attention.kv_heads = attention.heads // size, attention.kv_heads // size
    columns = {name: ColwiseParallel() for name in ("attention.qkv", "mlp.gate", "mlp.up")}
    rows = {name: RowwiseParallel() for name in ("attention.output", "mlp.down")}
    parallelize_module(block, init_device_mesh("cpu", (size,)), {**columns, **rows})
