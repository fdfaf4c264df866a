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
#     minutes: 180
#     withholds: [threeloops.inner.costs, threeloops.inner.roofline, threeloops.inner.profiling.operators, threeloops.inner.profiling.peak_memory, threeloops.inner.profiling.profiler]
# ---

# %% [markdown]
# # Is the GPU doing useful math?
#
# An H100 can do 989 trillion floating-point operations a second. `nvidia-smi` shows a utilisation of 100%, which
# means that *some* kernel was running, not that it was multiplying. Between the two lies most of the money spent
# on AI hardware.
#
# One picture separates them. Every operation moves some bytes and does some arithmetic; their quotient, the
# **arithmetic intensity**, decides how much of the machine it can use at best. Six operations of the same
# transformer layer, on the same GPU:

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from threeloops.lab import audit, check, explore, hint, predict, show


@dataclass(frozen=True)
class Work:
    """What an operation costs at least: bytes between memory and chip, and floating-point operations."""

    bytes: float
    flops: float

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.bytes


# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.hardware import accelerator
from threeloops.inner.roofline import Roofline, attention, elementwise, layernorm, matmul, softmax
from threeloops.lab import figure, palette

BATCH, LENGTH, WIDTH, HEADS = 8, 4096, 4096, 32  # a layer of a 7B-class model, 8 sequences of 4,096 tokens
OPERATIONS = {
    "matmul, all tokens": matmul(BATCH * LENGTH, WIDTH, WIDTH),
    "matmul, one token": matmul(1, WIDTH, WIDTH),
    "attention, scores in memory": attention(BATCH, HEADS, LENGTH, LENGTH, WIDTH // HEADS),
    "attention, fused": attention(BATCH, HEADS, LENGTH, LENGTH, WIDTH // HEADS, fused=True),
    "softmax": softmax(BATCH * HEADS * LENGTH, LENGTH),
    "layernorm": layernorm(BATCH * LENGTH, WIDTH),
}
PLACE = {
    "matmul, all tokens": (-8, 8, "right"),
    "attention, fused": (6, -17, "center"),
    "matmul, one token": (12, -14, "left"),
    "attention, scores in memory": (12, -12, "left"),
    "softmax": (-12, 6, "right"),
    "layernorm": (12, -8, "left"),
}
h100 = Roofline(accelerator("H100 SXM"), "bf16")
fig, (left, right) = figure(1, 2, width=12.5, height=4.9, width_ratios=[3, 2])
intensities = np.geomspace(0.3, 2e4, 400)
left.plot(intensities, [h100.attainable(i) / 1e12 for i in intensities], color=palette.ink, lw=2.5, zorder=2)
left.axvspan(0.3, h100.ridge_point, color=palette.orange, alpha=0.10, lw=0)
left.axvspan(h100.ridge_point, 2e4, color=palette.blue, alpha=0.10, lw=0)
left.text(0.45, 2300, "memory-bound: waits for bytes", color="#9a6a00", weight="bold", va="center")
left.text(420, 0.75, "compute-bound:\nwaits for math", color=palette.blue, weight="bold", va="center")
left.text(6, 24, "3.35 TB/s", rotation=36, ha="center", va="bottom")
left.text(1.9e4, 1150, "989 TFLOP/s", ha="right", va="bottom")
shares = {name: h100.attainable(work) / h100.peak_flops for name, work in OPERATIONS.items()}
for name, work in OPERATIONS.items():
    colour = palette.blue if work.intensity >= h100.ridge_point else palette.vermillion
    left.plot(work.intensity, h100.attainable(work) / 1e12, "o", color=colour, ms=9, zorder=4)
    dx, dy, side = PLACE[name]
    left.annotate(
        name, (work.intensity, h100.attainable(work) / 1e12), (dx, dy), textcoords="offset points", ha=side, fontsize=10
    )
left.set(
    xscale="log",
    yscale="log",
    xlim=(0.3, 2e4),
    ylim=(0.4, 4000),
    xlabel="arithmetic intensity, FLOP per byte moved",
    ylabel="TFLOP/s within reach",
    title="The roofline of an H100 (BF16)",
)
names = sorted(shares, key=shares.get)
bars = right.barh(
    names,
    [100 * shares[n] for n in names],
    color=[palette.blue if shares[n] > 0.999 else palette.vermillion for n in names],
)
right.bar_label(bars, [f" {100 * shares[n]:.3g}%" for n in names])
right.set(
    xlim=(0, 118),
    xlabel="% of the math units that it can keep busy, at best",
    title="The same six, as a share of the peak",
)
right.grid(axis="y", visible=False)
show.figure(fig)

# %% [markdown]
# The blue bars can fill the machine. The orange ones cannot, however well they are written: the bytes do not
# arrive fast enough. No tuning changes that. Only moving fewer bytes does, which is the subject of labs 03 and 04.
#
# In this lab you build the picture from nothing and then use it in anger:
#
# 1. count the bytes and the arithmetic of five operations;
# 2. turn a data sheet into two roofs, and find where they meet;
# 3. decide from a measurement what limits an operation: math, memory, the host, or none of them;
# 4. account for a whole ResNet-50 forward pass from its recorded trace.
#
# Between them you measure the roofs of the machine under your hands. Everything here runs on a CPU.

# %% tags=["demo"]
predict(
    "layernorm_percent",
    "A LayerNorm in BF16 on an H100, perfectly written: what percentage of the 989 TFLOP/s can it reach?",
    unit="%",
    guess=None,
)
predict(
    "copy",
    "How many GB/s does a plain copy move on the machine you are sitting at (bytes read plus bytes written)?",
    unit="GB/s",
    guess=None,
)
predict("matmul", "And how many GFLOP/s does its FP32 matrix multiplication reach?", unit="GFLOP/s", guess=None)

# %% [markdown]
# ## 1 · What does an operation cost?
#
# Two numbers, both of them facts about the *mathematics* and not about a kernel.
#
# **Bytes**: the least traffic between memory and chip. Every input is read once, every output is written once, and
# whatever fits in between never leaves the chip. A real kernel moves at least this much.
#
# **FLOPs**: floating-point operations, by the convention of every data sheet: a multiply-add is two.
#
# Their quotient is the intensity. It has a unit, FLOP per byte, and a habit of surprising people: it depends on the
# *shape*. A matrix multiplication of 4096 × 4096 × 4096 does 1365 FLOPs for each byte in BF16. With one row instead
# of 4,096 it does one.
#
# ### Exercise 1 (25 points)
#
# Write five functions. Each returns a `Work(bytes, flops)`. `bytes_per_element` is the size of one element of every
# tensor but the indices: 4 for FP32, 2 for BF16, 1 for FP8, 0.5 for INT4.
#
# | function | reads, once each | writes, once each | FLOPs |
# |---|---|---|---|
# | `matmul_work(m, k, n, bytes_per_element)` | A (m × k), B (k × n) | C (m × n) | 2·m·k·n |
# | `layernorm_work(rows, columns, bytes_per_element)` | input (rows × columns), scale and shift (`columns` each) | output (rows × columns) | 7 an element: sum, subtract the mean, square, sum of squares, divide by the deviation, scale, shift |
# | `softmax_work(rows, columns, bytes_per_element)` | input (rows × columns) | output (rows × columns) | 5 an element: maximum, subtract, exponential, sum, divide |
# | `attention_work(batch, heads, kv_heads, queries, keys, head_dim, bytes_per_element)` | see below | see below | see below |
# | `embedding_work(tokens, distinct, width, bytes_per_element)` | one 8-byte index a token; a row of `width` elements for each of the `distinct` different indices | a row of `width` elements for each token | 0 |
#
# The few operations that a LayerNorm or a softmax does once a *row* are left out.
#
# **Attention** is the naive one, three kernels with the scores in memory between them. Q and the output have shape
# (batch, heads, queries, head_dim); K and V have shape (batch, `kv_heads`, keys, head_dim); the scores S and the
# probabilities P have shape (batch, heads, queries, keys).
#
# | kernel | reads | writes | FLOPs |
# |---|---|---|---|
# | scores | Q, K | S | 2·head_dim for each score, and 1 to multiply it by 1/√head_dim |
# | softmax | S | P | 5 for each score |
# | values | P, V | output | 2·head_dim for each score |
#
# With `kv_heads < heads` several query heads share one K and V (grouped-query attention): a shared K is still read
# once. There is no mask, no dropout and no batch dimension other than the one named.
#
# **Errors.** An argument that is not positive, `bytes_per_element` included, raises `ValueError` whose message contains
# its name and value, as `columns = 0`. `heads` that is not a multiple of `kv_heads` raises one that names `kv_heads`,
# and `distinct` greater than `tokens` one that names `distinct`.


# %% nbgrader={"grade": false, "grade_id": "intensity", "locked": false, "schema_version": 3, "solution": true, "task": false}
def matmul_work(m: int, k: int, n: int, bytes_per_element: float) -> Work:
    """(m, k) @ (k, n) → (m, n)."""
    ### BEGIN SOLUTION
    require_positive(m=m, k=k, n=n, bytes_per_element=bytes_per_element)
    return Work((m * k + k * n + m * n) * bytes_per_element, 2 * m * k * n)
    ### END SOLUTION


def layernorm_work(rows: int, columns: int, bytes_per_element: float) -> Work:
    """LayerNorm of each row, with a scale and a shift for each column."""
    ### BEGIN SOLUTION
    require_positive(rows=rows, columns=columns, bytes_per_element=bytes_per_element)
    return Work((2 * rows * columns + 2 * columns) * bytes_per_element, 7 * rows * columns)
    ### END SOLUTION


def softmax_work(rows: int, columns: int, bytes_per_element: float) -> Work:
    """Softmax of each row."""
    ### BEGIN SOLUTION
    require_positive(rows=rows, columns=columns, bytes_per_element=bytes_per_element)
    return Work(2 * rows * columns * bytes_per_element, 5 * rows * columns)
    ### END SOLUTION


def attention_work(
    batch: int, heads: int, kv_heads: int, queries: int, keys: int, head_dim: int, bytes_per_element: float
) -> Work:
    """softmax(Q Kᵀ / √head_dim) V in three kernels, scores and probabilities written to memory."""
    ### BEGIN SOLUTION
    require_positive(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        queries=queries,
        keys=keys,
        head_dim=head_dim,
        bytes_per_element=bytes_per_element,
    )
    if heads % kv_heads:
        raise ValueError(f"kv_heads = {kv_heads}: expected a divisor of heads = {heads}")
    query_elements = batch * heads * queries * head_dim
    key_elements = batch * kv_heads * keys * head_dim
    scores = batch * heads * queries * keys
    elements = 2 * query_elements + 2 * key_elements + 4 * scores
    return Work(elements * bytes_per_element, scores * (4 * head_dim + 6))
    ### END SOLUTION


def embedding_work(tokens: int, distinct: int, width: int, bytes_per_element: float) -> Work:
    """Look up `tokens` rows of a table, of which `distinct` are different."""
    ### BEGIN SOLUTION
    require_positive(tokens=tokens, distinct=distinct, width=width, bytes_per_element=bytes_per_element)
    if distinct > tokens:
        raise ValueError(f"distinct = {distinct}: expected at most tokens = {tokens}")
    return Work(8 * tokens + (distinct + tokens) * width * bytes_per_element, 0)


def require_positive(**sizes: float) -> None:
    for name, size in sizes.items():
        if not size > 0:
            raise ValueError(f"{name} = {size}: expected a positive number")
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "intensity",
    "Draw a box around the chip. Every arrow that crosses the line is traffic, once for each tensor; nothing inside counts. For attention draw the box three times: S leaves the first, enters the second, and so on.",
    "The score matrix crosses the line four times: S out, S in, P out, P in. Q, K, V and the output cross it once each. With grouped heads K and V are smaller than Q.",
    "A small helper `require_positive(**sizes)` that loops over `sizes.items()` gives all five functions their errors in one line each. Define it in the same cell.",
)

# %% nbgrader={"grade": true, "grade_id": "intensity_test", "locked": true, "points": 25, "schema_version": 3, "solution": false, "task": false}
with check("intensity", "bytes and FLOPs of five operations"):
    check.close(
        matmul_work(127, 129, 65, 2),
        Work(2 * (127 * 129 + 129 * 65 + 127 * 65), 2 * 127 * 129 * 65),
        what="matmul_work(127, 129, 65, 2)",
        hint={
            "bytes": "A and B are read once each, C is written once: no operand twice, none left out",
            "flops": "m·n sums of k products each; a multiply-add is two FLOPs",
        },
    )
    check.close(
        matmul_work(1, 4096, 4096, 2).intensity,
        0.99951,
        rtol=1e-4,
        unit="FLOP/byte",
        what="intensity of a one-row matmul",
        hint="nearly all of its traffic is the weight matrix, read for a single row",
    )
    check.close(
        layernorm_work(33, 129, 4),
        Work(4 * (2 * 33 * 129 + 2 * 129), 7 * 33 * 129),
        what="layernorm_work(33, 129, 4)",
        hint={
            "bytes": "scale and shift are read once for all rows, and they are two vectors of `columns` elements",
            "flops": "seven an element, as the table lists them",
        },
    )
    check.close(
        softmax_work(3, 1000, 2),
        Work(2 * 2 * 3000, 5 * 3000),
        what="softmax_work(3, 1000, 2)",
        hint={
            "bytes": "one read and one write: a row stays on the chip between the maximum, the sum and the division",
            "flops": "five an element, as the table lists them",
        },
    )
    check.close(
        attention_work(2, 4, 4, 100, 100, 64, 2),
        Work(2 * (4 * 2 * 4 * 100 * 64 + 4 * 2 * 4 * 100 * 100), 2 * 4 * 100 * 100 * (4 * 64 + 6)),
        what="attention_work(2, 4, 4, 100, 100, 64, 2)",
        hint={
            "bytes": "the scores cross four times: S written, S read, P written, P read",
            "flops": "for each score 2·head_dim in either product, 1 for the scale and 5 for the softmax",
        },
    )
    check.close(
        embedding_work(512, 512, 768, 2),
        Work(512 * 8 + 2 * 512 * 768 * 2, 0),
        what="embedding_work(512, 512, 768, 2)",
        hint={
            "bytes": "only the rows that are looked up move, not the table; indices are 8 bytes whatever the elements are",
            "flops": "a lookup computes nothing",
        },
    )
    check.raises(ValueError, softmax_work, 3, 0, 2, names="columns = 0")
    ### BEGIN HIDDEN TESTS
    from fractions import Fraction

    def traffic(bytes_per_element, *shapes):
        elements = 0
        for shape in shapes:
            count = 1
            for size in shape:
                count *= size
            elements += count
        return elements * Fraction(bytes_per_element)

    for seed in range(6):
        rng = check.rng(seed)
        m, k, n = (int(v) for v in rng.integers(1, 3000, 3))
        size = [4, 2, 1, 0.5, 8, 2][seed]
        check.close(
            matmul_work(m, k, n, size),
            Work(float(traffic(size, (m, k), (k, n), (m, n))), 2 * m * k * n),
            what=f"matmul_work({m}, {k}, {n}, {size})",
            hint="bytes_per_element may be 0.5 (INT4): nothing is rounded",
        )
        check.close(
            layernorm_work(m, n, size),
            Work(float(traffic(size, (m, n), (m, n), (n,), (n,))), 7 * m * n),
            what=f"layernorm_work({m}, {n}, {size})",
            hint="scale and shift belong to columns, not to rows",
        )
        check.close(
            softmax_work(m, n, size),
            Work(float(traffic(size, (m, n), (m, n))), 5 * m * n),
            what=f"softmax_work({m}, {n}, {size})",
            hint="input once, output once",
        )
        distinct = 1 + m // 3
        check.close(
            embedding_work(m, distinct, n, size),
            Work(float(8 * m + traffic(size, (distinct, n), (m, n))), 0),
            what=f"embedding_work({m}, {distinct}, {n}, {size})",
            hint="a row that is looked up twice is read once, but written for every token",
        )
        batch, groups, kv_heads, queries, keys = (int(v) for v in rng.integers(1, 9, 5))
        heads, q, s = (
            groups * kv_heads,
            (batch, groups * kv_heads, queries, 80),
            (batch, groups * kv_heads, queries, keys),
        )
        kv = (batch, kv_heads, keys, 80)
        scores = batch * heads * queries * keys
        check.close(
            attention_work(batch, heads, kv_heads, queries, keys, 80, size),
            Work(
                float(traffic(size, q, kv, s) + traffic(size, s, s) + traffic(size, s, kv, q)),
                scores * (2 * 80 + 1) + 5 * scores + scores * 2 * 80,
            ),
            what=f"attention_work({batch}, {heads}, {kv_heads}, {queries}, {keys}, 80, {size})",
            hint="K and V have kv_heads heads (a shared K is read once) and `keys` rows; Q and the output have heads and `queries`",
        )
    check.raises(ValueError, matmul_work, 4, -1, 4, 2, names="k = -1")
    check.raises(ValueError, layernorm_work, 0, 8, 2, names="rows")
    check.raises(ValueError, embedding_work, 4, 5, 8, 2, names="distinct")
    check.raises(ValueError, attention_work, 1, 6, 4, 8, 8, 64, 2, names="kv_heads")
    check.raises(ValueError, matmul_work, 4, 4, 4, 0, names="bytes_per_element")
    ### END HIDDEN TESTS

# %% [markdown]
# The prediction about LayerNorm can be settled now. Seven operations for each four bytes it moves is 1.75 FLOP per
# byte, and that is all an H100 needs to know.

# %% tags=["demo"]
norm = layernorm(BATCH * LENGTH, WIDTH)
show.against_prediction(
    "layernorm_percent", round(100 * h100.attainable(norm) / h100.peak_flops, 2), unit="%", source="model"
)

# %% [markdown]
# ## 2 · Two roofs
#
# A machine has two limits: `peak_flops`, the most arithmetic it can do in a second, and `bandwidth`, the most bytes
# it can move. An operation of intensity *I* that is limited by its bytes runs at *I* · bandwidth. So
#
# > **attainable(I) = min(peak, I · bandwidth)** and **ridge point = peak / bandwidth**
#
# Left of the ridge point, more math units change nothing. Right of it, more bandwidth changes nothing
# ([Williams, Waterman and Patterson 2009](https://doi.org/10.1145/1498765.1498785)).
#
# The formula is the easy part. The numbers come from data sheets, and data sheets are written to impress. The
# largest rate on the page is often one that you can only reach if two of every four weights are zero (the asterisk
# says "with sparsity"). Read a sheet wrong by that factor of two and every later conclusion is wrong by it.
#
# ### Exercise 2 (25 points)
#
# `read_row(row: DatasheetRow) -> Roof`
#
# A row holds what is printed. Return `Roof(peak_flops, bandwidth)` in FLOP/s and bytes/s.
#
# - `rate_unit` is `"TFLOP/s"` or `"PFLOP/s"`, `bandwidth_unit` is `"GB/s"` or `"TB/s"`. These are decimal: 1 GB is 10⁹ bytes.
# - Where `sparse` is true the rate counts the skipped zeros; a dense operation gets **half**.
# - Any other unit raises `ValueError` that contains the unit.
#
# `ridge_point(peak_flops, bandwidth) -> float`, in FLOP per byte.
#
# `attainable(intensity, peak_flops, bandwidth) -> np.ndarray`
#
# - `intensity`: a number, a list, or an array of **any** shape and any integer or float type, in FLOP per byte.
# - Returns a float64 array of the same shape (shape `()` for a number), in FLOP/s.
# - Intensity 0 attains 0; intensity infinity attains the peak.
# - A negative or NaN intensity raises `ValueError` with the word `intensity`.
#
# `ridge_point` and `attainable` raise `ValueError` that names `peak_flops` or `bandwidth` where it is not positive and finite.


# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_roofs", "locked": true, "schema_version": 3, "solution": false, "task": false}
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


DATASHEETS = [DatasheetRow(**row) for row in json.loads(Path("data/datasheets.json").read_text(encoding="utf-8"))]

# %% tags=["demo"] jupyter={"source_hidden": true}
show.table(
    [
        [
            r.product,
            r.dtype,
            f"{r.rate:g} {r.rate_unit}{'*' if r.sparse else ''}",
            f"{r.bandwidth:g} {r.bandwidth_unit}",
        ]
        for r in DATASHEETS
    ],
    ["product", "type", "rate as printed (* with sparsity)", "memory bandwidth as printed"],
)


# %% nbgrader={"grade": false, "grade_id": "roofline", "locked": false, "schema_version": 3, "solution": true, "task": false}
def read_row(row: DatasheetRow) -> Roof:
    """The dense rate in FLOP/s and the bandwidth in bytes/s behind a printed row."""
    ### BEGIN SOLUTION
    rates, bandwidths = {"TFLOP/s": 1e12, "PFLOP/s": 1e15}, {"GB/s": 1e9, "TB/s": 1e12}
    for unit, known in ((row.rate_unit, rates), (row.bandwidth_unit, bandwidths)):
        if unit not in known:
            raise ValueError(f"unit {unit!r} in the row of {row.product}: expected one of {', '.join(known)}")
    peak = row.rate * rates[row.rate_unit]
    return Roof(peak / 2 if row.sparse else peak, row.bandwidth * bandwidths[row.bandwidth_unit])
    ### END SOLUTION


def ridge_point(peak_flops: float, bandwidth: float) -> float:
    """The intensity, in FLOP per byte, at which the two roofs meet."""
    ### BEGIN SOLUTION
    require_rates(peak_flops, bandwidth)
    return peak_flops / bandwidth
    ### END SOLUTION


def attainable(intensity, peak_flops: float, bandwidth: float) -> np.ndarray:
    """FLOP/s within reach at each intensity; the shape of `intensity`, float64."""
    ### BEGIN SOLUTION
    require_rates(peak_flops, bandwidth)
    intensity = np.asarray(intensity, dtype=np.float64)
    if not (intensity >= 0).all():
        raise ValueError(
            f"intensity holds {intensity[~(intensity >= 0)].flat[0]}: expected numbers of at least 0 FLOP/byte"
        )
    return np.minimum(peak_flops, intensity * bandwidth)


def require_rates(peak_flops: float, bandwidth: float) -> None:
    for name, rate in (("peak_flops", peak_flops), ("bandwidth", bandwidth)):
        if not 0 < rate < float("inf"):
            raise ValueError(f"{name} = {rate}: expected a positive, finite rate")
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "roofline",
    "Two dictionaries, one from rate units to factors, one from bandwidth units to factors, are both the conversion and the test for unknown units.",
    "`np.asarray(intensity, dtype=np.float64)` makes one array of a number, a list or an integer array; `np.minimum` then works on any shape.",
    "`(x < 0).any()` is False for NaN, and so is every comparison with it. `not (x >= 0).all()` catches both.",
)

