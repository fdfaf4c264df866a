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
#     title: Can this machine teach me?
#     minutes: 150
#     edition: 2
#     withholds: [threeloops.hardware.capability, threeloops.hardware.probe, threeloops.inner.costs, threeloops.inner.roofline, threeloops.inner.timing]
# ---

# %% [markdown]
# # Can this machine teach me?
#
# How long does one line of array code take, for one element and for 17 million? By the end of this lab you can predict
# that within a factor of two, on machines that you have never touched. Then you find out what your own machine can do
# for the rest of the course.
#
# ![x and y lie in memory, and must pass the cache to reach the core: how long does y = a·x + y take?](attachment:opening.png)
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] jupyter={"source_hidden": true} nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import copy
import json
import math
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from threeloops.lab import (
    CheckFailed,
    animate,
    calibration,
    check,
    course_map,
    debrief,
    explore,
    figure,
    hint,
    labs,
    palette,
    predict,
    progress,
    reveal,
    show,
    term,
)
from threeloops.lab.checking.wall import arguments_after

ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class Work:
    """The least work of an operation: bytes moved, FLOPs, and FLOPs per byte."""

    bytes: int
    flops: int
    intensity: float


@dataclass(frozen=True)
class Level:
    """One memory: how many bytes a loop can count on, and how many bytes per second it streams."""

    capacity: float
    bandwidth: float


@dataclass(frozen=True)
class Machine:
    """A machine for a loop over vectors. `levels` go from small to large; the last holds anything."""

    name: str
    overhead: float  # seconds per call
    levels: tuple[Level, ...]


@dataclass(frozen=True)
class Probe:
    """The GPUs of a machine, and the GPU code that its PyTorch carries."""

    archs: tuple[str, ...]  # the GPU code in this build of torch; empty when it was built without CUDA
    gpus: tuple[tuple[int, int], ...]  # compute capabilities: GPU 0, GPU 1, …
    cuda_visible_devices: str | None  # None if the variable is not set


@dataclass(frozen=True)
class Report:
    """Which GPUs a process sees, which it can use, and a word that sums it up."""

    visible: tuple[int, ...]
    devices: tuple[int, ...]
    gpu: str


def runs_on(arch: str, capability: tuple[int, int]) -> bool:
    """Whether code built for `arch`, such as "sm_90" or "compute_120", runs on such a GPU."""
    kind, digits = arch.split("_")
    built_for = (int(digits[:-1]), int(digits[-1]))  # sm_100 is (10, 0)
    if kind == "compute":
        return capability >= built_for
    return capability[0] == built_for[0] and capability >= built_for


def on_a_cliff(n, dtype, machine):
    """Whether the working set is one to two times as large as a cache: partly inside, partly out."""
    working_set = 2 * n * ELEMENT_BYTES[dtype]
    return any(level.capacity < working_set <= 2 * level.capacity for level in machine.levels)


def seconds_per_call(operation, synchronize=lambda: None, samples=9, at_least=2e-4):
    """`samples` timings of one call, repeated until the clock has `at_least` seconds to read."""

    def stopwatch(calls):
        synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            operation()
        synchronize()
        return time.perf_counter() - start

    calls = 1
    stopwatch(calls)
    while stopwatch(calls) < at_least:
        calls *= 2
    return [stopwatch(calls) / calls for _ in range(samples)]


def record(operation, n, dtype, device="cpu"):
    """Timings of "saxpy", "copy" or "scale" on `n` elements: one line of data/saxpy_samples.json."""
    import torch

    x, y = (torch.ones(n, dtype=getattr(torch, dtype), device=device) for _ in range(2))
    steps = {
        "saxpy": lambda: y.add_(x, alpha=1e-6),
        "copy": lambda: y.copy_(x),
        "scale": lambda: y.mul_(0.999),
    }
    synchronize = torch.cuda.synchronize if "cuda" in str(device) else lambda: None
    seconds = seconds_per_call(steps[operation], synchronize)
    return {"operation": operation, "dtype": dtype, "n": n, "seconds": seconds}


def scaling_size(working_set):
    """How many float32 elements to scale in place to touch this many bytes."""
    return int(working_set) // 4


def describe(name, samples, cache_bytes):
    """The machine behind three samples: SAXPY on one element, scaling in and far outside the cache.

    Only half of the last cache counts as capacity: it is shared, and other things live there too.
    """
    median = {(s["operation"], s["dtype"], s["n"]): statistics.median(s["seconds"]) for s in samples}
    small, large = sorted(n for operation, _, n in median if operation == "scale")
    cache, memory = (2 * 4 * n / median["scale", "float32", n] for n in (small, large))
    levels = (Level(cache_bytes / 2, cache), Level(float("inf"), memory))
    return Machine(name, median["saxpy", "float32", 1], levels)


RECORDING = json.loads(Path("data/saxpy_samples.json").read_text())
RECORDED = describe(RECORDING["device"], RECORDING["samples"], RECORDING["cache_bytes"])
SAXPY = [s for s in RECORDING["samples"] if (s["operation"], s["dtype"]) == ("saxpy", "float32")]

RUN_BYTES = [24e6, 24e6, 24e6, 24e6]
RUN_SECONDS = [30e-3, 1e-3, 1e-3, 4e-3]


def reported_throughput(bytes_moved, seconds, warmup):
    """Bytes per second over all runs except the first `warmup`. This is the colleague's version."""
    rates = np.divide(bytes_moved, seconds)
    return float(rates[warmup:].mean())


# Shared by several test cells.


def cause(known, function, *args):
    """Why `function(*args)` returned its result, if that is one of the `known` wrong values."""
    try:
        value = function(*copy.deepcopy(args))
    except Exception:
        return ""
    if type(value) not in (int, float):
        return ""
    return next((why for wrong, why in known.items() if math.isclose(value, wrong, rel_tol=1e-6)), "")


def within_a_factor_of_two(function, n, dtype, machine, seconds, why=""):
    predicted = function(n, dtype, machine)
    number = type(predicted) in (int, float) or type(predicted).__name__ in ("float64", "float32")
    said = "the function ends without `return`" if predicted is None else "expected a number of seconds"
    check.true(number, f"predict_seconds returned {predicted!r}: {said}")
    factor = max(predicted / seconds, seconds / predicted) if predicted > 0 else float("inf")
    seen = likely_cause(function, n, dtype, predicted, seconds)
    hint_text = f"{seen} ({why})" if seen and why else seen or why
    card = (
        f"quantity   SAXPY, n = {n:,}, {dtype}, on {machine.name}",
        f"value      {predicted:.3g} s",
        f"expected   {seconds:.3g} s, or at most a factor of 2 from it",
        f"difference a factor of {factor:,.3g}",
        *([f"hint       {hint_text}"] if hint_text else []),
    )
    check.true(bool(seconds / 2 <= predicted <= seconds * 2), "\n  ".join(card))
    return factor


def likely_cause(function, n, dtype, predicted, seconds):
    """The mistake behind a prediction, if the function's own results show it."""
    if 0.9e6 < predicted / seconds < 1.1e6 or predicted > 1e4 * seconds:
        return "the answer is in seconds, not in a smaller unit"
    if n < 1000 and predicted < seconds:
        return "on tiny vectors nearly all of the time is overhead"
    plain = Machine("a machine of 1 byte per second", 5.0, (Level(float("inf"), 1.0),))
    right = {"float16": 6000, "bfloat16": 6000, "float32": 12_000, "float64": 24_000}[dtype]
    try:
        start = function(0, dtype, plain)
        share = (function(1000, dtype, plain) - start) / right
    except Exception:
        return ""
    for vectors, wrong in (("1 vector", 1 / 3), ("2 vectors", 2 / 3)):
        if math.isclose(share, wrong, rel_tol=1e-6):
            return f"that is the time of {vectors}: list every access in the loop"
    only_the_level = math.isclose(start, 5.0, rel_tol=1e-6) and math.isclose(share, 1.0, rel_tol=1e-6)
    return "which level holds what the loop touches?" if only_the_level else ""


def reports(function, probe, field, expected, why):
    """One field of a report; the message shows the machine that it is about."""
    report = function(probe)
    check.true(
        type(report).__name__ == "Report" and hasattr(report, field),
        f"capability_report returned {report!r}: expected a Report",
    )
    actual = getattr(report, field)
    actual = tuple(actual) if type(actual) is list else actual
    count = len(probe.gpus)
    gpus = f"GPUs {', '.join(map(str, probe.gpus))}" if count else "no GPU"
    if len(set(probe.gpus)) == 1:
        gpus = f"{count} GPU{'s' * (count > 1)} of compute capability {probe.gpus[0]}"
    code = f", archs {', '.join(probe.archs) or 'none'}" if field != "visible" else ""
    what = f"{field} with {gpus}{code} and CUDA_VISIBLE_DEVICES={probe.cuda_visible_devices!r}"
    check.equal(actual, expected, what=what, hint=why)


