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
#     minutes: 90
#     withholds: [threeloops.hardware.capability, threeloops.hardware.probe, threeloops.inner.roofline, threeloops.inner.timing]
# ---

# %% [markdown]
# # Can this machine teach me?
#
# Three loops turn inside every AI system, one within the other. In the **inner loop** one GPU moves bytes and
# multiplies numbers. In the **training loop** many GPUs act as one. In the **product loop** a trained model
# answers people who are waiting. Each loop multiplies what the one inside it wastes, so this course starts in
# the middle and works outwards.
#
# You may not have a GPU. Most of what makes a GPU fast or slow can be counted, simulated or read from compiled
# code on any laptop, and this course gives all of its points for that. So the first question is what *your*
# machine can do, and the second is whether you can predict what it will do. By the end of this lab you will
# have predicted the time of a vector operation, on machines you have never touched, within a factor of two.

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from threeloops.lab import CheckFailed, check, explore, figure, hint, palette, predict, show

# %% tags=["demo"] jupyter={"source_hidden": true}
plot, axes = figure(width=9, height=4.2)
for radius, colour, name, turns in (
    (1, palette.vermillion, "inner loop", "one GPU moves bytes and multiplies   ·   labs 01–07"),
    (2, palette.blue, "training loop", "many GPUs act as one   ·   labs 08–14"),
    (3, palette.green, "product loop", "a model answers under load   ·   labs 15–19"),
):
    angle = np.radians(np.linspace(60, 385, 300))
    axes.plot(radius * np.cos(angle), radius * np.sin(angle), color=colour, lw=9, solid_capstyle="butt")
    outward = np.array([np.cos(angle[-1]), np.sin(angle[-1])])
    onward = np.array([-outward[1], outward[0]])
    tip = [radius * outward + step for step in (0.28 * outward, 0.5 * onward, -0.28 * outward)]
    axes.fill(*np.transpose(tip), color=colour)
    axes.text(4.2, 2.3 - 2.1 * (radius - 1), name, color=colour, weight="bold", size=15, va="center")
    axes.text(4.2, 1.7 - 2.1 * (radius - 1), turns, size=11, va="center")
axes.text(0, 0, "a·x + y", ha="center", va="center", size=12, family="monospace")
axes.set(xlim=(-3.4, 10.6), ylim=(-3.3, 3.3), aspect="equal")
axes.axis("off")
show.figure(plot)

# %% [markdown]
# ## How to work here
#
# A notebook of this course has five kinds of cells.
#
# | cell | what you do |
# |---|---|
# | **setup** | run it, and read it: it holds the records and data that the exercises speak of |
# | **exercise** | replace `raise NotImplementedError()` by your answer |
# | **check** | run it; when it fails it names the quantity that is wrong, by how much, and what usually causes it |
# | **predict** | type a number at `guess=` *before* you run what follows; nobody grades it, and it is how you learn |
# | **demonstration** | pictures and live measurements on your own machine; the code of a mere picture is folded away above it |
#
# Hints open one at a time: stop reading as soon as you can go on. The exercises do not build on one another, so
# a wrong answer costs its own points and no others.
#
# From a terminal: `threeloops doctor` reports on this machine, `threeloops start 01` makes your copy of the next
# lab, `threeloops check 00` runs a lab's checks without the browser, and `threeloops update 00` brings in a newer
# release and keeps what you wrote.

# %% [markdown]
# ## 1 · What is here?
#
# The course stands on four capabilities.
#
# - The **interpreter** runs GPU kernels written in Triton on the CPU: what they compute, not how fast.
# - The **compiler** turns the same kernels into GPU machine code that you can read, with no GPU present.
# - **Ranks** are processes that exchange tensors through a network library, as the GPUs of a cluster do.
# - A **GPU** makes the measured times real.
#
# None of the four is a yes-or-no question about hardware. A GPU can be in the machine and hidden from your process.
# It can be visible and too old, or too new, for the software. So a good report keeps three things apart that a bare
# `torch.cuda.is_available()` throws together: *absent*, *hidden* and *unsupported*. Each has a different cure.
#
# Here is what the library finds on the machine that ran this page.

# %% tags=["demo"]
from threeloops.hardware.capability import capabilities, probe

this_machine = probe()
report = capabilities(this_machine)
show.table(
    [(name, "yes" if found.available else "no", found.detail) for name, found in report.items()],
    header=("capability", "here", "why"),
)

# %% [markdown]
# ### Who sees which GPU
#
# The environment variable `CUDA_VISIBLE_DEVICES` decides which GPUs a process may use. Schedulers set it, containers
# set it, and people mistype it. CUDA reads it from left to right:
#
# | value | visible |
# |---|---|
# | not set | every GPU, in the machine's order |
# | an empty string | none |
# | `2,0` | GPU 2, which the process will call `cuda:0`, then GPU 0, as `cuda:1` |
# | `0,2,-1,1` | GPUs 0 and 2: the first entry that is not the number of a GPU ends the list, silently |
# | `0,0` | none: a GPU listed twice, before the list has ended, hides all of them |
#
# (The first four are in NVIDIA's CUDA Programming Guide, under *CUDA Environment Variables*; the last is how PyTorch
# reads the variable.)
#
# ### Which code a GPU can run
#
# Every NVIDIA GPU has a *compute capability*, a pair such as (9, 0). A build of PyTorch carries machine code for some
# of them, and says so in a list: `sm_90` is machine code for (9, 0), and runs on any (9, y) with y ≥ 0, but never
# on (10, 0). `compute_90` is PTX, a portable form that the driver compiles on the spot for (9, 0) *or anything newer*.
# So a GPU may be too old for a build, and it may be too new. The function `runs_on` below holds that rule.


# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_probe", "locked": true, "schema_version": 3, "solution": false, "task": false}
@dataclass(frozen=True)
class Probe:
    """What was found on a machine. A version is None where the package is not installed."""

    torch: str | None
    triton: str | None
    numpy: str | None
    cxx: bool  # a C++ compiler
    gloo: bool  # torch's network library for CPUs
    cores: int
    archs: tuple[str, ...]  # the GPU code in this build of torch; empty when it was built without CUDA
    gpus: tuple[tuple[int, int], ...]  # compute capabilities: GPU 0, GPU 1, …
    cuda_visible_devices: str | None  # None where the variable is not set