# %% nbgrader={"grade": true, "grade_id": "roofline_test", "locked": true, "points": 25, "schema_version": 3, "solution": false, "task": false}
with check("roofline", "two roofs and where they meet"):
    v100, h100_fp8 = DATASHEETS[0], DATASHEETS[3]
    check.close(
        read_row(v100),
        Roof(125e12, 900e9),
        what=f"read_row of the {v100.product}",
        hint={
            "peak_flops": "1 TFLOP/s is 1e12 FLOP/s, and this rate is printed dense",
            "bandwidth": "a terabyte and a gigabyte on a data sheet are decimal: GB/s is 1e9, not 2**30",
        },
    )
    check.close(
        read_row(h100_fp8),
        Roof(1979e12, 3.35e12),
        what=f"read_row of the {h100_fp8.product}, {h100_fp8.dtype}",
        hint={
            "peak_flops": "this rate is printed with sparsity: a dense matmul gets half of it",
            "bandwidth": "1 TB/s is 1e12 bytes/s; sparsity does not change it",
        },
    )
    check.close(
        ridge_point(125e12, 900e9),
        138.8889,
        rtol=1e-5,
        unit="FLOP/byte",
        what="the ridge point of a V100",
        hint="peak over bandwidth",
    )
    check.close(
        attainable([0.0, 1.0, 100.0, 138.0, 140.0, 1e6], 125e12, 900e9),
        [0.0, 9e11, 9e13, 1.242e14, 1.25e14, 1.25e14],
        unit="FLOP/s",
        what="what a V100 attains",
        hint="the lower of the two roofs: they do not add up, and there is no round corner",
    )
    check.raises(ValueError, attainable, [1.0, -2.0], 125e12, 900e9, names="intensity")
    check.raises(ValueError, ridge_point, 125e12, 0.0, names="bandwidth")
    ### BEGIN HIDDEN TESTS
    import math

    odd = DatasheetRow("made-up", "FP4", 9.0, "PFLOP/s", True, 7.7, "TB/s")
    check.close(
        read_row(odd),
        Roof(4.5e15, 7.7e12),
        what="read_row of a row in PFLOP/s",
        hint="the row names its unit: 1 PFLOP/s is 1e15",
    )
    for row in DATASHEETS:
        rate = row.rate * {"T": 10**12, "P": 10**15}[row.rate_unit[0]] * (0.5 if row.sparse else 1.0)
        check.close(
            read_row(row),
            Roof(rate, row.bandwidth * {"G": 10**9, "T": 10**12}[row.bandwidth_unit[0]]),
            what=f"read_row of the {row.product}",
        )
    check.raises(ValueError, read_row, DatasheetRow("made-up", "FP16", 1.0, "TOPS", False, 1.0, "TB/s"), names="TOPS")
    check.raises(
        ValueError, read_row, DatasheetRow("made-up", "FP16", 1.0, "TFLOP/s", False, 1.0, "GiB/s"), names="GiB/s"
    )
    for seed in range(4):
        rng = check.rng(seed)
        peak, bandwidth = float(10 ** rng.uniform(9, 16)), float(10 ** rng.uniform(8, 13))
        grid = 10 ** rng.uniform(-3, 6, (3, 5))
        expected = np.array([[peak if i > peak / bandwidth else bandwidth * i for i in line] for line in grid])
        got = attainable(grid, peak, bandwidth)
        check.shape(got, (3, 5), what="attainable of a 3 × 5 array")
        check.close(
            got,
            expected,
            unit="FLOP/s",
            what="attainable of a 3 × 5 array",
            hint="the shape of the intensities is kept",
        )
        check.close(ridge_point(peak, bandwidth), peak / bandwidth, unit="FLOP/byte")
    check.close(
        attainable(np.array([1, 2, 4]), 10.0, 2.5),
        [2.5, 5.0, 10.0],
        unit="FLOP/s",
        what="attainable of integers",
        hint="integer intensities: convert to float64 before you multiply, or the answer is truncated",
    )
    check.shape(attainable(3.0, 10.0, 2.5), (), what="attainable of one number")
    check.dtype(attainable(np.float32([1.0]), 10.0, 2.5), np.dtype("float64"), what="attainable of a float32 array")
    check.close(attainable([math.inf], 7e12, 1e12), [7e12], what="attainable at infinite intensity")
    check.raises(ValueError, attainable, [1.0, math.nan], 1e12, 1e12, names="intensity")
    check.raises(ValueError, attainable, [1.0], -1e12, 1e12, names="peak_flops")
    check.raises(ValueError, ridge_point, math.inf, 1e12, names="peak_flops")
    check.raises(ValueError, ridge_point, 1e12, math.nan, names="bandwidth")
    ### END HIDDEN TESTS

