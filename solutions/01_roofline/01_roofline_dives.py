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
#     title: Is the GPU doing useful math? Deep dives
#     minutes: 75
# ---

# %% [markdown]
# # Is the GPU doing useful math? Deep dives
#
# These sections are complete and ungraded, and can be read in any order: sixteen claims to judge, the cost of a lookup, the
# gaps in a trace, a live profile, a systolic array, and how many runs a benchmark needs.
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] jupyter={"source_hidden": true} nbgrader={"grade": false, "grade_id": "setup_dives", "locked": true, "schema_version": 3, "solution": false, "task": false}
import shutil
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import torch
from threeloops.hardware import accelerator, device
from threeloops.inner.costs import Work
from threeloops.inner.machine_models.systolic import cycles, output_stationary, tile
from threeloops.inner.profiling.gaps import find_gaps
from threeloops.inner.profiling.profiler import annotate, annotate_modules, profile
from threeloops.inner.profiling.trace import Event as TraceEvent
from threeloops.inner.roofline import Roofline, attention, elementwise, layernorm, matmul, softmax
from threeloops.inner.timing import Samples, benchmark, median_band
from threeloops.lab import audit, calibration, figure, myth, palette, predict, reveal, show, term
from threeloops.models.resnet import resnet50

DEVICE = device()
h100 = Roofline(accelerator("H100 SXM"), "bf16")

# %% [markdown]
# ## Read the asterisk
#
# The texts that this course grew from make claims about hardware. Judge them first. Then each is recomputed from the
# table of accelerators, in which every number names the document that it comes from. Some texts contradict each other, so
# not all of these claims can hold.

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("roof-1")
myth("roof-12")
myth("roof-2")
myth("roof-3")
myth("roof-4")
myth("roof-5")
myth("roof-13")
myth("roof-6")
myth("roof-14")
myth("roof-9")
myth("roof-15")
myth("roof-10")
myth("roof-16")
myth("roof-11")

# %% tags=["demo"] jupyter={"source_hidden": true}
card = {
    name: accelerator(name)
    for name in (
        "V100 SXM2",
        "A100 SXM 80GB",
        "H100 SXM",
        "H200 SXM",
        "B200",
        "L40S",
        "RTX 4090",
        "MI300X",
        "TPU v4",
        "TPU v5p",
    )
}
CLAIMED = {
    "V100 SXM2": (125, 900),
    "A100 SXM 80GB": (312, 2000),
    "H100 SXM": (990, 3350),
    "H200 SXM": (990, 4800),
    "B200": (2200, 8000),
}
off_rate = {name: abs(rate * 1e12 / card[name].rate("fp16") - 1) for name, (rate, _) in CLAIMED.items()}
off_bandwidth = {name: abs(speed * 1e9 / card[name].memory_bandwidth - 1) for name, (_, speed) in CLAIMED.items()}
show.table(
    [
        [
            name,
            f"{card[name].rate('fp16') / 1e12:.0f}",
            f"{card[name].memory_bandwidth / 1e9:.0f}",
            f"{card[name].rate('fp16') / card[name].memory_bandwidth:.0f}",
        ]
        for name in CLAIMED
    ],
    ["FP16, dense", "TFLOP/s", "GB/s", "ridge point, FLOP/byte"],
)
worst = max(off_rate, key=off_rate.get)
audit(
    "roof-1",
    round(100 * off_rate[worst], 1),
    "% off at worst",
    "published",
    "holds" if off_rate[worst] < 0.05 else "corrected",
    f"all five were compared with the data sheets, and the {worst} is furthest off. They are dense rates",
)
worst = max(off_bandwidth, key=off_bandwidth.get)
audit(
    "roof-12",
    round(100 * off_bandwidth[worst], 1),
    "% off at worst",
    "published",
    "holds" if off_bandwidth[worst] < 0.05 else "corrected",
    f"all five were compared with the data sheets, and the {worst} is furthest off. From V100 to H100 the ridge point doubled, because math grew faster than memory; the H200's faster memory moved it back to 206",
)
h = card["H100 SXM"]
audit(
    "roof-2",
    round(h.rate("bf16") / 1e15, 3),
    "PFLOP/s",
    "published",
    "corrected",
    f"dense BF16. 3.9 is {2 * h.rate('fp8') / 1e15:.2f} PFLOP/s of FP8 with sparsity: one factor of two for the format, one for skipped zeros",
)
audit(
    "roof-3",
    round(h.rate("fp16") / 1e12),
    "TFLOP/s",
    "published",
    "corrected",
    f"dense. 1,979 is the rate with sparsity, {1979e12 / h.rate('fp16'):.2f} times as much. The same source lists 989 for its TF32 (dense {h.rate('tf32') / 1e12:.0f}), 312 and 624 for an A100 (dense {card['A100 SXM 80GB'].rate('tf32') / 1e12:.0f} and {card['A100 SXM 80GB'].rate('fp16') / 1e12:.0f}), and 362 in TF32 for an L40S (dense {card['L40S'].rate('tf32') / 1e12:.0f})",
)
try:
    volta = card["V100 SXM2"].rate("tf32") / 1e12
