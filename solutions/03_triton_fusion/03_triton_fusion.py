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
#     title: Why do fewer, fatter kernels win?
#     minutes: 180
#     withholds: []
# ---

# %% [markdown]
# # Why do fewer, fatter kernels win?
#
# A line such as `dropout(gelu(x + bias))` looks like one thing. PyTorch runs it as three kernels, and each of them reads
# its input from memory and writes its output back, only for the next one to fetch it again. The arithmetic takes almost
# no time. The trips do.
#
# Take that line for the hidden layer of one MLP, 4,096 tokens of 16,384 values in BF16, and guess what the trips cost.

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import numpy as np
import torch
import triton
import triton.language as tl
from threeloops.inner import interpreter
from threeloops.lab import audit, check, explore, hint, predict, replay, show

INTERPRETED = interpreter.enable_without_gpu()  # without a GPU, Triton kernels run in Triton's interpreter, on the CPU

# %% tags=["demo"]
predict(
    "chain",
    "dropout(gelu(x + bias)) as PyTorch runs it, against one fused kernel: how many times the bytes?",
    unit="×",
    guess=None,
)

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.hardware import accelerator
from threeloops.inner.profiling.eager_traffic import eager_traffic
from threeloops.lab import figure, palette

h100 = accelerator("H100 SXM")
TOKENS, WIDTH = 4096, 16384  # the hidden layer of an MLP of width 4,096
hidden_x = torch.empty(TOKENS, WIDTH, dtype=torch.bfloat16, device="meta")  # shapes are enough to count bytes
hidden_bias = torch.empty(WIDTH, dtype=torch.bfloat16, device="meta")
with eager_traffic() as eager:
    # native_dropout is what dropout calls on a GPU: one kernel, which also writes the mask. A CPU takes three.
    torch.native_dropout(torch.nn.functional.gelu(hidden_x + hidden_bias), 0.1, True)
fused_bytes = 2 * hidden_x.nbytes + hidden_bias.nbytes
lanes = {
    "fused": [("one kernel", fused_bytes, palette.blue, "white")],
    "eager": [
        (operation.name.removeprefix("aten."), operation.bytes, shade, palette.ink)
        for operation, shade in zip(eager, (palette.sky, palette.orange, palette.yellow), strict=True)
    ],
}
fig, axes = figure(width=11.5, height=2.9)
for lane, kernels in lanes.items():
    start = 0.0
    for name, moved, shade, ink in kernels:
        length = moved / h100.memory_bandwidth * 1e6
        axes.barh([lane], [length], left=start, height=0.55, color=shade, edgecolor="white")
        axes.text(
            start + length / 2,
            lane,
            f"{name}\n{moved / 2**20:.0f} MiB",
            ha="center",
            va="center",
            fontsize=9,
            color=ink,
        )
        start += length
axes.set(
    xlabel="µs at the bandwidth of an H100 (model: bytes / 3.35 TB/s)",
    title=f"dropout(gelu(x + bias)), {TOKENS:,} × {WIDTH:,} in BF16",
)
axes.grid(axis="y", visible=False)
show.figure(fig)
show.against_prediction("chain", round(sum(o.bytes for o in eager) / fused_bytes, 2), unit="×", source="model: counted")

# %% [markdown]
# Each bar is a kernel, each number what it must move at least; the eager ones are counted, operator by operator, as
# PyTorch calls them. Fusing them changes the result only by rounding (eager rounds to BF16 after each step, one kernel
# rounds once) and removes most of the traffic: the values between the steps never leave the registers.
#
# That is the whole of fusion, and you will do it four times, each time with one idea more:
#
# 1. an element-wise chain, whose random mask is *recomputed* instead of stored;
# 2. softmax over rows of any length, in one pass less than seems necessary;
# 3. RMSNorm forward and backward, with a gradient that must be summed over all rows;
# 4. cross-entropy, which computes the loss *and* its gradient, and never stores a probability.
#
# A kernel is judged here by what it returns and by what it moves. Results are compared with float64; traffic is counted
# by the meter, which runs your kernel in Triton's interpreter and sees each address.

# %% tags=["demo"]
predict(
    "four_operations",
    "tanh(2·exp(−x)), four element-wise operations, against the same in one kernel: how many times the bytes?",
    unit="×",
    guess=None,
)

# %% tags=["demo"]
x = torch.randn(1000, 1000)
with eager_traffic() as four:
    torch.tanh(torch.exp(-x) * 2.0)
show.against_prediction(
    "four_operations", sum(o.bytes for o in four) / (2 * x.nbytes), unit="×", source="model: counted"
)
audit(
    "fuse-3",
    sum(o.bytes for o in four) / (2 * x.nbytes),
    "× the traffic",
    "model",
    "needs a GPU",
    how="bytes are counted: four element-wise operators move 8 passes over the data, one kernel 2. Both are limited by memory, so 4× is also the most that the time of a large tensor can shrink by; how much it does shrink, a GPU has to say",
)

# %% [markdown]
# ## Triton in five lines
#
# A Triton kernel is written for one **program**, which owns a block of the data. `tl.program_id(0)` says which one,
# `tl.arange` makes a block of offsets, `tl.load` and `tl.store` move blocks, and a mask keeps the last block inside.
# Everything between the load and the store stays on the chip.


# %% tags=["demo"]
@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # the elements of this program
    inside = at < n
    values = tl.load(x + at, mask=inside)
    tl.store(out + at, 2 * values, mask=inside)


from threeloops.inner.meter import meter

sample = torch.arange(1000.0)
if INTERPRETED:
    with meter() as traffic:
        doubled = torch.empty_like(sample)
        double_kernel[(triton.cdiv(1000, 256),)](sample, doubled, 1000, BLOCK=256)
    print(traffic.report())

# %% [markdown]
# `with meter() as traffic:` works around your own kernels too, and is the same meter that grades them. *Requested* is
# what the programs ask for; *unique* counts each byte once a launch: what memory must deliver if the cache is perfect.

# %% [markdown]
# ## 1 · A mask that is never stored
#
# Dropout zeroes each element with probability *p* and scales the rest by 1/(1 − p). Its backward pass needs to know
# which ones. PyTorch stores a mask. A kernel can do better, if its random numbers come from a **counter-based
# generator**: `tl.rand(seed, offset)` is a pure function of the seed and a counter (Philox, [Salmon et al.
# 2011](https://doi.org/10.1145/2063384.2063405)), uniform in [0, 1). The backward kernel asks for the same offsets and
# gets the same numbers. The mask is recomputed, and costs no memory at all.
#
# The GELU is the exact one: gelu(z) = z · Φ(z) with Φ(z) = (1 + erf(z/√2)) / 2, and its derivative is
# Φ(z) + z · φ(z) with φ(z) = exp(−z²/2) / √(2π).
#
# ### Exercise 1 (25 points)
#
# `forward(x, bias, p: float, seed: int) -> Tensor` returns dropout(gelu(x + bias)).
#
# `backward(grad, x, bias, p: float, seed: int) -> Tensor` returns the gradient of x for the gradient `grad` of the output.
#
# - `x` and `grad` are (rows, columns), contiguous, float32 or float16; `bias` is (columns,), of the same dtype. All
#   arithmetic in float32, rounded once at the end to the dtype of `x`.
# - The element at flat index *i* = row · columns + column is **kept where `tl.rand(seed, i) >= p`**, and then divided by
#   1 − p; else it is 0. `0 <= p < 1`; with any other `p` both functions raise a `ValueError` that contains `p = ` and
#   the value.
# - One launch each. Forward reads x and bias and writes the output; backward reads grad, x and bias and writes the
#   gradient. Nothing else is moved, so no mask, and no zeros before the result: each element of x, grad and the output
#   moves once.


# %% nbgrader={"grade": false, "grade_id": "fused_chain", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def forward_kernel(x, bias, out, n, columns, p, seed, BLOCK: tl.constexpr):
    """out = dropout(gelu(x + bias)), BLOCK elements a program."""
    ### BEGIN SOLUTION
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    z = tl.load(x + at, mask=inside).to(tl.float32) + tl.load(bias + at % columns, mask=inside).to(tl.float32)
    gelu = 0.5 * z * (1 + tl.erf(z * 0.7071067811865476))
    kept = tl.rand(seed, at) >= p
    tl.store(out + at, tl.where(kept, gelu / (1 - p), 0.0).to(out.dtype.element_ty), mask=inside)
    ### END SOLUTION


@triton.jit
def backward_kernel(grad, x, bias, out, n, columns, p, seed, BLOCK: tl.constexpr):
    """The gradient of x."""
    ### BEGIN SOLUTION
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    z = tl.load(x + at, mask=inside).to(tl.float32) + tl.load(bias + at % columns, mask=inside).to(tl.float32)
    slope = 0.5 * (1 + tl.erf(z * 0.7071067811865476)) + z * tl.exp(-0.5 * z * z) * 0.3989422804014327
    kept = tl.rand(seed, at) >= p
    given = tl.load(grad + at, mask=inside).to(tl.float32)
    tl.store(out + at, tl.where(kept, given * slope / (1 - p), 0.0).to(out.dtype.element_ty), mask=inside)
    ### END SOLUTION


