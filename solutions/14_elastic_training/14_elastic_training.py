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
#     title: What does a failure cost?
#     minutes: 190
#     withholds: [threeloops.training.elastic, threeloops.lab.drawings]
#     edition: 2
# ---

# %% [markdown]
# # What does a failure cost?
#
# ![A job's time on a line: work, saves, two failures and the restarts after them](attachment:opening.png)
#
# A job needs all of its GPUs, and now and then one of them fails. How much of the job's time is wasted, and which part
# of the waste can you avoid?
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
import math
from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch
import torch.distributed as dist
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
from threeloops.lab.checking.on_cluster import on_cluster
from threeloops.training.cluster import (
    Cluster,
    RankDies,
    RankLost,
    ask,
    compute,
    now,
    uniform,
)

LATENCY, TIMEOUT = 1 / 64, 8.0  # seconds; long, so that you can see them
ROWS, WIDTH, ROW_SECONDS = 12, 6, 1 / 16


def expected_seconds(interval, save, recovery, mtbf):
    """Expected time until `interval` seconds of work are done and saved, failures and all (Daly 2006)."""
    return math.exp(recovery / mtbf) * mtbf * math.expm1((interval + save) / mtbf)


def number_in(value):
    """A number of any kind as a float; NaN for everything else."""
    try:
        return math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError):
        return math.nan


def useful_share(interval, save, recovery, mtbf):
    """The share of the time that goes into work which is kept."""
    return interval / expected_seconds(interval, save, recovery, mtbf)


@dataclass(frozen=True)
class Entry:
    """A collective in a rank's flight recorder. `number` counts those of its `group`, a tuple of ranks, from 1."""

    number: int
    group: tuple[int, ...]
    what: str
    ended: bool