THREE_LEVELS = (Level(2**20, 400e9), Level(24 * 2**20, 80e9), Level(float("inf"), 16e9))
SERVER = Probe(
    archs=("sm_75", "sm_80", "sm_90", "sm_100", "sm_120"),
    gpus=((9, 0), (8, 0), (8, 0), (8, 0)),
    cuda_visible_devices=None,
)

# %% tags=["demo", "opening"] jupyter={"source_hidden": true}
plot, axes = figure(width=9, height=3.3)
for left, width, top, name in ((0, 3.4, 3.2, "memory"), (4.6, 2.0, 2.5, "cache"), (7.8, 1.2, 1.7, "core")):
    axes.fill_between([left, left + width], 2 - top / 2, 2 + top / 2, color=palette.sky, alpha=0.12, lw=0)
    axes.text(left + width / 2, 2 + top / 2 + 0.12, name, ha="center", weight="bold")
for row, name, colour in ((2.5, "x", palette.blue), (1.3, "y", palette.vermillion)):
    for cell in range(6):
        axes.fill_between(
            [0.55 + 0.45 * cell, 0.93 + 0.45 * cell], row - 0.2, row + 0.2, color=colour, alpha=0.75, lw=0
        )
    axes.text(0.38, row, name, ha="right", va="center", family="monospace", size=13)
arrow = {"arrowstyle": "<->", "color": palette.grey, "lw": 2}
for tail, tip in ((3.5, 4.5), (6.7, 7.7)):
    axes.annotate("", (tip, 2), (tail, 2), arrowprops=arrow)
axes.text(8.4, 2, "a·x + y", ha="center", va="center", family="monospace", size=12)
axes.text(4.5, -0.25, "y = a·x + y on 1 element, or on 17 million: how long does it take?", ha="center", size=13)
axes.set(xlim=(-0.2, 9.4), ylim=(-0.6, 4.1))
axes.axis("off")
show.figure(plot, "x and y lie in memory, and must pass the cache to reach the core: how long does y = a·x + y take?")

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "saxpy_ms",
    "y = a·x + y on two vectors of 2²⁴ float32 elements (64 MiB each), on one core of this machine, or on its GPU if "
    "it has one: how many milliseconds?",
    unit="ms",
)

# %% [markdown]
# Run the two cells above, type your guess into the box, and press the button. Section 5 measures it on your machine.
#
# ## How to work here
#
# Read a section, replace `raise NotImplementedError()` in its **exercise** cell with your answer, then run the **check**
# below it. A check that fails names the quantity that is wrong and by how much. Hints stand below the checks and open one
# at a time. When all checks of an exercise pass, the cell below them explains why the answer works. The checks that you
# see show every rule of the specification, and grading tries the same rules on other sizes and inputs. The exercises do
# not build on one another, so a wrong answer costs only its own points. If a word is new to you, `term("overhead")` in
# a cell of your own shows what it means.
#
# In a terminal of JupyterLab (*File, New, Terminal*), `threeloops check 00 --full` grades this lab with its hidden tests,
# `threeloops doctor` reports on the machine, and `threeloops start 01` makes your copy of the next lab.
#
# When you come back another day, questions and sliders read *Error displaying widget: model not found* until you choose
# *Run, Run All Cells*. Your answers and predictions are kept.
#
# ## 1 · Count the bytes
#
# Before you time anything, count what has to move. Take a loop that scales a vector in place:
#
# ```
# for i in range(n):
#     y[i] = a * y[i]
# ```
#
# We count the **least traffic**: each element that the loop needs is read from memory once, each result is written once,
# and `a` stays in a register. With n = 4 and float32, which has 4 bytes per element, the loop reads 4 · 4 = 16 bytes and
# writes 16 bytes, so it moves **32 bytes**. The animation below shows them one at a time.
#
# ### Exercise 1 (10 points)
#
# SAXPY (*single-precision a times x plus y*; people use the name for every precision) is this loop:
#
# ```
# for i in range(n):
#     y[i] = a * x[i] + y[i]
# ```
#
# `saxpy_bytes(n: int, element_bytes: int) -> int` returns the bytes it moves on vectors of `n` elements of
# `element_bytes` bytes each. Empty vectors move 0 bytes. The picture below the check shows your count.


