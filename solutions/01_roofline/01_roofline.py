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
#     title: Is the GPU doing useful math?
#     minutes: 185
#     withholds: [threeloops.inner.costs, threeloops.inner.roofline, threeloops.inner.profiling.operators, threeloops.inner.profiling.peak_memory, threeloops.inner.profiling.profiler, threeloops.lab.drawings.inner.roofline]
#     edition: 2
# ---

# %% [markdown]
# # Is the GPU doing useful math?
#
# ![Memory feeds a chip through a pipe of 3.35 TB/s; five operations wait, and how busy each can keep the chip is unknown](attachment:opening.png)
#
# An H100 can do 989 trillion floating-point operations per second in BF16, and `nvidia-smi` shows a utilisation of 100%.
# That only means that *some* kernel was running all the time. Was the GPU doing math, or was it waiting for bytes or for
# the host?
#
# ## 1 · What an operation costs
#
# Two numbers describe an operation before anybody writes a kernel:
#
# - **Bytes**: the least traffic between memory and chip. Each input is read once, each output is written once, and
#   intermediate values stay on the chip.
# - **FLOPs**: floating-point operations. A multiply-add counts as two, as on data sheets.
#
# Their ratio, FLOPs per byte, is the **arithmetic intensity**.
#
# *Worked example.* A LayerNorm of 2 rows and 3 columns in FP32 reads 6 elements, a scale and a shift of 3 elements each,
# and writes 6. That is 18 elements or 72 bytes. It does 7 FLOPs per element (sum, subtract the mean, square, sum of
# squares, divide by the deviation, scale, shift), 42 in all. The few operations per row, such as the square root, are left
# out.
#
# ### Exercise 1 (10 points)
#
# `matmul_work(m, k, n, bytes_per_element) -> Work` for (m, k) @ (k, n): `Work(bytes, flops)`.
#
# - `bytes_per_element` is 4 for FP32, 2 for BF16, 1 for FP8, 0.75 for FP6 and 0.5 for INT4. Nothing is rounded.
# - Each of the m · n results is a sum of k products: k multiply-adds.
# - An argument that is not positive raises `ValueError`. The message contains its name and value in the form `k = -1`.
#   NaN is not positive.
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
import json
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
from threeloops.lab import (
    animate,
    calibration,
    check,
    debrief,
    explore,
    hint,
    palette,
    predict,
    reveal,
    show,
    term,
)
from threeloops.lab.checking.wall import arguments_after


@dataclass(frozen=True)
class Work:
    """The least that an operation costs: bytes between memory and chip, and floating-point operations."""

    bytes: float
    flops: float


@dataclass(frozen=True)
class DatasheetRow:
    """One line of a data sheet, as printed."""

    product: str
    dtype: str
    rate: float
    rate_unit: str  # "TFLOP/s" or "PFLOP/s"
    sparse: bool  # the rate holds only for 2:4 structured sparsity
    bandwidth: float
    bandwidth_unit: str  # "GB/s" or "TB/s"
    source: str = ""


@dataclass(frozen=True)
class Roof:
    """The two limits of a machine: FLOP/s and bytes/s."""

    peak_flops: float
    bandwidth: float


@dataclass(frozen=True)
class Span:
    """A stretch of a program: its least work, how long the device worked, and how long all of it took, in µs."""

    flops: float
    bytes: float
    busy_us: float
    wall_us: float


@dataclass(frozen=True)
class Verdict:
    bound: str  # "impossible", "host", "compute", "memory" or "unexplained"
    floor_us: float
    explains: float


@dataclass(frozen=True)
class Event:
    """One call of one operator."""

    name: str
    parent: int  # index in `events` of the operator that called this one; -1 for none
    start_us: float
    cpu_us: float  # from entry to exit on the host, the operators it called included
    device_us: float  # the kernels that it launched itself; 0 everywhere in a CPU profile
    bytes: int  # least traffic and arithmetic of its own work; 0 for an operator that only calls others
    flops: int


@dataclass(frozen=True)
class Allocation:
    """Memory taken (bytes > 0) or given back (bytes < 0)."""

    time_us: float
    bytes: int


@dataclass(frozen=True)
class Profile:
    """One profiled call. `events` in the order of their start, `allocations` in the order of time."""

    title: str
    source: str  # "recorded" or "synthetic"
    device: str  # "cpu" or "cuda"
    roof: Roof
    wall_us: float  # from the call to its last result
    events: list[Event]
    allocations: list[Allocation]


@dataclass(frozen=True)
class Cost:
    """All calls of one operator: their own busy time, and their least work."""

    name: str
    calls: int
    busy_us: float
    flops: int
    bytes: int


@dataclass(frozen=True)
class Call:
    """One launch of a kernel: the host's µs before it, the kernel's µs and least work, and whether the host waits for it."""

    issue_us: float
    busy_us: float
    flops: float
    bytes: float
    waits: bool = False


def wall_us(trace):
    """µs until host and device are done. Kernels run one after another, each after its launch."""
    host = device = 0.0
    for call in trace:
        host += call.issue_us
        device = max(device, host) + call.busy_us
        if call.waits:
            host = max(host, device)
    return max(host, device)


def repeated(times, *calls):
    return [Call(*call) for _ in range(times) for call in calls]


def restructured(trace, fix):
    """Return the trace after "CUDA graph", "no waiting" or "fusion"."""
    calls, after_wait, low = [], True, False
    for call in trace:
        neighbour, low = low, call.flops < 10 * call.bytes
        if fix == "fusion" and neighbour and low and not after_wait:
            calls[-1] = replace(calls[-1], busy_us=max(calls[-1].busy_us, call.busy_us), waits=call.waits)
        elif fix == "CUDA graph" and not after_wait:
            calls.append(replace(call, issue_us=0.5))
        else:
            calls.append(replace(call, waits=call.waits and fix != "no waiting"))
        after_wait = call.waits
    return calls


ROUND = Roof(1e15, 2e12)  # a machine of round numbers: 1e9 FLOP or 2e6 bytes per µs
TRACES = {  # (issue µs, busy µs, FLOP, bytes, whether the host waits)
    "A": repeated(30, (7.0, 3.0, 2e9, 4e6), (7.0, 2.0, 1e6, 3e6)),
    "B": repeated(8, (120.0, 20.0, 3e9, 3.2e7), *[(6.0, 20.0, 3e9, 3.2e7)] * 4, (6.0, 20.0, 3e9, 3.2e7, True)),
    "C": repeated(8, (6.0, 60.0, 5e10, 3e7), *[(6.0, 50.0, 4e7, 8e7)] * 5),
    "D": repeated(8, (6.0, 600.0, 5e11, 1e8), *[(6.0, 20.0, 2e7, 3.2e7)] * 4),
    "E": repeated(8, (6.0, 300.0, 3e7, 1.2e8), (6.0, 100.0, 8e10, 3e7), (6.0, 40.0, 3e7, 6.6e7)),
    "F": repeated(8, (6.0, 60.0, 5e10, 3e7, True), *[(6.0, 90.0, 7e7, 1.5e8)] * 4),
    "G": repeated(8, (6.0, 50.0, 4e7, 8e7), (6.0, 40.0, 3.2e10, 3e7)),
}
FIXES = ("CUDA graph", "no waiting", "fusion", "faster format", "better kernels")


def load_profile(kind):
    """Read a trace of `data/`, such as "cpu_eager"."""
    raw = json.loads(Path(f"data/resnet50_{kind}.json").read_text(encoding="utf-8"))
    roof = Roof(raw["machine"]["peak_flops"], raw["machine"]["bandwidth"])
    events, allocations = [Event(*row) for row in raw["events"]], [Allocation(*row) for row in raw["allocations"]]
    return Profile(raw["title"], raw["source"], raw["device"], roof, raw["wall_us"], events, allocations)


DATASHEETS = [DatasheetRow(**row) for row in json.loads(Path("data/datasheets.json").read_text(encoding="utf-8"))]
SMALL = Profile(  # made by hand
    "by hand",
    "synthetic",
    "cpu",
    Roof(1e9, 1e9),
    100.0,
    [
        Event("linear", -1, 0.0, 50.0, 0.0, 0, 0),
        Event("addmm", 0, 5.0, 40.0, 0.0, 1000, 30000),
        Event("empty", 1, 6.0, 10.0, 0.0, 0, 0),
        Event("relu", -1, 60.0, 20.0, 0.0, 8000, 1000),
        Event("empty", 3, 60.5, 2.0, 0.0, 0, 0),
        Event("relu", -1, 85.0, 4.0, 0.0, 2000, 250),
        Event("empty", -1, 90.0, 1.0, 0.0, 0, 0),
    ],
    [Allocation(7.0, 400), Allocation(61.0, 500), Allocation(80.0, -400), Allocation(90.5, 300)],
)

# Shared by the test cells.


def slip(got, slips):
    """Name the mistake that gives this number, if it is one of `slips`."""
    if isinstance(got, bool) or not isinstance(got, (int, float)) or not math.isfinite(got):
        return ""
    return next((cause for value, cause in slips.items() if math.isclose(got, value, rel_tol=1e-9)), "")


def require_work(got, moved, flops, what, moved_slips=(), flop_slips=()):
    """Check bytes and FLOPs, and name the mistake if it is recognised."""
    check.true(hasattr(got, "bytes") and hasattr(got, "flops"), f"{what} = {got!r}: expected a Work(bytes, flops)")
    for name, count, unit, slips in (("bytes", moved, "B", moved_slips), ("flops", flops, "FLOP", flop_slips)):
        own = getattr(got, name)
        check.close(own, float(count), rtol=1e-12, unit=unit, what=f"{name} of {what}", hint=slip(own, dict(slips)))


def judges(classify, expected, span, roof, why=""):
    """Check the verdict, and explain a wrong bound."""
    hints = {"bound": why, "floor_us": "the longer of two floors, in µs", "explains": "floor_us / busy_us"}
    check.returns(expected, classify, span, roof, rtol=1e-9, hint=hints)


def made_profile(seed, device):
    """A profile of random calls, up to five deep, and random allocations."""
    rng = np.random.default_rng(seed)
    events, clock = [], 0.0

    def call(parent, level):
        nonlocal clock
        index, start = len(events), clock
        events.append(None)
        clock += float(rng.exponential(6.0)) + 0.01
        works = bool(rng.random() < 0.6)
        for _ in range(int(rng.integers(0, 4)) if level < 4 else 0):
            call(index, level + 1)
            clock += float(rng.exponential(2.0))
        ran = float(rng.exponential(20.0)) if device == "cuda" and works else 0.0
        moved, done = (int(10 ** rng.uniform(1, 5)), int(10 ** rng.uniform(0, 6))) if works else (0, 0)
        events[index] = Event(f"op {rng.integers(8)}", parent, start, clock - start, ran, moved, done)

    for _ in range(4):
        call(-1, 0)
        clock += float(rng.exponential(5.0))
    live, allocations = [], []
    for moment in np.sort(rng.uniform(0.0, clock, 40)):
        size = -live.pop(int(rng.integers(len(live)))) if live and rng.random() < 0.48 else int(rng.integers(1, 10**6))
        live += [size] * (size > 0)
        allocations.append(Allocation(float(moment), size))
    return Profile(f"random {seed}", "synthetic", device, Roof(1e10, 1e9), clock + 1.0, events, allocations)


