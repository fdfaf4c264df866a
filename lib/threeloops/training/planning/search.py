"""The plans that fit, fastest first."""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Literal

from threeloops.training.planning.memory import ALLOCATED_SHARE, memory
from threeloops.training.planning.model import Recompute, Transformer
from threeloops.training.planning.plan import Machine, Plan
from threeloops.training.planning.time import CostsOf, Rates, StepTime, step_time

__all__ = ["plans"]

_LOSS_CHUNKS = 8
"""Parts of the loss, if the logits of a whole microbatch do not fit (as in torchtitan and Liger)."""


def plans(
    model: Transformer,
    machine: Machine,
    gpus: int,
    batch: int,
    sequence: int,
    *,
    context: bool = True,
    zero: Sequence[Literal[0, 1, 2, 3]] = (1, 2, 3),
    recompute: Sequence[Recompute] = ("none", "selective", "full"),
    chunks: Sequence[int] = (1, 2, 4, 8),
    memory_share: float = ALLOCATED_SHARE,
    costs_of: CostsOf = Rates,
) -> list[StepTime]:
    """Return all plans for `gpus` that keep at most `memory_share` of each GPU's memory, sorted by the seconds of a
    step.

    Tensor parallelism stays within a node. A microbatch is one sequence, which gives the smallest bubble and the fewest
    activations. Larger ones would help only if kernels on one sequence are too small. The list is empty if nothing
    fits, or if the batch cannot be divided among this many GPUs.

    Args:
        batch, sequence: sequences per step of all GPUs, and tokens of each.
        context: whether sequences may be cut.
        zero, recompute, chunks: the values to choose from. In a pipeline, stages 2 and 3 of ZeRO keep whole gradients
            and need no less memory than stage 1, so only the lowest of the given stages from 1 on is tried.
        costs_of: how long computations and collectives take.
    """
    if gpus < 1 or not 0 < memory_share <= 1:
        raise ValueError(f"gpus = {gpus}, memory_share = {memory_share}: expected 1 or more, and a share above 0")
    feasible = []
    limit = memory_share * machine.memory_bytes
    for dp, cp, pp, tp in _meshes(model, machine, gpus, batch, sequence, context):
        ways = _divisors(math.gcd(model.experts, dp * cp)) if model.experts else (1,)
        for stage, again, many, ep in product(zero, recompute, chunks, ways):
            if pp == 1 and many > 1 or pp > 1 and (stage > max(1, min(zero)) or many > 1 and batch // dp % pp):
                continue
            if pp * many > model.layers:
                continue
            for loss_chunks in (1, _LOSS_CHUNKS):
                plan = Plan(batch, sequence, dp, cp, pp, tp, 1, many, stage, again, ep, loss_chunks)
                if max(usage.total for usage in memory(model, plan)) <= limit:
                    feasible.append(step_time(model, machine, plan, costs_of))
                    break
    return sorted(feasible, key=lambda step: step.seconds)


def _meshes(
    model: Transformer, machine: Machine, gpus: int, batch: int, sequence: int, context: bool
) -> Iterator[tuple[int, int, int, int]]:
    """dp, cp, pp and tp that multiply to the GPUs and divide batch, sequence, layers and heads."""
    for tp in _divisors(math.gcd(model.kv_heads, gpus)):
        for pp in _divisors(gpus // tp):
            for cp in _divisors(math.gcd(gpus // tp // pp, sequence)) if context else (1,):
                dp = gpus // tp // pp // cp
                if tp <= machine.gpus_per_node and pp <= model.layers and batch % dp == 0 and sequence % (tp * cp) == 0:
                    yield dp, cp, pp, tp


def _divisors(n: int) -> list[int]:
    low = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*low, *(n // d for d in low)})