# %% tags=["demo"] jupyter={"source_hidden": true}
def draw_scaling(frame):
    index, step = divmod(frame, 3)
    plot, axes = figure(width=7.5, height=2.3)
    read, written = min(4 * (index + 1), 16), 4 * index + (4 if step == 2 else 0)
    for cell in range(4):
        done = cell < index or (cell == index and step == 2)
        colour = palette.green if done else palette.sky
        axes.fill_between([cell, cell + 0.9], 0, 0.8, color=colour, alpha=0.6, lw=0)
        axes.text(cell + 0.45, 0.4, f"a·y[{cell}]" if done else f"y[{cell}]", ha="center", va="center")
    axes.fill_between([6, 7.6], 0, 0.8, color=palette.orange, alpha=0.45, lw=0)
    axes.text(6.8, 0.4, (f"y[{index}]", f"a·y[{index}]", "")[step], ha="center", va="center")
    axes.text(6.8, 0.9, "core", ha="center", weight="bold")
    axes.text(1.95, 0.9, "memory", ha="center", weight="bold")
    if step != 1:
        ends = ((4.1, 0.4), (5.9, 0.4))
        axes.annotate("", ends[1 - step // 2], ends[step // 2], arrowprops={"arrowstyle": "->", "color": palette.grey})
        axes.text(5, 0.5, ("read", "", "write")[step], ha="center")
    axes.text(0, -0.5, f"bytes read: {read}    bytes written: {written}    moved: {read + written}", size=12)
    axes.set(xlim=(-0.2, 8), ylim=(-0.7, 1.3))
    axes.axis("off")
    return plot


animate(draw_scaling, range(12), seconds=0.8, still=5, caption="Scaling four float32 elements in place moves 32 bytes")


# %% nbgrader={"grade": false, "grade_id": "saxpy_bytes", "locked": false, "schema_version": 3, "solution": true, "task": false}
def saxpy_bytes(n: int, element_bytes: int) -> int:
    """Bytes that y ← a·x + y reads and writes."""
    ### BEGIN SOLUTION
    return 3 * n * element_bytes
    ### END SOLUTION


# %% jupyter={"source_hidden": true} nbgrader={"grade": true, "grade_id": "saxpy_bytes_test", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false}
with check("saxpy_bytes", "the bytes that SAXPY moves", hidden="other sizes"):
    known = {
        8000: "that is the traffic of two accesses per index; list every access in the loop's body",
        3000: "that counts elements; each has several bytes",
        2000: "that counts elements; each has several bytes",
        16_000: "`a` stays in a register: it is not read again for every index",
    }
    check.returns(12_000, saxpy_bytes, 1000, 4, unit="B", hint=cause(known, saxpy_bytes, 1000, 4))
    check.returns(48, saxpy_bytes, 4, 4, unit="B")
    check.returns(240, saxpy_bytes, 10, 8, unit="B")
    check.returns(6, saxpy_bytes, 1, 2, unit="B")
    check.returns(0, saxpy_bytes, 0, 4, unit="B")
    large = "count in int: a float holds 53 bits"
    check.equal(saxpy_bytes(10**16 + 1, 8), 240_000_000_000_000_024, what="saxpy_bytes(10**16 + 1, 8)", hint=large)
    ### BEGIN HIDDEN TESTS
    for n in (3, 127, 128, 129, 65_537, 3_000_000_019):
        for size in (1, 2, 4, 8):
            moved = sum(n * size for _ in ("read x", "read y", "write y"))
            check.returns(moved, saxpy_bytes, n, size, unit="B")
    ### END HIDDEN TESTS


# %% tags=["demo"] jupyter={"source_hidden": true}
def draw_count(answer):
    """A box for each 16 bytes that the answer counts on 4 float32 elements, named once the count is right."""
    try:
        counted = float(answer(4, 4))
    except Exception:
        counted = float("nan")
    right = counted == 48
    vectors = min(counted / 16, 6) if counted > 0 else 0
    plot, axes = figure(width=7.5, height=1.8)
    for box in range(math.ceil(vectors)):
        width, colour = min(1, vectors - box), palette.green if right else palette.orange
        axes.fill_between([1.1 * box, 1.1 * box + width], 0, 0.8, color=colour, alpha=0.6, lw=0)
        axes.text(
            1.1 * box + width / 2, 0.4, ("read x", "read y", "write y")[box] if right else "?", ha="center", va="center"
        )
    said = "your function counts nothing yet" if math.isnan(counted) else f"your function counts {counted:g} bytes"
    axes.text(0, 1.0, f"4 float32 elements are 16 bytes, which is one box. {said[0].upper()}{said[1:]}.", size=11)
    axes.set(xlim=(-0.1, 6.7), ylim=(-0.2, 1.4))
    axes.axis("off")
    return plot


show.figure(draw_count(saxpy_bytes), "Your function's count for SAXPY on four elements, in boxes of 16 bytes")
hint(
    "saxpy_bytes",
    "Write down every array access in the body of the loop. How many are reads, how many are writes?",
    "x[i] is read, y[i] is read, and y[i] is written.",
)
debrief(
    "saxpy_bytes",
    """The loop makes three accesses per index: it reads x, reads y and writes y. Each of the three
    is a stream of n · element_bytes bytes, so the traffic is three streams. The scalar `a` is read once, into a register.

    Counting streams is the first thing that engineers do with a slow loop: it needs no machine, and it gives a lower
    bound for the traffic on every machine.""",
)

# %% [markdown]
# ## 2 · Count the FLOPs
#
# A **FLOP** is one floating-point operation. A multiply and an add count as two, even if the hardware fuses them into
# one instruction, because the peak rates on data sheets are counted that way too. FLOPs divided by bytes is the
# **arithmetic intensity**. It is a property of the algorithm, not of the machine, and the next lab builds on it.
#
# *Worked example.* Scaling four float32 elements in place does 4 multiplications, which are 4 FLOPs, and moves 32 bytes.
# Its intensity is 4 / 32 = 0.125 FLOP per byte. With 8-byte float64 it does the same 4 FLOPs on 64 bytes: 0.0625.
#
# ### Exercise 2 (15 points)
#
# `saxpy_work(n: int, dtype: str) -> Work` returns the work of SAXPY on vectors of `n` elements, as
# `Work(bytes=…, flops=…, intensity=…)`.
#
# | field | unit | meaning |
# |---|---|---|
# | `bytes` | bytes | what is read and written |
# | `flops` | FLOPs | multiplications and additions |
# | `intensity` | FLOPs per byte | their quotient; 0.0 for empty vectors |
#
# `ELEMENT_BYTES[dtype]` gives the bytes per element, for float16, bfloat16, float32 and float64. Any other `dtype` raises a
# `ValueError` whose message contains it. A negative `n` raises a `ValueError` whose message contains its value.


# %% nbgrader={"grade": false, "grade_id": "saxpy_work", "locked": false, "schema_version": 3, "solution": true, "task": false}
def saxpy_work(n: int, dtype: str) -> Work:
    """Bytes, FLOPs and intensity of y ← a·x + y on `n` elements."""
    ### BEGIN SOLUTION
    if dtype not in ELEMENT_BYTES:
        raise ValueError(f"dtype = {dtype!r}: expected one of {', '.join(ELEMENT_BYTES)}")
    if n < 0:
        raise ValueError(f"n = {n}: expected a number of elements, 0 or more")
    moved = 3 * n * ELEMENT_BYTES[dtype]
    flops = 2 * n
    return Work(bytes=moved, flops=flops, intensity=flops / moved if moved else 0.0)
    ### END SOLUTION


# %% jupyter={"source_hidden": true} nbgrader={"grade": true, "grade_id": "saxpy_work_test_values", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false}
with check("saxpy_work", "bytes and FLOPs of SAXPY", part="values", hidden="other sizes"):
    known = {
        "bytes": cause(
            {8000: "that is the traffic of two accesses per index"}, lambda: saxpy_work(1000, "float32").bytes
        ),
        "flops": cause(
            {1000: "a multiply and an add are two FLOPs, fused or not"}, lambda: saxpy_work(1000, "float32").flops
        ),
        "intensity": cause(
            {2 / 3: "that is FLOPs per element moved, not per byte", 6.0: "that is bytes per FLOP"},
            lambda: saxpy_work(1000, "float32").intensity,
        ),
    }
    check.returns(Work(12_000, 2000, 1 / 6), saxpy_work, 1000, "float32", hint=known)
    check.returns(Work(240, 20, 1 / 12), saxpy_work, 10, "float64")
    check.returns(Work(48, 16, 1 / 3), saxpy_work, 8, "bfloat16")
    check.returns(Work(6, 2, 1 / 3), saxpy_work, 1, "float16")
    ### BEGIN HIDDEN TESTS
    for dtype, size in (("float16", 2), ("bfloat16", 2), ("float32", 4), ("float64", 8)):
        for n in (1, 127, 129, 65_537, 3_000_000_019):
            moved = sum(n * size for _ in ("read x", "read y", "write y"))
            check.returns(Work(moved, n + n, 2 / (3 * size)), saxpy_work, n, dtype)
    ### END HIDDEN TESTS

# %% jupyter={"source_hidden": true} nbgrader={"grade": true, "grade_id": "saxpy_work_test_edges", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
with check("saxpy_work", "empty vectors and wrong arguments", part="edges", hidden="other names and values"):
    check.returns(Work(0, 0, 0.0), saxpy_work, 0, "float32")
    check.raises(ValueError, saxpy_work, 10, "int32", names="int32")
    check.raises(ValueError, saxpy_work, 10, "Float32", names="Float32")
    check.raises(ValueError, saxpy_work, -1, "float16", names="-1")
    ### BEGIN HIDDEN TESTS
    check.returns(Work(0, 0, 0.0), saxpy_work, 0, "float64")
    check.raises(ValueError, saxpy_work, 10, "float8", names="float8")
    check.raises(ValueError, saxpy_work, 0, "complex64", names="complex64")
    check.raises(ValueError, saxpy_work, -77, "float64", names="-77")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "saxpy_work",
    "The bytes are those of exercise 1. How many operations does one step of the loop do?",
    "A step does one multiplication and one addition, fused or not.",
    "Check `dtype` and `n` first, and look at `n = 0` before you divide.",
)
debrief(
    "saxpy_work",
    """SAXPY does two FLOPs for every three elements that move, so its intensity in float32 is 2 / 12 = 1 / 6 FLOP per
    byte, whatever n is. Halving the bytes per element doubles the intensity, because the FLOPs stay the same.

    One FLOP for every six bytes is very little. The machines that people train on can do far more arithmetic than that
    in the time it takes to move six bytes, so the arithmetic units mostly wait. That is why the next sections predict
    the time of SAXPY from its bytes alone.""",
    parts=("values", "edges"),
)

# %% [markdown]
# ## 3 · From bytes to seconds
#
# Two numbers describe how a machine runs one call of such a loop. Every call first costs some time before a byte moves:
# Python, PyTorch's dispatcher, and on a GPU the launch of the kernel. We call this the **overhead**. Then the bytes stream
# at a **bandwidth**, in bytes per second. In our model no byte moves before the overhead is over, so the two times add up.
#
# *Worked example.* A machine has an overhead of 1 µs and a bandwidth of 16 GB/s (16 · 10⁹ bytes per second). Scaling a
# million float32 elements in place moves 8 MB. That takes 8·10⁶ / 16·10⁹ s = 500 µs, and with the overhead **501 µs**.
# Scaling 100 elements moves 800 bytes, which take 0.05 µs, so the call takes **1.05 µs**: almost all of it is overhead.
#
# ### Exercise 3 (10 points)
#
# `call_seconds(bytes_moved: float, overhead: float, bandwidth: float) -> float` returns the seconds that one call takes.
# `overhead` is in seconds, `bandwidth` in bytes per second. A call that moves 0 bytes takes its overhead.


# %% nbgrader={"grade": false, "grade_id": "call_seconds", "locked": false, "schema_version": 3, "solution": true, "task": false}
def call_seconds(bytes_moved: float, overhead: float, bandwidth: float) -> float:
    """Seconds of one call that moves these bytes."""
    ### BEGIN SOLUTION
    return overhead + bytes_moved / bandwidth
    ### END SOLUTION


# %% jupyter={"source_hidden": true} nbgrader={"grade": true, "grade_id": "call_seconds_test", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false}
with check("call_seconds", "the time of one call", hidden="other machines"):
    known = {
        500e-6: "that is the transfer alone: the overhead and the transfer come one after the other",
        300e-6: "that is the overhead alone: the bandwidth is in bytes per second, so the transfer takes 500 µs",
        800.0: "that is in microseconds: expected seconds",
    }
    args = (8e6, 300e-6, 16e9)
    check.returns(800e-6, call_seconds, *args, unit="s", hint=cause(known, call_seconds, *args))
    check.returns(1.05e-6, call_seconds, 800, 1e-6, 16e9, unit="s")
    check.returns(501e-6, call_seconds, 8_000_000, 1e-6, 16e9, unit="s")
    check.returns(5e-6, call_seconds, 0, 5e-6, 1e9, unit="s")
    ### BEGIN HIDDEN TESTS
    for seed in range(8):
        rng = check.rng(seed)
        moved, start, rate = 10 ** rng.uniform(0, 10), 10 ** rng.uniform(-7, -4), 10 ** rng.uniform(9, 12.5)
        moved, start, rate = float(moved), float(start), float(rate)
        check.returns(sum((start, moved / rate)), call_seconds, moved, start, rate, unit="s")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint("call_seconds", "Bytes divided by bytes per second are seconds.", "Add the overhead to the time of the transfer.")
debrief(
    "call_seconds",
    """The time is a straight line in the number of bytes: it starts at the overhead and rises by one second for
    every `bandwidth` bytes. The two parts are equal at overhead × bandwidth bytes, which is 16 kB for 1 µs and
    16 GB/s. Far below that size only fewer calls would help, and far above it only fewer bytes or faster memory.

    A GPU that streams at 3 TB/s with a launch of 5 µs needs 15 MB in one call before the two parts are equal. This is why
    small operations waste a fast GPU.""",
)

# %% [markdown]
# ## 4 · Which memory?
#
# A machine has several memories. A small **cache** is fast, and main memory is large and slow. A loop runs at the speed of
# the cache when everything it touches fits inside. The bytes it touches are its **working set**, which is not its
# traffic: SAXPY touches x and y, so its working set is two vectors long, however often their elements are read and
# written.
#
# *Worked example.* A machine has three levels: 1 MiB (1,048,576 bytes) at 400 GB/s, 24 MiB at 80 GB/s, and main memory at
# 16 GB/s. SAXPY on 100,000 float32 elements touches 2 · 400,000 = 800,000 bytes. They fit into the first level, so the
# loop streams at 400 GB/s. A million elements touch 8 MB, which fit only into the second: 80 GB/s. Ten million touch
# 80 MB: 16 GB/s.
#
# ### Exercise 4 (10 points)
#
# `level_bandwidth(working_set: float, levels: tuple[Level, ...]) -> float` returns the bandwidth of the smallest level that
# holds `working_set` bytes. A `Level` has a `capacity` in bytes and a `bandwidth` in bytes per second. There are one or more
# levels, from small to large, and the last holds anything: its capacity is infinite. A working set of exactly a level's
# capacity still fits.


# %% nbgrader={"grade": false, "grade_id": "level_bandwidth", "locked": false, "schema_version": 3, "solution": true, "task": false}
def level_bandwidth(working_set: float, levels: tuple[Level, ...]) -> float:
    """Bandwidth of the smallest level that holds the working set."""
    ### BEGIN SOLUTION
    return next(level.bandwidth for level in levels if working_set <= level.capacity)
    ### END SOLUTION


# %% jupyter={"source_hidden": true} nbgrader={"grade": true, "grade_id": "level_bandwidth_test_values", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false}
with check("level_bandwidth", "the level that feeds the loop", part="values", hidden="machines with other levels"):
    fits = "800,000 bytes fit into the first level, of 1,048,576 bytes"
    check.returns(400e9, level_bandwidth, 800_000, THREE_LEVELS, unit="B/s", hint=fits)
    known = {400e9: "8 MB do not fit into 1 MiB", 16e9: "8 MB still fit into the 24 MiB of the second level"}
    args = (8_000_000, THREE_LEVELS)
    check.returns(80e9, level_bandwidth, *args, unit="B/s", hint=cause(known, level_bandwidth, *args))
    check.returns(16e9, level_bandwidth, 80_000_000, THREE_LEVELS, unit="B/s", hint="80 MB fit into main memory only")
    check.returns(400e9, level_bandwidth, 0, THREE_LEVELS, unit="B/s")
    shared = "a level holds what fits into it alone: capacities do not add up"
    check.returns(16e9, level_bandwidth, 24.5 * 2**20, THREE_LEVELS, unit="B/s", hint=shared)
    five = (Level(1000, 5e9), Level(2000, 4e9), Level(3000, 3e9), Level(4000, 2e9), Level(float("inf"), 1e9))
    check.returns(2e9, level_bandwidth, 3500, five, unit="B/s", hint="a machine may have any number of levels")
    slow_first = (Level(1000, 1e9), Level(2000, 4e9), Level(float("inf"), 2e9))
    smallest = "500 bytes fit into the smallest level, and the smallest counts, not the fastest"
    check.returns(1e9, level_bandwidth, 500, slow_first, unit="B/s", hint=smallest)
    ### BEGIN HIDDEN TESTS
    for seed in range(8):
        rng = check.rng(seed)
        count = 2 + seed % 4
        sizes = [*sorted(int(s) for s in rng.integers(2**12, 2**30, size=count - 1)), float("inf")]
        rates = sorted((float(r) for r in rng.uniform(1e10, 5e12, size=count)), reverse=True)
        many = tuple(Level(size, rate) for size, rate in zip(sizes, rates, strict=True))
        below = 0
        for size, rate in zip(sizes[:-1], rates[:-1], strict=True):
            check.returns(
                rate, level_bandwidth, (below + size) / 2, many, unit="B/s", hint="it fits into a smaller level"
            )
            below = size
        check.returns(rates[-1], level_bandwidth, 1e13, many, unit="B/s", hint="the last level holds anything")
    ### END HIDDEN TESTS

# %% jupyter={"source_hidden": true} nbgrader={"grade": true, "grade_id": "level_bandwidth_test_edges", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
with check("level_bandwidth", "full levels, and a single one", part="edges", hidden="other capacities"):
    exact = "a working set of exactly the capacity still fits"
    check.returns(400e9, level_bandwidth, 2**20, THREE_LEVELS, unit="B/s", hint=exact)
    check.returns(80e9, level_bandwidth, 2**20 + 1, THREE_LEVELS, unit="B/s", hint="one byte more does not fit")
    check.returns(
        3e12, level_bandwidth, 5e9, (Level(float("inf"), 3e12),), unit="B/s", hint="one level, which holds anything"
    )
    ### BEGIN HIDDEN TESTS
    for size in (4096, 3 * 2**20, 10**9 + 7):
        two = (Level(size, 300e9), Level(float("inf"), 20e9))
        check.returns(300e9, level_bandwidth, size, two, unit="B/s", hint=exact)
        check.returns(20e9, level_bandwidth, size + 1, two, unit="B/s", hint="it is one byte too large")
    check.returns(80e9, level_bandwidth, 24 * 2**20, THREE_LEVELS, unit="B/s", hint=exact)
    check.returns(16e9, level_bandwidth, 24 * 2**20 + 1, THREE_LEVELS, unit="B/s", hint="it is one byte too large")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "level_bandwidth",
    "Go through the levels from small to large, and stop at the first one that is large enough.",
    "A level that is exactly full still holds the working set.",
)
term("working set")
debrief(
    "level_bandwidth",
    """The levels come in order of size, so the first that is large enough is the smallest one, and the search needs no
    special case for one level or for five, because the last holds anything.

    The model assumes that a loop runs over the same data again and again. Only then are the data still in the cache
    when the next pass needs them.""",
    parts=("values", "edges"),
)