def forward(x: torch.Tensor, bias: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    """dropout(gelu(x + bias))."""
    ### BEGIN SOLUTION
    require_probability(p)
    out, block = torch.empty_like(x), 1024
    if x.numel():
        forward_kernel[(triton.cdiv(x.numel(), block),)](x, bias, out, x.numel(), x.shape[1], p, seed, BLOCK=block)
    return out
    ### END SOLUTION


def backward(grad: torch.Tensor, x: torch.Tensor, bias: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    """The gradient of x, with the mask of `forward` made anew."""
    ### BEGIN SOLUTION
    require_probability(p)
    out, block = torch.empty_like(x), 1024
    if x.numel():
        backward_kernel[(triton.cdiv(x.numel(), block),)](
            grad, x, bias, out, x.numel(), x.shape[1], p, seed, BLOCK=block
        )
    return out


def require_probability(p: float) -> None:
    if not 0 <= p < 1:
        raise ValueError(f"p = {p}: expected a probability, at least 0 and below 1")
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "fused_chain",
    "Let a program own a run of flat indices. The column of flat index i is `i % columns`, and that is where its bias is.",
    "`tl.rand(seed, at)` with the flat index gives the same number in both kernels, whatever their block sizes. `tl.erf` and `tl.exp` work on blocks.",
    "Backward: gradient × (Φ + z·φ) / (1 − p) where kept, 0 elsewhere. Test it without dropout first: with p = 0 all of `tl.rand` is at least p.",
)

# %% nbgrader={"grade": true, "grade_id": "fused_chain_test", "locked": true, "points": 25, "schema_version": 3, "solution": false, "task": false}
with check("fused_chain", "bias, GELU and dropout in one kernel, forward and backward"):

    def inputs(rows, columns, dtype=torch.float32):
        generator = torch.Generator().manual_seed(rows * 1000 + columns)
        return [torch.randn(*s, generator=generator).to(dtype) for s in ((rows, columns), (columns,), (rows, columns))]

    def cause(outputs, otherwise):
        """The usual cause of wrong values where nothing is dropped."""
        if not torch.is_tensor(outputs):
            return otherwise
        if outputs.isnan().any():
            return "NaN is what memory holds that no program has written: are there ⌈elements / BLOCK⌉ programs?"
        return otherwise if outputs.any() else "all zero? with p = 0 everything is kept: kept is where tl.rand(…) >= p"

    for rows, columns, dtype in (
        (3, 127, torch.float32),
        (5, 256, torch.float32),
        (1, 1, torch.float32),
        (33, 100, torch.float16),
    ):
        x, bias, grad = inputs(rows, columns, dtype)
        fine = dtype == torch.float32
        z = (x.double() + bias.double()).requires_grad_()
        exact = torch.nn.functional.gelu(z)
        exact.backward(grad.double())
        run = replay(forward, x, bias, 0.0, 1)
        check.close(
            run.outputs,
            exact.detach(),
            rtol=1e-5 if fine else 1e-3,
            atol=1e-6 if fine else 1e-3,
            what=f"gelu(x + bias) of {rows} × {columns}, {dtype}, nothing dropped",
            hint=cause(
                run.outputs,
                "the exact GELU, z · Φ(z), of z = x + bias; the bias belongs to columns"
                if fine
                else "float16 is converted to float32 as it is loaded, and rounded once, at the store",
            ),
        )
        check.equal(
            [f.message for f in run.traffic.findings],
            [],
            what="what the meter objects to",
            hint="an element is read that nothing has written: allocate with torch.empty, and write before you read",
        )
        run = replay(backward, grad, x, bias, 0.0, 1)
        check.close(
            run.outputs,
            z.grad,
            rtol=1e-5 if fine else 1e-3,
            atol=1e-6 if fine else 1e-3,
            what=f"the gradient of {rows} × {columns}, {dtype}, nothing dropped",
            hint=cause(run.outputs, "the derivative of z·Φ(z) is Φ(z) + z·φ(z), in float32 like all arithmetic"),
        )
    x, bias, grad = inputs(16, 512)
    run, back = replay(forward, x, bias, 0.25, 7), replay(backward, grad, x, bias, 0.25, 7)
    kept = run.outputs != 0
    share = kept.double().mean().item()
    check.true(
        0.70 < share < 0.80,
        f"{100 * share:.1f}% of the elements are kept with p = 0.25: expected about 75%; usually: p and 1 − p exchanged",
    )
    check.equal(
        [i for i in range(2000, 2040) if not kept.flatten()[i]],
        [2001, 2010, 2011, 2012, 2013, 2027, 2028, 2029, 2030, 2037, 2038],
        what="which of the elements at flat index 2,000 to 2,039 are dropped, p = 0.25, seed 7",
        hint="element i is kept where tl.rand(seed, i) >= p, and i counts from the start of the tensor, not of the block or the row",
    )
    exact = torch.nn.functional.gelu(x.double() + bias.double()) / 0.75
    check.close(
        run.outputs[kept],
        exact[kept],
        rtol=1e-5,
        atol=1e-6,
        what="the elements that dropout keeps",
        hint="they are divided by 1 − p, so that the mean stays",
    )
    check.equal(
        (back.outputs != 0).tolist(),
        kept.tolist(),
        what="where the gradient is not zero",
        hint="backward must recompute the mask of forward: the same seed and the same flat offsets",
    )
    check.equal(
        run.traffic.total.unique_bytes,
        2 * x.nbytes + bias.nbytes,
        what="bytes that forward moves",
        hint="x and the bias in, the output out, and no mask",
    )
    check.equal(
        back.traffic.total.unique_bytes,
        3 * x.nbytes + bias.nbytes,
        what="bytes that backward moves",
        hint="grad, x and the bias in, the gradient out",
    )
    check.equal(
        [run.torch_bytes, back.torch_bytes],
        [0, 0],
        what="bytes that torch moves beside the kernels, forward and backward",
        hint="torch.zeros_like writes what the kernel writes anyway: torch.empty_like",
    )
    check.raises(ValueError, forward, x, bias, 1.0, 0, names="p = 1.0")
    check.raises(ValueError, backward, grad, x, bias, 1.0, 0, names="p = 1.0")
    ### BEGIN HIDDEN TESTS
    from math import erf, exp, pi, sqrt

    def philox(seed, offsets):
        """The first word of Philox 4 × 32 with ten rounds, counter (offset, 0, 0, 0), key (seed, 0)."""
        c0, c1, c2, c3 = np.asarray(offsets, np.uint64), *(np.zeros(len(offsets), np.uint64) for _ in range(3))
        k0, k1, low = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, np.uint64(0xFFFFFFFF)
        for _ in range(10):
            a, b = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
            c0, c1, c2, c3 = (
                ((b >> np.uint64(32)) ^ c1 ^ np.uint64(k0)) & low,
                b & low,
                ((a >> np.uint64(32)) ^ c3 ^ np.uint64(k1)) & low,
                a & low,
            )
            k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
        signed = c0.astype(np.uint32).view(np.int32).astype(np.int64)
        return np.where(signed < 0, -signed - 1, signed).astype(np.float32) * np.float32(4.6566127342e-10)

    for rows, columns, p, seed, dtype in (
        (7, 129, 0.1, 3, torch.float32),
        (33, 100, 0.5, 12345, torch.float16),
        (1, 1500, 0.9, 0, torch.float32),
    ):
        x, bias, grad = inputs(rows, columns, dtype)
        drawn = torch.from_numpy(philox(seed, range(rows * columns))).reshape(rows, columns)
        kept = drawn >= p
        z = x.double() + bias.double()
        phi = torch.tensor([[0.5 * (1 + erf(v / sqrt(2))) for v in line] for line in z.tolist()], dtype=torch.float64)
        density = torch.tensor(
            [[exp(-v * v / 2) / sqrt(2 * pi) for v in line] for line in z.tolist()], dtype=torch.float64
        )
        tolerance = {"rtol": 2e-5, "atol": 2e-6} if dtype == torch.float32 else {"rtol": 1e-3, "atol": 1e-3}
        run, back = replay(forward, x, bias, p, seed), replay(backward, grad, x, bias, p, seed)
        check.dtype(run.outputs, dtype, what="the output")
        check.dtype(back.outputs, dtype, what="the gradient")
        check.close(
            run.outputs,
            kept * z * phi / (1 - p),
            **tolerance,
            what=f"forward of {rows} × {columns}, p = {p}, seed {seed}",
            hint="the element at flat index i is kept where tl.rand(seed, i) >= p; i counts all rows, not one",
        )
        check.close(
            back.outputs,
            kept * grad.double() * (phi + z * density) / (1 - p),
            **tolerance,
            what=f"backward of {rows} × {columns}, p = {p}, seed {seed}",
            hint="the gradient is divided by 1 − p as well, and the mask comes from tl.rand(seed, flat index)",
        )
        for done, passes in ((run, 2), (back, 3)):
            check.equal(
                done.traffic.total.unique_bytes,
                passes * x.nbytes + bias.nbytes,
                what="bytes moved",
                hint="nothing but the tensors of the specification",
            )
            check.equal(
                [f.message for f in done.traffic.findings],
                [],
                what="what the meter objects to",
                hint="an element is read that nothing has written: allocate with torch.empty, and write before you read",
            )
            check.true(
                done.traffic.total.requested_bytes <= (passes + 1) * x.nbytes + bias.nbytes,
                f"{done.traffic.total.requested_bytes:,} bytes are asked for: expected each element once; usually: a tensor is read twice",
            )
            check.equal(len(done.launches), 1, what="launches", hint="one kernel does all of it")
    check.raises(ValueError, forward, x, bias, -0.5, 0, names="p = -0.5")
    check.raises(ValueError, backward, grad, x, bias, -0.5, 0, names="p = -0.5")
    check.shape(forward(torch.empty(0, 4), torch.empty(4), 0.5, 0), (0, 4), what="forward of no rows")
    ### END HIDDEN TESTS

# %% [markdown]
# ## 2 · Softmax in one pass less
#
# softmax(x)ᵢ = exp(xᵢ − m) / Σ exp(xⱼ − m), where m is the largest of the row, subtracted so that nothing overflows.
# Read literally that is three passes: find the maximum, sum the exponentials, write the quotients. If the row fits into
# one program's block, it is loaded once and all three happen on the chip. A vocabulary of 128,000 does not fit.
#
# The **online softmax** ([Milakov and Gimelshein 2018](https://arxiv.org/abs/1805.02867)) merges the first two passes.
# It walks along the row with a running maximum *m* and a running sum *s* of exp(xⱼ − m). When a block brings a larger
# maximum m′, the old sum was measured against the wrong reference, and is put right by one factor:
#
# > s ← s · exp(m − m′) + Σ exp(xⱼ − m′)
#
# This line is the heart of FlashAttention, the subject of the next lab.

# %% tags=["demo"] jupyter={"source_hidden": true}
row = np.array([1.0, 3.0, 2.0, 0.5, 2.5, 1.5, 6.0, 4.0, 5.0, 3.5, 4.5, 2.0])
fig, (left, right) = figure(1, 2, width=12, height=3.3)
left.bar(range(12), row, color=[palette.sky] * 4 + [palette.orange] * 4 + [palette.green] * 4)
running = [row[: 4 * (i + 1)].max() for i in range(3)]
for i, value in enumerate(running):
    left.plot([4 * i - 0.4, 4 * i + 3.4], [value] * 2, color=palette.ink, lw=2)
    left.text(4 * i + 1.5, value + 0.15, f"m = {value:g}", ha="center", fontsize=10)
left.set(title="A row in three blocks, and the running maximum", xticks=[], ylim=(0, 7.2))
sums, reference, m, s = [], [], -np.inf, 0.0
for i in range(3):
    block = row[4 * i : 4 * i + 4]
    raised = max(m, block.max())
    kept, new = s * np.exp(m - raised), np.exp(block - raised).sum()
    right.bar([i], [kept], color=palette.grey, label="carried over, × exp(m − m′)" if not i else None)
    right.bar([i], [new], bottom=[kept], color=[palette.sky, palette.orange, palette.green][i])
    m, s = raised, kept + new
    right.text(i, s + 0.03, f"s = {s:.3f}", ha="center", fontsize=10)
right.set(
    title="The running sum, always against the newest maximum",
    xticks=range(3),
    xticklabels=["block 1", "block 2", "block 3"],
    ylim=(0, 2.6),
)
right.legend(loc="upper right")
assert np.isclose(s, np.exp(row - row.max()).sum())
show.figure(fig)

# %% [markdown]
# ### Exercise 2 (25 points)
#
# `softmax(x, block: int) -> Tensor`, over the last dimension of `x` (rows, columns), contiguous, float32 or float16; the
# result has the dtype and shape of x. Computed in float32.
#
# - `block` is a power of two; hand it to your kernel as a constant named `BLOCK`. No tile that a program loads or
#   computes has more than `block` elements. All its tiles together, offsets, masks and intermediate results included,
#   have at most 32 · `block` elements at any time, however long the row is. The meter counts both, as
#   `run.traffic.total.largest_tile` and `.most_held`.
# - `columns <= block`: each element is read **once**.
# - `columns > block`: each element is read **twice**, not three times.
# - Each element is written once. Rows do not share a tile.
# - Entries may be −inf, and so may whole blocks, but not a whole row. Large values (1e4) are no problem.


# %% nbgrader={"grade": false, "grade_id": "online_softmax", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    """The softmax of one row a program."""
    ### BEGIN SOLUTION
    start = tl.program_id(0) * columns
    at = tl.arange(0, BLOCK)
    if columns <= BLOCK:
        inside = at < columns
        values = tl.load(x + start + at, mask=inside, other=-float("inf")).to(tl.float32)
        exponentials = tl.exp(values - tl.max(values, axis=0))
        result = exponentials / tl.sum(exponentials, axis=0)
        tl.store(out + start + at, result.to(out.dtype.element_ty), mask=inside)
    else:
        maximum = -float("inf")
        total = 0.0
        for first in range(0, columns, BLOCK):
            inside = first + at < columns
            values = tl.load(x + start + first + at, mask=inside, other=-float("inf")).to(tl.float32)
            raised = tl.maximum(maximum, tl.max(values, axis=0))
            reference = tl.where(raised == -float("inf"), 0.0, raised)
            total = total * tl.exp(maximum - reference) + tl.sum(tl.exp(values - reference), axis=0)
            maximum = raised
        for first in range(0, columns, BLOCK):
            inside = first + at < columns
            values = tl.load(x + start + first + at, mask=inside, other=-float("inf")).to(tl.float32)
            tl.store(out + start + first + at, (tl.exp(values - maximum) / total).to(out.dtype.element_ty), mask=inside)
    ### END SOLUTION


def softmax(x: torch.Tensor, block: int) -> torch.Tensor:
    """Softmax over the last dimension, at most `block` elements at a time."""
    ### BEGIN SOLUTION
    rows, columns = x.shape
    out = torch.empty_like(x)
    if rows:
        softmax_kernel[(rows,)](x, out, columns, BLOCK=block)
    return out
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "online_softmax",
    "Write the long-row loop first, with `maximum = -float('inf')` and `total = 0.0` before it. Masked lanes load −inf, so that they neither raise the maximum nor add to the sum.",
    "A row that fits is the special case: one load, then `tl.max`, `tl.exp`, `tl.sum`, and the store. `if columns <= BLOCK:` is allowed in a kernel.",
    "−inf − (−inf) is NaN. As long as a row has shown nothing but −inf, subtract 0 instead of the maximum: `tl.where(raised == -float('inf'), 0.0, raised)`.",
)

