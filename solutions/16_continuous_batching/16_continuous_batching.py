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
#     title: Which requests run next?
#     minutes: 195
#     withholds: [threeloops.product.request, threeloops.product.batching, threeloops.product.loadgen, threeloops.product.decode, threeloops.lab.drawings]
#     edition: 2
# ---

# %% [markdown]
# # Which requests run next?
#
# ![Six requests of different lengths wait in front of one GPU, whose next step is still empty](attachment:opening.png)
#
# Requests arrive at any time and need different numbers of steps. One model serves them all, and before every step a
# scheduler picks its requests.
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
import math
import numbers
import random
from dataclasses import dataclass, field, replace

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
    myth,
    palette,
    predict,
    reveal,
    show,
    term,
    together,
)

BLOCK = 16  # tokens per block of the cache


@dataclass(frozen=True)
class Model:
    """A model whose weights, keys and values have 2 bytes per element."""

    parameters: float
    layers: int
    width: int  # query heads · head_dim
    kv_width: int  # key-value heads · head_dim


@dataclass(frozen=True)
class Device:
    bandwidth: float  # bytes/s
    peak: float  # FLOP/s


@dataclass(frozen=True)
class Room:
    """What is free now: seats in the batch, blocks of the cache, and tokens in the step."""

    seats: int
    blocks: int
    budget: int


@dataclass(frozen=True)
class Prompt:
    """A request's tokens, its salt, and how its answer is sampled."""

    tokens: tuple[int, ...]
    salt: str = ""
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Workload:
    """Requests per second, how many, tokens of prompts and answers (least, most), and the limits in seconds."""

    name: str
    rate: float
    requests: int
    prompts: tuple[int, int]
    outputs: tuple[int, int]
    ttft: float
    gap: float


WORKLOADS = [
    Workload("documents", 18.0, 120, (2000, 4000), (50, 100), ttft=1.0, gap=0.020),
    Workload("extraction", 220.0, 500, (100, 200), (60, 100), ttft=0.5, gap=0.050),
    Workload("long chat", 2.5, 240, (6000, 8000), (400, 600), ttft=8.0, gap=0.010),
]


# Shared by the test cells: a replay of requests in virtual time, and the code around each decision in it.


@dataclass(eq=False)
class Served:
    """A request in a replay. `computed` counts the tokens, of its prompt and its answer so far, that are in the cache."""

    name: str
    arrival: float
    prompt: int
    output: int
    computed: int = 0
    times: list = field(default_factory=list)

    @property
    def length(self):
        return self.prompt + len(self.times)


def arrivals(rate, requests, prompts, outputs, seed):
    """(name, arrival in seconds, tokens of the prompt, tokens of the answer) of each request; Poisson arrivals."""
    rng, at, found = random.Random(seed), 0.0, []
    for number in range(requests):
        at += rng.expovariate(rate)
        found.append((f"r{number}", at, rng.randint(*prompts), rng.randint(*outputs)))
    return found


def latencies(served):
    """The median TTFT, the P99 of all gaps and the median TPOT, in seconds; `served` has (arrival, times of tokens)."""
    gaps = [np.diff(times) for _, times in served]
    every, means = np.concatenate(gaps), [each.mean() for each in gaps if len(each)]
    return {
        "ttft": float(np.median([times[0] - arrival for arrival, times in served])),
        "itl": float(np.percentile(every, 99)) if len(every) else 0.0,
        "tpot": float(np.median(means)) if means else 0.0,
    }


def seconds_of(tokens, keys=0):
    """Seconds of a step, with rounded numbers for 8 billion parameters on an H100."""
    return max(5e-3 + 40e-9 * keys, 16e-6 * tokens)


def serve(trace, decide, keys_cost=False):
    """Serve a trace. Before each step `decide(waiting, running)` moves requests between the two lists and returns
    [(request, tokens to compute)]."""
    served = [Served(*each) for each in trace]
    coming, waiting, running, clock = sorted(served, key=lambda r: r.arrival)[::-1], [], [], 0.0
    while coming or waiting or running:
        while coming and coming[-1].arrival <= clock:
            waiting.append(coming.pop())
        chunks = decide(waiting, running)
        if not chunks:
            stuck = f"{len(waiting) + len(running)} requests are left after {clock:.3f} s, and no step is made"
            check.true(bool(coming), stuck)
            clock = coming[-1].arrival
            continue
        keys = sum(request.computed + count for request, count in chunks) if keys_cost else 0
        clock += seconds_of(sum(count for _, count in chunks), keys)
        for request, count in chunks:
            request.computed += count
            if request.computed == request.length:
                request.times.append(clock)
                if len(request.times) == request.output:
                    running.remove(request)
    return served


def require_times(got, expected, case):
    """The same token at the same virtual time, for each request."""
    for mine, wanted in zip(got, expected, strict=True):
        check.equal(len(mine.times), wanted.output, what=f"tokens of {mine.name}, {case}")
        check.close(mine.times, wanted.times, rtol=1e-9, unit="s", what=f"times of the tokens of {mine.name}, {case}")


def require_ends(got, milliseconds, case):
    """Check that the last token of each request comes at the recorded virtual time."""
    for mine, wanted in zip(got, map(float, milliseconds.split()), strict=True):
        check.equal(len(mine.times), mine.output, what=f"tokens of {mine.name}, {case}")
        last = 1e3 * mine.times[-1]
        check.close(last, wanted, rtol=1e-5, unit="ms", what=f"time of the last token of {mine.name}, {case}")


def beyond(seconds, limit):
    """Tell whether a limit is missed by more than the rounding of a sum of steps."""
    return seconds > limit * (1 + 1e-9)