def chooses(choose_fix, name, trace, roof, after):
    """Check the chosen fix. `after` has the wall time in µs after each of FIXES; return the chosen and the best one."""
    fix = choose_fix(list(trace), roof)
    check.true(fix in FIXES, f"trace {name}: {fix!r}, expected one of {', '.join(FIXES)}")
    wall, busy = wall_us(trace), sum(call.busy_us for call in trace)
    own, best = after[FIXES.index(fix)], min(after)
    check.true(
        own <= 1.1 * best,
        f"trace {name} takes {wall:,.0f} µs (device busy {busy / wall:.0%}), and {own:,.0f} µs with {fix!r}: expected at "
        f"most {1.1 * best:,.0f} µs, 1.1 times the time with the best fix",
    )
    return own, best


# %% tags=["demo", "opening"] jupyter={"source_hidden": true}
from threeloops.lab.drawings.inner import roofline

show.figure(
    roofline.draw_question(),
    "memory, a pipe of 3.35 TB/s, a chip of 989 TFLOP/s, and five operations with a question mark",
)


# %% nbgrader={"grade": false, "grade_id": "matmul_work", "locked": false, "schema_version": 3, "solution": true, "task": false}
def matmul_work(m: int, k: int, n: int, bytes_per_element: float) -> Work:
    """(m, k) @ (k, n) → (m, n)."""
    ### BEGIN SOLUTION
    for name, value in {"m": m, "k": k, "n": n, "bytes_per_element": bytes_per_element}.items():
        if not value > 0:
            raise ValueError(f"{name} = {value}: expected a positive number")
    return Work((m * k + k * n + m * n) * bytes_per_element, 2 * m * k * n)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "matmul_work_test_values", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("matmul_work", "bytes and FLOPs of a matmul", part="values", hidden="other sizes and formats"):

    def works(arguments, moved, flops, moved_slips=(), flop_slips=()):
        require_work(matmul_work(*arguments), moved, flops, f"matmul_work{arguments}", moved_slips, flop_slips)

    works(
        (2, 3, 5, 4),
        124,
        60,
        {
            84: "that is A and B only: the product is written, too",
            184: "that counts B twice: it is read once",
            31: "those are elements, not bytes",
        },
        {30: "a multiply-add is two FLOPs", 50: "count k multiply-adds per result"},
    )
    works((127, 129, 65, 2), 66_046, 2_129_790)
    works((1, 4097, 4099, 1), 16_801_799, 33_587_206)
    works((3, 3, 3, 0.5), 13.5, 54)
    works((2, 3, 5, 0.75), 23.25, 60)
    works((4096, 4096, 4096, 2), 100_663_296, 137_438_953_472)
    ### BEGIN HIDDEN TESTS
    for seed in range(6):
        m, k, n = (int(v) for v in check.rng(seed).integers(1, 3000, 3))
        size = [4, 2, 1, 0.5, 8, 0.75][seed]
        works((m, k, n, size), Fraction(size) * (m * k + k * n + m * n), 2 * m * k * n)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "matmul_work_test_errors", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("matmul_work", "arguments that are not positive", part="errors", hidden="other arguments"):
    check.raises(ValueError, matmul_work, 4, -1, 4, 2, names="k = -1")
    check.raises(ValueError, matmul_work, 0, 4, 4, 2, names="m = 0")
    check.raises(ValueError, matmul_work, 4, 4, 0, 2, names="n = 0")
    check.raises(ValueError, matmul_work, 4, 4, 4, 0, names="bytes_per_element = 0")
    check.raises(ValueError, matmul_work, 4, 4, 4, math.nan, names="bytes_per_element = nan")
    check.accepts(matmul_work, 1, 1, 1, 0.5)
    check.accepts(matmul_work, 1, 1, 1, 0.125)  # binary weights
    ### BEGIN HIDDEN TESTS
    check.raises(ValueError, matmul_work, 4, 0, 4, 2, names="k = 0")
    check.raises(ValueError, matmul_work, 4, 4, -3, 2, names="n = -3")
    check.raises(ValueError, matmul_work, 4, 4, 4, -0.5, names="bytes_per_element = -0.5")
    check.raises(ValueError, matmul_work, 4, math.nan, 4, 2, names="k = nan")
    check.accepts(matmul_work, 3, 1, 7, 4)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.hardware import accelerator
from threeloops.inner.roofline import Roofline, attention, layernorm, matmul, softmax
from threeloops.lab.drawings.inner import roofline

h100 = Roofline(accelerator("H100 SXM"), "bf16")
hint(
    "matmul_work",
    "Draw a box around the chip. A and B cross its border inwards, the product crosses it outwards, each once.",
    "One loop over the names and their values can check all arguments. Every comparison with NaN is False, so ask whether a "
    "value is positive, not whether it is too small.",
)

predict(
    "rows",
    "x @ W in BF16 on an H100, with W of 4,096 × 4,096: how many rows must x have before the math takes longer than the bytes?",
    unit="rows",
)
with reveal("rows"):
    animate(
        roofline.draw_rows,
        [2**i for i in range(13)],
        seconds=0.9,
        still=8,
        caption="x @ W with more and more rows: all of W is read even for one row, so the math grows much faster than the bytes.",
    )
show.against_prediction(
    "rows",
    next(m for m in range(1, 4096) if h100.bound(matmul(m, 4096, 4096)) == "compute"),
    unit="rows",
    source="model: rates of the data sheet",
)
debrief(
    "matmul_work",
    """Intensity depends on the shape. A matmul of 4096 × 4096 × 4096 in BF16 does 1,365 FLOPs per byte, and with a single row
    it does one, because nearly all of its traffic is the weights. That is why a model that generates one token at a time
    leaves most of its GPU's math units idle, and why serving systems batch requests (lab 16).""",
    parts=("values", "errors"),
)
term("arithmetic intensity")
predict(
    "layernorm_percent",
    "A LayerNorm in BF16, perfectly written: what percentage of an H100's 989 TFLOP/s can it reach?",
    unit="%",
)

# %% [markdown]
# ## 2 · Attention without fusion
#
# Written out in PyTorch, attention is three kernels, and the scores lie in memory between them. Q and the output have shape
# (batch, heads, queries, head_dim), K and V (batch, **kv_heads**, keys, head_dim), and the scores S and the
# probabilities P (batch, heads, queries, keys).
#
# | kernel | reads | writes | FLOPs |
# |---|---|---|---|
# | scores | Q, K | S | 2 · head_dim + 1 per score (the 1 is the factor 1/√head_dim) |
# | softmax | S | P | 5 per score (maximum, subtract, exponential, sum, divide) |
# | values | P, V | output | 2 · head_dim per score |
#
# With kv_heads < heads, several query heads share one K and one V (**grouped-query attention**). A shared K or V is read
# once.
#
# *Worked example.* One sequence, 4 heads, 2 kv_heads, 3 queries, 5 keys, head_dim 8: Q and the output have 96 elements
# each, K and V 80, S and P 60. S is written and read, and so is P: 2 · 96 + 2 · 80 + 4 · 60 = 592 elements, 1,184 bytes in
# BF16. The 60 scores take 60 · (17 + 5 + 16) = 2,280 FLOPs.
#
# ### Exercise 2 (16 points)
#
# `attention_work(batch, heads, kv_heads, queries, keys, head_dim, bytes_per_element) -> Work`: the bytes and FLOPs of the
# three kernels together, without mask and dropout.
#
# - An argument that is not positive, or NaN, raises `ValueError` with its name and value, as in exercise 1.
# - If `heads` is not a multiple of `kv_heads`, a `ValueError` names `kv_heads`.


# %% nbgrader={"grade": false, "grade_id": "attention_work", "locked": false, "schema_version": 3, "solution": true, "task": false}
def attention_work(
    batch: int, heads: int, kv_heads: int, queries: int, keys: int, head_dim: int, bytes_per_element: float
) -> Work:
    """softmax(Q Kᵀ / √head_dim) V in three kernels, scores and probabilities written to memory."""
    ### BEGIN SOLUTION
    for name, value in {
        "batch": batch,
        "heads": heads,
        "kv_heads": kv_heads,
        "queries": queries,
        "keys": keys,
        "head_dim": head_dim,
        "bytes_per_element": bytes_per_element,
    }.items():
        if not value > 0:
            raise ValueError(f"{name} = {value}: expected a positive number")
    if heads % kv_heads:
        raise ValueError(f"kv_heads = {kv_heads}: expected a divisor of heads = {heads}")
    scores = batch * heads * queries * keys
    elements = 2 * batch * heads * queries * head_dim + 2 * batch * kv_heads * keys * head_dim + 4 * scores
    return Work(elements * bytes_per_element, scores * (4 * head_dim + 6))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "attention_work_test_values", "locked": true, "points": 13, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("attention_work", "bytes and FLOPs of attention", part="values", hidden="other shapes and formats"):

    def attends(arguments, moved, flops, moved_slips=(), flop_slips=()):
        require_work(attention_work(*arguments), moved, flops, f"attention_work{arguments}", moved_slips, flop_slips)

    attends(
        (1, 4, 2, 3, 5, 8, 2),
        1184,
        2280,
        {
            944: "S is written and read, and so is P: the scores cross four times",
            704: "the scores lie in memory between the kernels: they cross four times",
            1504: "a shared K or V is read once, not per query head",
            992: "Q is read and the output is written",
        },
        {
            1980: "that leaves out the 5 FLOPs per score of the softmax",
            2220: "that leaves out the factor 1/√head_dim, 1 FLOP per score",
            1320: "there are two products: one for the scores, one for the values",
            1260: "a multiply-add is two FLOPs, and there are two products",
            2080: "a row of the softmax is a query: there are batch · heads · queries rows",
        },
    )
    attends((1, 1, 1, 10, 10, 64, 4), 11_840, 26_200)
    attends((2, 8, 1, 7, 9, 16, 2), 16_384, 70_560)
    attends((2, 4, 4, 1, 300, 64, 1), 317_824, 628_800)
    attends((3, 6, 2, 5, 4, 32, 0.5), 4368, 48_240)
    attends((1, 1, 1, 1, 2, 3, 0.75), 19.5, 36, {19: "half a byte counts, too: nothing is rounded"})
    attends((1, 32, 8, 4096, 4096, 128, 2), 4_378_853_376, 278_099_132_416)
    ### BEGIN HIDDEN TESTS
    for seed in range(8):
        batch, groups, kv_heads, queries, keys = (int(v) for v in check.rng(seed).integers(1, 9, 5))
        heads, wide, size = groups * kv_heads, 40 + 8 * seed, [4, 2, 0.75, 0.5][seed % 4]
        scores = batch * heads * queries * keys
        elements = 2 * batch * wide * (heads * queries + kv_heads * keys) + 4 * scores
        attends((batch, heads, kv_heads, queries, keys, wide, size), Fraction(size) * elements, scores * (4 * wide + 6))
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "attention_work_test_errors", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("attention_work", "arguments that fit no attention", part="errors", hidden="other arguments"):
    names = ("batch", "heads", "kv_heads", "queries", "keys", "head_dim", "bytes_per_element")
    for place, name in enumerate(names):
        check.raises(ValueError, attention_work, *[4 * (i != place) for i in range(7)], names=f"{name} = 0")
    check.raises(ValueError, attention_work, 1, 6, 4, 8, 8, 64, 2, names="kv_heads")
    check.raises(ValueError, attention_work, 1, 8, 4, 8, 8, 64, math.nan, names="bytes_per_element = nan")
    check.accepts(attention_work, 1, 8, 4, 8, 8, 64, 2)
    ### BEGIN HIDDEN TESTS
    for place, name in enumerate(names):
        for value in (-2, math.nan):
            arguments = [2 if i != place else value for i in range(7)]
            check.raises(ValueError, attention_work, *arguments, names=f"{name} = {value}")
    check.raises(ValueError, attention_work, 1, 4, 8, 8, 8, 64, 2, names="kv_heads")
    check.accepts(attention_work, *[1] * 7)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "attention_work",
    "Count elements first: those of Q (the output has as many), of K (V has as many) and of S (P has as many).",
    "Only K and V have kv_heads heads. The scores cross the border of the chip four times.",
    "The three rows of the table count FLOPs per score. So add them up first, and then count the scores.",
)
debrief(
    "attention_work",
    """With 4,096 queries and keys and a head_dim of 128, the scores of one head have 16.8 million elements, and Q, K, V and
    the output together have 2.1 million. Four passes over the scores are 97% of the traffic. That is why attention written
    out like this is limited by memory, although nearly all of its arithmetic is in two matmuls. A kernel that keeps the
    scores on the chip moves 33 times fewer bytes (lab 04).

    Grouped heads shrink K and V only. They matter when the queries are few and the keys many, as in decoding (lab 15).""",
    parts=("values", "errors"),
)
term("grouped-query attention")

