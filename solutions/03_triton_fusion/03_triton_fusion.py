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
#     edition: 2
# ---

# %% [markdown]
# # Why do fewer, fatter kernels win?
#
# ![Three kernels with trips to memory between them, above one fused kernel](attachment:opening.png)
#
# `dropout(gelu(x + bias))` is one line of Python, but PyTorch runs it as three kernels. Each of them reads its input from
# memory and writes its output back, and the next one fetches that output again. How much of the time goes into these
# trips, and what does it take to avoid them?
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
import math

import numpy as np
import torch
import triton
import triton.language as tl
from threeloops.hardware import device
from threeloops.inner import interpreter
from threeloops.inner.meter import meter
from threeloops.lab import animate, calibration, check, debrief, hint, predict, replay, show, term
from threeloops.lab.checking.kernels import (
    alike,
    name_of,
    require_compiled,
    require_nothing,
    require_separate,
    require_sound,
    seeded,
    slip_of,
    unwritten,
)
from threeloops.lab.text.wording import describe

INTERPRETED = interpreter.enable_without_gpu()  # without a GPU, Triton kernels run in Triton's interpreter, on the CPU


def uniform(seed, offsets):
    """What tl.rand(seed, offset) gives: the first word of Philox 4 × 32 with ten rounds, as a float in [0, 1)."""
    c0, c1, c2, c3 = np.asarray(offsets, np.uint64), *(np.zeros(len(offsets), np.uint64) for _ in range(3))
    k0, k1, low = seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, np.uint64(0xFFFFFFFF)
    for _ in range(10):
        a, b = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c2 = ((b >> np.uint64(32)) ^ c1 ^ np.uint64(k0)) & low, ((a >> np.uint64(32)) ^ c3 ^ np.uint64(k1)) & low
        c1, c3 = b & low, a & low
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    signed = c0.astype(np.uint32).view(np.int32).astype(np.int64)
    return torch.from_numpy(np.where(signed < 0, -signed - 1, signed).astype(np.float32) * np.float32(4.6566127342e-10))


def loss_and_gradient(logits, targets, ignore_index, scale):
    """Loss and gradient by PyTorch in float64. An ignored row has loss 0 and gradient 0, whatever it holds."""
    ignored = torch.tensor(targets) == ignore_index
    z = logits.double().masked_fill(ignored[:, None], 0.0).requires_grad_()
    losses = torch.nn.functional.cross_entropy(z, torch.tensor(targets), ignore_index=ignore_index, reduction="none")
    (scale * losses.sum()).backward()
    return losses.detach(), z.grad


def norm_inputs(rows, columns, dtype=torch.float32, spread=1.0, epsilon=1e-6):
    """dy, x, w and r of an RMSNorm, and the gradients by PyTorch's autograd in float64."""
    x, dy = spread * seeded(rows, columns, seed=rows), seeded(rows, columns, seed=rows + 1)
    x, dy, w = x.to(dtype), dy.to(dtype), seeded(columns, seed=rows + 2, dtype=dtype)
    wide, scale = x.double().requires_grad_(), w.double().requires_grad_()
    r = (wide.pow(2).mean(-1, keepdim=True) + epsilon).rsqrt()
    (wide * r * scale).backward(dy.double())
    return (dy, x, w, r.detach()[:, 0].float()), (wide.grad, scale.grad)


def dropped_gradient(grad, x, bias, kept, p):
    """The gradient by PyTorch's autograd in float64: 0 for each dropped element."""
    z = (x.double() + bias.double()).requires_grad_()
    torch.nn.functional.gelu(z).backward(grad.double() / (1 - p))
    return torch.where(kept, z.grad, 0.0)


def require_passes(run, x, bias, passes, case):
    """Allow `passes` over tensors of the size of x, and any number of requests for the bias, because it is cached."""
    total = run.traffic.total
    require_separate(run, case)
    of_bias = sum(
        a.requested_loaded for a in total.arguments.values() if a.unique_loaded == bias.nbytes and not a.unique_stored
    )
    rest, least = total.requested_bytes - of_bias, passes * x.nbytes
    check.true(
        rest <= 1.1 * least,
        f"{rest:,} bytes are requested for {case}, the bias aside: expected {least:,}, each tensor of {x.nbytes:,} bytes once",
    )
    return total.requested_bytes


def require_blocks(run, columns, block, case):
    """Check that tiles have `block` elements at most and a quarter of that at least, and that few are held at once."""
    total, least = run.traffic.total, block // 4 if columns > block else 1
    require_separate(run, case)
    check.true(
        total.largest_tile <= block,
        f"{case}: the largest tile has {total.largest_tile:,} elements, expected at most {block:,}, the block",
    )
    check.true(
        total.largest_tile >= least,
        f"{case}: the largest tile has {total.largest_tile:,} elements, expected at least {least:,}: let `block` set the size of the tiles",
    )
    check.true(
        total.most_held <= 32 * block,
        f"{case}: a program holds {total.most_held:,} elements at once in all its tiles, expected at most 32 · {block} = {32 * block:,}, however long the row is",
    )


# %% tags=["demo", "opening"] jupyter={"source_hidden": true}
from threeloops.lab.drawings.inner import fusion

show.figure(
    fusion.draw_trips("dropout(gelu(x + bias)): what do the trips cost?"),
    "three kernels with a trip to memory between each two of them, or one kernel",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.hardware import accelerator
from threeloops.inner.profiling.eager_traffic import eager_traffic
from threeloops.lab import reveal
from threeloops.lab.drawings.inner import fusion

predict(
    "chain",
    "dropout(gelu(x + bias)) on 4,096 × 16,384 BF16 values: PyTorch's three kernels move how many times the bytes of one fused kernel? PyTorch's dropout also writes a mask of one byte per element; the fused kernel stores none.",
    unit="×",
)
TOKENS, WIDTH = 4096, 16384  # the hidden layer of an MLP of width 4,096
hidden_x = torch.empty(TOKENS, WIDTH, dtype=torch.bfloat16, device="meta")  # shapes are enough to count bytes
hidden_bias = torch.empty(WIDTH, dtype=torch.bfloat16, device="meta")
with eager_traffic() as eager:
    # native_dropout is what dropout calls on a GPU: one kernel, which also writes the mask. A CPU takes three.
    torch.native_dropout(torch.nn.functional.gelu(hidden_x + hidden_bias), 0.1, True)
fused_bytes = 2 * hidden_x.nbytes + hidden_bias.nbytes
show.against_prediction("chain", round(sum(o.bytes for o in eager) / fused_bytes, 2), unit="×", source="model: counted")
trips = [("eager", o.name.removeprefix("aten.native_").removeprefix("aten."), o.read, o.written) for o in eager]
trips.append(("fused", "one kernel", fused_bytes - hidden_x.nbytes, hidden_x.nbytes))
with reveal("chain"):
    animate(
        lambda shown: fusion.draw_moments(trips, shown, accelerator("H100 SXM").memory_bandwidth),
        range(1, len(trips) + 1),
        seconds=1.5,
        caption="Eager kernels run one after the other; the fused kernel reads and writes once.",
    )
    print(
        "Three kernels move 4 + 4 + 5 bytes per element: each reads 2 and writes 2, and dropout also writes a mask of 1.\n"
        "The fused kernel reads 2 and writes 2, and in between the values stay in registers: 13 / 4 = 3.25. The result\n"
        "changes only by rounding, because eager PyTorch rounds to BF16 after each step."
    )
term("fusion")

# %% [markdown]
# Tests compare the values that a kernel returns with float64 results. Once they are right, tests count the bytes that it
# moves. A **meter** runs the kernel in Triton's interpreter and sees every address. *Requested* bytes are those that programs ask
# for. *Unique* bytes count each byte once per launch: even a perfect cache cannot save these. "PyTorch moves nothing"
# means that the launcher allocates and launches, but does not fill, copy or convert. Never change the inputs.
#
# Put a kernel in its launcher's cell, with all functions and constants that it uses. Write a constant as a
# number inside the kernel, or above it as `HALF = tl.constexpr(0.5)`.
#
# ## 1 · Your first fused kernel
#
# The next cell holds a complete kernel and its launcher. With `n = 1000` and `block = 256` there are ⌈1000 / 256⌉ = 4
# programs. Program 3 owns the offsets 768 to 1,023, and the mask switches off its last 24 **lanes** (a lane is one
# element of a program's block). Run it: the meter reports 4,000 bytes loaded and 4,000 stored.
#
# For the exercise, take x of 3 columns. Its element 7 is in row 2 and column 7 mod 3 = 1, so its bias is `bias[1]`. With
# x = 0.5 and bias 0.5 the result is gelu(1) = (1 + 0.6827) / 2 = 0.8413.
#
# ### Exercise 1 (12 points)
#
# `bias_gelu(x, bias) -> Tensor` returns gelu(x + bias). Start from the next cell: load the bias too, and store the GELU.
#
# - `x` is (rows, columns), contiguous, float32 or float16, and may have no rows. `bias` is (columns,), of the same dtype.
#   The result has the shape and dtype of `x`.
# - The GELU is the exact one: gelu(z) = z · (1 + erf(z / √2)) / 2, where 1/√2 = 0.70710678. In Triton, `tl.erf` works on
#   blocks of float32.
# - Convert to float32 with `.to(tl.float32)` as you load, compute in float32, and round once, at the store:
#   `.to(out.dtype.element_ty)`.
# - One launch. Each element of `x` is read once and each element of the result is written once. PyTorch moves nothing.


# %% tags=["demo"]
@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # the elements of this program
    inside = at < n
    values = tl.load(x + at, mask=inside)
    tl.store(out + at, 2 * values, mask=inside)


def double(x, block=256):
    out = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), block),)](x, out, x.numel(), BLOCK=block)
    return out


if INTERPRETED:
    with meter() as traffic:
        double(torch.arange(1000.0))
    print(traffic.report())


# %% nbgrader={"grade": false, "grade_id": "bias_gelu", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def bias_gelu_kernel(x, bias, out, n, columns, BLOCK: tl.constexpr):
    """out = gelu(x + bias), BLOCK elements per program."""
    ### BEGIN SOLUTION
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    z = tl.load(x + at, mask=inside).to(tl.float32) + tl.load(bias + at % columns, mask=inside).to(tl.float32)
    gelu = 0.5 * z * (1 + tl.erf(z * 0.7071067811865476))
    tl.store(out + at, gelu.to(out.dtype.element_ty), mask=inside)
    ### END SOLUTION