class Task:
    """A small model, the same on every rank: 6 weights, and the optimizer's momentum."""

    def __init__(self):
        self.weights = torch.zeros(WIDTH, dtype=torch.float64)
        self.momentum = torch.zeros(WIDTH, dtype=torch.float64)
        self.calls = 0

    def gradient(self, step, place, size):
        """The mean gradient of every `size`-th row of a step's batch, from row `place` on."""
        self.calls += 1
        if self.calls > 100:
            raise RuntimeError(
                f"task.gradient was called {self.calls} times, now for step {step} on {size} ranks, again and again: "
                "does this rank wait for ranks that are at another step, or have returned?"
            )
        compute(ROWS // size * ROW_SECONDS, f"step {step}")
        return ask("gradient", self.weights, int(step), int(place), int(size))  # no rank has the rows

    def update(self, gradient):
        """One step of the optimizer, in place."""
        self.momentum.mul_(0.9).add_(gradient)
        self.weights.sub_(0.05 * self.momentum)


# The test cells share this code.


def trained(train, steps):
    task = Task()
    train(task, steps)
    return task.weights, task.momentum


def moment(ranks, step, hops):
    """Seconds until the all-reduce of a step is `hops` hops old; below 0 the rank still computes."""
    each = ROWS // ranks * ROW_SECONDS
    return step * (each + 2 * (ranks - 1) * LATENCY) + each + hops * LATENCY


def require_interval(best_interval, save, mtbf, shortest, longest, slips):
    """Between `shortest` and `longest` the job takes at most 0.1% longer than with the best interval. `slips` maps wrong
    intervals to their causes."""
    got = best_interval(save, mtbf)
    case, value = f"best_interval({save}, {mtbf})", number_in(got)
    check.true(value > 0, f"{case} returned {got!r}: expected a number of seconds above 0")
    cause = next((": " + c for slip, c in slips.items() if abs(value - slip) < 1e-3 * slip), "")
    message = (
        f"{case} returned {value:.6g} s. Only intervals from {shortest:.4g} to {longest:.4g} s cost at most 0.1% more "
        f"time than the best one{cause}"
    )
    check.true(shortest <= value <= longest, message)


def require_account(account, events, useful, lost, save, restart, slips=None):
    """`slips` maps a wrong number of seconds of some kind to its cause."""
    got = account(list(events))
    expected = {"useful": useful, "lost": lost, "save": save, "restart": restart}
    causes = {
        kind: (slips or {}).get((kind, got[kind]), "")
        for kind in expected
        if type(got) is dict and type(got.get(kind)) is int
    }
    wrong = next((kind for kind, cause in causes.items() if cause and got[kind] != expected[kind]), "")
    check.equal(got, expected, what=f"account({events})", hint=f"{wrong}: {causes[wrong]}" if wrong else "")


# %% tags=["setup", "oracle"] nbgrader={"grade": false, "grade_id": "batches", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
# In graded runs, your answers cannot use this cell: ranks get the gradients that they ask for, and nothing else.


class Batches:
    """The rows of all steps, and training on them in one process. `asked[rank]` has a rank's calls of task.gradient."""

    def __init__(self, seed=0):
        self.seed, self.asked = seed, {}

    def rows(self, step):
        """Return the global batch of a step. It is the same for any number of ranks."""
        generator = torch.Generator().manual_seed(self.seed + step)
        rows = torch.randn(ROWS, WIDTH, generator=generator, dtype=torch.float64)
        return rows, rows.sum(1) + rows[:, 0] ** 2

    def gradient(self, weights, step, place=0, size=1):
        rows, targets = self.rows(step)
        own, targets = rows[place::size], targets[place::size]
        return own.T @ (own @ weights - targets) / len(own)

    def served(self, ranks, deaths):
        """Return the function that `task.gradient` asks. A rank gets the gradient of the rows of its own place."""
        self.asked = {rank: [] for rank in range(ranks)}

        def gradient(rank, weights, step, place, size):
            if not ranks - deaths <= size <= ranks:
                raise ValueError(f"size = {size}: expected the number of ranks, {ranks}, or of those that are left")
            if not 0 <= place < size:
                raise ValueError(f"place = {place}: expected 0 to {size - 1}")
            other = next((at for _, at, of in self.asked[rank] if of == size and at != place), place)
            if other != place:
                raise ValueError(
                    f"rank {rank} asks for the rows of place {place} of {size}, and it is at place {other}: the other "
                    "ranks compute those rows"
                )
            self.asked[rank].append((step, place, size))
            return self.gradient(weights, step, place, size)

        return {"gradient": gradient}

    def continued(self, replicas, first, steps, places=(0,), size=1, divisor=1):
        """Train copies of (weights, momentum) from step `first` on, each with the rows of its place. The sum of their
        gradients is divided by `divisor`."""
        replicas = [(w.clone(), m.clone()) for w, m in replicas]
        for step in range(first, steps):
            total = sum(self.gradient(w, step, at, size) for (w, _), at in zip(replicas, places, strict=True))
            for weights, momentum in replicas:
                momentum.mul_(0.9).add_(total / divisor)
                weights.sub_(0.05 * momentum)
        return replicas

    def alone(self, steps):
        """Return the weights and momentum that one process computes."""
        start = torch.zeros(WIDTH, dtype=torch.float64)
        return self.continued([(start, start)], 0, steps)[0]


def train_on(batches, train, ranks, deaths, steps):
    """Run `train` with these deaths, (rank, seconds). Return the run, the ranks that survived, and a description."""
    cluster = Cluster(uniform(ranks, LATENCY, 1e9), [RankDies(*d) for d in deaths], timeout=TIMEOUT)
    run = on_cluster(cluster, trained, train, steps, served=batches.served(ranks, len(deaths)))
    left = [rank for rank in range(ranks) if rank not in run.died]
    said = " and ".join(f"rank {rank} dies at {at:.3f} s" for rank, at in deaths) or "nobody dies"
    return run, left, f"{ranks} ranks, {steps} steps, {said}"


def attempted(log, size):
    """Return the steps that a rank began while it trained with `size` ranks."""
    return [step for step, _, of in log if of == size]


# %% tags=["demo", "opening"] jupyter={"source_hidden": true}
from threeloops.lab.drawings import draw_log

LOG = [(20, "save"), (22, "saved"), (42, "save"), (44, "saved"), (55, "failed"), (62, "running"), (82, "save"),
       (84, "saved"), (92, "failed"), (99, "running"), (110, "save")]  # fmt: skip
show.figure(
    draw_log(LOG, 110, "minutes", sums=False),
    "A job's time on a line: work, saves, two failures and the restarts after them",
)

# %% [markdown]
# Lab 13 made saves safe. This lab asks how often to save, what failures cost, and how a job can go on without the rank
# that it lost. You need not wait for any failure: they come from a simulation, or at a set time on the virtual cluster.
#
# ## 1 · How often to save
#
# Hardware is described by its **mean time between failures** (MTBF). A GPU with an MTBF of 5 years fails once in 5 years
# on average, at a rate of 1/5 per year. A job that needs all of its parts fails whenever one of them does, so the rates
# of its parts add up. Let M be the job's MTBF. If failures come independently, at a constant rate of 1/M, then the chance
# that a time t passes without a failure is e^(−t/M).
#
# *Worked example.* 1,000 GPUs with an MTBF of 5 years of 8,760 hours. One fails at a rate of 1/43,800 per hour, and any of
# them at 1,000/43,800. So there is a failure every 43.8 hours on average, which is 157,680 s. The chance of 24 hours
# without one is e^(−24/43.8) = 57.8%. If every 8 GPUs also have a power supply with an MTBF of 10 years, that adds
# 125/87,600 per hour, and the job fails every 41.2 hours.
#
# A job works for an `interval` τ, stops for C seconds to save (`save`), works again, and so on. After a failure it
# goes back to the last save, and needs R seconds to notice, restart and load. Three things waste time, and to first
# order they add up:
#
# - saves take C for every τ seconds of work: C/τ;
# - a failure destroys half an interval of work on average, once per M: τ/(2M);
# - recovery takes R, once per M: R/M.
#
# *Worked example.* M = 31,536 s (8.76 hours), C = 30 s, R = 600 s. Saving every 5 minutes wastes 10.0% + 0.5% + 1.9%
# = 12.4% of the working time. Saving every hour wastes 0.8% + 5.7% + 1.9% = 8.4%. Somewhere between them the sum is
# smallest.
#
# This estimate counts no failures during saves and recoveries. The given `expected_seconds(interval, save, recovery,
# mtbf)` counts them: it is the exact expected time for one interval of work and its save, e^(R/M) · M · (e^((τ + C)/M)
# − 1).
#
# ### Exercise 1 (24 points)
#
# `job_mtbf(parts)` returns the job's mean time between failures, in seconds. `parts` is a list of (count, years): so
# many parts, each with an MTBF of `years` years of 8,760 hours.
#
# `best_interval(save, mtbf)` returns the interval to work between two saves, in seconds. It is judged by what it costs:
# the expected time per second of work may be at most 0.1% longer than with the best possible interval.
#
# - *Short saves* take at most a hundredth of `mtbf`. The estimate above is good enough for them.
# - *Long saves* take up to `mtbf` itself. There the estimate is not good enough.

# %% tags=["demo"]
myth("ft-1")
predict(
    "day",
    "Each of 10,000 GPUs fails once in 10 years on average. What is the chance that a job on all of them runs for a day "
    "without an interruption, in percent?",
    unit="%",
)
myth("ft-2")
predict(
    "fourfold",
    "A job gets four times as many nodes, and a save takes as long as before. By what factor is the best interval multiplied?",
    unit="×",
)


# %% nbgrader={"grade": false, "grade_id": "best_interval", "locked": false, "schema_version": 3, "solution": true, "task": false}
def job_mtbf(parts: list[tuple[int, float]]) -> float:
    """Mean seconds between failures of a job that needs all of these parts."""
    ### BEGIN SOLUTION
    per_year = sum(count / years for count, years in parts)
    return 8760 * 3600 / per_year
    ### END SOLUTION


def best_interval(save: float, mtbf: float) -> float:
    """Seconds of work between two saves."""
    ### BEGIN SOLUTION
    # The derivative of expected_seconds / interval is zero where ln(1 − x) + x + save/mtbf is, with x = interval/mtbf.
    low, high = 0.0, 1.0
    for _ in range(60):
        x = (low + high) / 2
        if math.log1p(-x) + x + save / mtbf > 0:
            low = x
        else:
            high = x
    return low * mtbf
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "best_interval_test_mtbf", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("best_interval", "seconds between failures", part="mtbf", hidden="other parts"):

    def fails_every(expected, parts, slips):
        got = job_mtbf(parts)
        near = [c for value, c in slips.items() if abs(number_in(got) - value) < 1e-4 * value]
        what = f"job_mtbf({parts})"
        check.close(got, expected, rtol=1e-9, unit="s", what=what, hint=near[0] if near else "")

    fails_every(
        157680.0,
        [(1000, 5.0)],
        {
            43.8: "this is in hours",
            0.005: "this is in years",
            157680000.0: "this is a single GPU's time",
            157788.0: "this is with years of 365.25 days: here a year has 8,760 hours",
        },
    )
    fails_every(
        148404.70588235295,
        [(1000, 5.0), (125, 10.0)],
        {
            157680.0: "this is the time of the first kind of part: any failure ends the job",
            2522880.0: "this is the time of the second kind of part",
            2680560.0: "these are the times of both kinds, added: their rates add up",
            1340280.0: "this is the mean of the times of both kinds: their rates add up",
        },
    )
    fails_every(10512000.0, [(3, 1.0)], {})
    fails_every(
        9855000.0, [(8, 5.0), (8, 5.0)], {19710000.0: "parts that are alike fail independently: both counts add up"}
    )
    ### BEGIN HIDDEN TESTS
    for seed in range(4):
        rng = check.rng(seed)
        parts = [(int(rng.integers(1, 20000)), float(rng.uniform(0.5, 40))) for _ in range(seed + 1)]
        fails_every(31_536_000 / math.fsum(count / years for count, years in parts), parts, {})
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "best_interval_test_short", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("best_interval", "short saves", part="short", hidden="other saves"):
    require_interval(
        best_interval,
        30.0,
        31536.0,
        1092.74,
        1680.65,
        {
            1892160.0: "the derivative of C/τ + τ/(2M) is zero where τ² has this value",
            972.667: "a failure destroys half an interval, not a whole one",
            1945.334: "a failure destroys half an interval, so it costs τ/(2M)",
        },
    )
    require_interval(best_interval, 300.0, 259200.0, 9992.3, 15060.7, {})
    require_interval(best_interval, 60.0, 11124.0, 968.601, 1284.33, {})
    ### BEGIN HIDDEN TESTS
    for save, mtbf in ((10.0, 5000.0), (2.0, 3600.0), (0.001, 1e6), (36.0, 3600.0), (500.0, 1e7)):
        low, high = 0.0, 1.0
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if math.log1p(-middle) + middle + save / mtbf > 0 else (low, middle)
        best = expected_seconds(low * mtbf, save, 0, mtbf) / low
        got = number_in(best_interval(save, mtbf))
        cost = expected_seconds(got, save, 0, mtbf) * mtbf / got if 0 < got < 100 * mtbf else math.inf
        check.true(
            cost <= 1.001 * best, f"best_interval({save}, {mtbf}) returned {got:.6g} s, which costs more than 0.1%"
        )
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "best_interval_test_long", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("best_interval", "long saves", part="long", hidden="other saves"):
    ESTIMATE = "this interval makes the estimate smallest, and not expected_seconds per second of work"
    require_interval(best_interval, 100.0, 1000.0, 356.367, 411.743, {447.21: ESTIMATE})
    require_interval(best_interval, 600.0, 3600.0, 1591.65, 1812.87, {2078.46: ESTIMATE})
    require_interval(best_interval, 1000.0, 1000.0, 801.11, 883.14, {1414.21: ESTIMATE})
    require_interval(best_interval, 0.5, 1.0, 0.661691, 0.736424, {1.0: ESTIMATE})
    ### BEGIN HIDDEN TESTS
    for save, mtbf in ((200.0, 1000.0), (1800.0, 3600.0), (0.7, 1.0), (4000.0, 20000.0), (9e6, 1e7)):
        low, high = 0.0, 1.0
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if math.log1p(-middle) + middle + save / mtbf > 0 else (low, middle)
        best = expected_seconds(low * mtbf, save, 0, mtbf) / low
        got = number_in(best_interval(save, mtbf))
        cost = expected_seconds(got, save, 0, mtbf) * mtbf / got if 0 < got < 100 * mtbf else math.inf
        check.true(
            cost <= 1.001 * best, f"best_interval({save}, {mtbf}) returned {got:.6g} s, which costs more than 0.1%"
        )
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "best_interval",
    "`job_mtbf`: add up the rates, count / years per year each. The mean time between failures is 1 divided by the sum.",
    "Short saves: only C/τ + τ/(2M) depends on τ. Set its derivative to zero, or look where the two terms are equal.",
    "Long saves: look for the τ with the least `expected_seconds(τ, save, 0, mtbf) / τ`. Any search will do; the best one lies "
    "between 0 and `mtbf`.",
)
from threeloops.training.elastic.goodput import (
    LLAMA3_CAUSES,
    MEASURED,
    cluster_mtbf,
    save_worth,
    simulate,
)
from threeloops.training.elastic.goodput import Job as SimulatedJob
from threeloops.training.elastic.goodput import (
    best_interval as library_interval,
)

