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
#     minutes: 170
#     withholds: [threeloops.data, threeloops.simulation, threeloops.lab.drawings]
#     edition: 2
# ---

# %% [markdown]
# # Is the GPU hungry?
#
# ![A store that answers after 30 ms, a link, a decoder and a copy lie between the data and a GPU whose step takes 10 ms; how busy it is, is unknown](attachment:opening.png)
#
# A training step takes 10 ms. Its samples lie in an object store that answers after 30 ms. Nothing in the loop is slow, and
# yet the GPU may wait most of the time. Which part makes it wait, and what would help?
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
import io
import json
import math
import tarfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from threeloops.lab import (
    animate,
    audit,
    calibration,
    check,
    debrief,
    explore,
    figure,
    hint,
    inout,
    myth,
    palette,
    predict,
    reveal,
    show,
    term,
    together,
)
from threeloops.lab.checking.wall import arguments_after, there


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
class Waits:
    utilisation: float
    blame: dict  # stage → seconds; without the consumer


@dataclass(frozen=True)
class Forecast:
    overlapped: bool
    limit: str
    gain: dict  # stage → times faster


def traced(title, stages, *intervals):
    """Make a trace from the workers of each stage and intervals given as (stage, worker, sample, start, end)."""
    return Trace(title, [Stage(*row) for row in stages.items()], [Interval(*row) for row in intervals])


def load_traces(path):
    """The recorded loops of `data/`."""
    raw = json.loads(Path(path).read_text(encoding="utf-8"))
    return [traced(loop["title"], dict(loop["stages"]), *loop["intervals"]) for loop in raw["loops"]]


class FarStore:
    """A store on a virtual clock. Latencies overlap; the link carries one answer after another, in the order asked."""

    def __init__(self, objects, latency, bandwidth, step, timeout=math.inf):
        self.objects, self.latency, self.bandwidth, self.step = dict(objects), latency, bandwidth, step
        self.timeout, self.now, self.link_free = timeout, 0.0, 0.0
        self.requested, self.trained, self.cancelled = [], [], []
        self.tickets = {}  # open ones: ticket → (key, when it was asked for, when it arrives)
        self.alive = self.most_alive = 0

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
        """Return the batch that each step computed on (None for an incomplete buffer), and what went wrong."""
        found, faults = [], []
        for number, (buffer, start, end) in enumerate(self.steps):
            before = [copy for copy in self.copies if copy[0] == buffer and copy[3] <= start]
            found.append(max(before, key=lambda copy: copy[3])[1] if before else None)
            for other, batch, begin, done in self.copies:
                if other == buffer and begin < end and done > start:
                    faults.append(f"batch {batch!r} is copied into buffer {buffer} while step {number} reads it")
        return found, faults


@dataclass(frozen=True)
class Loop:
    """A loop to tune: seconds, bytes/s and bytes. A worker fetches a sample and then decodes it."""

    latency: float
    bandwidth: float  # of the link, which all workers share
    sample_bytes: float
    decode: float
    step: float
    worker_bytes: float  # that one worker takes


@dataclass(frozen=True)
class Settings:
    workers: int  # 1 to 16
    ahead: int  # 0 to 48


LOOPS = {
    "A": Loop(0.030, 200e6, 0.6e6, 0.004, 0.010, 1e6),
    "B": Loop(0.030, 50e6, 0.6e6, 0.004, 0.010, 1e6),
    "C": Loop(0.002, 2e9, 0.2e6, 0.080, 0.010, 50e6),
    "D": Loop(0.001, 20e9, 40e6, 0.001, 0.200, 5e6),
    "E": Loop(0.090, 2e9, 8e6, 0.002, 0.012, 1e6),
    "F": Loop(0.100, 1e9, 1e6, 0.300, 0.015, 20e6),
    "G": Loop(0.0, math.inf, 1e6, 0.0, 0.010, 10e6),
}


def seconds_per_sample(loop, settings):
    """Seconds per sample of a loop with these settings, once it is under way. Sample i belongs to worker i mod workers."""
    done, trained, link = [], [], 0.0
    for i in range(96):
        asked = trained[i - settings.ahead - 1] if i > settings.ahead else 0.0
        if i >= settings.workers:
            asked = max(asked, done[i - settings.workers])
        link = max(asked + loop.latency, link) + loop.sample_bytes / loop.bandwidth
        done.append(link + loop.decode)
        trained.append(max(done[-1], trained[-1] if trained else 0.0) + loop.step)
    return (trained[-1] - trained[31]) / 64


def memory_bytes(loop, settings):
    """Bytes of the workers, and of the samples that may be alive: the one in training and those ahead of it."""
    return settings.workers * loop.worker_bytes + (settings.ahead + 1) * loop.sample_bytes


@dataclass(frozen=True)
class Sample:
    """One training sample: its parts by extension, as in {"jpg": b"…", "cls": b"7"}."""

    key: str
    parts: dict


class CorruptShard(ValueError):
    """A shard does not hold what it promises."""


def number(field):
    """The octal number in a field of a header, or None if there is none. The field may begin with spaces, and the
    digits end at a zero byte or a space. An empty field is 0."""
    digits = field.lstrip(b" ").replace(b"\0", b" ").partition(b" ")[0]
    return None if digits.strip(b"01234567") else int(digits or b"0", 8)


def checksum(header):
    """The sum of a header's 512 bytes, with spaces in place of the eight that hold the checksum itself."""
    return sum(header[:148]) + 8 * ord(" ") + sum(header[156:])


def member(name, contents, *, size=None, kind=b"0", also=()):
    """One member of a tar file, with a right checksum; `size`, `kind` and the fields `also` as other programs write
    them."""
    head = bytearray(512)
    size = b"%011o\0" % len(contents) if size is None else size
    for at, field in ((0, name.encode()), (124, size), (156, kind), (257, b"ustar\x0000"), *also, (148, b" " * 8)):
        head[at : at + len(field)] = field
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + contents + bytes(-len(contents) % 512)


def write_shard(samples):
    """A tar file in the WebDataset layout."""
    files = [(f"{each.key}.{extension}", part) for each in samples for extension, part in each.parts.items()]
    return b"".join([*(member(*file) for file in files), bytes(1024)])


@dataclass(frozen=True)
class State:
    """All that a checkpoint has to hold about the data: three integers."""

    seed: int
    epoch: int
    position: int


def epoch_order(samples, seed, epoch):
    """The order of one epoch. The pair is the seed: with the sum, epoch 1 of seed 0 would be epoch 0 of seed 1."""
    return np.random.default_rng([seed, epoch]).permutation(samples)


# Shared by the test cells.

SERIAL = traced(
    "one after the other",
    {"fetch": 1, "train": 1},
    ("fetch", 0, 0, 0.0, 3.0),
    ("train", 0, 0, 3.0, 4.0),
    ("fetch", 0, 1, 4.0, 7.0),
    ("train", 0, 1, 7.0, 8.0),
)
FED = traced(
    "two workers fetch, one decodes",
    {"fetch": 2, "decode": 1, "train": 1},
    ("fetch", 0, 0, 0.0, 4.0),
    ("fetch", 1, 1, 0.0, 4.0),
    ("decode", 0, 0, 4.0, 7.0),
    ("train", 0, 0, 7.0, 8.0),
    ("decode", 0, 1, 7.0, 10.0),
    ("train", 0, 1, 10.0, 11.0),
)
IN_PAIRS = traced(
    "two fetch at once, and then both are trained on",
    {"fetch": 2, "train": 1},
    ("train", 0, 0, 5.0, 6.0),
    ("fetch", 0, 2, 6.0, 10.0),
    ("fetch", 1, 1, 0.0, 4.0),
    ("train", 0, 1, 4.0, 5.0),
    ("fetch", 0, 0, 0.0, 3.0),
    ("train", 0, 2, 10.0, 11.0),
)
CACHED = traced(
    "sample 1 is in a cache",
    {"fetch": 1, "train": 1},
    ("fetch", 0, 0, 0.0, 3.0),
    ("train", 0, 0, 3.0, 4.0),
    ("train", 0, 1, 5.0, 7.0),
)
OTHERS = traced(
    "two fetch, and one of them takes long",
    {"fetch": 2, "train": 1},
    ("fetch", 0, 0, 0.0, 1.0),
    ("fetch", 1, 2, 0.0, 9.0),
    ("train", 0, 0, 1.0, 2.0),
    ("fetch", 0, 1, 1.0, 4.0),
    ("train", 0, 1, 4.0, 5.0),
    ("train", 0, 2, 9.0, 10.0),
)
LONG = traced(
    "a long request that began early",
    {"request": 2, "decode": 1, "train": 1},
    ("request", 0, 1, 0.0, 9.5),
    ("request", 1, 0, 1.0, 2.0),
    ("train", 0, 0, 3.0, 4.0),
    ("train", 0, 1, 9.0, 10.0),
)
ACROSS = traced(
    "the request of one sample beside the training of another",
    {"request": 1, "decode": 1, "train": 1},
    ("request", 0, 0, 0.0, 1.0),
    ("decode", 0, 0, 1.0, 2.0),
    ("request", 0, 1, 2.0, 9.0),
    ("train", 0, 0, 3.0, 4.0),
    ("decode", 0, 1, 9.0, 10.0),
    ("train", 0, 1, 10.0, 11.0),
)
AT_ONCE = traced(
    "a fetch beside a decode, and the trainer alone",
    {"fetch": 1, "decode": 1, "train": 1},
    ("fetch", 0, 0, 0.0, 2.0),
    ("decode", 0, 0, 2.0, 4.0),
    ("fetch", 0, 1, 2.0, 4.0),
    ("train", 0, 0, 4.0, 5.0),
    ("decode", 0, 1, 5.0, 7.0),
    ("train", 0, 1, 7.0, 8.0),
)


def later(trace, seconds):
    """The same trace by a clock that is `seconds` ahead."""
    moved = [replace(i, start=i.start + seconds, end=i.end + seconds) for i in trace.intervals]
    return Trace(f"{trace.title}, all times {seconds:+,.0f} s", trace.stages, moved)


def made_trace(seed):
    """A pipeline with ample queues, random times, samples that skip stages, and numbers in random order."""
    rng = np.random.default_rng(seed)
    stages = [Stage(n, int(rng.integers(1, 4))) for n in ("request", "decode", "copy")[: int(rng.integers(1, 4))]]
    stages.append(Stage("train", 1))
    numbers = [int(n) for n in rng.permutation(100)[: int(rng.integers(2, 15))]]
    found, left = [], [[] for _ in stages]
    for k, number in enumerate(numbers):
        ready = left[-1][-1] if seed % 3 == 0 and k else 0.0
        for s, stage in enumerate(stages):
            trains = s + 1 == len(stages)
            start = max(ready, left[s][k - stage.workers] if k >= stage.workers else 0.0)
            skips = not trains and rng.random() < 0.2
            shortest = 0.5 if trains else 0.0  # steps of no length would have no order
            end = start + float(rng.choice([shortest, 1.0, 2.0, 5.0, shortest + float(rng.uniform(0, 4))]))
            ready = start if skips else max(end, left[s][-1] if left[s] else 0.0)
            left[s].append(max(ready, left[s][-1] if left[s] else 0.0))
            if not skips:
                found.append(Interval(stage.name, k % stage.workers, number, start, end))
    return Trace(f"made up {seed}", stages, [found[int(j)] for j in rng.permutation(len(found))])


def objects_of(count, size=1000):
    return {f"sample {n}": n.to_bytes(4, "big") + bytes(size - 4) for n in range(count)}


def run_feed(feed, store, keys, ahead, train=None):
    return feed(keys, ahead, store.request, store.receive, store.cancel, train or store.train)


def press_ctrl_c(feed, keys, ahead, request, receive, cancel, train, during, before):
    """Run `feed`, and press Ctrl+C in the call of `during`, "request" or "train", that follows `before` others."""
    calls, count = {"request": request, "train": train}, 0

    def pressed(argument):
        nonlocal count
        if count == before:
            raise KeyboardInterrupt
        count += 1
        return function(argument)

    function, calls[during] = calls[during], pressed
    try:
        feed(keys, ahead, calls["request"], receive, cancel, calls["train"])
    except KeyboardInterrupt:
        return "KeyboardInterrupt"
    return "nothing"