except LookupError as reason:
    volta, why = 0.0, str(reason)
audit(
    "roof-4",
    volta,
    "TFLOP/s in TF32",
    "published",
    "corrected",
    f"{why}. The tensor cores of a V100 do {card['V100 SXM2'].rate('fp16') / 1e12:.0f} TFLOP/s, in FP16",
)
ada = card["RTX 4090"]
sums = f"it does {ada.rate('fp16_fp16_accumulate') / 1e12:.0f} TFLOP/s if sums are kept in FP16, and {ada.rate('fp16') / 1e12:.0f} if they are kept in FP32, as in training"
audit("roof-5", round(ada.rate("fp16_fp16_accumulate") / 1e12), "TFLOP/s", "published", "holds", sums)
audit("roof-13", round(ada.rate("fp16") / 1e12), "TFLOP/s", "published", "holds", sums)
audit("roof-6", card["H200 SXM"].memory_bytes / 2**30, "GB as printed", "published", "holds", "the data sheet says so")
audit(
    "roof-14",
    card["H200 SXM"].memory_bytes / 2**30,
    "GB as printed",
    "published",
    "corrected",
    f"{card['MI300X'].memory_bytes / 2**30:.0f} is what an MI300X has, and what the first data sheets of the B200 promised",
)


# %% tags=["demo"] jupyter={"source_hidden": true}
def matrix_fma(name):
    """Multiply-adds of one matrix unit in one clock, from the peak rate, the number of units and the clock."""
    c = accelerator(name)
    return c.rate("fp16") / (2 * c.multiprocessors * c.matrix_units * (c.matrix_clock_hz or c.clock_hz))


per_clock = {name: matrix_fma(name) for name in ("V100 SXM2", "A100 SXM 80GB", "H100 SXM")}
show.table(
    [[name, f"{value:.1f}", f"{value ** (1 / 3):.1f}"] for name, value in per_clock.items()],
    ["derived from peak, units and clock", "FMA per tensor core and clock", "cube root"],
)
audit(
    "roof-9",
    round(per_clock["V100 SXM2"]),
    "FMA per clock (V100)",
    "model",
    "corrected",
    f"a 4 × 4 × 4 product is right for a V100; the tensor core of an A100 does {per_clock['A100 SXM 80GB']:.0f} and that of an H100 {per_clock['H100 SXM']:.0f}",
)
audit(
    "roof-15",
    round(per_clock["H100 SXM"]),
    "FMA per clock (H100)",
    "model",
    "corrected",
    "16 × 16 is the shape of the programming interface; one such product is 4,096 multiply-adds and takes many clocks",
)
pods = {"TPU v4": 4096, "TPU v5p": 8960}
exa = {name: chips * card[name].rate("bf16") / 1e18 for name, chips in pods.items()}
audit("roof-10", round(exa["TPU v4"], 2), "EFLOP/s", "published", "holds", "4,096 chips × 275 TFLOP/s in BF16")
audit(
    "roof-16",
    round(exa["TPU v5p"], 2),
    "EFLOP/s",
    "published",
    "corrected",
    "8,960 chips × 459 TFLOP/s in BF16 are four times exascale; but exascale usually means FP64",
)
lonely = card["L40S"]
audit(
    "roof-11",
    (lonely.link_bandwidth or 0.0) / 1e9,
    "GB/s over NVLink",
    "published",
    "corrected",
    lonely.sources["link_name"],
)

