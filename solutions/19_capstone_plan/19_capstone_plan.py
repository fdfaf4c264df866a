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
#     title: Can you plan all of it?
#     minutes: 190
#     withholds: [threeloops.capstone, threeloops.lab.drawings]
#     edition: 2
# ---

# %% [markdown]
# # Can you plan all of it?
#
# ![Four empty frames of a plan: GPUs, a calendar with failures, a bill, and a stamp of the board with a question mark](attachment:opening.png)
#
# Somebody wants a model trained, by a date and for a sum. What would you buy, how would you run it, and would it work?
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
import math
from dataclasses import dataclass, replace
from functools import lru_cache

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
from threeloops.training.collectives import Link
from threeloops.training.elastic.goodput import best_interval, useful_share
from threeloops.training.planning import (
    ALLOCATED_SHARE,
    LLAMA_8B,
    LLAMA_70B,
    LLAMA_405B,
    Machine,
    Plan,
    Transformer,
    a100_node,
    h100_node,
    memory,
    plans,
    step_time,
)

HOUR, DAY = 3600, 86400


@lru_cache
def layouts(model: Transformer, machine: Machine, gpus: int, batch: int, sequence: int) -> tuple[Plan, ...]:
    """The layouts of lab 12's planner that fit, fastest first; sequences are not cut, and pipelines run 1F1B."""
    found = plans(model, machine, gpus, batch, sequence, context=False, chunks=(1,), recompute=("none", "full"))
    return tuple(each.plan for each in found)


def worlds(machine: Machine) -> list[Machine]:
    """The machines that the board asks about: as planned, its network at a half and at a quarter, its kernels 20% slower."""

    def network(part):
        return replace(machine, between=Link(machine.between.latency, machine.between.bandwidth * part))

    return [machine, network(1 / 2), network(1 / 4), replace(machine, flops=0.8 * machine.flops)]


def cause_of(got, slips):
    """The slip that gives this number."""
    if not isinstance(got, (int, float)):
        return ""
    return next((cause for cause, value in slips.items() if math.isclose(got, value, rel_tol=1e-6)), "")


# %% tags=["demo", "opening"] jupyter={"source_hidden": true}
from matplotlib.patches import Rectangle

plot, axes = figure(width=9.5, height=2.6)
frames = ("How many GPUs, in which layout?", "When is it done, failures included?", "What does it cost, and who asks?")
for place, words in enumerate(frames):
    left = 3.3 * place
    axes.add_patch(Rectangle((left, 0), 3.0, 2.2, fill=False, ec=palette.grey, lw=1.2))
    axes.text(left + 1.5, 1.98, words, ha="center", va="center", size=9, weight="bold")
for row in range(3):
    for column in range(8):
        corner = (0.2 + 0.33 * column, 0.25 + 0.5 * row)
        axes.add_patch(Rectangle(corner, 0.26, 0.36, fc="none", ec=palette.blue, lw=1, ls="--"))
for row, breaks in enumerate(((0.9, 2.1), (0.5, 1.6), (1.3,))):
    last = 3.5
    for stop in (*(3.5 + each for each in breaks), 6.1):
        axes.plot([last, stop - 0.06], [0.45 + 0.5 * row] * 2, color=palette.green, lw=6, solid_capstyle="butt")
        last = stop + 0.1
    for each in breaks:
        axes.text(3.5 + each + 0.02, 0.45 + 0.5 * row, "×", color=palette.vermillion, ha="center", va="center", size=13)
axes.text(8.1, 1.35, "? GPU-hours × ? per hour", ha="center", size=10)
axes.plot([6.8, 9.4], [1.1, 1.1], color=palette.grey, lw=1)
axes.text(8.1, 0.75, "?", ha="center", size=18)
axes.text(8.1, 0.2, "The board: what if …?", ha="center", size=9, style="italic")
axes.set(xlim=(-0.1, 9.7), ylim=(-0.1, 2.3))
axes.set_axis_off()
show.figure(plot, "Three empty frames of a plan: GPUs and layout, a calendar with failures, and the bill")

# %% [markdown]
# This lab is a review. You make a plan with the models of the earlier labs, and a board asks about it. The planner of lab 12
# (`plans`, `memory`, `step_time`) and the failure model of lab 14 (`best_interval`, `useful_share`) are imported for
# you to call. Prices and sizes below are scenarios; the last section shows where real prices come from. All of it is
# calculated, so the results are exact and repeatable on any machine. Your functions must not change the lists that they
# get.
#
# ## 1 · How much work is it?
#
# Training costs about 6 FLOPs per parameter and token: 2 forward, 4 backward. The rate that a GPU achieves is published
# in two ways. A *model* rate counts those 6. A *hardware* rate also counts what backward computes again with activation
# checkpointing, which is one more forward: 8 in all.
#
# *Worked example.* BLOOM has 176 billion parameters, was trained on 366 billion tokens, and its A100s achieved 150
# TFLOP/s, recomputation included. That is 8 · 176·10⁹ · 366·10⁹ / (150·10¹²) seconds, or 954,000 GPU-hours.
#
# ### Exercise 1 (12 points)
#
# `gpu_hours(parameters, tokens, flops_per_gpu, recomputed) -> float` is the GPU-hours of a run, before anything fails.
# `flops_per_gpu` is per second; `recomputed` is true for a hardware rate with full checkpointing.

# %% tags=["demo"]
predict(
    "published_hours",
    "BLOOM's authors report the GPU-hours that they used. The formula gives 954,000. How many did they use?",
    unit="GPU-hours",
    axis=(1e5, 1e7),
)


# %% nbgrader={"grade": false, "grade_id": "gpu_hours", "locked": false, "schema_version": 3, "solution": true, "task": false}
def gpu_hours(parameters: float, tokens: float, flops_per_gpu: float, recomputed: bool) -> float:
    """GPU-hours of a training run that nothing interrupts."""
    ### BEGIN SOLUTION
    return (8 if recomputed else 6) * parameters * tokens / flops_per_gpu / HOUR
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "gpu_hours_test", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("gpu_hours", "hours of runs", hidden="other runs"):
    SECONDS, DAYS = "this is in seconds", "this is in days"
    SIX = "this counts 6 FLOPs, and the rate counts 8"
    EIGHT = "this counts 8 FLOPs, and the rate counts 6"
    FORWARD = "this counts the forward pass only"

    def takes(expected, parameters, tokens, rate, recomputed, slips):
        """`slips` maps causes to wrong hours."""
        got = gpu_hours(parameters, tokens, rate, recomputed)
        case = f"GPU-hours of {parameters:g} parameters, {tokens:g} tokens, {rate:g} FLOP/s, recomputed = {recomputed}"
        check.close(got, expected, rtol=1e-9, what=case, hint=cause_of(got, slips))

    bloom = {SIX: 715733.333333, SECONDS: 3435520000, DAYS: 39762.962963, FORWARD: 238577.777778}
    takes(954311.111111, 176e9, 366e9, 150e12, True, bloom)
    llama = {EIGHT: 35100000, SECONDS: 94770000000, DAYS: 1096875, FORWARD: 8775000}
    takes(26325000.0, 405e9, 15.6e12, 400e12, False, llama)
    takes(1.0, 1, 3600, 6, False, {EIGHT: 4 / 3})
    takes(1.0, 1, 3600, 8, True, {SIX: 0.75})
    ### BEGIN HIDDEN TESTS
    for seed in range(10):
        rng = check.rng(seed)
        parameters, tokens, rate = (float(v) for v in 10 ** rng.uniform((8, 9, 12), (12, 13, 15)))
        recomputed = bool(rng.integers(2))
        expected = (8 if recomputed else 6) * parameters * tokens / rate / 3600
        takes(expected, parameters, tokens, rate, recomputed, {})
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "gpu_hours",
    "FLOPs of the run: 6 (or 8) times parameters times tokens.",
    "Divide by FLOP/s for seconds on one GPU, and by 3,600 for hours.",
)
PUBLISHED_HOURS = {
    # parameters, tokens, FLOP/s per GPU, recomputed, GPU-hours, source
    "BLOOM": (
        176e9,
        366e9,
        150e12,
        True,
        1_082_990,
        "Luccioni et al. 2022 (2211.02001), table 2; rate: BigScience 2022",
    ),
    "Llama 3.1 405B": (405e9, 15.6e12, 400e12, False, 30.84e6, "model card; rate: 2407.21783, table 4"),
}
with reveal("published_hours"):
    show.against_prediction("published_hours", PUBLISHED_HOURS["BLOOM"][4], "GPU-hours", source="Luccioni et al. 2022")
    rows = []
    for name, (*arguments, again, hours, source) in PUBLISHED_HOURS.items():
        formula = (8 if again else 6) * arguments[0] * arguments[1] / arguments[2] / HOUR
        rows.append((name, f"{formula:,.0f}", f"{hours:,.0f}", f"{formula / hours:.0%}", source))
    show.table(rows, header=("run", "formula", "published GPU-hours", "formula/published", "source"))
debrief(
    "gpu_hours",
    """The two published runs took 13 and 17% more GPU-hours than the formula says. That is not an error of the formula: it is the time
    in which GPUs were paid for and did not train, because of saves, failures, restarts, evaluation, and steps before the rate was
    reached. A plan that forgets it is late from its first week on. The next exercise calculates the part that failures cause.

    If a plan mixes the two rates it is a third too high or a quarter too low. Papers up to 2022 often print hardware rates.""",
)

# %% [markdown]
# ## 2 · When is it done?
#
# A job on *n* nodes fails *n* times as often as one node. It saves its state every so often, and goes on from the last
# save. Lab 14 has the model: `best_interval(save, mtbf)` and `useful_share(interval, save, recovery, mtbf)`, the share
# of the time spent on work that is kept. Times are seconds, and `mtbf` is the mean time between failures *of the job*.
#
# *Worked example.* Nodes fail every 3 years on average, and 1,000 of them therefore every 26.3 hours. A save takes 60 s and a
# recovery 600 s. The best interval is 55 minutes, and 95.9% of the time is useful. So 30 days of work take 31.3 days.
#
# ### Exercise 2 (14 points)
#
# `schedule(work, nodes, node_mtbf, save, recovery) -> (interval, days)`. `work` is the seconds that the job computes on
# these nodes, and the other times are seconds, too. `interval` (seconds) is within 10% of the one that wastes the least time,
# and `days` is the length of the run with the interval that you return.

