"""Input pipelines: their traces, what workers and larger objects change, and the samples that a resumed run sees.

The last part of the module is the library's own prefetcher and sampler, in the form in which lab 07 asks for them. The
end of the lab shows them beside the reader's.
"""

import io
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from threeloops.data.formats.tar_shards import read_tar_shard
from threeloops.data.loading import sampler
from threeloops.data.loading.diagnosis import diagnose
from threeloops.data.loading.prefetch import Prefetcher
from threeloops.data.loading.workers import Loaded, SimulatedWorker, Worker
from threeloops.data.storage.slow_store import SharedLink, VirtualStore
from threeloops.data.storage.store import MemoryStore
from threeloops.figures import figure, legend_above, name_rows, palette
from threeloops.simulation import gantt, pipeline
from threeloops.simulation.clock import VirtualClock

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "Sampler", "as_trace", "draw_ahead", "draw_buffers", "draw_crews", "draw_life", "draw_objects", "draw_pipeline",
    "draw_recorded", "draw_ways", "epoch_seconds", "feed", "read_shard", "utilisation",
]  # fmt: skip

_SAMPLE_BYTES = 600_000
_LATENCY = 0.030
_BANDWIDTH = 200e6
_TIMES_SEEN = {"seen once": palette.green, "seen twice": palette.orange, "never seen": palette.vermillion}


def as_trace(trace: Any) -> pipeline.Trace:
    """Return a trace of the lab, whose stages and intervals have the same fields, as one of the library."""
    return pipeline.Trace(
        tuple((stage.name, stage.workers) for stage in trace.stages),
        tuple(pipeline.Interval(i.stage, i.worker, i.sample, i.start, i.end) for i in trace.intervals),
    )


def draw_recorded(runs: Mapping[str, pipeline.Trace], until: float = 0.62) -> "Figure":
    """Draw the first seconds of several traces below each other, by title."""
    rows = [sum(workers for _, workers in trace.stages) for trace in runs.values()]
    fig, panels = figure(
        len(runs), 1, width=12.5, height=1.0 * len(runs) + 0.3 * sum(rows), sharex=True, height_ratios=rows
    )
    for axes, (title, trace) in zip(panels, runs.items(), strict=True):
        gantt.draw(trace, axes, until=until)
        axes.set_title(f"{title}: training {100 * trace.utilisation:.0f}% of the time")
        if axes is not panels[-1]:
            axes.set_xlabel("")
    return fig


def draw_ahead(ahead: int) -> "Figure":
    """Draw fetches of 37 ms and steps of 10 ms, with so many samples requested in advance."""
    stages = [pipeline.Stage("fetch", latency=0.037, workers=5), pipeline.Stage("train", latency=0.010)]
    trace = pipeline.simulate(stages, [_SAMPLE_BYTES] * 60, ahead)
    fig, axes = figure(width=11.0, height=2.9)
    gantt.draw(trace, axes, until=0.2)
    busy = f"training {100 * trace.utilisation:.0f}% of the time"
    axes.set_title(f"ahead = {ahead}: {busy}, at most {ahead + 1} samples alive")
    return fig


def _copied(copies: Sequence[float], step: float, buffers: int) -> pipeline.Trace:
    """Return the trace of copies of these times beside steps of equal times: a copy waits until its buffer is free."""
    ends: list[float] = []
    work = []
    copied = 0.0
    for number, seconds in enumerate(copies):
        start = max(copied, ends[number - buffers] if number >= buffers else 0.0)
        copied = start + seconds
        begin = max(copied, ends[-1] if ends else 0.0)
        ends.append(begin + step)
        work += [pipeline.Interval("copy", 0, number, start, copied)]
        work += [pipeline.Interval("compute", 0, number, begin, ends[-1])]
    return pipeline.Trace((("copy", 1), ("compute", 1)), tuple(work))


def draw_buffers(copies: Sequence[float], step: float, until: float = 0.2) -> "Figure":
    """Draw the same copies and steps with one buffer and with two."""
    fig, panels = figure(2, 1, width=11.0, height=3.8, sharex=True)
    for axes, buffers in zip(panels, (1, 2), strict=True):
        trace = _copied(copies, step, buffers)
        gantt.draw(trace, axes, until=until)
        name = ("one buffer", "two buffers")[buffers - 1]
        axes.set_title(f"{name}: {1e3 * trace.seconds:.0f} ms for {len(copies)} steps")
    panels[0].set_xlabel("")
    return fig


def utilisation(workers: int, ahead: int, bandwidth: float = _BANDWIDTH, step: float = 0.010) -> float:
    """Return how busy a trainer is behind the library's prefetcher, on a virtual clock; the first sample does not
    count."""
    clock = VirtualClock()
    batches = MemoryStore({str(n): bytes(_SAMPLE_BYTES) for n in range(64)})
    store = VirtualStore(batches, SharedLink(latency=_LATENCY, bandwidth=bandwidth), clock)
    began = None
    for _ in Prefetcher(list(batches.objects), lambda n: SimulatedWorker(store, 0.004, str(n)), workers, ahead):
        began = clock.now() if began is None else began
        clock.sleep_until(clock.now() + step)
    assert began is not None
    return len(batches.objects) * step / (clock.now() - began)


