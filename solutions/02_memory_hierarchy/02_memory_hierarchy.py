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
#     title: Why do kernels stall?
#     minutes: 180
#     withholds: [threeloops.inner.machine_models.pointer_chase, threeloops.inner.kernels.matmul.matmul, threeloops.inner.kernels.matmul.matrix_product]
#     edition: 2
# ---

# %% [markdown]
# # Why do kernels stall?
#
# ![The time of a load climbs in steps as the working set grows; beside it 32 lanes ask memory for one value each](attachment:opening.png)
#
# A processor computes faster than memory answers. A kernel that asks for one value, waits for it, and then asks for the
# next spends most of its time waiting. How long is the wait, and how can a kernel ask so that it waits less?
#
# GPUs run kernels on **SMs** (streaming multiprocessors): processors with registers, a small fast **shared memory** and
# an L1 cache. An H100 SXM has 132. They share an L2 cache, and behind it lies **DRAM**, the large memory. An SM works
# in **warps**: 32 threads that execute one instruction together. A load of a warp is one **request**, in which each of
# its 32 **lanes** has its own address. Memory does not answer lane by lane but in **sectors** of 32 bytes; four sectors
# make a **cache line**. One fetch serves all lanes that want bytes of a sector, and a sector always travels as a whole.
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl
from threeloops.hardware import device
from threeloops.inner import interpreter
from threeloops.inner.meter import L2, meter
from threeloops.lab import (
    animate,
    audit,
    calibration,
    check,
    debrief,
    explore,
    figure,
    hint,
    palette,
    predict,
    replay,
    show,
)
from threeloops.lab.checking.kernels import name_of, require_nothing, require_sound, seeded, unwritten
from threeloops.lab.checking.wall import arguments_after

INTERPRETED = interpreter.enable_without_gpu()  # without a GPU, Triton kernels run in Triton's interpreter, on the CPU


@dataclass(frozen=True)
class Plateau:
    """One level of a memory hierarchy, as seen by a pointer chase."""

    latency_ns: float
    fits_bytes: int


@dataclass(frozen=True)
class Chase:
    """A measured curve: nanoseconds per dependent load for each size of the working set, in bytes."""

    machine: str
    sizes: list[int]
    nanoseconds: list[float]


RECORDED = Chase(**json.loads(Path("data/chase_cpu.json").read_text(encoding="utf-8")))


def visits(following, lines):
    """The first `lines` lines that a chase from line 0 visits, and the one after them."""
    at, seen = 0, []
    for _ in range(lines):
        seen.append(at)
        at = int(following[at])
    return seen, at


# %% tags=["demo", "opening"] jupyter={"source_hidden": true}
from threeloops.lab.drawings.inner import memory

show.figure(
    memory.draw_question(memory.Curve("recorded", RECORDED.sizes, RECORDED.nanoseconds)),
    "the time of a load climbs in steps with the working set; 32 lanes ask memory",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.inner.machine_models.warp import sectors
from threeloops.lab import myth, reveal, term
from threeloops.lab.drawings.inner import memory

LANES = np.arange(32)
predict(
    "column_waste",
    "Each of 32 lanes reads a float32, and the addresses are 128 bytes apart. How many bytes travel for each byte that is wanted?",
    unit="×",
)
show.against_prediction("column_waste", 32 * sectors(128 * LANES) / 128, unit="×", source="counted: 32 sectors")
REQUESTS = [
    ("neighbours", 4 * LANES),
    ("neighbours, one element later", 4 + 4 * LANES),
    ("every second element", 8 * LANES),
    ("every fourth element", 16 * LANES),
    ("every eighth element", 32 * LANES),
    ("all the same element", 4 * np.zeros(32, int)),
]

with reveal("column_waste"):
    caption = "A warp's load, and the sectors that travel to answer it."
    animate(memory.draw_warp, REQUESTS, seconds=2.0, caption=caption, still=3)
for name in ("SM", "warp", "lane", "sector"):
    term(name)

# %% [markdown]
# ## 1 · How long is the wait?
#
# Reading an array from front to back says nothing about latency: the processor's **prefetcher** fetches the line that it
# guesses comes next, and dozens of loads are under way at once. To measure the wait, make each load need the value of the
# one before. This is a **pointer chase**: line *i* of the working set holds the number of the line to visit next,
# `at = following[at]`. Time divided by loads is the latency of the nearest memory that holds the working set.
#
# The order must be *unpredictable*, or a prefetcher hides the wait. It must also be **one** ring. For four lines,
# `[2, 3, 1, 0]` is one: 0 → 2 → 1 → 3 → 0. `[1, 0, 3, 2]` is a permutation too, but a chase from line 0 only ever sees
# lines 0 and 1. It would stay in half of the working set, and measure the wrong memory.
#
# ### Exercise 1 (12 points)
#
# `build_ring(lines: int, seed: int) -> np.ndarray`
#
# - Returns int64 of shape `(lines,)`: `following[i]` is the line visited after line `i`; `lines` is at least 1.
# - A chase from line 0 visits every line exactly once and then comes back to line 0. A single line points to itself.
# - As with `np.random.default_rng(seed)`, the same seed gives the same ring, and another seed, however large, usually
#   another. Each of the (lines − 1)! rings is equally likely: four lines have six, and 60 seeds give all six.


# %% nbgrader={"grade": false, "grade_id": "build_ring", "locked": false, "schema_version": 3, "solution": true, "task": false}
def build_ring(lines: int, seed: int) -> np.ndarray:
    """One random cycle through `lines` lines: following[i] is visited after i."""
    ### BEGIN SOLUTION
    order = np.random.default_rng(seed).permutation(lines)
    following = np.empty(lines, np.int64)
    following[order] = np.roll(order, -1)
    return following
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "build_ring_test_ring", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("build_ring", "one ring through all lines", part="ring", hidden="other sizes and seeds"):

    def ring_check(lines, seed):
        following = check.accepts(build_ring, lines, seed)
        check.shape(following, (lines,), what=f"build_ring({lines}, {seed})")
        check.dtype(following, np.dtype("int64"), what=f"build_ring({lines}, {seed})")
        low, high = int(following.min()), int(following.max())
        far = low < 0 or high > lines  # further off than a count from 1 instead of 0
        check.true(
            0 <= low <= high < lines,
            f"build_ring({lines}, {seed}) holds numbers from {low:,} to {high:,}: expected 0 to {lines - 1}"
            + (". If it came from np.empty, is each of its elements set?" if far else ""),
        )
        seen, back = visits(following, lines)
        check.equal(
            len(set(seen)),
            lines,
            what=f"different lines among the first {lines} that a chase through build_ring({lines}, {seed}) visits",
            hint=f"it is back at line {seen[0]} after {seen.index(0, 1)} loads" if seen.count(0) > 1 else "",
        )
        check.equal(back, 0, what=f"the line after the last visit in build_ring({lines}, {seed})")

    for lines in (1, 2, 3, 127, 128):
        for seed in range(4):
            ring_check(lines, seed)
    ### BEGIN HIDDEN TESTS
    for seed in range(60):  # a permutation has a short cycle soon
        ring_check(2 + seed % 9, seed + 100)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "build_ring_test_random", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("build_ring", "a ring that nobody can guess", part="random", hidden="how often each ring occurs"):
    following = check.accepts(build_ring, 1000, 0)
    strides = len(np.unique((following - np.arange(1000)) % 1000))
    check.true(
        strides > 400,
        f"build_ring(1000, 0) has {strides} different strides from a line to the next: expected hundreds, which no prefetcher guesses",
    )
    check.equal(build_ring(50, 3).tolist(), build_ring(50, 3).tolist(), what="build_ring(50, 3), twice")
    check.true(
        build_ring(50, 3).tolist() != build_ring(50, 4).tolist(),
        "seeds 3 and 4 give the same ring of 50 lines: expected different ones, so pass `seed` to the generator",
    )
    huge = [check.accepts(build_ring, 50, 3 + 2**power) for power in (31, 32, 64, 70)]
    different = {tuple(ring.tolist()) for ring in (build_ring(50, 3), *huge)}
    check.equal(len(different), 5, what="different rings of 50 lines for the seeds 3 and 3 + 2³¹, 2³², 2⁶⁴ and 2⁷⁰")
    occurring = {tuple(build_ring(4, seed).tolist()) for seed in range(60)}
    check.equal(
        len(occurring),
        6,
        what="different rings of 4 lines among 60 seeds",
        hint="all (4 − 1)! rings must be possible: shuffle the whole order of visits" if len(occurring) < 6 else "",
    )
    ### BEGIN HIDDEN TESTS
    counts = {}
    for seed in range(1200):
        ring = tuple(build_ring(4, seed).tolist())
        counts[ring] = counts.get(ring, 0) + 1
    check.true(
        max(counts.values()) - min(counts.values()) < 100,
        f"rings of 4 lines occur {sorted(counts.values())} times in 1,200 seeds: expected about 200 each",
    )
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "build_ring",
    "Think of the order of visits first, and of the array second. If you know the order, which line follows which?",
    "Shuffle the lines into an order of visits. Each line is followed by the next one in that order, and the last by the first.",
    "`np.roll(order, -1)` is the order shifted by one place. An array that is indexed by `order` sets all lines at once.",
)
debrief(
    "build_ring",
    """An order of visits whose last line leads back to the first is one ring by construction. Every ring of n lines comes
    from exactly n of the n! orders, one for each line that it may begin with, so all rings are equally likely.""",
    parts=("ring", "random"),
)