# %% nbgrader={"grade": true, "grade_id": "online_softmax_test", "locked": true, "points": 25, "schema_version": 3, "solution": false, "task": false}
with check("online_softmax", "softmax of rows of any length, and how often they are read"):
    for rows, columns, block in ((4, 100, 128), (3, 128, 128), (3, 129, 128), (2, 1000, 256)):
        x = 3 * torch.randn(rows, columns, generator=torch.Generator().manual_seed(columns))
        run = replay(softmax, x, block)
        check.close(
            run.outputs,
            x.double().softmax(-1),
            rtol=1e-5,
            atol=1e-7,
            what=f"softmax of {rows} × {columns} in blocks of {block}",
            hint="the sum so far must be multiplied by exp(old maximum − new maximum)"
            if columns > block
            else "masked lanes must load −inf, so that they add nothing: other=-float('inf')",
        )
        reads = 1 if columns <= block else 2
        total = run.traffic.total
        check.equal(
            total.requested_loaded / x.nbytes,
            float(reads),
            what=f"how often x is read at {columns} columns in blocks of {block}",
            hint="once if the row fits the block, else twice: maximum and sum are found in the same pass",
        )
        check.equal(total.requested_stored, x.nbytes, what="bytes written", hint="each element once")
        check.true(
            total.largest_tile <= block,
            f"softmax of {rows} × {columns} in blocks of {block}: a program works on a tile of {total.largest_tile:,} elements, expected at most {block}, the block",
        )
        check.equal(
            [f.message for f in run.traffic.findings],
            [],
            what="what the meter objects to",
            hint="an element is read that nothing has written: allocate with torch.empty, and write before you read",
        )
        check.equal(
            run.launches[0].constants.get("BLOCK"),
            block,
            what="the constant BLOCK",
            hint="no program may hold more than `block` elements",
        )
        check.equal(
            run.torch_bytes, 0, what="bytes that torch moves beside the kernel", hint="torch.empty_like, not zeros"
        )
    held = replay(softmax, torch.zeros(1, 1024), 16).traffic.total.most_held
    check.true(
        held <= 32 * 16,
        f"softmax of 1 × 1024 in blocks of 16: a program holds {held:,} elements at one time in all its tiles, expected at most 32 · 16 = 512; what it holds must not grow with the row",
    )
    x = torch.cat([torch.full((2, 32), -float("inf")), torch.arange(20.0).repeat(2, 1)], 1)
    check.close(
        replay(softmax, x, 16).outputs,
        x.double().softmax(-1),
        rtol=1e-5,
        atol=1e-7,
        what="softmax of rows that begin with 32 × −inf, in blocks of 16",
        hint="−inf − (−inf) is NaN: before the first finite value there is no maximum to subtract",
    )
    ### BEGIN HIDDEN TESTS
    infinity = float("inf")
    hard = {
        "a first block of −inf": torch.cat(
            [torch.full((2, 64), -infinity), torch.randn(2, 100, generator=torch.Generator().manual_seed(0))], 1
        ),
        "a last block of −inf": torch.cat(
            [torch.randn(2, 100, generator=torch.Generator().manual_seed(1)), torch.full((2, 92), -infinity)], 1
        ),
        "values near 10,000": torch.randn(2, 200, generator=torch.Generator().manual_seed(2)) + 1e4,
        "values near −10,000": torch.randn(2, 200, generator=torch.Generator().manual_seed(3)) - 1e4,
        "an ascending row": torch.arange(0, 190.0).repeat(2, 1),
        "a descending row": torch.arange(190.0, 0, -1).repeat(2, 1),
        "one column": torch.tensor([[5.0], [-7.0]]),
    }
    for name, x in hard.items():
        run = replay(softmax, x, 64)
        check.close(
            run.outputs,
            x.double().softmax(-1),
            rtol=2e-5,
            atol=1e-7,
            what=f"softmax of {name}",
            hint="subtract the maximum; before the first finite value there is none to subtract, and −inf − (−inf) is NaN",
        )
    for dtype, tolerance in ((torch.float16, 1e-3), (torch.float32, 1e-5)):
        for columns in (1, 63, 64, 65, 257):
            x = (4 * torch.randn(3, columns, generator=torch.Generator().manual_seed(columns + 7))).to(dtype)
            run = replay(softmax, x, 64)
            check.dtype(run.outputs, dtype, what="the softmax")
            check.close(
                run.outputs,
                x.double().softmax(-1),
                rtol=tolerance,
                atol=tolerance / 10,
                what=f"softmax of {columns} columns, {dtype}",
                hint="compute in float32, round once",
            )
            check.equal(
                run.traffic.total.requested_loaded / x.nbytes,
                1.0 if columns <= 64 else 2.0,
                what=f"how often x is read at {columns} columns in blocks of 64",
                hint="a row that fits is read once",
            )
    run = replay(softmax, torch.zeros(2, 500), 32)
    largest = max(launch.constants.get("BLOCK", 0) for launch in run.launches)
    check.equal(largest, 32, what="the constant BLOCK of a row of 500 with block = 32")
    run = replay(softmax, torch.zeros(1, 4096), 64)
    check.close(run.outputs.double().sum().item(), 1.0, rtol=1e-5, what="the sum of a softmax over 4,096 equal entries")
    check.true(
        run.traffic.total.largest_tile <= 64 and run.traffic.total.most_held <= 32 * 64,
        f"softmax of 1 × 4096 in blocks of 64: the largest tile has {run.traffic.total.largest_tile:,} elements and all tiles of a program {run.traffic.total.most_held:,} at one time, expected at most 64 and 32 · 64 = 2048",
    )
    check.shape(softmax(torch.empty(0, 8), 16), (0, 8), what="softmax of no rows")
    ### END HIDDEN TESTS

