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
#     withholds: [threeloops.inner.machine_models.pointer_chase, threeloops.inner.machine_models.warp, threeloops.inner.kernels.matmul.matmul, threeloops.inner.kernels.matmul.matrix_product]
# ---

# %% [markdown]
# # Why do kernels stall?
#
# A multiply-add on an H100 takes a few clocks. Fetching its operand from memory takes several hundred. A kernel that
# asks for one value, waits, and asks for the next spends its life waiting; the whole art of the inner loop is to ask
# for less, to ask early, and to ask in the shape in which the memory likes to answer.
#
# Between the registers and the rest of the world lies a staircase. Each step down is slower, and most are larger:

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl
from threeloops.inner import interpreter
from threeloops.lab import audit, check, explore, hint, predict, replay, show

INTERPRETED = interpreter.enable_without_gpu()  # without a GPU, Triton kernels run in Triton's interpreter, on the CPU

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.hardware import accelerator
from threeloops.lab import figure, palette

h100 = accelerator("H100 SXM")
REGISTER_FILE_BYTES = (
    256 * 1024
)  # of one SM: 65,536 registers of 32 bits (CUDA C++ Programming Guide, technical specifications)
SHARED_BYTES_PER_CLOCK = 128  # of one SM: 32 banks of 4 bytes
STEPS = {  # capacity in bytes, bandwidth in bytes/s
    "registers": (h100.multiprocessors * REGISTER_FILE_BYTES, None),
    "shared memory and L1": (
        h100.multiprocessors * h100.caches.l1_bytes,
        h100.multiprocessors * SHARED_BYTES_PER_CLOCK * h100.clock_hz,
    ),
    "L2 cache": (h100.caches.l2_bytes, None),
    "HBM3": (h100.memory_bytes, h100.memory_bandwidth),
    "NVLink, to another GPU": (None, h100.link_bandwidth),
    "PCIe, to the host": (None, h100.host_link_bandwidth),
}
fig, (left, right) = figure(1, 2, width=12.5, height=3.9)
names = list(STEPS)
shades = [palette.blue, palette.sky, palette.green, palette.orange, palette.vermillion, palette.purple]
for axes, which, _unit, scale in ((left, 0, "bytes", 2**20), (right, 1, "TB/s", 1e12)):
    values = [STEPS[name][which] for name in names]
    shown = [(i, value / scale) for i, value in enumerate(values) if value]
    bars = axes.barh([i for i, _ in shown], [v for _, v in shown], color=[shades[i] for i, _ in shown])
    labels = [f" {v:,.0f} MiB" if which == 0 else f" {v:.3g} TB/s" for _, v in shown]
    axes.bar_label(bars, labels)
    for i, value in enumerate(values):
        if not value:
            axes.text(
                min(v for _, v in shown) * 0.42,
                i,
                "on no data sheet" if i in (0, 2) else "",
                va="center",
                color=palette.grey,
            )
    axes.set(xscale="log", yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.4, -0.6))
    axes.set_xlim(min(v for _, v in shown) / 3, max(v for _, v in shown) * 12)
    axes.grid(axis="y", visible=False)
left.set(title="How much fits", xlabel="capacity, all multiprocessors together, MiB")
right.set(title="How much it delivers", xlabel="bandwidth, TB/s")
right.set_yticklabels([])
show.figure(fig)

# %% [markdown]
# Every number is from NVIDIA's documents or follows from them: 132 multiprocessors × 32 banks × 4 bytes × 1.98 GHz is
# 33 TB/s of shared memory. What no data sheet prints is the third axis, **how long you wait**. So we measure that
# first, and then learn to ask well:
#
# 1. measure latency, and read the caches off the curve;
# 2. make one instruction carry 128 bits;
# 3. make the 32 lanes of a warp share their cache lines;
# 4. use each byte more than once: tiles, and the order in which they are visited.
#
# Everything runs on a laptop. What a kernel asks of the memory is counted, byte by byte, by a **meter** in Triton's
# interpreter; what the compiler makes of it is read from the machine code that it generates for an H100, which needs
# no H100.

# %% tags=["demo"]
predict(
    "dependent_load",
    "A load from main memory on the machine you are sitting at, its address known only when the load before it has arrived: how many nanoseconds?",
    unit="ns",
    guess=None,
)

# %% [markdown]
# ## 1 · How long is the wait?
#
# Reading an array from front to back measures nothing about latency: a prefetcher guesses the next line, and dozens
# of loads are under way at once. To measure the wait, each load must need the value of the one before.
#
# That is a **pointer chase**. Line *i* of the working set holds the number of the line to visit next, and the chaser
# follows: `at = following[at]`, a million times. Time divided by loads is the latency of whatever memory the working
# set fits into. Let it grow, and a cache that it outgrows shows as a step.
#
# Two things make or break the experiment. The order must be *unguessable*, or a prefetcher hides the wait. And it must
# be *one* ring: a random permutation usually falls into several cycles, so the chase would circle in a small part of
# the working set that fits into a cache, and the curve would lie.
#
# ### Exercise 1 (25 points)
#
# `build_ring(lines: int, seed: int) -> np.ndarray`
#
# - Returns int64 of shape `(lines,)`: `following[i]` is the line that is visited after line `i`.
# - Following it from line 0 visits every line exactly once before it comes back to line 0. With
#   `lines` = 1 it points to itself.
# - Random, from `np.random.default_rng(seed)` and nothing else: each of the (lines − 1)! rings is equally likely, and
#   the same seed gives the same ring.
# - `lines` below 1 raises `ValueError` that names `lines`.
#
# `plateaus(sizes: list[int], nanoseconds: list[float]) -> list[Plateau]`
#
# Reads the levels off a measured curve; `sizes` ascend, in bytes.
#
# - A *plateau* is a run of **at least three** consecutive sizes whose latencies all lie within a factor of 1.25 of each
#   other: the largest is at most 1.25 × the smallest.
# - Read from the left: begin a run at the first size and make it as long as it can be. If it has three sizes or more
#   it is a plateau, and reading goes on behind it; otherwise drop its first size and begin again at the second.
# - `Plateau(latency_ns, fits_bytes)`: the **median** latency of the run, and its largest size.
# - Different numbers of sizes and latencies raise `ValueError` that names both counts.


# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_latency", "locked": true, "schema_version": 3, "solution": false, "task": false}
@dataclass(frozen=True)
class Plateau:
    """One level of a memory hierarchy, as seen by a pointer chase."""

    latency_ns: float
    fits_bytes: int


@dataclass(frozen=True)
class Chase:
    """A measured curve: nanoseconds a dependent load takes in working sets of so many bytes."""

    machine: str
    sizes: list[int]
    nanoseconds: list[float]


RECORDED = Chase(**json.loads(Path("data/chase_cpu.json").read_text(encoding="utf-8")))


# %% nbgrader={"grade": false, "grade_id": "latency", "locked": false, "schema_version": 3, "solution": true, "task": false}
def build_ring(lines: int, seed: int) -> np.ndarray:
    """One random cycle through `lines` lines: following[i] is visited after i."""
    ### BEGIN SOLUTION
    if lines < 1:
        raise ValueError(f"lines = {lines}: expected at least 1")
    order = np.random.default_rng(seed).permutation(lines)
    following = np.empty(lines, np.int64)
    following[order] = np.roll(order, -1)
    return following
    ### END SOLUTION


def plateaus(sizes: list[int], nanoseconds: list[float]) -> list[Plateau]:
    """The levels of a memory hierarchy, from the smallest working set to the largest."""
    ### BEGIN SOLUTION
    if len(sizes) != len(nanoseconds):
        raise ValueError(f"{len(sizes)} sizes and {len(nanoseconds)} latencies: expected one latency for each size")
    found, first = [], 0
    while first < len(sizes):
        end = first + 1
        while end < len(sizes) and max(nanoseconds[first : end + 1]) <= 1.25 * min(nanoseconds[first : end + 1]):
            end += 1
        if end - first >= 3:
            found.append(Plateau(float(np.median(nanoseconds[first:end])), sizes[end - 1]))
            first = end
        else:
            first += 1
    return found
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "latency",
    "Think of the order of visits first and of the array second: if you know in which order the lines are visited, who follows whom?",
    "Shuffle the lines into an order of visits; each line is followed by the next one in that order, and the last by the first. `np.roll(order, -1)` is the order shifted by one.",
    "For the plateaus keep two indices, `first` and `end`. The run `first:end` may grow while the largest of its latencies is at most 1.25 × the smallest, not merely while neighbours are close: a slope of small steps is no plateau.",
)