# %% [markdown]
# A measured curve is noisy, so what counts as a level needs a rule. Take sizes 1, 2, 4, …, 128 KiB with these latencies in ns:
#
# > 1.0 1.2 1.25 | 2.4 | 4.0 4.4 4.1 | 9.0
#
# From the left: 1.0, 1.2 and 1.25 are within a factor of 1.25 of each other, and 2.4 is not. Three sizes are enough, so
# this is a plateau: its latency is the median, 1.2, and its largest size is 4 KiB. 2.4 is alone, because 4.0 is too far
# away, so it is not a plateau. Next, 4.0, 4.4 and 4.1 make a plateau of 4.1 up to 64 KiB, and 9.0 is alone.
#
# ### Exercise 2 (12 points)
#
# `plateaus(sizes: list[int], nanoseconds: list[float]) -> list[Plateau]`
#
# - `sizes`, in bytes, are in ascending order, with one latency each. Both may be empty. Leave them as they are.
# - A run is a series of neighbouring sizes whose largest latency is **at most** 1.25 × the smallest. Make it as long as
#   possible. A run of at least three sizes is a plateau.
# - `Plateau(latency_ns, fits_bytes)`: the **median** latency of the run (`np.median`, as a float), and its largest size.
# - The last lines, which begin the next run, are given.


# %% nbgrader={"grade": false, "grade_id": "plateaus", "locked": false, "schema_version": 3, "solution": true, "task": false}
def plateaus(sizes: list[int], nanoseconds: list[float]) -> list[Plateau]:
    """The levels of a memory hierarchy, from the smallest working set to the largest."""
    levels, first = [], 0
    while first < len(sizes):
        end = first + 1  # the run is nanoseconds[first:end]: make it as long as it can be
        ### BEGIN SOLUTION
        while end < len(sizes) and max(nanoseconds[first : end + 1]) <= 1.25 * min(nanoseconds[first : end + 1]):
            end += 1
        if end - first >= 3:
            levels.append(Plateau(float(np.median(nanoseconds[first:end])), sizes[end - 1]))
        ### END SOLUTION
        first = end if end - first >= 3 else first + 1
    return levels


# %% nbgrader={"grade": true, "grade_id": "plateaus_test_runs", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("plateaus", "which sizes make a plateau", part="runs", hidden="the recorded curve and other curves"):

    def runs_check(times, expected, hint="", sizes=None, largest=""):
        """`hint` is for a wrong number of plateaus, and `largest` for wrong sizes if the number is right."""
        sizes = sizes or [1024 << i for i in range(len(times))]
        levels = check.accepts(plateaus, sizes, times)
        check.equal(
            [level.fits_bytes for level in levels],
            [sizes[end] for end in expected],
            what=f"fits_bytes of the plateaus of {times}",
            hint=largest if len(levels) == len(expected) else hint,
        )

    largest = "fits_bytes is the largest size of the run, and sizes need not double"
    runs_check([5.0, 5.0, 5.0, 90.0], [2], sizes=[1000, 3000, 3500, 70000], largest=largest)
    runs_check([1.0, 1.25, 1.0], [2], "1.25 is exactly 1.25 × 1.0, and 'at most' includes it")
    runs_check([1.0, 1.2, 1.25, 2.4, 4.0, 4.4, 4.1, 9.0], [2, 6])
    runs_check([], [])
    runs_check([3.0, 3.0], [], "two sizes are not a plateau: three at least")
    runs_check(
        [1.0, 1.2, 1.44, 1.73], [], "neighbours are within 1.25, three sizes are not: compare largest and smallest"
    )
    runs_check([1.0, 1.2, 0.85], [], "1.2 is 1.41 × 0.85: both lie near the first, and not near each other")
    runs_check([1.0, 1.2, 1.25, 1.4], [2], "after a plateau the next run begins at the size after it")
    runs_check([2.0, 2.0, 2.0, 2.0, 2.0, 2.0], [5], "a run is as long as it can be")
    runs_check([1.0, 1.2, 1.3, 1.31], [3], "a run that is too short loses its first size only")
    runs_check([9.0, 1.0, 1.2, 1.3, 1.31], [4], "a run that is too short loses its first size only")
    runs_check([2.0, 2.0, 2.0, 2.0, 1.0], [3], "a run ends where the next latency does not fit, not before")
    unchanged = arguments_after(plateaus, [1, 2, 4, 8], [5.0, 3.0, 3.0, 3.0])
    check.equal(unchanged, [[1, 2, 4, 8], [5.0, 3.0, 3.0, 3.0]], what="both lists after plateaus was called with them")

    ### BEGIN HIDDEN TESTS
    def ends(times):  # grows every run from scratch
        answer, at = [], 0
        while at < len(times):
            best = max(
                (e for e in range(at + 1, len(times) + 1) if max(times[at:e]) <= 1.25 * min(times[at:e])), default=at
            )
            answer += [best - 1] if best - at >= 3 else []
            at = best if best - at >= 3 else at + 1
        return answer

    runs_check(RECORDED.nanoseconds, ends(RECORDED.nanoseconds))
    runs_check([1.2**i for i in range(12)], [], "compare the largest of a run with its smallest")
    for seed in range(30):
        rng = check.rng(seed)
        times = []
        for level in range(int(rng.integers(1, 5))):
            times += [round(float(1.3 * 4.0**level * rng.uniform(1.0, 1.3)), 2) for _ in range(int(rng.integers(1, 6)))]
        runs_check(times, ends(times))
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "plateaus_test_latency", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("plateaus", "the latency of a plateau", part="latency", hidden="runs of other lengths"):

    def latency_check(times, *expected):
        levels = check.accepts(plateaus, [1024 << i for i in range(len(times))], times)
        check.close(
            [level.latency_ns for level in levels],
            list(expected),
            rtol=1e-12,
            what=f"latency_ns of the plateaus of {times}",
            hint=median if len(levels) == len(expected) else "",
        )

    median = "the median: the middle latency after sorting, or the mean of the middle two"
    latency_check([1.2, 1.0, 1.01], 1.01)
    latency_check([4.0, 4.4, 4.1, 4.9], 4.25)
    latency_check([1.2, 1.0, 1.01, 9.0, 9.0, 9.9], 1.01, 9.0)
    ### BEGIN HIDDEN TESTS
    latency_check([2.0, 2.4, 2.1, 2.1, 2.5], 2.1)
    latency_check([155.5, 156.14, 159.87, 166.2, 172.97, 154.59], 158.005)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "plateaus",
    "Let `end` grow by one as long as a size is left and the run stays within the factor of 1.25 with it.",
    "Each time, compare the largest latency of that longer run with its smallest.",
    "`end` is the first size after the run. A run of three sizes or more is appended to `levels`.",
)
debrief(
    "plateaus",
    """Comparing the largest latency with the smallest bounds the whole run. Comparing neighbours would let a slope of many
    small steps pass for a level. Comparing each latency with the first would let a run span a factor of 1.25², from
    first / 1.25 to first × 1.25. The median ignores a single sample that another program disturbed.""",
    parts=("runs", "latency"),
)
predict(
    "dependent_load",
    "How long does a load from main memory take on the machine in front of you, if its address is known only when the load before it has arrived?",
    unit="ns",
)

from statistics import median

from threeloops.hardware import accelerator
from threeloops.inner.machine_models.pointer_chase import NotMeasurable, latency
from threeloops.lab import progress

print("The library's chase follows a ring like yours, in C on a CPU or in Triton on a GPU; it takes about ten seconds.")
try:
    here = [2**k for k in (*range(12, 27), 28)]
    measured = [median(latency(size, repeats=3)) * 1e9 for size in progress(here, "pointer chase")]
    show.against_prediction(
        "dependent_load", measured=round(measured[-1], 1), unit="ns", source="measured here, 256 MiB"
    )
except NotMeasurable as reason:
    here, measured = [], []
    print(f"not measured here: {reason}")
curves = [memory.Curve("recorded", RECORDED.sizes, RECORDED.nanoseconds)]
if measured:
    curves.append(memory.Curve(f"this machine ({device()})", here, measured))
levels = []
try:
    own = plateaus([*RECORDED.sizes], [*RECORDED.nanoseconds])
    levels = [(level.latency_ns, level.fits_bytes) for level in own]
except NotImplementedError:
    print("The recorded plateaus appear here when exercise 2 passes.")
with reveal("dependent_load"):
    caption = f"latency by working set; recorded on {RECORDED.machine}"
    caption += "; dotted: your plateaus of the recorded curve" * bool(levels)
    show.figure(memory.draw_staircase(curves, levels), caption)
    print("On the recorded machine one load from the last level takes about as long as a hundred from the first.")
    print("Its 32 MiB L3 cache does not show, presumably because other virtual machines share it.")