HOUR, YEAR = 3600.0, 365 * 86400.0
CLAIMED = cluster_mtbf(10 * YEAR, 10_000)
LLAMA3 = MEASURED[0].days * 24 * HOUR / MEASURED[0].failures
show.against_prediction("day", round(100 * math.exp(-24 * HOUR / CLAIMED), 1), unit="%", source="model: e^(−24 h/M)")
audit(
    "ft-1",
    round(CLAIMED / HOUR, 2),
    "hours between failures",
    "model",
    "holds",
    how=f"10 years of 8,760 hours ÷ 10,000. It follows from the rate that it assumes, and counts GPUs alone. While Llama 3 405B was trained on {MEASURED[0].gpus:,} GPUs, {MEASURED[0].failures:.0f} unexpected interruptions came in {MEASURED[0].days:.0f} days, one every {LLAMA3 / HOUR:.1f} hours. That is one in {LLAMA3 * MEASURED[0].gpus / YEAR:.1f} years per GPU. By the counts of Table 5 of its report, {100 - 100 * sum(n for cause, n in LLAMA3_CAUSES.items() if cause.startswith('GPU')) / MEASURED[0].failures:.0f}% of them were not caused by a GPU; its text puts GPU issues at 58.7%, which leaves 41.3%",
)
show.against_prediction(
    "fourfold",
    round(library_interval(30, CLAIMED / 4) / library_interval(30, CLAIMED), 2),
    unit="×",
    source="exact model",
)


def draw_goodput(save_seconds, hours_between_failures, recovery_minutes):
    mtbf, recovery = hours_between_failures * HOUR, recovery_minutes * 60
    best = library_interval(save_seconds, mtbf)
    minutes = [0.5 * 1.1**n for n in range(65)]
    shares = [100 * useful_share(60 * m, save_seconds, recovery, mtbf) for m in minutes]
    plot, axes = figure(width=8.5, height=3.0)
    axes.plot(minutes, shares, color=palette.green)
    top = 100 * useful_share(best, save_seconds, recovery, mtbf)
    habit = 100 * useful_share(300, save_seconds, recovery, mtbf)
    axes.plot([best / 60], [top], "o", color=palette.blue)
    axes.annotate(
        f"every {best / 60:.1f} min: {top:.1f}%", (best / 60, top), (0, 7), textcoords="offset points", ha="center"
    )
    axes.plot([5], [habit], "s", color=palette.vermillion)
    axes.annotate(f"every 5 min: {habit:.1f}%", (5, habit), (9, -13), textcoords="offset points")
    axes.set(xscale="log", xlabel="minutes of work between saves", ylabel="useful share of the time (%)", ylim=(0, 112))
    axes.set_xticks([1, 3, 10, 30, 100, 200], ["1", "3", "10", "30", "100", "200"])
    axes.set_title(
        f"A failure every {hours_between_failures:g} h, saves of {save_seconds:g} s, {recovery_minutes:g} min to recover"
    )
    return plot


with reveal("ft-2"):
    explore(
        draw_goodput,
        save_seconds=[30, 2, 120, 600],
        hours_between_failures=[8.76, 3.09, 1.0, 50.0],
        recovery_minutes=[10, 1, 60],
    )
    rows = []
    for minutes in (5.0, 22.6, 60.0):
        year = simulate(SimulatedJob(10_000, 10 * YEAR, 60 * minutes, save=30, restart=600), YEAR)
        expected = useful_share(60 * minutes, 30, 600, CLAIMED)
        rows.append(
            (
                f"every {minutes:g} minutes",
                f"{100 * expected:.2f}%",
                f"{100 * year.useful_share:.2f}%",
                f"{year.failures:,}",
            )
        )
    show.table(
        rows,
        header=("saves", "useful, exact model", "useful, simulated year", "failures"),
        caption="10,000 GPUs that fail once in 10 years each; saves of 30 s, 10 minutes to recover. Shares of all time: the "
        "estimate's 12.4% of the working time is 12.4/112.4 = 11.0% of all time",
    )
wasted = [100 - 100 * useful_share(each, 30, 600, CLAIMED) for each in (300, library_interval(30, CLAIMED))]
audit(
    "ft-2",
    round(save_worth(300, CLAIMED), 1),
    f"s: only with saves this short are 5 minutes the best interval on 10,000 such GPUs ({save_worth(300, LLAMA3):.1f} s at Llama 3's rate)",
    "model",
    "corrected",
    how=f"the exact model, solved for the save. With a save of 30 s, 5 minutes waste {wasted[0]:.1f}% of the time on 10,000 GPUs, and the best interval wastes {wasted[1]:.1f}%. On fewer GPUs, 5 minutes are even further off. It is a good habit only for a save that stops the job for a few seconds, as an asynchronous one does",
)
debrief(
    "best_interval",
    """Rates of independent failures add up, whatever the parts are. So a job on N equal nodes fails N times as often as one
    on a single node. The exponential needs a constant rate. But new machines fail more often (the dives simulate that), and a
    network switch that fails takes many nodes down at once.

    At the best interval the first two terms are equal: as much time goes into saves as failures destroy. This gives
    τ = √(2CM) (Young 1974). So an interval grows with the square root of what a save costs, and a save in a quarter of
    the time halves both losses.

    The curve is flat at its top: in the example, twice the best interval or half of it costs about one percent of the time.
    So a rough guess of M is enough. Recovery scales the whole curve down and does not move its top.

    Long saves need the exact formula, because they may themselves be struck by a failure. There √(2CM) is too long an
    interval.""",
    parts=("mtbf", "short", "long"),
)

# %% [markdown]
# ## 2 · Where the time went
#
# A model says what to expect, and a log says what happened. **Goodput** is the share of a run's time spent on useful
# work: work in a save from which later work can start.
#
# *Worked example.* A job works from second 0. A save begins at 20 and ends at 22. The job fails at 30, runs again at
# 37, and the log ends at 40. The 20 seconds before the save are useful, and the save took 2. The work from 22 to 30
# is lost. The restart took 7. The last 3 seconds were not saved, so they are lost as well: 20 + 2 + (8 + 3) + 7 = 40.
#
# ### Exercise 2 (22 points)
#
# `account(events)` returns `{"useful": …, "lost": …, "save": …, "restart": …}`, whole seconds that add up to the time of the last
# event.
#
# - `events` is a list of (second, what) in order of time. The job works from second 0.
# - "save": work stops and a save begins. "saved": it has ended, all work until its beginning is safe, and work goes on.
# - "failed": work that is not safe is lost. Until "running", all time is "restart".
# - "end": the last event. Work that is not safe is lost.
# - The job may fail, or the log may end, during a save (its time still counts as "save") or during a restart.


