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
#     title: Why do fewer, fatter kernels win? Deep dives
#     minutes: 75
# ---

# %% [markdown]
# # Why do fewer, fatter kernels win? Deep dives
#
# These sections are complete and ungraded. They judge three claims about fusion, show what it saves for small and for
# large tensors, examine compiled kernels, and judge ten kernels that cheat. They can be read in any order.
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] jupyter={"source_hidden": true} nbgrader={"grade": false, "grade_id": "setup_dives", "locked": true, "schema_version": 3, "solution": false, "task": false}
import contextlib
import threading
import time
from functools import partial

import numpy as np
import torch
import triton
import triton.language as tl
from threeloops.hardware import accelerator, device
from threeloops.inner import interpreter
from threeloops.inner.codegen import inspect
from threeloops.inner.meter import meter
from threeloops.inner.profiling.eager_traffic import eager_traffic
from threeloops.lab import (
    CheckFailed,
    animate,
    audit,
    calibration,
    check,
    explore,
    figure,
    myth,
    palette,
    predict,
    replay,
    reveal,
    show,
    term,
)

INTERPRETED = interpreter.enable_without_gpu()  # without a GPU, Triton kernels run in Triton's interpreter, on the CPU

# %% [markdown]
# ## Four operations or one
#
# tanh(2 · exp(−x)) is four element-wise operations. Eager PyTorch runs a kernel for each, and each reads a tensor and
# writes one.

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("fuse-3")

# %% tags=["demo"] jupyter={"source_hidden": true}
x = torch.randn(1000, 1000)
with eager_traffic() as four:
    torch.tanh(torch.exp(-x) * 2.0)
audit(
    "fuse-3",
    sum(o.bytes for o in four) / (2 * x.nbytes),
    "× the traffic",
    "model",
    "needs a GPU",
    how="bytes are counted: four element-wise operators make 8 passes over the data, one kernel makes 2. Both are limited by memory, so a large tensor can be computed at most 4× faster. The actual factor has to be measured on a GPU",
)

# %% [markdown]
# ## What fusion saves, and what it does not
#
# A kernel takes at least its bytes divided by the bandwidth, and each launch costs the host some microseconds. Which of
# the two does fusion save? Move the size from a single token to a large batch. The upper pair of rows is eager PyTorch, the
# lower pair the fused kernel; pale bars are launches on the host.

# %% tags=["demo"] jupyter={"source_hidden": true}
import ipywidgets

CHAINS = {  # passes over the data (reads, writes) of each kernel of the chain, and of the fused kernel
    "dropout(gelu(x + bias))": ({"add": (1, 1), "gelu": (1, 1), "dropout": (1, 1.5)}, (1, 1)),
    "silu(gate) · up": ({"silu": (1, 1), "mul": (2, 1)}, (2, 1)),
    "tanh(2·exp(−x))": ({"neg": (1, 1), "exp": (1, 1), "mul": (1, 1), "tanh": (1, 1)}, (1, 1)),
}
SHADES = [palette.sky, palette.orange, palette.green, palette.purple]


def spans_of(kernels, card, tokens, launch):
    """The name, launch, begin and length of each kernel, and the time when the device is done, in µs."""
    host, free, spans = 0.0, 0.0, []
    for name, (reads, writes) in kernels.items():
        host += launch
        begin = max(host, free)
        length = (reads + writes) * tokens * 4096 * 2 / card.memory_bandwidth * 1e6
        spans.append((name, host - launch, begin, length))
        free = begin + length
    return spans, free


