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
#     title: How many replicas, and when?
#     minutes: 190
#     withholds: [threeloops.product.fleet, threeloops.lab.drawings]
#     handed_out: {choose_settings: "the cost of a day is given; the exercise is to search with it"}
#     edition: 2
# ---

# %% [markdown]
# # How many replicas, and when?
#
# ![The requests per second of one day, with a peak that is ten times the night, bursts on top, and a row of replicas with a question mark](attachment:opening.png)
#
# Demand changes by the minute, and a new replica needs minutes before it can answer. How many should run now?
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
import heapq
import math
import random
from collections import deque
from dataclasses import dataclass, replace
from numbers import Integral, Real

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
from threeloops.lab.checking.wall import arguments_after

TICK = 15  # seconds between two decisions of an autoscaler


@dataclass(frozen=True)
class Probe:
    """A question that is asked every `period` seconds, from `delay` seconds after the start. It fails without a 200
    within `timeout` seconds, and it acts after `failures` failures in a row."""

    path: str
    period: int
    timeout: int
    failures: int
    delay: int = 0


@dataclass(frozen=True)
class Probes:
    liveness: Probe
    readiness: Probe
    startup: Probe | None = None


@dataclass(frozen=True)
class Failure:
    """Why an attempt failed: "refused" (no connection), "status" (an answer with that status), or "lost" (the connection
    broke, or the time ran out, after the request had been sent)."""

    kind: str
    status: int = 0
    streamed: int = 0  # tokens that the client has already got
    repeatable: bool = True  # doing it twice does no harm
    retry_after: float = 0.0  # seconds; the server's wish


@dataclass(frozen=True)
class Service:
    """Requests per second at the peak of a day, seconds that a request holds its seat, seats per replica, seconds until a
    new replica is ready; the bursts of the day; and what is asked: seconds in the queue, and the most that it may cost."""

    name: str
    peak: float
    hold: float
    seats: int
    cold_start: float
    bursts: int
    factor: float
    ramp: float
    length: float
    wait: float
    cost: float


@dataclass(frozen=True)
class Settings:
    """Settings of an autoscaler. `metric` is "cpu" (per cent) or "in_flight" (requests), and `target` its mean per replica.
    A scale-down waits `window` seconds. `low` and `high` are the fewest and most replicas."""

    metric: str
    target: float
    window: float = 300
    low: int = 1
    high: int = 60


SERVICES = [
    Service("chat", 40, 6.0, 16, 240, bursts=10, factor=1.8, ramp=300, length=1200, wait=5.0, cost=1.9),
    Service("agents", 40, 4.0, 16, 90, bursts=144, factor=3.0, ramp=60, length=300, wait=5.0, cost=2.4),
    Service("documents", 20, 20.0, 32, 600, bursts=4, factor=1.3, ramp=900, length=5400, wait=30.0, cost=1.45),
]


def demand(service, seed, hours=24):
    """Requests per second for each tick of a day that begins at midnight: a wave over the day, times bursts."""
    rng, gap = random.Random(f"{service.name} {seed}"), hours * 3600 / service.bursts
    starts, rates = [gap * (n + 0.3 * rng.random()) for n in range(service.bursts)], []
    for tick in range(int(hours * 3600 / TICK)):
        now = tick * TICK
        base = service.peak * (0.55 - 0.45 * math.cos(2 * math.pi * now / 86400)) / service.factor
        last = starts[int(now / gap)]  # a burst ends before the next one begins
        inside = min(now - last, last + service.length - now) / service.ramp
        rates.append(base * (1 + (service.factor - 1) * min(1.0, max(0.0, inside))))
    return rates


def cpu_per_cent(rate):
    """CPU use of a replica's 8 cores: one keeps the GPU busy in a loop, and each request takes 10 ms of another."""
    return 100 * (1 + 0.01 * rate) / 8


@dataclass(frozen=True)
class Moment:
    seconds: float
    rate: float
    ready: int
    starting: int
    waiting: float  # requests in the queue
    wait: float  # seconds that a request which arrives now will wait


@dataclass(frozen=True)
class Day:
    moments: list[Moment]
    in_time: float  # share of the requests that waited no longer than asked
    cost: float  # replica-hours that ran, for each hour that a replica with full seats would have needed
    started: int


def run_day(service, settings, rates):
    """A fleet in virtual time: requests flow as a liquid, and the autoscaler decides every tick."""
    ready, starting, history, moments = settings.low, deque(), deque(), []
    inside, total, late, replica_seconds, started = rates[0] * service.hold, 0.0, 0.0, 0.0, 0
    for tick, rate in enumerate(rates):
        now = tick * TICK
        while starting and starting[0] <= now:
            starting.popleft()
            ready += 1
        seats = ready * service.seats
        for _ in range(5):
            inside += TICK / 5 * (rate - min(inside, seats) / service.hold)
        running = min(inside, seats)
        wait = (inside - running) * service.hold / seats
        moments.append(Moment(now, rate, ready, len(starting), inside - running, wait))
        total, late, replicas = total + rate, late + rate * (wait > service.wait), ready + len(starting)
        replica_seconds += replicas * TICK
        load = replicas * cpu_per_cent(running / service.hold / ready) if settings.metric == "cpu" else inside
        steady = abs(load / replicas / settings.target - 1) <= 0.1
        wanted = min(max(replicas if steady else math.ceil(load / settings.target), settings.low), settings.high)
        history.append((now, wanted))
        while history[0][0] < now and history[0][0] <= now - settings.window:
            history.popleft()
        started += max(0, wanted - replicas)
        starting += [now + service.cold_start] * (wanted - replicas)
        for _ in range(replicas - max(count for _, count in history)):
            if starting:
                starting.pop()
            else:
                ready -= 1
    needed = sum(rates) * TICK * service.hold / service.seats
    return Day(moments, 1 - late / total, replica_seconds / needed, started)


def kubelet(probes, answers, seconds):
    """What happens to a replica, as [(second, "ready" | "unready" | "restart")].

    `answers(path, age, now)` is how many seconds a 200 takes, or infinity if none comes; `age` counts from the last start.
    Until the startup probe has succeeded, the others are not asked. If a startup or liveness probe acts, the replica restarts.
    """
    events, begun_at, ready, started, failed = [], 0, False, probes.startup is None, {}
    for now in range(seconds):
        for kind in ("liveness", "readiness") if started else ("startup",):
            probe, age = getattr(probes, kind), now - begun_at
            if age < probe.delay or (age - probe.delay) % probe.period:
                continue
            good = answers(probe.path, age, now) <= probe.timeout
            failed[kind] = 0 if good else failed.get(kind, 0) + 1
            acts = failed[kind] == probe.failures
            if good and kind == "startup":
                started = True
            elif kind == "readiness" and (good and not ready or acts and ready):
                ready = good
                events.append((now, "ready" if ready else "unready"))
            elif acts and kind != "readiness":
                events += [(now, "unready")] * ready + [(now, "restart")]
                begun_at, ready, started, failed = now + 1, False, probes.startup is None, {}
                break
    return events


def restarts(events):
    return [second for second, what in events if what == "restart"]


def has(value, names, what):
    """Check that an answer has these fields, because a clear message is better than an AttributeError."""
    check.true(all(hasattr(value, name) for name in names), f"{what}; it has no {', '.join(names)}")
    return value


def whole(value):
    """Whether a value is a whole number, NumPy's included, and neither True nor False."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def sound(probes, case):
    has(
        probes,
        ("liveness", "readiness", "startup"),
        f"{probes!r} for {case}: expected Probes(liveness, readiness, startup)",
    )
    for kind in ("liveness", "readiness", "startup"):
        probe = getattr(probes, kind)
        if probe is None and kind == "startup":
            continue
        has(probe, ("path", "period"), f"{kind} = {probe!r} for {case}: expected a Probe")
        paths = f"{kind}.path = {probe.path!r} for {case}: the server answers /health and /ready only"
        check.true(probe.path in ("/health", "/ready"), paths)
        for name in ("period", "timeout", "failures", "delay"):
            value = getattr(probe, name)
            least = int(name != "delay")  # only a delay may be 0
            check.true(
                whole(value) and value >= least,
                f"{kind}.{name} = {value!r} for {case}: expected a whole number of at least {least}",
            )
    return probes


def storm(retry, seconds=120, new=10, patience=3):
    """Clients send `new` requests per second to replicas that serve 12 per second, but only 3 from second 20 to 30.

    A client gives up after `patience` seconds and asks `retry` what to do; the replicas serve the abandoned request all
    the same. The budget holds 10 tokens at first and at most, each new request adds 0.1, and each retry takes 1.
    Returns, for each second, the attempts that arrived and the new requests that were answered in time, of `new`.
    """
    rng, queue, coming, budget = random.Random(4), deque(), [], 10.0
    attempts, answered = [0] * seconds, [0] * seconds
    for second in range(seconds):
        for number in range(new):
            heapq.heappush(coming, (second + number / new, 1, second))
            budget = min(10.0, budget + 0.1)
        room = 3 if 20 <= second < 30 else 12
        arrived = []
        while coming and coming[0][0] < second + 1:
            arrived.append(heapq.heappop(coming))
        queue.extend(arrived)
        attempts[second] += len(arrived)
        for _ in range(min(room, len(queue))):
            at, _, first = queue.popleft()
            if second - at < patience:
                answered[first] += 1
        for at, attempt, first in [each for each in queue if second - each[0] < patience <= second + 1 - each[0]]:
            delay = retry(Failure("lost"), attempt, budget, rng.random())
            if delay is not None:
                budget -= 1
                heapq.heappush(coming, (max(second + 1, at + patience + delay), attempt + 1, first))
    return attempts, answered


def require_day(choose_settings, name, seed, model=None):
    """A day of a service with the chosen settings: in time, and at a cost that is allowed. `model`: the model answer's."""
    service = next(each for each in SERVICES if each.name == name)
    settings = choose_settings(service)
    has(settings, ("metric", "target", "window"), f"{settings!r} for {name}: expected Settings(metric, target, window)")
    for field in ("target", "window"):
        value = getattr(settings, field)
        check.true(isinstance(value, Real), f"{field} = {value!r}: expected a number")
    check.true(settings.metric in ("cpu", "in_flight"), f"metric = {settings.metric!r}: expected 'cpu' or 'in_flight'")
    check.true(settings.target > 0, f"target = {settings.target!r}: expected more than 0")
    check.true(settings.window >= 0, f"window = {settings.window!r}: expected seconds, at least 0")
    limits = f"low = {settings.low!r}, high = {settings.high!r}"
    kinds = whole(settings.low) and whole(settings.high)
    check.true(kinds and 1 <= settings.low <= settings.high, f"{limits}: expected whole numbers, 1 ≤ low ≤ high")
    day = run_day(service, settings, demand(service, seed))
    worst = max(day.moments, key=lambda moment: moment.wait)
    said = f"{name}, {settings}: {day.in_time:.1%} of the requests are in time, at a cost of {day.cost:.2f}"
    check.true(
        day.in_time >= 0.99,
        f"{said}; expected 99%. The longest wait is {worst.wait:,.0f} s, at {worst.seconds / 3600:.1f} h, with {worst.ready} "
        f"replicas ready and {worst.starting} starting",
    )
    check.true(day.cost <= service.cost, f"{said}; expected a cost of at most {service.cost}")
    if model is not None:
        check.note(f"{name}: cost (at most {service.cost})", round(day.cost, 2), model, "")