@dataclass(frozen=True)
class Report:
    """What such a machine can do."""

    interpreter: bool
    compiler: bool
    ranks: int
    devices: tuple[int, ...]
    gpu: str


def runs_on(arch: str, capability: tuple[int, int]) -> bool:
    """Whether code built for `arch`, such as "sm_90" or "compute_120", runs on such a GPU."""
    kind, digits = arch.split("_")
    built_for = (int(digits[:-1]), int(digits[-1]))  # sm_100 is (10, 0)
    if kind == "compute":
        return capability >= built_for
    return capability[0] == built_for[0] and capability >= built_for


# %% [markdown]
# ### Exercise 1 (25 points)
#
# `capability_report(probe: Probe) -> Report`: what can a machine with this record do?
#
# | field of `Report` | value |
# |---|---|
# | `interpreter` | `True` when torch, triton and numpy are all installed |
# | `compiler` | `True` when triton and a C++ compiler are both there |
# | `ranks` | how many ranks to start: 0 without gloo; otherwise one a core, but never fewer than 2 (a single rank has nobody to talk to) nor more than 4 |
# | `devices` | the numbers of the GPUs that this process can use: visible, *and* able to run at least one entry of `archs`; a tuple in the order in which `CUDA_VISIBLE_DEVICES` lists them |
# | `gpu` | `"absent"` when the machine has none, `"hidden"` when it has some and none is visible, `"unsupported"` when some are visible and none is in `devices`, else `"ready"` |
#
# The entries of `CUDA_VISIBLE_DEVICES` are separated by commas and may have spaces around them; an entry that is not
# a whole number is not the number of a GPU. The function looks at its argument only, never at the machine it runs on:
# that is what makes it testable.


# %% nbgrader={"grade": false, "grade_id": "capability_report", "locked": false, "schema_version": 3, "solution": true, "task": false}
def capability_report(probe: Probe) -> Report:
    """What a machine with this record can do."""
    ### BEGIN SOLUTION
    if probe.cuda_visible_devices is None:
        visible = list(range(len(probe.gpus)))
    else:
        visible = []
        for entry in probe.cuda_visible_devices.split(","):
            try:
                device = int(entry)
            except ValueError:
                break
            if not 0 <= device < len(probe.gpus):
                break
            if device in visible:
                visible = []
                break
            visible.append(device)
    devices = tuple(i for i in visible if any(runs_on(arch, probe.gpus[i]) for arch in probe.archs))
    if not probe.gpus:
        gpu = "absent"
    elif not visible:
        gpu = "hidden"
    elif not devices:
        gpu = "unsupported"
    else:
        gpu = "ready"
    return Report(
        interpreter=None not in (probe.torch, probe.triton, probe.numpy),
        compiler=probe.triton is not None and probe.cxx,
        ranks=min(4, max(2, probe.cores)) if probe.gloo else 0,
        devices=devices,
        gpu=gpu,
    )
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "capability_report",
    "Build the list of visible GPUs first. The rest follows from three lists: all, visible, usable.",
    "`None` and an empty string are both false in Python and mean opposite things to CUDA. "
    "And -1 is a number that Python accepts as an index.",
    "Go through the entries in order; stop at the first that is not in `range(len(probe.gpus))`; "
    "keep a GPU in `devices` when `any(runs_on(arch, probe.gpus[i]) for arch in probe.archs)`.",
)

# %% nbgrader={"grade": true, "grade_id": "capability_report_test", "locked": true, "points": 25, "schema_version": 3, "solution": false, "task": false}
from dataclasses import replace

LAPTOP = Probe(
    torch="2.13.0+cpu",
    triton="3.7.1",
    numpy="2.4.6",
    cxx=True,
    gloo=True,
    cores=8,
    archs=(),
    gpus=(),
    cuda_visible_devices=None,
)
SERVER = replace(
    LAPTOP,
    torch="2.13.0",
    archs=("sm_75", "sm_80", "sm_90", "sm_100", "sm_120"),
    gpus=((9, 0), (8, 0), (8, 0), (8, 0)),
)


def expect(machine, field, expected, why, **changes):
    machine = replace(machine, **changes)
    actual = getattr(capability_report(machine), field)
    actual = tuple(actual) if field == "devices" else actual
    gpus = ", ".join(map(str, machine.gpus)) or "none"
    gpus = f"GPUs {gpus} and CUDA_VISIBLE_DEVICES={machine.cuda_visible_devices!r}"
    versions = f"torch {machine.torch}, triton {machine.triton}, numpy {machine.numpy}, cxx {machine.cxx}"
    facts = {
        "interpreter": versions,
        "compiler": versions,
        "ranks": f"{machine.cores} cores, gloo {machine.gloo}",
        "devices": gpus,
        "gpu": gpus,
    }
    check.equal(actual, expected, what=f"{field} with {facts[field]}", hint=why)


def shows(variable, devices, why):
    expect(SERVER, "devices", devices, why, cuda_visible_devices=variable)
    expect(SERVER, "gpu", "ready" if devices else "hidden", why, cuda_visible_devices=variable)