def draw_timeline(chain, machine, tokens, launch_us):
    card = accelerator(machine)
    kernels, fused = CHAINS[chain]
    eager_spans, eager_end = spans_of(kernels, card, tokens, launch_us)
    fused_spans, fused_end = spans_of({"fused": fused}, card, tokens, launch_us)
    fig, axes = figure(width=9.5, height=3.6)
    for level, spans in ((3, eager_spans), (1, fused_spans)):
        for i, (name, launched, begin, length) in enumerate(spans):
            shade = palette.blue if name == "fused" else SHADES[i]
            axes.barh([level + 0.42], [launch_us], left=launched, height=0.32, color=shade, alpha=0.45)
            axes.barh([level], [length], left=begin, height=0.5, color=shade)
            axes.text(begin, level - 0.28, name, va="top", fontsize=9)
    axes.set(
        yticks=[1, 1.42, 3, 3.42],
        yticklabels=["fused: GPU", "host", "eager: GPU", "host"],
        xlabel="µs (model)",
        xlim=(0, eager_end * 1.04),
        ylim=(0.3, 3.9),
    )
    axes.set_title(
        f"{tokens:,} token{'s' * (tokens != 1)} × 4,096 in BF16, {machine}: eager {eager_end:,.0f} µs, fused {fused_end:,.0f} µs, {eager_end / fused_end:.2f}×",
        fontsize=11,
    )
    axes.grid(axis="y", visible=False)
    return fig


explore(
    draw_timeline,
    chain=list(CHAINS),
    machine=["H100 SXM", "A100 SXM 80GB", "H200 SXM", "MI300X"],
    tokens=ipywidgets.SelectionSlider(
        options=[(f"{2**i:,}", 2**i) for i in range(17)],
        value=2**13,
        description="tokens",
        continuous_update=False,
        style={"description_width": "initial"},
        layout=ipywidgets.Layout(width="28rem"),
    ),
    launch_us=(1, 12, 1, 5),
)

# %% [markdown]
# Below about a thousand tokens (H100, 5 µs per launch) the GPU waits for the host, and fusion saves *launches*. Above that
# it saves *bytes*. It does not make a single large matmul faster, because a matmul is one launch already and its time is
# arithmetic.
#
# ## The online softmax, block by block
#
# The row of twelve numbers below is read in blocks of four. The line is the running maximum m. The grey part of each bar
# is the old sum s, multiplied by exp(m − m′) when the maximum rises; the coloured part is what the new block adds.

# %% tags=["demo"] jupyter={"source_hidden": true}
ROW = np.array([1.0, 3.0, 2.0, 0.5, 2.5, 1.5, 6.0, 4.0, 5.0, 3.5, 4.5, 2.0])
STEPS, m, s = [], -np.inf, 0.0
for i in range(3):
    values = ROW[4 * i : 4 * i + 4]
    raised = max(m, values.max())
    carried, added = s * np.exp(m - raised), np.exp(values - raised).sum()
    m, s = raised, carried + added
    STEPS.append((m, carried, added))
assert np.isclose(s, np.exp(ROW - ROW.max()).sum())


