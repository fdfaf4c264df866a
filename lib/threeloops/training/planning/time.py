"""Predict the time of a plan's step: when its computations and collectives run, and which of them are hidden.

`step_time` asks `Costs` how long each takes alone. `Rates` divides FLOPs and bytes by the rates of a machine.
`training.by_kernels` adds up kernels, for devices whose kernels were published.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

from threeloops.training.collectives import Link
from threeloops.training.planning.model import Transformer
from threeloops.training.planning.plan import Machine, Plan

__all__ = ["Costs", "CostsOf", "Rates", "StepTime", "step_time"]


class Costs(Protocol):
    """Seconds of the parts of a step on one rank, each on its own. Computation is that of one microbatch."""

    @property
    def forward(self) -> float:
        """One layer's forward pass."""

    @property
    def backward(self) -> float:
        """One layer's backward pass, without recomputation."""

    @property
    def again(self) -> float:
        """The part of one layer's forward pass that backward repeats."""

    @property
    def head(self) -> float:
        """Head and loss, forward and backward."""

    def collective(self, operation: Literal["all_gather", "reduce_scatter"], size: float, axis: str) -> float:
        """`operation` on a total of `size` bytes, among the ranks of `Plan.groups[axis]`."""

    def optimizer(self, parameters: float) -> float:
        """The optimizer's step on this many parameters."""


CostsOf = Callable[[Transformer, Machine, Plan], Costs]


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
    optimizer: float = 0.0
    """The update of the parameters; 0 with `Rates`."""

    @property
    def seconds(self) -> float:
        exposed = self.tensor + self.context + self.expert + self.bubble + self.data
        return self.compute + exposed + self.optimizer

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


@dataclass(frozen=True)
class Rates:
    """Costs computed from FLOPs and bytes, at the rates of a machine. The optimizer's time is left out."""

    model: Transformer
    machine: Machine
    plan: Plan

    @cached_property
    def forward(self) -> float:
        return self.model.layer_flops(self._tokens, self.plan.sequence) / self._parallel - self._saved

    @cached_property
    def backward(self) -> float:
        passes = 1 if self.model.adapter_rank else 2
        flops = self.model.backward_flops(self._tokens, self.plan.sequence)
        return flops / self._parallel - passes * self._saved

    @cached_property
    def again(self) -> float:
        flops = self.model.recomputed_flops(self._tokens, self.plan.sequence, self.plan.recompute)
        repeated = {"none": 0.0, "full": 1.0, "selective": flops / self._products}[self.plan.recompute]
        return flops / self._parallel - repeated * self._saved

    @cached_property
    def head(self) -> float:
        """Head and loss, which stay in 16 bits."""
        return self.model.head_passes * self.model.head_flops(self._tokens) / self._parallel

    def collective(self, operation: Literal["all_gather", "reduce_scatter"], size: float, axis: str) -> float:
        """Return the seconds of a ring. Both operations take the same time."""
        group = self.plan.groups[axis]
        return _ring(size, len(group), self.machine.link(group))

    def optimizer(self, parameters: float) -> float:
        return 0.0

    @property
    def _tokens(self) -> int:
        return self.plan.tokens

    @property
    def _parallel(self) -> float:
        return self.plan.tp * self.machine.flops

    @property
    def _products(self) -> float:
        """FLOPs of the matmuls with weights in one layer's forward pass."""
        return 2 * self._tokens * sum(self.model.matrices.values())

    @cached_property
    def _saved(self) -> float:
        """Seconds by which one layer's forward pass is shorter where matmuls run in fewer than 16 bits."""
        if self.machine.product_flops is None:
            return 0.0
        return self._products / self._parallel * (1 - self.machine.flops / self.machine.product_flops)