# %% [markdown]
# ## Are most operations of a transformer memory-bound?
#
# "Most" may count operations or their time, and the answer depends on how attention is computed. The next cell lists the
# operations of one training step of a layer (forward, backward and update), and adds up the times that they take at the
# roofline.

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("roof-7")


# %% tags=["demo"] jupyter={"source_hidden": true}
def layer_operations(tokens, length, width, heads, fused):
    """The operations of one GPT layer in BF16, forward and backward: a name and the least Work of each."""
    batch, hidden = tokens // length, 4 * width
    matmuls = {"qkv": (width, 3 * width), "projection": (width, width), "up": (width, hidden), "down": (hidden, width)}
    point = {
        "rotary": 2 * tokens * width,
        "residual 1": tokens * width,
        "residual 2": tokens * width,
        "GELU": tokens * hidden,
    }
    rows = []
    for name, (inner, outer) in matmuls.items():
        rows += [
            (name, matmul(tokens, inner, outer)),
            (f"{name}, gradient of input", matmul(tokens, outer, inner)),
            (f"{name}, gradient of weight", matmul(inner, tokens, outer)),
        ]
    for name, elements in point.items():
        rows += [
            (name, elementwise(elements, inputs=2 if "residual" in name else 1, flops_per_element=8)),
            (f"{name}, backward", elementwise(elements, inputs=1 if "residual" in name else 2, flops_per_element=8)),
        ]
    for name in ("norm 1", "norm 2"):
        rows += [
            (name, layernorm(tokens, width)),
            (f"{name}, backward", Work(3 * tokens * width * 2, 12 * tokens * width)),
        ]
    head, scores = width // heads, batch * heads * length * length
    if fused:
        forward = attention(batch, heads, length, length, head, fused=True)
        rows += [("attention", forward), ("attention, backward", Work(2 * forward.bytes, 2.5 * forward.flops))]
    else:
        product = batch * heads * matmul(length, head, length)
        rows += [(name, product) for name in ("scores", "values", "d scores", "d values", "d queries", "d keys")]
        rows += [
            ("softmax", softmax(batch * heads * length, length)),
            ("softmax, backward", elementwise(scores, inputs=2, flops_per_element=4)),
            ("scale and mask", elementwise(scores, flops_per_element=2)),
            ("scale and mask, backward", elementwise(scores, flops_per_element=1)),
        ]
    parameters = 12 * width * width
    rows += [
        ("optimizer", Work(parameters * (2 + 6 * 4 + 2), 12 * parameters))
    ]  # reads gradient, weight, two moments; writes three, and the BF16 copy
    return rows


shares = {}
for fused in (False, True):
    rows = layer_operations(8 * 4096, 4096, 4096, 32, fused)
    memory = [work for _, work in rows if h100.bound(work) == "memory"]
    shares[fused] = (
        len(memory) / len(rows),
        sum(map(h100.time_floor, memory)) / sum(h100.time_floor(work) for _, work in rows),
        len(rows),
    )

# %% tags=["demo"] jupyter={"source_hidden": true}
fig, axes = figure(width=9.5, height=2.9)
labels, values = [], []
for fused, (by_count, by_time, total) in shares.items():
    kind = "fused attention" if fused else "scores in memory"
    labels += [f"{kind}: of {total} operations", f"{kind}: of the time"]
    values += [100 * by_count, 100 * by_time]
axes.barh(labels, values, color=[palette.orange, palette.vermillion] * 2)
axes.barh(labels, [100 - v for v in values], left=values, color=palette.blue, alpha=0.35)
for row, v in enumerate(values):
    axes.text(v - 1, row, f"{v:.0f}%", va="center", ha="right", fontsize=9)
