"""Pictures of what each stage of ZeRO holds, sends and earns, and a small model that trains with each stage."""

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from threeloops.figures import figure, palette

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

__all__ = ["REFERENCE", "draw_held", "draw_rates", "draw_states", "draw_transfers", "loss_of_stage"]

_PARTS = {"parameters": palette.green, "gradients": palette.sky, "optimizer states": palette.orange}
_STEPS = {"reduce-scatter": palette.purple, "all-gather": palette.green}
_STAGES = ("DDP", "stage 1", "stage 2", "stage 3")


def draw_states(billion_parameters: float, ranks: int) -> "Figure":
    """Draw the GB of parameters, gradients and optimizer states on rank 0 for each stage, beside a GPU of 80 GB."""
    from threeloops.training.sharded import model_states

    fig, axes = figure(width=8.5, height=2.6)
    for stage in range(len(_STAGES)):
        held = model_states([round(billion_parameters * 1e9)], ranks, stage)
        values = held.parameters, held.gradients, held.masters + held.optimizer
        left = 0.0
        for (name, colour), value in zip(_PARTS.items(), values, strict=True):
            axes.barh([3 - stage], [value / 1e9], left=left, color=colour, label=name if stage == 0 else None)
            left += value / 1e9
        axes.text(left, 3 - stage, f" {round(left, 1):,g} GB", va="center")
    axes.axvline(80, color=palette.vermillion, ls="--")
    axes.text(80, 3.6, " 80 GB", color=palette.vermillion, ha="left", va="bottom")
    axes.set(yticks=range(4), yticklabels=_STAGES[::-1], xlabel="GB on rank 0")
    axes.set(xlim=(0, max(100, 1.15 * 16 * billion_parameters)), ylim=(-0.6, 4.1))
    axes.legend(ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.0))
    axes.set_title(f"{billion_parameters:g} billion parameters, {ranks} ranks", loc="left")
    return fig


def draw_transfers(rows: Mapping[str, Sequence[str]]) -> "Figure":
    """Draw what is sent per step, a row of transfers per name. A reduce-scatter and an all-gather send (N − 1)/N each
    of the weights, and an all-reduce is one of each."""
    fig, axes = figure(width=9.0, height=0.62 * len(rows) + 1.1)
    for row, transfers in enumerate(rows.values()):
        for place, transfer in enumerate(transfers):
            axes.barh([row], [0.98], left=place, height=0.62, color=_STEPS[transfer], alpha=0.6)
            axes.text(place + 0.49, row, transfer, ha="center", va="center")
        axes.text(len(transfers) + 0.05, row, f"{len(transfers) / 2:g}×", va="center", weight="bold")
    axes.set_yticks(range(len(rows)), rows)
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlim=(0, max(map(len, rows.values())) + 0.5), xticks=[])
    axes.grid(visible=False)
    axes.set_title("sent per rank and step, and as a multiple of DDP's all-reduce", loc="left")
    return fig


def draw_rates(billion_parameters: float, ranks: int, gpu_gb: float, gb_per_second: float) -> "Figure":
    """Draw the samples per second of each stage, by the model of lab 10: 2 GB and 0.5 s per sample, mixed precision."""
    from threeloops.training.sharded import bytes_sent, model_states

    fig, axes = figure(width=9.0, height=2.8)
    size = round(billion_parameters * 1e9)
    rates = []
    for stage, name in enumerate(_STAGES):
        held = model_states([size], ranks, stage).total / 1e9
        batch = math.floor((gpu_gb - held) / 2)
        seconds = batch * 0.5 + bytes_sent([size], ranks, stage)[0] / 1e9 / gb_per_second
        rates.append(ranks * batch / seconds if batch >= 1 else 0.0)
        label = f"{batch} samples per GPU in {seconds:.2f} s" if batch >= 1 else "does not fit"
        axes.text(rates[-1], stage, f" {rates[-1]:.1f}/s: {label}" if rates[-1] else f" {label}", va="center")
        axes.text(
            -0.02,
            stage,
            f"{name}: {held:,.1f} GB of states",
            ha="right",
            va="center",
            transform=axes.get_yaxis_transform(),
        )
    colours = [palette.orange if rate and rate == max(rates) else palette.sky for rate in rates]
    axes.barh(range(4), rates, height=0.6, color=colours, zorder=1)
    axes.set(ylim=(3.6, -0.6), yticks=[], xlim=(0, 1.9 * max([*rates, 1e-9])), xlabel="samples per second, all GPUs")
    axes.set_title(f"{billion_parameters:g} billion parameters on {ranks} GPUs of {gpu_gb:g} GB", loc="left")
    return fig


