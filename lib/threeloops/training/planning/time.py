"""Predict the time of a plan's step from FLOPs, bytes and links."""

from dataclasses import dataclass

from threeloops.training.collectives import Link
from threeloops.training.planning.model import Transformer
from threeloops.training.planning.plan import Machine, Plan

__all__ = ["StepTime", "step_time"]


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step. Each part counts only by how much it lengthens the step, so hidden communication does not
    count."""

    compute: float
    tensor: float
    """Collectives of tensor parallelism."""
    context: float
    """Keys, values and their gradients, gathered and scattered."""
    bubble: float
    """Filling and emptying the pipeline."""
    data: float
    """Gradients and parameters between replicas."""
    plan: Plan
    model_flops: float
    """FLOPs of all GPUs, without recomputation."""
    peak_flops: float

    @property
    def seconds(self) -> float:
        return self.compute + self.tensor + self.context + self.bubble + self.data

    @property
    def tokens_per_gpu(self) -> float:
        """Tokens per GPU and second."""
        return self.plan.batch * self.plan.sequence / self.plan.gpus / self.seconds

    @property
    def flops_per_gpu(self) -> float:
        """FLOPs per GPU and second, without recomputation."""
        return self.model_flops / self.plan.gpus / self.seconds

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization (Chowdhery et al. 2022)."""
        return self.flops_per_gpu / self.peak_flops


def step_time(model: Transformer, machine: Machine, plan: Plan) -> StepTime:
    """Predict a step's time. The slowest pipeline rank sets the pace of all microbatches. Collectives of tensor and
    context parallelism are exposed. Transfers between stages are hidden except for the first microbatch. Those of data
    parallelism are hidden behind the layers that compute meanwhile. The optimizer's own time is left out."""
    m = plan.microbatches
    tokens = plan.tokens
    layers = plan.layers(model)
    links = {axis: machine.link(ranks) for axis, ranks in plan.groups.items()}
    forward = model.layer_flops(tokens, plan.sequence) / plan.tp / machine.flops
    again = model.recomputed_flops(tokens, plan.sequence, plan.recompute) / plan.tp / machine.flops
    head = model.head_flops(tokens) / plan.tp / machine.flops
    stream = 2 * tokens * model.width  # bytes of the activations between layers
    tensor = 8 * _ring(stream, plan.tp, links["tp"])  # per layer: two gathers and two scatters, each way
    keys = 2 * 2 * plan.microbatch * plan.sequence * model.kv_width / plan.tp
    context = 2 * _ring(keys, plan.cp, links["cp"])

    def of_stage(rank: int, count: int) -> float:
        return count * (3 * forward + again) + 3 * head * (rank == plan.pp - 1)

    compute = max(of_stage(rank, count) for rank, count in enumerate(layers))
    per_microbatch = compute + max(layers) * (tensor + context)
    transfer = links["pp"].seconds(stream // plan.tp) if plan.pp > 1 else 0.0
    bubble = (plan.pp - 1) * (per_microbatch / plan.chunks + 2 * transfer * plan.chunks)
    parameters = (max(layers) * model.layer_parameters + model.embedding_parameters) / plan.tp
    gather, scatter = (_ring(size * parameters, plan.replicas, links["replicas"]) for size in (2, 4))
    ahead = max(layers) * (forward + tensor / 2)
    behind = per_microbatch - ahead
    if plan.zero == 3 and plan.pp == 1:  # gathered for each pass of each microbatch, scattered after each backward
        data = m * (max(0.0, gather - ahead) + max(0.0, gather + scatter - behind)) + (gather + scatter) / max(layers)
    else:
        data = max(0.0, gather - ahead) + max(0.0, scatter - behind) + scatter / max(layers)
    return StepTime(
        m * compute,
        m * max(layers) * tensor,
        m * max(layers) * context,
        bubble,
        data,
        plan,
        model.step_flops(plan.batch, plan.sequence),
        machine.peak_flops,
    )


def _ring(size: float, ranks: int, link: Link) -> float:
    """Seconds of an all-gather or reduce-scatter of `size` bytes in all."""
    return (ranks - 1) * (link.latency + size / ranks / link.bandwidth)