# %% tags=["demo"]
predict(
    "half_the_days",
    "A run takes 100 days on 128 nodes, each of which fails once in 300 days. Its work would be done in half the time on 256. "
    "How many days does it take there, with the best interval? (Save 60 s, recovery 600 s.)",
    unit="days",
)


# %% nbgrader={"grade": false, "grade_id": "schedule", "locked": false, "schema_version": 3, "solution": true, "task": false}
def schedule(work: float, nodes: int, node_mtbf: float, save: float, recovery: float) -> tuple[float, float]:
    """Seconds between two saves, and days until the run is done."""
    ### BEGIN SOLUTION
    mtbf = node_mtbf / nodes
    interval = best_interval(save, mtbf)
    return interval, work / useful_share(interval, save, recovery, mtbf) / DAY
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "schedule_test_interval", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("schedule", "seconds between two saves", part="interval", hidden="other jobs"):
    ONE = "this is the best for one node: a job fails when any of its nodes does"
    MINUTES = "this is in minutes"
    RARER = "this is the best for a job that fails more rarely the more nodes it has"

    def saves_every(expected, nodes, node_mtbf, save, recovery, slips):
        """`slips` maps causes to wrong intervals."""
        got = schedule(30 * DAY, nodes, node_mtbf, save, recovery)[0]
        case = f"interval in seconds for {nodes} nodes that fail every {node_mtbf:,.0f} s, save {save} s"
        check.close(got, expected, rtol=0.1, what=case, hint=cause_of(got, slips))

    slips = {ONE: 106510.273581, MINUTES: 55.4922443248, RARER: 3369375.37967}
    saves_every(3329.534659, 1000, 3 * 365 * DAY, 60, 600, slips)
    saves_every(106510.2736, 1, 3 * 365 * DAY, 60, 600, {MINUTES: 1775.17122634})
    slips = {ONE: 71800.1390433, MINUTES: 296.675967163, RARER: 287800.034732}
    saves_every(17800.55803, 16, 100 * DAY, 300, 30, slips)
    slips = {"this is √(2 · save · mtbf), which holds only if a save is short against the mtbf": 2663.75674565}
    saves_every(2279.697, 16_000, 3 * 365 * DAY, 600, 600, slips)
    ### BEGIN HIDDEN TESTS
    for seed in range(10):
        rng = check.rng(seed)
        nodes, node_mtbf, save = (
            int(rng.integers(1, 8000)),
            float(rng.integers(300, 3000)) * DAY,
            int(rng.integers(5, 900)),
        )
        mtbf, low, high = node_mtbf / nodes, 0.0, 1.0
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if math.log1p(-middle) + middle + save / mtbf > 0 else (low, middle)
        saves_every(low * mtbf, nodes, node_mtbf, save, 200, {})
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "schedule_test_days", "locked": true, "points": 9, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("schedule", "days until it is done", part="days", hidden="other jobs"):
    ALONE, SAVES = "this is the work alone, as if nothing failed", "this has saves and no failures"
    RECOVERY, ONE = "this leaves the recovery out", "this is for one node's failures"
    HOURS, SECONDS = "this is in hours", "this is in seconds"
    TIMES = "this multiplies by the useful share: divide"
    RARE = "this adds up losses as if failures were rare; saves and recoveries fail, too"

    def lasts(expected, best, slips, work, nodes, node_mtbf, save, recovery):
        """`expected` are the days with the interval `best`, and less than 0.1% more if it is 10% longer or shorter."""
        interval, days = schedule(work, nodes, node_mtbf, save, recovery)
        case = f"days for {work / DAY:.1f} days of work on {nodes} nodes, mtbf of a node {node_mtbf / DAY:.0f} days, save {save} s, recovery {recovery} s, with the interval {interval:,.0f} s"
        if 0.9 * best <= interval <= 1.1 * best:
            check.close(days, expected, rtol=1e-3, what=case, hint=cause_of(days, slips))
        else:
            cause = cause_of(days, slips)
            check.true(
                days >= expected and not cause,
                f"{case}: {days!r}; the best interval, {best:,.0f} s, takes {expected:.2f}. {cause}",
            )

    lasts(
        31.292126,
        3329.535,
        {
            ALONE: 30,
            SAVES: 30.540616,
            RECOVERY: 31.0943,
            ONE: 30.541357,
            HOURS: 751.011,
            SECONDS: 2703639.6,
            TIMES: 28.761229,
        },
        30 * DAY,
        1000,
        3 * 365 * DAY,
        60,
        600,
    )
    lasts(10.11177, 11344.235, {ALONE: 10, HOURS: 242.6825, TIMES: 9.889465}, 10 * DAY, 4, 50 * DAY, 60, 600)
    lasts(52.069227, 3445.8, {ALONE: 50, RECOVERY: 51.761581}, 50 * DAY, 256, 300 * DAY, 60, 600)
    lasts(
        24.641135,
        1684.556,
        {ALONE: 20, SAVES: 21.424707, RECOVERY: 22.988009, ONE: 21.426197, TIMES: 16.233019, RARE: 25.178466},
        20 * DAY,
        2000,
        300 * DAY,
        120,
        900,
    )
    ### BEGIN HIDDEN TESTS

    def lasts_as_long_as_the_model(work, nodes, node_mtbf, save, recovery):
        interval, days = schedule(work, nodes, node_mtbf, save, recovery)
        mtbf = node_mtbf / nodes
        check.true(1 <= interval < mtbf, f"interval = {interval} s: expected at least 1, and less than {mtbf:,.0f} s")
        each = math.exp(recovery / mtbf) * mtbf * math.expm1((interval + save) / mtbf)
        case = f"days for {work / DAY:.1f} days of work on {nodes} nodes, with the interval {interval:,.0f} s"
        check.close(days, work * each / interval / 86400, rtol=1e-5, what=case)

    lasts_as_long_as_the_model(30 * DAY, 16_000, 3 * 365 * DAY, 600, 600)
    lasts_as_long_as_the_model(30 * DAY, 1000, 3 * 365 * DAY, 60, 600)
    lasts_as_long_as_the_model(20 * DAY, 2000, 300 * DAY, 120, 900)
    for seed in range(10):
        rng = check.rng(seed + 30)
        work, nodes, save = float(rng.uniform(1, 90)) * DAY, int(rng.integers(1, 2000)), int(rng.integers(5, 200))
        lasts_as_long_as_the_model(work, nodes, 900 * DAY, save, 500)
    ### END HIDDEN TESTS


# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_board", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
def run_days(work: float, nodes: int, node_mtbf: float, save: float, recovery: float, interval: float) -> float:
    """Days of a run that saves at this interval: what the board calculates."""
    return work / useful_share(interval, save, recovery, node_mtbf / nodes) / DAY


@dataclass(frozen=True)
class Proposal:
    """A run that somebody proposes, with the claims they make. All times but `days` are in seconds."""

    model: Transformer
    machine: Machine
    layout: Plan
    tokens: float
    node_mtbf: float
    save: float
    recovery: float
    price: float  # per GPU-hour
    inside: float  # bytes/s that they count on between the GPUs of a node
    step: float  # seconds
    days: float
    cost: float


def propose(model, machine, layout, tokens, **claims):
    """A proposal whose claims are the library's numbers times the factors given. The claims `node_mtbf`, `save` and
    `recovery` are seconds, not factors, and `price` is in dollars per GPU-hour."""
    node_mtbf, price = claims.get("node_mtbf", 200 * DAY), claims.get("price", 2.5)
    save, recovery = claims.get("save", 60), claims.get("recovery", 600)
    step = step_time(model, machine, layout).seconds * claims.get("step", 1)
    nodes = layout.gpus // machine.gpus_per_node
    work = tokens / (layout.batch * layout.sequence) * step
    days = run_days(work, nodes, node_mtbf, save, recovery, best_interval(save, node_mtbf / nodes))
    days *= claims.get("days", 1)
    cost = days * 24 * layout.gpus * price * claims.get("cost", 1)
    inside = machine.inside.bandwidth * claims.get("inside", 1)
    return Proposal(model, machine, layout, tokens, node_mtbf, save, recovery, price, inside, step, days, cost)


@dataclass(frozen=True)
class Ask:
    """A request for a run over `tokens` within `days` and `budget`. `nodes` has the numbers of nodes to choose from."""

    model: Transformer
    machine: Machine
    batch: int
    sequence: int
    tokens: float
    nodes: tuple[int, ...]
    days: float
    budget: float
    price: float = 2.5  # per GPU-hour
    node_mtbf: float = 180 * DAY
    save: float = 60
    recovery: float = 600


@dataclass(frozen=True)
class Offer:
    nodes: int
    layout: Plan
    interval: float  # seconds
    next_best: int | None


@dataclass(frozen=True)
class Refusal:
    days: float | None
    budget: float | None


def outcome(ask: Ask, nodes: int, layout: Plan, interval: float) -> tuple[float, float]:
    """Days and cost of a run, as the board calculates them."""
    work = ask.tokens / (ask.batch * ask.sequence) * step_time(ask.model, ask.machine, layout).seconds
    days = run_days(work, nodes, ask.node_mtbf, ask.save, ask.recovery, interval)
    return days, days * 24 * layout.gpus * ask.price


seventy = (LLAMA_70B, h100_node())
FITS = Plan(512, 8192, dp=64, pp=2, tp=4, zero=2, recompute="selective")
FULL = Plan(512, 8192, dp=128, pp=1, tp=4, zero=1)
SEVENTY = Ask(LLAMA_70B, h100_node(), 1024, 4096, 2e12, (16, 64, 256), 40, 1.2e6)
HUGE = replace(SEVENTY, model=LLAMA_405B, nodes=(8, 16, 32, 64, 128), days=1100, budget=9e6)


