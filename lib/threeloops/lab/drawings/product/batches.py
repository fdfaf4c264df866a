"""Serving in virtual time: which requests each step computes, and which request holds which block of the cache."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from threeloops.figures import figure, legend_above, name_bar, name_rows, palette
from threeloops.product.batching import Engine, Policy, SimulatedExecutor, StepShape
from threeloops.product.batching.blocks import BlockManager
from threeloops.product.loadgen import Arrival, Replay, requests_of
from threeloops.simulation.clock import VirtualClock
from threeloops.units import time_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BlockMap", "block_maps", "draw_block_map", "draw_budgets", "draw_chunks", "draw_steps"]

_COLORS = {"waiting": palette.grey, "prefill": palette.sky, "decode": palette.orange, "preempted": palette.vermillion}
_OWNERS = (palette.sky, palette.orange, palette.green, palette.yellow, palette.purple, palette.blue, palette.vermillion)


def _phases(run: Replay) -> dict[str, list[tuple[str, float, float]]]:
    """Return the phases of each request as (phase, start, end), in seconds from the beginning of the trace.

    The phases are those of `_COLORS`. Between them a request keeps its seat but is not computed.
    """
    phases: dict[str, list[tuple[str, float, float]]] = {}
    computed = dict.fromkeys((r.id for r in run.requests), 0)
    last = {r.id: r.arrival - run.start for r in run.requests}
    sampled: set[str] = set()
    for step in run.steps:
        for name, (start, count, samples) in zip(step.requests, step.shape.chunks, strict=True):
            spans = phases.setdefault(name, [])
            if not spans:
                spans.append(("waiting", last[name], step.start))
            elif start < computed[name]:
                spans.append(("preempted", last[name], step.start))
            decodes = name in sampled and start == computed[name] and count == 1
            phase = "decode" if decodes else "prefill"
            if spans[-1][0] == phase and spans[-1][2] == step.start:
                spans[-1] = (phase, spans[-1][1], step.end)
            else:
                spans.append((phase, step.start, step.end))
            computed[name] = start + count
            last[name] = step.end
            if samples:
                sampled.add(name)
    return phases


def draw_steps(run: Replay, title: str) -> "Figure":
    """A row per request: a thin line while it waits or is preempted, bars while it is computed."""
    every = _phases(run)
    end = max(span[2] for spans in every.values() for span in spans)
    unit, name = time_unit(end)
    seconds = name.split()[-1].strip("()")
    fig, axes = figure(width=10.0, height=0.9 + 0.23 * len(every))
    for row, spans in enumerate(every.values()):
        for phase, color in _COLORS.items():
            bars = [(start * unit, (stop - start) * unit) for what, start, stop in spans if what == phase]
            height = 0.7 if phase in ("prefill", "decode") else 0.16
            axes.broken_barh(bars, (row - height / 2, height), facecolors=color)
    axes.set(xlim=(0, end * unit), ylim=(len(every) - 0.4, -0.6), xlabel=f"time ({seconds})")
    name_rows(axes, range(len(every)), list(every), fontsize=10)
    axes.set_title(f"{title}: all requests are served after {end * unit:,.3g} {seconds}")
    legend_above(axes, _COLORS)
    return fig


def draw_chunks(names: Sequence[str], steps: Sequence[Sequence[tuple[str, int, int, bool]]]) -> "Figure":
    """Draw the chunks (name, start, count, samples) of an engine's steps, as if each step took a millisecond and all
    requests had arrived at its beginning."""
    made = [
        SimpleNamespace(
            start=place / 1e3,
            end=(place + 1) / 1e3,
            requests=[name for name, *_ in chunks],
            shape=SimpleNamespace(chunks=[chunk[1:] for chunk in chunks]),
        )
        for place, chunks in enumerate(steps)
    ]
    run = SimpleNamespace(start=0.0, steps=made, requests=[SimpleNamespace(id=name, arrival=0.0) for name in names])
    fig = draw_steps(cast(Replay, run), "")
    fig.axes[0].set_xlabel("step")
    fig.axes[0].set_title(f"your engine: {len(steps)} steps")
    return fig


def draw_budgets(measured: Mapping[str, tuple[float, float]]) -> "Figure":
    """Draw what each way to compute prompts costs: the P99 of the gaps against the P99 of the time to first token.

    `measured` maps names to (gap in ms, time to first token in s).
    """
    fig, axes = figure(width=8.5, height=3.4)
    places = list(measured.values())
    axes.plot([gap for gap, _ in places[1:]], [ttft for _, ttft in places[1:]], color=palette.blue, lw=1.2)
    for number, (name, (gap, ttft)) in enumerate(measured.items()):
        axes.plot([gap], [ttft], "s" if number == 0 else "o", color=palette.vermillion if number == 0 else palette.blue)
        axes.annotate(name, (gap, ttft), (7, 5), textcoords="offset points", size=10)
    axes.set(
        xlabel="P99 of the gaps between tokens (ms)",
        ylabel="P99 of the TTFT (s)",
        xlim=(0, 1.3 * max(gap for gap, _ in places)),
        ylim=(0, 1.15 * max(ttft for _, ttft in places)),
    )
    axes.set_title("Each point is a budget in tokens: lower left is better", size=10)
    return fig


@dataclass(frozen=True)
class BlockMap:
    """The cache after a step: the request in each block ("" if free), those waiting, and those preempted so far."""

    seconds: float
    owners: tuple[str, ...]
    waiting: tuple[str, ...]
    preempted: tuple[str, ...]


def block_maps(
    arrivals: Sequence[Arrival], policy: Policy, blocks: int, block_size: int, cost: Callable[[StepShape], float]
) -> list[BlockMap]:
    """The cache after each step of a trace. Blocks are not shared here: turn the prefix cache off."""
    clock = VirtualClock()
    engine = Engine(SimulatedExecutor(clock, cost), BlockManager(blocks, block_size), policy, clock)
    requests = requests_of(arrivals, 256)
    coming = sorted(requests, key=lambda request: request.arrival)[::-1]
    maps = []
    while coming or engine.requests:
        while coming and coming[-1].arrival <= clock.now():
            engine.add(coming.pop())
        engine.scheduler.draining = not coming
        if not engine.step().chunks:
            clock.sleep_until(coming[-1].arrival)
            continue
        owners = [""] * blocks
        for request in engine.scheduler.running:
            for block in request.block_table:
                owners[block] = request.id
        waiting = tuple(request.id for request in engine.scheduler.waiting)
        preempted = tuple(request.id for request in requests if request.preemptions)
        maps.append(BlockMap(clock.now(), tuple(owners), waiting, preempted))
    return maps


def draw_block_map(now: BlockMap, columns: int = 10) -> "Figure":
    """A square per block with the request that holds it, and the requests that wait."""
    rows = -(-len(now.owners) // columns)
    fig, axes = figure(width=7.5, height=1.0 + 0.5 * rows)
    for block, owner in enumerate(now.owners):
        x = block % columns
        y = block // columns
        color = _OWNERS[int(owner) % len(_OWNERS)] if owner else "none"
        axes.bar([x], [0.86], width=0.9, bottom=y - 0.43, color=color, edgecolor=palette.grey, lw=0.8)
        name_bar(axes, x, y, owner, 10)
    free = now.owners.count("")
    axes.set_title(f"{now.seconds * 1e3:,.0f} ms: {free} of {len(now.owners)} blocks are free")
    waiting = " ".join(name + "*" * (name in now.preempted) for name in now.waiting) or "none"
    axes.text(-0.5, rows - 0.1, f"waiting: {waiting}   (*: was preempted)", va="center", ha="left", fontsize=10)
    axes.set(xlim=(-0.6, columns - 0.4), ylim=(rows + 0.2, -0.6))
    axes.axis("off")
    return fig
