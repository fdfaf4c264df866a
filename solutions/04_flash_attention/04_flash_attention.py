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
#     title: Can an algorithm move less memory?
#     minutes: 180
#     withholds: [threeloops.inner.kernels.attention.sizes, threeloops.inner.kernels.attention.flash_attention_traffic, threeloops.inner.kernels.sparse.sliding_window_traffic, threeloops.inner.kernels.sparse.block_sparse_traffic]
# ---

# %% [markdown]
# # Can an algorithm move less memory?
#
# Attention compares every query with every key. For 4,096 tokens that is a table of 16.8 million scores, for one head of
# one layer of one sequence. Naive attention writes that table to memory, reads it for the softmax, writes it again, and
# reads it once more to weigh the values. Nobody ever looks at it. No tuning of these three kernels helps: the table
# itself is the problem.
#
# FlashAttention ([Dao et al. 2022](https://arxiv.org/abs/2205.14135), [Dao 2023](https://arxiv.org/abs/2307.08691)) never
# makes it.

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import math
from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl
from threeloops.inner import interpreter
from threeloops.lab import audit, check, explore, hint, predict, replay, show

INTERPRETED = interpreter.enable_without_gpu()  # without a GPU, Triton kernels run in Triton's interpreter, on the CPU

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.hardware import accelerator
from threeloops.inner.costs import attention
from threeloops.inner.roofline import Roofline
from threeloops.lab import figure, palette

h100 = accelerator("H100 SXM")
LENGTHS = [2**k for k in range(9, 18)]
roof = Roofline(h100, "bf16")
fig, (left, right) = figure(1, 2, width=12.5, height=4.1)
naive = [attention(1, 1, n, n, 128) for n in LENGTHS]
fused = [attention(1, 1, n, n, 128, fused=True) for n in LENGTHS]
left.plot(
    LENGTHS,
    [w.bytes / 2**20 for w in naive],
    "o-",
    color=palette.vermillion,
    label="naive: the scores cross four times",
)
left.plot(
    LENGTHS, [w.bytes / 2**20 for w in fused], "o-", color=palette.blue, label="Q, K, V and the output, once each"
)
left.set(
    xscale="log",
    yscale="log",
    xlabel="tokens",
    ylabel="MiB moved, at least",
    title="Traffic of one head, head_dim 128, BF16",
)
left.set_xticks(LENGTHS[::2], [f"{n // 1024}k" if n >= 1024 else n for n in LENGTHS[::2]])
left.minorticks_off()
left.legend(loc="upper left")
right.plot(LENGTHS, [w.intensity for w in naive], "o-", color=palette.vermillion)
right.plot(LENGTHS, [w.intensity for w in fused], "o-", color=palette.blue)
right.axhline(roof.ridge_point, color=palette.ink, ls=":", lw=1.3)
right.text(LENGTHS[-1], roof.ridge_point * 1.15, "ridge point of an H100", ha="right", fontsize=10)
right.text(
    LENGTHS[4],
    naive[4].intensity * 0.55,
    "naive: memory-bound at every length",
    color=palette.vermillion,
    ha="center",
    va="top",
)
right.set(
    xscale="log",
    yscale="log",
    xlabel="tokens",
    ylabel="FLOP per byte",
    title="The same arithmetic, another bound",
    ylim=(15, 1.5e5),
)
right.set_xticks(LENGTHS[::2], [f"{n // 1024}k" if n >= 1024 else n for n in LENGTHS[::2]])
right.minorticks_off()
show.figure(fig)

# %% [markdown]
# The arithmetic is the same. The naive version hangs at some 60 FLOP per byte however long the sequence is, far below
# the ridge; without the table the same work is limited by the tensor cores from a thousand tokens on.
#
# You will get there in four steps:
#
# 1. count what attention moves, exactly, tile by tile, naive and fused;
# 2. find the summary of a block of keys that can be merged with the next;
# 3. write the kernel: any length, causal, grouped heads;
# 4. look only at a window, and *skip* the rest. The meter will know.

# %% tags=["demo"]
predict("scores", "The score matrix of one head, 4,096 tokens, in BF16: how many MiB?", unit="MiB", guess=None)
predict(
    "kv_reads",
    "Fused attention, 4,096 tokens, head_dim 128, BF16, one program for each 128 queries: how many times is K read in full?",
    unit="times",
    guess=None,
)

# %% [markdown]
# ## 1 · What must move?
#
# In the fused kernel a program owns a block of `block_m` queries. It loads them once, walks along the keys in tiles of
# `block_n`, and keeps its part of the output in registers until the end. So Q is read once and O is written once, but K
# and V are read again by every block of queries.
#
# A **causal** mask hides from query *i* every key after it. When there are more keys than queries, as in decoding, the
# queries are the *last* ones: query *i* sees key *j* where j ≤ i + (keys − queries). Tiles of keys that no query of the
# block may see need not be loaded. A tile that is partly visible is computed in full, and masked.
#
# ### Exercise 1 (20 points)
#
# `visible_tiles(p: Problem, block_m: int, block_n: int) -> list[tuple[int, int]]`: for each block of queries, from the
# first, the pair (first, end) of tile numbers: tiles first … end − 1 are visited. A tile is visited **if and only if** it
# holds a key that exists and that at least one existing query of the block may see. None visible: (0, 0).
#
# - `p.causal`: j ≤ i + (keys − queries). `p.window` (an int or None): also j > i + (keys − queries) − window. A window
#   implies the causal rule.
#
# `fused_traffic(p, block_m, block_n) -> Traffic`, the whole problem with all its batches and heads:
#
# - `loaded`: bytes that all programs ask for: every query row once; for each visited tile its existing rows of K and of V;
# - `stored`: bytes of the output, and of one float32 a query row, the logsumexp;
# - `dot_flops`: 4 · block_m · block_n · head_dim for each visited tile: both products, in full, masked or not.
#
# `naive_traffic(p) -> Traffic`, three kernels, nothing skipped, no mask, and K and V read once for each **query** head:
# scores (Q, K in, S out), softmax (S in, P out), values (P, V in, O out); `dot_flops` 4 · queries · keys · head_dim a head.
#
# Elements have `p.bytes_per_element` bytes. K and V are loaded anew for every query head, even where heads share them.
# All results are ints.


# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_problem", "locked": true, "schema_version": 3, "solution": false, "task": false}
@dataclass(frozen=True)
class Problem:
    """Sizes of one attention call."""

    queries: int
    keys: int
    head_dim: int
    batch: int = 1
    heads: int = 1
    causal: bool = False
    window: int | None = None
    bytes_per_element: int = 2


@dataclass(frozen=True)
class Traffic:
    """Bytes loaded and stored, and FLOPs of the matrix products."""

    loaded: int
    stored: int
    dot_flops: int