# %% [markdown]
# ## 5 · Predict the time
#
# The last three sections together predict a time. The course has
# recorded SAXPY on one core of a small cloud machine. The overhead of a call is 1.15 µs there, the cache streams at 164 GB/s,
# and main memory at 45 GB/s. (Both bandwidths were measured by scaling a vector in place. Had they been measured with SAXPY
# itself, you would fit its times, and not predict them.) The cache
# has 32 MiB, but others share it, so we count on half of it: 16 MiB.
#
# *Worked example: scaling in place, which touches one vector and moves two.* A million float32 elements touch 4 MB. They fit
# into the cache, so the 8 MB of traffic take 8·10⁶ / 164·10⁹ s = 49 µs, and the call takes 50 µs. Ten million elements touch
# 40 MB. That is too much for the cache, so 80 MB move at 45 GB/s, which takes 1.8 ms.
#
# The model has a blind spot. When a working set is one to two times as large as a level, a part of it still fits, and
# neither bandwidth is right. Such sizes are **on a cliff**, and recorded times there are not graded. Made-up machines
# follow the model exactly, so there every size is graded.
#
# ### Exercise 5 (22 points)
#
# `predict_seconds(n: int, dtype: str, machine: Machine) -> float` predicts the seconds of one SAXPY call.
#
# | argument | meaning |
# |---|---|
# | `n` | number of elements, 0 or more |
# | `dtype` | a key of `ELEMENT_BYTES` |
# | `machine` | has an `overhead` in seconds and `levels`, as in exercise 4 |
#
# Your prediction is compared with recorded times, and with those of made-up machines. It is right when it is within a
# **factor of two**, either way. When it passes, the cell below the check measures your
# own machine, which takes up to ten seconds, and answers the first question of this lab.


