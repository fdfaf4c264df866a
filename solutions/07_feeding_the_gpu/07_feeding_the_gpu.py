# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
#   threeloops:
#     title: Is the GPU hungry?
#     minutes: 180
#     withholds: [threeloops.data, threeloops.simulation]
# ---

# %% [markdown]
# # Is the GPU hungry?
#
# A training step takes 10 ms. Its samples lie in an object store that answers after 30 ms. Written the obvious way
# (fetch, decode, copy, train, and again) the loop keeps the GPU busy for a fifth of the time. Nothing in it is slow.
# Everything in it waits for everything else.
#
# The cure costs no hardware. Here is the same loop twice, on the same machine, drawn as it happens in time:

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from threeloops.lab import audit, check, explore, hint, predict, show

# %% tags=["demo"] jupyter={"source_hidden": true}
SAMPLE_BYTES = 600_000

import dataclasses

from threeloops.lab import figure, palette
from threeloops.simulation import gantt, pipeline

LOOP = [  # a batch of 600 kB from an object store, on its way to a GPU
    pipeline.Stage("request", latency=0.030, workers=8),
    pipeline.Stage("transfer", bandwidth=200e6),
    pipeline.Stage("decode", latency=0.004, workers=2),
    pipeline.Stage("copy", bandwidth=12e9),
    pipeline.Stage("train", latency=0.010),
]
ONE_OF_EACH = [dataclasses.replace(stage, workers=1) for stage in LOOP]
without = pipeline.simulate(ONE_OF_EACH, [SAMPLE_BYTES] * 200, ahead=0)
with_prefetch = pipeline.simulate(LOOP, [SAMPLE_BYTES] * 200, ahead=12)
assert without.utilisation < 0.40 and with_prefetch.utilisation >= 0.95
fig, panels = figure(2, 1, width=12.5, height=5.8, sharex=True, height_ratios=[5, 13])
for axes, trace, title in (
    (panels[0], without, "Fetch, then train"),
    (panels[1], with_prefetch, "The same loop, asking for 12 batches in advance, 8 requests at a time"),
):
    gantt.draw(trace, axes, until=0.24)
    axes.set_title(f"{title}: the GPU trains {100 * trace.utilisation:.0f}% of the time")
panels[0].set_xlabel("")
show.figure(fig)

# %% [markdown]
# Green is the GPU. Above it, the road that every batch takes: a request to the store, the transfer over one link, decoding,
# the copy to the device. Nothing takes less time in the lower picture than in the upper one. It only begins earlier, and up to eight requests wait side by
# side.
#
# In this lab you learn to see which picture you are in, and to draw the lower one:
#
# 1. read a trace: how busy is the GPU, what does it wait for, and what would doubling a stage give;
# 2. ask early: prefetch over a slow store, and double-buffer the copy to the device;
# 3. ask for more at once: tar shards against a million small files;
# 4. go on exactly where a run was interrupted, with any number of workers.
#
# Everything runs on a CPU. Stores are simulated where a number must be the same on every machine, and real where the
# machine itself is the question; the text at each figure says which.

# %% tags=["demo"]
predict(
    "serial_utilisation",
    "A loop fetches a sample in 52 ms, decodes it in 2 ms and trains on it in 18 ms, one after the other. How busy is the trainer?",
    unit="%",
    guess=None,
)
predict(
    "one_worker_gain",
    "Now one background thread fetches ahead of it. How many times faster is the loop?",
    unit="×",
    guess=None,
)

# %% [markdown]
# ## 1 · Who is starving whom?
#
# A loop that is too slow has a trace, and a trace is data: who worked on which sample, from when to when. Three
# questions look alike and are not.
#
# - **How busy** was each stage? The GPU's own share is the number that pays the bills.
# - **What did the GPU wait for**, while it waited? Look at the sample that came next, and ask where it was at the time.
# - **What limits** the loop? If the stages overlap, a stage with *w* workers delivers a sample every
#   (mean duration / *w*), and the slowest of these is the pace of all. If they do not overlap, the durations add up.
#
# The last one is the one that predicts. It says what doubling a stage would give, before anybody buys it, as long as
# enough samples are under way.
#
# ### Exercise 1 (25 points)
#
# `diagnose(trace: Trace) -> Diagnosis`
#
# `trace.stages` lists the stages in the order of the pipeline; the last one is the **consumer** and has one worker.
# `trace.intervals` come in **any** order, and samples need not be consumed in the order of their numbers; each passes a
# stage once at most. Times are in seconds.
#
# | field | meaning |
# |---|---|
# | `utilisation` | time the consumer worked, divided by the time from the start of its first interval to the end of its last. The filling of the pipeline does not count |
# | `overlapped` | whether **two different stages** ever work at the same moment. One that starts exactly when another ends does not overlap it; an interval of length 0 overlaps nothing |
# | `busy` | for each stage: the sum of its durations, divided by workers × the time from the first start to the last end in the whole trace |
# | `blame` | for each stage but the consumer: the seconds in which the consumer was idle *between two of its intervals* while the sample of the later one was being worked on in that stage |
# | `limit` | the stage with the largest cost; of equals, the first in the pipeline. Its cost is its mean duration, divided by its workers if `overlapped` |
# | `gain` | for each stage: how many times faster the loop gets when this stage's cost is halved. The time of a sample is the largest cost if `overlapped`, and the sum of all costs if not |
#
# A stage without intervals costs 0. Steps of the consumer take time, so none of these divisions is by zero and no two steps
# start together. **Errors**, each a `ValueError`: an interval of a stage that `trace.stages` does not
# have, naming that stage; a consumer without intervals, naming the consumer.


# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_trace", "locked": true, "schema_version": 3, "solution": false, "task": false}
@dataclass(frozen=True)
class Stage:
    """One step of an input pipeline, and how many samples it works on at once."""

    name: str
    workers: int


@dataclass(frozen=True)
class Interval:
    """`worker` of `stage` worked on `sample` from `start` to `end`, in seconds."""

    stage: str
    worker: int
    sample: int
    start: float
    end: float


@dataclass(frozen=True)
class Trace:
    title: str
    stages: list  # of Stage, in the order of the pipeline; the last is the consumer
    intervals: list  # of Interval, in any order


@dataclass(frozen=True)
class Diagnosis:
    utilisation: float
    overlapped: bool
    busy: dict  # stage → share of its time
    blame: dict  # stage → seconds; without the consumer
    limit: str
    gain: dict  # stage → times faster


def load_traces(path: str) -> list:
    """The recorded loops of `data/`."""
    raw = json.loads(Path(path).read_text(encoding="utf-8"))
    return [
        Trace(each["title"], [Stage(*row) for row in each["stages"]], [Interval(*row) for row in each["intervals"]])
        for each in raw["loops"]
    ]


# %% nbgrader={"grade": false, "grade_id": "diagnose", "locked": false, "schema_version": 3, "solution": true, "task": false}
def diagnose(trace: Trace) -> Diagnosis:
    """What a loop did with its time, and what would make it faster."""
    ### BEGIN SOLUTION
    stages = {stage.name: [] for stage in trace.stages}
    workers = {stage.name: stage.workers for stage in trace.stages}
    for each in sorted(trace.intervals, key=lambda interval: (interval.start, interval.end)):
        if each.stage not in stages:
            raise ValueError(f"stage {each.stage!r} of sample {each.sample} is not one of {', '.join(stages)}")
        stages[each.stage].append(each)
    *feeding, consumer = stages
    if not stages[consumer]:
        raise ValueError(f"{consumer!r} has no intervals: nothing was consumed")

    total = {name: sum(each.end - each.start for each in found) for name, found in stages.items()}
    seconds = max(each.end for each in trace.intervals) - min(each.start for each in trace.intervals)
    steps = stages[consumer]
    overlapped = any_overlap(trace.intervals)
    cost = {
        name: total[name] / max(len(found), 1) / (workers[name] if overlapped else 1) for name, found in stages.items()
    }
    pace = max if overlapped else sum
    return Diagnosis(
        utilisation=total[consumer] / (steps[-1].end - steps[0].start),
        overlapped=overlapped,
        busy={name: total[name] / (workers[name] * seconds) for name in stages},
        blame={name: waited(steps, stages[name]) for name in feeding},
        limit=max(cost, key=cost.get),
        gain={name: pace(cost.values()) / pace((cost | {name: cost[name] / 2}).values()) for name in cost},
    )


def any_overlap(intervals: list) -> bool:
    latest = {}
    for each in sorted((i for i in intervals if i.end > i.start), key=lambda interval: interval.start):
        if any(end > each.start for stage, end in latest.items() if stage != each.stage):
            return True
        latest[each.stage] = max(each.end, latest.get(each.stage, each.end))
    return False


def waited(steps: list, intervals: list) -> float:
    place = {each.sample: each for each in intervals}
    idle = 0.0
    for last, following in zip(steps, steps[1:], strict=False):
        if following.sample in place:
            there = place[following.sample]
            idle += max(0.0, min(there.end, following.start) - max(there.start, last.end))
    return idle
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "diagnose",
    "Sort the consumer's intervals by their start first. Between one of them and the next lies a gap; the sample that is awaited in it is the one of the next interval.",
    "The share of a gap that a stage is to blame for is the overlap of two intervals: the gap, and the awaited sample's interval in that stage: max(0, min(ends) − max(starts)).",
    "Put the costs in a dict. The time of a sample is `max(cost.values())` or `sum(cost.values())`, and a gain is that time before, divided by that time with one cost halved.",
)