# %% [markdown]
# ## 3 · Read a data sheet
#
# The other half of the picture is the machine: its peak rate of arithmetic and the bandwidth of its memory. Both are on
# its data sheet, and data sheets are written to impress. The largest rate on the page often holds only if two of every four
# weights are zero; an asterisk says "with sparsity". A dense operation gets half of that rate.
#
# *Worked example.* An A100's sheet prints 624 TFLOP/s* in BF16 and 2,039 GB/s. Dense, that is 312 · 10¹² FLOP/s, and
# 2.039 · 10¹² bytes/s: units are decimal, so 1 GB is 10⁹ bytes and not 2³⁰.
#
# ### Exercise 3 (12 points)
#
# `read_row(row: DatasheetRow) -> Roof`: `Roof(peak_flops, bandwidth)` for dense operations, in FLOP/s and bytes/s.
#
# - A row has `product`, `rate`, `rate_unit` ("TFLOP/s" or "PFLOP/s"), `sparse`, `bandwidth` and `bandwidth_unit` ("GB/s" or
#   "TB/s").
# - `sparse` is True if the printed rate is one with sparsity.
# - Any other unit in either place raises `ValueError`, whose message contains that unit.


# %% nbgrader={"grade": false, "grade_id": "read_row", "locked": false, "schema_version": 3, "solution": true, "task": false}
def read_row(row: DatasheetRow) -> Roof:
    """The dense rate in FLOP/s and the bandwidth in bytes/s behind a printed row."""
    ### BEGIN SOLUTION
    rates, bandwidths = {"TFLOP/s": 1e12, "PFLOP/s": 1e15}, {"GB/s": 1e9, "TB/s": 1e12}
    for unit, factors in ((row.rate_unit, rates), (row.bandwidth_unit, bandwidths)):
        if unit not in factors:
            raise ValueError(f"unit {unit!r} in the row of {row.product}: expected one of {', '.join(factors)}")
    peak = row.rate * rates[row.rate_unit]
    return Roof(peak / 2 if row.sparse else peak, row.bandwidth * bandwidths[row.bandwidth_unit])
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "read_row_test_values", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("read_row", "what a row of a data sheet promises", part="values", hidden="other rows"):

    def promises(own, expected, unit, what, slips):
        """`slips` maps the factor by which a number is too large to the cause."""
        ratio = own / expected if isinstance(own, (int, float)) else None
        check.close(own, expected, unit=unit, what=what, hint=slip(ratio, slips))

    def reads(row, peak, moved):
        got, printed = read_row(row), f"{row.rate:g} {row.rate_unit}{' with sparsity' * row.sparse}"
        check.true(hasattr(got, "peak_flops") and hasattr(got, "bandwidth"), f"{got!r}: expected a Roof")
        doubled = {2.0: "that is the rate with sparsity"} if row.sparse else {0.5: "this rate is dense as printed"}
        prefix = {0.001: "1 PFLOP/s is 10**15"} if row.rate_unit == "PFLOP/s" else {1000.0: "1 TFLOP/s is 10**12"}
        binary = {1.073741824: "1 GB/s is 10**9 bytes/s", 1.099511627776: "1 TB/s is 10**12 bytes/s"}
        halved = {0.5: "sparsity does not change the bandwidth"} if row.sparse else {}
        promises(
            got.peak_flops, peak, "FLOP/s", f"peak_flops of {row.product}, {row.dtype}, {printed}", doubled | prefix
        )
        what = f"bandwidth of {row.product}, {row.bandwidth:g} {row.bandwidth_unit}"
        promises(got.bandwidth, moved, "bytes/s", what, binary | halved)

    by_hand = [  # FLOP/s and bytes/s of the rows of `data/datasheets.json`
        (125e12, 900e9),
        (312e12, 2.039e12),
        (989.5e12, 3.35e12),
        (1.979e15, 3.35e12),
        (989.5e12, 4.8e12),
        (362.05e12, 864e9),
        (459e12, 2.765e12),
    ]
    for row, (peak, moved) in zip(DATASHEETS, by_hand, strict=True):
        reads(row, peak, moved)
    reads(DatasheetRow("made up", "FP4", 9.0, "PFLOP/s", True, 7.7, "TB/s"), 4.5e15, 7.7e12)
    reads(DatasheetRow("made up", "FP8", 1.5, "PFLOP/s", False, 800, "GB/s"), 1.5e15, 800e9)
    ### BEGIN HIDDEN TESTS
    for seed in range(8):
        rng = check.rng(seed)
        rate, bandwidth = round(float(rng.uniform(0.5, 900)), 2), round(float(rng.uniform(0.5, 5000)), 1)
        (rate_unit, flops), (bandwidth_unit, moved) = (
            (("TFLOP/s", 1e12), ("PFLOP/s", 1e15))[seed % 2],
            (("GB/s", 1e9), ("TB/s", 1e12))[seed // 2 % 2],
        )
        row = DatasheetRow(f"made up {seed}", "FP16", rate, rate_unit, seed > 3, bandwidth, bandwidth_unit)
        reads(row, rate * flops / (2 if seed > 3 else 1), bandwidth * moved)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "read_row_test_errors", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("read_row", "units that no row should have", part="errors", hidden="other units"):

    def refuses(rate_unit, bandwidth_unit, unit):
        check.raises(
            ValueError, read_row, DatasheetRow("made up", "", 1.0, rate_unit, False, 1.0, bandwidth_unit), names=unit
        )

    refuses("TOPS", "TB/s", "TOPS")
    refuses("TFLOPS", "TB/s", "TFLOPS")
    refuses("TFLOP/s", "GiB/s", "GiB/s")
    refuses("TB/s", "GB/s", "TB/s")
    refuses("PFLOP/s", " TB/s", " TB/s")
    refuses("TFLOP/s", "", "")
    check.accepts(read_row, DatasheetRow("made up", "", 1.0, "PFLOP/s", False, 1.0, "TB/s"))
    ### BEGIN HIDDEN TESTS
    refuses("GFLOP/s", "GB/s", "GFLOP/s")
    refuses("PFLOPS", "TB/s", "PFLOPS")
    refuses("PFLOP/s", "Tb/s", "Tb/s")
    refuses("PFLOP/s", "TFLOP/s", "TFLOP/s")
    refuses(" TFLOP/s", "GB/s", " TFLOP/s")
    refuses("", "GB/s", "")
    check.accepts(read_row, DatasheetRow("made up", "", 1.0, "TFLOP/s", True, 1.0, "GB/s"))
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "read_row",
    "Two dictionaries, one for rates and one for bandwidths, map units to factors. They do the conversion and also know which units exist.",
    "Check the units before you compute, so that the message names the unit.",
)
show.table(
    [
        (
            row.product,
            row.dtype,
            f"{row.rate:g} {row.rate_unit}{' *' * row.sparse}",
            f"{row.bandwidth:g} {row.bandwidth_unit}",
        )
        for row in DATASHEETS
    ],
    header=("product", "type", "rate as printed (* with sparsity)", "memory bandwidth as printed"),
)
debrief(
    "read_row",
    """Sparsity, the format of the elements and the accumulator (the format in which products are summed) can each be worth a
    factor of two, so always ask which peak a percentage refers to. A model at 40% of the dense peak is at 20% of the number
    in large print. The dives judge sixteen claims about hardware, several of them of this kind.""",
    parts=("values", "errors"),
)

# %% [markdown]
# ## 4 · Two roofs
#
# In one second a machine does at most `peak_flops` operations and moves at most `bandwidth` bytes. An operation of
# intensity *I* does *I* FLOPs per byte, so with these bytes it does at most *I* · bandwidth FLOPs. Together:
#
# > **attainable(*I*) = min(peak, *I* · bandwidth)**
#
# The two roofs meet at the **ridge point**, peak / bandwidth. Below it, more math units change nothing; above it, more
# bandwidth changes nothing ([Williams, Waterman and Patterson 2009](https://doi.org/10.1145/1498765.1498785)).
#
# *Worked example.* A V100 has 125 TFLOP/s and 900 GB/s, so its ridge point is 139 FLOP per byte. At 10 FLOP per byte it
# reaches 9 TFLOP/s, at 138 FLOP per byte 124.2 and at 140 the full 125.
#
# ### Exercise 4 (12 points)
#
# `attainable(intensity, peak_flops: float, bandwidth: float) -> np.ndarray`, in FLOP/s.
#
# - `intensity`, in FLOP per byte, is a number, a list, or an array of any shape, of integers or floats. The result is a
#   float64 array of the same shape, `()` for a number. An array that is passed in is not changed.
# - An infinite intensity attains the peak.
# - A `ValueError` names `intensity` if any is negative or NaN, and `peak_flops` or `bandwidth` if it is not positive
#   and finite.