def use_up(sampler, workers):
    """Take a batch for each of the workers, and then all samples out of each list."""
    batches = [sampler.batch_for(worker) for worker in workers]
    return [[batch.pop(0) for _ in range(len(batch))] for batch in batches]


# %% tags=["demo", "opening"] jupyter={"source_hidden": true}
def draw_question():
    fig, axes = figure(width=9.5, height=2.6)
    boxes = (
        (0.0, "object store", "answers after 30 ms"),
        (2.6, "link", "200 MB/s"),
        (5.2, "decode", "4 ms"),
        (7.8, "copy", "12 GB/s"),
        (10.4, "GPU", "steps of 10 ms"),
    )
    for left, name, said in boxes:
        ink = palette.green if name == "GPU" else palette.ink
        axes.barh([1.0], [2.0], left=left, height=0.9, color="none", edgecolor=ink, linewidth=2)
        axes.text(left + 1.0, 1.0, name, ha="center", va="center", weight="bold")
        axes.text(left + 1.0, 0.35, said, ha="center", va="center")
        if left:
            axes.annotate(
                "",
                (left - 0.05, 1.0),
                (left - 0.55, 1.0),
                arrowprops={"arrowstyle": "-|>", "color": palette.orange, "linewidth": 3},
            )
    axes.text(11.4, 1.75, "busy: ? %", ha="center", va="center", color=palette.vermillion, weight="bold")
    axes.set(
        xlim=(-0.2, 12.6), ylim=(0.1, 2.0), xticks=[], yticks=[], title="How much of the time does this GPU train?"
    )
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(False)
    return fig


show.figure(draw_question(), "a store, a link, a decoder, a copy and a GPU, whose utilisation is a question mark")

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "serial_utilisation",
    "A loop fetches a sample in 52 ms, decodes it in 2 ms and trains on it in 18 ms, one after the other. How busy is the trainer?",
    unit="%",
)
predict(
    "one_worker_gain",
    "Now one background thread fetches and decodes ahead of it. How many times faster is the loop?",
    unit="×",
)

# %% [markdown]
# ## 1 · What did the GPU wait for?
#
# A **trace** says who worked on which sample, from when to when (in seconds). `trace.stages` lists the stages in the order of
# the pipeline. The last one is the **consumer**, which has one worker. `trace.intervals` come in any order; each has `stage`,
# `worker`, `sample`, `start` and `end`. 0 has no special meaning, and times may be negative.
#
# *Worked example.* Sample 0 is fetched from 0 to 3 s and trained on from 3 to 4 s, sample 1 is fetched from 4 to 7 s and
# trained on from 7 to 8 s. Between 3 and 8 s the trainer works for 2 of 5 s: a utilisation of 0.4. It waits from 4 to 7
# s, and all the while sample 1, the next one, is being fetched. So fetching is to blame for 3 s. The first fetch fills
# the pipeline and does not count.
#
# ### Exercise 1 (12 points)
#
# `waits(trace: Trace) -> Waits`, with two fields:
#
# - `utilisation`: the time in which the consumer worked, divided by the time from the start of its first interval to the end of
#   its last.
# - `blame`: for each stage but the consumer, the seconds in which the consumer was idle *between one of its intervals and the next*,
#   while the sample of that next one was being worked on in this stage.
#
# Samples need not be consumed in the order of their numbers. A sample passes each stage at most once, and may skip one, for
# example because it comes from a cache. Each step of the consumer takes some time. Do not change the trace. Raise a
# `ValueError` that names the stage if an interval's stage is not in `trace.stages`, and the consumer if it has no intervals.


# %% nbgrader={"grade": false, "grade_id": "waits", "locked": false, "schema_version": 3, "solution": true, "task": false}
def waits(trace: Trace) -> Waits:
    """How busy the consumer was, and which stages held up the samples that it waited for."""
    ### BEGIN SOLUTION
    by_stage = {stage.name: [] for stage in trace.stages}
    for each in sorted(trace.intervals, key=lambda interval: interval.start):
        if each.stage not in by_stage:
            raise ValueError(f"stage {each.stage!r} of sample {each.sample}: expected one of {', '.join(by_stage)}")
        by_stage[each.stage].append(each)
    consumer = trace.stages[-1].name
    steps = by_stage.pop(consumer)
    if not steps:
        raise ValueError(f"{consumer!r} has no intervals: nothing was consumed")
    blame = dict.fromkeys(by_stage, 0.0)
    for last, following in zip(steps, steps[1:], strict=False):
        for name, intervals in by_stage.items():
            for each in intervals:
                if each.sample == following.sample:
                    blame[name] += max(0.0, min(each.end, following.start) - max(each.start, last.end))
    worked = sum(each.end - each.start for each in steps)
    return Waits(worked / (steps[-1].end - steps[0].start), blame)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "waits_test_values", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check(
    "waits", "how busy the consumer was, and why not more", part="values", hidden="random traces and recorded loops"
):

    def waited(trace, utilisation, blame, hints=None):
        check.close(waits(trace), Waits(utilisation, blame), what=f"waits of a trace, {trace.title}", hint=hints or {})

    waited(
        SERIAL,
        0.4,
        {"fetch": 3.0},
        {
            "utilisation": "2 s of work between 3 s, when the first step starts, and 8 s: the first fetch does not count",
            "blame": "the consumer was idle from 4 s to 7 s, and sample 1 was being fetched all the while",
        },
    )
    waited(
        FED,
        0.5,
        {"fetch": 0.0, "decode": 2.0},
        {
            "blame": "idle from 8 s to 10 s, when sample 1 was being decoded; before its first step it waits for no next sample"
        },
    )
    waited(
        later(SERIAL, -6),
        0.4,
        {"fetch": 3.0},
        {
            "utilisation": "the same trace, earlier: only differences of times count",
            "blame": "the same trace, earlier: only differences of times count",
        },
    )
    waited(later(FED, 1_700_000_000), 0.5, {"fetch": 0.0, "decode": 2.0}, "a clock that counts from 1970")
    waited(
        IN_PAIRS,
        3 / 7,
        {"fetch": 4.0},
        {
            "utilisation": "from the first start to the last end of the consumer, whatever the order of the list",
            "blame": "in the order of their starts the steps are of the samples 1, 0 and 2, whatever the order of the list",
        },
    )
    waited(
        OTHERS,
        3 / 9,
        {"fetch": 6.0},
        {
            "blame": "only the sample of the later step counts: from 2 s to 4 s sample 2 is being fetched as well as sample 1"
        },
    )
    waited(
        CACHED,
        3 / 4,
        {"fetch": 0.0},
        {"blame": "sample 1 skips the fetch: nobody is to blame for the second from 4 s to 5 s"},
    )
    waited(
        LONG,
        2 / 7,
        {"request": 5.0, "decode": 0.0},
        {
            "blame": "the request of sample 1 begins before the gap from 4 s to 9 s and ends after it: only the gap counts"
        },
    )
    beyond = traced(
        "a fetch goes on after the last step",
        {"fetch": 1, "train": 1},
        ("fetch", 0, 0, 0.0, 1.0),
        ("train", 0, 0, 1.0, 2.0),
        ("fetch", 0, 1, 1.0, 3.0),
        ("train", 0, 1, 3.0, 4.0),
        ("fetch", 0, 2, 3.0, 9.0),
    )
    waited(beyond, 2 / 3, {"fetch": 1.0}, {"utilisation": "from 1 s to 4 s: the time ends with the last step"})
    single = traced("a single step", {"fetch": 1, "train": 1}, ("fetch", 0, 0, 0.0, 3.0), ("train", 0, 0, 3.0, 5.0))
    waited(single, 1.0, {"fetch": 0.0}, {"utilisation": "it works from the start of its first interval to its end"})
    late = ("train", 0, 1, 4.0, 5.0), ("fetch", 0, 1, 1.0, 2.0), ("fetch", 0, 0, 0.0, 1.0)
    given, same = (traced("in no order", {"fetch": 1, "train": 1}, *late) for _ in range(2))
    check.equal(arguments_after(waits, given), [same], what="the trace after the call")

    ### BEGIN HIDDEN TESTS
    def reads(trace):  # from the definition, over all pairs
        *feeding, consumer = (stage.name for stage in trace.stages)
        steps = sorted((i for i in trace.intervals if i.stage == consumer), key=lambda i: i.start)
        blame = {
            name: math.fsum(
                max(0.0, min(i.end, b.start) - max(i.start, a.end))
                for a, b in zip(steps, steps[1:], strict=False)
                for i in trace.intervals
                if i.stage == name and i.sample == b.sample
            )
            for name in feeding
        }
        return math.fsum(i.end - i.start for i in steps) / (max(i.end for i in steps) - steps[0].start), blame

    for seed in range(24):
        waited(made_trace(seed), *reads(made_trace(seed)))
        moved = later(made_trace(seed), -20.0)
        waited(moved, *reads(moved))
    for recorded in load_traces("data/loops.json"):
        waited(recorded, *reads(recorded))
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "waits_test_errors", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("waits", "impossible traces", part="errors", hidden="other names"):

    def unreadable(consumer, *intervals, names):
        check.raises(
            ValueError, waits, Trace("?", [Stage("fetch", 1), Stage(consumer, 1)], list(intervals)), names=names
        )

    unreadable("train", Interval("decode", 0, 0, 0.0, 1.0), Interval("train", 0, 0, 1.0, 2.0), names="decode")
    unreadable("train", Interval("cache", 0, 0, 1.0, 1.0), Interval("train", 0, 0, 1.0, 2.0), names="cache")
    unreadable("learn", Interval("fetch", 0, 0, 0.0, 1.0), names="learn")
    both = [Interval("fetch", 0, 0, 0.0, 1.0), Interval("train", 0, 0, 1.0, 2.0)]
    check.accepts(waits, Trace("?", [Stage("fetch", 1), Stage("train", 1)], both))
    ### BEGIN HIDDEN TESTS
    unreadable("learn", Interval("learn", 0, 0, 0.0, 1.0), Interval("copy", 0, 0, 1.0, 2.0), names="copy")
    unreadable("train", names="train")
    check.accepts(waits, Trace("?", [Stage("fetch", 1), Stage("train", 1)], both[1:]))
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.data.loading.diagnosis import diagnose
from threeloops.lab.drawings.inner import feeding

hint(
    "waits",
    "Sort the consumer's intervals by their start. Between one of them and the next lies a gap, and the sample that is awaited in it is the one of the next interval.",
    "Two stretches of time share the part after the later start and before the earlier end, which may be empty.",
)


RUNS = {trace.title: feeding.as_trace(trace) for trace in load_traces("data/loops.json")}
VERDICTS = {title: diagnose(trace) for title, trace in RUNS.items()}
SERIAL_RUN, ONE_AHEAD, FOUR_AHEAD = RUNS.values()
show.against_prediction(
    "serial_utilisation", round(100 * SERIAL_RUN.utilisation), unit="%", source="recorded on a 2-core CPU"
)
show.against_prediction(
    "one_worker_gain", round(SERIAL_RUN.seconds / ONE_AHEAD.seconds, 2), unit="×", source="recorded on a 2-core CPU"
)
with reveal("one_worker_gain"):
    recorded = feeding.draw_recorded({f"Recorded, {title}": trace for title, trace in RUNS.items()})
    show.figure(recorded, "three recorded loops: with nothing in advance, one worker ahead, and four workers ahead")
debrief(
    "waits",
    """Blame follows the sample that comes next, because no other sample can end the wait. In the recorded loop without
    prefetching, fetching is to blame for nearly all of the idle time. With one worker ahead it still is: that worker hides
    the shorter of the two, training, behind the longer, and the loop still takes one fetch per sample.""",
    parts=("values", "errors"),
)