# %% tags=["setup", "oracle"] nbgrader={"grade": false, "grade_id": "what_fits", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
# Cost, days and nodes of each number of nodes on which the model fits.
SEVENTY_ROWS = [(1_071_275, 139.48888, 16), (1_092_701, 35.5697, 64), (1_148_551, 9.34693, 256)]
HUGE_ROWS = [
    (7_216_689, 469.83652, 32),
    (7_499_659, 244.12954, 64),
    (8_009_535, 1042.90823, 16),
    (8_012_227, 130.40735, 128),
]


def said_of(ask, rows):
    listed = "; ".join(f"{nodes} nodes {days:.1f} days {cost / 1e6:.3f} million" for cost, days, nodes in rows)
    return f"asked: {ask.days} days, {ask.budget / 1e6:.3f} million; {listed or 'nothing fits'}"


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "schedule",
    "The job's mean time between failures is that of a node, divided by the number of nodes.",
    "`days` is the work divided by the useful share, and by 86,400.",
)
work_128 = 100 * DAY * useful_share(best_interval(60, 300 * DAY / 128), 60, 600, 300 * DAY / 128)
ON_256 = run_days(work_128 / 2, 256, 300 * DAY, 60, 600, best_interval(60, 300 * DAY / 256))
with reveal("half_the_days"):
    show.against_prediction("half_the_days", round(ON_256, 2), "days", source="model: lab 14")
    plot, axes = figure(width=8.5, height=3.0)
    minutes = np.geomspace(2, 1000, 200)
    for nodes, color in ((128, palette.green), (1024, palette.blue), (8192, palette.vermillion)):
        mtbf = 300 * DAY / nodes
        shares = [100 * useful_share(each * 60, 60, 600, mtbf) for each in minutes]
        axes.plot(minutes, shares, color=color)
        best = best_interval(60, mtbf)
        axes.plot(best / 60, 100 * useful_share(best, 60, 600, mtbf), "o", color=color)
        above = 3 if nodes != 1024 else -12  # below its curve, where no other one passes
        axes.text(
            best / 60, 100 * useful_share(best, 60, 600, mtbf) + above, f"{nodes:,} nodes", color=color, ha="center"
        )
    axes.set(xscale="log", ylim=(0, 108), xlabel="minutes between two saves", ylabel="useful time, %")
    show.figure(
        plot, "Useful time against the interval, for 128, 1,024 and 8,192 nodes; the best interval is marked on each"
    )
debrief(
    "schedule",
    """The curve is flat around its best point: a third more or less changes little, so nobody needs the interval to the second.
    A plan does need the right order of magnitude, which depends on the whole job. Twice the nodes fail twice as often
    and lose a larger share of their time, so twice the nodes never halve the days.

    `threeloops.training.elastic.goodput.simulate` runs such a job event by event, with spares and early deaths too, and agrees with
    this formula within the noise where both apply.""",
    parts=("interval", "days"),
)
predict(
    "slow_network",
    "A 70B model on 512 H100s, in the layout that is fastest as planned. The network has a quarter of its bandwidth. How many "
    "times as long as the best layout's step does its step take now?",
    unit="×",
)

# %% [markdown]
# ## 3 · A layout for the machine that you will get
#
# The fastest layout is fastest on the machine of the data sheet. Networks are often slower than that: a neighbour uses the same
# switches, or a cable is bad. The board therefore asks about four **worlds**: as planned, the network at a half and at a
# quarter, and kernels 20% slower. A layout's **regret** in a world is its step time divided by that of the best layout
# there.
#
# *Worked example.* Layout A takes 10 s as planned and 27 s in the slow world, layout B 11 s and 12 s, and there are
# no others. In the planned world the best is 10, so the regrets are 1.0 and 1.1. In the slow one the best is 12, so they are
# 2.25 and 1.0. The worst regrets are 2.25 for A and 1.1 for B. B is the robust choice.
#
# ### Exercise 3 (16 points)
#
# `robust(model, machines, gpus, batch, sequence) -> Plan`. `machines` are the worlds, the planned one first. Return a
# layout that fits, uses all the GPUs, and whose *worst* regret over the worlds is within 3% of the smallest there is.
# `layouts(model, machine, gpus, batch, sequence)` lists what fits, and `step_time(model, machine, plan).seconds` is the time of a step.
# Raise a `ValueError` that names `gpus` and its value if nothing fits.


# %% nbgrader={"grade": false, "grade_id": "robust", "locked": false, "schema_version": 3, "solution": true, "task": false}
def robust(model: Transformer, machines: list[Machine], gpus: int, batch: int, sequence: int) -> Plan:
    """The layout with the smallest worst regret."""
    ### BEGIN SOLUTION
    found = layouts(model, machines[0], gpus, batch, sequence)
    if not found:
        raise ValueError(f"gpus = {gpus}: no layout fits; use more of them")
    seconds = [[step_time(model, machine, plan).seconds for machine in machines] for plan in found]
    best = [min(column) for column in zip(*seconds, strict=True)]
    regrets = [max(each / least for each, least in zip(row, best, strict=True)) for row in seconds]
    return found[regrets.index(min(regrets))]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "robust_test_fits", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("robust", "a layout that fits", part="fits", hidden="other models"):

    def is_layout(model, machine, gpus, batch, sequence):
        plan = robust(model, worlds(machine), gpus, batch, sequence)
        check.equal((plan.batch, plan.sequence), (batch, sequence), what="batch and sequence of the layout")
        check.equal(plan.gpus, gpus, what="GPUs of the layout")
        used, has = max(each.total for each in memory(model, plan)), ALLOCATED_SHARE * machine.memory_bytes
        check.true(
            used <= has, f"{plan}: {used / 2**30:.1f} GiB on its fullest GPU; expected at most {has / 2**30:.1f}"
        )

    is_layout(LLAMA_70B, h100_node(), 512, 512, 8192)
    is_layout(LLAMA_8B, a100_node(), 16, 64, 4096)
    check.raises(ValueError, robust, LLAMA_405B, worlds(h100_node()), 8, 64, 8192, names=("gpus", "8"))
    ### BEGIN HIDDEN TESTS
    is_layout(LLAMA_70B, a100_node(), 128, 256, 4096)
    is_layout(LLAMA_405B, h100_node(), 1024, 512, 8192)
    check.raises(ValueError, robust, LLAMA_70B, worlds(a100_node()), 8, 64, 8192, names=("gpus", "8"))
    ### END HIDDEN TESTS


# %% nbgrader={"grade": true, "grade_id": "robust_test_regret", "locked": true, "points": 11, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("robust", "its worst regret", part="regret", hidden="other models and machines"):
    H100_STEPS = [7.0064281981656995, 8.262596374587757, 8.288609103483756, 8.556202075611585]
    A100_STEPS = [19.398697322718327, 22.913162779318327, 24.36966708851962, 24.137064928347044]

    def stands(least, steps, slips, model, machines, gpus, batch, sequence, name):
        """`steps` are the shortest seconds in each world. `slips` maps causes to dp, pp and tp of a layout."""
        plan = robust(model, machines, gpus, batch, sequence)
        check.true(
            plan in layouts(model, machines[0], gpus, batch, sequence), f"{plan}: not among those that fit {name}"
        )
        regrets = [
            step_time(model, machine, plan).seconds / step for machine, step in zip(machines, steps, strict=True)
        ]
        cause = "; ".join(words for words, slip in slips.items() if slip == (plan.dp, plan.pp, plan.tp))
        check.true(
            max(regrets) <= 1.03 * least,
            f"{name}: worst regret {max(regrets):.2f} ({', '.join(f'{each:.2f}' for each in regrets)} in the worlds); a "
            f"layout with {least:.2f} fits. {cause}",
        )
        check.note(f"{name}: worst regret", round(max(regrets), 3), round(least, 3), "×")

    stands(
        1.20512,
        H100_STEPS,
        {"this is the fastest as planned": (128, 1, 4)},
        LLAMA_70B,
        worlds(h100_node()),
        512,
        512,
        8192,
        "70B on 512 H100s",
    )
    stands(1.17271, A100_STEPS, {}, LLAMA_70B, worlds(a100_node()), 128, 256, 4096, "70B on 128 A100s")
    stands(
        1.0,
        [1.060399902652628, 1.065053832892628, 1.074361693372628, 1.3243270195839103],
        {},
        LLAMA_8B,
        worlds(a100_node()),
        128,
        128,
        4096,
        "8B on 128 A100s",
    )
    last = worlds(a100_node())
    stands(
        1.17271,
        [A100_STEPS[0], A100_STEPS[1], A100_STEPS[3], A100_STEPS[2]],
        {},
        LLAMA_70B,
        [last[0], last[1], last[3], last[2]],
        128,
        256,
        4096,
        "70B on 128 A100s, with the slowest network as the last world",
    )
    few = worlds(h100_node())
    stands(
        1.17779,
        [H100_STEPS[2], H100_STEPS[0]],
        {},
        LLAMA_70B,
        [few[2], few[0]],
        512,
        512,
        8192,
        "70B on 512 H100s, planned with the slow network",
    )
    old = worlds(a100_node())
    stands(
        1.08976,
        [A100_STEPS[2], 63.62346164191969],
        {
            "this has the shortest step in its worst world: divide each step by the best of its world first": (
                64,
                1,
                2,
            ),
            "this loses the fewest seconds to the best of a world: divide by the best, do not subtract it": (16, 1, 8),
            "this has the smallest mean regret, and the worst one counts": (8, 4, 4),
        },
        LLAMA_70B,
        [old[2], replace(old[0], flops=0.3 * old[0].flops)],
        128,
        256,
        4096,
        "70B on 128 A100s, with a slow network or with kernels 70% slower",
    )
    inside = last[0].inside
    broken = replace(last[0], inside=Link(inside.latency, inside.bandwidth / 64))
    stands(
        1.4985,
        [A100_STEPS[0], 51.25715258160154],
        {},
        LLAMA_70B,
        [last[0], broken],
        128,
        256,
        4096,
        "70B on 128 A100s, with links inside the nodes at 1/64",
    )
    stands(
        1.0,
        [12.504104683770118],
        {},
        LLAMA_70B,
        few[:1],
        256,
        1024,
        4096,
        "70B on 256 H100s, the planned world alone",
    )
    ### BEGIN HIDDEN TESTS

    def stands_elsewhere(model, machines, gpus, batch, sequence, name):
        fitting = layouts(model, machines[0], gpus, batch, sequence)
        seconds = [[step_time(model, machine, plan).seconds for machine in machines] for plan in fitting]
        steps = [min(column) for column in zip(*seconds, strict=True)]
        least = min(max(each / step for each, step in zip(row, steps, strict=True)) for row in seconds)
        stands(least, steps, {}, model, machines, gpus, batch, sequence, name)

    stands_elsewhere(LLAMA_70B, worlds(h100_node()), 256, 1024, 4096, "70B on 256 H100s")
    stands_elsewhere(LLAMA_405B, worlds(h100_node()), 1024, 512, 8192, "405B on 1,024 H100s")
    stands_elsewhere(LLAMA_70B, [few[0], few[2]], 1024, 1024, 4096, "70B on 1,024 H100s, two worlds")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "robust",
    "Make a table: a row of step times per layout, a column per world.",
    "The smallest number of each column is the best of that world. Divide the column by it.",
    "The worst regret of a layout is the largest number of its row. Return the layout whose largest is smallest.",
)
FOUR = worlds(h100_node())
FOUND = {
    plan: [step_time(LLAMA_70B, machine, plan).seconds for machine in FOUR]
    for plan in layouts(LLAMA_70B, FOUR[0], 512, 512, 8192)
}
BEST = [min(row[n] for row in FOUND.values()) for n in range(4)]
FASTEST = next(iter(FOUND))
STEADY = min(FOUND, key=lambda plan: max(each / least for each, least in zip(FOUND[plan], BEST, strict=True)))
with reveal("slow_network"):
    show.against_prediction("slow_network", round(FOUND[FASTEST][2] / BEST[2], 2), "×", source="model: lab 12")
    plot, axes = figure(width=8.5, height=3.0)
    names = ("as planned", "network at 1/2", "network at 1/4", "kernels 20% slower")
    for shift, (plan, color) in enumerate(((FASTEST, palette.vermillion), (STEADY, palette.green))):
        regrets = [each / least for each, least in zip(FOUND[plan], BEST, strict=True)]
        bars = axes.bar(np.arange(4) + 0.36 * shift, regrets, width=0.34, color=color)
        axes.bar_label(bars, [f"{each:.2f}" for each in regrets], padding=2, size=9)
        words = f"dp {plan.dp}, pp {plan.pp}, tp {plan.tp}, ZeRO-{plan.zero}"
        axes.text(3.55, 2.6 - 0.35 * shift, words, color=color, ha="right", weight="bold")
    axes.axhline(1, color=palette.grey, lw=0.8)
    axes.set_xticks(np.arange(4) + 0.18, names)
    axes.set(ylabel="step / best step", ylim=(0, 3.1))
    show.figure(plot, "Regret of the fastest and of the robust layout in four worlds, a 70B model on 512 H100s")