axes.text(1, -0.62, "memory-bound", color=palette.vermillion, weight="bold", fontsize=9)
axes.text(99, -0.62, "compute-bound", color=palette.blue, weight="bold", fontsize=9, ha="right")
axes.set(
    xlim=(0, 100),
    ylim=(-0.9, 3.5),
    xlabel="%",
    title="A layer in training (width 4,096; 8 × 4,096 tokens), H100, at the roof",
)
axes.invert_yaxis()
axes.grid(axis="y", visible=False)
with reveal("roof-7"):
    show.figure(fig)
audit(
    "roof-7",
    round(100 * shares[True][1]),
    "% of the time is memory-bound (fused attention)",
    "model",
    "corrected",
    f"with scores in memory the claim holds: {100 * shares[False][0]:.0f}% of the operations and {100 * shares[False][1]:.0f}% of the time. "
    f"With fused attention it is {100 * shares[True][0]:.0f}% of the operations, and the compute-bound rest takes {100 - 100 * shares[True][1]:.0f}% of the time",
)

# %% [markdown]
# ## Memory at 90%, tensor cores at 20%
#
# Suppose that a profiler shows both numbers. Do they *mean* that the kernel is memory-bound? The next cell models a machine
# that shows them: a loader and a tensor core work on tiles, with two buffers between them and some latency. Then it improves
# one part at a time.

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("roof-8")


# %% tags=["demo"]
def pipeline(load, latency, compute, buffers=2, tiles=400):
    """Time for all tiles, and the shares of it in which memory and tensor cores are busy."""
    loaded, computed = [], []
    for i in range(tiles):
        free = computed[i - buffers] if i >= buffers else 0.0  # a buffer is free when its last tile has been used
        loaded.append(max(free, loaded[-1] if loaded else 0.0) + load)
        computed.append(max(loaded[-1] + latency, computed[-1] if computed else 0.0) + compute)
    return computed[-1], tiles * load / computed[-1], tiles * compute / computed[-1]


base, memory_busy, math_busy = pipeline(load=1.0, latency=1.0, compute=2 / 9)
assert abs(memory_busy - 0.90) < 0.01 and abs(math_busy - 0.20) < 0.01
saved = {
    "tensor cores twice as fast": pipeline(1.0, 1.0, 1 / 9)[0],
    "memory twice as fast": pipeline(0.5, 1.0, 2 / 9)[0],
    "a third buffer": pipeline(1.0, 1.0, 2 / 9, buffers=3)[0],
    "half the bytes (fusion), a third buffer": pipeline(0.5, 1.0, 2 / 9, buffers=3)[0],
}
with reveal("roof-8"):
    show.table(
        [[change, f"{100 * (1 - t / base):.0f}%"] for change, t in saved.items()],
        [f"change (memory busy {100 * memory_busy:.0f}%, tensor cores {100 * math_busy:.0f}%)", "time saved"],
    )
audit(
    "roof-8",
    round(100 * (1 - saved["memory twice as fast"] / base)),
    "% of the time saved by twice the bandwidth",
    "model",
    "holds",
    f"in a pipeline model that shows 90% and 20%; twice the tensor cores save {100 * (1 - saved['tensor cores twice as fast'] / base):.0f}%. "
    "Two cautions: the missing 10% are latency, which a third buffer hides; and busy memory may be moving bytes that nobody needs, so compare the traffic with the least possible before you buy bandwidth",
)

# %% [markdown]
# ## A lookup computes nothing
#
# An embedding reads one 8-byte index per token and writes a row per token. Of the table it reads only the rows that are
# looked up, and with a perfect cache each **different** row only once. For example, 4,096 tokens of which 1,500 are
# different, with a width of 768 in BF16, move 4,096 · 8 + (1,500 + 4,096) · 768 · 2 bytes, 8.6 MB, and do 0 FLOPs. The
# intensity is 0, so on the logarithmic axis of a roofline the lookup lies beyond the left edge. On an H100 it takes at least
# 2.6 µs, about half of the 5 µs that this lab's synthetic traces assume for a launch.