# %% [markdown]
# ### Explore
#
# Choose a machine, a number format, an operation and its size, and watch the point move. Three things worth finding:
# the smallest power of two at which a matmul of width 4,096 becomes compute-bound on an H100, whether FP8 makes a
# *memory-bound* operation faster, and whether any size of LayerNorm ever reaches the ridge.

# %% tags=["demo"] jupyter={"source_hidden": true}
MACHINES = ["H100 SXM", "V100 SXM2", "A100 SXM 80GB", "H200 SXM", "B200", "L40S", "RTX 4090", "MI300X", "TPU v5p"]
BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "fp32": 4}
SIZED = {
    "matmul (tokens × 4096 × 4096)": lambda tokens, b: matmul(tokens, 4096, 4096, b),
    "attention, scores in memory": lambda tokens, b: attention(1, 32, tokens, tokens, 128, b),
    "attention, fused": lambda tokens, b: attention(1, 32, tokens, tokens, 128, b, fused=True),
    "softmax (tokens × tokens)": lambda tokens, b: softmax(tokens, tokens, b),
    "layernorm (tokens × 4096)": lambda tokens, b: layernorm(tokens, 4096, b),
    "GELU (tokens × 4096)": lambda tokens, b: elementwise(tokens * 4096, b, flops_per_element=8),
}


def draw_roofline(machine, dtype, operation, log2_tokens):
    fig, axes = figure(width=8.6, height=4.6)
    tokens, card = 2**log2_tokens, accelerator(machine)
    try:
        roof = Roofline(card, dtype)
    except LookupError as reason:
        axes.text(
            0.5, 0.5, str(reason).replace("; ", ";\n"), ha="center", va="center", transform=axes.transAxes, wrap=True
        )
        axes.set_axis_off()
        return fig
    grid = np.geomspace(0.1, 1e5, 300)
    for name in MACHINES:
        other = accelerator(name)
        if dtype in other.rates:
            axes.plot(
                grid, [Roofline(other, dtype).attainable(i) / 1e12 for i in grid], color="#d5d5d5", lw=1, zorder=1
            )
    axes.plot(grid, [roof.attainable(i) / 1e12 for i in grid], color=palette.ink, zorder=2)
    axes.axvline(roof.ridge_point, color=palette.grey, ls=":", lw=1.2)
    axes.text(roof.ridge_point * 1.1, 0.12, f"ridge {roof.ridge_point:.0f} FLOP/byte", color=palette.grey)
    trail = [SIZED[operation](2**t, BYTES[dtype]) for t in range(15)]
    axes.plot(
        [w.intensity for w in trail], [roof.attainable(w) / 1e12 for w in trail], ".", color=palette.sky, ms=5, zorder=3
    )
    work = SIZED[operation](tokens, BYTES[dtype])
    bound, seconds = roof.bound(work), roof.time_floor(work)
    colour = palette.blue if bound == "compute" else palette.vermillion
    axes.plot(work.intensity, roof.attainable(work) / 1e12, "o", color=colour, ms=11, zorder=4)
    took = f"{seconds * 1e6:.3g} µs" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"
    axes.set(
        xscale="log",
        yscale="log",
        xlim=(0.1, 1e5),
        ylim=(0.08, 6000),
        xlabel="FLOP per byte",
        ylabel="TFLOP/s within reach",
        title=f"{operation}, {tokens:,} tokens on {machine} in {dtype.upper()}\n"
        f"{work.intensity:.3g} FLOP/byte: {bound}-bound, {100 * roof.attainable(work) / roof.peak_flops:.3g}% of peak, at least {took}",
    )
    return fig


explore(draw_roofline, machine=MACHINES, dtype=list(BYTES), operation=list(SIZED), log2_tokens=(0, 14, 1, 6))

# %% [markdown]
# The pale lines are the other machines, the small dots the same operation at other sizes. Rates are dense and come
# from the library's table of accelerators, where each number names its document.

# %% [markdown]
# ## Measure it: the roofs of this machine
#
# A data sheet is a promise. The machine you sit at has the same two roofs, and a probe can find them: copy a buffer
# much larger than the last cache, and multiply two matrices that are large enough to keep every unit busy.
#
# Which of many runs is the roof? The **best**. Other programs, the clock and the operating system only ever add
# time, so the fastest run is the closest to what the machine can do. (When you compare two *programs*, the median
# is the honest number. That is the third deep dive.)

# %% tags=["demo"]
import dataclasses

from threeloops.hardware import device, measure_copy_bandwidth, measure_matmul_rate, this_machine

DEVICE = device()
dtype = "fp32" if DEVICE == "cpu" else "bf16"
copies = measure_copy_bandwidth(DEVICE, runs=15)
products = measure_matmul_rate(dtype, DEVICE, size=1024 if DEVICE == "cpu" else 8192, runs=15)
probed = this_machine(DEVICE)
here = dataclasses.replace(
    probed,
    name="this machine",
    memory_bandwidth=max(copies.samples),
    rates=probed.rates | {dtype: max(products.samples)},
)
mine = Roofline(here, dtype)
show.against_prediction("copy", round(mine.bandwidth / 1e9, 1), unit="GB/s")
show.against_prediction("matmul", round(mine.peak_flops / 1e9), unit="GFLOP/s")
show.table(
    [
        [
            "copy",
            f"{min(copies.samples) / 1e9:.3g}",
            f"{copies.value / 1e9:.3g}",
            f"{max(copies.samples) / 1e9:.3g} GB/s",
            copies.how,
        ],
        [
            "matmul",
            f"{min(products.samples) / 1e9:.4g}",
            f"{products.value / 1e9:.4g}",
            f"{max(products.samples) / 1e9:.4g} GFLOP/s",
            products.how,
        ],
    ],
    ["probe", "worst", "median", "best: the roof", "how"],
)