debrief(
    "robust",
    """The layout that is fastest as planned gathers every parameter over the network for each microbatch, just fast enough to hide behind
    computation. Four GPUs of a node share each layer, so a gather uses two of the node's eight links. At a quarter of the bandwidth nothing
    hides it any more. The robust layout does without tensor parallelism, so a gather uses all eight links, and it has more computation to
    hide behind, because backward repeats forward. As planned, its step takes 18% longer.

    Minimising the worst regret (Savage 1951) needs no probabilities for the worlds. Taking the layout with the shortest step in the
    worst world is something else: that world may be slow for every layout, and then it says little about your choice.""",
    parts=("fits", "regret"),
)
predict(
    "reserved",
    "A service needs 100 GPUs for 10 hours of each day and 20 in the others. Reserved GPUs cost half as much as those on demand. "
    "How many do you reserve?",
    unit="GPUs",
)

# %% [markdown]
# ## 4 · One busy hour is not a year
#
# A GPU that is **reserved** for a year costs less per hour than one **on demand**, but it costs that in every hour. How
# many should be reserved when the need changes by the hour?
#
# *Worked example.* Four hours need 2, 4, 4 and 10 GPUs. Reserved costs 3 per GPU and hour, on demand 5. With 4 reserved,
# 4 · 4 · 3 = 48 is paid in any case, and 6 more are needed in the last hour: 48 + 30 = 78. With 10 reserved it is 120,
# with none 100. The fifth GPU would be used in one hour of four: 5 on demand against 4 · 3 = 12 reserved. The fourth is used in
# three: 15 against 12.
#
# ### Exercise 4 (12 points)
#
# `reserve(needed, reserved, on_demand) -> int` is how many GPUs to reserve so that the total cost is lowest; the smaller
# number if two cost the same. `needed` has the GPUs of each hour, and the prices are per GPU-hour. Without any hours it is 0.


# %% nbgrader={"grade": false, "grade_id": "reserve", "locked": false, "schema_version": 3, "solution": true, "task": false}
def reserve(needed: list[int], reserved: float, on_demand: float) -> int:
    """How many GPUs to reserve."""
    ### BEGIN SOLUTION
    count = 0
    while sum(each > count for each in needed) * on_demand > len(needed) * reserved:
        count += 1
    return count
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "reserve_test", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("reserve", "the cheapest number", hidden="longer years"):
    PEAK, MEAN = "this is the peak, which stands idle in the other hours", "this is the mean"
    EVERY = "this is what every hour needs"

    def reserves(expected, causes, costs, needed, reserved, on_demand):
        """`costs` has the cost of the hours with 0, 1, 2, … reserved GPUs; `causes` maps wrong numbers to reasons."""
        got = reserve(list(needed), reserved, on_demand)
        priced = type(got) is int and 0 <= got < len(costs)
        said = f"this costs {costs[got]:g}, and {expected} reserved cost {costs[expected]:g}" if priced else ""
        shown = f"{list(needed)[:12]}{' …' if len(needed) > 12 else ''}"
        hints = "; ".join(filter(None, (said, causes.get(got, "")))) if got != expected else ""
        check.equal(got, expected, what=f"GPUs to reserve for {shown} at {reserved} and {on_demand}", hint=hints)

    worked = [100, 92, 84, 81, 78, 85, 92, 99, 106, 113, 120]
    reserves(4, {10: PEAK, 5: MEAN, 2: EVERY}, worked, [2, 4, 4, 10], 3, 5)
    reserves(10, {5: MEAN, 2: EVERY}, [100, 84, 68, 57, 46, 45, 44, 43, 42, 41, 40], [2, 4, 4, 10], 1, 5)
    reserves(
        0, {10: PEAK, 5: MEAN, 2: EVERY}, [100, 100, 100, 105, 110, 125, 140, 155, 170, 185, 200], [2, 4, 4, 10], 5, 5
    )
    reserves(3, {}, [18, 15, 12, 9], [3, 3, 3], 1, 2)
    reserves(0, {8: PEAK, 4: MEAN}, [16, 16, 16, 16, 16, 16, 16, 16, 16], [0, 8], 1, 2)
    reserves(9, {5: MEAN, 1: EVERY}, [52.5, 45.0, 41.0, 37.0, 33.0, 29.0, 28.5, 28.0, 27.5, 27.0], [1, 5, 9], 1, 3.5)
    reserves(0, {}, [0], [], 1, 2)
    reserves(250, {}, [], [250, 250, 100], 1, 2)
    reserves(100, {300: "this rounds the prices"}, [], [300] * 50 + [100] * 52, 1.24, 2.49)
    reserves(10, {0: "reserved GPUs are free here"}, [100, 85, 70, 60, 50, 40, 30, 20, 10, 5, 0], [2, 4, 4, 10], 0, 5)
    hours = [4, 10, 2, 4]
    left = arguments_after(reserve, list(hours), 3, 5)[0]
    check.true(left == hours, f"reserve({hours}, 3, 5) has changed `needed` to {left}")
    ### BEGIN HIDDEN TESTS
    for seed in range(20):
        rng = check.rng(seed)
        hours = int(rng.integers(1, 200))
        needed = [int(v) for v in rng.integers(0, 40, hours)]
        reserved, on_demand = int(rng.integers(1, 9)), int(rng.integers(1, 9))
        costs = [
            hours * count * reserved + sum(max(0, each - count) for each in needed) * on_demand
            for count in range(max(needed) + 1)
        ]
        reserves(costs.index(min(costs)), {}, costs, needed, reserved, on_demand)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "reserve",
    "Ask of each GPU in turn, the first, the second, …: in how many hours would it be used?",
    "Reserve one more as long as its used hours on demand cost more than all hours reserved.",
)
HOURS = [100 if 9 <= hour < 19 else 20 for hour in range(24)]
with reveal("reserved"):
    show.against_prediction("reserved", 20, "GPUs", source="10 of 24 hours are less than half")
    plot, axes = figure(width=8.5, height=2.8)
    ordered = sorted(HOURS, reverse=True)
    axes.step(np.arange(25), [*ordered, ordered[-1]], where="post", color=palette.blue)
    axes.fill_between(np.arange(25), 20, step="post", color=palette.green, alpha=0.3)
    axes.axvline(12, color=palette.grey, ls=":")
    axes.text(12.2, 70, "used in more than half\nof the hours: reserve", size=9)
    axes.text(12.2, 8, "reserved", color=palette.green, weight="bold")
    axes.set(xlabel="hours of a day, the busiest first", ylabel="GPUs needed", xlim=(0, 24), ylim=(0, 112))
    show.figure(plot, "Hours of a day sorted by need: the line crosses half of the day at 20 GPUs")
debrief(
    "reserve",
    """Sort the hours by need, the busiest first, and go down the share reserved/on_demand of them: the need there is
    the answer. This is the newsvendor problem: neither the mean nor the peak matters, only how often the last GPU is
    used.

    The same curve says what one good hour is worth as evidence. If you own 100 GPUs and measure in a busy hour of this day, all of them
    work; over the whole day it is 53% of them.""",
)