def bias_gelu(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """gelu(x + bias) in one launch."""
    ### BEGIN SOLUTION
    out = torch.empty_like(x)
    bias_gelu_kernel[(triton.cdiv(x.numel(), 1024),)](x, bias, out, x.numel(), x.shape[1], BLOCK=1024)
    return out
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "bias_gelu_test_values", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("bias_gelu", "gelu(x + bias)", part="values", hidden="other sizes, in both dtypes"):

    def gelu_check(x, bias, expected, case, slips=None):
        run, fine = replay(bias_gelu, x, bias), x.dtype == torch.float32
        cause = unwritten(run, run.outputs) or slip_of(run.outputs, slips or {}, 1e-5)
        check.dtype(run.outputs, x.dtype, what="the result")
        check.close(
            run.outputs,
            expected,
            rtol=1e-5 if fine else 5.5e-4,  # one rounding to float16 is off by at most 2⁻¹¹
            atol=1e-6,
            what=f"gelu(x + bias) of {case}",
            hint=cause,
        )
        require_sound(run)
        return run.require(expected)

    gelu_check(
        torch.tensor([[0.5, -1.5, 2.0], [-0.5, 1.0, 0.0]]),
        torch.tensor([0.5, 1.0, -0.5]),
        torch.tensor([[0.841345, -0.154269, 1.399789], [0.0, 1.954500, -0.154269]]),
        "[[0.5, −1.5, 2], [−0.5, 1, 0]] with the bias [0.5, 1, −0.5]",
        {
            "these are the values of the tanh approximation: the exact one has tl.erf": [
                [0.841192, -0.154286, 1.399572],
                [0.0, 1.954598, -0.154286],
            ],
            "these are the values of gelu(x), without the bias": [
                [0.345731, -0.100211, 1.954500],
                [-0.154269, 0.841345, 0.0],
            ],
            "these are the values with the bias of the row: it belongs to the column": [
                [0.841345, -0.158655, 2.484476],
                [0.345731, 1.954500, 0.841345],
            ],
        },
    )

    def gelu_of_size(rows, columns, dtype, seed):
        x, bias = seeded(rows, columns, seed=seed, dtype=dtype), seeded(columns, seed=seed + 1, dtype=dtype)
        expected = torch.nn.functional.gelu(x.double() + bias.double())
        return gelu_check(x, bias, expected, f"{rows} × {columns} {name_of(dtype)}")

    gelu_of_size(3, 127, torch.float32, 2)
    gelu_of_size(5, 700, torch.float32, 3)
    require_compiled(gelu_of_size(33, 100, torch.float16, 4))
    nothing, bias = torch.empty(0, 4, device=device()), torch.ones(4, device=device())
    require_nothing(lambda: bias_gelu(nothing, bias), (0, 4), "gelu(x + bias) of no rows")
    ### BEGIN HIDDEN TESTS
    gelu_of_size(1, 1, torch.float32, 5)
    gelu_of_size(17, 129, torch.float16, 6)
    gelu_of_size(7, 1025, torch.float32, 7)
    gelu_of_size(33, 300, torch.float32, 8)
    gelu_of_size(2000, 3, torch.float32, 9)
    low = torch.full((3, 5), -40000.0, dtype=torch.float16)  # the sum is beyond float16's range
    gelu_check(low, low[0], torch.zeros(3, 5), "3 × 5 float16 values of −40,000, and the same as bias")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "bias_gelu_test_traffic", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("bias_gelu", "what bias_gelu moves", part="traffic", hidden="other sizes"):

    def gelu_traffic(rows, columns, dtype=torch.float32):
        x, bias = seeded(rows, columns, dtype=dtype), seeded(columns, dtype=dtype)
        run, case = replay(bias_gelu, x, bias), f"{rows} × {columns} {name_of(dtype)}"
        run.require(torch.nn.functional.gelu(x.double() + bias.double()), what=f"gelu(x + bias) of {case}")
        total, least = run.traffic.total, 2 * x.nbytes + bias.nbytes
        check.equal(len(run.launches), 1, what=f"launches for {case}", hint="one kernel does all of it")
        check.equal(
            run.torch_bytes, 0, what=f"bytes that PyTorch moves for {case}", hint="torch.empty_like, and no zeros"
        )
        check.equal(
            total.unique_bytes, least, what=f"unique bytes for {case}", hint="x and the bias in, the result out"
        )
        requested = require_passes(run, x, bias, 2, case)
        check.note(f"requested bytes, {case}", requested, 3 * x.nbytes, "B")

    gelu_traffic(16, 512)
    gelu_traffic(5, 300, torch.float16)
    ### BEGIN HIDDEN TESTS
    gelu_traffic(4, 2048, torch.float16)
    gelu_traffic(8, 1000)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "bias_gelu",
    "Let a program own a run of flat indices, as `double_kernel` does. The column of flat index i is `i % columns`, and that is where its bias is.",
    "Which of your values are still float16 when you add or multiply? By hand, element 7 of the example above: z = 1, erf(0.7071) = 0.6827.",
)
debrief(
    "bias_gelu",
    """The sum and the GELU happen between one load and one store, so the two trips between them are gone: 2 passes over
    the data instead of 4. The arithmetic is the same, but a kernel like this is limited by memory, and the multiplications
    and `tl.erf` run while the next bytes arrive.

    The bias is requested once per element and yet costs almost nothing: it is small, and after the first row it comes from
    a cache. That is the difference between requested and unique bytes.""",
    parts=("values", "traffic"),
)

# %% [markdown]
# ## 2 · A mask that is never stored
#
# Dropout zeroes each element with probability *p* and divides the others by 1 − p, so that the expected value is
# unchanged. Its backward pass has to know which elements were dropped, so PyTorch stores a mask. A kernel can use a
# **counter-based generator** instead: `tl.rand(seed, offset)` is a pure function of the seed and a counter (Philox,
# [Salmon et al. 2011](https://doi.org/10.1145/2063384.2063405)), uniform in [0, 1). A backward kernel that asks for the
# same offsets gets the same numbers, so the mask costs no memory.
#
# The next cell computes dropout alone and shows which of 8 elements it keeps: those whose number is at least p.
#
# The exercise needs the derivative of the GELU. With Φ(z) = (1 + erf(z/√2)) / 2 and φ(z) = exp(−z²/2) / √(2π), the GELU is
# z · Φ(z) and its derivative is Φ(z) + z · φ(z). In numbers, 1/√2 = 0.70710678 and 1/√(2π) = 0.39894228. By hand: at
# z = 0 the derivative is 0.5 + 0. With p = 0.25, a gradient of 3 becomes 3 · 0.5 / 0.75 = 2 where the element is kept,
# and 0 where it is dropped.
#
# ### Exercise 2 (20 points)
#
# `dropout_backward(grad, x, bias, p: float, seed: int) -> Tensor` returns the gradient of `x`, for the gradient `grad` of
# dropout(gelu(x + bias)).
#
# - `x`, `bias` and dtypes are as in exercise 1, and `grad` is like `x`. Compute in float32, round once.
# - Element *i* = row · columns + column is kept if `tl.rand(seed, i) >= p`, for every seed from 0 up to 2⁶³. Its result
#   is grad · gelu′(z) / (1 − p). A dropped element gets 0, even if its `grad` or `x` is infinite or NaN.
# - `0 <= p < 1`. Any other `p`, NaN included, raises a `ValueError` that contains `p = ` and the value, even if `x` has
#   no rows.
# - One launch. Elements of `grad` and `x` are read at most once, and those of the result are written once. Besides
#   these, only the bias is read: no mask, no zeros.