# %% [markdown]
# **Predict first.** The ridge point of an H100 in BF16 is 295 FLOP per byte. Is that of a CPU higher or lower? And
# what share of *its* roof do six ordinary operations reach here, when the library that you use every day runs it?

# %% tags=["demo"]
predict("ridge_here", "What is the ridge point of this machine, in FLOP per byte?", unit="FLOP/byte", guess=None)

# %% tags=["demo"]
show.against_prediction("ridge_here", round(mine.ridge_point, 1), unit="FLOP/byte")

# %% tags=["demo"]
import torch
import torch.nn.functional as F
from threeloops.inner.timing import benchmark

torch_dtype, element = (torch.float32, 4) if DEVICE == "cpu" else (torch.bfloat16, 2)
scale = 1 if DEVICE == "cpu" else 8


def tensor(*shape):
    return torch.randn(*shape, device=DEVICE, dtype=torch_dtype)


def naive_attention(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1) @ v


n, t = 1024 * scale, 512 * scale
MEASURED = {
    "matmul": (torch.matmul, lambda: (tensor(n, n), tensor(n, n)), matmul(n, n, n, element)),
    "matmul, one row": (torch.matmul, lambda: (tensor(1, 4 * n), tensor(4 * n, n)), matmul(1, 4 * n, n, element)),
    "attention, scores in memory": (
        naive_attention,
        lambda: tuple(tensor(1, 8, t, 64) for _ in range(3)),
        attention(1, 8, t, t, 64, element),
    ),
    "softmax": (lambda x: torch.softmax(x, -1), lambda: (tensor(4 * n, n),), softmax(4 * n, n, element)),
    "layernorm": (lambda x: F.layer_norm(x, x.shape[-1:]), lambda: (tensor(4 * n, n),), layernorm(4 * n, n, element)),
    "GELU": (
        lambda x: F.gelu(x, approximate="tanh"),
        lambda: (tensor(4 * n, n),),
        elementwise(4 * n * n, element, flops_per_element=8),
    ),
}
with torch.no_grad():
    TIMES = {name: benchmark(f, inputs, device=DEVICE, samples=9) for name, (f, inputs, _) in MEASURED.items()}
rows = []
for name, (_, _, work) in MEASURED.items():
    seconds, floor = TIMES[name].median, mine.time_floor(work)
    rows.append(
        [
            name,
            f"{work.intensity:.3g}",
            mine.bound(work),
            f"{floor * 1e3:.2f}",
            f"{seconds * 1e3:.2f}",
            f"{TIMES[name].low * 1e3:.2f}–{TIMES[name].high * 1e3:.2f}",
            f"{100 * floor / seconds:.0f}%",
        ]
    )
show.table(
    rows, ["operation", "FLOP/byte", "roof above it", "floor, ms", "median, ms", "noise band, ms", "of the roof"]
)

# %% tags=["demo"] jupyter={"source_hidden": true}
fig, axes = figure(width=9.5, height=4.8)
mine.plot(axes, {name: (work, TIMES[name].median) for name, (_, _, work) in MEASURED.items()})
for name, (_, _, work) in MEASURED.items():
    reached, possible = work.flops / TIMES[name].median, mine.attainable(work)
    axes.plot([work.intensity] * 2, [reached, possible], color=palette.vermillion, lw=1.2, alpha=0.6, zorder=1)
axes.set_title(f"Measured on this machine, {dtype.upper()}", loc="left")
show.figure(fig)

# %% [markdown]
# What to read off it. The orange line from a point to the roof above it is the room for a better *kernel*; the slope
# of the roof there says what kind of kernel. A point **above** the roof is not a miracle. Either its bytes came from
# a cache, or the probe behind the roof was a poor kernel itself. The trace in exercise 4 shows the second case: on
# the CPU where it was recorded the convolutions of one library ran twice as fast as the matrix multiplications of
# another, so the roof in that trace was measured with a convolution.
#
# The same comparison on a GPU: not measured by the course yet. On a machine with one, the two cells above use it.

# %% [markdown]
# ## 3 · Which limit is it?
#
# A roofline says what is possible. A profile says what happened. Between them there are three floors under the time
# of an operation, and one of them is usually holding it up:
#
# - **compute**: flops / peak_flops;
# - **memory**: bytes / bandwidth;
# - **overhead**: launches × the time the host needs for one launch. While the device works on one kernel the host
#   already launches the next, so launches cost nothing as long as they take less time than the kernels.
#
# A verdict needs one more thing that most tools leave out: the courage to say *none of them*. A kernel that takes
# three times its highest floor is limited by something that the roofline does not know (latency, bank conflicts, a
# tail of half-empty waves), and calling it "memory-bound" sends an engineer to the wrong place. NVIDIA's Nsight
# Compute draws that line at 60% of either roof, and so do we.

# %% tags=["demo"] jupyter={"source_hidden": true}
EXAMPLES = {  # flops, bytes, device µs, launches: on an H100 in BF16, launches of 5 µs
    "a large matmul": (1.1e12, 1.0e8, 1530.0, 1),
    "LayerNorm": (9.4e8, 5.4e8, 190.0, 1),
    "60 small kernels": (1e7, 6e6, 110.0, 60),
    "a badly coalesced copy": (0.0, 2.7e8, 700.0, 1),
}
fig, panels = figure(1, 4, width=12.5, height=3.1)
for axes, (name, (flops, moved, took, launches)) in zip(panels, EXAMPLES.items(), strict=True):
    bars = {
        "compute": flops / h100.peak_flops * 1e6,
        "memory": moved / h100.bandwidth * 1e6,
        "launches": launches * 5.0,
    }
    axes.barh(list(bars), list(bars.values()), color=[palette.blue, palette.orange, palette.purple])
    axes.axvline(took, color=palette.ink, lw=2)
    axes.axvline(0.6 * took, color=palette.ink, lw=1, ls=":")
    axes.set(title=name, xlabel="µs", xlim=(0, 1.12 * max(took, *bars.values())))
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
fig.suptitle(
    "Bars: the three floors. Solid line: device time. Dotted: 60% of it. Which verdict would you sign?",
    x=0.01,
    ha="left",
    fontsize=11,
)
show.figure(fig)

# %% [markdown]
# ### Exercise 3 (25 points)
#
# `classify(measured: Measured, machine: Machine) -> Verdict`
#
# Let *compute*, *memory* and *launch* be the three floors in **µs**. Apply these rules in this order; the first that
# fits decides:
#
# | | rule | `bound` | `floor_us` |
# |---|---|---|---|
# | 1 | the larger of compute and memory is **more than** 1.05 × `device_us`: no machine is that fast, so a count or a peak is wrong | `"impossible"` | the larger of the two |
# | 2 | launch is **more than** `device_us`: the device waits for the host | `"overhead"` | launch |
# | 3 | the larger of compute and memory is **at least** 0.6 × `device_us` | `"compute"` or `"memory"`, whichever is larger; `"compute"` on a tie | the larger of the two |
# | 4 | otherwise none of the three explains the time | `"unexplained"` | the larger of the two |
#
# `explains` is `floor_us / device_us`.
#
# Zero FLOPs (a copy) and zero bytes (a kernel on registers alone) are legal, and so are both at once (an empty
# kernel: floors of zero).
#
# **Errors**, each a `ValueError` that names the field: `device_us` not positive; `launches` below 1; `flops` or
# `bytes` negative.


# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_classify", "locked": true, "schema_version": 3, "solution": false, "task": false}
@dataclass(frozen=True)
class Machine:
    """FLOP/s, bytes/s, and what the host needs to launch one kernel (on a CPU: to call one operator), in µs."""

    name: str
    peak_flops: float
    bandwidth: float
    launch_us: float


@dataclass(frozen=True)
class Measured:
    """One operation in a profile: its least work, the time its kernels ran, how many kernels there were."""

    name: str
    flops: float
    bytes: float
    device_us: float
    launches: int


@dataclass(frozen=True)
class Verdict:
    bound: str  # "compute", "memory", "overhead", "unexplained" or "impossible"
    floor_us: float
    explains: float


# %% nbgrader={"grade": false, "grade_id": "classify", "locked": false, "schema_version": 3, "solution": true, "task": false}
def classify(measured: Measured, machine: Machine) -> Verdict:
    """What limits the operation on this machine, by the four rules."""
    ### BEGIN SOLUTION
    if not measured.device_us > 0:
        raise ValueError(f"device_us = {measured.device_us}: expected a positive time in µs")
    if measured.launches < 1:
        raise ValueError(f"launches = {measured.launches}: expected at least one")
    for name, count in (("flops", measured.flops), ("bytes", measured.bytes)):
        if count < 0:
            raise ValueError(f"{name} = {count}: expected at least 0")

    compute = measured.flops / machine.peak_flops * 1e6
    memory = measured.bytes / machine.bandwidth * 1e6
    launch = measured.launches * machine.launch_us
    roof, floor = ("compute", compute) if compute >= memory else ("memory", memory)
    if floor > 1.05 * measured.device_us:
        bound = "impossible"
    elif launch > measured.device_us:
        bound, floor = "overhead", launch
    elif floor >= 0.6 * measured.device_us:
        bound = roof
    else:
        bound = "unexplained"
    return Verdict(bound, floor, floor / measured.device_us)
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "classify",
    "Put all three floors and the device time into µs first. Most wrong verdicts are unit errors.",
    "The host and the device work at the same time. Compare the launches with the time that the device was busy, not with the other two floors.",
    "Decide which of compute and memory is larger once, before the rules. Then the four rules are one `if`/`elif` chain.",
)