# %% tags=["demo"]
lookup = Work(4096 * 8 + (1500 + 4096) * 768 * 2, 0)
print(f"{lookup.bytes / 1e6:.2f} MB, at least {1e6 * h100.time_floor(lookup):.1f} µs on an H100")

# %% [markdown]
# ## The gaps in a trace
#
# A GPU works through a queue of kernels. When the queue runs dry it idles, and a trace shows why. Here is a trace made
# by hand, with a gap of each kind. The library reads it as it would read a recorded one.

# %% tags=["demo"] jupyter={"source_hidden": true}
HOST, STREAM = 1, 7


def issue(number, name, host_at, takes, device_at, runs):
    """One operator: its event on the host, the launch at its end, and the kernel on the device."""
    return [
        TraceEvent(f"aten::{name}", "cpu_op", host_at, takes, HOST),
        TraceEvent("cudaLaunchKernel", "cuda_runtime", host_at + takes - 3, 3, HOST, args={"correlation": number}),
        TraceEvent(name, "kernel", device_at, runs, STREAM, args={"correlation": number, "device": 0}),
    ]


trace = [
    *issue(1, "mm", 0, 10, 12, 60),
    *issue(2, "gelu", 10, 10, 72, 12),
    *issue(3, "mm", 20, 10, 84, 40),
    TraceEvent("aten::item", "cpu_op", 32, 100, HOST),
    TraceEvent("cudaStreamSynchronize", "cuda_runtime", 34, 96, HOST),
    *issue(4, "add", 134, 10, 146, 4),
    *issue(5, "mul", 146, 10, 158, 4),
    *issue(6, "add", 158, 10, 170, 4),
    *issue(7, "mm", 330, 10, 342, 60),
]
gaps = find_gaps(trace, "cuda")

# %% tags=["demo"] jupyter={"source_hidden": true}
COLOURS = {"launch-bound": palette.purple, "host synchronisation": palette.orange, "other": palette.vermillion}
fig, axes = figure(width=12.5, height=2.7)
for event in trace:
    lane = {"cpu_op": 1.0, "kernel": 0.0}.get(event.category)
    if lane is not None:
        axes.barh(
            lane,
            event.duration_us,
            left=event.start_us,
            height=0.5,
            color=palette.sky if lane else palette.blue,
            edgecolor="white",
        )
        if event.duration_us > 9:
            axes.text(
                event.start_us + event.duration_us / 2,
                lane,
                event.name.removeprefix("aten::"),
                ha="center",
                va="center",
                fontsize=8,
                color="white" if not lane else palette.ink,
            )
for gap in gaps:
    axes.barh(
        0.0,
        gap.duration_us,
        left=gap.start_us,
        height=0.5,
        color=COLOURS[gap.cause],
        alpha=0.35,
        hatch="//",
        edgecolor=COLOURS[gap.cause],
        lw=0,
    )
for cause, colour in COLOURS.items():
    axes.barh(
        0, 0, color=colour, alpha=0.5, label=f"{cause}: {sum(g.duration_us for g in gaps if g.cause == cause):.0f} µs"
    )
axes.set(
    yticks=[0, 1], yticklabels=["device", "host"], xlabel="µs", ylim=(-0.5, 1.9), title="A device that idles, and why"
)
axes.legend(loc="upper right", ncols=3)
axes.grid(axis="y", visible=False)
show.figure(fig)
for gap in gaps:
    print(f"{gap.start_us:5.0f} µs  {gap.duration_us:5.1f} µs  {gap.reason}")
assert {gap.cause for gap in gaps} == set(COLOURS)

# %% [markdown]
# The cause of the last gap is the hardest to find, because the host ran no operator at all. In Python a common reason is the
# **GIL**, the lock that lets only one thread execute bytecode at a time. A thread that prepares data in Python takes turns
# with the thread that launches kernels, and by default a turn lasts up to five milliseconds. In the next cell a thread
# that only counts runs beside the forward pass of a small ResNet.

# %% tags=["demo"]
torch.set_num_threads(1)  # too small a network to share: on a busy machine two threads would mostly wait for each other
torch.manual_seed(0)
network = resnet50(width=16).eval().to(DEVICE)
pictures = torch.randn(4, 3, 96, 96, device=DEVICE)