# %% [markdown]
# ## 5 · Buy or rent?
#
# An owned GPU costs its purchase and upkeep in every hour, and power on top: less when it idles than when it works. A rented one
# costs only while it works. So the choice depends on the **utilisation**, the share of the hours in which it works.
#
# *Worked example.* A GPU with its share of server and network costs 40,000, and lasts 4 years; hosting and staff cost 4,000 a
# year. That is 14,000 a year, or 1.598 per hour of 8,760. It draws 0.3 kW idle and 1.3 kW at work, and a kilowatt-hour costs
# 0.10. At utilisation *u* an hour costs 1.598 + 0.10 · (0.3 + 1.0 · *u*) owned, and 2.50 · *u* rented. The two are equal
# at *u* = 1.628 / 2.40 = 0.678.
#
# ### Exercise 5 (12 points)
#
# `break_even(purchase, years, upkeep, idle_kw, busy_kw, per_kwh, rent) -> float` is the utilisation above which owning is
# cheaper. `upkeep` is per year, `rent` per hour. The result may be above 1, which means never. Return infinity if `rent` does
# not exceed the price of the power that work adds to idling, and raise `ValueError` naming `years` and its value if it is not above 0.

# %% tags=["demo"]
myth("plan-1")
predict(
    "owned_years",
    "The GPU of the example again, but used for only 2 years instead of 4. At which utilisation does it break even?",
    unit="",
)


# %% nbgrader={"grade": false, "grade_id": "break_even", "locked": false, "schema_version": 3, "solution": true, "task": false}
def break_even(
    purchase: float, years: float, upkeep: float, idle_kw: float, busy_kw: float, per_kwh: float, rent: float
) -> float:
    """The utilisation above which owning is cheaper than renting."""
    ### BEGIN SOLUTION
    if not years > 0:
        raise ValueError(f"years = {years}: expected more than 0")
    fixed = (purchase / years + upkeep) / 8760 + per_kwh * idle_kw
    saved = rent - per_kwh * (busy_kw - idle_kw)
    return fixed / saved if saved > 0 else math.inf
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "break_even_test_values", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("break_even", "where the two cost the same", part="values", hidden="other prices"):

    def breaks_even(expected, slips, purchase, years, upkeep, idle_kw, busy_kw, per_kwh, rent):
        got = break_even(purchase, years, upkeep, idle_kw, busy_kw, per_kwh, rent)
        case = f"utilisation for purchase {purchase:g}, {years:g} years, upkeep {upkeep:g}, {idle_kw} to {busy_kw} kW, {per_kwh} per kWh, rent {rent}"
        check.close(got, expected, rtol=1e-9, what=case, hint=cause_of(got, slips))

    worked = {
        "this leaves power out": 0.639269406393,
        "this leaves upkeep out": 0.488146879756,
        "this has full power in every hour, working or not": 0.691269406393,
        "this counts busy_kw on top of idle_kw; it includes it": 0.686993044718,
        "this leaves the power of idle hours out": 0.665905631659,
        "this spreads the purchase over one year": 2.10534627093,
    }
    breaks_even(0.678405631659, worked, 40_000, 4, 4_000, 0.3, 1.3, 0.10, 2.50)
    breaks_even(1.15405251142, {}, 40_000, 2, 4_000, 0.3, 1.3, 0.10, 2.50)
    breaks_even(4.00793378995, {}, 40_000, 0.5, 4_000, 0.3, 1.3, 0.10, 2.50)
    breaks_even(0.0942219880576, {}, 30_000, 5, 0, 0.2, 1.0, 0.25, 8.00)
    breaks_even(2.28310502283, {}, 60_000, 3, 9_000, 0.0, 1.0, 0.05, 1.50)
    breaks_even(3.92694063927, {}, 5_000, 4, 0, 0.5, 1.5, 0.50, 0.60)
    ### BEGIN HIDDEN TESTS
    for seed in range(10):
        rng = check.rng(seed)
        low, high = float(rng.uniform(0, 0.5)), float(rng.uniform(0.6, 2))
        price, years = float(rng.uniform(1e4, 8e4)), float(rng.uniform(1, 7))
        upkeep, per_kwh, rent = float(rng.uniform(0, 1e4)), float(rng.uniform(0.02, 0.4)), float(rng.uniform(1, 12))
        fixed, saved = (price / years + upkeep) / 8760 + per_kwh * low, rent - per_kwh * (high - low)
        breaks_even(fixed / saved, {}, price, years, upkeep, low, high, per_kwh, rent)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "break_even_test_edges", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("break_even", "never, and no years", part="edges", hidden="other years"):
    check.equal(break_even(40_000, 4, 0, 0.0, 1.0, 0.5, 0.5), math.inf, what="rent that is just the power of work")
    check.equal(break_even(40_000, 4, 0, 0.2, 1.2, 0.5, 0.3), math.inf, what="rent below the power of work")
    check.raises(ValueError, break_even, 40_000, 0, 4_000, 0.3, 1.3, 0.1, 2.5, names=("years", "0"))
    check.raises(ValueError, break_even, 40_000, -2, 4_000, 0.3, 1.3, 0.1, 2.5, names=("years", "-2"))
    ### BEGIN HIDDEN TESTS
    check.raises(ValueError, break_even, 40_000, -0.5, 4_000, 0.3, 1.3, 0.1, 2.5, names=("years", "-0.5"))
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "break_even",
    "Write both costs of an hour as a + b·u, and set them equal.",
    "Owned: a = (purchase/years + upkeep)/8760 + per_kwh·idle_kw and b = per_kwh·(busy_kw − idle_kw). Rented: a = 0, b = rent.",
)


def owned_hour(utilisation, years=4, purchase=40_000):
    return (purchase / years + 4_000) / 8760 + 0.10 * (0.3 + 1.0 * utilisation)


def draw_break_even(years, rent):
    plot, axes = figure(width=8.5, height=3.0)
    share = np.linspace(0, 1, 50)
    axes.plot(share, owned_hour(share, years), color=palette.blue)
    axes.plot(share, rent * share, color=palette.vermillion)
    axes.text(
        0.02,
        owned_hour(0.02, years) + 0.15,
        f"owned, {years} year{'s' * (years > 1)}",
        color=palette.blue,
        weight="bold",
    )
    axes.text(1.01, rent, f"rented at ${rent:.2f}", color=palette.vermillion, weight="bold", va="center")
    cross = (owned_hour(0, years)) / (rent - 0.10)
    if cross <= 1:
        axes.plot(cross, rent * cross, "o", color=palette.ink)
        axes.text(cross, rent * cross + 0.35, f"{cross:.0%}", ha="center", weight="bold")
    axes.set(xlabel="utilisation", ylabel="$ per GPU and hour", xlim=(0, 1), ylim=(0, 8))
    return plot


with reveal("owned_years"):
    show.against_prediction("owned_years", round(owned_hour(0, 2) / 2.4, 2), "", source="model")
explore(
    draw_break_even,
    labels={"years": "years of use", "rent": "rent ($ per GPU and hour)"},
    years=(1, 7, 1, 4),
    rent=(1.5, 8.0, 0.5, 2.5),
)
from threeloops.capstone import make_plan, read_scenario

PRICED = make_plan(read_scenario("7b_finetuning"))
EVEN = PRICED["break_even_utilisation"]
names = ("cloud_list_price", "purchase_per_gpu", "power_kw", "electricity_price", "own_per_gpu_hour")
show.table(
    [(q.label, f"{q.value:,.2f} {q.unit}", q.source) for q in PRICED.quantities if q.name in names],
    header=("price of an H100", "value", "source"),
)
audit(
    "plan-1",
    round(EVEN, 2),
    "utilisation at break-even",
    "model",
    "corrected",
    f"true from a utilisation of {EVEN:.0%} on, over 4 years and at the prices in the table, whose sources are named; in the example above "
    f"from {owned_hour(0) / 2.4:.0%} on, and never if the GPU serves two years. The claim says 'high' and gives no number",
)
debrief(
    "break_even",
    """An owned GPU costs nearly the same whether it works or not. In the example it saves 31% against renting if it works in every hour, and
    costs 2.2 times the rent if it works in 30% of them. So the question is what utilisation you can promise over the whole life, nights
    and the last year included.

    Years matter as much as the price, and nobody knows them in advance: a GPU's life ends when a newer one does the same work for less than its
    power and upkeep. Rents fall, too, so compare with what renting will cost, not with what it costs today.""",
    parts=("values", "edges"),
)

# %% [markdown]
# ## 6 · Now you are the board
#
# Most bad plans have one of a few faults. You get proposals, and name their faults.
#
# *Worked example.* A proposal for 8B on 16 H100s, 64 sequences of 8,192 tokens per step, assumes 900 GB/s inside nodes.
# An H100's NVLink has 900 in both directions together, so 450 in each, and collectives reach 335 of them
# (`machine.inside.bandwidth`): "links". It claims 1.0 s for a step, and the planner says 2.85 s with FSDP: "step". Its days
# follow from its own step and its cost from its own days, so these two are not held against it again.
#
# ### Exercise 6 (16 points)
#
# `review(proposal) -> list[str]`: the faults, in this order. A claim may be 5% better than the library says, not more.
#
# - `"memory"`: the fullest GPU needs more than `ALLOCATED_SHARE` of `machine.memory_bytes` (no 5% here).
# - `"links"`: `proposal.inside`, in bytes/s, is more than `machine.inside.bandwidth`.
# - `"step"`: `proposal.step` seconds are fewer than the planner's.
# - `"days"`: `proposal.days` are fewer than the *proposed* step needs with failures, at the best interval.
# - `"cost"`: `proposal.cost` is less than the *proposed* days cost, for all `layout.gpus` at `proposal.price` per GPU-hour.
#
# A claim is a fault if it is below the library's number divided by 1.05, or for links above 1.05 times it. The first lines
# are given. For the days there is `run_days(work, nodes, node_mtbf, save, recovery, interval)`, where `work` is the seconds
# of all `steps`; a proposal has `node_mtbf`, `save` and `recovery`.