def draw_crews(curves: Mapping[str, Sequence[float]]) -> "Figure":
    """Draw utilisations for 1, 2, … workers, by label."""
    fig, axes = figure(width=9.5, height=3.4)
    for (label, values), colour in zip(curves.items(), (palette.blue, palette.orange, palette.green), strict=False):
        crews = range(1, len(values) + 1)
        axes.plot(crews, [100 * value for value in values], "o-", ms=5, color=colour)
        axes.text(len(values), 100 * values[-1] + 3, label, ha="right", va="bottom", color=colour, fontsize=10)
    axes.set(xlabel="workers", ylabel="% of the time training", ylim=(0, 118), xticks=list(crews))
    axes.set_yticks(range(0, 101, 20))
    axes.set_title("Workers overlap latencies; they do not widen the link")
    return fig


def draw_pipeline(
    latency_ms: float,
    megabytes_per_second: float,
    fetchers: int,
    decode_ms: float,
    decoders: int,
    ahead: int,
    train_ms: float,
) -> "Figure":
    """Draw a pipeline of samples of 0.6 MB, and say what limits it."""
    stages = [
        pipeline.Stage("request", latency=latency_ms / 1e3, workers=fetchers, queue=0),
        pipeline.Stage("transfer", bandwidth=megabytes_per_second * 1e6),
        pipeline.Stage("decode", latency=decode_ms / 1e3, workers=decoders),
        pipeline.Stage("train", latency=train_ms / 1e3),
    ]
    trace = pipeline.simulate(stages, [_SAMPLE_BYTES] * 160, ahead)
    verdict = diagnose(trace)
    advice = f"halving its cost gives up to {verdict.gain[verdict.limit]:.2f}×"
    busiest = max(sum(i.seconds for i in trace.by_stage[name]) / workers for name, workers in trace.stages) / 160
    if train_ms / 1e3 / trace.utilisation > 1.05 * busiest:
        advice = "the loop is slower than that: ask further ahead"
    rows = fetchers + decoders + 2
    fig, axes = figure(width=11.5, height=1.6 + min(0.27 * rows, 3.6))
    axes.tick_params(axis="y", labelsize=min(11, 190 / rows))
    gantt.draw(trace, axes, until=7 * max(latency_ms, train_ms, 10) / 1e3)
    axes.set_title(
        f"training {100 * trace.utilisation:.0f}% of the time; largest cost: {verdict.limit}; {advice}"
        f"\nsamples of 0.6 MB, at most {ahead + 1} alive: {(ahead + 1) * _SAMPLE_BYTES / 1e6:.1f} MB",
        fontsize=11,
    )
    return fig


def epoch_seconds(objects: Sequence[int], readers: int = 16) -> float:
    """Return the seconds that objects of these bytes take at 30 ms and 200 MB/s. Each reader reads one at a time."""
    link = SharedLink(_LATENCY, _BANDWIDTH)
    free = [0.0] * readers
    for number, size in enumerate(objects):
        free[number % readers] = link.reserve(free[number % readers], size)
    return max(free)


def draw_objects(seconds: Mapping[int, float], small: float, floor: float) -> "Figure":
    """Draw the seconds of an epoch by samples per shard, beside those of small files and of the bytes alone."""
    fig, axes = figure(width=8.5, height=3.2)
    axes.plot(list(seconds), list(seconds.values()), "o-", color=palette.blue)
    axes.text(20, seconds[20] * 1.14, "tar shards", color=palette.blue)
    axes.axhline(small, color=palette.vermillion)
    axes.text(
        2000,
        small * 0.9,
        "small files: a request per image and one per label",
        color=palette.vermillion,
        ha="right",
        va="top",
    )
    axes.axhline(floor, color=palette.grey, ls=":", lw=1.2)
    axes.text(2000, floor * 0.93, "the bytes alone", fontsize=9, ha="right", va="top")
    axes.set(xscale="log", yscale="log", xlabel="samples per shard", ylabel="seconds per epoch", ylim=(3.8, 50))
    axes.set_yticks([5, 10, 20, 40], ["5", "10", "20", "40"])
    axes.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    axes.minorticks_off()
    axes.set_title("16 readers, 30 ms, 200 MB/s (model)")
    return fig