# %% nbgrader={"grade": true, "grade_id": "diagnose_test", "locked": true, "points": 25, "schema_version": 3, "solution": false, "task": false}
with check("diagnose", "what a trace says"):
    serial = Trace(
        "one after the other",
        [Stage("fetch", 1), Stage("train", 1)],
        [
            Interval("fetch", 0, 0, 0.0, 3.0),
            Interval("train", 0, 0, 3.0, 4.0),
            Interval("fetch", 0, 1, 4.0, 7.0),
            Interval("train", 0, 1, 7.0, 8.0),
        ],
    )
    check.close(
        diagnose(serial),
        Diagnosis(0.4, False, {"fetch": 0.75, "train": 0.25}, {"fetch": 3.0}, "fetch", {"fetch": 1.6, "train": 8 / 7}),
        what="diagnose of a loop that fetches and trains in turns",
        hint={
            "utilisation": "2 s of work between 3 s, when the first step starts, and 8 s: the first fetch fills the pipeline and does not count",
            "overlapped": "a step that starts when the fetch ends does not overlap it",
            "blame": "the consumer was idle from 4 s to 7 s, and sample 1 was being fetched all the while",
            "gain": "nothing overlaps, so the costs add up: 4 s a sample, and 2.5 s with half the fetch",
        },
    )
    fed = Trace(
        "two workers fetch, one decodes",
        [Stage("fetch", 2), Stage("decode", 1), Stage("train", 1)],
        [
            Interval("fetch", 0, 0, 0.0, 4.0),
            Interval("fetch", 1, 1, 0.0, 4.0),
            Interval("decode", 0, 0, 4.0, 7.0),
            Interval("train", 0, 0, 7.0, 8.0),
            Interval("decode", 0, 1, 7.0, 10.0),
            Interval("train", 0, 1, 10.0, 11.0),
        ],
    )
    check.close(
        diagnose(fed),
        Diagnosis(
            0.5,
            True,
            {"fetch": 8 / 22, "decode": 6 / 11, "train": 2 / 11},
            {"fetch": 0.0, "decode": 2.0},
            "decode",
            {"fetch": 1.0, "decode": 1.5, "train": 1.0},
        ),
        what="diagnose of a loop with two workers that fetch",
        hint={
            "busy": "two workers have twice the time: divide by workers × 11 s",
            "blame": "idle from 8 s to 10 s, when sample 1 was being decoded; before its first step the consumer waits for no *next* sample",
            "limit": "a fetch takes 4 s, but two workers share them: 2 s a sample against 3 s of decode",
            "gain": "with decode at 1.5 s the next limit is fetch, at 2 s: 3 / 2",
        },
    )
    in_pairs = Trace(
        "two fetch at once, and then both are trained on; written down in any order",
        [Stage("fetch", 2), Stage("train", 1)],
        [
            Interval("train", 0, 0, 5.0, 6.0),
            Interval("fetch", 0, 2, 6.0, 10.0),
            Interval("fetch", 1, 1, 0.0, 4.0),
            Interval("train", 0, 1, 4.0, 5.0),
            Interval("fetch", 0, 0, 0.0, 3.0),
            Interval("train", 0, 2, 10.0, 11.0),
        ],
    )
    check.close(
        diagnose(in_pairs),
        Diagnosis(
            3 / 7,
            False,
            {"fetch": 11 / 22, "train": 3 / 11},
            {"fetch": 4.0},
            "fetch",
            {"fetch": (11 / 3 + 1) / (11 / 6 + 1), "train": (11 / 3 + 1) / (11 / 3 + 0.5)},
        ),
        what="diagnose of a loop that fetches two samples at once, and trains when both are there",
        hint={
            "utilisation": "from the first start to the last end of the consumer, whatever the order of the list",
            "overlapped": "two workers of one stage are not two stages",
            "blame": "in the order of their starts the steps are of the samples 1, 0 and 2, whatever the order of the list",
            "gain": "nothing overlaps: the costs add up, and no cost is divided by workers",
        },
    )
    check.raises(
        ValueError,
        diagnose,
        Trace(
            "?",
            [Stage("fetch", 1), Stage("train", 1)],
            [Interval("decode", 0, 0, 0.0, 1.0), Interval("train", 0, 0, 1.0, 2.0)],
        ),
        names="decode",
    )

    ### BEGIN HIDDEN TESTS
    def read(trace):  # every quantity from its definition, over all pairs
        names = [stage.name for stage in trace.stages]
        count = {stage.name: stage.workers for stage in trace.stages}
        of = {name: [i for i in trace.intervals if i.stage == name] for name in names}
        steps = sorted(of[names[-1]], key=lambda i: (i.start, i.end))
        worked = {name: math.fsum(i.end - i.start for i in of[name]) for name in names}
        span = max(i.end for i in trace.intervals) - min(i.start for i in trace.intervals)
        at_once = any(
            a.stage != b.stage and min(a.end, b.end) > max(a.start, b.start)
            for a in trace.intervals
            for b in trace.intervals
        )
        costs = []
        for name in names:
            mean = worked[name] / len(of[name]) if of[name] else 0.0
            costs.append(mean / count[name] if at_once else mean)
        whole = max(costs) if at_once else sum(costs)
        gains = {}
        for k, name in enumerate(names):
            halved = [c / 2 if j == k else c for j, c in enumerate(costs)]
            gains[name] = whole / (max(halved) if at_once else sum(halved))
        blamed = dict.fromkeys(names[:-1], 0.0)
        for k in range(1, len(steps)):
            for name in blamed:
                for i in of[name]:
                    if i.sample == steps[k].sample:
                        blamed[name] += max(0.0, min(i.end, steps[k].start) - max(i.start, steps[k - 1].end))
        return Diagnosis(
            worked[names[-1]] / (max(i.end for i in steps) - steps[0].start),
            at_once,
            {name: worked[name] / count[name] / span for name in names},
            blamed,
            names[costs.index(max(costs))],
            gains,
        )

    def run(seed):  # a pipeline with ample queues, random times, and samples with numbers in random order
        rng = check.rng(seed)
        stages = [Stage(n, int(rng.integers(1, 4))) for n in ("request", "decode", "copy")[: int(rng.integers(1, 4))]]
        stages.append(Stage("train", 1))
        numbers = [int(n) for n in rng.permutation(100)[: int(rng.integers(2, 15))]]
        found, left = [], [[] for _ in stages]
        for k, number in enumerate(numbers):
            ready = left[-1][-1] if seed % 3 == 0 and k else 0.0
            for s, stage in enumerate(stages):
                start = max(ready, left[s][k - stage.workers] if k >= stage.workers else 0.0)
                shortest = 0.0 if s + 1 < len(stages) else 0.5  # steps of no length would have no order
                end = start + float(rng.choice([shortest, 1.0, 2.0, 5.0, shortest + float(rng.uniform(0, 4))]))
                ready = max(end, left[s][-1] if left[s] else 0.0)
                left[s].append(ready)
                found.append(Interval(stage.name, k % stage.workers, number, start, end))
        if left[-1][-1] == min(i.start for i in found if i.stage == "train"):
            found[-1] = Interval("train", 0, numbers[-1], found[-1].start, found[-1].end + 1.0)
        return Trace(f"made up {seed}", stages, [found[int(j)] for j in rng.permutation(len(found))])

    causes = {
        "utilisation": "from the first start to the last end of the consumer, whatever the order of the list",
        "overlapped": "any two different stages, not only neighbours, and of any two samples",
        "blame": "the consumer's intervals in the order of their starts; the awaited sample is that of the later one",
        "limit": "the largest cost; workers share it only if stages overlap",
        "gain": "halve one cost and take the largest (or the sum) again: another stage may be the limit then",
    }
    for seed in range(40):
        check.close(diagnose(run(seed)), read(run(seed)), what=f"diagnose of the made-up trace {seed}", hint=causes)
    for recorded in load_traces("data/loops.json"):
        check.close(diagnose(recorded), read(recorded), what=f"diagnose of {recorded.title!r}", hint=causes)
    even = [Interval("fetch", 0, 0, 0.0, 1.0), Interval("train", 0, 0, 1.0, 2.0)]
    even = Trace("even", [Stage("fetch", 1), Stage("train", 1)], even)
    check.equal(diagnose(even).limit, "fetch", what="limit of two stages of the same cost", hint="the first of equals")
    empty = Trace("cached", [Stage("fetch", 1), Stage("train", 1)], [Interval("train", 0, 0, 1.0, 2.0)])
    check.close(
        diagnose(empty),
        read(empty),
        what="diagnose of a trace without any fetch",
        hint="a stage without intervals costs 0",
    )
    nothing = Trace("?", [Stage("fetch", 1), Stage("train", 1)], [Interval("fetch", 0, 0, 0.0, 1.0)])
    check.raises(ValueError, diagnose, nothing, names="train")
    ### END HIDDEN TESTS


# %% [markdown]
# ### Three recorded loops
#
# Not simulated: a store with real waiting, real decompression, and a matrix multiplication for a training step, recorded
# on a 2-core CPU. First with nothing in advance, then with one thread that fetches six samples ahead, then with four.

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.data.loading import diagnosis

LOOPS = load_traces("data/loops.json")


def as_library(trace):
    return pipeline.Trace(
        tuple((stage.name, stage.workers) for stage in trace.stages),
        tuple(pipeline.Interval(i.stage, i.worker, i.sample, i.start, i.end) for i in trace.intervals),
    )


recorded = {trace.title: as_library(trace) for trace in LOOPS}
found = {title: diagnosis.diagnose(trace) for title, trace in recorded.items()}
fig, panels = figure(3, 1, width=12.5, height=7.4, sharex=True, height_ratios=[3, 3, 9])
for axes, (title, trace) in zip(panels, recorded.items(), strict=True):
    gantt.draw(trace, axes, until=0.62)
    axes.set_title(f"Recorded, {title}: training {100 * found[title].utilisation:.0f}% of the time")
    if axes is not panels[-1]:
        axes.set_xlabel("")
show.figure(fig)
show.table(
    [
        [
            title,
            f"{trace.seconds:.2f} s",
            f"{100 * each.utilisation:.0f}%",
            "yes" if each.overlapped else "no",
            each.limit,
            ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in each.blame.items()),
            ", ".join(f"{stage} {times:.2f}×" for stage, times in each.gain.items()),
        ]
        for (title, trace), each in zip(recorded.items(), found.values(), strict=True)
    ],
    ["loop", "time of 48 samples", "utilisation", "overlap", "limit", "blame", "gain if its cost is halved"],
)
serial, one, four = recorded.values()
show.against_prediction(
    "serial_utilisation", round(100 * serial.utilisation), unit="%", source="recorded on a 2-core CPU"
)
show.against_prediction(
    "one_worker_gain", round(serial.seconds / one.seconds, 2), unit="×", source="recorded on a 2-core CPU"
)

# %% [markdown]
# One thread in advance is no cure. It hides the shorter of the two, training, behind the longer, and the loop still takes
# a fetch a sample. The diagnosis says so before anybody tries: *limit fetch, gain 2.0×*. In the first loop the same table
# gives fetch a gain of 1.6×, and that is the difference between a sum and a maximum.
#
# How many requests are enough? **Little's law** again, as in lab 02: to receive a sample every 18 ms from a store that
# takes 52 ms, 52 / 18 ≈ 3 requests have to be under way at every moment. With four the trainer is the limit, and the only
# thing left to buy is a faster trainer.
#
# Two cautions for real traces. A stage called *fetch* mixes waiting with bytes: more workers overlap the waiting, and never
# widen the link. And workers that fetch *and* decode are one stage with two names; here decoding is so short that it does
# not show.
#
# ### Explore
#
# A pipeline with a store of your choice. Three things worth finding: how far ahead you must ask before more workers help
# at all; the bandwidth below which nothing helps; and what happens to the memory (the number of samples alive) while you
# turn everything up.


# %% tags=["demo"] jupyter={"source_hidden": true}
def busy_seconds(trace, name):
    return sum(each.end - each.start for each in trace.by_stage[name])


def draw_pipeline(latency_ms, megabytes_a_second, fetchers, decode_ms, decoders, ahead, train_ms):
    stages = [
        pipeline.Stage("request", latency=latency_ms / 1e3, workers=fetchers, queue=0),
        pipeline.Stage("transfer", bandwidth=megabytes_a_second * 1e6),
        pipeline.Stage("decode", latency=decode_ms / 1e3, workers=decoders),
        pipeline.Stage("train", latency=train_ms / 1e3),
    ]
    trace = pipeline.simulate(stages, [SAMPLE_BYTES] * 160, ahead)
    verdict = diagnosis.diagnose(trace)
    advice = f"halving its cost gives up to {verdict.gain[verdict.limit]:.2f}×"
    pace = train_ms / 1e3 / trace.utilisation
    if pace > 1.05 * max(busy_seconds(trace, name) / workers for name, workers in trace.stages) / 160:
        advice = "the loop is slower than that: ask further ahead"
    rows = fetchers + decoders + 2
    fig, axes = figure(width=11.5, height=1.6 + min(0.27 * rows, 3.6))
    axes.tick_params(axis="y", labelsize=min(11, 190 / rows))
    gantt.draw(trace, axes, until=14 * max(latency_ms, train_ms, 10) / 1e3 / 2)
    axes.set_title(
        f"training {100 * trace.utilisation:.0f}% of the time; largest cost: {verdict.limit}; {advice}"
        f"\nsamples of 0.6 MB, at most {ahead + 1} alive: "
        f"{(ahead + 1) * SAMPLE_BYTES / 1e6:.1f} MB",
        fontsize=11,
    )
    return fig


explore(
    draw_pipeline,
    latency_ms=(0, 100, 5, 30),
    megabytes_a_second=(20, 500, 20, 200),
    fetchers=(1, 16, 1, 4),
    decode_ms=(0, 20, 1, 4),
    decoders=(1, 8, 1, 2),
    ahead=(0, 24, 1, 3),
    train_ms=(2, 40, 1, 10),
)

# %% [markdown]
# ## 2 · Ask early
#
# The store answers after 30 ms whether you stand and wait or not. So ask for the next samples *before* you train on this
# one. That is prefetching: the same requests, made earlier. What it costs is memory, because what has arrived and is not
# used yet has to lie somewhere; a loop that asks for everything at once asks for the whole data set.
#
# The second wait is shorter and sits at the end: a batch has to be copied to the GPU. The copy engine and the
# multiprocessors can work at the same time. Work for a GPU is queued in *streams*; we put copies in one and kernels in
# another. Work in one stream runs in the order in which it was queued; work in two streams runs side by side, and *nothing* keeps a copy from overwriting a batch that is
# still being read, except an event on which you made it wait. With two buffers one is filled while the other is used:
# **double buffering**.
#
# Both are graded on a virtual clock: a simulation that says exactly what happened when, and takes no time.
#
# ### Exercise 2 (25 points)
#
# **`feed(keys, ahead, request, receive, cancel, train) -> int`** runs a training loop over a far store.
#
# | function | does | takes |
# |---|---|---|
# | `request(key)` | asks the store for a sample; returns a ticket | no time |
# | `receive(ticket)` | waits until the answer is there and returns it; raises `TimeoutError` if the store gives up; **the ticket is closed either way** | until it arrives |
# | `cancel(ticket)` | gives up a request whose ticket is still open | no time |
# | `train(data)` | one step | its time |
#
# - Train on the data of every key once, in the order of `keys`. A key may occur twice.
# - Before it waits for a sample, `feed` has requested that sample and the `ahead` samples behind it (fewer at the end),
#   each once and in order; and nothing else. So at most `ahead + 1` samples are requested and not yet trained on.
# - Returns the number of steps.
# - If `receive` or `train` raises, the steps before have been done, **every ticket that is still open is cancelled**,
#   once, and the exception goes on unchanged.
# - `ahead` below 0 raises `ValueError` that names `ahead`, before anything is requested.
#
# **`double_buffer(batches, copy, compute, record, wait) -> None`** queues the work of an epoch on a GPU with two buffers,
# 0 and 1. All four functions only queue something and return at once.
#
# | function | queues |
# |---|---|
# | `copy(buffer, batch)` | in the stream `"copy"`: the copy of a batch from the host into a buffer |
# | `compute(buffer)` | in the stream `"compute"`: a step on what the buffer holds |
# | `record(stream)` | an event that happens when everything queued in this stream *so far* is done; returns the event |
# | `wait(stream, event)` | that nothing queued in this stream *from now on* starts before the event has happened |
#
# - Step *i* computes on batch *i*, in order. No copy writes to a buffer while a step reads it, and no step reads a buffer
#   before its batch is complete, **however long copies and steps take**.
# - Nothing waits longer than that requires: copy *i* may start when copy *i − 1* and step *i − 2* are done, step *i*
#   when copy *i* and step *i − 1* are.


# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_machines", "locked": true, "schema_version": 3, "solution": false, "task": false}
class FarStore:
    """A store on a virtual clock. Latencies overlap; the link carries one answer after another, in the order asked."""

    def __init__(self, objects, latency, bandwidth, step, timeout=math.inf):
        self.objects, self.latency, self.bandwidth, self.step = dict(objects), latency, bandwidth, step
        self.timeout, self.now, self.link_free = timeout, 0.0, 0.0
        self.requested, self.trained, self.cancelled = [], [], []
        self.tickets = {}  # open ones: ticket → (key, when it was asked for, when it arrives)
        self.alive = self.most_alive = 0
        self.trace = []

    def request(self, key):
        arrives = max(self.now + self.latency, self.link_free) + len(self.objects[key]) / self.bandwidth
        self.link_free = arrives
        self.tickets[len(self.requested)] = (key, self.now, arrives)
        self.requested.append(key)
        self.alive += 1
        self.most_alive = max(self.most_alive, self.alive)
        return len(self.requested) - 1

    def _close(self, ticket):
        if ticket not in self.tickets:
            raise KeyError(
                f"ticket {ticket!r} was never given, or is closed: received, cancelled, or given up by the store"
            )
        return self.tickets.pop(ticket)

    def receive(self, ticket):
        key, asked, arrives = self._close(ticket)
        self.trace.append(Interval("fetch", 0, ticket, asked, arrives))
        if arrives > asked + self.timeout:
            self.now = max(self.now, asked + self.timeout)
            self.alive -= 1
            raise TimeoutError(f"{key}: no answer within {self.timeout:g} s")
        self.now = max(self.now, arrives)
        return self.objects[key]

    def cancel(self, ticket):
        self.cancelled.append(self._close(ticket)[0])
        self.alive -= 1

    def train(self, data):
        self.trace.append(Interval("train", 0, len(self.trained), self.now, self.now + self.step))
        self.now += self.step
        self.trained.append(data)
        self.alive -= 1


class TwoStreams:
    """A GPU with a copy engine, two buffers, and times of your choice for each copy and each step."""

    def __init__(self, copy_seconds, step_seconds):
        self.seconds = {"copy": list(copy_seconds), "compute": list(step_seconds)}
        self.free = {"copy": 0.0, "compute": 0.0}  # when everything queued in a stream is done
        self.events, self.copies, self.steps = [], [], []

    def copy(self, buffer, batch):
        self.copies.append((buffer, batch, *self._queue("copy", len(self.copies), buffer)))

    def compute(self, buffer):
        self.steps.append((buffer, *self._queue("compute", len(self.steps), buffer)))

    def _queue(self, stream, number, buffer):
        if buffer not in (0, 1):
            raise ValueError(f"buffer = {buffer!r}: there are two, 0 and 1")
        start = self.free[stream]
        self.free[stream] = start + self.seconds[stream][number]
        return start, self.free[stream]

    def record(self, stream):
        self.events.append(self.free[stream])
        return len(self.events) - 1

    def wait(self, stream, event):
        self.free[stream] = max(self.free[stream], self.events[event])

    def results(self):
        """(the batch that each step computed on, None for a buffer that was not complete; what went wrong)."""
        found, faults = [], []
        for number, (buffer, start, end) in enumerate(self.steps):
            before = [copy for copy in self.copies if copy[0] == buffer and copy[3] <= start]
            found.append(max(before, key=lambda copy: copy[3])[1] if before else None)
            for other, batch, begin, done in self.copies:
                if other == buffer and begin < end and done > start:
                    faults.append(f"batch {batch!r} is copied into buffer {buffer} while step {number} reads it")
        return found, faults


# %% nbgrader={"grade": false, "grade_id": "prefetch", "locked": false, "schema_version": 3, "solution": true, "task": false}
def feed(keys: list, ahead: int, request, receive, cancel, train) -> int:
    """Train on every key's data in order, with `ahead` samples requested in advance."""
    ### BEGIN SOLUTION
    if ahead < 0:
        raise ValueError(f"ahead = {ahead}: expected 0 or more samples in advance")
    tickets = []
    asked = 0
    try:
        for number in range(len(keys)):
            while asked < len(keys) and asked <= number + ahead:
                tickets.append(request(keys[asked]))
                asked += 1
            train(receive(tickets.pop(0)))
    finally:
        for ticket in tickets:
            cancel(ticket)
    return len(keys)
    ### END SOLUTION


def double_buffer(batches: list, copy, compute, record, wait) -> None:
    """Queue copies and steps so that each copy runs beside the step before it."""
    ### BEGIN SOLUTION
    used = [None, None]
    for number, batch in enumerate(batches):
        buffer = number % 2
        if used[buffer] is not None:
            wait("copy", used[buffer])
        copy(buffer, batch)
        wait("compute", record("copy"))
        compute(buffer)
        used[buffer] = record("compute")
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "prefetch",
    "Keep the tickets in a list, oldest first, and count how many keys were requested. Before each `receive`, request until the count reaches the number of this sample + 1 + `ahead`.",
    "`try: … finally:` cancels what is left whatever happened, and lets the exception through. Take a ticket out of the list before you receive it: a ticket whose answer never came is not open any more.",
    "Double buffering needs two events a batch: one recorded in the copy stream behind the copy, on which the compute stream waits, and one recorded in the compute stream behind the step, on which the copy stream waits two batches later.",
)

# %% nbgrader={"grade": true, "grade_id": "prefetch_test", "locked": true, "points": 25, "schema_version": 3, "solution": false, "task": false}
with check("prefetch", "a loop that asks early, and two buffers"):

    def objects_of(count, size=1000):
        return {f"sample {n}": n.to_bytes(4, "big") + bytes(size - 4) for n in range(count)}

    for ahead, seconds in ((0, 20 * 0.050), (4, 0.040 + 20 * 0.010)):
        store = FarStore(objects_of(20), latency=0.039, bandwidth=1e6, step=0.010)
        keys = list(store.objects)
        check.equal(
            feed(keys, ahead, store.request, store.receive, store.cancel, store.train), 20, what="the number of steps"
        )
        check.equal(store.trained, [store.objects[key] for key in keys], what="what was trained on, in order")
        check.equal(
            store.most_alive,
            ahead + 1,
            what=f"samples requested and not yet trained on, at most, with ahead = {ahead}",
            hint="the sample that is awaited and `ahead` behind it: no more, no fewer",
        )
        check.close(
            store.now,
            seconds,
            unit="s",
            what=f"time of 20 samples, 39 ms + 1 ms a fetch, 10 ms a step, with ahead = {ahead}",
            hint="request what is to come before you wait and train: a request that is made when its sample is needed is too late",
        )
    store = FarStore(objects_of(6), latency=0.039, bandwidth=1e6, step=0.010, timeout=0.042)
    store.objects["sample 2"] = bytes(2000)  # it would arrive after 43 ms
    check.raises(
        TimeoutError,
        feed,
        list(store.objects),
        2,
        store.request,
        store.receive,
        store.cancel,
        store.train,
        names="sample 2",
    )
    check.equal(len(store.trained), 2, what="steps before the sample that never came")
    check.equal(
        len(store.tickets),
        0,
        what="requests left open after an error",
        hint="cancel what was requested and never received; the ticket that timed out is closed already",
    )
    check.raises(ValueError, feed, ["a"], -1, store.request, store.receive, store.cancel, store.train, names="ahead")

    for copies, steps, seconds in (
        ([1.0] * 6, [2.0] * 6, 13.0),
        ([2.0] * 6, [1.0] * 6, 13.0),
        ([1.0] * 6, [1.0] * 6, 7.0),
    ):
        gpu = TwoStreams(copies, steps)
        double_buffer([10, 11, 12, 13, 14, 15], gpu.copy, gpu.compute, gpu.record, gpu.wait)
        computed, faults = gpu.results()
        check.true(
            None not in computed,
            "a step starts before its batch is complete: it must wait for the event behind its own copy",
        )
        check.equal(
            faults,
            [],
            what="races",
            hint="a buffer may be overwritten only when the step that reads it is done: wait for its event in the copy stream",
        )
        check.equal(
            computed,
            [10, 11, 12, 13, 14, 15],
            what="the batches that the steps computed on",
            hint="a step must wait for the event behind its own copy",
        )
        check.close(
            max(gpu.free.values()),
            seconds,
            unit="s",
            what=f"time of 6 batches, copies of {copies[0]:g} s, steps of {steps[0]:g} s",
            hint="a copy has to wait for the step two batches before, not for the last one: it is what double buffering is for",
        )

    ### BEGIN HIDDEN TESTS
    def clock_of(count, ahead, sizes, latency, bandwidth, step):  # when the last step ends
        asked, arrives, done, link = [], [], [], 0.0
        for n in range(count):
            asked.append(done[n - ahead - 1] if n > ahead else 0.0)
            link = max(link, asked[n] + latency) + sizes[n] / bandwidth
            arrives.append(link)
            done.append(0.0)
            done[n] = max(arrives[n], done[n - 1] if n else 0.0) + step
        return done[-1] if count else 0.0

    for seed in range(12):
        rng = check.rng(seed)
        count, ahead = int(rng.integers(1, 25)), int(rng.integers(0, 8))
        sizes = [int(s) for s in rng.integers(8, 30_000, count)]
        objects = {f"{n}": n.to_bytes(4, "big") + bytes(size - 4) for n, size in enumerate(sizes)}
        latency, step = float(rng.uniform(0, 0.05)), float(rng.uniform(0.001, 0.03))
        store = FarStore(objects, latency, 1e6, step)
        feed(list(objects), ahead, store.request, store.receive, store.cancel, store.train)
        check.equal(
            [d[:4] for d in store.trained], [n.to_bytes(4, "big") for n in range(count)], what="the order of training"
        )
        check.equal(store.requested, list(objects), what="what was requested", hint="each key once, in order")
        check.true(
            store.most_alive == min(count, ahead + 1),
            f"{store.most_alive} samples were requested and not yet trained on, with ahead = {ahead} and {count} samples: "
            f"expected at most {min(count, ahead + 1)}; usually: the sample in training is not counted",
        )
        check.close(
            store.now,
            clock_of(count, ahead, sizes, latency, 1e6, step),
            unit="s",
            what=f"time of {count} samples of different sizes with ahead = {ahead}",
            hint="one request is made for each sample that was trained on, as soon as it was, not in groups",
        )
    twice = FarStore(objects_of(3), 0.02, 1e6, 0.01)
    keys = ["sample 1", "sample 0", "sample 1", "sample 1", "sample 2"]
    feed(keys, 2, twice.request, twice.receive, twice.cancel, twice.train)
    check.equal(
        twice.trained,
        [twice.objects[k] for k in keys],
        what="training on keys that repeat",
        hint="tickets belong to positions, not to keys",
    )
    nothing = FarStore({}, 0.02, 1e6, 0.01)
    check.equal(
        feed([], 3, nothing.request, nothing.receive, nothing.cancel, nothing.train), 0, what="steps without any key"
    )

    broken = FarStore(objects_of(9), 0.02, 1e6, 0.01, timeout=0.05)
    broken.objects["sample 4"] = bytes(60_000)
    check.raises(
        TimeoutError,
        feed,
        list(broken.objects),
        3,
        broken.request,
        broken.receive,
        broken.cancel,
        broken.train,
        names="sample 4",
    )
    check.equal(
        len(broken.trained),
        4,
        what="steps before the sample that never came",
        hint="what was received in time is trained on",
    )
    check.equal(
        sorted(broken.cancelled),
        ["sample 5", "sample 6", "sample 7"],
        what="requests cancelled after an error",
        hint="those that were made and not received, each once",
    )

    def fails(data):
        if data[3] == 2:
            raise ArithmeticError("loss is NaN at sample 2")
        unlucky.train(data)

    unlucky = FarStore(objects_of(9), 0.02, 1e6, 0.01)
    check.raises(
        ArithmeticError,
        feed,
        list(unlucky.objects),
        3,
        unlucky.request,
        unlucky.receive,
        unlucky.cancel,
        fails,
        names="NaN",
    )
    check.equal(
        len(unlucky.tickets),
        0,
        what="requests left open after a step that failed",
        hint="an error in training also leaves requests open",
    )

    for seed in range(20):
        rng = check.rng(100 + seed)
        count = int(rng.integers(0, 14))
        copies, steps = ([float(v) for v in rng.choice([0.1, 1.0, 3.0, 7.0], count)] for _ in range(2))
        gpu = TwoStreams(copies, steps)
        double_buffer(list(range(100, 100 + count)), gpu.copy, gpu.compute, gpu.record, gpu.wait)
        computed, faults = gpu.results()
        check.equal(
            faults,
            [],
            what=f"races, times of the run {seed}",
            hint="right for equal times only: a long step still reads its buffer when a short copy is ready to overwrite it",
        )
        check.equal(computed, list(range(100, 100 + count)), what=f"the batches computed on, times of the run {seed}")
        copied, stepped = [], []
        for n in range(count):
            copied.append(max(copied[-1] if n else 0.0, stepped[n - 2] if n > 1 else 0.0) + copies[n])
            stepped.append(max(copied[n], stepped[-1] if n else 0.0) + steps[n])
        check.close(
            [end for *_, end in gpu.steps],
            stepped,
            unit="s",
            what=f"the ends of the steps, times of the run {seed}",
            hint="something waits longer than it has to",
        )
    ### END HIDDEN TESTS