# %% nbgrader={"grade": false, "grade_id": "review", "locked": false, "schema_version": 3, "solution": true, "task": false}
def review(proposal: Proposal) -> list[str]:
    """The faults of a proposal."""
    model, machine, layout = proposal.model, proposal.machine, proposal.layout
    nodes = layout.gpus // machine.gpus_per_node
    steps = proposal.tokens / (layout.batch * layout.sequence)
    fullest = max(rank.total for rank in memory(model, layout))  # bytes on the fullest GPU
    planned = step_time(model, machine, layout).seconds  # of a step, by the planner
    ### BEGIN SOLUTION
    work = steps * proposal.step
    interval = best_interval(proposal.save, proposal.node_mtbf / nodes)
    days = run_days(work, nodes, proposal.node_mtbf, proposal.save, proposal.recovery, interval)
    found = {
        "memory": fullest > ALLOCATED_SHARE * machine.memory_bytes,
        "links": proposal.inside > 1.05 * machine.inside.bandwidth,
        "step": proposal.step < planned / 1.05,
        "days": proposal.days < days / 1.05,
        "cost": proposal.cost < proposal.days * 24 * layout.gpus * proposal.price / 1.05,
    }
    return [name for name, is_there in found.items() if is_there]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "review_test_machine", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("review", "memory and links", part="machine", hidden="other layouts"):

    def names_of_machine(proposal, expected, why=""):
        found = review(proposal)
        check.true(isinstance(found, (list, tuple)), f"{found!r}: expected a list of names")
        got = [name for name in found if name in ("memory", "links")]
        used = max(each.total for each in memory(proposal.model, proposal.layout)) / 2**30
        has = proposal.machine.memory_bytes / 2**30
        case = (
            f"a layout with {used:.1f} GiB on its fullest GPU of {has:.0f}, links at {proposal.inside / 1e9:.0f} GB/s"
        )
        check.equal(got, expected, what=f'of "memory" and "links", those found for {case}', hint=why)

    names_of_machine(propose(*seventy, FITS, 2e12), [])
    names_of_machine(
        propose(*seventy, FULL, 2e12), ["memory"], "parameters, gradients and optimizer states, all of them"
    )
    names_of_machine(propose(*seventy, FITS, 2e12, inside=2), ["links"], "both directions are counted")
    names_of_machine(propose(*seventy, FITS, 2e12, inside=1.04), [], "4% better is allowed")
    names_of_machine(propose(*seventy, FITS, 2e12, inside=1.051), ["links"], "this is 1.051 times what it has")
    names_of_machine(propose(*seventy, FULL, 2e12, inside=2), ["memory", "links"])
    uneven = Plan(64, 16384, dp=4, pp=8, tp=4, zero=2)
    names_of_machine(
        propose(*seventy, uneven, 1e12), ["memory"], "the fullest GPU counts: the first stage's, not the mean"
    )
    tight = replace(h100_node(), memory_bytes=max(each.total for each in memory(LLAMA_70B, FITS)) / 0.92)
    names_of_machine(
        propose(LLAMA_70B, tight, FITS, 2e12),
        ["memory"],
        "92% of the memory is more than ALLOCATED_SHARE, and 5% more is not allowed here",
    )
    last = replace(FITS, recompute="full")
    two = [each.total for each in memory(LLAMA_70B, last)]
    between_them = replace(h100_node(), memory_bytes=sum(two) / 2 / ALLOCATED_SHARE)
    names_of_machine(
        propose(LLAMA_70B, between_them, last, 2e12),
        ["memory"],
        "here the second stage is the fuller: it has the logits",
    )
    ### BEGIN HIDDEN TESTS
    for plan in (
        *layouts(LLAMA_70B, a100_node(), 128, 256, 4096)[::17],
        *layouts(LLAMA_8B, a100_node(), 16, 64, 4096)[::9],
    ):
        model = LLAMA_70B if plan.gpus == 128 else LLAMA_8B
        names_of_machine(propose(model, a100_node(), plan, 1e12, inside=1.06), ["links"])
    between = Plan(256, 8192, dp=4, pp=4, tp=8, zero=1)
    for share in (0.89, 0.91, 0.99, 1.01):
        used = max(each.total for each in memory(LLAMA_70B, between))
        machine = replace(h100_node(), memory_bytes=used / share)
        names_of_machine(propose(LLAMA_70B, machine, between, 1e12), ["memory"] if share > 0.9 else [])
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "review_test_claims", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("review", "step, days and cost", part="claims", hidden="other claims, and several at once"):

    def names_of_claims(proposal, expected, why=""):
        got = [name for name in review(proposal) if name not in ("memory", "links")]
        case = f"a step of {proposal.step:.2f} s, {proposal.days:.1f} days, {proposal.cost / 1e6:.3f} million"
        check.equal(got, expected, what=f"claims found wrong for {case}", hint=why)

    names_of_claims(propose(*seventy, FITS, 2e12), [], "these are the library's numbers")
    names_of_claims(propose(*seventy, FITS, 2e12, step=0.6), ["step"], "days and cost follow from the proposed step")
    names_of_claims(propose(*seventy, FITS, 2e12, days=0.9), ["days"], "failures and saves take longer than that")
    names_of_claims(propose(*seventy, FITS, 2e12, cost=0.5), ["cost"])
    names_of_claims(propose(*seventy, FITS, 2e12, step=0.97, days=0.97, cost=0.97), [], "each is 3% better: allowed")
    names_of_claims(propose(*seventy, FITS, 2e12, step=1.5, days=1.5, cost=1.5), [], "too careful is not a fault")
    names_of_claims(propose(*seventy, FITS, 2e12, step=0.6, cost=0.1), ["step", "cost"])
    names_of_claims(
        propose(*seventy, FITS, 2e12, step=0.93, days=0.93, cost=0.93), ["step", "days", "cost"], "each is 7% better"
    )
    quiet = replace(propose(*seventy, FITS, 2e12), node_mtbf=20 * DAY)
    names_of_claims(quiet, ["days"], "these nodes fail ten times as often")
    names_of_claims(
        propose(*seventy, FITS, 2e12, node_mtbf=5 * DAY),
        [],
        "the best interval is that of a job which fails this often",
    )
    names_of_claims(
        propose(*seventy, FITS, 2e12, step=0.951, days=0.951, cost=0.951),
        ["step", "days", "cost"],
        "0.951 of the library's numbers is less than 1/1.05 of them",
    )
    four = replace(h100_node(), gpus_per_node=4)
    names_of_claims(propose(LLAMA_70B, four, FITS, 2e12), [], "a node has 4 GPUs here, so 512 are 128 nodes")
    names_of_claims(
        propose(*seventy, FITS, 2e12, inside=2, step=0.94),
        ["step"],
        "the step is that of the machine, whatever links are claimed",
    )
    slow_saves = {"save": 900, "recovery": 3600, "node_mtbf": 6 * DAY}
    names_of_claims(propose(*seventy, FITS, 2e12, **slow_saves), [], "save 900 s, recovery 3,600 s")
    names_of_claims(propose(*seventy, FITS, 2e12, days=0.93, **slow_saves), ["days"], "save 900 s, recovery 3,600 s")
    names_of_claims(propose(*seventy, FITS, 2e12, price=1.2), [], "a GPU-hour costs 1.20")
    names_of_claims(propose(*seventy, FITS, 2e12, price=4.0, cost=0.93), ["cost"], "a GPU-hour costs 4.00")
    worst = propose(*seventy, FULL, 2e12, inside=2, step=0.5, days=0.5, cost=0.5)
    names_of_claims(worst, ["step", "days", "cost"], "the proposal has all five faults, and none hides another")
    found = list(review(worst))
    in_order = [name for name in ("memory", "links", "step", "days", "cost") if name in found]
    check.equal(found, in_order, what="faults in the order of the list")
    names_of_claims(
        propose(LLAMA_70B, four, FITS, 2e12, node_mtbf=2 * DAY, days=0.93),
        ["days"],
        "128 nodes of 4 GPUs fail this often",
    )
    ### BEGIN HIDDEN TESTS
    for seed in range(24):
        rng = check.rng(seed)
        factors = {name: float(rng.choice((0.5, 0.94, 0.96, 1.0, 1.2))) for name in ("step", "days", "cost")}
        expected = [name for name, factor in factors.items() if factor < 1 / 1.05]
        names_of_claims(propose(LLAMA_8B, a100_node(), Plan(64, 4096, dp=16, zero=3), 3e11, **factors), expected)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "review",
    "The first three compare one number each: `fullest`, `proposal.inside` and `proposal.step`.",
    "For the days, work is `steps` times the *proposed* step. Then `run_days` with the best interval of the job.",
    "Compare as the list says: fewer than library/1.05 is a fault.",
)
debrief(
    "review",
    """Each claim is judged from the claims before it, as a reviewer would: otherwise one optimistic step shows up as three faults, and the
    author mends the wrong one.

    The tolerance goes one way. A plan that is too careful costs money, and that is a choice; one that is too optimistic is late. The
    planner has errors of its own, and `python -m benchmarks parallel` shows them for 22 published runs: a board that
    insists on 1% would judge the planner's errors, not yours.""",
    parts=("machine", "claims"),
)

# %% [markdown]
# ## 7 · The plan
#
# *Worked example.* Somebody asks for 2·10¹² tokens on the 70B model, in 40 days, for 1.2 million, on 16, 64 or 256 nodes.
# 16 nodes take 139 days. 64 take 36 days and cost 1.09 million, 256 take 9 days and cost 1.15. Offer 64; the next best is
# 256. If 30 days and 1.1 million were asked for, no size would meet both, and a good refusal says what it would take: 36 days at that
# budget, or 1.15 million by that date.
#
# ### Exercise 7 (18 points)
#
# `answer(ask) -> Offer | Refusal` decides. The first lines are given: they try each of `ask.nodes` on which a layout fits,
# with the fastest layout and the best interval, and collect what the board would calculate.
#
# - If some meet both `ask.days` and `ask.budget`: `Offer(nodes, layout, interval, next_best)` of the cheapest. `next_best` is
#   the number of nodes of the second cheapest that meets both, or `None` if there is none.
# - Otherwise `Refusal(days, budget)`: the fewest days among those within the budget, and the least cost among those
#   in time, each `None` if there are none.
#
# Offers may cost 1% more than the cheapest.