# %% nbgrader={"grade": false, "grade_id": "attainable", "locked": false, "schema_version": 3, "solution": true, "task": false}
def attainable(intensity, peak_flops: float, bandwidth: float) -> np.ndarray:
    """FLOP/s within reach at each intensity; the shape of `intensity`, float64."""
    ### BEGIN SOLUTION
    for name, rate in (("peak_flops", peak_flops), ("bandwidth", bandwidth)):
        if not 0 < rate < math.inf:
            raise ValueError(f"{name} = {rate}: expected a positive, finite rate")
    intensity = np.asarray(intensity, dtype=np.float64)
    if not (intensity >= 0).all():
        raise ValueError(f"intensity = {intensity}: expected numbers of at least 0 FLOP per byte")
    return np.minimum(peak_flops, intensity * bandwidth)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "attainable_test_values", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("attainable", "the lower of two roofs", part="values", hidden="other machines, shapes and types"):

    def attains(expected, intensity, peak, bandwidth):
        check.returns(np.array(expected), attainable, intensity, peak, bandwidth, unit="FLOP/s")
        got, case = attainable(intensity, peak, bandwidth), f"attainable({intensity!r}, {peak:g}, {bandwidth:g})"
        check.dtype(got, np.dtype("float64"), what=case)

    attains([0.0, 9e12, 124.2e12, 125e12, 125e12], [0.0, 10.0, 138.0, 140.0, 1e6], 125e12, 900e9)
    attains(7.5, 3.0, 10.0, 2.5)
    attains([2.5, 5.0, 10.0, 10.0], np.array([1, 2, 4, 8]), 10.0, 2.5)
    attains([[0.25, 10.0, 10.0]], np.float32([[0.1, 5.0, 9.0]]), 10.0, 2.5)
    attains(7e12, math.inf, 7e12, 1e12)
    attains(np.zeros((0, 2)), np.zeros((0, 2)), 1.0, 1.0)
    after = arguments_after(attainable, np.array([1.0, 8.0]), 10.0, 2.5)[0]
    check.equal(
        after, [1.0, 8.0], what="the array [1, 8] after attainable was called with it", hint="compute a new array"
    )
    ### BEGIN HIDDEN TESTS

    def oracle(intensity, peak, bandwidth):
        given = np.asarray(intensity, dtype=np.float64)
        roofs = [peak if i * bandwidth > peak else i * bandwidth for i in given.flat]
        attains(np.array(roofs).reshape(given.shape), intensity, peak, bandwidth)

    for seed in range(4):
        rng = check.rng(seed)
        oracle(10 ** rng.uniform(-3, 6, (3, 5)), float(10 ** rng.uniform(9, 16)), float(10 ** rng.uniform(8, 13)))
    oracle(np.arange(24).reshape(2, 3, 4), 11.0, 0.7)
    oracle([[1, math.inf], [0, 2]], 3.0, 2.0)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "attainable_test_errors", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("attainable", "numbers that no machine has", part="errors", hidden="other numbers"):
    check.raises(ValueError, attainable, [3.0, -2.0, 4.0], 125e12, 900e9, names="intensity")
    check.raises(ValueError, attainable, [1.0, math.nan], 1e12, 1e12, names="intensity")
    check.raises(ValueError, attainable, [2.0, -math.inf], 1e12, 1e12, names="intensity")
    for rate in (0.0, -1e12, math.inf, math.nan):
        check.raises(ValueError, attainable, [1.0], rate, 1e12, names="peak_flops")
        check.raises(ValueError, attainable, [1.0], 1e12, rate, names="bandwidth")
    check.accepts(attainable, [1.0, 0.0], 125e12, 900e9)
    ### BEGIN HIDDEN TESTS
    check.raises(ValueError, attainable, -1e-300, 1e12, 1e12, names="intensity")
    check.raises(ValueError, attainable, -math.inf, 1e12, 1e12, names="intensity")
    check.raises(ValueError, attainable, math.nan, 1e12, 1e12, names="intensity")
    check.raises(ValueError, attainable, 1, 1, 0, names="bandwidth")
    check.accepts(attainable, math.inf, 1, 1)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "attainable",
    "NumPy turns a number, a list or an integer array into a float64 array. It also takes the smaller of two values, element by element, in any shape.",
    "Every comparison with NaN is False. So ask whether all numbers are at least 0, and refuse them if they are not.",
    "A chained comparison says in one line that a rate lies between 0 and infinity, both excluded.",
)
norm = layernorm(8 * 4096, 4096)
with reveal("layernorm_percent"):
    show.against_prediction(
        "layernorm_percent",
        round(100 * h100.attainable(norm) / h100.peak_flops, 2),
        unit="%",
        source="model: rates of the data sheet",
    )
    explore(
        roofline.draw_roofline,
        labels={"dtype": "data type", "log2_tokens": "tokens: 2 to the power of"},
        machine=roofline.MACHINES,
        dtype=list(roofline.BYTES),
        operation=list(roofline.OPERATIONS),
        log2_tokens=(0, 14, 1, 6),
    )
    print("LayerNorm does 7 FLOPs per 4 bytes, so it keeps 0.6% of an H100's math units busy.")
    print("Grey lines: the other machines. Dots: the same operation at other sizes. Does FP8 make LayerNorm faster?")
debrief(
    "attainable",
    """LayerNorm lies far below the ridge point, so better arithmetic does not help, however well the kernel is written. Only
    moving fewer bytes helps, by fusion (lab 03) or smaller elements. FP8 halves its time, because it halves
    the bytes and not because the math is faster.

    The ridge point was 139 on a V100 and is 295 on an H100: math has grown faster than memory. An operation that was
    limited by compute on the old machine may be limited by memory on the new one.""",
    parts=("values", "errors"),
)
term("ridge point")

from threeloops.lab.drawings.measured import products

predict(
    "gemm_share",
    "NVIDIA timed x @ W in BF16 on an H100. W is 4,096 × 4,096, x has 16 rows. What share of the attainable FLOP/s is that?",
    unit="%",
)
predict(
    "gemm_shapes",
    "x has 256 rows now. Two products with the same FLOPs and bytes: W of 4,096 × 16,384, or W of 16,384 × 4,096 "
    "(inputs × outputs). Which takes longer?",
    options=("4,096 inputs", "16,384 inputs", "neither, within 3%"),
)
shares = {side: 100 * products.share_of_roof("H100 SXM", 16, side, side) for side in products.SIDES}
show.against_prediction("gemm_share", round(shares[4096]), unit="%", source=products.product_source("H100 SXM"))
with reveal("gemm_share"):
    explore(
        products.draw_below_roof,
        labels={"side": "rows and columns of W"},
        device=["H100 SXM", "A100 SXM 80GB", "B200"],
        side=[4096, 1024, 8192],
    )
    print(
        "Reading this W takes 10.0 µs at 3.35 TB/s, and the product takes "
        f"{1e6 * products.product_seconds('H100 SXM', 4096, 4096)[16]:.1f} µs. Starting the kernel, and filling and emptying "
        "the chip, takes microseconds that no roof includes, however few rows there are. "
        f"W of 1,024 × 1,024 reaches {shares[1024]:.0f}%, and of 8,192 × 8,192 {shares[8192]:.0f}%."
    )
wide, deep = (1e6 * products.product_seconds("H100 SXM", *shape)[256] for shape in ((16384, 4096), (4096, 16384)))
show.against_prediction("gemm_shapes", "16,384 inputs", source=products.product_source("H100 SXM"))
with reveal("gemm_shapes"):
    print(
        f"{deep:.1f} µs against {wide:.1f} µs, although both have the same intensity. Each multiprocessor computes a tile of "
        "the result. With tiles of 128 × 128, 16,384 outputs are 256 tiles, but 4,096 are only 64, too few for 132 "
        "multiprocessors. Smaller tiles read more, and if several multiprocessors share a tile's sum, its parts must be added."
    )
    rows = products.product_seconds("H100 SXM", 4096, 4096)
    print(
        f"And a 257th row costs {100 * (rows[257] / rows[256] - 1):.0f}% for W of 4,096 × 4,096: it begins a new row of tiles, "
        "which then is almost empty."
    )

# %% [markdown]
# ## 5 · Which limit is it?
#
# A roofline says what is possible, and a profile says what happened. Together they show what limits a **span**, a
# stretch of a program such as one kernel or a whole training step.
#
# - While the device is *busy*, its time is at least flops / peak, and at least bytes / bandwidth. Arithmetic and
#   transfers overlap, so the **floor** is the longer of the two and not their sum. If the floor explains most of the
#   busy time, you know the limit. If it does not, the limit is something that the roofline does not model, such as
#   latency or bank conflicts (lab 02), and calling the span "memory-bound" would send an engineer to the wrong place.
# - While the device is *idle*, it waits for the host. Compare the busy time with the **wall** time, from the start to the
#   end of the span.
#
# *Worked example.* On the machine `ROUND`, with 10¹⁵ FLOP/s and 2 · 10¹² bytes/s, a LayerNorm does 10⁹ FLOP and moves 4
# · 10⁸ bytes. Its floors are 1 and 200 µs. If it was busy for 250 of 260 µs, memory explains 200 / 250 = 0.8. If it was
# busy for 250 of 600 µs, the host is the limit.
#
# ### Exercise 5 (18 points)
#
# `classify(span: Span, roof: Roof) -> Verdict`, where a span has `flops`, `bytes`, `busy_us` and `wall_us`:
# `Verdict(bound, floor_us, explains)`, with the floor in µs and explains = floor_us / busy_us. The first rule that fits
# decides:
#
# | rule | `bound` |
# |---|---|
# | explains is **more than** 1.05: a count or a rate is wrong | `"impossible"` |
# | busy_us is **less than** 0.6 · wall_us | `"host"` |
# | explains is **at least** 0.6 | `"compute"` if flops / peak is at least bytes / bandwidth, else `"memory"` |
# | otherwise | `"unexplained"` |
#
# `flops`, `bytes` or both may be 0. A `ValueError` names `busy_us` if it is not positive, `wall_us` if it is not at
# least `busy_us`, and `flops` or `bytes` if it is not at least 0. NaN meets none of these conditions, so it is always
# refused.