# %% nbgrader={"grade": false, "grade_id": "predict_seconds", "locked": false, "schema_version": 3, "solution": true, "task": false}
def predict_seconds(n: int, dtype: str, machine: Machine) -> float:
    """Predicted seconds of one SAXPY call on `n` elements."""
    ### BEGIN SOLUTION
    vector = n * ELEMENT_BYTES[dtype]
    level = next(level for level in machine.levels if 2 * vector <= level.capacity)
    return machine.overhead + 3 * vector / level.bandwidth
    ### END SOLUTION


# %% jupyter={"source_hidden": true} nbgrader={"grade": true, "grade_id": "predict_seconds_test_recorded", "locked": true, "points": 13, "schema_version": 3, "solution": false, "task": false}
with check("predict_seconds", "recorded times within a factor of two", part="recorded", hidden="other recorded times"):
    factors = []
    for sample in SAXPY:
        n, dtype = sample["n"], sample["dtype"]
        if not on_a_cliff(n, dtype, RECORDED):
            seconds = statistics.median(sample["seconds"])
            factors.append(within_a_factor_of_two(predict_seconds, n, dtype, RECORDED, seconds))
    eight = "a float64 element has 8 bytes"
    # medians of the same recording session in float64
    for n, seconds in ((100, 1.17e-6), (300_001, 55.9e-6)):
        factors.append(within_a_factor_of_two(predict_seconds, n, "float64", RECORDED, seconds, eight))
    check.note("largest factor from a recorded time", round(max(factors), 2), 1.45)
    ### BEGIN HIDDEN TESTS
    FLOAT64_SECONDS = {
        1: 1.14e-6,
        3_000: 1.53e-6,
        40_000: 6.12e-6,
        900_000: 175e-6,
        4_000_000: 1.80e-3,
        9_000_001: 4.49e-3,
        33_554_432: 16.6e-3,
    }
    for n, seconds in FLOAT64_SECONDS.items():
        if not on_a_cliff(n, "float64", RECORDED):
            within_a_factor_of_two(predict_seconds, n, "float64", RECORDED, seconds, eight)
    ### END HIDDEN TESTS

# %% jupyter={"source_hidden": true} nbgrader={"grade": true, "grade_id": "predict_seconds_test_machines", "locked": true, "points": 9, "schema_version": 3, "solution": false, "task": false}
with check("predict_seconds", "made-up machines", part="machines", hidden="other sizes and dtypes"):
    endless = float("inf")
    flat = Machine("a made-up machine of 1 level", 7e-6, (Level(endless, 3e12),))
    deep = Machine("a made-up machine of 3 levels", 0.5e-6, THREE_LEVELS)
    exact = "a working set of exactly the capacity still fits"
    within_a_factor_of_two(predict_seconds, 1, "float32", flat, 7.2e-6)
    within_a_factor_of_two(predict_seconds, 10**9, "float32", flat, 4.3e-3)
    within_a_factor_of_two(predict_seconds, 0, "float32", deep, 0.5e-6)
    within_a_factor_of_two(predict_seconds, 2**17, "float32", deep, 4.3e-6, exact)
    both = "the working set is both vectors: 1.5 MiB do not fit into 1 MiB"
    within_a_factor_of_two(predict_seconds, 196_608, "float32", deep, 30e-6, both)
    for short in ("float16", "bfloat16"):
        within_a_factor_of_two(predict_seconds, 2_000_000, short, deep, 125e-6, f"a {short} element has 2 bytes")
    within_a_factor_of_two(
        predict_seconds, 20_000_003, "float64", deep, 36e-3, "it fits into the last of 3 levels only"
    )
    ### BEGIN HIDDEN TESTS

    def synthetic_seconds(n, size, machine, rng):
        room = [level for level in machine.levels if n * size * 2 <= level.capacity]
        streamed = sum(n * size / room[0].bandwidth for _ in ("read x", "read y", "write y"))
        return (machine.overhead + streamed) * float(rng.uniform(0.8, 1.25))

    smallest = "the smallest level that holds both vectors"
    five = ((2**14, 1e12), (2**18, 500e9), (2**22, 180e9), (2**27, 70e9), (endless, 9e9))
    tall = Machine("a made-up machine of 5 levels", 3e-6, tuple(Level(size, rate) for size, rate in five))
    for machine in (flat, deep, tall):
        for seed, n in enumerate((1, 127, 4_097, 99_999, 500_001, 20_000_003, 1_000_000_007)):
            for dtype, size in (("float16", 2), ("bfloat16", 2), ("float32", 4), ("float64", 8)):
                seconds = synthetic_seconds(n, size, machine, check.rng(seed))
                within_a_factor_of_two(predict_seconds, n, dtype, machine, seconds, smallest)
    full = synthetic_seconds(2**16, 8, deep, check.rng(0))
    within_a_factor_of_two(predict_seconds, 2**16, "float64", deep, full, exact)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "predict_seconds",
    "Two amounts of bytes matter, and they differ: those touched (which level?) and those moved (how long?).",
    "One of the two vectors is moved twice, but it is touched only once.",
    "Find the level as in exercise 4, and the time as in exercise 3.",
)
debrief(
    "predict_seconds",
    """Each part of the formula describes one range of sizes. On tiny vectors nearly all of the time is overhead, so only
    fewer calls would help. Vectors that fit into the cache stream at its bandwidth. Larger ones stream at the bandwidth
    of main memory, and only fewer bytes would help.

    Three measured numbers are enough to predict every recorded time off the cliff, from 1 to 67 million elements, within a
    factor of two. If a prediction is further off on your machine, look for what the model leaves out: a smaller and
    faster cache, another process on the core, a clock that changed, or memory that is touched for the first time.""",
    parts=("recorded", "machines"),
)

# %% tags=["demo"] jupyter={"source_hidden": true}
# Your model against the recording (move the three numbers), and then against this machine.
import torch
from threeloops.hardware import device


def your_seconds(n, machine):
    """Your function's prediction, or NaN if it is unwritten or fails."""
    try:
        return float(predict_seconds(int(n), "float32", machine))
    except Exception:
        return float("nan")


def draw_prediction(machine, samples, title):
    sizes = np.unique(np.logspace(0, 8, 200).astype(int))
    predicted = np.array([your_seconds(n, machine) for n in sizes])
    plot, axes = figure(height=4)
    axes.fill_between(sizes, predicted * 5e5, predicted * 2e6, color=palette.sky, alpha=0.35, lw=0)
    axes.plot(sizes, predicted * 1e6, color=palette.blue)
    for level in machine.levels[:-1]:
        cliff = (level.capacity / 8, level.capacity / 4)  # two vectors of four bytes per element
        axes.axvspan(*cliff, color=palette.yellow, alpha=0.35, lw=0)
        axes.text(cliff[1], 0.03, " on a cliff", transform=axes.get_xaxis_transform())
    measured = [statistics.median(s["seconds"]) * 1e6 for s in samples]
    axes.plot([s["n"] for s in samples], measured, "o", color=palette.vermillion)
    axes.text(samples[-1]["n"] * 1.6, measured[-1], "measured", color=palette.vermillion, va="center")
    axes.text(1, predicted[0] * 3e6, "your prediction, within a factor of 2", size=10)
    axes.set(xscale="log", yscale="log", xlim=(0.7, 2e9), xlabel="elements (float32)", ylabel="one SAXPY (µs)")
    axes.set_title(title)
    return plot


def explore_machine(overhead_us, cache_gbs, memory_gbs):
    cache = Level(RECORDED.levels[0].capacity, cache_gbs * 1e9)
    yours = Machine("yours", overhead_us * 1e-6, (cache, Level(float("inf"), memory_gbs * 1e9)))
    return draw_prediction(yours, SAXPY, "Your model against the recording")