# %% nbgrader={"grade": true, "grade_id": "classify_test", "locked": true, "points": 25, "schema_version": 3, "solution": false, "task": false}
with check("classify", "what limits an operation"):
    machine = Machine("round numbers", peak_flops=1e15, bandwidth=2e12, launch_us=5.0)
    check.close(
        classify(Measured("matmul", 1e12, 1e8, 1250.0, 1), machine),
        Verdict("compute", 1000.0, 0.8),
        what="a large matmul",
        hint={"": "1e12 FLOP at 1e15 FLOP/s are 1000 µs: floors are in µs", "explains": "floor_us / device_us"},
    )
    check.close(
        classify(Measured("layernorm", 1e9, 4e8, 250.0, 1), machine),
        Verdict("memory", 200.0, 0.8),
        what="a LayerNorm",
        hint="bytes over bandwidth, in µs, is the higher floor here",
    )
    check.close(
        classify(Measured("small kernels", 1e7, 1e6, 100.0, 60), machine),
        Verdict("overhead", 300.0, 3.0),
        what="60 small kernels",
        hint={
            "bound": "launches × launch_us is 300 µs here, more than device_us; rule 1 does not look at launches",
            "floor_us": "when the verdict is overhead, the floor is launches × launch_us",
        },
    )
    check.close(
        classify(Measured("slow copy", 0, 4e8, 1000.0, 1), machine),
        Verdict("unexplained", 200.0, 0.2),
        what="a copy at 20% of the roof",
        hint="the highest floor explains only a fifth of the time: naming the higher roof is not enough, see rule 4",
    )
    check.close(
        classify(Measured("miscounted", 1e12, 1e8, 400.0, 1), machine),
        Verdict("impossible", 1000.0, 2.5),
        what="a matmul at 2.5 times the peak",
        hint="faster than the floor: the count or the peak is wrong, and rule 1 comes first",
    )
    check.raises(ValueError, classify, Measured("nothing", 1.0, 1.0, 0.0, 1), machine, names="device_us")

    ### BEGIN HIDDEN TESTS
    def judge(flops, moved, took, count, peak, bandwidth, launch_us):  # the four rules in seconds, and in another order
        floors = {"memory": moved / bandwidth, "compute": flops / peak}
        seconds, issue = took / 1e6, count * launch_us / 1e6
        best = max(floors.values())
        name = "memory" if floors["memory"] > floors["compute"] else "compute"
        verdict, floor = ("unexplained", best) if best < 0.6 * seconds else (name, best)
        if issue > seconds:
            verdict, floor = "overhead", issue
        if best > 1.05 * seconds:
            verdict, floor = "impossible", best
        return Verdict(verdict, floor * 1e6, floor / seconds)

    check.close(
        classify(Measured("launches hidden", 0, 2e7, 16.0, 3), machine),
        Verdict("memory", 10.0, 0.625),
        what="launches hidden behind the kernel",
        hint="15 µs of launches run while the device is busy for 16: the largest of three floors is the wrong question",
    )
    check.close(
        classify(Measured("both roofs", 6.5e8, 6e5, 1.0, 1), Machine("slow host", 1e15, 2e12, 0.5)),
        Verdict("compute", 0.65, 0.65),
        what="a kernel near 60% of the roof with a second floor below it",
        hint="arithmetic and traffic overlap: their floors are not added up",
    )
    check.close(
        classify(Measured("not the sum", 4e8, 6e5, 1.0, 1), Machine("slow host", 1e15, 2e12, 0.5)),
        Verdict("unexplained", 0.4, 0.4),
        what="two floors of 0.4 and 0.3 of the time",
        hint="arithmetic and traffic overlap: their floors are not added up",
    )
    check.close(
        classify(Measured("tie", 5e8, 1e6, 0.75, 1), Machine("ridge", 1e15, 2e12, 0.25)),
        Verdict("compute", 0.5, 0.5 / 0.75),
        what="a tie of compute and memory",
        hint="on a tie the verdict is compute",
    )
    check.close(
        classify(Measured("host and device tie", 0, 8e6, 5.0, 1), machine),
        Verdict("memory", 4.0, 0.8),
        what="launch time equal to device time",
        hint="overhead only where launches take more than the device time",
    )
    check.close(
        classify(Measured("empty kernel", 0, 0, 2.0, 1), machine), Verdict("overhead", 5.0, 2.5), what="an empty kernel"
    )
    check.close(
        classify(Measured("a barrier", 0, 0, 50.0, 1), machine),
        Verdict("unexplained", 0.0, 0.0),
        what="a long kernel without work",
    )
    check.close(
        classify(Measured("from the cache", 0, 8.2e6, 4.0, 1), machine),
        Verdict("overhead", 5.0, 1.25),
        what="2.5% faster than the floor",
        hint="up to 5% above the roof is within what data sheets and clocks leave open",
    )
    for seed in range(60):
        rng = check.rng(seed)
        peak, bandwidth, launch_us = (
            float(10 ** rng.uniform(11, 15.5)),
            float(10 ** rng.uniform(10, 13)),
            float(rng.uniform(1, 12)),
        )
        took, count = float(10 ** rng.uniform(0, 4)), int(rng.integers(1, 40))
        flops, moved = (
            took / 1e6 * peak * float(rng.uniform(0, 1.15)),
            took / 1e6 * bandwidth * float(rng.uniform(0, 1.15)),
        )
        check.close(
            classify(
                Measured(f"case {seed}", flops, moved, took, count), Machine("random", peak, bandwidth, launch_us)
            ),
            judge(flops, moved, took, count, peak, bandwidth, launch_us),
            what=f"random case {seed}",
            hint="apply the rules in the order of the table",
        )
    check.raises(ValueError, classify, Measured("x", 1.0, 1.0, -2.0, 1), machine, names="device_us")
    check.raises(ValueError, classify, Measured("x", 1.0, 1.0, 1.0, 0), machine, names="launches")
    check.raises(ValueError, classify, Measured("x", -1.0, 1.0, 1.0, 1), machine, names="flops")
    check.raises(ValueError, classify, Measured("x", 1.0, -1.0, 1.0, 1), machine, names="bytes")
    ### END HIDDEN TESTS

# %% tags=["demo"]
host_and_h100 = Machine("H100 SXM", h100.peak_flops, h100.bandwidth, 5.0)
verdicts = {name: classify(Measured(name, f, b, t, n), host_and_h100) for name, (f, b, t, n) in EXAMPLES.items()}
show.table(
    [[name, v.bound, f"{v.floor_us:.0f}", f"{v.explains:.2f}"] for name, v in verdicts.items()],
    ["the four panels above", "verdict", "floor, µs", "floor / device time"],
)

# %% [markdown]
# What to do about each verdict is different, which is why the verdict matters:
#
# | verdict | what helps | what does not |
# |---|---|---|
# | compute | a faster number format, less arithmetic, more GPUs | fusion, more bandwidth |
# | memory | fusion, smaller elements, better reuse | more math units |
# | overhead | larger batches, fusion, CUDA graphs, `torch.compile` | any faster kernel |
# | unexplained | look *inside* the kernel: occupancy, coalescing, bank conflicts (lab 02) | a faster machine, perhaps not even that |
# | impossible | recount; read the asterisk on the data sheet; ask whether the data sat in a cache | publishing it |

# %% [markdown]
# ## 4 · Account for a forward pass
#
# Now a whole network. ResNet-50 has been profiled a million times, mostly by looking at the longest bar. You will
# account for it: which operations cost the time, what limits each, when the memory peaks, and what `torch.compile`
# changed.
#
# **Predict first.**

# %% tags=["demo"]
predict(
    "convolution_share",
    "ResNet-50 forward on a 2-core CPU, 16 images, eager: what percentage of the time do the convolutions take?",
    unit="%",
    guess=None,
)
predict("compile_gain", "How many times faster is the same pass after torch.compile on that CPU?", unit="×", guess=None)
predict(
    "peak",
    "And its peak activation memory in eager mode, in MB (an image's first feature map is 64 × 112 × 112 in FP32, 3.2 MB)?",
    unit="MB",
    guess=None,
)

# %% [markdown]
# ### What a trace holds
#
# The profiler writes an event whenever an operator is called, and a record whenever memory is allocated or freed.
# Operators call operators: `aten::conv2d` calls `aten::convolution`, which calls `aten::_convolution`, which calls
# `aten::mkldnn_convolution`, which does the work. Each event's time **includes the operators it called**. Add all of
# them up and every convolution counts four times.
#
# Four traces are shipped in `data/`:
#
# | file | what it is |
# |---|---|
# | `resnet50_cpu_eager.json` | **recorded**: 16 images, FP32, on a 2-core CPU |
# | `resnet50_cpu_compiled.json` | **recorded**: the same pass under `torch.compile`; kernels that it generated are called `fused::…` |
# | `resnet50_gpu_eager_synthetic.json` | **synthetic**: the same calls as a timing model puts them on an H100 in FP16. Nothing in it was measured on a GPU. |
# | `resnet50_gpu_compiled_synthetic.json` | **synthetic**, likewise |
#
# The profiler knows times, not work. `bytes` and `flops` were added to each event that does the work itself, as in
# exercise 1: every tensor read once and written once. An event that only calls others has 0 of both.


# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_account", "locked": true, "schema_version": 3, "solution": false, "task": false}
@dataclass(frozen=True)
class Event:
    """One call of one operator."""

    name: str
    parent: int  # index in `events` of the operator that called this one; -1 for none
    start_us: float
    cpu_us: float  # from entry to exit on the host, the operators it called included
    device_us: float  # the kernels that it launched itself; 0 everywhere in a CPU profile
    bytes: int  # least traffic and arithmetic of its own work, 0 for an operator that only calls others
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
    machine: Machine
    wall_us: float  # from the call to its last result
    events: list
    allocations: list


@dataclass(frozen=True)
class Cost:
    """All calls of the operators of one name. `cpu_us` is self time on the host."""

    name: str
    calls: int
    cpu_us: float
    device_us: float
    bound: str  # "compute", "memory" or "overhead"


@dataclass(frozen=True)
class Account:
    costliest: list  # of Cost, at most three, the costliest first
    peak_bytes: int
    peak_after: str


@dataclass(frozen=True)
class Comparison:
    speedup: float
    passes_saved: int
    bytes_saved: int
    peak_saved: int
    largest_saving: str


def load_profile(path: str) -> Profile:
    """Read a trace of `data/`."""
    raw = json.loads(Path(path).read_text(encoding="utf-8"))
    events, allocations = [Event(*row) for row in raw["events"]], [Allocation(*row) for row in raw["allocations"]]
    return Profile(
        raw["title"], raw["source"], raw["device"], Machine(**raw["machine"]), raw["wall_us"], events, allocations
    )


# %% tags=["demo"] jupyter={"source_hidden": true}
eager = load_profile("data/resnet50_cpu_eager.json")


def depth(event):
    return 0 if event.parent < 0 else 1 + depth(eager.events[event.parent])


begin, end = 0, next(i for i, e in enumerate(eager.events) if e.name == "aten::max_pool2d")
fig, axes = figure(width=12.5, height=3.3)
for event in eager.events[begin:end]:
    level, working = depth(event), event.bytes > 0
    axes.barh(
        level,
        event.cpu_us / 1e3,
        left=event.start_us / 1e3,
        height=0.86,
        color=palette.vermillion if working else palette.sky,
        edgecolor="white",
        lw=0.6,
    )
    if event.cpu_us > 3000:
        axes.text(
            (event.start_us + 0.5 * event.cpu_us) / 1e3,
            level,
            event.name.removeprefix("aten::"),
            ha="center",
            va="center",
            fontsize=9,
        )