def draw_held(counted: Sequence[Sequence[int]], measured: Sequence[int], sent: Sequence[float]) -> "Figure":
    """Draw the counted bytes of parameters, gradients and states of each stage, beside the measured peak of a rank and
    what it sends, as a multiple of DDP."""
    fig, axes = figure(width=9.0, height=3.6)
    mib = 2**20
    for stage, (parts, peak, times) in enumerate(zip(counted, measured, sent, strict=True)):
        left = 0.0
        for (name, colour), size in zip(_PARTS.items(), parts, strict=True):
            axes.barh([stage - 0.19], [size / mib], left=left, height=0.34, color=colour, label="" if stage else name)
            left += size / mib
        axes.barh([stage + 0.19], [peak / mib], height=0.34, color=palette.grey, label="" if stage else "measured peak")
        axes.text(max(left, peak / mib), stage, f"  sends {times:.2f}× of DDP", va="center")
    axes.set_yticks(range(len(counted)), _STAGES[: len(counted)])
    axes.set(ylim=(len(counted) - 0.4, -0.6), xlabel="MiB on a rank", xlim=(0, 1.35 * max(measured) / mib))
    axes.legend(ncols=4, loc="lower right", bbox_to_anchor=(1.0, 1.0), fontsize=9)
    return fig


def loss_of_stage(
    stage: int, parts: Mapping[str, Any], width: int = 512, layers: int = 8, rows: int = 8, steps: int = 6
) -> list[float]:
    """Train linear layers with Adam as stage `stage` of ZeRO does, on every rank. Returns the rank's loss per step.

    `parts` has the answers to `zero_1`, `shard_gradients` and `sharded_linear`. All stages start equal.
    """
    import torch
    import torch.distributed as dist

    rank = dist.get_rank()
    made = torch.Generator().manual_seed(100 + rank)
    x, y = torch.randn(rows, width, generator=made), 0.1 * torch.randn(rows, width, generator=made)
    start = (_weight(layer, width) for layer in range(layers))
    step = (_ddp, _stage_1, _stage_2, _stage_3)[stage](start, parts, width)
    return [step(x, y) for _ in range(steps)]


def _weight(layer: int, width: int) -> "torch.Tensor":
    import torch

    return torch.randn(width, width, generator=torch.Generator().manual_seed(layer)) / math.sqrt(width)


def _loss(weights: Any, x: "torch.Tensor", y: "torch.Tensor", linear: Any = None) -> "torch.Tensor":
    import torch

    for weight in weights:
        x = torch.tanh(linear(x, weight) if linear else x @ weight.T)
    return (x - y).square().mean()


def _ddp(start: Any, parts: Mapping[str, Any], width: int) -> Any:
    import torch
    import torch.distributed as dist

    weights = [torch.nn.Parameter(weight) for weight in start]
    optimizer = torch.optim.Adam(weights, lr=1e-3, foreach=False)

    def step(x: "torch.Tensor", y: "torch.Tensor") -> float:
        loss = _loss(weights, x, y)
        loss.backward()
        for weight in weights:
            dist.all_reduce(weight.grad)
            weight.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def _stage_1(start: Any, parts: Mapping[str, Any], width: int) -> Any:
    import torch

    weights = [torch.nn.Parameter(weight) for weight in start]
    updates = [parts["zero_1"](weight.data.view(-1), torch.optim.Adam, lr=1e-3, foreach=False) for weight in weights]

    def step(x: "torch.Tensor", y: "torch.Tensor") -> float:
        loss = _loss(weights, x, y)
        loss.backward()
        for weight, update in zip(weights, updates, strict=True):
            update(weight.grad.flatten())
            weight.grad = None
        return float(loss.detach())

    return step