# %% tags=["demo"]
@triton.jit
def dropout_kernel(x, out, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    kept = tl.rand(seed, at) >= p
    tl.store(out + at, tl.where(kept, tl.load(x + at, mask=inside) / (1 - p), 0.0), mask=inside)


if INTERPRETED:
    out = torch.empty(8)
    dropout_kernel[(2,)](torch.ones(8), out, 8, 0.25, 7, BLOCK=4)
    numbers = uniform(7, range(8))
    show.table(
        [[i, f"{numbers[i]:.3f}", "kept" if numbers[i] >= 0.25 else "dropped", f"{out[i]:.4f}"] for i in range(8)],
        ["element", "tl.rand(7, element)", "with p = 0.25", "dropout(1)"],
    )


# %% nbgrader={"grade": false, "grade_id": "dropout_backward", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def dropout_backward_kernel(grad, x, bias, out, n, columns, p, seed, BLOCK: tl.constexpr):
    """The gradient of x, with the forward mask recomputed."""
    ### BEGIN SOLUTION
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    z = tl.load(x + at, mask=inside).to(tl.float32) + tl.load(bias + at % columns, mask=inside).to(tl.float32)
    slope = 0.5 * (1 + tl.erf(z * 0.7071067811865476)) + z * tl.exp(-0.5 * z * z) * 0.3989422804014327
    given = tl.load(grad + at, mask=inside).to(tl.float32)
    kept = tl.rand(seed, at) >= p
    tl.store(out + at, tl.where(kept, given * slope / (1 - p), 0.0).to(out.dtype.element_ty), mask=inside)
    ### END SOLUTION


def dropout_backward(grad: torch.Tensor, x: torch.Tensor, bias: torch.Tensor, p: float, seed: int) -> torch.Tensor:
    """The gradient of x, in one launch."""
    ### BEGIN SOLUTION
    if not 0 <= p < 1:
        raise ValueError(f"p = {p}: expected a probability, at least 0 and below 1")
    out, n = torch.empty_like(x), x.numel()
    if n:
        dropout_backward_kernel[(triton.cdiv(n, 1024),)](grad, x, bias, out, n, x.shape[1], p, seed, BLOCK=1024)
    return out
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "dropout_backward_test_values", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check(
    "dropout_backward", "the gradient and its mask", part="values", hidden="other sizes, seeds and p, in both dtypes"
):

    def mask_cause(got, kept):
        """The fault that the result's mask shows: nothing dropped, all dropped, the opposite mask, or one that repeats."""
        if got.isnan().any():
            return ""
        mask, columns = (got != 0).flatten(), got.shape[1]
        if not mask.any():
            return "every element is 0"
        if mask.all():
            return "nothing is dropped: these are values without dropout"
        if bool((mask == ~kept.flatten()).all()):
            return "kept and dropped are exchanged"
        for period in (columns, 64, 128, 256, 512, 1024, 2048):
            if period < len(mask) and bool((mask[period:] == mask[:-period]).all()):
                whose = "row" if period == columns else f"block of {period}"
                return f"the mask repeats every {period} elements, as if elements were counted from the start of each {whose}"
        return "element i is kept if tl.rand(seed, i) >= p"

    def backward_check(grad, x, bias, p, seed, kept, expected, case, slips=None):
        run, fine = replay(dropout_backward, grad, x, bias, p, seed), x.dtype == torch.float32
        case = f"{case}, p = {p}, seed = {seed}"
        check.dtype(run.outputs, x.dtype, what="the gradient")
        check.shape(run.outputs, tuple(x.shape), what="the gradient")
        if fine:  # in float16 a small gradient may be rounded to 0
            check.equal(
                int(((run.outputs != 0) != kept).sum()),
                0,
                what=f"elements kept or dropped wrongly, {case}",
                hint=unwritten(run, run.outputs) or mask_cause(run.outputs, kept),
            )
        check.close(
            run.outputs,
            expected,
            rtol=2e-5 if fine else 5.5e-4,
            atol=2e-6,
            what=f"the gradient of {case}",
            hint=unwritten(run, run.outputs) or slip_of(run.outputs, slips or {}, 1e-5),
        )
        require_sound(run)
        return run.require(expected)

    def backward_of_size(rows, columns, p, seed, dtype=torch.float32):
        x, bias, grad = (
            seeded(*s, seed=rows + i, dtype=dtype) for i, s in enumerate(((rows, columns), (columns,), (rows, columns)))
        )
        kept = (uniform(seed, range(rows * columns)) >= p).reshape(rows, columns)
        expected = dropped_gradient(grad, x, bias, kept, p)
        return backward_check(grad, x, bias, p, seed, kept, expected, f"{rows} × {columns} {name_of(dtype)}")

    backward_check(
        torch.tensor([[3.0, 3.0, 1.0, 2.0], [-1.0, 4.0, 2.0, 1.0]]),
        torch.tensor([[1.0, -0.5, 0.0, 2.0], [0.5, -2.0, 1.5, -1.0]]),
        torch.tensor([0.0, 0.5, 1.0, -1.0]),
        0.25,
        7,
        torch.tensor([[False, True, False, True], [True, True, True, True]]),  # as in the table above
        torch.tensor([[0.0, 2.0, 0.0, 2.888841], [-1.156660, -0.679836, 2.766963, -0.113642]]),
        "2 × 4 values",
        {
            "these are the values without the division by 1 − p": [
                [0.0, 1.5, 0.0, 2.166631],
                [-0.867495, -0.509877, 2.075222, -0.085232],
            ],
            "these are the values of grad · Φ(z): the derivative of z · Φ(z) has a second term": [
                [0.0, 2.0, 0.0, 2.243586],
                [-0.921950, 0.356305, 2.650108, 0.030334],
            ],
        },
    )
    backward_of_size(3, 5, 0.0, 1)
    backward_of_size(9, 700, 0.25, 7)
    backward_of_size(2, 7, float(uniform(3, range(14))[11]), 3)  # the number of element 11 is p itself: it is kept
    require_compiled(backward_of_size(33, 100, 0.3, 12, torch.float16))
    ### BEGIN HIDDEN TESTS
    backward_of_size(5, 205, 0.1, 3)
    backward_of_size(20, 65, 0.5, 12345, torch.float16)
    backward_of_size(1, 4500, 0.9, 0)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "dropout_backward_test_traffic", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("dropout_backward", "what dropout_backward moves", part="traffic", hidden="other sizes"):

    def backward_traffic(rows, columns, dtype=torch.float32):
        grad, x, bias = (
            seeded(*s, seed=i, dtype=dtype) for i, s in enumerate(((rows, columns), (rows, columns), (columns,)))
        )
        run, case = replay(dropout_backward, grad, x, bias, 0.25, 7), f"{rows} × {columns} {name_of(dtype)}"
        kept = (uniform(7, range(rows * columns)) >= 0.25).reshape(rows, columns)
        run.require(dropped_gradient(grad, x, bias, kept, 0.25), what=f"the gradient of {case}")
        total, least = run.traffic.total, 3 * x.nbytes + bias.nbytes
        check.equal(len(run.launches), 1, what=f"launches for {case}", hint="one kernel does all of it")
        check.equal(
            run.torch_bytes, 0, what=f"bytes that PyTorch moves for {case}", hint="torch.empty_like, and no zeros"
        )
        check.true(
            total.unique_bytes <= least,
            f"{total.unique_bytes:,} unique bytes for {case}, expected at most {least:,}: grad, x and the bias in, the gradient out",
        )
        check.equal(total.unique_stored, x.nbytes, what=f"bytes written for {case}", hint="every element, each once")
        requested = require_passes(run, x, bias, 3, case)
        check.note(f"requested bytes, {case}", requested, 4 * x.nbytes, "B")

    backward_traffic(16, 512)
    ### BEGIN HIDDEN TESTS
    backward_traffic(4, 2048, torch.float16)
    backward_traffic(8, 1000)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "dropout_backward_test_edges", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check(
    "dropout_backward", "p, seeds, no rows, infinite gradients", part="edges", hidden="other p, seeds and infinities"
):

    def unkept_check(value, seed, x=0.0):
        """Check dropped elements, of gradient `value` and input `x`, beside kept ones of gradient 1 and input 0."""
        kept = (uniform(seed, range(40)) >= 0.5).reshape(4, 10)
        grad = torch.where(kept, 1.0, value)
        run = replay(dropout_backward, grad, torch.where(kept, 0.0, x), torch.zeros(10), 0.5, seed)
        case = (
            f"{value} at each dropped element, where z = {x}, and 1 at the others, where z = 0, p = 0.5, seed = {seed}"
        )
        hint = "∞ · 0 is NaN: choose 0 there, as in the example" if run.outputs.isnan().any() else ""
        check.close(run.outputs, kept.double(), what=f"the gradient for a grad of {case}", hint=hint)

    unkept_check(1.0, 2**31 + 5)
    unkept_check(float("inf"), 7)
    unkept_check(1.0, 11, x=float("inf"))
    x, bias = torch.ones(2, 4, device=device()), torch.ones(4, device=device())
    nothing = torch.empty(0, 4, device=device())
    require_nothing(lambda: dropout_backward(nothing, nothing, bias, 0.5, 0), (0, 4), "the gradient of no rows")
    for p in (1.0, 1.5, -0.5, float("nan")):
        check.raises(ValueError, dropout_backward, x, x, bias, p, 0, names=f"p = {p}")
    check.raises(ValueError, dropout_backward, nothing, nothing, bias, 1.5, 0, names="p = 1.5")
    check.accepts(dropout_backward, x, x, bias, 0.0, 0)
    check.accepts(dropout_backward, x, x, bias, 0.9999, 0)
    ### BEGIN HIDDEN TESTS
    unkept_check(float("nan"), 3)
    unkept_check(1.0, 12, x=float("nan"))
    unkept_check(float("-inf"), 2**40 + 1)
    for p in (-1e-9, float("inf"), 7.0):
        check.raises(ValueError, dropout_backward, x, x, bias, p, 0, names=f"p = {p}")
        check.raises(ValueError, dropout_backward, nothing, nothing, bias, p, 0, names=f"p = {p}")
    check.accepts(dropout_backward, x, x, bias, 0.99, 0)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
term("counter-based generator")
hint(
    "dropout_backward",
    "Begin with the loads of your `bias_gelu_kernel`, load the gradient as well, and take the mask from `dropout_kernel`.",
    "Test without dropout first: with p = 0 every number of `tl.rand` is at least p, so everything is kept.",
    "NaN compares as false with everything. Does your condition ask whether p is bad, or whether it is not good? Only one of them stops NaN.",
)
debrief(
    "dropout_backward",
    """The mask depends on the seed and on the flat index alone, so block sizes, the number of programs and their order do
    not matter, and forward and backward agree without exchanging a byte. PyTorch's mask has one byte per element: here it
    would be written once and read once, for nothing.

    The rule is more general: recompute what is cheaper to compute than to fetch. Philox takes ten rounds, each of
    4 integer multiplications, 4 exclusive ors and 2 additions. A kernel that waits for memory has time for them.""",
    parts=("values", "traffic", "edges"),
)

# %% [markdown]
# ## 3 · Softmax in two passes instead of three
#
# softmax(x)ᵢ = exp(xᵢ − m) / Σ exp(xⱼ − m), where m is the largest value of the row, subtracted so that nothing
# overflows. A **tile** is the block of values that a program loads at once. A row that fits into one tile is read once, as
# in the next cell. Masked lanes load −inf, which neither raises the maximum nor adds to the sum. Without `other`, their values
# are undefined.
#
# A vocabulary of 128,000 does not fit. Read literally, the formula then takes three passes over the row: find the maximum,
# sum the exponentials, write the quotients. The **online softmax** ([Milakov and Gimelshein
# 2018](https://arxiv.org/abs/1805.02867)) merges the first two. It walks along the row in blocks, with a running maximum
# *m* and a running sum *s* of exp(xⱼ − m). When a block brings a larger maximum m′, the old sum still refers to m, and
# one factor corrects it:
#
# > s ← s · exp(m − m′) + Σ exp(xⱼ − m′)
#
# By hand, for the row 1, 3 | 2, 0 | 6, 4 in blocks of two:
#
# | block | m | s |
# |---|---|---|
# | 1, 3 | 3 | e⁻² + 1 = 1.135 |
# | 2, 0 | 3 | 1.135 · e⁰ + e⁻¹ + e⁻³ = 1.553 |
# | 6, 4 | 6 | 1.553 · e⁻³ + 1 + e⁻² = 1.213 |
#
# Do the exercise in steps: short rows, then long rows of ordinary values, then rows that begin with −inf. There the first
# maximum is −inf, and −inf − (−inf) is NaN: as long as the maximum is −inf, subtract 0 instead.
#
# Every graded kernel is also compiled for an H100, and the compiler requires a variable to keep its type throughout a
# loop. So begin a sum with `0.0`, not with `0`.
#
# ### Exercise 3 (24 points)
#
# `softmax(x, block: int) -> Tensor` over the last dimension of `x` (rows, columns), contiguous, float32 or float16. The
# result has the shape and dtype of `x`. Compute in float32.
#
# - One program per row. Use `BLOCK=block` (a power of two, 16 or more), and keep one block at a time. No tile has more
#   than `block` elements. For rows longer than that, the largest tile has at least block / 4. A program holds at most
#   32 · block elements at once.
# - `columns <= block`: each element is read **once**. Longer rows are read **twice**. Each element is written once, and
#   PyTorch moves nothing.
# - Entries and whole blocks may be −inf, but not a whole row. Values may reach ±10,000, and even there the result must be
#   right to 2 · 10⁻⁵: subtract m before you multiply by anything. A row that holds a NaN, even among −inf at its
#   start, becomes NaN throughout, and no other row does. `x` may have no rows.


# %% tags=["demo"]
@triton.jit
def short_softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=-float("inf")).to(tl.float32)
    exponentials = tl.exp(values - tl.max(values, axis=0))
    result = exponentials / tl.sum(exponentials, axis=0)
    tl.store(out + row * columns + at, result.to(out.dtype.element_ty), mask=inside)


