"""Drawings of a step's memory (lab 06), and a small GPT that trains within a budget with functions of the caller.

The GPT carries out a schedule of recomputation, takes its batch in parts, and keeps its moments in files.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from threeloops.figures import ON_LIGHT, figure, palette
from threeloops.inner.memory import LiveStorage, draw_bars, draw_timeline
from threeloops.inner.memory.recompute import segment_peak
from threeloops.inner.memory.timeline import Timeline
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "Training", "draw_budgets", "draw_held", "draw_journey", "draw_kinds", "draw_segments",
    "draw_timelines", "draw_within", "tracked",
]  # fmt: skip

_KINDS = (
    ("parameters", palette.blue),
    ("gradients", palette.green),
    ("masters", palette.sky),
    ("states", palette.orange),
    ("activations", palette.vermillion),
    ("temporaries", palette.purple),
)
_C = 6
"""How many times the bytes of its input a layer keeps, in `draw_held`."""
_MOST_PLACES = 500
_TRANSFERS = {"fetch": palette.sky, "update": palette.orange, "write": palette.green}


def draw_kinds() -> "Figure":
    """Draw one GPU, and in front of it the kinds of bytes of a training step, of sizes unknown."""
    fig, axes = figure(width=9.5, height=2.9)
    axes.barh([1], [5.2], left=0.2, height=1.5, color="none", edgecolor=palette.ink, linewidth=2)
    axes.text(2.8, 1, "one GPU: 80 GiB", ha="center", va="center", weight="bold")
    for place, (kind, shade) in enumerate(_KINDS):
        left = 6.6 + 2.1 * (place % 3)
        level = 1.45 - 0.95 * (place // 3)
        axes.barh([level], [1.9], left=left, height=0.65, color=shade, alpha=0.75)
        axes.text(left + 0.95, level, f"{kind}: ?", ha="center", va="center")
    axes.annotate("", (5.6, 1), (6.4, 1), arrowprops={"arrowstyle": "->", "color": palette.ink, "lw": 1.5})
    axes.set(xlim=(0, 13), ylim=(-0.1, 2.2), xticks=[], yticks=[], title="What does a training step hold, and when?")
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(False)
    return fig


def draw_budgets(bars: Mapping[str, dict[str, int]], memory_bytes: float, title: str) -> "Figure":
    """Draw bytes by kind at the worst moment of several steps, beside a GPU's memory."""
    fig, axes = figure(width=11.5, height=3.2)
    draw_bars(axes, dict(bars), unit=1e9)
    last = len(bars) - 1
    for share, level, name in (
        (1.0, last + 0.25, f"dashed: the GPU, {memory_bytes / 1e9:.0f} GB"),
        (0.9, last - 0.25, "dotted: a tenth less"),
    ):
        axes.axvline(share * memory_bytes / 1e9, color=palette.ink, lw=1.5, ls="--" if share == 1 else ":")
        axes.text(memory_bytes / 1e9 + 1.5, level, name, fontsize=10, va="center")
    sizes = [sum(parts.values()) / 1e9 for parts in bars.values()]
    for row, size in enumerate(sizes):
        axes.text(size + 1.5, row, f"{size:.0f} GB", va="center", weight="bold")
    axes.set(xlabel="GB alive at the worst moment of a step", ylim=(last + 0.5, -0.5), title=title)
    axes.set_xlim(right=1.13 * max(sizes))
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return fig