def _stage_2(start: Any, parts: Mapping[str, Any], width: int) -> Any:
    import torch
    import torch.distributed as dist

    weights = torch.nn.ParameterList([torch.nn.Parameter(weight) for weight in start])
    finish = parts["shard_gradients"](weights)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pieces = {
        name: torch.nn.Parameter(weight.detach().flatten().chunk(ranks)[rank].clone())
        for name, weight in weights.named_parameters()
    }
    optimizer = torch.optim.Adam(pieces.values(), lr=1e-3, foreach=False)

    def step(x: "torch.Tensor", y: "torch.Tensor") -> float:
        loss = _loss(weights, x, y)
        loss.backward()
        for name, gradient in finish().items():
            pieces[name].grad = gradient
        optimizer.step()
        for name, weight in weights.named_parameters():
            dist.all_gather_into_tensor(weight.detach().view(-1), pieces[name].detach())
        return float(loss.detach())

    return step


def _stage_3(start: Any, parts: Mapping[str, Any], width: int) -> Any:
    import torch
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    pieces = [torch.nn.Parameter(weight.flatten().chunk(ranks)[rank].clone()) for weight in start]
    optimizer = torch.optim.Adam(pieces, lr=1e-3, foreach=False)

    def step(x: "torch.Tensor", y: "torch.Tensor") -> float:
        x.requires_grad_()
        loss = _loss(pieces, x, y, lambda x, piece: parts["sharded_linear"](x, piece, width))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        x.grad = None
        return float(loss.detach())

    return step


def _zero_1(weights: "torch.Tensor", optimizer_class: Any, **options: Any) -> Any:
    import torch
    import torch.distributed as dist

    ranks = dist.get_world_size()
    length = -(-len(weights) // ranks)
    padded = torch.nn.functional.pad(weights, (0, ranks * length - len(weights)))
    piece = torch.nn.Parameter(padded.chunk(ranks)[dist.get_rank()].clone())
    optimizer = optimizer_class([piece], **options)

    def step(gradient: "torch.Tensor") -> None:
        sent = torch.nn.functional.pad(gradient, (0, ranks * length - len(weights)))
        piece.grad = torch.empty(length)
        dist.reduce_scatter_tensor(piece.grad, sent / ranks)
        optimizer.step()
        dist.all_gather_into_tensor(sent, piece.detach())
        weights.copy_(sent[: len(weights)])

    return step


def _shard_gradients(model: "torch.nn.Module") -> Any:
    import torch
    import torch.distributed as dist

    ranks = dist.get_world_size()
    pieces: dict[str, torch.Tensor] = {}

    def reduce(name: str, parameter: Any) -> None:
        pieces[name] = torch.empty(parameter.numel() // ranks)
        dist.reduce_scatter_tensor(pieces[name], parameter.grad.flatten() / ranks)
        parameter.grad = None

    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda p, name=name: reduce(name, p))
    return lambda: dict(pieces)


def _sharded_linear(x: "torch.Tensor", piece: "torch.Tensor", out_features: int) -> "torch.Tensor":
    import torch
    import torch.distributed as dist
    from torch.utils.checkpoint import checkpoint

    class Whole(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, piece: "torch.Tensor") -> "torch.Tensor":
            whole = torch.empty(len(piece) * dist.get_world_size())
            dist.all_gather_into_tensor(whole, piece)
            return whole

        @staticmethod
        def backward(ctx: Any, gradient: "torch.Tensor") -> "torch.Tensor":  # type: ignore[override]
            mean = torch.empty(len(gradient) // dist.get_world_size())
            dist.reduce_scatter_tensor(mean, gradient / dist.get_world_size())
            return mean

    def layer(x: "torch.Tensor", piece: "torch.Tensor") -> "torch.Tensor":
        return x @ Whole.apply(piece).view(out_features, -1).T

    return checkpoint(layer, x, piece, use_reentrant=False)


def _state_bytes(parameters: int, ranks: int, stage: int, mixed: bool) -> SimpleNamespace:
    from threeloops.training.sharded import model_states

    sizes = {} if mixed else {"parameter_bytes": 4, "gradient_bytes": 4, "master_bytes": 0, "optimizer_bytes": 8}
    held = model_states([parameters], ranks, stage, **sizes)
    return SimpleNamespace(
        parameters=held.parameters, gradients=held.gradients, optimizer=held.masters + held.optimizer
    )


REFERENCE: dict[str, Any] = {
    "state_bytes": _state_bytes,
    "zero_1": _zero_1,
    "shard_gradients": _shard_gradients,
    "sharded_linear": _sharded_linear,
}
"""Stand-ins for the answers to lab 10 that a reader has not written: plain ones, that overlap nothing."""