# %% nbgrader={"grade": false, "grade_id": "account", "locked": false, "schema_version": 3, "solution": true, "task": false}
def account(events: list[tuple[int, str]]) -> dict[str, int]:
    """Where the seconds of a run went."""
    ### BEGIN SOLUTION
    spent = {"useful": 0, "lost": 0, "save": 0, "restart": 0}
    doing, since, unsaved = "work", 0, 0
    for at, what in events:
        if doing == "work":
            unsaved += at - since
        else:
            spent[doing] += at - since
        if what == "saved":
            spent["useful"] += unsaved
            unsaved = 0
        elif what in ("failed", "end"):
            spent["lost"] += unsaved
            unsaved = 0
        doing, since = {"save": "save", "failed": "restart"}.get(what, "work"), at
    return spent
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "account_test_values", "locked": true, "points": 13, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("account", "logs of ordinary runs", part="values", hidden="longer logs"):
    require_account(
        account,
        [(20, "save"), (22, "saved"), (30, "failed"), (37, "running"), (40, "end")],
        useful=20,
        lost=11,
        save=2,
        restart=7,
        slips={
            ("lost", 8): "work at the end that is not saved is lost",
            ("useful", 23): "work at the end that is not saved is lost",
            ("lost", 10): "a finished save is not lost",
            ("useful", 22): "the time of a save is not work",
        },
    )
    require_account(account, [(12, "end")], 0, 12, 0, 0, {("useful", 12): "work at the end that is not saved is lost"})
    require_account(account, [(10, "save"), (13, "saved"), (23, "save"), (26, "saved"), (26, "end")], 20, 0, 6, 0)
    require_account(account, [(0, "save"), (3, "saved"), (13, "save"), (16, "saved"), (16, "end")], 10, 0, 6, 0)
    require_account(
        account,
        [(10, "failed"), (15, "running"), (25, "save"), (28, "saved"), (38, "failed"), (43, "running"), (50, "end")],
        useful=10,
        lost=27,
        save=3,
        restart=10,
        slips={("useful", 20): "work before the first failure was lost: the save after it does not hold it"},
    )
    ### BEGIN HIDDEN TESTS

    def drawn_log(seed):
        """A log, and its account, second by second. Short ones come first."""
        rng, at, doing, kinds, events = check.rng(seed), 0, "work", [], []
        for _ in range(4 + 4 * seed):
            choices = {"work": ["save", "failed"], "save": ["saved"], "restart": ["running"]}
            what, length = str(rng.choice(choices[doing])), int(rng.integers(0, 50))
            kinds += [doing] * length
            at += length
            if what in ("saved", "failed"):
                kinds = [("useful" if what == "saved" else "lost") if k == "work" else k for k in kinds]
            events.append((at, what))
            doing = {"save": "save", "failed": "restart"}.get(what, "work")
        kinds = ["lost" if k == "work" else k for k in [*kinds, *[doing] * 5]]
        counts = [kinds.count(k) for k in ("useful", "lost", "save", "restart")]
        return [*events, (at + 5, "end")], counts

    for seed in range(12):
        events, counts = drawn_log(seed)
        require_account(account, events, *counts)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "account_test_strikes", "locked": true, "points": 9, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("account", "failures during saves and restarts", part="strikes", hidden="longer logs"):
    require_account(
        account,
        [(20, "save"), (23, "failed"), (30, "running"), (35, "end")],
        useful=0,
        lost=25,
        save=3,
        restart=7,
        slips={
            ("useful", 20): "the save was interrupted, so the work before it is not safe",
            ("lost", 28): "the time of an interrupted save still counts as save",
            ("lost", 5): "the save was interrupted, so the work before it is lost",
        },
    )
    require_account(
        account,
        [(20, "save"), (22, "saved"), (30, "failed"), (34, "failed"), (41, "running"), (41, "end")],
        useful=20,
        lost=8,
        save=2,
        restart=11,
        slips={
            ("restart", 7): "the restart that was interrupted counts too",
            ("lost", 12): "no work is done during a restart, so a second failure destroys nothing",
        },
    )
    require_account(account, [(9, "save"), (12, "saved"), (14, "save"), (17, "end")], 9, 2, 6, 0)
    require_account(
        account,
        [(20, "save"), (23, "failed"), (30, "running"), (40, "save"), (42, "saved"), (42, "end")],
        useful=10,
        lost=20,
        save=5,
        restart=7,
        slips={("useful", 30): "the work before the failure was lost: the save after it does not hold it"},
    )
    require_account(account, [(5, "failed"), (9, "end")], 0, 5, 0, 4)
    require_account(
        account,
        [
            (20, "save"),
            (22, "saved"),
            (30, "save"),
            (30, "failed"),
            (35, "running"),
            (40, "save"),
            (42, "saved"),
            (42, "end"),
        ],
        useful=25,
        lost=8,
        save=4,
        restart=5,
    )
    ### BEGIN HIDDEN TESTS

    def struck_log(seed):
        """A log, and its account, second by second. Short ones come first."""
        rng, at, doing, kinds, events = check.rng(seed), 0, "work", [], []
        for _ in range(4 + 4 * seed):
            choices = {"work": ["save", "failed"], "save": ["saved", "failed"], "restart": ["running", "failed"]}
            what, length = str(rng.choice(choices[doing])), int(rng.integers(0, 50))
            kinds += [doing] * length
            at += length
            if what in ("saved", "failed"):
                kinds = [("useful" if what == "saved" else "lost") if k == "work" else k for k in kinds]
            events.append((at, what))
            doing = {"save": "save", "failed": "restart"}.get(what, "work")
        kinds = ["lost" if k == "work" else k for k in [*kinds, *[doing] * 5]]
        return [*events, (at + 5, "end")], [kinds.count(k) for k in ("useful", "lost", "save", "restart")]

    for seed in range(12):
        events, counts = struck_log(seed)
        require_account(account, events, *counts)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "account",
    "Keep what the job does at the moment (work, save or restart), since when, and how much work is not safe yet.",
    "At each event, first book the time since the last one; then decide what the event does to the work that is not safe.",
)
from threeloops.lab.drawings import draw_log

MADE = [(20, "save"), (22, "saved"), (42, "save"), (44, "saved"), (56, "save"), (57, "failed"), (62, "running"),
        (76, "save"), (78, "saved"), (85, "failed"), (95, "failed"), (100, "running"), (110, "end")]  # fmt: skip
animate(
    lambda until: draw_log(MADE, until, "minutes"),
    [20, 22, 42, 44, 56, 57, 62, 76, 78, 85, 95, 100, 110],
    seconds=1.4,
    caption="Work is not safe (blue) until a save has ended (green); a failure destroys unsafe work (red)",
)
debrief(
    "account",
    """Each second has exactly one fate, but for work it is only known later: at the end of a save, or at a failure. So
    work is kept apart until then. All kinds add up to the wall time, so no second is forgotten or counted twice.

    Real dashboards often count all time in which GPUs were busy. That counts work which was done twice, and hides what failures
    cost.""",
    parts=("values", "strikes"),
)

# %% [markdown]
# ## 3 · Go on without it
#
# A restart costs minutes, although most of the job is still there: with data parallelism (lab 09), every surviving
# rank has all weights and the whole state of the optimizer. It only has to learn who is gone.
#
# A collective with a dead rank raises `RankLost` in the others after a timeout. Its `ranks` are all those that have
# died so far. The group is broken, but the survivors can make another, as the next cell shows. With
# `use_local_synchronization=True` only its members call `new_group`, since a dead rank cannot. Ranks keep their
# numbers.
#
# There is one trap. If a rank dies *during* an all-reduce, some of the others may have received the result already, and
# others have not. So when they meet again, some are a step ahead.
#
# *Worked example.* 4 ranks, 12 rows per step. Rank 0 dies during the all-reduce of step 5. Rank 3 has the sum already and takes
# the step; ranks 1 and 2 have not. So ranks 1 and 2 take over rank 3's weights and momentum, and all three go on with step 6.
# Rank 3 is the third of three now, and computes the rows 2, 5, 8 and 11.
#
# ### Exercise 3 (34 points)
#
# `train(task, steps)` takes steps 0 to `steps` − 1 and returns nothing.
#
# - In each step, `task.gradient(step, place, size)` gives the mean gradient of every `size`-th row from row `place`
#   on. A rank is the `place`-th (from 0) of the `size` survivors, in order. `task.update(gradient)` wants the mean of
#   all survivors' gradients.
# - After losses, the survivors continue as described: they end with the `task.weights` and `task.momentum` of an
#   undisturbed run.
# - If one of them has taken a step (updated its weights with it), nobody computes that step again.
# - Several ranks may die, but none during the last step, nor while the others regroup. The number of survivors
#   divides 12.