axes.invert_yaxis()
axes.set(
    yticks=range(5),
    ylabel="depth of the call",
    xlabel="ms",
    title="The first three layers of the recorded pass: who calls whom (orange does the work)",
)
axes.grid(axis="y", visible=False)
show.figure(fig)
print(
    f"{len(eager.events):,} events, {len(eager.allocations):,} allocations and frees, {eager.wall_us / 1e3:.0f} ms; roofs of that machine: "
    f"{eager.machine.peak_flops / 1e9:.0f} GFLOP/s, {eager.machine.bandwidth / 1e9:.0f} GB/s, {eager.machine.launch_us:.1f} µs a call"
)

# %% [markdown]
# ### Exercise 4 (25 points)
#
# **`account(profile: Profile) -> Account`**
#
# 1. *Self time.* The self time of an event on the host is its `cpu_us` minus the `cpu_us` of its **direct** children
#    (the events whose `parent` is its index). `device_us` is already its own.
# 2. *Aggregate by name.* For each name: `calls`, the number of events; `cpu_us`, the sum of self times; `device_us`,
#    the sum; and, for the next step, the sums of `bytes` and `flops`.
# 3. *Bound.* Three floors for each name, in µs: *compute* = flops / peak, *memory* = bytes / bandwidth, *overhead* =
#    calls × `launch_us`, with the rates of `profile.machine`. `bound` is the name of the largest; on a tie, the one
#    named first in this sentence: compute, memory, overhead. (This is the short form of exercise 3, without its fourth rule.)
# 4. *`costliest`*: the three names with the largest total `device_us` where `profile.device` is `"cuda"`, with the
#    largest total self `cpu_us` where it is `"cpu"`. Costliest first; on a tie, alphabetically. Fewer names give a shorter list.
# 5. *Peak.* Start at 0, add the allocations in their order; `peak_bytes` is the largest value that the sum takes
#    (0 if it is never positive).
# 6. *`peak_after`*: of the events that do work (`bytes > 0`) and whose `start_us` is at or before the **first** moment
#    of the peak, the name of the one that started last. `""` if there is none, or if `peak_bytes` is 0.
#
# **`compare(eager: Profile, compiled: Profile) -> Comparison`**
#
# | field | meaning |
# |---|---|
# | `speedup` | `wall_us` of eager over that of compiled |
# | `passes_saved` | events with `bytes > 0` in eager minus those in compiled |
# | `bytes_saved` | sum of `bytes` of all events, eager minus compiled |
# | `peak_saved` | `peak_bytes`, eager minus compiled |
# | `largest_saving` | the name whose total cost (as in step 4) fell the most; a name that is missing in one profile costs 0 there; on a tie, alphabetically |


# %% nbgrader={"grade": false, "grade_id": "account", "locked": false, "schema_version": 3, "solution": true, "task": false}
def account(profile: Profile) -> Account:
    """The three costliest operators, what bounds each, and the peak of activation memory."""
    ### BEGIN SOLUTION
    totals = totals_by_name(profile)
    ranked = sorted(totals, key=lambda name: (-totals[name]["cost"], name))
    costliest = []
    for name in ranked[:3]:
        total = totals[name]
        floors = {
            "compute": total["flops"] / profile.machine.peak_flops * 1e6,
            "memory": total["bytes"] / profile.machine.bandwidth * 1e6,
            "overhead": total["calls"] * profile.machine.launch_us,
        }
        costliest.append(Cost(name, total["calls"], total["cpu_us"], total["device_us"], max(floors, key=floors.get)))
    return Account(costliest, *peak_memory(profile))
    ### END SOLUTION


def compare(eager: Profile, compiled: Profile) -> Comparison:
    """What compiling changed."""
    ### BEGIN SOLUTION
    before, after = totals_by_name(eager), totals_by_name(compiled)
    saved = {
        name: before.get(name, {"cost": 0})["cost"] - after.get(name, {"cost": 0})["cost"] for name in before | after
    }
    return Comparison(
        speedup=eager.wall_us / compiled.wall_us,
        passes_saved=sum(e.bytes > 0 for e in eager.events) - sum(e.bytes > 0 for e in compiled.events),
        bytes_saved=sum(e.bytes for e in eager.events) - sum(e.bytes for e in compiled.events),
        peak_saved=peak_memory(eager)[0] - peak_memory(compiled)[0],
        largest_saving=min(saved, key=lambda name: (-saved[name], name)),
    )


def totals_by_name(profile: Profile) -> dict:
    own = [event.cpu_us for event in profile.events]
    for event in profile.events:
        if event.parent >= 0:
            own[event.parent] -= event.cpu_us
    totals = {}
    for event, own_us in zip(profile.events, own, strict=True):
        total = totals.setdefault(event.name, dict.fromkeys(("calls", "cpu_us", "device_us", "bytes", "flops"), 0))
        total["calls"] += 1
        total["cpu_us"] += own_us
        for field in ("device_us", "bytes", "flops"):
            total[field] += getattr(event, field)
    for total in totals.values():
        total["cost"] = total["device_us"] if profile.device == "cuda" else total["cpu_us"]
    return totals


def peak_memory(profile: Profile) -> tuple:
    held = peak = 0
    when = None
    for allocation in profile.allocations:
        held += allocation.bytes
        if held > peak:
            peak, when = held, allocation.time_us
    working = [event for event in profile.events if event.bytes > 0 and when is not None and event.start_us <= when]
    return peak, max(working, key=lambda event: event.start_us).name if working else ""
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "account",
    "One pass gives all self times: start from a list of every `cpu_us`, then let each event subtract its own `cpu_us` from its parent's entry.",
    "`compare` needs the totals by name and the peak of both profiles: write two helpers in the same cell, one for totals, one for the peak, and both functions become short.",
    "`sorted(names, key=lambda name: (-cost[name], name))` ranks by cost and settles ties alphabetically. `max` over a dict whose keys stand in the order compute, memory, overhead settles the other tie.",
)

# %% nbgrader={"grade": true, "grade_id": "account_test", "locked": true, "points": 25, "schema_version": 3, "solution": false, "task": false}
with check("account", "accounting for a forward pass"):
    tiny = Profile(
        "by hand",
        "synthetic",
        "cpu",
        Machine("small", 1e9, 1e9, 2.0),
        100.0,
        events=[
            Event("linear", -1, 0.0, 50.0, 0.0, 0, 0),
            Event("addmm", 0, 5.0, 40.0, 0.0, 1000, 30000),
            Event("empty", 1, 6.0, 10.0, 0.0, 0, 0),
            Event("relu", -1, 60.0, 20.0, 0.0, 8000, 1000),
            Event("empty", 3, 60.5, 2.0, 0.0, 0, 0),
            Event("relu", -1, 85.0, 4.0, 0.0, 2000, 250),
            Event("empty", -1, 90.0, 1.0, 0.0, 0, 0),
        ],
        allocations=[Allocation(7.0, 400), Allocation(61.0, 500), Allocation(80.0, -400), Allocation(90.5, 300)],
    )
    got = account(tiny)
    check.close(
        got.costliest[0],
        Cost("addmm", 1, 30.0, 0.0, "compute"),
        what="the costliest operator of a trace made by hand",
        hint={
            "": "self time: its own 40 µs less the 10 µs of the `empty` that it called",
            "bound": "floors in µs: 30,000 FLOP at 1e9 FLOP/s take 30 µs, 1,000 bytes at 1e9 bytes/s 1 µs, one call 2 µs",
        },
    )
    check.close(
        got.costliest,
        [
            Cost("addmm", 1, 30.0, 0.0, "compute"),
            Cost("relu", 2, 22.0, 0.0, "memory"),
            Cost("empty", 3, 13.0, 0.0, "overhead"),
        ],
        what="the three costliest",
        hint={
            "": "totals over all calls of a name, not means; `linear` itself takes only 10 µs",
            "bound": "each floor is a total over all calls of the name too: the three `empty` cost 3 × launch_us",
        },
    )
    check.equal(got.peak_bytes, 900, what="peak_bytes of a trace made by hand", hint="what is freed no longer counts")
    check.equal(
        got.peak_after,
        "relu",
        what="peak_after of a trace made by hand",
        hint="the last event that does work (bytes > 0) and has started when the peak is first reached",
    )
    recorded, synthetic = (
        load_profile("data/resnet50_cpu_eager.json"),
        load_profile("data/resnet50_gpu_eager_synthetic.json"),
    )
    check.equal(
        [cost.name for cost in account(recorded).costliest],
        ["aten::mkldnn_convolution", "aten::max_pool2d_with_indices", "aten::native_batch_norm"],
        what="the three costliest of the recorded pass",
        hint="ranked by total self time on the host; a caller's time includes its callees",
    )
    check.close(
        account(recorded).peak_bytes / 1e6,
        218.366,
        rtol=1e-5,
        unit="MB",
        what="the peak of the recorded pass",
        hint="what is freed no longer counts",
    )
    check.equal(
        [(cost.name, cost.bound) for cost in account(synthetic).costliest],
        [
            ("aten::cudnn_convolution", "overhead"),
            ("aten::native_batch_norm", "overhead"),
            ("aten::clamp_min", "overhead"),
        ],
        what="the three costliest of the synthetic GPU pass",
        hint="in a GPU profile the cost is device_us, and every call has a launch",
    )
    check.equal(
        compare(recorded, load_profile("data/resnet50_cpu_compiled.json")).passes_saved,
        70,
        what="passes_saved",
        hint="events with bytes > 0, eager minus compiled",
    )

    ### BEGIN HIDDEN TESTS
    def oracle(profile):
        table = {}
        for i, event in enumerate(profile.events):
            children = [other.cpu_us for other in profile.events if other.parent == i]
            table.setdefault(event.name, []).append(
                (event.cpu_us - sum(children), event.device_us, event.bytes, event.flops)
            )
        costs = {}
        for name, calls in table.items():
            own, ran, moved, done = (float(sum(column)) for column in zip(*calls, strict=True))
            floors = [
                ("compute", done / profile.machine.peak_flops),
                ("memory", moved / profile.machine.bandwidth),
                ("overhead", len(calls) * profile.machine.launch_us / 1e6),
            ]
            bound = next(name for name, seconds in floors if seconds == max(s for _, s in floors))
            costs[name] = (ran if profile.device == "cuda" else own, Cost(name, len(calls), own, ran, bound))
        levels = np.cumsum([0] + [a.bytes for a in profile.allocations])
        peak, after = int(levels.max()), ""
        if peak > 0:
            moment = profile.allocations[int(levels.argmax()) - 1].time_us
            after = (
                [""]
                + [
                    e.name
                    for e in sorted(profile.events, key=lambda e: e.start_us)
                    if e.bytes > 0 and e.start_us <= moment
                ]
            )[-1]
        order = sorted(costs.values(), key=lambda pair: (-pair[0], pair[1].name))
        return Account([cost for _, cost in order[:3]], peak, after), {name: cost for name, (cost, _) in costs.items()}

    def random_profile(seed, device):
        rng = check.rng(seed)
        names = [f"op::{letter}" for letter in "abcdefgh"]
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
            events[index] = Event(str(rng.choice(names)), parent, start, clock - start, ran, moved, done)

        for _ in range(6):
            call(-1, 0)
            clock += float(rng.exponential(5.0))
        live, allocations = [], []
        for moment in np.sort(rng.uniform(0.0, clock, 60)):
            if live and rng.random() < 0.48:
                allocations.append(Allocation(float(moment), -live.pop(int(rng.integers(len(live))))))
            else:
                live.append(int(rng.integers(1, 10**6)))
                allocations.append(Allocation(float(moment), live[-1]))
        machine = Machine(
            "random", float(10 ** rng.uniform(9, 11)), float(10 ** rng.uniform(8, 10)), float(rng.uniform(0.5, 8.0))
        )
        return Profile(f"random {seed}", "synthetic", device, machine, clock + 1.0, events, allocations)

    shipped = [
        load_profile(f"data/resnet50_{kind}.json")
        for kind in ("cpu_eager", "cpu_compiled", "gpu_eager_synthetic", "gpu_compiled_synthetic")
    ]
    made = [random_profile(seed, "cuda" if seed % 2 else "cpu") for seed in range(10)]
    for profile in shipped + made:
        expected, _ = oracle(profile)
        got = account(profile)
        check.close(
            got.costliest,
            expected.costliest,
            rtol=1e-5,
            atol=1e-3,
            what=f"costliest of {profile.title}",
            hint="subtract the direct children only: a grandchild's time is already in its parent's",
        )
        check.equal(
            got.peak_bytes,
            expected.peak_bytes,
            what=f"peak_bytes of {profile.title}",
            hint="what is freed no longer counts",
        )
        check.equal(
            got.peak_after,
            expected.peak_after,
            what=f"peak_after of {profile.title}",
            hint="the last event with bytes > 0 that started at or before the first moment of the peak",
        )
    for before, after in [shipped[:2], shipped[2:], made[0:4:2], made[1:5:2]]:
        (first, costs), (second, lower) = oracle(before), oracle(after)
        drops = sorted((lower.get(name, 0.0) - costs.get(name, 0.0), name) for name in {*costs, *lower})
        working = [[e.bytes for e in p.events if e.bytes > 0] for p in (before, after)]
        check.close(
            compare(before, after),
            Comparison(
                before.wall_us / after.wall_us,
                len(working[0]) - len(working[1]),
                sum(working[0]) - sum(working[1]),
                first.peak_bytes - second.peak_bytes,
                drops[0][1],
            ),
            rtol=1e-9,
            what=f"compare({before.title}, {after.title})",
            hint="eager minus compiled; a name that is missing costs 0; wall_us is the whole pass, not the sum of events",
        )
    bare = Profile(
        "bare",
        "synthetic",
        "cpu",
        Machine("small", 1e9, 1e9, 2.0),
        5.0,
        [Event("view", -1, 0.0, 1.0, 0.0, 0, 0)],
        [Allocation(0.5, -8)],
    )
    check.close(
        account(bare),
        Account([Cost("view", 1, 1.0, 0.0, "overhead")], 0, ""),
        what="account of a profile with one view and nothing allocated",
        hint="fewer than three names give a shorter list; a sum that is never positive peaks at 0",
    )
    twins = [Event(name, -1, float(i), 1.0, 0.0, 1000, 1000) for i, name in enumerate("dbca")]
    check.close(
        account(
            Profile(
                "twins",
                "synthetic",
                "cpu",
                Machine("small", 1e9, 1e9, 1.0),
                5.0,
                twins,
                [Allocation(0.5, 8), Allocation(1.5, -8), Allocation(3.5, 8)],
            )
        ),
        Account([Cost(name, 1, 1.0, 0.0, "compute") for name in "abc"], 8, "d"),
        what="account of a profile full of ties",
        hint="ties: costs alphabetically, bounds in the order compute, memory, overhead, the peak at its first moment",
    )
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
profiles = {
    kind: load_profile(f"data/resnet50_{kind}.json")
    for kind in ("cpu_eager", "cpu_compiled", "gpu_eager_synthetic", "gpu_compiled_synthetic")
}
accounts = {kind: account(profile) for kind, profile in profiles.items()}
rows = []
for kind, found in accounts.items():
    profile = profiles[kind]
    for place, cost in enumerate(found.costliest, 1):
        head = (
            [
                f"{kind.replace('_', ' ')}, {profile.wall_us / 1e3:.3g} ms",
                f"{found.peak_bytes / 1e6:.0f} MB after {found.peak_after}",
            ]
            if place == 1
            else ["", ""]
        )
        device_us = f"{cost.device_us / 1e3:.2f}" if profile.device == "cuda" else "–"
        rows.append(
            [
                head[0],
                f"{place}. {cost.name}",
                f"{cost.calls}",
                f"{cost.cpu_us / 1e3:.2f}",
                device_us,
                cost.bound,
                head[1],
            ]
        )