with check("capability_report", "the report of machines that are not here"):
    expect(LAPTOP, "interpreter", True, "torch, triton and numpy are all it needs")
    expect(LAPTOP, "compiler", True, "triton and a C++ compiler are there; it needs no GPU")
    expect(LAPTOP, "ranks", 4, "eight cores, but never more than 4 ranks")
    expect(LAPTOP, "gpu", "absent", "the machine has no GPU at all: nothing is hidden")
    shows(None, (0, 1, 2, 3), "the variable is not set, so all GPUs are visible")
    shows("2,0", (2, 0), "the order of the list is the order of the devices")
    shows("", (), "an empty string shows no GPU; only a missing variable shows all")
    expect(SERVER, "gpu", "unsupported", "no entry of archs runs on a Volta GPU", gpus=((7, 0),))
    ### BEGIN HIDDEN TESTS
    expect(LAPTOP, "interpreter", False, "without triton there are no kernels", triton=None)
    expect(LAPTOP, "interpreter", False, "the interpreter computes with numpy", numpy=None)
    expect(LAPTOP, "interpreter", False, "without torch there are no tensors", torch=None)
    expect(LAPTOP, "compiler", False, "without triton nothing compiles kernels", triton=None)
    expect(LAPTOP, "compiler", False, "half of the compiler is missing", cxx=False)
    expect(LAPTOP, "compiler", True, "the table does not ask for torch here", torch=None)
    expect(LAPTOP, "ranks", 2, "a single rank has nobody to talk to", cores=1)
    expect(LAPTOP, "ranks", 3, "one rank a core between 2 and 4", cores=3)
    expect(LAPTOP, "ranks", 0, "without gloo ranks cannot talk", gloo=False)
    expect(LAPTOP, "gpu", "unsupported", "a CPU build holds no GPU code", gpus=((9, 0),))
    expect(SERVER, "gpu", "absent", "a CUDA build puts no GPU into the machine", gpus=())
    expect(SERVER, "gpu", "absent", "there is nothing to hide", gpus=(), cuda_visible_devices="")

    stop = "an entry that names no GPU hides itself and all that follow it"
    shows("0,2,-1,1", (0, 2), stop)
    shows("3,7,1", (3,), stop)
    shows("1,none,0", (1,), stop)
    shows("1,,0", (1,), stop)
    shows("-1", (), "-1 is not the last GPU: a negative number names none")
    shows(" 1, 3", (1, 3), "spaces around an entry do not matter")
    shows("1,0,1", (), "a GPU listed twice hides all of them")

    hopper = ("sm_80", "sm_90")
    portable = (*hopper, "compute_90")
    blackwell = ((10, 0),)
    too_new = "machine code for sm_90 does not run on the newer (10, 0)"
    expect(SERVER, "gpu", "unsupported", too_new, archs=hopper, gpus=blackwell)
    expect(SERVER, "gpu", "ready", "PTX runs on anything newer", archs=portable, gpus=blackwell)
    expect(SERVER, "gpu", "ready", "sm_80 runs on a higher minor version", archs=hopper, gpus=((8, 9),))
    mixed = replace(SERVER, gpus=((7, 0), (9, 0), (6, 1), (8, 6)))
    expect(mixed, "devices", (1, 3), "an unsupported GPU keeps its number")
    expect(mixed, "gpu", "ready", "one usable GPU is enough")
    expect(mixed, "gpu", "unsupported", "the good ones are hidden", cuda_visible_devices="2,0")

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
        count = int(rng.integers(1, 6))
        variable = ",".join(str(i) for i in rng.integers(-1, 7, size=int(rng.integers(1, 5))))
        machine = replace(SERVER, gpus=((8, 0),) * count, cuda_visible_devices=variable)
        expect(machine, "devices", oracle(variable, count), f"from left to right, {stop}")
    ### END HIDDEN TESTS

# %% [markdown]
# ## 2 · What does one line cost?
#
# Every question about speed begins with a count. How many bytes must move between memory and the processor, and how
# many arithmetic operations must be done? Take the simplest useful loop there is, SAXPY:
#
# ```
# for i in range(n):
#     y[i] = a * x[i] + y[i]
# ```
#
# The name is *single-precision a times x plus y*; people say it for every precision. Count the **least traffic**: each
# element that is needed is read once, each result is written once, and `a` stays in a register. Count a multiply
# and an add as **two FLOPs**, even where the hardware fuses them into one instruction: that is how the peak rates
# on data sheets are counted too.
#
# FLOPs divided by bytes is the **arithmetic intensity**. It is a property of the algorithm, not of a machine, and the
# next lab shows that it decides almost everything. Before you count: how many FLOPs does SAXPY do for each byte
# it moves in float32?

# %% tags=["demo"]
predict(
    "saxpy_intensity",
    question="SAXPY in float32: how many FLOPs for each byte moved?",
    unit="FLOP/byte",
    guess=None,
)

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_work", "locked": true, "schema_version": 3, "solution": false, "task": false}
ELEMENT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class Work:
    """What an operation must do at least: bytes moved, FLOPs, and FLOPs per byte."""

    bytes: int
    flops: int
    intensity: float


# %% [markdown]
# ### Exercise 2 (25 points)
#
# `saxpy_work(n: int, dtype: str) -> Work`: the least work of SAXPY on two vectors of `n` elements.
#
# | field of `Work` | unit | meaning |
# |---|---|---|
# | `bytes` | bytes, an exact `int` | what must be read and written |
# | `flops` | FLOPs, an exact `int` | multiplies and adds |
# | `intensity` | FLOPs per byte | their quotient; 0.0 for empty vectors, which move nothing and compute nothing |
#
# `dtype` is a key of `ELEMENT_BYTES`; any other raises a `ValueError` whose message contains it. A negative `n` raises
# a `ValueError` whose message contains its value.


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


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "saxpy_work",
    "Write down every array access of one step of the loop. There are three.",
    "Read x, read y, write y: three elements an index. One multiply and one add: two FLOPs.",
    "`bytes = 3 * n * ELEMENT_BYTES[dtype]`, `flops = 2 * n`; look at `n = 0` before you divide.",
)

# %% nbgrader={"grade": true, "grade_id": "saxpy_work_test", "locked": true, "points": 25, "schema_version": 3, "solution": false, "task": false}
with check("saxpy_work", "bytes and FLOPs of SAXPY"):
    work = saxpy_work(1000, "float32")
    check.true(type(work).__name__ == "Work", f"saxpy_work(1000, 'float32') returned {work!r}: expected a Work")
    streams = "three streams: x is read, y is read, y is written"
    pair = "a multiply and an add are two FLOPs, fused or not"
    check.equal(work.bytes, 12_000, what="bytes of 1000 float32 elements", hint=streams)
    check.equal(work.flops, 2000, what="flops of 1000 elements", hint=pair)
    check.close(work.intensity, 1 / 6, what="intensity", hint="FLOPs per byte, not per element")
    check.equal(saxpy_work(10, "float64").bytes, 240, what="bytes of 10 float64 elements", hint=streams)
    ### BEGIN HIDDEN TESTS
    for dtype, size in (("float16", 2), ("bfloat16", 2), ("float32", 4), ("float64", 8)):
        for n in (1, 127, 129, 65_537, 3_000_000_019):
            work, named = saxpy_work(n, dtype), f"of {n:,} {dtype} elements"
            moved = sum(n * size for _ in ("read x", "read y", "write y"))
            check.equal(work.bytes, moved, what=f"bytes {named}", hint="exact at any size")
            check.equal(work.flops, n + n, what=f"flops {named}", hint="the dtype does not matter")
            check.close(work.intensity, 2 / (3 * size), what=f"intensity {named}", hint="n cancels")
    empty = saxpy_work(0, "float32")
    nothing = "empty vectors move and compute nothing, and 0.0 is their intensity"
    check.equal((empty.bytes, empty.flops), (0, 0), what="bytes and flops of n = 0", hint=nothing)
    check.close(empty.intensity, 0.0, what="intensity of n = 0", hint=nothing)
    check.raises(ValueError, saxpy_work, 10, "float8", names="float8")
    check.raises(ValueError, saxpy_work, 10, "int32", names="int32")
    check.raises(ValueError, saxpy_work, -1, "float16", names="-1")
    ### END HIDDEN TESTS