# %% tags=["demo"]
predict(
    "slower",
    "The ranks share the 12 rows of a step, at 1/16 s per row. An all-reduce takes 6/64 s on 4 ranks, and 4/64 s on 3. By what "
    "factor does a step take longer once one of the four is gone?",
    unit="×",
)


def meets_a_death():
    try:
        dist.all_reduce(torch.ones(4))
    except RankLost as lost:
        told, left = now(), [0, 1, 3]
        group = dist.new_group(left, use_local_synchronization=True)
        numbers = [torch.empty(1) for _ in left]
        dist.all_gather(numbers, torch.tensor([10.0 * dist.get_rank()]), group=group)
        mine = torch.tensor([dist.get_rank()])
        dist.broadcast(mine, 3, group=group)  # rank 3's, to the others
        return f"told at {told:.3f} s that {lost.ranks} died; gathered {[n.item() for n in numbers]}, broadcast {mine.item()}"


run = Cluster(uniform(4, LATENCY, 1e9), [RankDies(2, 0.01)], timeout=TIMEOUT).run(meets_a_death)
print(*(f"rank {rank}: {said}" for rank, said in enumerate(run.results)), sep="\n")


# %% nbgrader={"grade": false, "grade_id": "train", "locked": false, "schema_version": 3, "solution": true, "task": false}
def train(task: Task, steps: int) -> None:
    """Train to the end on the ranks that are left."""
    ### BEGIN SOLUTION
    members, group, done = list(range(dist.get_world_size())), None, 0
    while done < steps:
        try:
            gradient = task.gradient(done, members.index(dist.get_rank()), len(members))
            dist.all_reduce(gradient, group=group)
            task.update(gradient / len(members))
            done += 1
        except RankLost as lost:
            members = [rank for rank in members if rank not in lost.ranks]
            group = dist.new_group(members, use_local_synchronization=True)
            taken = [torch.empty(1) for _ in members]
            dist.all_gather(taken, torch.tensor([float(done)]), group=group)
            done = int(max(taken))
            ahead = members[taken.index(max(taken))]
            dist.broadcast(task.weights, ahead, group=group)
            dist.broadcast(task.momentum, ahead, group=group)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "train_test_values", "locked": true, "points": 16, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("train", "deaths while ranks compute", part="values", hidden="other ranks and times"):

    def ends_alike(ranks, deaths, steps, broken_off=None, seed=0):
        """`broken_off` is the step of the only death."""
        batches = Batches(seed)
        run, left, case = train_on(batches, train, ranks, deaths, steps)
        weights, momentum = batches.alone(steps)
        start = [batches.alone(0)] * ranks
        slips = {
            "as if the sum of the gradients was not divided": batches.continued(start, 0, steps, range(ranks), ranks)[
                0
            ][0]
        }
        if broken_off is not None:
            n, start = len(left), [batches.alone(broken_off)] * len(left)
            for what, places, size, divisor in (
                (f"as if the sum of {n} gradients was divided by {ranks}", range(n), n, ranks),
                (f"as if ranks kept their places of {ranks}, so the rows of the lost rank are missing", left, ranks, n),
                (f"as if there were still {ranks} ranks, with one gradient missing", left, ranks, ranks),
            ):
                slips[what] = batches.continued(start, broken_off, steps, places, size, divisor)[0][0]
            slips["as if the step in which the rank died was left out"] = batches.continued(
                start, broken_off + 1, steps, range(n), n, n
            )[0][0]
        for rank in left:
            got = run.results[rank]
            near = [what for what, w in slips.items() if torch.is_tensor(got[0]) and torch.allclose(got[0], w, 1e-9)]
            check.close(
                got[0], weights, rtol=1e-9, what=f"weights on rank {rank} ({case})", hint=near[0] if near else ""
            )
            check.close(got[1], momentum, rtol=1e-9, what=f"momentum on rank {rank} ({case})")

    ends_alike(4, [], 3)
    ends_alike(4, [(2, moment(4, 3, -4))], 7, broken_off=3)
    ends_alike(3, [(0, 0.01)], 4, broken_off=0)
    ends_alike(4, [(1, moment(4, 2, -4)), (2, moment(4, 2, -3))], 6)
    ends_alike(4, [(3, moment(4, 1, -4)), (1, 10.0)], 8)
    ### BEGIN HIDDEN TESTS
    ends_alike(2, [(0, moment(2, 2, -4))], 6, seed=3405691582)
    ends_alike(6, [(0, moment(6, 1, -4)), (5, moment(6, 1, -4)), (3, moment(6, 1, -4))], 5, seed=2718281790)
    ends_alike(4, [(0, moment(4, 0, -4)), (2, 9.5), (3, 20.0)], 24, seed=1732050773)
    ends_alike(3, [], 2, seed=2236067942)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "train_test_torn", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("train", "deaths during an all-reduce", part="torn", hidden="other ranks and times"):

    def ends_alike_torn(ranks, lost, step, hops, steps, seed=0):
        batches = Batches(seed)
        run, left, case = train_on(batches, train, ranks, [(lost, moment(ranks, step, hops))], steps)
        weights, momentum = batches.alone(steps)
        ahead = [rank for rank in left if step + 1 in attempted(batches.asked[rank], ranks)]
        case = f"{case}; of the others, {ahead} had the result of step {step}"
        (w0, m0), (w1, m1) = batches.alone(step), batches.alone(step + 1)
        n = len(left)
        left_out = batches.continued([(w0, m0)] * n, step + 1, steps, range(n), n, n)[0][0]
        old_divisor = batches.continued([(w1, m1)] * n, step + 1, steps, range(n), n, ranks)[0][0]
        weights_only = batches.continued(
            [(w1, m1 if rank in ahead else m0) for rank in left], step + 1, steps, range(n), n, n
        )
        each_its_own = batches.continued(
            [(w1, m1) if rank in ahead else (w0, m0) for rank in left], step + 1, steps, range(n), n, n
        )
        for place, rank in enumerate(left):
            got = run.results[rank]
            slips = {
                "as if only the weights were taken over, and not the momentum": weights_only[place][0],
                "as if this rank's step counter went on, and its weights and momentum stayed behind": each_its_own[
                    place
                ][0],
                f"as if step {step} was left out: rank {min(ahead, default=0)} had taken it": left_out,
                f"as if the sum of {n} gradients was divided by {ranks}": old_divisor,
            }
            near = [what for what, w in slips.items() if torch.is_tensor(got[0]) and torch.allclose(got[0], w, 1e-9)]
            check.close(
                got[0], weights, rtol=1e-9, what=f"weights on rank {rank} ({case})", hint=near[0] if near else ""
            )
            check.close(got[1], momentum, rtol=1e-9, what=f"momentum on rank {rank} ({case})")

    def ends_alike_torn_again(step, steps, seed=0):
        """Rank 3 of 4 dies in step 1, and rank 2 during the all-reduce of a later step of the other three."""
        batches, first = Batches(seed), (3, moment(4, 1, -4))
        run, *_ = train_on(batches, train, 4, [first], steps)
        computed = [span.end for span in run.spans if span.what == f"step {step}" and span.rank == 0]
        check.true(len(computed) == 1, f"rank 0 computed step {step} {len(computed)} times after a death in step 1")
        weights, momentum = batches.alone(steps)
        for hops in (1.5, 2.5, 3.5):
            run, left, case = train_on(batches, train, 4, [first, (2, computed[0] + hops * LATENCY)], steps)
            ahead = [rank for rank in left if step + 1 in attempted(batches.asked[rank], 3)]
            case = f"{case}; of the others, {ahead} had the result of step {step}"
            for rank in left:
                got = run.results[rank]
                check.close(got[0], weights, rtol=1e-9, what=f"weights on rank {rank} ({case})")
                check.close(got[1], momentum, rtol=1e-9, what=f"momentum on rank {rank} ({case})")

    ends_alike_torn(4, 0, 3, 3.5, 7)
    ends_alike_torn(4, 3, 2, 4.5, 6)
    ends_alike_torn_again(4, 7)
    ### BEGIN HIDDEN TESTS
    ends_alike_torn(4, 2, 4, 3.5, 8, seed=1414213541)
    ends_alike_torn(4, 1, 1, 4.5, 5, seed=3141592611)
    ends_alike_torn(3, 2, 2, 2.5, 5, seed=1618033944)
    ends_alike_torn_again(2, 6, seed=2718281828)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "train_test_steps", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("train", "which steps are computed", part="steps", hidden="other ranks and times"):

    def computes_once(ranks, deaths, steps):
        batches = Batches()
        _, left, case = train_on(batches, train, ranks, deaths, steps)
        logs = {rank: batches.asked[rank] for rank in left}
        sizes = [ranks]
        for size in (size for _, _, size in logs[left[0]]):
            if size != sizes[-1]:
                sizes.append(size)
        check.equal(sizes[-1], len(left), what=f"`size` at the end ({case})")
        first = 0
        for size in sizes:
            last = size == sizes[-1]
            reached = max(max(attempted(log, size), default=first) for log in logs.values())
            for rank, log in logs.items():
                steps_here = attempted(log, size)
                begins = steps_here[0] if steps_here else first
                what = f"the step from which rank {rank} goes on with {size} ranks ({case})"
                cause = f"some rank had taken step {begins}" if begins < first else ""
                check.equal(begins, first, what=what, hint=cause)
                end = steps if last else (steps_here[-1] + 1 if steps_here else first)
                check.equal(
                    steps_here, list(range(first, end)), what=f"steps of rank {rank} with {size} ranks ({case})"
                )
            first = reached
        for place, rank in enumerate(left):
            places = {at for _, at, size in logs[rank] if size == len(left)}
            check.equal(sorted(places), [place], what=f"`place` of rank {rank} among {len(left)} ({case})")

    computes_once(4, [(2, moment(4, 3, -4))], 6)
    computes_once(4, [(1, moment(4, 3, 3.5))], 6)
    computes_once(4, [(3, moment(4, 1, 4.5)), (1, 10.0)], 8)
    ### BEGIN HIDDEN TESTS
    computes_once(4, [(0, moment(4, 1, 3.5))], 5)
    computes_once(4, [(3, moment(4, 1, -4)), (2, 10.0)], 9)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "train",
    "Keep `members` (rank numbers), `group` (None at first) and `done` (steps taken). Only the step is inside `try`.",
    "After a loss: members without `lost.ranks`, a new group of them, and an all-gather of `done`.",
    "`dist.broadcast(tensor, source, group=group)` overwrites the tensor on the others. `source` is a rank's number in the whole "
    "program: the one with the largest `done`. Send weights and momentum, and set `done` to the largest.",
)
from threeloops.lab.drawings import draw_delay