h100 = accelerator("H100 SXM")
CLOCK_HZ = 1.755e9  # of the H800 PCIe on which the latencies below were measured
predict(
    "in_flight",
    "Loads can overlap. Little's law says that a memory of bandwidth B and latency L is kept busy only if B · L bytes are in flight (requested, not yet arrived) all the time. An H100's memory delivers 3.35 TB/s; take 479 clocks at 1.755 GHz for a load, as measured on an H800. How many kilobytes must each of its 132 SMs have in flight?",
    unit="kB",
)
in_flight = {clocks: h100.memory_bandwidth * clocks / CLOCK_HZ / h100.multiprocessors for clocks in (479, 656)}
show.against_prediction("in_flight", round(in_flight[479] / 1e3, 2), unit="kB", source="model: Little's law")
with reveal("in_flight"):
    print(
        "Published DRAM latencies of the H800 PCIe are 479 clocks and, in a later paper by the same authors, 656 clocks."
    )
    show.table(
        [[bits, 4 * bits, *(-(-wanted // (4 * bits)) for wanted in in_flight.values())] for bits in (32, 64, 128)],
        ["bits per lane", "bytes per warp and load", "loads in flight per SM at 479 clocks", "at 656 clocks"],
    )
    print(
        "An SM holds at most 64 warps. If each has one 32-bit load in flight, 55 warps are needed at 479 clocks, and 75 at "
        "656, more than fit. With 128-bit loads 14 or 19 suffice."
    )

# %% [markdown]
# [Luo et al. (2024)](https://arxiv.org/abs/2402.13499) measured on an H800 PCIe, a variant of the H100, about 29 clocks
# to shared memory, 41 to L1, 263 to L2 and 479 to DRAM. Their [next paper](https://arxiv.org/abs/2501.12084) reports
# 656 to DRAM.
#
# **Little's law** asks for *B · L* bytes in flight. More warps, more loads per warp or wider loads keep the memory busy.
#
# ## 2 · Triton in six steps
#
# A Triton **kernel** is the code of one **program**. A **launch** starts a **grid** of programs, and each of them learns its
# number from `tl.program_id(0)`. Run the next cell. Then change a number in each step, and predict what comes out.
#
# When a kernel is wrong, the **meter** helps: it runs the kernel in Triton's interpreter and sees all addresses.
# Without a GPU, the cell's last lines pass `n = 8` to step 2 for 5 elements, and the meter reports the mistake. In the
# interpreter `print(at)` works in a kernel, but checks refuse it.


# %% tags=["demo"]
# A program stores its number. `out` is a pointer to the first element of a tensor, and the
# store converts the number to that tensor's dtype.
@triton.jit
def step_1(out):
    tl.store(out + tl.program_id(0), tl.program_id(0))


# A block of elements; the mask leaves out those past the end. BLOCK is a power of two,
# known when the kernel is compiled.
@triton.jit
def step_2(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 10 * tl.load(x + at, mask=at < n), mask=at < n)


# A loop: one program adds up all blocks; masked lanes load 0. //, %, min and tl.cdiv work
# too, but divmod does not.
@triton.jit
def step_3(x, out, n, BLOCK: tl.constexpr):
    total = 0.0
    for first in range(0, n, BLOCK):
        at = first + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(x + at, mask=at < n, other=0.0))
    tl.store(out, total)


# A 2-D tile: [:, None] is a column, [None, :] is a row. A 2-D grid gives each program two
# numbers. The compiler gives neighbouring lanes neighbouring addresses, along either axis.
@triton.jit
def step_4(x, out, rows, columns, TILE: tl.constexpr):
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)[:, None]
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)[None, :]
    at, mask = row * columns + column, (row < rows) & (column < columns)
    tl.store(out + at, 10 * tl.load(x + at, mask=mask), mask=mask)


# tl.trans exchanges the rows and columns of a tile that is in registers.
@triton.jit
def step_5(x, out, TILE: tl.constexpr):
    row, column = tl.arange(0, TILE)[:, None], tl.arange(0, TILE)[None, :]
    tl.store(out + row * TILE + column, tl.trans(tl.load(x + row * TILE + column)))


# A product of two tiles of at least 16 × 16, summed in float32. "ieee" means that float32
# inputs are not rounded first.
@triton.jit
def step_6(a, b, out, TILE: tl.constexpr):
    at = tl.arange(0, TILE)[:, None] * TILE + tl.arange(0, TILE)[None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at), input_precision="ieee"))


if INTERPRETED:
    numbers, five, one = torch.empty(3, dtype=torch.int32), torch.empty(5), torch.empty(1)
    step_1[(3,)](numbers)  # a grid of three programs
    step_2[(2,)](torch.arange(5.0), five, 5, BLOCK=4, num_warps=1)  # warps per program: 4 if not given
    step_3[(1,)](torch.arange(5.0), one, 5, BLOCK=4)
    ragged, turned, product = torch.empty(3, 5), torch.empty(2, 2), torch.empty(16, 16)
    step_4[(2, 3)](torch.arange(15.0), ragged, 3, 5, TILE=2)
    step_5[(1,)](torch.arange(4.0), turned, TILE=2)
    step_6[(1,)](torch.ones(16, 16), torch.eye(16), product, TILE=16)
    for result in (numbers, five, one, ragged, turned, product[0, :3]):
        print(result.tolist())
    with meter() as traffic:
        step_2[(2,)](torch.arange(5.0), torch.empty(5), 8, BLOCK=4)  # n = 8, but there are 5 elements
    print(traffic.findings[0])

# %% [markdown]
# A load instruction moves up to 128 bits per lane, on Blackwell 256. In Triton you do not write this width. The
# compiler gives each thread BLOCK / (32 · `num_warps`) neighbouring elements, in pieces of at most 128 bits. It loads a
# piece at once if it can prove that the piece starts at a multiple of its width and shares one mask value. It can if
# addresses and lengths are multiples of 16: Triton then compiles a version that relies on it.
#
# With `num_warps=4` a program has 128 threads. In float32 a block of 256 gives each thread 2 elements, 64 bits. In float16
# 2 elements are only 32 bits, so 64 bits need a block of 512.
#
# ### Exercise 3 (18 points)
#
# `saxpy(a: float, x: Tensor, y: Tensor, bits: int) -> Tensor` and its kernel: a · x + y, in a new tensor.
#
# - `x` and `y` are 1-D, contiguous, of equal length (0 allowed) and dtype, float32 or float16. Multiply and add in
#   float32 (`.to(tl.float32)`), and round once.
# - `bits` is 32, 64 or 128. If 16 divides the length and the tensors start at multiples of 16 bytes, **every** load and
#   store of every launch, compiled for an H100, is `bits` wide. Other inputs may have any width. Use `num_warps=4`.
# - Elements of `x` and `y` are read once, and those of the result written once. Two programs that write one address are
#   a race, even if the values are equal.
# - Other `bits` raise `ValueError`. These lines are given.
#
# Your Python code may only allocate, take views and launch. Bytes and widths are graded only if values are right. At
# most 256 programs, or half of all if that is more, may write nothing. If more than 256 write, they move at least 32
# bytes each on average. The last two rules hold for every kernel of this lab.


# %% nbgrader={"grade": false, "grade_id": "saxpy", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def saxpy_kernel(x, y, out, a, n, BLOCK: tl.constexpr):
    """out = a · x + y, BLOCK elements per program."""
    ### BEGIN SOLUTION
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    result = a * tl.load(x + at, mask=inside).to(tl.float32) + tl.load(y + at, mask=inside).to(tl.float32)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)
    ### END SOLUTION