class Counting:
    """A thread that holds the GIL whenever it can."""

    def __enter__(self):
        self.running, self.thread = True, threading.Thread(target=self.count, daemon=True)
        self.thread.start()

    def count(self):
        number = 0
        while self.running:
            number += 1

    def __exit__(self, *_):
        self.running = False
        self.thread.join()


few = torch.randn(1, 3, 64, 64, device=DEVICE)
with torch.no_grad():
    alone = benchmark(network, lambda: (few,), device=DEVICE, samples=11, flush_cache=False)
    with Counting():
        crowded = benchmark(network, lambda: (few,), device=DEVICE, samples=5, flush_cache=False, warmup=1)
print(
    f"alone {alone.median * 1e3:.1f} ms, beside a counting thread {crowded.median * 1e3:.1f} ms, "
    f"{crowded.median / alone.median:.1f} times as long; the switch interval is {sys.getswitchinterval() * 1e3:.0f} ms. "
    "Worker processes have a GIL each: that is why data loaders use processes (lab 07)."
)
show.busy_notice()

# %% [markdown]
# ## A live profile
#
# The same network, a ResNet-50 at a quarter of its width, is profiled here on four images of 96 × 96, with one thread.
# `annotate_modules(model)` marks each submodule, so that the profile can say in which of them memory peaks.
# `annotate("data")` opens a range of your own. If CUDA is available it also opens an NVTX range, which Nsight Systems
# shows.

# %% tags=["demo"]
with torch.no_grad(), annotate_modules(network):
    live = profile(network, pictures)
at = " › ".join(live.peak_memory.within)
show.table(
    [
        (op.name, op.calls, f"{op.cpu_us / 1e3:.2f}", f"{op.device_us / 1e3:.2f}" if DEVICE == "cuda" else "–")
        for op in live.top(5)
    ],
    header=("operator", "calls", "CPU self, ms", "GPU, ms"),
    caption=f"{live.wall_us / 1e3:.1f} ms; peak {live.peak_memory.bytes / 1e6:.2f} MB in {live.peak_memory.operator}, {at}",
)

# %% tags=["demo"]
folder = Path(tempfile.mkdtemp(prefix="threeloops_trace_"))


def step(images):
    with annotate("data"):
        images = (images - images.mean()) / images.std()
    with annotate("forward"):
        return network(images)


with torch.no_grad():
    marked = profile(step, pictures)
chrome, board = marked.save_chrome(folder / "trace.json"), marked.save_tensorboard(folder / "tensorboard")
ranges = {event.name: event.duration_us for event in marked.events if event.name in ("data", "forward")}
assert set(ranges) == {"data", "forward"}
print(", ".join(f"{name} {duration / 1e3:.2f} ms" for name, duration in ranges.items()))
print(
    f"Perfetto:    open {chrome.name} ({chrome.stat().st_size // 1024} KiB) at https://ui.perfetto.dev: the file stays in your browser"
)
print(
    "TensorBoard: pip install tensorboard torch-tb-profiler, then tensorboard --logdir on the folder 'tensorboard' "
    "(PyTorch has deprecated this plugin in favour of Perfetto)"
)
shutil.rmtree(folder)  # keep it by deleting this line

# %% [markdown]
# ## Where the 989 trillion come from
#
# No memory can feed a quarter of a million multipliers (528 tensor cores × 512 on an H100) one by one. The way out is a
# **systolic array** (Kung and Leiserson 1979): a grid of multiply-adders that hand operands to their neighbours. A
# value that enters at the edge is used by a whole row or column, and is not fetched again. TPUs are built from such
# arrays, of 128 × 128 from v2 to v5 and of 256 × 256 in v6e. A tensor core also reuses its operands, inside a small
# matrix unit whose wiring NVIDIA does not publish.
#
# Two matrices of 6 × 8 and 8 × 6 meet in a 6 × 6 array. Each element must do 8 multiply-adds. After how
# many cycles is the last one done?