# %% nbgrader={"grade": false, "grade_id": "classify", "locked": false, "schema_version": 3, "solution": true, "task": false}
def classify(span: Span, roof: Roof) -> Verdict:
    """Name what limits the span on a machine of these rates."""
    ### BEGIN SOLUTION
    if not span.busy_us > 0:
        raise ValueError(f"busy_us = {span.busy_us}: expected a positive time in µs")
    if not span.wall_us >= span.busy_us:
        raise ValueError(f"wall_us = {span.wall_us}: expected at least busy_us = {span.busy_us}")
    for name, count in (("flops", span.flops), ("bytes", span.bytes)):
        if not count >= 0:
            raise ValueError(f"{name} = {count}: expected at least 0")
    compute = span.flops / roof.peak_flops * 1e6
    memory = span.bytes / roof.bandwidth * 1e6
    floor = max(compute, memory)
    explains = floor / span.busy_us
    if explains > 1.05:
        bound = "impossible"
    elif span.busy_us < 0.6 * span.wall_us:
        bound = "host"
    elif explains >= 0.6:
        bound = "compute" if compute >= memory else "memory"
    else:
        bound = "unexplained"
    return Verdict(bound, floor, explains)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "classify_test_rules", "locked": true, "points": 9, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("classify", "what limits a span", part="rules", hidden="other spans and machines"):
    judges(
        classify,
        Verdict("compute", 1000.0, 0.8),
        Span(1e12, 1e8, 1250.0, 1300.0),
        ROUND,
        "10¹² FLOP take 1,000 of 1,250 µs",
    )
    judges(classify, Verdict("memory", 200.0, 0.8), Span(1e9, 4e8, 250.0, 260.0), ROUND, "the bytes take 200 of 250 µs")
    judges(
        classify,
        Verdict("host", 200.0, 0.8),
        Span(1e9, 4e8, 250.0, 600.0),
        ROUND,
        "the device was idle for 350 of 600 µs",
    )
    judges(
        classify,
        Verdict("unexplained", 200.0, 0.2),
        Span(0, 4e8, 1000.0, 1000.0),
        ROUND,
        "the longer floor explains a fifth",
    )
    judges(classify, Verdict("impossible", 1000.0, 2.5), Span(1e12, 1e8, 400.0, 400.0), ROUND, "faster than the floor")
    judges(
        classify,
        Verdict("impossible", 1000.0, 2.5),
        Span(1e12, 1e8, 400.0, 4000.0),
        ROUND,
        "the first rule that fits decides",
    )
    judges(
        classify,
        Verdict("unexplained", 0.4, 0.4),
        Span(4e8, 6e5, 1.0, 1.0),
        ROUND,
        "floors of 0.4 and 0.3 µs overlap: no sum",
    )
    judges(classify, Verdict("host", 0.2, 0.1), Span(2e8, 0, 2.0, 40.0), ROUND, "the second rule comes before the last")
    judges(classify, Verdict("impossible", 1.2, 1.2), Span(0, 2.4e6, 1.0, 1.0), ROUND, "20% faster than the floor")
    judges(
        classify,
        Verdict("memory", 4.1, 1.025),
        Span(0, 8.2e6, 4.0, 4.0),
        ROUND,
        "up to 5% above the roof is not impossible",
    )
    ### BEGIN HIDDEN TESTS
    for seed in range(40):
        rng = check.rng(seed)
        roof = Roof(float(10 ** rng.uniform(11, 15.5)), float(10 ** rng.uniform(10, 13)))
        busy, (x, y, idle) = float(10 ** rng.uniform(0, 4)), (float(v) for v in rng.uniform(0, 1.15, 3))
        best = max(x, y)
        name = "unexplained" if best < 0.6 else "memory" if y > x else "compute"
        name = "host" if 1 / (1 + idle) < 0.6 else name
        name = "impossible" if best > 1.05 else name
        span = Span(x * busy * roof.peak_flops / 1e6, y * busy * roof.bandwidth / 1e6, busy, busy * (1 + idle))
        judges(classify, Verdict(name, best * busy, best), span, roof)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "classify_test_ties", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("classify", "ties, and spans without work", part="ties", hidden="other ties"):
    judges(classify, Verdict("memory", 600.0, 0.6), Span(0, 1.2e9, 1000.0, 1000.0), ROUND, "0.6 is at least 0.6")
    judges(
        classify,
        Verdict("compute", 1050.0, 1.05),
        Span(1.05e12, 0, 1000.0, 1000.0),
        ROUND,
        "1.05 is not more than 1.05",
    )
    judges(
        classify,
        Verdict("memory", 450.0, 0.75),
        Span(0, 9e8, 600.0, 1000.0),
        ROUND,
        "600 µs are not less than 0.6 · 1,000",
    )
    judges(
        classify,
        Verdict("compute", 0.5, 0.625),
        Span(5e8, 1e6, 0.8, 0.8),
        ROUND,
        "compute on a tie of the roofs",
    )
    judges(
        classify,
        Verdict("memory", 1.0, 0.8),
        Span(9.8e8, 2e6, 1.25, 1.25),
        ROUND,
        "floors of 0.98 and 1 µs are not a tie",
    )
    judges(classify, Verdict("compute", 3.0, 0.75), Span(3e9, 0, 4.0, 4.0), ROUND, "FLOPs without bytes")
    judges(classify, Verdict("unexplained", 0.0, 0.0), Span(0, 0, 50.0, 50.0), ROUND, "no work explains nothing")
    judges(classify, Verdict("host", 0.0, 0.0), Span(0, 0, 2.0, 5.0), ROUND, "no work, and the device idles")
    ### BEGIN HIDDEN TESTS
    judges(classify, Verdict("compute", 60.0, 0.6), Span(6e10, 1e8, 100.0, 100.0), ROUND)
    judges(classify, Verdict("memory", 105.0, 1.05), Span(0, 2.1e8, 100.0, 100.0), ROUND)
    judges(classify, Verdict("unexplained", 3.0, 0.5), Span(3e9, 0, 6.0, 10.0), ROUND)
    judges(classify, Verdict("unexplained", 0.0, 0.0), Span(0.0, 0.0, 3.0, 5.0), ROUND)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "classify_test_errors", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("classify", "times and counts that no span can have", part="errors", hidden="other spans"):
    check.raises(ValueError, classify, Span(1.0, 1.0, 0.0, 1.0), ROUND, names="busy_us")
    check.raises(ValueError, classify, Span(1.0, 1.0, 2.0, 1.0), ROUND, names="wall_us")
    check.raises(ValueError, classify, Span(-1.0, 1.0, 1.0, 1.0), ROUND, names="flops")
    check.raises(ValueError, classify, Span(1.0, -1.0, 1.0, 1.0), ROUND, names="bytes")
    check.raises(ValueError, classify, Span(1.0, 1.0, math.nan, 1.0), ROUND, names="busy_us")
    check.raises(ValueError, classify, Span(1.0, 1.0, 1.0, math.nan), ROUND, names="wall_us")
    check.raises(ValueError, classify, Span(math.nan, 1.0, 1.0, 1.0), ROUND, names="flops")
    check.accepts(classify, Span(0.0, 0.0, 1.0, 1.0), ROUND)
    ### BEGIN HIDDEN TESTS
    check.raises(ValueError, classify, Span(1.0, 1.0, -2.0, 1.0), ROUND, names="busy_us")
    check.raises(ValueError, classify, Span(1.0, 1.0, 1.0, 0.99), ROUND, names="wall_us")
    check.raises(ValueError, classify, Span(1.0, math.nan, 1.0, 1.0), ROUND, names="bytes")
    check.accepts(classify, Span(0.0, 5.0, 0.25, 7.0), ROUND)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "classify",
    "Put both floors into µs first: seconds times 10⁶. Most wrong verdicts are errors of units.",
    "Compute `explains` once; then the four rules are one `if`/`elif` chain in the order of the table.",
)
SPANS = {
    "a matmul": Span(2e11, 1e8, 250.0, 260.0),
    "a LayerNorm": Span(1e9, 4e8, 250.0, 260.0),
    "the LayerNorm, launched late": Span(1e9, 4e8, 250.0, 600.0),
    "a gather": Span(0, 1e8, 250.0, 260.0),
    "a copy from a cache": Span(0, 8e8, 250.0, 260.0),
}
try:
    judged = [roofline.Judged(name, span, classify(span, ROUND)) for name, span in SPANS.items()]
    show.figure(
        roofline.draw_judged({"Five spans on ROUND, and what your classify says": judged}),
        "Wall time, busy time and floor of five spans, and their verdicts",
    )
except Exception:
    print("A picture of the five verdicts comes alive when classify works.")
debrief(
    "classify",
    """Each verdict calls for a different remedy. `compute`: a faster format, less arithmetic, more GPUs. `memory`: fusion, smaller
    elements, better reuse. `host`: fewer launches, CUDA graphs, no waiting, larger batches; a faster kernel changes nothing.
    `unexplained`: look inside the kernel. `impossible`: recount, read the asterisk on the data sheet, or ask whether the
    data came from a cache.

    The 60% is a convention. NVIDIA's Nsight Compute draws its line there, too: if compute and memory throughput are both
    below 60% of their peaks, it reports that this typically indicates latency issues.""",
    parts=("rules", "ties", "errors"),
)
term("memory-bound")

# %% [markdown]
# ## 6 · Account for a forward pass
#
# `data/` has traces of ResNet-50, eager and under `torch.compile`: **recorded** ones of 16 images on a 2-core CPU in
# FP32, and **synthetic** ones of 16 and 128 images, for which a timing model estimates how long the same calls might
# take on an H100 in FP16. Nothing in the synthetic ones was measured on a GPU.
#
# An operator's event includes the operators that it called: `aten::conv2d` calls `aten::convolution`, which calls
# `aten::_convolution`, which calls `aten::mkldnn_convolution`, which does the work. If you add up all events, every
# convolution counts four times. What an event did itself is its **self time**: its `cpu_us` minus the `cpu_us` of its
# *direct* children.
#
# *Worked example.* `linear` (50 µs) calls `addmm` (40 µs), which calls `empty` (10 µs). Their self times are 10, 30 and 10 µs,
# together 50. `SMALL` begins with these three.
#
# ### Exercise 6 (12 points)
#
# `costliest(profile: Profile) -> list[Cost]`: the three operators that worked longest, each as a `Cost(name, calls,
# busy_us, flops, bytes)`.
#
# - All events with one name make one `Cost`: `calls` counts them, and the rest are sums. A sum of 0 µs counts like any
#   other.
# - If `profile.device` is `"cpu"`, `busy_us` is the sum of the self times. If it is `"cuda"`, it is the sum of
#   `device_us`, which counts only an event's own kernels.
# - A self time can be negative if children ran at the same time on other threads. Keep it as it is.
# - The largest `busy_us` comes first; on a tie, names are in the order in which Python sorts them ("Z" before "a"). A
#   profile with fewer names gives a shorter list.
#
# The children of event *i* are the events whose `parent` is *i*.