def saxpy(a: float, x: torch.Tensor, y: torch.Tensor, bits: int) -> torch.Tensor:
    """a · x + y by accesses of `bits` bits."""
    if bits not in (32, 64, 128):
        raise ValueError(f"bits = {bits}: expected 32, 64 or 128")
    out = torch.empty_like(x)
    ### BEGIN SOLUTION
    block = 128 * (bits // 8 // x.element_size())
    if len(x):
        saxpy_kernel[(triton.cdiv(len(x), block),)](x, y, out, a, len(x), BLOCK=block, num_warps=4)
    ### END SOLUTION
    return out


# %% nbgrader={"grade": true, "grade_id": "saxpy_test_values", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("saxpy", "a · x + y at ragged lengths", part="values", hidden="other lengths, starts, widths and values"):

    def saxpy_check(a, x, y, bits, case):
        run = replay(saxpy, a, x, y, bits)
        exact = a * x.double() + y.double()
        check.dtype(run.outputs, x.dtype, what=f"saxpy of {case}")
        check.close(
            run.outputs,
            exact if x.dtype == torch.float32 else exact.to(torch.float16),
            rtol=1e-6 if x.dtype == torch.float32 else 1.1e-3,
            atol=1e-6,
            what=f"saxpy of {case}, bits = {bits}",
            hint=unwritten(run, run.outputs),
        )
        require_sound(run, case)
        run.require(exact, what=f"saxpy of {case}")
        check.equal(
            run.traffic.total.requested_bytes,
            3 * x.nbytes,
            what=f"bytes that saxpy of {case} asks for",
            hint="x and y are read once, and the result is written once",
        )
        check.equal(run.torch_bytes, 0, what=f"bytes that PyTorch moves beside the kernel in saxpy of {case}")

    for length, bits in ((1, 32), (127, 128)):
        saxpy_check(0.5, seeded(length), seeded(length, seed=1), bits, f"{length} float32")
    both = seeded(606)  # a result that is written to x or y instead of to a new tensor is a race here
    saxpy_check(0.5, both[:600], both[6:], 64, "600 float32, where y begins inside x")
    half = {"dtype": torch.float16}
    large = torch.tensor([60000.0, 60000.0, -torch.inf], **half), torch.tensor([-60000.0, 60000.0, 1.0], **half)
    run = replay(saxpy, 2.0, *large, 64)
    lost = torch.is_tensor(run.outputs) and run.outputs.tolist() == [torch.inf, torch.inf, -torch.inf]
    check.close(
        run.outputs,
        [60000.0, torch.inf, -torch.inf],
        what="2 · (60000, 60000, −inf) + (−60000, 60000, 1) in float16",
        hint="float16 ends at 65,504, and the product was rounded to float16 before the sum" if lost else "",
    )
    saxpy_check(-1.375, seeded(129, **half), seeded(129, seed=1, **half), 64, "129 float16")
    ### BEGIN HIDDEN TESTS
    for length, bits in ((512, 32), (1100, 128)):
        saxpy_check(0.1, seeded(length, **half), seeded(length, seed=bits, **half), bits, f"{length:,} float16")
    base = torch.arange(1050.0)
    saxpy_check(3.0, base[1:1031], base[7:1037], 64, "tensors that start within a line")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "saxpy_test_widths", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("saxpy", "the width of each access", part="widths", hidden="the other widths"):

    def width_check(dtype, bits, length, elements):
        x, y = seeded(length, dtype=dtype), seeded(length, seed=1, dtype=dtype)
        case = f"{length:,} {name_of(dtype)}, bits = {bits}"
        run = replay(saxpy, 2.0, x, y, bits).require(2.0 * x.double() + y.double(), what=f"saxpy of {case}")
        for number, code in enumerate(run.code("sm_90"), start=1):
            check.equal(
                {"loads": sorted(code.loads), "stores": sorted(code.stores)},
                {"loads": [bits], "stores": [bits]},
                what=f"widths in launch {number} for {case}",
                hint=f"each of 128 threads should own {bits} neighbouring bits; elements per thread here: {elements}",
            )
        warps = [launch.options.get("num_warps", 4) for launch in run.launches]
        check.equal(warps, [4] * len(warps), what=f"num_warps of each launch for {case}")

    width_check(torch.float32, 32, 1 << 14, elements=1)
    width_check(torch.float32, 128, 16400, elements=4)  # a multiple of 16, and of no block
    width_check(torch.float16, 64, 16400, elements=4)
    ### BEGIN HIDDEN TESTS
    width_check(torch.float16, 128, 16400, elements=8)
    width_check(torch.float32, 64, 1 << 14, elements=2)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "saxpy_test_edges", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("saxpy", "refused widths, empty and long tensors", part="edges", hidden="other widths"):
    ones = torch.ones(128, device=device())  # one whole block, so that no mask is needed
    run = replay(saxpy, 2.0, ones, ones, 32).require(3.0 * ones.double(), what="saxpy of 128 ones")
    check.equal(set(run.outputs.tolist()), {3.0}, what="the values of 2 · 1 + 1 in saxpy of 128 float32, bits = 32")
    check.equal(run.torch_bytes, 0, what="bytes that PyTorch moves beside the kernel in saxpy of 128 float32")
    nothing = torch.empty(0, dtype=torch.float16, device=device())
    require_nothing(lambda: saxpy(1.0, nothing, nothing, 32), (0,), "saxpy of no elements")
    check.dtype(saxpy(1.0, nothing, nothing, 32), torch.float16, what="saxpy of no elements in float16")
    for bits in (96, 256):
        check.raises(ValueError, saxpy, 1.0, torch.ones(4), torch.ones(4), bits, names=f"bits = {bits}")
    short, long = torch.ones(16384), torch.zeros(3 << 22)
    run = replay(saxpy, 2.0, short, short, 32).require(3.0 * short.double(), what="saxpy of 16,384 ones")
    if not any("scf." in code.ttgir for code in run.code("sm_90")):  # without a loop, programs compute equally much
        share = 16384 // run.traffic.total.programs
        programs = sum(math.prod(grid) for grid in replay.grids(saxpy, 2.0, long, long, 32))
        check.true(
            programs * share >= len(long),
            f"saxpy of {len(long):,} float32 launches {programs:,} programs of {share} elements, so "
            f"{len(long) - programs * share:,} elements are left out: a grid may have 2³¹ − 1 programs",
        )
    ### BEGIN HIDDEN TESTS
    for bits in (0, 48, 512):
        check.raises(ValueError, saxpy, 1.0, torch.ones(4), torch.ones(4), bits, names=f"bits = {bits}")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.inner.codegen import inspect
from threeloops.inner.kernels.rows.saxpy import saxpy_kernel as library_kernel

hint(
    "saxpy",
    "The kernel is step 2 with two loads. Convert both values to float32 right after loading.",
    "How many bytes should each of the 128 threads own, and how many elements is that?",
    "By hand, for 64 bits in float16: how many elements does a thread own, how many do 128 threads own, and how many such blocks hold 1,100 elements? And 0 elements?",
)
debrief(
    "saxpy",
    """The block decides how many elements a thread owns, and so how wide its accesses can be. One mask `at < n` is enough
    for all lengths.

    A second launch for the last elements would have to be as wide as the first. A last block that starts early instead
    would write some elements twice. The values would still be right here, but wrong as soon as `out` is also an input.""",
    parts=("values", "widths", "edges"),
)
predict(
    "odd_length",
    "With 2²⁰ elements in blocks of 1,024, each thread of the library's SAXPY needs 4 load instructions of 128 bits. How many, of any width, does it need for 2²⁰ + 1 elements?",
    unit="loads",
)


def code_for(block, elements=1 << 20, start=0):
    """The library's SAXPY kernel, compiled for an H100 with a block of this many elements."""
    data = torch.zeros(elements + start)[start:]

    def launch():
        return library_kernel[(triton.cdiv(elements, block),)](
            2.0, data, data, data, elements, BLOCK=block, num_warps=4
        )

    return inspect(launch, "sm_90")[0]


WIDTHS = {block: code_for(block) for block in (256, 512)}
FEWER = f"{sum(WIDTHS[256].loads.values()) / 256 / (sum(WIDTHS[512].loads.values()) / 512):.3g}"
CASES = {
    "2²⁰ elements, block 256": WIDTHS[256],
    "2²⁰ elements, block 512": WIDTHS[512],
    "2²⁰ elements, block 1,024": code_for(1024),
    "2²⁰ from element 1 on, block 1,024": code_for(1024, start=1),
    "2²⁰ + 1 elements, block 1,024": code_for(1024, elements=(1 << 20) + 1),
}
show.against_prediction(
    "odd_length",
    sum(CASES["2²⁰ + 1 elements, block 1,024"].loads.values()),
    unit="loads",
    source="counted in compiled code",
)


def widths_of(accesses):
    return ", ".join(f"{count} × {bits} bits" for bits, count in sorted(accesses.items()))


with reveal("odd_length"):
    show.table(
        [[name, widths_of(code.loads), widths_of(code.stores), code.registers] for name, code in CASES.items()],
        ["compiled for an H100", "loads per thread", "stores per thread", "registers per thread"],
    )
    lines = [line.split("*/", 1)[-1].split(";")[0].strip() for line in WIDTHS[512].sass.splitlines()]
    print(
        "block 512, load and store instructions:",
        *[line for line in lines if "LDG" in line or "STG" in line],
        sep="\n    ",
    )
    print(
        "Four instructions became sixteen, because the compiler can prove nothing about an odd length. The kernel asks four "
        "times as often for the same bytes. So nanoGPT pads GPT-2's vocabulary of 50,257 tokens to 50,304."
    )
myth("mem-6")

# %% tags=["demo"] jupyter={"source_hidden": true}
if device() == "cuda":
    from threeloops.inner.timing import benchmark

    ELEMENTS = [2**k for k in range(14, 27, 2)]

    def time_of(elements, block):
        def make():
            return tuple(torch.randn(elements, device="cuda") for _ in range(3))

        def run(x, y, out):
            return library_kernel[(triton.cdiv(elements, block),)](2.0, x, y, out, elements, BLOCK=block, num_warps=4)

        return benchmark(run, make, device="cuda").median

    gains = [time_of(n, 256) / time_of(n, 512) for n in progress(ELEMENTS, "SAXPY sweep")]
    fig, axes = figure(width=8.5, height=3.4)
    axes.plot([12 * n for n in ELEMENTS], gains, "o-", color=palette.blue)
    axes.axhline(1.0, color=palette.grey, lw=1)
    axes.set(
        xscale="log",
        xlabel="bytes moved",
        ylabel="time at 64 bits / time at 128 bits",
        title=f"What wide accesses gain, {torch.cuda.get_device_name()}",
    )
    with reveal("mem-6"):
        show.figure(fig)
    ratio, how = round(gains[-1], 2), "on this GPU"
else:
    ratio, how = 0.99, "recorded with this cell on an H100 SXM; on an H200 it was 1.01 (benchmarks/evidence)"
audit(
    "mem-6",
    ratio,
    "× the speed",
    "GPU",
    "holds" if ratio > 1.8 else "corrected",
    how=f"SAXPY of 64 Mi elements, 128-bit against 64-bit accesses, {how}. The wide version needs {FEWER} times fewer load instructions, but DRAM delivers the same bytes, and enough warps keep them in flight either way. Wide accesses can help when too few bytes are in flight",
)

# %% [markdown]
# ## 3 · 32 lanes, one request
#
# A transpose reads rows and writes columns, or the reverse, so one side seems bound to be slow. The obvious first version has
# one program per row:
#
# ```python
# @triton.jit
# def one_row(x, out, rows, columns, BLOCK: tl.constexpr):
#     row, column = tl.program_id(0), tl.arange(0, BLOCK)
#     inside = column < columns
#     values = tl.load(x + row * columns + column, mask=inside)
#     tl.store(…, values, mask=inside)  # neighbouring lanes go to neighbouring rows of out
# ```
#
# On a 128 × 64 float32 matrix a load of 32 lanes touches 4 sectors, and a store 32, because its lanes are 128 · 4 bytes
# apart. That is 4 + 32 sectors, 1,152 bytes, for 256 that are wanted: 4.5 times as many.
#
# ### Exercise 4 (18 points)
#
# Repair it: `transpose(x: Tensor) -> Tensor`, with a kernel of your own.
#
# - `x` is 2-D and contiguous: float32, float16, bfloat16 or int32, of any shape, even without elements. The result is a
#   new contiguous tensor of shape (columns, rows), exactly the values of `x`.
# - Each element is read once and written once, by your kernel.
# - If rows and columns are multiples of 32, **no sector is fetched or written twice**: sectors × 32 bytes = bytes asked
#   for, in loads and stores together.
# - At most ⌈rows / 16⌉ · ⌈columns / 16⌉ programs, with tiles of at most 4,096 elements.


# %% nbgrader={"grade": false, "grade_id": "transpose", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def transpose_kernel(x, out, rows, columns, TILE: tl.constexpr):
    """out[c, r] = x[r, c]."""
    ### BEGIN SOLUTION
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    values = tl.load(x + row[:, None] * columns + column[None, :], mask=inside)
    tl.store(out + column[:, None] * rows + row[None, :], tl.trans(values), mask=tl.trans(inside))
    ### END SOLUTION


def transpose(x: torch.Tensor) -> torch.Tensor:
    """x transposed, contiguous."""
    ### BEGIN SOLUTION
    rows, columns = x.shape
    out = torch.empty((columns, rows), dtype=x.dtype, device=x.device)
    if x.numel():
        transpose_kernel[(triton.cdiv(rows, 32), triton.cdiv(columns, 32))](x, out, rows, columns, TILE=32)
    return out
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "transpose_test_values", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("transpose", "every value in its place", part="values", hidden="other shapes and dtypes"):

    def transpose_check(rows, columns, dtype):
        high = 1 << 30 if dtype == torch.int32 else 0  # float32 cannot hold 2³⁰ + 1
        x = (high + torch.arange(rows * columns) % 251).to(dtype).reshape(rows, columns)
        if dtype.is_floating_point:
            x[0, -1] = -torch.inf  # a product with a matrix of zeros and ones would turn it into NaN
        case = f"the transpose of {rows} × {columns} {name_of(dtype)}"
        run = replay(transpose, x)
        check.shape(run.outputs, (columns, rows), what=case)
        check.dtype(run.outputs, dtype, what=case)
        check.true(
            run.outputs.is_contiguous(),
            f"{case} has strides {tuple(run.outputs.stride())}: expected a contiguous result, each element moved by the kernel",
        )
        check.equal(run.outputs.double().tolist(), x.double().T.tolist(), what=case, hint=unwritten(run, run.outputs))
        require_sound(run, case)

    for rows, columns, dtype in ((32, 64, torch.float32), (33, 65, torch.float16), (1, 70, torch.int32)):
        transpose_check(rows, columns, dtype)
    transpose_check(40, 20, torch.bfloat16)
    nothing = torch.empty(0, 5, dtype=torch.float16)
    require_nothing(lambda: transpose(nothing), (5, 0), "the transpose of a 0 × 5 matrix")
    check.dtype(transpose(nothing), torch.float16, what="the transpose of a 0 × 5 matrix of float16")
    ### BEGIN HIDDEN TESTS
    for rows, columns, dtype in ((66, 31, torch.bfloat16), (70, 1, torch.int32), (1, 1, torch.float16)):
        transpose_check(rows, columns, dtype)
    require_nothing(lambda: transpose(torch.empty(7, 0)), (0, 7), "the transpose of a 7 × 0 matrix")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "transpose_test_sectors", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("transpose", "the bytes that travel", part="sectors", hidden="other shapes and dtypes"):

    def sector_check(rows, columns, dtype):
        x, case = (8 * seeded(rows, columns)).to(dtype), f"a {rows} × {columns} {name_of(dtype)} transpose"
        run = replay(transpose, x).require(x.double().T, rtol=0.0, what=case)
        total = run.traffic.total
        check.equal(
            total.requested_bytes,
            2 * x.nbytes,
            what=f"bytes asked for by {case}",
            hint="each element is read once and written once",
        )
        check.equal(run.torch_bytes, 0, what=f"bytes that PyTorch moves beside the kernel in {case}")
        if rows % 32 == 0 == columns % 32:
            check.equal(
                total.sectors * 32,
                total.requested_bytes,
                what=f"bytes in the sectors of {case}",
                hint="on both sides a run of neighbouring elements must fill sectors of 32 bytes",
            )
        most = triton.cdiv(rows, 16) * triton.cdiv(columns, 16)
        check.true(
            total.programs <= most,
            f"{total.programs} programs for {case}: expected at most {most}, since a program owns a tile of 16 × 16 or more",
        )
        check.true(
            total.largest_tile <= 4096,
            f"a tile of {case} has {total.largest_tile:,} elements: expected at most 4,096, which fit into registers",
        )

    sector_check(64, 32, torch.float32)
    sector_check(32, 64, torch.float16)
    sector_check(33, 65, torch.float32)
    sector_check(8, 320, torch.float32)
    ### BEGIN HIDDEN TESTS
    sector_check(96, 32, torch.bfloat16)
    sector_check(32, 96, torch.int32)
    sector_check(66, 31, torch.float16)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "transpose",
    "A program does not have to own a row. If it owns a square, both sides can move runs that are as long as the square is wide.",
    "How wide must the square be for a run to fill a sector of 32 bytes, with elements of 4 and of 2 bytes?",
    "Step 4 loads and stores a square that is masked at both edges. By hand: where in `out` does element (2, 5) of a 33 × 65 matrix belong, and how many elements come before it? Which of the step's lines has to change?",
)
debrief(
    "transpose",
    """Rows of the tile are read as runs, and its columns are written as runs, so every sector is used in full. Between the two
    the compiler exchanges values among threads through shared memory, which costs no traffic to L2 or DRAM. The tile is the
    cure, not `tl.trans`: a tile that is stored as it is, at transposed addresses, is compiled to the same exchange. A run
    of 16 elements fills a sector even if they have only 2 bytes each.""",
    parts=("values", "sectors"),
)