def step_time(model: Transformer, machine: Machine, plan: Plan, costs_of: CostsOf = Rates) -> StepTime:
    """Predict a step's time. The slowest pipeline rank sets the pace of all microbatches. Collectives of tensor,
    context and expert parallelism are exposed, and repeated if a layer is computed again. Collectives of data
    parallelism are hidden behind the layers that compute meanwhile. Transfers between stages are hidden except for the
    first microbatch."""
    costs = costs_of(model, machine, plan)
    m = plan.microbatches
    layers = plan.layers(model)
    deep = max(layers)
    stream = 2 * plan.tokens * model.width  # bytes of the activations between layers
    passes = 3 if plan.recompute == "full" else 2  # backward repeats the collectives of forward too
    pair = costs.collective("all_gather", stream, "tp") + costs.collective("reduce_scatter", stream, "tp")
    tensor = 2 * passes * pair
    keys = 2 * 2 * plan.microbatch * plan.sequence * model.kv_width / plan.tp
    context = passes * costs.collective("all_gather", keys, "cp")
    # Per layer and pass: tokens go to their experts and come back.
    sent = stream * model.experts_per_token / plan.tp
    expert = 2 * passes * machine.exchange(plan.groups["ep"], sent)

    def of_stage(rank: int, count: int) -> float:
        return count * (costs.forward + costs.backward + costs.again) + costs.head * (rank == plan.pp - 1)

    compute = max(of_stage(rank, count) for rank, count in enumerate(layers))
    per_microbatch = compute + deep * (tensor + context + expert)
    transfer = machine.link(plan.groups["pp"]).seconds(stream // plan.tp) if plan.pp > 1 else 0.0
    gather, scatter, updated = _gradients(model, plan, costs, deep)
    ahead = deep * (costs.forward + (tensor + expert) / passes)
    return StepTime(
        m * compute,
        m * deep * tensor,
        m * deep * context,
        _bubble(plan, per_microbatch, transfer),
        _exposed(plan, deep, gather, scatter, ahead, per_microbatch - ahead),
        plan,
        model.step_flops(plan.batch, plan.sequence),
        machine.peak_flops,
        m * deep * expert,
        costs.optimizer(updated),
    )


def _bubble(plan: Plan, per_microbatch: float, transfer: float) -> float:
    """Return the seconds in which a pipeline fills and empties. `per_microbatch` is the time of one microbatch on the
    slowest rank, and `transfer` that of its activations to the next rank."""
    return (plan.pp - 1) * (per_microbatch / plan.chunks + 2 * transfer * plan.chunks)


def _exposed(plan: Plan, layers: int, gather: float, scatter: float, ahead: float, behind: float) -> float:
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


def _gradients(model: Transformer, plan: Plan, costs: Costs, deep: int) -> tuple[float, float, float]:
    """Seconds to gather the 16-bit parameters of a rank from its replicas and to scatter float32 gradients, and the
    number of parameters that the rank updates."""
    experts = deep * model.expert_parameters / plan.ep / plan.tp
    dense = (deep * (model.layer_parameters - model.expert_parameters) + model.embedding_parameters) / plan.tp
    shares = plan.replicas if plan.zero else 1
    if model.adapter_rank:
        adapters = deep * model.adapter_parameters / plan.tp
        scatter = costs.collective("reduce_scatter", 4 * adapters, "replicas")
        if plan.zero < 3:  # only what was trained has changed
            return costs.collective("all_gather", 2 * adapters, "replicas"), scatter, adapters / shares
        width = model.frozen_bits / 8
        gather = costs.collective("all_gather", width * dense + 2 * adapters, "replicas")
        gather += costs.collective("all_gather", width * experts, "expert replicas")
        return gather, scatter, adapters / shares
    gather = costs.collective("all_gather", 2 * dense, "replicas")
    gather += costs.collective("all_gather", 2 * experts, "expert replicas")
    scatter = costs.collective("reduce_scatter", 4 * dense, "replicas")
    scatter += costs.collective("reduce_scatter", 4 * experts, "expert replicas")
    of_experts = plan.replicas // plan.ep if plan.zero else 1
    return gather, scatter, dense / shares + experts / of_experts


def _ring(size: float, ranks: int, link: Link) -> float:
    """Seconds of an all-gather or reduce-scatter of `size` bytes in all."""
    return (ranks - 1) * (link.latency + size / ranks / link.bandwidth)