# %% [markdown]
# One pass less is a quarter of the traffic of a long softmax: three passes over the row and one write become two and
# one. There is a second way to say it. The pair (m, s) is a *summary* of the part of the row seen so far, and two
# summaries can be merged, in any order. So parts of a row can be summarised by different programs, on different GPUs
# even, and merged afterwards. Later labs live off that.

# %% [markdown]
# ## 3 · A gradient that crosses all rows
#
# RMSNorm divides each row by its root mean square and scales each column:
#
# > y = x · r · w,  r = 1 / √(mean(x²) + ε)
#
# ([Zhang and Sennrich 2019](https://arxiv.org/abs/1910.07467)). Forward is a softmax without the difficulty: one row fits
# a program. Backward has two results with opposite habits. With g = dy · w, and a bar for the mean over a row,
#
# > dx = r · (g − x · r² · mean(g · x)),  dw = Σ over **all rows** of dy · x · r
#
# dx belongs to a row, and a program can finish it alone. dw belongs to a column, and every program has a part of it. If
# all programs add to one array with atomics, they queue, and the sum depends on who came first: two runs differ in the
# last bits. Instead each program takes **several rows**, sums its part of dw in registers, and writes one row of
# *partial sums*; a second, small reduction adds those up. Deterministic, and cheap if the programs are few.

# %% tags=["demo"]
predict(
    "partials",
    "dw by partial sums: 4,096 rows of 4,096 BF16 values, a program for each row, partial sums in float32. What percentage of the bytes of x, dy and dx do the partial sums add, written and read?",
    unit="%",
    guess=None,
)