def measure_this_machine():
    """Its three numbers and SAXPY at several sizes, on the GPU if there is one, otherwise on one core."""
    here, threads = device(), torch.get_num_threads()
    torch.set_num_threads(1)
    if here == "cuda":
        name, cache = torch.cuda.get_device_name(), torch.cuda.get_device_properties(here).L2_cache_size
    else:
        files = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
        kibibytes = [int(size.read_text().strip().removesuffix("K")) for size in files]
        name, cache = "this machine, one core", max(kibibytes) * 1024 if kibibytes else RECORDING["cache_bytes"]
    scaled = (scaling_size(cache / 8), scaling_size(max(2 * cache, 2**28)))
    runs = [("scale", n) for n in scaled] + [("saxpy", n) for n in (1, 1000, 10**4, 10**5, 10**6, 10**7, 2**24)]
    live = [record(operation, n, "float32", here) for operation, n in progress(runs, "loops timed")]
    torch.set_num_threads(threads)
    return describe(name, live[:3], cache), live[2:]


if your_seconds(1, RECORDED) > 0:
    explore(
        explore_machine,
        overhead_us=(0.2, 20.0, 0.2, 1.2),
        cache_gbs=(20, 400, 4, 164),
        memory_gbs=(5, 200, 5, 45),
    )
    mine, live = measure_this_machine()
    with reveal("saxpy_ms"):
        show.figure(draw_prediction(mine, live, f"Your model against {mine.name}"))
        found = [(s["n"], your_seconds(s["n"], mine) * 1e6, statistics.median(s["seconds"]) * 1e6) for s in live]
        show.table(
            [
                (n, f"{p:,.1f}", f"{m:,.1f}", f"{p / m:.2f}", "on a cliff" if on_a_cliff(n, "float32", mine) else "")
                for n, p, m in found
            ],
            header=("elements", "predicted µs", "measured µs", "predicted ÷ measured", ""),
            caption=f"The model of {mine.name}, measured: {mine.overhead * 1e6:.2f} µs of overhead (SAXPY on 1 element), "
            f"{mine.levels[0].bandwidth / 1e9:.0f} GB/s up to {mine.levels[0].capacity / 2**20:.0f} MiB, "
            f"{mine.levels[1].bandwidth / 1e9:.0f} GB/s beyond (scaling in place)",
        )
    show.against_prediction("saxpy_ms", found[-1][2] / 1e3, unit="ms", source="measured here")
else:
    print("This cell draws your prediction and measures this machine. It comes alive when exercise 5 passes.")

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "sustained",
    "A benchmark ran a copy loop four times. Each run moved 24 MB. The first was warm-up and is left out; the others "
    "took 1 ms, 1 ms and 4 ms. Which rate did the machine sustain over those three runs?",
    unit="GB/s",
)

# %% [markdown]
# ## 6 · Repair a measurement
#
# Bandwidths come from benchmarks, and benchmarks can be wrong. A colleague has written the function that turns the runs of
# the question above into one rate. It reads well, and its number is wrong:
#
# ```
# def reported_throughput(bytes_moved, seconds, warmup):
#     rates = np.divide(bytes_moved, seconds)
#     return float(rates[warmup:].mean())
# ```
#
# The cell below shows how a failed check reads: the quantity, its value, what was expected, and after *hint* a common cause.
#
# ### Exercise 6 (15 points)
#
# `throughput(bytes_moved: list[float], seconds: list[float], warmup: int) -> float` is the repaired function. It returns the
# rate, in bytes per second, that the machine sustained over all runs except the first `warmup`, and leaves the lists as they
# are. Runs may move different amounts. It also refuses nonsense, with a `ValueError`:
#
# | situation | the message contains |
# |---|---|
# | the two lists differ in length | both lengths |
# | a duration is zero or negative, in a warm-up run too | its place, for example `seconds[2]` |
# | no run is left after the warm-up | the warm-up, for example `warmup = 3` |

# %% tags=["demo"] jupyter={"source_hidden": true}
with reveal("sustained"):
    try:
        with check("colleague", "the colleague's version"):
            moved, equal = [24e6] * 4, [1e-3] * 4
            check.close(reported_throughput(moved, equal, 1) / 1e9, 24.0, unit="GB/s", what="four equal runs")
            check.close(
                reported_throughput(RUN_BYTES, RUN_SECONDS, 1) / 1e9,
                12.0,
                unit="GB/s",
                what="throughput of the three timed runs",
                hint="a mean of rates weighs a short run as much as a long one",
            )
    except CheckFailed as failure:
        print(failure)
show.against_prediction("sustained", 12.0, unit="GB/s", source="model")


# %% nbgrader={"grade": false, "grade_id": "throughput", "locked": false, "schema_version": 3, "solution": true, "task": false}
def throughput(bytes_moved: list[float], seconds: list[float], warmup: int) -> float:
    """Sustained bytes per second of all runs except the first `warmup`."""
    ### BEGIN SOLUTION
    if len(bytes_moved) != len(seconds):
        lengths = f"{len(bytes_moved)} and {len(seconds)} long"
        raise ValueError(f"bytes_moved and seconds are {lengths}: expected one of each per run")
    for i, elapsed in enumerate(seconds):
        if elapsed <= 0:
            raise ValueError(f"seconds[{i}] = {elapsed:g}: expected a positive time; is the clock too coarse?")
    if warmup >= len(seconds):
        raise ValueError(f"warmup = {warmup} of {len(seconds)} runs: none is left to time; run more often")
    return sum(bytes_moved[warmup:]) / sum(seconds[warmup:])
    ### END SOLUTION


# %% jupyter={"source_hidden": true} nbgrader={"grade": true, "grade_id": "throughput_test_values", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false}
with check("throughput", "the sustained rate", part="values", hidden="irregular runs"):
    slow_start = [30e-3, 1e-3, 1e-3, 1e-3]
    known = {
        2_181_818_181.818: "the time of the warm-up run is counted",
        2_909_090_909.091: "the warm-up run is counted",
        32e9: "the bytes of the warm-up run are counted",
        24.0: "that is in GB/s: expected bytes per second",
    }
    args = (RUN_BYTES, slow_start, 1)
    check.returns(24e9, throughput, *args, unit="B/s", hint=cause(known, throughput, *args))
    known = {18e9: "a mean of rates weighs a short run as much as a long one"}
    args = (RUN_BYTES, RUN_SECONDS, 1)
    check.returns(12e9, throughput, *args, unit="B/s", hint=cause(known, throughput, *args))
    known = {
        6e9: "a mean of rates weighs a small run as much as a large one",
        1_833_333_333.333: "the harmonic mean of rates is right only for runs of equal size",
    }
    args = ([1e6, 99e6], [1e-3, 9e-3], 0)
    check.returns(10e9, throughput, *args, unit="B/s", hint=cause(known, throughput, *args))
    check.returns(2.5e9, throughput, [5e6], [2e-3], 0, unit="B/s")
    check.returns(3e9, throughput, [1e6, 1e6, 6e6], [1.0, 1.0, 2e-3], 2, unit="B/s")
    check.returns(1.5, throughput, [1.0, 3.0], [1.0, 2.0], 1, unit="B/s", hint="a rate need not be a whole number")
    lists = [[1e6, 2e6], [1e-3, 1e-3], 1]
    kept = arguments_after(throughput, *lists)
    check.equal(
        kept, [[1e6, 2e6], [1e-3, 1e-3], 1], what="the arguments after the call", hint="they belong to the caller"
    )
    ### BEGIN HIDDEN TESTS
    for seed in range(6):
        rng = check.rng(seed)
        count, warmup = 7 + seed, seed % 4
        moved = [float(b) for b in rng.uniform(1e3, 1e9, count)]
        elapsed = [float(s) + 1e-7 for s in rng.exponential(1e-3, count)]
        area = width = 0.0
        for i in range(warmup, count):
            area, width = area + moved[i], width + elapsed[i]
        named = f"throughput of {count} irregular runs, {warmup} of them warm-up"
        check.close(throughput(moved, elapsed, warmup), area / width, unit="B/s", what=named)
    ### END HIDDEN TESTS