@triton.jit
def one_row(x, out, rows, columns, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < columns
    values = tl.load(x + row * columns + column, mask=inside)
    tl.store(out + column * rows + row, values, mask=inside)


explore(
    memory.draw_turned_tile,
    labels={"height": "rows of x per program", "width": "bytes per element"},
    height=(1, 32, 1, 8),
    width=[4, 2],
)
if INTERPRETED:
    matrix, compared = torch.arange(128.0 * 64).reshape(128, 64), {}
    with meter() as traffic:
        one_row[(128,)](matrix, torch.empty(64, 128), 128, 64, BLOCK=64)
    compared["one program per row"] = traffic.total
    try:
        with meter() as traffic:
            transpose(matrix)
        compared["your transpose"] = traffic.total
    except NotImplementedError:
        print("Your transpose appears in this table when exercise 4 passes.")
    show.table(
        [
            [name, total.requested_bytes, 32 * total.sectors, round(total.sectors_per_request, 2)]
            for name, total in compared.items()
        ],
        ["128 × 64 float32", "bytes asked for", "bytes in sectors", "sectors per request"],
    )
from threeloops.inner.machine_models.warp import padded, plain, swizzled, wavefronts

predict(
    "column_rounds",
    "Between load and store, the tile's values pass from thread to thread through shared memory. It has 32 banks: successive words lie in successive banks, and each bank delivers one word of 4 bytes per clock, so lanes that want different words of one bank take turns. A tile of 32 × 32 float32 is kept there row after row. How many rounds does it take until 32 lanes have read a column?",
    unit="rounds",
)
column = wavefronts(4 * plain(LANES, np.full(32, 5)), 4)
show.against_prediction("column_rounds", column, unit="rounds", source="simulated")
with reveal("column_rounds"):
    layouts = {"row after row": plain, "padded: 33 words per row": padded, "swizzled: column XOR row": swizzled}
    show.figure(memory.draw_banks(layouts), "colour: the bank of a word; framed: the column that 32 lanes read at once")
    print(
        "If the framed column has one colour, 32 lanes queue at one bank. Padding or an XOR spreads them over all banks."
    )
term("bank conflict")

# %% [markdown]
# Lanes that queue at a bank are a **bank conflict**. Triton chooses a layout that avoids it, as the dives show.
#
# ## 4 · Use every byte more than once
#
# Each element of C = A @ B, (m, k) @ (k, n), is a sum of k products. If each program computes one element of C, it loads a
# row of A and a column of B. If it computes a **tile** of C, its rows of A and columns of B serve the whole tile.
#
# By hand: (34, 25) @ (25, 20) in tiles of 11 × 13. C has ⌈34 / 11⌉ = 4 rows and ⌈20 / 13⌉ = 2 columns of tiles. Every
# element of A is loaded by the 2 tiles of its row: 2 · 34 · 25 = 1,700. Every element of B is loaded by the 4 tiles of its
# column: 4 · 25 · 20 = 2,000. C is stored once: 680. That is 4,380 elements, 17,520 bytes in float32.
#
# ### Exercise 5 (10 points)
#
# `matmul_traffic(m: int, k: int, n: int, block_m: int, block_n: int, bytes_per_element: int) -> int`
#
# - The bytes that all programs ask for, exactly, as an `int`, however large. Each program computes one tile of at most
#   `block_m` × `block_n`.
# - It loads the rows of A and the columns of B that its tile needs, each element once, and stores its tile. Nothing beyond
#   an edge is loaded or stored.


# %% nbgrader={"grade": false, "grade_id": "matmul_traffic", "locked": false, "schema_version": 3, "solution": true, "task": false}
def matmul_traffic(m: int, k: int, n: int, block_m: int, block_n: int, bytes_per_element: int) -> int:
    """Bytes that all programs of a tiled (m, k) @ (k, n) ask for."""
    ### BEGIN SOLUTION
    tiles_m, tiles_n = -(-m // block_m), -(-n // block_n)
    return (m * k * tiles_n + k * n * tiles_m + m * n) * bytes_per_element
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "matmul_traffic_test", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("matmul_traffic", "the bytes of a tiled product", hidden="other sizes and tiles"):

    def traffic_check(expected, *sizes, hint="", slips=()):
        got = check.accepts(matmul_traffic, *sizes)
        hint = next((cause for value, cause in slips if value == got), hint)
        check.equal(got, expected, what=f"matmul_traffic{sizes}", hint=hint)

    slips = [
        (23_776, "these are 8 whole tiles: at the edge of C count only the rows and columns that exist"),
        (14_800, "C is stored, too"),
        (14_120, "this counts A only once: how many tiles load the same row of A?"),
        (20_320, "A and B are exchanged: compare both with the example by hand"),
        (12_120, "a part of a tile is a tile: round the numbers of tiles up"),
    ]
    traffic_check(17_520, *(34, 25, 20, 11, 13, 4), slips=slips)
    single = "each of the m · n programs loads k elements of A and k of B, and stores one"
    traffic_check(8_004_000_000, 1000, 1000, 1000, 1, 1, 4, hint=single)
    exact = 200_000_004_000_000_020
    rounded = [(exact + step, "a float holds only 53 bits of it") for step in range(-128, 129) if step]
    traffic_check(exact, *[100_000_001] * 3, 60_000_000, 60_000_000, 4, slips=rounded)
    over = "one row more than a tile has: 2 tiles. Count with integers of Python, which have no limit"
    traffic_check(2 * 10**19 + 4, 10**19 + 1, 1, 1, 10**19, 1, 1, hint=over)
    traffic_check(1_179_648, 512, 256, 128, 64, 64, 2, hint="a row of C has 2 tiles, and a column 8")
    traffic_check(94, 3, 5, 4, 16, 16, 2, hint="one tile, larger than C: only elements that exist")
    traffic_check(4_572, 65, 7, 8, 32, 32, 4, hint="65 rows are 3 rows of tiles")
    ### BEGIN HIDDEN TESTS
    for seed in range(25):
        m, k, n, block_m, block_n = (int(v) for v in check.rng(seed).integers(1, 40, 5))
        total = 0
        for top in range(0, m, block_m):
            for side in range(0, n, block_n):
                height, breadth = min(block_m, m - top), min(block_n, n - side)
                total += height * k + k * breadth + height * breadth
        traffic_check(2 * total, m, k, n, block_m, block_n, 2)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "matmul_traffic",
    "How many tiles stand beside each other in a row of C? Each of them loads the same rows of A again.",
    "Round the number of tiles up. Edge tiles need no special case: the widths of the tiles in a row add up to n, and the heights in a column to m.",
)
debrief(
    "matmul_traffic",
    """With tiles, A is loaded ⌈n / block_n⌉ times instead of n times, and B ⌈m / block_m⌉ times instead of m times. Larger tiles
    load less, but need more registers: the float32 sums of a tile of 128 × 256 take 128 KiB, half of the registers of an SM.""",
)

# %% [markdown]
# The **order** of the tiles matters, too. Programs usually start in the order of their numbers, many at a time, and
# what they fetch stays in L2 for a while. Row by row, the programs that run together share one **strip** of A (the rows
# that one row of tiles needs), but sweep through all of B. In **groups** of a few rows they need fewer different
# strips.
#
# By hand: 5 × 3 tiles in groups of 2 rows. Group 0 is rows 0 and 1, and goes down each column: (0, 0), (1, 0), (0, 1), (1, 1),
# (0, 2), (1, 2) are programs 0 to 5. Programs 6 to 11 do the same in rows 2 and 3. The last group has one row only: program
# 12 computes (4, 0), 13 (4, 1), and 14 (4, 2).
#
# ### Exercise 6 (10 points)
#
# `tile_of(program: int, tiles_m: int, tiles_n: int, group_m: int) -> tuple[int, int]`: row and column of the tile that
# program number `program` computes.
#
# - Groups have `group_m` rows of tiles, from the top; the last may have fewer. Inside a group, go column by column from
#   the left, and down each column.
# - `program` is between 0 and tiles_m · tiles_n − 1.


# %% nbgrader={"grade": false, "grade_id": "tile_of", "locked": false, "schema_version": 3, "solution": true, "task": false}
def tile_of(program: int, tiles_m: int, tiles_n: int, group_m: int) -> tuple[int, int]:
    """Row and column of the tile that a program makes, in groups of `group_m` rows."""
    ### BEGIN SOLUTION
    group, within = program // (group_m * tiles_n), program % (group_m * tiles_n)
    first = group * group_m
    rows = min(group_m, tiles_m - first)
    return first + within % rows, within // rows
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "tile_of_test", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("tile_of", "the order of tiles in groups", hidden="other numbers of tiles and groups"):

    def order_check(tiles_m, tiles_n, group_m, expected, full_last=None):
        order = [check.accepts(tile_of, p, tiles_m, tiles_n, group_m) for p in range(tiles_m * tiles_n)]
        order = [tuple(tile) if type(tile) in (tuple, list) else tile for tile in order]
        names = {
            "row by row, without groups": sorted(expected),
            "column by column, without groups": sorted(expected, key=lambda tile: tile[::-1]),
            "columns from right to left": [(row, tiles_n - 1 - column) for row, column in expected],
            "from the last tile to the first": expected[::-1],
            "row and column exchanged": [tile[::-1] for tile in expected],
            "the last group is divided by `group_m`, although it has fewer rows": full_last,
        }
        check.equal(
            order,
            expected,
            what=f"the order of {tiles_m} × {tiles_n} tiles in groups of {group_m}",
            hint=next((f"this order is: {name}" for name, other in names.items() if other == order), ""),
        )

    def by_hand(text):
        return [(int(row), int(column)) for row, column in text.split()]

    order_check(2, 3, 1, by_hand("00 01 02 10 11 12"))
    order_check(4, 3, 2, by_hand("00 10 01 11 02 12 20 30 21 31 22 32"))
    full_last = by_hand("00 10 20 01 11 21 02 12 22 30 40 50 31 41 51")
    order_check(5, 3, 3, by_hand("00 10 20 01 11 21 02 12 22 30 40 31 41 32 42"), full_last)
    order_check(3, 2, 5, by_hand("00 10 20 01 11 21"))
    ### BEGIN HIDDEN TESTS
    for seed in range(12):
        tiles_m, tiles_n, group_m = (int(v) for v in check.rng(seed).integers(1, 8, 3))
        tiles = [(row, column) for row in range(tiles_m) for column in range(tiles_n)]
        order_check(tiles_m, tiles_n, group_m, sorted(tiles, key=lambda tile: (tile[0] // group_m, tile[1], tile[0])))
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "tile_of",
    "How many programs does a whole group hold? Which operations give a program's group, and its number inside the group?",
    "By hand, 5 × 3 tiles in groups of 2: program 9 = 6 + 3 has number 3 in group 1, and program 13 = 12 + 1 has number 1 in group 2. Number 3 is in column 1, as a group of 2 rows has 2 tiles per column. In which column is number 1 of group 2, and why?",
)
debrief(
    "tile_of",
    """All groups before the last one are whole, so the first division, which finds the group, may use `group_m`. The second one,
    inside the group, has to use the number of rows that this group has. With `//`, `%` and `min` the same lines work in a kernel.""",
)


def draw_order(group_m, resident):
    return memory.draw_order([tile_of(program, 9, 9, group_m) for program in range(81)], resident)


try:
    tile_of(0, 9, 9, 3)
    explore(
        draw_order,
        labels={"group_m": "rows of tiles in a group", "resident": "programs at a time"},
        group_m=(1, 9, 1, 3),
        resident=(2, 81, 1, 9),
    )
except Exception:
    print("Your order of the tiles appears here when exercise 6 passes.")

# %% [markdown]
# The kernel cannot call `tile_of`, so repeat exercise 6 with `//`, `%` and `min`. Then walk along k, and add up
# products of two tiles.
#
# ```python
# tile_row, tile_column = …  # exercise 6
# row = tile_row * BLOCK + tl.arange(0, BLOCK)  # in A; likewise column, in B
# total = tl.zeros((BLOCK, BLOCK), tl.float32)
# for start in range(0, k, BLOCK):
#     inner = start + tl.arange(0, BLOCK)
#     left = tl.load(a + row[:, None] * k + inner[None, :], mask=(row[:, None] < m) & (inner[None, :] < k), other=0.0)
#     right = …  # likewise, from B
#     total = tl.dot(left, right, total, input_precision="ieee")
# ```
#
# With k = 40 and a block of 32 there are 2 steps. In the second, 24 of 32 columns of A, and as many rows of B, are masked. A
# masked lane without `other` may hold anything, and NaN times 0 is NaN, so both loads need it.
#
# ### Exercise 7 (20 points)
#
# `matmul(a: Tensor, b: Tensor, block: int, group_m: int) -> Tensor`, with a kernel of your own.
#
# - `a` (m, k) and `b` (k, n) are contiguous, both float32 or both float16, of any nonzero size. The result is (m, n) of
#   that dtype, summed in float32 with `input_precision="ieee"`, and rounded once.
# - One program per tile of `block` × `block` of C, on a one-dimensional grid, in the order of exercise 6. Steps along k are
#   `block` long. No tile has more than `block`² elements. `block` is a power of two, at least 16.
# - The programs ask for exactly the bytes of exercise 5, and for nothing outside the matrices.
#
# The order is judged by its effect: the exact bytes from DRAM in a model of a small L2, one program at a time.


# %% nbgrader={"grade": false, "grade_id": "matmul", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def matmul_kernel(a, b, c, m, k, n, BLOCK: tl.constexpr, GROUP_M: tl.constexpr):
    """One tile of c = a @ b."""
    ### BEGIN SOLUTION
    tiles_m, tiles_n = tl.cdiv(m, BLOCK), tl.cdiv(n, BLOCK)
    program = tl.program_id(0)
    group = program // (GROUP_M * tiles_n)
    within = program % (GROUP_M * tiles_n)
    first = group * GROUP_M
    rows = min(GROUP_M, tiles_m - first)
    row = (first + within % rows) * BLOCK + tl.arange(0, BLOCK)
    column = within // rows * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, k, BLOCK):
        inner = start + tl.arange(0, BLOCK)
        left = tl.load(a + row[:, None] * k + inner[None, :], mask=(row[:, None] < m) & (inner[None, :] < k), other=0.0)
        right = tl.load(
            b + inner[:, None] * n + column[None, :], mask=(inner[:, None] < k) & (column[None, :] < n), other=0.0
        )
        total = tl.dot(left, right, total, input_precision="ieee")
    at = c + row[:, None] * n + column[None, :]
    tl.store(at, total.to(c.dtype.element_ty), mask=(row[:, None] < m) & (column[None, :] < n))
    ### END SOLUTION


def matmul(a: torch.Tensor, b: torch.Tensor, block: int, group_m: int) -> torch.Tensor:
    """a @ b by tiles of `block` × `block`, in groups of `group_m` rows of tiles."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    ### BEGIN SOLUTION
    grid = (triton.cdiv(m, block) * triton.cdiv(n, block),)
    matmul_kernel[grid](a, b, c, m, k, n, BLOCK=block, GROUP_M=group_m)
    ### END SOLUTION
    return c


# %% nbgrader={"grade": true, "grade_id": "matmul_test_values", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("matmul", "the product", part="values", hidden="other sizes, blocks and groups"):

    def small_check(a, b, expected, what, cause):
        """`cause` explains wrong values, if it can."""
        got = replay(matmul, torch.tensor(a), torch.tensor(b), 16, 1).outputs
        check.shape(got, (len(expected), len(expected[0])), what=what)
        check.close(got, expected, rtol=1e-8, what=what, hint=cause(got.tolist()))

    def row_of_b(got):
        start = got[0][0]
        return f"row 2 of B is read from element {start:g} on" if got[0] == [start + i for i in range(7)] else ""

    def row_of_a(got):
        start = got[1][1]
        return f"row 1 of A is read from element {start:g} on" if got[1] == [start + i for i in (5, 0, 6)] else ""

    def lost_digits(got):
        return f"2⁻²⁰ is lost, because {lossy} was rounded to fewer bits than float32 has" if got == [[1.0]] else ""

    rows = [[0.0, 1, 2, 3, 4, 5, 6], [7.0, 8, 9, 10, 11, 12, 13], [14.0, 15, 16, 17, 18, 19, 20]]
    small_check([[0.0, 0, 1]], rows, [rows[2]], "A @ B, where A picks row 2 of B = 0, 1, 2, …, 20", row_of_b)
    picks = [[0.0, 1, 0], *[[0.0] * 3] * 4, [1.0, 0, 0], [0.0, 0, 1]]
    picked = [[5.0, 0, 6], [12.0, 7, 13]]
    small_check(rows[:2], picks, picked, "A @ B, where B picks columns 5, 0 and 6 of A = 0, 1, 2, …, 13", row_of_a)
    lossy = "a factor or the result"
    small_check([[1 + 2**-20]], [[1.0]], [[1 + 2**-20]], "(1 + 2⁻²⁰) · 1 in float32", lost_digits)
    lossy = "a partial sum"
    terms = [1.0, *[0.0] * 15, 2**-20, *[0.0] * 16]
    small_check([terms], [[1.0]] * 33, [[1 + 2**-20]], "1 + 2⁻²⁰ + 0 in three steps of 16, float32", lost_digits)

    def product_check(m, k, n, block, group_m, dtype):
        a, b = seeded(m, k, seed=m, dtype=dtype), seeded(k, n, seed=n + 1, dtype=dtype)
        run, case = replay(matmul, a, b, block, group_m), f"matmul of {m} × {k} × {n} {name_of(dtype)}, block {block}"
        check.shape(run.outputs, (m, n), what=case)
        check.dtype(run.outputs, dtype, what=case)
        check.close(
            run.outputs,
            (a.double() @ b.double()).to(dtype),
            rtol=1e-5 if dtype == torch.float32 else 2e-3,
            atol=1e-5 if dtype == torch.float32 else 1e-3,
            what=f"{case}, groups of {group_m}",
            hint=unwritten(run, run.outputs),
        )
        require_sound(run, case)
        return run.require(a.double() @ b.double(), what=case)

    product_check(32, 64, 64, 32, 2, torch.float32)
    product_check(65, 33, 40, 32, 2, torch.float32)
    product_check(1, 47, 1, 16, 1, torch.float32)
    large = torch.tensor([[240.0, -240.0]], dtype=torch.float16).repeat_interleave(32, dim=1)
    run = replay(matmul, large, torch.full((64, 1), 10.0, dtype=torch.float16), 32, 1)
    finite = not torch.is_tensor(run.outputs) or bool(run.outputs.isfinite().all())
    overflow = "float16 ends at 65,504, and the first step sums to 76,800: keep partial sums in float32"
    check.close(
        run.outputs,
        [[0.0]],
        what="the sum of 32 × 2,400 and 32 × −2,400, float16 operands in two steps of 32",
        hint="" if finite else overflow,
    )
    product_check(33, 40, 20, 32, 2, torch.float16)
    (code,) = product_check(64, 64, 64, 32, 2, torch.float32).code("sm_90")
    check.true(
        code.tensor_cores is None,
        "the float32 product is compiled for an H100 to tensor-core instructions, which round its inputs to TF32, with 10 bits "
        'of fraction: expected none, so pass input_precision="ieee" to tl.dot',
    )
    ### BEGIN HIDDEN TESTS
    product_check(65, 65, 70, 64, 2, torch.float16)
    product_check(16, 1, 40, 16, 3, torch.float16)
    product_check(97, 34, 33, 32, 3, torch.float32)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "matmul_test_traffic", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("matmul", "bytes, tiles and steps", part="traffic", hidden="other sizes and blocks"):

    def bytes_check(m, k, n, block, dtype, programs, asked, along_k):
        a, b, case = (
            seeded(m, k, dtype=dtype),
            seeded(k, n, seed=1, dtype=dtype),
            f"matmul of {m} × {k} × {n}, block {block}",
        )
        run = replay(matmul, a, b, block, 2).require(a.double() @ b.double(), what=case)
        total = run.traffic.total
        check.equal(total.programs, programs, what=f"programs of {case}", hint="one per tile of C")
        check.equal(
            total.requested_bytes,
            asked,
            what=f"bytes that {case} asks for",
            hint="each program loads its rows of A and its columns of B once, and masks what lies beyond an edge; wrapping around with % loads elements again",
        )
        check.equal(run.torch_bytes, 0, what=f"bytes that PyTorch moves beside the kernel in {case}")
        check.true(
            total.largest_tile <= block**2,
            f"{case}: a program works on a tile of {total.largest_tile:,} elements, expected at most {block}² = {block**2:,}",
        )
        check.equal(
            int(total.dot_flops) // (2 * block**2 * programs),
            along_k,
            what=f"length along k of all steps of {case}, masked lanes included",
            hint=f"steps of {block}, and the last one is masked",
        )

    bytes_check(65, 40, 33, 32, torch.float32, programs=6, asked=45_220, along_k=64)
    bytes_check(17, 17, 20, 16, torch.float16, programs=4, asked=3_196, along_k=32)

    ### BEGIN HIDDEN TESTS
    def formula_check(m, k, n, block, dtype):
        down, across, steps = (-(-length // block) for length in (m, n, k))
        asked = dtype.itemsize * (m * k * across + k * n * down + m * n)
        bytes_check(m, k, n, block, dtype, programs=down * across, asked=asked, along_k=steps * block)

    formula_check(70, 80, 33, 64, torch.float16)
    formula_check(16, 1, 40, 16, torch.float32)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "matmul_test_order", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("matmul", "the order of the tiles, by bytes from DRAM", part="order", hidden="another number of tiles"):

    def dram_check(tiles_m, tiles_n, group_m, sets, ways, expected, others, note=""):
        """`expected` has two numbers if it matters whether A or B is loaded first; `others` names further orders by their bytes."""
        small = L2(size_bytes=sets * ways * 128, ways=ways, resident_programs=1)
        a, b, case = (
            seeded(32 * tiles_m, 16),
            seeded(16, 32 * tiles_n, seed=1),
            f"{tiles_m} × {tiles_n} tiles in groups of {group_m}",
        )
        run = replay.with_l2(small)(matmul, a, b, 32, group_m).require(a.double() @ b.double(), what=case)
        loaded = run.traffic.total.dram_loaded
        check.true(
            loaded in expected,
            f"{case}: {loaded:,} bytes are loaded from DRAM, expected "
            f"{' or '.join(f'{size:,}' for size in sorted(set(expected)))}"
            + (f"; as many as {others[loaded]}" if loaded in others else "")
            + note,
        )

    others = {  # with this cache the right order loads the least of all orders without tricks
        71_680: "row by row, without groups",
        58_368: "column by column, without groups, or in groups twice as tall",
        52_224: "row by row in the last group, which has 2 rows",
        49_152: "in groups of columns, each row by row",
        47_104: "in groups that are one row shorter",
        60_416: "in groups that are one row taller",
        35_840: "without `min`, or with every second group from right to left, and neither is the order of exercise 6",
    }
    dram_check(5, 6, 3, sets=16, ways=13, expected=(39_936,), others=others)
    others = {
        35_584: "row by row, without groups",
        43_008: "row by row in the last group, which has 2 rows",
        43_648: "with every second group from right to left",
        43_776: "row by row or column by column, without groups",
        44_416: "from the last tile to the first",
        44_928: "with columns from right to left",
        45_056: "with the last group, of 2 rows, row by row or from right to left, or with columns from the bottom",
        45_568: "with columns from right to left",
        46_464: "from the last tile to the first",
    }
    note = (
        ". (There are two numbers because A or B may be loaded first. In this cache grouping saves nothing, so fewer bytes are "
        "no better: the exact number tells this order from its mirror images.)"
    )
    dram_check(6, 3, 4, sets=48, ways=3, expected=(45_824, 45_184), others=others, note=note)

    ### BEGIN HIDDEN TESTS
    def loaded_from_dram(order, tiles_n, l2, a_first=True):
        """Bytes that a float32 product with tiles of 32 × 32 and k = 16 loads from DRAM, one program after another.

        A line of 128 bytes holds two rows of A, or one row of a tile of B or of C. Sets drop their oldest line.
        """
        sets, missed = [{} for _ in range(l2.sets)], 0
        for row, column in order:
            a = [("a", 16 * row + i) for i in range(16)]
            b = [("b", tiles_n * i + column) for i in range(16)]
            c = [("c", tiles_n * (32 * row + i) + column) for i in range(32)]
            for line in (*(a + b if a_first else b + a), *c):
                lines = sets[line[1] % l2.sets]
                missed += line not in lines and line[0] != "c"
                lines.pop(line, None)
                lines[line] = True
                if len(lines) > l2.ways:
                    del lines[next(iter(lines))]
        return 128 * missed

    tiles = sorted(((i, j) for i in range(6) for j in range(3)), key=lambda tile: (tile[0] // 5, tile[1], tile[0]))
    small = L2(size_bytes=48 * 3 * 128, ways=3, resident_programs=1)
    both = [loaded_from_dram(tiles, 3, small, a_first) for a_first in (True, False)]
    dram_check(6, 3, 5, sets=48, ways=3, expected=both, others={})
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
from functools import cache

from threeloops.inner.kernels.matmul.matmul import matmul as library_matmul

hint(
    "matmul",
    "Repeat the arithmetic of `tile_of` in the kernel with `tl.program_id(0)`, `//`, `%` and `min`; `tl.cdiv` gives the numbers of tiles.",
    "In a tile of B, `inner` runs downwards and `column` runs across, so `[:, None]` and `[None, :]` change places. How many elements does a row of B have?",
    "Mask the load of B along k and n, and the store along m and n. Round once, when you store.",
)
debrief(
    "matmul",
    """Exercises 5 and 6 predict what this kernel costs: the size of the tiles decides how much it asks for, and their order
    how much of that comes from DRAM. Sums in float32 cost registers but no traffic, and the product of two float16 values is
    exact in float32.

    Real kernels load the tiles of the next steps while they multiply those of this one, in `num_stages` buffers. That keeps
    more bytes in flight, as Little's law asks.""",
    parts=("values", "traffic", "order"),
)
predict(
    "grouped_dram",
    "C has 8 × 8 tiles, and eight programs run at a time. Row by row, the first eight need 1 strip of A and 8 of B, together 9. How many strips do the first eight need in groups of 4 rows?",
    unit="strips",
)
LEFT, RIGHT = torch.zeros(256, 128, dtype=torch.float16), torch.zeros(128, 256, dtype=torch.float16)


def library_product(a, b, block, group_m):
    return library_matmul(a, b, block_m=block, block_n=block, block_k=block, group_m=group_m)


@cache
def dram_of(block, group_m, ways, product=library_product):
    with meter(L2(size_bytes=16 << 10, ways=ways, resident_programs=8)) as traffic:
        product(LEFT, RIGHT, block, group_m)
    return traffic.total


def draw_groups(ways):
    totals = {group: dram_of(32, group, ways) for group in (1, 2, 3, 4, 8)}
    from_dram = {group: total.dram_bytes for group, total in totals.items()}
    return memory.draw_groups(totals[1].requested_bytes, from_dram, f"L2 of 16 KiB with {ways} places for each line")


show.against_prediction("grouped_dram", 6, unit="strips", source="counted: 4 of A, 2 of B")
if INTERPRETED:
    with reveal("grouped_dram"):
        explore(draw_groups, labels={"ways": "places of a line"}, ways=[128, 16, 4])

# %% [markdown]
# The product is (256, 128) @ (128, 256) in float16. Grouping does not change the bytes asked for, only what programs that run
# together share.
#
# Now set the places to 16. A line's address decides which **set** of the cache it may lie in, and a set has that many
# places. Groups of 3 or 4 rows now move more than no groups: rows whose length is a power of two begin in few sets, and
# evict each other although the cache has room elsewhere.
#
# ## In practice
#
# At work you call `torch.matmul`, and if you write a kernel, `@triton.autotune` tries blocks, groups and warps. On a GPU
# Nsight Compute reports what the meter counts here: sectors per request is
# `l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum` divided by `l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum`, and
# `dram__bytes_read.sum` is what DRAM delivers.
#
# ## Your pieces together
#
# The next cell multiplies the same matrices with your kernel in three tile sizes. It compares the metered bytes with those
# that your `matmul_traffic` predicts, and with the library's kernel, in about ten seconds.


# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.lab import together

parts = together("matmul_traffic", "matmul", library={"matmul": library_product})
if parts and INTERPRETED:
    tiles, rows = [], []
    for block in progress((16, 32, 64), "products"):
        by_rows, grouped = (dram_of(block, group, 128, parts.matmul) for group in (1, 2))
        predicted = parts.matmul_traffic(256, 128, 256, block, block, 2)
        orders = {"row by row": by_rows.dram_bytes, "in groups of 2 rows": grouped.dram_bytes}
        tiles.append(memory.Tiled(block, predicted, grouped.requested_bytes, orders))
        library = dram_of(block, 2, 128)
        rows.append([block, predicted, grouped.requested_bytes, library.requested_bytes, *orders.values()])
    names = ["tile", "bytes predicted", "asked for", "by the library's kernel"]
    show.table(rows, [*names, "from DRAM, row by row", "in groups of 2 rows"])
    show.figure(memory.draw_tiles(tiles, 2 * (256 * 128 + 128 * 256 + 256 * 256)))
elif parts:
    print("The meter needs Triton's interpreter: set TRITON_INTERPRET=1, restart and run the lab again.")
calibration()

# %% [markdown]
# ## What to remember
#
# - **Bytes in flight hide latency**: you need bandwidth × latency of them, 7 kB per SM on an H100 at 479 clocks.
# - Triton chooses the width of an access. It needs enough elements per thread, and proof of alignment, which an odd length
#   rules out.
# - Memory answers in sectors of 32 bytes. Compare **sectors × 32 with bytes asked for**; the gap is waste.
# - The size of the tiles decides the bytes *asked for*, and their order the bytes *from DRAM*.
#
# **In your own words.** A kernel with almost no arithmetic moves 600 GB/s on an H100, less than a fifth of its bandwidth.
# Name three reasons from this lab that could explain it. Which number would tell each of them from the others, and what
# would you change?

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# *Your answer, a paragraph for each reason.*