if INTERPRETED:
    short = torch.empty(2, 3)
    short_softmax_kernel[(2,)](torch.tensor([[1.0, 3.0, 2.0], [0.0, 0.0, 0.0]]), short, 3, BLOCK=4)
    print(short)


# %% nbgrader={"grade": false, "grade_id": "softmax", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    """The softmax of one row per program."""
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
            values = tl.load(x + start + first + at, mask=inside).to(tl.float32)
            tl.store(out + start + first + at, (tl.exp(values - maximum) / total).to(out.dtype.element_ty), mask=inside)
    ### END SOLUTION


def softmax(x: torch.Tensor, block: int) -> torch.Tensor:
    """Softmax over the last dimension, in tiles of at most `block` elements."""
    ### BEGIN SOLUTION
    rows, columns = x.shape
    out = torch.empty_like(x)
    if rows:
        softmax_kernel[(rows,)](x, out, columns, BLOCK=block)
    return out
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "softmax_test_values", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check(
    "softmax",
    "softmax of short and of long rows",
    part="values",
    hidden="other lengths and blocks, in both dtypes",
):

    def softmax_check(x, block, what, expected=None, slips=None):
        run, expected = replay(softmax, x, block), x.double().softmax(-1) if expected is None else expected
        rtol = 1e-5 if x.dtype == torch.float32 else 5.5e-4  # one rounding to float16 is off by at most 2⁻¹¹
        cause = unwritten(run, run.outputs) or slip_of(run.outputs, slips or {}, 1e-5)
        check.dtype(run.outputs, x.dtype, what="the softmax")
        check.close(run.outputs, expected, rtol=rtol, atol=1e-7, what=what, hint=cause)
        require_sound(run)
        return run.require(expected)

    softmax_check(
        torch.tensor([[1.0, 3.0, 2.0], [0.0, 0.0, 0.0]]),
        16,
        "softmax of [[1, 3, 2], [0, 0, 0]], block 16",
        torch.tensor([[0.09003057, 0.66524096, 0.24472847], [1 / 3, 1 / 3, 1 / 3]]),
        {
            "these are the values with lanes past the end of a row counted as 0: let them load −inf": [
                [0.062934, 0.465020, 0.171071],
                [1 / 16, 1 / 16, 1 / 16],
            ]
        },
    )
    softmax_check(
        torch.tensor([[0.0] * 16 + [1.0] * 16 + [3.0] * 16]),
        16,
        "softmax of 16 zeros, 16 ones and 16 threes, block 16",
        torch.tensor([[0.002625588] * 16 + [0.007137088] * 16 + [0.052737324] * 16]),
        {
            "the old sum is not corrected: when the maximum rises, it is still measured against the old one": [
                [0.001037230] * 16 + [0.002819485] * 16 + [0.020833333] * 16
            ]
        },
    )
    for rows, columns, block in ((2, 128, 128), (2, 129, 128), (2, 300, 64)):
        softmax_check(3 * seeded(rows, columns, seed=columns), block, f"softmax of {rows} × {columns}, block {block}")
    half = 3 * seeded(2, 100, dtype=torch.float16)
    softmax_check(half, 128, "softmax of 2 × 100 float16, block 128")
    require_compiled(softmax_check(half, 32, "softmax of 2 × 100 float16, block 32"))
    ### BEGIN HIDDEN TESTS
    for columns, dtype in (
        (1, torch.float32),
        (63, torch.float16),
        (64, torch.float32),
        (65, torch.float32),
        (257, torch.float16),
    ):
        x = 4 * seeded(3, columns, seed=columns + 7, dtype=dtype)
        softmax_check(x, 64, f"softmax of 3 × {columns} {name_of(dtype)}, block 64")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "softmax_test_blocks", "locked": true, "points": 9, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("softmax", "how often a row is read, and in which tiles", part="blocks", hidden="other lengths and blocks"):

    def softmax_traffic(rows, columns, block):
        x = 3 * seeded(rows, columns, seed=columns)
        run, case = replay(softmax, x, block), f"{rows} × {columns}, block {block}"
        run.require(x.double().softmax(-1), what=f"softmax of {case}")
        check.equal(
            run.traffic.total.requested_loaded / x.nbytes,
            1.0 if columns <= block else 2.0,
            what=f"how often x is read, {case}",
            hint="once if the row fits the block, else twice: the maximum and the sum come from the same pass",
        )
        check.equal(
            run.traffic.total.requested_stored, x.nbytes, what=f"bytes written, {case}", hint="each element once"
        )
        check.equal(run.torch_bytes, 0, what=f"bytes that PyTorch moves, {case}", hint="torch.empty_like, not zeros")
        check.equal(run.traffic.total.programs, rows, what=f"programs, {case}", hint="one per row")
        require_blocks(run, columns, block, f"softmax of {case}")

    for rows, columns, block in ((2, 100, 128), (2, 128, 128), (2, 129, 128), (1, 1500, 16), (1, 2000, 512)):
        softmax_traffic(rows, columns, block)
    ### BEGIN HIDDEN TESTS
    for rows, columns, block in ((3, 64, 64), (1, 4099, 64), (1, 3000, 1024)):
        softmax_traffic(rows, columns, block)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "softmax_test_edges", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("softmax", "−inf, NaN and large values", part="edges", hidden="such values at other places"):
    infinity = float("inf")

    def hard(x, what, cause):
        run = replay(softmax, x, 16)
        if not (torch.is_tensor(run.outputs) and run.outputs.isnan().any()):
            cause = "subtract before anything else: rounding x times a constant to float32 loses digits, and x − m loses almost none"
            cause = cause if x[x.isfinite()].abs().max() > 1000 else ""
        check.close(
            run.outputs, x.double().softmax(-1), rtol=2e-5, atol=1e-7, what=f"softmax of {what}, block 16", hint=cause
        )

    blank = torch.full((1, 32), -infinity)
    nothing_yet = "−inf − (−inf) is NaN: before the first finite value there is no maximum to subtract"
    hard(torch.cat([blank, seeded(1, 20)], 1), "a row that begins with 32 × −inf", nothing_yet)
    hard(
        torch.cat([seeded(1, 20), blank], 1),
        "a row that ends with 32 × −inf",
        "a block of −inf changes neither m nor s",
    )
    hard(seeded(2, 40) + 1e4, "values near 10,000", "inf / inf is NaN: subtract the maximum before tl.exp")
    wide = torch.linspace(-1e4, 1e4, 40)[None]
    hard(wide, "values from −10,000 to 10,000", "inf / inf is NaN: subtract the largest value so far before tl.exp")
    low = "0 / 0 is NaN: a maximum that begins at 0 is larger than every value here"
    hard(seeded(2, 10) - 1e4, "short rows near −10,000", low)
    hard(seeded(2, 40) - 1e4, "rows near −10,000", low)
    spoilt = seeded(3, 40)
    spoilt[1, 20] = float("nan")
    run = replay(softmax, spoilt, 16)
    check.equal(run.outputs[1].isnan().sum().item(), 40, what="number of NaN in a row of 40 that holds one NaN")
    check.close(run.outputs[::2], spoilt[::2].double().softmax(-1), rtol=1e-5, what="the rows beside a row with NaN")
    early = torch.cat([blank, seeded(1, 8)], 1)
    early[0, 5] = float("nan")
    check.equal(
        replay(softmax, early, 16).outputs.isnan().sum().item(),
        40,
        what="number of NaN in a row of 40 that begins with 32 × −inf, of which element 5 is NaN",
        hint="keep the sum while the maximum is −inf: it may be NaN, and setting it to 0 loses that",
    )
    nothing = torch.empty(0, 8, device=device())
    require_nothing(lambda: softmax(nothing, 16), (0, 8), "softmax of no rows")
    ### BEGIN HIDDEN TESTS
    hard(torch.cat([seeded(1, 20), blank, seeded(1, 5, seed=1)], 1), "a row with 32 × −inf inside", nothing_yet)
    hard(torch.cat([blank[:, :9], seeded(1, 4)], 1), "a short row that begins with −inf", nothing_yet)
    hard(torch.arange(0, 190.0).repeat(2, 1), "an ascending row", "multiply the old sum by exp(m − m′)")
    hard(torch.arange(190.0, 0, -1).repeat(2, 1), "a descending row", "multiply the old sum by exp(m − m′)")
    hard(seeded(2, 200) - 1e4, "values near −10,000", "subtract the maximum before tl.exp")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