# %% [markdown]
# ## 2 · What would help?
#
# The gain from a faster stage depends on whether the stages **overlap**. If they do, a stage with *w* workers delivers
# a sample every (mean duration / *w*), and the slowest stage sets the pace of all. If they do not, the durations add
# up.
#
# *Worked example.* Fetching takes 3 s and training 1 s. One after the other that is 4 s per sample, and 2.5 s with a fetch
# twice as fast: a gain of 1.6. Side by side it is 3 s per sample, and then 1.5 s: a gain of 2. A faster trainer would gain 8/7
# in the first loop and nothing in the second.
#
# ### Exercise 2 (14 points)
#
# `forecast(trace: Trace) -> Forecast`, with three fields:
#
# - `overlapped`: whether **any two different stages** ever work at the same moment, on any samples. One that starts
#   exactly when another ends does not overlap it, and an interval of length 0 overlaps nothing.
# - `limit`: the stage with the largest cost; on a tie, the first in the pipeline. A stage's cost is the mean duration of its
#   intervals, divided by its workers if `overlapped`. Without intervals it is 0.
# - `gain`: for each stage, how many times faster the loop gets if this stage's cost is halved. The time of a sample is the
#   largest cost if `overlapped`, and the sum of all costs if not. At least one interval takes time, so that time is
#   never 0.
#
# The trace stays as it is.


# %% nbgrader={"grade": false, "grade_id": "forecast", "locked": false, "schema_version": 3, "solution": true, "task": false}
def forecast(trace: Trace) -> Forecast:
    """Which stage limits the loop, and what a faster one would gain."""
    ### BEGIN SOLUTION
    overlapped = any_overlap(trace.intervals)
    cost = {}
    for stage in trace.stages:
        durations = [each.end - each.start for each in trace.intervals if each.stage == stage.name]
        mean = sum(durations) / max(len(durations), 1)
        cost[stage.name] = mean / stage.workers if overlapped else mean
    pace = max if overlapped else sum
    return Forecast(
        overlapped,
        max(cost, key=cost.get),
        {name: pace(cost.values()) / pace((cost | {name: cost[name] / 2}).values()) for name in cost},
    )


def any_overlap(intervals):
    latest = {}  # stage → the latest end so far
    for each in sorted((i for i in intervals if i.end > i.start), key=lambda interval: interval.start):
        if any(end > each.start for stage, end in latest.items() if stage != each.stage):
            return True
        latest[each.stage] = max(each.end, latest.get(each.stage, each.end))
    return False
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "forecast_test_overlap", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("forecast", "whether stages overlap", part="overlap", hidden="random traces and recorded loops"):

    def overlaps(trace, expected, why=""):
        check.equal(forecast(trace).overlapped, expected, what=f"overlapped of a trace, {trace.title}", hint=why)

    def beside(a, b, title):
        return Trace(
            title, [Stage("fetch", 2), Stage("train", 1)], [Interval("fetch", 0, 0, *a), Interval("train", 0, 0, *b)]
        )

    overlaps(SERIAL, False, "a step that starts when the fetch ends does not overlap it")
    overlaps(FED, True, "sample 1 is decoded from 7 s to 10 s, and sample 0 trained on from 7 s to 8 s")
    overlaps(IN_PAIRS, False, "two workers of one stage are not two stages")
    overlaps(LONG, True, "the request from 0 s to 9.5 s began first and overlaps the step from 3 s to 4 s")
    overlaps(
        ACROSS,
        True,
        "the request of sample 1, from 2 s to 9 s, overlaps the step from 3 s to 4 s: compare all stages, not neighbours",
    )
    overlaps(
        AT_ONCE,
        True,
        "sample 1 is fetched from 2 s to 4 s while sample 0 is decoded: the trainer is one stage of three",
    )
    overlaps(later(SERIAL, -6), False, "the same trace, earlier: 0 is no special time")
    overlaps(later(FED, 1_700_000_000), True, "a clock that counts from 1970")
    overlaps(
        beside((2.0, 2.0), (1.0, 3.0), "a fetch that takes no time"), False, "an interval of length 0 overlaps nothing"
    )
    overlaps(
        beside((1.0, 3.0), (1.0, 3.0), "fetch and step from 1 s to 3 s"),
        True,
        "both work from 1 s to 3 s; it does not matter on which sample",
    )
    overlaps(
        beside((1.0, 3.0005), (3.0, 4.0), "half a millisecond at once"), True, "in a loop of steps of 1 ms it matters"
    )
    late = ("train", 0, 1, 4.0, 5.0), ("fetch", 0, 1, 1.0, 2.0), ("fetch", 0, 0, 0.0, 1.0)
    given, same = (traced("in no order", {"fetch": 1, "train": 1}, *late) for _ in range(2))
    check.equal(arguments_after(forecast, given), [same], what="the trace after the call")

    ### BEGIN HIDDEN TESTS
    def at_once(trace):
        pairs = ((a, b) for a in trace.intervals for b in trace.intervals if a.stage != b.stage)
        return any(min(a.end, b.end) > max(a.start, b.start) for a, b in pairs)

    for seed in range(24):
        for trace in (made_trace(seed), later(made_trace(seed), -20.0)):
            overlaps(trace, at_once(trace))
    for recorded in load_traces("data/loops.json"):
        overlaps(recorded, at_once(recorded))
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "forecast_test_gain", "locked": true, "points": 9, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check(
    "forecast", "what limits the loop, and what would help", part="gain", hidden="random traces and recorded loops"
):

    def gains(trace, limit, gain, hints=None):
        got = forecast(trace)
        check.equal(got.limit, limit, what=f"limit of a trace, {trace.title}", hint=(hints or {}).get("limit", ""))
        check.close(got.gain, gain, what=f"gain of a trace, {trace.title}", hint=(hints or {}).get("gain", ""))

    gains(
        SERIAL,
        "fetch",
        {"fetch": 1.6, "train": 8 / 7},
        {"gain": "nothing overlaps, so the costs add up: 4 s per sample, and 2.5 s with half the fetch"},
    )
    gains(
        FED,
        "decode",
        {"fetch": 1.0, "decode": 1.5, "train": 1.0},
        {
            "limit": "a fetch takes 4 s, but two workers share them: 2 s per sample against 3 s of decode",
            "gain": "with decode at 1.5 s the next limit is fetch, at 2 s: 3 / 2",
        },
    )
    gains(
        IN_PAIRS,
        "fetch",
        {"fetch": 28 / 17, "train": 28 / 25},
        {"gain": "nothing overlaps: 11/3 s of fetch and 1 s of training add up, and no cost is divided by workers"},
    )
    gains(
        CACHED,
        "fetch",
        {"fetch": 1.5, "train": 1.2},
        {"gain": "one fetch of 3 s is a mean of 3 s: divide by the number of the stage's own intervals"},
    )
    gains(
        LONG,
        "request",
        {"request": 2.0, "decode": 1.0, "train": 1.0},
        {
            "limit": "a stage without intervals costs 0",
            "gain": "a request costs 5.25 s / 2 workers; nothing was decoded, which costs 0",
        },
    )
    gains(
        traced(
            "nothing is decoded",
            {"fetch": 1, "decode": 1, "train": 1},
            ("fetch", 0, 0, 0.0, 3.0),
            ("train", 0, 0, 3.0, 4.0),
        ),
        "fetch",
        {"fetch": 1.6, "decode": 1.0, "train": 8 / 7},
        {"gain": "a stage without intervals costs 0, and adds 0 to the sum"},
    )
    gains(
        AT_ONCE,
        "fetch",
        {"fetch": 1.0, "decode": 1.0, "train": 1.0},
        {
            "limit": "fetch and decode cost 2 s each: the first of equals",
            "gain": "fetch and decode cost 2 s each and overlap: with either of them halved, the other still takes 2 s",
        },
    )
    even = [Interval("fetch", 0, 0, 0.0, 1.0), Interval("train", 0, 0, 1.0, 2.0)]
    gains(
        Trace("both of 1 s", [Stage("fetch", 1), Stage("train", 1)], even),
        "fetch",
        {"fetch": 4 / 3, "train": 4 / 3},
        {"limit": "both have the same cost: the first of equals"},
    )

    ### BEGIN HIDDEN TESTS
    def expected(trace):  # every quantity from its definition
        pairs = ((a, b) for a in trace.intervals for b in trace.intervals if a.stage != b.stage)
        side = any(min(a.end, b.end) > max(a.start, b.start) for a, b in pairs)
        costs = []
        for stage in trace.stages:
            took = [i.end - i.start for i in trace.intervals if i.stage == stage.name]
            mean = math.fsum(took) / len(took) if took else 0.0
            costs.append(mean / stage.workers if side else mean)
        whole, result = (max(costs) if side else sum(costs)), {}
        for k, stage in enumerate(trace.stages):
            halved = [c / 2 if j == k else c for j, c in enumerate(costs)]
            result[stage.name] = whole / (max(halved) if side else sum(halved))
        return trace.stages[costs.index(max(costs))].name, result

    for seed in range(24):
        gains(made_trace(seed), *expected(made_trace(seed)))
    for recorded in load_traces("data/loops.json"):
        gains(recorded, *expected(recorded))
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "forecast",
    "Keep the costs in a dict, one per stage, and write one small function that turns such a dict into the time of a sample. A gain compares that time before and after.",
    "Comparing all pairs of intervals is good enough here. When do two of them share more than a point?",
    "`max` returns the first of equals, and a dict keeps its order.",
)
show.table(
    [
        [
            title,
            f"{trace.seconds:.2f} s",
            f"{100 * each.utilisation:.0f}%",
            each.limit,
            ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in each.blame.items()),
            ", ".join(f"{stage} {times:.2f}×" for stage, times in each.gain.items()),
        ]
        for (title, trace), each in zip(RUNS.items(), VERDICTS.values(), strict=True)
    ],
    ["recorded loop", "time of 48 samples", "utilisation", "limit", "blame", "gain if its cost is halved"],
)
debrief(
    "forecast",
    """The forecast is made before anybody buys anything. In the first recorded loop a fetch twice as fast would gain 1.6×, and
    in the second 2.0×: that is the difference between a sum and a maximum. With four workers the trainer is the limit, and
    the only thing left to buy is a faster trainer.

    How many requests are enough? To receive a sample every 18 ms from a store that takes 52 ms, 52 / 18 ≈ 3 requests have to
    be under way at every moment. This is Little's law, as in lab 02.

    Two cautions for real traces. A stage called “fetch” mixes waiting with bytes: more workers overlap the waiting, but
    never widen the link. And the forecast assumes that enough samples are under way.""",
    parts=("overlap", "gain"),
)
term("Little's law")

# %% [markdown]
# ## 3 · Ask early
#
# The store answers after 30 ms whether you stand and wait or not. So request the next samples *before* you train on this one:
# **prefetching**. It costs memory.
#
# | function | does | takes |
# |---|---|---|
# | `request(key)` | asks the store for a sample, and returns a ticket | no time |
# | `receive(ticket)` | waits for the answer and returns it, or raises `TimeoutError`; **the ticket is closed either way** | until it arrives |
# | `cancel(ticket)` | gives up a request whose ticket is still open | no time |
# | `train(data)` | one step | its time |
#
# *Worked example.* Keys a, b, c, d and `ahead` = 1: request a and b, receive a, train; request c, receive b, train; request
# d, receive c, train; receive d, train. So at most two samples are alive.
#
# ### Exercise 3 (17 points)
#
# `feed(keys, ahead, request, receive, cancel, train) -> int` trains on the data of every key, in order, and returns the number of
# steps. A key may occur several times, data may be empty, and `keys` stays as it is.
#
# - Before it waits for a sample, it has requested that one and the `ahead` after it (fewer at the end), each once and in
#   order, and nothing else.
# - If `request`, `receive` or `train` raises, or Ctrl+C (`KeyboardInterrupt`) comes in the middle of a step, cancel each
#   ticket that is still open once, and let the exception through unchanged.
# - `ahead` below 0 raises a `ValueError` that names `ahead`, before anything is requested.


# %% nbgrader={"grade": false, "grade_id": "feed", "locked": false, "schema_version": 3, "solution": true, "task": false}
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