def draw_timelines(counted: Timeline, tracked: Timeline) -> "Figure":
    """Draw the live bytes of a step, as counted before it runs and as tracked while it ran."""
    fig, (left, right) = figure(1, 2, width=12.5, height=3.5, sharey=True)
    for axes, timeline, title in ((left, counted, "Counted before it runs"), (right, tracked, "Tracked while it ran")):
        draw_timeline(axes, timeline)
        axes.set(title=title, xlabel="allocations and frees, in order")
        begin = timeline.marks[0][0] if timeline.marks else 0
        top = timeline.peak_bytes / 2**20
        at = timeline.peak_at - begin
        axes.annotate(
            f"{top:.2f} MiB at the loss", (at, top), (8, 0), textcoords="offset points", va="center", weight="bold"
        )
        axes.set_ylim(top=1.1 * top)
    left.set_ylabel("MiB alive")
    handles, labels = right.get_legend_handles_labels()
    right.legend(handles[::-1], labels[::-1], loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return fig


def draw_held(
    actions: Sequence[tuple[str, int]],
    inputs: Sequence[Sequence[int]],
    recorded: Sequence[Sequence[int]],
    k: int,
    frame: int,
) -> "Figure":
    """Draw what a schedule holds after an action, layer by layer, and on the right how much that is over time.

    Args:
        inputs: after each action, the layers whose input is kept.
        recorded: after each action, the layers that are recorded.
        k: layers per segment, for the bound (L/k)·b + k·c.
    """
    layers = 1 + max(layer for _, layer in actions)
    fig, (left, right) = figure(1, 2, width=10.5, height=2.6, width_ratios=[3, 2])
    names = range(layers)
    bottoms = [int(i in inputs[frame]) for i in names]
    left.bar(names, bottoms, color=palette.blue, width=0.7)
    left.bar(names, [_C * (i in recorded[frame]) for i in names], bottom=bottoms, color=palette.orange, width=0.7)
    left.set(ylim=(0, _C + 1.5), yticks=[], xticks=names, xticklabels=[f"layer {i}" for i in names])
    kind, layer = actions[frame]
    left.set_title(f"{kind} {layer}: {len(inputs[frame])}·b + {len(recorded[frame])}·c held")
    left.grid(visible=False)
    held = [len(i) + _C * len(r) for i, r in zip(inputs, recorded, strict=True)]
    bound = layers // k + k * _C
    right.step(range(len(held)), held, where="post", color=palette.grey, lw=1.2)
    right.plot([frame], [held[frame]], "o", color=palette.vermillion, ms=8)
    right.axhline(bound, color=palette.ink, lw=1, ls="--")
    right.text(0, 1.08 * bound, f"(L/k)·b + k·c, with c = {_C}·b", va="bottom", fontsize=10)
    right.set(ylim=(0, 1.3 * bound), yticks=[], xticks=[], xlabel="actions, in order", ylabel="bytes held")
    right.grid(visible=False)
    return fig


def draw_segments(layers: int, b: float, c: float, tracked: Mapping[int, float], everything: float) -> "Figure":
    """Draw the bytes that segments of k layers hold, for each k: as the formula says, and as tracked.

    Args:
        b: bytes of a layer's input.
        c: bytes of all that a layer keeps.
        tracked: measured bytes for some k.
        everything: measured bytes if nothing is recomputed.
    """
    fig, axes = figure(width=9.5, height=3.4)
    ks = [k for k in range(1, layers + 1) if layers % k == 0]
    inputs = [layers // k * b / 2**20 for k in ks]
    segments = [k * c / 2**20 for k in ks]
    axes.bar(range(len(ks)), inputs, color=palette.blue, width=0.62)
    axes.bar(range(len(ks)), segments, bottom=inputs, color=palette.orange, width=0.62)
    axes.plot([ks.index(k) for k in tracked], [size / 2**20 for size in tracked.values()], "D", color=palette.ink, ms=5)
    axes.axhline(everything / 2**20, color=palette.vermillion, lw=1.5, ls="--")
    axes.text(-0.4, 1.02 * everything / 2**20, "nothing recomputed", va="bottom", color=palette.vermillion)
    top = everything / 2**20
    for level, shade, words in (
        (0.82, palette.blue, "blue: (L/k)·b, inputs of all segments"),
        (0.7, palette.orange, "orange: k·c, all of one segment"),
        (0.58, palette.ink, "diamonds: tracked"),
    ):
        axes.text(-0.4, level * top, words, color=shade, weight="bold", va="center")
    for place, k in enumerate(ks):
        size = segment_peak(layers, k, b, c) / 2**20
        axes.text(place, size + 0.03 * top, f"{size:.1f}", ha="center", fontsize=10) if k < layers else None
    axes.set(xticks=range(len(ks)), xticklabels=ks, xlabel="layers per segment, k", ylabel="MiB of activations")
    axes.set_ylim(top=1.14 * top)
    axes.set_title(f"{layers} layers, c = {c / b:.1f}·b: the fewest layers per segment hold the least")
    return fig


def _journey(buffers: int, chunks: int, seconds: Mapping[str, float]) -> list[tuple[str, int, float, float]]:
    """Return (what, chunk, begin, seconds) of all transfers and updates of a step."""
    link = 0.0
    done = 0.0
    arrived: list[float] = []
    drawn = []

    def carry(what: str, chunk: int) -> None:
        nonlocal link
        drawn.append((what, chunk, link, seconds[what]))
        link += seconds[what]
        if what == "fetch":
            arrived.append(link)

    for chunk in range(min(buffers, chunks)):
        carry("fetch", chunk)
    for chunk in range(chunks):
        begin = max(done, arrived[chunk])
        drawn.append(("update", chunk, begin, seconds["update"]))
        done = begin + seconds["update"]
        link = max(link, done)
        carry("write", chunk)
        if chunk + buffers < chunks:
            carry("fetch", chunk + buffers)
    return drawn


def draw_journey(fetch: float, update: float, write: float, chunks: int = 6) -> "Figure":
    """Draw a step of an offloaded optimizer on its link and its processor, with 1, 2 and 3 buffers."""
    seconds = {"fetch": fetch, "update": update, "write": write}
    fig, panels = figure(3, 1, width=11, height=4.4, sharex=True)
    ends = {}
    for axes, buffers in zip(panels, (1, 2, 3), strict=True):
        drawn = _journey(buffers, chunks, seconds)
        ends[buffers] = max(begin + taken for _, _, begin, taken in drawn)
        for what, chunk, begin, taken in drawn:
            row = int(what == "update")
            axes.barh(row, taken, left=begin, color=_TRANSFERS[what], edgecolor="white", height=0.8)
            if taken > 0.025 * ends[1]:
                axes.text(
                    begin + taken / 2, row, f"{what[0]}{chunk}", ha="center", va="center", fontsize=9, color=ON_LIGHT
                )
        saved = f", {1 - ends[buffers] / ends[1]:.0%} less than with one" if buffers > 1 else ""
        axes.set_title(f"{buffers} buffer{'s' * (buffers > 1)}: {ends[buffers]:g} units of time{saved}", fontsize=11)
        axes.set(yticks=[0, 1], yticklabels=["link", "update"], xlim=(0, 1.02 * ends[1]))
        axes.grid(axis="y", visible=False)
    panels[-1].set_xlabel("time (blue: fetch, orange: update, green: write)")
    return fig


class _CarriedOut(torch.autograd.Function):
    """The actions of a schedule: those up to the last layer's output forward, and the others backward."""

    @staticmethod
    def forward(ctx: Any, owner: "_Scheduled", context: tuple, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.owner = owner
        ctx.context = context
        ctx.kept = {}
        ctx.recorded = {}
        at = 0
        number = 0
        while at < len(owner.layers):
            x, at = _act(ctx, owner.actions[number], x, at)
            number += 1
        ctx.actions = owner.actions[number:]
        return x.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple:  # type: ignore[override]
        gradients: dict[int, Tensor] = {}
        x = gradient
        at = -1
        for action, layer in ctx.actions:
            if action != "backward":
                x, at = _act(ctx, (action, layer), x, at)
                continue
            given, output = ctx.recorded.pop(layer)
            own = list(ctx.owner.layers[layer].parameters())
            gradient, *others = torch.autograd.grad(output, [given, *own], gradient)
            gradients |= {id(parameter): of for parameter, of in zip(own, others, strict=True)}
            ctx.kept.pop(layer, None)
            del given, output
        return None, None, gradient, *(gradients[id(parameter)] for parameter in ctx.owner.layers.parameters())


def _act(ctx: Any, action: tuple[str, int], x: Tensor, at: int) -> tuple[Tensor, int]:
    """Carry out an action, and return the current value and the layer whose input it is."""
    kind, layer = action
    if kind == "keep":
        ctx.kept[layer] = x
        return x, at
    if kind == "restore":
        return ctx.kept[layer], layer
    module = ctx.owner.layers[layer]
    if kind == "forward":
        with torch.no_grad():
            return module(x, *ctx.context), layer + 1
    with torch.enable_grad():
        given = x.detach().requires_grad_()
        output = module(given, *ctx.context)
    ctx.recorded[layer] = given, output
    return output.detach(), layer + 1


class _Scheduled(nn.Module):
    """Layers as one, which carry out a schedule when they train.

    `actions` are pairs of "keep", "forward", "restore", "record" or "backward" and a layer's number, and must be
    possible: lab 06 has the rules.
    """

    def __init__(self, layers: nn.ModuleList, actions: Sequence[tuple[str, int]]) -> None:
        super().__init__()
        self.layers = layers
        self.actions = list(actions)

    def forward(self, x: Tensor, *context: Any) -> Tensor:
        return _CarriedOut.apply(self, context, x, *self.layers.parameters())


class Training:
    """Two steps of a small GPT on random tokens, of which some do not count, as functions without arguments.

    `parameters` holds the parameters after the run that came last, as one array that no tracker counts.
    """

    steps = 2

    def __init__(self, config: GPTConfig, batch: int, length: int, lr: float = 1e-3) -> None:
        generator = torch.Generator().manual_seed(0)
        self.config = config
        self.lr = lr
        self.tokens = torch.randint(config.vocabulary_size, (batch, length), generator=generator)
        self.targets = self.tokens.roll(-1, 1)
        for row in range(batch):
            self.targets[row, length - row * length // (2 * batch) :] = -100  # padding, of another length in each
        self.parameters: Any = None

    def _model(self) -> GPT:
        torch.manual_seed(0)
        return GPT(self.config)

    def plain(self) -> None:
        """Train on the whole batch, with everything in memory."""
        model = self._model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.lr, foreach=False)
        for _ in range(self.steps):
            optimizer.zero_grad(set_to_none=True)
            model(self.tokens, self.targets).backward()
            optimizer.step()
        self._note(model)

    def within(
        self,
        micro: int,
        k: int,
        folder: str | None,
        *,
        schedule: Callable[[int, int], list[tuple[str, int]]],
        accumulated: Callable[..., tuple[Tensor, list[Tensor]]],
        update: Callable[[str, Tensor, Tensor, int], Tensor],
    ) -> None:
        """Train on `micro` sequences at a time, in segments of `k` layers, with moments in `folder`.

        Args:
            k: 0 if nothing is recomputed.
            folder: None if the moments stay in memory.
            schedule: `schedule(layers, k)` returns the actions of a step.
            accumulated: `accumulated(weights, tokens, targets, micro)` returns a loss and its gradients. It calls
                `mean_loss(weights, tokens, targets)` of its module, which is the GPT's meanwhile.
            update: `update(folder, parameter, gradient, step)` returns the new parameter.
        """
        model = self._model()
        weights = list(model.parameters())
        optimizer = torch.optim.AdamW(weights, lr=self.lr, foreach=False) if folder is None else None
        if k:
            model.blocks = nn.ModuleList([_Scheduled(model.blocks, schedule(self.config.layers, k))])
        for step in range(1, self.steps + 1):
            with _replaced(accumulated, "mean_loss", lambda _, tokens, targets: model(tokens, targets)):
                _, gradients = accumulated(weights, self.tokens, self.targets, micro)
            for number, weight in enumerate(weights):
                if optimizer is not None:
                    weight.grad = gradients[number]
                    continue
                with torch.no_grad():
                    weight.copy_(update(f"{folder}/{number}", weight.detach(), gradients[number], step))
            del gradients
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        self._note(model)

    def _note(self, model: GPT) -> None:
        self.parameters = np.concatenate([weight.detach().numpy().ravel() for weight in model.parameters()])


@contextmanager
def _replaced(function: Callable[..., object], name: str, value: object) -> Iterator[None]:
    """Give a name in the module of `function` another value for a while."""
    names = function.__globals__  # type: ignore[attr-defined]
    before = names[name]
    names[name] = value
    try:
        yield
    finally:
        names[name] = before


def tracked(run: Callable[[], object]) -> Timeline:
    """Return the library's timeline of everything that is alive while `run()` runs."""
    with LiveStorage() as live:
        run()
    return live.timeline


def draw_within(
    plain: Timeline, within: Timeline, capacity: float, peaks: Sequence[int], names: Sequence[str]
) -> "Figure":
    """Draw the live bytes of two runs, each on a scale of its own, with a budget and the peaks that another tracker has
    measured."""
    fig, panels = figure(1, 2, width=12, height=3.4)
    for axes, timeline, peak, name in zip(panels, (plain, within), peaks, names, strict=True):
        live = [change.live / 1e6 for change in timeline.changes]
        step = max(1, len(live) // _MOST_PLACES)
        drawn = [max(live[first : first + step]) for first in range(0, len(live), step)]
        places = range(0, len(live), step)
        axes.fill_between(places, drawn, color=palette.vermillion, alpha=0.75, lw=0, step="post")
        for level, words, shade, style in (
            (capacity / 1e6, "budget", palette.ink, "--"),
            (peak / 1e6, f"peak, by your tracker: {peak / 1e6:.1f} MB", palette.blue, ":"),
        ):
            axes.axhline(level, color=shade, lw=1.5, ls=style)
            axes.annotate(
                words, (len(live), level), (-2, 2), textcoords="offset points", ha="right", va="bottom", color=shade
            )
        axes.set(title=name, xlabel="allocations and frees, in order", ylim=(0, 1.2 * max(peak, capacity) / 1e6))
        axes.margins(x=0)
    panels[0].set_ylabel("MB alive")
    return fig