term("online softmax")
hint(
    "softmax",
    "Two numbers live through the first loop. Which values of m and s describe a row of which nothing has been seen yet? Follow the table by hand with them, from its first block.",
    "A short row is a special case, and a kernel may have an `if` on two sizes. What of the second pass does a row not need that is still in registers?",
    "If a row begins with a block of −inf, m is −inf after it. What has to be subtracted so that exp(−inf − …) is 0 rather than NaN? It is subtracted in two places.",
)
debrief(
    "softmax",
    """The pair (m, s) is a summary of the part of the row seen so far. Summaries can be merged in any order, so the sum
    can begin before the maximum is known. Three reads and a write become two reads and a write, three quarters of the
    traffic.

    Because summaries can be merged, parts of a row can be summarised by different programs, and even on different GPUs.
    FlashAttention, the next lab, adds a third number to the pair.""",
    parts=("values", "blocks", "edges"),
)

# %% [markdown]
# ## 4 · A gradient that crosses all rows
#
# RMSNorm divides each row by its root mean square and scales each column ([Zhang and Sennrich
# 2019](https://arxiv.org/abs/1910.07467)):
#
# > y = x · r · w,  r = 1 / √(mean(x²) + ε)
#
# Backward has two results. With g = dy · w, and mean(…) over a row,
#
# > dx = r · (g − x · r² · mean(g · x)),  dw = Σ over **all rows** of dy · x · r
#
# By hand: the mean square of x = (3, 4) is 12.5, so r = 0.2828. With w = (1, 2) and dy = (1, 1), g is (1, 2),
# mean(g · x) is 5.5, and dx = 0.2828 · (1 − 3 · 0.08 · 5.5, 2 − 4 · 0.08 · 5.5) = (−0.0905, 0.0679). The row
# adds (0.849, 1.131) to dw.
#
# A program can finish dx of its rows alone, one row at a time. But dw is a sum over all rows, and each program has only a
# part of it. With **atomics** (additions that take turns at an address) programs would queue, and the sum would depend on their
# order. Instead each program sums its part of dw in registers and writes one row of **partial sums**: `columns` float32
# values. A second, small reduction adds these rows up, in the same order every time.
#
# How many rows, k, should a program take? Two costs pull in opposite directions.
#
# - *Bytes.* For each column, k rows cost 6k bytes for x, dy and dx in 16 bits. The partial sums add 4 bytes written and
#   4 read.
# - *Idle SMs.* An H100 SXM has 132 **SMs** (the processors that run programs). If the programs are dealt out evenly, the
#   busiest SM has ⌈programs / 132⌉ of them, and the kernel takes as long as that SM.
#
# With 2,048 rows and k = 10, the partial sums add 8 / 60 = 13%. There are 205 programs, so some SMs have two of them, or 20
# rows, and others have 10: the busiest SM has 29% more than its share of 2,048 / 132 = 15.5 rows.
#
# The next cell computes dx. Its `num_warps=8` gives each program 256 threads, whose registers hold a row of 4,096 columns.
# With too few registers, values **spill** to memory.
#
# ### Exercise 4 (20 points)
#
# `rmsnorm_backward(dy, x, w, r, chunk_rows: int) -> tuple[Tensor, Tensor]` returns (dx, dw). Add dw to the kernel and the
# launcher of `rmsnorm_dx`. `rows_per_program(rows: int) -> int` is your decision: at least 1, and from 1,848 rows on
# neither cost may exceed 10%.
#
# - `x`, `dy` are (rows, columns), contiguous, float32 or float16, `w` (columns,) of that dtype, `r` (rows,) float32, with
#   any ε; columns ≤ 4,096. dx has the dtype of x, dw is **float32**. Compute in float32.
# - The first kernel has ⌈rows / chunk_rows⌉ programs. Nothing may spill; with one row at a time and `num_warps=8` nothing
#   does.
# - Each program writes one row of `columns` partial sums. The launcher returns `partials.sum(0)` or launches a second
#   kernel. No atomics, and PyTorch moves nothing else.
# - dy and x are read once, dx is written once, `w` is read once per program.


# %% tags=["demo"]
@triton.jit
def rmsnorm_dx_kernel(dy, x, w, r, dx, rows, columns, chunk_rows, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < columns
    scale = tl.load(w + column, mask=inside, other=0.0).to(tl.float32)
    first = tl.program_id(0) * chunk_rows
    for row in range(first, tl.minimum(first + chunk_rows, rows)):
        at = row * columns + column
        values = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32) * scale
        inverse = tl.load(r + row)
        mean = tl.sum(g * values, axis=0) / columns
        result = inverse * (g - values * (inverse * inverse * mean))
        tl.store(dx + at, result.to(dx.dtype.element_ty), mask=inside)


def rmsnorm_dx(dy, x, w, r, chunk_rows):
    (rows, columns), dx = x.shape, torch.empty_like(x)
    grid, block = (triton.cdiv(rows, chunk_rows),), triton.next_power_of_2(columns)
    rmsnorm_dx_kernel[grid](dy, x, w, r, dx, rows, columns, chunk_rows, BLOCK=block, num_warps=8)
    return dx


if INTERPRETED:
    x = torch.tensor([[3.0, 4.0]]).repeat(30, 1)
    r = x.square().mean(1).rsqrt()
    dx = rmsnorm_dx(torch.ones_like(x), x, torch.tensor([1.0, 2.0]), r, 14)  # programs of 14, 14 and 2 rows
    print(dx[:2])


# %% tags=["demo"] jupyter={"source_hidden": true}
from functools import partial

from threeloops.inner.codegen import inspect

predict(
    "spill",
    "At 4,096 columns rmsnorm_dx keeps three rows of float32 in registers: w, x and g. A warp has 32 threads, and a thread has at most 255 registers. What is the smallest number of warps with which nothing spills?",
    options=("1", "2", "4", "8"),
)
wide, column, single = (torch.empty(*s, dtype=d, device="meta") for s, d in (
    ((1024, 4096), torch.float16), ((4096,), torch.float16), ((1024,), torch.float32),
))  # fmt: skip
codes = {}
for warps in (1, 2, 4, 8, 16):
    launch = partial(rmsnorm_dx_kernel[(128,)], wide, wide, column, single, wide, 1024, 4096, 8)
    (codes[warps],) = inspect(partial(launch, BLOCK=4096, num_warps=warps), "sm_90")
show.against_prediction(
    "spill", str(min(w for w in codes if not codes[w].spilled_bytes)), source="compiled for an H100"
)
with reveal("spill"):
    rows_held = {"3 rows alone: w, x, g": 3, "4 rows: also the partial sums of dw": 4}
    fig = fusion.draw_registers(codes, 4096, rows_held, title="rmsnorm_dx at 4,096 columns, compiled for an H100")
    show.figure(fig, "registers and spilled values per thread, for 1 to 16 warps")
    print(
        f"On 32 threads three rows take 3 · 4,096 / 32 = 384 registers per thread. {codes[1].spilled_bytes // 4} values per thread spill: they are written\n"
        "to memory and read again for every row. Your kernel keeps a fourth row, and 4 · 4,096 / 64 = 256 is one register\n"
        "too many for two warps. With eight, most registers of an SM stay free for other programs."
    )