# %% nbgrader={"grade": false, "grade_id": "answer", "locked": false, "schema_version": 3, "solution": true, "task": false}
def answer(ask: Ask) -> Offer | Refusal:
    """An offer, or a refusal that says what it would take."""
    options = []
    for nodes in ask.nodes:
        found = layouts(ask.model, ask.machine, nodes * ask.machine.gpus_per_node, ask.batch, ask.sequence)
        if found:
            interval = best_interval(ask.save, ask.node_mtbf / nodes)
            days, cost = outcome(ask, nodes, found[0], interval)
            options.append((cost, days, nodes, found[0], interval))
    ### BEGIN SOLUTION
    good = sorted((each for each in options if each[0] <= ask.budget and each[1] <= ask.days), key=lambda each: each[0])
    if good:
        _, _, nodes, layout, interval = good[0]
        return Offer(nodes, layout, interval, good[1][2] if len(good) > 1 else None)
    return Refusal(
        min((days for cost, days, *_ in options if cost <= ask.budget), default=None),
        min((cost for cost, days, *_ in options if days <= ask.days), default=None),
    )
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "answer_test_offers", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("answer", "what is offered", part="offers", hidden="other models, machines and failures"):

    def offers(ask, rows, least):
        got = answer(ask)
        check.true(isinstance(got, Offer), f"{got}: expected an Offer; {said_of(ask, rows)}")
        check.true(got.nodes in ask.nodes, f"nodes = {got.nodes}: expected one of {ask.nodes}")
        gpus = ask.machine.gpus_per_node
        what = f"GPUs of the layout for {got.nodes} nodes of {gpus}"
        check.equal(got.layout.gpus, got.nodes * gpus, what=what)
        shape = (got.layout.batch, got.layout.sequence)
        check.equal(shape, (ask.batch, ask.sequence), what="batch and sequence of the layout, which are asked for")
        used = max(each.total for each in memory(ask.model, got.layout))
        check.true(
            used <= ALLOCATED_SHARE * ask.machine.memory_bytes, f"{got.layout}: {used / 2**30:.1f} GiB do not fit"
        )
        days, cost = outcome(ask, got.nodes, got.layout, got.interval)
        said = f"{got.nodes} nodes: {days:.1f} days, {cost / 1e6:.3f} million; {said_of(ask, rows)}"
        check.true(days <= ask.days and cost <= ask.budget, f"{said}: this does not meet what was asked")
        check.true(cost <= 1.01 * least, f"{said}: a cheaper one meets it too")
        check.note(f"{ask.model.parameters / 1e9:.0f}B within {ask.days} days: cost", round(cost), round(least), "")

    offers(SEVENTY, SEVENTY_ROWS, 1_092_701)
    offers(replace(SEVENTY, days=20), SEVENTY_ROWS, 1_148_551)
    offers(replace(SEVENTY, days=200), SEVENTY_ROWS, 1_071_275)
    offers(replace(SEVENTY, nodes=(256, 64, 16), days=200), SEVENTY_ROWS, 1_071_275)
    offers(HUGE, HUGE_ROWS, 7_216_689)
    offers(
        replace(SEVENTY, model=LLAMA_8B, nodes=(2, 8), days=60, budget=1.2e5),
        [(113_352, 118.07481, 2), (113_870, 29.65375, 8)],
        113_870,
    )
    slow_saves = replace(SEVENTY, model=LLAMA_8B, nodes=(2, 8), batch=256, sequence=8192, tokens=1e12)
    slow_saves = replace(slow_saves, node_mtbf=6 * DAY, save=600, recovery=6000, budget=1e5)
    offers(replace(slow_saves, days=30), [(66_026, 68.77698, 2), (75_994, 19.7901, 8)], 75_994)
    offers(
        replace(SEVENTY, machine=replace(h100_node(), gpus_per_node=4), nodes=(32, 128), days=60, budget=2e6),
        [(1_257_546, 163.74302, 32), (1_397_603, 45.49488, 128)],
        1_397_603,
    )
    offers(
        replace(SEVENTY, node_mtbf=4 * DAY, nodes=(32, 64), days=100, budget=2e6),
        [(1_247_455, 81.21452, 32), (1_387_993, 45.18205, 64)],
        1_247_455,
    )
    ### BEGIN HIDDEN TESTS

    def options_of(ask):
        """(cost, days, nodes) of every number of nodes on which something fits, cheapest first."""
        rows = []
        for nodes in ask.nodes:
            found = layouts(ask.model, ask.machine, nodes * ask.machine.gpus_per_node, ask.batch, ask.sequence)
            if found:
                days, cost = outcome(ask, nodes, found[0], best_interval(ask.save, ask.node_mtbf / nodes))
                rows.append((cost, days, nodes))
        return sorted(rows)

    def offers_elsewhere(ask):
        rows = options_of(ask)
        offers(ask, rows, next(cost for cost, days, _ in rows if cost <= ask.budget and days <= ask.days))

    offers_elsewhere(replace(SEVENTY, node_mtbf=4 * DAY, nodes=(16, 32, 64, 128), days=150, budget=2e6))
    offers_elsewhere(replace(SEVENTY, machine=a100_node(), nodes=(16, 64, 128), days=200, budget=5e6, price=1.5))
    offers_elsewhere(replace(SEVENTY, model=LLAMA_405B, tokens=1e11, nodes=(16, 32, 64, 128, 256), days=30, budget=9e6))
    offers_elsewhere(replace(SEVENTY, tokens=1e10, nodes=(4, 8), days=2, budget=1e6, save=300, recovery=3000))
    ### END HIDDEN TESTS


# %% nbgrader={"grade": true, "grade_id": "answer_test_refusals", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("answer", "what is refused", part="refusals", hidden="other asks"):

    def refuses(ask, rows, days, budget):
        got = answer(ask)
        check.true(isinstance(got, Refusal), f"{got}: expected a Refusal; {said_of(ask, rows)}")
        for name, own, expected, why in (
            ("days", got.days, days, "the fewest days among those within the budget"),
            ("budget", got.budget, budget, "the least cost among those in time"),
        ):
            if expected is None or own is None:
                check.equal(own, expected, what=f"{name} of the refusal; {said_of(ask, rows)}", hint=why)
            else:
                check.close(own, expected, rtol=0.01, what=f"{name} of the refusal; {said_of(ask, rows)}", hint=why)

    refuses(replace(SEVENTY, days=30, budget=1.1e6), SEVENTY_ROWS, 35.5697, 1_148_551)
    refuses(replace(SEVENTY, days=30, budget=1.0e6), SEVENTY_ROWS, None, 1_148_551)
    refuses(replace(SEVENTY, budget=1.0e6), SEVENTY_ROWS, None, 1_092_701)
    refuses(replace(SEVENTY, days=5), SEVENTY_ROWS, 9.34693, None)
    refuses(replace(SEVENTY, days=5, budget=1e5), SEVENTY_ROWS, None, None)
    refuses(replace(SEVENTY, model=LLAMA_405B, nodes=(1, 2), days=1e4, budget=1e12), [], None, None)
    refuses(replace(SEVENTY, nodes=()), [], None, None)
    slow_saves = replace(SEVENTY, model=LLAMA_8B, nodes=(2, 8), batch=256, sequence=8192, tokens=1e12)
    slow_saves = replace(slow_saves, node_mtbf=6 * DAY, save=600, recovery=6000, budget=1e5)
    refuses(replace(slow_saves, days=19), [(66_026, 68.77698, 2), (75_994, 19.7901, 8)], 19.7901, None)
    ### BEGIN HIDDEN TESTS

    def options_of(ask):
        """(cost, days, nodes) of every number of nodes on which something fits, cheapest first."""
        rows = []
        for nodes in ask.nodes:
            found = layouts(ask.model, ask.machine, nodes * ask.machine.gpus_per_node, ask.batch, ask.sequence)
            if found:
                days, cost = outcome(ask, nodes, found[0], best_interval(ask.save, ask.node_mtbf / nodes))
                rows.append((cost, days, nodes))
        return sorted(rows)

    def refuses_elsewhere(ask):
        rows = options_of(ask)
        days = min((days for cost, days, _ in rows if cost <= ask.budget), default=None)
        refuses(ask, rows, days, min((cost for cost, days, _ in rows if days <= ask.days), default=None))

    refuses_elsewhere(replace(SEVENTY, node_mtbf=1 * DAY, days=60, budget=1.5e6))
    refuses_elsewhere(replace(SEVENTY, machine=a100_node(), days=100, budget=1e6, price=1.5))
    refuses_elsewhere(replace(SEVENTY, model=LLAMA_405B, nodes=(16, 32, 64, 128), days=100, budget=7e6))
    ### END HIDDEN TESTS