FOUR, THREE = 3 / 16 + 6 / 64, 4 / 16 + 4 / 64
with reveal("slower"):
    show.against_prediction("slower", round(THREE / FOUR, 2), unit="×", source="model: 20/64 s in place of 18/64 s")
    show.figure(
        draw_delay(
            {
                "nobody dies": [("12 steps on 4 ranks", 12 * FOUR)],
                "rank 2 dies\nin its 7th step": [
                    ("6 steps on 4 ranks", 6 * FOUR),
                    ("step that is lost", 3 / 16),
                    ("timeout", TIMEOUT),
                    ("regroup", 6 * LATENCY),
                    ("6 steps on 3 ranks", 6 * THREE),
                ],
            }
        ),
        "12 steps of four ranks, without and with a death: nearly all of the delay is the timeout of 8 s (model)",
    )
debrief(
    "train",
    """Nothing was lost but the step that was under way. Nearly all of the delay is the timeout, so what a
    failure costs depends on how fast it is noticed. On real GPUs there is no `RankLost` to catch: by default torch's NCCL
    watchdog waits 10 minutes and then ends the process. Libraries that keep heartbeats, such as torchft, notice within
    seconds.

    Three numbers must change together: the size of the group, the rank's place in it, and the divisor of the mean. If one of
    them is forgotten, training goes on without any error, with rows that nobody sees, or with a smaller learning rate.

    A rank that has returned can no longer help those that are behind, so a death in the last step needs a barrier after
    it. A death during that barrier leaves the same question, and only a save outside of the job settles it. Here the
    global batch stays the same, so fewer ranks take longer per step.""",
    parts=("values", "torn", "steps"),
)

# %% [markdown]
# ## 4 · Who hangs?
#
# Sometimes nothing dies, and the job just stops. An all-reduce cannot end before all ranks of its group have entered
# it, so one stuck rank soon has all others waiting. A **flight recorder** (torch has one) keeps the last collectives
# of each rank.
#
# *Worked example.* Four ranks with groups {0, 1}, {2, 3} for tensor parallelism and {0, 2}, {1, 3} for data parallelism.
#
# | rank | the last entry | ended | waits for |
# |---|---|---|---|
# | 0 | #8 of {0, 2} | no | 2, whose newest entry of {0, 2} is #7 |
# | 1 | #31 of {0, 1} | no | 0, whose newest entry of {0, 1} is #30 |
# | 2 | #31 of {2, 3} | no | 3, whose newest entry of {2, 3} is #30 |
# | 3 | #30 of {2, 3} | yes | nobody |
#
# Ranks 0, 1 and 2 wait, so they are victims, although others wait for ranks 0 and 2. Only rank 3 is waited for and
# waits for nobody: look there.
#
# ### Exercise 4 (20 points)
#
# `who_hangs(records, ranks)` returns the sorted list of ranks that some rank waits for and that do not wait themselves.
#
# - `records` maps a rank to its list of `Entry(number, group, what, ended)`, oldest first. Numbers count within a group.
# - A rank waits if its last entry has not ended. It waits for those of the group that have not entered this collective.
# - The recorder keeps the newest entries only. A rank has entered a collective if its newest entry of that group has this number
#   or a larger one.
# - A rank from 0 to `ranks` − 1 without a record, or with an empty one, is gone: it has entered nothing and does not wait.