def blocks_for(tokens):
    return -(-tokens // BLOCK)


def names_of(found):
    """A list of names, also of an array."""
    found = found.tolist() if hasattr(found, "tolist") else found
    return [str(name) if isinstance(name, str) else name for name in found]


def admitting(admit, seats, blocks, budget):
    """Whole prompts join through `admit`, in steps of their own. Blocks are reserved for prompt and answer."""

    def decide(waiting, running):
        if waiting:
            held = sum(blocks_for(r.prompt + r.output) for r in running)
            room = Room(seats - len(running), blocks - held, budget)
            line = [(r.name, r.prompt, r.output) for r in waiting]
            names = names_of(admit(list(line), room))
            require_front(names, line, room)
            joined = waiting[: len(names)]
            del waiting[: len(names)]
            running += joined
            if joined:
                return [(r, r.prompt) for r in joined]
        return [(r, 1) for r in running]

    return decide


def require(condition, message):
    """Call `check.true` only for failures, because a replay has thousands of conditions."""
    if not condition:
        check.true(False, message)


def require_front(names, line, room):
    """Each name once, and those that arrived first."""
    order = [name for name, _, _ in line]
    case = f"waiting (name, prompt, answer): {line[:6]}{' …' * (len(line) > 6)}, {room}"
    for name in names:
        require(name in order, f"{name!r} joins, but no request of that name waits ({case})")
    require(len(set(names)) == len(names), f"{names} join: a request joins twice ({case})")
    passed = [name for name in order[: max(map(order.index, names), default=0)] if name not in names]
    require(not passed, f"{names} join, so {passed[:1]} was overtaken: it arrived earlier and still waits ({case})")
    check.equal(names, order[: len(names)], what=f"names in the order of arrival ({case})")


def making_room(make_room, seats, blocks):
    """One request joins per step if its tokens fit. Otherwise all running ones decode, as far as `make_room` finds blocks."""
    tables, free = {}, list(range(blocks))

    def decide(waiting, running):
        for name in set(tables) - {r.name for r in running}:
            free.extend(tables.pop(name))
        running.sort(key=lambda r: r.arrival)
        if waiting and len(running) < seats and blocks_for(waiting[0].length) <= len(free):
            request = waiting.pop(0)
            running.append(request)
            tables[request.name] = [free.pop() for _ in range(blocks_for(request.length))]
            return [(request, request.length)]
        given = [(r.name, r.length, list(tables[r.name])) for r in running]
        copies = [(name, length, list(table)) for name, length, table in given]
        found = results_of(make_room(copies, list(free), BLOCK))
        require_blocks(found, given, list(free), BLOCK)
        new_tables, new_free, preempted = found
        tables.clear()
        tables.update(new_tables)
        free[:] = new_free
        gone = [r for r in running if r.name in {name for name, _ in preempted}]
        for request in gone:
            running.remove(request)
            request.computed = 0
        waiting[:] = sorted(waiting + gone, key=lambda r: r.arrival)
        return [(r, 1) for r in running]

    return decide


def results_of(found):
    """Copy tables, free blocks and preempted requests, because an iterator can be read only once."""
    check.equal(len(found), 3, what="number of results")
    tables, free, preempted = found
    return {name: list(table) for name, table in tables.items()}, list(free), [tuple(each) for each in preempted]


def require_kinds(found, given, free, size):
    """Each request once, in the tables or among the preempted."""
    tables, _, preempted = found
    case = f"running (name, tokens, table): {given}, free {free}, blocks of {size}"
    names = [*tables, *(name for name, _ in preempted)]
    check.equal(sorted(names), sorted(name for name, _, _ in given), what=f"requests that decode or wait ({case})")


def require_blocks(found, given, free, size):
    """Every block in one place, and every table with what it needs."""
    require_kinds(found, given, free, size)
    tables, left, _ = found
    case = f"running (name, tokens, table): {given}, free {free}, blocks of {size}"
    before = {name: list(table) for name, _, table in given}
    places = {}
    for where, blocks in [*((f"the table of {name!r}", table) for name, table in tables.items()), ("free", left)]:
        for block in blocks:
            places.setdefault(block, []).append(where)
    every = {*free, *(block for table in before.values() for block in table)}
    for block, where in places.items():
        require(len(where) == 1, f"block {block} is in {' and in '.join(where)}: it was given twice ({case})")
        require(block in every, f"block {block} does not exist ({case})")
    lost = sorted(every - set(places))
    require(not lost, f"blocks {lost} leaked: they are in no table and not free ({case})")
    for name, length, _ in given:
        if name in tables:
            table, needed = tables[name], -(-length // size)
            check.equal(len(table), needed, what=f"blocks of {name!r}, which has {length} tokens ({case})")
            kept = table[: len(before[name])]
            check.equal(kept, before[name], what=f"blocks at the beginning of the table of {name!r} ({case})")


def filling(fill_step, seats, budget):
    """Waiting requests join while there are seats; `fill_step` says what is computed for the running ones."""

    def decide(waiting, running):
        while waiting and len(running) < seats:
            running.append(waiting.pop(0))
        given = [(r.name, r.computed, r.length) for r in running]
        if not given:
            return []
        by_name = {r.name: r for r in running}
        found = [tuple(each) for each in fill_step(list(given), budget)]
        require_chunks(found, given, budget)
        return [(by_name[name], count) for name, _, count, _ in found]

    return decide


def require_chunks(found, given, budget):
    """Check that each chunk is valid, and that all together stay within the budget."""
    case = f"running (name, computed, tokens): {given}, budget {budget}"
    at = {name: (computed, length) for name, computed, length in given}
    names = [name for name, _, _, _ in found]
    require(len(set(names)) == len(names), f"{found}: a request has two chunks ({case})")
    used = sum(count for _, _, count, _ in found)
    require(used <= budget, f"{found} has {used} tokens: the budget is {budget} ({case})")
    for name, start, count, samples in found:
        require(name in at, f"{name!r} has a chunk, but is not running ({case})")
        computed, length = at[name]
        check.equal(start, computed, what=f"first position of the chunk of {name!r} ({case})")
        require(count > 0, f"the chunk of {name!r} has {count} tokens ({case})")
        require(computed + count <= length, f"{name!r} gets {count} tokens and lacks {length - computed} ({case})")
        check.equal(samples, computed + count == length, what=f"whether {name!r} samples ({case})")


def shared_prompts(seed, size, requests=12):
    """Prompts that begin with each other's tokens or with tokens of their own, with few different tokens."""
    rng = random.Random(seed)
    heads = [tuple(rng.randrange(3) for _ in range(rng.randrange(3 * size))) for _ in range(3)]
    return [
        Prompt(
            (*rng.choice(heads), *(rng.randrange(3) for _ in range(rng.randrange(1, 2 * size)))),
            rng.choice(["", "", "blue"]),
            rng.choice([0.0, 0.7]),
            rng.randrange(5),
        )
        for _ in range(requests)
    ]


def require_keys(keys):
    """Require keys that a dict can find."""

    def sound(key):
        if isinstance(key, numbers.Integral):
            return int(key).bit_length() <= 4096
        return all(map(sound, key)) if isinstance(key, tuple) else isinstance(key, (bytes, str))

    def shown(key):
        if isinstance(key, tuple):
            return f"({', '.join(map(shown, key))})"
        is_long = isinstance(key, int) and key.bit_length() > 4096  # too long to be written
        return f"an int of {key.bit_length():,} bits" if is_long else repr(key)

    for key in keys:
        require(
            sound(key),
            f"a cache key is {shown(key)}: expected bytes, a str, an int or a tuple of these (an int has up to 4,096 bits)",
        )


def cause_of(got, slips):
    """The slips that give this number: all of them, because a test that cannot tell them apart must not choose."""
    if not isinstance(got, (int, float)):
        return ""
    return "; or ".join(cause for cause, value in slips.items() if math.isclose(got, value, rel_tol=1e-9))


# %% tags=["demo", "opening"] jupyter={"source_hidden": true}
plot, axes = figure(width=9.5, height=2.9)
for place, (prompt, answer) in enumerate([(5, 2), (1, 3), (2, 6), (8, 1), (1, 1), (3, 4)]):
    left = 0.3
    axes.barh([place], [prompt * 0.4], left=left, height=0.6, color=palette.sky)
    axes.barh([place], [answer * 0.4], left=left + prompt * 0.4, height=0.6, color=palette.orange, alpha=0.6)
    axes.text(left - 0.1, place, "abcdef"[place], ha="right", va="center", weight="bold")
axes.text(0.3, -0.75, "prompt", color=palette.sky, va="center", weight="bold")
axes.text(1.15, -0.75, "answer (of unknown length)", color=palette.orange, va="center", weight="bold")
axes.annotate("", (5.9, 2.5), (4.5, 2.5), arrowprops={"arrowstyle": "->", "color": palette.ink, "lw": 1.5})
for seat in range(4):
    axes.barh([seat + 1], [2.4], left=6.1, height=0.8, facecolor="none", edgecolor=palette.grey, ls="--")
    axes.text(7.3, seat + 1, "?", ha="center", va="center", size=13)
axes.text(7.3, -0.1, "the next step", ha="center", va="center", weight="bold")
axes.set(xlim=(-0.2, 9), ylim=(5.6, -1.2))
axes.axis("off")
show.figure(plot, "Six requests of different lengths wait in front of one GPU, whose next step is still empty")

# %% [markdown]
# A model computes the tokens of a *prompt* together (*prefill*) and then one token of the answer per step (*decode*).
# The keys and values of earlier tokens stay in a cache (lab 15). Time is *virtual* here: a model of an H100 says how
# long a step takes, so results are repeatable.
#
# ## 1 · What a user notices
#
# - **TTFT**, time to first token: from a request's arrival to its first token.
# - **ITL**, inter-token latency: the gap between two consecutive tokens of a request, pooled over all requests.
# - **TPOT**, time per output token: the mean gap of one request. A request with one token has none.
# - **Goodput**: requests per second that meet all limits of an *SLO* (service-level objective).
#
# Averages hide what a few users suffer, so we report percentiles. About 99% of the values do not exceed the P99;
# `numpy.percentile` interpolates between neighbours.
#
# *Worked example.* Request `a` arrives at 0 s and gets tokens at 0.3, 0.4 and 0.8 s. `b` arrives at 0.5 s and gets its
# only token at 1.0 s. The TTFTs are 0.3 and 0.5 s, so their median is 0.4 s. The gaps are 0.1 and 0.4 s, with a P99 of
# 0.397 s; the TPOT of `a` is 0.25 s. All this takes 1.0 s. `a` was in the system for 0.8 s and `b` for 0.5 s, so on
# average the system held 1.3 requests. That is *Little's law*: mean number in the system = requests per second · mean seconds
# in it. With TTFT ≤ 0.4 s and TPOT ≤ 0.3 s only `a` is good: goodput is 1 per second.
#
# ### Exercise 1 (8 points)
#
# `measure(served, ttft_limit, tpot_limit) -> dict`, where `served` has (arrival, times of its tokens) for each request,
# in any order. The given `latencies(served)` has the median TTFT, the P99 of the ITL and the median TPOT. Return
#
# - `"in_system"`: mean number of requests in the system;
# - `"goodput"`: good requests per second. A good one meets both limits (≤); with one token, only the first counts.
#
# Both divide by the time from the first arrival to the last token of all.


# %% nbgrader={"grade": false, "grade_id": "measure", "locked": false, "schema_version": 3, "solution": true, "task": false}
def measure(served: list[tuple[float, list[float]]], ttft_limit: float, tpot_limit: float) -> dict[str, float]:
    """The mean number of requests in the system, and good requests per second."""
    ### BEGIN SOLUTION
    good = 0
    for arrival, times in served:
        gaps = np.diff(times)
        good += times[0] - arrival <= ttft_limit and (len(gaps) == 0 or gaps.mean() <= tpot_limit)
    seconds = max(times[-1] for _, times in served) - min(arrival for arrival, _ in served)
    in_system = sum(times[-1] - arrival for arrival, times in served) / seconds
    return {"in_system": in_system, "goodput": good / seconds}
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "measure_test", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("measure", "Little's law and goodput", hidden="other traces and limits"):

    def rates(served, ttft, tpot, in_system, goodput, case, slips=None):
        """`slips` maps causes to wrong values of either."""
        got = measure([(arrival, list(times)) for arrival, times in served], ttft, tpot)
        case = f"{case}, TTFT ≤ {ttft} s and TPOT ≤ {tpot} s"
        for name, expected, unit in (("in_system", in_system, ""), ("goodput", goodput, "/s")):
            cause = cause_of(got[name], (slips or {}).get(name, {}))
            check.close(got[name], expected, unit=unit, what=f'"{name}", {case}', hint=cause)

    order = "the list is in any order: count from the earliest arrival to the latest token"
    late = "this divides by the last moment: count from the first arrival"
    worked = [(0.0, [0.3, 0.4, 0.8]), (0.5, [1.0])]
    rates(
        worked,
        0.4,
        0.3,
        1.3,
        1.0,
        "the worked example",
        {
            "in_system": {
                "this is the mean number of seconds inside": 0.65,
                "this counts each request from its first token: count from its arrival": 0.5,
            },
            "goodput": {
                "this is the share of the requests: count them per second": 0.5,
                "a good request meets both limits, not one of them": 2.0,
                "the limit is for the mean gap, not for the longest": 0.0,
            },
        },
    )
    three = [(3.0, [3.5, 4.0, 4.5]), (2.0, [3.0, 3.25]), (1.0, [1.25, 1.5, 1.75, 5.0])]
    rates(
        three,
        0.5,
        0.5,
        1.6875,
        0.25,
        "three requests, of which the first has exactly 0.5 s and 0.5 s",
        {
            "in_system": {order: 3.375, late: 1.35, "this is the mean number of seconds inside": 2.25},
            "goodput": {
                "a request that just meets a limit is good": 0.0,
                "this is their number: count them per second": 1.0,
                "this is the share of the requests: count them per second": 1 / 3,
                "only one of the two limits was asked: a good request meets both": 0.5,
                "a good request meets both limits, not one of them": 0.75,
                late: 0.2,
                order: 0.5,
            },
        },
    )
    rates(three, 1.0, 1.25, 1.6875, 0.75, "three requests, of which one has exactly 1 s and one exactly 1.25 s")
    gaps = "four tokens have three gaps, and the TTFT is none of them"
    rates(three, 1.0, 1.0, 1.6875, 0.5, "three requests, of which one has gaps of 1.25 s", {"goodput": {gaps: 0.75}})
    rates(three, 0.999, 1.249, 1.6875, 0.25, "three requests, of which one has 1 s and one 1.25 s, which is too much")
    four = [(1.0, [1.5]), (2.0, [2.25]), (1.5, [5.0]), (1.0, [1.5, 2.0])]
    rates(
        four,
        0.5,
        0.1,
        1.3125,
        0.5,
        "four requests, of which three have one token",
        {"goodput": {"a request with one token needs only the first limit": 0.0, "only the TTFT was asked": 0.75}},
    )
    ### BEGIN HIDDEN TESTS
    for seed in range(3):
        rng = check.rng(seed + 5)
        served = []
        for _ in range(30):
            at = float(rng.uniform(1, 5))
            served.append((at, (at + np.cumsum(rng.exponential(0.1, int(rng.integers(1, 9))))).tolist()))
        span = max(t[-1] for _, t in served) - min(a for a, _ in served)
        good = [t[0] - a <= 0.12 and (t[-1] - t[0]) <= 0.1 * (len(t) - 1) for a, t in served]
        inside = sum(t[-1] - a for a, t in served) / span
        rates(served, 0.12, 0.1, inside, sum(good) / span, f"30 requests, seed {seed}")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "measure",
    "The seconds of all requests in the system, added up and divided by the duration, are the mean number in it.",
    "The duration is `max` of the last tokens minus `min` of the arrivals. The first request in the list need not have "
    "arrived first.",
)
print("The worked example:", latencies([(0.0, [0.3, 0.4, 0.8]), (0.5, [1.0])]))
debrief(
    "measure",
    """Suppose a token comes every 5 ms, but one gap in 50 lasts 100 ms, because another request's long prompt is computed.
    The mean gap is 6.9 ms and the median 5 ms; only the P99 shows the stall of 100 ms. A user who reads an answer of 100
    tokens meets two of them on average. ITL pools all gaps because a request's own mean, its TPOT, hides them too.

    Little's law needs no assumption about arrivals, order or lengths: both sides add up the same time, once by request and
    once by moment. So it can check a measurement. It also sizes a service: 40 requests per second that each stay for 3 s
    make 120 at a time.""",
    parts=("",),
)

# %% [markdown]
# ## 2 · What a step costs
#
# A step reads all weights once, and the cached keys and values of its requests. It does arithmetic for each token. By the
# roofline of lab 01, it takes as long as the slower of the two.
#
# A **chunk** (start, count) is what a step computes for one request: `count` tokens from position `start` on. All
# tokens before `start` are in the cache. A decoding request has a chunk of one token; a whole prompt of p tokens is the
# chunk (0, p).
#
# - **Bytes**: 2 per parameter. A token's keys and values take 2 · 2 · layers · kv_width bytes. A chunk writes those of
#   its `count` tokens and reads those of all `start + count`.
# - **FLOPs**: 2 · parameters per token. Attention adds 4 · layers · width for each pair of a token and a key that it
#   sees: the token at position i sees i + 1 keys.
#
# *Worked example.* 8 billion parameters, 32 layers, width 4,096, kv_width 1,024, on an H100 with 3.35 TB/s and 989.4
# TFLOP/s. The chunk (999, 1) moves 16 GB + 1,000 · 131,072 B + 131,072 B, which takes 4.82 ms. Its arithmetic, 16.5
# GFLOP, would take 0.017 ms. The prompt (0, 2048) has 2048 · 2049/2 pairs; its 33.9 TFLOP take 34.2 ms, its bytes only
# 4.9 ms.
#
# ### Exercise 2 (16 points)
#
# `step_seconds(chunks, model, device) -> float` is the time of a step with these chunks, a list of (start, count). An
# empty step takes 0 s. `model` has `parameters`, `layers`, `width` and `kv_width`; `device` has `bandwidth` and `peak`.

# %% tags=["demo"]
predict(
    "batch",
    "One decoding request with 1,000 tokens of context takes 4.8 ms per step. How long is a step in which 64 of them decode?",
    unit="ms",
)


# %% nbgrader={"grade": false, "grade_id": "step_seconds", "locked": false, "schema_version": 3, "solution": true, "task": false}
def step_seconds(chunks: list[tuple[int, int]], model: Model, device: Device) -> float:
    """The longer of bytes over bandwidth and FLOPs over peak."""
    ### BEGIN SOLUTION
    if not chunks:
        return 0.0
    tokens = sum(count for _, count in chunks)
    keys = sum(start + count for start, count in chunks)
    pairs = sum(count * start + count * (count + 1) / 2 for start, count in chunks)
    moved = 2 * model.parameters + (keys + tokens) * 4 * model.layers * model.kv_width
    flops = 2 * model.parameters * tokens + 4 * model.layers * model.width * pairs
    return max(moved / device.bandwidth, flops / device.peak)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "step_seconds_test_decode", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("step_seconds", "steps that only decode", part="decode", hidden="other models and devices"):
    llama, h100 = Model(8e9, 32, 4096, 1024), Device(3.35e12, 989.4e12)

    def decodes(expected, slips, starts, model, device, case):
        got = step_seconds([(start, 1) for start in starts], model, device)
        check.close(got, expected, rtol=1e-9, unit="s", what=f"step of {case}", hint=cause_of(got, slips))

    decodes(
        0.0048152844991,
        {
            "the keys and values of a new token are written and also read: this has one of the two": 0.0048152453731,
            "the cached keys and values are read, too": 0.004776158529,
            "this is the time of the weights alone: the keys and values add to it": 0.004776119403,
            "a token has a key and a value: this counts only one of them": 0.004795701951,
            "keys have kv_width elements per layer, not width": 0.0049327797875,
            "this is the sum of the two times: a step takes the longer": 0.0048319858211,
            "this is the time of the arithmetic; the bytes take longer": 1.6701322013e-05,
            "attention is missing in the FLOPs": 1.617141702e-05,
            "the FLOPs of attention go by width, not kv_width": 1.6303893269e-05,
        },
        [999],
        llama,
        h100,
        "the worked example, (999, 1)",
    )
    decodes(
        0.0049719448836,
        {
            "the weights are read once per step, not once per request": 0.01452418369,
            "the keys and values of a new token are written and also read: this has one of the two": 0.0049718275057,
            "the cached keys and values are read, too": 0.0047762367809,
            "this is the time of the weights alone: the keys and values add to it": 0.004776119403,
            "a token has a key and a value: this counts only one of them": 0.0048740321433,
            "keys have kv_width elements per layer, not width": 0.0055594213254,
            "this is the sum of the two times: a step takes the longer": 0.0050231097194,
            "this is the time of the arithmetic; the bytes take longer": 5.1164835836e-05,
            "attention is missing in the FLOPs": 4.8514251061e-05,
            "the FLOPs of attention go by width, not kv_width": 4.9176897255e-05,
            "this adds up the longer time of each chunk: take the longer of the two sums": 0.01452418369,
        },
        [999, 0, 4000],
        llama,
        h100,
        "three requests, at positions 999, 0 and 4000",
    )
    decodes(
        0.0097063475852,
        {
            "the weights are read once per step, not once per request": 2.8659533488,
            "the keys and values of a new token are written and also read: this has one of the two": 0.005034350806,
            "the cached keys and values are read, too": 0.0047995949851,
            "this is the time of the weights alone: the keys and values add to it": 0.004776119403,
            "a token has a key and a value: this counts only one of them": 0.0049169728955,
            "keys have kv_width elements per layer, not width": 0.0059029473433,
            "this is the sum of the two times: a step takes the longer": 0.014764173973,
            "this is the time of the bytes; the arithmetic takes longer": 0.0050578263881,
            "attention is missing in the FLOPs": 0.0097028502122,
            "the FLOPs of attention go by width, not kv_width": 0.0097037245555,
            "this adds up the longer time of each chunk: take the longer of the two sums": 2.8659533488,
        },
        [10] * 600,
        llama,
        h100,
        "600 short requests, which arithmetic limits",
    )
    decodes(
        0.007282685554626866,
        {
            "requests at the same position each have keys of their own": 0.004817749435223881,
            "the weights are read once per step, not once per request": 0.3081782079426866,
        },
        [999] * 64,
        llama,
        h100,
        "64 requests at position 999",
    )
    decodes(
        0.0,
        {
            "an empty step reads no weights": 0.004776119403,
        },
        [],
        llama,
        h100,
        "no requests",
    )
    ### BEGIN HIDDEN TESTS

    def longer(starts, model, device):
        keys, kv = sum(starts) + len(starts), 4 * model.layers * model.kv_width
        bytes_ = 2 * model.parameters + (keys + len(starts)) * kv
        flops = 2 * model.parameters * len(starts) + 4 * model.layers * model.width * keys
        return max(bytes_ / device.bandwidth, flops / device.peak)

    for seed in range(6):
        rng = check.rng(seed)
        model = Model(float(10 ** rng.uniform(8, 11)), int(rng.integers(4, 90)), 128 * int(rng.integers(4, 90)), 1024)
        device = Device(float(10 ** rng.uniform(11, 13)), float(10 ** rng.uniform(13, 15)))
        starts = [int(start) for start in rng.integers(0, 9000, int(rng.integers(1, 300)))]
        decodes(longer(starts, model, device), {}, starts, model, device, f"{len(starts)} requests, {model}, {device}")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "step_seconds_test_prompts", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("step_seconds", "steps with prompts", part="prompts", hidden="other chunks and devices"):
    llama, h100 = Model(8e9, 32, 4096, 1024), Device(3.35e12, 989.4e12)

    def computes(expected, slips, chunks, model, device, case):
        got = step_seconds(list(chunks), model, device)
        check.close(got, expected, rtol=1e-9, unit="s", what=f"step of {case}", hint=cause_of(got, slips))

    computes(
        0.034230895996,
        {
            "each token sees itself too: i + 1 keys": 0.034229810751,
            "not every token of a chunk sees all of its keys": 0.035341644689,
            "this has one pair per key: each token of a chunk has its own": 0.033120147303,
            "attention is missing in the FLOPs": 0.033119062058,
            "the FLOPs of attention go by width, not kv_width": 0.033397020542,
            "this is the time of the bytes; the arithmetic takes longer": 0.0049363793767,
            "this is the sum of the two times: a step takes the longer": 0.039167275373,
            "the weights are read once per step, not once per chunk": 0.0049363793767,
            "the keys and values of a new token are written and also read: this has one of the two": 0.0048562493899,
            "each token of a chunk reads the keys again: a chunk reads them once": 0.086949420934,
        },
        [(0, 2048)],
        llama,
        h100,
        "the worked example, (0, 2048)",
    )
    computes(
        0.0089050025352,
        {
            "each token sees itself too: i + 1 keys": 0.0089047312239,
            "not every token of a chunk sees all of its keys": 0.0089743225868,
            "the tokens before the chunk are seen, too": 0.0083493568774,
            "this has one pair per key: each token of a chunk has its own": 0.0082811220712,
            "attention is missing in the FLOPs": 0.0082797655145,
            "the FLOPs of attention go by width, not kv_width": 0.0084360747696,
            "this is the time of the bytes; the arithmetic takes longer": 0.0048963143833,
            "this is the sum of the two times: a step takes the longer": 0.013801316919,
            "the weights are read once per step, not once per chunk": 0.0048963143833,
            "the keys and values of a new token are written and also read: this has one of the two": 0.0048762818866,
            "each token of a chunk reads the keys again: a chunk reads them once": 0.050961040583,
        },
        [(2048, 512)],
        llama,
        h100,
        "a chunk (2048, 512)",
    )
    computes(
        0.0082184106636,
        {
            "each token sees itself too: i + 1 keys": 0.0082181435914,
            "not every token of a chunk sees all of its keys": 0.0082845179011,
            "the tokens before the chunk are seen, too": 0.008216768488,
            "this has one pair per key: each token of a chunk has its own": 0.008151561559,
            "attention is missing in the FLOPs": 0.0081503941783,
            "the FLOPs of attention go by width, not kv_width": 0.0081673982996,
            "this adds up the longer time of each chunk: take the longer of the two sums": 0.017771105948,
            "this is the time of the bytes; the arithmetic takes longer": 0.0048820334042,
            "this is the sum of the two times: a step takes the longer": 0.013100444068,
            "the weights are read once per step, not once per chunk": 0.01443427221,
            "the keys and values of a new token are written and also read: this has one of the two": 0.0048623139152,
            "each token of a chunk reads the keys again: a chunk reads them once": 0.0098178919164,
        },
        [(999, 1), (0, 500), (700, 3)],
        llama,
        h100,
        "the chunks (999, 1), (0, 500) and (700, 3)",
    )
    computes(
        0.0050183874101,
        {
            "each token sees itself too: i + 1 keys": 0.0017572706726,
            "not every token of a chunk sees all of its keys": 0.0017586526648,
            "the tokens before the chunk are seen, too": 0.0015538380262,
            "this has one pair per key: each token of a chunk has its own": 0.0015556863348,
            "attention is missing in the FLOPs": 0.001552456034,
            "the FLOPs of attention go by width, not kv_width": 0.0016036724113,
            "this adds up the longer time of each chunk: take the longer of the two sums": 0.0097945068131,
            "this is the time of the arithmetic; the bytes take longer": 0.0017573215435,
            "this is the sum of the two times: a step takes the longer": 0.0067757089536,
            "the weights are read once per step, not once per chunk": 0.0097945068131,
            "the keys and values of a new token are written and also read: this has one of the two": 0.005014631317,
            "each token of a chunk reads the keys again: a chunk reads them once": 0.019906288564,
        },
        [(6000, 64), (0, 32)],
        llama,
        h100,
        "the chunks (6000, 64) and (0, 32), which bytes limit",
    )
    computes(6.6715039288, {}, [(0, 131072)], llama, h100, "a prompt of 131,072 tokens, with 8.6 billion pairs")
    ### BEGIN HIDDEN TESTS

    def longer(chunks, model, device):
        tokens, kv = sum(count for _, count in chunks), 4 * model.layers * model.kv_width
        seen = [[start + i + 1 for i in range(count)] for start, count in chunks]
        bytes_ = 2 * model.parameters + (sum(each[-1] for each in seen) + tokens) * kv
        flops = 2 * model.parameters * tokens + 4 * model.layers * model.width * sum(map(sum, seen))
        return max(bytes_ / device.bandwidth, flops / device.peak)

    for seed in range(6):
        rng = check.rng(seed + 10)
        model = Model(float(10 ** rng.uniform(8, 11)), int(rng.integers(4, 90)), 128 * int(rng.integers(4, 90)), 512)
        device = Device(float(10 ** rng.uniform(11, 13)), float(10 ** rng.uniform(13, 15)))
        chunks = [(int(rng.integers(0, 5000)), int(rng.integers(1, 700))) for _ in range(int(rng.integers(1, 6)))]
        computes(longer(chunks, model, device), {}, chunks, model, device, f"the chunks {chunks}, {model}, {device}")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "step_seconds",
    "Three sums over the chunks are enough: tokens `count`, keys `start + count`, and pairs.",
    "The pairs of a chunk are (start + 1) + (start + 2) + … + (start + count) = count · start + count · (count + 1)/2.",
    "The weights stand outside the sums: a step reads them once.",
)
from threeloops.hardware import accelerator
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching import RooflineCost, StepShape