# %% nbgrader={"grade": false, "grade_id": "traffic", "locked": false, "schema_version": 3, "solution": true, "task": false}
def visible_tiles(p: Problem, block_m: int, block_n: int) -> list[tuple[int, int]]:
    """First and end of the visited tiles of keys, for each block of queries."""
    ### BEGIN SOLUTION
    found = []
    for top in range(0, p.queries, block_m):
        bottom = min(top + block_m, p.queries) - 1
        offset = p.keys - p.queries
        low, high = 0, p.keys
        if p.causal or p.window is not None:
            high = min(p.keys, bottom + offset + 1)
        if p.window is not None:
            low = max(0, top + offset - p.window + 1)
        found.append((low // block_n, -(-high // block_n)) if low < high else (0, 0))
    return found
    ### END SOLUTION


def fused_traffic(p: Problem, block_m: int, block_n: int) -> Traffic:
    """What a fused kernel asks for."""
    ### BEGIN SOLUTION
    tiles = visible_tiles(p, block_m, block_n)
    rows = sum(min(end * block_n, p.keys) - first * block_n for first, end in tiles)
    visited = sum(end - first for first, end in tiles)
    each = p.batch * p.heads
    width = p.head_dim * p.bytes_per_element
    return Traffic(
        loaded=each * (p.queries + 2 * rows) * width,
        stored=each * p.queries * (width + 4),
        dot_flops=each * visited * 4 * block_m * block_n * p.head_dim,
    )
    ### END SOLUTION


def naive_traffic(p: Problem) -> Traffic:
    """What three kernels with the scores in memory between them ask for."""
    ### BEGIN SOLUTION
    each, scores = p.batch * p.heads, p.queries * p.keys
    queries, keys = p.queries * p.head_dim, p.keys * p.head_dim
    return Traffic(
        loaded=each * (queries + keys + scores + scores + keys) * p.bytes_per_element,
        stored=each * (scores + scores + queries) * p.bytes_per_element,
        dot_flops=each * 4 * scores * p.head_dim,
    )
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "traffic",
    "For one block of queries, find the range of keys that at least one query of it may see: the end comes from its last existing query, the beginning, with a window, from its first.",
    "A range low … high − 1 of keys lies in tiles low // block_n … ⌈high / block_n⌉ − 1. The range is empty when high ≤ low, for instance for early queries when there are more queries than keys.",
    "The last tile may stick out beyond the keys: it is computed in full, but only rows that exist are loaded: min(end · block_n, keys) − first · block_n.",
)

# %% nbgrader={"grade": true, "grade_id": "traffic_test", "locked": true, "points": 20, "schema_version": 3, "solution": false, "task": false}
with check("traffic", "what attention moves, tile by tile"):
    full = Problem(queries=256, keys=256, head_dim=64)
    check.equal(
        visible_tiles(full, 128, 64),
        [(0, 4), (0, 4)],
        what="tiles without a mask",
        hint="every block of queries sees every tile",
    )
    causal = Problem(queries=256, keys=256, head_dim=64, causal=True)
    check.equal(
        visible_tiles(causal, 128, 64),
        [(0, 2), (0, 4)],
        what="tiles of a causal mask",
        hint="the first 128 queries see no key after number 127",
    )
    ragged = Problem(queries=100, keys=60, head_dim=64, causal=True)
    check.equal(
        visible_tiles(ragged, 32, 16),
        [(0, 0), (0, 2), (0, 4), (0, 4)],
        what="tiles of 100 causal queries and 60 keys",
        hint="query 39 is the last that sees nothing: j ≤ i + (keys − queries); an empty range is (0, 0)",
    )
    window = Problem(queries=512, keys=512, head_dim=64, window=65)
    check.equal(
        visible_tiles(window, 128, 64),
        [(0, 2), (1, 4), (3, 6), (5, 8)],
        what="tiles of a window of 65",
        hint="query 128 sees keys 64 … 128; the block's first query decides where the window begins",
    )
    check.equal(
        fused_traffic(full, 128, 64),
        Traffic(loaded=(256 + 2 * 2 * 256) * 128, stored=256 * (128 + 4), dot_flops=8 * 4 * 128 * 64 * 64),
        what="traffic of 256 × 256, not causal",
        hint="Q once, K and V once for each of two blocks of queries; output and logsumexp",
    )
    decoding = Problem(queries=3, keys=100, head_dim=64, heads=2, causal=True, bytes_per_element=4)
    check.equal(
        fused_traffic(decoding, 16, 64),
        Traffic(loaded=2 * (3 + 2 * 100) * 64 * 4, stored=2 * 3 * (64 * 4 + 4), dot_flops=2 * 2 * 4 * 16 * 64 * 64),
        what="traffic of 3 queries at the end of 100 keys, two heads, float32",
        hint="all 100 keys are seen: two tiles, the second with 36 rows, computed in full",
    )
    check.equal(
        naive_traffic(full),
        Traffic(
            loaded=2 * (3 * 256 * 64 + 2 * 256 * 256),
            stored=2 * (2 * 256 * 256 + 256 * 64),
            dot_flops=4 * 256 * 256 * 64,
        ),
        what="naive traffic of 256 × 256",
        hint="the scores are written, read, written as probabilities, and read",
    )
    ### BEGIN HIDDEN TESTS
    for seed in range(60):
        rng = check.rng(seed)
        queries, keys = (int(v) for v in rng.integers(1, 40, 2))
        kind = seed % 3
        window = int(rng.integers(1, 30)) if kind == 2 else None
        p = Problem(
            queries,
            keys,
            head_dim=16,
            batch=int(rng.integers(1, 3)),
            heads=int(rng.integers(1, 4)),
            causal=kind == 1 or (kind == 2 and seed % 2 == 0),
            window=window,
            bytes_per_element=int(rng.choice([2, 4])),
        )
        block_m, block_n = (int(v) for v in rng.choice([1, 4, 8, 16], 2))
        expected, rows, visited = [], 0, 0
        for top in range(0, queries, block_m):
            seen = set()
            for i in range(top, min(top + block_m, queries)):
                for j in range(keys):
                    at = i + keys - queries
                    if kind == 0 or (j <= at and (window is None or j > at - window)):
                        seen.add(j // block_n)
            expected.append((min(seen), max(seen) + 1) if seen else (0, 0))
            visited += len(seen)
            rows += sum(min(block_n, keys - tile * block_n) for tile in seen)
        case = f"{queries} queries, {keys} keys, {['no mask', 'causal', f'window {window}'][kind]}, blocks {block_m} × {block_n}"
        check.equal(
            [tuple(v) for v in visible_tiles(p, block_m, block_n)],
            expected,
            what=f"visited tiles of {case}",
            hint="queries are the last of the keys: add keys − queries; blocks at the edge have fewer rows; an empty range is (0, 0)",
        )
        each = p.batch * p.heads
        check.equal(
            fused_traffic(p, block_m, block_n),
            Traffic(
                each * (queries + 2 * rows) * 16 * p.bytes_per_element,
                each * queries * (16 * p.bytes_per_element + 4),
                each * visited * 4 * block_m * block_n * 16,
            ),
            what=f"traffic of {case}",
            hint="only rows that exist are loaded, but tiles are computed in full; every batch and head does it again",
        )
        check.equal(
            naive_traffic(p),
            Traffic(
                each * p.bytes_per_element * (16 * (queries + 2 * keys) + 2 * queries * keys),
                each * p.bytes_per_element * (2 * queries * keys + 16 * queries),
                each * 64 * queries * keys,
            ),
            what=f"naive traffic of {queries} queries and {keys} keys",
            hint="S and P have queries × keys elements each",
        )
    ### END HIDDEN TESTS

# %% [markdown]
# ### What the count says
#
# The course was written after a set of popular texts, and checks what they claim. Two claims can be settled with a
# pencil now, and a third with a sweep.

# %% tags=["demo"] jupyter={"source_hidden": true}
scores = 4096 * 4096
show.against_prediction("scores", scores * 2 / 2**20, unit="MiB", source="model: counted")
show.against_prediction("kv_reads", 4096 // 128, unit="times", source="model: counted")
audit(
    "att-1",
    scores * 2 / 2**20,
    "MiB per head in BF16",
    "model",
    "corrected",
    how="4,096² scores × 2 bytes; 64 MiB in FP32. 128 MiB is S and P together in FP32, or S alone for four heads in BF16: the text does not say which",
)
audit(
    "att-6",
    round(1024 * 96 * 2048**2 * 2 / 1e9, 1),
    "GB",
    "model",
    "holds",
    how="1,024 sequences × 96 heads × 2,048² scores × 2 bytes = 824.6 GB, for one of 96 layers: the text's 822 is 0.3% low",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
N, D = 4096, 128
BLOCKS = [16, 32, 64, 128, 256, 512]
exact = [(N + 2 * N * -(-N // m)) * D * 2 for m in BLOCKS]  # Q once, K and V once for each block of queries
doubled = [(n + 2 * n * -(-n // 128)) * D * 2 for n in (2048, 4096, 8192)]
fig, axes = figure(width=8.5, height=3.4)
axes.plot(BLOCKS, [b / 2**20 for b in exact], "o-", color=palette.blue, label="asked for by a fused kernel, exactly")
axes.plot(
    BLOCKS,
    [2 * N * N * D * 2 / m / 2**20 for m in BLOCKS],
    ":",
    color=palette.ink,
    lw=1.5,
    label="2·N²·d / block_m elements",
)
axes.axhline(
    attention(1, 1, N, N, D).bytes / 2**20, color=palette.vermillion, lw=1.5, label="naive, every tensor once each way"
)
axes.set(
    xscale="log",
    yscale="log",
    xlabel="block_m, queries a program",
    ylabel="MiB",
    title=f"One head, {N:,} tokens, head_dim {D}, BF16",
)
axes.set_xticks(BLOCKS, BLOCKS)
axes.set_yticks([20, 50, 100, 200, 500], [20, 50, 100, 200, 500])
axes.minorticks_off()
axes.legend(loc="upper right", fontsize=9)
show.figure(fig)
audit(
    "att-2",
    round(doubled[2] / doubled[1], 3),
    "× the loads for twice the tokens",
    "model",
    "corrected",
    how="K and V are read once for each block of queries: 2·N²·d / block_m elements, quadratic in N. The block, bounded by the on-chip memory M, divides the constant: Θ(N²d²/M). At 4,096 tokens and blocks of 16 or 32 a fused kernel even asks for more than the naive one moves, though L2 answers most of it",
)

# %% [markdown]
# So FlashAttention is **not** sub-quadratic in traffic. It divides a quadratic term by the block, and it removes the
# quadratic *memory*. What is asked of K and V again and again comes from L2, not from DRAM, as long as those of the heads
# at work fit there.

# %% [markdown]
# ## 2 · A summary that can be merged
#
# Softmax wants the whole row before it can divide. Yet the row arrives in blocks. For each query, let a block of keys
# leave three things behind:
#
# - *m*, the largest of its scaled scores,
# - *s*, the sum of exp(score − m),
# - *a*, the sum of exp(score − m) · value: a vector.
#
# Two such summaries, of different keys, merge into one: take the larger maximum, multiply the sum and the vector of each
# side by exp(its own m − the new m), and add. When all blocks are merged the answer is a / s. The division comes last,
# once.
#
# Merging is associative and commutative, so the blocks can be summarised in any order, by anyone: in a loop (the next
# exercise), by programs that split the keys between them (decoding), or by GPUs in a ring (context parallelism).

# %% tags=["demo"]
predict(
    "masked",
    "A block in which every score is masked to −inf: what must its m, s and a be so that merging changes nothing? Guess s.",
    unit="",
    guess=None,
)

# %% [markdown]
# ### Exercise 2 (25 points)
#
# `summarise(scores, values) -> Summary`: `scores` (queries, keys) and `values` (keys, head_dim), float64 or float32;
# scores are scaled already and may be −inf. Returns `Summary(m, s, a)` of shapes (queries,), (queries,), (queries,
# head_dim). A query whose scores are all −inf has m = −inf, s = 0, a = 0; there may also be no keys at all.
#
# `merge(left: Summary, right: Summary) -> Summary`. A side with m = −inf changes nothing; two of them give one of them.
# No NaN, ever.
#
# `finish(summary) -> tuple[Tensor, Tensor]`: the output (queries, head_dim) and the logsumexp m + log(s), (queries,). A
# query that saw nothing gets an output of zeros and a logsumexp of −inf.
#
# The dtype of the results is that of the arguments. Plain PyTorch, no kernel; arguments are not changed.


# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_summary", "locked": true, "schema_version": 3, "solution": false, "task": false}
@dataclass(frozen=True)
class Summary:
    """What a block of keys leaves behind for each query."""

    m: torch.Tensor  # (queries,) the largest score
    s: torch.Tensor  # (queries,) the sum of exp(score - m)
    a: torch.Tensor  # (queries, head_dim) the sum of exp(score - m) · value


# %% nbgrader={"grade": false, "grade_id": "merging", "locked": false, "schema_version": 3, "solution": true, "task": false}
def summarise(scores: torch.Tensor, values: torch.Tensor) -> Summary:
    """The summary of one block of keys."""
    ### BEGIN SOLUTION
    lowest = torch.full((len(scores), 1), -math.inf, dtype=scores.dtype)
    m = torch.cat([scores, lowest], 1).amax(1)
    weights = torch.exp(scores - reference_of(m)[:, None])
    return Summary(m, weights.sum(1), weights @ values)
    ### END SOLUTION


def merge(left: Summary, right: Summary) -> Summary:
    """The summary of both blocks."""
    ### BEGIN SOLUTION
    m = torch.maximum(left.m, right.m)
    of_left, of_right = (torch.exp(each.m - reference_of(m)) for each in (left, right))
    return Summary(m, of_left * left.s + of_right * right.s, of_left[:, None] * left.a + of_right[:, None] * right.a)


def reference_of(m: torch.Tensor) -> torch.Tensor:
    """What to subtract: the maximum, or 0 where there is none, since −inf − (−inf) is NaN."""
    return torch.where(m == -math.inf, torch.zeros_like(m), m)
    ### END SOLUTION


def finish(summary: Summary) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and logsumexp."""
    ### BEGIN SOLUTION
    nothing = summary.s == 0
    divisor = torch.where(nothing, torch.ones_like(summary.s), summary.s)
    return summary.a / divisor[:, None], summary.m + torch.log(summary.s)
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "merging",
    "Everything in a summary is measured against its own m. To compare two, express both against the larger one: multiply by exp(own m − larger m), which is at most 1.",
    "The trap is −inf − (−inf) = NaN. Subtract 0 instead of the maximum wherever the maximum is −inf: exp(−inf − 0) is exactly 0, which is what you want.",
    "`amax` of a block with no keys raises. One more column of −inf gives every query a maximum.",
)

# %% nbgrader={"grade": true, "grade_id": "merging_test", "locked": true, "points": 25, "schema_version": 3, "solution": false, "task": false}
with check("merging", "summaries of blocks of keys, merged in any order"):

    def random_case(queries, keys, width, seed, hide=0.0):
        generator = torch.Generator().manual_seed(seed)
        scores = 4 * torch.randn(queries, keys, generator=generator, dtype=torch.float64)
        scores[torch.rand(queries, keys, generator=generator) < hide] = -math.inf
        return scores, torch.randn(keys, width, generator=generator, dtype=torch.float64)

    scores, values = random_case(5, 12, 3, 0)
    whole = summarise(scores, values)
    check.close(whole.m, scores.amax(1), what="m", hint="the largest score of each query")
    check.close(whole.s, (scores - scores.amax(1, keepdim=True)).exp().sum(1), what="s", hint="exponentials against m")
    out, lse = finish(whole)
    check.close(
        out,
        scores.softmax(1) @ values,
        rtol=1e-12,
        what="the output of one block",
        hint="a / s, divided once at the end",
    )
    check.close(lse, scores.logsumexp(1), rtol=1e-12, what="the logsumexp", hint="m + log(s)")
    parts = [summarise(scores[:, i : i + 5], values[i : i + 5]) for i in range(0, 12, 5)]
    out, lse = finish(merge(merge(parts[0], parts[1]), parts[2]))
    check.close(
        out,
        scores.softmax(1) @ values,
        rtol=1e-12,
        what="the output of three merged blocks",
        hint="both sides must be scaled by exp(own m − larger m), the vector as well as the sum",
    )
    check.close(lse, scores.logsumexp(1), rtol=1e-12, what="the logsumexp of three merged blocks")
    hidden = summarise(torch.full((5, 4), -math.inf, dtype=torch.float64), values[:4])
    check.equal(
        hidden.s.tolist(), [0.0] * 5, what="s of a masked block", hint="exp(−inf − 0) is 0; exp(−inf − (−inf)) is NaN"
    )
    nothing, unseen = finish(hidden)
    check.equal(nothing.tolist(), [[0.0] * 3] * 5, what="the output of queries that saw nothing", hint="0 / 0 is NaN")
    check.equal(unseen.tolist(), [-math.inf] * 5, what="the logsumexp of queries that saw nothing")
    empty = summarise(scores[:, :0], values[:0])
    check.equal(empty.m.tolist(), [-math.inf] * 5, what="m of a block with no keys", hint="amax of nothing raises")
    check.close(
        finish(merge(hidden, whole))[0],
        scores.softmax(1) @ values,
        rtol=1e-12,
        what="the output after merging a masked block",
        hint="a side that saw nothing changes nothing",
    )
    ### BEGIN HIDDEN TESTS
    for seed in range(12):
        rng = check.rng(seed)
        queries, keys, width = (int(v) for v in rng.integers(1, 20, 3))
        scores, values = random_case(queries, keys, width, 100 + seed, hide=[0.0, 0.5, 0.97][seed % 3])
        scores[:, : keys // 3] += 300.0 * (seed % 4)
        seen = (scores > -math.inf).any(1)
        expected = torch.zeros(queries, width, dtype=torch.float64)
        logs = torch.full((queries,), -math.inf, dtype=torch.float64)
        for i in range(queries):
            if seen[i]:
                top = float(scores[i].max())
                weights = [math.exp(float(v) - top) for v in scores[i]]
                expected[i] = sum(w * values[j] for j, w in enumerate(weights)) / sum(weights)
                logs[i] = top + math.log(sum(weights))
        cuts = sorted({0, keys, *(int(v) for v in rng.integers(0, keys + 1, 3))})
        parts = [summarise(scores[:, a:b], values[a:b]) for a, b in zip(cuts, cuts[1:], strict=False)]
        parts.append(summarise(scores[:, :0], values[:0]))
        order = rng.permutation(len(parts))
        while len(parts) > 1:  # merge neighbours of a random order, a random tree
            parts = [parts[i] for i in (order if len(order) == len(parts) else range(len(parts)))]
            at = int(rng.integers(len(parts) - 1))
            parts[at : at + 2] = [merge(parts[at], parts[at + 1])]
        out, lse = finish(parts[0])
        case = f"{queries} queries and {keys} keys in {len(cuts)} blocks, one of them empty, in a random order"
        check.equal(
            bool(out.isfinite().all()),
            True,
            what=f"whether the output of {case} is finite",
            hint="a query that saw nothing divides 0 by 0",
        )
        check.close(
            out,
            expected,
            rtol=1e-10,
            atol=1e-12,
            what=f"the output of {case}",
            hint="merging must not depend on the order, and −inf on either side changes nothing",
        )
        check.equal(lse[~seen].tolist(), logs[~seen].tolist(), what="the logsumexp of queries that saw nothing")
        check.close(lse[seen], logs[seen], rtol=1e-10, atol=1e-12, what=f"the logsumexp of {case}")
    scores, values = random_case(3, 6, 2, 1)
    single = summarise(scores.float(), values.float())
    check.dtype(single.m, torch.float32, what="m of float32 scores")
    check.dtype(finish(merge(single, single))[0], torch.float32, what="the output of float32 summaries")
    before = scores.clone()
    summarise(scores, values)
    check.equal(scores.tolist(), before.tolist(), what="the scores afterwards", hint="arguments are not changed")
    ### END HIDDEN TESTS

# %% [markdown]
# The prediction: s = 0 and a = 0. And m = −inf, which is why careless code turns one fully masked tile into a row of NaN.
#
# ## 3 · The kernel
#
# Everything is there now. One program owns `BLOCK_M` queries of one head. It keeps m, s and a for each of them, in
# registers, and walks along the keys: two matrix products a tile, with the update of the summary between them.
#
# Watch it. Blue tiles are done, orange ones are at work, white ones wait, grey ones are never visited. The number in a
# tile, where there is room for one, is its turn in its program; different rows of tiles are different programs, and run at
# the same time.

# %% tags=["demo"] jupyter={"source_hidden": true}
from matplotlib.patches import Rectangle


def draw_tiles(mask, tokens, block_m, block_n, step):
    fig, (axes, side) = figure(1, 2, width=11, height=4.6, width_ratios=[3, 2])
    window = {"none": None, "causal": None, "window of 64": 64}[mask]
    programs = []
    for top in range(0, tokens, block_m):
        bottom = min(top + block_m, tokens) - 1
        high = tokens if mask == "none" else bottom + 1
        low = max(0, top - window + 1) if window else 0
        programs.append((top, list(range(low // block_n, -(-high // block_n)))))
    columns = -(-tokens // block_n)
    visited = 0
    for top, tiles in programs:
        height = min(block_m, tokens - top)
        for tile in range(columns):
            width = min(block_n, tokens - tile * block_n)
            turn = tiles.index(tile) if tile in tiles else None
            shade = (
                "#eeeeee"
                if turn is None
                else palette.blue
                if turn < step
                else palette.orange
                if turn == step
                else "white"
            )
            visited += turn is not None
            axes.add_patch(
                Rectangle(
                    (tile * block_n, top), width, height, facecolor=shade, edgecolor=palette.grey, lw=0.8, alpha=0.85
                )
            )
            if turn is not None and len(programs) * columns <= 120:
                axes.text(
                    tile * block_n + width / 2,
                    top + height / 2,
                    turn,
                    ha="center",
                    va="center",
                    fontsize=9,
                    color="white" if turn < step else palette.ink,
                )
    if mask != "none":
        axes.plot([0, tokens], [0, tokens], color=palette.ink, lw=1.2, alpha=0.5)
    if window:
        axes.plot([0, tokens - window], [window, tokens], color=palette.ink, lw=1.2, ls="--", alpha=0.5)
    total = len(programs) * columns
    axes.set(xlim=(0, tokens), ylim=(tokens, 0), xlabel="keys", ylabel="queries", aspect="equal")
    axes.set_title(f"{visited} of {total} tiles are visited: {100 * visited / total:.0f}%", fontsize=11)
    axes.grid(visible=False)
    # The summary of one query, the last, after each tile.
    scores = 2.2 * np.sin(np.arange(tokens) / 9.0) + np.arange(tokens) / tokens * 2
    m, s, history = -np.inf, 0.0, []
    for tile in programs[-1][1][: step + 1]:
        keys = np.arange(tile * block_n, min(tile * block_n + block_n, tokens))
        seen = scores[keys]
        raised = max(m, seen.max())
        s = s * np.exp(m - raised) + np.exp(seen - raised).sum()
        m = raised
        history.append((m, s))
    turns = range(len(history))
    side.plot(turns, [m for m, _ in history], "o-", color=palette.vermillion, label="m")
    side.plot(turns, [s for _, s in history], "o-", color=palette.green, label="s")
    side.set(title="The last query's m and s (of made-up scores)", xlabel="turn", xlim=(-0.3, columns - 0.7))
    side.xaxis.get_major_locator().set_params(integer=True)
    side.legend(loc="best")
    return fig


explore(
    draw_tiles,
    mask=["causal", "none", "window of 64"],
    tokens=(64, 320, 16, 256),
    block_m=[64, 32, 128],
    block_n=[32, 16, 64],
    step=(0, 19, 1, 2),
)

# %% [markdown]
# ### Exercise 3 (30 points)
#
# `flash_attention(q, k, v, causal: bool, block_m: int, block_n: int) -> tuple[Tensor, Tensor]` returns (out, lse).
#
# - `q` (batch, heads, queries, head_dim); `k`, `v` (batch, kv_heads, keys, head_dim); all contiguous, float32 or
#   float16. Any number of queries and keys from 1 on; head_dim is 16, 32 or 64; `heads` is a multiple of `kv_heads`, and
#   query head h uses key head h // (heads / kv_heads). Blocks are powers of two, at least 16.
# - out = softmax(q kᵀ / √head_dim) v, in the dtype of q, shaped like q. lse (batch, heads, queries) in float32: the
#   logsumexp of the scaled scores.
# - `causal`: query i sees key j where j ≤ i + (keys − queries). A query that sees nothing gets zeros, and lse = −inf.
# - One launch, one program for each block of `block_m` queries of each head. It loads its queries once; it visits
#   exactly the tiles of exercise 1, and loads their K and V once each. Both products are `tl.dot`s of a whole tile with
#   `input_precision="ieee"`, accumulated in float32; probabilities are rounded to the dtype of v for the second one.
# - Nothing but out and lse is written.
# - A program holds a few tiles, never the scores of all keys. No tile, loaded or computed, has more elements than the
#   largest of `block_m` · `block_n`, `block_m` · head_dim and `block_n` · head_dim; all tiles that a program holds at
#   one time, masks and intermediate results included, have at most 32 times as many. The meter counts both, as
#   `run.traffic.total.largest_tile` and `.most_held`.
# - A kernel may call `tl` and `@triton.jit` functions of its own cell, and nothing else. So it is in exercise 4.


# %% nbgrader={"grade": false, "grade_id": "flash", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def flash_kernel(
    q,
    k,
    v,
    out,
    lse,
    queries,
    keys,
    group,
    scale,
    HEAD_DIM: tl.constexpr,
    CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """BLOCK_M queries of one head; the second program id counts batch and heads."""
    ### BEGIN SOLUTION
    head = tl.program_id(1)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    width = tl.arange(0, HEAD_DIM)
    k += (head // group).to(tl.int64) * keys * HEAD_DIM
    v += (head // group).to(tl.int64) * keys * HEAD_DIM
    at = head.to(tl.int64) * queries * HEAD_DIM + row[:, None] * HEAD_DIM + width[None, :]
    query = tl.load(q + at, mask=row[:, None] < queries, other=0.0)
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    s = tl.zeros((BLOCK_M,), tl.float32)
    a = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    end = keys
    if CAUSAL:
        last = tl.minimum((tl.program_id(0) + 1) * BLOCK_M, queries) - 1
        end = tl.minimum(keys, last + keys - queries + 1)
    for first in range(0, end, BLOCK_N):
        column = first + tl.arange(0, BLOCK_N)
        tile = column[:, None] * HEAD_DIM + width[None, :]
        key = tl.load(k + tile, mask=column[:, None] < keys, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        visible = column[None, :] < keys
        if CAUSAL:
            visible = visible & (column[None, :] <= row[:, None] + keys - queries)
        scores = tl.where(visible, scores, -float("inf"))
        raised = tl.maximum(m, tl.max(scores, axis=1))
        reference = tl.where(raised == -float("inf"), 0.0, raised)
        kept = tl.exp(m - reference)
        weights = tl.exp(scores - reference[:, None])
        value = tl.load(v + tile, mask=column[:, None] < keys, other=0.0)
        a = a * kept[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        s = s * kept + tl.sum(weights, axis=1)
        m = raised
    result = a / tl.where(s == 0.0, 1.0, s)[:, None]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=row[:, None] < queries)
    tl.store(lse + head * queries + row, m + tl.log(s), mask=row < queries)
    ### END SOLUTION


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, block_m: int, block_n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention without the table of scores."""
    ### BEGIN SOLUTION
    batch, heads, queries, head_dim = q.shape
    kv_heads, keys = k.shape[1], k.shape[2]
    out = torch.empty_like(q)
    lse = torch.empty((batch, heads, queries), dtype=torch.float32, device=q.device)
    grid = (triton.cdiv(queries, block_m), batch * heads)
    flash_kernel[grid](
        q, k, v, out, lse, queries, keys, heads // kv_heads, head_dim**-0.5,
        HEAD_DIM=head_dim, CAUSAL=causal, BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return out, lse
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "flash",
    "Begin without causal, without groups, with one head. Three blocks live through the loop: m and s of shape (BLOCK_M,), a of shape (BLOCK_M, HEAD_DIM). The loop body is exercise 2's `summarise` and `merge` in one.",
    "Keys beyond the end are loaded as zeros, and a score of 0 is not nothing: set it to −inf with `tl.where` before the maximum.",
    "Batch and heads can share one program id: K/V head of flat head number h is `h // group`, since `heads` is a multiple of `kv_heads`. Causal: the loop ends after the last key that the block's last existing query may see; inside, compare column with row + keys − queries.",
)

# %% nbgrader={"grade": true, "grade_id": "flash_test", "locked": true, "points": 30, "schema_version": 3, "solution": false, "task": false}
with check("flash", "fused attention: values, tiles, bytes"):

    def tensors(batch, heads, kv_heads, queries, keys, head_dim, dtype, seed=0):
        generator = torch.Generator().manual_seed(seed + queries * 1000 + keys)

        def make(*shape):
            return torch.randn(*shape, generator=generator).to(dtype)

        return (
            make(batch, heads, queries, head_dim),
            make(batch, kv_heads, keys, head_dim),
            make(batch, kv_heads, keys, head_dim),
        )

    def exact(q, k, v, causal):
        repeat = q.shape[1] // k.shape[1]
        q, k, v = q.double(), k.double().repeat_interleave(repeat, 1), v.double().repeat_interleave(repeat, 1)
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        if causal:
            i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None, :]
            scores = scores.masked_fill(j > i + k.shape[2] - q.shape[2], -math.inf)
        lse = scores.logsumexp(-1)
        weights = torch.where(lse[..., None] == -math.inf, 0.0, (scores - lse[..., None].clamp(min=-1e30)).exp())
        return weights @ v, lse

    for (batch, heads, kv_heads, queries, keys, head_dim), causal in (
        ((1, 1, 1, 64, 50, 16), False),
        ((1, 2, 1, 70, 40, 16), True),
        ((1, 1, 1, 1, 100, 32), True),
    ):
        q, k, v = tensors(batch, heads, kv_heads, queries, keys, head_dim, torch.float32)
        out, lse = exact(q, k, v, causal)
        run = replay(flash_attention, q, k, v, causal, 32, 32)
        case = f"queries {queries}, keys {keys}, heads {heads} on {kv_heads}, {'causal' if causal else 'no mask'}"
        check.close(
            run.outputs[0],
            out,
            rtol=1e-4,
            atol=1e-5,
            what=f"out of {case}",
            hint="scores are divided by √head_dim; a running sum and vector that are not rescaled by exp(old m − new m); keys beyond the end count as −inf; causal is column ≤ row + keys − queries; NaN: a query that has seen nothing yet, or masked lanes loaded without `other`",
        )
        check.close(
            run.outputs[1], lse, rtol=1e-4, atol=1e-5, what=f"lse of {case}", hint="m + log(s) of the scaled scores"
        )
        tiles = sum(
            -(-(max(0, min(keys, min(top + 32, queries) + keys - queries)) if causal else keys) // 32)
            for top in range(0, queries, 32)
        )
        check.equal(
            run.traffic.total.dot_flops,
            batch * heads * tiles * 4 * 32 * 32 * head_dim,
            what=f"FLOPs of the matrix products, {case}",
            hint="two products a visited tile; causal must end the loop, not only mask: tiles above the diagonal cost nothing",
        )
        check.equal(
            run.traffic.total.unique_stored,
            out.numel() * 4 + lse.numel() * 4,
            what=f"bytes written, {case}",
            hint="the output and the logsumexp: no scores",
        )
        check.true(
            run.traffic.total.largest_tile <= 32 * 32,
            f"{case}, blocks 32 × 32: a program works on a tile of {run.traffic.total.largest_tile:,} elements, expected at most 32 · 32 = 1,024",
        )
    held = replay(
        flash_attention, *tensors(1, 1, 1, 16, 1024, 16, torch.float32), False, 16, 16
    ).traffic.total.most_held
    check.true(
        held <= 32 * 256,
        f"16 queries, 1,024 keys, blocks 16 × 16: a program holds {held:,} elements at one time in all its tiles, expected at most 32 · 256 = 8,192; usually: the scores of every tile are kept until the end",
    )
    q, k, v = tensors(1, 1, 1, 20, 70, 32, torch.float16)
    run = replay(flash_attention, q, k, v, False, 16, 64)
    check.dtype(run.outputs[0], torch.float16, what="out of float16")
    check.dtype(run.outputs[1], torch.float32, what="lse of float16")
    check.close(
        run.outputs[0],
        exact(q, k, v, False)[0],
        rtol=3e-3,
        atol=3e-3,
        what="out of float16, blocks 16 × 64",
        hint="probabilities are cast to the dtype of v for the second product; sums stay in float32",
    )
    ### BEGIN HIDDEN TESTS
    cases = [
        ((2, 4, 2, 33, 33, 16), True, 16, 32, torch.float32),
        ((1, 2, 2, 127, 129, 64), True, 64, 32, torch.float16),
        ((1, 3, 1, 129, 64, 32), True, 32, 16, torch.float32),
        ((2, 2, 1, 17, 130, 32), False, 16, 64, torch.float16),
        ((1, 1, 1, 128, 256, 16), True, 64, 128, torch.float32),
        ((1, 1, 1, 1, 1, 16), True, 16, 16, torch.float32),
    ]
    for (batch, heads, kv_heads, queries, keys, head_dim), causal, block_m, block_n, dtype in cases:
        q, k, v = tensors(batch, heads, kv_heads, queries, keys, head_dim, dtype, seed=9)
        out, lse = exact(q, k, v, causal)
        run = replay(flash_attention, q, k, v, causal, block_m, block_n)
        case = f"batch {batch}, heads {heads} on {kv_heads}, queries {queries}, keys {keys}, head_dim {head_dim}, {'causal' if causal else 'no mask'}, blocks {block_m} × {block_n}, {str(dtype).removeprefix('torch.')}"
        check.dtype(run.outputs[0], dtype, what="out")
        check.dtype(run.outputs[1], torch.float32, what="lse")
        tolerance = 2e-4 if dtype == torch.float32 else 3e-3
        check.equal(
            bool(run.outputs[0].isfinite().all()),
            True,
            what=f"whether out is finite: {case}",
            hint="with more queries than keys the first queries see nothing: zeros, not NaN",
        )
        check.close(
            run.outputs[0],
            out,
            rtol=tolerance,
            atol=tolerance,
            what=f"out of {case}",
            hint="query head h uses key head h // (heads / kv_heads); queries are the last of the keys; 1/√head_dim",
        )
        seen = lse > -math.inf
        check.equal((run.outputs[1] == -math.inf).tolist(), (~seen).tolist(), what="where lse is −inf")
        check.close(run.outputs[1][seen], lse[seen], rtol=tolerance, atol=tolerance, what=f"lse of {case}")
        visited, rows = 0, 0
        for top in range(0, queries, block_m):
            high = max(0, min(keys, min(top + block_m, queries) + keys - queries)) if causal else keys
            tiles = -(-high // block_n)
            visited += tiles
            rows += min(keys, tiles * block_n)
        size = q.element_size()
        total = run.traffic.total
        check.equal(
            total.dot_flops,
            batch * heads * visited * 4 * block_m * block_n * head_dim,
            what=f"FLOPs of the matrix products: {case}",
            hint="exactly the tiles of exercise 1, each in full",
        )
        check.equal(
            total.requested_loaded,
            batch * heads * (queries + 2 * rows) * head_dim * size,
            what=f"bytes asked for: {case}",
            hint="queries once, K and V of the visited tiles once each; the last existing query of a block decides where it ends",
        )
        check.equal(
            total.requested_stored,
            batch * heads * queries * (head_dim * size + 4),
            what=f"bytes written: {case}",
            hint="out and lse, and nothing else",
        )
        tile = max(block_m * block_n, block_m * head_dim, block_n * head_dim)
        check.true(
            total.largest_tile <= tile and total.most_held <= 32 * tile,
            f"{case}: the largest tile has {total.largest_tile:,} elements and all tiles of a program {total.most_held:,} at one time, expected at most {tile:,} and 32 times that",
        )
        check.equal([f.message for f in run.traffic.findings], [], what=f"what the meter objects to: {case}")
        check.equal(len(run.launches), 1, what="launches")
    for code in replay.code("sm_90", flash_attention, *tensors(1, 1, 1, 64, 64, 32, torch.float32), False, 32, 32):
        check.equal(
            code.tensor_core_instructions,
            0,
            what="tensor-core instructions in the code for float32",
            hint='without input_precision="ieee" a product of float32 is rounded to TF32',
        )
    q = torch.zeros(1, 1, 2, 16)
    q[..., 0] = 4000.0
    k = torch.zeros(1, 1, 40, 16)
    k[0, 0, :, 0] = torch.linspace(-30, 30, 40)
    v = torch.arange(640.0).reshape(1, 1, 40, 16)
    out, _ = exact(q, k, v, False)
    check.close(
        replay(flash_attention, q, k, v, False, 16, 16).outputs[0],
        out,
        rtol=1e-4,
        what="out of scores as large as 30,000",
        hint="subtract the maximum before the exponential",
    )
    ### END HIDDEN TESTS

# %% [markdown]
# ### Is it exact?
#
# Those texts say that FlashAttention is *exact* (claim att-4), equal to standard attention. In real arithmetic it is. In floating
# point both round, in different places, so the question is which of them is nearer to the truth. Compare each with
# float64, causal, in FP16 and BF16:

# %% tags=["demo"]
predict(
    "exactness",
    "The RMS error of fused attention divided by that of standard attention in FP16: 1 means equally good. Your guess?",
    unit="×",
    guess=None,
)

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.hardware import device
from threeloops.inner.kernels.attention.flash_attention import flash_attention as library_attention

F = torch.nn.functional


def errors(tokens, dtype, seed=0):
    """RMS error against float64 of the library's kernel, of the naive chain in `dtype`, and of torch's own operator."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, 1, tokens, 64, generator=generator).to(dtype).to(device()) for _ in range(3))
    truth = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    hidden = torch.full((tokens, tokens), -math.inf, dtype=dtype, device=q.device).triu(1)
    naive = torch.softmax(q @ k.transpose(-1, -2) * 64**-0.5 + hidden, -1) @ v
    ours = library_attention(q, k, v, causal=True)
    sdpa = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return [float((x.double() - truth).pow(2).mean().sqrt()) for x in (ours, naive, sdpa)]


from threeloops.lab import progress

MEASURED = {
    (n, dtype): errors(n, dtype)
    for n in progress((128, 256, 512), "exactness")
    for dtype in (torch.float16, torch.bfloat16)
}
show.table(
    [
        [n, str(dtype).removeprefix("torch."), *(f"{e:.2e}" for e in rms), f"{rms[0] / rms[1]:.3f}"]
        for (n, dtype), rms in MEASURED.items()
    ],
    ["tokens", "dtype", "fused kernel", "naive chain", "torch's operator", "fused / naive"],
)
worst = max(rms[0] / rms[1] for rms in MEASURED.values())
show.against_prediction(
    "exactness",
    round(MEASURED[512, torch.float16][0] / MEASURED[512, torch.float16][1], 3),
    unit="×",
    source="measured here",
)
audit(
    "att-4",
    round(worst, 3),
    "× the error of naive attention, at worst",
    "CPU",
    "holds",
    how="RMS error against float64 of the library's kernel and of softmax(qkᵀ)v in the same dtype, causal, 128 to 512 tokens: not equal bit for bit, but no further from the truth",
)

# %% [markdown]
# The fused kernel keeps scores and sums in float32 and rounds the probabilities once; the naive chain rounds the scores
# before the softmax as well. "Exact" is short for: no approximation beyond rounding, and less rounding than before.

# %% [markdown]
# ## 4 · Skip, do not mask
#
# With a sliding window each query sees only the last *w* keys, as in Mistral's first models or in every other layer of
# many since. The arithmetic that is needed falls from N²/2 to N·w. The arithmetic that is *done* falls only if tiles
# outside the window are not visited. A kernel that visits them and masks everything is right, and as slow as before. No
# test of values can tell the two apart. The meter can.

# %% tags=["demo"]
predict(
    "window_share",
    "4,096 tokens, a window of 256, tiles of 64 × 64: what percentage of the tiles of a causal kernel must be visited?",
    unit="%",
    guess=None,
)

# %% [markdown]
# ### Exercise 4 (25 points)
#
# `window_attention(q, k, v, window: int, block_m: int, block_n: int) -> Tensor`
#
# - `q` (batch, heads, tokens, head_dim), `k` and `v` (batch, kv_heads, tokens, head_dim): as in exercise 3, float32 or
#   float16, head_dim 16, 32 or 64. Returns the output, shaped like q, of its dtype.
# - Query i sees key j where i − window < j ≤ i. `window` is at least 1 and may exceed the number of tokens; below 1
#   raises `ValueError` that contains `window = ` and the value.
# - **Exactly** the visible tiles of exercise 1 are visited: the FLOPs of the products and the bytes asked for equal
#   `fused_traffic(Problem(…, window=window), …)`, without the logsumexp, which need not be stored.
# - Masks where a tile is partly visible. A tile may be fully visible for one query and hidden for another.
# - No tile is larger, and no program holds more, than in exercise 3.


# %% nbgrader={"grade": false, "grade_id": "window", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def window_kernel(
    q, k, v, out, tokens, group, scale, window, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """BLOCK_M queries of one head, and only the tiles that their windows touch."""
    ### BEGIN SOLUTION
    head = tl.program_id(1)
    top = tl.program_id(0) * BLOCK_M
    row = top + tl.arange(0, BLOCK_M)
    width = tl.arange(0, HEAD_DIM)
    k += (head // group).to(tl.int64) * tokens * HEAD_DIM
    v += (head // group).to(tl.int64) * tokens * HEAD_DIM
    at = head.to(tl.int64) * tokens * HEAD_DIM + row[:, None] * HEAD_DIM + width[None, :]
    query = tl.load(q + at, mask=row[:, None] < tokens, other=0.0)
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    s = tl.zeros((BLOCK_M,), tl.float32)
    a = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    begin = tl.maximum(top - window + 1, 0) // BLOCK_N * BLOCK_N
    end = tl.minimum(top + BLOCK_M, tokens)
    for first in range(begin, end, BLOCK_N):
        column = first + tl.arange(0, BLOCK_N)
        tile = column[:, None] * HEAD_DIM + width[None, :]
        key = tl.load(k + tile, mask=column[:, None] < tokens, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        distance = row[:, None] - column[None, :]
        scores = tl.where((distance >= 0) & (distance < window), scores, -float("inf"))
        raised = tl.maximum(m, tl.max(scores, axis=1))
        reference = tl.where(raised == -float("inf"), 0.0, raised)
        kept = tl.exp(m - reference)
        weights = tl.exp(scores - reference[:, None])
        value = tl.load(v + tile, mask=column[:, None] < tokens, other=0.0)
        a = a * kept[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        s = s * kept + tl.sum(weights, axis=1)
        m = raised
    result = a / tl.where(s == 0.0, 1.0, s)[:, None]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=row[:, None] < tokens)
    ### END SOLUTION


def window_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int, block_m: int, block_n: int
) -> torch.Tensor:
    """Causal attention to the last `window` keys."""
    ### BEGIN SOLUTION
    if window < 1:
        raise ValueError(f"window = {window}: expected at least 1, the query's own key")
    batch, heads, tokens, head_dim = q.shape
    out = torch.empty_like(q)
    grid = (triton.cdiv(tokens, block_m), batch * heads)
    window_kernel[grid](
        q, k, v, out, tokens, heads // k.shape[1], head_dim**-0.5, window,
        HEAD_DIM=head_dim, BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return out
    ### END SOLUTION


# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "window",
    "It is the causal kernel with another beginning of the loop. Which query of the block sees furthest back, and how far?",
    "The first query of the block, row `top`, sees keys from top − window + 1 on, and not below 0. The loop must begin at the tile that holds this key: round down to a multiple of BLOCK_N.",
    "A tile can be hidden altogether from some of its queries, so m may still be −inf after it. `exp(−inf − reference)` with reference 0 is 0, and that is right.",
)

# %% nbgrader={"grade": true, "grade_id": "window_test", "locked": true, "points": 25, "schema_version": 3, "solution": false, "task": false}
with check("window", "a sliding window whose hidden tiles are never visited"):

    def tensors(batch, heads, kv_heads, tokens, head_dim, dtype=torch.float32):
        generator = torch.Generator().manual_seed(tokens)

        def make(h):
            return torch.randn(batch, h, tokens, head_dim, generator=generator).to(dtype)

        return make(heads), make(kv_heads), make(kv_heads)

    def exact(q, k, v, window):
        repeat = q.shape[1] // k.shape[1]
        q, k, v = q.double(), k.double().repeat_interleave(repeat, 1), v.double().repeat_interleave(repeat, 1)
        distance = torch.arange(q.shape[2])[:, None] - torch.arange(q.shape[2])[None, :]
        scores = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(
            (distance < 0) | (distance >= window), -math.inf
        )
        return scores.softmax(-1) @ v

    for tokens, window, block_m, block_n in ((64, 16, 16, 16), (100, 30, 32, 16), (50, 1, 16, 32)):
        q, k, v = tensors(1, 1, 1, tokens, 32)
        run = replay(window_attention, q, k, v, window, block_m, block_n)
        case = f"{tokens} tokens, window {window}, blocks {block_m} × {block_n}"
        check.close(
            run.outputs,
            exact(q, k, v, window),
            rtol=1e-4,
            atol=1e-5,
            what=f"out of {case}",
            hint="query i sees i − window < j ≤ i: window keys, its own among them; NaN: m is still −inf after a tile that is hidden from this query",
        )
        tiles = 0
        for top in range(0, tokens, block_m):
            low, high = max(0, top - window + 1), min(top + block_m, tokens)
            tiles += -(-high // block_n) - low // block_n
        check.equal(
            run.traffic.total.dot_flops,
            tiles * 4 * block_m * block_n * 32,
            what=f"FLOPs of the matrix products, {case}",
            hint="tiles outside the window are visited and masked: begin the loop at the first tile that the block's first query may see",
        )
        tile = max(block_m * block_n, block_m * 32, block_n * 32)
        check.true(
            run.traffic.total.largest_tile <= tile,
            f"{case}: a program works on a tile of {run.traffic.total.largest_tile:,} elements, expected at most {tile:,}, the largest of block_m · block_n, block_m · head_dim and block_n · head_dim",
        )
    held = replay(window_attention, *tensors(1, 1, 1, 1024, 16), 1024, 128, 16).traffic.total.most_held
    check.true(
        held <= 32 * 2048,
        f"1,024 tokens, window 1024, blocks 128 × 16: a program holds {held:,} elements at one time in all its tiles, expected at most 32 · 2,048 = 65,536; usually: the scores of every tile are kept until the end",
    )
    check.raises(ValueError, window_attention, q, k, v, 0, 16, 16, names="window = 0")
    ### BEGIN HIDDEN TESTS
    for (batch, heads, kv_heads, tokens, head_dim), window, block_m, block_n, dtype in (
        ((2, 2, 1, 65, 16), 17, 16, 32, torch.float32),
        ((1, 4, 2, 129, 64), 64, 64, 32, torch.float16),
        ((1, 1, 1, 33, 16), 1000, 16, 16, torch.float32),
        ((1, 3, 3, 127, 32), 33, 32, 64, torch.float16),
        ((1, 1, 1, 1, 16), 5, 16, 16, torch.float32),
        ((1, 1, 1, 200, 32), 128, 16, 128, torch.float32),
    ):
        q, k, v = tensors(batch, heads, kv_heads, tokens, head_dim, dtype)
        run = replay(window_attention, q, k, v, window, block_m, block_n)
        case = f"batch {batch}, heads {heads} on {kv_heads}, tokens {tokens}, window {window}, blocks {block_m} × {block_n}, {str(dtype).removeprefix('torch.')}"
        tolerance = 2e-4 if dtype == torch.float32 else 3e-3
        check.dtype(run.outputs, dtype, what="out")
        check.equal(
            bool(run.outputs.isfinite().all()),
            True,
            what=f"whether out is finite: {case}",
            hint="a tile may be hidden from some of its queries: −inf − (−inf) is NaN",
        )
        check.close(
            run.outputs,
            exact(q, k, v, window),
            rtol=tolerance,
            atol=tolerance,
            what=f"out of {case}",
            hint="exactly `window` keys, the query's own among them; query head h uses key head h // (heads / kv_heads)",
        )
        visited, rows = 0, 0
        for top in range(0, tokens, block_m):
            seen = {
                j // block_n
                for i in range(top, min(top + block_m, tokens))
                for j in range(max(0, i - window + 1), i + 1)
            }
            visited += len(seen)
            rows += sum(min(block_n, tokens - tile * block_n) for tile in seen)
        size, total = q.element_size(), run.traffic.total
        check.equal(
            total.dot_flops,
            batch * heads * visited * 4 * block_m * block_n * head_dim,
            what=f"FLOPs of the matrix products: {case}",
            hint="exactly the visible tiles of exercise 1: count them for the existing queries of the block",
        )
        check.equal(
            total.requested_loaded,
            batch * heads * (tokens + 2 * rows) * head_dim * size,
            what=f"bytes asked for: {case}",
            hint="the queries once, and K and V of the visited tiles once each",
        )
        check.equal(
            total.requested_stored,
            batch * heads * tokens * head_dim * size,
            what=f"bytes written: {case}",
            hint="the output, once",
        )
        tile = max(block_m * block_n, block_m * head_dim, block_n * head_dim)
        check.true(
            total.largest_tile <= tile and total.most_held <= 32 * tile,
            f"{case}: the largest tile has {total.largest_tile:,} elements and all tiles of a program {total.most_held:,} at one time, expected at most {tile:,} and 32 times that",
        )
        check.equal([f.message for f in run.traffic.findings], [], what=f"what the meter objects to: {case}")
    ### END HIDDEN TESTS


# %% tags=["demo"] jupyter={"source_hidden": true}
def visited(tokens, window, block):
    return sum(-(-(top + block) // block) - max(0, top - window + 1) // block for top in range(0, tokens, block))


everything = visited(4096, 4096, 64)
show.against_prediction(
    "window_share", round(100 * visited(4096, 256, 64) / everything, 1), unit="%", source="model: counted"
)
fig, axes = figure(width=8.5, height=3.2)
WINDOWS = [64, 128, 256, 512, 1024, 2048, 4096]
for block, shade in ((32, palette.blue), (64, palette.orange), (128, palette.green)):
    least = [min(1.0, sum(min(i + 1, w) for i in range(4096)) / (4096 * 4097 / 2)) for w in WINDOWS]
    axes.plot(
        WINDOWS,
        [visited(4096, w, block) * block * block / (4096 * 4097 / 2) for w in WINDOWS],
        "o-",
        color=shade,
        label=f"tiles of {block} × {block}",
    )
axes.plot(WINDOWS, least, ":", color=palette.ink, label="visible pairs alone")
axes.set(
    xscale="log",
    yscale="log",
    xlabel="window",
    ylabel="share of causal attention",
    title="4,096 tokens: what the tiles cost on top of the window",
)
axes.set_xticks(WINDOWS, WINDOWS)
axes.minorticks_off()
axes.legend(loc="upper left", fontsize=9)
show.figure(fig)

# %% [markdown]
# A window of 64 with tiles of 128 computes four times what is visible; with tiles of 64, twice. Small windows want small
# tiles, and small tiles starve the tensor cores: a real trade. The shipped kernel decides it by device, dtype and head_dim,
# not by window.

# %% [markdown]
# ## Deep dive: the way back
#
# The backward pass needs the probabilities, which nobody stored. It recomputes them, tile by tile, from q, k and the
# logsumexp: P = exp(score − lse). One more trick avoids a second look at each row. The gradient through the softmax needs
# Σⱼ Pᵢⱼ · dPᵢⱼ, and that equals the dot product of the output with its own gradient, one number a query, computed before.
#
# > dV = Pᵀ dO,  dP = dO Vᵀ,  dS = P ∘ (dP − rowsum(dO ∘ O)),  dQ = dS K / √d,  dK = dSᵀ Q / √d
#
# Five products instead of two, q kᵀ again and these four, and still no table. The library splits them in two kernels, one
# that owns keys and sums dK and dV, one that owns queries and sums dQ. Both need the scores and dP, so it does seven: the
# price of no atomics, and of two runs that agree to the last bit.

# %% tags=["demo"]
generator = torch.Generator().manual_seed(0)
q, k, v = (torch.randn(1, h, 96, 64, generator=generator).to(device()).requires_grad_() for h in (2, 1, 1))
upstream = torch.randn(1, 2, 96, 64, generator=generator).to(device())
library_attention(q, k, v, causal=True).backward(upstream)
exact_inputs = [t.detach().double().requires_grad_() for t in (q, k, v)]
F.scaled_dot_product_attention(
    exact_inputs[0], *(t.repeat_interleave(2, 1) for t in exact_inputs[1:]), is_causal=True
).backward(upstream.double())
for name, ours, exact_one in zip("qkv", (q, k, v), exact_inputs, strict=True):
    worst_error = float((ours.grad.double() - exact_one.grad).abs().max() / exact_one.grad.abs().max())
    assert worst_error < 1e-4, (name, worst_error)
    print(f"d{name}: largest error {worst_error:.1e} of the largest gradient")

# %% [markdown]
# What it saves is memory, and that is a matter of counting. Eager attention keeps the probabilities of every layer for
# the backward pass; the fused one keeps q, k, v, the output and one number a query.

# %% tags=["demo"] jupyter={"source_hidden": true}
SIZES = [2**k for k in range(9, 16)]
kept_naive = [(4 * n * 128 + n * n) * 2 for n in SIZES]  # q, k, v, out and P of one head, head_dim 128, BF16
kept_fused = [4 * n * 128 * 2 + 4 * n for n in SIZES]
fig, axes = figure(width=8.5, height=3.2)
axes.plot(SIZES, [a / b for a, b in zip(kept_naive, kept_fused, strict=True)], "o-", color=palette.blue)
axes.axhspan(5, 20, color=palette.orange, alpha=0.2, lw=0)
axes.text(SIZES[0], 13, "claim att-3: 5–20×", fontsize=10, va="center")
axes.set(
    xscale="log",
    yscale="log",
    xlabel="tokens",
    ylabel="× less memory kept",
    title="What one head keeps for its backward pass, head_dim 128, BF16",
)
axes.set_yticks([2, 5, 10, 20, 50], [2, 5, 10, 20, 50])
axes.set_xticks(SIZES, [f"{n // 1024}k" if n >= 1024 else n for n in SIZES])
axes.minorticks_off()
show.figure(fig)
if device() == "cuda":
    from functools import partial

    from threeloops.inner.timing import benchmark

    def make_heads(tokens):
        return tuple(torch.randn(4, 16, tokens, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))

    def naive_attention(q, k, v):
        return torch.softmax((q @ k.transpose(-1, -2)) * 128**-0.5, -1) @ v

    gains = {}
    for n in progress((512, 1024, 2048, 4096, 8192), "attention"):
        make = partial(make_heads, n)
        gains[n] = (
            benchmark(naive_attention, make, device="cuda").median
            / benchmark(library_attention, make, device="cuda").median
        )
    show.table([[n, f"{g:.2f}"] for n, g in gains.items()], ["tokens", "× faster than naive, forward, measured here"])
    audit(
        "att-3",
        round(gains[4096], 2),
        "× faster at 4,096 tokens",
        "GPU",
        "holds" if 2 <= gains[4096] <= 4 else "corrected",
        how=f"forward, 64 heads, head_dim 128, BF16, on {torch.cuda.get_device_name()}; and {kept_naive[3] / kept_fused[3]:.0f}× less memory kept",
    )
else:
    audit(
        "att-3",
        round(kept_naive[3] / kept_fused[3], 1),
        "× less memory kept at 4,096 tokens",
        "model",
        "needs a GPU",
        how="counted: the factor is about 1 + N / 512, so 5–20× belongs to some 2,000 … 9,700 tokens; the time was not measured by the course yet, and on a GPU this cell sweeps the length",
    )

# %% [markdown]
# ## Deep dive: attention to pairs
#
# Why stop at one key? In **2-simplicial attention** ([Clift et al. 2019](https://arxiv.org/abs/1909.00668), [Roy et al.
# 2025](https://arxiv.org/abs/2507.02754)) a query looks at *pairs* of positions at once:
#
# > score(i, j, k) = Σ_d q[i, d] · k1[j, d] · k2[k, d],  out[i] = Σ weight(i, j, k) · (v1[j] ∘ v2[k])
#
# with one softmax over all pairs. All pairs of 4,096 tokens would be 69 billion scores a head. Two sliding windows, w1 for
# j and w2 for k, bring it back to N · w1 · w2, and make it a question of this lab: what is its intensity?

# %% tags=["demo"]
predict(
    "simplicial",
    "Windows of 512 and 32, head_dim 128, BF16: how many FLOP for each byte of q, k1, k2, v1, v2 and the output?",
    unit="FLOP/byte",
    guess=None,
)

# %% tags=["demo"]
from threeloops.inner.kernels.attention.simplicial_attention import reference as simplicial_reference
from threeloops.inner.kernels.attention.simplicial_attention import simplicial_attention

generator = torch.Generator().manual_seed(1)
five = [torch.randn(1, 1, 48, 32, generator=generator).to(device()).requires_grad_() for _ in range(5)]
ours = simplicial_attention(*five, 24, 6)
exact_five = [t.detach().double().requires_grad_() for t in five]
truth = simplicial_reference(*exact_five, 24, 6)
upstream = torch.randn(truth.shape, generator=generator).to(device())
ours.backward(upstream)
truth.backward(upstream.double())
assert torch.allclose(ours.double(), truth, atol=1e-4)
for name, mine, exact_one in zip(("q", "k1", "k2", "v1", "v2"), five, exact_five, strict=True):
    worst_error = float((mine.grad.double() - exact_one.grad).abs().max() / exact_one.grad.abs().max())
    assert worst_error < 1e-4, (name, worst_error)
    print(f"gradient of {name}: largest error {worst_error:.1e} of the largest gradient")

# %% tags=["demo"] jupyter={"source_hidden": true}
N, D = 4096, 128
PAIRS = [(64, 16), (256, 16), (512, 32), (1024, 32)]
intensity = [
    N * w1 * w2 * 6 * D / (6 * N * D * 2) for w1, w2 in PAIRS
]  # 6·d FLOPs a score as the paper counts; q, four keys and values, the output
show.against_prediction("simplicial", intensity[2], unit="FLOP/byte", source="model: counted")
fig, axes = figure(width=8.5, height=2.9)
axes.plot(range(len(PAIRS)), intensity, "o", ms=9, color=palette.blue)
for place, value in enumerate(intensity):
    axes.annotate(f"{value:,.0f}", (place, value), (9, -3), textcoords="offset points", fontsize=10)
axes.set_xticks(range(len(PAIRS)), [f"{a} × {b}" for a, b in PAIRS])
axes.axhline(roof.ridge_point, color=palette.ink, ls=":", lw=1.3)
axes.text(-1.25, roof.ridge_point * 1.12, "ridge point\nof an H100", fontsize=10)
axes.set_xlim(-1.3, 3.6)
axes.set(
    yscale="log",
    ylabel="FLOP per byte",
    xlabel="windows w1 × w2",
    title="2-simplicial attention is compute-bound from small windows on",
    ylim=(100, 60000),
)
axes.grid(axis="x", visible=False)
show.figure(fig)
audit(
    "att-5",
    round(588 / 337, 2),
    "× the plain Triton kernel",
    "published",
    "cannot be tested here",
    how="published for the H100: 588 TFLOP/s in BF16 for the kernel in TLX, 337 for plain Triton; 588 is 59% of the dense peak. The course has not measured its own kernel on a GPU yet",
)

# %% [markdown]
# Compute-bound means that the tensor cores decide. The trilinear product is not a matrix product, but it becomes one when
# one of its factors is folded into another: for each pair (i, k), q[i] ∘ k2[k] is a made-up query, and the scores of many
# such queries against all j are an ordinary matmul. That is what the library's kernel does.

# %% [markdown]
# ## In your own words
#
# A colleague reads that FlashAttention has "linear memory" and plans to serve prompts of a million tokens with it on one
# GPU. What does stay linear, what does not, and which of exercise 1's numbers would you show them? Do the sums for one head
# of 128 and for a model with 32 layers and 8 key heads in BF16.

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# *Your answer: what is linear, what is quadratic, and the numbers.*

# %% [markdown]
# ## What to remember
#
# - The table of scores is the problem, so **do not make it**. Same arithmetic, another bound.
# - (m, s, a) is a mergeable summary of any set of keys: loops, split keys and rings of GPUs are the same algebra.
# - Traffic stays quadratic, 2·N²·d / block_m; *memory* becomes linear. Say which one you mean.
# - Causal and window: a tile that is skipped is saved, a tile that is masked is not. Values cannot show the difference.
# - −inf − (−inf) is NaN. Ask what your kernel does with a query that sees nothing.
# - Backward recomputes: five products, seven where nothing is added by atomics, and one saved number a query.
#
# Next: `05_mixed_precision`. Half the bits, half the bytes, and what they cost.