# %% jupyter={"source_hidden": true} nbgrader={"grade": true, "grade_id": "throughput_test_errors", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
with check("throughput", "nonsense is refused", part="errors", hidden="other lengths and places"):
    check.raises(ValueError, throughput, [1e6] * 5, [1e-3] * 7, 1, names=("5", "7"))
    check.raises(ValueError, throughput, [1e6] * 6, [1e-3] * 4, 1, names=("6", "4"))
    check.raises(ValueError, throughput, [1e6, 1e6], [1e-3, 0.0], 0, names="seconds[1]")
    check.raises(ValueError, throughput, [1e6] * 3, [1e-3, 1e-3, -1e-3], 0, names="seconds[2]")
    check.raises(ValueError, throughput, [1e6] * 3, [0.0, 1e-3, 1e-3], 1, names="seconds[0]")
    check.raises(ValueError, throughput, [1e6] * 3, [1e-3] * 3, 3, names="warmup = 3")
    check.raises(ValueError, throughput, [1e6] * 3, [1e-3] * 3, 4, names="warmup = 4")
    check.raises(ValueError, throughput, [], [], 0, names="warmup = 0")
    check.accepts(throughput, [1e6] * 5, [1e-3] * 5, 4)
    ### BEGIN HIDDEN TESTS
    check.raises(ValueError, throughput, [1e6] * 13, [1e-3] * 6, 0, names=("13", "6"))
    check.raises(ValueError, throughput, [], [1e-3] * 4, 0, names=("0", "4"))
    check.raises(ValueError, throughput, [1e6] * 4, [1e-3, 1e-3, 1e-3, 0.0], 1, names="seconds[3]")
    check.raises(ValueError, throughput, [1e6] * 3, [1e-3] * 3, 5, names="warmup = 5")
    check.accepts(throughput, [1.0], [1e-9], 0)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "throughput",
    "Which single rate, held for the whole time, would have moved the same bytes?",
    "It is one quotient of two sums, and the warm-up belongs to neither of them.",
    "`zip` stops at the shorter list without a word, and an empty list has no rate: check the lists before you compute.",
)
debrief(
    "throughput",
    """The sustained rate is the height of one rectangle with the same area and the same width as all runs together:
    all bytes over all time. The mean of the heights ignores the widths, and among runs of equal area it flatters,
    because the fast runs are the short ones. The harmonic mean is right only when all runs move the same amount.

    The warm-up is left out of both sums. It pays for things that happen once: memory that is touched for the first time,
    code that is compiled, caches that fill.""",
    parts=("values", "errors"),
)
with reveal("sustained"):
    plot, axes = figure(height=3.4)
    left = 0.0
    for moved, elapsed in zip(RUN_BYTES[1:], RUN_SECONDS[1:], strict=True):
        height = moved / elapsed / 1e9
        axes.bar(left, height, width=elapsed * 1e3 - 0.06, align="edge", color=palette.sky, alpha=0.6)
        axes.text(left + elapsed * 500, 0.8, f"{moved / 1e6:.0f} MB", ha="center")
        left += elapsed * 1e3
    axes.axhline(reported_throughput(RUN_BYTES, RUN_SECONDS, 1) / 1e9, color=palette.vermillion, ls="--")
    axes.axhline(12.0, color=palette.ink)
    axes.text(6.1, 18.3, "mean of the heights", color=palette.vermillion, va="bottom")
    axes.text(6.1, 12.3, "same area, same width", color=palette.ink, va="bottom")
    axes.set(xlabel="time (ms)", ylabel="rate (GB/s)", xlim=(0, 8.3), ylim=(0, 27))
    axes.set_title("A run is a rectangle: its width is time, its height is the rate, its area is bytes")
    show.figure(plot)

# %% [markdown]
# ## 7 · Is there a GPU for me?
#
# You may not have a GPU, and this course gives all of its points without one. But there are three reasons why you may
# be unable to use one. It can be *absent* from the machine, *hidden* from your process, or *unsupported* by your
# software, and each has its own cure. A bare `torch.cuda.is_available()` does not tell them apart.
#
# **Hidden.** The environment variable `CUDA_VISIBLE_DEVICES` lists the GPUs that a process may use, from left to right:
#
# | value, with four GPUs | visible |
# |---|---|
# | not set (`None`) | all, in the machine's order: `(0, 1, 2, 3)` |
# | an empty string | none |
# | `2,0` | `(2, 0)`: the process calls GPU 2 `cuda:0` and GPU 0 `cuda:1` |
# | `0,2,-1,1` | `(0, 2)`: an entry that is not the number of a GPU ends the list, silently |
# | `1,0,1` | none: a GPU that is listed twice hides all of them |
# | `2,9,2` | `(2,)`: the list ended before GPU 2 came again |
#
# Entries may have spaces around them; `1x` and `2 0` are not numbers of GPUs. (This simplifies CUDA, which also accepts
# UUIDs, takes `1x` for 1, and orders GPUs FASTEST_FIRST unless `CUDA_DEVICE_ORDER` says PCI_BUS_ID. The first four rows
# follow NVIDIA's CUDA Programming Guide, under *CUDA Environment Variables*, the others PyTorch.)
#
# **Unsupported.** A GPU has a *compute capability* such as (9, 0), and a build of PyTorch lists the GPU code that it carries.
# `sm_90` is machine code that runs on (9, 0) and any later (9, y), but never on (10, 0). `compute_90` is portable PTX, which
# the driver compiles for (9, 0) *or anything newer*. `runs_on(arch, capability)` holds this rule.
#
# *Worked example.* A build with `sm_80` and `sm_90` meets GPUs (9, 0), (7, 0), (8, 6), and the variable says `2,1`. Visible
# are `(2, 1)`. No code runs on GPU 1, so `devices` is `(2,)`, and the machine is `"ready"`.
#
# ### Exercise 7 (18 points)
#
# `capability_report(probe: Probe) -> Report` uses `probe.gpus` (the compute capabilities of GPU 0, GPU 1, …), `probe.archs`
# and `probe.cuda_visible_devices`, and returns `Report(visible=…, devices=…, gpu=…)`.
#
# | field | value |
# |---|---|
# | `visible` | the numbers of the visible GPUs, a tuple in the order of the variable |
# | `devices` | those of `visible` that can run at least one entry of `archs`, in the same order |
# | `gpu` | `"absent"` if the machine has no GPU, `"hidden"` if it has some and none is visible, `"unsupported"` if some are visible and `devices` is empty, else `"ready"` |


# %% nbgrader={"grade": false, "grade_id": "capability_report", "locked": false, "schema_version": 3, "solution": true, "task": false}
def capability_report(probe: Probe) -> Report:
    """Report which GPUs a process on this machine sees and can use."""
    ### BEGIN SOLUTION
    if probe.cuda_visible_devices is None:
        visible = list(range(len(probe.gpus)))
    else:
        visible = []
        for entry in probe.cuda_visible_devices.split(","):
            try:
                number = int(entry)
            except ValueError:
                break
            if not 0 <= number < len(probe.gpus):
                break
            if number in visible:
                visible = []
                break
            visible.append(number)
    devices = tuple(i for i in visible if any(runs_on(arch, probe.gpus[i]) for arch in probe.archs))
    if not probe.gpus:
        gpu = "absent"
    elif not visible:
        gpu = "hidden"
    elif not devices:
        gpu = "unsupported"
    else:
        gpu = "ready"
    return Report(visible=tuple(visible), devices=devices, gpu=gpu)
    ### END SOLUTION


# %% jupyter={"source_hidden": true} nbgrader={"grade": true, "grade_id": "capability_report_test_visible", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false}
def sees(variable, expected, why, count=4):
    probe = replace(SERVER, gpus=((8, 0),) * count, cuda_visible_devices=variable)
    reports(capability_report, probe, "visible", expected, why)


with check("capability_report", "the GPUs that a process sees", part="visible", hidden="other lists and more GPUs"):
    stop = "an entry that names no GPU hides itself and all that follow it"
    sees(None, (0, 1, 2, 3), "the variable is not set, so all GPUs are visible")
    sees("2,0", (2, 0), "the order of the list is the order of the devices")
    sees("", (), "an empty string shows no GPU; only a missing variable shows all")
    sees("0,2,-1,1", (0, 2), stop)
    sees("3,7,1", (3,), stop)
    sees("1,none,0", (1,), stop)
    sees("1,,0", (1,), "an empty entry names no GPU, so it ends the list")
    sees("-1", (), "-1 is not the last GPU: a negative number names none")
    sees(" 1 , 3", (1, 3), "spaces around an entry do not matter")
    sees("0,1x,2", (0,), "1x is not the number of a GPU")
    sees("2 0,1", (), "2 0 is one entry, and not the number of a GPU")
    sees("0 1,2", (), "0 1 is one entry, and not the number of a GPU")
    sees("0;1", (), "0;1 is one entry, and not the number of a GPU")
    sees(" ", (), "an entry of spaces names no GPU, and the variable is set")
    sees("1,0,1", (), "a GPU listed twice hides all of them")
    sees("2,9,2", (2,), "the list has ended before the GPU is named again")
    sees("10,2", (10, 2), "a machine may have more than ten GPUs", count=12)
    sees("3,11,12,0", (3, 11), "with twelve GPUs, 11 is the number of a GPU and 12 is not", count=12)
    ### BEGIN HIDDEN TESTS
    sees(",0", (), stop)
    sees("3,1,3,0", (), "a GPU listed twice hides all of them")
    sees("0 ,  2", (0, 2), "spaces around an entry do not matter")

    def oracle(variable, count):
        shown = []
        for entry in variable.split(","):
            if entry not in [str(i) for i in range(count)]:
                return tuple(shown)
            if int(entry) in shown:
                return ()
            shown.append(int(entry))
        return tuple(shown)

    for seed in range(40):
        rng = check.rng(seed)
        count = int(rng.integers(1, 6 if seed % 2 else 17))
        variable = ",".join(str(i) for i in rng.integers(-1, count + 2, size=int(rng.integers(1, 5))))
        sees(variable, oracle(variable, count), f"from left to right, {stop}", count=count)
    ### END HIDDEN TESTS