# %% tags=["demo"] jupyter={"source_hidden": true}
predict("systolic", "6 × 8 times 8 × 6 in a 6 × 6 systolic array: how many cycles?", unit="cycles")

# %% tags=["demo"]
rng = np.random.default_rng(0)
a, b = rng.normal(size=(6, 8)), rng.normal(size=(8, 6))
run = output_stationary(a, b)
assert np.allclose(run.product, a @ b) and run.cycles == cycles(6, 6, 8) == 6 + 6 + 8 - 2
show.against_prediction("systolic", run.cycles, unit="cycles", source="model")

# %% tags=["demo"] jupyter={"source_hidden": true}
fig, panels = figure(1, 7, width=12.5, height=2.3)
for axes, cycle in zip(panels, (0, 3, 6, 9, 12, 15, 17), strict=True):
    axes.imshow(run.occupancy[cycle], cmap="Blues", vmin=0, vmax=1.4)
    axes.set(xticks=np.arange(-0.5, 6), yticks=np.arange(-0.5, 6), xticklabels=[], yticklabels=[])
    axes.tick_params(length=0)
    axes.grid(color="white", lw=2)
    axes.set_title(f"cycle {cycle + 1}: {run.busy[cycle]}/36", fontsize=9, fontweight="normal")
fig.suptitle(
    "Which elements multiply: a wavefront enters at a corner and leaves at the other", x=0.01, ha="left", fontsize=11
)
with reveal("systolic"):
    show.figure(fig)

# %% [markdown]
# The corner where the operands enter starts first, and the opposite corner starts M + N − 2 cycles later, so the product
# takes M + N + K − 2 cycles instead of K. These extra cycles matter less when K is long, or when the next tile enters right
# behind this one. But nothing helps a matrix that does not **fill** the array.

# %% tags=["demo"] jupyter={"source_hidden": true}
fig, (left, right) = figure(1, 2, width=12.5, height=3.6)
depths = [2**i for i in range(3, 13)]
for size in (16, 128):
    left.plot(
        depths,
        [100 * depth / cycles(size, size, depth) for depth in depths],
        marker="o",
        label=f"{size} × {size} array, one tile",
    )
left.set(
    xscale="log",
    xlabel="K, multiply-adds in each element",
    ylabel="% of the multipliers at work",
    title="Starting late costs less when K is long",
    ylim=(0, 105),
)
left.legend()
tokens = np.unique(np.geomspace(1, 2048, 60).astype(int))
use = [100 * tile(int(t), 4096, 4096, (128, 128)).utilisation for t in tokens]
right.plot(tokens, use, color=palette.green)
right.set(
    xscale="log",
    xlabel="rows of the left matrix (tokens in the batch)",
    ylabel="% of the multipliers at work",
    title="Few tokens leave a 128 × 128 array idle",
    ylim=(0, 105),
)
show.figure(fig)
narrow, full = tile(8000, 129, 128), tile(8000, 128, 128)
assert narrow.cycles > 1.9 * full.cycles
print(
    f"8000 × 128 times 128 × 128: {full.utilisation:.0%} of the multipliers, {full.cycles:,} cycles. One more column: {narrow.utilisation:.0%}, {narrow.cycles:,} cycles."
)

# %% [markdown]
# The last line is one reason why model dimensions are usually multiples of 128. The right plot shows from inside the chip
# what the roofline shows from outside: with one token the array must load 128 × 128 weights for 128 × 128 multiply-adds.
#
# ## How well do you know that number?
#
# Someone shows you a kernel that is 2% faster. Run times have a hard floor and a long tail, caused by interrupts,
# changing clocks and other programs. The tail pulls the mean up, and the minimum ignores it. So report the median of
# *n* runs, with a band that holds the true median with a probability of 95%. Two programs differ if their bands do not
# overlap.