# %% nbgrader={"grade": true, "grade_id": "feed_test_order", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check(
    "feed", "what is requested, when, and what is trained on", part="order", hidden="other stores, sizes and keys"
):

    def feeds(store, keys, ahead, seconds, most_alive, case):
        check.equal(run_feed(feed, store, list(keys), ahead), len(keys), what=f"the number of steps, {case}")
        check.equal(
            [data[:4] for data in store.trained],
            [store.objects[key][:4] for key in keys],
            what=f"the first bytes of what was trained on, {case}",
            hint="in the order of the keys; tickets belong to positions, not to keys",
        )
        check.equal(
            store.requested,
            list(keys),
            what=f"what was requested, {case}",
            hint="each position once, in order, even if its key occurs again",
        )
        check.equal(
            store.most_alive,
            most_alive,
            what=f"samples requested and not yet trained on, at most, {case}",
            hint="the sample that is awaited and `ahead` behind it: no more, no fewer",
        )
        check.close(
            store.now,
            seconds,
            unit="s",
            what=f"time, {case}",
            hint="make one request as soon as a sample has been trained on: not in groups, and not only when its sample is needed",
        )

    for ahead, seconds in ((0, 20 * 0.050), (4, 0.040 + 20 * 0.010)):
        store = FarStore(objects_of(20), latency=0.039, bandwidth=1e6, step=0.010)
        feeds(
            store,
            list(store.objects),
            ahead,
            seconds,
            ahead + 1,
            f"20 samples of 39 + 1 ms, steps of 10 ms, ahead = {ahead}",
        )
    again = [f"sample {n}" for n in (1, 0, 1, 1, 2, 0)]
    feeds(FarStore(objects_of(3), 0.019, 1e6, 0.010), again, 2, 0.080, 3, "keys 1, 0, 1, 1, 2, 0, ahead = 2")
    feeds(FarStore(objects_of(2), 0.019, 1e6, 0.010), ["sample 0", "sample 1"], 5, 0.040, 2, "2 keys, ahead = 5")
    feeds(FarStore({}, 0.019, 1e6, 0.010), [], 3, 0.0, 0, "no keys, ahead = 3")
    nothing = FarStore({"sample 0": b"", "sample 1": b"data"}, 0.020, 1e6, 0.010)
    feeds(nothing, ["sample 0", "sample 1"], 1, 0.040, 2, "2 keys, the first without data, ahead = 1")
    store = FarStore(objects_of(3), 0.019, 1e6, 0.010)
    names = list(store.objects)
    run_feed(feed, store, inout(names), 1)
    check.equal(names, list(store.objects), what="the list of keys after the call", hint="it belongs to the caller")

    ### BEGIN HIDDEN TESTS
    def clock_of(count, ahead, sizes, latency, step):  # when the last step ends
        done, link = [], 0.0
        for n in range(count):
            link = max(link, (done[n - ahead - 1] if n > ahead else 0.0) + latency) + sizes[n] / 1e6
            done.append(max(link, done[n - 1] if n else 0.0) + step)
        return done[-1]

    for seed in range(8):
        rng = check.rng(seed)
        count, ahead = int(rng.integers(1, 25)), int(rng.integers(0, 8))
        sizes = [int(s) for s in rng.integers(8, 30_000, count)]
        objects = {f"{n}": n.to_bytes(4, "big") + bytes(size - 4) for n, size in enumerate(sizes)}
        latency, step = float(rng.uniform(0, 0.05)), float(rng.uniform(0.001, 0.03))
        seconds, most = clock_of(count, ahead, sizes, latency, step), min(count, ahead + 1)
        feeds(
            FarStore(objects, latency, 1e6, step),
            list(objects),
            ahead,
            seconds,
            most,
            f"{count} samples, ahead = {ahead}",
        )
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "feed_test_failures", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("feed", "when the store or a step fails", part="failures", hidden="failures at other places"):

    def left_open(store, case, cancelled):
        check.equal(
            [key for key, _, _ in store.tickets.values()],
            [],
            what=f"requests left open when {case}",
            hint="cancel what was requested and never received, whatever raised",
        )
        check.equal(sorted(store.cancelled), [f"sample {n}" for n in cancelled], what=f"what was cancelled when {case}")

    def fails(error, late, broken, ahead, cancelled, count=9):
        """A store that never sends sample `late`, or a step that fails on sample `broken`."""
        store = FarStore(objects_of(count), 0.02, 1e6, 0.01, timeout=0.05)
        if late is not None:
            store.objects[f"sample {late}"] = bytes(60_000)

        def train(data):
            if broken is not None and data[3] == broken:
                raise ArithmeticError(f"loss is NaN at sample {broken}")
            store.train(data)

        case = f"sample {late} does not come" if broken is None else f"the step on sample {broken} fails"
        names = f"sample {late if broken is None else broken}"
        check.raises(error, run_feed, feed, store, list(store.objects), ahead, train, names=names)
        done = late if broken is None else broken
        check.equal(len(store.trained), done, what=f"steps done before {case}")
        asked = [f"sample {n}" for n in range(min(count, done + ahead + 1))]
        check.equal(store.requested, asked, what=f"what was requested, all in all, when {case}", hint="each once")
        left_open(store, f"{case}, ahead = {ahead}", cancelled)

    def interrupted(during, before, ahead, cancelled, count=9):
        store = FarStore(objects_of(count), 0.02, 1e6, 0.01)
        calls = (store.request, store.receive, store.cancel, store.train)
        raised = there(press_ctrl_c, feed, list(store.objects), ahead, *calls, during, before)
        case = f"Ctrl+C is pressed in call {before + 1} of {during}, ahead = {ahead}"
        left_open(store, case, cancelled)
        check.equal(raised, "KeyboardInterrupt", what=f"what feed lets through when {case}")

    fails(TimeoutError, 2, None, 2, (3, 4))
    fails(ArithmeticError, None, 2, 3, (3, 4, 5))
    interrupted("train", 2, 3, (3, 4, 5))
    interrupted("request", 2, 3, (0, 1))
    store = FarStore(objects_of(1), 0.02, 1e6, 0.01)
    check.raises(ValueError, run_feed, feed, store, ["sample 0"], -1, names="ahead")
    check.equal(store.requested, [], what="what was requested with ahead = -1")
    ### BEGIN HIDDEN TESTS
    fails(TimeoutError, 0, None, 0, ())
    fails(TimeoutError, 4, None, 3, (5, 6, 7))
    fails(TimeoutError, 7, None, 6, (8,))
    fails(ArithmeticError, None, 0, 12, tuple(range(1, 9)))
    interrupted("train", 0, 12, tuple(range(1, 9)))
    interrupted("train", 8, 2, ())
    interrupted("request", 6, 2, (4, 5))
    interrupted("request", 0, 2, ())
    check.raises(ValueError, run_feed, feed, store, [], -3, names="ahead")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
import time

from threeloops.data.loading.prefetch import prefetch
from threeloops.data.storage.slow_store import SharedLink, SlowStore
from threeloops.data.storage.store import MemoryStore

hint(
    "feed",
    "Keep the open tickets in a list, oldest first, and count how many keys were requested. How many must that be before each `receive`?",
    "`try: … finally:` runs whatever happened, and lets the exception through. A ticket that you are about to receive is not open afterwards, however `receive` ends.",
)
predict(
    "live_gain",
    "A store of 30 ms and 100 MB/s, samples of 0.1 MB, steps of 12 ms. Six threads fetch twelve samples ahead. How many times faster is the loop than one without threads?",
    unit="×",
)
myth("feed-2")
with reveal("live_gain"):
    animate(
        feeding.draw_ahead,
        range(6),
        seconds=1.6,
        caption="fetches of 37 ms, steps of 10 ms, asking further and further ahead (model)",
        still=2,
    )
SLOW, STEP = MemoryStore({str(n): bytes(100_000) for n in range(40)}), 0.012


def live_loop(workers, ahead):
    """Seconds of training over seconds of the loop, from the first step to the end of the last: real waiting, real threads."""
    store, began = SlowStore(SLOW, SharedLink(0.030, 100e6)), None
    for _ in prefetch(store.get, list(SLOW.objects), workers, ahead):
        began = time.perf_counter() if began is None else began
        time.sleep(STEP)
    return len(SLOW.objects) * STEP / (time.perf_counter() - began)


BEFORE, AFTER = live_loop(0, 0), live_loop(6, 12)
show.against_prediction("live_gain", round(AFTER / BEFORE, 1), unit="×", source="measured here")
audit(
    "feed-2",
    round(100 * ONE_AHEAD.utilisation),
    "% of the time training, with one worker ahead",
    "CPU",
    "corrected",
    how=f"it depends on how many requests are under way: the recorded loop went from {100 * SERIAL_RUN.utilisation:.0f}% with none in advance to "
    f"{100 * ONE_AHEAD.utilisation:.0f}% with one worker and {100 * FOUR_AHEAD.utilisation:.0f}% with four, and this one, here, from {100 * BEFORE:.0f}% to "
    f"{100 * AFTER:.0f}% with six. It also depends on the link, as section 5 shows",
)
debrief(
    "feed",
    """The requests are the same as before, only earlier. With `ahead` samples under way the wait is hidden as soon as they
    take at least as long to train on as one takes to fetch: ahead ≥ latency / step time. Below that the loop starves. Above
    it, further samples only take memory.

    An answer that nobody waits for still costs the store its work and this process its memory, so open requests are
    cancelled. `finally` does it for every exception, KeyboardInterrupt included.""",
    parts=("order", "failures"),
)
term("prefetching")

# %% [markdown]
# ## 4 · Two buffers
#
# The last wait is the copy to the GPU. Work for a GPU is queued in **streams**. Work in one stream runs in order; work in two
# streams runs side by side, and *nothing* keeps a copy from overwriting a batch still being read, unless you make it
# wait for an **event**. With two buffers one is filled while the other is used: **double buffering**. All four functions return
# at once.
#
# | function | queues |
# |---|---|
# | `copy(buffer, batch)` | in the stream `"copy"`: the copy of a batch into buffer 0 or 1 |
# | `compute(buffer)` | in the stream `"compute"`: a step on what the buffer holds |
# | `record(stream)` | an event that happens when everything queued in this stream *so far* is done; returns the event |
# | `wait(stream, event)` | a wait: nothing queued in this stream *from now on* starts before the event |
#
# *Worked example.* Copies of 1 s, steps of 2 s. Batch 0 is copied into buffer 0 from 0 to 1 s, batch 1 into buffer 1 from 1 to
# 2 s. Step 0 reads buffer 0 from 1 to 3 s, so the copy of batch 2 starts at 3 s. Step 1 runs from 3 to 5 s.
#
# ### Exercise 4 (14 points)
#
# `double_buffer(batches, copy, compute, record, wait) -> None` queues an epoch. Step *i* computes on batch *i*, even
# an empty one. `batches` stays as it is.
#
# - No copy writes to a buffer while a step reads it, and no step reads a buffer before its batch is complete, **however long
#   copies and steps take**.
# - Nothing waits longer than that: copy *i* starts when copy *i − 1* and step *i − 2* are done, step *i* when copy *i* and step *i − 1*
#   are.


# %% nbgrader={"grade": false, "grade_id": "double_buffer", "locked": false, "schema_version": 3, "solution": true, "task": false}
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