# %% nbgrader={"grade": false, "grade_id": "costliest", "locked": false, "schema_version": 3, "solution": true, "task": false}
def costliest(profile: Profile) -> list[Cost]:
    """The three operators that worked longest, the costliest first."""
    ### BEGIN SOLUTION
    own = [event.device_us if profile.device == "cuda" else event.cpu_us for event in profile.events]
    if profile.device == "cpu":
        for event in profile.events:
            if event.parent >= 0:
                own[event.parent] -= event.cpu_us
    totals = {}
    for event, busy in zip(profile.events, own, strict=True):
        calls, busy_us, flops, moved = totals.get(event.name, (0, 0.0, 0, 0))
        totals[event.name] = (calls + 1, busy_us + busy, flops + event.flops, moved + event.bytes)
    costs = [Cost(name, *total) for name, total in totals.items()]
    return sorted(costs, key=lambda cost: (-cost.busy_us, cost.name))[:3]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "costliest_test_times", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("costliest", "how long each operator worked itself", part="times", hidden="random profiles"):

    def accounts(case, profile, expected, slips=()):
        """`slips` gives the cause for the times that usual mistakes lead to."""
        costs = list(costliest(profile))
        own = tuple(cost.busy_us for cost in costs if hasattr(cost, "busy_us"))
        check.close(costs, expected, atol=1e-6, what=f"costliest({case})", hint=dict(slips).get(own, ""))

    total = "a caller's time includes its callees: subtract its direct children"
    root = "event 0 is a parent, too: only −1 stands for none"
    rows = [Cost("addmm", 1, 30.0, 30000, 1000), Cost("relu", 2, 22.0, 1250, 10000), Cost("empty", 3, 13.0, 0, 0)]
    accounts("SMALL", SMALL, rows, {(50.0, 40.0, 24.0): total, (50.0, 30.0, 22.0): root})
    nested = [
        Event("conv2d", -1, 0.0, 100.0, 0.0, 0, 0),
        Event("convolution", 0, 1.0, 70.0, 0.0, 0, 0),
        Event("mkldnn", 1, 2.0, 25.0, 0.0, 2000, 50000),
        Event("relu", -1, 110.0, 60.0, 0.0, 0, 0),
        Event("relu", 3, 111.0, 20.0, 0.0, 8000, 1000),
    ]
    accounts(
        "conv2d 100 µs calls convolution 70 µs calls mkldnn 25 µs; relu 60 µs calls relu 20 µs",
        replace(SMALL, events=nested),
        [Cost("relu", 2, 60.0, 1000, 8000), Cost("convolution", 1, 45.0, 0, 0), Cost("conv2d", 1, 30.0, 0, 0)],
        {
            (100.0, 80.0, 70.0): total,
            (60.0, 45.0, 25.0): "subtract direct children only: a grandchild is already in its parent's time",
        },
    )
    threads = [Event("wait", -1, 0.0, 10.0, 0.0, 2, 5), *[Event("work", 0, 1.0, 8.0, 0.0, 9, 0)] * 2]
    threads += [Event("relu", -1, 11.0, 3.0, 0.0, 8, 4)]
    accounts(
        "wait 10 µs calls work 8 µs on two threads at the same time; relu 3 µs",
        replace(SMALL, events=threads),
        [Cost("work", 2, 16.0, 0, 18), Cost("relu", 1, 3.0, 4, 8), Cost("wait", 1, -6.0, 5, 2)],
        {(16.0, 3.0, 0.0): "a negative self time stays as it is"},
    )
    later = [Event("start", -1, 0.0, 6.0, 0.0, 0, 0), Event("work", 0, 8.0, 4.0, 0.0, 9, 0)]
    later += [Event("relu", -1, 12.0, 3.0, 0.0, 8, 4)]
    accounts(
        "start 6 µs calls work 4 µs, which begins at 8 µs on another thread; relu 3 µs",
        replace(SMALL, events=later),
        [Cost("work", 1, 4.0, 0, 9), Cost("relu", 1, 3.0, 4, 8), Cost("start", 1, 2.0, 0, 0)],
        {(6.0, 4.0, 3.0): "`parent` says who called whom, whatever the times are"},
    )
    ran = (0.0, 3.0, 0.5, 2.0, 0.0, 2.0, 0.5)
    launched = [replace(event, device_us=us) for event, us in zip(SMALL.events, ran, strict=True)]
    rows = [Cost("relu", 2, 4.0, 1250, 10000), Cost("addmm", 1, 3.0, 30000, 1000), Cost("empty", 3, 1.0, 0, 0)]
    slips = {
        (4.0, 2.5, 1.0): "device_us is each event's own already: subtract nothing from it",
        (30.0, 22.0, 13.0): "on a GPU the busy time is device_us",
    }
    accounts("SMALL on a GPU", replace(SMALL, device="cuda", events=launched), rows, slips)
    ### BEGIN HIDDEN TESTS
    for seed in range(1, 7):
        profile, sums = made_profile(seed, "cpu" if seed % 2 else "cuda"), {}
        for i, event in enumerate(profile.events):
            inside = sum(other.cpu_us for other in profile.events if other.parent == i)
            busy = event.cpu_us - inside if profile.device == "cpu" else event.device_us
            sums.setdefault(event.name, []).append((1, busy, event.flops, event.bytes))
        costs = [Cost(name, *(sum(column) for column in zip(*rows, strict=True))) for name, rows in sums.items()]
        ranked = sorted(costs, key=lambda cost: (-cost.busy_us, cost.name))[:3]
        accounts(f"random profile {seed}, {profile.device}", profile, ranked)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "costliest_test_order", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("costliest", "ties, short profiles, and the recorded pass", part="order", hidden="other profiles"):

    def flat(names, device="cpu"):
        """One event of 2 µs for each name, one after another."""
        events = [Event(name, -1, 2.0 * i, 2.0, 2.0 * (device == "cuda"), 8, 4) for i, name in enumerate(names)]
        return replace(SMALL, device=device, events=events)

    def ranks(profile, *names, why=""):
        """`why` is a cause if the names are the right ones, in another order."""
        costs = list(costliest(profile))
        check.true(all(hasattr(cost, "name") for cost in costs), f"{costs!r}: expected a list of Cost")
        own = [cost.name for cost in costs]
        events = ", ".join(f"{e.name} {e.cpu_us:g} µs" for e in profile.events[:6])
        swapped = why if set(own) == set(names) else ""
        check.equal(own, list(names), what=f"names, costliest first, of {events} …", hint=swapped)

    tie = "on a tie the names are in the order in which Python sorts them"
    ranks(flat("bca"), "a", "b", "c", why=tie)
    ranks(flat("dbca"), "a", "b", "c")
    ranks(flat("dbcad"), "d", "a", "b", why=tie)
    ranks(flat("aZ"), "Z", "a", why=tie)
    ranks(flat("yx", "cuda"), "x", "y", why=tie)
    calls = [
        Event("b", -1, 0.0, 2.0, 0.0, 8, 4),
        Event("b", -1, 2.0, 2.0, 0.0, 8, 4),
        Event("a", -1, 4.0, 4.0, 0.0, 8, 4),
    ]
    ranks(replace(SMALL, events=calls), "a", "b", why=tie)
    ranks(flat(""))
    ranks(
        replace(SMALL, events=[Event("relu", -1, 0.0, 5.0, 0.0, 8, 4), Event("view", -1, 6.0, 0.0, 0.0, 0, 0)]),
        "relu",
        "view",
    )
    close = [Event(name, -1, start, cpu, 0.0, 8, 4) for name, start, cpu in (("a", 0.0, 5.2), ("b", 6.0, 5.4))]
    ranks(replace(SMALL, events=close), "b", "a")
    recorded = load_profile("cpu_eager")
    ranks(recorded, "aten::mkldnn_convolution", "aten::max_pool2d_with_indices", "aten::native_batch_norm")
    ### BEGIN HIDDEN TESTS
    ranks(flat("zzyxyx", "cuda"), "x", "y", "z")
    ranks(flat("q"), "q")
    synthetic = load_profile("gpu_compiled_128_synthetic")
    ranks(synthetic, "aten::cudnn_convolution", "triton::batch_norm_add_relu", "triton::batch_norm_convolution_relu")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "costliest",
    "In the worked example `empty` takes 10 µs. From which single event's time do these 10 µs have to go, and which field of `empty` names that event?",
    "Tuples compare by their first element, and by the next one on a tie. So a key of a tuple can rank by time first and then by name.",
)
PASSES = {
    "16 images on a CPU, eager": load_profile("cpu_eager"),
    "16 images on a CPU, compiled": load_profile("cpu_compiled"),
    "16 images on an H100, eager (synthetic)": load_profile("gpu_eager_16_synthetic"),
    "128 images on an H100, eager (synthetic)": load_profile("gpu_eager_128_synthetic"),
    "128 images on an H100, compiled (synthetic)": load_profile("gpu_compiled_128_synthetic"),
}
try:
    judged = {name: roofline.judge(profile, Span, costliest, classify) for name, profile in PASSES.items()}
    show.figure(
        roofline.draw_judged(judged), "Wall time, busy time and floor of five passes and of their costliest operators"
    )
    print("Your classify gave these verdicts. For an operator, the wall time is its busy time.")
except Exception:
    print("The picture of all verdicts comes alive when exercises 5 and 6 pass.")
debrief(
    "costliest",
    """On the CPU the recorded pass took 493 ms eager and 364 ms compiled. Of the 129 ms saved, 70 are in the convolutions,
    although their arithmetic is the same, and 37 come from a max-pool of 42 ms that became part of a fused kernel of 5 ms.

    Two kinds of verdict deserve suspicion. Batch norm in the eager pass and two fused kernels in the compiled one are
    `impossible`, and so are addition and ReLU (`aten::clamp_min`), which rank just below the first three. They moved their
    bytes up to 2.4 times faster than the copy that measured this machine's bandwidth. Either the bytes came from a cache,
    or the copy was a poor probe. The other suspect is the 0.99 of the compiled convolutions. The peak in this trace is the
    best rate that a large matmul or a convolution reached on this machine. So the 0.99 only says that these convolutions
    match the fastest kernel that was measured, not that no faster one exists. A better peak is computed from the hardware:
    cores · FLOPs per clock · clock.

    With 16 images the synthetic H100 is busy for 33% of the eager pass, so the host limits the pass, whatever limits a single
    kernel. With 128 images it is busy all the time, and memory is the limit, even for the convolutions, because most of them
    are 1 × 1. That is only as true as the timing model. In this model a kernel takes 1.8 µs plus the longer of its floors,
    at 65% of the peak and 90% of the bandwidth, as a large matmul and a large copy did on an H100. The host needs 5 µs for a
    launch and 2.5 µs for every operator.""",
    parts=("times", "order"),
)

# %% [markdown]
# ## 7 · When memory peaks
#
# A profile also records when memory is taken and given back. The peak decides whether a pass fits into memory, and the
# operator at the peak shows where to save.
#
# *Worked example.* `SMALL` takes 400 bytes at 7 µs and 500 at 61 µs, gives 400 back at 80 µs, and takes 300 at 90.5 µs. Its
# levels are 400, 900, 500 and 800, so the peak is 900 bytes, reached at 61 µs. The last operator to start before that moment
# is `empty`, at 60.5 µs, but it only allocates: its `bytes` are 0. The last one that does work is `relu`, which started at
# 60 µs.
#
# ### Exercise 7 (8 points)
#
# `peak_memory(profile: Profile) -> tuple[int, str]`: the peak in bytes, and the operator.
#
# - Start at 0 and add the allocations in their order. The peak is the largest sum, or 0 if none is positive.
# - `events` are in the order of their start. The operator is the last one with `bytes > 0` that started **at or
#   before** the moment at which the peak is **first** reached. It may have ended by then. If there is none, or the peak
#   is 0, return `""` for it.


# %% nbgrader={"grade": false, "grade_id": "peak_memory", "locked": false, "schema_version": 3, "solution": true, "task": false}
def peak_memory(profile: Profile) -> tuple[int, str]:
    """The most bytes that are held at one time, and the last operator that began its work by then."""
    ### BEGIN SOLUTION
    held, peak, moment = 0, 0, -math.inf
    for allocation in profile.allocations:
        held += allocation.bytes
        if held > peak:
            peak, moment = held, allocation.time_us
    started = [event.name for event in profile.events if event.bytes > 0 and event.start_us <= moment]
    return peak, started[-1] if started else ""
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "peak_memory_test", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("peak_memory", "the peak and the operator at it", hidden="random profiles"):

    def peaks(expected, profile, case, why="", sizes=()):
        """`why` is a rule for the operator, and `sizes` has causes of wrong peaks."""
        own = peak_memory(profile)
        check.equal(len(own), 2, what=f"number of results for {case}")
        check.equal(own[0], expected[0], what=f"peak in bytes of {case}", hint=slip(own[0], dict(sizes)))
        check.equal(own[1], expected[1], what=f"operator at the peak of {case}", hint=why)

    def takes(*allocations, events=SMALL.events):
        return replace(SMALL, events=events, allocations=[Allocation(*change) for change in allocations])

    freed = "what was given back no longer counts"
    peaks((900, "relu"), SMALL, "SMALL", "`empty` does no work: its bytes are 0", {1200: freed})
    first = "the peak is first reached at 10 µs, before `relu` began"
    peaks(
        (8, "addmm"),
        takes((10.0, 8), (70.0, -8), (88.0, 8)),
        "8 bytes at 10 µs, freed, and again at 88 µs",
        first,
        {16: freed},
    )
    peaks((8, "relu"), takes((60.0, 8)), "8 bytes at 60 µs, when `relu` starts", "at or before: this counts")
    peaks((8, ""), takes((1.0, 8)), "8 bytes at 1 µs, before any operator works", "no operator has done work by then")
    peaks((0, ""), takes((10.0, -8)), "an allocation of −8 bytes", "the sum is never positive")
    peaks((0, ""), takes(), "no allocations", "nothing was allocated")
    peaks((8, "relu"), takes((84.0, 8)), "8 bytes at 84 µs, after `relu` ended at 80 µs", "it may have ended by then")
    swap = takes((7.0, 3), (61.0, 9), (61.0, -3))
    peaks(
        (12, "relu"), swap, "3 bytes, and at 61 µs 9 and then −3", sizes={9: "add them one at a time, in their order"}
    )
    swap = takes((7.0, 3), (61.0, -3), (61.0, 9))
    peaks(
        (9, "relu"), swap, "3 bytes, and at 61 µs −3 and then 9", sizes={12: "add them one at a time, in their order"}
    )
    early = [replace(SMALL.events[1], start_us=0.0)]
    peaks((0, ""), takes((10.0, -8), events=early), "−8 bytes, and an operator at 0 µs", "the sum is never positive")
    same = [SMALL.events[1], replace(SMALL.events[3], start_us=5.0), Event("view", -1, 5.0, 1.0, 0.0, 0, 250)]
    peaks((8, "relu"), takes((7.0, 8), events=same), "addmm, relu and a view at 5 µs", "the last one with bytes > 0")
    byte = [replace(SMALL.events[1], bytes=1)]
    peaks((8, "addmm"), takes((7.0, 8), events=byte), "an operator of 1 byte", "it does work: its bytes are not 0")
    start = takes((0.0, 8), events=early)
    peaks((8, "addmm"), start, "8 bytes at 0 µs, when `addmm` starts", "a peak may be reached at 0 µs")
    peaks((9, "relu"), takes((10.0, 8), (70.0, 1)), "8 bytes at 10 µs and 1 at 70 µs", "9 bytes are more than 8")
    negative = {11: "sums may be negative on the way"}
    peaks((6, "relu"), takes((7.0, -5), (61.0, 11)), "−5 bytes, then 11", sizes=negative)
    wrapped = "the sum needs more than 32 bits"
    large = takes((7.0, 2**30), (8.0, 2**30 + 8), (61.0, 2**30))
    peaks((3221225480, "relu"), large, "3 GiB and 8 bytes", sizes={2**30: wrapped})
    ### BEGIN HIDDEN TESTS
    for seed in range(10, 16):
        profile = made_profile(seed, "cpu")
        levels = np.cumsum([0] + [a.bytes for a in profile.allocations])
        moment = profile.allocations[int(levels.argmax()) - 1].time_us
        names = [e.name for e in profile.events if e.bytes > 0 and e.start_us <= moment]
        peaks((int(levels.max()), [*[""], *names][-1]), profile, f"random profile {seed}")
    peaks((218365952, "aten::clamp_min"), load_profile("cpu_eager"), "the recorded pass")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "peak_memory",
    "Keep three variables in one loop over the allocations: what is held now, the peak, and the moment of the peak.",
    "The peak is first reached when the sum exceeds all sums before it, not when it equals an earlier one. If no sum is positive, there is no such moment.",
)
held = {
    "eager": (palette.vermillion, PASSES["16 images on a CPU, eager"]),
    "compiled": (palette.blue, PASSES["16 images on a CPU, compiled"]),
}
show.figure(roofline.draw_held(held), "Memory held during the eager and the compiled pass, with both peaks early")
debrief(
    "peak_memory",
    """The peak is early, because the feature maps of this network are largest in its first stage. If it did not fit, it would
    fail there. Each fusion saves a buffer, so compiling lowers the peak, from 218 to 116 MB. In training, activations are
    kept for the backward pass, and the peak moves to the end of the forward pass (lab 06).""",
    parts=("",),
)