def cause_of(got, slips):
    """The slip that gives this number."""
    if not isinstance(got, (int, float)):
        return ""
    return next((cause for cause, value in slips.items() if math.isclose(got, value, rel_tol=1e-9)), "")


# %% tags=["demo", "opening"] jupyter={"source_hidden": true}
plot, axes = figure(width=9.5, height=3.0)
rates = demand(SERVICES[0], 5)
hours = np.arange(len(rates)) * TICK / 3600
axes.fill_between(hours, rates, color=palette.sky, alpha=0.5, lw=0)
axes.plot(hours, rates, color=palette.blue, lw=1.2)
axes.text(23.7, 30, "requests per second", color=palette.blue, weight="bold", ha="right")
for place in range(6):
    axes.bar([1.0 + 0.75 * place], [6], width=0.55, bottom=36, facecolor="none", edgecolor=palette.grey, ls="--")
axes.text(5.8, 39, "? replicas", va="center", weight="bold", size=13)
axes.set(xlim=(0, 24), ylim=(0, 44), xlabel="hour of the day")
axes.set_xticks(range(0, 25, 3))
show.figure(plot, "The requests per second of one day, with bursts, and a row of replicas with a question mark")

# %% [markdown]
# A *replica* is one copy of the service of lab 17, with GPUs of its own. It answers as many requests at a time as it
# has **seats**; the others wait in the queue. A fleet of replicas stands behind one address. Everything here runs in
# virtual time on the small simulators of the folded cell above, so results are exact. Your functions must not change the
# lists that they get.
#
# ## 1 · From a metric to a number
#
# An **autoscaler** compares a metric per replica, such as the requests *in flight* (running or waiting), with a
# **target**. Kubernetes' rule is ⌈n · mean/target⌉, which is the sum of the metric divided by the target, rounded up.
# A *tolerance* keeps small differences from changing anything.
#
# *Worked example.* Four ready replicas have 30, 26, 40 and 24 requests in flight, and the target is 20. The mean is 30,
# so the ratio is 1.5, and ⌈120/20⌉ = 6 replicas are wanted. Two are started. 15 seconds later the ready ones still have
# 120, because the new ones load a model for minutes. ⌈6 · 30/20⌉ would now be 9, then 14, and so on. So the starting
# ones have to count as well, with a load of 0: the mean is 120/6 = 20, the ratio is 1, and 6 stay 6.
#
# ### Exercise 1 (14 points)
#
# `desired(loads, target, tolerance, limits) -> int`. `loads` has the requests in flight of each replica, or `None` if it
# reports nothing: it may still be starting, or its metric may be missing.
#
# - The first ratio is the mean of the known loads, divided by the target.
# - Unknown loads are filled in cautiously: with 0 if the first ratio is above 1, and otherwise with `target`. The mean of
#   all loads, divided by the target, is the second ratio.
# - Keep the present number, `len(loads)`, if no load is known, if |second ratio − 1| ≤ `tolerance`, or if only one of the
#   two ratios is above 1. Otherwise ⌈sum of all loads/target⌉ are desired.
# - The result is always within `limits`, (fewest, most).
#
# For example, with a target of 20, loads of 10, 8 and two unknown ones have the ratios 0.45 and 58/4/20 = 0.725, so
# ⌈58/20⌉ = 3 are desired.

# %% tags=["demo"]
predict(
    "runaway",
    "4 replicas are overloaded by half, so 6 would do, and at most 50 are allowed. New ones take 4 minutes to start. An autoscaler "
    "decides every 15 s and treats starting replicas as if they had the mean load, too. How many has it ordered when the first "
    "new ones are ready?",
    options=("6", "9", "14", "50"),
)