# %% nbgrader={"grade": true, "grade_id": "latency_test", "locked": true, "points": 25, "schema_version": 3, "solution": false, "task": false}
with check("latency", "a ring that nobody can guess, and the levels of a curve"):
    for lines in (1, 2, 127, 128):
        following = build_ring(lines, seed=lines)
        check.shape(following, (lines,), what=f"build_ring({lines})")
        check.dtype(following, np.dtype("int64"), what=f"build_ring({lines})")
        at, visited = 0, []
        for _ in range(lines):
            visited.append(at)
            at = int(following[at])
        check.equal(
            len(set(visited)),
            lines,
            what=f"different lines among the first {lines} visited in build_ring({lines})",
            hint="a random permutation falls into several cycles: build the order of visits, then link it",
        )
        check.equal(at, 0, what=f"the line after the last visit in build_ring({lines})", hint="the ring must close")
    following = build_ring(1000, seed=0)
    steps = (following - np.arange(1000)) % 1000
    check.true(
        len(np.unique(steps)) > 400,
        f"build_ring(1000) uses {len(np.unique(steps))} different strides: expected hundreds, usually: lines in order, "
        "which a prefetcher guesses",
    )
    check.raises(ValueError, build_ring, 0, 0, names="lines")
    check.raises(ValueError, plateaus, list(range(1, 38)), [1.0] * 41, names=("37", "41"))
    check.close(
        plateaus([1, 2, 4, 8, 16, 32, 64, 128], [1.0, 1.1, 1.0, 4.0, 4.5, 4.1, 4.2, 9.0]),
        [Plateau(1.0, 4), Plateau(4.15, 64)],
        what="plateaus of a curve with two levels",
        hint={
            "latency_ns": "the median of the run",
            "fits_bytes": "the largest size that still has this latency",
            "": "a single size at 9 ns is the beginning of something, not a plateau: three sizes at least",
        },
    )
    check.equal(
        plateaus([1, 2, 4, 8], [1.0, 1.2, 1.44, 1.73]),
        [],
        what="plateaus of a slope of 20% a step",
        hint="neighbours are within 1.25 of each other, but three sizes are not: compare the largest with the smallest",
    )
    check.close(
        plateaus([1, 2, 4, 8], [1.0, 1.2, 1.3, 1.31]),
        [Plateau(1.3, 8)],
        what="plateaus of a curve whose first size belongs to no run",
        hint="a run that is too short loses its first size only: the next may begin with its second",
    )
    ### BEGIN HIDDEN TESTS
    counts = {}
    for seed in range(1200):
        ring = tuple(int(v) for v in build_ring(4, seed))
        counts[ring] = counts.get(ring, 0) + 1
    check.equal(
        len(counts), 6, what="different rings of 4 lines in 1,200 seeds", hint="all (4 − 1)! rings must be possible"
    )
    check.true(
        max(counts.values()) - min(counts.values()) < 100,
        f"rings of 4 lines occur {sorted(counts.values())} times in 1,200 seeds: expected about 200 each; usually: a shuffle "
        "that favours some orders",
    )
    check.equal(
        build_ring(50, 3).tolist(),
        build_ring(50, 3).tolist(),
        what="build_ring(50, 3), twice",
        hint="only the seed decides",
    )
    check.true(
        build_ring(50, 3).tolist() != build_ring(50, 4).tolist(), "build_ring(50, seed) is the same for seeds 3 and 4"
    )
    for seed in range(200):  # a permutation has a fixed point or a short cycle soon
        lines = 2 + seed % 9
        following, at, visited = build_ring(lines, seed), 0, set()
        for _ in range(lines):
            visited.add(at)
            at = int(following[at])
        check.equal(
            (len(visited), at),
            (lines, 0),
            what=f"lines visited and the line after them, build_ring({lines}, {seed})",
            hint="one cycle for every seed, not only for most: swapping with any earlier line, itself included, gives several",
        )

    def levels(sizes, times):  # an oracle that grows every run from scratch
        answer, at = [], 0
        while at < len(sizes):
            best = at
            for end in range(at + 1, len(sizes) + 1):
                if max(times[at:end]) / min(times[at:end]) <= 1.25:
                    best = end
                else:
                    break
            if best - at >= 3:
                answer.append(Plateau(float(np.median(times[at:best])), sizes[best - 1]))
                at = best
            else:
                at += 1
        return answer

    check.close(
        plateaus(RECORDED.sizes, RECORDED.nanoseconds),
        levels(RECORDED.sizes, RECORDED.nanoseconds),
        what="plateaus of the recorded curve",
        hint="a run that is too short loses its first size only; the latency is the median of the run, not its mean",
    )
    slope = [1.0 * 1.2**i for i in range(12)]
    check.equal(
        plateaus([2**i for i in range(12)], slope),
        [],
        what="plateaus of a long slope of 20% a step",
        hint="neighbours are within 1.25 of each other, but a run is not: compare the largest with the smallest",
    )
    for seed in range(30):
        rng = check.rng(seed)
        sizes, times, size = [], [], 4096
        for level in range(int(rng.integers(1, 5))):
            base = 1.3 * 4.0**level
            for _ in range(int(rng.integers(1, 6))):
                sizes.append(size)
                times.append(float(base * rng.uniform(1.0, 1.24)))
                size *= 2
            if rng.uniform() < 0.7:
                sizes.append(size)
                times.append(float(base * 2.1))
                size *= 2
        check.close(
            plateaus(sizes, times),
            levels(sizes, times),
            what=f"plateaus of the made-up curve {seed}",
            hint="the median of the run, its largest size, at least three sizes, and a run begins anew at every size",
        )
    check.equal(plateaus([], []), [], what="plateaus of an empty curve")
    ### END HIDDEN TESTS

# %% [markdown]
# ### Measure it
#
# The same chase on this machine, in C or in Triton on a GPU (a Python loop is slower than any memory), beside the curve
# that the course recorded. It takes some ten seconds. Grey bands are what your `plateaus` finds in the recorded curve.

# %% tags=["demo"] jupyter={"source_hidden": true}
from statistics import median

from threeloops.hardware import device
from threeloops.inner.machine_models.pointer_chase import NotMeasurable, latency
from threeloops.lab import progress

try:
    here = [2**k for k in (*range(12, 27), 28)]
    measured = [median(latency(size, repeats=3)) * 1e9 for size in progress(here, "pointer chase")]
    show.against_prediction(
        "dependent_load", measured=round(measured[-1], 1), unit="ns", source="measured here, 256 MiB"
    )
except NotMeasurable as reason:
    here, measured = [], []
    print(f"not measured here: {reason}")
fig, axes = figure(width=9.5, height=4.2)
axes.plot(RECORDED.sizes, RECORDED.nanoseconds, "o-", color=palette.sky, ms=4, label=f"recorded: {RECORDED.machine}")
if measured:
    axes.plot(here, measured, "o-", color=palette.vermillion, ms=4, label=f"this machine ({device()})")
try:
    found = plateaus(RECORDED.sizes, RECORDED.nanoseconds)
except NotImplementedError:
    found = []
    print("the plateaus appear here once yours is written")
PLAIN = {"facecolor": "white", "alpha": 0.8, "lw": 0, "pad": 1}
for level in found:
    typical, high = level.latency_ns, level.fits_bytes
    low = min(size for size, ns in zip(RECORDED.sizes, RECORDED.nanoseconds, strict=True) if ns >= typical / 1.25)
    axes.fill_between([low / 1.2, high * 1.2], typical / 1.25, typical * 1.25, color=palette.grey, alpha=0.18, lw=0)
    axes.annotate(f"{typical:.3g} ns", ((low * high) ** 0.5, typical * 1.45), ha="center", fontsize=10, bbox=PLAIN)
axes.set(
    xscale="log",
    yscale="log",
    xlabel="working set, bytes",
    ylabel="ns a dependent load",
    title="The staircase, measured",
)
axes.set_xticks(
    [2**k for k in range(12, 30, 2)],
    ["4 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB", "4 MiB", "16 MiB", "64 MiB", "256 MiB"],
)
axes.minorticks_off()
axes.legend(loc="upper left")
axes.set_ylim(top=max([*RECORDED.nanoseconds, *measured]) * 6)
show.figure(fig)

# %% [markdown]
# A hundred-fold between the first step and the last. One step is missing: the recorded machine has 32 MiB of L3, and its
# curve reaches the latency of memory at 2 MiB. It is a virtual machine that shares its L3 with strangers; what one of
# its cores sees of that cache is what they leave. A curve tells what you get, a data sheet what there is.
#
# On a GPU the staircase is flatter at the top and as long at the bottom. Microbenchmarks of an H800 PCIe, an H100 for
# other markets ([Luo et al. 2024](https://arxiv.org/abs/2402.13499), as published), put a dependent load at about 29
# clocks in shared memory, 41 in L1, 263 in L2 and 479 in HBM. Their [next paper](https://arxiv.org/abs/2501.12084) has
# 656 clocks to HBM. One of the texts that this course audits promises "single-digit cycles"
# for shared memory (claim mem-2, settled below): not even the fastest of these is.
#
# ### What the wait costs, and what pays for it
#
# While one load is under way, others can be. **Little's law** says how many must be: to keep a memory of bandwidth *B*
# and latency *L* busy, *B · L* bytes have to be in flight at every moment. That number explains most of GPU design.

# %% tags=["demo"]
predict(
    "in_flight",
    "An H100: 3.35 TB/s, 479 clocks at 1.755 GHz to HBM. How many kilobytes must each of its 132 multiprocessors have in flight?",
    unit="kB",
    guess=None,
)

# %% tags=["demo"]
from math import ceil