# %% [markdown]
# ## 8 · You choose the fix
#
# `TRACES` has seven traces, "A" to "G", of programs on the machine `ROUND`. You are not told what limits them, and have
# time for one fix each. A trace is a list of calls with `issue_us` (the host's time before the launch), `busy_us`,
# `flops`, `bytes`, and `waits` (whether the host then waits until the device is done, as with `.item()`).
# `wall_us(trace)` computes how long all of it takes.
#
# | fix | what it changes |
# |---|---|
# | `"CUDA graph"` | recorded launches are replayed: `issue_us` is 0.5 µs, except in the first call and in calls after a wait |
# | `"no waiting"` | the host never waits |
# | `"fusion"` | neighbours of less than 10 FLOP per byte each, with no wait between them, become one kernel. It has the `issue_us` of the first, `waits` like the last, and takes as long as the longest |
# | `"faster format"` | kernels whose compute floor is at least the memory floor, and explains at least 60% of `busy_us`, take half as long |
# | `"better kernels"` | kernels whose floor explains less than 60% are rewritten so that it explains 80% |
#
# The first three need no roofline and are given: `restructured(trace, fix)` returns the trace after one of them.
#
# *Worked example.* A kernel of 2 µs that takes 7 µs to launch runs 100 times: the device is busy for 200 of 702 µs. With a
# CUDA graph the trace takes 207 µs: 7 until the first kernel starts, and 200 for the kernels.
#
# ### Exercise 8 (12 points)
#
# `choose_fix(trace: list[Call], roof: Roof) -> str` returns one of `FIXES`. Grading applies the fix that you return: the
# wall time after it must be at most 1.1 times the wall time after the best fix.
#
# In A to F, one kind of trouble takes most of the time. G mixes several, and the largest is not always the one where a
# fix saves most. Hidden traces are of both kinds.


# %% nbgrader={"grade": false, "grade_id": "choose_fix", "locked": false, "schema_version": 3, "solution": true, "task": false}
def choose_fix(trace: list[Call], roof: Roof) -> str:
    """The fix that leaves the shortest wall time."""
    ### BEGIN SOLUTION
    after = {fix: restructured(trace, fix) for fix in FIXES[:3]} | {fix: [] for fix in FIXES[3:]}
    for call in trace:
        compute, memory = call.flops / roof.peak_flops * 1e6, call.bytes / roof.bandwidth * 1e6
        floor = max(compute, memory)
        explained = floor >= 0.6 * call.busy_us
        halved = explained and compute >= memory
        after["faster format"].append(replace(call, busy_us=call.busy_us / 2) if halved else call)
        after["better kernels"].append(call if explained else replace(call, busy_us=floor / 0.8))
    return min(FIXES, key=lambda fix: wall_us(after[fix]))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "choose_fix_test_clear", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("choose_fix", "the fix that saves most", part="clear", hidden="other traces and machines"):
    after_each = {  # µs that each trace takes after each of FIXES, in their order
        "A": (157, 422, 422, 422, 422),
        "B": (1920, 1290, 1920, 1920, 1920),
        "C": (2486, 2486, 886, 2246, 2486),
        "D": (5446, 5446, 4966, 3046, 5446),
        "E": (3526, 3526, 3246, 3126, 1726),
        "F": (3414, 3366, 1254, 3174, 3414),
    }
    for name, after in after_each.items():
        own, best = chooses(choose_fix, name, TRACES[name], ROUND, after)
        check.note(f"trace {name}, wall time after the fix", own, best, "µs")
    fast = Roof(4e15, 8e12)
    chooses(choose_fix, "C on a machine with four times the rates", TRACES["C"], fast, (2486, 2486, 886, 2486, 631))
    ### BEGIN HIDDEN TESTS
    stretched_after = [  # of the traces A to F, cut, and stretched by at most 10%
        (87, 228, 228, 228, 228),
        (1133, 773, 1133, 1133, 1133),
        (1249, 1249, 458, 1130, 1249),
        (2731, 2731, 2496, 1528, 2731),
        (2280, 2280, 2116, 2033, 1101),
        (1699, 1675, 643, 1582, 1699),
    ]
    for seed, after in enumerate(stretched_after):
        rng = check.rng(seed)
        name, scale = "ABCDEF"[seed % 6], float(10 ** rng.uniform(-1, 1))
        trace = TRACES[name][: len(TRACES[name]) // 2 + int(rng.integers(4))]
        stretched = [
            Call(c.issue_us * s, c.busy_us * s, c.flops * s * scale, c.bytes * s * scale, c.waits)
            for c, s in zip(trace, rng.uniform(0.9, 1.1, len(trace)).tolist(), strict=True)
        ]
        chooses(choose_fix, f"like {name}", stretched, Roof(1e15 * scale, 2e12 * scale), after)

    def drawn(rng, fix):
        """A trace of which one fix saves most by far: most of its time is of the kind that the fix is for."""
        long, issue = float(rng.uniform(40, 400)), float(rng.uniform(4, 8))

        def kernel(busy, compute, memory, waits=False):
            """`compute` and `memory` are the shares of its time that its floors explain."""
            return issue, busy, compute * busy * 1e9, memory * busy * 2e6, waits

        share, short = float(rng.uniform(0.75, 0.95)), 0.04 * long
        others = [kernel(short, share, 0.1), kernel(short, 0.02, share), kernel(short, 0.1, 0.2)]
        others = [others[int(place)] for place in rng.permutation(3)[: int(rng.integers(0, 3))]]
        if fix == "CUDA graph":
            return repeated(12, *[kernel(float(rng.uniform(0.1, 0.4)) * issue, 0.1, share)] * 3)
        if fix == "no waiting":
            slow = (long, 0.1 * long, 1e6, 1e3, False)
            return repeated(6, slow, *[kernel(0.1 * long, share, 0.1)] * 5, kernel(0.1 * long, share, 0.1, waits=True))
        made = {
            "fusion": [kernel(long, 0.005, share)] * int(rng.integers(3, 6)),
            "faster format": [kernel(long, share, 0.02)],
            "better kernels": [kernel(long, 0.1, 0.15)] * int(rng.integers(1, 4)),
        }[fix]
        return repeated(8, *others, *made) if rng.random() < 0.5 else repeated(8, *made, *others)

    drawn_after = [  # of traces for which the fixes are best in turn
        (85, 266.2, 266.2, 266.2, 266.2),
        (3868.6, 2698, 3868.6, 3185.9, 3672.4),
        (10473.3, 10473.3, 268, 10473.3, 10473.3),
        (373, 373, 373, 197, 362.4),
        (2004.2, 2004.2, 2004.2, 2004.2, 414.4),
        (95.3, 271.8, 271.8, 271.8, 271.8),
        (3074.3, 2141.4, 3074.3, 2531.8, 2917.9),
        (9259.1, 9259.1, 2387.9, 9259.1, 9259.1),
        (1314.3, 1317.2, 1317.2, 691.1, 1317.2),
        (2100.5, 2100.5, 2100.5, 2062.5, 465.2),
        (43.3, 149, 149, 149, 149),
        (1782.7, 1383.6, 1782.7, 1468.1, 1720.4),
        (10381.2, 10381.2, 266.3, 10381.2, 10381.2),
        (1941, 1941, 1941, 974.5, 1941),
        (9239.4, 9239.4, 9239.4, 9239.4, 1836),
        (66.9, 220.3, 220.3, 220.3, 220.3),
        (3800, 2699.2, 3800, 3129.4, 3617.1),
        (6178.7, 6178.7, 1638.8, 6148.4, 6135.9),
        (1859.6, 1859.6, 1859.6, 1002.1, 1813.4),
        (6139.8, 6139.8, 6139.8, 6100, 1225.9),
    ]
    for seed, after in enumerate(drawn_after):
        assert min(after) == after[seed % 5], (seed, after)
        chooses(choose_fix, f"drawn {seed}", drawn(check.rng(seed + 50), FIXES[seed % 5]), ROUND, after)
    rare = repeated(4, *[(7.0, 3.0, 2e9, 4e6)] * 19, (7.0, 3.0, 2e9, 4e6, True))
    chooses(choose_fix, "with few waits", rare, ROUND, (268, 563, 572, 566, 572))
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "choose_fix_test_mixed", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("choose_fix", "traces that mix several kinds of trouble", part="mixed", hidden="random traces"):
    cases = {  # how often the calls are repeated, the calls, and the µs after each of FIXES
        "of memory-bound kernels, each after a matmul": (
            8,
            [(6.0, 50.0, 4e7, 8e7), (6.0, 40.0, 3.2e10, 3e7)],
            (726, 726, 726, 566, 726),
        ),
        "of memory-bound kernels, each followed by a wait": (
            8,
            [(5.0, 60.0, 1e8, 9.6e7, True), (5.0, 45.0, 3e9, 4e7)],
            (885, 845, 885, 885, 725),
        ),
        "of a long memory-bound kernel beside a short one": (
            8,
            [(5.0, 80.0, 1e8, 1.3e8), (5.0, 4.0, 1e7, 7e6), (5.0, 70.0, 5.6e10, 2e7)],
            (1237, 1237, 1205, 957, 1237),
        ),
        "of matmuls of 40 µs, launched every 50 µs": (10, [(50.0, 40.0, 3.2e10, 1e7)], (450, 540, 540, 520, 540)),
        "of slow kernels, each launched for 15 µs and waited for": (
            10,
            [(15.0, 30.0, 2e7, 1.2e7, True)],
            (450, 315, 450, 450, 225),
        ),
        "of kernels of 0.5 µs, launched every 1.6 µs": (
            10,
            [(1.6, 0.5, 1e6, 900000), (1.6, 0.5, 1e6, 900000), (1.6, 0.5, 1e6, 900000), (1.6, 0.5, 4e8, 200000)],
            (21.6, 64.5, 32.5, 64.25, 64.5),
        ),
        "of matmuls beside slow kernels that do little": (
            8,
            [(2.0, 60.0, 5.4e10, 2e7), (2.0, 39.0, 1e6, 1e6)],
            (794, 794, 794, 554, 487),
        ),
        "of memory-bound kernels at 62% of the bandwidth, and matmuls": (
            8,
            [(2.0, 60.0, 1e8, 7.44e7), (2.0, 20.0, 1.8e10, 1e7)],
            (642, 642, 642, 562, 642),
        ),
        "of matmuls beside kernels at 55% of the bandwidth": (
            8,
            [(2.0, 60.0, 5.4e10, 1e7), (2.0, 60.0, 1e8, 6.6e7)],
            (962, 962, 962, 722, 812),
        ),
        "of runs of kernels, some of 9.5 FLOP per byte": (
            8,
            [(1.0, 30.0, 2e8, 5e7), (1.0, 30.0, 4.75e8, 5e7), (1.0, 30.0, 2e8, 5e7), (1.0, 90.0, 8.1e10, 2e7)],
            (1441, 1441, 961, 1081, 1441),
        ),
        "of runs of kernels, some of 10 FLOP per byte": (
            8,
            [(1.0, 30.0, 2e8, 5e7), (1.0, 30.0, 5e8, 5e7), (1.0, 30.0, 2e8, 5e7), (1.0, 50.0, 4.5e10, 2e7)],
            (1121, 1121, 1121, 921, 1121),
        ),
        "of runs of two memory-bound kernels with a wait at their end": (
            8,
            [(30.0, 20.0, 1e8, 3.6e7), (1.0, 20.0, 1e8, 3.6e7, True)],
            (560, 350, 400, 560, 560),
        ),
        "of slow matmuls beside runs of ten small kernels": (
            8,
            [(1.0, 100.0, 5.9e10, 1e6), *[(1.0, 4.5, 1e6, 6.3e6)] * 10],
            (1161, 1161, 837, 1161, 951),
        ),
        "of a single matmul": (1, [(60.0, 30.0, 2.7e10, 1e7)], (90, 90, 90, 75, 90)),
        "of matmuls at 35% of the peak rate": (8, [(5.0, 100.0, 3.5e10, 1e7)], (805, 805, 805, 805, 355)),
        "of kernels with two equal floors": (8, [(5.0, 100.0, 7e10, 1.4e8)], (805, 805, 805, 405, 805)),
        "of matmuls at 60% of the peak rate": (8, [(5.0, 100.0, 6e10, 1e7)], (805, 805, 805, 405, 805)),
    }
    for name, (times, calls, after) in cases.items():
        chooses(choose_fix, name, repeated(times, *calls), ROUND, after)

    ### BEGIN HIDDEN TESTS
    def after_fix(trace, fix, roof):
        """The trace with one fix applied."""
        floors = [(call.flops / roof.peak_flops * 1e6, call.bytes / roof.bandwidth * 1e6) for call in trace]
        if fix == "CUDA graph":  # the host's own work after a wait stays
            before = [True, *(call.waits for call in trace)]
            return [c if after else replace(c, issue_us=0.5) for c, after in zip(trace, before, strict=False)]
        if fix == "no waiting":
            return [replace(call, waits=False) for call in trace]
        if fix == "faster format":
            return [
                replace(c, busy_us=c.busy_us / 2) if compute >= max(memory, 0.6 * c.busy_us) else c
                for c, (compute, memory) in zip(trace, floors, strict=True)
            ]
        if fix == "better kernels":
            return [
                replace(c, busy_us=max(both) / 0.8) if max(both) < 0.6 * c.busy_us else c
                for c, both in zip(trace, floors, strict=True)
            ]
        fused, open_run = [], False
        for call in trace:
            low = call.flops < 10 * call.bytes
            if low and open_run:
                fused[-1] = replace(fused[-1], busy_us=max(fused[-1].busy_us, call.busy_us), waits=call.waits)
            else:
                fused.append(call)
            open_run = low and not call.waits
        return fused

    def leaves(trace, roof):
        return tuple(wall_us(after_fix(trace, fix, roof)) for fix in FIXES)

    for seed in range(40):
        rng = check.rng(seed + 500)
        kinds = [
            (
                float(rng.uniform(1, 60)),
                float(busy),
                float(rng.uniform(0, 1)) * busy * 1e9,
                float(rng.uniform(0.05, 1)) * busy * 2e6,
                bool(rng.random() < 0.15),
            )
            for busy in rng.uniform(2, 80, int(rng.integers(2, 7)))
        ]
        trace = repeated(4, *kinds)
        chooses(choose_fix, f"random trace {seed}", trace, ROUND, leaves(trace, ROUND))
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "choose_fix",
    "Begin with the wall time against the busy time. A device that is busy all the time gains nothing from a fix on the host, however often the host waits.",
    "The busy time of all kernels of a kind is the most that a fix for that kind can save. How much does it save by the table? A kernel without a neighbour to fuse with saves nothing.",
    "`wall_us` measures any trace, even a changed copy of this one. `replace(call, busy_us=1.0)` makes a changed copy of a call.",
)
debrief(
    "choose_fix",
    """Two comparisons tell you where to look: wall time against busy time, and then the time per verdict, not the number of
    kernels. In D four of five kernels are limited by memory, but the fifth takes 88% of the time. In F the host waits for every
    fifth kernel, which looks alarming, but costs less than 2%.

    But the time that a kind of kernel takes is not the time that a fix saves. In G memory takes 56% of the time, and fusion
    saves nothing, because no two of these kernels are neighbours. So the safe way is to apply every fix to a model of the
    trace and to compare.
    Performance engineers do this with simulators, and then check the answer with a measurement.""",
    parts=("clear", "mixed"),
)

