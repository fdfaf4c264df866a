"""A training step from kernels and fitted collectives, with the structure of `planning.step_time`."""

from dataclasses import dataclass

from threeloops.inner.predict.silicon import Ring, Sheet, collective_seconds, fitted
from threeloops.training.by_kernels.assumptions import Assumptions
from threeloops.training.by_kernels.layer import Kernels
from threeloops.training.planning.model import Transformer
from threeloops.training.planning.plan import Machine, Plan
from threeloops.training.planning.time import bubble, exposed

__all__ = ["KernelStep", "kernel_step"]


@dataclass(frozen=True)
class KernelStep:
    """Seconds of one step. Each part counts only by how much it lengthens the step."""

    products: float
    attention: float
    light: float
    """Element-wise kernels and norms."""
    recomputed: float
    head: float
    tensor: float
    """Collectives of tensor parallelism."""
    context: float
    """Keys, values and their gradients, gathered and scattered."""
    bubble: float
    """Filling and emptying the pipeline."""
    data: float
    """Gradients and parameters between replicas."""
    optimizer: float

    @property
    def seconds(self) -> float:
        compute = self.products + self.attention + self.light + self.recomputed + self.head
        return compute + self.tensor + self.context + self.bubble + self.data + self.optimizer


def kernel_step(
    model: Transformer, machine: Machine, plan: Plan, device: str, assumed: Assumptions | None = None
) -> KernelStep:
    """Predict the time of a step on GPUs called `device`, whose rates replace those of `machine`.

    The slowest pipeline rank sets the pace. Collectives of tensor and context parallelism are exposed, and repeated
    where a layer is computed again. Those of data parallelism are hidden behind the layers that compute meanwhile.
    Raises LookupError for a device whose kernels nobody published, and ValueError for experts, adapters or matmuls in
    fewer than 16 bits.
    """
    _require_dense(model, machine)
    assumed = assumed or Assumptions()
    kernels = Kernels(model, plan, device, assumed)
    groups = plan.groups
    m = plan.microbatches
    layers = plan.layers(model)
    most = max(layers)

    def collective(operation: str, size: float, axis: str) -> float:
        return _collective(kernels.sheet, machine, operation, size, groups[axis], assumed.between)

    stream = 2 * plan.tokens * model.width
    pair = collective("all_gather", stream, "tp") + collective("reduce_scatter", stream, "tp")
    passes = 3 if plan.recompute == "full" else 2  # backward repeats the collectives of forward too
    tensor = 2 * pair * passes
    keys = 2 * 2 * plan.microbatch * plan.sequence * model.kv_width / plan.tp
    context = passes * collective("all_gather", keys, "cp")
    of_layer = kernels.layer.total + kernels.again
    with_head = [count * of_layer + kernels.head * (rank == plan.pp - 1) for rank, count in enumerate(layers)]
    slowest = max(range(plan.pp), key=lambda rank: with_head[rank])
    per_microbatch = with_head[slowest] + most * (tensor + context)
    transfer = machine.link(groups["pp"]).seconds(stream // plan.tp) if plan.pp > 1 else 0.0
    parameters = (most * model.layer_parameters + model.embedding_parameters) / plan.tp
    gather = collective("all_gather", 2 * parameters, "replicas")
    scatter = collective("reduce_scatter", 4 * parameters, "replicas")
    ahead = most * (kernels.layer.forward + tensor / passes)
    count = layers[slowest]
    return KernelStep(
        products=m * count * kernels.products.total,
        attention=m * count * kernels.attention.total,
        light=m * count * kernels.light.total,
        recomputed=m * count * kernels.again,
        head=m * kernels.head * (slowest == plan.pp - 1),
        tensor=m * most * tensor,
        context=m * most * context,
        bubble=bubble(plan, per_microbatch, transfer),
        data=exposed(plan, most, gather, scatter, ahead, per_microbatch - ahead),
        optimizer=kernels.optimizer(parameters / (plan.replicas if plan.zero else 1)),
    )


def _require_dense(model: Transformer, machine: Machine) -> None:
    if model.experts or model.adapter_rank or machine.product_flops is not None:
        raise ValueError(
            f"experts = {model.experts}, adapter_rank = {model.adapter_rank}, product_flops = {machine.product_flops}: "
            "expected 0, 0 and None, because only dense models that are trained in 16 bits have kernels here; "
            "planning.step_time predicts the others"
        )


def _collective(device: Sheet, machine: Machine, operation: str, size: float, ranks: range, between: float) -> float:
    """Return the seconds of an all-gather or reduce-scatter of `size` bytes: inside a node by the fitted ring, between
    nodes by a share of the line rate."""
    count = len(ranks)
    if count == 1:
        return 0.0
    nodes, per_node = machine.spread(ranks)
    ring = fitted(Ring, device.name, operation)
    if nodes == 1:
        return float(collective_seconds(device, operation, count, size, ring))
    together = between * machine.between.bandwidth * per_node
    bandwidth = min(ring.reach * device.link, together)
    return (count - 1) * machine.link(ranks).latency + (count - 1) / count * size / bandwidth