# %% tags=["demo"]
show.against_prediction("saxpy_intensity", measured=2 / 12, unit="FLOP/byte", source="model")

# %% [markdown]
# One FLOP for every six bytes. Every machine that people train on can do far more arithmetic than that in the time it
# takes to move six bytes, so SAXPY keeps the arithmetic units idle most of the time, and the only number that matters
# for its speed is bandwidth. Keep that in mind for section 4.

# %% [markdown]
# ## 3 · A check fails
#
# A benchmark has run a copy loop four times. Each run moved 24 MB. The first was slow because the memory was touched for
# the first time, so it counts as warm-up and is left out. The other three took 1 ms, 1 ms and 4 ms.
#
# **Predict first.** What rate, in GB/s, did the machine sustain over those three runs?

# %% tags=["demo"]
predict(
    "sustained",
    question="Three runs of 24 MB took 1, 1 and 4 ms: what rate was sustained?",
    unit="GB/s",
    guess=None,
)

# %% [markdown]
# A colleague has written the function that turns such runs into one number. It reads well, it has a docstring, and it is
# wrong.

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_throughput", "locked": true, "schema_version": 3, "solution": false, "task": false}
RUN_BYTES = [24e6, 24e6, 24e6, 24e6]
RUN_SECONDS = [30e-3, 1e-3, 1e-3, 4e-3]


def reported_throughput(bytes_moved, seconds, warmup):
    """Bytes per second over all runs except the first `warmup`. This is the colleague's version."""
    rates = np.divide(bytes_moved, seconds)
    return float(rates[warmup:].mean())


# %% [markdown]
# Run its checks. The first passes. Read what the second one says: the quantity, the value, what was expected, and after
# *usually* the most common cause.

# %% tags=["demo"]
try:
    with check("colleague", "the colleague's version"):
        check.close(
            reported_throughput([24e6] * 4, [1e-3] * 4, 1) / 1e9,
            24.0,
            unit="GB/s",
            what="throughput of four equal runs",
        )
        check.close(
            reported_throughput(RUN_BYTES, RUN_SECONDS, 1) / 1e9,
            12.0,
            unit="GB/s",
            what="throughput of the three timed runs",
            hint="a mean of rates weighs a short run as much as a long one",
        )
except CheckFailed as failure:
    print(failure)

# %% [markdown]
# The picture shows why. A run is a rectangle: its width is the time it took, its height is its rate, and so its **area is
# the bytes** it moved. The sustained rate is the height of one rectangle with the same area and the same total width. The
# mean of the heights ignores the widths. Between runs of equal area it always flatters: the fast ones are the short ones.

# %% tags=["demo"] jupyter={"source_hidden": true}
plot, axes = figure(height=3.4)
left = 0.0
for moved, elapsed in zip(RUN_BYTES[1:], RUN_SECONDS[1:], strict=True):
    width, height = elapsed * 1e3, moved / elapsed / 1e9
    axes.bar(left, height, width=width, align="edge", color=palette.sky, edgecolor="white", lw=2)
    axes.text(left + elapsed * 500, 0.8, f"{moved / 1e6:.0f} MB", ha="center")
    left += elapsed * 1e3
axes.axhline(reported_throughput(RUN_BYTES, RUN_SECONDS, 1) / 1e9, color=palette.vermillion, ls="--")
axes.axhline(sum(RUN_BYTES[1:]) / sum(RUN_SECONDS[1:]) / 1e9, color=palette.ink)
axes.text(6.1, 18.3, "mean of the heights", color=palette.vermillion, va="bottom")
axes.text(6.1, 12.3, "area ÷ width", color=palette.ink, va="bottom")
axes.set(xlabel="time (ms)", ylabel="rate (GB/s)", xlim=(0, 7.8), ylim=(0, 27))
axes.set_title("Three runs: area is bytes")
show.figure(plot)

# %% tags=["demo"]
show.against_prediction("sustained", measured=72e6 / 6e-3 / 1e9, unit="GB/s", source="model")

# %% [markdown]
# ### Exercise 3 (25 points)
#
# `throughput(bytes_moved: list[float], seconds: list[float], warmup: int) -> float`: the repaired function. It returns the
# sustained rate, in bytes per second, of all runs except the first `warmup`: all their bytes over all their time.
# Runs may move different amounts.
#
# A benchmark's last duty is to refuse nonsense. Raise a `ValueError` when
#
# | situation | the message contains |
# |---|---|
# | the two lists differ in length | both lengths |
# | a duration is zero or negative, in a warm-up run too | its place, as `seconds[2]` |
# | no run is left after the warm-up | the warm-up, as `warmup = 3` |