def draw_ways(ways: Mapping[str, Sequence[int]], order: Sequence[int]) -> "Figure":
    """Draw a row per way to resume: every sample, at its place in the epoch's order, by how often it was seen."""
    fig, axes = figure(width=11.0, height=0.9 + 0.5 * len(ways))
    for row, seen in enumerate(ways.values()):
        counts = Counter(int(sample) for sample in seen)
        kinds = [list(_TIMES_SEEN)[min(counts[int(sample)], 2) - 1] for sample in order]
        start = 0
        for kind, run in groupby(kinds):
            length = len(list(run))
            axes.broken_barh([(start, length)], (row - 0.35, 0.7), facecolors=_TIMES_SEEN[kind])
            start += length
        shown = [f"{kinds.count(kind)} {kind}" for kind in ("seen twice", "never seen") if kind in kinds]
        axes.text(len(order) * 1.01, row, "\n".join(shown or ["each seen once"]), va="center", fontsize=9)
    name_rows(axes, range(len(ways)), list(ways))
    axes.set(xlim=(0, len(order) * 1.14), ylim=(len(ways) - 0.5, -0.5), xlabel="place in the order of the epoch")
    axes.set_xticks(range(0, len(order) + 1, max(len(order) // 5, 1)))
    legend_above(axes, _TIMES_SEEN)
    return fig


def draw_life(
    alone: pipeline.Trace, killed: pipeline.Trace, lost: Sequence[int], resumed: pipeline.Trace, seconds: float = 0.36
) -> "Figure":
    """Draw a loop without prefetching, and below it one that is killed and resumed, around that moment.

    `lost` are samples that were requested when it was killed: their intervals are grey, and so is the time until the
    next run begins.
    """
    end = max(i.end for i in killed.by_stage[killed.consumer])
    begin = min(i.start for i in resumed.intervals)
    stages = max(killed.stages, resumed.stages, key=lambda rows: sum(workers for _, workers in rows))
    rows = [(name, worker) for name, workers in stages for worker in range(workers)]
    heights = [sum(workers for _, workers in alone.stages), len(rows)]
    fig, (above, below) = figure(2, 1, width=12.0, height=1.7 + 0.26 * sum(heights), height_ratios=heights)
    gantt.draw(alone, above, until=seconds)
    above.set_title(f"One shard at a time: training {100 * alone.utilisation:.0f}% of the time")
    above.set_xlabel("")
    first = (end + begin - seconds) / 2
    window = [i for i in killed.intervals if i.end > first and i.sample not in lost]
    window += [i for i in resumed.intervals if i.start < first + seconds]
    gantt.draw(
        pipeline.Trace(stages, tuple(replace(i, start=max(i.start, first)) for i in window)), below, until=seconds
    )
    for interval in killed.intervals:
        if interval.sample in lost and interval.start < end:
            left = max(interval.start, first)
            width = 1e3 * (min(interval.end, end) - left)
            row = rows.index((interval.stage, interval.worker))
            below.barh(row, width, left=1e3 * (left - first), height=0.84, color=palette.grey, alpha=0.6)
    below.axvspan(1e3 * (end - first), 1e3 * (begin - first), color=palette.grey, alpha=0.25, lw=0)
    middle = 1e3 * ((end + begin) / 2 - first)
    below.text(middle, len(rows) / 2 - 0.5, "killed,\nresumed", ha="center", va="center", color=palette.ink)
    below.set_xlabel(f"ms, from {1e3 * first:,.0f} ms on")
    busy = f"training {100 * killed.utilisation:.0f}% of the time"
    below.set_title(f"With these settings: {busy}; grey: requested, lost, and requested again")
    return fig


class _Tickets(Worker):
    """A worker of the prefetcher that asks a store by ticket."""

    def __init__(self, request: Callable, receive: Callable, cancel: Callable) -> None:
        self.name = "the store"
        self.request = request
        self.answer = receive
        self.cancel = cancel
        self.open: deque[Any] = deque()

    def send(self, key: Any) -> None:
        self.open.append(self.request(key))

    def receive(self) -> Loaded:
        return Loaded(self.answer(self.open.popleft()))

    def stop(self) -> None:
        while self.open:
            self.cancel(self.open.popleft())


def feed(keys: Sequence, ahead: int, request: Callable, receive: Callable, cancel: Callable, train: Callable) -> int:
    """Train on the data of every key, through the library's prefetcher. Returns the number of steps."""
    loaded: Prefetcher[Any] = Prefetcher(keys, lambda _: _Tickets(request, receive, cancel), 1, ahead)
    with loaded:
        for data in loaded:
            train(data)
    return len(keys)


def read_shard(shard: str, data: bytes) -> list:
    """Return the samples of a tar file, read by the library."""
    return list(read_tar_shard(io.BytesIO(data), shard))


class Sampler:
    """The library's sampler for workers that take turns; `state` may be any record of seed, epoch and position."""

    def __init__(self, samples: int, batch: int, workers: int, state: Any) -> None:
        self.kind = type(state)
        self.samples = samples
        self.began = sampler.SamplerState(**asdict(state))
        self.batches = sampler.batches(self.began, samples, batch)
        self.turns = [iter(self.batches[worker :: max(workers, 1)]) for worker in range(max(workers, 1))]
        self.steps = 0

    def batch_for(self, worker: int) -> list[int] | None:
        batch = next(self.turns[worker], None)
        return None if batch is None else batch.tolist()

    def trained(self) -> None:
        self.steps += 1

    def state(self) -> Any:
        used = sum(len(batch) for batch in self.batches[: self.steps])
        return self.kind(**asdict(sampler.advanced(self.began, self.samples, used)))
