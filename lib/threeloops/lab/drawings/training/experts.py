"""Tokens and experts: which experts the tokens choose, and how the tokens travel there and back."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from threeloops.figures import ON_LIGHT, figure, palette
from threeloops.training.expert_parallel import Load, keep_within_capacity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["REFERENCE", "draw_degrees", "draw_dropped", "draw_exchange", "draw_expert_load", "expert_load"]

_STAGES = (
    "each rank has four tokens",
    "the router has chosen: the colour is the expert",
    "sorted by expert",
    "on the way to the experts",
    "all tokens of an expert are on its rank",
    "computed",
    "on the way back",
    "back on their rank, sorted by expert",
    "in the old order",
)
"""The caption of each frame of `draw_exchange`."""

_COLOURS = (palette.orange, palette.sky, palette.green)


def expert_load(tokens: int, experts: int, *, k: int, skew: float, factor: float, seed: int = 0) -> Load:
    """How the choices of tokens fall on experts that are liked more or less: the logits of a token are random (Gumbel
    noise), plus from `skew` for expert 0 down to 0 for the last one. With a skew of 0 every choice is equally likely.
    """
    uniform = torch.rand(tokens, experts, generator=torch.Generator().manual_seed(seed)).clamp(1e-9, 1 - 1e-7)
    logits = torch.linspace(skew, 0, experts) - (-uniform.log()).log()
    chosen = logits.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    within = keep_within_capacity(chosen, experts, factor)
    counts = (torch.bincount(choices.flatten(), minlength=experts) for choices in (chosen, chosen[within]))
    return Load(*(tuple(count.tolist()) for count in counts))


def draw_expert_load(load: Load, factor: float) -> "Figure":
    """Draw a bar per expert: the rows that it computes, and in red those that it dropped. The line is the fair
    share."""
    fig, axes = figure(width=9.0, height=2.9)
    numbers = range(len(load.kept))
    dropped = [chosen - computed for chosen, computed in zip(load.chosen, load.kept, strict=True)]
    axes.bar(numbers, load.kept, color=palette.blue, label="computed")
    axes.bar(numbers, dropped, bottom=load.kept, color=palette.vermillion, label="dropped")
    fair = sum(load.chosen) / len(load.chosen)
    axes.plot([-0.6, len(load.kept) - 0.4], [fair, fair], color=palette.ink, lw=1.0, ls="--")
    axes.text(len(load.kept) - 0.35, fair, "fair share", va="center", ha="left")
    axes.set_xlim(-0.6, len(load.kept) + 0.6)
    axes.set_xticks(list(numbers))
    axes.set_xlabel("expert")
    axes.set_ylabel("choices")
    slower = max(load.kept) / fair
    named = "no capacity" if math.isinf(factor) else f"capacity factor {factor:g}"
    share = f"{load.dropped / sum(load.chosen):.1%} dropped"
    axes.set_title(f"{named}: {share}; the busiest expert computes {slower:.2f}× its fair share")
    axes.legend(loc="upper right", ncols=2)
    return fig


def draw_dropped(tokens: Sequence[int], experts: int, routings: int = 20) -> "Figure":
    """Draw the share of tokens that finds its expert full: a dot per random routing, for several numbers of tokens.

    Every expert is equally likely, and takes its fair share of the tokens.
    """
    fig, axes = figure(width=8.5, height=2.8)
    for place, count in enumerate(tokens):
        loads = [expert_load(count, experts, k=1, skew=0.0, factor=1.0, seed=seed) for seed in range(routings)]
        shares = [100 * load.dropped / count for load in loads]
        axes.scatter([place + 0.012 * (n - routings / 2) for n in range(routings)], shares, s=16, color=palette.blue)
        mean = sum(shares) / routings
        axes.plot([place - 0.16, place + 0.16], [mean, mean], color=palette.vermillion, lw=2.0)
        axes.text(place + 0.2, mean, f"mean {mean:.1f}%", va="center")
    axes.set(xlim=(-0.5, len(tokens) - 0.3), ylim=(0, None), ylabel="dropped (%)")
    axes.set_xticks(range(len(tokens)), [f"{count:,} tokens\n{count // experts:,} per expert" for count in tokens])
    axes.set_title(f"{experts} equally likely experts, capacity factor 1: {routings} random routings each")
    return fig


def draw_degrees(
    tokens: float, parameters: float, network: float, nvlink: float = 450e9, gpus: int = 64, memory: float = 80e9
) -> "Figure":
    """Draw the communication of a step in seconds for each degree of tensor parallelism, with nodes of 8 GPUs.

    The rest is data parallelism over the network. Activations and gradients have 16 bits.
    """
    layers = round((parameters / 12 / 128**2) ** (1 / 3))
    width = 128 * layers
    degrees = (1, 2, 4, 8, 16, 32)
    fig, axes = figure(width=8.5, height=2.9)
    tensor = [16 * layers * tokens * width * (n - 1) / gpus / (nvlink if n <= 8 else network) for n in degrees]
    data = [4 * parameters * (gpus / n - 1) / gpus / network for n in degrees]
    totals = [a + b for a, b in zip(tensor, data, strict=True)]
    fits = [16 * parameters / n <= memory for n in degrees]
    best = min(total for total, fit in zip(totals, fits, strict=True) if fit)
    top = 1.35 * max(totals[:4])
    axes.bar(range(len(degrees)), tensor, color=palette.sky, label="tensor parallel: activations")
    axes.bar(range(len(degrees)), data, bottom=tensor, color=palette.orange, label="data parallel: gradients")
    for place, (seconds, fit) in enumerate(zip(totals, fits, strict=True)):
        off = seconds > top
        weight = "bold" if fit and seconds == best else "normal"
        colour = ON_LIGHT if off else palette.ink
        text = f"{seconds:.3f} s" + " ↑" * off
        height = min(seconds, 1.08 * top)
        axes.text(place, height, text, ha="center", va="top" if off else "bottom", color=colour, weight=weight)
    named = [f"{n}" if fit else f"{n}\ndoes not fit" for n, fit in zip(degrees, fits, strict=True)]
    axes.set_xticks(range(len(degrees)), named)
    axes.set(xlabel="tensor-parallel degree n", ylabel="communication (s)", ylim=(0, 1.12 * top))
    axes.set_title(f"{layers} layers of width {width:,}, {tokens / 1e3:,.0f}k tokens per step, {gpus} GPUs")
    axes.legend()
    return fig


class _Place(NamedTuple):
    x: float
    y: float


def _places(chosen: Sequence[Sequence[int]], frame: int) -> dict[tuple[int, int], _Place]:
    """Return the place of each token (rank, position) in a frame. Rank r has expert r."""
    home = {(rank, t): _Place(t, -rank) for rank, picks in enumerate(chosen) for t in range(len(picks))}
    waiting = {}
    for rank, picks in enumerate(chosen):
        for place, (_, t) in enumerate(sorted((expert, t) for t, expert in enumerate(picks))):
            waiting[rank, t] = _Place(place, -rank)
    arrived: dict[tuple[int, int], _Place] = {}
    first = max(map(len, chosen)) + 2
    for rank, t in sorted(home):
        expert = chosen[rank][t]
        before = sum(place.y == -expert for place in arrived.values())
        arrived[rank, t] = _Place(first + before, -expert)
    if frame in (0, 1, 8):
        return home
    if frame in (2, 7):
        return waiting
    if frame in (4, 5):
        return arrived
    done = 0.4  # of the way: in the middle some would hide others
    return {
        token: _Place(a.x + done * (b.x - a.x), a.y + done * (b.y - a.y))
        for token, (a, b) in {token: (waiting[token], arrived[token]) for token in home}.items()
    }


def draw_exchange(chosen: Sequence[Sequence[int]], frame: int) -> "Figure":
    """One frame of the tokens' way: `chosen[rank][t]` is the expert of a rank's token t, and rank r has expert r."""
    fig, axes = figure(width=9.5, height=2.9)
    first = max(map(len, chosen)) + 2
    width = max(sum(picks.count(expert) for picks in map(list, chosen)) for expert in range(len(chosen)))
    for rank in range(len(chosen)):
        axes.text(-0.8, -rank, f"rank {rank}", ha="right", va="center", weight="bold")
        axes.barh([-rank], [width], left=first - 0.5, height=0.8, color=_COLOURS[rank], alpha=0.15)
        axes.text(first + width - 0.35, -rank, f"expert {rank}", ha="left", va="center")
    computed = frame >= 5
    for (rank, t), place in _places(chosen, frame).items():
        colour = palette.grey if frame == 0 else _COLOURS[chosen[rank][t]]
        axes.scatter(
            [place.x], [place.y], s=430, color=colour, edgecolors=palette.ink, lw=2.2 if computed else 0.0, zorder=3
        )
        name = "abcdefghijklmnopqrstuvwxyz"[sum(map(len, chosen[:rank])) + t]
        axes.text(place.x, place.y, name, ha="center", va="center_baseline", color=ON_LIGHT, weight="bold", zorder=4)
    axes.set_xlim(-2.2, first + width + 1.2)
    axes.set_ylim(-len(chosen) + 0.4, 0.6)
    axes.axis("off")
    axes.set_title(f"{frame + 1}. {_STAGES[frame]}")
    return fig


def _keep_within_capacity(experts: torch.Tensor, capacity: int) -> torch.Tensor:
    count = 1 + int(experts.max())
    return keep_within_capacity(experts, count, capacity * count / experts.numel())


def _expert_layer(
    x: torch.Tensor, chosen: torch.Tensor, run_expert: Callable[[int, torch.Tensor], torch.Tensor], experts: int
) -> torch.Tensor:
    """The exchange of the library's `ExpertParallel`, for one expert per token and weights of 1."""
    import torch.distributed as dist

    from threeloops.training.expert_parallel.layer import exchange_rows, own_experts

    held = own_experts(experts)
    ranks = dist.get_world_size()
    order = chosen.sort(stable=True).indices
    counts = torch.bincount(chosen, minlength=experts)
    came = exchange_rows(counts, [len(held)] * ranks, [len(held)] * ranks).view(ranks, -1)
    sends = counts.view(ranks, -1).sum(1).tolist()
    gets = came.sum(1).tolist()
    here = exchange_rows(x[order], sends, gets)
    by_expert = torch.arange(len(held)).repeat(ranks).repeat_interleave(came.flatten()).sort(stable=True).indices
    parts = here[by_expert].split(came.sum(0).tolist())
    out = torch.cat([run_expert(expert, part) for expert, part in zip(held, parts, strict=True)])
    return exchange_rows(out[by_expert.argsort()], gets, sends)[order.argsort()]


REFERENCE: dict[str, Any] = {"keep_within_capacity": _keep_within_capacity, "expert_layer": _expert_layer}
"""Stand-ins for the answers to lab 11 that a reader has not written."""