# %% nbgrader={"grade": false, "grade_id": "desired", "locked": false, "schema_version": 3, "solution": true, "task": false}
def desired(loads: list[float | None], target: float, tolerance: float, limits: tuple[int, int]) -> int:
    """How many replicas there should be."""
    ### BEGIN SOLUTION
    number = len(loads)
    known = [load for load in loads if load is not None]
    if known:
        first = sum(known) / len(known) / target
        filled = 0 if first > 1 else target
        total = sum(known) + filled * (number - len(known))
        second = total / number / target
        if abs(second - 1) > tolerance and (first > 1) == (second > 1):
            number = math.ceil(total / target)
    return min(max(number, limits[0]), limits[1])
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "desired_test_seen", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("desired", "every replica reports its load", part="seen", hidden="other fleets"):
    WITHIN = "the ratio is within the tolerance of 1"
    DOWN = "this rounds down: round up"
    NEAREST = "this rounds to the nearest: round up"
    OUTSIDE = "this is outside of the limits"
    BEYOND = "the ratio is outside of the tolerance"

    def wants(loads, target, tolerance, limits, expected, slips):
        """`slips` maps wrong numbers to their causes."""
        got = desired(list(loads), target, tolerance, limits)
        case = f"loads {loads}, target {target}, tolerance {tolerance}, limits {limits}"
        cause = slips.get(got, "") if isinstance(got, int) else ""
        check.equal(got, expected, what=f"replicas for {case}", hint=cause)

    wants([30, 26, 40, 24], 20, 0.1, (1, 50), 6, {4: BEYOND})
    wants([30, 26, 40, 24], 20, 0.1, (1, 5), 5, {6: OUTSIDE, 4: BEYOND})
    wants([20, 20, 22, 20], 20, 0.1, (1, 50), 4, {5: WITHIN})
    wants([18, 19, 20, 20], 20, 0.1, (1, 50), 4, {3: DOWN})
    wants([25, 25], 20, 0.25, (1, 50), 2, {3: WITHIN})
    wants([16, 15, 14, 15], 20, 0.25, (1, 50), 4, {3: WITHIN})
    wants([26, 26], 20, 0.25, (1, 50), 3, {2: DOWN})
    wants([31, 31, 31, 31], 20, 0.1, (1, 50), 7, {6: DOWN, 4: BEYOND})
    wants([5, 5, 7, 4], 20, 0.1, (1, 50), 2, {1: DOWN, 4: BEYOND})
    KNOWN = "the mean is 0 and far from the target: a load of 0 is a metric, too"
    wants([0, 0, 0, 0], 20, 0.1, (2, 50), 2, {0: OUTSIDE, 4: KNOWN})
    wants([0, 0], 20, 0.1, (0, 50), 0, {1: "with these limits 0 are allowed", 2: KNOWN})
    wants([20, 20], 20, 0.1, (5, 50), 5, {2: OUTSIDE})
    wants([2, 3, 4], 1.5, 0.1, (1, 50), 6, {3: BEYOND})
    wants([15.5, 44.75], 20, 0.1, (1, 50), 4, {3: DOWN, 2: BEYOND})
    wants(
        [20, 40.001], 20, 0.1, (1, 50), 4, {3: "60.001 / 20 is more than 3: do not round the sum or the ratio before"}
    )
    ### BEGIN HIDDEN TESTS
    for seed in range(60):
        rng = check.rng(seed)
        target, loads = int(rng.integers(3, 40)), [int(v) for v in rng.integers(0, 60, int(rng.integers(1, 20)))]
        n, total = len(loads), sum(loads)
        if abs(abs(total / n / target - 1) - 0.1) < 1e-6 or (total % target == 0 and total % n):
            continue  # where floating point may round either way
        limits = (int(rng.integers(1, 5)), int(rng.integers(6, 40)))
        number = n if abs(total - n * target) <= 0.1 * n * target else -(-total // target)
        wants(loads, target, 0.1, limits, sorted((limits[0], number, limits[1]))[1], {})
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "desired_test_unseen", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("desired", "some replicas report nothing", part="unseen", hidden="other fleets"):

    def fills_in(loads, target, limits, expected, why):
        got = desired(list(loads), target, 0.1, limits)
        check.equal(
            got, expected, what=f"replicas for loads {loads}, target {target}, tolerance 0.1, limits {limits}", hint=why
        )

    four, few, unknown = [30, 26, 40, 24], [10, 8], None
    fleet_before = [10, None, 40, 24]
    left = arguments_after(desired, list(fleet_before), 20, 0.1, (1, 50))[0]
    check.true(left == fleet_before, f"desired({fleet_before}, …) has changed `loads` to {left}")
    fills_in([*four, unknown, unknown], 20, (1, 50), 6, "the unknown ones count as 0, and then the ratio is 1")
    fills_in([*four, unknown], 20, (1, 50), 6, "on the way up the unknown one counts as 0: the ratio is 120/5/20 = 1.2")
    fills_in([*four, *[unknown] * 5], 20, (1, 50), 9, "the first ratio is 1.5, the second 0.67: keep all nine")
    fills_in([*few, unknown], 20, (1, 50), 2, "on the way down the unknown one counts as the target: ⌈38/20⌉")
    fills_in([*few, unknown, unknown], 20, (1, 50), 3, "on the way down both count as the target: ⌈58/20⌉")
    fills_in([*few, *[unknown] * 8], 20, (1, 50), 9, "the ratio is 178/10/20 = 0.89")
    fills_in([*few, *[unknown] * 12], 20, (1, 50), 14, "the second ratio, 258/14/20 = 0.92, is within the tolerance")
    fills_in([unknown, 90, unknown], 20, (1, 50), 5, "on the way up both count as 0")
    fills_in([20, unknown, unknown], 20, (1, 50), 3, "not above 1: the unknown ones count as the target")
    fills_in([0, unknown], 20, (1, 50), 1, "a load of 0 is known: the first ratio is 0, the second 0.5")
    fills_in([unknown, unknown, unknown], 20, (1, 50), 3, "no load is known: keep the number")
    fills_in([unknown], 20, (2, 50), 2, "no load is known, but the limits hold")
    fills_in([], 20, (1, 50), 1, "no replicas: the limits hold")
    fills_in([40, unknown], 20, (1, 50), 2, "the unknown one counts as 0: the second ratio is 1")
    ### BEGIN HIDDEN TESTS
    for seed in range(120):
        rng = check.rng(seed + 100)
        target, loads = int(rng.integers(3, 40)), []
        heavy = int(rng.integers(2, 80))
        for _ in range(int(rng.integers(1, 12))):
            loads.append(unknown if rng.random() < 0.45 else int(rng.integers(0, heavy)))
        known = [load for load in loads if load is not None]
        number = len(loads)
        if known:
            up = sum(known) > len(known) * target
            every = [(0 if up else target) if load is None else load for load in loads]
            ratio = sum(every) / (len(every) * target)
            if abs(abs(ratio - 1) - 0.1) < 1e-6 or (sum(every) % target == 0 and sum(every) % len(every)):
                continue
            if abs(ratio - 1) > 0.1 and (ratio > 1) is up:
                number = -(-sum(every) // target)
        fills_in(loads, target, (1, 30), min(max(number, 1), 30), "")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "desired",
    "Make a list of the known loads. Its mean divided by the target is the first ratio.",
    "Then fill in the others: a 0 for each if the first ratio is above 1, otherwise `target` for each.",
    "`(first > 1) == (second > 1)` says whether both ratios are on the same side. Apply the limits once, at the end.",
)


def runaway(counts_starting):
    """Replicas ordered after each decision: demand needs 6, and 4 are ready for the first 240 s."""
    ready, ordered, seen = 4, 4, [4]
    for tick in range(1, 30):
        if tick * TICK >= 240:
            ready = min(ordered, seen[max(0, tick - 16)])
        mean = 120 / (ordered if counts_starting else ready)
        ordered = ordered if abs(mean / 20 - 1) <= 0.1 else min(math.ceil(ordered * mean / 20), 50)
        seen.append(ordered)
    return seen


with reveal("runaway"):
    show.against_prediction("runaway", str(runaway(False)[16]), source="the rule, applied 16 times")
    plot, axes = figure(width=8.5, height=2.8)
    for careful, color, name, place in (
        (True, palette.green, "starting ones count as 0", (320, 9)),
        (False, palette.vermillion, "starting ones count as the mean", (320, 42)),
    ):
        line = runaway(careful)
        axes.step([n * TICK for n in range(len(line))], line, where="post", color=color)
        axes.text(*place, name, color=color, va="center", weight="bold")
    axes.axvline(240, color=palette.grey, ls=":")
    axes.text(236, 27, "the first new\nones are ready", va="top", ha="right", size=9)
    axes.set(xlim=(0, 435), ylim=(0, 54), xlabel="seconds", ylabel="replicas ordered")
    show.figure(
        plot, "Replicas ordered over time: counting starting ones as 0 stays at 6, the other rule runs away to 50"
    )
debrief(
    "desired",
    """Every choice here asks which mistake is cheaper. Replicas that report nothing could be idle or overloaded. On the way up
    they count as idle and on the way down as exactly on target, so what is unknown never makes the change larger.

    Kubernetes' HorizontalPodAutoscaler decides like this every 15 seconds, with a tolerance of 0.1, if the metric comes from the
    pods. A pod that runs and reports nothing, such as one that loads its model, is filled in as here. Only pods that are *pending*
    (for CPU, also those that are not ready) are treated differently: on the way down they are not counted at all.
    An *external* metric, such as the length of one common queue, has no pods: it is ⌈sum/target⌉.

    A model that loads for 4 minutes is 16 decisions late, so without the zeros the number multiplies by 1.5 at each of them until
    it reaches the limit.""",
    parts=("seen", "unseen"),
)

# %% [markdown]
# ## 2 · Quick up, slow down
#
# A replica that is stopped too early has to load again, for minutes, when demand returns. So a fleet follows the *highest*
# number that was wanted during a **stabilisation window** when it shrinks, and the latest when it grows.
#
# *Worked example.* Nine replicas run at second 600. Wanted were 9 at second 250, 6 at 330, 4 at 450 and 3 now. The
# window is 300 s, so the first is too old, and the highest of the others is 6: three replicas go, and 6 stay.
#
# ### Exercise 2 (10 points)
#
# `settle(wanted, now, current, window) -> int` is the number of replicas from now on. `wanted` has (second, replicas),
# oldest first; the last is of `now`.
#
# - **Up**: if the latest wanted is above `current`, go there.
# - **Down**: otherwise, if the highest wanted of the window is below `current`, go there.
# - Else nothing changes.
# - A time counts if it is less than `window` seconds ago. The latest wanted always counts.

# %% tags=["demo"]
myth("svc-3")
predict(
    "flapping",
    "Agents send waves of requests: demand is threefold for five minutes, and normal for the next two to eight. A replica loads for "
    "90 s. With which window does a fleet cost the least, in replica-hours per day?",
    options=("0 s", "120 s", "300 s", "600 s"),
)


# %% nbgrader={"grade": false, "grade_id": "settle", "locked": false, "schema_version": 3, "solution": true, "task": false}
def settle(wanted: list[tuple[int, int]], now: int, current: int, window: int) -> int:
    """How many replicas there are from now on."""
    ### BEGIN SOLUTION
    latest = wanted[-1][1]
    highest = max([latest, *(number for second, number in wanted if now - second < window)])
    if latest > current:
        return latest
    return min(highest, current)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "settle_test", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("settle", "the window on the way down", hidden="other histories"):

    def settles(wanted, now, current, window, expected, why=""):
        history = list(wanted)
        got = settle(history, now, current, window)
        case = f"replicas; wanted {wanted}, now {now}, current {current}, window {window}"
        check.equal(got, expected, what=case, hint=why)

    worked = [(250, 9), (330, 6), (450, 4), (600, 3)]
    left = arguments_after(settle, list(worked), 600, 9, 300)[0]
    check.true(left == worked, f"settle({worked}, …) has changed `wanted` to {left}")
    settles(worked, 600, 9, 300, 6, "the highest of the window: 9 is 350 s old, and 6, 4 and 3 count")
    settles(worked, 600, 9, 400, 9, "all four are within 400 s, and the highest is 9")
    settles(worked, 600, 9, 270, 4, "330 is exactly 270 s ago: only less than the window counts")
    settles([(301, 8), (450, 4), (600, 3)], 600, 9, 300, 8, "8 was wanted 299 s ago, which is less than the window")
    settles(worked, 600, 9, 0, 3, "without a window the latest counts, and only that")
    settles(
        worked, 600, 5, 300, 5, "6 was wanted in the window, so nothing is removed; but the latest, 3, asks for no more"
    )
    settles(worked, 600, 6, 300, 6)
    settles(
        [(330, 4), (400, 7), (500, 5), (600, 3)], 600, 9, 300, 7, "the highest, 7, is neither the first nor the latest"
    )
    settles([(250, 2), (330, 9), (600, 7)], 600, 4, 300, 7, "on the way up the latest counts, not the highest")
    settles([(330, 2), (600, 7)], 600, 4, 300, 7, "on the way up there is no window")
    settles([(600, 0)], 600, 4, 300, 0)
    settles([(600, 4)], 600, 4, 300, 4)
    ### BEGIN HIDDEN TESTS
    for seed in range(80):
        rng = check.rng(seed)
        step = (1, 15)[seed % 2]
        seconds = sorted({int(s) * step for s in rng.integers(0, 900 // step, 12)} | {900})
        wanted = [(second, int(rng.integers(1, 12))) for second in seconds]
        current, window = int(rng.integers(1, 12)), int(rng.integers(0, 600 // step)) * step
        top = wanted[-1][1]
        for second, number in wanted:
            if second > 900 - window:
                top = max(top, number)
        expected = wanted[-1][1] if wanted[-1][1] > current else min(top, current)
        settles(wanted, 900, current, window, expected)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "settle",
    "Two numbers decide the direction: the latest wanted, and the highest of the window.",
    "Filter `wanted` by age for the highest; the latest belongs to it in any case, even if the window is 0.",
)
waves = demand(SERVICES[1], 1)
windows = {
    window: run_day(SERVICES[1], Settings("in_flight", 12, window), waves) for window in (0, 120, 300, 600, 1800)
}
loading = {
    seconds: run_day(replace(SERVICES[0], cold_start=seconds), Settings("in_flight", 12), demand(SERVICES[0], 1))
    for seconds in (15, 60, 120, 240, 480)
}
with reveal("flapping"):
    show.against_prediction(
        "flapping",
        f"{min((0, 120, 300, 600), key=lambda window: windows[window].cost)} s",
        source="agents, one day in virtual time",
    )
    show.table(
        [
            (f"{window} s", f"{day.started:,}", f"{day.in_time:.1%}", f"{day.cost:.2f}")
            for window, day in windows.items()
        ],
        header=("window", "replicas started", "in time", "cost (all seats always full = 1)"),
        caption="Agents: a cold start of 90 s, target 12 of 16 seats",
    )
    show.table(
        [(f"{seconds} s", f"{day.in_time:.1%}", f"{day.cost:.2f}") for seconds, day in loading.items()],
        header=("cold start", "in time", "cost"),
        caption="Chat: target 12 of 16 seats",
    )
audit(
    "svc-3",
    round(windows[0].started / windows[600].started, 1),
    "times the replica starts without a cool-down, for the agents",
    "model",
    "holds",
    how="One day of each service in virtual time. The cool-down, here the window, has to be longer than the pauses between the waves, which last 2 to 8 minutes: with 300 s the fleet starts three quarters as many replicas as without, and pays longer for each",
)
debrief(
    "settle",
    """Up and down are not alike because their mistakes cost differently: a replica too many costs its price for a few
    minutes, one too few costs the users' time for as long as a start takes.

    The table shows that a window helps only if it is longer than the pauses. Between 0 and 300 s the agents' fleet still shrinks in
    every pause, only later, so it pays more and is in time only a little more often. At 600 s it keeps its replicas through
    the pauses, starts almost none, and is cheaper, too.

    Kubernetes' defaults are a window of 300 s down and none up, and per 15 s at most four new replicas or a doubling,
    whichever is more.""",
)
predict(
    "late",
    "A chat service in which bursts multiply demand by 1.8 within five minutes runs with a target of 75% of the seats. With a cold "
    "start of 15 s all requests are in time. What share of a day's requests is late with a cold start of 8 minutes?",
    unit="%",
)

# %% [markdown]
# ## 3 · What a slow start costs
#
# The time from the order of a replica until it can answer is its **cold start**. No autoscaler is faster than that.
# Until the new ones are ready, the old ones have to cope, so they need free seats *before* a burst comes. The target
# decides how many: with 16 seats and a target of 8 requests in flight, half of the seats are free.
#
# *Worked example.* 16 seats, target 8, 10 requests per second. The fleet runs half full, so it could serve 20 per
# second. At second 0, demand jumps to 40 per second, and the new replicas are ready at second 60. Until then 40 come and 20
# leave per second, so the queue grows by 20 per second. The request that arrives at second 30 finds 600 waiting, and 20
# leave per second: it is served at second 60, after **30 s**. An earlier one finds a shorter queue. A later one finds
# a longer queue, but from second 60 on 80 per second leave: at second 45 it finds 900, of which 300 leave by second
# 60 and the rest in 7.5 s, so it waits 22.5 s. The longest wait is that of the request served at second 60.
#
# ### Exercise 3 (16 points)
#
# `target_for(seats, before, after, lead, wait) -> int`: the highest whole target from 1 to `seats` with which no request
# waits longer than `wait` seconds when demand jumps from `before` to `after` requests per second, and new replicas are
# ready `lead` seconds later (more than 0).
#
# - Requests flow as in the example: before the burst a target t lets the fleet serve before · seats/t per second, and
#   from `lead` on after · seats/t.
# - If even a target of 1 is too high, the result is 0: then spare replicas have to run all the time.


# %% nbgrader={"grade": false, "grade_id": "target_for", "locked": false, "schema_version": 3, "solution": true, "task": false}
def target_for(seats: int, before: float, after: float, lead: float, wait: float) -> int:
    """The highest target with which no request of a burst waits too long."""
    ### BEGIN SOLUTION
    if wait >= lead:
        return seats
    needed = after * (lead - wait) / lead  # requests per second that the old replicas must serve
    return min(seats, int(before * seats / needed))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "target_for_test_burst", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("target_for", "bursts that the old replicas must bear", part="burst", hidden="other services and bursts"):
    WAITS = {  # the longest wait in seconds with a target of 1, 2, … up to the seats
        (16, 10, 40, 60): [0] * 4 + [12, 19.99, 25.7, 30, 33.32, 36, 38.17, 39.99, 41.53, 42.86, 44, 45],
        (16, 20, 40, 240): [0] * 8 + [26.65, 48, 65.43, 79.98, 92.28, 102.8, 112, 120],
        (16, 20, 40, 15): [0] * 8 + [1.666, 3, 4.089, 4.999, 5.767, 6.428, 6.999, 7.5],
        (32, 15, 20, 600): [0] * 24 + [24, 46.15, 66.66, 85.7, 103.4, 120, 135.5, 150],
        (64, 10, 24, 100): [0] * 26
        + [
            1.234,
            4.76,
            8.041,
            11.11,
            13.98,
            16.66,
            19.19,
            21.56,
            23.81,
            25.91,
            27.92,
            29.81,
            31.61,
            33.32,
            34.94,
            36.51,
            37.98,
            39.39,
            40.73,
            42.02,
            43.25,
            44.43,
            45.56,
            46.65,
            47.71,
            48.71,
            49.67,
            50.61,
            51.51,
            52.37,
            53.21,
            54.02,
            54.8,
            55.55,
            56.28,
            56.99,
            57.67,
            58.33,
        ],
    }

    def targets(expected, service, wait, waits=None):
        """`service` are the arguments before `wait`, and `waits` the longest waits with a target of 1, 2, …"""
        case, waits = f"target_for{(*service, wait)}", waits or WAITS[service]
        got = target_for(*service, wait)
        cause = ""
        if type(got) is int and 0 < got <= service[0] and got != expected:
            cause = f"with a target of {got} the longest wait is {waits[got - 1]:.4g} s, with {expected} it is "
            cause += f"{waits[expected - 1]:.4g} s"
        check.equal(got, expected, what=case, hint=cause)

    targets(8, (16, 10, 40, 60), 31)
    targets(7, (16, 10, 40, 60), 26)
    targets(4, (16, 10, 40, 60), 2)
    targets(5, (16, 10, 40, 60), 13)
    targets(8, (16, 20, 40, 240), 5)
    targets(10, (16, 20, 40, 15), 3.3)
    targets(25, (32, 15, 20, 600), 45)
    targets(26, (64, 10, 24, 100), 1)
    targets(31, (64, 10, 24, 100), 15)
    ### BEGIN HIDDEN TESTS

    def longest_wait(target, seats, before, after, lead):
        """Found by looking at every hundredth of the time until the new replicas come."""
        old, new = before * seats / target, after * seats / target
        waits = []
        for n in range(1001):
            at = lead * n / 1000
            queue, left = max(0.0, (after - old) * at), lead - at
            waits.append(queue / old if queue <= old * left else left + (queue - old * left) / new)
        return max(waits)

    for seed in range(60):
        rng = check.rng(seed)
        seats, before, lead = int(rng.integers(4, 130)), float(rng.uniform(1, 50)), float(rng.uniform(20, 900))
        after, wait = before * float(rng.uniform(1.1, 3.5)), lead * float(rng.uniform(0.01, 0.9))
        bound = before * seats * lead / (after * (lead - wait))
        if abs(bound - round(bound)) > 1e-3 and bound >= 1:
            service = seats, before, after, lead
            waits = [longest_wait(target, *service) for target in range(1, seats + 1)]
            targets(min(seats, math.floor(bound)), service, wait, waits)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "target_for_test_edges", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check(
    "target_for", "no burst, quick starts, and bursts that are too large", part="edges", hidden="other services"
):

    def edge(expected, why, *arguments):
        check.equal(target_for(*arguments), expected, what=f"target_for{arguments}", hint=why)

    edge(16, "nobody can wait longer than until the new replicas come", 16, 10, 400, 5, 5)
    edge(16, "nobody can wait longer than until the new replicas come", 16, 10, 40, 5, 30)
    edge(16, "demand falls: no seat has to be free", 16, 40, 10, 60, 2)
    edge(16, "demand stays: no seat has to be free", 16, 20, 20, 60, 0)
    edge(16, "all seats may be full: 40 · (1 − 40/60) is less than 20", 16, 20, 40, 60, 40)
    edge(0, "a target of 1 lets 160 per second through, and 180 come: the longest wait is 6.7 s", 16, 10, 180, 60, 2)
    edge(1, "a target of 1 lets 160 per second through, so 166 wait 2.2 s at most", 16, 10, 166, 60, 3)
    edge(4, "exactly 4 serves 40 per second: no queue, so no wait", 16, 10, 40, 60, 0)
    edge(6, "a start of 0.8 s: the longest wait is 0.27 s with a target of 6, and 0.34 s with 7", 16, 10, 40, 0.8, 0.3)
    edge(8, "with a target of 9 the request that arrives 2.4 s after the jump waits 1.6 s", 16, 10, 30, 4, 1.4)
    edge(0, "nobody came before the burst, so the old replicas can serve nobody", 16, 0, 40, 60, 2)
    ### BEGIN HIDDEN TESTS
    edge(64, "a quick start", 64, 3.5, 90.0, 29.5, 30.0)
    edge(0, "a burst too large", 8, 1.0, 50.0, 300.0, 10.0)
    edge(128, "falling demand", 128, 9.0, 8.5, 300.0, 0.0)
    edge(96, "no target above the seats", 96, 19.0, 20.0, 300.0, 60.0)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "target_for",
    "The request that waits longest arrives at second a and is served at second `lead`: the queue at a, (after − old) · a, is "
    "what the old replicas serve in the rest, old · (lead − a).",
    "That gives a = lead · old/after, so the longest wait is lead − a = lead · (1 − old/after).",
    "It is at most `wait` if old is at least after · (lead − wait)/lead. With old = before · seats/t, solve for t and round down.",
)
with reveal("late"):
    show.against_prediction(
        "late", round(100 * (1 - loading[480].in_time), 1), unit="%", source="one day in virtual time"
    )
    plot, axes = figure(width=8.5, height=2.8)
    leads = np.geomspace(3, 900, 200)
    for factor, color in ((1.3, palette.green), (2.0, palette.blue), (4.0, palette.vermillion)):
        shares = [100 * min(1.0, 1 / (factor * max(1e-9, 1 - 5 / lead))) for lead in leads]
        axes.plot(leads, shares, color=color)
        axes.text(1.1 * leads[-1], shares[-1], f"{factor:g} × demand", va="center", color=color)
    axes.set_xscale("log")
    axes.set(xlim=(3, 2500), ylim=(0, 105), xlabel="seconds until a new replica is ready", ylabel="target, % of seats")
    axes.set_xticks([5, 15, 60, 240, 900], ["5", "15", "60", "240", "900"])
    axes.set_title("The highest target with which nobody waits longer than 5 s")
    show.figure(plot, "Highest target against the cold start, for sudden bursts of 1.3, 2 and 4 times the demand")


def draw_chat_day(target_percent, window, cold_start):
    from threeloops.lab.drawings import draw_day

    service = replace(SERVICES[0], cold_start=cold_start)
    day = run_day(service, Settings("in_flight", service.seats * target_percent / 100, window), demand(service, 1))
    title = f"{day.in_time:.1%} of the requests are in time; the fleet costs {day.cost:.2f} (all seats always full = 1)"
    return draw_day(day.moments, service.hold / service.seats, title)


explore(
    draw_chat_day,
    labels={"target_percent": "target load (%)", "window": "window (s)", "cold_start": "cold start (s)"},
    target_percent=(30, 100, 5, 75),
    window=(0, 1800, 60, 300),
    cold_start=(0, 600, 15, 240),
)
debrief(
    "target_for",
    """If a start takes minutes and users wait seconds, wait/lead is nearly 0 and the formula becomes seats · before/after: the
    fleet must be able to serve the whole burst with what is there. The free seats are the price of the slow start. A faster
    start helps only once it comes near the time that users would wait, as the left end of the curves shows.

    Real bursts have ramps. What counts then is the growth of demand within one lead time, so a shorter start also makes
    the burst that has to be borne smaller. Move the cold start in the explorer: at 15 s a target of 75% serves this day, at 240 s
    it does not. The tall spikes are replicas that are ordered for the queue: most of them are ready only when it is nearly
    empty.""",
    parts=("burst", "edges"),
)

# %% [markdown]
# ## 4 · Is it alive, is it ready?
#
# A *kubelet* runs the containers of a machine and asks each of them:
#
# - the **liveness probe**: is it alive? If not, it is restarted;
# - the **readiness probe**: may it get requests? If not, it is left alone, without new ones;
# - the **startup probe**: has it started? Until it succeeds, the other two are not asked. If it fails too often, the
#   container is restarted.
#
# Each is a path, a period, a timeout, how many failures in a row count, and a delay before the first
# (`kubelet` above does all this). Our server opens its port when the weights are loaded. From then on `/health` answers
# 200. `/ready` answers 200 once it has also warmed up, for 10 s, and unless the queue is full. There are no other paths.
#
# *Worked example.* `liveness = Probe("/health", 10, 1, 3, delay=30)` asks at seconds 30, 40 and 50. A server that loads
# for 60 s has not answered by then and is restarted at second 50, before it is ever ready. So is every next try.
#
# ### Exercise 4 (16 points)
#
# `choose_probes(loads, busy) -> Probes`: `loads` are measured times until the port opened, at least 20 s, and `busy`, from
# 1 to 8 s, is the longest that an answer takes under load. All are whole seconds. Your probes have to ensure this:
#
# 1. A start that takes 1.5 times the longest of `loads` is not restarted. A replica gets requests only when it has
#    warmed up, and then within 10 s.
# 2. A start that never ends is restarted within 3 times the longest.
# 3. A busy replica is neither restarted nor left out, and one with a full queue is left out within 30 s, not restarted.
# 4. A pause of 15 s, in which nothing answers, restarts nothing. A process that hangs after its startup probe has
#    succeeded is restarted within 60 s.
#
# Delays, periods, timeouts and failures are whole numbers; all but delays are at least 1.


# %% nbgrader={"grade": false, "grade_id": "choose_probes", "locked": false, "schema_version": 3, "solution": true, "task": false}
def choose_probes(loads: list[int], busy: int) -> Probes:
    """Probes that match how long this model loads and how long an answer takes under load."""
    ### BEGIN SOLUTION
    return Probes(
        liveness=Probe("/health", period=10, timeout=busy + 1, failures=3),
        readiness=Probe("/ready", period=5, timeout=busy + 1, failures=3),
        startup=Probe("/health", period=2, timeout=busy + 1, failures=max(loads)),
    )
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "choose_probes_test_starts", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("choose_probes", "slow starts, and starts that never end", part="starts", hidden="other loading times"):

    def starts(loads, busy):
        case, most = f"loads {loads}, busy {busy}", max(loads)
        probes = sound(choose_probes(list(loads), busy), case)
        for load in sorted({min(loads), most, most + most // 2}):

            def loading(path, age, now, load=load):
                return 1 if age >= load + (10 if path == "/ready" else 0) else math.inf

            events = kubelet(probes, loading, 4 * most + 60)
            died = restarts(events)
            check.true(
                not died,
                f"a start that loads for {load} s is restarted after {died[0] if died else 0} s, {len(died)} times in "
                f"{4 * most + 60} s ({case}; {probes})",
            )
            ready = [second for second, what in events if what == "ready"]
            check.true(
                bool(ready),
                f"a replica that loads for {load} s and warms up for 10 s never gets requests ({case}; {probes})",
            )
            check.true(
                load + 10 <= ready[0] <= load + 20,
                f"a replica loads for {load} s and is warm at second {load + 10}: it gets requests from second {ready[0]} on, "
                f"expected between {load + 10} and {load + 20} ({case}; {probes})",
            )
        died = restarts(kubelet(probes, lambda path, age, now: math.inf, 3 * most + 2))
        check.true(
            bool(died) and died[0] <= 3 * most,
            f"a start that never ends is not restarted within {3 * most} s ({case}; {probes})",
        )

    starts([62, 70, 81, 95, 140], 2)
    starts([20, 22, 31], 5)
    starts([240, 600, 310], 1)
    ### BEGIN HIDDEN TESTS
    for seed in range(8):
        rng = check.rng(seed)
        starts([int(v) for v in rng.integers(20, int(rng.integers(25, 900)), 12)], int(rng.integers(1, 9)))
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "choose_probes_test_serves", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("choose_probes", "busy, full, paused and hung replicas", part="serves", hidden="other loading times"):

    def life(probes, load, trouble):
        """Events after a start; `trouble(path, second)` counts from 40 s after it is warm. None: an ordinary answer."""
        begin = load + 50

        def answers(path, age, now):
            if age < load + (10 if path == "/ready" else 0):
                return math.inf
            found = trouble(path, now - begin) if now >= begin else None
            return 1 if found is None else found

        return [(second - begin, what) for second, what in kubelet(probes, answers, begin + 700)]

    def started_at(probes, load):
        """The second at which the startup probe succeeds."""
        if probes.startup is None:
            return load
        ready = load + (10 if probes.startup.path == "/ready" else 0)
        return next(age for age in range(probes.startup.delay, 10**6, probes.startup.period) if age >= ready)

    def serves(loads, busy):
        case = f"loads {loads}, busy {busy}"
        probes = sound(choose_probes(list(loads), busy), case)
        for load in {min(loads), max(loads)}:
            where = f"({case}; {probes})"
            events = life(probes, load, lambda path, second: None)
            first = [what for second, what in events if second <= 0]
            check.true(
                first == ["ready"] and len(events) == 1,
                f"a replica that loads for {load} s, with nothing wrong, is restarted {len(restarts(events))} times, and "
                f"40 s after it is warm it {'gets' if first[-1:] == ['ready'] else 'gets no'} requests {where}",
            )
            events = [each for each in life(probes, load, lambda path, second: busy) if each[0] >= 0]
            check.true(
                not events, f"a busy replica, whose answers take {busy} s: {events[:2]}, expected no event {where}"
            )
            full = lambda path, second: math.inf if path == "/ready" and second < 400 else None  # noqa: E731
            events = [each for each in life(probes, load, full) if each[0] >= 0]
            check.true(not restarts(events), f"a replica with a full queue is restarted: {events[:2]} {where}")
            out = [second for second, what in events if what == "unready"]
            check.true(
                bool(out) and out[0] <= 30,
                f"a replica with a full queue still gets requests after 30 s: {events[:2]} {where}",
            )
            for begin in range(11):
                pause = lambda path, second, begin=begin: math.inf if begin <= second < begin + 15 else None  # noqa: E731
                events = life(probes, load, pause)
                check.true(
                    not restarts(events),
                    f"a pause of 15 s restarts the replica (seconds after it began: {restarts(events)[:3]}) {where}",
                )
            for begin in (load + 50, load + 20, 2 + started_at(probes, load)):

                def hangs(path, age, now, begin=begin, load=load):
                    alive = age >= load + (10 if path == "/ready" else 0)
                    return 1 if alive and now < begin else math.inf

                died = [second for second in restarts(kubelet(probes, hangs, begin + 100)) if second >= begin]
                check.true(
                    bool(died) and died[0] <= begin + 60,
                    f"a process that loads for {load} s and hangs at second {begin} is restarted {died[0] - begin if died else 'more than 100'} s "
                    f"later, expected 60 {where}",
                )

    serves([62, 70, 81, 95, 140], 2)
    serves([20, 22, 31], 8)
    serves([240, 600, 310], 1)
    ### BEGIN HIDDEN TESTS
    for seed in range(8):
        rng = check.rng(seed + 20)
        serves([int(v) for v in rng.integers(20, int(rng.integers(25, 900)), 12)], int(rng.integers(1, 9)))
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "choose_probes",
    "Which path may a restart depend on? A full queue must never cause one.",
    "The startup probe gives up after about period · failures seconds: choose them between 1.5 and 3 times the longest load, with a short period, "
    "so that the readiness probe can begin soon.",
    "Liveness: `period · failures` below 60 s, and `period · (failures − 1)` of at least 15 s, or a pause restarts it.",
)


def sample_server(load):
    return lambda path, age, now: 0.1 if age >= load else math.inf


myth("svc-4")
one_health = Probes(Probe("/health", 10, 1, 3, delay=30), Probe("/health", 10, 1, 3, delay=30))
hour = {load: kubelet(one_health, sample_server(load), 3600) for load in (20, 45, 60, 180)}
with_startup = replace(one_health, startup=Probe("/health", 5, 1, 60))
fixed = kubelet(with_startup, sample_server(180), 3600)
with reveal("svc-4"):
    show.table(
        [
            (
                f"{load} s",
                str(sum(what == "restart" for _, what in events)),
                next((f"{second} s" for second, what in events if what == "ready"), "never"),
            )
            for load, events in hour.items()
        ]
        + [("180 s, with a startup probe", str(sum(what == "restart" for _, what in fixed)), f"{fixed[0][0]} s")],
        header=("the model loads for", "restarts in an hour", "ready after"),
        caption="/health for both probes, from second 30 on; otherwise Kubernetes' defaults: every 10 s, 1 s timeout, 3 failures",
    )
audit(
    "svc-4",
    sum(what == "restart" for _, what in hour[180]),
    "restarts in the first hour of a model that loads for 180 s, and it is never ready",
    "model",
    "corrected",
    how="The kubelet of this section in virtual time, without the growing pauses that Kubernetes makes between restarts. A startup probe with 60 failures of 5 s each allows 300 s for loading, and afterwards liveness is as quick as before. One path for both has a second fault: a replica with a full queue should get no requests, but be left running",
)
debrief(
    "choose_probes",
    """Each probe has its own mistake to avoid. Liveness must depend on nothing but the process: a restart does not empty a
    queue, it drops what is in flight and leaves the other replicas with more work, whose queues then fill up as well.
    Readiness may depend on load, because it can be taken back within seconds.

    A long initial delay looks like a replacement for the startup probe. But it also applies to fast starts: after a start of
    60 s, a hang would go unnoticed until the delay is over. The startup probe ends as soon as the replica has started.

    Measure the loading times where the service runs. The 16 GB of an 8B model take 8 s from a disk that reads 2 GB/s, and
    160 s over a network that gives each of many starting replicas 0.1 GB/s.""",
    parts=("starts", "serves"),
)

# %% [markdown]
# ## 5 · A replica dies
#
# When a replica dies, its requests fail, and clients try again. Two questions decide whether that helps or harms. Can
# the request be repeated at all? And do all clients together add more load than the fleet can bear?
#
# A **retry budget** answers the second: each new request adds 0.1 token, up to 10, and each retry takes one. So
# retries are at most a tenth of the load, apart from a small reserve. **Backoff** waits longer after each attempt, and **jitter** makes the wait random,
# so that clients that failed together do not return together.
#
# *Worked example.* A connection is refused at the first attempt. The budget is 7.4, and the random draw is 0.6. Nothing
# was sent, so the request may be repeated, after 0.6 · 0.5 s = 0.3 s. Had the server answered 503 with "Retry-After: 2"
# at the second attempt, the wait would be 2 + 0.6 · 1 s = 2.6 s. Had the connection broken after 12 tokens were streamed
# to the user, nothing could be repeated: another answer would begin in the middle of the first.
#
# ### Exercise 5 (18 points)
#
# `retry_delay(failure, attempt, budget, draw) -> float | None`: seconds until the next attempt, or `None` to give up.
# `failure` has `kind`, `status`, `streamed`, `repeatable` and `retry_after`; `attempt` counts from 1; `draw` is
# random, in [0, 1).
#
# - Give up if the client has got tokens, after the fourth attempt, or if the budget is below 1.
# - `"refused"`: nothing was sent, so retry.
# - `"status"`: 429 and 503 mean that no work was begun, so retry. Give up on all others.
# - `"lost"`: the replica may have done the work. Retry only what is `repeatable`.
# - The delay is `retry_after`, which is 0 if no answer came, plus draw · 0.5 · 2^(attempt − 1) seconds.

# %% tags=["demo"]
predict(
    "storm",
    "A fleet serves 12 requests per second, and 10 come. For 10 s most replicas are away, then all return. Clients give up "
    "after 3 s and try up to four times. What share of the new requests is answered in time a minute and a half later?",
    unit="%",
)


# %% nbgrader={"grade": false, "grade_id": "retry_delay", "locked": false, "schema_version": 3, "solution": true, "task": false}
def retry_delay(failure: Failure, attempt: int, budget: float, draw: float) -> float | None:
    """Seconds until the next attempt, or None."""
    ### BEGIN SOLUTION
    if failure.streamed > 0 or attempt >= 4 or budget < 1:
        return None
    if failure.kind == "status" and failure.status not in (429, 503):
        return None
    if failure.kind == "lost" and not failure.repeatable:
        return None
    return failure.retry_after + draw * 0.5 * 2 ** (attempt - 1)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "retry_delay_test_rules", "locked": true, "points": 11, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("retry_delay", "what may be repeated, and when", part="rules", hidden="other failures"):

    def delays(expected, why, failure, attempt, budget, draw):
        got = retry_delay(failure, attempt, budget, draw)
        case = f"delay for {failure}, attempt {attempt}, budget {budget}, draw {draw}"
        if expected is None or got is None:
            check.true(
                (got is None) is (expected is None),
                f"{case}: {got!r}, expected {'None' if expected is None else expected}" + f" ({why})" * bool(why),
            )
        else:
            check.close(got, expected, rtol=1e-9, unit="s", what=case, hint=why)

    delays(0.3, "draw · 0.5 at the first attempt", Failure("refused"), 1, 7.4, 0.6)
    delays(2.6, "retry_after plus draw · 1", Failure("status", 503, retry_after=2.0), 2, 7.4, 0.6)
    delays(None, "tokens were streamed", Failure("lost", streamed=12), 1, 7.4, 0.6)
    delays(None, "even one token is too many", Failure("refused", streamed=1), 1, 7.4, 0.6)
    delays(0.25, "429: no work was begun", Failure("status", 429), 1, 7.4, 0.5)
    delays(
        0.25,
        "503: no work was begun, so it does not matter whether it is repeatable",
        Failure("status", 503, repeatable=False),
        1,
        7.4,
        0.5,
    )
    for status in (400, 401, 404, 500, 502, 504):
        delays(None, f"{status} is neither 429 nor 503", Failure("status", status), 1, 7.4, 0.5)
    delays(None, "500, whatever the server wishes", Failure("status", 500, retry_after=2.0), 1, 7.4, 0.5)
    delays(
        0.5,
        "nothing was sent, so it does not matter whether it is repeatable",
        Failure("refused", repeatable=False),
        2,
        7.4,
        0.5,
    )
    delays(0.5, "repeatable", Failure("lost"), 2, 7.4, 0.5)
    delays(None, "the replica may have done the work", Failure("lost", repeatable=False), 1, 7.4, 0.5)
    delays(1.0, "draw · 2 at the third attempt", Failure("refused"), 3, 7.4, 0.5)
    delays(None, "the fourth attempt was the last", Failure("refused"), 4, 7.4, 0.5)
    delays(None, "the fourth attempt was the last", Failure("refused"), 5, 7.4, 0.5)
    delays(None, "the budget is below 1", Failure("refused"), 1, 0.9, 0.5)
    delays(0.25, "the budget is exactly 1", Failure("refused"), 1, 1.0, 0.5)
    delays(0.0, "a draw of 0", Failure("refused"), 1, 7.4, 0.0)
    delays(30.25, "the server's wish counts in full", Failure("status", 429, retry_after=30.0), 1, 7.4, 0.5)
    ### BEGIN HIDDEN TESTS
    for seed in range(150):
        rng = check.rng(seed)
        kind = ("refused", "status", "lost")[int(rng.integers(3))]
        status = int(rng.choice([429, 503, 400, 408, 500, 502])) if kind == "status" else 0
        wish = float(rng.choice([0.0, 0.0, 1.5, 9.0])) if kind == "status" else 0.0  # without an answer no wish
        failure = Failure(kind, status, int(rng.choice([0, 0, 0, 7])), bool(rng.random() < 0.7), wish)
        attempt, budget, draw = int(rng.integers(1, 6)), float(rng.choice([0.0, 0.5, 1.0, 8.5])), float(rng.random())
        allowed = {"refused": True, "status": status in (429, 503), "lost": failure.repeatable}[kind]
        allowed &= failure.streamed == 0 and attempt in (1, 2, 3) and budget >= 1
        delays(
            wish + draw * (0.5, 1.0, 2.0, 0, 0)[attempt - 1] if allowed else None, "", failure, attempt, budget, draw
        )
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "retry_delay_test_storm", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("retry_delay", "no storm follows an outage", part="storm", hidden="clients with another patience"):

    def survives(patience):
        attempts, answered = storm(retry_delay, patience=patience)
        share, load = sum(answered[80:115]) / 350, sum(attempts[20:80]) / 600
        check.true(
            share >= 0.98,
            f"50 s after the outage {share:.0%} of the new requests are answered within {patience} s, expected all: for a minute "
            f"after it began, {load:.2f} attempts came for each new request, and the replicas can bear 1.2",
        )
        check.true(
            sum(attempts) > 10 * len(attempts) + 5,
            f"only {sum(attempts) - 10 * len(attempts)} of the failed requests were tried again: the budget allows more",
        )
        if patience == 3:
            check.note("attempts per new request in the minute after the outage began", round(load, 2), 1.11, "")

    survives(3)
    ### BEGIN HIDDEN TESTS
    survives(4)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "retry_delay",
    "Write the reasons to give up first, one `if … return None` for each.",
    "The kinds differ in one question: may the replica have begun the work?",
    "`failure.retry_after + draw * 0.5 * 2 ** (attempt - 1)`",
)


def without_budget(failure, attempt, budget, draw):
    return draw * 0.5 * 2 ** (attempt - 1) if attempt < 4 else None


def with_budget(failure, attempt, budget, draw):
    return without_budget(failure, attempt, budget, draw) if budget >= 1 else None


outages = {
    "no retries": storm(lambda *_: None),
    "4 attempts": storm(without_budget),
    "4 attempts, with a budget": storm(with_budget),
}
with reveal("storm"):
    late_share = sum(outages["4 attempts"][1][105:115]) / 100
    show.against_prediction("storm", round(100 * late_share), unit="%", source="the storm of the first cell")
    plot, axes = figure(1, 2, width=10.5, height=2.9)
    for (name, (attempts, answered)), color in zip(
        outages.items(), (palette.green, palette.vermillion, palette.blue), strict=True
    ):
        axes[0].plot(np.convolve(attempts, np.ones(5) / 5, "same")[2:113], color=color, label=name)
        axes[1].plot(answered[:115], color=color)
    axes[0].axhline(12, color=palette.grey, ls=":")
    axes[0].text(1, 12.5, "capacity", size=9)
    axes[0].set(xlabel="seconds", title="attempts per second")
    axes[1].set(xlabel="seconds", title="new requests answered in time")
    axes[0].legend(loc="center right")
    for one in axes:
        one.axvspan(20, 30, color=palette.grey, alpha=0.25, lw=0)
    show.figure(plot, "An outage of ten seconds: without a budget the storm of retries never ends")
debrief(
    "retry_delay",
    """The storm feeds itself. A request whose client has given up is served all the same, and the time spent on it makes the next
    one late as well. Backoff and jitter spread the retries but do not make them fewer, so with four attempts the load stays
    above the capacity for ever. Such a failure is called metastable: its cause is gone, but the failure stays. In the long
    run the budget bounds the load at 1.1 times the new requests, whatever goes wrong. The right picture shows what even
    that costs: of a capacity of 12, retries take 1 of the 2 that are left to empty the queue, so it empties half as fast as
    without any retries.

    Servers can help: drop a request from the queue when its deadline has passed (lab 17), and answer 503 early instead of
    letting the queue grow. Retry in one layer only. If the client, the gateway and a proxy each try three times, one request
    becomes 27.

    A proxy such as NGINX passes a request to another replica by itself, for connections that were refused. For requests that
    may change something, it does so after sending only if it is told to (`proxy_next_upstream … non_idempotent`).""",
    parts=("rules", "storm"),
)

# %% [markdown]
# ## 6 · What a million tokens cost
#
# Replicas are paid for once they are ordered, whether they load, wait or answer. Users get only the tokens of answers
# that reach them. The quotient is what the service costs.
#
# *Worked example.* Two replicas run from second 0, three from 600, and one from 3,000 to the end at 3,600. That is 2 ·
# 600 + 3 · 2,400 + 1 · 600 = 9,000 replica-seconds. At $2.50 per replica-hour they cost $6.25. Request `a` was answered
# with 400 tokens. `b` broke off after 300 and was repeated: its second attempt gave the complete 500. `c` broke off
# after 200 and was never repeated. 900 tokens were served, so a million cost $6,944.
#
# ### Exercise 6 (10 points)
#
# `cost_per_million(replicas, end, attempts, price) -> float`: dollars for a million tokens that were served.
# `replicas` has (second, number): so many run from then on, until the next entry or `end`. `attempts` has (request,
# tokens, complete); `price` is dollars per replica-hour.
#
# - Only complete attempts count, and each request once: a proxy may have sent it to two replicas that both completed it,
#   with the same number of tokens.
# - Nothing served: `math.inf`.


# %% nbgrader={"grade": false, "grade_id": "cost_per_million", "locked": false, "schema_version": 3, "solution": true, "task": false}
def cost_per_million(
    replicas: list[tuple[float, int]], end: float, attempts: list[tuple[str, int, bool]], price: float
) -> float:
    """Dollars for a million tokens that were served."""
    ### BEGIN SOLUTION
    ends = [second for second, _ in replicas[1:]] + [end]
    seconds = sum(number * (until - second) for (second, number), until in zip(replicas, ends, strict=True))
    served = {request: tokens for request, tokens, complete in attempts if complete}
    tokens = sum(served.values())
    return seconds / 3600 * price / tokens * 1e6 if tokens else math.inf
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "cost_per_million_test_replicas", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("cost_per_million", "what the replicas cost", part="replicas", hidden="other days"):
    MEAN = "this takes the mean of the numbers, however long each of them ran"
    MOST = "this pays for the most replicas all the time"
    LAST = "the last ones run until `end`"
    FROM_0 = "this counts from second 0: the first entry begins later"
    HOURLY = "the price is per hour"
    ONE = "this is the price of one token"
    THOUSAND = "this is the price of a thousand tokens"

    def pays(expected, slips, replicas, end, price, tokens, case):
        """`slips` maps causes to wrong costs."""
        got = cost_per_million(list(replicas), end, [("a", tokens, True)], price)
        check.close(got, expected, rtol=1e-9, unit="$", what=f"cost, {case}", hint=cause_of(got, slips))

    worked = [(0, 2), (600, 3), (3000, 1)]
    pays(
        0.3,
        {MEAN: 0.375, MOST: 0.6, LAST: 0.2, FROM_0: 0.366666666667, HOURLY: 1080, ONE: 3e-07, THOUSAND: 0.0003},
        [(100, 4), (400, 1)],
        1000,
        3.0,
        5_000_000,
        "replicas [(100, 4), (400, 1)] until second 1,000, price 3",
    )
    pays(
        6944.44444444,
        {
            MOST: 8333.33333333,
            LAST: 6481.48148148,
            HOURLY: 25000000,
            ONE: 0.00694444444444,
            THOUSAND: 6.94444444444,
        },
        worked,
        3600,
        2.5,
        900,
        "the worked example, 900 tokens served",
    )
    pays(
        14285714.2857,
        {
            MEAN: 28571428.5714,
            MOST: 71428571.4286,
            LAST: 7142857.14286,
            HOURLY: 51428571428.6,
            ONE: 14.2857142857,
            THOUSAND: 14285.7142857,
        },
        [(0, 1), (50, 0), (90, 5)],
        100,
        3600.0,
        7,
        "replicas [(0, 1), (50, 0), (90, 5)] until second 100, price 3,600",
    )
    pays(
        750,
        {LAST: 0, HOURLY: 2700000, ONE: 0.00075, THOUSAND: 0.75},
        [(0, 3)],
        7200,
        1.25,
        10_000,
        "three replicas for two hours, price 1.25",
    )
    ### BEGIN HIDDEN TESTS

    def cost_of(replicas, end, price, tokens):
        numbers, times = [n for _, n in replicas], [t for t, _ in replicas]
        seconds = sum(n * (b - a) for n, a, b in zip(numbers, times, [*times[1:], end], strict=True))
        return seconds * price / 3600 / tokens * 1e6

    for seed in range(10):
        rng = check.rng(seed)
        times = np.cumsum(rng.uniform(1, 900, 9)).tolist()
        replicas = [(second, int(rng.integers(0, 20))) for second in times[:-1]]
        day = [*replicas[:-1], (times[-2], 3)], times[-1], float(rng.uniform(1, 9)), int(rng.integers(100, 10**7))
        pays(cost_of(*day), {}, *day, "a day")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "cost_per_million_test_tokens", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("cost_per_million", "which tokens are served", part="tokens", hidden="other attempts"):
    BROKEN = "attempts that broke off count, too"
    ALL_BROKEN = "the attempts of a request that all broke off count, too"
    TWICE = "a request counts once, even if it was completed twice"
    REPLACED = "a longer attempt that broke off replaces the complete one"
    ATTEMPTS = "this counts the complete attempts, not their tokens"
    EQUAL = "two requests may have the same number of tokens"

    def serves_tokens(expected, slips, attempts, case):
        """`slips` maps causes to wrong costs."""
        got = cost_per_million([(0, 1)], 3600, list(attempts), 10.0)
        check.close(got, expected, rtol=1e-9, unit="$", what=f"cost, {case}", hint=cause_of(got, slips))

    worked = [("a", 400, True), ("b", 300, False), ("b", 500, True), ("c", 200, False)]
    serves_tokens(
        11111.1111111,
        {BROKEN: 7142.85714286, ALL_BROKEN: 9090.90909091, ATTEMPTS: 5000000},
        worked,
        "the attempts of the worked example",
    )
    serves_tokens(
        12500,
        {TWICE: 8333.33333333, ATTEMPTS: 3333333.33333, EQUAL: 25000},
        [("a", 400, True), ("a", 400, True), ("b", 400, True)],
        "a was completed twice, b once, with 400 tokens each",
    )
    serves_tokens(
        20000,
        {BROKEN: 12500, ALL_BROKEN: 33333.3333333, ATTEMPTS: 10000000},
        [("b", 500, True), ("b", 300, False)],
        "b was completed, and its other attempt broke off after 300 tokens",
    )
    serves_tokens(
        20000,
        {BROKEN: 8333.33333333, REPLACED: 14285.7142857, ATTEMPTS: 10000000},
        [("b", 700, False), ("b", 500, True)],
        "b broke off after 700 tokens, and its second attempt completed with 500",
    )
    serves_tokens(math.inf, {BROKEN: 33333.3333333}, [("b", 300, False)], "an attempt that broke off")
    serves_tokens(math.inf, {}, [], "no attempts")
    check.close(
        cost_per_million([(0, 0)], 3600, [], 10.0),
        math.inf,
        rtol=1e-9,
        unit="$",
        what="cost_per_million([(0, 0)], 3600, [], 10.0)",
        hint="nothing was served, even if nothing was paid",
    )
    left = arguments_after(cost_per_million, [(0, 1)], 3600, list(worked), 10.0)[2]
    check.true(left == worked, f"cost_per_million([(0, 1)], 3600, {worked}, 10.0) has changed `attempts` to {left}")
    ### BEGIN HIDDEN TESTS
    for seed in range(10):
        rng = check.rng(seed + 5)
        length = {f"r{n}": int(rng.integers(1, 900)) for n in range(20)}
        attempts = []
        for _ in range(60):
            name, done = f"r{rng.integers(20)}", bool(rng.random() < 0.4)
            attempts.append((name, length[name] if done else int(rng.integers(1, 2 * length[name] + 1)), done))
        tokens = sum(length[name] for name in {name for name, _, done in attempts if done})
        serves_tokens(1e7 / tokens, {}, attempts, f"{len(attempts)} attempts, seed {seed}")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "cost_per_million",
    "Each entry of `replicas` runs until the next one begins, the last until `end`.",
    "A dictionary from requests to tokens counts each request once.",
    "dollars = replica-seconds / 3600 · price; then divide by the tokens, times 1e6.",
)
PRICE, RATE = 2.5, 40.0  # dollars per replica-hour, tokens per second of one request: assumed, for the comparison
full = 1e6 * PRICE / 3600 / (16 * RATE)
predict(
    "night",
    f"A chat replica with 16 seats that are always full, at {RATE:.0f} tokens/s each and ${PRICE:.2f} per hour, serves a million "
    f"tokens for ${full:.2f}. What does a million cost in a fleet with as many replicas as the day's peak needs, day and night?",
    unit="$",
)
with reveal("night"):
    rates = demand(SERVICES[0], 1)
    most = math.ceil(max(rates) * SERVICES[0].hold / 16)
    fleets = {
        f"{most} replicas, day and night": run_day(SERVICES[0], Settings("in_flight", 16, low=most, high=most), rates),
        "autoscaler, target 12": run_day(SERVICES[0], Settings("in_flight", 12), rates),
        "autoscaler, target 8": run_day(SERVICES[0], Settings("in_flight", 8), rates),
        "autoscaler, target 4": run_day(SERVICES[0], Settings("in_flight", 4), rates),
    }
    fixed_day = fleets[f"{most} replicas, day and night"]
    show.against_prediction("night", round(full * fixed_day.cost, 2), unit="$", source="one day in virtual time")
    show.table(
        [
            (
                name,
                f"{1 / day.cost:.0%}",
                f"${full * day.cost:.2f}",
                f"{day.in_time:.1%}",
                f"${full * day.cost / day.in_time:.2f}",
            )
            for name, day in fleets.items()
        ],
        header=("fleet", "seats in use", "per million tokens", "in time", "per million in time"),
        caption=f"Chat on one day; ${PRICE:.2f} per replica-hour and {RATE:.0f} tokens/s per request are assumptions",
    )
debrief(
    "cost_per_million",
    """Dividing by tokens that were offered, or computed, flatters a fleet that fails: the more answers break off and are
    repeated, the cheaper it looks. The last column goes one step further and counts only requests that were in time.

    What a token costs at full load follows from the price and the throughput of the engine (labs 15 and 16). What it costs in
    reality is that number divided by the share of the seats in use, and over a whole day this share is often below a half.""",
    parts=("replicas", "tokens"),
)

from threeloops.hardware import accelerator
from threeloops.hardware.measured import MEASURED_BY
from threeloops.lab.drawings.measured.series import Series, draw_floors
from threeloops.lab.drawings.measured.serving import all_reduce_seconds, modelled_per_token, per_token
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching import RooflineCost

LLAMA = GPTConfig(128256, 32, 32, 8, 4096, 14336, 8192, tied_embeddings=False)
FASTER = ("one large replica, at least twice", "one large replica, by less", "eight small replicas")
steps = RooflineCost(LLAMA, accelerator("H100 SXM"))
PROMPT, ANSWER = 2048, 512
floors = {}
floors["8 replicas of 1 GPU"] = {8 * n: modelled_per_token(steps, n, PROMPT, ANSWER) for n in (8, 16, 32, 64, 128)}
floors["1 replica of 8 GPUs"] = {n: modelled_per_token(steps, n, PROMPT, ANSWER, gpus=8) for n in (8, 16, 32, 64, 128)}
predict(
    "cut",
    "A real deployment: Llama-3.1-8B in 16 bits on eight H100s, prompts of 2,048 tokens, answers of 512. 128 requests run at all "
    "times, 16 on each of eight small replicas, or all on one large replica that cuts each layer over its 8 GPUs (lab 11). By the "
    "bytes and FLOPs of their steps (lab 16), small replicas need "
    f"{1e3 * floors['8 replicas of 1 GPU'][128]:.1f} ms per output token, and the large one {1e3 * floors['1 replica of 8 GPUs'][128]:.1f}. "
    "Which was faster when it was measured?",
    options=FASTER,
)
if pieces := together("cost_per_million"):
    one, eight = (per_token("H100 SXM", PROMPT, ANSWER, gpus=gpus) for gpus in (1, 8))
    small = Series(tuple(8 * n for n in one.sizes), one.seconds, one.source)
    times = {"8 replicas of 1 GPU": small, "1 replica of 8 GPUs": eight}
    gain = small.at(128) / eight.at(128)
    show.against_prediction("cut", FASTER[(gain < 2) + (gain < 1)], source=eight.source)

    def exchanges(tokens):
        """Seconds of the two all-reduces of each layer, between 8 GPUs."""
        return 2 * LLAMA.layers * all_reduce_seconds("H100 SXM", 8, 2 * LLAMA.width * tokens)

    with reveal("cut"):
        tool = eight.source.split(", ")[1]
        show.figure(
            draw_floors(
                times,
                floors,
                f"Llama-3.1-8B on 8 × H100, {tool}\ndots: measured by NVIDIA; lines: bytes and FLOPs",
                "requests that run at all times",
                (8, 16, 32, 64, 128, 256, 512, 1024),
                named_at_start=("1 replica of 8 GPUs",),
            ),
            "times per output token by requests: one large replica is faster up to 64 requests, eight small ones from 128 on",
        )
        rows = []
        for requests in (64, 128):
            for name, gpus in (("8 replicas of 1 GPU", 1), ("1 replica of 8 GPUs", 8)):
                each = requests * gpus // 8  # requests of a replica
                added = exchanges if gpus == 8 else lambda tokens: 0.0
                seconds = (
                    floors[name][requests],
                    modelled_per_token(steps, each, PROMPT, ANSWER, gpus, added),
                    times[name].at(requests),
                )
                tokens = round(3600 * requests / seconds[-1])
                dollars = pieces.cost_per_million([(0, 8)], 3600, [("all requests", tokens, True)], PRICE)
                rows.append((requests, name, *(f"{1e3 * second:.1f}" for second in seconds), f"${dollars:.2f}"))
        rest = 1e3 * (seconds[-1] - seconds[-2])
        show.table(
            rows,
            header=(
                "requests",
                "eight H100s as",
                "bytes and FLOPs (ms)",
                "and all-reduces (ms)",
                "measured (ms)",
                "per million",
            ),
            caption=f"Dollars: your cost_per_million of the measured time, at ${PRICE:.2f} per GPU-hour. All-reduces: TensorRT-LLM 1.3.0rc20, 8 × H100 SXM. Both {MEASURED_BY}",
        )
        print(
            f"A large replica reads an eighth of the weights per GPU, so by bytes alone it always wins. But each layer adds "
            f"two all-reduces, {2 * LLAMA.layers} in a step: {1e3 * exchanges(128):.1f} ms for 128 tokens, and {1e3 * exchanges(128 + PROMPT - 1):.1f} ms if a prompt joins "
            f"them. The model still lacks {rest:.1f} ms for 128 requests. It leaves out that smaller products stay farther below "
            "the sheet's rates, and the engine's work between steps, which more GPUs do not shorten; the table does not say "
            "how much each takes. So the large replica is faster and cheaper per token with 64 requests, and the small ones with "
            "128. If one of those fails, it takes an eighth of the fleet, not all of it."
        )

# %% [markdown]
# ## 7 · You run the fleet
#
# Three services (`SERVICES`) get an autoscaler each:
#
# | | bursts | cold start | a request holds a seat | seats | in time | cost at most |
# |---|---|---|---|---|---|---|
# | chat | ten a day, × 1.8 within 5 minutes, for 20 minutes | 4 minutes | 6 s | 16 | 5 s | 1.9 |
# | agents | every 10 minutes, × 3 within a minute, for 5 minutes | 90 s | 4 s | 16 | 5 s | 2.4 |
# | documents | four a day, × 1.3 within 15 minutes, for 90 minutes | 10 minutes | 20 s | 32 | 30 s | 1.45 |
#
# At least 99% of the day's requests must wait no longer than "in time" says. The cost is the replica-hours of the day,
# divided by what replicas with full seats would have needed.
#
# *Worked example.* `run_day(SERVICES[0], Settings("in_flight", 12, 300), demand(SERVICES[0], 1))` is a day of the chat
# service with a target of 12 requests in flight and a window of 300 s. 96% are in time, at a cost of 1.7.
#
# ### Exercise 7 (16 points)
#
# `choose_settings(service) -> Settings(metric, target, window, low, high)`: the metric (`"cpu"` in per cent, or
# `"in_flight"`), its target per replica, the window for scaling down in seconds, and the fewest and most replicas. Try
# days with `run_day`; grading uses other days of the same services. Each service has points of its own. You may derive
# the settings, look them up by `service.name`, or search.


# %% nbgrader={"grade": false, "grade_id": "choose_settings", "locked": false, "schema_version": 3, "solution": true, "task": false}
def choose_settings(service: Service) -> Settings:
    """Settings with which the service is in time, at a cost that is allowed."""
    ### BEGIN SOLUTION
    growth = 1 + (service.factor - 1) * min(1.0, (service.cold_start + 2 * TICK) / service.ramp)
    pause = 86400 / service.bursts - service.length
    if pause < 3600:  # cheaper to keep the replicas through the pause
        return Settings("in_flight", 0.9 * service.seats, 2 * pause)
    return Settings("in_flight", service.seats / growth, 300)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "choose_settings_test_chat", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("choose_settings", "chat: in time and affordable", part="chat", hidden="other days"):
    require_day(choose_settings, "chat", 1, model=1.84)
    ### BEGIN HIDDEN TESTS
    for seed in (2, 3, 4):
        require_day(choose_settings, "chat", seed)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "choose_settings_test_agents", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("choose_settings", "agents: in time and affordable", part="agents", hidden="other days"):
    require_day(choose_settings, "agents", 1, model=1.96)
    ### BEGIN HIDDEN TESTS
    for seed in (2, 3, 4):
        require_day(choose_settings, "agents", seed)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "choose_settings_test_documents", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("choose_settings", "documents: in time and affordable", part="documents", hidden="other days"):
    require_day(choose_settings, "documents", 1, model=1.28)
    ### BEGIN HIDDEN TESTS
    for seed in (2, 3, 4):
        require_day(choose_settings, "documents", seed)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "choose_settings",
    "Watch where requests are late: `max(day.moments, key=lambda moment: moment.wait)` has the worst moment of a day.",
    "The target is seats ÷ growth of demand within one cold start (section 3). With ramps of 5 minutes and a start of 4, "
    "nearly the whole burst counts for chat; for documents, two thirds of it.",
    "The waves of the agents are 2 to 8 minutes apart. Compare windows below and above that with `run_day`: in time, cost, "
    "and `started`.",
)
myth("svc-2")
cpu_day = run_day(SERVICES[0], Settings("cpu", 70, low=2), demand(SERVICES[0], 1))
audit(
    "svc-2",
    round(100 * cpu_day.in_time, 1),
    "% of a day's requests in time when the chat service scales on CPU at 70%; with the settings of this exercise it is 99% and more",
    "model",
    "corrected",
    how=f"The autoscaler never sees 70%: a replica of this model uses {cpu_per_cent(0):.1f}% of its CPU when idle and {cpu_per_cent(16 / 6):.1f}% with all seats full and a growing queue, so it stays at the fewest replicas, 2. That one core of 8 keeps the GPU busy and that a request takes 10 ms of CPU are assumptions of the model, not measured on a GPU. GPU utilisation as drivers report it does not help either: it is the share of time in which any kernel runs, and is near 100% with one request",
)
debrief(
    "choose_settings",
    """Chat needs free seats for its bursts, since the cold start is about as long as their ramp. Documents grow slowly enough
    for the autoscaler to follow, so they can run three quarters full. Agents are decided by the window: if it is longer
    than the pauses, the replicas of the last wave are still there for the next one, and keeping them through five minutes is
    cheaper than free seats for a threefold burst.

    No pair of target and window serves all three, so such settings belong to a service and not to a platform. And none of it
    works with a metric that does not see the queue.""",
    parts=("chat", "agents", "documents"),
)

# %% [markdown]
# ## One day of your fleet
#
# All of your policies on one day of chat. Your probes say when a new replica gets requests, and your `target_for` how many seats stay
# free. At the peak a replica dies, and your `retry_delay` decides for each of its requests.

# %% tags=["demo"] jupyter={"source_hidden": true}
if pieces := together("desired", "settle", "target_for", "choose_probes", "retry_delay", "cost_per_million"):
    from threeloops.lab.drawings import draw_day
    from threeloops.lab.drawings.product.policies import run_policies

    chat, rates = SERVICES[0], demand(SERVICES[0], 1)
    probes = pieces.choose_probes([200, 215, 230], 2)
    events = kubelet(probes, lambda path, age, now: 1 if age >= 230 + 10 * (path == "/ready") else math.inf, 2000)
    ready_after = next((second for second, what in events if what == "ready"), math.inf)
    target = max(1, pieces.target_for(chat.seats, 1.0, chat.factor, ready_after, chat.wait))
    most = math.ceil(1.1 * max(rates) * chat.hold / chat.seats)
    days = {
        f"yours: target {target} of {chat.seats} seats, ready after {ready_after} s": {"target": target},
        "the same, with a target of all seats": {"target": chat.seats},
        f"{most} replicas, day and night": {"target": chat.seats, "fewest": most},
    }
    rows, shown = [], None
    for name, settings in days.items():
        day = run_policies(
            pieces,
            chat,
            rates,
            lambda streamed: Failure("lost", streamed=streamed),
            ready_after=ready_after,
            **settings,
        )
        cost = pieces.cost_per_million(day.replicas, 86400, day.attempts, PRICE)
        rows.append((name, f"{day.in_time:.2%}", f"${cost:.2f}", day.retried, day.lost))
        shown = shown or day
    show.table(rows, header=("chat, one day", "in time", "per million tokens", "tried again", "lost"))
    title = f"your fleet: {shown.in_time:.1%} in time; a replica dies at the peak"
    show.figure(
        draw_day(shown.moments, chat.hold / chat.seats, title), "Your fleet on one day: demand, replicas and the queue"
    )

# %% [markdown]
# ## In practice
#
# The same decisions, as Kubernetes takes them:
#
# | here | Kubernetes |
# |---|---|
# | target, limits | `HorizontalPodAutoscaler`: `averageValue`, `minReplicas`, `maxReplicas`; KEDA: `threshold` |
# | metric | `vllm:num_requests_running` and `vllm:num_requests_waiting`, scraped by Prometheus, each with a target; the larger proposal counts |
# | window, rate | `behavior.scaleDown.stabilizationWindowSeconds`, `policies` |
# | probe | `periodSeconds`, `timeoutSeconds`, `failureThreshold`, `initialDelaySeconds` |
# | drain | `preStop`, `terminationGracePeriodSeconds` |
#
# The last cell (about 10 seconds) runs the probes of the course's `Deployment` (`threeloops.product.deploy`), kills a
# replica of its fleet (`threeloops.product.fleet`) under load, and rolls the fleet over to a new version: only when a new
# replica's readiness probe succeeds does an old one drain.
#
# ## What to remember
#
# - Count starting replicas as idle on the way up, or the number runs away, and as on target on the way down.
# - Scale up to the latest number wanted, and down to the highest of a window that is longer than the pauses.
# - Until a new replica is ready, only free seats can help. They are the price of a slow start.
# - Startup probes give time, liveness depends on the process alone, readiness may depend on load.
# - Retry only what can do no harm, within a budget. Divide the cost by the tokens that were served.
#
# The dives (`18_serving_fleet_dives.ipynb`) cover routing, prefill and decode on separate replicas, and the
# files that run such a fleet.
#
# ## Reflection
#
# After a new version is rolled out, replicas restart every few minutes, and requests fail while the fleet grows. What do
# you look at first, and what do you change? A paragraph is enough.

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# First I look at why the replicas restart: the events of the pods say whether the startup or the liveness probe failed,
# and how old the container was. If it was still loading, the new version loads longer than the probes allow, so I
# roll back and give the startup probe as much time as the slowest start needs. If it was serving, I look at the queue and at how long
# `/health` takes: a liveness probe that times out under load kills exactly the replicas that are needed, and the others get
# their work. Then I look at who gets the requests that fail: if they go to replicas that are still loading, readiness is checked on the
# wrong path. Last, I look at the retries, which may be most of the load by now.

# %% tags=["demo"] jupyter={"source_hidden": true}
from importlib.resources import files

import yaml
from threeloops.lab.drawings import draw_roll_over, roll_over
from threeloops.product import fleet
from threeloops.product.loadgen import poisson, trace, uniform

manifest = yaml.safe_load((files("threeloops.product.deploy") / "kubernetes/base/deployment.yaml").read_text())
container = manifest["spec"]["template"]["spec"]["containers"][0]
shipped = {
    kind: Probe(
        container[f"{kind}Probe"]["httpGet"]["path"],
        container[f"{kind}Probe"]["periodSeconds"],
        container[f"{kind}Probe"]["timeoutSeconds"],
        container[f"{kind}Probe"]["failureThreshold"],
    )
    for kind in ("startup", "readiness", "liveness")
}
rows = []
for load in (60, 240, 345, 400):
    for name, probes in (
        ("as shipped", Probes(**shipped)),
        ("without the startup probe", Probes(**(shipped | {"startup": None}))),
    ):
        events = kubelet(probes, lambda path, age, now, load=load: 1 if age >= load else math.inf, 3600)
        first = next((f"{second} s" for second, what in events if what == "ready"), "never")
        rows.append((f"{load} s", name, first, len(restarts(events))))
show.table(
    rows,
    header=("until /ready answers", "probes", "gets requests after", "restarts in an hour"),
    caption="The probes of deploy/kubernetes/base/deployment.yaml, on a server whose port opens when the model is loaded",
)

engine = fleet.shared_model(RooflineCost(LLAMA, accelerator("H100")), seats=32, prompt=200, output=100)
load = trace(poisson(150.0, 3), 3000, uniform(100, 300), uniform(50, 150), seed=3)
rows = []
tries = {"one try": fleet.Retries(tries=1), "three tries, with a budget": fleet.Retries(tries=3, reserve=40)}
for name, retries in tries.items():
    killed = fleet.Fleet(
        engine,
        replicas=3,
        retries=retries,
        cold_start=fleet.ColdStart(load=40, warm_up=5),
        failures=(fleet.Failure(10.0, "crash"),),
    )
    run = fleet.simulate(load, killed, seed=1)
    rows.append(
        (name, len(run.requests), len(run.answered), sum(run.errors.values()), run.retries, f"{run.ttft.p99:.2f} s")
    )
show.table(
    rows,
    header=("a replica of three is killed after 10 s", "requests", "answered", "errors", "tried again", "TTFT, P99"),
    caption="The course's fleet on modelled H100s, 20 s at 150 requests per second",
)

frames = roll_over(replicas=4, load=40, warm_up=10, hold=20, period=5)
animate(
    draw_roll_over,
    frames[:: -(-len(frames) // 40)],
    seconds=0.7,
    caption="A roll-over from version 1 to 2 in virtual time: start, probe, serve, drain; no request is dropped",
    still=12,
)
term("readiness probe")
calibration()