# %% nbgrader={"grade": false, "grade_id": "who_hangs", "locked": false, "schema_version": 3, "solution": true, "task": false}
def who_hangs(records: dict[int, list[Entry]], ranks: int) -> list[int]:
    """The ranks that hold up the others."""
    ### BEGIN SOLUTION
    waiting, awaited = set(), set()
    for rank, entries in records.items():
        if not entries or entries[-1].ended:
            continue
        waiting.add(rank)
        last = entries[-1]
        for other in last.group:
            newest = max((e.number for e in records.get(other, []) if e.group == last.group), default=0)
            if newest < last.number:
                awaited.add(other)
    return sorted(awaited - waiting)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "who_hangs_test_chains", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("who_hangs", "who waits for whom", part="chains", hidden="more groups and ranks"):
    ROW, COLUMN = [(0, 1), (2, 3)], [(0, 2), (1, 3)]

    def done(number, group):
        return Entry(number, group, "all_reduce", True)

    def stuck(number, group):
        return Entry(number, group, "all_reduce", False)

    def names(expected, records, ranks, why, slips=None):
        got = who_hangs({rank: list(entries) for rank, entries in records.items()}, ranks)
        waits = sorted(rank for rank, entries in records.items() if entries and not entries[-1].ended)
        cause = ""
        if type(got) is list and got != expected and all(type(rank) is int for rank in got):
            cause = (slips or {}).get(tuple(got), "") or (
                "these are the ranks that wait, and not those that they wait for"
                if got == waits
                else f"of these, {[rank for rank in got if rank in waits]} wait themselves: they are victims"
                if any(rank in waits for rank in got)
                else ""
            )
        check.equal(got, expected, what=f"ranks that hang: {why}", hint=cause)

    world = (0, 1, 2)
    names(
        [1],
        {0: [done(4, world), stuck(5, world)], 1: [done(4, world)], 2: [stuck(5, world)]},
        3,
        "two wait in one group",
    )
    names(
        [3],
        {
            0: [done(30, ROW[0]), done(7, COLUMN[0]), stuck(8, COLUMN[0])],
            1: [done(7, COLUMN[1]), stuck(31, ROW[0])],
            2: [done(7, COLUMN[0]), done(30, ROW[1]), stuck(31, ROW[1])],
            3: [done(7, COLUMN[1]), done(30, ROW[1])],
        },
        4,
        "the worked example",
    )
    names([], {0: [done(2, (0, 1))], 1: [done(2, (0, 1))]}, 2, "nobody waits")
    names(
        [],
        {0: [stuck(5, (0, 1)), done(3, (0, 2))], 1: [done(4, (0, 1))], 2: [done(3, (0, 2))]},
        3,
        "rank 0 has begun #5 of (0, 1) asynchronously, and went on: its last entry has ended, so it does not wait",
    )
    names(
        [1, 2],
        {0: [stuck(3, (0, 1))], 1: [done(2, (0, 1))], 2: [done(8, (2, 3))], 3: [stuck(9, (2, 3))]},
        4,
        "two at a time",
    )
    names(
        [],
        {
            0: [done(4, (0, 1)), stuck(9, (0, 2))],
            1: [done(1, (1, 2)), stuck(5, (0, 1))],
            2: [done(8, (0, 2)), stuck(2, (1, 2))],
        },
        3,
        "all three wait for one another: each calls the collectives of two groups in a different order",
    )
    names(
        [],
        {
            0: [done(7, (0, 2)), stuck(5, (0, 1))],
            1: [done(5, (0, 1))],
            2: [stuck(8, (0, 2))],
        },
        3,
        "rank 2 waits for rank 0, and rank 0 waits in #5 of (0, 1), which all of its ranks have entered",
        {(0,): "the last entry of rank 0 has not ended, so it waits, although nobody is missing in its collective"},
    )
    names(
        [0],
        {0: [done(5, (0, 1))], 1: [stuck(6, (0, 1))], 2: [done(1, (2, 3))], 3: [done(1, (2, 3))]},
        4,
        "ranks 2 and 3 compute, and nobody waits for them",
    )
    ### BEGIN HIDDEN TESTS
    for seed in range(6):
        rng = check.rng(seed)
        ranks, victims = 8, int(rng.integers(0, 8))
        rows = [tuple(range(4)), tuple(range(4, 8))]
        columns = [(n, n + 4) for n in range(4)]
        records = {}
        for rank in range(ranks):
            row, column = rows[rank // 4], columns[rank % 4]
            records[rank] = [done(3, column), done(9, row)]
            if rank == victims:
                continue
            records[rank].append(stuck(10, row) if rank // 4 == victims // 4 else done(10, row))
            if rank // 4 != victims // 4:
                records[rank].append(stuck(4, column))
        names([victims], records, ranks, f"a hang on rank {victims} of 8 in rows of 4 and columns of 2")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "who_hangs_test_records", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("who_hangs", "records that are short or missing", part="records", hidden="other records"):

    def finds(expected, records, ranks, why, slips=None):
        got = who_hangs({rank: list(entries) for rank, entries in records.items()}, ranks)
        said = tuple(got) if type(got) is list else None
        check.equal(got, expected, what=f"ranks that hang: {why}", hint=(slips or {}).get(said, ""))

    world, pair = (0, 1, 2), (0, 1)
    ten = Entry(10, world, "all_reduce", True)
    new, old = Entry(12, world, "all_reduce", True), Entry(11, world, "all_reduce", False)
    finds(
        [1],
        {0: [new], 1: [Entry(10, world, "all_reduce", True)], 2: [old]},
        3,
        "rank 0 keeps #12 alone, rank 1 has entered #10, and rank 2 waits in #11",
        {(0, 1): "rank 0 has entered #12, so it has entered #11, although its entry is no longer there"},
    )
    finds(
        [1],
        {0: [ten, replace(old, ended=True), new], 1: [ten], 2: [ten, old]},
        3,
        "rank 0 has ended #12, rank 1 has ended #10, and rank 2 waits in #11",
    )
    finds([], {0: [old], 1: [replace(old, ended=True)], 2: [old]}, 3, "all have entered #11, and rank 1 has ended it")
    finds([1], {0: [old], 2: [old]}, 3, "rank 1 has no record", {(): "a rank without a record has entered nothing"})
    finds(
        [1],
        {0: [old], 1: [], 2: [old]},
        3,
        "the record of rank 1 is empty",
        {(): "a rank without an entry has entered nothing"},
    )
    finds([0, 2], {1: [Entry(1, world, "barrier", False)]}, 3, "rank 1 waits in #1, and two ranks have no record")
    finds(
        [2],
        {
            0: [Entry(3, pair, "all_reduce", False)],
            1: [Entry(2, pair, "all_reduce", True), Entry(4, (1, 2), "all_reduce", False)],
        },
        3,
        "rank 0 waits for rank 1, and rank 1 for rank 2, which has no record",
        {(1, 2): "rank 1 does wait, although it waits for a rank without a record", (1,): "rank 1 waits for rank 2"},
    )
    finds(
        [1],
        {
            0: [Entry(3, pair, "broadcast", False)],
            1: [Entry(9, world, "all_reduce", True)],
            2: [Entry(9, world, "all_reduce", True)],
        },
        3,
        "rank 0 waits in #3 of (0, 1), and rank 1 has entered #9 of another group",
        {(): "numbers count within a group: #9 of another group says nothing about this one"},
    )
    finds(
        [1],
        {
            0: [Entry(9, pair, "broadcast", True), Entry(5, world, "all_reduce", False)],
            1: [Entry(4, world, "all_reduce", True), Entry(9, pair, "broadcast", True)],
            2: [Entry(5, world, "all_reduce", False)],
        },
        3,
        "ranks 0 and 2 wait in #5 of (0, 1, 2), and rank 1 has entered #9 of (0, 1)",
        {(): "numbers count within a group: #9 of (0, 1) says nothing about (0, 1, 2)"},
    )
    finds(
        [2],
        {
            0: [Entry(5, world, "all_reduce", False)],
            1: [Entry(5, world, "all_reduce", False), Entry(2, (1, 3), "all_reduce", True)],
            2: [Entry(4, world, "all_reduce", True)],
            3: [Entry(2, (1, 3), "all_reduce", True)],
        },
        4,
        "ranks 0 and 1 have entered #5, and rank 1 has gone on with another group",
        {(1, 2): "rank 1 has entered #5: it has begun it asynchronously, and went on"},
    )
    finds(
        [2],
        {
            0: [Entry(5, world, "all_reduce", False)],
            1: [Entry(6, world, "broadcast", True)],
            2: [Entry(4, world, "all_reduce", True)],
        },
        3,
        "rank 0 waits in #5, and rank 1, which keeps one entry, has sent a broadcast as #6",
        {(1, 2): "rank 1 has entered #6 of this group, so it has entered #5, whatever #6 is"},
    )
    ### BEGIN HIDDEN TESTS
    finds([], {}, 3, "no rank has a record")
    for seed in range(4):
        rng = check.rng(seed)
        gone = int(rng.integers(0, 6))
        everyone = tuple(range(6))
        records = {
            r: [Entry(int(rng.integers(50, 60)), (r, 9), "x", True), Entry(41, everyone, "barrier", False)]
            for r in range(6)
            if r != gone
        }
        finds([gone], records, 6, f"rank {gone} of 6 has no record")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "who_hangs",
    "Build two sets: the ranks that wait, and the ranks that somebody waits for. The answer is in one of them only.",
    "`max((e.number for e in entries if e.group == group), default=0)` is a rank's newest number in a group.",
)
from threeloops.training.elastic.detection import FlightRecorder, diagnose, first_alarm


def hangs_in_step_3():
    with FlightRecorder(clock=now) as recorder:
        for step in range(5):
            compute(100.0 if (dist.get_rank(), step) == (2, 3) else 0.25)
            dist.all_reduce(torch.ones(64))
    return recorder.calls


run = Cluster(uniform(4, LATENCY, 1e9)).run(hangs_in_step_3)
records = dict(enumerate(run.results))
alarm = first_alarm(records, timeout=10.0)
print(
    f"Four ranks train, and rank 2 gets stuck. The watchdog's limit is 10 s, so its alarm comes at {alarm:.3f} s, and the library says:"
)
print(diagnose(records, alarm))
debrief(
    "who_hangs",
    """The ranks that wait are the ones that complain: their stack traces end in a collective, and their logs say
    "timeout". The rank that holds them up often logs nothing, because it has not seen anything go wrong. So look for the
    rank that is absent from the collective.

    If all wait and nobody is missing, look at the collective they wait in. If they wait in different collectives, the
    program calls them in different orders, and the recorder shows the line of each call. If all have entered the same
    one, its sizes may differ between ranks, or a link or a GPU is stuck.""",
    parts=("chains", "records"),
)

# %% [markdown]
# ## 5 · A year of your job
#
# A job on 3,000 GPUs with an MTBF of 5 years each needs 60 s for a save and 10 minutes to recover. Your `job_mtbf` and
# `best_interval` plan it, a generator draws a year of failures, and your `account` says where the year went. Then rank 2 of 4
# hangs: your `who_hangs` reads the flight recorder when the watchdog gives its alarm, the rank is removed, and your `train`
# goes on without it.


# %% tags=["demo"]
def drawn_year(interval, save, restart, mtbf, seed=0):
    """The log of a year, in whole seconds: failures come at a constant rate, and may strike a save or a restart."""
    rng, now_at, events = check.rng(seed), 0, []
    strikes = round(rng.exponential(mtbf))
    doing, ends = "work", interval
    while True:
        what = {"work": "save", "save": "saved", "restart": "running"}[doing]
        now_at, what = (strikes, "failed") if strikes < ends else (ends, what)
        if now_at >= YEAR:
            return [*events, (round(YEAR), "end")]
        events.append((now_at, what))
        doing = {"save": "save", "failed": "restart"}.get(what, "work")
        ends = now_at + {"work": interval, "save": save, "restart": restart}[doing]
        if what == "failed":
            strikes = now_at + 1 + round(rng.exponential(mtbf))


# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.lab.drawings import draw_accounts, log_account

PARTS, SAVE, RESTART = [(3000, 5.0)], 60, 600
LIBRARY = {
    "best_interval": {
        "job_mtbf": lambda parts: 365 * 86400 / sum(n / years for n, years in parts),
        "best_interval": library_interval,
    },
    "account": log_account,
}


def year_of(parts):
    """The accounts of a year with four intervals, and the share of useful time that the model expects."""
    mtbf = parts.job_mtbf(PARTS)
    best = round(float(parts.best_interval(SAVE, mtbf)))
    plans = {"every 5 min": 300, f"every {best / 60:.0f} min (chosen)": best, "every 4 h": 14400, "once a day": 86400}
    logs = {name: drawn_year(interval, SAVE, RESTART, mtbf) for name, interval in plans.items()}
    accounts = {name: parts.account(log) for name, log in logs.items()}
    model = {name: useful_share(interval, SAVE, RESTART, mtbf) for name, interval in plans.items()}
    return accounts, model, sum(what == "failed" for _, what in logs["every 5 min"])


FAILURES = 0
if parts := together(*LIBRARY, library=LIBRARY):
    accounts, model, FAILURES = year_of(parts)
    from_library, *_ = year_of(SimpleNamespace(**LIBRARY["best_interval"], account=log_account))
    show.figure(
        draw_accounts(accounts, model),
        f"a year with {FAILURES} failures and four intervals between saves; a line marks the useful share that the model expects",
    )
    chosen = [next(a for name, a in each.items() if "chosen" in name) for each in (accounts, from_library)]
    print(
        f"Useful hours in the year with the chosen interval: {chosen[0]['useful'] / HOUR:,.0f}, and "
        f"{chosen[1]['useful'] / HOUR:,.0f} with the library's pieces."
    )

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.training.cluster.pictures import gantt


class StuckTask(Task):
    """A task in which rank 2 gets stuck in step 6."""

    def gradient(self, step, place, size):
        if (dist.get_rank(), step) == (2, 6):
            compute(1000.0)
        return super().gradient(step, place, size)


def recorded_training(train, steps):
    with FlightRecorder(clock=now) as recorder:
        train(StuckTask(), steps)
    return recorder.calls


def entries(calls, at):
    """The records as they are at a moment."""
    return [
        Entry(call.number, call.ranks, call.what, call.ended is not None and call.ended <= at)
        for call in calls
        if call.begun <= at
    ]


if parts := together("train", "who_hangs"):
    four = uniform(4, LATENCY, 1e9)
    stuck = Cluster(four).run(recorded_training, parts.train, 12, served=Batches().served(4, 0))
    records = dict(enumerate(stuck.results))
    alarm = first_alarm(records, timeout=10.0)
    blamed = parts.who_hangs({rank: entries(calls, alarm) for rank, calls in records.items()}, 4)
    print(f"The watchdog's alarm comes at {alarm:.2f} s. Ranks that hang: {blamed}.")
    deaths = [RankDies(rank, 6 * FOUR + 0.1) for rank in blamed if rank in range(4)][:2]
    batches = Batches()
    went_on = Cluster(four, deaths, timeout=TIMEOUT).run(
        trained, parts.train, 12, served=batches.served(4, len(deaths))
    )
    weights, momentum = batches.alone(12)
    left = [rank for rank in range(4) if rank not in went_on.died]
    same = all(torch.allclose(went_on.results[rank][0], weights, rtol=1e-9) for rank in left)
    delay = went_on.seconds - 12 * FOUR
    print(
        f"Without {blamed} the ranks {left} end {delay:.1f} s later, with the weights of an undisturbed run: {same}. "
        f"If each of the year's {FAILURES} failures cost that much, and not {RESTART} s and half an interval of work, "
        f"they would take {FAILURES * delay / HOUR:.1f} hours."
    )
    show.figure(gantt(went_on, most_arrows=0), "your training: rank 2 is removed in step 6, and three ranks go on")

# %% [markdown]
# ## In practice
#
# `torchrun --max-restarts 3 --nnodes 6:8` starts all workers again when one dies, on 6 to 8 nodes; your program must
# load its last save. With `--requeue`, Slurm puts a job back into the queue after a node failure or a preemption.
# Before a planned end (a spot machine is taken back, a time limit is reached) a program can get a SIGTERM and some
# seconds of grace, enough for a short save. torchft goes on without a restart (dives); TorchTitan 0.3 has it as
# an experiment, `--fault_tolerance.enable`. For hangs, torch keeps a flight
# recorder (`TORCH_FR_BUFFER_SIZE`). The last cell sends SIGTERM to one of three ranks, and all leave after the same
# step. The dives kill a worker of torchrun for real.
#
# ## What to remember
#
# - Rates of failures add up: N times the nodes, 1/N of the time between failures.
# - Save about every √(2CM), and make saves shorter. The optimum is flat.
# - Goodput counts only work that was kept; work that a failure destroyed and that is done again counts once.
# - With replicas nothing is lost but a step. With shards, that takes a copy in a neighbour's memory (dives).
# - After a loss, the group, a rank's place and the divisor change together.
# - In a hang, look for the rank that others wait for and that waits for nobody.
#
# The deep dives (`14_elastic_training_dives.ipynb`) have torchrun, Slurm, sharded
# states, hot spares, silent corruption, canaries, and early deaths.
#
# ## Reflection
#
# Your job on 512 GPUs stops about twice a week. It saves once an hour, which takes 4 minutes, and after a failure someone restarts it by
# hand, often in the morning. Which three changes do you make first, and what would you measure? A paragraph is enough.

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# First I would automate the restart (torchrun or Slurm's requeue), because hours until the morning outweigh everything else.
# M is about 84 hours and a save takes 240 s, so the best interval is about 3.3 hours: hourly saves cost more than 6%, and
# asynchronous saves would make them cheap whatever the interval. Third, I would add a watchdog with a short timeout, so that a hang ends
# the job in minutes. I would account for each second of a month (useful, lost, save, detect, restart), and count failures by
# cause and node, to replace machines that fail again, and would then decide about a hot spare.

# %% tags=["demo"] jupyter={"source_hidden": true}
import os
import signal

from threeloops.training.elastic import Grace


def stops_together():
    with Grace() as grace:
        for step in range(10):
            if (dist.get_rank(), step) == (1, 3):
                os.kill(os.getpid(), signal.SIGTERM)
            if grace.agreed():
                return f"saves after step {step}, and ends"
    return "trained to the end"


print(*(f"rank {rank} {said}" for rank, said in enumerate(Cluster(3).run(stops_together).results)), sep="\n")
term("MTBF")
term("goodput")
calibration()