# %% nbgrader={"grade": false, "grade_id": "repaired_throughput", "locked": false, "schema_version": 3, "solution": true, "task": false}
def throughput(bytes_moved: list[float], seconds: list[float], warmup: int) -> float:
    """Sustained bytes per second of all runs except the first `warmup`."""
    ### BEGIN SOLUTION
    if len(bytes_moved) != len(seconds):
        lengths = f"{len(bytes_moved)} and {len(seconds)} long"
        raise ValueError(f"bytes_moved and seconds are {lengths}: expected one of each a run")
    for i, elapsed in enumerate(seconds):
        if elapsed <= 0:
            raise ValueError(f"seconds[{i}] = {elapsed:g}: expected a positive time; is the clock too coarse?")
    if warmup >= len(seconds):
        raise ValueError(f"warmup = {warmup} of {len(seconds)} runs: none is left to time; run more often")
    return sum(bytes_moved[warmup:]) / sum(seconds[warmup:])
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "repaired_throughput",
    "Which single rate, held for the whole time, would have moved the same bytes?",
    "Total bytes over total time. Slice both lists: `bytes_moved[warmup:]`, `seconds[warmup:]`.",
    "`zip` stops at the shorter list without a word, and an empty list has no rate: "
    "check the lists before you compute.",
)

# %% nbgrader={"grade": true, "grade_id": "repaired_throughput_test", "locked": true, "points": 25, "schema_version": 3, "solution": false, "task": false}
with check("repaired_throughput", "bytes over time"):
    left_out = "the warm-up is left out of the bytes and of the time; the rate is in bytes per second"
    weighs = "a mean of rates weighs a short run as much as a long one"
    equal, timed = "throughput of three equal runs after a slow one", "throughput of the three timed runs"
    slow_start = [30e-3, 1e-3, 1e-3, 1e-3]
    check.close(throughput(RUN_BYTES, slow_start, 1) / 1e9, 24.0, unit="GB/s", what=equal, hint=left_out)
    check.close(throughput(RUN_BYTES, RUN_SECONDS, 1) / 1e9, 12.0, unit="GB/s", what=timed, hint=weighs)
    check.raises(ValueError, throughput, [1e6, 1e6], [1e-3, 0.0], 0, names="seconds[1]")
    check.raises(ValueError, throughput, [1e6] * 3, [1e-3] * 3, 3, names="warmup = 3")
    ### BEGIN HIDDEN TESTS
    unequal = "throughput of a run of 1 MB and one of 99 MB in GB/s"
    total = "runs of different size need total over total: not even the harmonic mean of rates will do"
    check.close(throughput([1e6, 99e6], [1e-3, 9e-3], 0) / 1e9, 10.0, what=unequal, hint=total)
    check.close(throughput([5e6], [2e-3], 0) / 1e9, 2.5, what="throughput of one run in GB/s")
    for seed in range(6):
        rng = check.rng(seed)
        count, warmup = 7 + seed, seed % 4
        moved = [float(b) for b in rng.uniform(1e3, 1e9, count)]
        elapsed = [float(s) + 1e-7 for s in rng.exponential(1e-3, count)]
        area = width = 0.0
        for i in range(warmup, count):
            area, width = area + moved[i], width + elapsed[i]
        named = f"throughput of {count} irregular runs, {warmup} of them warm-up, in byte/s"
        check.close(throughput(moved, elapsed, warmup), area / width, what=named, hint=left_out)
    check.raises(ValueError, throughput, [1e6] * 3, [1e-3] * 4, 1, names="3")
    check.raises(ValueError, throughput, [1e6] * 5, [1e-3] * 2, 0, names="5")
    check.raises(ValueError, throughput, [1e6] * 3, [1e-3, 1e-3, -1e-3], 0, names="seconds[2]")
    check.raises(ValueError, throughput, [1e6] * 3, [0.0, 1e-3, 1e-3], 1, names="seconds[0]")
    check.raises(ValueError, throughput, [1e6] * 3, [1e-3] * 3, 5, names="warmup = 5")
    check.raises(ValueError, throughput, [], [], 0, names="warmup = 0")
    ### END HIDDEN TESTS

# %% [markdown]
# ## 4 · A first prediction
#
# You can now count work, and you know how to average a measurement. Put them together: how long will SAXPY take?
#
# Three facts about a machine are enough for a first answer.
#
# 1. Every call costs something before the first byte moves: Python, the dispatcher, on a GPU the launch. Call it the
#    **overhead**. On tiny vectors it is all there is.
# 2. Bytes then stream at the **bandwidth** of the memory that holds them.
# 3. There are several such memories. A cache is faster than main memory as long as everything the loop touches, its
#    **working set**, fits inside. SAXPY touches two vectors, so its working set is two vectors long, although its
#    traffic is three.
#
# In one line: *the call takes its overhead, and then its bytes at the bandwidth of the smallest level that holds its
# working set.*
#
# One place is outside this model. When a working set is a little larger than a cache, part of it still fits, and
# neither bandwidth is right. Such sizes are **on a cliff**, and no prediction is graded there.


# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_machine", "locked": true, "schema_version": 3, "solution": false, "task": false}
@dataclass(frozen=True)
class Level:
    """One memory: what a loop can count on, in bytes, and how fast it streams, in bytes per second."""

    capacity: float
    bandwidth: float


@dataclass(frozen=True)
class Machine:
    """A machine for a loop over vectors. `levels` go from small to large; the last holds anything."""

    name: str
    overhead: float  # seconds a call
    levels: tuple[Level, ...]


def on_a_cliff(n, dtype, machine):
    """Whether the working set is one to two times as large as a cache: partly inside, partly out."""
    working_set = 2 * n * ELEMENT_BYTES[dtype]
    return any(level.capacity < working_set <= 2 * level.capacity for level in machine.levels)


# %% [markdown]
# The course has recorded SAXPY on one core of a small cloud machine, at sizes from one element to 67 million. The next
# cell holds the code that recorded it, and turns a part of the recording into the facts above. The bandwidths come from
# another operation: scaling a vector in place, `y[i] = a * y[i]`, which reads and writes every element exactly once.
# You need not read the cell to solve the exercise.


# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_recording", "locked": true, "schema_version": 3, "solution": false, "task": false}
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

# %% tags=["demo"]
show.table(
    [
        ("overhead of a call", f"{RECORDED.overhead * 1e6:.2f} µs"),
        ("usable cache", f"{RECORDED.levels[0].capacity / 2**20:.0f} MiB"),
        ("bandwidth in cache", f"{RECORDED.levels[0].bandwidth / 1e9:.0f} GB/s"),
        ("bandwidth of memory", f"{RECORDED.levels[1].bandwidth / 1e9:.0f} GB/s"),
    ],
    header=("fact", "recorded"),
)