# %% [markdown]
# ### Your loops, drawn
#
# What the two simulated machines recorded when your functions drove them. In the upper pictures a row of *fetch* is one
# of the `ahead + 1` samples that may be alive; in the lowest one the numbers are batches, and the buffers take turns.

# %% tags=["demo"] jupyter={"source_hidden": true}
fig, panels = figure(3, 1, width=12.5, height=5.6, height_ratios=[2, 5, 2])
for axes, ahead in zip(panels, (0, 3), strict=False):
    store = FarStore({f"{n}": bytes(3000) for n in range(30)}, latency=0.027, bandwidth=1e6, step=0.010)
    feed(list(store.objects), ahead, store.request, store.receive, store.cancel, store.train)
    drawn = pipeline.Trace(
        (("fetch", ahead + 1), ("train", 1)),
        tuple(
            pipeline.Interval(i.stage, i.sample % (ahead + 1) if i.stage == "fetch" else 0, i.sample, i.start, i.end)
            for i in store.trace
        ),
    )
    gantt.draw(drawn, axes, until=0.2)
    axes.set_title(f"feed, ahead = {ahead}: training {100 * drawn.utilisation:.0f}% of the time")
    axes.set_xlabel("")
gpu = TwoStreams([0.006, 0.014, 0.006, 0.006, 0.006, 0.020, 0.006, 0.006] * 2, [0.012] * 16)
double_buffer(list(range(16)), gpu.copy, gpu.compute, gpu.record, gpu.wait)
work = [pipeline.Interval("copy", 0, batch, start, end) for _, batch, start, end in gpu.copies]
work += [pipeline.Interval("compute", 0, number, start, end) for number, (_, start, end) in enumerate(gpu.steps)]
gantt.draw(pipeline.Trace((("copy", 1), ("compute", 1)), tuple(work)), panels[2], until=0.2)
panels[2].set_title("double_buffer: short and long copies beside steps of 12 ms")
show.figure(fig)

# %% [markdown]
# ### How far ahead, with how many workers?
#
# The library's prefetcher gives key *i* to worker *i* mod *W* and keeps the order for free: the next sample is always the
# oldest result of one known worker. The same class runs threads, processes, and simulated workers on a virtual clock, so
# the curves below are its own behaviour, not a model of it.
#
# **Predict first.** A store of 30 ms and 200 MB/s, batches of 0.6 MB, 4 ms of decoding in the worker, 10 ms a step.

# %% tags=["demo"]
predict("workers_needed", "How many workers does it take to keep the trainer 95% busy?", unit="workers", guess=None)

# %% tags=["demo"]
from threeloops.data.loading.prefetch import Prefetcher
from threeloops.data.loading.workers import SimulatedWorker
from threeloops.data.storage.slow_store import Link, SlowStore, VirtualStore
from threeloops.data.storage.store import MemoryStore
from threeloops.simulation.clock import VirtualClock

BATCHES = MemoryStore({str(n): bytes(SAMPLE_BYTES) for n in range(64)})


def utilisation(workers, ahead, bandwidth=200e6, step=0.010):
    """Of the library's prefetcher on a virtual clock; the first sample does not count."""
    clock = VirtualClock()
    store = VirtualStore(BATCHES, Link(latency=0.030, bandwidth=bandwidth), clock)
    fetched = Prefetcher(list(BATCHES.objects), lambda n: SimulatedWorker(store, 0.004, str(n)), workers, ahead)
    began = None
    for _ in fetched:
        began = clock.now() if began is None else began
        clock.sleep_until(clock.now() + step)
    return len(BATCHES.objects) * step / (clock.now() - began)


CREWS = list(range(1, 11))
CURVES = {
    "200 MB/s, two a worker in advance": [utilisation(w, 2 * w) for w in CREWS],
    "50 MB/s, two a worker in advance": [utilisation(w, 2 * w, bandwidth=50e6) for w in CREWS],
    "200 MB/s, one in advance": [utilisation(w, 1) for w in CREWS],
}
needed = next(w for w, u in zip(CREWS, CURVES["200 MB/s, two a worker in advance"], strict=True) if u >= 0.95)
show.against_prediction("workers_needed", needed, unit="workers", source="model: virtual clock")

# %% tags=["demo"] jupyter={"source_hidden": true}
fig, axes = figure(width=9.0, height=3.8)
for (label, values), style in zip(CURVES.items(), ("o-", "s-", "^-"), strict=True):
    axes.plot(CREWS, [100 * v for v in values], style, ms=5, label=label)
axes.axhline(100 * utilisation(1, 0), color=palette.grey, ls=":", lw=1.4)
axes.text(10.2, 100 * utilisation(1, 0) - 2, "nothing in advance", ha="right", va="top", fontsize=9, color=palette.grey)
axes.axhline(95, color=palette.ink, lw=0.8)
axes.text(1.0, 96, "95%", va="bottom", fontsize=9)
axes.set(
    xlabel="workers",
    ylabel="% of the time training",
    ylim=(0, 104),
    title="Workers overlap latencies; they do not widen the link",
)
axes.legend(loc="center right", bbox_to_anchor=(1.0, 0.58))
show.figure(fig)

# %% [markdown]
# The knee is Little's law: (30 + 3 + 4) ms / 10 ms = 3.7, so four workers. Workers without permission to run ahead are
# idle: with one sample in advance two are under way at most, and a third worker finds nothing to do. And on the narrow link a batch alone takes
# 12 ms, so the fortieth worker would find the same queue as the fifth. When utilisation stops rising with workers, stop
# adding workers: look at `ahead`, then count bytes.
#
# ### Measure it: before and after
#
# Now with real waiting and real threads: a store of 30 ms and 100 MB/s, samples of 0.1 MB, and steps of 12 ms. The step
# only waits, as a host does for its GPU. **Predict first.**

# %% tags=["demo"]
predict(
    "live_gain",
    "Six threads fetch twelve samples ahead. How many times faster is the loop than one that fetches for itself?",
    unit="×",
    guess=None,
)

# %% tags=["demo"]
import time

from threeloops.data.loading.prefetch import prefetch

SLOW = MemoryStore({str(n): bytes(100_000) for n in range(40)})
STEP = 0.012


def live_loop(workers, ahead):
    """Seconds of training over seconds of the loop, from the first step to the end of the last."""
    store, began = SlowStore(SLOW, Link(0.030, 100e6)), None
    for _ in prefetch(store.get, list(SLOW.objects), workers, ahead):
        began = time.perf_counter() if began is None else began
        time.sleep(STEP)
    return len(SLOW.objects) * STEP / (time.perf_counter() - began)


BEFORE, AFTER = live_loop(0, 0), live_loop(6, 12)
show.table(
    [["in the loop itself", f"{100 * BEFORE:.0f}%"], ["six threads, twelve samples ahead", f"{100 * AFTER:.0f}%"]],
    ["samples are fetched", "training, measured here"],
)
show.against_prediction("live_gain", round(AFTER / BEFORE, 1), unit="×", source="measured here")

# %% [markdown]
# ### On a GPU: the last metre
#
# A copy runs beside kernels only if its source is **pinned**: the copy engine reads physical addresses, and an ordinary
# page may move. From pageable memory the driver copies twice, and the call waits. `DeviceFeed` in the library is your
# `double_buffer` with real streams and pinned buffers.

# %% tags=["demo"] jupyter={"source_hidden": true}
import torch
from threeloops.data.loading.device_feed import DeviceFeed
from threeloops.hardware import accelerator, device


def on_gpu(feed, rounds):
    """Milliseconds a batch, with a matmul for a step."""
    square = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for batch in feed:
        for _ in range(4):
            square @ square
        batch.sum()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / rounds * 1e3


if device() == "cuda":
    host = [torch.randn(64, 3, 224, 224) for _ in range(20)]
    for _ in range(2):  # the first pass warms up
        rows = [
            ["pageable, in the loop", f"{on_gpu((b.cuda() for b in host), 20):.2f}"],
            ["pinned, double-buffered", f"{on_gpu(DeviceFeed(host, 'cuda'), 20):.2f}"],
        ]
    show.table(rows, ["copy of a batch of 38.5 MB", "ms a batch, measured here"])
    PINNING = f"Pinning and double buffering, on this GPU: {rows[0][1]} ms a batch before, {rows[1][1]} ms after"
else:
    PINNING = "The third part of the claim, pinning, is not tested here: it needs a GPU"
    link, size = accelerator("H100 SXM").host_link_bandwidth, 64 * 3 * 224 * 224 * 4
    show.table(
        [[f"{size / 1e6:.1f} MB over {link / 1e9:.0f} GB/s", f"{size / link * 1e3:.2f} ms"]],
        ["64 images of 3 × 224 × 224 in FP32, to an H100", "at least (model)"],
    )
    print(
        "Not measured on a GPU yet. On a machine with one, this cell times pageable against pinned, double-buffered copies."
    )

# %% tags=["demo"] jupyter={"source_hidden": true}
audit(
    "feed-2",
    round(100 * AFTER),
    "% of the time training, after",
    "CPU",
    "holds",
    how=f"for workers and prefetching. Before: {100 * BEFORE:.0f}%, here, with real waiting; the recorded loops went from {100 * serial.utilisation:.0f}% to {100 * four.utilisation:.0f}%. "
    f"Two conditions: enough requests in flight (one worker ahead left {100 * one.utilisation:.0f}%), and a link that is wide enough "
    f"(at 50 MB/s ten workers reach {100 * CURVES['50 MB/s, two a worker in advance'][-1]:.0f}% in simulation). {PINNING}",
)

# %% [markdown]
# ## 3 · Ask for more at once
#
# A data set usually arrives as a folder of small files: a million images of 100 kB, a million labels of one byte. From an
# object store each of them is a request, and a request costs its latency whether it brings a byte or a gigabyte.
#
# So put a few thousand samples into one object and read it from front to back. One of the oldest archive formats of
# Unix is still the one for this job. A **tar** file is a chain: a header of 512 bytes, the contents, zeros up to the next
# multiple of 512, the next header; two blocks of zeros end it. No table of contents, nothing to seek. The
# **WebDataset** layout adds one convention: files that belong to one sample follow each other and share their name up
# to the first dot.
#
# ### Exercise 3 (25 points)
#
# **`write_shard(samples: list[Sample]) -> bytes`**: each part of each sample, in order, as a member named
# `key.extension`; then two blocks of zeros. A header is 512 bytes, all zero but these:
#
# | bytes | field | contents |
# |---|---|---|
# | 0–99 | name | UTF-8, at most 100 bytes, filled up with zeros |
# | 100–107 | mode | `0000644` and a zero byte |
# | 108–115, 116–123 | owner, group | `0000000` and a zero byte, each |
# | 124–135 | size of the contents | 11 octal digits and a zero byte |
# | 136–147 | time | 11 times `0` and a zero byte |
# | 148–155 | checksum | 6 octal digits, a zero byte, a space |
# | 156 | type | `0`, a regular file |
# | 257–264 | magic | `ustar`, a zero byte, `00` |
#
# The checksum is the sum of all 512 bytes, with its own eight bytes taken as spaces. A name of more than 100 bytes raises
# `ValueError` that contains the name.
#
# **`read_shard(shard: str, data: bytes) -> list[Sample]`** reads a shard that anybody may have written. Of a header it
# looks at name, size, checksum and type only (octal digits may follow spaces and end at a zero byte or a space; an empty
# field is 0). Members that follow each other and have the same key are one sample; the key is everything before the first
# dot **behind the last slash**, the extension what follows that dot (without a dot: the whole name is the key, the
# extension empty). If an extension is repeated in a sample, the last one stays. What cannot be right raises `CorruptShard` whose message begins with the shard, a comma, a space,
# `byte` and the offset of the header at which reading stopped, as in `train-000007.tar, byte 1024: …`:
#
# - a header whose checksum is wrong, or whose numbers are not octal;
# - a member that is no regular file (type `0` or a zero byte);
# - contents that end before their size: the offset is that of their header;
# - an end of the data where a header, or the first block of zeros, was expected.
#
# **`epoch_cost(objects: list[int], store: Store, readers: int) -> Cost`**: what it costs to fetch objects of so many
# bytes, in order. `readers` of them work at once; each takes the next object of the list when its last one has arrived
# (the reader that is free first takes it). Latencies overlap, and the link carries one answer after another: an object
# that is asked for at *t* arrives at max(*t* + latency, when the one asked for before it arrived) + bytes / bandwidth.
# `seconds` is when the last one has arrived; no objects take 0. `readers` below 1 raises `ValueError` that names it.


# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_shards", "locked": true, "schema_version": 3, "solution": false, "task": false}
@dataclass(frozen=True)
class Sample:
    """One training sample: its parts by extension, as in {"jpg": b"…", "cls": b"7"}."""

    key: str
    parts: dict


class CorruptShard(ValueError):
    """A shard does not hold what it promises."""


@dataclass(frozen=True)
class Store:
    """Seconds from a request to the first byte of its answer, and bytes a second of the link."""

    latency: float
    bandwidth: float


@dataclass(frozen=True)
class Cost:
    requests: int
    bytes: int
    seconds: float


BLOCK = 512


# %% nbgrader={"grade": false, "grade_id": "shards", "locked": false, "schema_version": 3, "solution": true, "task": false}
def write_shard(samples: list) -> bytes:
    """A tar file in the WebDataset layout."""
    ### BEGIN SOLUTION
    pieces = []
    for sample in samples:
        for extension, contents in sample.parts.items():
            pieces += [header_of(f"{sample.key}.{extension}", len(contents)), contents, bytes(-len(contents) % BLOCK)]
    return b"".join([*pieces, bytes(2 * BLOCK)])


def header_of(name: str, size: int) -> bytes:
    encoded = name.encode()
    if len(encoded) > 100:
        raise ValueError(f"{name}: {len(encoded)} bytes, a header holds at most 100")
    head = bytearray(BLOCK)
    head[: len(encoded)] = encoded
    head[100:108] = b"0000644\0"
    head[108:124] = b"0000000\0" * 2
    head[124:136] = b"%011o\0" % size
    head[136:148] = b"%011o\0" % 0
    head[148:156] = b" " * 8
    head[156:157] = b"0"
    head[257:265] = b"ustar\x0000"
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head)
    ### END SOLUTION


def read_shard(shard: str, data: bytes) -> list:
    """The samples of a tar file, or CorruptShard with the place at which it goes wrong."""
    ### BEGIN SOLUTION
    samples, offset = [], 0
    while True:
        head = data[offset : offset + BLOCK]
        if len(head) < BLOCK:
            raise CorruptShard(f"{shard}, byte {offset}: {len(head)} bytes where a header or the end was expected")
        if not any(head):
            return [Sample(key, parts) for key, parts in samples]
        try:
            size, stored = digits(head[124:136]), digits(head[148:156])
        except ValueError:
            raise CorruptShard(f"{shard}, byte {offset}: the numbers of this header are not octal") from None
        if stored != sum(head) - sum(head[148:156]) + 8 * 32:
            raise CorruptShard(f"{shard}, byte {offset}: the checksum of this header is wrong")
        name = head[:100].rstrip(b"\0").decode()
        if head[156:157] not in (b"0", b"\0"):
            raise CorruptShard(f"{shard}, byte {offset}: {name} is no regular file")
        contents = data[offset + BLOCK : offset + BLOCK + size]
        if len(contents) < size:
            raise CorruptShard(f"{shard}, byte {offset}: {name} has {len(contents)} of {size} bytes")
        folder, slash, file = name.rpartition("/")
        stem, _, extension = file.partition(".")
        key = folder + slash + stem
        if not samples or samples[-1][0] != key:
            samples.append((key, {}))
        samples[-1][1][extension] = contents
        offset += BLOCK + size + -size % BLOCK


def digits(field: bytes) -> int:
    text = field.replace(b"\0", b" ").split()[0] if field.strip(b" \0") else b"0"
    if text.strip(b"01234567"):  # int() would also take a sign, an underscore and "0o"
        raise ValueError(text)
    return int(text, 8)
    ### END SOLUTION


def epoch_cost(objects: list, store: Store, readers: int) -> Cost:
    """Requests, bytes and seconds of fetching objects of so many bytes."""
    ### BEGIN SOLUTION
    if readers < 1:
        raise ValueError(f"readers = {readers}: expected at least 1")
    free, link = [0.0] * readers, 0.0
    for size in objects:
        reader = free.index(min(free))
        link = max(free[reader] + store.latency, link) + size / store.bandwidth
        free[reader] = link
    return Cost(len(objects), sum(objects), link)
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "shards",
    '`b"%011o\\0" % size` is eleven octal digits and a zero byte. Fill the checksum field with spaces, sum the whole header, and only then write the sum into it.',
    "To read, keep one number: the offset of the present header. `-size % 512` is how many zeros follow `size` bytes. `int(text, 8)` reads octal.",
    "For `epoch_cost` keep a list with the time at which each reader is free, and one number for the link: when its last answer arrived.",
)

# %% nbgrader={"grade": true, "grade_id": "shards_test", "locked": true, "points": 25, "schema_version": 3, "solution": false, "task": false}
with check("shards", "a shard by hand, and what it saves"):
    import io
    import tarfile

    samples = [
        Sample("train/000", {"jpg": bytes(range(256)) * 2, "cls": b"7"}),
        Sample("train/001", {"jpg": b"x" * 513, "cls": b"3"}),
    ]
    shard = write_shard(samples)
    check.equal(
        len(shard),
        512 * (1 + 1 + 1 + 1 + 1 + 2 + 1 + 1 + 2),
        what="bytes of a shard of two samples",
        hint="a header a member, contents filled up to 512 (512 bytes need no filling), and two blocks of zeros at the end",
    )
    try:
        with tarfile.open(fileobj=io.BytesIO(shard)) as tar:
            found = {member.name: tar.extractfile(member).read() for member in tar}
    except tarfile.TarError as error:
        cause = "the checksum: all 512 bytes, its own eight as spaces, in 6 octal digits"
        check.true(False, f"Python's tarfile cannot read your shard ({type(error).__name__}); usually: {cause}")
    check.equal(
        found,
        {f"{s.key}.{extension}": contents for s in samples for extension, contents in s.parts.items()},
        what="what Python's tarfile reads in your shard",
        hint="names, sizes in octal, and contents in their places",
    )
    check.equal(
        shard[154:156],
        b"\0 ",
        what="the last two bytes of the checksum field",
        hint="6 octal digits, a zero byte, a space",
    )
    for first, end, field, contents in (
        (100, 108, "mode", b"0000644\0"),
        (108, 124, "owner and group", b"0000000\0" * 2),
        (136, 148, "time", b"00000000000\0"),
        (156, 157, "type", b"0"),
        (257, 265, "magic", b"ustar\x0000"),
    ):
        check.equal(shard[first:end], contents, what=f"{field} of the first header, its bytes from {first} on")
    check.equal(read_shard("train-000000.tar", shard), samples, what="read_shard of your own shard")
    dotted = [Sample("v1.2/000", {"jpg": b"image", "seg.png": b"mask"})]
    check.equal(
        read_shard("train-000000.tar", write_shard(dotted)),
        dotted,
        what="read_shard of v1.2/000.jpg and v1.2/000.seg.png",
        hint="the key ends at the first dot behind the last slash",
    )
    check.raises(CorruptShard, read_shard, "train-000000.tar", shard[:1500], names="train-000000.tar, byte 1024: ")
    damaged = bytearray(shard)
    damaged[1024 + 3] ^= 1
    check.raises(CorruptShard, read_shard, "train-000000.tar", bytes(damaged), names="train-000000.tar, byte 1024: ")
    far = Store(latency=0.030, bandwidth=1e8)
    check.close(
        epoch_cost([100_000] * 4, far, 1),
        Cost(4, 400_000, 4 * 0.031),
        what="cost of four objects, one reader",
        hint="30 ms until the first byte, 1 ms for the rest, four times",
    )
    check.close(
        epoch_cost([100_000] * 4, far, 2),
        Cost(4, 400_000, 2 * 0.031 + 0.001),
        what="cost of four objects, two readers",
        hint={
            "requests": "readers change the time only",
            "seconds": "0 and 30 ms overlap, but the second answer has to wait 1 ms for the link, and asks that much later for its next object",
        },
    )
    ### BEGIN HIDDEN TESTS
    import heapq

    def by_tarfile(samples, form, mtime=0):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
            for s in samples:
                for extension, contents in s.parts.items():
                    member = tarfile.TarInfo(f"{s.key}.{extension}")
                    member.size, member.mtime, member.uname, member.mode = len(contents), mtime, "root", 0o600
                    tar.addfile(member, io.BytesIO(contents))
        return buffer.getvalue()

    def made_up(seed):
        rng = check.rng(seed)
        found = []
        for n in range(int(rng.integers(1, 6))):
            key = f"{rng.choice(['a', 'v1.2/b', 'd/e.f/g'])}{n}"
            extensions = [str(e) for e in rng.permutation(["jpg", "cls", "seg.png", "json"])[: int(rng.integers(1, 4))]]
            found.append(Sample(key, {e: rng.bytes(int(rng.choice([0, 1, 511, 512, 513, 3000]))) for e in extensions}))
        return found

    for seed in range(12):
        samples = made_up(seed)
        own = write_shard(samples)
        with tarfile.open(fileobj=io.BytesIO(own)) as tar:
            found = [(member.name, member.isreg(), tar.extractfile(member).read()) for member in tar]
        check.equal(
            found,
            [(f"{s.key}.{e}", True, contents) for s in samples for e, contents in s.parts.items()],
            what=f"what tarfile reads in the made-up shard {seed}",
        )
        check.true(own.endswith(bytes(1024)), "the shard does not end with two blocks of zeros")
        check.equal(
            own[257:265],
            b"ustar\x0000",
            what="the magic of the first header",
            hint="tar readers decide by it how to read the rest",
        )
        check.equal(
            read_shard("s.tar", own),
            samples,
            what=f"read_shard of the made-up shard {seed}",
            hint="an empty part is a part; a folder's name may have dots; the key ends at the first dot behind the last slash",
        )
        for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT):
            other = by_tarfile(samples, form, mtime=1_700_000_000)
            check.equal(
                read_shard("s.tar", other),
                samples,
                what="read_shard of a shard that tarfile wrote",
                hint="other writers fill in times, owners and modes: look at name, size, checksum and type only",
            )
    samples = made_up(3)
    shard, heads, at = write_shard(samples), [], 0
    for s in samples:
        for contents in s.parts.values():
            heads.append((at, len(contents)))
            at += 512 + len(contents) + -len(contents) % 512
    for offset, size in heads:
        cuts = [offset + 1, offset + 511] + ([offset + 512, offset + 511 + size] if size else [])
        for cut in cuts:
            check.raises(CorruptShard, read_shard, "cut.tar", shard[:cut], names=f"cut.tar, byte {offset}: ")
    check.raises(CorruptShard, read_shard, "cut.tar", shard[:at], names=f"cut.tar, byte {at}: ")
    for offset, _ in heads:
        for position in (0, 124, 130, 148, 156, 400):
            damaged = bytearray(shard)
            damaged[offset + position] ^= 0x02
            check.raises(CorruptShard, read_shard, "bad.tar", bytes(damaged), names=f"bad.tar, byte {offset}: ")

    def by_hand(name=b"a.x", contents=b"abc", size=None, kind=b"0", also=()):
        """A member with a right checksum whose other fields, `also`, are whatever its writer thought."""
        head = bytearray(512)
        size = b"%011o\0" % len(contents) if size is None else size
        for at, field in ((0, name), (124, size), (156, kind), *also, (148, b" " * 8)):
            head[at : at + len(field)] = field
        head[148:156] = b"%06o\0 " % sum(head)
        return bytes(head) + contents + bytes(-len(contents) % 512)

    for what, members, expected in (
        ("a size after spaces", [by_hand(size=b"         3  ")], [Sample("a", {"x": b"abc"})]),
        ("an empty size", [by_hand(contents=b"", size=bytes(12))], [Sample("a", {"x": b""})]),
        ("a type that is a zero byte", [by_hand(kind=b"\0")], [Sample("a", {"x": b"abc"})]),
        ("another magic", [by_hand(also=[(257, b"ustar  \0")])], [Sample("a", {"x": b"abc"})]),
        ("no magic, and a full last field", [by_hand(also=[(345, b"folder")])], [Sample("a", {"x": b"abc"})]),
        ("a name without a dot", [by_hand(name=b"a.b/README")], [Sample("a.b/README", {"": b"abc"})]),
        ("a name that is not ASCII", [by_hand(name="ü.x".encode())], [Sample("ü", {"x": b"abc"})]),
        ("a name that begins with a space", [by_hand(name=b" a.x")], [Sample(" a", {"x": b"abc"})]),
        ("an extension twice", [by_hand(contents=b"1"), by_hand(contents=b"2")], [Sample("a", {"x": b"2"})]),
    ):
        check.equal(read_shard("s.tar", b"".join(members) + bytes(1024)), expected, what=f"read_shard of {what}")
    link = tarfile.TarInfo("a.jpg")
    link.type, link.linkname = tarfile.SYMTYPE, "b.jpg"
    check.raises(
        CorruptShard, read_shard, "link.tar", link.tobuf(tarfile.USTAR_FORMAT) + bytes(1024), names="link.tar, byte 0: "
    )
    check.raises(ValueError, write_shard, [Sample("k" * 97, {"jpg": b""})], names="k" * 97)
    check.equal(
        len(write_shard([Sample("k" * 96, {"jpg": b""})])), 3 * 512, what="bytes of a shard with a name of 100 bytes"
    )
    check.raises(ValueError, write_shard, [Sample("ü" * 49, {"jpg": b""})], names="ü" * 49)
    check.equal(read_shard("none.tar", write_shard([])), [], what="an empty shard")
    again = [Sample("a", {"x": b"1"}), Sample("b", {"x": b"2"}), Sample("a", {"x": b"3"})]
    check.equal(
        read_shard("s.tar", write_shard(again)),
        again,
        what="a key that comes back later",
        hint="a sample ends where the key changes",
    )

    def simulate(objects, store, readers):
        waiting, link, total = [(0.0, r) for r in range(readers)], 0.0, 0
        heapq.heapify(waiting)
        for size in objects:
            asked, reader = heapq.heappop(waiting)
            link = max(asked + store.latency, link) + size / store.bandwidth
            total += size
            heapq.heappush(waiting, (link, reader))
        return Cost(len(objects), total, link)

    for seed in range(15):
        rng = check.rng(200 + seed)
        objects = [int(n) for n in 10 ** rng.uniform(1, 6, int(rng.integers(0, 40)))]
        store = Store(float(rng.uniform(0, 0.1)), float(10 ** rng.uniform(6, 9)))
        readers = int(rng.integers(1, 12))
        check.close(
            epoch_cost(objects, store, readers),
            simulate(objects, store, readers),
            what=f"cost of {len(objects)} objects, {readers} readers",
            hint="the next object goes to whoever is free first, and the link is one for all",
        )
    check.raises(ValueError, epoch_cost, [1], Store(0.1, 1e6), 0, names="readers")
    for size in (b"-0000000003\0", b"0o000000003\0", b"0000_000003\0", b"00000000009\0"):
        check.raises(CorruptShard, read_shard, "s.tar", by_hand(size=size) + bytes(1024), names="s.tar, byte 0: ")
    ### END HIDDEN TESTS


