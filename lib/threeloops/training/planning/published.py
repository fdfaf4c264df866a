"""Published training runs as plans, which show where the planner is right and where it is not.

- "megatron": Narayanan et al. 2021, *Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*
  (arXiv 2104.04473), table 1. Placement and throughput; sequences of 2,048 tokens, vocabulary 51,200, activations
  recomputed. The sizes of microbatches and the numbers of chunks were tuned, and are not printed. Its FLOPs are those
  of equation 3, with recomputation.
- "llama3": Grattafiori et al. 2024, *The Llama 3 Herd of Models* (arXiv 2407.21783), table 4: the 405B model. It
  interleaves chunks, whose number is not printed: 4 here. Its FLOPs are counted as ours: causal, without recomputation.
- "torchtitan": pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md (December 2024), tables 1 to 5, the rows
  with torch.compile. GPUs of 96 GB and 500 W. `memory_gib` is what the allocator reserved; float8 where noted.
"""

from dataclasses import dataclass

from threeloops.hardware.accelerators import accelerator
from threeloops.hardware.measured import host_link_share, link_share
from threeloops.training.collectives import Link
from threeloops.training.planning.model import Transformer
from threeloops.training.planning.plan import Machine, Plan

__all__ = ["LLAMA_405B", "LLAMA_70B", "LLAMA_8B", "PUBLISHED", "PublishedRun", "a100_node", "h100_node", "node"]

_A100 = "A100 SXM 80GB"
_H100 = "H100 SXM"
_NVLINK = 3.4e-6
_NETWORK = 14e-6  # seconds that NCCL 2.23 assumes for a hop of a ring (src/graph/tuning.cc)


def h100_node(efficiency: float = 0.6) -> Machine:
    """8 H100 SXM, 400 Gb/s per GPU to other nodes. Kernels reach `efficiency` of the peak."""
    return node(_H100, 50e9, efficiency)


def a100_node(efficiency: float = 0.6) -> Machine:
    """8 A100 SXM of 80 GB, 200 Gb/s per GPU to other nodes."""
    return node(_A100, 25e9, efficiency)


def node(name: str, between: float, efficiency: float = 0.6, gpus: int = 8) -> Machine:
    """Return nodes of `gpus` accelerators of this name, each with `between` bytes/s per direction to other nodes.

    16-bit arithmetic is BF16, or FP16 if the hardware lacks BF16. NVLink and PCIe have the share of the data sheet's
    bandwidth that NCCL reaches (`hardware.measured.link_share`). Other links have all of it, because no measurement of
    theirs is in the tables. In a mesh, `inside` is the link to one neighbour. In a torus it is a ring along one
    dimension. Cards with a bridge, and those without links, use the host's links for more than two. Raises LookupError
    if the accelerator has neither type, or if no link is known.
    """
    gpu = accelerator(name)
    peak = gpu.rates.get("bf16") or gpu.rate("fp16")
    own = gpu.link_bandwidth or 0.0
    bridge = None
    neighbours = 0
    if own and gpu.link_topology == "switch":
        bandwidth = link_share(gpu.name) * own
    elif own and gpu.link_topology == "mesh":
        neighbours = gpu.link_neighbours or 1
        bandwidth = own / neighbours
    elif own and gpu.link_topology == "torus":
        bandwidth = 2 * own / (gpu.link_neighbours or 2)
    elif gpu.host_link_bandwidth is None:
        reason = gpu.note("link_bandwidth") or "none is given"
        raise LookupError(f"{gpu.name}: no bandwidth of a link to its neighbours is known ({reason}); leave it out")
    else:
        bandwidth = host_link_share() * gpu.host_link_bandwidth
        bridge = Link(_NVLINK, link_share(gpu.name) * own) if own else None
    return Machine(
        gpus,
        gpu.memory_bytes,
        efficiency * peak,
        peak,
        Link(_NVLINK, bandwidth),
        Link(_NETWORK, between),
        neighbours,
        bridge,
    )


@dataclass(frozen=True)
class PublishedRun:
    """One row of a table."""

    source: str
    name: str
    model: Transformer
    machine: Machine
    plan: Plan
    seconds: float
    """The time of a step, from the throughput that the source gives."""
    memory_gib: float | None = None
    unlike: str = ""
    """A property of the run that the planner does not model."""
    device: str = _H100
    """The accelerator, by its name in the hardware table."""


LLAMA_8B = Transformer(32, 4096, 32, 8, 14336, 128256)
LLAMA_70B = Transformer(80, 8192, 64, 8, 28672, 128256)
LLAMA_405B = Transformer(126, 16384, 128, 8, 53248, 128256)