LATENCY_CLOCKS, CLOCK_HZ = 479, 1.755e9  # as published for the H800 PCIe
in_flight = h100.memory_bandwidth * LATENCY_CLOCKS / CLOCK_HZ
show.against_prediction(
    "in_flight", round(in_flight / h100.multiprocessors / 1e3, 2), unit="kB", source="model: Little's law"
)
show.table(
    [
        [f"{bits} bits a load", f"{bits // 8 * 32} B", ceil(in_flight / h100.multiprocessors / (bits // 8 * 32))]
        for bits in (32, 64, 128)
    ],
    ["a warp of 32 lanes asks for", "bytes in flight, one load each", "loads in flight an SM needs"],
)

# %% [markdown]
# The latency was measured on a PCIe card, at its 1.755 GHz, and the bandwidth is the SXM card's: an estimate, good for
# the size of the number. With the 656 clocks of the later paper everything in the table grows by 37%.
#
# An SM holds at most 64 warps. With 32-bit loads and one load each it takes 55 of them at 479 clocks, nearly full
# occupancy, and 75 at 656 clocks, more than there are; with 128-bit loads 14 or 19 are enough. So there are two ways to fill the pipe, more warps or more bytes an instruction, and the
# second costs a few registers.

# %% [markdown]
# ## 2 · 128 bits an instruction
#
# A GPU's load instruction moves 8, 16, 32, 64 or 128 bits for each lane, and on Blackwell up to 256. In CUDA one writes `float4` to get the widest.
# In Triton nobody writes a width: the compiler chooses it. It gives each thread a run of consecutive elements as long as
# the block allows, up to 128 bits, and then needs proof of three things: the addresses in the run are contiguous, the
# first of them is a multiple of 16 bytes, and the mask is the same for all of the run. The last two it gets from the *arguments*:
# Triton compiles a kernel anew when a pointer or an integer is divisible by 16, and notes it.
#
# So the width is in your hands after all: through the number of elements that a thread gets, which is
# `BLOCK / (32 · num_warps)`.

# %% tags=["demo"]
predict(
    "vector_gain",
    "SAXPY on 256 MiB arrays: how many times faster is it with 128-bit accesses than with 32-bit ones, on a GPU that has enough warps?",
    unit="×",
    guess=None,
)

# %% [markdown]
# ### Exercise 2 (25 points)
#
# Write `saxpy_kernel`, a `@triton.jit` function, and its launcher
#
# `saxpy(a: float, x: Tensor, y: Tensor, bits: int) -> Tensor`
#
# - Returns a new tensor a·x + y of their dtype. `x` and `y` are 1-D, contiguous, of one length (0 is allowed), float32
#   or float16; float16 is multiplied and added in float32 and rounded once.
# - `bits` is 32, 64 or 128: the width of **every** load and store of global memory in the code compiled for an H100,
#   where the length is a multiple of 16 and the tensors start at multiples of 16 bytes (as fresh tensors do).
#   Use `num_warps=4`.
# - At any other length or start the result is right, whatever the width.
# - Nothing outside the tensors is read or written: the meter sees it.
# - `bits` other than these raises `ValueError` that contains `bits = ` and the value. Different lengths raise one that
#   names both lengths.
#
# The arithmetic is the kernel's, not torch's. The check records what your launcher launches, and runs your kernel
# again on inputs of its own: a launcher may allocate, take views and launch, and nothing else.


# %% nbgrader={"grade": false, "grade_id": "vector_width", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def saxpy_kernel(x, y, out, a, n, BLOCK: tl.constexpr):
    """out = a·x + y, BLOCK elements a program."""
    ### BEGIN SOLUTION
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    result = a * tl.load(x + at, mask=inside).to(tl.float32) + tl.load(y + at, mask=inside).to(tl.float32)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=inside)
    ### END SOLUTION


def saxpy(a: float, x: torch.Tensor, y: torch.Tensor, bits: int) -> torch.Tensor:
    """a·x + y by accesses of `bits` bits."""
    ### BEGIN SOLUTION
    if bits not in (32, 64, 128):
        raise ValueError(f"bits = {bits}: expected 32, 64 or 128")
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} elements and y has {len(y)}: expected one length")
    out = torch.empty_like(x)
    threads, elements_per_thread = 4 * 32, bits // 8 // x.element_size()
    block = threads * elements_per_thread
    if len(x):
        saxpy_kernel[(triton.cdiv(len(x), block),)](x, y, out, a, len(x), BLOCK=block, num_warps=4)
    return out
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "vector_width",
    "Which elements does a program own, and which of them exist? `tl.arange(0, BLOCK)` shifted by `program_id · BLOCK`, and a mask `< n` on every load and the store.",
    "A program of 4 warps has 128 threads. If each is to take `bits / 8` bytes at a time, how many elements is that for float32, and how many for float16?",
    "`block = 128 · (bits // 8 // x.element_size())`, and the grid is `triton.cdiv(n, block)`. For a length of 0 there is nothing to launch.",
)

# %% nbgrader={"grade": true, "grade_id": "vector_width_test", "locked": true, "points": 25, "schema_version": 3, "solution": false, "task": false}
with check("vector_width", "SAXPY in accesses of 32, 64 and 128 bits"):
    for length in (1, 127, 1000, 4096):
        generator = torch.Generator().manual_seed(length)
        x, y = (torch.randn(length, generator=generator) for _ in range(2))
        run = replay(saxpy, 0.5, x, y, 128)
        check.close(
            run.outputs,
            0.5 * x.double() + y.double(),
            rtol=1e-6,
            atol=1e-7,
            what=f"saxpy of {length} elements",
            hint="a·x + y",
        )
        check.equal(
            [finding.message for finding in run.traffic.findings],
            [],
            what=f"what the meter objects to at {length} elements",
            hint="an element is read that nothing has written: allocate with torch.empty, and write before you read",
        )
        check.equal(
            run.traffic.total.requested_bytes,
            12 * length,
            what=f"bytes that saxpy of {length} float32 elements asks for",
            hint="x and y are read once and the result is written once: 12 bytes an element",
        )
    for bits in (32, 64, 128):
        x = torch.zeros(1 << 14)
        (code,) = replay(saxpy, 2.0, x, x, bits).code("sm_90")
        check.equal(
            sorted(code.loads),
            [bits],
            what=f"widths of the loads compiled for an H100, float32, bits = {bits}",
            hint="each of the 128 threads must own bits / 8 bytes in a row: BLOCK decides that",
        )
        check.equal(
            sorted(code.stores),
            [bits],
            what=f"widths of the stores, float32, bits = {bits}",
            hint="stores are as wide as loads",
        )
    half = torch.zeros(1 << 14, dtype=torch.float16)
    (code,) = replay(saxpy, 2.0, half, half, 128).code("sm_90")
    check.equal(
        (sorted(code.loads), sorted(code.stores)),
        ([128], [128]),
        what="widths of loads and stores, float16, bits = 128",
        hint="an element of float16 is 2 bytes: a thread needs twice as many of them",
    )
    big = torch.tensor([60000.0, 1.0009765625], dtype=torch.float16)
    check.close(
        replay(saxpy, 2.0, big, torch.tensor([-60000.0, -2.0], dtype=torch.float16), 64).outputs,
        [60000.0, 0.001953125],
        what="2·60000 − 60000 and 2·1.0009765625 − 2 in float16",
        hint="2·60000 overflows float16: the product must stay in float32 until the sum is done",
    )
    check.raises(ValueError, saxpy, 1.0, torch.ones(4), torch.ones(4), 48, names="bits = 48")
    check.raises(ValueError, saxpy, 1.0, torch.ones(37), torch.ones(41), 32, names=("37", "41"))
    ### BEGIN HIDDEN TESTS
    for bits in (32, 64, 128):
        for length in (1, 129, 2047):
            generator = torch.Generator().manual_seed(length + bits)
            x, y = (torch.randn(length, generator=generator).to(torch.float16) for _ in range(2))
            run = replay(saxpy, -1.375, x, y, bits)
            check.dtype(run.outputs, torch.float16, what="saxpy of float16")
            exact = -1.375 * x.double() + y.double()
            check.close(
                run.outputs,
                exact.to(torch.float16),
                rtol=1.1e-3,
                atol=1e-6,
                what=f"saxpy of {length} float16 elements, bits = {bits}",
                hint="multiply and add in float32, round once at the end",
            )
            check.equal(
                [f.message for f in run.traffic.findings],
                [],
                what="what the meter objects to",
                hint="an element is read that nothing has written: allocate with torch.empty, and write before you read",
            )
        x = torch.zeros(1 << 14, dtype=torch.float16)
        (code,) = replay(saxpy, 2.0, x, x, bits).code("sm_90")
        check.equal(
            (sorted(code.loads), sorted(code.stores)),
            ([bits], [bits]),
            what=f"widths of loads and stores, float16, bits = {bits}",
            hint="an element of float16 is 2 bytes: a thread needs twice as many of them",
        )
    base = torch.arange(2050.0)
    run = replay(saxpy, 3.0, base[1:2001], base[7:2007], 128)
    check.close(
        run.outputs, 3.0 * base[1:2001].double() + base[7:2007].double(), what="saxpy of tensors that start in mid-line"
    )
    check.shape(saxpy(1.0, torch.empty(0), torch.empty(0), 32), (0,), what="saxpy of nothing")
    ### END HIDDEN TESTS

# %% [markdown]
# What you checked by assertion, with your own eyes: the instructions that the compiler makes for an H100 from the
# library's SAXPY, in four block sizes. `LDG` is a load from global memory, `STG` a store to it. `.E` says that the address
# has 64 bits. The number behind it is the width of the access, and no number means 32 bits.

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.inner.codegen import inspect
from threeloops.inner.kernels.rows.saxpy import saxpy_kernel as library_kernel


def code_for(block, elements=1 << 20, start=0):
    """The library's SAXPY kernel, compiled for an H100 with a block of this many elements."""
    data = torch.zeros(elements + start)[start:]

    def launch():
        return library_kernel[(triton.cdiv(elements, block),)](
            2.0, data, data, data, elements, BLOCK=block, num_warps=4
        )

    return inspect(launch, "sm_90")[0]


WIDTHS = {block: code_for(block) for block in (128, 256, 512, 1024)}
show.table(
    [
        [
            block,
            block // 128,
            ", ".join(f"{n} × {bits}-bit" for bits, n in sorted(code.loads.items())),
            ", ".join(f"{n} × {bits}-bit" for bits, n in sorted(code.stores.items())),
            code.registers,
        ]
        for block, code in WIDTHS.items()
    ],
    ["BLOCK", "elements a thread", "loads", "stores", "registers a thread"],
)
for block in (128, 512):
    lines = [
        line.split("*/", 1)[-1].strip() if line.strip().startswith("/*") else line.strip()
        for line in WIDTHS[block].sass.splitlines()
    ]
    print(f"BLOCK = {block}:", *[line.split(";")[0] for line in lines if "LDG" in line or "STG" in line], sep="\n    ")

# %% [markdown]
# Now take the proof away. The same kernel and block, on data that starts four bytes later, or with a length that is
# not a multiple of 16:

# %% tags=["demo"] jupyter={"source_hidden": true}
CASES = {
    "length 2²⁰, aligned": code_for(1024),
    "length 2²⁰, starting at element 1": code_for(1024, start=1),
    "length 2²⁰ + 1, aligned": code_for(1024, elements=(1 << 20) + 1),
}
present = sorted({bits for code in CASES.values() for bits in code.loads})
fig, axes = figure(width=9.5, height=2.6)
for bits in present:
    shade = {32: palette.vermillion, 64: palette.orange, 128: palette.blue}[bits]
    values = [code.loads.get(bits, 0) for code in CASES.values()]
    left_edge = [sum(n for b, n in code.loads.items() if b < bits) for code in CASES.values()]
    bars = axes.barh(list(CASES), values, left=left_edge, color=shade, label=f"{bits} bits")
    axes.bar_label(bars, [f"{v}" if v else "" for v in values], label_type="center", color="white", weight="bold")