# %% tags=["demo"] jupyter={"source_hidden": true}
x = torch.randn(256, 256, device=DEVICE)
raw = benchmark(torch.matmul, lambda: (x, x), device=DEVICE, samples=600, flush_cache=False)
micro = 1e6 * np.array(raw.seconds)
fig, (left, right) = figure(1, 2, width=12.5, height=3.7)
cut = 3 * np.median(micro)
left.hist(micro[micro <= cut], bins=60, color=palette.sky)
marks = (
    ("minimum", micro.min(), palette.green),
    ("median", np.median(micro), palette.blue),
    ("mean", micro.mean(), palette.vermillion),
)
for name, value, colour in marks:
    left.axvline(
        min(value, cut), color=colour, lw=2, label=f"{name} {value:.0f} µs" + (" (off the axis)" if value > cut else "")
    )
left.set(xlabel="µs", ylabel="runs", title="600 runs of one 256 × 256 matmul, one thread")
left.legend(title=f"slowest: {micro.max() / np.median(micro):.0f} medians")
counts = [6, 10, 20, 40, 80, 160, 320, 600]
bands = [Samples(raw.seconds[:n]) for n in counts]
right.fill_between(
    counts,
    [1e6 * b.low for b in bands],
    [1e6 * b.high for b in bands],
    color=palette.blue,
    alpha=0.25,
    label="noise band of the median",
)
right.plot(counts, [1e6 * b.median for b in bands], "o-", color=palette.blue, label="median")
right.plot(counts, [1e6 * np.mean(b.seconds) for b in bands], "s--", color=palette.vermillion, label="mean")
right.set(
    xscale="log",
    xticks=counts,
    xticklabels=counts,
    xlabel="runs",
    ylabel="µs",
    title="What you would have reported after n runs",
)
right.minorticks_off()
right.set_ylim(0.9 * micro.min(), max(2 * np.median(micro), 1.1e6 * bands[1].high))
right.legend()
show.figure(fig)

# %% [markdown]
# On this machine, today: how many runs of each program does it take until a true difference of 2% is seen nine times out of
# ten? The figure shows how wide the band is at 6 to 600 runs; with n times as many runs it is about √n times narrower. To
# tell two programs apart, their bands must not overlap.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "runs",
    "At which of 10, 30, 100, 300 or 1,000 runs of each program is a 2% difference first seen in 9 of 10 experiments?",
    unit="runs",
)


# %% tags=["demo"]
def power(n, slower, trials=200):
    """How often two groups of n runs, drawn from the measured ones, are told apart when one program is `slower`."""
    rng, band = np.random.default_rng(n), median_band(n)
    first = np.sort(rng.choice(raw.seconds, (trials, n)), axis=1)
    second = np.sort(slower * rng.choice(raw.seconds, (trials, n)), axis=1)
    low, high = band.low_rank - 1, band.high_rank - 1
    return np.mean((first[:, high] < second[:, low]) | (second[:, high] < first[:, low]))


sizes = [10, 30, 100, 300, 1000]
curves = {percent: [power(n, 1 + percent / 100) for n in sizes] for percent in (0, 2, 10)}

# %% tags=["demo"] jupyter={"source_hidden": true}
fig, axes = figure(width=8.5, height=3.6)
for percent, values in curves.items():
    axes.plot(sizes, [100 * v for v in values], "o-", label=f"true difference {percent}%")
axes.set(
    xscale="log",
    xlabel="runs of each program",
    ylabel="% of experiments that see it",
    ylim=(-3, 103),
    title="How many runs does a claim of 2% need on this machine?",
)
axes.legend()
with reveal("runs"):
    show.figure(fig)
enough = next((n for n, seen in zip(sizes, curves[2], strict=True) if seen >= 0.9), None)
assert curves[0][0] <= 0.1
if enough:
    show.against_prediction("runs", enough, unit="runs")
else:
    print(f"Not even {sizes[-1]:,} runs are enough here: this machine cannot resolve 2% in this operation.")

# %% [markdown]
# Check the curve for 0% first: without a true difference, the bands should almost always overlap. The resampling is
# optimistic, because it assumes that runs are independent. In reality clocks drift and other programs come and go, so
# **interleave** the two programs in a comparison (A B A B …) instead of running all of A before all of B.

# %% tags=["demo"] jupyter={"source_hidden": true}
term("tensor core")
calibration()