# %% tags=["demo"] jupyter={"source_hidden": true}
ROWS_A_PROGRAM = [1, 2, 4, 8, 16, 32, 64]
least = 3 * 4096 * 4096 * 2
extra = [100 * 2 * (4096 // r) * 4096 * 4 / least for r in ROWS_A_PROGRAM]
show.against_prediction("partials", round(extra[0], 1), unit="%", source="model: counted")
fig, axes = figure(width=8, height=2.9)
axes.bar_label(
    axes.bar(
        [str(r) for r in ROWS_A_PROGRAM], extra, color=[palette.vermillion if e > 10 else palette.blue for e in extra]
    ),
    fmt="%.3g%%",
)
axes.set(
    xlabel="rows a program",
    ylabel="% of traffic added",
    title="Partial sums of dw, for x of 4,096 × 4,096 in BF16",
    ylim=(0, 160),
)
axes.grid(axis="x", visible=False)
show.figure(fig)

# %% [markdown]
# ### Exercise 3 (25 points)
#
# `rmsnorm(x, w, epsilon: float) -> tuple[Tensor, Tensor]` returns (y, r).
#
# `rmsnorm_backward(dy, x, w, r) -> tuple[Tensor, Tensor]` returns (dx, dw).
#
# - `x`, `dy` are (rows, columns), contiguous, float32 or float16; `w` is (columns,) of the same dtype. Rows have at most
#   4,096 elements. y and dx have the dtype of x; r is (rows,) in **float32**; dw is (columns,) in **float32**. All
#   arithmetic is in float32.
# - Forward: x is read once, y written once.
# - Backward: dy and x are read once, dx is written once. It does not compute the mean of x² again: r is given.
# - Each program takes 16 rows (the last one fewer): ⌈rows / 16⌉ programs in the backward kernel. w is then read once a
#   program and not once a row.
# - dw is the same, bit for bit, in every run: no atomics. The launcher may add up the partial sums with
#   `partials.sum(0)`; beside that torch moves nothing.
# - Neither kernel **spills**: compiled for an H100 at 4,096 columns of float16, all values of a thread fit into its 255
#   registers. What does not fit is put into memory and fetched again, traffic that no address in your kernel shows.


# %% nbgrader={"grade": false, "grade_id": "rmsnorm", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def rmsnorm_kernel(x, w, y, r, rows, columns, epsilon, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Normalise ROWS rows."""
    ### BEGIN SOLUTION
    column = tl.arange(0, BLOCK)
    inside = column < columns
    scale = tl.load(w + column, mask=inside, other=0.0).to(tl.float32)
    first = tl.program_id(0) * ROWS
    for row in range(first, tl.minimum(first + ROWS, rows)):
        at = row * columns + column
        values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        inverse = 1 / tl.sqrt(tl.sum(values * values, axis=0) / columns + epsilon)
        tl.store(y + at, (values * inverse * scale).to(y.dtype.element_ty), mask=inside)
        tl.store(r + row, inverse)
    ### END SOLUTION


@triton.jit
def rmsnorm_backward_kernel(dy, x, w, r, dx, partials, rows, columns, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """dx of ROWS rows, and their part of dw."""
    ### BEGIN SOLUTION
    column = tl.arange(0, BLOCK)
    inside = column < columns
    scale = tl.load(w + column, mask=inside, other=0.0).to(tl.float32)
    part = tl.zeros((BLOCK,), tl.float32)
    first = tl.program_id(0) * ROWS
    for row in range(first, tl.minimum(first + ROWS, rows)):
        at = row * columns + column
        values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        given = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        inverse = tl.load(r + row)
        g = given * scale
        mean = tl.sum(g * values, axis=0) / columns
        result = inverse * (g - values * (inverse * inverse * mean))
        tl.store(dx + at, result.to(dx.dtype.element_ty), mask=inside)
        part += given * values * inverse
    tl.store(partials + tl.program_id(0) * columns + column, part, mask=inside)
    ### END SOLUTION


def rmsnorm(x: torch.Tensor, w: torch.Tensor, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """y = x · r · w and r = 1 / √(mean(x²) + ε) of each row."""
    ### BEGIN SOLUTION
    rows, columns = x.shape
    y, r = torch.empty_like(x), torch.empty(rows, dtype=torch.float32, device=x.device)
    if rows:
        block = triton.next_power_of_2(columns)
        rmsnorm_kernel[(triton.cdiv(rows, 16),)](x, w, y, r, rows, columns, epsilon, BLOCK=block, ROWS=16)
    return y, r
    ### END SOLUTION


def rmsnorm_backward(
    dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, r: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of x and of w."""
    ### BEGIN SOLUTION
    rows, columns = x.shape
    programs = triton.cdiv(rows, 16)
    dx, partials = torch.empty_like(x), torch.empty(programs, columns, dtype=torch.float32, device=x.device)
    if rows:
        block = triton.next_power_of_2(columns)
        rmsnorm_backward_kernel[(programs,)](dy, x, w, r, dx, partials, rows, columns, BLOCK=block, ROWS=16)
    return dx, partials.sum(0)
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "rmsnorm",
    "Let a program loop over its 16 rows, `for row in range(first, tl.minimum(first + ROWS, rows))`, one row in registers at a time. w is loaded once, before the loop.",
    "The mean is over `columns` elements, not over the block, which is rounded up to a power of two. Masked elements must be loaded as 0.",
    "dw: begin with `part = tl.zeros((BLOCK,), tl.float32)`, add dy · x · r of each row to it, and store it after the loop as row `program_id` of a (programs, columns) float32 tensor. Return `partials.sum(0)`.",
)

# %% nbgrader={"grade": true, "grade_id": "rmsnorm_test", "locked": true, "points": 25, "schema_version": 3, "solution": false, "task": false}
with check("rmsnorm", "RMSNorm forward and backward, and what they move"):

    def problem(rows, columns, dtype=torch.float32, spread=1.0):
        generator = torch.Generator().manual_seed(rows * 7919 + columns)
        x, dy, w = (torch.randn(*s, generator=generator) for s in ((rows, columns), (rows, columns), (columns,)))
        return (spread * x).to(dtype), dy.to(dtype), w.to(dtype)

    def exact(x, dy, w, epsilon):
        x, w = x.double().requires_grad_(), w.double().requires_grad_()
        r = (x.pow(2).mean(-1, keepdim=True) + epsilon).rsqrt()
        y = x * r * w
        y.backward(dy.double())
        return y.detach(), r.detach()[:, 0], x.grad, w.grad

    for rows, columns in ((1, 128), (17, 100), (33, 129)):
        x, dy, w = problem(rows, columns)
        y, r, dx, dw = exact(x, dy, w, 1e-6)
        run = replay(rmsnorm, x, w, 1e-6)
        check.close(
            run.outputs[0],
            y,
            rtol=1e-5,
            atol=1e-6,
            what=f"y of {rows} × {columns}",
            hint="the mean is over `columns` elements, not over the block; w belongs to columns",
        )
        check.close(
            run.outputs[1], r, rtol=1e-5, what=f"r of {rows} × {columns}", hint="1 / √(mean + ε): ε is inside the root"
        )
        back = replay(rmsnorm_backward, dy, x, w, r.float())
        check.close(
            back.outputs[0],
            dx,
            rtol=1e-4,
            atol=1e-5,
            what=f"dx of {rows} × {columns}",
            hint="dx = r · (g − x · r² · mean(g · x)) with g = dy · w: r depends on x as well",
        )
        check.close(
            back.outputs[1],
            dw,
            rtol=1e-4,
            atol=1e-5,
            what=f"dw of {rows} × {columns}",
            hint="the sum over all rows of dy · x · r, partial sums of every program included",
        )
        for name, done in (("forward", run), ("backward", back)):
            check.equal(
                [f.message for f in done.traffic.findings],
                [],
                what=f"what the meter objects to in {name}",
                hint="an element is read that nothing has written: allocate with torch.empty, and write before you read",
            )
    x, dy, w = problem(5, 100, spread=1e-3)
    check.close(
        replay(rmsnorm, x, w, 1e-5).outputs[1],
        exact(x, dy, w, 1e-5)[1],
        rtol=1e-5,
        what="r of rows near 0.001, with ε = 1e-5",
        hint="1 / √(mean + ε): ε is inside the root",
    )
    x, dy, w = problem(20, 100, torch.float16)
    y, r, _, _ = exact(x, dy, w, 1e-5)
    run = replay(rmsnorm, x, w, 1e-5)
    for name, got, expected, rtol in (("y", run.outputs[0], y, 1e-3), ("r", run.outputs[1], r, 1e-4)):
        check.close(
            got,
            expected,
            rtol=rtol,
            atol=1e-4 * rtol,
            what=f"{name} of 20 × 100 float16",
            hint="convert x and w to float32 as they are loaded, and round y once, at the store",
        )
    x, dy, w = problem(64, 512)
    run, back = replay(rmsnorm, x, w, 1e-6), replay(rmsnorm_backward, dy, x, w, torch.ones(64))
    check.equal(
        back.traffic.total.atomics,
        0,
        what="atomic operations of backward",
        hint="atomics make the sum depend on who comes first: write partial sums",
    )
    check.equal(
        back.launches[0].grid[0], 4, what="programs of the backward kernel for 64 rows", hint="sixteen rows each"
    )
    check.equal(
        run.traffic.total.unique_bytes,
        2 * x.nbytes + w.nbytes + 64 * 4,
        what="bytes that forward moves",
        hint="x and w in, y and r out",
    )
    check.equal(
        back.traffic.total.unique_bytes,
        3 * x.nbytes + w.nbytes + 64 * 4 + 4 * 512 * 4,
        what="bytes that backward moves",
        hint="dy, x, w and r in; dx and one row of float32 partial sums a program out",
    )
    least = 3 * x.nbytes + 4 * w.nbytes + 64 * 4 + 4 * 512 * 4
    check.true(
        back.traffic.total.requested_bytes <= 1.02 * least,
        f"backward asks for {back.traffic.total.requested_bytes:,} bytes, expected about {least:,}; usually: w is loaded inside the loop, again for every row",
    )
    check.true(
        run.torch_bytes == 0 and back.torch_bytes <= (4 + 1) * 512 * 4,
        f"torch moves {run.torch_bytes:,} bytes forward and {back.torch_bytes:,} backward: expected none and at most {(4 + 1) * 512 * 4:,}, the partial sums and dw; usually: zeros instead of torch.empty, or a cast",
    )
    x, w, r = (
        torch.empty(*shape, dtype=dtype, device="meta")
        for shape, dtype in (((64, 4096), torch.float16), ((4096,), torch.float16), ((64,), torch.float32))
    )
    for code in replay.code("sm_90", rmsnorm, x, w, 1e-6) + replay.code("sm_90", rmsnorm_backward, x, x, w, r):
        check.equal(
            code.spilled_bytes,
            0,
            what=f"bytes a thread that {code.name} spills at 4,096 columns of float16, {code.options['num_warps']} warps, on an H100",
            hint="16 rows of 4,096 values do not fit into registers: loop over the rows, one row at a time",
        )
    ### BEGIN HIDDEN TESTS
    for rows, columns, dtype, spread in (
        (16, 1, torch.float32, 1.0),
        (15, 1000, torch.float32, 1e-3),
        (40, 257, torch.float16, 1.0),
        (31, 64, torch.float16, 100.0),
    ):
        x, dy, w = problem(rows, columns, dtype, spread)
        y, r, dx, dw = exact(x, dy, w, 1e-5)
        fine = dtype == torch.float32
        run = replay(rmsnorm, x, w, 1e-5)
        back = replay(rmsnorm_backward, dy, x, w, r.float())
        case = f"{rows} × {columns} {str(dtype).removeprefix('torch.')}"
        check.dtype(run.outputs[0], dtype, what="y")
        check.dtype(run.outputs[1], torch.float32, what="r")
        check.dtype(back.outputs[0], dtype, what="dx")
        check.dtype(back.outputs[1], torch.float32, what="dw")
        check.close(
            run.outputs[0],
            y,
            rtol=2e-5 if fine else 1e-3,
            atol=1e-6 if fine else 1e-4,
            what=f"y of {case}",
            hint="ε counts when x is small; the squares are summed in float32",
        )
        check.close(
            run.outputs[1],
            r,
            rtol=2e-5,
            what=f"r of {case}",
            hint="the squares of float16 overflow float16: convert before you multiply",
        )
        scale = float((r[:, None] * dy.double() * w.double()).abs().max())  # its two terms may cancel
        check.close(
            back.outputs[0],
            dx,
            rtol=2e-4 if fine else 2e-3,
            atol=(1e-5 if fine else 1e-3) * max(scale, 1e-6),
            what=f"dx of {case}",
            hint="dx = r · (g − x · r² · mean(g · x)) with g = dy · w, and the mean over `columns`",
        )
        check.close(
            back.outputs[1],
            dw,
            rtol=2e-4 if fine else 1e-3,
            atol=(1e-5 if fine else 1e-4) * float(dw.abs().max()),
            what=f"dw of {case}",
            hint="the last program has fewer rows: what it did not load must not count",
        )
        for name, done, passes in (("forward", run, 2), ("backward", back, 3)):
            check.equal(
                [f.message for f in done.traffic.findings],
                [],
                what=f"what the meter objects to in {name}",
                hint="an element is read that nothing has written: allocate with torch.empty, and write before you read",
            )
            check.equal(
                done.traffic.total.atomics,
                0,
                what=f"atomic operations of {name}",
                hint="atomics make the sum depend on who comes first: write partial sums",
            )
            programs = -(-rows // 16)
            least = passes * x.nbytes + programs * w.nbytes + rows * 4 + (programs * columns * 4 if passes == 3 else 0)
            check.true(
                done.traffic.total.requested_bytes
                <= (1.02 * least if passes == 3 else passes * x.nbytes + rows * w.nbytes + rows * 4),
                f"{name} asks for {done.traffic.total.requested_bytes:,} bytes, expected about {least:,}; usually: w or x is read again for every row",
            )
    ### END HIDDEN TESTS

# %% [markdown]
# ## 4 · A loss that stores no probability
#
# For a row of logits z and a target t the cross-entropy is ℓ = logsumexp(z) − z[t], and its gradient is softmax(z)
# minus 1 at the target. Eager PyTorch writes the log-probabilities, reads one of them a row for the loss, fills a second
# tensor of that size, and reads both to write the gradient. With a vocabulary of 128,256 and 16,384 tokens one such
# tensor has 8.4 GB in FP32: it is often the largest tensor of the whole training step.
#
# But the gradient of a mean is known up to one factor as soon as the logits are. So one kernel can do both, in two
# passes over its row: the first finds logsumexp online, the second writes the gradient; Liger writes it over the logits.

# %% tags=["demo"]
predict(
    "loss",
    "Eager cross-entropy with its backward pass against one kernel that reads the logits twice and writes the gradient: how many times the bytes?",
    unit="×",
    guess=None,
)

# %% [markdown]
# ### Exercise 4 (25 points)
#
# `cross_entropy(logits, targets, ignore_index: int, scale: float, block: int) -> tuple[Tensor, Tensor]`
#
# - `logits` (rows, vocabulary), contiguous, float32 or float16; `targets` (rows,) int64, each a column number or
#   `ignore_index`. Returns (losses, gradient): losses (rows,) in float32; gradient of the shape and dtype of the logits.
# - `losses[i]` = logsumexp(logits[i]) − logits[i, targets[i]] in float32, **not** scaled.
# - `gradient` = scale · (softmax(logits) − one_hot(targets)): that of scale · Σ losses.
# - A row whose target is `ignore_index` has loss 0 and a gradient of zeros. Its logits may be anything, NaN included.
# - Logits may be −inf, whole blocks too, but not the target's and not a whole row (ignored rows excepted).
# - `block` is a power of two. As in exercise 2, no tile has more than `block` elements, and all tiles that a program holds
#   at one time have at most 32 · `block`.
# - Logits are read at most twice (and one element more per row, for the target), the gradient is written once, by the
#   kernel. Rows that are ignored need not be read.


# %% nbgrader={"grade": false, "grade_id": "cross_entropy", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def cross_entropy_kernel(logits, targets, losses, gradient, vocabulary, ignore_index, scale, BLOCK: tl.constexpr):
    """Loss and gradient of one row a program."""
    ### BEGIN SOLUTION
    row = tl.program_id(0)
    target = tl.load(targets + row)
    logits += row.to(tl.int64) * vocabulary
    gradient += row.to(tl.int64) * vocabulary
    at = tl.arange(0, BLOCK)
    if target == ignore_index:
        tl.store(losses + row, 0.0)
        for first in range(0, vocabulary, BLOCK):
            tl.store(gradient + first + at, tl.zeros((BLOCK,), gradient.dtype.element_ty), mask=first + at < vocabulary)
    else:
        maximum = -float("inf")
        total = 0.0
        for first in range(0, vocabulary, BLOCK):
            values = tl.load(logits + first + at, mask=first + at < vocabulary, other=-float("inf")).to(tl.float32)
            raised = tl.maximum(maximum, tl.max(values, axis=0))
            reference = tl.where(raised == -float("inf"), 0.0, raised)
            total = total * tl.exp(maximum - reference) + tl.sum(tl.exp(values - reference), axis=0)
            maximum = raised
        tl.store(losses + row, maximum + tl.log(total) - tl.load(logits + target).to(tl.float32))
        for first in range(0, vocabulary, BLOCK):
            values = tl.load(logits + first + at, mask=first + at < vocabulary, other=-float("inf")).to(tl.float32)
            probability = tl.exp(values - maximum) / total
            result = scale * (probability - tl.where(first + at == target, 1.0, 0.0))
            tl.store(gradient + first + at, result.to(gradient.dtype.element_ty), mask=first + at < vocabulary)
    ### END SOLUTION


def cross_entropy(
    logits: torch.Tensor, targets: torch.Tensor, ignore_index: int, scale: float, block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of every row and the gradient of scale · Σ losses."""
    ### BEGIN SOLUTION
    rows, vocabulary = logits.shape
    losses, gradient = torch.empty(rows, dtype=torch.float32, device=logits.device), torch.empty_like(logits)
    if rows:
        cross_entropy_kernel[(rows,)](logits, targets, losses, gradient, vocabulary, ignore_index, scale, BLOCK=block)
    return losses, gradient
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "cross_entropy",
    "The first pass is that of the online softmax: a running maximum and a running sum. logsumexp is maximum + log(sum).",
    "`tl.load(logits + row * vocabulary + target)` is the one element that the loss needs. In the second pass `first + at == target` says where to subtract 1.",
    "Decide about `ignore_index` before anything is read: an ignored row may hold NaN, and NaN · 0 is NaN. Store zeros there.",
)

# %% nbgrader={"grade": true, "grade_id": "cross_entropy_test", "locked": true, "points": 25, "schema_version": 3, "solution": false, "task": false}
with check("cross_entropy", "loss and gradient in two passes over the logits"):
    for rows, vocabulary, block in ((4, 100, 128), (3, 1000, 256), (2, 1, 16)):
        generator = torch.Generator().manual_seed(vocabulary)
        logits = 3 * torch.randn(rows, vocabulary, generator=generator)
        targets = torch.randint(vocabulary, (rows,), generator=generator)
        z = logits.double().requires_grad_()
        exact = torch.nn.functional.cross_entropy(z, targets, reduction="none")
        (0.25 * exact.sum()).backward()
        run = replay(cross_entropy, logits, targets, -100, 0.25, block)
        check.close(
            run.outputs[0],
            exact.detach(),
            rtol=1e-5,
            atol=1e-6,
            what=f"losses of {rows} × {vocabulary}",
            hint="logsumexp − the target's logit, not scaled",
        )
        check.close(
            run.outputs[1],
            z.grad,
            rtol=1e-4,
            atol=1e-7,
            what=f"gradient of {rows} × {vocabulary}",
            hint="scale · (softmax − one at the target)",
        )
        check.equal(
            [f.message for f in run.traffic.findings],
            [],
            what="what the meter objects to",
            hint="an element is read that nothing has written: allocate with torch.empty, and write before you read",
        )
        total = run.traffic.total
        check.true(
            total.requested_loaded <= 2 * logits.nbytes + rows * (8 + 4),
            f"logits of {logits.nbytes:,} bytes: {total.requested_loaded:,} bytes are read, expected at most two passes; usually: maximum and sum in passes of their own",
        )
        check.equal(
            total.requested_stored,
            logits.nbytes + 4 * rows,
            what="bytes written",
            hint="the gradient once, and a loss a row",
        )
        check.equal(run.torch_bytes, 0, what="bytes that torch moves beside the kernel", hint="torch.empty, not zeros")
        check.true(
            total.largest_tile <= block,
            f"{rows} × {vocabulary} logits in blocks of {block}: a program works on a tile of {total.largest_tile:,} elements, expected at most {block}, the block",
        )
    held = replay(cross_entropy, torch.zeros(1, 1024), torch.tensor([3]), -100, 1.0, 16).traffic.total.most_held
    check.true(
        held <= 32 * 16,
        f"1 × 1024 logits in blocks of 16: a program holds {held:,} elements at one time in all its tiles, expected at most 32 · 16 = 512; what it holds must not grow with the row",
    )
    run = replay(cross_entropy, torch.zeros(3, 10), torch.tensor([1, -100, 2]), -100, 1.0, 16)
    check.equal(
        run.outputs[0][1].item(),
        0.0,
        what="the loss of an ignored row",
        hint="compare the target with ignore_index before the logits are read; nan: no loss was stored for this row",
    )
    check.equal(
        run.outputs[1][1].tolist(),
        [0.0] * 10,
        what="the gradient of an ignored row",
        hint="store zeros over the whole row, all blocks of it; nan: nothing was stored",
    )
    ### BEGIN HIDDEN TESTS
    for rows, vocabulary, block, dtype in (
        (3, 129, 64, torch.float32),
        (5, 64, 64, torch.float16),
        (2, 3001, 1024, torch.float16),
    ):
        for ignore in (-100, 7):
            generator = torch.Generator().manual_seed(vocabulary + ignore)
            logits = (5 * torch.randn(rows, vocabulary, generator=generator)).to(dtype)
            targets = torch.randint(vocabulary, (rows,), generator=generator)
            targets[0], targets[-1] = vocabulary - 1, ignore
            z = logits.double()
            lse = torch.tensor(
                [float(line.max() + (line - line.max()).exp().sum().log()) for line in z], dtype=torch.float64
            )
            valid = targets != ignore
            picked = torch.tensor(
                [float(z[i, t]) if valid[i] else 0.0 for i, t in enumerate(targets.tolist())], dtype=torch.float64
            )
            expected = torch.where(valid, lse - picked, 0.0)
            gradient = (z - lse[:, None]).exp()
            for i, t in enumerate(targets.tolist()):
                if valid[i]:
                    gradient[i, t] -= 1.0
                else:
                    gradient[i] = 0.0
            run = replay(cross_entropy, logits, targets, ignore, 0.125, block)
            tolerance = 1e-4 if dtype == torch.float32 else 2e-3
            case = f"{rows} × {vocabulary} {str(dtype).removeprefix('torch.')}, ignore_index = {ignore}"
            check.dtype(run.outputs[0], torch.float32, what="the losses")
            check.dtype(run.outputs[1], dtype, what="the gradient")
            check.close(
                run.outputs[0],
                expected,
                rtol=1e-4,
                atol=1e-5,
                what=f"losses of {case}",
                hint="in float32, not scaled; 0 where the target is ignore_index, whatever number that is",
            )
            check.close(
                run.outputs[1],
                0.125 * gradient,
                rtol=tolerance,
                atol=tolerance * 1e-2,
                what=f"gradient of {case}",
                hint="scale · (softmax − one at the target), rounded once",
            )
            check.equal(
                [f.message for f in run.traffic.findings],
                [],
                what="what the meter objects to",
                hint="an element is read that nothing has written: allocate with torch.empty, and write before you read",
            )
            check.true(
                run.traffic.total.requested_loaded <= 2 * logits.nbytes + rows * 12,
                "the logits are read more than twice",
            )
            check.true(
                run.traffic.total.largest_tile <= block,
                f"{case}, blocks of {block}: a program works on a tile of {run.traffic.total.largest_tile:,} elements, expected at most {block}, the block",
            )
    for targets in ([5], [-100]):
        run = replay(cross_entropy, torch.zeros(1, 4096), torch.tensor(targets), -100, 1.0, 64)
        check.true(
            run.traffic.total.most_held <= 32 * 64,
            f"1 × 4096 logits in blocks of 64, target {targets[0]}: a program holds {run.traffic.total.most_held:,} elements at one time in all its tiles, expected at most 32 · 64 = 2048",
        )
    bad = torch.full((2, 40), float("nan"))
    bad[0] = torch.linspace(-200, 200, 40)
    run = replay(cross_entropy, bad, torch.tensor([0, -1]), -1, 1.0, 16)
    check.close(
        run.outputs[0],
        [400.0, 0.0],
        rtol=1e-5,
        what="losses of a row of large logits and an ignored row of NaN",
        hint="inf: the maximum is not subtracted; nan: decide about ignore_index before the logits are read, NaN · 0 is NaN",
    )
    check.equal(
        bool(run.outputs[1].isfinite().all()),
        True,
        what="whether the gradient is finite, the ignored row holding NaN",
        hint="store zeros there, do not multiply by zero",
    )
    hidden = torch.cat([torch.full((1, 32), -float("inf")), torch.zeros(1, 10)], 1)
    run = replay(cross_entropy, hidden, torch.tensor([35]), -100, 1.0, 16)
    check.close(
        run.outputs[0],
        [float(np.log(10))],
        rtol=1e-5,
        what="the loss of a row that begins with −inf",
        hint="before the first finite logit there is no maximum to subtract",
    )
    check.equal(
        len(cross_entropy(torch.empty(0, 4), torch.empty(0, dtype=torch.int64), -100, 1.0, 16)),
        2,
        what="results for no rows",
    )
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
z = torch.empty(16384, 128256, device="meta", requires_grad=True)
labels = torch.empty(16384, dtype=torch.int64, device="meta")
with eager_traffic() as eager_loss:
    torch.nn.functional.cross_entropy(z, labels).backward()
moved = sum(o.bytes for o in eager_loss)
show.against_prediction("loss", round(moved / (3 * z.nbytes), 2), unit="×", source="model: counted")
fig, axes = figure(width=9.5, height=2.8)
passes = {}
for operation in eager_loss:
    if "softmax" in operation.name or "nll_loss" in operation.name:
        passes[operation.name.removeprefix("aten.")] = (operation.read / z.nbytes, operation.written / z.nbytes)
passes["fused, loss and gradient"] = (2.0, 1.0)
names = list(passes)
axes.barh(names, [r for r, _ in passes.values()], color=palette.sky, label="reads")
axes.barh(
    names, [w for _, w in passes.values()], left=[r for r, _ in passes.values()], color=palette.orange, label="writes"
)
axes.invert_yaxis()
axes.set(
    xlim=(0, 3.2),
    xlabel="passes over the logits",
    title="Cross-entropy and its gradient, 16,384 tokens × 128,256 logits",
)
axes.grid(axis="y", visible=False)
axes.legend(loc="upper right")
show.figure(fig)

# %% [markdown]
# Both operators of the loss proper move almost nothing of what they are given: forward picks one log-probability a row,
# backward writes −1/tokens at the targets and zeros elsewhere. The eager operators are counted as if each tensor moved
# once, the fused kernel with both of its readings. Counted alike, as if the second reading came from the cache, the
# fused kernel makes 2 passes and the factor is 3.
#
# Memory tells the other half: eager keeps the log-probabilities from forward to backward. The library's `fused_linear_cross_entropy` goes one step further and never
# has all logits at once: it takes a chunk of tokens, multiplies by the vocabulary matrix, computes loss and gradient,
# multiplies back, and drops them.

# %% [markdown]
# ## Explore: what fusion saves, and what it does not
#
# A kernel's time is at least its bytes over the bandwidth, and each launch costs the host some microseconds. Which of
# the two does fusion save? Slide the size from a single token to a large batch and watch the bars change their meaning.

# %% tags=["demo"] jupyter={"source_hidden": true}
import ipywidgets

CHAINS = {  # passes over the data (reads, writes) of each kernel of the chain, and of the fused kernel
    "dropout(gelu(x + bias))": ({"add": (1, 1), "gelu": (1, 1), "dropout": (1, 1.5)}, (1, 1)),
    "silu(gate) · up": ({"silu": (1, 1), "mul": (2, 1)}, (2, 1)),
    "tanh(2·exp(−x))": ({"neg": (1, 1), "exp": (1, 1), "mul": (1, 1), "tanh": (1, 1)}, (1, 1)),
}
SHADES = [palette.sky, palette.orange, palette.green, palette.purple]


def draw_timeline(chain, machine, tokens, microseconds_a_launch):
    card = accelerator(machine)
    kernels, fused = CHAINS[chain]

    def lane(kernels):
        """Start and length, in µs, of each launch on the host and each kernel on the device."""
        host, free, spans = 0.0, 0.0, []
        for name, (reads, writes) in kernels.items():
            host += microseconds_a_launch
            begin = max(host, free)
            length = (reads + writes) * tokens * 4096 * 2 / card.memory_bandwidth * 1e6
            spans.append((name, host - microseconds_a_launch, begin, length))
            free = begin + length
        return spans, free

    eager_spans, eager_end = lane(kernels)
    fused_spans, fused_end = lane({"fused": fused})
    fig, axes = figure(width=9.5, height=3.6)
    for level, spans in ((3, eager_spans), (1, fused_spans)):
        for i, (name, launched, begin, length) in enumerate(spans):
            shade = palette.blue if name == "fused" else SHADES[i]
            axes.barh([level + 0.42], [microseconds_a_launch], left=launched, height=0.32, color=shade, alpha=0.45)
            axes.barh([level], [length], left=begin, height=0.5, color=shade, label=name)
    axes.set(
        yticks=[1, 1.42, 3, 3.42],
        yticklabels=["fused: GPU", "host", "eager: GPU", "host"],
        xlabel="µs (model)",
        xlim=(0, eager_end * 1.04),
        ylim=(0.5, 3.9),
    )
    axes.set_title(
        f"{tokens:,} token{'s' * (tokens != 1)} × 4,096 in BF16, {machine}: eager {eager_end:,.0f} µs, fused {fused_end:,.0f} µs, {eager_end / fused_end:.2f}×",
        fontsize=11,
    )
    axes.grid(axis="y", visible=False)
    fig.legend(loc="outside lower center", ncols=5)
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
    microseconds_a_launch=(1, 12, 1, 5),
)

# %% [markdown]
# Below about a thousand tokens (H100, 5 µs a launch) the GPU waits for the host, and fusion saves *launches*. Above, it
# saves *bytes*. It never
# makes a single large matmul faster: that has one launch, and its time is arithmetic.

# %% [markdown]
# ## Deep dive: layernorm + GELU + dropout
#
# Claim fuse-1 says that these three kernels and their three round trips become one. Here is the one, a row a program,
# under the meter, against the eager chain.

# %% tags=["demo"]
predict(
    "norm_chain",
    "layernorm, GELU and dropout as three kernels, dropout's one-byte mask included, against one kernel, in float32: how many times the bytes?",
    unit="×",
    guess=None,
)


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


from functools import partial

from threeloops.inner.codegen import inspect

rows, columns = 128, 1000
x, scale, shift = (
    torch.randn(*s, generator=torch.Generator().manual_seed(5)) for s in ((rows, columns), (columns,), (columns,))
)
with eager_traffic() as operators:
    normed = torch.nn.functional.layer_norm(x, (columns,), scale, shift)
    torch.native_dropout(torch.nn.functional.gelu(normed), 0.1, True)  # dropout's one kernel on a GPU
if INTERPRETED:
    with meter() as traffic:
        out = torch.empty_like(x)
        norm_gelu_dropout_kernel[(rows,)](x, scale, shift, out, columns, 0.1, 3, BLOCK=1024)
    kept = out != 0
    torch.testing.assert_close(out[kept], (torch.nn.functional.gelu(normed) / 0.9)[kept], rtol=1e-4, atol=1e-5)
    on_meta = [each.to("meta") for each in (x, scale, shift, out)]
    (code,) = inspect(partial(norm_gelu_dropout_kernel[(rows,)], *on_meta, columns, 0.1, 3, BLOCK=1024), "sm_90")
    ratio = round(sum(o.bytes for o in operators) / traffic.total.unique_bytes, 2)
    show.table(
        [[o.name.removeprefix("aten."), f"{o.bytes / x.nbytes:.2f}"] for o in operators]
        + [["one kernel (meter)", f"{traffic.total.unique_bytes / x.nbytes:.2f}"]],
        ["kernel", "bytes, in sizes of x"],
    )
    show.against_prediction("norm_chain", ratio, unit="×", source="counted: operators against the meter")
    audit(
        "fuse-1",
        ratio,
        "× less traffic",
        "CPU",
        "holds" if code.spilled_bytes == 0 else "corrected",
        how=f"layer_norm, gelu and dropout as PyTorch calls them on a GPU, with the mask that dropout stores, against one kernel under the meter, forward pass. Compiled for an H100 the one kernel takes {code.registers} registers a thread and spills {code.spilled_bytes} bytes, so no traffic is hidden",
    )

# %% [markdown]
# ## Deep dive: one launch for Q, K and V
#
# Fusion is not only for element-wise chains. Three projections of the same input are three matmuls that read it three
# times; with the weights stacked it is one. The library's `qkv_projection` also stores each head where attention wants it,
# (batch, heads, sequence, head_dim), so that the transpose that follows costs nothing.

# %% tags=["demo"]
import inspect as python_inspect

from threeloops.inner.kernels.matmul.qkv_projection import qkv_projection

print(python_inspect.signature(qkv_projection))
print(python_inspect.getdoc(python_inspect.getmodule(qkv_projection)))

# %% [markdown]
# ## Deep dive: choosing the block
#
# `@triton.autotune` compiles a kernel in several configurations, times each on the first call with a new key, and keeps
# the fastest. What it chooses between can be read without a GPU: here a softmax over rows of 4,096, compiled for an H100
# with different numbers of warps. A thread has at most 255 registers, and a multiprocessor room for 64 warps.

# %% tags=["demo"]
predict(
    "one_warp",
    "A row of 4,096 BF16 values in a single warp, held in float32: what percentage of the 64 warps can be resident?",
    unit="%",
    guess=None,
)


# %% tags=["demo"] jupyter={"source_hidden": true}
@triton.jit
def row_softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + tl.program_id(0) * columns + at, mask=inside, other=-float("inf")).to(tl.float32)
    exponentials = tl.exp(values - tl.max(values, axis=0))
    tl.store(
        out + tl.program_id(0) * columns + at,
        (exponentials / tl.sum(exponentials, axis=0)).to(out.dtype.element_ty),
        mask=inside,
    )


wide = torch.empty(1024, 4096, dtype=torch.bfloat16, device="meta")
lines = []
for warps in (1, 2, 4, 8, 16):
    (code,) = inspect(partial(row_softmax_kernel[(1024,)], wide, wide, 4096, BLOCK=4096, num_warps=warps), "sm_90")
    widths = ", ".join(f"{n} × {bits}-bit" for bits, n in sorted(code.loads.items()))
    lines.append(
        [
            warps,
            4096 // (32 * warps),
            widths,
            code.registers,
            code.spilled_bytes,
            f"{100 * code.occupancy.fraction:.0f}%",
            code.occupancy.limited_by,
        ]
    )
    if warps == 1:
        one_warp = round(100 * code.occupancy.fraction)
show.against_prediction("one_warp", one_warp, unit="%", source="compiled for sm_90")
show.table(
    lines, ["warps", "elements a thread", "loads", "registers a thread", "bytes spilled", "occupancy", "limited by"]
)

# %% [markdown]
# One warp needs 152 registers a thread, so that only 12 of 64 fit. But each thread has 16 loads of 16 bytes in flight,
# 96 KiB in all, and a reduction inside a warp needs no barrier. Sixteen warps have full occupancy and 32 KiB in flight,
# but each reduction crosses warps through shared memory, and all of them wait there. The table says what is traded; which
# is faster, only a GPU does.
#
# ## Deep dive: what torch.compile fuses
#
# You need not write all of this. `torch.compile` fuses element-wise chains and reductions by itself, into Triton on a GPU
# and C++ on a CPU. What it writes can be read, so we can count. The cell compiles three functions: about ten seconds, and
# more on a busy machine.

# %% tags=["demo"]
predict(
    "compiled",
    "dropout(gelu(x + b)), three eager kernels: how many does torch.compile write for it?",
    guess=None,
)

# %% tags=["demo"] jupyter={"source_hidden": true}
import re

from threeloops.lab import progress
from torch._inductor.utils import run_and_get_code

F = torch.nn.functional
QUESTIONS = {
    "dropout(gelu(x + b))": (
        lambda x, b: torch.native_dropout(F.gelu(x + b), 0.1, True)[0],  # as on a GPU: dropout is one operator
        (torch.randn(64, 256), torch.randn(256)),
    ),
    "gelu(layer_norm(x))": (
        lambda x, b: F.gelu(F.layer_norm(x, (256,), b, b)),
        (torch.randn(64, 256), torch.randn(256)),
    ),
    "gelu(x @ x.T)": (lambda x: F.gelu(x @ x.T), (torch.randn(64, 64),)),
}
KERNEL = re.compile(r"= async_compile\.(?:cpp_pybinding|cpp|triton)\(")
answers = []
for name, (function, given) in progress(QUESTIONS.items(), "torch.compile"):
    with eager_traffic() as ran:
        function(*given)
    torch._dynamo.reset()
    try:
        _, sources = run_and_get_code(torch.compile(function), *given)
        answers.append([name, len(ran), sum(len(KERNEL.findall(source)) for source in sources)])
    except Exception as error:  # no C++ compiler, or a Python that torch.compile does not know yet
        answers.append([name, len(ran), f"not compiled here: {type(error).__name__}"])
if isinstance(answers[0][2], int):
    show.against_prediction("compiled", answers[0][2], source="counted in the compiler's output")
show.table(
    answers,
    ["expression", "eager operators that move data", "kernels that torch.compile writes (a matmul is the library's)"],
)

# %% [markdown]
# Chains and reductions come out as one kernel. In training it still stores dropout's mask for the backward pass (torch
# 2.13): recomputing it, as in exercise 1, is yours. Nor does the compiler find a new *algorithm*: it will not discover the online softmax over blocks that becomes FlashAttention,
# nor that a loss and its gradient can share a pass. That is where writing kernels by hand still pays.
#
# ## Deep dive: does the whole model notice?
#
# Claim fuse-2 says 10 to 20% end to end. Count where the bytes of a training step of the course's GPT go, operator by
# operator, with eager PyTorch:

# %% tags=["demo"]
predict(
    "outside",
    "One training step of a small GPT in eager PyTorch: what share of the bytes is moved outside of matmuls and attention?",
    unit="%",
    guess=None,
)

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig

MATMULS = ("mm", "addmm", "bmm", "linear", "matmul")
config = GPTConfig.tiny(width=128, heads=4, kv_heads=2, mlp_width=384, max_sequence=256)
torch.manual_seed(0)
model = GPT(config)
tokens = torch.randint(config.vocabulary_size, (4, 257))
with eager_traffic() as step:
    model(tokens[:, :-1], tokens[:, 1:]).backward()
groups = {"matmuls": 0, "attention": 0, "everything else (norms, rotary, SwiGLU, loss, copies)": 0}
for operation in step:
    name = operation.name.removeprefix("aten.")
    kind = (
        "matmuls"
        if name in MATMULS
        else "attention"
        if "attention" in name
        else "everything else (norms, rotary, SwiGLU, loss, copies)"
    )
    groups[kind] += operation.bytes
share = groups["everything else (norms, rotary, SwiGLU, loss, copies)"] / sum(groups.values())
fig, axes = figure(width=9.5, height=1.9)
left_edge = 0.0
LABELS = ("matmuls", "attention", "norms, rotary, SwiGLU, loss, copies")
COLOURS = ((palette.blue, "white"), (palette.green, palette.ink), (palette.orange, palette.ink))
for label, amount, (shade, ink) in zip(LABELS, groups.values(), COLOURS, strict=True):
    part = 100 * amount / sum(groups.values())
    axes.barh([0], [part], left=left_edge, color=shade)
    axes.text(
        left_edge + part / 2,
        0.0 if part > 12 else 0.62,
        f"{label}\n{part:.0f}%",
        ha="center",
        va="center",
        fontsize=10,
        color=ink if part > 12 else palette.ink,
    )
    left_edge += part
axes.set(
    yticks=[],
    xlabel="% of the bytes that operators move, forward and backward",
    xlim=(0, 100),
    title=f"One step of a GPT of {sum(p.numel() for p in model.parameters()):,} parameters",
)
axes.set_ylim(-0.45, 0.95)
axes.grid(visible=False)
show.figure(fig)
show.against_prediction("outside", round(100 * share), unit="%", source="model: counted")

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.hardware import device

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
        round(100 * share, 1),
        "% of the bytes",
        "CPU",
        "needs a GPU",
        how="share of an eager step's traffic outside matmuls and attention, counted for a small GPT: what fusion can shrink. The time was not measured by the course yet; with a GPU this cell measures it",
    )

# %% [markdown]
# Bytes are not time. The matmuls of a large model are limited by arithmetic, and their bytes travel in its shadow, while
# every byte of the rest is waited for. So the share of *time* that fusion can win depends on the width of the model: the
# matmuls grow with its square, the rest with the width itself. A small model gains much and a large one little, and a
# claim that names a percentage without a width is not finished.

# %% [markdown]
# ## In your own words
#
# A colleague proposes to fuse the whole MLP, two matmuls with a GELU between them, into one kernel, "because fusion
# saves memory traffic". Do the numbers for width 4,096, hidden width 16,384 and 8,192 tokens in BF16. What would be saved, what would have to
# stay on the chip for it, and what do you answer?

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# *Your answer: the numbers, then the verdict.*

# %% [markdown]
# ## What to remember
#
# - An eager operator is a round trip through memory. **Fusion removes the trips, not the arithmetic.**
# - Recompute what is cheaper to compute than to fetch: a counter-based generator makes dropout's mask free.
# - A running maximum with a corrected sum makes softmax a *mergeable summary*: the idea under FlashAttention.
# - A gradient over all rows: partial sums a program, then a small reduction. No atomics, no nondeterminism.
# - Small work is limited by launches, large work by bytes. Know which you are saving before you fuse.
# - `torch.compile` fuses chains for you. It does not invent algorithms.
#
# Next: `04_flash_attention`. When the intermediate result is the problem, do not make it.