show.table(rows, ["pass", "operator", "calls", "CPU self, ms", "GPU, ms", "bound", "peak of activations"])
convolution = accounts["cpu_eager"].costliest[0]
gained = compare(profiles["cpu_eager"], profiles["cpu_compiled"])
recorded_on = "recorded on 2 cores"
show.against_prediction(
    "convolution_share",
    round(100 * convolution.cpu_us / profiles["cpu_eager"].wall_us, 1),
    unit="%",
    source=recorded_on,
)
show.against_prediction("compile_gain", round(gained.speedup, 2), unit="×", source=recorded_on)
show.against_prediction("peak", round(accounts["cpu_eager"].peak_bytes / 1e6), unit="MB", source=recorded_on)

# %% tags=["demo"] jupyter={"source_hidden": true}
fig, (left, right) = figure(1, 2, width=12.5, height=4.2)
for kind, colour in (("cpu_eager", palette.vermillion), ("cpu_compiled", palette.blue)):
    profile = profiles[kind]
    times = [0.0] + [a.time_us / 1e3 for a in profile.allocations]
    levels = np.cumsum([0] + [a.bytes for a in profile.allocations]) / 1e6
    left.step(
        times,
        levels,
        where="post",
        color=colour,
        lw=1.2,
        label=f"{kind.removeprefix('cpu_')}: peak {levels.max():.0f} MB",
    )
    left.plot(times[int(levels.argmax())], levels.max(), "o", color=colour)
left.set(xlabel="ms", ylabel="MB held", title="Activations in memory (recorded)", ylim=(0, None))
left.legend(loc="upper right")
for row, kind in enumerate(("gpu_eager_synthetic", "gpu_compiled_synthetic")):
    profile = profiles[kind]
    busy = sum(e.device_us for e in profile.events)
    right.barh(1.5 * row, profile.wall_us / 1e3, color=palette.purple, height=0.55)
    right.barh(1.5 * row + 0.6, busy / 1e3, color=palette.blue, height=0.55)
    right.text(profile.wall_us / 1e3 + 0.05, 1.5 * row, "until the pass is done", va="center")
    right.text(busy / 1e3 + 0.05, 1.5 * row + 0.6, f"GPU busy: {100 * busy / profile.wall_us:.0f}%", va="center")
right.set(
    yticks=[0.3, 1.8],
    yticklabels=["eager", "compiled"],
    xlabel="ms",
    xlim=(0, 5.2),
    title="The same pass on an H100: synthetic, not measured",
)
right.grid(axis="y", visible=False)
right.invert_yaxis()
show.figure(fig)

# %% [markdown]
# Four things that the longest bar would not have told you.
#
# **On the CPU the compiled convolutions are at their roof.** They take 322 ms where their compute floor is 320. Nobody
# will make that pass twice as fast by writing a better convolution.
#
# **Compiling did not only fuse.** Of the 129 ms that it saved, 70 came off the convolutions (`largest_saving` names
# them): the same multiplications, so eager mode lost that time on something that no count of FLOPs shows. Most of
# the rest was a max-pool of 42 ms that was fused away. Batch norm, ReLU and addition became one pass over memory, and
# each fused pass is one buffer fewer to hold at the peak.
#
# **On a large GPU the same network is limited by the host.** With 16 images the synthetic H100 waits most of the
# time. Every one of its three costliest operators would need fewer launches, not faster kernels. That conclusion
# holds as far as the model behind those two traces holds: 5 µs for a launch, 2.5 µs for each call. It has not been
# measured on a GPU by the course yet.
#
# **The peak is early.** Feature maps are largest in the first stage, so a network that "does not fit" fails in its
# first third, not at its end. (In *training* activations are kept for the backward pass, and the peak moves to the
# end of the forward pass. Lab 06 is about that.)
#
# ### The live run
#
# The same, here and now, on a network small enough to wait for: a ResNet-50 of a quarter of
# the width, on four images of 96 × 96 and one thread.

# %% tags=["demo"]
from threeloops.inner.profiling.profiler import annotate_modules, profile
from threeloops.models.resnet import resnet50

torch.set_num_threads(1)  # too small a network to share: on a busy machine two threads would mostly wait for each other
torch.manual_seed(0)
network = resnet50(width=16).eval().to(DEVICE)
pictures = torch.randn(4, 3, 96, 96, device=DEVICE)
with torch.no_grad(), annotate_modules(network):
    live = profile(network, pictures)
limits = live.classify(here, "fp32")
show.table(
    [
        [
            op.name,
            str(op.calls),
            f"{op.cpu_us / 1e3:.2f}",
            f"{op.device_us / 1e3:.2f}" if DEVICE == "cuda" else "–",
            limits[op.name],
        ]
        for op in live.top(5)
    ],
    ["operator", "calls", "CPU, ms", "GPU, ms", "bound"],
    caption=f"live on this machine: {live.wall_us / 1e3:.1f} ms; peak {live.peak_memory.bytes / 1e6:.2f} MB in {live.peak_memory.operator}, {' › '.join(live.peak_memory.within)}",
)

# %% tags=["demo"]
import shutil

from threeloops.models.resnet import BasicBlock


def compiled_against_eager():
    """Times of one residual block, eager and compiled, and how far the results are apart; compiling takes seconds."""
    block, features = BasicBlock(16, 16, 1).eval().to(DEVICE), torch.randn(4, 16, 48, 48, device=DEVICE)
    compiled = torch.compile(block)
    with torch.no_grad():
        difference = (compiled(features) - block(features)).abs().max().item()
        times = [
            benchmark(f, lambda: (features,), device=DEVICE, samples=41, flush_cache=False) for f in (block, compiled)
        ]
    return times, difference


if DEVICE == "cpu" and shutil.which("g++") is None and shutil.which("clang++") is None:
    print(
        "torch.compile: SKIPPED. On a CPU it generates C++ and needs a compiler, and neither g++ nor clang++ is on the PATH. The recorded traces above stand in for it."
    )
else:
    (plain, faster), difference = compiled_against_eager()
    ratio = plain.ratio(faster)
    print(
        f"one residual block: eager {plain.median * 1e3:.2f} ms, compiled {faster.median * 1e3:.2f} ms: {ratio.value:.2f} times faster, "
        f"{ratio.low:.2f} to {ratio.high:.2f} with 90% confidence; results differ by at most {difference:.1e}"
    )