# %% nbgrader={"grade": false, "grade_id": "rmsnorm_backward", "locked": false, "schema_version": 3, "solution": true, "task": false}
def rows_per_program(rows: int) -> int:
    """How many rows a program of the backward kernel takes."""
    ### BEGIN SOLUTION
    return max(1, -(-rows // 132))
    ### END SOLUTION


@triton.jit
def rmsnorm_backward_kernel(dy, x, w, r, dx, partials, rows, columns, chunk_rows, BLOCK: tl.constexpr):
    """dx of `chunk_rows` rows, and their part of dw."""
    ### BEGIN SOLUTION
    column = tl.arange(0, BLOCK)
    inside = column < columns
    scale = tl.load(w + column, mask=inside, other=0.0).to(tl.float32)
    part = tl.zeros((BLOCK,), tl.float32)
    first = tl.program_id(0) * chunk_rows
    for row in range(first, tl.minimum(first + chunk_rows, rows)):
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


def rmsnorm_backward(
    dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, r: torch.Tensor, chunk_rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of x and of w, by programs of `chunk_rows` rows."""
    ### BEGIN SOLUTION
    rows, columns = x.shape
    programs, block = triton.cdiv(rows, chunk_rows), triton.next_power_of_2(columns)
    dx, partials = torch.empty_like(x), torch.empty(programs, columns, dtype=torch.float32, device=x.device)
    rmsnorm_backward_kernel[(programs,)](dy, x, w, r, dx, partials, rows, columns, chunk_rows, BLOCK=block, num_warps=8)
    return dx, partials.sum(0)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "rmsnorm_backward_test_values", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("rmsnorm_backward", "dx and dw", part="values", hidden="other sizes and magnitudes, in both dtypes"):

    def norm_check(inputs, expected, chunk_rows, case, slips_dx=None, slips_dw=None):
        run, (dx, dw), fine = replay(rmsnorm_backward, *inputs, chunk_rows), expected, inputs[1].dtype == torch.float32
        got_dx, got_dw = run.outputs
        dy, _, w, r = (values.double() for values in inputs)
        size = float((r[:, None] * dy * w).abs().max())  # of what is subtracted: one column leaves nothing of it
        check.dtype(got_dx, inputs[1].dtype, what="dx")
        check.dtype(got_dw, torch.float32, what="dw")
        check.close(
            got_dx,
            dx,
            rtol=1e-4 if fine else 5.5e-4,
            atol=1e-5 * size,
            what=f"dx of {case}, chunk_rows = {chunk_rows}",
            hint=unwritten(run, got_dx) or slip_of(got_dx, slips_dx or {}),
        )
        cause, most = unwritten(run, got_dw) or slip_of(got_dw, slips_dw or {}), float(dw.abs().max())
        if not cause and not fine and alike(got_dw, dw, 4e-3 * most):
            cause = "off by about a rounding to 16 bits: are the products, the partial sums and dw float32?"
        check.close(
            got_dw, dw, rtol=1e-4, atol=2e-5 * most, what=f"dw of {case}, chunk_rows = {chunk_rows}", hint=cause
        )
        require_sound(run)

    def norm_of_size(rows, columns, chunk_rows, dtype=torch.float32, spread=1.0, epsilon=1e-6):
        norm_check(
            *norm_inputs(rows, columns, dtype, spread, epsilon), chunk_rows, f"{rows} × {columns} {name_of(dtype)}"
        )

    x, dy, w = torch.tensor([[3.0, 4.0], [1.0, -1.0]]), torch.tensor([[1.0, 1.0], [1.0, 3.0]]), torch.tensor([1.0, 2.0])
    for chunk_rows in (2, 1):
        norm_check(
            (dy, x, w, torch.tensor([0.28284271, 1.0])),
            (torch.tensor([[-0.090510, 0.067882], [3.5, 3.5]]), torch.tensor([1.848528, -1.868629])),
            chunk_rows,
            "x = [[3, 4], [1, −1]], dy = [[1, 1], [1, 3]], w = [1, 2], r = [0.2828, 1]",
            {
                "these are the values of r · g: r depends on x as well": [[0.282843, 0.565685], [1.0, 6.0]],
                "these are the values with dy in place of g": [[0.045255, -0.033941], [2.0, 2.0]],
            },
            {
                "these are the values without the factor r": [4.0, 1.0],
                "this is the part of the last row alone": [1.0, -3.0],
                "this is the partial sum of the first program alone": [0.848528, 1.131371],
            },
        )
    norm_check(
        (torch.ones(1, 2), x[:1], w, torch.tensor([0.2])),
        (torch.tensor([[0.068, 0.224]]), torch.tensor([0.6, 0.8])),
        3,
        "x = [3, 4], dy = [1, 1], w = [1, 2], r = 0.2, which belongs to ε = 12.5",
        {"these are the values with r computed from x: use the argument r": [[-0.090510, 0.067882]]},
    )
    norm_of_size(37, 100, 14)
    norm_of_size(20, 129, 6, torch.float16)
    ### BEGIN HIDDEN TESTS
    norm_of_size(1, 128, 5)
    norm_of_size(15, 1100, 4, spread=1e-3)
    norm_of_size(61, 64, 9, torch.float16, 100.0)
    norm_of_size(16, 1, 16)
    norm_of_size(43, 3, 1, epsilon=torch.full((43, 1), 0.5))
    norm_of_size(30, 6, 7, epsilon=2 * torch.arange(1.0, 31.0)[:, None])
    norm_of_size(9, 70, 2, spread=0.0)  # x = 0, so r = 1,000
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "rmsnorm_backward_test_traffic", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("rmsnorm_backward", "what rmsnorm_backward moves, spills included", part="traffic", hidden="other sizes"):

    def norm_run(rows, columns, chunk_rows, dtype):
        (dy, x, w, r), expected = norm_inputs(rows, columns, dtype)
        run = replay(rmsnorm_backward, dy, x, w, r, chunk_rows)
        return run.require(expected, what=f"(dx, dw) of {rows} × {columns} {name_of(dtype)}"), x, w, r

    def norm_traffic(rows, columns, chunk_rows, dtype=torch.float32):
        run, x, w, r = norm_run(rows, columns, chunk_rows, dtype)
        case = f"{rows} × {columns} {name_of(dtype)}, chunk_rows = {chunk_rows}"
        total, programs = run.traffic.total, -(-rows // chunk_rows)
        check.equal(total.atomics, 0, what=f"atomic operations for {case}", hint="write partial sums")
        require_separate(run, case)
        check.equal(math.prod(run.launches[0].grid), programs, what=f"programs for {case}", hint="⌈rows / chunk_rows⌉")
        partial, sums = programs * 4 * columns, f"the partial sums ({programs} rows of {columns} float32)"
        check.true(
            run.torch_bytes <= partial + 4 * columns,
            f"PyTorch moves {run.torch_bytes:,} bytes for {case}: expected at most {partial + 4 * columns:,}, {sums} and dw",
        )
        least = 3 * x.nbytes + w.nbytes + r.nbytes + 2 * partial + 4 * columns
        unique = total.unique_bytes + run.torch_bytes
        check.true(
            unique <= 1.01 * least,
            f"{unique:,} unique bytes are moved for {case}, PyTorch's {run.torch_bytes:,} included: expected {least:,}: dy, x, w and r in, dx out, {sums} written and read, dw out",
        )
        requested, least = total.requested_bytes + run.torch_bytes, least + (programs - 1) * w.nbytes
        check.true(
            requested <= 1.03 * least,
            f"{requested:,} bytes are requested for {case}, PyTorch's included: expected about {least:,}; is w, dy or x loaded more than once?",
        )
        check.note(f"requested bytes, {case}", requested, least, "B")

    norm_traffic(64, 256, 14)
    norm_traffic(50, 300, 20, torch.float16)
    for code in norm_run(30, 4096, 14, torch.float16)[0].code("sm_90"):
        check.true(code.fits, f"{code.name}, compiled for an H100, does not fit: {', '.join(code.misfits)}")
        check.equal(
            code.spilled_bytes,
            0,
            what=f"bytes per thread that {code.name} spills at 4,096 columns of float16, num_warps = {code.options['num_warps']}",
            hint="keep one row of 4,096 values in registers at a time, and launch with num_warps=8",
        )
    ### BEGIN HIDDEN TESTS
    norm_traffic(45, 700, 15)
    norm_traffic(29, 512, 4)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "rmsnorm_backward_test_rows", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("rmsnorm_backward", "how many rows a program takes", part="rows", hidden="other numbers of rows"):

    def rows_check(rows):
        chunk_rows = rows_per_program(rows)
        check.true(
            type(chunk_rows) is int and chunk_rows >= 1,
            f"rows_per_program({rows:,}) = {describe(chunk_rows)}: expected a whole number of at least 1",
        )
        if rows < 1848:
            return
        programs = -(-rows // chunk_rows)
        most, share = -(-programs // 132) * chunk_rows, rows / 132
        added = 100 * 8 / 6 * programs / rows
        case = f"rows_per_program({rows:,}) = {chunk_rows} gives {programs:,} programs"
        check.true(
            most <= 1.1 * share,
            f"{case}, so the busiest of 132 SMs has {most:,} rows: expected at most 10% more than {share:,.1f}, its share",
        )
        check.true(
            added <= 10,
            f"{case}, whose partial sums add {added:.1f}% to the traffic: expected at most 10%",
        )

    for rows in (1, 100, 1848, 2048, 4096, 65536):
        rows_check(rows)
    ### BEGIN HIDDEN TESTS
    for rows in (2, 131, 1849, 1980, 1981, 3000, 16384, 10**6):
        rows_check(rows)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
term("spill")
hint(
    "rmsnorm_backward",
    "Start from `rmsnorm_dx_kernel` and its launcher. The kernel needs one more argument, for the partial sums, and dy and g as two variables.",
    "What does one row add to dw? Keep a running sum of it, one float32 per column, like s in the softmax. Store it once: inside the loop or after it?",
    "Worked by hand: 30 rows of 2 columns with chunk_rows = 14 have 3 programs, so the partial sums are 3 × 2 numbers. Program 2 owns the numbers 4 and 5 of them.",
)
debrief(
    "rmsnorm_backward",
    """A sum over all rows becomes two sums: one inside each program, in registers, and a small one over the programs. The
    order of every addition is fixed, so two runs agree bit for bit, which atomics cannot promise.

    The number of rows per program is a compromise between bytes and idle SMs. One program per SM, ⌈rows / 132⌉ rows each,
    meets both bounds. Rounding down does not: at 2,048 rows it gives 15, hence 137 programs, so five SMs have two
    programs each. Kernels in production choose the same way: Liger's RMSNorm launches one program per SM.""",
    parts=("values", "traffic", "rows"),
)

# %% [markdown]
# ## 5 · A loss that stores no probability
#
# For a row of logits z and a target t the cross-entropy is ℓ = logsumexp(z) − z[t], and its gradient is softmax(z) minus 1
# at the target. By hand, for z = (1, 3, 2) and t = 0: m = 3, s = e⁻² + 1 + e⁻¹ = 1.503, logsumexp = 3 + log s = 3.408, so
# ℓ = 2.408, and the gradient is (0.090 − 1, 0.665, 0.245).
#
# Digits are lost if two large numbers are rounded before they are subtracted. For z = (10000, 9992) and t = 0, logsumexp
# is 10000.000335, which float32 rounds to 10000, and ℓ becomes 0. It is 0.000335, and log s + (m − z[t]) gives that.
#
# Eager PyTorch writes all log-probabilities, picks one per row, fills a second tensor of that size, and reads both for the
# gradient. With a vocabulary of 128,256 and 16,384 tokens one such tensor takes 8.4 GB in float32. The next cell computes
# the loss alone, for rows that fit into a tile. Extend it in two steps: first long rows, with the first pass of your
# softmax kernel, then the gradient, in the same kernel. The gradient need not wait for a backward pass, because logits and
# target determine it up to one factor: `scale`, for example 1 / rows for a mean of losses. (Offsets beyond 2³¹
# need `row.to(tl.int64)`.)
#
# ### Exercise 5 (24 points)
#
# `cross_entropy(logits, targets, ignore_index: int, scale: float, block: int) -> tuple[Tensor, Tensor]` returns (losses,
# gradient).
#
# - `logits` (rows, vocabulary), contiguous, float32 or float16; `targets` (rows,) int64, each a column or `ignore_index`.
#   Compute in float32. losses (rows,) are float32 and **not** scaled. gradient = scale · (softmax(logits) −
#   one_hot(targets)), in the shape and dtype of the logits.
# - One program per row, with `BLOCK=block` and exercise 3's limits on tiles. Logits are read at most twice, plus one element per row
#   for the target. The gradient is written once, and PyTorch moves nothing.
# - A row whose target is `ignore_index`, whatever number that is, has loss 0 and a gradient of zeros. Its logits may be NaN,
#   and NaN · 0 is NaN.
# - Other rows may hold −inf, in whole blocks too, but not at the target and not everywhere. Values may reach ±10,000,
#   and even there the losses must be right to 2 · 10⁻⁵ (relative) or 10⁻⁶ (absolute). `logits` may have no rows.


# %% tags=["demo"]
@triton.jit
def short_loss_kernel(logits, targets, losses, vocabulary, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    values = tl.load(logits + row * vocabulary + at, mask=at < vocabulary, other=-float("inf")).to(tl.float32)
    maximum = tl.max(values, axis=0)
    total = tl.sum(tl.exp(values - maximum), axis=0)
    picked = tl.load(logits + row * vocabulary + tl.load(targets + row)).to(tl.float32)
    tl.store(losses + row, tl.log(total) + (maximum - picked))


if INTERPRETED:
    loss = torch.empty(2)
    short_loss_kernel[(2,)](torch.tensor([[1.0, 3.0, 2.0], [0.0, 0.0, 0.0]]), torch.tensor([0, 2]), loss, 3, BLOCK=4)
    print(loss)


# %% nbgrader={"grade": false, "grade_id": "cross_entropy", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def cross_entropy_kernel(logits, targets, losses, gradient, vocabulary, ignore_index, scale, BLOCK: tl.constexpr):
    """Loss and gradient of one row per program."""
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
        tl.store(losses + row, tl.log(total) + (maximum - tl.load(logits + target).to(tl.float32)))
        for first in range(0, vocabulary, BLOCK):
            values = tl.load(logits + first + at, mask=first + at < vocabulary).to(tl.float32)
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


# %% nbgrader={"grade": true, "grade_id": "cross_entropy_test_values", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("cross_entropy", "losses and gradient", part="values", hidden="other sizes and scales, in both dtypes"):

    def loss_check(logits, targets, scale, block, expected=None, slips_loss=None, slips_gradient=None):
        rows, vocabulary = logits.shape
        run = replay(cross_entropy, logits, torch.tensor(targets), -100, scale, block)
        (losses, gradient), fine = run.outputs, logits.dtype == torch.float32
        expected = expected or loss_and_gradient(logits, targets, -100, scale)
        case = f"{rows} × {vocabulary} {name_of(logits.dtype)}, scale {scale}, block {block}"
        cause = unwritten(run, losses) or slip_of(losses, slips_loss or {}, 1e-5)
        check.dtype(losses, torch.float32, what="the losses")
        check.close(losses, expected[0], rtol=1e-5, atol=1e-6, what=f"losses of {case}", hint=cause)
        cause = unwritten(run, gradient) or slip_of(gradient, slips_gradient or {}, 1e-5)
        check.dtype(gradient, logits.dtype, what="the gradient")
        rtol = 1e-4 if fine else 5.5e-4  # one rounding to float16 is off by at most 2⁻¹¹
        check.close(
            gradient, expected[1], rtol=rtol, atol=1e-6 if fine else 1e-7, what=f"gradient of {case}", hint=cause
        )
        require_sound(run)
        return run.require(expected)

    loss_check(
        torch.tensor([[1.0, 3.0, 2.0], [0.0, 0.0, 0.0]]),
        [0, 2],
        0.3,
        16,
        (
            torch.tensor([2.407606, 1.098612]),
            torch.tensor([[-0.272991, 0.199572, 0.073419], [0.1, 0.1, -0.2]]),
        ),
        {"these are the losses times scale: expected the losses themselves": [0.722282, 0.329584]},
        {
            "these are the values without scale": [[-0.909969, 0.665241, 0.244728], [1 / 3, 1 / 3, -2 / 3]],
            "these are the values without the 1 at the target": [[0.027009, 0.199572, 0.073419], [0.1, 0.1, 0.1]],
            "these are the values with the softmax scaled and the 1 at the target not": [
                [-0.972991, 0.199572, 0.073419],
                [0.1, 0.1, -0.9],
            ],
        },
    )
    loss_check(3 * seeded(3, 100), [0, 99, 50], 0.3, 128)
    loss_check(seeded(2, 40), [7, 39], -0.5, 16)
    require_compiled(loss_check(seeded(2, 300, dtype=torch.float16), [299, 64], 0.6, 64))
    ### BEGIN HIDDEN TESTS
    for rows, vocabulary, block, dtype in (
        (3, 129, 64, torch.float32),
        (5, 64, 64, torch.float16),
        (2, 3001, 1024, torch.float32),
        (2, 1, 16, torch.float32),
    ):
        targets = torch.randint(vocabulary, (rows,), generator=torch.Generator().manual_seed(vocabulary)).tolist()
        loss_check(5 * seeded(rows, vocabulary, seed=vocabulary, dtype=dtype), targets, 0.15, block)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "cross_entropy_test_blocks", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("cross_entropy", "what cross_entropy moves, and in which tiles", part="blocks", hidden="other sizes"):

    def loss_traffic(rows, vocabulary, block, targets, dtype=torch.float32):
        logits, case = 3 * seeded(rows, vocabulary, dtype=dtype), f"{rows} × {vocabulary}, block {block}"
        run = replay(cross_entropy, logits, torch.tensor(targets), -100, 0.3, block)
        expected = loss_and_gradient(logits, targets, -100, 0.3)
        total = run.require(expected, what=f"(losses, gradient) of {case}").traffic.total
        most = 2 * logits.nbytes + rows * 12
        check.true(
            total.requested_loaded <= most,
            f"{total.requested_loaded:,} bytes are read for {case}, expected at most {most:,}: two passes over the logits, one for maximum and sum, one for the gradient",
        )
        if -100 not in targets:  # what an ignored row holds is another part
            check.equal(
                total.requested_stored,
                logits.nbytes + 4 * rows,
                what=f"bytes written for {case}",
                hint="the gradient once, and a loss per row",
            )
        check.equal(run.torch_bytes, 0, what=f"bytes that PyTorch moves for {case}", hint="torch.empty, not zeros")
        check.equal(total.programs, rows, what=f"programs for {case}", hint="one per row")
        require_blocks(run, vocabulary, block, f"cross_entropy of {case}")

    loss_traffic(2, 100, 128, [5, 99])
    loss_traffic(1, 1500, 16, [700])
    loss_traffic(2, 2000, 512, [5, -100], torch.float16)
    ### BEGIN HIDDEN TESTS
    loss_traffic(2, 4096, 64, [5, -100])
    loss_traffic(3, 129, 64, [1, -100, 128])
    loss_traffic(1, 3000, 1024, [2999])
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "cross_entropy_test_edges", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check(
    "cross_entropy", "ignored rows, NaN, −inf and large values", part="edges", hidden="such values at other places"
):

    def edge_check(logits, targets, ignore, block, what):
        run = replay(cross_entropy, logits, torch.tensor(targets), ignore, 1.0, block)
        (losses, gradient), (exact, expected) = run.outputs, loss_and_gradient(logits, targets, ignore, 1.0)
        for row, target in enumerate(targets):
            place = f"row {row} of {what}, target {target}, ignore_index {ignore}, block {block}"
            finite = not (losses[row].isnan() or gradient[row].isnan().any())
            if target == ignore and finite:
                cause = "an ignored row has loss 0 and a gradient of zeros; ignore_index is an argument"
            elif target == ignore:
                cause = "nan: nothing was stored, or NaN was multiplied by 0; decide before the logits are read"
            elif not finite:
                cause = "subtract the maximum before tl.exp; before the first finite logit there is none, and −inf − (−inf) is NaN"
            else:
                large = logits[row].isfinite().any() and logits[row][logits[row].isfinite()].abs().max() > 1000
                cause = (
                    "two large numbers were rounded before they were subtracted: subtract z[t] from m first"
                    if large
                    else ""
                )
            check.close(losses[row], exact[row], rtol=2e-5, atol=1e-6, what=f"loss of {place}", hint=cause)
            check.close(gradient[row], expected[row], rtol=1e-4, atol=1e-6, what=f"gradient of {place}", hint=cause)

    infinity = float("inf")
    edge_check(seeded(3, 40), [1, -100, 39], -100, 16, "ordinary logits")
    edge_check(seeded(2, 40), [7, 3], 7, 16, "ordinary logits")
    spoilt = seeded(2, 40)
    spoilt[1] = float("nan")
    edge_check(spoilt, [0, -1], -1, 16, "logits with a row of NaN")
    edge_check(torch.cat([torch.full((1, 32), -infinity), seeded(1, 10)], 1), [35], -100, 16, "32 × −inf, then numbers")
    edge_check(torch.tensor([[10000.0, 9992.0]]), [0], -100, 16, "[[10,000, 9,992]]")
    edge_check(torch.linspace(-1e4, 1e4, 40).repeat(2, 1), [0, 39], -100, 16, "logits from −10,000 to 10,000")
    edge_check(seeded(1, 40) - 1e4, [7], -100, 16, "logits near −10,000")
    no_rows, no_targets = torch.empty(0, 8, device=device()), torch.empty(0, dtype=torch.int64, device=device())
    for part, shape in ((0, (0,)), (1, (0, 8))):
        require_nothing(
            lambda part=part: cross_entropy(no_rows, no_targets, -100, 1.0, 16)[part],
            shape,
            f"the {('losses', 'gradient')[part]} of no rows",
        )
    ### BEGIN HIDDEN TESTS
    edge_check(torch.full((2, 33), infinity), [2, 2], 2, 16, "infinite logits")
    edge_check(torch.cat([seeded(1, 5), torch.full((1, 40), -infinity)], 1), [4], -100, 16, "numbers, then 40 × −inf")
    inside = torch.cat([seeded(1, 20), torch.full((1, 16), -infinity), seeded(1, 9)], 1)
    edge_check(inside, [40], 0, 16, "−inf inside")
    edge_check(seeded(2, 20) - 1e4, [19, 0], 19, 32, "logits near −10,000")
    edge_check(torch.tensor([[-9992.0] * 20 + [-9980.0] * 20]), [39], -100, 16, "−9,992 and −9,980")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "cross_entropy",
    "The first pass is that of the online softmax: a running maximum and a running sum. The loss follows from both, as in the worked example.",
    "The second pass loads each block again. Every lane of a block has a column number. Which lane gets the 1 subtracted, and in which block is it?",
    "An ignored row still has to write its whole gradient. How can it do so without reading a logit?",
)
debrief(
    "cross_entropy",
    """A loss and its gradient share almost all of their work. The factor that the backward pass would bring
    (scale) is known in advance, so the kernel need not wait for it: the logits are read twice, the gradient is written once, and no
    probability ever reaches memory. Kernels in production even write the gradient over the logits.

    Eager PyTorch makes 6 passes over tensors of this size and keeps the log-probabilities from forward to backward. The
    deep dives count them.""",
    parts=("values", "blocks", "edges"),
)

# %% [markdown]
# ## Your kernels train a model
#
# PyTorch calls a kernel through an `autograd.Function`, whose `forward` and `backward` launch it. The next cell wraps your
# five and trains a model of 10,000 parameters, with eager PyTorch and with your kernels, on the same batches and masks (10 seconds).

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.lab import progress, together

F = torch.nn.functional
DROPPED, LENGTH, FEATURES = 0.1, 16, 32
SENTENCE = "the quick brown fox jumps over the lazy dog. " * 4
LETTERS = sorted(set(SENTENCE))
CORPUS = torch.tensor([LETTERS.index(letter) for letter in SENTENCE])
parts = together("bias_gelu", "dropout_backward", "softmax", "rmsnorm_backward", "cross_entropy")


class GeluDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias, seed):
        ctx.save_for_backward(x, bias)
        ctx.seed = seed
        activated, out = parts.bias_gelu(x, bias), torch.empty_like(x)
        dropout_kernel[(triton.cdiv(x.numel(), 1024),)](activated, out, x.numel(), DROPPED, seed, BLOCK=1024)
        return out

    @staticmethod
    def backward(ctx, grad):
        dx = parts.dropout_backward(grad.contiguous(), *ctx.saved_tensors, DROPPED, ctx.seed)
        return dx, dx.sum(0), None


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = parts.softmax(x, LENGTH)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return torch.ops.aten._softmax_backward_data(grad, y, -1, y.dtype)


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        r = (x.square().mean(-1) + 1e-6).rsqrt()
        ctx.save_for_backward(x, w, r)
        return x * r[:, None] * w

    @staticmethod
    def backward(ctx, grad):
        return parts.rmsnorm_backward(grad.contiguous(), *ctx.saved_tensors, 8)


class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets):
        losses, gradient = parts.cross_entropy(logits, targets, -100, 1 / len(targets), LENGTH)
        ctx.save_for_backward(gradient)
        return losses.mean()

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0] * grad, None