LLAMA = GPTConfig(128256, 32, 32, 8, 4096, 14336, 8192, tied_embeddings=False)
COST = RooflineCost(LLAMA, accelerator("H100"))


def decode_milliseconds(requests, context):
    return 1e3 * COST(StepShape(((context - 1, 1, True),) * requests))


with reveal("batch"):
    show.against_prediction(
        "batch",
        round((16e9 + 64 * 1001 * 131072) / 3.35e9, 2),
        unit="ms",
        source="model of the exercise: bytes ÷ bandwidth",
    )
    plot, axes = figure(width=8.5, height=2.9)
    batches = [2**k for k in range(11)]
    for context, color in ((16, palette.purple), (1000, palette.green), (8000, palette.vermillion)):
        rates_ = [n / decode_milliseconds(n, context) for n in batches]
        axes.plot(batches, rates_, color=color, marker="o", ms=3)
        axes.annotate(
            f"{context:,} tokens each",
            (batches[-1], rates_[-1]),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color=color,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlim(1, 4500)
    axes.set_xticks(batches, [str(n) for n in batches])
    axes.set(xlabel="decoding requests in the step", ylabel="thousand tokens per second")
    axes.set_title("Llama-3-8B on an H100, at the data sheet's rates")
    show.figure(plot, "Tokens per second against the size of the batch, for three lengths of the context")
debrief(
    "step_seconds",
    """Reading 16 GB of weights takes 4.8 ms, and in that time an H100 could do the arithmetic of 295 tokens. So a lone decoding
    request uses 0.3% of the arithmetic, and the next one is nearly free, because the weights are read anyway. Two things end
    this. At about 300 tokens per step, arithmetic takes as long as reading the weights (the ridge point of lab 01). And with
    long contexts the keys and values, which requests do not share, outweigh the weights much earlier: 16 GB hold those of
    122,000 tokens.

    A prompt is different. 2,048 tokens are far beyond the ridge point, so batching such prompts gains almost nothing.

    The model leaves out launch overhead and activations, and real kernels stay below both rates.""",
    parts=("decode", "prompts"),
)

from threeloops.lab.drawings.measured.series import draw_floors
from threeloops.lab.drawings.measured.serving import per_token

predict(
    "tpot",
    "Now a real engine: TensorRT-LLM with Llama-3.1-8B in 16 bits on one H100. 64 requests run at all times, with prompts of "
    "1,024 tokens and answers of 512. By exercise 2 their decode step takes 8.0 ms. How many ms per output token were measured?",
    unit="ms",
)
if parts := together("step_seconds"):
    real, llama, sheet = per_token("H100 SXM", 1024, 512), Model(8.03e9, 32, 4096, 1024), Device(3.35e12, 989.4e12)
    decode, with_prompts = {}, {}
    for requests in real.sizes:
        others = [(1024 + 256 - 1, 1)] * requests  # in the middle of their answers
        decode[requests] = parts.step_seconds(others, llama, sheet)
        longer = parts.step_seconds([*others[1:], (0, 1024)], llama, sheet) - decode[requests]
        with_prompts[requests] = decode[requests] + (requests - 1) / 512 * longer
    show.against_prediction("tpot", round(1e3 * real.at(64), 1), unit="ms", source=real.source)
    with reveal("tpot"):
        show.figure(
            draw_floors(
                {"measured": real},
                {"your decode steps": decode, "and prompts of others": with_prompts},
                "Time per output token: Llama-3.1-8B, prompts of 1,024, answers of 512",
                "requests that run at all times",
                real.sizes,
            ),
            "measured times per output token by the number of requests, and two lines from your step_seconds",
        )
        print(
            "While a request writes 512 tokens, the prompt of each of the other 63 is computed once, in one of the 512 steps. That raises "
            f"{1e3 * decode[64]:.1f} ms to {1e3 * with_prompts[64]:.1f} ms. The measured time is {real.at(64) / with_prompts[64]:.1f} times that, and with 8 "
            f"or 128 requests {real.at(8) / with_prompts[8]:.1f} or {real.at(128) / with_prompts[128]:.1f} times. So the model says what grows and "
            "why. The factor stands for kernels that stay below the data sheet's rates, and for the engine's work between steps."
        )

# %% [markdown]
# ## 3 · Which requests join
#
# Because they share the reading of the weights, requests are batched:
#
# - **Static**: wait until a batch is full, run it until its longest answer is done, then take the next.
# - **Dynamic**: the same, but after, for example, 50 ms an incomplete batch starts too.
# - **Continuous**: decide before every step. Finished requests leave, and waiting ones take their seats (Orca, 2022).
#
# With continuous batching in its simplest form, new requests join in a step of their own, which computes their whole
# prompts and gives each its first token. Running requests wait meanwhile. To join, a request needs
#
# - a **seat**: the batch has a maximum size;
# - **blocks** of the cache, of 16 tokens each. Here we reserve them for prompt and answer, as if its length were
#   known (section 4 drops this);
# - room in the **budget**, the most prompt tokens that one step should compute.
#
# *Worked example.* 3 seats, 60 blocks and a budget of 600 are free. In the queue are `a` (prompt 300, answer 20), `b`
# (290, 30), `c` (100, 20) and `d` (10, 10). `a` needs 320 tokens, which are 20 blocks, and so does `b`; their prompts
# have 590 tokens. With `c` they would have 690, so `c` waits. `d` would fit, but it came later: if requests could
# overtake, a long prompt might wait forever. So `a` and `b` join.
#
# ### Exercise 3 (16 points)
#
# `admit(waiting, room) -> list` returns the names that join this step. `waiting` has (name, prompt, answer) in the
# order of arrival; `room` has `seats`, `blocks` and `budget`.
#
# - First come, first served: no request overtakes another, and as many join as fit.
# - Each needs blocks of `BLOCK` tokens for its prompt and answer together.
# - The prompts that join have at most `budget` tokens together. Only the first in the queue may exceed it. It then
#   joins alone.

# %% tags=["demo"]
myth("cb-1")
myth("cb-3")
myth("cb-4")
predict(
    "policies",
    "A chat service on an H100 has 32 seats and far more requests than it can serve. Answers have 20 to 800 tokens, all "
    "lengths equally likely. By what factor does continuous batching raise tokens per second over static batching?",
    unit="×",
)


# %% nbgrader={"grade": false, "grade_id": "admit", "locked": false, "schema_version": 3, "solution": true, "task": false}
def admit(waiting: list[tuple[str, int, int]], room: Room) -> list[str]:
    """The names that join this step, from the front of the queue."""
    ### BEGIN SOLUTION
    joined, blocks, prompts = [], 0, 0
    for name, prompt, answer in waiting:
        blocks += -(-(prompt + answer) // BLOCK)
        prompts += prompt
        if len(joined) == room.seats or blocks > room.blocks or (joined and prompts > room.budget):
            break
        joined.append(name)
    return joined
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "admit_test_rules", "locked": true, "points": 11, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("admit", "which requests join a step", part="rules", hidden="other queues and limits"):

    def joins(expected, line, *room, why):
        room = Room(*room)
        names = names_of(admit(list(line), room))
        require_front(names, line, room)
        case = f"waiting (name, prompt, answer): {line}, {room}"
        check.equal(names, expected, what=f"requests that join ({case})", hint=why)

    four = [("a", 300, 20), ("b", 290, 30), ("c", 100, 20), ("d", 10, 10)]
    joins(["a", "b"], [("a", 300, 4), ("b", 300, 400)], 4, 90, 620, why="the answers do not count for the budget")
    joins(["a", "b"], four, 3, 60, 600, why="with c, three prompts would have 690 tokens")
    joins(["a"], four, 1, 60, 600, why="there is one seat")
    joins([], four, 0, 60, 600, why="there is no seat")
    joins(["a"], four, 9, 39, 600, why="a and b would take 40 blocks for prompts and answers")
    joins(["a", "b"], four, 9, 40, 590, why="a and b fit exactly: 40 blocks, and prompts of 590 tokens")
    joins(["a", "b", "c"], four, 9, 48, 690, why="a, b and c fit exactly: 48 blocks, and prompts of 690 tokens")
    joins(["a", "b", "c", "d"], four, 9, 100, 9000, why="all four fit")
    long, short, other = ("long", 900, 20), ("short", 10, 10), ("other", 5, 5)
    joins(["long"], [long, short], 4, 100, 600, why="alone in a step a prompt may exceed the budget")
    joins(["long"], [long, ("tiny", 1, 4)], 4, 100, 600, why="alone in a step a prompt may exceed the budget")
    joins(["short"], [short, long, other], 4, 100, 600, why="long would exceed the budget: only the first may")
    joins([], [("big", 100, 900), ("small", 10, 6)], 4, 60, 600, why="big takes 63 blocks for its prompt and answer")
    thirds = [("a", 16, 16), ("b", 17, 15), ("c", 17, 16)]
    joins(["a", "b"], thirds, 4, 4, 600, why="a takes 2 blocks, b takes 2, and c would take 3")
    joins(["a"], [("a", 17, 16), ("b", 10, 10)], 4, 4, 600, why="33 tokens take 3 blocks, and 20 take 2")
    joins(["a"], [("a", 10, 6), ("b", 600, 8)], 4, 60, 600, why="both prompts have 610 tokens")
    joins([], [long, short], 4, 57, 600, why="long takes 58 blocks: only the budget makes an exception for the first")
    joins([], [], 4, 60, 600, why="nobody waits")
    ### BEGIN HIDDEN TESTS

    def by_trial(line, room):
        """The longest front of the queue that may join."""
        most = 0
        for count in range(1, len(line) + 1):
            blocks = sum(math.ceil((prompt + answer) / BLOCK) for _, prompt, answer in line[:count])
            prompts = sum(prompt for _, prompt, _ in line[:count])
            if count <= room.seats and blocks <= room.blocks and (count == 1 or prompts <= room.budget):
                most = count
        return [name for name, _, _ in line[:most]]

    for seed in range(60):
        rng = check.rng(seed)
        line = [
            (f"r{i}", int(rng.integers(1, 400)), int(rng.integers(1, 300))) for i in range(int(rng.integers(0, 12)))
        ]
        room = (int(rng.integers(0, 9)), int(rng.integers(0, 150)), int(rng.integers(50, 1500)))
        joins(by_trial(line, Room(*room)), line, *room, why="")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "admit_test_trace", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("admit", "a trace in virtual time", part="trace", hidden="other traces"):

    def serves(ends, seed, seats, blocks, budget, rate=120.0):
        """`ends`: milliseconds until the last token of each request."""
        got = serve(arrivals(rate, 30, (20, 600), (4, 60), seed), admitting(admit, seats, blocks, budget))
        require_ends(got, ends, f"{seats} seats, {blocks} blocks, budget {budget}, trace {seed}")
        check.note("time of the trace", max(each.times[-1] for each in got), max(map(float, ends.split())) / 1e3, "s")

    serves(
        "164.0824 246.6104 109.0824 219.0824 324.4504 289.4504 96.85043 85.29043 361.5864 388.7064 415.6424 "
        "464.1384 510.8904 373.7064 682.4024 459.1384 430.6424 580.9944 534.0664 792.3784 716.2504 622.3144 "
        "716.2504 817.3784 668.7624 740.6104 987.3784 977.3784 842.3784 967.3784",
        1,
        8,
        200,
        800,
    )
    serves(
        "102.4282 332.9642 162.4282 285.0282 305.0282 207.4282 410.2122 553.4362 449.7002 671.0522 499.7002 "
        "499.7002 646.0522 754.9642 841.0762 964.5642 898.6922 920.5562 1177.028 1028.044 1154.156 1281.468 "
        "1306.468 1460.42 1321.844 1607.396 1592.396 1426.844 1632.396 1577.396",
        2,
        16,
        120,
        400,
    )
    # a burst: many requests wait while many seats are free
    serves(
        "170.6676 330.7476 230.6676 101.4516 266.5796 325.7476 296.5796 477.2356 382.2356 407.2356 355.7476 "
        "664.5476 582.2356 512.2356 594.5476 582.2356 870.6196 807.2036 933.2836 888.2836 1138.188 993.2836 "
        "948.2836 1218.532 1153.644 1278.532 1278.532 1368.532 1448.532 1388.532",
        7,
        20,
        100,
        900,
        rate=20_000.0,
    )
    ### BEGIN HIDDEN TESTS

    def by_trial(line, room):
        """The longest front of the queue that may join."""
        most = 0
        for count in range(1, len(line) + 1):
            blocks = sum(math.ceil((prompt + answer) / BLOCK) for _, prompt, answer in line[:count])
            prompts = sum(prompt for _, prompt, _ in line[:count])
            if count <= room.seats and blocks <= room.blocks and (count == 1 or prompts <= room.budget):
                most = count
        return [name for name, _, _ in line[:most]]

    for seed, rate, *limits in (
        (3, 120.0, 3, 100, 2000),
        (6, 20_000.0, 20, 100, 900),
        (8, 20_000.0, 16, 120, 1000),
        (4, 120.0, 30, 400, 300),
    ):
        trace = arrivals(rate, 30, (20, 600), (4, 60), seed)
        got, expected = (serve(trace, admitting(policy, *limits)) for policy in (admit, by_trial))
        require_times(got, expected, f"{limits[0]} seats, {limits[1]} blocks, budget {limits[2]}, trace {seed}")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "admit",
    "Walk along the queue and stop at the first request that does not fit: `break`, not `continue`.",
    "`-(-tokens // BLOCK)` rounds up. Round up for each request, because two requests never share a block here.",
    "The budget does not hold for the first request: test it only if another has joined already.",
)
from threeloops.lab.drawings import draw_steps
from threeloops.lab.drawings.product import batches
from threeloops.product.batching import CHUNKED, CONTINUOUS, POLICIES, Engine, SimulatedExecutor
from threeloops.product.batching.blocks import BlockManager
from threeloops.product.loadgen import measure as measure_replay
from threeloops.product.loadgen import poisson, uniform
from threeloops.product.loadgen import replay as replay_requests
from threeloops.product.loadgen import trace as make_trace
from threeloops.simulation.clock import VirtualClock


def on_h100(policy, requests):
    """A replay by the course's engine, on an H100 in virtual time."""
    clock = VirtualClock()
    return replay_requests(Engine(SimulatedExecutor(clock, COST), BlockManager(8192, BLOCK), policy, clock), requests)


def burst(requests, seed=3):
    return make_trace(poisson(200.0, seed), requests, uniform(50, 400), uniform(20, 800), seed=seed)


measured = {}
for name, policy in POLICIES.items():
    run = on_h100(replace(policy, max_running=32, token_budget=512, prefix_cache=False), burst(200))
    measured[name] = measure_replay(run.requests)
alone = measure_replay(on_h100(replace(CONTINUOUS, max_running=1, prefix_cache=False), burst(200)).requests).throughput
factors = {name: metrics.throughput / alone for name, metrics in measured.items()}
with reveal("policies"):
    show.against_prediction(
        "policies",
        round(factors["continuous"] / factors["static"], 2),
        unit="×",
        source="the course's engine in virtual time",
    )
    show.table(
        [
            (
                name,
                f"{metrics.throughput:,.0f}",
                f"{factors[name]:.1f} ×",
                f"{metrics.ttft.p50:.1f} s",
                f"{1e3 * metrics.itl.p99:.1f} ms",
            )
            for name, metrics in measured.items()
        ],
        header=("200 requests, 32 seats", "tokens/s", "one at a time = 1", "TTFT, median", "ITL, P99"),
        caption="Llama-3-8B on an H100 in virtual time; 200 requests arrive within a second",
    )


def first_tokens(name):
    """Median TTFT in seconds if only 4 requests come per second."""
    few_requests = make_trace(poisson(4.0, 2), 60, uniform(50, 400), uniform(20, 800), seed=2)
    run = on_h100(replace(POLICIES[name], max_running=32, token_budget=512, prefix_cache=False), few_requests)
    return measure_replay(run.requests).ttft.p50


light = {name: first_tokens(name) for name in ("static", "dynamic", "continuous")}
setting = "200 requests on a modelled H100, 32 seats"
audit(
    "cb-1",
    round(factors["static"], 1),
    f"times the tokens/s of one request at a time, by static batching; continuous {factors['continuous']:.1f}",
    "model",
    "corrected",
    how=f"{setting}. Batching gains more than 10× where decoding dominates, because 32 requests share each read of the weights. Published factors have other baselines: Orca 36.9× over FasterTransformer at equal latency (GPT-3 175B), vLLM 2–4× over FasterTransformer and Orca",
)
audit(
    "cb-3",
    round(factors["dynamic"] / factors["static"], 2),
    "times the tokens/s of static batching, by dynamic batching",
    "model",
    "corrected",
    how=f"{setting}. Under full load dynamic hardly beats static, since its batches are full as well. It helps under light load: at 4 requests per second the median TTFT is {light['static']:.1f} s with static, {light['dynamic']:.1f} s with dynamic and {light['continuous']:.3f} s with continuous batching",
)
audit(
    "cb-4",
    round(factors["continuous"] / max(factors["static"], factors["dynamic"]), 2),
    "times the tokens/s of the better of static and dynamic batching, by continuous batching",
    "model",
    "holds",
    how=f"{setting}, answers of 20 to 800 tokens. The gain depends on how much the lengths of answers differ",
)


def draw_policies(policy, seats, requests):
    """With long prompts and short answers, so that both can be seen."""
    made = make_trace(poisson(200.0, 5), requests, uniform(1000, 4000), uniform(10, 60), seed=5)
    run = on_h100(replace(POLICIES[policy], max_running=seats, token_budget=1024, prefix_cache=False), made)
    return draw_steps(run, f"{policy}, {seats} seats")


explore(draw_policies, policy=["static", "dynamic", "continuous", "chunked"], seats=[4, 2, 8], requests=(4, 16, 2, 10))
debrief(
    "admit",
    """A static batch lasts as long as its longest answer. The average answer has about 400 tokens and the longest of 32 nearly
    800, so on average nearly half of the seats are empty, and steps of a half-empty batch take almost as long as those of a
    full one. Continuous batching fills a seat in the next step, so its gain depends on how much lengths differ. With equal
    lengths it would gain little.

    First come, first served is not the only order. Shortest first has a lower mean latency, but a long request may starve.
    The dives have priorities that age, and fair shares between clients.

    Two problems remain. Whenever a request joins, all decoding ones wait for one long step (section 5). And blocks were
    reserved for answers of known length. In practice the length is unknown, so one would reserve the maximum (section 4).""",
    parts=("rules", "trace"),
)

# %% [markdown]
# ## 4 · When the cache is full
#
# A naive server reserves blocks for the longest possible answer, and most stay empty. With *paged attention* (vLLM,
# 2023) a request gets only the blocks for the tokens that it has, and more when these are full. Then the cache can run
# out, and a request has to give its blocks back and wait: a **preemption**. Its keys and values are lost, but its tokens are not. When it joins again, its
# prompt and answer so far are computed like one long prompt (**recompute**).
#
# The request that arrived last is preempted first. So the first to arrive always makes progress, and none starves.
#
# *Worked example.* Blocks of 4 tokens, none free. `a` has 9 tokens and the blocks [0, 1], `b` 8 and [2, 3], `c` 5 and
# [4, 5]. Each count includes the newest token, whose keys and values this step computes. `a` needs three blocks and
# lacks one, so `c` is preempted: blocks 4 and 5 become free, and `a` takes 4. The 8 tokens of `b` fit. So `a` and `b`
# decode with the tables [0, 1, 4] and [2, 3], block 5 is free, and `c` waits with 5 tokens to compute.
#
# ### Exercise 4 (18 points)
#
# `make_room(running, free, block_size) -> (tables, free, preempted)`. `running` has (name, tokens, table) in the order
# of arrival. A table lists a request's blocks in the order of its tokens.
#
# - In the order of arrival, each request gets the blocks that its tokens need. While too few are free, the last request
#   that still runs is preempted, perhaps this one itself.
# - `tables` maps the names of those that decode to their tables: the old blocks first, unchanged.
# - `preempted` has (name, tokens to compute again) in the order of arrival.
# - Each block is in exactly one table or in `free` (in any order).

# %% tags=["demo"]
myth("cb-2")
predict(
    "reserve",
    "A cache holds 131,072 tokens. A chat may have up to 8,192 tokens, and has 500 on average. How many times as many chats "
    "fit with blocks of 16 tokens as with a reservation of the maximum for each?",
    unit="×",
)


# %% nbgrader={"grade": false, "grade_id": "make_room", "locked": false, "schema_version": 3, "solution": true, "task": false}
def make_room(
    running: list[tuple[str, int, list[int]]], free: list[int], block_size: int
) -> tuple[dict[str, list[int]], list[int], list[tuple[str, int]]]:
    """Which requests decode with which blocks, what is free, and which requests wait again."""
    staying, free, preempted = list(running), list(free), []
    tables = {}
    ### BEGIN SOLUTION
    place = 0
    while place < len(staying):
        name, tokens, table = staying[place]
        lacks = -(-tokens // block_size) - len(table)
        if lacks <= len(free):
            tables[name] = [*table, *(free.pop() for _ in range(lacks))]
            place += 1
        else:
            last, length, blocks = staying.pop()
            free += blocks
            preempted.insert(0, (last, length))
    ### END SOLUTION
    return tables, free, preempted


# %% nbgrader={"grade": true, "grade_id": "make_room_test_who", "locked": true, "points": 9, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("make_room", "which requests decode and which wait", part="who", hidden="other caches"):

    def rooms(stay, running, free, size, why):
        """The first `stay` requests decode, and the others wait."""
        copies = [(name, tokens, list(table)) for name, tokens, table in running]
        found = results_of(make_room(copies, list(free), size))
        require_kinds(found, running, free, size)
        case = f"running (name, tokens, table): {running}, free {free}, blocks of {size}"
        tables, _, preempted = found
        names = [name for name, _, _ in running]
        check.equal(sorted(tables), sorted(names[:stay]), what=f"requests that decode ({case})", hint=why)
        waits = [(name, tokens) for name, tokens, _ in running[stay:]]
        cause = ""
        if preempted != waits and preempted == waits[::-1]:
            cause = "these are in the order of preemption: they wait in the order of arrival"
        elif preempted == [(name, tokens - 1) for name, tokens in waits]:
            cause = "the newest token must be computed, too"
        check.equal(preempted, waits, what=f"preempted, with the tokens to compute again ({case})", hint=cause)

    three = [("a", 9, [0, 1]), ("b", 8, [2, 3]), ("c", 5, [4, 5])]
    first = "the last to arrive is preempted first"
    rooms(2, three, [], 4, f"a lacks a block, so c is preempted: {first}")
    rooms(3, three, [7], 4, "a takes block 7, and nobody is preempted")
    rooms(2, [("a", 8, [0, 1]), ("b", 9, [2, 3]), ("c", 4, [4])], [], 4, f"b lacks a block, and c has one: {first}")
    rooms(2, [("a", 9, [0, 1]), ("b", 9, [2, 3]), ("c", 9, [4, 5])], [6], 4, "a takes block 6, and b one of c's")
    four = [("a", 9, [0, 1]), ("b", 9, [3, 2]), ("c", 4, [4]), ("d", 3, [5])]
    rooms(2, four, [], 4, "a takes the block of d, and b that of c")
    rooms(1, [("a", 8, [0, 1]), ("b", 9, [2, 3])], [], 4, "b lacks a block and is the last: it is preempted itself")
    rooms(1, [("a", 33, [0, 1])], [2, 3], 16, "a takes a third block, and one stays free")
    rooms(1, [("a", 9, [0]), ("b", 4, [1])], [2], 4, "a lacks two blocks: one is free, and b has one")
    lone = [("a", 16, [0]), ("b", 4, [1]), ("c", 4, [2]), ("d", 4, [3]), ("e", 4, [4])]
    rooms(2, lone, [], 4, "a lacks three blocks, so e, d and c are preempted one after another")
    rooms(1, [("a", 4, [0]), ("b", 9, [1]), ("c", 4, [2])], [], 4, "b lacks two blocks, and c has only one: both wait")
    rooms(0, [], [0, 1], 4, "nobody runs")
    ### BEGIN HIDDEN TESTS

    def staying(running, free, size):
        """How many of them, from the first on, decode."""
        held = [len(table) for _, _, table in running]
        lacks = [math.ceil(tokens / size) - have for (_, tokens, _), have in zip(running, held, strict=True)]
        return max(n for n in range(len(running) + 1) if sum(lacks[:n]) <= len(free) + sum(held[n:]))

    for seed in range(40):
        rng = check.rng(seed)
        size, blocks, running = int(rng.integers(1, 6)), list(range(60)), []
        rng.shuffle(blocks)
        for i in range(int(rng.integers(1, 9))):
            held = int(rng.integers(1, 6))
            table, blocks = [int(b) for b in blocks[:held]], blocks[held:]
            running.append((f"r{i}", held * size + int(rng.integers(0, 2 * size)), table))
        free = [int(b) for b in blocks[: int(rng.integers(1, 4))]]
        rooms(staying(running, free, size), running, free, size, "")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "make_room_test_blocks", "locked": true, "points": 9, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check(
    "make_room", "every block in one place, and no request lost", part="blocks", hidden="other caches and traces"
):

    def keeps_blocks(running, free, size):
        copies = [(name, tokens, list(table)) for name, tokens, table in running]
        require_blocks(results_of(make_room(copies, list(free), size)), running, free, size)

    def survives(ends, seed, seats, blocks):
        """`ends`: milliseconds until the last token of each request."""
        got = serve(arrivals(200.0, len(ends.split()), (10, 90), (5, 60), seed), making_room(make_room, seats, blocks))
        require_ends(got, ends, f"{seats} seats, {blocks} blocks, trace {seed}")

    keeps_blocks([("a", 9, [0, 1]), ("b", 8, [2, 3]), ("c", 5, [4, 5])], [], 4)
    keeps_blocks([("a", 9, [0, 1]), ("b", 9, [3, 2]), ("c", 5, [4]), ("d", 3, [5])], [8], 4)
    keeps_blocks([("a", 8, [0, 1]), ("b", 9, [2, 3])], [], 4)
    keeps_blocks([("a", 33, [0, 1])], [2, 3], 16)
    keeps_blocks([("a", 257, [0])], [1, 2], 256)
    keeps_blocks([("a", 9, [0]), ("b", 4, [1])], [2], 4)
    keeps_blocks([("a", 16, [0]), ("b", 4, [1]), ("c", 4, [2]), ("d", 4, [3]), ("e", 4, [4])], [], 4)
    keeps_blocks([("a", 4, [0]), ("b", 9, [1, 3]), ("c", 4, [2])], [], 4)
    keeps_blocks([("a", 4, [0]), ("b", 13, [1, 3]), ("c", 4, [2])], [], 4)
    survives(
        "150.7215 235.7215 90.72146 210.7215 320.7215 280.7215 65.72146 110.7215 410.7215 515.7215 540.7215 "
        "495.7215 660.7215 620.7215 810.7215 600.7215",
        1,
        8,
        24,
    )
    ### BEGIN HIDDEN TESTS

    def by_trial(running, free, size):
        """The longest front of the order for which there are enough blocks."""
        for stay in range(len(running), 0, -1):
            pool = free + [block for _, _, table in running[stay:] for block in table]
            lacks = [-(-tokens // size) - len(table) for _, tokens, table in running[:stay]]
            if sum(lacks) <= len(pool):
                tables = {}
                for (name, _, table), more in zip(running[:stay], lacks, strict=True):
                    tables[name], pool = table + pool[:more], pool[more:]
                return tables, pool, [(name, tokens) for name, tokens, _ in running[stay:]]
        return {}, free, []

    for seed, seats, blocks, requests in ((2, 6, 16, 12), (3, 12, 40, 20)):
        trace = arrivals(200.0, requests, (10, 90), (5, 60), seed)
        got, expected = (serve(trace, making_room(policy, seats, blocks)) for policy in (make_room, by_trial))
        require_times(got, expected, f"{seats} seats, {blocks} blocks, trace {seed}")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "make_room",
    "Go through a list of the requests that still run. What happens to that list, and to `free`, if blocks are missing?",
    "If enough blocks are free for the request at `place`, give them and go on. Otherwise pop the last request of the list, "
    "add its whole table to `free`, and look at the same place again.",
    "The last request may be the one at `place`. Then the loop ends, because `place` is the length of the list.",
)
with reveal("reserve"):
    fits = 131072 // (BLOCK * math.ceil(500 / BLOCK)) / (131072 // 8192)
    show.against_prediction("reserve", round(fits, 1), unit="×", source="131,072 ÷ 512 against 131,072 ÷ 8,192")
    from threeloops.product.loadgen import lognormal

    chats = make_trace(poisson(1000.0, 7), 300, lognormal(250, 0.7, 20, 4000), lognormal(200, 0.7, 10, 4000), seed=7)
    paged_run = on_h100(replace(CHUNKED, max_running=1024, prefix_cache=False), chats)
    reserved_run = on_h100(replace(CHUNKED, max_running=131072 // 8192, prefix_cache=False), chats)
    paged, reserved = measure_replay(paged_run.requests), measure_replay(reserved_run.requests)
    ratio = paged.throughput / reserved.throughput

    def running_mean(run):
        """Requests per step, averaged over time."""
        return sum(len(step.requests) * step.seconds for step in run.steps) / sum(step.seconds for step in run.steps)

    show.table(
        [
            (
                name,
                f"{running_mean(run):.0f}",
                f"{m.throughput:,.0f}",
                f"{m.ttft.p50:.2f} s",
            )
            for name, m, run in (
                ("reserve 8,192 tokens each: 16 seats", reserved, reserved_run),
                ("blocks of 16 tokens", paged, paged_run),
            )
        ],
        header=("300 chats at once", "running, mean", "tokens/s", "TTFT, median"),
        caption="The same cache of 131,072 tokens on a modelled H100",
    )
audit(
    "cb-2",
    round(ratio, 1),
    "times the throughput, from more requests per step",
    "model",
    "holds",
    how="300 chats on a modelled H100, a cache of 131,072 tokens; the naive server reserves 8,192 tokens per request. The factor comes from the number of requests that fit, so it depends on how far typical lengths are below the maximum, and it ends where arithmetic or keys limit the step (section 2). vLLM's paper reports 2–4× over FasterTransformer and Orca. The attention kernel itself gained nothing: its latency was 20–26% higher than FasterTransformer's (section 7.1 there)",
)
from threeloops.lab.drawings import block_maps, draw_block_map

few = make_trace(poisson(60.0, 2), 7, uniform(20, 60), uniform(30, 70), seed=2)
maps = block_maps(few, replace(CHUNKED, max_running=6, token_budget=96, prefix_cache=False), 20, BLOCK, COST)
animate(
    draw_block_map,
    maps[:: -(-len(maps) // 24)],
    seconds=0.9,
    caption="20 blocks in virtual time: given out as answers grow, taken back when a request finishes or is preempted",
    still=8,
)
debrief(
    "make_room",
    """Instead of recomputing, an engine can copy the blocks to the host and back. Recomputing 500 tokens takes 8 ms on our H100;
    copying their 66 MB over PCIe takes 1 ms each way, but needs host memory and more code. vLLM recomputes. With a prefix
    cache (section 6) a preempted request often finds its blocks again.

    Because the order is fixed, only the latest requests lose work, and two requests cannot preempt each other forever. The
    first can always finish, provided that the whole cache can hold it. Engines check that when a request is added, and
    refuse it otherwise.

    A block that is freed twice is given to two requests. Both write their keys and values into it, and answers then depend
    on another user's text. That is why the check looks at every block.""",
    parts=("who", "blocks"),
)

# %% [markdown]
# ## 5 · Long prompts stall the others
#
# A prompt of 4,000 tokens takes about 70 ms, and all decoding requests wait for it. **Chunked prefill** (Sarathi-Serve, 2024)
# cuts prompts into chunks: a step has a token budget, decoding requests get their token first, and prompts share
# what is left. The budget then bounds how long a step takes, and with it the gaps.
#
# Two numbers say where a request is: how many of its tokens are *computed* (in the cache), and how many it has. If one
# is left, it decodes. A chunk that reaches the last token *samples*: it gives the request its next token.
#
# *Worked example.* The budget is 8. `a` has computed 30 of its 31 tokens, `b` 0 of 10, `c` 12 of 13, and `d` 4 of 9.
# (Most of `c`'s prompt was in a prefix cache, see section 6.) `a` and `c` decode, with one token each. The other 6 go to
# `b`: positions 0 to 5. That chunk does not sample, because 4 tokens are left. Nothing remains for `d`. The next chunk
# of `b` starts at position 6.
#
# ### Exercise 5 (18 points)
#
# `fill_step(running, budget) -> list` of (name, start, count, samples), in any order. `running` has (name, computed,
# tokens) in the order of arrival.
#
# - First, each request with one token left gets it, in the order of arrival while the budget lasts.
# - The rest of the budget goes to the others, in the order of arrival: each gets as many tokens as it lacks, or all
#   that remain.
# - `start` is the first position of the chunk, `samples` whether it reaches the last token. No chunk is empty.

# %% tags=["demo"]
predict(
    "chunks",
    "Short chats and prompts of up to 6,000 tokens share an H100: with whole prompts the P99 of the gaps is 48 ms. What is it "
    "with chunks and a budget of 512 tokens? (How long such a step takes follows from section 2.)",
    unit="ms",
)


# %% nbgrader={"grade": false, "grade_id": "fill_step", "locked": false, "schema_version": 3, "solution": true, "task": false}
def fill_step(running: list[tuple[str, int, int]], budget: int) -> list[tuple[str, int, int, bool]]:
    """What the next step computes: (name, start, count, samples)."""
    ### BEGIN SOLUTION
    chunks = []
    decoding = [each for each in running if each[2] - each[1] == 1]
    prompts = [each for each in running if each[2] - each[1] > 1]
    for name, computed, tokens in decoding + prompts:
        count = min(budget, tokens - computed)
        if count:
            chunks.append((name, computed, count, computed + count == tokens))
            budget -= count
    return chunks
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "fill_step_test_chunks", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("fill_step", "the chunks of one step", part="chunks", hidden="other requests and budgets"):

    def fills(expected, running, budget, why):
        """`expected` has the chunks (name, start, count, samples), in the order of the requests."""
        found = [tuple(each) for each in fill_step(list(running), budget)]
        require_chunks(found, running, budget)
        case = f"running (name, computed, tokens): {running}, budget {budget}"
        place = [name for name, _, _ in running].index
        check.equal(sorted(found, key=lambda chunk: place(chunk[0])), expected, what=f"the chunks, {case}", hint=why)

    worked = [("a", 30, 31), ("b", 0, 10), ("c", 12, 13), ("d", 4, 9)]
    a, c, d = ("a", 30, 1, True), ("c", 12, 1, True), ("d", 4, 5, True)
    fills([a, ("b", 0, 6, False), c], worked, 8, "a and c decode, and the other 6 tokens go to b")
    fills(
        [("a", 31, 1, True), ("b", 6, 4, True), ("c", 13, 1, True), ("d", 4, 2, False)],
        [("a", 31, 32), ("b", 6, 10), ("c", 13, 14), ("d", 4, 9)],
        8,
        "a and c decode, b gets the 4 tokens that it lacks, and d the last 2",
    )
    fills([a, ("b", 0, 10, True), c], worked, 12, "after b, nothing remains for d")
    fills([a, ("b", 0, 10, True), c, ("d", 4, 3, False)], worked, 15, "after b, 3 tokens remain for d")
    fills([a, ("b", 0, 10, True), c, d], worked, 100, "the budget has room for all")
    fills([a, c], worked, 2, "requests with one token left go first")
    fills([a], worked, 1, "requests with one token left go first, in the order of arrival")
    fills(
        [("a", 0, 6, False), ("b", 0, 1, True), ("c", 7, 1, True)],
        [("a", 0, 9), ("b", 0, 1), ("c", 7, 8)],
        8,
        "b and c have one token left, so they go first",
    )
    fills([("a", 5, 1, True), ("b", 8, 1, True)], [("a", 5, 6), ("b", 8, 9), ("c", 2, 3)], 2, "two of three fit")
    fills([("a", 0, 8, False)], [("a", 0, 20), ("b", 0, 4)], 8, "a takes the whole budget")
    fills([("a", 0, 8, False)], [("a", 0, 9)], 8, "a lacks one more token, so it does not sample yet")
    fills([("a", 0, 4, True), ("b", 0, 4, False)], [("a", 0, 4), ("b", 0, 20)], 8, "a samples, and b does not")
    fills([], [], 8, "nobody runs")
    ### BEGIN HIDDEN TESTS

    def by_totals(running, budget):
        lack = np.array([tokens - computed for _, computed, tokens in running])
        order = np.argsort(lack > 1, kind="stable")
        counts = np.zeros_like(lack)
        counts[order] = np.diff(np.minimum(np.cumsum(lack[order]), budget), prepend=0)
        return [(n, at, int(k), at + int(k) == end) for (n, at, end), k in zip(running, counts, strict=True) if k]

    for seed in range(60):
        rng = check.rng(seed)
        running = []
        for i in range(int(rng.integers(1, 12))):
            computed = int(rng.integers(0, 40))
            running.append((f"r{i}", computed, computed + (1 if rng.random() < 0.5 else int(rng.integers(1, 30)))))
        budget = int(rng.integers(1, 60))
        fills(by_totals(running, budget), running, budget, "")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "fill_step_test_trace", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("fill_step", "a trace in virtual time", part="trace", hidden="other traces"):

    def traced(seed):
        """For every third request, the prefix cache has the prompt except its last token, so it decodes at once."""
        trace = arrivals(60.0, 25, (20, 900), (4, 40), seed)
        return [(*each, (each[2] - 1) * (place % 3 == 2)) for place, each in enumerate(trace)]

    def serves_chunks(ends, p99, seed, seats, budget):
        """`ends` has milliseconds until the last token of each request; `p99` is that of the model answer's gaps."""
        got = serve(traced(seed), filling(fill_step, seats, budget))
        require_ends(got, ends, f"{seats} seats, budget {budget}, trace {seed}")
        gaps = np.percentile(np.concatenate([np.diff(each.times) for each in got]), 99)
        check.note("P99 of the gaps", 1e3 * float(gaps), p99, "ms")

    serves_chunks(
        "57.40485 187.4049 107.4049 167.4049 67.40485 142.4049 187.4049 257.4049 152.4049 162.4049 312.4049 "
        "272.4049 292.4049 247.4049 272.4049 352.4049 427.4049 457.4049 397.4049 507.4049 487.4049 527.4049 "
        "522.4049 507.4049 542.4049",
        5.0,
        1,
        8,
        256,
    )
    serves_chunks(
        "157.0724 222.0724 192.0724 202.0724 342.0724 297.0724 397.0724 262.0724 322.0724 357.0724 397.0724 "
        "282.0724 487.0724 607.0724 472.0724 612.0724 647.0724 507.0724 712.0724 747.0724 692.0724 772.0724 "
        "847.0724 742.0724 817.0724",
        5.0,
        2,
        16,
        64,
    )
    ### BEGIN HIDDEN TESTS

    def by_sums(running, budget):
        """The same, from running totals of what is lacking."""
        lack = np.array([tokens - computed for _, computed, tokens in running])
        order = np.argsort(lack > 1, kind="stable")
        ends = np.minimum(np.cumsum(lack[order]), budget)
        counts = np.zeros_like(lack)
        counts[order] = np.diff(ends, prepend=0)
        return [(n, at, int(k), at + int(k) == end) for (n, at, end), k in zip(running, counts, strict=True) if k]

    for seed, seats, budget in ((3, 4, 1000), (4, 20, 33)):
        got, expected = (serve(traced(seed), filling(policy, seats, budget)) for policy in (fill_step, by_sums))
        require_times(got, expected, f"{seats} seats, budget {budget}, trace {seed}")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "fill_step",
    "Make two passes over `running`: first the requests that decode, then the others.",
    "Each gets `count = min(budget, tokens - computed)`, which reduces the budget. Skip a request when `count` is 0.",
    "`samples` is `computed + count == tokens`. A prompt that is computed to its end samples, too.",
)


def mixed(requests=150, seed=4):
    from threeloops.product.loadgen import mixture

    prompts = mixture((0.8, uniform(50, 300)), (0.2, uniform(2000, 6000)))
    return make_trace(poisson(12.0, seed), requests, prompts, uniform(40, 160), seed=seed)


whole = measure_replay(
    on_h100(replace(CONTINUOUS, max_running=64, token_budget=6000, prefix_cache=False), mixed()).requests
)
with reveal("chunks"):
    rows_ = [("whole prompts", whole)]
    for budget in (128, 256, 512, 1024, 2048):
        run = on_h100(replace(CHUNKED, max_running=64, token_budget=budget, prefix_cache=False), mixed())
        rows_.append((f"chunks, budget {budget:,}", measure_replay(run.requests)))
    by_budget = dict(rows_)
    show.against_prediction(
        "chunks",
        round(1e3 * by_budget["chunks, budget 512"].itl.p99, 1),
        unit="ms",
        source="the course's engine in virtual time",
    )
    show.figure(
        batches.draw_budgets(
            {name.removeprefix("chunks, budget "): (1e3 * m.itl.p99, m.ttft.p99) for name, m in rows_}
        ),
        "the P99 of the gaps against the P99 of the TTFT: whole prompts, and chunks with five budgets",
    )
    show.table(
        [
            (
                name,
                f"{1e3 * m.itl.p50:.1f} ms",
                f"{1e3 * m.itl.p99:.1f} ms",
                f"{m.ttft.p50:.3f} s",
                f"{m.ttft.p99:.2f} s",
            )
            for name, m in rows_
        ],
        header=("", "ITL, median", "ITL, P99", "TTFT, median", "TTFT, P99"),
        caption="150 requests at 12 per second, a fifth of them with prompts of 2,000 to 6,000 tokens; Llama-3-8B on an H100",
    )
debrief(
    "fill_step",
    """A step reads the weights anyway, for the decoding requests. Prompt tokens that fill it up to the ridge point of section 2
    are nearly free, so chunking wastes little arithmetic. What it costs is the TTFT of the long prompt itself: with a small
    budget, the prompt is spread over many steps and shares each of them. A budget below the ridge point wastes arithmetic: at
    128 the P99 of the TTFT triples. One far above it brings the stalls back: at 2,048 the P99 of the gaps is 30 ms.

    Off-by-one mistakes hide here. If `start` were one too large, the model would still run, but every later key would be
    rotated for the wrong position. Nothing fails; the answers just get a little worse. So tests of an engine compare its
    tokens with those of each request served alone.""",
    parts=("chunks", "trace"),
)

# %% [markdown]
# ## 6 · What is already computed
#
# Many prompts begin alike: with the same instructions, or with the conversation so far. The keys and values of a token
# depend only on it and the tokens before it, so two requests with the same first 16 tokens can share a block. A
# **prefix cache** finds full blocks by a *cache key* (not a key of attention), which stands for all tokens from the
# beginning of the prompt to the end of the block.
#
# Sampling (temperature, seed) comes after the model has run, so it does not belong in the key. Since a hit is
# measurably faster, clients could probe what others have asked. So a service gives each customer a *salt*, and requests
# with different salts share nothing.
#
# *Worked example.* Blocks of 4 tokens. `x` = [5, 1, 4, 2, 7, 7, 7, 7, 3] has two full blocks, so two keys. Then `y` =
# [5, 1, 4, 2, 7, 7, 7, 7] arrives, with the same two keys. Yet only the first block is used: at least the last token
# must be computed, since its result chooses the next token. `z` = [9, 1, 4, 2, 7, 7, 7, 7, 3] hits nothing, although
# its second block looks the same.
#
# ### Exercise 6 (14 points)
#
# `find_prefix(prompt, cache, block_size) -> (keys, blocks)`. A prompt has `tokens`, `salt`, `temperature`, `seed`.
#
# - `keys`: one per full block, of your own design: `bytes`, `str`, `int` (up to 4,096 bits), or a tuple of these. Two
#   are equal exactly if the salts and all tokens up to the end of the block are.
# - `cache` maps keys to block numbers. `blocks` has the numbers for the first keys, up to the first that is not cached.
#   At least one token is left to compute.

# %% tags=["demo"]
predict(
    "prefix",
    "Every prompt has 2,000 tokens of shared instructions and 50 to 150 of its own. By what factor does the prefix cache shorten the "
    "median TTFT on an H100 under light load?",
    unit="×",
)


# %% nbgrader={"grade": false, "grade_id": "find_prefix", "locked": false, "schema_version": 3, "solution": true, "task": false}
def find_prefix(prompt: Prompt, cache: dict, block_size: int) -> tuple[list, list[int]]:
    """A key for each full block, and the cached blocks from the beginning."""
    ### BEGIN SOLUTION
    import hashlib

    key, keys = hashlib.sha256(prompt.salt.encode()).digest(), []
    for end in range(block_size, len(prompt.tokens) + 1, block_size):
        key = hashlib.sha256(key + repr(prompt.tokens[end - block_size : end]).encode()).digest()
        keys.append(key)
    blocks = []
    for key in keys[: (len(prompt.tokens) - 1) // block_size]:
        if key not in cache:
            break
        blocks.append(cache[key])
    return keys, blocks
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "find_prefix_test_keys", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("find_prefix", "keys of full blocks", part="keys", hidden="other prompts"):

    def keys_of(prompt, size):
        keys = list(find_prefix(prompt, {}, size)[0])
        check.equal(len(keys), len(prompt.tokens) // size, what=f"number of cache keys of {prompt}, blocks of {size}")
        require_keys(keys)
        return keys

    def compares(a, b, size, equal, what):
        """`equal` has the pairs of blocks (of `a`, of `b`) whose keys are equal."""
        pairs = [(i, j) for i in range(len(a.tokens) // size) for j in range(len(b.tokens) // size)]
        ours, theirs = keys_of(a, size), keys_of(b, size)
        for i, j in sorted(pairs, key=lambda pair: (abs(pair[0] - pair[1]), pair)):
            same, alike = (i, j) in equal, ours[i] == theirs[j]
            check.true(
                alike is same,
                f"block {i} of {described(a)} and block {j} of {described(b)}, blocks of {size}: the keys are "
                f"{'equal' if alike else 'different'}; they should be {'equal' if same else 'different'}: {what}",
            )

    def described(prompt):
        return repr(prompt) if len(prompt.tokens) < 40 else f"a prompt of {len(prompt.tokens):,} tokens"

    x, both = Prompt((5, 1, 4, 2, 7, 7, 7, 7, 3)), {(0, 0), (1, 1)}
    compares(x, Prompt((5, 1, 4, 2, 7, 7, 7, 7)), 4, both, "the same beginning")
    compares(x, Prompt((9, 1, 4, 2, 7, 7, 7, 7, 3)), 4, set(), "equal blocks after different beginnings differ")
    compares(x, replace(x, temperature=0.8, seed=3), 4, both, "sampling is no part of a key")
    compares(x, replace(x, salt="blue"), 4, set(), "a salt is part of every key")
    compares(replace(x, salt="Blue"), replace(x, salt="blue"), 4, set(), "salts differ in every letter")
    for salt in ("default", "None", "none", "public", "0", " "):
        compares(x, replace(x, salt=salt), 4, set(), "an empty salt is different from every other one")
    compares(x, Prompt((1, 5, 4, 2, 7, 7, 7, 7, 3)), 4, set(), "the order of the tokens counts")
    compares(Prompt((1, 23, 4, 5)), Prompt((12, 3, 4, 5)), 2, set(), "the tokens are not a text")
    compares(Prompt((0, 0, 7, 7)), Prompt((0, 0, 0, 0)), 2, {(0, 0)}, "zeros are tokens")
    compares(Prompt((5, 1, 4, 2, 7, 7, 7)), x, 4, {(0, 0)}, "only full blocks have a key")
    compares(Prompt((2, 3), "1"), Prompt((12, 3)), 2, set(), "a salt must stay apart from the tokens")
    compares(
        Prompt((0, 0, 0, 0)), Prompt((0, 0, 0, 0)), 2, both, "a key stands for all tokens up to the end of its block"
    )
    compares(Prompt((70_000, 3)), Prompt((4_464, 3)), 2, set(), "a vocabulary may have 128,256 tokens")
    five = (3, 8, 3, 8, 3, 8, 3, 8, 3, 8)
    for changed in range(10):
        other = Prompt((*five[:changed], 4, *five[changed + 1 :]))
        before = {(block, block) for block in range(5) if block < changed // 2}
        what = f"they differ in token {changed}, and a key stands for all tokens up to the end of its block"
        compares(Prompt(five), other, 2, before, what)
    pairs = [keys_of(Prompt((first, second)), 2)[0] for first in range(64) for second in range(64)]
    alike = len(pairs) - len(set(pairs))
    check.true(alike == 0, f"4,096 different blocks of two tokens from 0 to 63 have {len(set(pairs)):,} different keys")
    # Blocks with the same CRC-32, found by search: as text with ", " or ",", and as integers of 32 or 64 bits.
    for a, b in (
        ((33292, 93126, 28352, 78981), (23500, 35164, 41705, 66022)),
        ((28865, 11855, 96168, 72945), (13588, 91114, 33224, 45956)),
        ((53276, 53510, 18158, 57979), (49084, 54084, 75178, 93046)),
        ((92959, 33257, 42315, 24144), (39276, 52055, 19878, 72240)),
    ):
        compares(Prompt(a), Prompt(b), 4, set(), "a checksum of 32 bits takes different prompts for the same")
    long = tuple(range(1200))
    compares(Prompt(long), Prompt((*long[:600], 0, *long[601:])), 1200, set(), "they differ in token 600")
    ### BEGIN HIDDEN TESTS

    def agrees(a, b, size, what):
        ours, theirs = (
            [(prompt.salt, prompt.tokens[:end]) for end in range(size, len(prompt.tokens) + 1, size)]
            for prompt in (a, b)
        )
        equal = {(i, j) for i, mine in enumerate(ours) for j, other in enumerate(theirs) if mine == other}
        compares(a, b, size, equal, what)

    for seed in range(4):
        prompts = shared_prompts(seed, 3, 8)
        for a in prompts:
            for b in prompts:
                agrees(a, b, 3, "other prompts")
    rng = random.Random(7)
    many = tuple(rng.randrange(50_000) for _ in range(120))
    for changed in range(0, 120, 7):
        agrees(Prompt(many), Prompt((*many[:changed], 50_000, *many[changed + 1 :])), 15, f"token {changed} differs")
    agrees(Prompt((1, 2), salt="3"), Prompt((3, 1), salt="2"), 1, "a salt is no token")
    agrees(Prompt(long), Prompt((*long[:1199], 0)), 1200, "the last of 1,200 tokens differs")
    agrees(Prompt((1, 2), salt=" a"), Prompt((1, 2), salt="a"), 1, "spaces count in a salt")
    for separator in ("-", ",", ", ", " ", "|", ":", ";", "/", "_", ".", "#", "\n", "\0"):
        what = "a salt may hold any text"
        agrees(Prompt((1, 2, 3), "7"), Prompt((2, 3, 4), f"7{separator}1"), 1, what)
        agrees(Prompt((1, 2, 3), ""), Prompt((2, 3, 4), f"1{separator}"), 1, what)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "find_prefix_test_hits", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("find_prefix", "the longest hit", part="hits", hidden="other prompts"):

    def hits(prompts, size, expected, forget=()):
        """Serve prompts in turn; each new key gets the next block.

        `expected` are the blocks that each prompt finds, and `forget` the numbers of blocks that were given away.
        """
        cache, numbers, earlier = {}, 0, {}
        for served, prompt in enumerate(prompts):
            keys, blocks = find_prefix(prompt, dict(cache), size)
            keys, blocks = list(keys), list(blocks)
            require_keys(keys)
            full = len(prompt.tokens) // size
            require(len(keys) >= full, f"{len(keys)} cache keys of {prompt}, which has {full} full blocks of {size}")
            for place, key in enumerate(keys):
                begins = replace(prompt, tokens=prompt.tokens[: (place + 1) * size])
                again = earlier.setdefault(begins, key) == key
                require(again, f"the key of block {place} of {prompt}, blocks of {size}, is another one than before")
            known = [cache.get(key) for key in keys]
            wanted = expected[served]
            cause = ""
            if len(blocks) * size >= len(prompt.tokens):
                cause = "at least the last token must be computed"
            elif blocks == [number for number in known if number is not None] != wanted:
                cause = "an earlier key is not in the cache: what comes after the gap cannot be used"
            case = (
                f"{prompt}, blocks of {size}, after {served} other prompts (number of each key in the cache: {known})"
            )
            check.equal(blocks, wanted, what=f"blocks that are found for {case}", hint=cause)
            for key in keys:
                if key not in cache:
                    cache[key], numbers = numbers, numbers + 1
            cache = {key: number for key, number in cache.items() if number not in forget}

    x, y = Prompt((5, 1, 4, 2, 7, 7, 7, 7, 3)), Prompt((5, 1, 4, 2, 7, 7, 7, 7))
    hits([x, y], 4, [[], [0]])
    hits([x, x, replace(x, seed=8, temperature=1.0)], 4, [[], [0, 1], [0, 1]])
    hits([x, replace(x, salt="blue"), replace(x, salt="blue")], 4, [[], [], [2, 3]])
    hits([x, Prompt((9, 1, 4, 2, 7, 7, 7, 7, 3))], 4, [[], []])
    hits([Prompt(tuple(range(13))), Prompt(tuple(range(13)))], 4, [[], [0]], forget=(1,))
    hits([x, x], 4, [[], []], forget=(0,))
    hits([Prompt(tuple(range(17))), Prompt(tuple(range(17)))], 4, [[], [0, 1]], forget=(2,))
    hits([Prompt(tuple(range(12))), Prompt((*range(8), 1, 1, 1, 1))], 4, [[], [0, 1]])
    hits([Prompt((1, 2)), Prompt((1, 2))], 4, [[], []])
    ### BEGIN HIDDEN TESTS

    def blocks_of(prompts, size, forget=()):
        """Return the blocks that each prompt should find. The key of a block is here the salt and all tokens up to its end."""
        cache, numbers, found = {}, 0, []
        for prompt in prompts:
            keys = [(prompt.salt, prompt.tokens[:end]) for end in range(size, len(prompt.tokens) + 1, size)]
            known = [cache.get(key) for key in keys]
            found.append(known[: [*known, None].index(None)][: (len(prompt.tokens) - 1) // size])
            for key in keys:
                if key not in cache:
                    cache[key], numbers = numbers, numbers + 1
            cache = {key: number for key, number in cache.items() if number not in forget}
        return found

    for seed in range(6):
        prompts, forget = shared_prompts(seed + 20, 3), (2, 5) if seed % 2 else ()
        hits(prompts, 3, blocks_of(prompts, 3, forget), forget)
        prompts = shared_prompts(seed + 40, 1)
        hits(prompts, 1, blocks_of(prompts, 1))
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "find_prefix",
    "A key can stand for everything before it if the previous key is a part of it. What comes before the first block?",
    "`hashlib.sha256(previous + repr(tokens).encode()).digest()`: `repr` of a tuple keeps the tokens apart. The first block "
    "takes a hash of the salt as its previous key.",
    "Only the first (len(tokens) − 1) // block_size keys may hit; that leaves the last token to compute. Stop at the first "
    "key that is missing.",
)


def instructed(requests=60, seed=6):
    return make_trace(
        poisson(4.0, seed), requests, uniform(50, 150), uniform(20, 60), prefixes=1, prefix_length=2000, seed=seed
    )


with reveal("prefix"):
    cached, fresh = (
        measure_replay(on_h100(replace(CHUNKED, token_budget=2048, prefix_cache=on), instructed()).requests)
        for on in (True, False)
    )
    show.against_prediction(
        "prefix", round(fresh.ttft.p50 / cached.ttft.p50, 1), unit="×", source="the course's engine in virtual time"
    )
    show.table(
        [
            (name, f"{1e3 * m.ttft.p50:.1f} ms", f"{1e3 * m.itl.p99:.1f} ms", f"{1e3 * m.end_to_end.p50:.0f} ms")
            for name, m in (("no prefix cache", fresh), ("prefix cache", cached))
        ],
        header=("60 requests at 4 per second", "TTFT, median", "ITL, P99", "end to end, median"),
        caption="2,000 shared tokens in front of each prompt; Llama-3-8B on an H100",
    )
debrief(
    "find_prefix",
    """Chaining makes one key stand for a whole prefix, so one lookup per block is enough. Freed blocks keep their keys until
    another request needs them, so the prefix cache takes no memory of its own.

    Any key that keeps different prefixes apart is graded as right, Python's `hash` included. A service that strangers
    share needs a cryptographic hash of salt and tokens. Python's `hash` of a tuple of integers is predictable,
    so a client could construct a prompt whose key equals that of another, and answers would then be computed from somebody
    else's text. Even correct hits reveal, through the TTFT, whether a prefix was seen before. That is what salts prevent.

    A hit saves prefill only. The decode steps read the same keys as before, so TPOT hardly changes.""",
    parts=("keys", "hits"),
)

# %% [markdown]
# ## 7 · You choose
#
# Three services (`WORKLOADS`) run on one H100 each, with chunked prefill. The model of a step is simpler than in section
# 2: it takes the longer of 5 ms + 40 ns per key and 16 µs per token. The keys of a step are all tokens that its requests
# have in the cache, including the new ones.
#
# | | requests/s | prompt | answer | TTFT at most | each gap at most |
# |---|---|---|---|---|---|
# | documents | 18 | 2,000–4,000 | 50–100 | 1 s | 20 ms |
# | extraction | 220 | 100–200 | 60–100 | 0.5 s | 50 ms |
# | long chat | 2.5 | 6,000–8,000 | 400–600 | 8 s | 10 ms |
#
# *Worked example.* With 64 seats and a budget of 512 tokens, only about 40% of the extraction requests meet both
# limits. They wait for seats: a request decodes for 80 steps of about 6 ms, so in the long run 220 per second need
# 220 · 0.48 s ≈ 106 seats. The trace is short, so a few fewer pass, too.
#
# ### Exercise 7 (10 points)
#
# `choose_limits(workload) -> (seats, budget)`: with these, at least 90% of a service's requests meet both limits of the
# table, in each of the three services. A workload has `name`, `rate`, `prompts` and `outputs` (smallest, largest),
# `ttft` and `gap`. Derive seats and budget, or try them out: grading uses other arrivals.


# %% nbgrader={"grade": false, "grade_id": "choose_limits", "locked": false, "schema_version": 3, "solution": true, "task": false}
def choose_limits(workload: Workload) -> tuple[int, int]:
    """Seats, and tokens per step."""
    ### BEGIN SOLUTION
    longest = workload.prompts[1] + workload.outputs[1]
    seats = int(0.9 * (workload.gap - 5e-3) / (40e-9 * longest))  # if all of them are long and decode
    budget = int(0.8 * workload.gap / 16e-6)
    return seats, budget
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "choose_limits_test", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("choose_limits", "nine in ten requests meet both limits", hidden="other arrivals of the same services"):

    def chunked(seats, budget):
        def decide(waiting, running):
            joined = waiting[: max(0, seats - len(running))]
            del waiting[: len(joined)]
            running += joined
            if not running:
                return []
            lack = np.array([request.length - request.computed for request in running])
            order = np.argsort(lack > 1, kind="stable")
            counts = np.diff(np.minimum(np.cumsum(lack[order]), budget), prepend=0)
            return [(running[place], int(n)) for place, n in zip(order, counts, strict=True) if n]

        return decide

    def attains(workload, seed):
        found = choose_limits(workload)
        check.equal(len(found), 2, what="number of results")
        seats, budget = found
        for name, value in (("seats", seats), ("budget", budget)):
            whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
            check.true(whole and value >= 1, f"{name} = {value!r}: expected an `int`, at least 1")
        made = arrivals(workload.rate, workload.requests, workload.prompts, workload.outputs, seed)
        served = serve(made, chunked(seats, budget), keys_cost=True)
        late = np.array([beyond(request.times[0] - request.arrival, workload.ttft) for request in served])
        worst = np.array([max(np.diff(request.times)) for request in served])
        stalled = beyond(worst, workload.gap)
        both = float(np.mean(~late & ~stalled))
        check.true(
            both >= 0.9,
            f"{workload.name}, {seats} seats, budget {budget}: {both:.0%} of the requests meet both limits, expected 90%. "
            f"{late.mean():.0%} have their first token after more than {workload.ttft} s, and {stalled.mean():.0%} "
            f"a gap of more than {1e3 * workload.gap:g} ms (median of the longest gaps {1e3 * np.median(worst):.1f} ms)",
        )
        check.note(f"{workload.name}: requests in time", 100 * both, 100.0, "%")

    for workload in WORKLOADS:
        attains(workload, 2)
    ### BEGIN HIDDEN TESTS
    for workload in WORKLOADS:
        attains(workload, 1)
        attains(workload, 3)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "choose_limits",
    "The budget limits the arithmetic of a step: at 16 µs per token, 20 ms allow 1,250. Stay below that, but not so low that "
    "prompts queue: how many prompt tokens per second does the service need?",
    "The seats limit the keys that a step reads, at 40 ns each on top of 5 ms. How many requests of 7,500 tokens fit into 10 ms?",
    "Little's law gives the fewest seats that a service needs: requests per second · seconds that each decodes.",
)
debrief(
    "choose_limits",
    """Each limit bounds one part of a step: the budget bounds the arithmetic, to gap/16 µs tokens, and the seats bound the keys,
    to (gap − 5 ms)/40 ns. The load bounds both from below: the seats by Little's law, the budget by prompt tokens per second.
    If nothing is left between the bounds, no setting helps, and the service needs another GPU or refuses requests (lab 17).

    No pair serves all three. Documents need more than 256 tokens per step, long chats need few seats, and extraction needs
    many. So such services run on separate replicas, or a router chooses (lab 18).""",
    parts=("",),
)

# %% [markdown]
# ## 8 · Your engine
#
# Your decisions drive a trained GPT of 228,000 parameters here. Requests with a common beginning share a cache that is too
# small for them, so some are preempted. Each answer must still be the one that its request gets alone.


# %% tags=["demo"]
import torch
from threeloops.lab.drawings import draw_chunks
from threeloops.product.decode import PagedCache, Rows
from threeloops.product.trained import trained


def run_engine(parts, model, prompts, outputs, blocks, seats, budget):
    """Serve prompts (name → tokens) with your decisions. Returns the requests, and each step's chunks."""
    cache = PagedCache(model.config, blocks, BLOCK, dtype=torch.float32, device="cpu")
    waiting = [Served(name, place, len(tokens), outputs) for place, (name, tokens) in enumerate(prompts.items())]
    for request in waiting:
        request.tokens, request.table, request.hits, request.preempted = list(prompts[request.name]), [], 0, 0
    running, done, steps, free, known = [], [], [], list(range(blocks)), {}
    while waiting or running:
        if waiting and len(running) < seats and blocks_for(len(waiting[0].tokens)) <= len(free):
            request = waiting.pop(0)
            request.table = [free.pop() for _ in range(blocks_for(len(request.tokens)))]
            _, hits = parts.find_prefix(Prompt(tuple(request.tokens)), dict(known), BLOCK)
            cache.copy(zip(hits, request.table, strict=False))  # a copy, since `make_room` wants a block in one table
            request.computed, request.hits = len(hits) * BLOCK, max(request.hits, len(hits) * BLOCK)
            running.append(request)
        running.sort(key=lambda request: request.arrival)
        given = [(request.name, len(request.tokens), list(request.table)) for request in running]
        tables, free, preempted = parts.make_room(given, list(free), BLOCK)
        for request in [each for each in running if each.name in {name for name, _ in preempted}]:
            running.remove(request)
            request.table, request.computed, request.preempted = [], 0, request.preempted + 1
            waiting = sorted([*waiting, request], key=lambda each: each.arrival)
        for request in running:
            request.table = list(tables[request.name])
        by_name = {request.name: request for request in running}
        asked = [(request.name, request.computed, len(request.tokens)) for request in running]
        chunks = [chunk for chunk in parts.fill_step(asked, budget) if chunk[2]]
        rows = [Rows(by_name[n].tokens[at : at + count], at, by_name[n].table) for n, at, count, _ in chunks]
        hidden, end = cache.hidden(model, rows), 0
        for name, _, count, samples in chunks:
            request, end = by_name[name], end + count
            request.computed += count
            if samples:
                request.tokens.append(int(model.head(hidden[end - 1]).argmax()))
        for request in [each for each in running if len(each.tokens) == each.prompt + each.output]:
            running.remove(request)
            done.append(request)
            free = [*free, *request.table]
        known = {}
        for request in running:
            keys, _ = parts.find_prefix(Prompt(tuple(request.tokens[: request.computed])), {}, BLOCK)
            known.update(zip(keys, request.table, strict=False))
        steps.append(chunks)
    return sorted(done, key=lambda request: request.arrival), steps


def written_alone(model, prompt, count):
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens


if parts := together("make_room", "fill_step", "find_prefix"):
    gpt = trained("tiny")
    begin = b"import sys\nimport os\n\n\nclass Reader:\n    "
    ends = [b"def __init__(self", b"pass\n", b"def read(self, count):\n        return ", b"name = ", b"def close"]
    prompts = {f"r{n}": list(begin + ends[n % 5]) for n in range(8)}
    with torch.inference_mode():
        requests, steps = run_engine(parts, gpt, prompts, 24, blocks=22, seats=6, budget=32)
        alone = {
            n: written_alone(gpt, prompts[f"r{n}"], 24) for n in range(5)
        }  # r5 to r7 begin again with these prompts
        same = [request.tokens == alone[n % 5] for n, request in enumerate(requests)]
    show.table(
        [
            (
                r.name,
                r.prompt,
                r.hits,
                r.preempted,
                "yes" if equal else "no",
                bytes(r.tokens[r.prompt :]).decode("latin-1"),
            )
            for r, equal in zip(requests, same, strict=True)
        ],
        header=("request", "prompt", "from the prefix cache", "times preempted", "as computed alone", "answer"),
        caption=f"{len(steps)} steps, 22 blocks of {BLOCK}, 6 seats, a budget of 32 tokens. All as computed alone: {all(same)}",
    )
    show.figure(
        draw_chunks(list(prompts), steps),
        "which requests each step computed: prompts in chunks, decoding, and waiting again after a preemption",
    )

# %% [markdown]
# ## In practice
#
# vLLM and SGLang schedule in similar ways. Their names for the limits:
#
# | here | vLLM 0.33 | SGLang 0.5.23 |
# |---|---|---|
# | seats | `--max-num-seqs` | `--max-running-requests` |
# | budget of a step | `--max-num-batched-tokens` | `--chunked-prefill-size`, with `--enable-mixed-chunk` |
# | blocks | `--gpu-memory-utilization`, `--block-size` | `--mem-fraction-static`, `--page-size` |
# | prefix cache | `--no-enable-prefix-caching` turns it off | `--disable-radix-cache` turns it off |
# | order | `--scheduling-policy priority` | `--schedule-policy lpm` |
#
# Without `--enable-mixed-chunk`, SGLang computes chunks in steps of their own.
#
# ## What to remember
#
# - A decode step reads all weights anyway. More requests are nearly free, up to about 300 tokens per step on an H100.
# - Decide before every step. A static batch waits for its longest answer.
# - Give blocks when they are needed. If none is left, preempt the latest request, and compute its tokens again.
# - Chunked prefill bounds the gaps. A small budget trades them against the TTFT.
# - The cache key of a block stands for all tokens up to its end, and for the salt.
#
# The deep dives (`16_continuous_batching_dives.ipynb`) cover priorities, fair shares and speculation, and an engine
# on this CPU.
#
# ## Reflection
#
# Your service meets its TTFT limit, but the P99 of the gaps is three times its limit. What do you measure and change
# first, and what does it cost? Write one paragraph.

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# First I look at the steps behind the long gaps: their prompt tokens, keys and preemptions.
# If prompts make them long, I lower the token budget until a full step is shorter than the limit. I watch the P99 of
# the TTFT, because long prompts then take more steps. If keys or preemptions make them long, I take fewer seats, and
# requests wait in the queue instead. If the TTFT then misses its limit, I add a replica.

# %% tags=["demo"] jupyter={"source_hidden": true}
term("continuous batching")
calibration()