# %% [markdown]
# ### What a request costs
#
# **Predict first.** 10,000 images of 100 kB, each with a label of 2 bytes, in an object store of 30 ms and 200 MB/s;
# 16 readers. The same images in tar shards.

# %% tags=["demo"]
predict("shard_gain", "How many times faster is an epoch from shards than from small files?", unit="×", guess=None)

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.data.storage.slow_store import Link as FarLink

IMAGES, IMAGE, LABEL, READERS = 10_000, 100_000, 2, 16
MEMBERS = (512 + IMAGE + -IMAGE % 512) + (512 + LABEL + -LABEL % 512)  # bytes of a sample in a tar file


def seconds_of(objects, latency, bandwidth=200e6, readers=READERS):
    """The library's link, asked by readers that each wait for their last object."""
    link, free = FarLink(latency, bandwidth), [0.0] * readers
    for number, size in enumerate(objects):
        free[number % readers] = link.reserve(free[number % readers], size)
    return max(free), link


small_seconds, small_link = seconds_of([IMAGE, LABEL] * IMAGES, 0.030)
sizes = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000]
sharded = {n: seconds_of([n * MEMBERS + 1024] * (IMAGES // n), 0.030) for n in sizes}
floor = IMAGES * (IMAGE + LABEL) / 200e6
fig, (left, right) = figure(1, 2, width=12.5, height=3.9)
for axes, which, label, title in (
    (left, lambda pair: pair[1].requests, "requests", "Requests an epoch"),
    (right, lambda pair: pair[0], "seconds", "Seconds an epoch, 16 readers, 30 ms"),
):
    axes.plot(sizes, [which(sharded[n]) for n in sizes], "o-", color=palette.blue, label="tar shards")
    axes.axhline(which((small_seconds, small_link)), color=palette.vermillion, label="small files")
    axes.set(xscale="log", yscale="log", xlabel="samples in a shard", ylabel=label, title=title)
right.axhline(floor, color=palette.ink, ls=":", lw=1.2)
right.text(1, floor * 0.9, "the bytes alone", fontsize=9)
right.set_ylim(4, 50)
right.set_yticks([5, 10, 20, 40], ["5", "10", "20", "40"])
right.minorticks_off()
right.legend(loc="center right")
show.figure(fig)
best = 100
show.table(
    [
        ["small files", small_link.requests, f"{small_link.bytes / 1e6:.0f}", f"{small_seconds:.1f}"],
        [
            f"shards of {best}",
            sharded[best][1].requests,
            f"{sharded[best][1].bytes / 1e6:.0f}",
            f"{sharded[best][0]:.1f}",
        ],
    ],
    ["store of 30 ms and 200 MB/s (model)", "requests", "MB", "seconds an epoch"],
)
show.against_prediction("shard_gain", round(small_seconds / sharded[best][0], 1), unit="×", source="model: two numbers")

# %% [markdown]
# Little's law once more: to keep 200 MB/s busy at 30 ms, 6 MB have to be under way. Half of the sixteen readers wait for
# labels: eight images, 0.8 MB. With five images a shard they have 8 MB, and the curve lies on the floor. The label of two
# bytes costs as much as the image, because a request is a request.
#
# Why then shards of a thousand, and not of five? The model is silent about the rest: fewer objects to list, to look up and
# to bill, and longer reads for disks that seek. And about the price: what is read in one piece is shuffled in one piece
# (mix shards, and keep a buffer of samples to draw from), and fewer shards than readers leave readers idle. (In the model
# that costs nothing, because one reader fills the link; a single connection to a real store rarely does.) The shards carry
# 2% more bytes, headers and zeros. Samples of 10 MB would gain next to nothing.
#
# ### Measure it: this machine's disk
#
# No network, no latency of 30 ms: what do small files cost on a local disk? 1,000 samples of 8 kB, from the page cache, and
# after the kernel was asked to forget them.

# %% tags=["demo"]
predict(
    "disk_gain", "On this machine's disk, after forgetting: how many times faster are the shards?", unit="×", guess=None
)

# %% tags=["demo"] jupyter={"source_hidden": true}
import os
import tempfile

from threeloops.data.formats.sample import Sample as DiskSample
from threeloops.data.formats.small_files import list_samples, read_sample, write_small_files
from threeloops.data.formats.tar_shards import read_tar_shard, write_tar_shards
from threeloops.data.storage.tiers import forget


def timed(read, paths, cold):
    if cold:
        for path in paths:
            forget(path, flush=False)
    start = time.perf_counter()
    count = sum(1 for _ in read())
    return count / (time.perf_counter() - start)


def from_files(index):
    for key, files in index.items():
        yield read_sample(key, files)


def from_shards(paths):
    for path in paths:
        with path.open("rb") as file:
            yield from read_tar_shard(file, path.name)


rng = np.random.default_rng(0)
disk_samples = [DiskSample(f"{n:06d}", {"jpg": rng.bytes(8000), "cls": b"7"}) for n in range(1000)]
with tempfile.TemporaryDirectory(dir=".") as folder:
    write_small_files(Path(folder, "small"), disk_samples)
    shards = write_tar_shards(Path(folder, "shards"), disk_samples, 250)
    os.sync()
    index = list_samples(Path(folder, "small"))
    files = [path for found in index.values() for path in found]
    LAYOUTS = (
        ("small files", lambda: from_files(index), files),
        ("tar shards", lambda: from_shards(shards), shards),
    )
    RATES = {}
    for cold in (False, True):
        for _ in range(5):  # in turns, and the best of five: everything else on the machine only ever adds time
            for name, read, paths in LAYOUTS:
                RATES[name, cold] = max(RATES.get((name, cold), 0.0), timed(read, paths, cold))
show.table(
    [
        [
            "forgotten" if cold else "in the page cache",
            f"{RATES['small files', cold]:,.0f}",
            f"{RATES['tar shards', cold]:,.0f}",
            f"{RATES['tar shards', cold] / RATES['small files', cold]:.1f}×",
        ]
        for cold in (False, True)
    ],
    ["1,000 samples of 8 kB, measured here", "small files, samples/s", "tar shards, samples/s", "gain"],
)
show.against_prediction(
    "disk_gain", round(RATES["tar shards", True] / RATES["small files", True], 1), unit="×", source="measured here"
)

# %% [markdown]
# Even without a network a file is a path to look up, an inode to read, an open and a close, twice a sample. On a disk that
# seeks, and on a file system that a thousand jobs share, the gap is wider; the first row is what is left when nothing has
# to be fetched at all. A gain below 1× means noise, or a busy machine.

# %% [markdown]
# ## 4 · Go on exactly there
#
# A run dies in the middle of an epoch. The checkpoint has the weights and the optimiser; what about the data? Start the
# epoch again and half of the samples are seen twice, in the same order, by a model that knows them already. Draw a new
# order and some are never seen. Both happen, neither raises an error, and the loss curve shows a small step that
# somebody will explain with the learning rate.
#
# What has to be remembered is tiny, if the order of an epoch is a **function** of a seed and the number of the epoch. Then
# the position is one integer. The trap lies in *whose* position: with prefetching, workers are samples ahead. What they
# have fetched is not what the model has seen, and the number of workers may be another one tomorrow.
#
# ### Exercise 4 (25 points)
#
# **`class Sampler(samples, batch, workers, state)`** hands out the rest of one epoch to workers, and knows at every moment
# where to go on. `state` is a `State(seed, epoch, position)`: `position` samples of this epoch have been trained on.
#
# - The order of an epoch is `epoch_order(samples, seed, epoch)`, given below.
# - What is left of it, from `position`, is cut into batches of `batch` samples; the last one may be shorter. Batch *b* of
#   the rest goes to worker *b* mod `workers`. With `workers = 0` the main process loads, as worker 0.
#
# | method | meaning |
# |---|---|
# | `batch_for(worker) -> list[int] or None` | the next batch of this worker, sample numbers as `int`; `None` if it has had its last. Workers may ask at any time, in any order, as far ahead as they like |
# | `trained() -> None` | the next batch *in order* (0, 1, 2, …) has been trained on. `RuntimeError` if it was not handed out yet, or there is none |
# | `state() -> State` | where to go on if everything stopped now: counts what was **trained on**, nothing else. When the epoch is finished: the next epoch, position 0 |
#
# A sampler made from that state, with **any** number of workers and any batch size, continues with exactly the samples that are left.
#
# **Errors**, each a `ValueError` that names the argument: `samples` or `batch` below 1, `workers` below 0, `position` not
# between 0 and `samples` − 1, and in `batch_for` a `worker` that does not exist.


# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_sampler", "locked": true, "schema_version": 3, "solution": false, "task": false}
@dataclass(frozen=True)
class State:
    """All that a checkpoint has to hold about the data: three integers."""

    seed: int
    epoch: int
    position: int


def epoch_order(samples: int, seed: int, epoch: int) -> np.ndarray:
    """The order of one epoch. The pair seeds the generator, not the sum: else epoch 1 of seed 0 were epoch 0 of seed 1."""
    return np.random.default_rng([seed, epoch]).permutation(samples)


# %% nbgrader={"grade": false, "grade_id": "resume", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Sampler:
    """Hands out the rest of an epoch, and remembers what was trained on."""

    def __init__(self, samples: int, batch: int, workers: int, state: State):
        ### BEGIN SOLUTION
        for name, value, least in (("samples", samples, 1), ("batch", batch, 1), ("workers", workers, 0)):
            if value < least:
                raise ValueError(f"{name} = {value}: expected at least {least}")
        if not 0 <= state.position < samples:
            raise ValueError(
                f"position = {state.position}: expected 0 to {samples - 1}; is this another data set's state?"
            )
        self.samples, self.workers, self.began = samples, max(workers, 1), state
        left = epoch_order(samples, state.seed, state.epoch)[state.position :].tolist()
        self.batches = [left[start : start + batch] for start in range(0, len(left), batch)]
        self.handed_out = [0] * self.workers
        self.done = 0
        ### END SOLUTION

    def batch_for(self, worker: int):
        """The next batch of this worker, or None."""
        ### BEGIN SOLUTION
        if not 0 <= worker < self.workers:
            raise ValueError(f"worker = {worker}: expected 0 to {self.workers - 1}")
        number = worker + self.workers * self.handed_out[worker]
        if number >= len(self.batches):
            return None
        self.handed_out[worker] += 1
        return list(self.batches[number])
        ### END SOLUTION

    def trained(self) -> None:
        """The next batch in order has been trained on."""
        ### BEGIN SOLUTION
        turn, worker = divmod(self.done, self.workers)
        if self.done >= len(self.batches) or self.handed_out[worker] <= turn:
            raise RuntimeError(f"batch {self.done} was not handed out: it cannot have been trained on")
        self.done += 1
        ### END SOLUTION

    def state(self) -> State:
        """Where to go on."""
        ### BEGIN SOLUTION
        if self.done == len(self.batches):
            return State(self.began.seed, self.began.epoch + 1, 0)
        used = sum(map(len, self.batches[: self.done]))
        return State(self.began.seed, self.began.epoch, self.began.position + used)
        ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "resume",
    "Cut what is left into a list of batches once, in `__init__`. Then two kinds of counters are enough: how many batches each worker was handed, and how many batches were trained on.",
    "The n-th batch of worker w is batch w + n · workers. Batch b can only have been trained on if worker b mod workers was handed more than b // workers batches.",
    "The position is where the sampler began plus the lengths of the batches that were trained on. A short last batch ends the epoch.",
)

# %% nbgrader={"grade": true, "grade_id": "resume_test", "locked": true, "points": 25, "schema_version": 3, "solution": false, "task": false}
with check("resume", "an epoch that can be interrupted"):
    order = [int(n) for n in epoch_order(10, 7, 2)]
    sampler = Sampler(10, 3, 2, State(7, 2, 0))
    check.equal(sampler.batch_for(0), order[0:3], what="the first batch of worker 0")
    check.equal(
        sampler.batch_for(0),
        order[6:9],
        what="the second batch of worker 0",
        hint="batch 2 of the epoch: workers take turns",
    )
    check.equal(sampler.batch_for(1), order[3:6], what="the first batch of worker 1")
    check.equal(
        sampler.state(),
        State(7, 2, 0),
        what="the state when three batches are handed out and none is trained on",
        hint={"position": "count what was trained on: what workers have fetched is lost with them"},
    )
    sampler.trained()
    sampler.trained()
    check.equal(sampler.state(), State(7, 2, 6), what="the state after two steps")
    check.equal(sampler.batch_for(1), order[9:10], what="the last batch, of one sample")
    check.equal(sampler.batch_for(1), None, what="what comes after the last batch of worker 1")
    sampler.trained()
    sampler.trained()
    check.equal(
        sampler.state(),
        State(7, 3, 0),
        what="the state after the last batch",
        hint="the epoch is finished: the next one begins at position 0",
    )
    check.raises(RuntimeError, sampler.trained)
    resumed = Sampler(10, 3, 1, State(7, 2, 6))
    check.equal(
        [resumed.batch_for(0), resumed.batch_for(0), resumed.batch_for(0)],
        [order[6:9], order[9:10], None],
        what="the batches of one worker, from position 6",
    )
    check.equal(
        Sampler(10, 4, 0, State(7, 2, 0)).batch_for(0),
        order[:4],
        what="the first batch with workers = 0",
        hint="the main process loads, as worker 0",
    )
    early = Sampler(10, 3, 2, State(7, 2, 0))
    early.batch_for(1)
    check.raises(RuntimeError, early.trained)
    moved = Sampler(10, 4, 2, State(7, 2, 3))
    check.equal(
        moved.batch_for(0),
        order[3:7],
        what="the first batch of four, from position 3",
        hint="what is left is cut into batches from the position on, whatever the batches were before",
    )
    moved.trained()
    check.equal(
        moved.state(),
        State(7, 2, 7),
        what="the state after a step on four samples, from position 3",
        hint="the position in the epoch: where this sampler began, and the samples trained on since",
    )
    check.raises(ValueError, Sampler, 10, 0, 1, State(0, 0, 0), names="batch")
    check.raises(ValueError, Sampler, 10, 3, 1, State(0, 0, 10), names="position")

    ### BEGIN HIDDEN TESTS
    def history(seed):  # a run that is killed again and again, each time with other workers
        rng = check.rng(seed)
        samples = int(rng.integers(1, 40))
        state, used = State(int(rng.integers(0, 9)), int(rng.integers(0, 4)), 0), []
        first = state.epoch
        for _ in range(9):
            workers, batch = int(rng.integers(0, 6)), int(rng.integers(1, 8))
            sampler, count = Sampler(samples, batch, workers, state), max(workers, 1)
            steps = int(rng.integers(0, 7))
            queues = [[] for _ in range(count)]
            for step in range(steps):
                for worker in rng.permutation(count):  # prefetching: anyone may run ahead
                    for _ in range(int(rng.integers(0, 3))):
                        queues[int(worker)].append(sampler.batch_for(int(worker)))
                turn = queues[step % count]
                if not turn:
                    turn.append(sampler.batch_for(step % count))
                indices = turn.pop(0)
                if indices is None:
                    break
                sampler.trained()
                used.append((state.epoch, indices))
            after = sampler.state()
            if after.epoch > state.epoch:
                check.equal(
                    sorted(i for epoch, indices in used if epoch == state.epoch for i in indices),
                    list(range(samples)),
                    what=f"samples trained on in an epoch, history {seed} ({samples} samples)",
                    hint="each once: none again after an interruption, none left out",
                )
            state = after
        for epoch in range(first, state.epoch + 1):
            seen = [i for e, indices in used if e == epoch for i in indices]
            check.equal(
                seen,
                [int(i) for i in np.random.default_rng([state.seed, epoch]).permutation(samples)[: len(seen)]],
                what=f"the order of epoch {epoch}, history {seed}",
                hint="what is left is cut into batches from the position on, whatever workers and batches were before",
            )
        done = sum(len(indices) for _, indices in used)
        check.equal(
            (state.epoch - first) * samples + state.position,
            done,
            what=f"the final state, history {seed}",
            hint="a short batch counts as many samples as it has",
        )

    for seed in range(16):
        history(seed)
    ahead = Sampler(20, 4, 3, State(1, 0, 0))
    ahead.batch_for(1)
    check.raises(RuntimeError, ahead.trained)
    check.equal(
        ahead.state(), State(1, 0, 0), what="the state after a refused `trained`", hint="what raises must not count"
    )
    ahead.batch_for(0)
    ahead.trained()
    ahead.trained()
    check.raises(RuntimeError, ahead.trained)
    check.equal(ahead.state(), State(1, 0, 8), what="the state after two steps and a refused one")
    check.raises(ValueError, ahead.batch_for, 3, names="worker")
    check.raises(ValueError, ahead.batch_for, -1, names="worker")
    check.raises(ValueError, Sampler(10, 4, 0, State(7, 2, 0)).batch_for, 1, names="worker")
    check.raises(ValueError, Sampler, 0, 1, 1, State(0, 0, 0), names="samples")
    check.raises(ValueError, Sampler, 5, 1, -1, State(0, 0, 0), names="workers")
    check.raises(ValueError, Sampler, 5, 1, 1, State(0, 0, -1), names="position")
    ### END HIDDEN TESTS


# %% [markdown]
# ### What goes wrong when it is not exact
#
# An epoch of 1,000 samples is killed after 400 steps of one sample, while four workers are 16 samples ahead. Four ways to
# go on, and what the model has seen when the epoch is over:

# %% tags=["demo"] jupyter={"source_hidden": true}
from collections import Counter

from threeloops.data.loading.sampler import SamplerState, advanced, remaining

TOTAL, STOP, UNDER_WAY = 1000, 400, 16
first = SamplerState(seed=0)
began = list(remaining(first, TOTAL)[:STOP])
again = list(np.random.default_rng(123).permutation(TOTAL))
WAYS = {
    "begin the epoch again": began + list(remaining(first, TOTAL)),
    "draw a new order, do the other 600": began + again[STOP:],
    "go on behind what was fetched": began + list(remaining(advanced(first, TOTAL, STOP + UNDER_WAY), TOTAL)),
    "go on behind what was trained on": began + list(remaining(advanced(first, TOTAL, STOP), TOTAL)),
}
rows = []
for name, seen in WAYS.items():
    counts = Counter(int(n) for n in seen)
    never, once = sum(counts[n] == 0 for n in range(TOTAL)), sum(counts[n] == 1 for n in range(TOTAL))
    rows.append([name, once, TOTAL - never - once, never])
show.table(rows, ["way to resume", "seen once", "seen twice", "never seen"])
assert rows[-1][1:] == [TOTAL, 0, 0]

# %% [markdown]
# The third line is what a loader does that pickles its own iterator: it loses exactly what was under way. Sixteen samples
# of a thousand are nobody's headline; after forty interruptions of a long run they are two thirds of an epoch.
#
# The library's loader joins both ends of this lab (a loop that saves goes over `loader.with_states()`, which gives each
# batch the state behind it). Its state is yours, its workers run ahead, and it may fail: a load goes
# wrong in the middle of an epoch, the loop ends with a named error, and a crew of another size goes on. (The tests of the
# library kill worker processes in the same place, with the same result.)

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.data.errors import WorkerFailed
from threeloops.data.loading.loader import Loader

POISON = int(remaining(SamplerState(0), 100)[57])


def load_or_fail(indices):
    if POISON in indices and not recovered:
        raise OSError("the network is gone")
    return indices.tolist()


recovered, used = False, []
loader = Loader(load_or_fail, 100, 8, SamplerState(0), workers=4)
try:
    for batch in loader:
        used += batch
except WorkerFailed as reason:
    print(f"{reason}\nstate to resume from: {loader.state}")
recovered = True
for batch in Loader(load_or_fail, 100, 8, loader.state, workers=3):
    used += batch
assert used == remaining(SamplerState(0), 100).tolist()
print(f"{len(used)} samples, {len(set(used))} different ones, in the order of the uninterrupted epoch")

# %% [markdown]
# ## Deep dive: framing, and what a checksum sees
#
# A tar header protects itself with a sum of its bytes. The contents have nothing: flip a bit in an image, and the shard
# reads on. TFRecord frames every record between two checksums, of its length and of its data. The checksum is CRC32C, the
# remainder of a polynomial division over GF(2), which a single table of 256 remainders turns into one look-up a byte. TFRecord
# stores it *masked*, rotated by 15 bits and with a constant added, because a CRC over data that contain their own CRC is a
# weak check.

# %% tags=["demo"]
import io

from threeloops.data.errors import CorruptData
from threeloops.data.formats.crc32c import crc32c, masked
from threeloops.data.formats.tar_shards import shard_bytes
from threeloops.data.formats.tfrecord import frame, read_records

assert crc32c(bytes(32)) == 0x8A9136AA and crc32c(b"123456789") == 0xE3069283  # RFC 3720, and the usual check value
record = b"hungry"
framed = frame(record)
show.table(
    [
        ["length", framed[:8].hex(" "), "6, little-endian"],
        ["masked CRC of the length", framed[8:12].hex(" "), f"{masked(crc32c(framed[:8])):#010x}"],
        ["data", framed[12:18].hex(" "), "hungry"],
        ["masked CRC of the data", framed[18:].hex(" "), f"{masked(crc32c(record)):#010x}"],
    ],
    ["a TFRecord", "bytes", "meaning"],
)

# %% tags=["demo"] jupyter={"source_hidden": true}
payload = rng.bytes(3000)
tar = b"".join(shard_bytes([DiskSample("a", {"bin": payload})]))
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "a.tfrecord")
    framed = frame(payload)
    caught = {"tar shard": 0, "TFRecord": 0, "sum of bytes, two swapped": 0, "CRC32C, two swapped": 0}
    for _ in range(200):
        place = int(rng.integers(0, 3000))
        damaged = bytearray(tar)
        damaged[512 + place] ^= 1 << int(rng.integers(8))
        try:
            list(read_tar_shard(io.BytesIO(bytes(damaged)), "a.tar"))
        except CorruptData:
            caught["tar shard"] += 1
        damaged = bytearray(framed)
        damaged[12 + place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            list(read_records(path))
        except CorruptData:
            caught["TFRecord"] += 1
        swapped, at = bytearray(payload), next(n for n in range(place % 2900, 2999) if payload[n] != payload[n + 1])
        swapped[at], swapped[at + 1] = payload[at + 1], payload[at]
        caught["sum of bytes, two swapped"] += sum(swapped) != sum(payload)
        caught["CRC32C, two swapped"] += crc32c(bytes(swapped)) != crc32c(payload)
show.table(
    [[name, f"{count} of 200"] for name, count in caught.items()],
    ["one bit flipped, or two neighbours swapped", "noticed"],
)
assert list(caught.values()) == [0, 200, 0, 200]

# %% [markdown]
# The sum does not know order; the polynomial does. What the polynomial cannot do is tell *who* changed the data: whoever
# can write a record can write its CRC. And a damaged **length** is worse than damaged data, since nothing behind it can be
# found. That is why it has a checksum of its own.
#
# ## Deep dive: the file that is already an array
#
# Tokens have no decoding. A corpus is a flat array of integers, and a training sample is a window of it, so the cheapest
# loader reads nothing at all: it maps the file, and lets the page fault fetch what is touched.

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.data.formats.token_shards import TokenShards, write_token_shards

with tempfile.TemporaryDirectory(dir=".") as folder:
    corpus = rng.integers(0, 50_257, 8_000_000).astype(np.uint16)
    write_token_shards(Path(folder), [corpus], 2_000_000)
    for path in Path(folder).glob("*.bin"):
        forget(path)
    start = time.perf_counter()
    tokens = TokenShards(Path(folder))
    window = tokens.window(3_000_000, 1025).astype(np.int64)
    first_window = time.perf_counter() - start
    for path in Path(folder).glob("*.bin"):
        forget(path)
    start = time.perf_counter()
    loaded = np.concatenate([np.fromfile(path, np.uint16, offset=64) for path in sorted(Path(folder).glob("*.bin"))])
    whole_file = time.perf_counter() - start
    starts = rng.integers(0, len(tokens) - 1025, 2000)
    start = time.perf_counter()
    for place in starts:
        tokens.window(int(place), 1025)
    a_window = (time.perf_counter() - start) / len(starts)
    assert np.array_equal(window, corpus[3_000_000:3_001_025]) and np.array_equal(loaded, corpus)
    assert np.shares_memory(tokens.window(10, 5), tokens.maps[0])
    del tokens
show.table(
    [
        ["open, and the first window", f"{first_window * 1e3:.2f} ms"],
        ["read all 16 MB instead", f"{whole_file * 1e3:.2f} ms"],
        ["each further window: a view, nothing is copied", f"{a_window * 1e6:.1f} µs"],
    ],
    ["8 million tokens in 4 shards, measured here", ""],
)

# %% [markdown]
# The map costs what you touch, is shared by all worker processes, and is evicted by the kernel when memory is short. The
# price: a page fault is a synchronous read in the middle of your loop (Linux reads around it, up to 128 KiB unless told
# otherwise), and over a network file system each one is a request. Memory maps are for local disks.
#
# ## Deep dive: a local cache, and the pattern that defeats it
#
# The second epoch reads the same data. Keep it on the local disk, as much as fits, and throw out what was used least
# recently. **Predict first**: the cache holds 80% of the data set.

# %% tags=["demo"]
predict(
    "hit_rate",
    "80% of the data fit. What percentage of the second epoch comes from the cache, if it reads in the same order as the first?",
    unit="%",
    guess=None,
)

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.data.storage.cache import CachedStore

OBJECTS = MemoryStore({f"shard {n}": bytes(2000) for n in range(60)})


def hit_rate(share, shuffled, epochs=4):
    """Hits of the library's cache in the epochs after the first."""
    with tempfile.TemporaryDirectory() as folder:
        cache = CachedStore(OBJECTS, Path(folder), int(share * 60) * 2004)
        keys, order = list(OBJECTS.objects), np.random.default_rng(7)
        for epoch in range(epochs):
            if epoch == 1:
                cache.hits = 0
            for n in order.permutation(60) if shuffled else range(60):
                cache.get(keys[n])
        return cache.hits / (60 * (epochs - 1))


SHARES = [0.2, 0.4, 0.6, 0.8, 0.95, 1.0]
in_order, shuffled = ([hit_rate(share, each) for share in SHARES] for each in (False, True))
fig, axes = figure(width=8.0, height=3.5)
axes.plot([100 * s for s in SHARES], [100 * h for h in shuffled], "o-", label="another order every epoch")
axes.plot([100 * s for s in SHARES], [100 * h for h in in_order], "s-", label="the same order every epoch")
axes.plot([20, 100], [20, 100], color=palette.grey, ls=":", lw=1.2)
axes.text(
    37,
    39,
    "never throw out",
    color=palette.grey,
    rotation=45,  # of the line in the data's units; turned with the axes
    rotation_mode="anchor",
    transform_rotates_text=True,
    fontsize=9,
)
axes.set(
    xlabel="% of the data set that fits",
    ylabel="% of reads that hit",
    title="Least recently used, in the epochs after the first",
)
axes.legend(loc="upper left")
show.figure(fig)
assert in_order[:-1] == [0.0] * 5 and in_order[-1] == 1.0
show.against_prediction("hit_rate", 100 * in_order[SHARES.index(0.8)], unit="%", source="the library's cache")

# %% [markdown]
# Zero. What is needed next has always been thrown out already: for data that are read in a circle, a cache that is a little
# too small is useless, and shuffling helps it. The dotted line is the dullest policy of all: keep what came first and let the rest pass.
# For data that are all read once an epoch it beats the clever one.
#
# ## Deep dive: threads, processes, and the lock
#
# A Python interpreter runs one thread at a time (unless it is a free-threaded build, which exists from 3.13 on). Waiting for a store lets go of that lock, and so does C code such as zlib
# or a JPEG decoder, if its authors thought of it; a loop in Python never does. So the question is not "threads or
# processes", it is *what do the workers do*.

# %% tags=["demo"] jupyter={"source_hidden": true}
import zlib

from threeloops.data.formats import decode

PACKED = [zlib.compress(rng.integers(0, 16, 200_000, dtype=np.uint8).tobytes(), 1) for _ in range(4)]


def decode_rate(load, kind, workers, count):
    """Samples a second, once the workers are up and have decoded one each."""
    with prefetch(load, [PACKED[n % 4] for n in range(count + 4)], workers, kind=kind) as decoded:
        values = iter(decoded)
        for _ in range(4):
            next(values)
        start = time.perf_counter()
        rest = sum(1 for _ in values)
        return rest / (time.perf_counter() - start)


CREWS_OF = {"no worker": ("thread", 0), "2 threads": ("thread", 2), "2 processes": ("process", 2)}
rows = []
for name, load, count in (("a loop in Python", decode.in_python, 8), ("zlib and numpy", decode.in_c, 60)):
    # In turns, and the best of five each: on a shared machine everything else only ever adds time.
    rounds = [{crew: decode_rate(load, *how, count) for crew, how in CREWS_OF.items()} for _ in range(5)]
    rates = {crew: max(each[crew] for each in rounds) for crew in CREWS_OF}
    rows.append([name, *(f"{rate:,.0f} ({rate / rates['no worker']:.1f}×)" for rate in rates.values())])
assert decode.in_python(PACKED[0]) == decode.in_c(PACKED[0])
show.table(rows, [f"decoding 0.2 MB, samples/s, measured here ({os.cpu_count()} cores)", *CREWS_OF])

# %% [markdown]
# What to expect: for the Python loop threads gain nothing and processes gain the number of free cores; for C code threads
# come close to processes or pass them, because they pay neither for pickling nor for a second copy of the data set's index.
# On a machine that other programs are using too, both gain less than that, and a fifth more or less may be noise. Processes are spawned here, not forked: a fork copies locks that
# other threads hold, and CUDA does not survive it.
#
# ## What the texts say: are tiers ordered fast to slow? (feed-1)
#
# The claim lists what storage delivers, "fast to slow". Here is what this machine's own tiers deliver, beside the claimed
# numbers in the order in which they are listed.

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.data.storage.tiers import measure_tiers

tiers = measure_tiers(Path("."), size=64 << 20, repeats=3)
CLAIMED = {  # bytes/s, low and high; a network is sold in bits
    "VRAM": (2e12, 2e12),
    "NVMe": (7e9, 7e9),
    "SATA SSD": (0.5e9, 0.5e9),
    "NAS, 1–10 Gb/s": (1e9 / 8, 10e9 / 8),
    "object store": (0.1e9, 0.9e9),
}
fig, (left, right) = figure(1, 2, width=12.5, height=3.4, width_ratios=[3, 2])
for row, (low, high) in enumerate(CLAIMED.values()):
    if low == high:
        left.plot(low / 1e9, row, "o", color=palette.blue, ms=9)
    else:
        left.plot([low / 1e9, high / 1e9], [row, row], color=palette.orange, lw=7, solid_capstyle="round")
left.axvline(0.5, color=palette.grey, ls=":", lw=1.2)
left.text(0.55, -0.3, "a SATA SSD", fontsize=9, color=palette.grey)
left.set(
    xscale="log",
    xlim=(0.05, 8000),
    yticks=range(5),
    yticklabels=list(CLAIMED),
    ylim=(4.6, -0.6),
    xlabel="GB/s",
    title="As claimed, “fast to slow”",
)
right.plot([tier.bandwidth / 1e9 for tier in tiers], range(len(tiers)), "o", color=palette.green, ms=9)
for row, tier in enumerate(tiers):
    said = f"{tier.bandwidth / 1e9:.1f} GB/s, 4 KiB in {tier.latency * 1e6:.1f} µs"
    right.annotate(said, (tier.bandwidth / 1e9, row), (8, 0), textcoords="offset points", va="center", fontsize=10)
right.set(
    xscale="log",
    xlabel="GB/s, read from front to back",
    title="Measured here",
    yticks=range(len(tiers)),
    yticklabels=[tier.name for tier in tiers],
    ylim=(-0.6, len(tiers) - 0.4),
)
right.set_xlim(min(t.bandwidth for t in tiers) / 2e9, max(t.bandwidth for t in tiers) / 1e9 * 30)
right.invert_yaxis()
for axes in (left, right):
    axes.grid(axis="y", visible=False)
show.figure(fig)
nas = CLAIMED["NAS, 1–10 Gb/s"][1]
audit(
    "feed-1",
    nas / CLAIMED["SATA SSD"][1],
    "× a SATA SSD: a NAS at 10 Gb/s",
    "model",
    "corrected",
    how=f"1–10 Gb/s are 0.125–{nas / 1e9:.2f} GB/s, so the list is not in order: the tiers overlap, and bits are not bytes. "
    f"2 TB/s is an A100's memory ({accelerator('A100 SXM 80GB').memory_bandwidth / 1e12:.2f}); an H100 has {accelerator('H100 SXM').memory_bandwidth / 1e12:.2f}. "
    f"This machine (CPU): {', '.join(f'{t.name} {t.bandwidth / 1e9:.1f} GB/s' for t in tiers)}. And bandwidth is half of the story: "
    f"an object store's hundreds of MB/s come after tens of milliseconds, a disk's first 4 KiB here after {tiers[-1].latency * 1e6:.0f} µs",
)

# %% [markdown]
# The page cache can look faster than memory itself: a copy in memory writes as many bytes as it reads, while a file is read
# into a buffer of 1 MiB that stays in the processor's cache. The time of the smallest reads is mostly Python's own. And on a
# virtual machine the disk may be somebody's cache: a measured number is a fact about this machine, today.

# %% [markdown]
# ## Reflection
#
# A colleague's run on eight GPUs shows 55% utilisation. He has raised the number of loader workers from 8 to 32, and
# nothing changed; he asks for a faster file system. In about 200 words: which three numbers would you read off a trace
# first? For each of request latency, link bandwidth, decoding and copying: what would the trace look like if *it* were
# the limit, and what would you change? And what would you have to know before you said yes to the file system?

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# *Write your answer here.*

# %% [markdown]
# ## What to remember
#
# - **Utilisation is the question, the limit is the answer.** Stages that overlap run at the pace of the slowest
#   (duration / workers); stages that do not add up.
# - **Ask early**: requests in flight ≥ latency / step time. Below that you starve; above it you only hold memory.
# - Workers overlap latencies. They never widen a link: when more workers change nothing, count bytes.
# - **Ask for more at once**: a request costs its latency for one byte or for a gigabyte. Bytes under way ≥ latency ×
#   bandwidth; leave more shards than readers.
# - Two buffers, two events: one says *the batch is there*, the other says *the batch is no longer read*.
# - The state of a data loader is three integers, and it counts what was **trained on**.
# - A checksum on the header is no checksum on the data. A cache that is a little too small for data read in a circle hits nothing.
#
# Next: the training loop. In lab 08, eight GPUs have to agree on a sum.