def eager_dropout(x, bias, seed):
    """The same mask, drawn on the host."""
    kept = uniform(seed, range(x.numel())).reshape(x.shape).to(x.device) >= DROPPED
    return F.gelu(x + bias) * kept / (1 - DROPPED)


EAGER = (eager_dropout, lambda x: x.softmax(-1), lambda x, w: F.rms_norm(x, w.shape, w, 1e-6), F.cross_entropy)
OWN = (GeluDropout.apply, Softmax.apply, Norm.apply, Loss.apply)


def fresh_weights():
    generator = torch.Generator().manual_seed(0)
    wide, letters = 2 * FEATURES, len(LETTERS)
    shapes = {
        "letters": (letters, FEATURES),
        "places": (LENGTH, FEATURES),
        "qkv": (FEATURES, 3 * FEATURES),
        "mix": (FEATURES, FEATURES),
        "up": (FEATURES, wide),
        "down": (wide, FEATURES),
    }
    weights = {name: 0.2 * torch.randn(*shape, generator=generator) for name, shape in shapes.items()}
    weights |= {"bias": torch.zeros(wide), **{f"norm {i}": torch.ones(FEATURES) for i in range(3)}}
    return {name: value.to(device()).requires_grad_() for name, value in weights.items()}


def batch_loss(weights, operators, step):
    """The loss of a model with one layer of attention and one MLP, on two pieces of the sentence."""
    gelu_dropout, softmax_of, norm, loss_of = operators
    starts = torch.randint(len(CORPUS) - LENGTH - 1, (2,), generator=torch.Generator().manual_seed(step))
    pieces = torch.stack([CORPUS[start : start + LENGTH + 1] for start in starts]).to(device())
    x = (weights["letters"][pieces[:, :-1]] + weights["places"]).reshape(-1, FEATURES)
    q, k, v = (norm(x, weights["norm 0"]) @ weights["qkv"]).reshape(2, LENGTH, -1).split(FEATURES, -1)
    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=device()).triu(1)
    scores = (q @ k.transpose(1, 2) / FEATURES**0.5).masked_fill(later, -math.inf)
    seen = softmax_of(scores.reshape(-1, LENGTH)).reshape(2, LENGTH, LENGTH) @ v
    x = x + seen.reshape(-1, FEATURES) @ weights["mix"]
    x = x + gelu_dropout(norm(x, weights["norm 1"]) @ weights["up"], weights["bias"], step) @ weights["down"]
    return loss_of(norm(x, weights["norm 2"]) @ weights["letters"].T, pieces[:, 1:].flatten())