axes.invert_yaxis()
axes.set(
    xlabel="load instructions of one thread, for 8 elements of x and 8 of y",
    title="One odd number, and the vector accesses are gone",
)
axes.grid(axis="y", visible=False)
axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), title="width")
show.figure(fig)

# %% [markdown]
# Four instructions became sixteen. The kernel is still right; it asks four times as often for the same bytes. That is
# why frameworks pad: a vocabulary of 50,257 tokens becomes 50,304, and a row of odd length costs more than the element
# it saves.
#
# Does it matter? Here the source texts and the arithmetic part ways. Claim mem-6 reports that 128-bit loads *doubled*
# SAXPY on a T4. The bytes that cross from DRAM are the same for every width, so a SAXPY that is limited by DRAM has
# nothing to gain; what gains is one that is limited by the number of requests in flight, or whose arrays lie in a
# cache. The sweep below shows both ends on a GPU; without one, the model.

# %% tags=["demo"] jupyter={"source_hidden": true}
ELEMENTS = [2**k for k in range(14, 27, 2)]
if device() == "cuda":
    from threeloops.inner.timing import benchmark

    def time_of(elements, block):
        def make():
            return tuple(torch.randn(elements, device="cuda") for _ in range(3))

        def run(x, y, out):
            return library_kernel[(triton.cdiv(elements, block),)](2.0, x, y, out, elements, BLOCK=block, num_warps=4)

        return benchmark(run, make, device="cuda").median

    gains = [time_of(n, 128) / time_of(n, 512) for n in progress(ELEMENTS, "SAXPY sweep")]
    show.against_prediction("vector_gain", round(gains[-1], 3), unit="×", source="measured here")
    fig, axes = figure(width=8.5, height=3.4)
    axes.plot([12 * n for n in ELEMENTS], gains, "o-", color=palette.blue)
    axes.axhline(1.0, color=palette.grey, lw=1)
    axes.set(
        xscale="log",
        xlabel="bytes moved",
        ylabel="time at 32 bits / time at 128 bits",
        title=f"What wide accesses gain, {torch.cuda.get_device_name()}",
    )
    show.figure(fig)
    audit(
        "mem-6",
        round(gains[-1], 2),
        "×",
        "GPU",
        "holds" if gains[-1] > 1.8 else "corrected",
        how="SAXPY of 64 Mi elements, 32-bit against 128-bit accesses, on this GPU",
    )
else:
    show.against_prediction("vector_gain", 1.0, unit="×", source="model: the same bytes from DRAM")
    narrow, wide = WIDTHS[128], WIDTHS[512]

    def per_element(code, elements):
        return sum(code.loads.values()) / elements

    audit(
        "mem-6",
        per_element(narrow, 1) / per_element(wide, 4),
        "× fewer load instructions",
        "compiled",
        "needs a GPU",
        how="compiled for sm_90: 128-bit accesses need a quarter of the instructions for the same bytes, so DRAM-resident arrays should gain little; the time was not measured by the course yet, and on a GPU this cell sweeps the size",
    )

# %% [markdown]
# ## 3 · 32 lanes, one request
#
# Threads run in **warps** of 32 lanes, and the lanes issue a load together. The memory does not answer lane by lane. It
# answers in **sectors** of 32 bytes, four of which make a cache line. All lanes that want bytes of one sector are
# served by one fetch; a sector of which one lane wants four bytes travels in full.
#
# So one number says how well a warp asks: **sectors per request**. Neighbouring lanes that read neighbouring float32
# values touch 4 sectors, 128 bytes, all of them used. Lanes that walk down a column of a row-major matrix touch 32
# sectors: a kilobyte is fetched for the same 128 bytes.
#
# Try it. Which strides cost nothing extra? What does an offset of one element do? How many sectors do neighbouring lanes of
# 16 bytes touch, and at which stride do lanes of 4 bytes touch as many?

# %% tags=["demo"] jupyter={"source_hidden": true}
from matplotlib.patches import Rectangle

LANES = np.arange(32)