# %% [markdown]
# ### Exercise 4 (25 points)
#
# `predict_seconds(n: int, dtype: str, machine: Machine) -> float`: your prediction, in seconds, of one SAXPY call on two
# vectors of `n` elements.
#
# | argument | meaning |
# |---|---|
# | `n` | number of elements, 0 or more |
# | `dtype` | a key of `ELEMENT_BYTES` |
# | `machine` | a `Machine` with one level or several |
#
# A working set of exactly a level's capacity still fits. The prediction is graded against recorded times, and on synthetic
# machines with other levels and other overheads, in every dtype. It is right when it is within a **factor of two** of the
# median, either way, at every size that is not on a cliff.


# %% nbgrader={"grade": false, "grade_id": "first_prediction", "locked": false, "schema_version": 3, "solution": true, "task": false}
def predict_seconds(n: int, dtype: str, machine: Machine) -> float:
    """Predicted seconds of one SAXPY call on `n` elements."""
    ### BEGIN SOLUTION
    vector = n * ELEMENT_BYTES[dtype]
    level = next(level for level in machine.levels if 2 * vector <= level.capacity)
    return machine.overhead + 3 * vector / level.bandwidth
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "first_prediction",
    "Two amounts matter and they differ: the bytes touched (which level?) and moved (how long?).",
    "Go through `machine.levels` and take the first whose capacity is at least `2 * n * size`.",
    "`machine.overhead + 3 * n * ELEMENT_BYTES[dtype] / level.bandwidth`",
)


# %% nbgrader={"grade": true, "grade_id": "first_prediction_test", "locked": true, "points": 25, "schema_version": 3, "solution": false, "task": false}
def within_a_factor_of_two(n, dtype, machine, seconds, why=""):
    predicted = predict_seconds(n, dtype, machine)
    check.true(predicted is not None, "predict_seconds returned None: the function ends without `return`")
    factor = max(predicted / seconds, seconds / predicted) if predicted > 0 else float("inf")
    card = (
        f"quantity   SAXPY of {n:,} {dtype} elements on {machine.name}",
        f"value      {predicted:.3g} s",
        f"expected   {seconds:.3g} s, or at most a factor of 2 from it",
        f"difference a factor of {factor:,.3g}",
        f"usually: {why or likely_cause(n, dtype, machine, predicted, seconds)}",
    )
    check.true(seconds / 2 <= predicted <= seconds * 2, "\n  ".join(card))


def likely_cause(n, dtype, machine, predicted, seconds):
    if predicted > 100 * seconds:
        return "the answer is in seconds, not in a smaller unit"
    if predicted > seconds:
        return "vectors that fit into the cache stream at its bandwidth, not at the memory's"
    if seconds < 2 * machine.overhead:
        return "on tiny vectors the overhead of the call is all there is"
    if 2 * n * ELEMENT_BYTES[dtype] > machine.levels[0].capacity:
        return "vectors that do not fit into the cache stream at the memory's bandwidth, in three streams"
    return "three streams of bytes at the bandwidth of the level: x is read, y is read, y is written"


with check("first_prediction", "a time within a factor of two"):
    for sample in SAXPY:
        n, dtype = sample["n"], sample["dtype"]
        if not on_a_cliff(n, dtype, RECORDED):
            within_a_factor_of_two(n, dtype, RECORDED, statistics.median(sample["seconds"]))
    ### BEGIN HIDDEN TESTS
    # medians of the same recording session in float64, in seconds
    FLOAT64_SECONDS = {
        1: 1.14e-6,
        100: 1.17e-6,
        3_000: 1.53e-6,
        40_000: 6.12e-6,
        300_001: 55.9e-6,
        900_000: 175e-6,
        4_000_000: 1.80e-3,
        9_000_001: 4.49e-3,
        33_554_432: 16.6e-3,
    }
    for n, seconds in FLOAT64_SECONDS.items():
        if not on_a_cliff(n, "float64", RECORDED):
            within_a_factor_of_two(n, "float64", RECORDED, seconds, "a float64 element has 8 bytes")

    # synthetic machines, made for this test: one flat memory, and a cache hierarchy of three levels
    INFINITE = float("inf")
    LEVELS = (Level(2**20, 400e9), Level(24 * 2**20, 80e9), Level(INFINITE, 16e9))
    FLAT = Machine("a synthetic machine of 1 level", 7e-6, (Level(INFINITE, 3e12),))
    DEEP = Machine("a synthetic machine of 3 levels", 0.5e-6, LEVELS)

    def synthetic_seconds(n, size, machine, rng):
        room = [level for level in machine.levels if n * size * 2 <= level.capacity]
        streamed = sum(n * size / room[0].bandwidth for _ in ("read x", "read y", "write y"))
        return (machine.overhead + streamed) * float(rng.uniform(0.8, 1.25))

    for machine in (FLAT, DEEP):
        for seed, n in enumerate((1, 127, 4_097, 99_999, 500_001, 20_000_003, 1_000_000_007)):
            for dtype, size in (("float16", 2), ("float32", 4), ("float64", 8)):
                if not on_a_cliff(n, dtype, machine):
                    seconds = synthetic_seconds(n, size, machine, check.rng(seed))
                    within_a_factor_of_two(n, dtype, machine, seconds, "the smallest level that holds both")
    within_a_factor_of_two(0, "float32", DEEP, DEEP.overhead, "an empty call still costs its overhead")
    full, exactly = 2**20 // 8, synthetic_seconds(2**20 // 8, 4, DEEP, check.rng(0))
    within_a_factor_of_two(full, "float32", DEEP, exactly, "a working set of exactly the capacity still fits")
    ### END HIDDEN TESTS

# %% [markdown]
# ### Your model against the recording
#
# The band is a factor of two around your prediction. The yellow strip is the cliff, where the vectors fall out of the cache.


# %% tags=["demo"] jupyter={"source_hidden": true}
def your_seconds(n, machine):
    """What your function predicts; not a number while exercise 4 is unwritten."""
    try:
        return predict_seconds(int(n), "float32", machine)
    except NotImplementedError:
        return float("nan")