def _megatron(
    name: str, heads: int, width: int, layers: int, tp: int, pp: int, gpus: int, batch: int, teraflops: float
) -> PublishedRun:
    model = Transformer(layers, width, heads, heads, 4 * width, 51200, gated=False, tied=True)
    plan = Plan(batch, 2048, dp=gpus // tp // pp, pp=pp, tp=tp, zero=0, recompute="full")
    flops = 96 * batch * 2048 * layers * width**2 * (1 + 2048 / (6 * width) + 51200 / (16 * layers * width))
    seconds = flops / gpus / (teraflops * 1e12)
    return PublishedRun("megatron", name, model, a100_node(), plan, seconds, device=_A100)


def _llama(name: str, plan: Plan, teraflops: float) -> PublishedRun:
    flops = LLAMA_405B.step_flops(plan.batch, plan.sequence)
    return PublishedRun("llama3", name, LLAMA_405B, h100_node(), plan, flops / plan.gpus / (teraflops * 1e12))


def _titan(
    name: str, model: Transformer, plan: Plan, tokens: float, gib: float, unlike: str = "float8"
) -> PublishedRun:
    return PublishedRun(
        "torchtitan", name, model, h100_node(), plan, plan.batch * plan.sequence / plan.gpus / tokens, gib, unlike
    )


PUBLISHED = (
    _megatron("1.7B", 24, 2304, 24, 1, 1, 32, 512, 137),
    _megatron("3.6B", 32, 3072, 30, 2, 1, 64, 512, 138),
    _megatron("7.5B", 32, 4096, 36, 4, 1, 128, 512, 142),
    _megatron("18.4B", 48, 6144, 40, 8, 1, 256, 1024, 135),
    _megatron("39.1B", 64, 8192, 48, 8, 2, 512, 1536, 138),
    _megatron("76.1B", 80, 10240, 60, 8, 4, 1024, 1792, 140),
    _megatron("145.6B", 96, 12288, 80, 8, 8, 1536, 2304, 148),
    _megatron("310.1B", 128, 16384, 96, 8, 16, 1920, 2160, 155),
    _megatron("529.6B", 128, 20480, 105, 8, 35, 2520, 2520, 163),
    _megatron("1008.0B", 160, 25600, 128, 8, 64, 3072, 3072, 163),
    _llama("405B on 8,192", Plan(2048, 8192, dp=64, pp=16, tp=8, chunks=4, zero=2), 430),
    _llama("405B on 16,384", Plan(2048, 8192, dp=128, pp=16, tp=8, chunks=4, zero=2), 400),
    _llama("405B, 131,072 tokens", Plan(128, 131072, dp=8, cp=16, pp=16, tp=8, chunks=4, zero=2), 380),
    _titan("8B on 8", LLAMA_8B, Plan(16, 8192, dp=8, microbatch=2, zero=3, recompute="selective"), 6667, 77.0, ""),
    _titan("8B on 128", LLAMA_8B, Plan(256, 8192, dp=128, microbatch=2, zero=3, recompute="selective"), 6514, 62.0, ""),
    _titan("8B, 32,768 tokens", LLAMA_8B, Plan(8, 32768, dp=8, zero=3, recompute="full"), 3890, 83.9),
    _titan("8B, 65,536 tokens", LLAMA_8B, Plan(4, 65536, dp=4, cp=2, zero=3, recompute="full"), 2540, 84.2),
    _titan("8B, 131,072 tokens", LLAMA_8B, Plan(2, 131072, dp=2, cp=4, zero=3, recompute="full"), 1071, 84.0),
    _titan("8B, 262,144 tokens", LLAMA_8B, Plan(1, 262144, cp=8, zero=3, recompute="full"), 548, 84.5),
    _titan(
        "70B on 256", LLAMA_70B, Plan(512, 8192, dp=32, tp=8, microbatch=16, zero=3, recompute="full"), 829, 71.9,
    ),
    _titan(
        "405B on 512, 1F1B", LLAMA_405B,
        Plan(256, 8192, dp=8, pp=8, tp=8, microbatch=4, zero=3, recompute="full"), 100, 82.5,
        "float8, asynchronous tensor parallelism; the size of a microbatch is not printed",
    ),
    _titan(
        "405B on 512, interleaved", LLAMA_405B,
        Plan(256, 8192, dp=8, pp=8, tp=8, microbatch=4, chunks=2, zero=3, recompute="full"), 128, 72.7,
        "float8, asynchronous tensor parallelism; the size of a microbatch is not printed",
    ),
)  # fmt: skip