# %% [markdown]
# ## Deep dive A · The gaps in a trace
#
# An operator that is not there costs time too. A GPU works off a queue; when the queue runs dry it idles, and the
# trace shows whose fault that was. Here is a trace made by hand, with one gap of each kind. The library reads it as
# it would read a recorded one.

# %% tags=["demo"]
from threeloops.inner.profiling.gaps import find_gaps
from threeloops.inner.profiling.trace import Event as TraceEvent

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
# The last gap is the one that hides best: the host ran no operator at all. In Python a common reason is the **GIL**,
# the lock that lets one thread execute bytecode at a time. A data-loading thread that computes in Python takes turns
# with the thread that launches kernels, five milliseconds a turn. **Predict**: a small ResNet takes some
# milliseconds in Python and C++. How much longer does it take while another thread counts?

# %% tags=["demo"]
predict(
    "gil",
    "A thread that only counts runs beside a small ResNet forward pass: by what factor does the pass get longer?",
    unit="×",
    guess=None,
)

# %% tags=["demo"]
import sys
import threading


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
show.against_prediction("gil", round(crowded.median / alone.median, 1), unit="×")
print(
    f"alone {alone.median * 1e3:.1f} ms, beside a counting thread {crowded.median * 1e3:.1f} ms; the switch interval is {sys.getswitchinterval() * 1e3:.0f} ms. "
    "Worker processes have a GIL each: that is why data loaders use processes (lab 07)."
)

# %% [markdown]
# To see gaps in your own program, mark its parts. `annotate("data")` opens a range in the profile and, where there
# is CUDA, an NVTX range that Nsight Systems shows. `annotate_modules(model)` marks each submodule. Then save the
# trace for a viewer: Perfetto for the timeline, TensorBoard for the summary.

# %% tags=["demo"]
import tempfile

from threeloops.inner.profiling.profiler import annotate

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
print("TensorBoard: pip install tensorboard torch-tb-profiler, then tensorboard --logdir on the folder 'tensorboard'")
shutil.rmtree(folder)  # keep it by deleting this line

# %% [markdown]
# ## Deep dive B · Where the 989 trillion come from
#
# No memory feeds a quarter of a million multipliers (528 tensor cores × 512 on an H100) one by one. The trick is from
# 1979: a grid of multiply-adders that hand operands to their neighbours. A value that enters at the edge is used by a
# whole row and never fetched again. TPUs are built of such arrays, 128 × 128 each from v2 to v5 and 256 × 256 in v6e. A
# tensor core reuses its operands in the same spirit, inside a small matrix unit whose wiring NVIDIA does not publish.
#
# **Predict.** Two matrices of 6 × 8 and 8 × 6 meet in a 6 × 6 array. Each element must do 8 multiply-adds. After how
# many cycles is the last one done?

# %% tags=["demo"]
predict("systolic", "6 × 8 times 8 × 6 in a 6 × 6 systolic array: how many cycles?", unit="cycles", guess=None)

# %% tags=["demo"]
from threeloops.inner.machine_models.systolic import cycles, output_stationary, tile

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
show.figure(fig)

# %% [markdown]
# The corner elements start late and end early: M + N + K − 2 cycles instead of K. A long K hides the slant, and so
# does the next tile when it enters right behind this one. What nothing hides is a matrix that does not **fill** the
# array.

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
    title="The slant costs less when K is long",
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
# The last line is why model dimensions are multiples of 128, and the right plot is the roofline again from inside the
# chip: with one token the array must load 128 × 128 weights for 128 × 128 multiply-adds.
#
# ## Deep dive C · How well do you know that number?
#
# Someone shows you a kernel that is 2% faster. Run times have a hard floor and a long tail: interrupts, clocks, other
# programs. So the mean follows the tail, and the minimum forgets it. The median of *n* runs, with the band in which
# the true median lies, is the number to print; two programs differ when their bands do not touch.

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.inner.timing import Samples, median_band

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
# **Predict.** On this machine, today: how many runs of each program does it take until a true difference of 2% is
# seen nine times out of ten?

# %% tags=["demo"]
predict(
    "runs", "Runs of each program until a 2% difference is resolved in 9 of 10 experiments?", unit="runs", guess=None
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
show.figure(fig)
enough = next((n for n, seen in zip(sizes, curves[2], strict=True) if seen >= 0.9), None)
assert curves[0][0] <= 0.1
if enough:
    show.against_prediction("runs", enough, unit="runs")
else:
    print(f"Not even {sizes[-1]:,} runs are enough here: this machine cannot resolve 2% in this operation.")

# %% [markdown]
# The curve for 0% is the one to check first: bands that do not touch must not lie. And the resampling is optimistic,
# because it assumes that runs are independent. Clocks drift and neighbours come and go, so in a real comparison
# **interleave** the two programs (A B A B …) instead of running all of A before all of B.

# %% [markdown]
# ## What the sources claim
#
# The texts that this course grew from assert things about hardware. Each assertion is recomputed here, from the table
# of accelerators or from a model, and gets a verdict.

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
off = {
    f"{name} {what}": abs(said / actual - 1)
    for name, (rate, bandwidth) in CLAIMED.items()
    for what, said, actual in (
        ("rate", rate * 1e12, card[name].rate("fp16")),
        ("bandwidth", bandwidth * 1e9, card[name].memory_bandwidth),
    )
}
worst = max(off, key=off.get)
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
audit(
    "roof-1",
    round(100 * off[worst], 1),
    "% off at worst",
    "published",
    "holds" if off[worst] < 0.05 else "corrected",
    f"all ten numbers against the data sheets; the worst is the {worst}. They are dense rates. The ridge point has about doubled since the V100: math grew faster than memory, until the H200 moved it back to 206",
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
ratios = {
    "H100 TF32": 989e12 / h.rate("tf32"),
    "H100 FP16": 1979e12 / h.rate("fp16"),
    "A100 TF32": 312e12 / card["A100 SXM 80GB"].rate("tf32"),
    "A100 FP16": 624e12 / card["A100 SXM 80GB"].rate("fp16"),
    "L40S TF32": 362e12 / card["L40S"].rate("tf32"),
}
audit(
    "roof-3",
    round(float(np.mean(list(ratios.values()))), 2),
    "times the dense rate, on average",
    "published",
    "corrected",
    "claimed over dense: "
    + ", ".join(f"{k} {v:.2f}" for k, v in ratios.items())
    + ". Sparse rates; as dense ones: H100 495 and 989, A100 156 and 312, L40S 183",
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
audit(
    "roof-5",
    round(ada.rate("fp16_fp16_accumulate") / ada.rate("fp16"), 2),
    "times faster with FP16 accumulation",
    "published",
    "holds",
    f"both numbers are right: {ada.rate('fp16_fp16_accumulate') / 1e12:.0f} TFLOP/s when sums are kept in FP16, {ada.rate('fp16') / 1e12:.0f} when in FP32, which is what training uses",
)
audit(
    "roof-6",
    card["H200 SXM"].memory_bytes / 2**30,
    "GB as printed",
    "published",
    "corrected",
    f"141 (C) is right. An MI300X has {card['MI300X'].memory_bytes / 2**30:.0f}, and so had the first sheets of the B200",
)

# %% [markdown]
# ### Are most operations of a transformer memory-bound? (roof-7)
#
# "Most" of what, and with which attention? Count the operations of one training step of a layer, forward and backward
# and update, and add up their time at the roof.

# %% tags=["demo"]
from threeloops.inner import costs


def layer_operations(tokens, length, width, heads, fused):
    """(name, Work) of one GPT layer in BF16, forward and backward, each at its least traffic."""
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
            (f"{name}, backward", costs.Work(3 * tokens * width * 2, 12 * tokens * width)),
        ]
    head, scores = width // heads, batch * heads * length * length
    if fused:
        forward = attention(batch, heads, length, length, head, fused=True)
        rows += [("attention", forward), ("attention, backward", costs.Work(2 * forward.bytes, 2.5 * forward.flops))]
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
        ("optimiser", costs.Work(parameters * (2 + 6 * 4 + 2), 12 * parameters))
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
    axes.text(v + 1, row, f"{v:.0f}% memory-bound", va="center", fontsize=9)
axes.set(xlim=(0, 100), xlabel="%", title="A layer in training (width 4,096; 8 × 4,096 tokens), H100, at the roof")
axes.invert_yaxis()
axes.grid(axis="y", visible=False)
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
# ### Memory at 90%, tensor cores at 20% (roof-8)
#
# A profiler shows both numbers. To ask whether they *mean* memory-bound, build the machine that shows them: a loader
# and a tensor core working on tiles, with two buffers between them and some latency. Then improve one part at a time.


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
    round(per_clock["H100 SXM"]),
    "FMA per clock (H100)",
    "model",
    "corrected",
    f"a V100 tensor core does {per_clock['V100 SXM2']:.0f}, a 4 × 4 × 4 product (C means that one); A100 {per_clock['A100 SXM 80GB']:.0f}, H100 {per_clock['H100 SXM']:.0f}. "
    "16 × 16 (E) is the shape of the programming interface: one such product is 4,096 multiply-adds and takes many clocks",
)
pods = {"TPU v4": 4096, "TPU v5p": 8960}
exa = {name: chips * card[name].rate("bf16") / 1e18 for name, chips in pods.items()}
audit(
    "roof-10",
    round(exa["TPU v5p"], 2),
    "EFLOP/s (v5p pod)",
    "published",
    "corrected",
    f"v4: 4,096 chips × 275 TFLOP/s = {exa['TPU v4']:.2f} EFLOP/s, as claimed. v5p: 8,960 chips × 459 TFLOP/s = {exa['TPU v5p']:.2f}, four times exascale (BF16; exascale usually means FP64)",
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
# ## Reflection
#
# Your team runs a model of your choice at 31% of the peak of its GPUs, and `nvidia-smi` shows 98% utilisation. A
# colleague proposes to buy the next generation, with 2.5 times the math and 1.4 times the bandwidth. In about 200
# words: which three measurements would you take first, what would each have to show for the purchase to be a good
# idea, and what would you try if it were not? Name one number in your argument that you do not trust, and why.

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# *Write your answer here.*

# %% [markdown]
# ## What to remember
#
# - **Intensity is a property of the shape.** The same matmul is compute-bound for a batch and memory-bound for a token.
# - **Two roofs, one ridge.** peak / bandwidth: 139 FLOP per byte on a V100, 295 on an H100. It moves with every generation: look it up.
# - **Read the asterisk.** Dense or sparse, which accumulator, which direction of a link: each is a factor of two.
# - **Five verdicts, not two.** Compute, memory, overhead, none of these, and *you miscounted*.
# - **Self time, totals, and the peak after frees.** Or every convolution counts four times.
# - **Most of what?** Half of the operations of a layer are memory-bound, and with fused attention they take a tenth of its time.
# - **Utilisation says that a kernel ran.** The share of the roof says whether it was worth running.
#
# Next: lab 02 goes below the roof. Why does a kernel with the right bytes still take three times its floor?