def draw_prediction(machine, samples, title):
    sizes = np.unique(np.logspace(0, 8, 400).astype(int))
    predicted = np.array([your_seconds(n, machine) for n in sizes])
    plot, axes = figure(height=4)
    band = {"color": palette.sky, "alpha": 0.35, "lw": 0, "label": "a factor of two"}
    axes.fill_between(sizes, predicted * 5e5, predicted * 2e6, **band)
    axes.plot(sizes, predicted * 1e6, color=palette.blue, label="your prediction")
    for level in machine.levels[:-1]:
        cliff = (level.capacity / 8, level.capacity / 4)  # two vectors of four bytes an element
        axes.axvspan(*cliff, color=palette.yellow, alpha=0.35, lw=0, label="on a cliff")
    measured = [statistics.median(s["seconds"]) * 1e6 for s in samples]
    axes.plot([s["n"] for s in samples], measured, "o", color=palette.vermillion, label="measured")
    axes.set(xscale="log", yscale="log", xlabel="elements (float32)", ylabel="one SAXPY (µs)")
    axes.set_title(title)
    axes.legend()
    return plot


show.figure(draw_prediction(RECORDED, SAXPY, RECORDED.name))

# %% [markdown]
# Three regimes, and you will meet them in every lab. On the left the line is flat: nothing you do to the arithmetic or the
# traffic matters, only fewer calls would help. In the middle the cache feeds the loop. On the right main memory
# does, and only fewer bytes would help.
#
# Move the three numbers yourself. Which part of the curve does each of them own?


# %% tags=["demo"]
def explore_machine(overhead_us, cache_gbs, memory_gbs):
    cache = Level(RECORDED.levels[0].capacity, cache_gbs * 1e9)
    yours = Machine("yours", overhead_us * 1e-6, (cache, Level(float("inf"), memory_gbs * 1e9)))
    return draw_prediction(yours, SAXPY, "your machine against the recording")


explore(
    explore_machine,
    overhead_us=(0.2, 20.0, 0.2, 5.0),
    cache_gbs=(20, 400, 20, 300),
    memory_gbs=(5, 200, 5, 20),
)

# %% [markdown]
# ### Now this machine
#
# **Predict first.** SAXPY on 2²⁴ float32 elements, two vectors of 64 MiB each, on the machine in front of you (its GPU if it has one,
# otherwise one core). How many milliseconds?

# %% tags=["demo"]
predict(
    "saxpy_ms",
    question="SAXPY on 2²⁴ float32 elements on this machine: how long?",
    unit="ms",
    guess=None,
)

# %% [markdown]
# The next cell measures this machine's three numbers, lets your function predict, and only then runs SAXPY itself.

# %% tags=["demo"]
import torch
from threeloops.hardware import device

here = device()
threads = torch.get_num_threads()
torch.set_num_threads(1)
if here == "cuda":
    name, cache = torch.cuda.get_device_name(), torch.cuda.get_device_properties(here).L2_cache_size
else:
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    name = "this machine, one core"
    kibibytes = [int(size.read_text().strip().removesuffix("K")) for size in sizes]
    cache = max(kibibytes) * 1024 if kibibytes else RECORDING["cache_bytes"]
facts = [
    record("saxpy", 1, "float32", here),
    record("scale", scaling_size(cache / 8), "float32", here),
    record("scale", scaling_size(max(2 * cache, 2**28)), "float32", here),
]
mine = describe(name, facts, cache)
live = [record("saxpy", n, "float32", here) for n in (1, 1000, 10**4, 10**5, 10**6, 10**7, 2**24)]
torch.set_num_threads(threads)

confronted = [
    (
        sample["n"],
        your_seconds(sample["n"], mine),
        statistics.median(sample["seconds"]),
        "on a cliff" if on_a_cliff(sample["n"], "float32", mine) else "",
    )
    for sample in live
]
show.figure(draw_prediction(mine, live, mine.name))
show.table(
    [
        (n, f"{predicted * 1e6:,.1f}", f"{seconds * 1e6:,.1f}", f"{predicted / seconds:.2f}", cliff)
        for n, predicted, seconds, cliff in confronted
    ],
    header=("elements", "predicted µs", "measured µs", "ratio", ""),
)

# %% tags=["demo"]
milliseconds = statistics.median(live[-1]["seconds"]) * 1e3
show.against_prediction("saxpy_ms", measured=milliseconds, unit="ms", source="measured here")

# %% [markdown]
# If a ratio is far from one, something that the three numbers leave out has a say: another process on the core, a clock
# that rose or fell, pages of memory that were touched for the first time. A model that is wrong by a known factor is
# still a model. One that nobody confronted with a measurement is a guess.

# %% [markdown]
# ## Deep dive · A copy is not cheaper than SAXPY
#
# Deep dives are complete and ungraded. Read them when you want to know more.
#
# A copy, `y[i] = x[i]`, reads one vector and writes one: two streams. SAXPY moves three. So in large vectors a
# copy should take two thirds of the time. The recording holds copies of the same sizes. **Predict first:** what is the
# ratio of copy to SAXPY, far outside the cache?

# %% tags=["demo"]
predict(
    "copy_ratio",
    question="Time of a copy over time of SAXPY, 2²⁶ float32 elements, on the recorded core?",
    guess=None,
)


# %% tags=["demo"]
def medians(operation, dtype):
    chosen = (s for s in RECORDING["samples"] if (s["operation"], s["dtype"]) == (operation, dtype))
    return {s["n"]: statistics.median(s["seconds"]) for s in chosen}


copies, saxpys = medians("copy", "float32"), medians("saxpy", "float32")
largest = max(copies)
show.against_prediction("copy_ratio", measured=copies[largest] / saxpys[largest], source="recorded")

# %% tags=["demo"] jupyter={"source_hidden": true}
plot, axes = figure(height=3.2)
axes.plot(list(copies), [copies[n] / saxpys[n] for n in copies], "o-", color=palette.blue)
axes.axhline(2 / 3, color=palette.orange, ls="--")
axes.text(1, 2 / 3 - 0.03, "two streams over three", color=palette.orange, va="top")
axes.set(xscale="log", ylim=(0, 1.35), xlabel="elements (float32)", ylabel="copy ÷ SAXPY")
axes.set_title("Counted and recorded traffic of a copy differ")
show.figure(plot)