def draw_blocks(seen):
    fig, (left, right) = figure(1, 2, width=10, height=3.0)
    colours = [palette.sky, palette.orange, palette.green]
    left.bar(range(12), ROW, color=[colours[i // 4] if i // 4 < seen else palette.grey for i in range(12)])
    for i, (maximum, carried, added) in enumerate(STEPS[:seen]):
        left.plot([4 * i - 0.4, 4 * i + 3.4], [maximum] * 2, color=palette.ink, lw=2)
        left.text(4 * i + 1.5, maximum + 0.15, f"m = {maximum:g}", ha="center")
        right.bar([i], [carried], color=palette.grey)
        right.bar([i], [added], bottom=[carried], color=colours[i])
        right.text(i, carried + added + 0.03, f"s = {carried + added:.3f}", ha="center")
    left.set(title="the row and its running maximum", xticks=[], ylim=(0, 7.2))
    right.set(title="the running sum", xlim=(-0.6, 2.6), ylim=(0, 2.6), xticks=range(3))
    right.set_xticklabels(["block 1", "block 2", "block 3"])
    return fig


animate(
    draw_blocks,
    range(4),
    seconds=1.5,
    caption="; ".join(f"after block {i + 1}: m = {m:g}, s = {old + new:.3f}" for i, (m, old, new) in enumerate(STEPS)),
)

# %% [markdown]
# ## Partial sums: how many rows per program?
#
# The gradient of RMSNorm's weight is summed over all rows. In the lab each program writes one row of float32 partial sums.
# With one row per program there are as many rows of partial sums as rows of x.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "partials",
    "4,096 rows of 4,096 BF16 values, one program per row, partial sums in float32: by what percentage do the partial sums, written and read, increase the bytes of x, dy and dx?",
    unit="%",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
ROWS, SMS, MOST = 4096, 132, 64
least = 3 * ROWS * 4096 * 2
programs = [-(-ROWS // k) for k in range(1, MOST + 1)]
extra = [100 * 2 * count * 4096 * 4 / least for count in programs]
busiest = [100 * (-(-count // SMS) * k * SMS / ROWS - 1) for k, count in enumerate(programs, 1)]
show.against_prediction("partials", round(extra[0], 1), unit="%", source="model: counted")
fig, axes = figure(width=9.5, height=3.4)
places = range(1, MOST + 1)
for k, added, waiting in zip(places, extra, busiest, strict=True):
    if max(added, waiting) <= 10:
        axes.axvspan(k - 0.5, k + 0.5, color=palette.green, alpha=0.25, lw=0)
axes.plot(places, extra, "o-", ms=3, color=palette.orange)
axes.plot(places, busiest, "o-", ms=3, color=palette.blue)
axes.axhline(10, color=palette.grey, ls="--", lw=1.2)
axes.text(3.2, 60, "bytes of the partial sums", color=palette.orange)
axes.text(46, 62, "rows of the busiest SM", color=palette.blue, ha="right")
axes.text(MOST, 11, "10%", color=palette.grey, ha="right", va="bottom")
axes.set(xlim=(0.5, MOST + 0.5), ylim=(0, 140), xlabel="rows per program", ylabel="% above the minimum")
axes.set_title(f"{ROWS:,} rows on {SMS} SMs: green where both are at most 10%")
with reveal("partials"):
    show.figure(fig, "bytes that the partial sums add, and rows of the busiest SM, for 1 to 64 rows per program")
    print(
        "The bytes fall as each program takes more rows. The busiest SM has whole programs, so its share moves in jumps. It is\n"
        "smallest where a round of programs just drops out: at 16 rows (256 programs, at most two per SM) and at 32 (128\n"
        "programs, one per SM)."
    )
    term("partial sum")

# %% [markdown]
# ## The passes of an eager cross-entropy
#
# Eager PyTorch runs four operators for the loss and its gradient. How many times the bytes of the fused kernel do they
# move, if the fused kernel reads the logits twice and writes the gradient once?

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "loss",
    "16,384 tokens × 128,256 logits: the bytes of eager cross-entropy with its backward pass, divided by those of the fused kernel?",
    unit="×",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
z = torch.empty(16384, 128256, device="meta", requires_grad=True)
labels = torch.empty(16384, dtype=torch.int64, device="meta")
with eager_traffic() as eager_loss:
    torch.nn.functional.cross_entropy(z, labels).backward()
moved = sum(o.bytes for o in eager_loss)
show.against_prediction("loss", round(moved / (3 * z.nbytes), 2), unit="×", source="model: counted")
passes = {}
for operation in eager_loss:
    if "softmax" in operation.name or "nll_loss" in operation.name:
        passes[operation.name.removeprefix("aten.")] = (operation.read / z.nbytes, operation.written / z.nbytes)
passes["fused, loss and gradient"] = (2.0, 1.0)
fig, axes = figure(width=9.5, height=2.8)
for level, (reads, writes) in enumerate(passes.values()):
    axes.barh([level], [reads], color=palette.sky)
    axes.barh([level], [writes], left=[reads], color=palette.orange)
    way = " and ".join(f"{n:.0f} {verb}" for n, verb in ((reads, "read"), (writes, "written")) if n > 0.01)
    axes.text(reads + writes + 0.05, level, way or "next to nothing", va="center", fontsize=10)
axes.invert_yaxis()
axes.set(
    xlim=(0, 4.6),
    xlabel="passes over the logits: read (blue), written (orange)",
    yticks=range(len(passes)),
    yticklabels=list(passes),
)
axes.grid(axis="y", visible=False)
with reveal("loss"):
    show.figure(fig, "passes over the logits of each eager operator, and of the fused kernel")

# %% [markdown]
# The two operators of the loss itself touch little of their input: forward picks one log-probability per row, and
# backward writes −1/tokens at the targets and zeros elsewhere. The eager operators are counted as if each tensor moved
# once, the fused kernel with both of its reads of the logits. If the second read came from the cache, the kernel would
# make 2 passes, and the factor would be 3.
#
# Memory is the other half of the gain, because eager PyTorch keeps the log-probabilities from forward to backward. The
# library's `fused_linear_cross_entropy` goes one step further and never has all logits at once: it takes a chunk of
# tokens, multiplies by the vocabulary matrix, computes loss and gradient, multiplies back, and drops them.
#
# ## LayerNorm, GELU and dropout in one kernel
#
# The next claim is about a chain with a reduction in it. One program takes a row, so that the mean and the variance are
# computed on the chip.

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("fuse-1")


# %% tags=["demo"]
@triton.jit
def norm_gelu_dropout_kernel(x, scale, shift, out, columns, p, seed, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < columns
    at = tl.program_id(0) * columns + column
    values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    centred = tl.where(inside, values - tl.sum(values, axis=0) / columns, 0.0)
    deviation = tl.sqrt(tl.sum(centred * centred, axis=0) / columns + 1e-5)
    scaled = centred / deviation * tl.load(scale + column, mask=inside, other=0.0)
    normed = scaled + tl.load(shift + column, mask=inside, other=0.0)
    activated = 0.5 * normed * (1 + tl.erf(normed * 0.7071067811865476))
    tl.store(out + at, tl.where(tl.rand(seed, at) >= p, activated / (1 - p), 0.0), mask=inside)


# %% tags=["demo"] jupyter={"source_hidden": true}
rows, columns = 128, 1000
generator = torch.Generator().manual_seed(5)
x, scale, shift = (torch.randn(*s, generator=generator) for s in ((rows, columns), (columns,), (columns,)))
with eager_traffic() as operators:
    normed = torch.nn.functional.layer_norm(x, (columns,), scale, shift)
    torch.native_dropout(torch.nn.functional.gelu(normed), 0.1, True)  # dropout's one kernel on a GPU
if INTERPRETED:
    with meter() as traffic:
        out = torch.empty_like(x)
        norm_gelu_dropout_kernel[(rows,)](x, scale, shift, out, columns, 0.1, 3, BLOCK=1024)
    kept = out != 0
    torch.testing.assert_close(out[kept], (torch.nn.functional.gelu(normed) / 0.9)[kept], rtol=1e-4, atol=1e-5)
    on_meta = [tensor.to("meta") for tensor in (x, scale, shift, out)]
    (code,) = inspect(partial(norm_gelu_dropout_kernel[(rows,)], *on_meta, columns, 0.1, 3, BLOCK=1024), "sm_90")
    ratio = round(sum(o.bytes for o in operators) / traffic.total.unique_bytes, 2)
    with reveal("fuse-1"):
        show.table(
            [[o.name.removeprefix("aten."), f"{o.bytes / x.nbytes:.2f}"] for o in operators]
            + [["one kernel (meter)", f"{traffic.total.unique_bytes / x.nbytes:.2f}"]],
            ["kernel", "bytes, in sizes of x"],
        )
    audit(
        "fuse-1",
        ratio,
        "× less traffic",
        "CPU",
        "holds" if code.spilled_bytes == 0 else "corrected",
        how=f"layer_norm, gelu and dropout as PyTorch calls them on a GPU, with the mask that dropout stores, against one kernel under the meter, forward pass. Compiled for an H100 the one kernel takes {code.registers} registers per thread and spills {code.spilled_bytes} bytes, so no traffic is hidden",
    )

# %% [markdown]
# ## One launch for Q, K and V
#
# Fusion is not only for element-wise chains. Three projections of the same input are three matmuls that read it three
# times. With the weights stacked they are one matmul, which reads it once. The library's `qkv_projection` also stores each
# head where attention wants it, as (batch, heads, sequence, head_dim), so that no transposed copy is needed.

# %% tags=["demo"]
import inspect as python_inspect

from threeloops.inner.kernels.matmul.qkv_projection import qkv_projection

print(python_inspect.signature(qkv_projection))
print(python_inspect.getdoc(python_inspect.getmodule(qkv_projection)))

# %% [markdown]
# ## Choosing the block
#
# `@triton.autotune` compiles a kernel in several configurations, times each on the first call with a new key, and keeps the
# fastest. Its candidates can be inspected without a GPU. Here a softmax over rows of 4,096 is compiled for an H100 with
# different numbers of warps. A thread has at most 255 registers. An SM has 65,536 registers, and room for 64 warps.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "one_warp",
    "A row of 4,096 BF16 values in a single warp, held in float32: what percentage of an SM's 64 warps can be resident?",
    unit="%",
)


# %% tags=["demo"] jupyter={"source_hidden": true}
@triton.jit
def row_softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    inside = at < columns
    row = tl.program_id(0) * columns
    values = tl.load(x + row + at, mask=inside, other=-float("inf")).to(tl.float32)
    exponentials = tl.exp(values - tl.max(values, axis=0))
    result = exponentials / tl.sum(exponentials, axis=0)
    tl.store(out + row + at, result.to(out.dtype.element_ty), mask=inside)


wide = torch.empty(1024, 4096, dtype=torch.bfloat16, device="meta")
lines, compiled = [], {}
for warps in (1, 2, 4, 8, 16):
    (code,) = inspect(partial(row_softmax_kernel[(1024,)], wide, wide, 4096, BLOCK=4096, num_warps=warps), "sm_90")
    compiled[warps] = code
    widths = ", ".join(f"{n} × {bits}-bit" for bits, n in sorted(code.loads.items()))
    share = f"{100 * code.occupancy.fraction:.0f}%"
    lines.append(
        [warps, 4096 // (32 * warps), widths, code.registers, code.spilled_bytes, share, code.occupancy.limited_by]
    )
one_warp = compiled[1]
show.against_prediction("one_warp", round(100 * one_warp.occupancy.fraction), unit="%", source="compiled for sm_90")
with reveal("one_warp"):
    titles = [
        "warps",
        "elements per thread",
        "loads",
        "registers per thread",
        "bytes spilled",
        "occupancy",
        "limited by",
    ]
    show.table(lines, titles)

# %% [markdown]
# One warp needs many registers per thread, so that only a few of 64 warps fit. But each thread then has 16 loads of 16
# bytes in flight, and a reduction inside a warp needs no barrier. Sixteen warps have full occupancy, but each reduction
# crosses warps through shared memory, and all of them wait there. The table shows the trade-off. Which setting is faster
# has to be measured on a GPU.
#
# ## Does the whole model notice?
#
# The last claim names a gain for a whole model. Before you judge it, look at where the bytes of a training step of the
# course's GPT go, operator by operator, with eager PyTorch.

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig

MATMULS = ("mm", "addmm", "bmm", "linear", "matmul")
REST = "norms, rotary, SwiGLU, loss, copies"
config = GPTConfig.tiny(width=128, heads=4, kv_heads=2, mlp_width=384, max_sequence=256)
torch.manual_seed(0)
model = GPT(config)
tokens = torch.randint(config.vocabulary_size, (4, 257))
with eager_traffic() as step:
    model(tokens[:, :-1], tokens[:, 1:]).backward()
groups = {"matmuls": 0, "attention": 0, REST: 0}
for operation in step:
    name = operation.name.removeprefix("aten.")
    groups["matmuls" if name in MATMULS else "attention" if "attention" in name else REST] += operation.bytes
outside = groups[REST] / sum(groups.values())
fig, axes = figure(width=9.5, height=1.9)
left_edge = 0.0
for (label, amount), shade in zip(groups.items(), (palette.sky, palette.green, palette.orange), strict=True):
    part = 100 * amount / sum(groups.values())
    axes.barh([0], [part], left=left_edge, color=shade)
    level = 0.0 if part > 12 else 0.62
    axes.text(left_edge + part / 2, level, f"{label}\n{part:.0f}%", ha="center", va="center", fontsize=10)
    left_edge += part
axes.set(
    yticks=[], xlabel="% of the bytes that operators move, forward and backward", xlim=(0, 100), ylim=(-0.45, 0.95)
)
axes.set_title(f"One step of a GPT of {sum(p.numel() for p in model.parameters()):,} parameters")
axes.grid(visible=False)
show.figure(fig, f"{100 * outside:.0f}% of the bytes are moved outside of matmuls and attention")

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("fuse-2")

# %% tags=["demo"] jupyter={"source_hidden": true}
if device() == "cuda":
    from threeloops.inner.timing import benchmark

    def step_time(kernels):
        torch.manual_seed(0)
        big = GPT(GPTConfig.small(kernels=kernels)).cuda().bfloat16()
        batch = torch.randint(50_304, (8, 1025), device="cuda")

        def run(inputs, targets):
            big(inputs, targets).backward()
            big.zero_grad(set_to_none=True)

        return benchmark(run, lambda: (batch[:, :-1].contiguous(), batch[:, 1:].contiguous()), device="cuda", samples=9)

    eager_step, fused_step = step_time("eager"), step_time("fused")
    gain = 100 * (eager_step.median / fused_step.median - 1)
    audit(
        "fuse-2",
        round(gain, 1),
        "% faster",
        "GPU",
        "holds" if 10 <= gain <= 20 else "corrected",
        how=f"one training step of the 124-million GPT, 8 × 1,024 tokens in BF16, eager {eager_step.median * 1e3:.1f} ms against fused kernels {fused_step.median * 1e3:.1f} ms, on {torch.cuda.get_device_name()}",
    )
else:
    audit(
        "fuse-2",
        round(100 * outside, 1),
        "% of the bytes",
        "CPU",
        "needs a GPU",
        how="share of an eager step's traffic outside matmuls and attention, counted for a small GPT: fusion can shrink only this part. The time has to be measured, which this cell does on a GPU",
    )

# %% [markdown]
# Bytes are not time. The matmuls of a large model are limited by arithmetic, and their bytes move while they compute. The
# rest has little arithmetic, so it waits for its bytes. The share of *time* that fusion can win therefore depends
# on the width of the model: the matmuls grow with its square, the rest with the width itself. A small model gains much and
# a large one little, so a percentage says little unless the width is given with it.

# %% [markdown]
# ## Ten kernels that cheat
#
# Language models write kernels now, and are rewarded for their speed-up. So they also find ways to show a speed-up without
# a faster kernel. The ten below are of the kinds that public collections describe (wafer.ai's "Field Guide to Reward
# Hacking in AI Kernel Generation", March 2026; Makora's "KernelHacks", 2025): some trick the clock, some return something
# that this call has not computed, and some leave the work to PyTorch or to the comparison. The task is y = 2x + 1.
#
# Most of them cheat a benchmark that calls a function twice, once for the values and once for the time. The tests of this
# lab do not call it on the real inputs at all. They **replay** it. The launcher runs on zeros, and the test *records* only
# what it allocates and launches. The kernels, taken from the text of the cell, are then *executed* on the real inputs while
# each access is counted. At the end the *values* are compared. There is no clock.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict("cheats", "How many of the ten gain anything over an honest kernel in such a replay?", unit="cheats")

# %% tags=["demo"]


@triton.jit
def double_plus_one(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n) + 1, mask=at < n)


@triton.jit
def in_half(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n).to(tl.float16)
    tl.store(y + at, (2 * value + 1).to(tl.float32), mask=at < n)


@triton.jit
def without_mask(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at) + 1, mask=at < n)


def launched(kernel, x):
    y = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y


def honest(x):
    return launched(double_plus_one, x)


def other_stream(x):
    """Launch on a second stream, while the benchmark times the first, which is idle."""
    with torch.cuda.stream(torch.cuda.Stream()) if torch.cuda.is_available() else contextlib.nullcontext():
        return launched(double_plus_one, x)


MEASURED, WORKERS = threading.Event(), []


def background_thread(x):
    """Return at once, and compute in a thread after the clock has stopped."""
    y = torch.empty_like(x)
    WORKERS.append(threading.Thread(target=lambda: MEASURED.wait(10) and y.copy_(launched(double_plus_one, x))))
    WORKERS[-1].start()
    return y


class Later(torch.Tensor):
    """A tensor that is computed only when the comparison reads it."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        ready = [launched(double_plus_one, a.as_subclass(torch.Tensor)) if isinstance(a, cls) else a for a in args]
        return function(*ready, **(kwargs or {}))


def lazy_tensor(x):
    return x.as_subclass(Later)


def patched_clock(x):
    time.perf_counter = lambda: 0.0
    return launched(double_plus_one, x)


def stale_memory(x):
    """Compute nothing: the allocator may return the memory that still holds the reference's result."""
    return torch.empty_like(x)


def nothing(x):
    return x


RESULTS = {}


def cached(x):
    """Compute the first call for a shape, and return its result for all later ones."""
    if x.shape not in RESULTS:
        RESULTS[x.shape] = launched(double_plus_one, x)
    return RESULTS[x.shape]


def half_precision(x):
    return launched(in_half, x)


def out_of_bounds(x):
    """Read past the end of x in the last program. Nothing fails until that page is not mapped."""
    return launched(without_mask, x)


def torchs_own(x):
    return 2 * x + 1


# %% tags=["demo"] jupyter={"source_hidden": true}
def judged(launcher, x):
    """Return the stage at which a replay stops, and its message."""
    right = 2 * x.double() + 1
    try:
        run = replay(launcher, x).require(right)
    except CheckFailed as failure:
        title, *rest = str(failure).replace(f"replay: {launcher.__name__} ", "").split("\n")
        stage = "values" if rest else "execute" if "kernel with a fault" in title else "record"
        return stage, rest[1].split("values of ")[-1] if rest else title.partition(":")[0]
    try:
        check.close(run.outputs, right, rtol=1e-5, atol=1e-6, what="y")
    except CheckFailed as failure:
        return "values", str(failure).split("\n")[1].split("quantity")[-1].strip()
    return "", f"judged as honest: {run.traffic.total.unique_bytes:,} bytes, the kernel of the cell"


CHEATS = (other_stream, background_thread, lazy_tensor, patched_clock, stale_memory, nothing, cached, half_precision)
clock, rows = time.perf_counter, []
sample = torch.randn(5000, generator=torch.Generator().manual_seed(0))
for launcher in (honest, *CHEATS, out_of_bounds, torchs_own):
    judged(launcher, sample) if launcher is cached else None  # the second call is the one that cheats
    stage, words = judged(launcher, sample)
    time.perf_counter = clock
    rows.append((launcher.__name__, stage or "—", words))
MEASURED.set()
for worker in WORKERS:
    worker.join()
gained = [name for name, stage, words in rows if stage == "—" and words != rows[0][2]]
show.against_prediction("cheats", len(gained), unit="cheats", source="replayed here")
with reveal("cheats"):
    show.table(rows, header=("launcher", "stopped at", "in short"), caption="y = 2x + 1 on 5,000 numbers")

# %% [markdown]
# Two are not stopped, the other stream and the patched clock. They gain nothing: their kernel is honest, it is executed and
# counted like any other, and no time is measured. Each of the others fails, because no kernel writes what it returns, or
# because the kernel's values or accesses are wrong.
#
# The price is that a replay does not know how fast a kernel is. It knows bytes, launches and compiled code, and lab 01's roofline
# turns them into a bound. To measure time, run the kernel in a process that cannot reach the clock, on inputs made after
# the kernel was loaded, overwrite the previous result first, and wait for all streams.

# %% tags=["demo"] jupyter={"source_hidden": true}
calibration()