# %% nbgrader={"grade": true, "grade_id": "answer_test_runner_up", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("answer", "the next best", part="runner_up", hidden="other asks"):

    def next_is(ask, rows, expected):
        got = answer(ask)
        check.true(isinstance(got, Offer), f"{got}: expected an Offer; {said_of(ask, rows)}")
        check.equal(
            got.next_best,
            expected,
            what=f"next_best; {said_of(ask, rows)}",
            hint="the second cheapest of those that meet both",
        )

    next_is(SEVENTY, SEVENTY_ROWS, 256)
    next_is(replace(SEVENTY, days=20), SEVENTY_ROWS, None)
    next_is(replace(SEVENTY, budget=1.1e6), SEVENTY_ROWS, None)
    next_is(replace(SEVENTY, days=200), SEVENTY_ROWS, 64)
    next_is(replace(SEVENTY, days=200, nodes=(256, 16, 64)), SEVENTY_ROWS, 64)
    next_is(HUGE, HUGE_ROWS, 64)
    ### BEGIN HIDDEN TESTS

    def options_of(ask):
        """(cost, days, nodes) of every number of nodes on which something fits, cheapest first."""
        rows = []
        for nodes in ask.nodes:
            found = layouts(ask.model, ask.machine, nodes * ask.machine.gpus_per_node, ask.batch, ask.sequence)
            if found:
                days, cost = outcome(ask, nodes, found[0], best_interval(ask.save, ask.node_mtbf / nodes))
                rows.append((cost, days, nodes))
        return sorted(rows)

    def next_elsewhere(ask):
        rows = options_of(ask)
        good = [nodes for cost, days, nodes in rows if cost <= ask.budget and days <= ask.days]
        next_is(ask, rows, good[1] if len(good) > 1 else None)

    next_elsewhere(replace(SEVENTY, model=LLAMA_405B, tokens=1e11, nodes=(256, 64, 32, 16, 128), days=30, budget=9e6))
    next_elsewhere(replace(SEVENTY, node_mtbf=4 * DAY, nodes=(16, 32, 64, 128), days=150, budget=2e6))
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "answer",
    "`options` has the cost, days, nodes, layout and interval of each. Keep those within both limits.",
    "Sort these by cost: the first is the offer, the second the next best. If none is left, look at `options` again.",
    "`min(…, default=None)` gives None if nothing is left.",
)
SIZES = (16, 32, 64, 128, 256, 512, 1024)
RUNS = []
for nodes in SIZES:
    layout = layouts(LLAMA_70B, h100_node(), 8 * nodes, 1024, 4096)
    if layout:
        interval = best_interval(60, 180 * DAY / nodes)
        step = step_time(LLAMA_70B, h100_node(), layout[0])
        days, cost = outcome(SEVENTY, nodes, layout[0], interval)
        RUNS.append((nodes, step, days, cost, useful_share(interval, 60, 600, 180 * DAY / nodes)))


def draw_size(number):
    """Where the GPU-hours of a run go, and what it costs, up to this size."""
    plot, (left, right) = figure(columns=2, width=9.5, height=3.2)
    nodes, step, days, cost, useful = RUNS[number]
    ideal = step.model_flops / step.plan.gpus / step.peak_flops
    parts = {
        "useful FLOPs at the peak rate": ideal / step.seconds * useful,
        "kernels below peak": (step.compute - ideal) / step.seconds * useful,
        "communication and bubble": (step.seconds - step.compute) / step.seconds * useful,
        "saves and failures": 1 - useful,
    }
    colors = (palette.green, palette.sky, palette.orange, palette.vermillion)
    for place, ((name, share), color) in enumerate(zip(parts.items(), colors, strict=True)):
        left.barh(-place, 100 * share, color=color)
        left.text(100 * share + 1, -place, f"{name}: {share:.0%}", va="center", size=9)
    left.set(xlim=(0, 170), xlabel="% of the GPU-hours", title=f"{nodes:,} nodes", yticks=[])
    left.set_xticks(range(0, 101, 25))
    shown = RUNS[: number + 1]
    right.plot([each[2] for each in shown], [each[3] / 1e6 for each in shown], "o-", color=palette.blue)
    right.text(days, cost / 1e6 + 0.08, f"{days:.0f} days", ha="center", size=9)
    right.set(xscale="log", xlim=(4, 250), ylim=(0, 3.4), xlabel="days", ylabel="cost (millions of $)")
    right.set_xticks([5, 10, 20, 50, 100, 200], ["5", "10", "20", "50", "100", "200"])
    right.minorticks_off()
    return plot


animate(
    draw_size,
    range(len(RUNS)),
    seconds=1.2,
    caption="2·10¹² tokens on a 70B model: up to 256 nodes the days fall and the cost hardly rises; beyond, the batch "
    "is too small for so many GPUs, and communication takes what they add",
)
debrief(
    "answer",
    """From 16 to 256 nodes the cost rises by 7% only: GPU-hours are nearly the same, and what differs is the share that failures take. So
    the deadline decides, and the cheapest size is usually the smallest that meets it. Not always: if the memory of few
    nodes forces recomputation, more nodes are cheaper and faster, as with 405B, which costs less on 32 nodes than on
    16. And it ends: 1,024 sequences per step cannot keep 8,192 GPUs busy, so 1,024 nodes cost 2.7 times as much as 256
    and save three days.

    A refusal that says what it would take is worth more than a hopeful yes, because whoever asked can then choose between time and money.""",
    parts=("offers", "refusals", "runner_up"),
)

# %% [markdown]
# ## Your plan, from the first number to the last day
#
# The 70B run again, now by your functions alone: what to offer, in a layout that withstands a slow network, how long it
# takes, what to reserve for the year and whether to buy, judged by your own review. Then a run is drawn at random,
# failure by failure, beside your schedule. The robust layout takes six days more than the one that is offered, and
# misses the 40 days. What do you tell the board?

# %% tags=["demo"] jupyter={"source_hidden": true}
if pieces := together("gpu_hours", "schedule", "robust", "reserve", "break_even", "review", "answer"):
    from threeloops.lab.drawings.product.plan import calendar_of, draw_calendar

    ask = SEVENTY
    offer = pieces.answer(ask)
    nodes = offer.nodes
    gpus = nodes * ask.machine.gpus_per_node
    layout = pieces.robust(ask.model, worlds(ask.machine), gpus, ask.batch, ask.sequence)
    step = step_time(ask.model, ask.machine, layout)
    work = ask.tokens / (ask.batch * ask.sequence) * step.seconds
    interval, days = pieces.schedule(work, nodes, ask.node_mtbf, ask.save, ask.recovery)
    cost = days * 24 * gpus * ask.price
    rate = step.model_flops / gpus / step.seconds
    hours = pieces.gpu_hours(ask.model.parameters, ask.tokens, rate, False)
    year = [gpus + 64] * round(24 * days) + [64] * (8760 - round(24 * days))  # and a service on 64 GPUs
    links = ask.machine.inside.bandwidth
    claims = (ask.node_mtbf, ask.save, ask.recovery, ask.price, links)
    plan = Proposal(ask.model, ask.machine, layout, ask.tokens, *claims, step.seconds, days, cost)
    hopeful = replace(plan, inside=2 * links, days=0.9 * work / DAY)
    mtbf = ask.node_mtbf / nodes
    fast_days, fast_cost = outcome(ask, nodes, offer.layout, offer.interval)
    drawn = [calendar_of(work, interval, ask.save, ask.recovery, mtbf, seed) for seed in range(200)]
    ends = sorted(spans[-1].end / DAY for spans, _ in drawn)
    show.table(
        [
            (
                "offer",
                f"{nodes} nodes, {gpus} GPUs; {fast_days:.1f} days and {fast_cost / 1e6:.2f} million, as planned",
            ),
            ("layout for four worlds", f"dp {layout.dp}, pp {layout.pp}, tp {layout.tp}, ZeRO-{layout.zero}"),
            ("GPU-hours by the formula", f"{hours:,.0f}, and {days * 24 * gpus:,.0f} with failures"),
            ("days", f"{days:.2f}, with a save every {interval / 60:.0f} minutes"),
            (
                "days of 200 runs drawn at random",
                f"{np.mean(ends):.2f} on average; nine in ten end within {ends[179]:.2f}",
            ),
            ("cost", f"{cost / 1e6:.2f} million"),
            ("reserve for the year, with a service on 64 GPUs", f"{pieces.reserve(year, 1.5, ask.price)} GPUs"),
            ("buy above a utilisation of", f"{pieces.break_even(40_000, 4, 4_000, 0.3, 1.3, 0.10, ask.price):.0%}"),
            ("your review of this plan", str(list(pieces.review(plan)))),
            (
                "… of one that hopes for 10% fewer days than its steps take, links counted twice",
                str(list(pieces.review(hopeful))),
            ),
        ],
        header=("70B, 2·10¹² tokens", "by your functions"),
    )
    show.figure(
        draw_calendar(*drawn[0], days), "Each day of a run: work that is kept, work that failures cost, and recoveries"
    )

# %% [markdown]
# ## In practice
#
# At work the same questions are asked of more parts: precision, storage, a serving fleet, the choice of accelerator. The library
# has all of it in one place, `threeloops.capstone`. It reads a scenario from a file, calls the models of labs 06, 12, 14, 16
# and 18, and gives each decision a reason, a margin and a runner-up. Prices are data with source and date:
# `threeloops plan 70b_pretraining --output plan` writes it as Markdown, Word, Excel, PDF and slides. The last cell makes that plan
# and puts it into a form: change the model, the GPUs or the prices, and it plans again. The cell takes about 5 seconds.
#
# ## What to remember
#
# - 6 FLOPs per parameter and token, 8 for a rate that counts recomputation. Two published runs took 13 and 17% more.
# - A job fails as often as all its nodes together. Saving a third too often or too rarely costs little.
# - Choose a layout that is still good when the network is slower than promised.
# - Reserve a GPU that is used in more than reserved/on_demand of the hours, and buy one whose utilisation stays above break-even for its whole life.
# - Judge each claim from the claims before it, and if you refuse, say what it would take.
#
# The deep dives (`19_capstone_plan_dives.ipynb`) plan a serving fleet, compare accelerators, and ask what the plan depends on most.
#
# ## Reflection
#
# Your plan was accepted, and after three weeks the run is 20% behind. Which numbers do you look at, in which order, and what
# do you tell the board? A paragraph is enough.

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# First I compare the plan's chain with what was measured, in the order in which each number follows from the one before: the
# step time, then the useful share, then the tokens. If steps are longer than planned, I look at which part: kernels, then collectives,
# which a slower network would lengthen. If steps are as planned, I count failures and the time of saves and recoveries, and compare the
# mean time between failures with the one that I assumed. I tell the board which assumption was wrong and by how much, what it does to the date
# and the cost if nothing changes, and what the smallest change is that keeps either of them: more nodes, another layout,
# a shorter interval, or a later date.

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.lab.plan_form import plan_form

PLAN = make_plan(read_scenario("70b_pretraining"))
show.table(
    [(each.topic, each.choice, each.margin, each.runner_up) for each in PLAN.decisions],
    header=("decision", "choice", "margin", "runner-up"),
    caption=f"{PLAN.scenario.title}: {PLAN['training_days']:.1f} days, {PLAN['total_cost']:,.0f} USD",
)
plan_form(read_scenario("70b_pretraining"))
term("regret")
calibration()