def train(operators, steps):
    weights, losses = fresh_weights(), []
    optimizer = torch.optim.Adam(weights.values(), lr=0.02)
    for step in steps:
        loss = batch_loss(weights, operators, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def bytes_of_a_step(operators):
    """The bytes of a step, by kind. The meter counts kernels; PyTorch calls by Triton's interpreter are left out."""
    weights = fresh_weights()
    with meter() as kernels, eager_traffic() as ran:
        batch_loss(weights, operators, 0).backward()
    amounts = {"matmuls": 0, "PyTorch's other operators": 0, "your kernels": kernels.total.unique_bytes}
    for operator in ran:
        name = operator.name.removeprefix("aten.")
        if name not in ("set_", "copy_", "erf"):
            amounts["matmuls" if name in ("mm", "bmm") else "PyTorch's other operators"] += operator.bytes
    return amounts


if parts:
    losses = {"eager PyTorch": train(EAGER, range(24)), "your kernels": train(OWN, progress(range(24), "training"))}
    apart = max(abs(own - eager) for own, eager in zip(losses["your kernels"], losses["eager PyTorch"], strict=True))
    print(
        f"The two losses are at most {apart:.1e} apart, and fall from {losses['your kernels'][0]:.2f} to {losses['your kernels'][-1]:.2f}."
    )
    if INTERPRETED:
        counted = (lambda x, bias, seed: torch.native_dropout(F.gelu(x + bias), DROPPED, True)[0], *EAGER[1:])
        moved = {"eager PyTorch": bytes_of_a_step(counted), "your kernels": bytes_of_a_step(OWN)}
        show.figure(fusion.draw_training(losses, moved), "equal loss curves, and the bytes of one step by kind")

# %% [markdown]
# ## In practice: what torch.compile fuses for you
#
# `torch.compile` fuses element-wise chains and reductions, into Triton on a GPU and into C++ on a CPU. The next cell compiles three functions with the C++ backend, in about 20 seconds.

# %% tags=["demo"] jupyter={"source_hidden": true}
import re
import warnings

from torch._dynamo.utils import counters
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.utils import run_and_get_code

predict(
    "compiled",
    "softmax(q kᵀ / √d) v, written out with two matmuls and a softmax: what does torch.compile (2.13) make of it?",
    options=(
        "the same three steps",
        "one element-wise kernel between two matmuls",
        "a call of a fused attention kernel",
    ),
)
heads = [torch.randn(2, 4, 64, 32) for _ in range(3)]
QUESTIONS = {
    "gelu(layer_norm(x))": (
        lambda x, b: F.gelu(F.layer_norm(x, (256,), b, b)),
        (torch.randn(64, 256), torch.randn(256)),
    ),
    "attention, written out": (lambda q, k, v: (q @ k.transpose(-2, -1) / 32**0.5).softmax(-1) @ v, heads),
    "the same with |scores|": (lambda q, k, v: (q @ k.transpose(-2, -1) / 32**0.5).abs().softmax(-1) @ v, heads),
}
KERNEL = re.compile(r"= async_compile\.(?:cpp_pybinding|cpp|triton)\(")
SDPA = "_scaled_dot_product_flash_attention_for_cpu"


def compiled(function, given):
    """How often attention was recognised, kernels generated, and whether the code calls PyTorch's own."""
    torch._dynamo.reset()
    counters.clear()
    with warnings.catch_warnings(), torch.no_grad(), torch._inductor.config.patch(force_disable_caches=True):
        warnings.filterwarnings(
            "ignore", "dynamo_pgo force disabled"
        )  # caches are off on purpose: a cached result leaves the counters at 0
        _, sources = run_and_get_code(torch.compile(function), *given)
    text = "\n".join(sources)
    return counters["inductor"]["fuse_attention"], len(KERNEL.findall(text)), SDPA in text


rows, recognised = [], None
try:
    get_cpp_compiler()
    for name, (function, given) in progress(QUESTIONS.items(), "torch.compile"):
        with eager_traffic() as ran:
            function(*given)
        found, kernels, calls = compiled(function, given)
        rows.append([name, len(ran), kernels, found, "yes" if calls else "no"])
        if name == "attention, written out":
            recognised = bool(found and calls)
except Exception as error:  # no C++ compiler, or a Python that torch.compile does not know yet
    print(f"torch.compile could not compile for the CPU of this machine: {type(error).__name__}: {error}")
torch._dynamo.reset()
if recognised is not None:
    found = "a call of a fused attention kernel" if recognised else "one element-wise kernel between two matmuls"
    show.against_prediction("compiled", found, source="measured here: read in the compiler's output")
with reveal("compiled"):
    show.table(rows, ["expression", "eager operators", "kernels generated", "fuse_attention", f"calls {SDPA}"])
    if recognised:
        print(
            'The compiler recognises attention: counters["inductor"]["fuse_attention"] counts it, and the generated code\n'
            "calls PyTorch's own fused attention. The last expression differs by a single abs, and is not recognised."
        )

# %% [markdown]
# The compiler also applies rewrites from a list of patterns. Code that matches none stays as it is.
#
# ## What to remember
#
# - An eager operator is a round trip through memory. Fusion removes the trips, not the arithmetic.
# - Recompute what is cheaper to compute than to fetch, such as dropout's mask.
# - A running maximum and a corrected sum summarise a softmax, and summaries can be merged.
# - A gradient over all rows needs partial sums per program and a small second reduction.
#
# The deep dives judge three claims. Next: `04_flash_attention`.
#
# ## In your own words
#
# A colleague proposes to fuse the whole MLP, two matmuls with a GELU between them, into one kernel, "because fusion saves
# memory traffic". With width 4,096, hidden width 16,384 and 8,192 tokens in BF16, input and output take 67 MB each, the
# hidden layer 268 MB, and each of the two weight matrices 134 MB. What would this save, what would have to stay on the
# chip (an SM has 227 KiB of shared memory for a program), and what do you answer?

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# *Your answer: the numbers, then the verdict.*

# %% tags=["demo"] jupyter={"source_hidden": true}
calibration()
