"""A mixture of experts on several ranks: two all-to-alls carry tokens to their experts and back.

After Lepikhin et al. 2020 ("GShard"). Messages hold only the rows that are kept, whereas GShard pads each expert's rows
to its capacity. That means fewer bytes, but needs an exchange of counts beforehand.
"""

# ruff: noqa: F722  the strings are jaxtyping shapes, not forward references

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor, nn

from threeloops.training.expert_parallel.capacity import Load, expert_capacity, keep_within_capacity
from threeloops.training.expert_parallel.placement import CopyRouter
from threeloops.training.expert_parallel.router import Router, Routing

__all__ = ["ExpertParallel", "exchange_rows", "own_experts"]


def own_experts(experts: int, group: dist.ProcessGroup | None = None) -> range:
    """Which of all experts this rank has: equal parts, in order."""
    size = dist.get_world_size(group)
    rank = dist.get_rank(group)
    if experts % size:
        raise ValueError(f"{experts} experts cannot be shared equally by {size} ranks: use a multiple of {size}")
    return range(rank * experts // size, (rank + 1) * experts // size)


def exchange_rows(
    rows: Float[Tensor, "sent width"], sends: list[int], gets: list[int], group: dist.ProcessGroup | None = None
) -> Float[Tensor, "got width"]:
    """All-to-all: `sends[r]` rows go to rank r, in order, and `gets[r]` come from it. Gradients take the way back."""
    return _ExchangeRows.apply(rows, sends, gets, group)


class _ExchangeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, sends: list[int], gets: list[int], group: dist.ProcessGroup | None) -> Tensor:
        ctx.sends = sends
        ctx.gets = gets
        ctx.group = group
        out = rows.new_empty(sum(gets), *rows.shape[1:])
        dist.all_to_all_single(out, rows.contiguous(), gets, sends, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _ExchangeRows.apply(gradient, ctx.gets, ctx.sends, ctx.group), None, None, None


class ExpertParallel(nn.Module):
    """y = Σ over a token's kept choices of weight · expert(token). A token with no kept choice gives zeros.

    Each rank has its own tokens and the same router. Its experts are `own_experts(router.experts, group)` of all. After
    forward, `routing` holds the decisions for this rank's tokens, for the auxiliary losses. `load` holds how they fell
    and how many were dropped.

    An expert's gradient is the sum over the tokens of all ranks, since their losses reach it through the all-to-all.
    The router's gradient comes from this rank's tokens and needs the all-reduce of data parallelism. If that takes a
    mean over n ranks, divide the experts' gradients by n. Every rank must run the backward, with a loss that depends on
    its output, since each all-to-all has its counterpart there.

    Args:
        experts: this rank's experts, each a module from (rows, width) to (rows, width). One that no token chose gets 0
            rows.
        capacity_factor: see `expert_capacity`. It counts per rank of tokens. `inf` drops nothing.
    """

    routing: Routing
    load: Load

    def __init__(
        self,
        router: Router | CopyRouter,
        experts: Sequence[nn.Module],
        group: dist.ProcessGroup | None = None,
        *,
        capacity_factor: float = 1.25,
    ) -> None:
        super().__init__()
        expert_capacity(0, router.experts, router.k, capacity_factor)
        expected = own_experts(router.experts, group)
        if len(experts) != len(expected):
            raise ValueError(
                f"{len(experts)} experts on rank {dist.get_rank(group)}: expected {len(expected)}, numbers "
                f"{expected.start} to {expected.stop - 1} of {router.experts}"
            )
        self.router = router
        self.experts = nn.ModuleList(experts)
        self.group = group
        self.capacity_factor = capacity_factor

    def forward(self, x: Float[Tensor, "... width"]) -> Float[Tensor, "... width"]:
        tokens = x.flatten(0, -2)
        self.routing = routing = self.router(tokens)
        within = keep_within_capacity(routing.experts, self.router.experts, self.capacity_factor)

        # The kept choices, sorted by expert, and so by the rank that has it.
        token, choice = within.nonzero(as_tuple=True)
        order = routing.experts[token, choice].sort(stable=True).indices
        token = token[order]
        choice = choice[order]
        count = torch.bincount(routing.experts[token, choice], minlength=self.router.experts)
        chosen = torch.bincount(routing.experts.flatten(), minlength=self.router.experts)
        self.load = Load(tuple(chosen.tolist()), tuple(count.tolist()))

        out = self._run_experts(tokens[token], count)
        weighted = out * routing.weights[token, choice, None].to(out.dtype)
        return torch.zeros_like(tokens).index_add(0, token, weighted).view(x.shape)

    def _run_experts(self, rows: Tensor, count: Tensor) -> Tensor:
        """Send rows, sorted by expert with `count` for each, to their experts, compute, and bring the results back."""
        arriving = torch.empty_like(count)  # from each rank, for each of this rank's experts
        dist.all_to_all_single(arriving, count, group=self.group)
        ranks = dist.get_world_size(self.group)
        sends = count.view(ranks, -1).sum(1).tolist()
        gets = arriving.view(ranks, -1).sum(1).tolist()

        here = exchange_rows(rows, sends, gets, self.group)
        mine = torch.arange(len(self.experts), device=count.device).repeat(ranks).repeat_interleave(arriving)
        by_expert = mine.sort(stable=True).indices  # they arrive rank by rank, and expert by expert from each
        parts = here[by_expert].split(arriving.view(ranks, -1).sum(0).tolist())
        out = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        back = torch.empty_like(by_expert)
        back[by_expert] = torch.arange(len(back), device=back.device)
        return exchange_rows(out[back], gets, sends, self.group)
