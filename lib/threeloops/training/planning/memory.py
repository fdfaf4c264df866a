"""Predict the memory that a plan needs on each GPU."""

from dataclasses import dataclass

from threeloops.training.planning.model import Transformer
from threeloops.training.planning.plan import Plan

__all__ = ["ALLOCATED_SHARE", "Memory", "memory"]

ALLOCATED_SHARE = 0.9
"""Share of the memory reserved by PyTorch's caching allocator that tensors take at the peak. The rest is fragments.
Our predictions for torchtitan's runs of its 8B model are 0.82 to 0.94 of what they reserved, so we take a round number
in that range."""

_LOSS_BYTES = 12
"""Bytes per logit when the loss's backward begins: log-softmax, its gradient and the logits' gradient, in float32."""


@dataclass(frozen=True)
class Memory:
    """Bytes on one rank at its peak."""

    states: float
    """Parameters, masters and optimizer states."""
    gradients: float
    gathered: float
    """16-bit parameters that FSDP has put together for use."""
    activations: float
    """Activations that forward keeps for backward."""
    working: float
    """Working memory of the loss, or of the layer whose backward runs, whichever is more."""

    @property
    def total(self) -> float:
        return self.states + self.gradients + self.gathered + self.activations + self.working


def memory(model: Transformer, plan: Plan) -> list[Memory]:
    """Predict the peak memory of each pipeline rank, when backward begins on the last microbatch that it takes in.

    It leaves out memory that the allocator cannot use (`ALLOCATED_SHARE`), and buffers of kernels and NCCL. If a step
    has one microbatch, there are no gradients yet while the activations exist.
    """
    return [_of_rank(model, plan, rank, layers) for rank, layers in enumerate(plan.layers(model))]


def _of_rank(model: Transformer, plan: Plan, rank: int, layers: int) -> Memory:
    last = rank == plan.pp - 1
    ends = model.embedding_parameters * ((rank == 0) + (last and not (model.tied and plan.pp == 1)))
    states = gathered = accumulated = 0.0
    for part in _parts(model, plan, layers, ends):
        shards = part.replicas if plan.zero else 1
        whole = part.trained + part.frozen
        if plan.zero == 3:  # the parameters are the masters; two layers at a time are gathered, and what is no layer
            share = min(2, layers) / layers if plan.pp == 1 else 1.0
            states += 12 * part.trained / shards + model.frozen_bits / 8 * part.frozen / shards
            gathered += 2 * (part.ends + share * (whole - part.ends))
        else:
            states += part.trained * (2 + 12 / shards) + model.frozen_bits / 8 * part.frozen
        accumulated += 4 * part.trained / (1 if plan.accumulates_whole else shards)
    activations = 2 * plan.tokens * layers * model.saved(plan.recompute) / plan.tp
    loss = _LOSS_BYTES * plan.tokens * model.vocabulary / plan.tp / plan.loss_chunks if last else 0.0
    layer = 2 * plan.tokens * (model.saved("none") - model.saved(plan.recompute)) / plan.tp
    return Memory(
        states,
        accumulated if plan.microbatches > 1 else 0.0,
        gathered,
        plan.in_flight(rank) * activations,
        max(loss, layer),
    )


@dataclass(frozen=True)
class _Part:
    """Parameters that one rank holds, before ZeRO divides them among `replicas`."""

    trained: float
    frozen: float
    ends: float
    """Embedding and head among them."""
    replicas: int


def _parts(model: Transformer, plan: Plan, layers: int, ends: float) -> tuple[_Part, _Part]:
    """All else, and the experts of a rank. The adapters of experts count as if every rank had all of them."""
    experts = layers * model.expert_parameters / plan.ep / plan.tp
    dense = layers * (model.layer_parameters - model.expert_parameters) / plan.tp
    ends /= plan.tp
    if model.adapter_rank:
        adapters = layers * model.adapter_parameters / plan.tp
        return _Part(adapters, dense + ends, ends, plan.replicas), _Part(0.0, experts, 0.0, plan.replicas // plan.ep)
    return _Part(dense + ends, 0.0, ends, plan.replicas), _Part(experts, 0.0, 0.0, plan.replicas // plan.ep)