assert 0.8 < copies[largest] / saxpys[largest] < 1.25, "three streams in a copy: two would give 0.67"

# %% [markdown]
# Tiny vectors compare two overheads, and that their ratio is close to two thirds is an accident. From the moment that
# bytes matter, a copy costs what SAXPY costs. A CPU core cannot write part of a cache line that it does not hold: before it
# overwrites y it *reads* y, a line at a time, only to throw the old values away. This *write-allocate* read is the third
# stream. SAXPY needs y anyway and pays nothing extra. So the least work of an operation is a floor, and the traffic of a
# real program may lie above it. Special store instructions avoid the read, and a GPU's cache takes a whole sector
# without it. Whenever a measured bandwidth looks a third too low, count the streams again.

# %% [markdown]
# ## Deep dive · Half the bytes, and no faster
#
# In float16 SAXPY moves half the bytes of float32, and the model says half the time. Here is the recording.

# %% tags=["demo"] jupyter={"source_hidden": true}
halves = medians("saxpy", "float16")
plot, axes = figure(height=3.2)
axes.plot(list(saxpys), [halves[n] / saxpys[n] for n in saxpys], "o-", color=palette.blue)
axes.axhline(0.5, color=palette.orange, ls="--")
axes.text(1, 0.47, "half the bytes", color=palette.orange, va="top")
axes.set(xscale="log", ylim=(0, 1.75), xlabel="elements", ylabel="float16 ÷ float32")
axes.set_title("Half precision on a CPU core")
show.figure(plot)

assert halves[250_000] / saxpys[250_000] > 1, "inside the cache float16 is the slower one"

# %% [markdown]
# On tiny vectors the overhead hides everything. Far outside the cache the model is right: half the bytes, half the time. In
# between, float16 is the *slower* one. This core has no float16 arithmetic that PyTorch uses here: every element is widened to
# float32, computed, and rounded back, and inside the cache those conversions take longer than the bytes. The model
# has no term for arithmetic. The next lab adds it, and calls the result the roofline.

# %% [markdown]
# ## Deep dive · A GPU kernel on your CPU
#
# The report says whether the interpreter works. Here is the proof: SAXPY as a GPU kernel in Triton. On a GPU thousands of
# programs run this function at once, each on its own block of the vectors; the interpreter runs them one after
# another. You will write such kernels from lab 02 on.

# %% tags=["demo"]
import os

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported and when a kernel is defined
import triton
import triton.language as tl


@triton.jit
def saxpy_kernel(a, x, y, n, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < n
    result = a * tl.load(x + index, mask=inside) + tl.load(y + index, mask=inside)
    tl.store(y + index, result, mask=inside)


x, y = torch.linspace(0, 1, 1000), torch.ones(1000)
expected = 2.5 * x + y
saxpy_kernel[(triton.cdiv(1000, 256),)](2.5, x, y, 1000, BLOCK=256)
check.close(y, expected, what="SAXPY by four interpreted programs")
print("four programs of 256 elements, one of them partly empty: all 1,000 results agree")

# %% [markdown]
# ## Why grading has a wall
#
# When you run a check here, your function and the test share one process. That is quick, and for learning it is all
# you need. When a course grades your notebook, they do not: your code runs in a sandbox, the tests run in another
# process, and between them only plain data passes: numbers, text, lists, tuples, dictionaries, arrays, tensors, and the
# records that setup cells define.
#
# The reason is fairness. Where tests and answers share a process, an answer can read the tests, rewrite them, or print its
# own score. Behind the wall there is nothing to reach for.
#
# Three things follow for you.
#
# - **Return what the specification says.** What you print is for you; nobody grades it.
# - **The visible check is not the whole check.** After it come hidden cases: awkward sizes, empty inputs, machines that you have
#   not seen. Everything they ask for is in the specification, so read that, not only the examples.
# - **Some modules are not there.** The library holds worked answers, and each lab names the modules that a graded run withholds.
#   On your own machine nothing is withheld: try first, then look, and looking is learning.
#
# A cell that crashes loses its own points. The others are still graded.

# %% [markdown]
# ## Where you are
#
# The map fills as your checks pass. Choose a view to see what lies ahead.

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.lab import course_map, labs

VIEWS = {
    "your progress": None,
    "after this lab": ("start",),
    "after the inner loop": ("start", "inner"),
    "after the training loop": ("start", "inner", "training"),
    "at the end": ("start", "inner", "training", "product"),
}


def draw_map(view):
    loops = VIEWS[view]
    return course_map(loops and {lab.name: lab.exercises for lab in labs() if lab.loop in loops})


explore(draw_map, view=list(VIEWS))

# %% [markdown]
# ## Reflection
#
# You are handed a machine that you have never seen, and ten minutes on it. Which three numbers would you measure first, with
# which operation each, and in which order? Then look at your worst prediction in this lab: which of the three
# regimes was it in, and what did your model leave out? A paragraph is enough.

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# First the bandwidth of memory, by scaling in place a vector many times larger than the last cache: it decides every large
# elementwise operation, and it needs no knowledge of the machine. Then the overhead, by the same call on one element.
# Then the bandwidth in cache, with a vector of about an eighth of the cache that the system reports, and last a sweep of
# sizes to see where the cliff really is. My worst prediction was for vectors just inside the cache: half of it was a guess,
# the cache was shared with another tenant, and the model has no term for a level that is only partly mine.

# %% [markdown]
# ## What to remember
#
# - *Absent*, *hidden* and *unsupported* are three different reasons for having no GPU, with three different cures. An
#   empty `CUDA_VISIBLE_DEVICES` hides everything; a mistyped one shortens the list in silence.
# - Machine code runs within its major version only. A GPU can be too new for your software as well as too old.
# - Count bytes and FLOPs before you time anything. SAXPY moves three streams and does two FLOPs an element: one FLOP for
#   every six bytes in float32.
# - A rate is total over total. A mean of rates weighs a short run as much as a long one; warm-up is not part of the run.
# - Time is overhead, plus bytes over the bandwidth of the level that holds the working set. That is good to a factor of two
#   across eight orders of magnitude in size, and where it fails it tells you what to look for.
# - Predict, measure, and explain the difference, in that order.