# %% [markdown]
# ## In practice
#
# At work the numbers come from `torch.profiler` (`key_averages()`, or a trace for Perfetto), from Nsight Systems for wall
# against busy time, and from Nsight Compute's roofline for one kernel. `nvidia-smi`'s utilisation is only the share of time
# in which some kernel ran. Training teams report **MFU** (model FLOPs utilisation): the FLOPs that the model needs, divided
# by what the peak rate would do in the wall time.
#
# ## Your pieces at work
#
# The next cell repairs two eager passes. In each round your `classify` says what limits the pass, and your `choose_fix`
# picks a fix, until one saves less than 10%. With 16 images the host is the first limit. With 128, fusion is enough,
# and comes within 3% of `torch.compile`.
#
# Below that, the cell measures the two roofs of *this* machine, with a large copy and a large matmul, and places
# operations of PyTorch below them, in about 10 seconds. The **best** of many runs is the roof, because other programs
# can only add time. A point above the roof got its bytes from a cache, or the probe was poor.


# %% tags=["demo"] jupyter={"source_hidden": true}
import torch
import torch.nn.functional as F
from threeloops.hardware import device, measure_copy_bandwidth, measure_matmul_rate, this_machine
from threeloops.inner.timing import benchmark
from threeloops.lab import together

EAGER, COMPILED = (f"128 images on an H100, {kind} (synthetic)" for kind in ("eager", "compiled"))
programs = {"16 images on an H100, eager (synthetic)": 16, EAGER: 128}
if parts := together("classify", "choose_fix"):
    repaired = {}
    for name, images in programs.items():
        roof, trace = PASSES[name].roof, roofline.calls_of(PASSES[name], Call)
        rounds = roofline.repair(trace, roof, Span, parts.classify, parts.choose_fix, wall_us)
        repaired[name] = rounds, roofline.REFERENCE[images]
    show.figure(
        roofline.draw_repairs(repaired, {EAGER: ("torch.compile's pass", PASSES[COMPILED].wall_us)}),
        "Wall time of two eager passes after each repair, beside the reference's",
    )

DEVICE = device()
dtype = "fp32" if DEVICE == "cpu" else "bf16"
copies = measure_copy_bandwidth(DEVICE, runs=9)
products = measure_matmul_rate(dtype, DEVICE, size=1024 if DEVICE == "cpu" else 8192, runs=9)
probed = this_machine(DEVICE)
rates = probed.rates | {dtype: max(products.samples)}
mine = Roofline(replace(probed, name="this machine", memory_bandwidth=max(copies.samples), rates=rates), dtype)
torch_dtype, element, scale = (torch.float32, 4, 1) if DEVICE == "cpu" else (torch.bfloat16, 2, 8)


def tensor(*shape):
    return torch.randn(*shape, device=DEVICE, dtype=torch_dtype)


def written_out(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1) @ v


n, t = 1024 * scale, 512 * scale
MEASURED = {  # function, inputs, least work
    "matmul": (torch.matmul, lambda: (tensor(n, n), tensor(n, n)), matmul(n, n, n, element)),
    "matmul, one row": (torch.matmul, lambda: (tensor(1, 4 * n), tensor(4 * n, n)), matmul(1, 4 * n, n, element)),
    "attention": (
        written_out,
        lambda: tuple(tensor(1, 8, t, 64) for _ in range(3)),
        attention(1, 8, t, t, 64, element),
    ),
    "softmax": (lambda x: torch.softmax(x, -1), lambda: (tensor(4 * n, n),), softmax(4 * n, n, element)),
    "LayerNorm": (lambda x: F.layer_norm(x, x.shape[-1:]), lambda: (tensor(4 * n, n),), layernorm(4 * n, n, element)),
}
with torch.no_grad():
    TIMES = {name: benchmark(f, inputs, device=DEVICE, samples=7) for name, (f, inputs, _) in MEASURED.items()}
points = {name: (work, TIMES[name].median) for name, (_, _, work) in MEASURED.items()}
show.figure(roofline.draw_measured(mine, points), "Operations of PyTorch below the two roofs of this machine")
print(
    f"Roofs: {mine.peak_flops / 1e9:,.0f} GFLOP/s in {dtype.upper()}, {mine.bandwidth / 1e9:.1f} GB/s, measured here. "
    f"They meet at {mine.ridge_point:.1f} FLOP per byte; an H100's in BF16 at 295."
)
show.busy_notice()
calibration()

# %% [markdown]
# ## What to remember
#
# - Intensity depends on the shape: a matmul with the same weights is limited by compute for a large batch, and by memory for
#   one token.
# - For each rate on a data sheet, ask whether it is dense or sparse, and in which format it multiplies and sums.
# - Compare wall time with busy time first, and then busy time with its floors. "Unexplained" is an answer, too.
# - Count self time, and rank operators by their total over all calls.
#
# The deep dives (`01_roofline_dives.ipynb`) judge sixteen claims, and cover gaps in a trace, a systolic array, the
# statistics of a benchmark and a live profile. Next: `02_memory_hierarchy`.
#
# ## Reflection
#
# Your team's model runs at 31% of the peak of its GPUs, while `nvidia-smi` shows 98%. A colleague proposes to buy the next
# generation, with 2.5 times the math and 1.4 times the bandwidth. Which three measurements would you take first, and what
# would each have to show to justify that?

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# *Write your answer here.*
