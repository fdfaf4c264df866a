"""Predict the time of a plan's step from FLOPs, bytes and links."""

from dataclasses import dataclass

from threeloops.training.collectives import Link
from threeloops.training.planning.model import Transformer
from threeloops.training.planning.plan import Machine, Plan

__all__ = ["StepTime", "bubble", "exposed", "step_time"]


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
    expert: float = 0.0
    """All-to-alls of expert parallelism."""

    @property
    def seconds(self) -> float:
        return self.compute + self.tensor + self.context + self.expert + self.bubble + self.data

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
    """Predict a step's time. The slowest pipeline rank sets the pace of all microbatches. Collectives of tensor,
    context and expert parallelism are exposed. Transfers between stages are hidden except for the first microbatch.
    Those of data parallelism are hidden behind the layers that compute meanwhile. The optimizer's own time is left
    out."""
    m = plan.microbatches
    layers = plan.layers(model)
    deep = max(layers)
    links = {axis: machine.link(ranks) for axis, ranks in plan.groups.items()}
    forward, backward, again, head = _computation(model, machine, plan)
    stream = 2 * plan.tokens * model.width  # bytes of the activations between layers
    repeated = plan.recompute == "full"  # backward repeats the collectives of forward too
    # Per layer: two gathers and two scatters, each way.
    tensor = (12 if repeated else 8) * _ring(stream, plan.tp, links["tp"])
    keys = 2 * 2 * plan.microbatch * plan.sequence * model.kv_width / plan.tp
    context = (3 if repeated else 2) * _ring(keys, plan.cp, links["cp"])
    # Per layer: tokens go to their experts and come back, each way.
    sent = stream * model.experts_per_token / plan.tp
    expert = (6 if repeated else 4) * machine.exchange(plan.groups["ep"], sent)

    def of_stage(rank: int, count: int) -> float:
        return count * (forward + backward + again) + model.head_passes * head * (rank == plan.pp - 1)

    compute = max(of_stage(rank, count) for rank, count in enumerate(layers))
    per_microbatch = compute + deep * (tensor + context + expert)
    transfer = links["pp"].seconds(stream // plan.tp) if plan.pp > 1 else 0.0
    gather, scatter = _gradients(model, plan, links, deep)
    ahead = deep * (forward + (tensor + expert) / (3 if repeated else 2))
    return StepTime(
        m * compute,
        m * deep * tensor,
        m * deep * context,
        bubble(plan, per_microbatch, transfer),
        exposed(plan, deep, gather, scatter, ahead, per_microbatch - ahead),
        plan,
        model.step_flops(plan.batch, plan.sequence),
        machine.peak_flops,
        m * deep * expert,
    )


def bubble(plan: Plan, per_microbatch: float, transfer: float) -> float:
    """Return the seconds in which a pipeline fills and empties. `per_microbatch` is the time of one microbatch on the
    slowest rank, and `transfer` that of its activations to the next rank."""
    return (plan.pp - 1) * (per_microbatch / plan.chunks + 2 * transfer * plan.chunks)


def exposed(plan: Plan, layers: int, gather: float, scatter: float, ahead: float, behind: float) -> float:
    """Return the seconds of a step in which a rank waits for its replicas.

    Args:
        layers: of the rank. The last one's gradients have nothing to hide behind.
        gather, scatter: seconds of its parameters' all-gather and its gradients' reduce-scatter.
        ahead, behind: seconds of a microbatch's forward and backward, behind which they hide.
    """
    if plan.zero == 3 and plan.pp == 1:  # gathered for each pass of each microbatch, scattered after each backward
        waits = max(0.0, gather - ahead) + max(0.0, gather + scatter - behind)
        return plan.microbatches * waits + (gather + scatter) / layers
    scatters = 1 if plan.accumulates_whole else plan.microbatches
    return max(0.0, gather - ahead) + scatters * max(0.0, scatter - behind) + scatter / layers


def _computation(model: Transformer, machine: Machine, plan: Plan) -> tuple[float, float, float, float]:
    """Seconds that one microbatch computes on one rank: forward, backward and recomputation of a layer, and the
    forward of the head, which stays in 16 bits."""
    tokens = plan.tokens
    parallel = plan.tp * machine.flops
    forward = model.layer_flops(tokens, plan.sequence) / parallel
    backward = model.backward_flops(tokens, plan.sequence) / parallel
    again = model.recomputed_flops(tokens, plan.sequence, plan.recompute) / parallel
    head = model.head_flops(tokens) / parallel
    if machine.product_flops is None:
        return forward, backward, again, head
    products = 2 * tokens * sum(model.matrices.values())
    saved = products / parallel * (1 - machine.flops / machine.product_flops)
    passes = 1 if model.adapter_rank else 2
    repeated = {"none": 0.0, "full": 1.0, "selective": again * parallel / products}[plan.recompute]
    return forward - saved, backward - passes * saved, again - repeated * saved, head


def _gradients(model: Transformer, plan: Plan, links: dict[str, Link], deep: int) -> tuple[float, float]:
    """Seconds to gather the 16-bit parameters of a rank from its replicas, and to scatter float32 gradients."""
    experts = deep * model.expert_parameters / plan.ep / plan.tp
    dense = (deep * (model.layer_parameters - model.expert_parameters) + model.embedding_parameters) / plan.tp
    near = (plan.replicas, links["replicas"])
    far = (plan.replicas // plan.ep, links["expert replicas"])
    if model.adapter_rank:
        adapters = deep * model.adapter_parameters / plan.tp
        if plan.zero < 3:  # only what was trained has changed
            return _ring(2 * adapters, *near), _ring(4 * adapters, *near)
        width = model.frozen_bits / 8
        gather = _ring(width * dense + 2 * adapters, *near) + _ring(width * experts, *far)
        return gather, _ring(4 * adapters, *near)
    gather, scatter = (_ring(size * dense, *near) + _ring(size * experts, *far) for size in (2, 4))
    return gather, scatter


def _ring(size: float, ranks: int, link: Link) -> float:
    """Seconds of an all-gather or reduce-scatter of `size` bytes in all."""
    return (ranks - 1) * (link.latency + size / ranks / link.bandwidth)