# %% nbgrader={"grade": true, "grade_id": "double_buffer_test_races", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("double_buffer", "what the steps read", part="races", hidden="other times"):

    def races(copies, steps):
        gpu, batches = TwoStreams(copies, steps), [n // 2 for n in range(len(steps))]  # each comes twice
        double_buffer(batches, gpu.copy, gpu.compute, gpu.record, gpu.wait)
        computed, faults = gpu.results()
        case = f"copies of {copies} s, steps of {steps} s"
        check.true(
            None not in computed,
            f"step {[*computed, None].index(None)} starts before its batch is complete, {case}: it must wait for the event behind its copy",
        )
        check.equal(
            faults,
            [],
            what=f"races, {case}",
            hint="a buffer may be overwritten only when the step that reads it is done: wait for its event in the copy stream",
        )
        check.equal(
            computed,
            batches,
            what=f"the batches that the steps computed on, {case}",
            hint="a step waits for the event behind its own copy",
        )

    races([1.0] * 6, [2.0] * 6)
    races([2.0] * 6, [1.0] * 6)
    races([1.0] * 6, [1.0] * 6)
    races([0.5, 0.5, 0.5, 0.5], [7.0, 1.0, 7.0, 1.0])
    races([], [])
    gpu, batches = TwoStreams([1.0] * 3, [2.0] * 3), ["", "one", ""]
    double_buffer(inout(batches), gpu.copy, gpu.compute, gpu.record, gpu.wait)
    check.equal(gpu.results()[0], ["", "one", ""], what="the batches that the steps computed on, two of them empty")
    check.equal(batches, ["", "one", ""], what="the list of batches after the call", hint="it belongs to the caller")
    ### BEGIN HIDDEN TESTS
    for seed in range(12):
        rng = check.rng(100 + seed)
        count = int(rng.integers(1, 14))
        races(*([float(v) for v in rng.choice([0.1, 1.0, 3.0, 7.0], count)] for _ in range(2)))
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "double_buffer_test_time", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("double_buffer", "how long it takes", part="time", hidden="other times"):

    def takes(copies, steps, ends):
        gpu = TwoStreams(copies, steps)
        double_buffer([n // 2 for n in range(len(steps))], gpu.copy, gpu.compute, gpu.record, gpu.wait)
        case = f"copies of {copies} s, steps of {steps} s"
        check.equal(len(gpu.steps), len(steps), what=f"number of steps, {case}")
        check.equal(len(gpu.copies), len(steps), what=f"number of copies, {case}")
        check.close(
            [end for *_, end in gpu.steps],
            ends,
            unit="s",
            what=f"the ends of the steps, {case}",
            hint="if later, a copy should wait for the step two batches before, not for the last one; if earlier, a wait is missing",
        )

    takes([1.0] * 6, [2.0] * 6, [3.0, 5.0, 7.0, 9.0, 11.0, 13.0])
    takes([2.0] * 6, [1.0] * 6, [3.0, 5.0, 7.0, 9.0, 11.0, 13.0])
    takes([1.0] * 6, [1.0] * 6, [2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    takes([0.5, 0.5, 0.5, 0.5], [7.0, 1.0, 7.0, 1.0], [7.5, 8.5, 15.5, 16.5])
    ### BEGIN HIDDEN TESTS
    for seed in range(12):
        rng = check.rng(200 + seed)
        count = int(rng.integers(1, 14))
        copies, steps = ([float(v) for v in rng.choice([0.1, 1.0, 3.0, 7.0], count)] for _ in range(2))
        copied, ends = [], []
        for n in range(count):
            copied.append(max(copied[-1] if n else 0.0, ends[n - 2] if n > 1 else 0.0) + copies[n])
            ends.append(max(copied[n], ends[-1] if n else 0.0) + steps[n])
        takes(copies, steps, ends)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "double_buffer",
    "Into which buffer does batch 5 go, and which earlier step is the last to read this buffer?",
    "Two things have to be said: “the batch is there”, and “the batch is no longer read”. Which stream can say each of them, and which stream has to wait for it? In the worked example the copy of batch 2 starts at 3 s: what has just happened then, and in which stream?",
)
show.figure(
    feeding.draw_buffers([0.006, 0.014, 0.006, 0.006, 0.006, 0.020, 0.006, 0.006] * 2, step=0.012),
    "short and long copies beside steps of 12 ms: with one buffer they take turns; with two, only a long copy delays a step",
)
debrief(
    "double_buffer",
    """Two events per batch say two different things: “the batch is there”, and “the batch is no longer read”. Without the
    first a step reads half a batch, and without the second a fast copy overwrites a batch under a slow step. Neither raises
    an error, and either may never show on the machine on which the code was written.

    A copy runs beside kernels only if its source is **pinned**, because the copy engine reads physical addresses and an
    ordinary page may move. `DeviceFeed` in the library is this function with real streams and pinned buffers.""",
    parts=("races", "time"),
)
term("pinned memory")
term("stream")

# %% [markdown]
# ## 5 · You tune the loop
#
# A loader has two settings: how many `workers` fetch and decode, and how many samples it asks for `ahead`. Both cost memory.
# Seven loops (`LOOPS`, "A" to "G") wait for settings; G's data are already in memory. A `Loop` has `latency`, `bandwidth` of
# the link that all workers share, `sample_bytes`, `decode` (seconds in the worker), `step` and `worker_bytes`.
#
# Two functions are given. `seconds_per_sample(loop, Settings(workers, ahead))` simulates the loop, and `memory_bytes(loop,
# settings)` is `workers` · `worker_bytes` + (`ahead` + 1) · `sample_bytes`.
#
# *Worked example.* A worker waits 30 ms for an answer, which takes 5 ms on the link and 5 ms to decode. A step takes 10 ms. So a
# worker delivers a sample every 40 ms, and four keep up. They need four samples ahead: with fewer, some would have
# nothing to do.
#
# ### Exercise 5 (14 points)
#
# `tune(loop: Loop) -> Settings`, with 1 to 16 workers and 0 to 48 samples ahead. Grading runs the loop with your settings:
#
# - A sample takes at most 1.1 times as long as with `Settings(16, 48)`.
# - The memory is at most 1.5 times the least that any settings of that speed take.


# %% nbgrader={"grade": false, "grade_id": "tune", "locked": false, "schema_version": 3, "solution": true, "task": false}
def tune(loop: Loop) -> Settings:
    """Enough workers and samples in advance, and not many more."""
    ### BEGIN SOLUTION
    transfer = loop.sample_bytes / loop.bandwidth
    cycle = loop.latency + transfer + loop.decode  # of a worker
    pace = 1.05 * max(loop.step, transfer, cycle / 16)
    return Settings(max(1, math.ceil(cycle / pace)), math.ceil((cycle + loop.step) / pace) - 1)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "tune_test", "locked": true, "points": 14, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("tune", "fast, with little memory", hidden="other loops"):

    def tunes(name, loop, slowest, least):
        """`slowest` is the time that a sample may take, and `least` the memory of the smallest settings with that time."""
        got = tune(loop)
        fits = all(isinstance(getattr(got, name, None), int | np.integer) for name in ("workers", "ahead"))
        check.true(
            fits and 1 <= got.workers <= 16 and 0 <= got.ahead <= 48,
            f"tune of loop {name} = {got!r}: expected Settings of integers, 1 to 16 workers and 0 to 48 ahead",
        )
        settings = Settings(int(got.workers), int(got.ahead))
        took = seconds_per_sample(loop, settings)
        check.true(
            took <= slowest,
            f"loop {name} with {settings} takes {1e3 * took:.2f} ms per sample: expected at most {1e3 * slowest:.2f} ms",
        )
        own = memory_bytes(loop, settings)
        check.true(
            own <= 1.5 * least,
            f"loop {name} with {settings} takes {own / 1e6:.1f} MB: expected at most {1.5 * least / 1e6:.1f} MB, "
            "1.5 times what is needed for that speed",
        )
        return round(own / 1e6, 1)

    model = {"A": 7.0, "B": 7.0, "C": 401.8, "D": 45.0, "E": 80.0, "F": 336.0, "G": 11.0}  # MB of the model answer
    limits = {  # seconds per sample, and the bytes that are needed for them
        "A": (0.011, 7_000_000),
        "B": (0.0132, 7_000_000),
        "C": (0.011, 401_800_000),
        "D": (0.22, 45_000_000),
        "E": (0.0132, 80_000_000),
        "F": (0.02756875, 295_000_000),
        "G": (0.011, 11_000_000),
    }
    for name, loop in LOOPS.items():
        check.note(f"loop {name}, memory", tunes(name, loop, *limits[name]), model[name], "MB")
    ### BEGIN HIDDEN TESTS

    def least_memory(loop, slowest):
        """Of all settings of this speed; more samples ahead never make a loop slower."""
        least = math.inf
        for workers in range(1, 17):
            low, high = 0, 48
            if seconds_per_sample(loop, Settings(workers, high)) > slowest:
                continue
            while low < high:
                middle = (low + high) // 2
                if seconds_per_sample(loop, Settings(workers, middle)) > slowest:
                    low = middle + 1
                else:
                    high = middle
            least = min(least, memory_bytes(loop, Settings(workers, low)))
        return least

    for seed in range(8):
        rng = check.rng(seed)
        name = "ABCDEFAB"[seed]
        factor = {field: float(rng.uniform(0.7, 1.4)) for field in ("latency", "decode", "step", "sample_bytes")}
        loop = replace(LOOPS[name], **{field: getattr(LOOPS[name], field) * by for field, by in factor.items()})
        slowest = 1.1 * seconds_per_sample(loop, Settings(16, 48))
        tunes(f"like {name}", loop, slowest, least_memory(loop, slowest))
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "tune",
    "First the pace: something bounds the time of a sample from below, whatever the settings. It is one thing in A, another in B, and a third in F.",
    "Little's law twice: once for the workers, and once for the samples that are alive. How long does each of them stay?",
    "Trying settings with `seconds_per_sample`, from small to large, is just as good.",
)
predict(
    "narrow_link",
    "Loop B has a link of 50 MB/s and samples of 0.6 MB; its step takes 10 ms. With ten workers and twenty samples ahead, how busy is the trainer?",
    unit="%",
)
CREWS = range(1, 11)
CURVES = {
    "200 MB/s, two per worker in advance": [feeding.utilisation(w, 2 * w) for w in CREWS],
    "50 MB/s, two per worker in advance": [feeding.utilisation(w, 2 * w, bandwidth=50e6) for w in CREWS],
    "200 MB/s, one in advance": [feeding.utilisation(w, 1) for w in CREWS],
}
narrow = CURVES["50 MB/s, two per worker in advance"][-1]
show.against_prediction(
    "narrow_link", round(100 * narrow), unit="%", source="the library's prefetcher on a virtual clock"
)
with reveal("narrow_link"):
    show.figure(
        feeding.draw_crews(CURVES),
        "utilisation by number of workers, for a wide link, a narrow one, and one sample in advance",
    )
explore(
    feeding.draw_pipeline,
    labels={"megabytes_per_second": "link (MB/s)", "ahead": "samples ahead"},
    latency_ms=(0, 100, 5, 30),
    megabytes_per_second=(20, 500, 20, 200),
    fetchers=(1, 16, 1, 4),
    decode_ms=(0, 20, 1, 4),
    decoders=(1, 8, 1, 2),
    ahead=(0, 24, 1, 3),
    train_ms=(2, 40, 1, 10),
)
debrief(
    "tune",
    """Workers overlap latencies. In B the link sets the pace, and the tenth worker finds the same queue as the fifth. In D a
    fetch takes 2% of a step, so nothing in advance is needed, and a second sample of 40 MB would nearly double the memory.
    In E the samples are large, so asking for twice as many ahead as the workers can use wastes memory. In F the sixteen
    workers are the limit, and it takes another machine, or a faster decoder. In G nothing causes a wait, and one worker is
    plenty.

    When utilisation stops rising with workers, stop adding workers: look at `ahead`, then count bytes.""",
    parts=("",),
)

# %% [markdown]
# ## 6 · Read a shard
#
# A data set usually arrives as a folder of small files: a million images of 100 kB, a million labels of one byte. In an object
# store each of them is a request, which costs its latency whether it brings a byte or a gigabyte. So samples are packed into
# **shards**, which are read from front to back.
#
# A **tar** file is a chain: a header of 512 bytes, the contents, zeros up to the next multiple of 512, the next header. Two
# blocks of zeros end it. In the **WebDataset** layout, files that belong to one sample follow each other and share their
# **key**, the name up to the first dot after the last slash. The rest is the extension. A key that comes back after
# another one begins a new sample.
#
# | bytes of a header | contents |
# |---|---|
# | 0–99 | name in UTF-8, which ends at the first zero byte |
# | 124–135 | size of the contents: `number(header[124:136])` |
# | 148–155 | checksum: `number(header[148:156])` must be `checksum(header)` |
# | 156 | type: `0` or a zero byte for a regular file |
#
# Both functions are given. `number(field)` reads octal digits, and returns `None` if the field holds anything else.
#
# *Worked example.* `v1.2/000.seg.png` with 3 bytes: key `v1.2/000`, extension `seg.png`, size field `00000000003` and a zero
# byte. The next header is 1,024 bytes after this one.
#
# ### Exercise 6 (14 points)
#
# `read_shard(shard: str, data: bytes) -> list[Sample]` reads a *subset* of tar: regular files whose names have a dot
# after the last slash. Reading ends at the first block of zeros. Anything else raises `CorruptShard`, with a message
# that begins with the shard and the offset of the header at which reading stopped, like `s.tar, byte 1024:`. This
# includes:
#
# - a field that holds no number, a wrong checksum, another type;
# - a name without that dot, or not in UTF-8; an extension that its sample already has;
# - contents, or the zeros after them, that end early;
# - data that end where a header was expected.


# %% nbgrader={"grade": false, "grade_id": "read_shard", "locked": false, "schema_version": 3, "solution": true, "task": false}
def read_shard(shard: str, data: bytes) -> list:
    """The samples of a tar file, or CorruptShard with the place at which it goes wrong."""
    ### BEGIN SOLUTION
    samples, offset = [], 0
    while True:
        header, place = data[offset : offset + 512], f"{shard}, byte {offset}"
        if len(header) < 512:
            raise CorruptShard(f"{place}: {len(header)} bytes where a header or the end was expected")
        if not any(header):
            return samples
        size = number(header[124:136])
        if size is None or number(header[148:156]) != checksum(header):
            raise CorruptShard(f"{place}: this is not the header of a tar file")
        try:
            name = header[:100].partition(b"\0")[0].decode()
        except UnicodeDecodeError:
            raise CorruptShard(f"{place}: the name is not UTF-8") from None
        if header[156:157] not in (b"0", b"\0"):
            raise CorruptShard(f"{place}: {name} is not a regular file")
        begin, offset = offset + 512, offset + 512 + size + -size % 512
        if len(data) < offset:
            raise CorruptShard(f"{place}: {name} has {size} bytes, and the shard ends early")
        folder, slash, file = name.rpartition("/")
        stem, dot, extension = file.partition(".")
        if not dot:
            raise CorruptShard(f"{place}: {name} has no extension")
        key = folder + slash + stem
        if not samples or samples[-1].key != key:
            samples.append(Sample(key, {}))
        if extension in samples[-1].parts:
            raise CorruptShard(f"{place}: sample {key} already has a part {extension}")
        samples[-1].parts[extension] = data[begin : begin + size]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "read_shard_test_samples", "locked": true, "points": 9, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("read_shard", "the samples of a shard", part="samples", hidden="other shards, also by Python's tarfile"):

    def reads(samples, data, case, why=""):
        check.accepts(read_shard, f"{case}.tar", data)
        check.equal(read_shard(f"{case}.tar", data), samples, what=f"read_shard of {case}", hint=why)

    def one(parts, key="a"):
        return [Sample(key, parts)]

    pair = [
        Sample("train/000", {"jpg": bytes(range(256)) * 2, "cls": b"7"}),
        Sample("train/001", {"jpg": b"x" * 513, "cls": b"3"}),
    ]
    reads(pair, write_shard(pair), "two samples", "512 bytes need no zeros behind them, 513 need 511")
    reads(
        pair,
        write_shard(pair)[:-512],
        "a shard with one block of zeros at its end",
        "reading ends at the first block of zeros",
    )
    dots = [Sample("v1.2/000", {"jpg": b"image", "seg.png": b"mask"})]
    reads(
        dots,
        write_shard(dots),
        "v1.2/000.jpg and v1.2/000.seg.png",
        "the key ends at the first dot after the last slash",
    )
    again = [Sample("a", {"x": b"1"}), Sample("b", {"x": b"2"}), Sample("a", {"x": b"3"})]
    reads(again, write_shard(again), "a key that comes back later", "a sample ends where the key changes")
    reads([], bytes(1024), "an empty shard")
    padded = one({"x": b"abc\0\0"})
    reads(padded, write_shard(padded), "contents that end in zeros", "the header says how long the contents are")
    end, abc = bytes(1024), one({"x": b"abc"})
    reads(abc, member("a.x", b"abc", size=b"         3  ") + end, "a size after spaces")
    reads(abc, member("a.x", b"abc", size=b"00000000003 ") + end, "a size that ends at a space")
    reads(
        one({"x": b""}),
        member("a.x", b"", size=bytes(12)) + end,
        "an empty size",
        "an empty field is 0, and an empty part is a part",
    )
    tail = member("a.x", b"abc", size=b"3\x00777777777\0")
    reads(abc, tail + end, "a size with other digits behind a zero byte", "the digits end at the first zero byte")
    named = member("a.x", b"abc", also=[(3, b"\0old.jpg")])
    reads(abc, named + end, "a name with other bytes behind a zero byte", "the name ends at its first zero byte")
    reads(abc, member("a.x", b"abc", kind=b"\0") + end, "a type that is a zero byte")
    slash = member("/a.JPG", b"abc")
    reads(
        one({"JPG": b"abc"}, "/a"),
        slash + end,
        "a.JPG in the root",
        "the key keeps its slash, the extension its capitals",
    )
    capitals = one({"jpg": b"1", "JPG": b"2"})
    reads(capitals, write_shard(capitals), "a.jpg and a.JPG", "these are two extensions")
    bare = [Sample("d/", {"x": b"1"}), Sample("d/a", {"": b"2"})]
    reads(
        bare,
        member("d/.x", b"1") + member("d/a.", b"2") + end,
        "names with nothing on one side of the dot",
        "either side of the dot may be empty",
    )
    other = member("a.x", b"abc", also=[(100, b"0000600"), (136, b"14524600000 "), (257, b"ustar  "), (345, b"folder")])
    reads(abc, other + end, "a header with other fields filled in", "look at name, size, checksum and type only")
    ### BEGIN HIDDEN TESTS
    for seed in range(8):
        rng, found = check.rng(seed), []
        for n in range(int(rng.integers(1, 6))):
            key = f"{rng.choice(['a', 'v1.2/b', 'd/e.f/g'])}{n}"
            extensions = [str(e) for e in rng.permutation(["jpg", "cls", "seg.png", "json"])[: int(rng.integers(1, 4))]]
            found.append(Sample(key, {e: rng.bytes(int(rng.choice([0, 1, 511, 512, 513, 3000]))) for e in extensions}))
        reads(found, write_shard(found), f"the made-up shard {seed}")
        for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT):
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
                for s in found:
                    for extension, contents in s.parts.items():
                        info = tarfile.TarInfo(f"{s.key}.{extension}")
                        info.size, info.mtime, info.uname, info.mode = len(contents), 1_700_000_000, "root", 0o600
                        tar.addfile(info, io.BytesIO(contents))
            reads(found, buffer.getvalue(), "a shard that tarfile wrote")
    reads(abc, member("a.x", b"abc", size=b"  3 777\0\0\xff  ") + end, "a size with other bytes behind its end")
    reads(abc, member("a.x", b"abc", also=[(4, b"\xff\xfe.")]) + end, "a name with no UTF-8 behind its end")
    reads(one({"x": b"abc"}, "ü"), member("ü.x", b"abc") + end, "a name that is not ASCII")
    reads(one({"x": b"abc"}, " a"), member(" a.x", b"abc") + end, "a name that begins with a space")
    reads(
        one({"jpg": b"abc"}, "k" * 96),
        member("k" * 96 + ".jpg", b"abc", also=[(100, b"0000600")]) + end,
        "a name of 100 bytes",
    )
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "read_shard_test_damage", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("read_shard", "where reading a damaged shard stops", part="damage", hidden="other damage"):

    def stops(data, offset, case):  # the shard's name says what is wrong with it
        check.raises(CorruptShard, read_shard, f"{case}.tar", bytes(data), names=f"{case}.tar, byte {offset}:")

    def flipped(data, place):
        damaged = bytearray(data)
        damaged[place] ^= 2
        return damaged

    good, end = member("a.jpg", b"i" * 512) + member("a.cls", b"7"), bytes(1024)
    stops(good[:1535], 1024, "cut within a header")
    stops(good[:1536], 1024, "cut behind a header")
    stops(good, 2048, "neither a header nor an end")
    stops(good[:1024] + member("a.cls", b"7")[:600], 1024, "cut within the zeros behind the contents")
    stops(flipped(good + end, 1024 + 3), 1024, "a changed name")
    stops(flipped(good + end, 1024 + 400), 1024, "a change in bytes that nobody reads")
    stops(good[:1024] + bytes(100) + good[1124:] + end, 1024, "a name of zeros in a header")
    stops(member("a.x", b"", size=b"00000000009\0") + end, 0, "a size with a 9")
    stops(member("a.x", b"abc", size=b"-0000000003\0") + end, 0, "a size with a sign")
    lettered = bytearray(member("a.x", b"abc") + end)
    lettered[148:156] = b"letters\0"
    stops(lettered, 0, "a checksum of letters")
    stops(member("a.x", b"", kind=b"2") + end, 0, "a link")
    stops(member("v1.2/readme", b"abc") + end, 0, "no extension")
    stops(member("a.x", b"abc", also=[(0, b"\xff")]) + end, 0, "no UTF-8")
    stops(member("a.x", b"1") + member("a.x", b"2") + end, 1024, "an extension twice")
    check.accepts(read_shard, "whole.tar", good + end)
    ### BEGIN HIDDEN TESTS
    for cut in (1, 511, 512, 1023):
        stops(good[:cut], 0, "cut")
    for cut in (1537, 2047):
        stops(good[:cut], 1024, "cut")
    stops(member("a.x", b"abc", size=b"77777777777\0") + end, 0, "a size of eight gigabytes")
    stops(good[:1025], 1024, "cut")
    stops(good + bytes(511), 2048, "cut")
    for place in (0, 124, 130, 148, 156):
        stops(flipped(good + end, 1024 + place), 1024, f"byte {place} of a header changed")
    for size in (b"0o000000003\0", b"0000_000003\0"):
        stops(member("a.x", b"abc", size=size) + end, 0, "a size as Python writes it")
    stops(member("d", b"", kind=b"5") + end, 0, "a folder")
    stops(member("readme", b"abc") + end, 0, "no extension")
    stops(good[:1024] + member("\u00fc.x", b"abc", also=[(1, b"x")]) + end, 1024, "no UTF-8")
    stops(b"", 0, "empty")
    check.accepts(read_shard, "cut within its end.tar", good + bytes(512))
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "read_shard",
    "Keep one number, the offset of the present header. Contents of 0, 512 and 1,024 bytes have no zeros behind them.",
    "Split off the folder first, and then the file's own name: `str.partition` splits at the first place, `str.rpartition` at the last.",
)
predict(
    "shard_gain",
    "10,000 images of 100 kB, each with a label of 2 bytes, in a store of 30 ms and 200 MB/s; 16 readers, each of which waits for its object. How many times faster is an epoch if they lie in shards of 100?",
    unit="×",
)
IMAGES, IMAGE, LABEL = 10_000, 100_000, 2
IN_A_SHARD = sum(512 + size + -size % 512 for size in (IMAGE, LABEL))  # bytes of a sample in a tar file
SMALL = feeding.epoch_seconds([IMAGE, LABEL] * IMAGES)
SHARDED = {
    n: feeding.epoch_seconds([n * IN_A_SHARD + 1024] * (IMAGES // n)) for n in (1, 2, 5, 10, 20, 50, 100, 500, 2000)
}
show.against_prediction("shard_gain", round(SMALL / SHARDED[100], 1), unit="×", source="model: two numbers")
with reveal("shard_gain"):
    floor = IMAGES * (IMAGE + LABEL) / 200e6
    show.figure(
        feeding.draw_objects(SHARDED, SMALL, floor),
        "seconds per epoch fall to what the bytes take with five samples per shard",
    )
debrief(
    "read_shard",
    """Why shards at all? It is Little's law once more: to keep 200 MB/s busy at 30 ms, 6 MB have to be under way. Half of
    the sixteen readers wait for labels, so only eight images, 0.8 MB, are under way. With five images per shard they have 8
    MB. Larger shards mean fewer objects to list and to bill, and longer reads for disks that seek. The price is coarser
    shuffling, because samples that are read together stay together: mix shards, and draw from a buffer of samples. Fewer
    shards than readers leave readers idle.

    A header protects itself with a sum of its bytes. The contents have nothing: a flipped bit in an image goes unnoticed (the
    dives compare this with the checksums of TFRecord).

    This is a subset. `tar cf x.tar folder` also writes a member for the folder, which WebDataset and the library skip, and
    tar programs keep names of more than 100 bytes in extra members. The library reads those. A link is refused, because a
    shard from somebody else should not decide which file of this machine is read.""",
    parts=("samples", "damage"),
)

# %% [markdown]
# ## 7 · Resume exactly there
#
# A run dies in the middle of an epoch. Its checkpoint has the weights; what about the data? Start the epoch again, and half of the
# samples are seen twice. Draw a new order, and some are never seen. Neither raises an error.
#
# If the order of an epoch is a **function** of a seed and of the epoch's number, the position is one integer. But *whose* position?
# With prefetching, workers are samples ahead of what the model has seen.
#
# *Worked example.* `epoch_order(10, 7, 2)` is 1 5 3 4 6 9 0 8 2 7. With batches of 3 and two workers, worker 0 gets 1 5 3 and
# then 0 8 2; worker 1 gets 4 6 9, and then the last batch, 7. Three batches are handed out and one was trained on: the state
# is position 3. A run that resumes there with batches of 4 gets 4 6 9 0, and then 8 2 7.
#
# ### Exercise 7 (15 points)
#
# `class Sampler(samples, batch, workers, state)` hands out the rest of one epoch. `state` is a `State(seed, epoch, position)`;
# the order is `epoch_order(samples, seed, epoch)`, which is given and returns a NumPy array. The samples from
# `position` on are cut into batches of `batch` samples; the last may be shorter. Batch *b* of the rest goes to worker
# *b* mod `workers`. With `workers` = 0 the main process loads, as worker 0.
#
# | method | meaning |
# |---|---|
# | `batch_for(worker)` | this worker's next batch, a list of Python's own `int`, or `None` after its last. Workers may ask in any order and run ahead. The list is theirs: the sampler does not change it, and does not mind if they do |
# | `trained()` | the next batch *in order* has been trained on. `RuntimeError` if it was not handed out, or there is none; then nothing is counted |
# | `state()` | where to resume: counts what was **trained on**. After the last batch, the next epoch at position 0 |
#
# A `ValueError` names `position` if it is not one of 0 … `samples` − 1, and `worker` if there is no such worker, such as −1.


# %% nbgrader={"grade": false, "grade_id": "Sampler", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Sampler:
    """Hands out the rest of an epoch, and remembers what was trained on."""

    def __init__(self, samples: int, batch: int, workers: int, state: State):
        ### BEGIN SOLUTION
        if not 0 <= state.position < samples:
            raise ValueError(
                f"position = {state.position}: expected 0 to {samples - 1}; is this another data set's state?"
            )
        self.workers, self.began = max(workers, 1), state
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
        if self.handed_out[worker] <= turn:
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


# %% nbgrader={"grade": true, "grade_id": "Sampler_test_batches", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("Sampler", "who gets which samples", part="batches", hidden="other sizes, workers and positions"):

    def hands(sampler, worker, expected, what, why=""):
        got = sampler.batch_for(worker)
        check.equal(got, expected, what=what, hint=why)
        for sample in got or ():
            check.true(
                type(sample) is int,
                f"{what}: it has {sample!r} of type {type(sample).__name__}: expected Python's own int",
            )

    sampler = Sampler(10, 3, 2, State(7, 2, 0))
    hands(sampler, 0, [1, 5, 3], "the first batch of worker 0, 10 samples, batches of 3, two workers")
    hands(sampler, 0, [0, 8, 2], "the second batch of worker 0", "batch 2 of the epoch: workers take turns")
    hands(sampler, 1, [4, 6, 9], "the first batch of worker 1")
    hands(sampler, 1, [7], "the last batch, of one sample")
    hands(sampler, 1, None, "what comes after the last batch of worker 1")
    hands(sampler, 0, None, "what comes after the last batch of worker 0")
    alone = Sampler(10, 3, 1, State(7, 2, 6))
    hands(alone, 0, [0, 8, 2], "the first batch from position 6, one worker")
    hands(alone, 0, [7], "the second batch from position 6, one worker")
    moved = Sampler(10, 4, 2, State(7, 2, 3))
    hands(
        moved,
        0,
        [4, 6, 9, 0],
        "the first batch of four, from position 3",
        "what is left is cut into batches from the position on",
    )
    hands(
        Sampler(10, 3, 2, State(7, 2, 3)),
        0,
        [4, 6, 9],
        "the first batch of worker 0 of two, from position 3",
        "batch 0 of the rest goes to worker 0, whichever worker would have had it from position 0 on",
    )
    hands(
        Sampler(10, 4, 0, State(7, 2, 0)),
        0,
        [1, 5, 3, 4],
        "the first batch with workers = 0",
        "the main process loads, as worker 0",
    )
    hands(Sampler(1, 5, 3, State(0, 0, 0)), 0, [0], "the only batch of one sample")
    first, second = Sampler(10, 3, 2, State(7, 2, 0)), Sampler(10, 3, 2, State(7, 2, 0))
    hands(first, 0, [1, 5, 3], "the first batch of one of two samplers")
    hands(second, 0, [1, 5, 3], "the first batch of the other one", "each sampler has its own counters")
    taken = there(use_up, Sampler(10, 3, 1, State(7, 2, 0)), [0, 0, 0])
    own = "each call returns a list of its own, which the next call does not change"
    check.equal(taken, [[1, 5, 3], [4, 6, 9], [0, 8, 2]], what="three batches, looked at after the third", hint=own)
    ### BEGIN HIDDEN TESTS
    for seed in range(4):
        rng = check.rng(seed)
        samples, batch, workers = (int(rng.integers(1, most)) for most in (40, 8, 6))
        state = State(int(rng.integers(9)), int(rng.integers(4)), int(rng.integers(samples)))
        left = [int(n) for n in np.random.default_rng([state.seed, state.epoch]).permutation(samples)[state.position :]]
        cut = [left[at : at + batch] for at in range(0, len(left), batch)]
        sampler = Sampler(samples, batch, workers, state)
        for worker in (int(w) for w in rng.permutation(workers)):
            for expected in [*cut[worker::workers], None, None]:
                hands(sampler, worker, expected, f"a batch of worker {worker} of {workers}, {samples} samples, {state}")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "Sampler_test_state", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("Sampler", "where to go on", part="state", hidden="runs that are killed again and again"):

    def stands(sampler, expected, what, why=""):
        check.equal(sampler.state(), expected, what=f"the state {what}", hint=why)

    sampler = Sampler(10, 3, 2, State(7, 2, 0))
    for worker in (0, 0, 1):
        sampler.batch_for(worker)
    lost = "count what was trained on: what workers have fetched is lost with them"
    stands(sampler, State(7, 2, 0), "when three batches are handed out and none is trained on", lost)
    sampler.trained()
    stands(sampler, State(7, 2, 3), "after one step")
    sampler.trained()
    sampler.trained()
    check.raises(RuntimeError, sampler.trained)  # the last batch was not handed out
    refused = "a call that raises must not count, and the last batch, of one sample, is still to come"
    stands(sampler, State(7, 2, 9), "after three steps and a refused one", refused)
    sampler.batch_for(1)
    sampler.trained()
    stands(sampler, State(7, 3, 0), "after the last batch", "the epoch is finished: the next one begins at position 0")
    check.raises(RuntimeError, sampler.trained)
    early = Sampler(10, 3, 2, State(7, 2, 0))
    early.batch_for(1)
    check.raises(RuntimeError, early.trained)  # batch 1 was handed out, and batch 0 was not
    moved = Sampler(10, 4, 2, State(7, 2, 3))
    moved.batch_for(0)
    moved.trained()
    began = "the position in the epoch: where this sampler began, and the samples trained on since"
    stands(moved, State(7, 2, 7), "after a step on four samples, from position 3", began)
    emptied = Sampler(10, 3, 2, State(7, 2, 0))
    there(use_up, emptied, [0, 1])
    emptied.trained()
    emptied.trained()
    own = "the list is the worker's: what it does with it must not change the state"
    stands(emptied, State(7, 2, 6), "after two steps, whose workers took all samples out of their lists", own)
    check.equal(early.state(), State(7, 2, 0), what="the state of another sampler", hint="each has its own counters")
    single = Sampler(1, 5, 3, State(0, 0, 0))
    single.batch_for(0)
    single.trained()
    stands(single, State(0, 1, 0), "after the only sample")
    ### BEGIN HIDDEN TESTS
    for seed in range(4):  # a run that is killed again and again, each time with other workers
        rng = check.rng(seed)
        samples, state, done = int(rng.integers(1, 25)), State(int(rng.integers(0, 9)), 0, 0), 0
        for _ in range(5):
            workers, batch = int(rng.integers(0, 5)), int(rng.integers(1, 8))
            sampler, count = Sampler(samples, batch, workers, state), max(workers, 1)
            queues = [[] for _ in range(count)]
            for step in range(int(rng.integers(1, 6))):
                for worker in rng.permutation(count):  # prefetching: anyone may run ahead
                    for _ in range(int(rng.integers(0, 2))):
                        queues[int(worker)].append(sampler.batch_for(int(worker)))
                turn = queues[step % count]
                if not turn:
                    turn.append(sampler.batch_for(step % count))
                indices = turn.pop(0)
                if indices is None:
                    break
                sampler.trained()
                done += len(indices)
            state = sampler.state()
            stands(
                sampler,
                State(state.seed, *divmod(done, samples)),
                f"of run {seed}, {samples} samples, {done} trained on",
            )
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "Sampler_test_errors", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("Sampler", "positions and workers that do not exist", part="errors", hidden="others"):
    check.raises(ValueError, Sampler, 10, 3, 1, State(0, 0, 10), names="position")
    check.raises(ValueError, Sampler, 10, 3, 1, State(0, 0, -1), names="position")
    check.raises(ValueError, Sampler(10, 4, 3, State(7, 2, 0)).batch_for, 3, names="worker")
    refused = Sampler(10, 5, 2, State(7, 2, 0))
    check.raises(ValueError, refused.batch_for, -1, names="worker")
    check.equal(refused.batch_for(1), [9, 0, 8, 2, 7], what="the batch of worker 1 after worker -1 was refused")
    check.accepts(Sampler(10, 4, 3, State(7, 2, 9)).batch_for, 2)
    ### BEGIN HIDDEN TESTS
    check.raises(ValueError, Sampler, 1, 3, 0, State(0, 0, 1), names="position")
    check.raises(ValueError, Sampler(10, 4, 0, State(7, 2, 0)).batch_for, 1, names="worker")
    check.accepts(Sampler(10, 4, 0, State(7, 2, 0)).batch_for, 0)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.data.loading.sampler import SamplerState, advanced, remaining

hint(
    "Sampler",
    "Cut what is left into a list of batches once, in `__init__`; `.tolist()` makes Python's own numbers. Then two kinds of counters are enough: how many batches each worker was handed, and how many batches were trained on.",
    "Write down who gets which batch for seven batches and three workers. Which batch is the second one of worker 1? How many batches has worker 2 been handed when batch 5 is trained on?",
    "The last batch may be shorter, and a sampler may begin in the middle of an epoch: the position counts samples, from the beginning of the epoch.",
)
TOTAL, STOP, UNDER_WAY = 1000, 400, 16
predict(
    "lost_samples",
    "An epoch of 1,000 samples is killed after 400 steps of one sample, with 16 more fetched. The run resumes after the last sample that was fetched. How many samples has the model never seen when the epoch is over?",
    unit="samples",
)
began = list(remaining(SamplerState(seed=0), TOTAL)[:STOP])
again = list(np.random.default_rng(123).permutation(TOTAL))
WAYS = {
    "begin the epoch again": began + list(remaining(SamplerState(seed=0), TOTAL)),
    "draw a new order, skip its first 400": began + again[STOP:],
    "resume after what was fetched": began
    + list(remaining(advanced(SamplerState(seed=0), TOTAL, STOP + UNDER_WAY), TOTAL)),
    "resume after what was trained on": began + list(remaining(advanced(SamplerState(seed=0), TOTAL, STOP), TOTAL)),
}
lost = TOTAL - len({int(n) for n in WAYS["resume after what was fetched"]})
show.against_prediction("lost_samples", lost, unit="samples", source="counted")
with reveal("lost_samples"):
    show.figure(
        feeding.draw_ways(WAYS, remaining(SamplerState(seed=0), TOTAL)),
        "each sample of an epoch, at its place in the order: seen once, twice or never, for four ways to resume after 400",
    )
debrief(
    "Sampler",
    """The third row shows a loader that saves the position of its own iterator: it loses exactly what was under way. Nobody
    notices sixteen samples of a thousand, but after forty interruptions of a long run they are nearly two thirds of an
    epoch.

    Because the state counts samples and not batches, a run with another number of workers or another batch size resumes with
    exactly the samples that are left. Python's own integers matter if the state is written as JSON or compared across
    processes.

    With data parallelism the position counts the samples of all ranks. In each step every rank takes an equal share of
    the next samples: shares are disjoint, all ranks end the epoch with the same step, and a run with another number of
    ranks can resume. The course's `Loader` does this when it is given `rank` and `ranks`. With the sizes of the
    `shards`, as `TarShards` from `threeloops.data.formats.tar_shards` has them, it shuffles whole shards, however
    uneven they are. PyTorch's `DistributedSampler` gives rank r every ranks-th sample. At the end it repeats some
    samples, or drops some with `drop_last`. It has no position from which to go on.""",
    parts=("batches", "state", "errors"),
)

# %% [markdown]
# ## 8 · Your loop
#
# 512 samples lie in 64 shards, in a store of 30 ms and 4 MB/s, and a small regression trains on one shard per step. `waits`
# and `forecast` read the trace of a loop without prefetching, and `tune` chooses settings. With these settings the
# epoch begins again, until Ctrl+C before step 24. A crew of another size resumes from your sampler's state.


# %% tags=["demo"]
def train(parts, model, state, settings, store, stop=None):
    """Train from `state` to the end of the epoch, or to Ctrl+C before step `stop`. Returns the state to resume from."""
    sampler = parts.Sampler(len(store.objects), 1, settings.workers, state)
    keys = []
    while batch := sampler.batch_for(len(keys) % settings.workers):
        keys += [f"{number:02}.tar" for number in batch]

    def step(data):
        if len(store.trained) == stop:
            raise KeyboardInterrupt
        model.learn(parts.read_shard(keys[len(store.trained)], data))
        store.train(data)
        sampler.trained()

    with suppress(KeyboardInterrupt):
        parts.feed(keys, settings.ahead, store.request, store.receive, store.cancel, step)
    return sampler.state()


# %% tags=["demo"] jupyter={"source_hidden": true}
from collections import Counter
from types import SimpleNamespace


class CrewStore(FarStore):
    """A FarStore with workers, each of which fetches a shard and decodes it before the next. It keeps a trace."""

    def __init__(self, loop, workers, first=0, now=0.0):
        super().__init__(SHARDS, loop.latency, loop.bandwidth, loop.step)
        self.decode, self.free, self.first, self.now, self.intervals = loop.decode, [now] * workers, first, now, []

    def request(self, key):
        now, worker = self.now, len(self.requested) % len(self.free)
        self.now = asked = max(now, self.free[worker])
        ticket = super().request(key)
        self.now, fetched = now, self.link_free
        self.free[worker] = fetched + self.decode
        self.tickets[ticket] = (key, asked, self.free[worker])
        for stage, start, end in (("fetch", asked, fetched), ("decode", fetched, self.free[worker])):
            self.intervals.append(Interval(stage, worker, self.first + ticket, start, end))
        return ticket

    def train(self, data):
        start = self.now
        super().train(data)
        self.intervals.append(Interval("train", 0, self.first + len(self.trained) - 1, start, self.now))

    def trace(self, title):
        crew = len(self.free)
        return Trace(title, [Stage("fetch", crew), Stage("decode", crew), Stage("train", 1)], self.intervals)


class Regression:
    """Least squares by SGD, a step per shard."""

    def __init__(self):
        self.weights, self.seen = np.zeros(16), []

    def learn(self, samples):
        x, y = (np.stack([np.frombuffer(sample.parts[part]) for sample in samples]) for part in ("x", "y"))
        self.weights = self.weights + 0.05 * x.T @ (y[:, 0] - x @ self.weights) / len(samples)
        self.seen += [sample.key for sample in samples]


rng = np.random.default_rng(0)
INPUTS = rng.standard_normal((512, 16))
TARGETS = INPUTS @ rng.standard_normal(16)
SHARDS = {
    f"{n:02}.tar": write_shard(
        [Sample(f"{i:03}", {"x": INPUTS[i].tobytes(), "y": TARGETS[i].tobytes()}) for i in range(8 * n, 8 * n + 8)]
    )
    for n in range(64)
}
LOOP = Loop(0.030, 4e6, len(SHARDS["00.tar"]), 0.004, 0.006, 1e6)


def diagnosed(trace):
    return diagnose(feeding.as_trace(trace))


REFERENCE = {  # the library's own pieces
    "waits": diagnosed,
    "forecast": diagnosed,
    "feed": feeding.feed,
    "tune": lambda loop: Settings(7, 7),
    "read_shard": feeding.read_shard,
    "Sampler": feeding.Sampler,
}


def life(parts):
    """A loop alone, its diagnosis, and a loop with the chosen settings that is killed and resumed."""
    alone, start = CrewStore(LOOP, 1), State(3, 0, 0)
    train(parts, Regression(), start, Settings(1, 0), alone)
    trace, settings = alone.trace("one shard at a time"), parts.tune(LOOP)
    seen, advice, model = parts.waits(trace), parts.forecast(trace), Regression()
    killed = CrewStore(LOOP, settings.workers)
    state = train(parts, model, start, settings, killed, stop=24)
    resumed = CrewStore(LOOP, settings.workers + 1, first=24, now=killed.now + 0.05)
    end = train(parts, model, state, Settings(settings.workers + 1, settings.ahead), resumed)
    whole = Regression()
    train(parts, whole, start, settings, CrewStore(LOOP, settings.workers))
    errors = [np.square(TARGETS - INPUTS @ trained.weights).mean() for trained in (model, whole)]
    counts, after = Counter(model.seen), parts.waits(killed.trace("with settings"))
    rows = [
        ("training, one shard at a time", f"{100 * seen.utilisation:.0f}% of the time"),
        ("to blame for the wait", ", ".join(f"{stage} {s:.2f} s" for stage, s in seen.blame.items())),
        ("limit, and the gain from halving it", f"{advice.limit}, {advice.gain[advice.limit]:.2f}×"),
        ("settings", f"{settings.workers} workers, {settings.ahead} ahead"),
        ("training, with these", f"{100 * after.utilisation:.0f}% of the time"),
        ("requests open after Ctrl+C", f"{len(killed.tickets)}, of {len(killed.requested) - 24} under way"),
        ("resumed at, and ended at", ", ".join(f"epoch {s.epoch} position {s.position}" for s in (state, end))),
        ("samples seen once, of 512", sum(counts[f"{i:03}"] == 1 for i in range(512))),
        ("error after the epoch, and if never killed", ", ".join(f"{error:.9f}" for error in errors)),
    ]
    lost = range(24, len(killed.requested))
    return rows, [feeding.as_trace(store.trace("")) for store in (alone, killed, resumed)], lost


if parts := together(*REFERENCE, library=REFERENCE):
    rows, (alone, killed, resumed), lost = life(parts)
    model_rows, *_ = life(SimpleNamespace(**REFERENCE))
    show.table(
        [(what, own, reference) for (what, own), (_, reference) in zip(rows, model_rows, strict=True)],
        ["512 samples in 64 shards", "your pieces", "the library's"],
    )
    show.figure(
        feeding.draw_life(alone, killed, lost, resumed), "the loop alone, and with these settings, killed and resumed"
    )

# %% [markdown]
# ## In practice
#
# At work this is `torch.utils.data.DataLoader`. `num_workers` processes each load whole batches, and `prefetch_factor` batches
# per worker (2 by default) are requested in advance. A worker calls `__getitem__` for one sample after another, so the
# latencies of a batch add up, unless the data set has `__getitems__` and asks for all at once. With `pin_memory=True` a thread
# copies batches into pinned memory, and only from there does `batch.to("cuda", non_blocking=True)` run beside kernels.
# `torchdata`'s `StatefulDataLoader` saves its position.
#
# ## What to remember
#
# - Stages that overlap run at the pace of the slowest (duration / workers); stages that do not add up.
# - Requests under way ≥ latency / step time. Workers never widen a link: when more of them change nothing, count bytes.
# - A request costs its latency for one byte or for a gigabyte.
# - Two buffers need two events: *the batch is there*, and *the batch is no longer read*.
# - The state of a loader is three integers, and counts what was **trained on**.
#
# The dives (`07_feeding_the_gpu_dives.ipynb`) cover checksums, caches, processes and storage tiers. Next: `08_collectives`.
#
# ## Reflection
#
# A run on eight GPUs shows 55% utilisation. Raising the workers from 8 to 32 changed nothing, so a colleague asks for a faster
# file system. Which three numbers would you read off a trace first? What would you have to know before you said yes?

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# I read off the seconds that each stage is to blame for, its mean duration divided by its workers, and the bytes per second on
# the link. More workers changed nothing, so the limit is something that they share: the link, one decoder, the cores, or the samples
# ahead. A faster file system helps only if fetching is the limit, and the link is not yet full.

# %% tags=["demo"] jupyter={"source_hidden": true}
import warnings

import torch
from threeloops.hardware import accelerator, device

predict(
    "dataloader_workers",
    "A worker takes 40 ms to load a batch, and a step takes 12 ms. With how many workers does the loop no longer wait?",
    unit="workers",
)


class FarSamples(torch.utils.data.Dataset):
    """160 samples from a store that takes 5 ms for each."""

    def __len__(self):
        return 160

    def __getitem__(self, number):
        time.sleep(0.005)
        return torch.full((100,), float(number))


class InOneRequest(FarSamples):
    """The same store, asked for a whole batch at once."""

    def __getitems__(self, numbers):
        time.sleep(0.005)
        return [torch.full((100,), float(number)) for number in numbers]


def milliseconds_per_step(samples, workers, factor=None):
    """Milliseconds per step, from the first step to the end of the last."""
    pinned = {"pin_memory": True} if device() == "cuda" else {}
    # A fork has the classes of this notebook. Other ways to start a worker, such as Python 3.14's, cannot import them.
    limit = {"timeout": 60, "multiprocessing_context": "fork"} if workers else {}
    loader = torch.utils.data.DataLoader(samples, 8, num_workers=workers, prefetch_factor=factor, **pinned, **limit)
    clock = []
    for batch in loader:
        if not clock:
            clock.append(time.perf_counter())
        batch.to(device(), non_blocking=True)
        time.sleep(0.012)  # the host waits for its step
        clock.append(time.perf_counter())  # here, because the loop ends only when its workers have stopped
    return 1e3 * (clock[-1] - clock[0]) / (len(clock) - 1)


CHOICES = [
    (FarSamples(), 0, None),
    (FarSamples(), 1, 2),
    (FarSamples(), 4, 1),
    (FarSamples(), 4, 2),
    (InOneRequest(), 1, 2),
]
RECORDED = [51.7, 40.3, 13.8, 13.7, 13.7]  # by this cell, with priority over all else on two cores of an AMD EPYC
with warnings.catch_warnings():
    # Python warns of forks beside threads. These workers only wait, so there may be more of them than cores.
    warnings.simplefilter("ignore")
    took = [milliseconds_per_step(*choice) for choice in CHOICES]
show.against_prediction("dataloader_workers", 4, unit="workers", source="40 / 12 = 3.3, rounded up")
with reveal("dataloader_workers"):
    show.table(
        [
            (
                workers,
                "–" if factor is None else factor,
                "a batch" if type(samples) is InOneRequest else "a sample",
                f"{ms:.1f} ({100 * 12 / ms:.0f}% training)",
                f"{before:.1f} ({100 * 12 / before:.0f}%)",
            )
            for (samples, workers, factor), ms, before in zip(CHOICES, took, RECORDED, strict=True)
        ],
        header=("num_workers", "prefetch_factor", "one request brings", "ms per step, here", "recorded"),
        caption="a DataLoader whose step takes 12 ms; recorded: on two cores of an AMD EPYC on which it had priority. If enough workers run, "
        "the time above 12 ms goes into receiving the batch from the worker",
    )
    size, link = 64 * 3 * 224 * 224 * 4, accelerator("H100 SXM").host_link_bandwidth
    print(
        f"64 images of 3 × 224 × 224 in FP32 are {size / 1e6:.1f} MB: to an H100 over {link / 1e9:.0f} GB/s at least {size / link * 1e3:.2f} ms (model)."
    )
    show.busy_notice()
calibration()