def draw_request(stride, offset, width):
    """One warp over its sectors; `stride` and `offset` count elements of `width` bytes."""
    at = (offset + LANES * stride) * width
    touched = sorted(set((at // 32).tolist()))
    first = touched[0] // 4 * 4
    last = max(touched[-1] // 4 * 4 + 4, first + 4)
    fig, axes = figure(width=9.5, height=3.0)
    columns, rows = 16, -(-(last - first) // 16)
    different = np.unique(at)
    for sector in range(first, last):
        column, row = (sector - first) % columns, (sector - first) // columns
        used = int(sum((different // 32) == sector)) * width
        axes.add_patch(
            Rectangle(
                (column * 32, -row),
                32,
                0.8,
                facecolor="#eeeeee" if sector not in touched else palette.orange,
                alpha=0.35 if sector in touched else 1.0,
                lw=0,
            )
        )
        axes.plot([column * 32] * 2, [-row, -row + 0.8], color=palette.ink, lw=2.2 if sector % 4 == 0 else 0.5)
        if used and rows <= 6:
            axes.text(column * 32 + 16, -row + 0.63, f"{used} of 32", ha="center", va="center", fontsize=7.5)
    for address in different.tolist():
        place = address - first * 32
        column, row = place % (columns * 32), place // (columns * 32)
        axes.add_patch(Rectangle((column, -row + 0.06), width * 0.92, 0.4, facecolor=palette.blue, lw=0))
    moved, wanted = 32 * len(touched), len(different) * width
    axes.set(
        xlim=(-2, columns * 32 + 2),
        ylim=(-rows + 0.9, 1.0),
        yticks=[],
        xlabel="bytes: a thick line begins a cache line of 128, a thin one a sector of 32",
    )
    axes.set_title(
        f"{len(touched)} sector{'s' if len(touched) > 1 else ''} a request: "
        f"{moved} bytes fetched, {wanted} wanted, {100 * wanted / moved:.3g}% used"
    )
    axes.grid(visible=False)
    return fig


explore(draw_request, stride=(0, 16, 1, 2), offset=(0, 8, 1, 0), width=[4, 2, 8, 16])

# %% [markdown]
# ### Exercise 3 (25 points)
#
# **The rule.** `sectors(addresses: list[int | None], width: int) -> int`: how many sectors of 32 bytes one request
# touches. `addresses` holds the byte address of each lane, `None` for a lane that is masked off; each active lane reads
# `width` bytes (1, 2, 4, 8 or 16) from its address on. Addresses are multiples of `width`. No active lane: 0. An
# address that is no multiple of `width` raises `ValueError` that contains the address.
#
# **The repair.** A transpose has to read rows and write columns, or the reverse: one side of it seems bound to be bad.
# This kernel is what everybody writes first, one program a row:
#
# ```python
# @triton.jit
# def one_row(x, out, rows, columns, BLOCK: tl.constexpr):
#     row = tl.program_id(0)
#     column = tl.arange(0, BLOCK)
#     inside = column < columns
#     values = tl.load(x + row * columns + column, mask=inside)
#     tl.store(out + column * rows + row, values, mask=inside)
# ```
#
# Write `transpose(x: Tensor) -> Tensor` with a kernel of your own:
#
# - `x` is 2-D and contiguous, of any 2- or 4-byte dtype that Triton has (float32, float16, bfloat16, int32) and any
#   shape; the result is a new contiguous tensor of shape (columns, rows) with exactly the values of `x`.
# - Each element is read once and written once by your kernel, and nothing else is: PyTorch allocates and takes views.
# - Where rows and columns are multiples of 32, **no sector is fetched or written twice**: sectors × 32 bytes =
#   bytes asked for, in loads and stores alike.
# - At most ⌈rows / 16⌉ · ⌈columns / 16⌉ programs: a program owns a tile, not a row.


# %% nbgrader={"grade": false, "grade_id": "coalescing", "locked": false, "schema_version": 3, "solution": true, "task": false}
def sectors(addresses: list[int | None], width: int) -> int:
    """Sectors of 32 bytes that one request touches."""
    ### BEGIN SOLUTION
    touched = set()
    for address in addresses:
        if address is None:
            continue
        if address % width:
            raise ValueError(f"address = {address}: expected a multiple of width = {width}")
        touched.add(address // 32)
    return len(touched)
    ### END SOLUTION


@triton.jit
def transpose_kernel(x, out, rows, columns, TILE: tl.constexpr):
    """out[c, r] = x[r, c] for one square tile a program."""
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
        tile = 32
        transpose_kernel[(triton.cdiv(rows, tile), triton.cdiv(columns, tile))](x, out, rows, columns, TILE=tile)
    return out
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "coalescing",
    "A program does not have to own a row. If it owns a square of the matrix, both sides can be read and written in runs that are as long as the square is wide.",
    "How wide must the square be so that a run fills a sector of 32 bytes for 2-byte elements? And for 4-byte ones? Wider does no harm.",
    "Load `x + row[:, None] * columns + column[None, :]`, store `tl.trans(values)` at `out + column[:, None] * rows + row[None, :]`; the mask is transposed with the values.",
)

# %% nbgrader={"grade": true, "grade_id": "coalescing_test", "locked": true, "points": 25, "schema_version": 3, "solution": false, "task": false}
with check("coalescing", "sectors of a request, and a transpose that wastes none"):
    lanes = range(32)
    check.equal(
        sectors([4 * i for i in lanes], 4),
        4,
        what="sectors of 32 neighbouring float32",
        hint="128 bytes in sectors of 32",
    )
    check.equal(
        sectors([4 + 4 * i for i in lanes], 4),
        5,
        what="sectors of the same, one element later",
        hint="a start inside a sector touches one more",
    )
    check.equal(
        sectors([128 * i for i in lanes], 4), 32, what="sectors of a column", hint="no two lanes share a sector"
    )
    check.equal(
        sectors([0 if i < 8 else None for i in lanes], 4),
        1,
        what="sectors of eight lanes on one address",
        hint="a sector counts once, and a masked lane asks for nothing",
    )
    check.raises(ValueError, sectors, [0, 38], 4, names="38")
    for rows, columns in ((64, 96), (33, 65), (1, 127)):
        x = torch.arange(rows * columns, dtype=torch.float32).reshape(rows, columns)
        run = replay(transpose, x)
        check.shape(run.outputs, (columns, rows), what="the transposed shape")
        check.true(
            run.outputs.is_contiguous(),
            "the transpose is a view with exchanged strides: expected a contiguous result, each element moved by the kernel",
        )
        check.equal(
            run.outputs.tolist(),
            x.T.tolist(),
            what=f"the transpose of a {rows} × {columns} matrix",
            hint="row and column of the target are exchanged, and so are the mask's",
        )
        check.equal(
            [finding.message for finding in run.traffic.findings],
            [],
            what=f"what the meter objects to at {rows} × {columns}",
            hint="an element is read that nothing has written: allocate with torch.empty, and write before you read",
        )
        check.equal(
            run.traffic.total.requested_bytes,
            8 * rows * columns,
            what=f"bytes asked for at {rows} × {columns}",
            hint="each element is read once and written once",
        )
        check.equal(
            run.torch_bytes,
            0,
            what=f"bytes that torch moves beside the kernel at {rows} × {columns}",
            hint="torch.empty makes the result, the kernel writes it, and it is returned as it is",
        )
    run = replay(transpose, torch.zeros(128, 64))
    check.equal(
        run.traffic.total.sectors * 32,
        run.traffic.total.requested_bytes,
        what="bytes in the sectors of a 128 × 64 float32 transpose",
        hint="one side walks down a column, 4 bytes of each sector used: let a program own a square tile and transpose it in registers",
    )
    check.true(
        run.traffic.total.programs <= 32,
        f"{run.traffic.total.programs} programs for 128 × 64 elements: expected at most 8 · 4 = 32; usually: tiles narrower "
        "than 16",
    )
    ### BEGIN HIDDEN TESTS
    for seed in range(40):
        rng = check.rng(seed)
        width = [1, 2, 4, 8, 16][seed % 5]
        addresses = [int(v) * width for v in rng.integers(0, 200, 32)]
        off = rng.uniform(size=32) < 0.2
        given = [None if off[i] else addresses[i] for i in range(32)]
        bitmap = np.zeros(200 * 16 // 32 + 1, bool)
        for i in range(32):
            if not off[i]:
                bitmap[addresses[i] // 32] = True
        check.equal(
            sectors(given, width),
            int(bitmap.sum()),
            what=f"sectors of 32 random lanes of {width} byte{'s' if width > 1 else ''}",
            hint="sectors are 32 bytes, whatever a lane reads",
        )
    check.equal(sectors([], 4), 0, what="sectors of no lanes")
    check.equal(sectors([None] * 32, 4), 0, what="sectors of 32 masked lanes", hint="a masked lane asks for nothing")
    check.equal(
        sectors([16 * i for i in range(32)], 16),
        16,
        what="sectors of 32 lanes of 16 bytes",
        hint="two lanes of 16 bytes fill a sector",
    )
    check.raises(ValueError, sectors, [None, 24], 16, names="24")
    for dtype in (torch.float16, torch.bfloat16, torch.int32):
        for rows, columns in ((96, 32), (129, 31), (127, 1), (1, 1), (32, 160)):
            x = (torch.arange(rows * columns) % 251).to(dtype).reshape(rows, columns)
            run = replay(transpose, x)
            check.dtype(run.outputs, dtype, what="the transpose")
            check.equal(
                run.outputs.double().tolist(),
                x.double().T.tolist(),
                what=f"the transpose of {rows} × {columns} {dtype}",
            )
            check.equal(
                [f.message for f in run.traffic.findings],
                [],
                what=f"what the meter objects to at {rows} × {columns}",
                hint="an element is read that nothing has written: allocate with torch.empty, and write before you read",
            )
            check.equal(
                run.traffic.total.requested_bytes,
                2 * x.element_size() * x.numel(),
                what="bytes asked for",
                hint="each element is read once and written once",
            )
            check.true(run.outputs.is_contiguous(), f"the transpose of {rows} × {columns} {dtype} is not contiguous")
            check.equal(run.torch_bytes, 0, what="bytes that torch moves beside the kernel")
            if rows % 32 == 0 and columns % 32 == 0:
                check.equal(
                    run.traffic.total.sectors * 32,
                    run.traffic.total.requested_bytes,
                    what=f"bytes in the sectors of a {rows} × {columns} transpose of {dtype}",
                    hint="a run of elements must fill 32 bytes on both sides: 16 elements of 2 bytes, 8 of 4",
                )
            check.true(
                run.traffic.total.programs <= triton.cdiv(rows, 16) * triton.cdiv(columns, 16),
                f"{run.traffic.total.programs} programs for {rows} × {columns} elements: expected at most "
                f"{triton.cdiv(rows, 16) * triton.cdiv(columns, 16)}; usually: one program a row, or tiles narrower than 16",
            )
    check.shape(transpose(torch.empty(0, 5)), (5, 0), what="the transpose of an empty matrix")
    ### END HIDDEN TESTS

# %% [markdown]
# Now both kernels under the meter, beside each other. The *bytes asked for* are the same. What differs is what the memory
# must move to answer.

# %% tags=["demo"]
predict(
    "row_waste",
    "`one_row` on a 128 × 64 float32 matrix: loads along rows, stores down columns. How many bytes lie in the sectors it touches, for each byte it asks for?",
    unit="×",
    guess=None,
)

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.inner.meter import meter


@triton.jit
def one_row(x, out, rows, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    values = tl.load(x + row * columns + column, mask=inside)
    tl.store(out + column * rows + row, values, mask=inside)


def metered(launch):
    """What the launch asks of the memory; on a GPU machine the meter has no interpreted kernels to watch."""
    if not INTERPRETED:
        print("the meter watches interpreted kernels: set THREELOOPS_DEVICE=cpu before JupyterLab starts")
        return None
    with meter() as traffic:
        launch()
    return traffic.total


matrix = torch.arange(128.0 * 64).reshape(128, 64)
naive = metered(lambda: one_row[(128,)](matrix, torch.empty(64, 128), 128, 64, BLOCK=64))
if naive:
    show.against_prediction(
        "row_waste", round(naive.sectors * 32 / naive.requested_bytes, 2), unit="×", source="counted by the meter"
    )
    yours = {"one program a row": naive}
    try:
        yours["your transpose"] = metered(lambda: transpose(matrix))
    except NotImplementedError:
        print("your transpose appears here once it is written")
    fig, axes = figure(width=9.5, height=2.2)
    for i, total in enumerate(yours.values()):
        axes.barh(
            [i - 0.2], [total.requested_bytes / 1024], 0.36, color=palette.blue, label="asked for" if not i else None
        )
        axes.barh(
            [i + 0.2],
            [total.sectors * 32 / 1024],
            0.36,
            color=palette.orange,
            label="in the sectors touched" if not i else None,
        )
        axes.text(
            total.sectors * 32 / 1024,
            i + 0.2,
            f"  {total.sectors_per_request:.3g} sectors a request, on average",
            va="center",
            fontsize=10,
        )
    axes.set(yticks=range(len(yours)), yticklabels=list(yours), xlabel="KiB", title="A 128 × 64 float32 transpose")
    axes.set_xlim(0, naive.sectors * 32 / 1024 * 1.5)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.legend(loc="lower right")
    show.figure(fig)

# %% [markdown]
# The 18 sectors of `one_row` are the mean of 4 for a load and 32 for a store. A cache may soften this: the sector that one program fetched for four bytes may still be in L2 when the next program
# wants its neighbours. That is luck, and it runs out when the matrix is larger than the cache.

# %% [markdown]
# ## 4 · Use every byte more than once
#
# Matrix multiplication does 2·m·n·k FLOPs on m·k + k·n numbers. Each number is needed n or m times, and the question
# is how many of those times it comes from memory.
#
# Compute each element of C by itself, and every one of the m·n dot products fetches its own row and column: for
# 1000³ that is two billion elements. Compute a **tile** of C at once, and its rows and columns are fetched once for
# all of the tile.

# %% tags=["demo"]
predict(
    "tile_factor",
    "1000 × 1000 × 1000, tiles of 16 × 16 instead of single elements: the loads shrink by which factor, exactly?",
    unit="×",
    guess=None,
)

# %% tags=["demo"] jupyter={"source_hidden": true}
fig, panels = figure(1, 3, width=12.5, height=3.9)
for axes, tile, title in zip(panels, (1, 2, 4), ("one element of C", "a 2 × 2 tile", "a 4 × 4 tile"), strict=True):
    for x0, y0, w, h, name in ((-9, 0, 8, 8, "A"), (0, 9, 8, 8, "B"), (0, 0, 8, 8, "C")):
        axes.add_patch(Rectangle((x0, y0), w, h, facecolor="#f2f2f2", edgecolor=palette.grey, lw=1))
        axes.text(x0 + 0.25, y0 + h - 0.3, name, ha="left", va="top", color=palette.grey, weight="bold")
    axes.add_patch(Rectangle((-9, 2), 8, tile, facecolor=palette.sky, lw=0))
    axes.add_patch(Rectangle((3, 9), tile, 8, facecolor=palette.orange, lw=0))
    axes.add_patch(Rectangle((3, 2), tile, tile, facecolor=palette.vermillion, lw=0))
    loads, made = 2 * 8 * tile, tile * tile
    axes.set_title(
        f"{title}\n{loads} loads, {made} result{'s' if made > 1 else ''}: {loads / made:g} a result", fontsize=11
    )
    axes.set(xlim=(-9.5, 8.5), ylim=(-0.5, 17.5), aspect="equal")
    axes.set_axis_off()
show.figure(fig)

# %% [markdown]
# Tiles are the first half. The second is the **order** in which they are computed. Programs start in the order of
# their number, some hundred of them at a time, and what they have fetched lies in L2 for a while. If programs 0, 1, 2,
# … walk along a row of tiles, they share one strip of A, and sweep through *all* of B before the next row of tiles
# needs B again. If instead they walk in **groups** of a few rows, column by column inside the group, the same number of
# programs touches a squarer piece of C, and fewer different strips of A and B.


# %% tags=["demo"] jupyter={"source_hidden": true}
def order_of(tiles_m, tiles_n, group_m):
    """Program number of every tile, by the rule of exercise 4."""
    number = np.empty((tiles_m, tiles_n), int)
    count = 0
    for first in range(0, tiles_m, group_m):
        for column in range(tiles_n):
            for row in range(first, min(first + group_m, tiles_m)):
                number[row, column] = count
                count += 1
    return number


def draw_order(group_m, resident):
    fig, axes = figure(width=6.4, height=4.6)
    number = order_of(9, 9, group_m)
    live = number < resident
    rows, columns = live.any(axis=1).sum(), live.any(axis=0).sum()
    axes.imshow(np.where(live, 1.0, 0.0), cmap="Blues", vmin=0, vmax=2.2)
    for row in range(9):
        for column in range(9):
            axes.text(column, row, number[row, column], ha="center", va="center", fontsize=9)
    axes.set(xticks=[], yticks=[], xlabel="columns of C (strips of B)", ylabel="rows of C (strips of A)")
    axes.set_title(
        f"The first {resident} programs need {rows + columns} strips:\n{rows} of A and {columns} of B"
        if resident > 1
        else "The first program needs 2 strips:\n1 of A and 1 of B",
        fontsize=11,
    )
    axes.grid(visible=False)
    return fig


explore(draw_order, group_m=(1, 9, 1, 3), resident=(1, 81, 1, 9))

# %% [markdown]
# ### Exercise 4 (25 points)
#
# `matmul_traffic(m, k, n, block_m, block_n, bytes_per_element) -> int`: bytes that a tiled matmul **asks for**,
# (m, k) @ (k, n). Each program makes one tile of C of at most `block_m` × `block_n`; it loads the rows of A and the
# columns of B that its tile needs, in full and once, whatever the tile size along k, and stores its tile. Elements
# beyond the edge are masked, and cost nothing. Exact, an `int`.
#
# `tile_of(program, tiles_m, tiles_n, group_m) -> tuple[int, int]`: row and column of the tile that program number
# `program` makes. Groups of `group_m` rows of tiles, from the top; inside a group column by column, and inside a column
# from the top. The last group may have fewer rows. With `group_m = 1` that is row by row. `program` outside
# 0 … tiles_m · tiles_n − 1 raises `ValueError` that names `program`.
#
# `matmul(a, b, block: int, group_m: int) -> Tensor` with a kernel of your own: `a` (m, k) and `b` (k, n), contiguous,
# float16 or float32, any sizes from 1 on. Returns (m, n) of the same dtype.
#
# - Tiles of `block` × `block` of C, steps of `block` along k, one program a tile on a one-dimensional grid, tiles in the
#   order of `tile_of`.
# - Accumulates in float32, by `tl.dot(…, input_precision="ieee")`; rounds once.
# - Asks for exactly the bytes of `matmul_traffic`, and nothing outside the matrices.
# - `block` is a power of two, at least 16. No tile that a program loads or computes has more than `block`² elements
#   (`run.traffic.total.largest_tile`).


# %% nbgrader={"grade": false, "grade_id": "tiles", "locked": false, "schema_version": 3, "solution": true, "task": false}
def matmul_traffic(m: int, k: int, n: int, block_m: int, block_n: int, bytes_per_element: int) -> int:
    """Bytes that all programs of a tiled (m, k) @ (k, n) ask for."""
    ### BEGIN SOLUTION
    tiles_m, tiles_n = -(-m // block_m), -(-n // block_n)
    return (m * k * tiles_n + k * n * tiles_m + m * n) * bytes_per_element
    ### END SOLUTION


def tile_of(program: int, tiles_m: int, tiles_n: int, group_m: int) -> tuple[int, int]:
    """Row and column of the tile that a program makes, in groups of `group_m` rows."""
    ### BEGIN SOLUTION
    if not 0 <= program < tiles_m * tiles_n:
        raise ValueError(f"program = {program}: expected 0 … {tiles_m * tiles_n - 1} for {tiles_m} × {tiles_n} tiles")
    group, within = divmod(program, group_m * tiles_n)
    first = group * group_m
    rows = min(group_m, tiles_m - first)
    return first + within % rows, within // rows
    ### END SOLUTION


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
    ### BEGIN SOLUTION
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(m, block) * triton.cdiv(n, block),)
    matmul_kernel[grid](a, b, c, m, k, n, BLOCK=block, GROUP_M=group_m)
    return c
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "tiles",
    "Count strips. How many tiles stand beside each other in a row of C? Each of them reads the same rows of A again.",
    "A whole group holds `group_m · tiles_n` programs. `divmod` gives the group and the number inside it; only then ask how many rows *this* group has, `min(group_m, tiles_m − first)`.",
    "In the kernel the same arithmetic works on `tl.program_id(0)`. Mask the edge along k in both loads with `other=0.0`: garbage times zero is not zero if the garbage is NaN.",
)

# %% nbgrader={"grade": true, "grade_id": "tiles_test", "locked": true, "points": 25, "schema_version": 3, "solution": false, "task": false}
from threeloops.inner.meter import L2

with check("tiles", "the traffic of tiles, their order, and a kernel that keeps to both"):
    check.equal(
        matmul_traffic(1000, 1000, 1000, 1, 1, 4),
        4 * (2 * 1000**3 + 1000**2),
        what="bytes of 1000³ without tiles",
        hint="each of the m·n programs reads k elements of A and k of B, and stores one",
    )
    check.equal(
        matmul_traffic(512, 256, 128, 64, 64, 2),
        2 * (2 * 512 * 256 + 8 * 256 * 128 + 512 * 128),
        what="bytes of 512 × 256 × 128 in tiles of 64",
        hint="a strip of A is read once for each tile in its row of C; a strip of B once for each in its column",
    )
    check.equal(
        matmul_traffic(34, 25, 20, 11, 13, 4),
        4 * (2 * 34 * 25 + 4 * 25 * 20 + 34 * 20),
        what="bytes of 34 × 25 × 20 in tiles of 11 × 13",
        hint="a tile at the edge counts as a tile, and asks for the elements that exist",
    )
    order = [tile_of(p, 3, 4, 1) for p in range(12)]
    check.equal(
        order[:6],
        [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)],
        what="the first six tiles without groups",
        hint="group_m = 1 is row by row",
    )
    order = [tile_of(p, 4, 3, 2) for p in range(12)]
    check.equal(
        order[:7],
        [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 0)],
        what="the first seven tiles in groups of two rows",
        hint="inside a group go down the column first, then to the next column",
    )
    check.equal(
        [tile_of(p, 3, 2, 2) for p in range(6)],
        [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)],
        what="the order of 3 × 2 tiles in groups of two rows",
        hint="the last group may have fewer rows: divide by the rows that this group has",
    )
    check.raises(ValueError, tile_of, 12, 4, 3, 2, names="program")
    for (m, k, n), block, group in (((64, 64, 64), 32, 2), ((65, 33, 97), 32, 2), ((1, 127, 1), 16, 1)):
        generator = torch.Generator().manual_seed(m)
        a, b = torch.randn(m, k, generator=generator), torch.randn(k, n, generator=generator)
        run = replay(matmul, a, b, block, group)
        check.shape(run.outputs, (m, n), what=f"matmul of {m} × {k} × {n}")
        nans = int(torch.isnan(run.outputs).sum())
        check.true(
            nans == 0,
            f"{nans:,} of {m * n:,} elements of matmul of {m} × {k} × {n} are NaN: expected none; usually: no program wrote "
            "them, because the last group has fewer rows than group_m, or a load along k lacks other=0.0",
        )
        check.close(
            run.outputs,
            a.double() @ b.double(),
            rtol=1e-5,
            atol=1e-5,
            what=f"matmul of {m} × {k} × {n}",
            hint="rows of a, columns of b, and zeros beyond the edge of k",
        )
        check.equal(
            [f.message for f in run.traffic.findings],
            [],
            what=f"what the meter objects to at {m} × {k} × {n}",
            hint="an element is read that nothing has written: allocate with torch.empty, and write before you read",
        )
        tiles_m, tiles_n = -(-m // block), -(-n // block)
        check.equal(
            run.traffic.total.requested_bytes,
            4 * (m * k * tiles_n + k * n * tiles_m + m * n),
            what=f"bytes that matmul asks for at {m} × {k} × {n}, block {block}",
            hint="each program reads its rows of A and its columns of B once; at the edge mask, do not wrap around with %",
        )
        check.true(
            run.traffic.total.largest_tile <= block**2,
            f"matmul of {m} × {k} × {n}, block {block}: a program works on a tile of {run.traffic.total.largest_tile:,} elements, expected at most {block}² = {block**2:,}; usually: all of k is loaded in one step",
        )
    a, b = (
        torch.randn(256, 64, generator=torch.Generator().manual_seed(1)),
        torch.randn(64, 256, generator=torch.Generator().manual_seed(2)),
    )
    behind_small_l2 = replay.with_l2(L2(size_bytes=64 << 10, ways=16, resident_programs=8))
    rowwise, grouped = (behind_small_l2(matmul, a, b, 32, group).traffic.total.dram_bytes for group in (1, 4))
    check.true(
        grouped < 0.8 * rowwise,
        f"with groups of 4 rows {grouped:,} bytes come from DRAM behind a small L2, without {rowwise:,}: expected a fifth less at least; "
        "usually: the kernel does not visit its tiles in the order of tile_of",
    )
    shapes = (torch.empty(64, 64, device="meta") for _ in range(2))
    (code,) = replay.code("sm_90", matmul, *shapes, 32, 2)
    check.true(
        code.tensor_cores is None,
        "the float32 product is compiled for an H100 to tensor-core instructions, which round its inputs to TF32, 10 bits of "
        'fraction: expected none; usually: tl.dot without input_precision="ieee"',
    )
    ### BEGIN HIDDEN TESTS
    for seed in range(25):
        rng = check.rng(seed)
        m, k, n, bm, bn = (int(v) for v in rng.integers(1, 40, 5))
        total = 0
        for top in range(0, m, bm):
            for side in range(0, n, bn):
                height, breadth = min(bm, m - top), min(bn, n - side)
                total += height * k + k * breadth + height * breadth
        check.equal(
            matmul_traffic(m, k, n, bm, bn, 2),
            2 * total,
            what=f"bytes of {m} × {k} × {n} in tiles of {bm} × {bn}",
            hint="tiles at the edge are smaller: masked elements cost nothing, and tiles are counted by rounding up",
        )
        tiles_m, tiles_n, group = (int(v) for v in rng.integers(1, 9, 3))
        expected = []
        for first in range(0, tiles_m, group):
            for column in range(tiles_n):
                expected += [(row, column) for row in range(first, min(first + group, tiles_m))]
        check.equal(
            [tuple(tile_of(p, tiles_m, tiles_n, group)) for p in range(tiles_m * tiles_n)],
            expected,
            what=f"the order of {tiles_m} × {tiles_n} tiles in groups of {group}",
            hint="the last group may have fewer rows: divide by the rows that this group has",
        )
    check.raises(ValueError, tile_of, -1, 2, 2, 1, names="program")
    for (m, k, n), block, group in (((129, 65, 127), 64, 2), ((16, 1, 300), 16, 3), ((200, 70, 40), 32, 4)):
        generator = torch.Generator().manual_seed(k)
        a, b = (torch.randn(*s, generator=generator).to(torch.float16) for s in ((m, k), (k, n)))
        run = replay(matmul, a, b, block, group)
        check.dtype(run.outputs, torch.float16, what="the product of float16 matrices")
        exact = a.double() @ b.double()
        check.close(
            run.outputs,
            exact.to(torch.float16),
            rtol=2e-3,
            atol=2e-3,
            what=f"float16 matmul of {m} × {k} × {n}",
            hint="accumulate in float32 and round once",
        )
        tiles_m, tiles_n = -(-m // block), -(-n // block)
        check.equal(
            run.traffic.total.requested_bytes,
            2 * (m * k * tiles_n + k * n * tiles_m + m * n),
            what=f"bytes that matmul asks for at {m} × {k} × {n}",
            hint="each program reads its rows of A and its columns of B once; at the edge mask, do not wrap around with %",
        )
        check.true(
            run.traffic.total.largest_tile <= block**2,
            f"float16 matmul of {m} × {k} × {n}, block {block}: a program works on a tile of {run.traffic.total.largest_tile:,} elements, expected at most {block}² = {block**2:,}",
        )
        check.equal(
            [f.message for f in run.traffic.findings],
            [],
            what="what the meter objects to",
            hint="an element is read that nothing has written: allocate with torch.empty, and write before you read",
        )
        check.equal(
            run.traffic.total.programs, tiles_m * tiles_n, what="programs launched", hint="one for each tile of C"
        )
    ### END HIDDEN TESTS

# %% [markdown]
# ### Measure it
#
# The prediction about tiles of 16 × 16 first. A value is fetched once for each tile that needs it, ⌈1000 / 16⌉ = 63 times
# instead of 1000: an edge tile fetches the same strips for fewer results, and the factor is not 16.

# %% tags=["demo"]
naive_loads, tiled_loads = 2 * 1000**3, 2 * 1000 * 1000 * -(-1000 // 16)
show.against_prediction("tile_factor", round(naive_loads / tiled_loads, 2), unit="×", source="model: counted")
audit(
    "mem-4",
    round(naive_loads / tiled_loads, 2),
    "× fewer loads",
    "model",
    "corrected",
    how="1000³ in 16 × 16 tiles: ⌈1000 / 16⌉ = 63 fetches of each value instead of 1000; 62.5, and so 16×, only where 16 divides the size. What L2 keeps comes on top: see the sweep below",
)

# %% [markdown]
# Now the library's matmul under the meter, (512, 256) @ (256, 512) in FP16. *Asked for* is what the programs request; *from
# DRAM* is what a model of the L2 lets through: lines of 128 bytes, least recently used out first, and eight programs at a
# time taking turns. The model's cache is small, 64 KiB, because the matrices are. With tiles of 64 × 64 a row of C is
# eight tiles, and a strip of A or of B is 32 KiB. The figure takes some ten seconds.

# %% tags=["demo"]
predict(
    "grouped_dram",
    "Tiles of 64 × 64, eight programs at a time. In groups of 4 rows instead of row by row: what percentage of the bytes from DRAM is left?",
    unit="%",
    guess=None,
)

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.inner.kernels.matmul.matmul import matmul as library_matmul
from threeloops.inner.meter import L2

SMALL_L2 = L2(size_bytes=64 << 10, ways=512, resident_programs=8)  # one set: a line may lie anywhere
SIZES = (512, 256, 512)
A_TALL, B_WIDE = (torch.zeros(shape, dtype=torch.float16) for shape in (SIZES[:2], SIZES[1:]))


def traffic_of(block, group_m):
    with meter(SMALL_L2) as traffic:
        library_matmul(A_TALL, B_WIDE, block_m=block, block_n=block, block_k=64, group_m=group_m)
    return traffic.total


if INTERPRETED:
    BY_GROUP = {group: traffic_of(64, group) for group in progress((1, 2, 3, 4, 8), "groups")}
    BY_TILE = {64: BY_GROUP[1]} | {block: traffic_of(block, 1) for block in progress((128, 256), "tiles")}
    show.against_prediction(
        "grouped_dram",
        round(100 * BY_GROUP[4].dram_bytes / BY_GROUP[1].dram_bytes, 1),
        unit="%",
        source="model: the meter's L2",
    )
    m, k, n = SIZES
    least = (m * k + k * n + m * n) * 2 / 2**20
    fig, (left, right) = figure(1, 2, width=12.5, height=3.8)
    for axes, results, label, title in (
        (left, BY_TILE, "tile of C, block × block", "Larger tiles ask for less"),
        (right, BY_GROUP, "rows of tiles in a group, tiles of 64 × 64", "The order decides what the cache can keep"),
    ):
        at = np.arange(len(results))
        asked = [total.requested_bytes / 2**20 for total in results.values()]
        dram = [total.dram_bytes / 2**20 for total in results.values()]
        axes.bar_label(axes.bar(at - 0.2, asked, 0.38, color=palette.blue, label="asked for"), fmt="%.3g", fontsize=9)
        axes.bar_label(
            axes.bar(at + 0.2, dram, 0.38, color=palette.orange, label="from DRAM, modelled"), fmt="%.3g", fontsize=9
        )
        axes.axhline(least, color=palette.ink, ls=":", lw=1.2)
        axes.set(xticks=at, xticklabels=list(results), xlabel=label, ylabel="MiB", title=title)
        axes.grid(axis="x", visible=False)
    left.text(3.35, least + 0.07, "least possible", ha="right", fontsize=9)
    left.set_xlim(-0.6, 3.4)
    left.set_ylim(top=BY_TILE[64].requested_bytes / 2**20 * 1.1)
    left.legend(loc="upper right")
    right.set_ylim(top=max(t.requested_bytes for t in BY_GROUP.values()) / 2**20 * 1.25)
    right.legend(loc="upper right", ncols=2)
    show.figure(fig)

# %% [markdown]
# Two different savings, and they are paid for in different coin. A larger tile asks for less, and pays in registers: a
# 128 × 256 tile of float32 sums is 128 KiB, half of an SM's register file. Grouping asks for exactly the same bytes, and
# pays nothing; it only changes what the programs that run together can share. Eight programs need 9 strips in groups of 1
# or 8 rows, and 6 in groups of 2, 3 or 4. A group as tall as C is as bad as none.
#
# The model's cache may keep a line anywhere. A real one has sets: an address says into which of them a line may go. Write
# `ways=16`, an ordinary number, and run the cell again. With 3 rows or more in a group the gain is gone, though the cache
# is as large as before: rows of 512 bytes begin in only 8 of its 32 sets. More of this below, with the TLB.

# %% [markdown]
# ## Deep dive: banks
#
# Shared memory is 32 banks, each of which delivers one 4-byte word a clock. If the 32 lanes of a warp want words from 32
# different banks, they are served in one round, a **wavefront**. If two want different words of one bank, that takes
# two. Triton shows neither lanes nor banks, so here is a warp in NumPy: `threeloops/inner/warp.py`. It moves real values,
# and counts.
#
# A warp transposes a 32 × 32 tile through shared memory: rows in, columns out. Where the tile lies decides everything.

# %% tags=["demo"]
predict(
    "column_wavefronts",
    "Rows of 32 float32 values, stored one after another. How many wavefronts does it take to read one column?",
    unit="wavefronts",
    guess=None,
)

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.inner.machine_models.warp import padded, plain, swizzled, triton_swizzle, wavefronts
from threeloops.inner.machine_models.warp import transpose as warp_transpose

show.against_prediction(
    "column_wavefronts", wavefronts(plain(LANES, np.full(32, 5)) * 4, 4), unit="wavefronts", source="simulated"
)
PLACEMENTS = {"row after row": plain, "padded: 33 elements a row": padded, "swizzled: column XOR row": swizzled}
tile = np.random.default_rng(0).normal(size=(32, 32)).astype(np.float32)
fig, panels = figure(1, 3, width=12.5, height=4.4)
for axes, (name, place) in zip(panels, PLACEMENTS.items(), strict=True):
    result, counts = warp_transpose(tile, place)
    assert np.array_equal(result, tile.T)
    row, column = np.indices((32, 32))
    bank = (place(row.reshape(-1), column.reshape(-1)) % 32).reshape(32, 32)
    axes.imshow(bank, cmap="twilight", interpolation="nearest")
    axes.add_patch(Rectangle((4.5, -0.5), 1, 32, fill=False, edgecolor=palette.ink, lw=2))
    reading = wavefronts(place(LANES, np.full(32, 5)) * 4, 4)
    axes.set_title(f"{name}\na column: {reading} wavefront{'s' if reading > 1 else ''}", fontsize=11)
    axes.set(xlabel="column of the tile", xticks=[0, 8, 16, 24, 31], yticks=[0, 8, 16, 24, 31])
    axes.grid(visible=False)
panels[0].set_ylabel("row of the tile")
fig.suptitle(
    "Colour: the bank in which an element lies. The framed column is what 32 lanes read at once.",
    x=0.01,
    ha="left",
    fontsize=11,
)
show.figure(fig)

# %% [markdown]
# In the first picture a column has one colour: 32 lanes queue at one bank. Padding shifts each row by one bank, for one
# wasted column. The swizzle permutes columns by an XOR with the row: each column has all colours, and nothing is wasted.
#
# Compilers swizzle too. Here is the layout that Triton chose for the operands of an FP16 matmul on an A100, as it stands
# in the compiler's own intermediate code, and what our warp makes of it. Tensor cores fetch such a tile as rows of 16
# bytes, eight rows at a time (`ldmatrix`), so that is the access to count.

# %% tags=["demo"] jupyter={"source_hidden": true}
import re

A_META, B_META = (torch.empty(1024, 1024, dtype=torch.float16, device="meta") for _ in range(2))
(ampere,) = inspect(lambda: library_matmul(A_META, B_META), "sm_80")
layouts = sorted(
    set(re.findall(r"#ttg\.swizzled_shared<\{vec = (\d+), perPhase = (\d+), maxPhase = (\d+)", ampere.ttgir))
)
tile_rows, block_k = map(int, re.search(r"memdesc<(\d+)x(\d+)xf16, #shared", ampere.ttgir).groups())
rows = []
for vec, per_phase, max_phase in ((int(a), int(b), int(c)) for a, b, c in layouts):
    columns = block_k
    for name, place in (
        ("as compiled", triton_swizzle(vec, per_phase, max_phase, columns)),
        ("without the swizzle", triton_swizzle(1, 1, 1, columns)),
    ):
        eight_rows = place(np.arange(8), np.zeros(8, int)) * 2  # the 16-byte rows of one 8 × 8 block of FP16
        rows.append(
            [f"vec {vec}, perPhase {per_phase}, maxPhase {max_phase}", name, wavefronts(eight_rows // 16 * 16, 16)]
        )
show.table(rows, [f"layout of a tile of {tile_rows} × {block_k} FP16 values", "", "wavefronts for one 8 × 8 block"])

# %% [markdown]
# On Hopper, with tensor descriptors, the tensor memory accelerator writes the tile into shared memory in a swizzle of 32, 64
# or 128 bytes (`#ttg.nvmma_shared`), and `wgmma` reads it from there: operands need not enter registers.
#
# ## Deep dive: the other cache, the TLB
#
# An address is translated before it is fetched, page by page, and the translations have a cache of their own. The chase
# above visits a new page almost every time, so part of its last step is translation. To see it, chase the *same number
# of lines* three times: next to each other; one in every 64, which on a CPU is 4,096 bytes apart, one to a page; and one
# in every 65, 4,160 bytes apart, one to a page as well.

# %% tags=["demo"]
predict(
    "one_line_a_page",
    "4,096 lines, a quarter of a megabyte on a CPU. One in every 65 instead of next to each other: how many times longer does a load take on this machine?",
    unit="×",
    guess=None,
)

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.inner.machine_models.pointer_chase import latency_of_spread

try:
    LINES = [2**k for k in range(4, 13)]
    SPACINGS = {64: "one line in every 64", 65: "one line in every 65", 1: "lines next to each other"}
    curves = {
        spacing: [median(latency_of_spread(lines, spacing, repeats=5)) * 1e9 for lines in progress(LINES, name)]
        for spacing, name in SPACINGS.items()
    }
    show.against_prediction(
        "one_line_a_page", round(curves[65][-1] / curves[1][-1], 1), unit="×", source="measured here"
    )
    fig, axes = figure(width=8.5, height=3.6)
    for (spacing, name), shade in zip(
        SPACINGS.items(), (palette.vermillion, palette.orange, palette.blue), strict=True
    ):
        axes.plot(LINES, curves[spacing], "o-", color=shade, ms=4, label=name)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="lines visited",
        ylabel="ns a dependent load",
        title="The same lines, but in more pages",
    )
    axes.legend(loc="upper left")
    show.figure(fig)
except NotMeasurable as reason:
    print(f"not measured here: {reason}")

# %% [markdown]
# The same number of lines would fit the same caches. From the lowest curve to the middle one only the pages are more: that
# is translation, and it begins where the TLB ends. From the middle one to the highest the pages are as many. Addresses a
# power of two apart fall into the same few sets of every set-associative cache, and 16 lines can be too many for those.
# That is why a leading dimension of exactly 4,096 bytes can be slower than one of 4,160. On a GPU the pages are 2 MiB and
# the TLBs reach far, but not over 80 GiB, and a random gather over all of it pays.
#
# ## Deep dive: registers have banks too
#
# Each scheduler of an SM reads operands from a register file in banks, and a multiply-add needs three of them. Jia et al.
# hand-placed registers so that no two operands met in one bank, and gained 15% (claim mem-7). The compiler does this
# for you, and leaves a trace: the `.reuse` flag in the machine code says "keep this operand in the operand cache, the
# next instruction wants it too". Uniform registers (`UR`) hold what is the same for the whole warp, such as the base
# address of a tile, and live in a file of their own.

# %% tags=["demo"] jupyter={"source_hidden": true}
(ieee,) = inspect(lambda: library_matmul(A_META.float(), B_META.float(), input_precision="ieee"), "sm_80")
body = [line for line in ieee.sass.splitlines() if "FFMA" in line]
flagged = sum(".reuse" in line for line in body)
uniform = sum(bool(re.search(r"\bUR\d+", line)) for line in ieee.sass.splitlines())
print(
    f"FP32 matmul without tensor cores, sm_80: {len(body)} FFMA instructions, {flagged} with a .reuse flag; {uniform} instructions use a uniform register\n"
)
print(*[re.sub(r"/\*[0-9a-fx]+\*/", "", line).strip() for line in body[:6]], sep="\n")
audit(
    "mem-7",
    round(100 * flagged / max(len(body), 1), 1),
    "% of FFMA with .reuse",
    "compiled",
    "cannot be tested here",
    how="the gain needs machine code whose registers are placed by hand, and Triton emits none; the compiler's own answer, the .reuse flag, is counted in an FP32 matmul compiled for sm_80",
)

# %% [markdown]
# ## What the texts say, and what is so
#
# Seven more claims, each settled by a number.

# %% tags=["demo"] jupyter={"source_hidden": true}
a100 = accelerator("A100 SXM 80GB")
audit(
    "mem-1",
    h100.multiprocessors * h100.fp32_lanes,
    "FP32 lanes",
    "published",
    "corrected",
    how=f"{h100.multiprocessors} multiprocessors × {h100.fp32_lanes} lanes on the SXM5; 14,592 = 114 × 128 is the PCIe card",
)
shared_bandwidth = STEPS["shared memory and L1"][1]
audit(
    "mem-2",
    29,
    "clocks to shared memory",
    "published",
    "corrected",
    how=f"Luo et al. 2024 (arXiv:2402.13499), measured on an H100: not single digits. The bandwidth holds: 132 SMs × 128 bytes × 1.98 GHz are {shared_bandwidth / h100.memory_bandwidth:.1f} × the 3.35 TB/s of HBM",
)
audit(
    "mem-3",
    a100.caches.shared_memory_bytes / 1024,
    "KiB per multiprocessor (A100)",
    "published",
    "holds",
    how=f"164 KiB is the A100's, {h100.caches.shared_memory_bytes / 1024:.0f} KiB the H100's: both texts are right, about different GPUs; a single block may use {h100.caches.shared_memory_per_block_bytes / 1024:.0f} KiB",
)
audit(
    "mem-5",
    82,
    "clocks on Pascal",
    "published",
    "corrected",
    how="Jia et al. 2018 (arXiv:1804.06826), table of the memory hierarchy: 28 clocks on V100 and 82, not 84, on P100; neither GPU was at hand",
)
audit(
    "mem-8",
    round(h100.memory_bandwidth / h100.host_link_bandwidth, 1),
    "× slower than HBM",
    "model",
    "corrected",
    how=f"the 63 GB/s hold: 32 GT/s × 16 lanes × 128/130 / 8 = {h100.host_link_bandwidth / 1e9:.1f} GB/s each way. Two orders are 100 ×; an H100 has 53 ×, an H200 {accelerator('H200 SXM').memory_bandwidth / h100.host_link_bandwidth:.0f} ×",
)
audit(
    "mem-9",
    round(shared_bandwidth / 1e12, 1),
    "TB/s",
    "model",
    "corrected",
    how=f"132 × 128 bytes × 1.98 GHz; 19 TB/s is the A100: 108 × 128 × 1.41 GHz = {a100.multiprocessors * 128 * a100.clock_hz / 1e12:.1f}",
)
audit(
    "mem-10",
    round(h100.multiprocessors * h100.caches.shared_memory_bytes / 2**20, 1),
    "MiB",
    "model",
    "corrected",
    how="132 × 228 KiB; 33 MiB is 132 × 256 KiB, which counts the part that only L1 can use",
)

# %% [markdown]
# ## In your own words
#
# You profile a kernel on an H100. It moves 600 GB/s, a fifth of what a copy reaches, and does next to no arithmetic.
# Name three different reasons from this lab that could explain it. For each: which number would tell you that it is this
# one and not the others, and what would you change?

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# *Your answer. A paragraph for each reason.*

# %% [markdown]
# ## What to remember
#
# - **Latency is paid for with bytes in flight**: bandwidth × latency of them, 7 kB a multiprocessor on an H100. Too few
#   warps, or too narrow accesses, and the memory idles.
# - Triton chooses the width of an access: enough elements a thread, and proof of alignment. One odd length takes it away.
# - The memory answers in sectors of 32 bytes. Count **sectors × 32 against bytes asked for**; the gap is waste.
# - Tiles divide the traffic by their side, rounded up at the edges. The order of the tiles decides what L2 can keep.
# - Bytes *asked for* and bytes *from DRAM* are different columns. A report that has only one of them is not finished.
# - A limit you did not think of, such as the TLB, the sets or the banks, is usually the one that you meet.
#
# Next: `03_triton_fusion`. The fastest bytes are those that never leave the chip.