# %% jupyter={"source_hidden": true} nbgrader={"grade": true, "grade_id": "capability_report_test_status", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false}
def stands(field, expected, why, **changes):
    reports(capability_report, replace(SERVER, **changes), field, expected, why)


with check("capability_report", "the GPUs that a process can use", part="status", hidden="other machines"):
    hopper = ("sm_80", "sm_90")
    stands("gpu", "ready", "all four GPUs are visible, and sm_90 and sm_80 run on them")
    stands("gpu", "absent", "a machine without GPUs hides nothing", gpus=())
    stands("gpu", "absent", "a machine without GPUs hides nothing", gpus=(), cuda_visible_devices="0")
    stands("gpu", "hidden", "there are GPUs, but none has the number 9", cuda_visible_devices="9")
    stands("gpu", "unsupported", "no entry of archs runs on (7, 0)", gpus=((7, 0),))
    stands("gpu", "unsupported", "a build without GPU code runs on no GPU", archs=())
    too_new = "machine code for sm_90 does not run on the newer (10, 0)"
    stands("gpu", "unsupported", too_new, archs=hopper, gpus=((10, 0),))
    stands("gpu", "ready", "PTX runs on anything newer", archs=(*hopper, "compute_90"), gpus=((10, 0),))
    mixed = {"gpus": ((7, 0), (9, 0), (6, 1), (8, 6))}
    stands("gpu", "ready", "one usable GPU is enough", **mixed)
    stands("devices", (1, 3), "a GPU keeps its number when another is unsupported", **mixed)
    stands("devices", (3, 1), "the order of the list is the order of the devices", cuda_visible_devices="3,1", **mixed)
    stands("gpu", "unsupported", "the usable GPUs are hidden", cuda_visible_devices="2,0", **mixed)
    ### BEGIN HIDDEN TESTS
    stands("gpu", "hidden", "no GPU is listed before the list ends", cuda_visible_devices="x,0")
    stands("gpu", "hidden", "hidden GPUs are not looked at", gpus=((7, 0),), cuda_visible_devices="4")
    stands("gpu", "ready", "sm_80 runs on a higher minor version", archs=hopper, gpus=((8, 9),))
    stands("gpu", "unsupported", "sm_86 needs at least (8, 6)", archs=("sm_86",), gpus=((8, 0),))
    stands("gpu", "unsupported", "PTX for (9, 0) does not run on (8, 9)", archs=("compute_90",), gpus=((8, 9),))
    stands("devices", (), "there is no GPU", gpus=())
    for seed in range(20):
        rng = check.rng(seed)
        kinds = ((6, 1), (7, 0), (8, 0), (8, 6), (9, 0), (10, 0), (12, 0))
        gpus = tuple(kinds[i] for i in rng.integers(0, len(kinds), size=5))
        order = tuple(int(i) for i in rng.permutation(5))
        good = tuple(i for i in order if gpus[i] in ((8, 0), (8, 6), (9, 0)))
        shown = ",".join(map(str, order))
        stands("devices", good, "in the order of the list", archs=hopper, gpus=gpus, cuda_visible_devices=shown)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "capability_report",
    "Build the list of visible GPUs first. The rest follows from three lists: all, visible, usable.",
    "`None` and an empty string are both false in Python and mean opposite things to CUDA. "
    "And -1 is a number that Python accepts as an index.",
    "Go through the entries in order, and stop at the first that is not the number of a GPU.",
    "One entry of `archs` that runs on a GPU is enough to keep it in `devices`.",
)
debrief(
    "capability_report",
    """The function looks at its argument only, and never at the machine it runs on. That is why it can be tested on
    machines that nobody here owns, and why a bug report can be replayed.

    The order of the questions gives the diagnosis: is there a GPU, is one visible, does any code run on a visible one?
    The first "no" names the cure: another machine, another `CUDA_VISIBLE_DEVICES`, or another build of PyTorch.
    A GPU can be too new for a build as well as too old.""",
    parts=("visible", "status"),
)

# %% [markdown]
# ## In practice
#
# At work nobody writes the stopwatch of this lab. `torch.utils.benchmark.Timer` warms up, repeats, waits for the GPU, and
# reports the median and the spread, and the next cell times SAXPY with it. `python -m torch.utils.collect_env` prints what a
# bug report needs. `nvidia-smi` lists the GPUs that the driver knows, whatever `CUDA_VISIBLE_DEVICES` says, and
# `torch.cuda.get_arch_list()` lists the code in your build.
#
# The cell also shows what the library finds on this machine, which decides how you will work. The **interpreter** runs
# GPU kernels on the CPU, so you see their results but not their speed. The **compiler** turns kernels into GPU code
# that you can read without a GPU. **Ranks** are processes that exchange tensors like the GPUs of a cluster. With a
# **GPU**, kernel times can be measured.

# %% tags=["demo"]
from threeloops.hardware.capability import capabilities, probe
from torch.utils.benchmark import Timer

show.table(
    [(name, "yes" if found.available else "no", found.detail) for name, found in capabilities(probe()).items()],
    header=("capability", "here", "why"),
)
rows = []
for n in (1000, 1_000_000):
    vectors = {"x": torch.ones(n), "y": torch.ones(n)}
    timed = Timer("y.add_(x, alpha=1e-6)", globals=vectors, num_threads=1).blocked_autorange(min_run_time=0.2)
    rows.append((n, f"{timed.median * 1e6:,.2f}", f"{timed.iqr * 1e6:,.2f}", f"{12 * n / timed.median / 1e9:,.1f}"))
show.table(rows, header=("elements", "median µs", "interquartile range µs", "GB/s"), caption="SAXPY on one core")
show.busy_notice()

# %% [markdown]
# ## What to remember
#
# - Count bytes and FLOPs before you time anything. The bytes a loop touches and those it moves are two different
#   amounts.
# - Time is overhead, plus bytes over the bandwidth of the smallest level that holds the working set.
# - The rate that was sustained is all bytes over all time, without the warm-up. The mean of several rates is a
#   different number.
# - *Absent*, *hidden* and *unsupported* are three different reasons for having no GPU.
# - Predict, measure, and explain the difference, in that order.
#
# The deep dives of this lab (`00_start_here_dives.ipynb`) show why a copy costs as much as SAXPY, why half the bytes are
# not always faster, a GPU kernel on your CPU, and how grading works.
#
# The last cell below compares your predictions with what was found, and draws a map of the course. Each of its three loops
# runs inside the next: in the **inner loop** one GPU moves bytes and multiplies numbers, in the **training loop** many GPUs
# act as one, and in the **product loop** a trained model serves requests.
#
# ## Reflection
#
# You are handed a machine that you have never seen, and ten minutes on it. Which three numbers would you measure first, with
# which operation each, and in which order? Then look at your worst prediction in this lab: what did your model leave out? A
# paragraph is enough.

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# First the bandwidth of memory, by scaling in place a vector many times larger than the last cache: it decides every large
# elementwise operation, and it needs no knowledge of the machine. Then the overhead, by the same call on one element.
# Then the bandwidth in cache, with a vector of about an eighth of the cache that the system reports, and last a sweep of
# sizes to see where the cliff really is. My worst prediction was for vectors just inside the cache: half of it was a guess,
# the cache was shared with another tenant, and the model has no term for a level that is only partly mine.

# %% tags=["demo"] jupyter={"source_hidden": true}
calibration()
VIEWS = {
    "your progress": None,
    "after this lab": ("start",),
    "after the inner loop": ("start", "inner"),
    "after the training loop": ("start", "inner", "training"),
    "at the end": ("start", "inner", "training", "product"),
}


def draw_map(view):
    loops = VIEWS[view]
    return course_map(loops and {lab.name: lab.checks for lab in labs() if lab.loop in loops})


explore(draw_map, view=list(VIEWS))
