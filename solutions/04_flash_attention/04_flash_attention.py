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
#     minutes: 195
#     withholds: [threeloops.inner.kernels.attention.sizes, threeloops.inner.kernels.attention.flash_attention_traffic, threeloops.inner.kernels.sparse.sliding_window_traffic, threeloops.inner.kernels.sparse.block_sparse_traffic]
#     edition: 2
# ---

# %% [markdown]
# # Can an algorithm move less memory?
#
# ![Q, K and V are narrow strips; the table of scores between them is a huge square, which nobody looks at](attachment:opening.png)
#
# Attention compares every query with every key. For 4,096 tokens that is a table of 16.8 million scores, for one head of one
# layer of one sequence. Naive attention writes the table to memory, reads it for the softmax, writes the probabilities, and
# reads them to weigh the values. Nobody ever looks at it. Does it have to exist?
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from threeloops.inner import interpreter
from threeloops.lab import (
    animate,
    calibration,
    check,
    debrief,
    hint,
    inout,
    predict,
    replay,
    reveal,
    show,
    term,
    together,
)
from threeloops.lab.checking.kernels import alike, name_of, require_compiled, seeded, unwritten
from threeloops.lab.checking.wall import arguments_after
from threeloops.lab.drawings.inner import attention

INTERPRETED = interpreter.enable_without_gpu()  # without a GPU, Triton kernels run in Triton's interpreter, on the CPU


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


@dataclass(frozen=True)
class Option:
    """One choice of blocks, and the (first, end) of the tiles that each block of queries then visits."""

    block_m: int
    block_n: int
    tiles: list[tuple[int, int]]


@dataclass(frozen=True)
class Chip:
    """Bytes on the chip for one program's tiles of q, k and v; FLOP/s; bytes/s of the cache that serves the programs."""

    room: int
    flops: float
    bandwidth: float


@dataclass(frozen=True)
class Summary:
    """What a block of keys leaves behind for each query."""

    m: torch.Tensor  # (queries,) the largest score
    s: torch.Tensor  # (queries,) the sum of exp(score - m)
    a: torch.Tensor  # (queries, head_dim) the sum of exp(score - m) · value


def time_us(traffic, block_m, block_n, chip):
    """Model: tiles below 64 × 64 leave the tensor cores partly idle; the slower of arithmetic and traffic counts."""
    share = min(1, block_m / 64) * min(1, block_n / 64)
    moved = traffic.loaded + traffic.stored
    return 1e6 * max(traffic.dot_flops / (chip.flops * share), moved / chip.bandwidth)


# What the test cells share.


def wide(values):
    """A tensor of float64."""
    return torch.tensor(values, dtype=torch.float64)


def band(queries, keys, last=None, first=None):
    """(queries, keys): True where first ≤ key − query ≤ last. None means no bound."""
    visible = torch.ones(queries, keys, dtype=torch.bool)
    visible = visible if last is None else visible.tril(last)
    return visible if first is None else visible.triu(first)


def exact(q, k, v, visible):
    """Output and logsumexp in float64; zeros and −inf for a query that sees nothing."""
    scores = (q.double() @ k.double().transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~visible, -math.inf)
    lse = scores.logsumexp(-1)
    weights = torch.where(visible, (scores - lse.clamp(min=-1e30)[..., None]).exp(), 0.0)
    return weights @ v.double(), lse


def by_scores(scores, values, queries, dtype=torch.float32):
    """q, k and v of head_dim 16: every query has these scores, exactly, and key j has values[j] in every channel."""
    q, k = torch.zeros(queries, 16), torch.zeros(len(scores), 16)
    q[:, 0], k[:, 0] = 4.0, torch.tensor(scores)
    v = torch.tensor(values, dtype=torch.float32)[:, None].expand(-1, 16).contiguous()
    return [tensor.to(dtype) for tensor in (q, k, v)]


def odd(run, got, visible):
    """The fault that NaN or infinity in an output shows, without comparing it with the right values."""
    if not torch.is_tensor(got) or got.ndim < 2 or got.shape[-2] != len(visible):
        return ""
    if got.isinf().any() and got.dtype == torch.float16:
        return "∞: a or s went beyond 65,504, float16's largest number; keep them in float32, and divide in it"
    blind = ~visible.any(-1)
    if blind.any() and got.isnan().any() and not got[..., ~blind, :].isnan().any():
        return "only queries that see nothing are NaN: 0 / 0, or −inf − (−inf)"
    return unwritten(run, got)


def require_values(run, q, k, v, visible, case, fine=(1e-4, 1e-5)):
    """Compare (out, lse) with float64. `fine` holds the tolerances of a float32 `out`."""
    out, lse = run.outputs
    expected, logs = exact(q, k, v, visible)
    check.dtype(out, q.dtype, what="out")
    check.dtype(lse, torch.float32, what="lse")
    rtol, atol = fine if q.dtype == torch.float32 else (2e-3, 1e-3)
    check.close(out, expected, rtol=rtol, atol=atol, what=f"out of {case}", hint=odd(run, out, visible))
    check.shape(lse, tuple(logs.shape), what=f"lse of {case}")
    blind = logs == -math.inf
    nothing = (lse == -math.inf).tolist()
    check.equal(
        nothing,
        blind.tolist(),
        what=f"whether lse is −inf, {case}",
        hint="lse is −inf exactly for the queries that see nothing",
    )
    got, logs = lse[~blind], logs[~blind]
    cause = "that is the logarithm to base two" if alike(got, logs / math.log(2)) else ""
    if alike(got, logs, 5e-3):
        cause = "off by about a rounding to 16 bits: keep scores, m and s in float32"
    check.close(got, logs, rtol=3e-6, atol=3e-6, what=f"lse of {case}", hint=cause)


def require_work(run, q, k, v, visible, case, *, tiles, every, tile_flops, loaded, stored, programs, largest):
    """Check what the visible tiles cost, once the values are right. `every` counts the hidden tiles too."""
    run.require(exact(q, k, v, visible), what=f"(out, lse), {case}")
    total = run.traffic.total
    done = total.dot_flops / tile_flops
    cause = f"that is {done:g} tiles, {tiles} of {every} are visible" if done == int(done) else ""
    if done == every > tiles:
        cause = f"that is all {every} tiles: hidden ones are masked, but not skipped"
    check.equal(len(run.launches), 1, what=f"launches, {case}")
    check.equal(run.torch_bytes, 0, what=f"bytes that PyTorch moves, {case}", hint="torch.empty, and no zeros")
    check.equal(total.programs, programs, what=f"programs, {case}")
    check.true(
        total.largest_tile <= largest,
        f"{case}: a program works on a tile of {total.largest_tile:,} elements, expected at most {largest:,}",
    )
    check.equal(total.dot_flops, tiles * tile_flops, what=f"FLOPs of the matrix products, {case}", hint=cause)
    check.equal(
        total.tf32_flops,
        0,
        what=f"FLOPs in TF32, {case}",
        hint='without input_precision="ieee", the float32 inputs of a product are rounded to TF32',
    )
    check.equal(
        total.requested_loaded,
        loaded,
        what=f"bytes asked for, {case}",
        hint="the queries once, and the existing rows of K and V of each visible tile once",
    )
    check.equal(total.requested_stored, stored, what=f"bytes written, {case}", hint="out and lse, once each")
    check.true(
        total.most_held <= 32 * largest,
        f"{case}: a program holds {total.most_held:,} elements at once in all its tiles, expected at most 32 · {largest:,}; the usual cause is keeping the scores of every tile until the end",
    )
    check.equal([f.message for f in run.traffic.findings], [], what=f"faults that the meter found, {case}")


def require_rounded(launcher, *args, lead=()):
    """Query i weighs key i with 1 and key i − 1 with w; v cancels exactly if w was rounded to float16."""
    scores = torch.linspace(-2.6, -0.2, 200).half()
    weights = (scores.float() * 0.25).exp()
    off = (weights - weights.half().float()).abs() * 2**11
    scores = scores[(weights < 1) & (weights > 0.52) & (off > 0.25) & (off < 0.42)][:15]
    q, v, row = torch.full((16, 16), -1e4), torch.zeros(16, 16), torch.arange(1, len(scores) + 1)
    q[range(16), range(16)] = 0.0
    q[row, row - 1] = scores.float()
    v[row, row], v[row - 1, row] = -(scores.float() * 0.25).exp().half().float(), 1.0
    given = [tensor.half().expand(*lead, 16, 16).contiguous() for tensor in (q, torch.eye(16), v)]
    out = replay(launcher, *given, *args).outputs[0]
    left = float(out.double()[..., row, row].abs().max())
    check.true(
        left < 2e-5,
        f"float16: where 1 · (−w) + w · 1 should cancel, {left:.1e} is left: round the probabilities to the dtype of v, and multiply in it",
    )


# %% tags=["demo", "opening"] jupyter={"source_hidden": true}
show.figure(
    attention.draw_question(), "narrow strips Q, K, V and out around a huge table of scores with a question mark"
)

# %% [markdown]
# FlashAttention ([Dao et al. 2022](https://arxiv.org/abs/2205.14135), [Dao 2023](https://arxiv.org/abs/2307.08691); for
# Hopper [Shah et al. 2024](https://arxiv.org/abs/2407.08608)) never makes the table. You will count what it moves, find the
# algebra behind it, write the kernel step by step, and write a piece of its backward pass.
#
# ## 1 · Which tiles are visited
#
# A program owns a block of `block_m` queries. It walks along the keys in **tiles** of `block_n`, and keeps its part of the
# output in registers until the end.
#
# A **causal** mask hides later keys. If there are more keys than queries, as in decoding, the queries are at the *last*
# positions: query *i* sees key *j* if j ≤ i + (keys − queries). With a **sliding window** it sees only the last *w* of those
# keys: those with j > i + (keys − queries) − w. A tile that no query of the block sees need not be loaded. A partly visible one
# is computed in full, and masked.
#
# *Worked example.* 6 causal queries and 8 keys, blocks of 4 queries and tiles of 2 keys. Query 0 sees keys 0 to 2, query 3
# sees keys 0 to 5: the first block visits tiles 0, 1 and 2, which is (0, 3). Queries 4 and 5 see up to key 7: (0, 4). With
# a window of 3, query 4 sees keys 4 to 6 and query 5 keys 5 to 7, so the second block visits (2, 4).
#
# ### Exercise 1 (10 points)
#
# `visible_tiles(p: Problem, block_m, block_n) -> list[tuple[int, int]]`: for each block of queries, in order, the
# pair (first, end) of tile numbers: tiles first to end − 1 are visited.
#
# - A tile is visited **if and only if** it holds a key that exists and that at least one existing query of the block sees.
#   If there is no such tile: (0, 0).
# - `p.causal` and `p.window` (an int of at least 1, or None) are the rules above. A window implies the causal rule.


# %% nbgrader={"grade": false, "grade_id": "tiles", "locked": false, "schema_version": 3, "solution": true, "task": false}
def visible_tiles(p: Problem, block_m: int, block_n: int) -> list[tuple[int, int]]:
    """First and end of the visited tiles of keys, for each block of queries."""
    ranges = []
    for top in range(0, p.queries, block_m):
        rows = range(top, min(top + block_m, p.queries))  # the queries of this block
        offset = p.keys - p.queries
        low, high = 0, p.keys  # without a mask they see the keys from low on and before high
        # The loop is given. Write what a mask changes, and append the pair (first, end) of this block.
        ### BEGIN SOLUTION
        if p.causal or p.window is not None:
            high = rows[-1] + offset + 1
        if p.window is not None:
            low = max(0, rows[0] + offset - p.window + 1)
        ranges.append((low // block_n, -(-high // block_n)) if low < high else (0, 0))
        ### END SOLUTION
    return ranges


# %% nbgrader={"grade": true, "grade_id": "tiles_test_mask", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("tiles", "tiles without a mask and with a causal one", part="mask", hidden="other sizes"):

    def tiles_check(expected, slips, p, block_m, block_n):
        got = visible_tiles(p, block_m, block_n)
        cause = next((words for words, tiles in slips.items() if got == tiles), "")
        kind = f"window {p.window}" if p.window else "causal" if p.causal else "no mask"
        case = f"{p.queries} queries, {p.keys} keys, {kind}, blocks {block_m} × {block_n}"
        got = [tuple(pair) if isinstance(pair, list) else pair for pair in got] if isinstance(got, list) else got
        check.equal(got, expected, what=f"tiles of {case}", hint=cause)

    tiles_check([(0, 4), (0, 4)], {}, Problem(6, 8, 64), 4, 2)
    tiles_check(
        [(0, 3), (0, 4)],
        {
            "these are the tiles of the rule j ≤ i: the queries are at the last positions": [(0, 2), (0, 3)],
            "these are all tiles": [(0, 4), (0, 4)],
        },
        Problem(6, 8, 64, causal=True),
        4,
        2,
    )
    tiles_check(
        [(0, 3), (0, 4)],
        {
            "these are the tiles of the rule j ≤ i: the queries are at the last positions": [(0, 2), (0, 3)],
            "these are all tiles": [(0, 4), (0, 4)],
            "these are the tiles of j < i + (keys − queries): that key is seen too": [(0, 2), (0, 4)],
        },
        Problem(6, 8, 64, causal=True),
        3,
        2,
    )
    tiles_check(
        [(0, 2), (0, 4)], {"these are all tiles": [(0, 4), (0, 4)]}, Problem(256, 256, 64, causal=True), 128, 64
    )
    tiles_check(
        [(0, 2)],
        {"these are the tiles of the rule j ≤ i: the queries are at the last positions": [(0, 1)]},
        Problem(3, 100, 64, causal=True),
        16,
        64,
    )
    tiles_check(
        [(0, 0), (0, 0), (0, 1), (0, 2), (0, 3)],
        {
            "these are the tiles of the rule j ≤ i: the queries are at the last positions": [(0, 1), (0, 2), (0, 3)],
            "these are all tiles": [(0, 3), (0, 3), (0, 3), (0, 3), (0, 3)],
        },
        Problem(20, 12, 64, causal=True),
        4,
        4,
    )
    tiles_check(
        [(0, 0), (0, 2), (0, 4), (0, 4)],
        {
            "these are the tiles of the rule j ≤ i: the queries are at the last positions": [(0, 2), (0, 4)],
            "these are all tiles": [(0, 4), (0, 4), (0, 4), (0, 4)],
        },
        Problem(100, 60, 64, causal=True),
        32,
        16,
    )
    ### BEGIN HIDDEN TESTS

    def ranges(visible, block_m, block_n):
        """First and end of the tiles that hold a key which a query of the block sees, for each block of queries."""
        seen = [(rows.any(0).nonzero()[:, 0] // block_n).tolist() for rows in visible.split(block_m)]
        return [(tiles[0], tiles[-1] + 1) if tiles else (0, 0) for tiles in seen]

    for seed in range(40):
        rng = check.rng(seed)
        queries, keys = (int(v) for v in rng.integers(1, 40, 2))
        block_m, block_n = (int(v) for v in rng.choice([1, 4, 8, 16], 2))
        visible = band(queries, keys, last=keys - queries if seed % 4 else None)
        expected = ranges(visible, block_m, block_n)
        tiles_check(expected, {}, Problem(queries, keys, 16, causal=seed % 4 > 0), block_m, block_n)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "tiles_test_window", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("tiles", "tiles of a sliding window", part="window", hidden="other sizes and windows"):

    def window_check(expected, slips, queries, keys, window, block_m, block_n, causal=False):
        got = visible_tiles(Problem(queries, keys, 16, causal=causal, window=window), block_m, block_n)
        cause = next((words for words, tiles in slips.items() if got == tiles), "")
        got = [tuple(pair) if isinstance(pair, list) else pair for pair in got] if isinstance(got, list) else got
        case = f"{queries} queries, {keys} keys, window {window}, blocks {block_m} × {block_n}"
        check.equal(got, expected, what=f"tiles of {case}", hint=cause)

    window_check(
        [(0, 3), (2, 4)],
        {
            "that is a window of 4, one key more than asked for": [(0, 3), (1, 4)],
            "every block goes on to the last tile: a window implies the causal rule, even with causal=False": [
                (0, 4),
                (2, 4),
            ],
        },
        6,
        8,
        3,
        4,
        2,
    )
    window_check(
        [(0, 2), (1, 4), (3, 6), (5, 8)],
        {"that is a window of 66, one key more than asked for": [(0, 2), (0, 4), (2, 6), (4, 8)]},
        512,
        512,
        65,
        128,
        64,
    )
    window_check([(0, 2), (1, 4), (3, 6), (5, 8)], {}, 512, 512, 64, 128, 64)
    window_check(
        [(0, 0), (0, 0), (0, 2), (1, 4), (3, 6)],
        {"that is a window of 4, one key more than asked for": [(0, 0), (0, 0), (0, 2), (0, 4), (2, 6)]},
        20,
        12,
        3,
        4,
        2,
        causal=True,
    )
    window_check(
        [(0, 1), (1, 2)],
        {
            "that is a window of 2, one key more than asked for": [(0, 1), (0, 2)],
            "that is a window of 0, one key fewer than asked for": [(0, 0), (0, 0)],
        },
        8,
        8,
        1,
        4,
        4,
    )
    window_check(
        [(0, 1), (0, 2)], {"that is a window of 1, one key fewer than asked for": [(0, 1), (1, 2)]}, 8, 8, 2, 4, 4
    )
    window_check([(0, 2), (0, 3)], {}, 3, 5, 1_000_000, 2, 2)
    window_check(
        [(0, 3), (1, 4)], {"that is a window of 2, one key fewer than asked for": [(0, 3), (2, 4)]}, 6, 8, 3, 3, 2
    )
    ### BEGIN HIDDEN TESTS

    def ranges(visible, block_m, block_n):
        """First and end of the tiles that hold a key which a query of the block sees, for each block of queries."""
        seen = [(rows.any(0).nonzero()[:, 0] // block_n).tolist() for rows in visible.split(block_m)]
        return [(tiles[0], tiles[-1] + 1) if tiles else (0, 0) for tiles in seen]

    for seed in range(40):
        rng = check.rng(seed)
        queries, keys, window = (int(v) for v in rng.integers(1, 40, 3))
        block_m, block_n = (int(v) for v in rng.choice([1, 4, 8, 16], 2))
        visible = band(queries, keys, last=keys - queries, first=keys - queries - window + 1)
        expected = ranges(visible, block_m, block_n)
        window_check(expected, {}, queries, keys, window, block_m, block_n, seed % 2 == 0)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
term("causal mask")
hint(
    "tiles",
    "For one block, find the range of keys that at least one of its queries sees. The end comes from the block's last existing query. With a window, the beginning comes from its first query.",
    "Then turn the range of keys into a range of tiles. The first key is rounded down to a tile, the end is rounded up. The range of keys may be empty, for instance for early queries when there are more queries than keys.",
)
debrief(
    "tiles",
    """Two queries decide: the first of the block sees furthest back, the last sees furthest ahead. Everything between the two
    ends is visited, because the windows of neighbouring queries leave no gap, so a loop with two bounds is enough.

    The lab asks for exactly the visible tiles because no test of values can see the difference: a tile that is visited and
    masked gives the same result as one that is skipped, and costs as much as any other.""",
    parts=("mask", "window"),
)
predict("scores", "The score matrix of one head, 4,096 tokens, in BF16: how many MiB?", unit="MiB")
predict(
    "kv_reads",
    "Fused attention, 4,096 tokens, one program for each 128 queries, no mask: how many times is K read in full?",
    unit="times",
)

# %% [markdown]
# ## 2 · What blocks cost
#
# Q is loaded once and the output is stored once. K and V are loaded again by every block of queries that sees them, mostly
# from the L2 cache. So large blocks of queries save traffic, small tiles waste less at the edge of a mask, and both have to
# fit on the chip.
#
# *Worked example.* 256 queries and keys of head_dim 64 in 2 bytes, no mask, blocks 128 × 64: two blocks of queries visit 4
# tiles each, (0, 4) and (0, 4). The kernel loads 256 rows of Q, and 256 rows of K and of V twice: 1,280 rows of 128 bytes, or
# 163,840 bytes. It stores 256 rows of 128 bytes and one float32 per query (its logsumexp, see section 3): 33,792 bytes.
# Each of the 8 tiles takes two products, 4 · 128 · 64 · 64 FLOPs.
#
# ### Exercise 2 (14 points)
#
# `fused_traffic(p, tiles, block_m, block_n) -> Traffic` counts all batches and heads; `tiles` comes from exercise 1:
#
# - `loaded`: every query row once, and for each visited tile its **existing** rows of K and of V, which every query head
#   loads anew;
# - `stored`: the output, and one float32 per query row;
# - `dot_flops`: 4 · block_m · block_n · head_dim per visited tile, masked or not.
#
# An element has `p.bytes_per_element` bytes. All results are ints.
#
# `choose_blocks(p, options: list[Option], chip: Chip) -> tuple[int, int]`: the (block_m, block_n) of one of the options.
# Its tiles of q, k and v, block_m + 2 · block_n rows, must fit into `chip.room` bytes, and `time_us(traffic, block_m, block_n, chip)`
# must be at most 1.05 times that of the best option that fits. At least one fits. An option's visited tiles are in `option.tiles`;
# the mask need not be one of exercise 1's.


# %% nbgrader={"grade": false, "grade_id": "blocks", "locked": false, "schema_version": 3, "solution": true, "task": false}
def fused_traffic(p: Problem, tiles: list[tuple[int, int]], block_m: int, block_n: int) -> Traffic:
    """What a fused kernel asks for."""
    ### BEGIN SOLUTION
    rows = sum(min(end * block_n, p.keys) - first * block_n for first, end in tiles)
    visited = sum(end - first for first, end in tiles)
    heads = p.batch * p.heads
    width = p.head_dim * p.bytes_per_element
    return Traffic(
        loaded=heads * (p.queries + 2 * rows) * width,
        stored=heads * p.queries * (width + 4),
        dot_flops=heads * visited * 4 * block_m * block_n * p.head_dim,
    )
    ### END SOLUTION


def choose_blocks(p: Problem, options: list[Option], chip: Chip) -> tuple[int, int]:
    """The blocks of the fastest option that fits."""
    ### BEGIN SOLUTION
    row = p.head_dim * p.bytes_per_element
    fitting = [option for option in options if (option.block_m + 2 * option.block_n) * row <= chip.room]

    def time_of(option):
        traffic = fused_traffic(p, option.tiles, option.block_m, option.block_n)
        return time_us(traffic, option.block_m, option.block_n, chip)

    best = min(fitting, key=time_of)
    return best.block_m, best.block_n
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "blocks_test_traffic", "locked": true, "points": 9, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("blocks", "bytes and FLOPs of a fused kernel", part="traffic", hidden="other sizes and masks"):

    def traffic_check(expected, slips, p, tiles, block_m, block_n):
        got = fused_traffic(p, tiles, block_m, block_n)
        kind = f"window {p.window}" if p.window else "causal" if p.causal else "no mask"
        case = f"{p.queries} queries, {p.keys} keys, {kind}, batch {p.batch}, heads {p.heads}, blocks {block_m} × {block_n}"
        shares = {p.batch, p.heads, p.batch * p.heads} - {1}
        hints = {}
        for name, right in zip(("loaded", "stored", "dot_flops"), expected, strict=True):
            value, causes = getattr(got, name), slips.get(name, {})
            few = ["not all batches and heads are counted"] * any(value == right // share for share in shares)
            hints[name] = ", or ".join([causes[value], *few] if value in causes else few)
        if got == Traffic(*expected):
            hints = ""
        check.equal(got, Traffic(*expected), what=f"traffic of {case}", hint=hints)

    traffic_check(
        (163840, 33792, 16777216),
        {
            "loaded": {
                98304: "that reads K and V once, where each block of queries reads its tiles; or it counts only one of K and V"
            },
            "stored": {32768: "that is without the logsumexp, 4 bytes per query"},
            "dot_flops": {8388608: "that is one product: there are q kᵀ and p v"},
        },
        Problem(256, 256, 64),
        [(0, 4), (0, 4)],
        128,
        64,
    )
    traffic_check(
        (51968, 780, 524288),
        {
            "loaded": {66304: "that counts rows of tiles that do not exist", 26368: "that is K or V, not both"},
            "stored": {768: "that is without the logsumexp, 4 bytes per query"},
            "dot_flops": {262144: "that is one product: there are q kᵀ and p v"},
        },
        Problem(3, 100, 64, causal=True, bytes_per_element=4),
        [(0, 2)],
        16,
        64,
    )
    traffic_check(
        (14592, 4320, 49152),
        {
            "loaded": {
                16128: "that counts rows of tiles that do not exist",
                8448: "that reads K and V once: each block of queries reads its tiles",
                9216: "that is K or V, not both",
            },
            "stored": {3840: "that is without the logsumexp, 4 bytes per query"},
            "dot_flops": {24576: "that is one product: there are q kᵀ and p v"},
        },
        Problem(20, 12, 16, batch=2, heads=3, causal=True),
        [(0, 0), (0, 0), (0, 1), (0, 1), (0, 2)],
        4,
        8,
    )
    traffic_check(
        (7872, 1800, 114688),
        {
            "loaded": {
                8768: "that counts rows of tiles that do not exist",
                4800: "that reads K and V once: each block of queries reads its tiles",
                4736: "that is K or V, not both",
            },
            "stored": {1600: "that is without the logsumexp, 4 bytes per query"},
            "dot_flops": {57344: "that is one product: there are q kᵀ and p v"},
        },
        Problem(50, 50, 16, window=9),
        [(0, 1), (0, 2), (1, 3), (2, 4)],
        16,
        16,
    )
    traffic_check(
        (69_256_347_648, 545_259_520, 4_398_046_511_104),  # more than 2³¹
        {},
        Problem(4096, 4096, 128, batch=16, heads=32),
        [(0, 64)] * 64,
        64,
        64,
    )
    ### BEGIN HIDDEN TESTS

    def ranges(visible, block_m, block_n):
        """First and end of the tiles that hold a key which a query of the block sees, for each block of queries."""
        seen = [(rows.any(0).nonzero()[:, 0] // block_n).tolist() for rows in visible.split(block_m)]
        return [(tiles[0], tiles[-1] + 1) if tiles else (0, 0) for tiles in seen]

    for seed in range(20):
        rng = check.rng(seed)
        queries, keys, window, batch, heads = (int(v) for v in rng.integers(1, (40, 40, 30, 3, 5)))
        rule = ({}, {"causal": True}, {"window": window})[seed % 3]
        p = Problem(queries, keys, 16, batch, heads, bytes_per_element=int(rng.choice([1, 2, 4])), **rule)
        block_m, block_n = (int(v) for v in rng.choice([1, 4, 8, 16], 2))
        shift = None if seed % 3 == 0 else keys - queries
        visible = band(queries, keys, last=shift, first=None if seed % 3 < 2 else shift - window + 1)
        tiles, flat, width = ranges(visible, block_m, block_n), batch * heads, 16 * p.bytes_per_element
        visited = [tile for first, end in tiles for tile in range(first, end)]
        rows = sum(min(block_n, keys - tile * block_n) for tile in visited)
        loaded, stored = flat * (queries + 2 * rows) * width, flat * queries * (width + 4)
        flops = flat * len(visited) * 64 * block_m * block_n
        traffic_check((loaded, stored, flops), {}, p, tiles, block_m, block_n)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "blocks_test_choice", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("blocks", "blocks that fit and are fast", part="choice", hidden="other masks and chips"):

    def choice_check(p, mask, chip, rows):
        """A row: block_m, block_n, their bytes on the chip, their µs (None if they do not fit), their tiles."""
        options = {(m, n): (size, time) for m, n, size, time, _ in rows}
        got = tuple(choose_blocks(p, [Option(m, n, list(tiles)) for m, n, _, _, tiles in rows], chip))
        case = f"{p.queries} tokens, {mask}, head_dim {p.head_dim}, {chip}"
        check.true(got in options, f"{got}, expected the blocks of an option: {case}")
        size, time = options[got]
        least = min(us for _, us in options.values() if us is not None)
        check.true(
            time is not None,
            f"blocks {got} need {size:,} bytes on the chip, expected at most {chip.room:,}: {case}",
        )
        check.true(
            time <= 1.0501 * least,  # the times have four digits
            f"blocks {got} take {time:.3g} µs, expected at most {1.05 * least:.3g}, 1.05 times the best: {case}",
        )
        check.note(f"{mask}, {p.queries} tokens", time, least, "µs")

    triangle = [
        (64, 32, 16_384, 0.755, [(0, 2), (0, 4), (0, 6), (0, 8), (0, 10), (0, 12), (0, 14), (0, 16)]),
        (64, 64, 24_576, 0.3775, [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (0, 6), (0, 7), (0, 8)]),
        (64, 128, 40_960, 0.4194, [(0, 1), (0, 1), (0, 2), (0, 2), (0, 3), (0, 3), (0, 4), (0, 4)]),
        (128, 64, 32_768, 0.4194, [(0, 2), (0, 4), (0, 6), (0, 8)]),
        (128, 128, 49_152, 0.4194, [(0, 1), (0, 2), (0, 3), (0, 4)]),
    ]  # fmt: skip
    fast = Chip(room=100_000, flops=1e14, bandwidth=1e13)
    choice_check(Problem(512, 512, 64, causal=True), "causal", fast, triangle)
    choice_check(Problem(512, 512, 64, causal=True), "causal, the options in another order", fast, triangle[::-1])
    slow_memory = Chip(room=100_000, flops=1e15, bandwidth=1e12)
    times = (0.7229, 0.7229, 0.7885, 0.4608, 0.4608)
    other = [(m, n, size, us, tiles) for (m, n, size, _, tiles), us in zip(triangle, times, strict=True)]
    choice_check(Problem(512, 512, 64, causal=True), "causal", slow_memory, other)
    sizes = (32_768, 49_152, 81_920, 65_536, 98_304)
    times = (0.755, 0.7219, 0.7875, 0.4598, 0.4598)
    float32 = [(*row[:2], size, us, row[4]) for row, size, us in zip(triangle, sizes, times, strict=True)]
    chip = Chip(room=100_000, flops=1e14, bandwidth=2e12)  # with 2 bytes per element, arithmetic would decide
    choice_check(Problem(512, 512, 64, causal=True, bytes_per_element=4), "causal, float32", chip, float32)
    stripe = [
        (64, 32, 16_384, 0.2412, [(0, 2), (1, 4), (3, 6), (5, 8), (7, 10), (9, 12), (11, 14), (13, 16)]),
        (64, 64, 24_576, 0.1573, [(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6), (5, 7), (6, 8)]),
        (64, 128, 40_960, 0.2307, [(0, 1), (0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (2, 4), (3, 4)]),
        (128, 64, 32_768, 0.2307, [(0, 2), (1, 4), (3, 6), (5, 8)]),
        (128, 128, 49_152, 0.2936, [(0, 1), (0, 2), (1, 3), (2, 4)]),
    ]  # fmt: skip
    choice_check(Problem(512, 512, 64, window=32), "window 32", fast, stripe)
    doubled = [
        (64, 16, 24_576, 0.4194, [(0, 4), (0, 8), (0, 12), (0, 16)]),
        (64, 32, 32_768, 0.2097, [(0, 2), (0, 4), (0, 6), (0, 8)]),
        (64, 64, 49_152, None, [(0, 1), (0, 2), (0, 3), (0, 4)]),
        (128, 16, 40_960, None, [(0, 8), (0, 16)]),
        (128, 32, 49_152, None, [(0, 4), (0, 8)]),
    ]  # fmt: skip
    little = Chip(room=40_000, flops=1e14, bandwidth=3e12)
    choice_check(Problem(256, 256, 64, causal=True, bytes_per_element=4), "causal, float32", little, doubled)
    square = [
        (16, 64, 18_432, 1.115, [(0, 4)] * 16),
        (32, 64, 20_480, 0.5908, [(0, 4)] * 8),
        (64, 32, 16_384, 0.3287, [(0, 8)] * 4),
        (64, 64, 24_576, None, [(0, 4)] * 4),
        (128, 16, 20_480, 0.1976, [(0, 16)] * 2),
        (128, 32, 24_576, None, [(0, 8)] * 2),
    ]  # fmt: skip
    choice_check(Problem(256, 256, 64), "no mask", Chip(room=20_480, flops=1e15, bandwidth=1e12), square)
    sink = [
        (128, 128, 49_152, 0.2642, [(0, 1)] * 4),
        (128, 64, 32_768, 0.1987, [(0, 1)] * 4),
        (64, 64, 24_576, 0.2642, [(0, 1)] * 8),
        (64, 128, 40_960, 0.3953, [(0, 1)] * 8),
    ]  # fmt: skip
    even = Chip(room=100_000, flops=1e14, bandwidth=1e12)
    choice_check(Problem(512, 512, 64), "all see the first 16 keys", even, sink)
    choice_check(Problem(512, 512, 64), "all see the first 16 keys", even, sink[::-1])
    ### BEGIN HIDDEN TESTS

    def ranges(visible, block_m, block_n):
        """First and end of the tiles that hold a key which a query of the block sees, for each block of queries."""
        seen = [(rows.any(0).nonzero()[:, 0] // block_n).tolist() for rows in visible.split(block_m)]
        return [(tiles[0], tiles[-1] + 1) if tiles else (0, 0) for tiles in seen]

    def choice_elsewhere(p, mask, visible, *chips):
        """Sixteen options of one problem, on several chips."""
        row, count = p.head_dim * p.bytes_per_element, p.batch * p.heads
        for chip in chips:
            rows = []
            for m, n in ((m, n) for m in (16, 32, 64, 128) for n in (16, 32, 64, 128)):
                tiles = ranges(visible, m, n)
                existing = sum(min(end * n, p.keys) - first * n for first, end in tiles)
                visited = sum(end - first for first, end in tiles)
                loaded, stored = count * (p.queries + 2 * existing) * row, count * p.queries * (row + 4)
                traffic = Traffic(loaded, stored, count * visited * 4 * m * n * p.head_dim)
                size = (m + 2 * n) * row
                rows.append((m, n, size, time_us(traffic, m, n, chip) if size <= chip.room else None, tiles))
            choice_check(p, mask, chip, rows)

    # All options of the visible cases, which show some of them
    choice_elsewhere(Problem(512, 512, 64, causal=True), "causal", band(512, 512, 0), fast, slow_memory)
    choice_elsewhere(Problem(512, 512, 64, window=32), "window 32", band(512, 512, 0, -31), fast)
    small = Chip(room=13_000, flops=1e14, bandwidth=3e12)
    choice_elsewhere(
        Problem(256, 256, 64, causal=True, bytes_per_element=4), "causal, float32", band(256, 256, 0), small
    )
    many = [Chip(room, *rates) for room in (12_288, 24_576, 40_000) for rates in ((1e14, 3e12), (1e15, 2e12))]
    choice_elsewhere(Problem(200, 200, 32, 2, 3, window=100), "window 100", band(200, 200, 0, -99), *many)
    choice_elsewhere(
        Problem(150, 250, 64, causal=True, bytes_per_element=4), "causal, float32", band(150, 250, 100), *many
    )
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "blocks",
    "Count two things over all blocks of queries: the visited tiles, for the FLOPs, and the existing rows in those tiles, for the bytes.",
    "Only the last tile of the keys can stick out beyond the end, so only that tile has fewer rows than block_n.",
    "`time_us` needs a Traffic, and `fused_traffic` returns one. Compare only the options that fit.",
)
show.against_prediction("scores", 32, unit="MiB", source="4,096² scores of 2 bytes")
show.against_prediction("kv_reads", 32, unit="times", source="4,096 / 128 blocks, each reads all of K")
with reveal("kv_reads"):
    show.figure(attention.draw_traffic(), "Naive and fused traffic of one head: each byte once, and as requested")
debrief(
    "blocks",
    """The dotted lines show the bytes that must cross between memory and chip, each once. The points show the bytes that programs
    ask for. Fused attention saves the table in both. But its programs still ask for 2·N²·d / block_m elements of K and V, which
    is quadratic in N, and a larger block only divides it. The *memory* is linear, the traffic is not.

    There is no rule of thumb for the choice. If bytes decide, a large block of queries wins as long as it fits. If arithmetic decides,
    small tiles waste less at the edge of the mask, until they are too small for the tensor cores.""",
    parts=("traffic", "choice"),
)

from threeloops.lab.drawings.measured import attention as silicon
from threeloops.lab.drawings.measured.series import draw_floors

predict(
    "fa3",
    "FlashAttention-3 on an H100, one causal prompt of 16,384 tokens, 32 heads on 8 key heads of 128: what percentage of the "
    "tensor cores' peak does it reach?",
    unit="%",
)
if parts := together("tiles", "blocks"):
    fa3, counts = silicon.prefill("H100 SXM"), {}
    for tokens in fa3.sizes:
        problem = Problem(tokens, tokens, 128, heads=32, causal=True)
        counts[tokens] = parts.fused_traffic(problem, parts.visible_tiles(problem, 128, 128), 128, 128)
    arithmetic = {tokens: count.dot_flops / 989.4e12 for tokens, count in counts.items()}
    requested = {tokens: (count.loaded + count.stored) / 3.35e12 for tokens, count in counts.items()}
    reached = 100 * arithmetic[16384] / fa3.at(16384)
    show.against_prediction("fa3", round(reached), unit="%", source=fa3.source)
    with reveal("fa3"):
        show.figure(
            draw_floors(
                {"measured": fa3},
                {"your bytes at 3.35 TB/s": requested, "your FLOPs at 989 TFLOP/s": arithmetic},
                "One causal prompt on an H100, blocks of 128 × 128 in your counts",
                "tokens of the prompt",
            ),
            "measured times of FlashAttention-3, and two lines computed from the counts of exercise 2",
        )
        print(
            f"16,384 tokens: {1e3 * fa3.at(16384):.2f} ms. Your FLOPs take {1e3 * arithmetic[16384]:.2f} ms at the peak. Your "
            f"bytes would take {1e3 * requested[16384]:.2f} ms from memory, longer than the kernel. So at least "
            f"{100 * (1 - fa3.at(16384) / requested[16384]):.0f}% of them came from the L2 cache, or one load served several "
            f"heads. 256 tokens take {1e6 * fa3.at(256):.1f} µs, {fa3.at(256) / arithmetic[256]:.0f} times their arithmetic. "
            "The rest is the launch, and writing keys and values into the engine's cache, which these times include."
        )
        one_query = Problem(1, 8192, 128, batch=64, heads=32, causal=True)
        count = parts.fused_traffic(one_query, parts.visible_tiles(one_query, 128, 128), 128, 128)
        decoding = silicon.decode("H100 SXM", 64).at(8192)
        print(
            f"Decoding, 64 sequences with one query and 8,192 keys each, takes {1e3 * decoding:.2f} ms. You load a key head again for each "
            f"of its four query heads, and these bytes would take {1e3 * count.loaded / 3.35e12:.2f} ms. So memory delivers it once for all "
            "four: kernels put the queries of a group into one tile, which a single query would leave almost empty."
        )

# %% [markdown]
# ## 3 · A summary that can be merged
#
# Softmax needs the whole row before it divides, but the row arrives in tiles. For each query, let a block of keys leave
# three things behind: *m*, the largest of its scaled scores, *s*, the sum of exp(score − m), and *a*, the sum of
# exp(score − m) · value, a vector. Two summaries of different keys merge into one: take the larger maximum, multiply the sum
# and the vector of each side by exp(its own m − the new m), and add. At the end the answer is a / s.
#
# *Worked example.* One query, scores 1, 3 | 2 and values 10, 20 | 30. The first block leaves m = 3, s = e⁻² + 1 = 1.135,
# a = 10·e⁻² + 20 = 21.353. The second leaves (2, 1, 30). Merged: m = 3, s = 1.135 + e⁻¹ = 1.503, a = 21.353 + 30·e⁻¹ =
# 32.390. The answer is 21.55, and the **logsumexp** m + log(s) is 3.408.
#
# ### Exercise 3 (16 points)
#
# `summarise(scores, values) -> Summary`: `scores` (queries, keys), some −inf, `values` (keys, head_dim), finite. If all scores
# of a query are −inf: m = −inf, s = 0, a = 0. There may be no keys. m is the largest score even if all are below −10⁴.
#
# `merge(left, right) -> Summary`. A side with m = −inf changes nothing.
#
# `finish(summary) -> tuple[Tensor, Tensor]`: the output (queries, head_dim) and the logsumexp (queries,). A query that saw
# nothing gets zeros and −inf.
#
# No result holds a NaN. Arguments are float32 or float64, and results keep the dtype. Plain PyTorch; arguments are not changed.


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
    of_left, of_right = (torch.exp(side.m - reference_of(m)) for side in (left, right))
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


# %% nbgrader={"grade": true, "grade_id": "merging_test_values", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("merging", "summaries of blocks, merged in any order", part="values", hidden="other blocks and orders"):

    def summed(scores, values):
        return summarise(scores.clone(), values.clone())

    def joined(left, right):
        return merge(*(Summary(side.m.clone(), side.s.clone(), side.a.clone()) for side in (left, right)))

    def finished(summary, out, lse, case, rtol=1e-9):
        check.dtype(summary.m, out.dtype, what=f"m of {case}")
        got, logs = finish(summary)
        check.dtype(got, out.dtype, what=f"the output of {case}")
        check.close(got, out, rtol=rtol, atol=rtol, what=f"the output of {case}")
        check.close(logs, lse, rtol=rtol, atol=rtol, what=f"the logsumexp of {case}")

    scores, values = wide([[1.0, 3.0, 2.0]]), wide([[10.0], [20.0], [30.0]])
    whole = summed(scores[:, :2], values[:2])
    check.close(whole.m, [3.0], what="m of the scores 1, 3")
    check.close(whole.s, [1.1353352832], rtol=1e-9, what="s of the scores 1, 3")
    check.close(whole.a, [[21.3533528324]], rtol=1e-9, what="a of the scores 1, 3 and values 10, 20")
    merged = joined(whole, summed(scores[:, 2:], values[2:]))
    check.close(merged.s, [1.5032147244], rtol=1e-9, what="s of 1, 3 | 2, merged")
    check.close(merged.a, [[32.3897360675]], rtol=1e-9, what="a of 1, 3 | 2, merged")

    scores = wide([[0.0, 1.0, 2.0, 0.0, 1.0, 2.0], [5.0, 0.0, 0.0, -5.0, 0.0, 3.0]])
    values = wide([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0], [-1.0, 0.0], [0.0, 3.0], [1.0, 1.0]])
    out = wide([[0.997861433662, 1.487318375772], [0.994090706804, 0.152097436909]])
    lse = wide([3.100753145004, 5.144614951076])
    finished(summed(scores, values), out, lse, "one block")
    first, second, third = (summed(scores[:, i : i + 2], values[i : i + 2]) for i in (0, 2, 4))
    finished(joined(joined(first, second), third), out, lse, "three blocks, merged from the left")
    finished(joined(first, joined(third, second)), out, lse, "three blocks, merged from the right")
    narrow = [summed(scores[:, i : i + 3].float(), values[i : i + 3].float()) for i in (0, 3)]
    finished(joined(*narrow), out.float(), lse.float(), "float32", rtol=1e-5)
    for shift in (10_000.0, -20_000.0):
        blocks = [summed(scores[:, i : i + 3] + shift, values[i : i + 3]) for i in (0, 3)]
        finished(joined(*blocks), out, lse + shift, f"scores {shift:+,.0f} larger")
    faint = summed(wide([[-1e35, -1e35]]), wide([[1.0], [3.0]]))
    finished(joined(faint, faint), wide([[2.0]]), wide([-1e35]), "two blocks of keys that score −10³⁵")
    finished(faint, wide([[2.0]]), wide([-1e35]), "two keys that score −10³⁵")
    apart = [summed(scores[:, :3] - shift, values[:3]) for shift in (1000.0, -1000.0)]
    alone = wide([[1.420512484720, 1.575210382604], [1.0, 0.019945063437]])
    logs = wide([1002.407605964444, 1005.013385901721])
    finished(joined(*apart), alone, logs, "two blocks whose scores lie 2,000 apart, the lower first")
    finished(joined(*apart[::-1]), alone, logs, "two blocks whose scores lie 2,000 apart, the higher first")
    ### BEGIN HIDDEN TESTS
    for seed in range(6):
        rng = check.rng(seed)
        queries, keys, width = (int(v) for v in rng.integers(1, 20, 3))
        scores, values = 4 * seeded(queries, keys, seed=seed).double(), seeded(keys, width, seed=seed + 1).double()
        scores[:, : keys // 3] += 300.0 * (seed % 4)
        cuts = sorted({0, keys, *(int(v) for v in rng.integers(0, keys + 1, 3))})
        parts = [summed(scores[:, a:b], values[a:b]) for a, b in zip(cuts, cuts[1:], strict=False)]
        parts = [parts[i] for i in rng.permutation(len(parts))]
        while len(parts) > 1:
            at = int(rng.integers(len(parts) - 1))
            parts[at : at + 2] = [joined(parts[at], parts[at + 1])]
        out, lse = scores.softmax(1) @ values, scores.logsumexp(1)
        finished(parts[0], out, lse, f"{queries} queries and {keys} keys in {len(cuts) - 1} blocks", rtol=1e-12)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "merging_test_edges", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("merging", "−inf, no keys, unchanged arguments", part="edges", hidden="−inf at other places"):

    def summed(scores, values):
        return summarise(scores.clone(), values.clone())

    def copied(summary):
        return Summary(summary.m.clone(), summary.s.clone(), summary.a.clone())

    def joined(left, right):
        return merge(copied(left), copied(right))

    def require_nothing_seen(summary, case):
        check.equal(summary.m.tolist(), [-math.inf] * len(summary.m), what=f"m of {case}")
        check.equal(summary.s.tolist(), [0.0] * len(summary.m), what=f"s of {case}", hint="exp(−inf − 0) is 0")
        check.equal(summary.a.abs().sum().item(), 0.0, what=f"the sum of |a| of {case}")

    def require_same(summary, expected, logs, case):
        out, lse = finish(copied(summary))
        cause = "NaN: 0 / 0, or −inf − (−inf)" if out.isnan().any() else ""
        check.close(out, expected, rtol=1e-9, atol=1e-12, what=f"the output of {case}", hint=cause)
        check.close(lse, logs, rtol=1e-9, atol=1e-12, what=f"the logsumexp of {case}")

    inf = math.inf
    scores = wide([[0.0, 1.0, -inf, 0.0, 1.0, -inf], [-inf, 0.0, 0.0, -5.0, 0.0, 3.0]])
    values = wide([[1.0, 0.0], [0.0, 1.0], [2.0, 2.0], [-1.0, 0.0], [0.0, 3.0], [1.0, 1.0]])
    out = wide([[0.0, 1.462117157260], [0.956111907567, 1.129621792129]])
    lse = wide([2.006408868078, 3.139498140392])
    whole = summed(scores, values)
    require_same(whole, out, lse, "one block with some −inf")
    hidden = summed(torch.full((2, 4), -inf).double(), values[:4])
    require_nothing_seen(hidden, "a block of −inf")
    nothing = summed(scores[:, :0], values[:0])
    require_nothing_seen(nothing, "a block of no keys")
    for name in ("m", "s", "a"):
        check.dtype(getattr(nothing, name), torch.float64, what=f"{name} of a block of no keys, all in float64")
    check.shape(nothing.a, (2, 2), what="a of a block of no keys")
    blind, logs = torch.zeros(2, 2).double(), torch.full((2,), -inf).double()
    require_same(hidden, blind, logs, "queries that saw nothing")
    require_nothing_seen(joined(hidden, hidden), "two blocks of −inf")
    require_nothing_seen(joined(hidden, nothing), "a block of −inf, then one of no keys")
    require_same(joined(hidden, whole), out, lse, "a block of −inf, then an ordinary one")
    require_same(joined(whole, hidden), out, lse, "an ordinary block, then one of −inf")
    low = summed(scores - 20_000, values)
    require_same(joined(hidden, low), out, lse - 20_000, "a block of −inf, then scores below −20,000")
    first, second = wide([[-inf, -inf], [0.0, 1.0]]), wide([[-inf], [2.0]])
    blinded = joined(summed(first, wide([[1.0], [2.0]])), summed(second, wide([[3.0]])))
    unseen = "two blocks: one query sees nothing in either, the other sees all"
    require_same(blinded, wide([[0.0], [2.575210382604]]), wide([-inf, 2.407605964444]), unseen)
    crossed = joined(summed(scores[:, :3], values[:3]), summed(scores[:, 3:], values[3:]))
    require_same(crossed, out, lse, "two blocks, each with some −inf")

    def unchanged(name, function, *args):
        """Check that a call in the student's process leaves its arguments, which are copies, as they are."""
        fresh = [value.clone() if torch.is_tensor(value) else copied(value) for value in args]
        for number, (now, then) in enumerate(zip(arguments_after(function, *fresh), args, strict=True), start=1):
            fields = [(now, then)] if torch.is_tensor(then) else [(now.m, then.m), (now.s, then.s), (now.a, then.a)]
            same = all(torch.equal(x, y) for x, y in fields)
            check.true(same, f"{name} changes its argument number {number} in place: work on new tensors")

    unchanged("summarise", summarise, scores, values)
    near = summed(scores + 1, values)
    unchanged("merge", merge, whole, near)
    unchanged("merge", merge, near, whole)
    unchanged("finish", finish, whole)
    unchanged("finish", finish, hidden)
    ### BEGIN HIDDEN TESTS
    for seed in range(6):
        rng = check.rng(seed)
        queries, keys, width = (int(v) for v in rng.integers(1, 20, 3))
        scores, values = 4 * seeded(queries, keys, seed=seed).double(), seeded(keys, width, seed=seed + 1).double()
        hide = [0.5, 0.97][seed % 2]
        scores[torch.rand(queries, keys, generator=torch.Generator().manual_seed(seed)) < hide] = -inf
        cut = int(rng.integers(0, keys + 1))
        left, right = summed(scores[:, :cut], values[:cut]), summed(scores[:, cut:], values[cut:])
        out, lse = scores.softmax(1).nan_to_num(0.0) @ values, scores.logsumexp(1)
        require_same(joined(right, left), out, lse, f"{queries} queries, {keys} keys, many of them −inf")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "merging",
    "Everything in a summary is measured against its own m. To compare two, express both against the larger one. Each factor is then at most 1.",
    "The trap is −inf − (−inf) = NaN. Where the maximum is −inf, subtract a finite number in its place: the exponential of −inf is exactly 0.",
    "`amax` of a block with no keys raises. What could you add to such a block that changes nothing?",
)


animate(
    attention.draw_walk,
    range(5),
    seconds=1.6,
    caption="One query walks along 160 keys in tiles of 32 (made-up scores). When the maximum rises, all earlier weights shrink by one factor",
)
debrief(
    "merging",
    """s and a are measured against m, so a summary stands for exp(m) · s and exp(m) · a, whatever m is. Merging adds these two,
    and addition is associative and commutative: blocks can be summarised in any order, by anyone. A loop does it (the next
    exercise), and so do programs that split the keys between them (decoding) and GPUs in a ring (context parallelism).

    Subtracting 0 where the maximum is −inf makes an empty side weigh exactly nothing. Careless code turns one masked tile
    into a row of NaN.""",
    parts=("values", "edges"),
)

# %% [markdown]
# ## 4 · One head
#
# The next cell holds a complete kernel for keys that fill exactly one tile. A program owns BLOCK_M queries. `tl.dot` is the
# matrix product of two whole tiles, accumulated in float32, and `tl.trans` transposes. Without `input_precision="ieee"`, float32
# inputs would be rounded to TF32 on the tensor cores. The probabilities are converted to the dtype of v, because
# both sides of a `tl.dot` must have the same dtype.
#
# *Worked example.* For 40 keys in tiles of 16 the loop takes three steps, at 0, 16 and 32. In the last one the columns are 32
# to 47, and 40 to 47 do not exist: load them as zeros, and set their scores to −inf, because a score of 0 has a weight too.
#
# ### Exercise 4 (20 points)
#
# `flash_head(q, k, v, block_m, block_n) -> tuple[Tensor, Tensor]` returns (out, lse) of one head without a mask.
#
# - `q` (queries, head_dim), `k` and `v` (keys, head_dim): contiguous, float32 or float16. At least one query and one key;
#   head_dim is 16, 32 or 64; blocks are powers of two, at least 16.
# - `out` = softmax(q kᵀ / √head_dim) v, like q. `lse` (queries,): the logsumexp of the scaled scores. Scores, m, s, a and
#   `lse` are float32. The probabilities are rounded to the dtype of v for their product. No product uses TF32.
# - A key that does not exist has the score −∞ *before* the maximum is taken. Existing keys may all score below −10⁴.
# - One launch, ⌈queries / block_m⌉ programs. Each loads its queries once and each tile of K and of V once. Nothing but `out`
#   and `lse` is written, and PyTorch moves nothing.
# - No tile has more elements than the largest of block_m · block_n, block_m · head_dim and block_n · head_dim; a program holds
#   at most 32 times as many at one time.
#
# The kernel loads q, and stores a / s and m + log(s). Write what lies between, and the launch: first for keys that fill
# all tiles, then with the ragged end. Bytes are graded only once the values are right.


# %% tags=["demo"]
@triton.jit
def one_tile_kernel(q, k, v, out, scale, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    column, width = tl.arange(0, BLOCK_N), tl.arange(0, HEAD_DIM)
    query = tl.load(q + row[:, None] * HEAD_DIM + width[None, :])  # (BLOCK_M, HEAD_DIM)
    key = tl.load(k + column[:, None] * HEAD_DIM + width[None, :])  # (BLOCK_N, HEAD_DIM)
    value = tl.load(v + column[:, None] * HEAD_DIM + width[None, :])
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale  # (BLOCK_M, BLOCK_N)
    weights = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    a = tl.dot(weights.to(value.dtype), value, input_precision="ieee")  # (BLOCK_M, HEAD_DIM)
    result = a / tl.sum(weights, axis=1)[:, None]
    tl.store(out + row[:, None] * HEAD_DIM + width[None, :], result.to(out.dtype.element_ty))


if INTERPRETED:
    q, k, v = seeded(32, 16), seeded(16, 16, seed=1), seeded(16, 16, seed=2)
    out = torch.empty_like(q)
    one_tile_kernel[(2,)](q, k, v, out, 16**-0.5, HEAD_DIM=16, BLOCK_M=16, BLOCK_N=16)
    print(f"largest difference from PyTorch: {(out - torch.softmax(q @ k.T / 4, -1) @ v).abs().max():.1e}")


# %% nbgrader={"grade": false, "grade_id": "one_head", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def head_kernel(
    q, k, v, out, lse, queries, keys, scale, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """BLOCK_M queries, and the keys from lo on and before hi."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    width = tl.arange(0, HEAD_DIM)
    at = row[:, None] * HEAD_DIM + width[None, :]
    query = tl.load(q + at, mask=row[:, None] < queries, other=0.0)
    lo, hi = 0, keys
    ### BEGIN SOLUTION
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    s = tl.zeros((BLOCK_M,), tl.float32)
    a = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    for first in range(lo, hi, BLOCK_N):
        column = first + tl.arange(0, BLOCK_N)
        tile = column[:, None] * HEAD_DIM + width[None, :]
        key = tl.load(k + tile, mask=column[:, None] < keys, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(column[None, :] < keys, scores, -float("inf"))
        raised = tl.maximum(m, tl.max(scores, axis=1))
        shrink = tl.exp(m - raised)
        weights = tl.exp(scores - raised[:, None])
        value = tl.load(v + tile, mask=column[:, None] < keys, other=0.0)
        a = a * shrink[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        s = s * shrink + tl.sum(weights, axis=1)
        m = raised
    ### END SOLUTION
    tl.store(out + at, (a / s[:, None]).to(out.dtype.element_ty), mask=row[:, None] < queries)
    tl.store(lse + row, m + tl.log(s), mask=row < queries)


def flash_head(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_m: int, block_n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of one head without the table of scores."""
    (queries, head_dim), keys = q.shape, len(k)
    out, lse = torch.empty_like(q), torch.empty(queries, dtype=torch.float32, device=q.device)
    ### BEGIN SOLUTION
    head_kernel[(triton.cdiv(queries, block_m),)](
        q, k, v, out, lse, queries, keys, head_dim**-0.5, HEAD_DIM=head_dim, BLOCK_M=block_m, BLOCK_N=block_n
    )
    return out, lse
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "one_head_test_values", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("one_head", "attention of one head", part="values", hidden="other sizes and blocks, in both dtypes"):

    def head_by_hand(scores, values, out, lse, slips, case, dtype=torch.float32, rtol=1e-4):
        """Check 16 queries with the same scores, so all rows are alike. `slips` maps wrong values to their causes."""
        q, k, v = by_scores(scores, values, 16, dtype)
        run = replay(flash_head, q, k, v, 16, 16)
        got, logs = run.outputs
        first = got.flatten()[0].item() if torch.is_tensor(got) and got.numel() else math.nan
        cause = odd(run, got, band(16, len(scores)))
        cause = cause or next((words for value, words in slips.items() if abs(first - value) < 1e-3 * abs(out)), "")
        check.close(got, torch.full((16, 16), out), rtol=rtol, what=f"out, {case}", hint=cause)
        cause = "that is the logarithm to base two" if alike(logs, torch.full((16,), 1.4426950409 * lse)) else ""
        check.close(logs, torch.full((16,), lse), rtol=3e-6, what=f"lse, {case}", hint=cause)

    def head_check(queries, keys, width, block_m, block_n, dtype=torch.float32, spread=1.0):
        q, k, v = (seeded(rows, width, seed=queries + i, dtype=dtype) for i, rows in enumerate((queries, keys, keys)))
        case = f"{queries} queries, {keys} keys, head_dim {width}, blocks {block_m} × {block_n}, {name_of(dtype)}"
        case += f", q {spread:g} times as large" * (spread != 1)
        q = q * spread
        run = replay(flash_head, q, k, v, block_m, block_n)
        require_values(run, q, k, v, band(queries, keys), case)

    head_by_hand(
        [0.0] * 8 + [1.0] * 8,
        [2.0] * 8 + [6.0] * 8,
        4.92423,
        3.392703,
        {5.92806: "the scores are not divided by √head_dim"},
        "one tile of 16 keys, scores 0 and 1",
    )
    head_by_hand(
        [0.0] * 16 + [2.0] * 16,
        [1.0] * 16 + [5.0] * 16,
        4.52319,
        4.899517,
        {3.0: "the old sum and vector are not multiplied by exp(old m − new m)"},
        "two tiles of 16 keys, scores 0 and 2",
    )
    head_by_hand(
        [1.0, 1.0, 1.0],
        [3.0, 6.0, 9.0],
        6.0,
        2.098612,
        {2.31280: "keys beyond the end count with a score of 0: expected −inf"},
        "3 keys of score 1 in a tile of 16",
    )
    head_by_hand([-200.0], [3.0], 3.0, -200.0, {}, "one key of score −200")
    for base in (-20_000.0, 20_000.0):
        case = f"two keys of scores {base:,.0f} and {base - 1:,.0f}"
        head_by_hand([base, base - 1], [3.0, 7.0], 4.07577, base + 0.313262, {}, case, rtol=5e-3)
    outweighed = {0.0: "the missing keys outweigh the real ones: their score must be −∞, not a large negative number"}
    head_by_hand([-3e9, -3e9], [3.0, 5.0], 4.0, -3e9, outweighed, "two keys that score −3 · 10⁹")
    head_by_hand(
        [0.0] * 70, [1000.0] * 70, 1000.0, 4.248495, {}, "70 keys of value 1,000, float16", torch.float16, 1e-3
    )
    head_check(20, 33, 32, 16, 32)
    head_check(20, 70, 32, 16, 64, torch.float16)
    head_check(16, 40, 16, 16, 16, spread=300.0)
    require_rounded(flash_head, 16, 16)
    ### BEGIN HIDDEN TESTS
    head_check(1, 1, 16, 16, 16)
    head_check(65, 31, 64, 32, 16)
    head_check(33, 100, 32, 64, 32, torch.float16)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "one_head_test_traffic", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("one_head", "what it moves and holds, and its code", part="traffic", hidden="other sizes"):

    def head_traffic(queries, keys, width, block_m, block_n, dtype=torch.float32, **work):
        q, k, v = (seeded(rows, width, seed=i, dtype=dtype) for i, rows in enumerate((queries, keys, keys)))
        case = f"{queries} queries, {keys} keys, head_dim {width}, blocks {block_m} × {block_n}, {name_of(dtype)}"
        run = replay(flash_head, q, k, v, block_m, block_n)
        require_work(run, q, k, v, band(queries, keys), case, **work)
        return run

    head_traffic(
        20, 40, 16, 16, 16,
        tiles=6, every=6, tile_flops=16_384, loaded=11_520, stored=1_360, programs=2, largest=256,
    )  # fmt: skip
    head_traffic(
        16, 64, 32, 16, 32, torch.float16,
        tiles=2, every=2, tile_flops=65_536, loaded=9_216, stored=1_088, programs=1, largest=1_024,
    )  # fmt: skip
    head_traffic(
        16, 640, 16, 16, 16,
        tiles=40, every=40, tile_flops=16_384, loaded=82_944, stored=1_088, programs=1, largest=256,
    )  # fmt: skip
    run = head_traffic(
        64, 64, 32, 32, 32,
        tiles=4, every=4, tile_flops=131_072, loaded=40_960, stored=8_448, programs=2, largest=1_024,
    )  # fmt: skip
    require_compiled(run)
    ### BEGIN HIDDEN TESTS
    head_traffic(
        65, 31, 64, 32, 16,
        tiles=6, every=6, tile_flops=131_072, loaded=64_256, stored=16_900, programs=3, largest=2_048,
    )  # fmt: skip
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
term("FlashAttention")
hint(
    "one_head",
    "Three blocks live through the loop: m and s with one number per query, a with one vector per query. They start as an empty summary, and the loop body is `summarise` and `merge` in one.",
    "The new maximum is the larger of the old one and the tile's. The old sum and vector shrink by one factor per query; the tile's weights are measured against the new maximum.",
    "K and V need a mask and `other` at the ragged end. That makes the scores of missing keys 0, so set those to −∞ with `tl.where`, before anything looks at them.",
)
debrief(
    "one_head",
    """One program needs a query tile, one tile of K and of V, and a summary, however many keys there are. The table
    exists only tile by tile, in registers. The first tile always holds a key, so m is finite after it, and exp(−inf − m) = 0
    makes the empty summary vanish by itself.

    Keys beyond the end must be −inf *before* the maximum. A score of 0 adds exp(−m) to the sum. When scores are large,
    that is small enough to look like rounding. When all real scores are negative, the 0 becomes the maximum.""",
    parts=("values", "traffic"),
)
predict(
    "window_share",
    "4,096 tokens, a window of 256, tiles of 64 × 64: what percentage of the tiles of a causal kernel must be visited?",
    unit="%",
)

# %% [markdown]
# ## 5 · Masks, and heads that share keys
#
# Start from your loop. Three things change: the tiles that it visits, the mask, and where a head's data begin (for q and out
# this is given). Work in the order of the checks: causal, window, heads.
#
# **Causal.** A mask alone saves nothing: the loop has to end after the last tile with a key that the block's last existing query
# sees. After a tile, a query may have seen nothing yet. Its m is then −inf, and −inf − (−inf) is NaN, as in exercise 3. *Example.*
# 40 queries and 24 keys: query *i* sees j ≤ i − 16. In blocks of 16 queries, the first sees nothing and visits no tile. Queries 16 to
# 31 see up to key 15. Queries 32 to 39 see up to key 23: two tiles of 16.
#
# **Sliding window**, as in Mistral 7B ([Jiang et al. 2023](https://arxiv.org/abs/2310.06825)). The work falls from N²/2 to N·w only if
# the loop also begins late. *Example.* 48 tokens, window 10, blocks of 16 × 16. The last block begins with query 32, which
# sees keys 23 to 32. Key 23 lies in tile 1. The loop takes two steps, at 16 and 32. In the first, query 41 and later ones
# see nothing at all.
#
# **Grouped-query attention.** Several query heads share one head of keys and values: head h uses key head h // group, where
# group = heads / kv_heads. *Example.* Batch 2, 4 heads on 2, flattened: query heads 0 to 7, key heads 0 to 3. Flat head 5 is head 1
# of batch 1. Its keys are head 0 of batch 1, flat key head 2, and 5 // 2 = 2: the same division works for flat numbers. A head
# of n rows begins n · head_dim elements after the previous one.
#
# ### Exercise 5 (30 points)
#
# `flash_attention(q, k, v, window, block_m, block_n) -> tuple[Tensor, Tensor]`: causal attention of all heads, in one launch.
#
# - `q` (batch, heads, queries, head_dim), `k` and `v` (batch, kv_heads, keys, head_dim), contiguous; `heads` is a multiple of
#   `kv_heads`. `out` is like q, `lse` (batch, heads, queries).
# - A query sees the keys that section 1's causal rule allows, or only the last `window` of them. `window` is None or an int of at
#   least 1, which may exceed the number of keys.
# - A query that sees nothing gets zeros and lse = −inf. A hidden key counts for nothing, however high its score.
# - One program per block of queries of each head. It visits exactly the tiles of exercise 1. Nothing is copied or repeated.
#   Everything else is as in exercise 4.


# %% nbgrader={"grade": false, "grade_id": "masked", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def sees(row, column, shift, window):
    """(BLOCK_M, BLOCK_N): whether query number `row` sees key number `column`; `shift` is keys − queries."""
    ### BEGIN SOLUTION
    distance = row[:, None] + shift - column[None, :]
    return (distance >= 0) & (distance < window)
    ### END SOLUTION


@triton.jit
def masked_kernel(
    q, k, v, out, lse, queries, keys, group, window, scale,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """BLOCK_M queries of one head, and the tiles of keys that they see; the second program id counts batch and heads."""
    top = tl.program_id(0) * BLOCK_M
    row = top + tl.arange(0, BLOCK_M)
    width = tl.arange(0, HEAD_DIM)
    head = tl.program_id(1).to(tl.int64)
    at = (head * queries + row[:, None]) * HEAD_DIM + width[None, :]
    query = tl.load(q + at, mask=row[:, None] < queries, other=0.0)
    ### BEGIN SOLUTION
    k += head // group * keys * HEAD_DIM
    v += head // group * keys * HEAD_DIM
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    s = tl.zeros((BLOCK_M,), tl.float32)
    a = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    shift = keys - queries
    lo = tl.maximum(top + shift - window + 1, 0) // BLOCK_N * BLOCK_N
    hi = tl.minimum(top + BLOCK_M, queries) + shift
    for first in range(lo, hi, BLOCK_N):
        column = first + tl.arange(0, BLOCK_N)
        tile = column[:, None] * HEAD_DIM + width[None, :]
        key = tl.load(k + tile, mask=column[:, None] < keys, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(sees(row, column, shift, window), scores, -float("inf"))
        raised = tl.maximum(m, tl.max(scores, axis=1))
        reference = tl.where(raised == -float("inf"), 0.0, raised)
        shrink = tl.exp(m - reference)
        weights = tl.exp(scores - reference[:, None])
        value = tl.load(v + tile, mask=column[:, None] < keys, other=0.0)
        a = a * shrink[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        s = s * shrink + tl.sum(weights, axis=1)
        m = raised
    result = a / tl.where(s == 0.0, 1.0, s)[:, None]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=row[:, None] < queries)
    tl.store(lse + head * queries + row, m + tl.log(s), mask=row < queries)
    ### END SOLUTION


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None, block_m: int, block_n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention of all heads, to the last `window` keys if there is a window."""
    (batch, heads, queries, head_dim), (kv_heads, keys) = q.shape, k.shape[1:3]
    out, lse = torch.empty_like(q), torch.empty((batch, heads, queries), dtype=torch.float32, device=q.device)
    window = keys if window is None else window  # so large a window hides nothing more
    ### BEGIN SOLUTION
    masked_kernel[(triton.cdiv(queries, block_m), batch * heads)](
        q, k, v, out, lse, queries, keys, heads // kv_heads, window, head_dim**-0.5,
        HEAD_DIM=head_dim, BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return out, lse
    ### END SOLUTION


# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_masked", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
# What the checks of exercise 5 share.


def keys_seen(out, lse, query):
    """The first and last key that a query of head 0 saw. All scores are 0 and key j has value j, so out is their mean."""
    count, mean = float(lse[0, 0, query].double().exp()), float(out[0, 0, query, 0])
    if count == 0:
        return "no key" if mean == 0 else f"no key, but its out is {mean:g}"
    first, last = mean - (count - 1) / 2, mean + (count - 1) / 2
    whole = all(abs(end - math.floor(end + 0.5)) < 0.01 for end in (first, last) if math.isfinite(end))
    if not (math.isfinite(first) and math.isfinite(last) and whole):
        return f"{count:.4g} keys, whose mean number is {mean:.4g}"
    return f"keys {math.floor(first + 0.5)} to {math.floor(last + 0.5)}"


def require_seen(launcher, queries, keys, window, expected, slips, block_m=16, block_n=16):
    """Check which keys some queries see. `slips` maps (query, keys) to the mistake that leads to them."""
    q, k, v = (tensor[None, None] for tensor in by_scores([0.0] * keys, [float(j) for j in range(keys)], queries))
    run = replay(launcher, q, k, v, window, block_m, block_n)
    out, lse = run.outputs
    check.shape(out, (1, 1, queries, 16), what="out")
    check.shape(lse, (1, 1, queries), what="lse")
    case = f"{queries} queries, {keys} keys, window {window}, blocks {block_m} × {block_n}"
    cause = unwritten(run, out) or unwritten(run, lse)
    for query, wanted in expected.items():
        got = keys_seen(out, lse, query)
        hint = cause or slips.get((query, got), "")
        check.equal(got, wanted, what=f"what query {query} sees, {case}", hint=hint)


def require_masked(launcher, queries, keys, window, visible, block_m=16, block_n=16, **inputs):
    """Compare values with float64, for random inputs or for given scores per key. The case gives `visible`."""
    width, dtype, spread = inputs.get("width", 16), inputs.get("dtype", torch.float32), inputs.get("spread", 1.0)
    case = f"{queries} queries, {keys} keys, window {window}, blocks {block_m} × {block_n}, {name_of(dtype)}"
    if "scores" in inputs:
        q, k, v = by_scores(inputs["scores"], [float(j % 7) for j in range(keys)], queries, dtype)
        case += f", {inputs['named']}"
    else:
        q, k, v = (seeded(rows, width, seed=queries + i, dtype=dtype) for i, rows in enumerate((queries, keys, keys)))
        q, v = q * spread, v.abs() * 12288 if dtype == torch.float16 else v  # so that a exceeds what a float16 holds
        case += f", q {spread:g} times as large" * (spread != 1)
    q, k, v = (tensor[None, None] for tensor in (q, k, v))
    run = replay(launcher, q, k, v, window, block_m, block_n)
    require_values(run, q, k, v, visible, case, inputs.get("fine", (1e-4, 1e-5)))


# %% nbgrader={"grade": true, "grade_id": "masked_test_causal", "locked": true, "points": 9, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("masked", "the causal rule", part="causal", hidden="other sizes and blocks, in both dtypes"):
    require_seen(
        flash_attention, 32, 32, None,
        {0: "keys 0 to 0", 15: "keys 0 to 15", 16: "keys 0 to 16", 31: "keys 0 to 31"},
        {
            (0, "no key"): "the query's own key is hidden",
            (0, "keys 0 to 1"): "one key too many is seen",
            (0, "keys 0 to 31"): "nothing is hidden",
        },
    )  # fmt: skip
    require_seen(
        flash_attention, 20, 37, None,
        {0: "keys 0 to 17", 19: "keys 0 to 36"},
        {(0, "keys 0 to 0"): "that is the rule j ≤ i: the queries are at the last positions"},
    )  # fmt: skip
    require_seen(
        flash_attention, 40, 24, None,
        {0: "no key", 15: "no key", 16: "keys 0 to 0", 39: "keys 0 to 23"},
        {(0, "keys 0 to 0"): "that is the rule j ≤ i: the queries are at the last positions"},
    )  # fmt: skip
    alone = [tensor[None, None] for tensor in by_scores([0.0], [3.0], 1)]
    lse = replay(flash_attention, *alone, None, 16, 16).outputs[1]
    cause = "add nothing to s: only a query that sees nothing needs another divisor"
    check.close(lse, [[[0.0]]], atol=2e-7, what="lse of a query that sees one key, of score 0", hint=cause)
    rising = [10.0 * j for j in range(40)]
    require_masked(flash_attention, 40, 40, None, band(40, 40, last=0), scores=rising, named="key j scores 10 · j")
    low = [-20_000.0 - j % 3 for j in range(20)]
    require_masked(
        flash_attention, 20, 20, None, band(20, 20, last=0),
        scores=low, named="all scores near −20,000", fine=(5e-3, 1e-2),
    )  # fmt: skip
    require_masked(flash_attention, 20, 12, None, band(20, 12, last=-8))  # a tile that some of its queries do not see
    require_masked(flash_attention, 9, 70, None, band(9, 70, last=61), block_n=32, width=32, dtype=torch.float16)
    require_masked(flash_attention, 16, 20, None, band(16, 20, last=4), spread=300.0)
    require_rounded(flash_attention, None, 16, 16, lead=(1, 1))
    ### BEGIN HIDDEN TESTS
    require_masked(flash_attention, 1, 1, None, band(1, 1, last=0))
    require_masked(flash_attention, 65, 33, None, band(65, 33, last=-32), 32, 16, width=64, dtype=torch.float16)
    require_masked(flash_attention, 33, 65, None, band(33, 65, last=32), 64, 32, width=32)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "masked_test_window", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("masked", "the window", part="window", hidden="other windows and sizes, in both dtypes"):
    require_seen(
        flash_attention, 48, 48, 10,
        {9: "keys 0 to 9", 10: "keys 1 to 10", 41: "keys 32 to 41", 47: "keys 38 to 47"},
        {
            (10, "keys 0 to 10"): "the window is one key too wide",
            (9, "keys 1 to 9"): "the window is one key too narrow",
            (9, "keys 0 to 8"): "the query's own key is hidden",
            (47, "keys 0 to 47"): "there is no window",
        },
    )  # fmt: skip
    require_seen(
        flash_attention, 20, 37, 7,
        {0: "keys 11 to 17", 19: "keys 30 to 36"},
        {(0, "keys 0 to 17"): "the window is counted from the query's number: it ends at i + (keys − queries)"},
    )  # fmt: skip
    require_seen(flash_attention, 40, 24, 5, {16: "keys 0 to 0", 20: "keys 0 to 4", 21: "keys 1 to 5"}, {})
    require_seen(flash_attention, 35, 35, 1, {0: "keys 0 to 0", 34: "keys 34 to 34"}, {}, block_n=32)
    require_masked(flash_attention, 20, 20, 1000, band(20, 20, last=0), width=32)
    require_masked(flash_attention, 50, 50, 40, band(50, 50, last=0, first=-39), 32, 16, dtype=torch.float16)
    require_masked(flash_attention, 20, 20, 10, band(20, 20, last=0, first=-9), spread=300.0)
    falling = [-10.0 * j for j in range(40)]
    require_masked(
        flash_attention, 40, 40, 9, band(40, 40, last=0, first=-8), scores=falling, named="key j scores −10 · j"
    )
    ### BEGIN HIDDEN TESTS
    require_masked(flash_attention, 1, 1, 5, band(1, 1, last=0))
    require_masked(flash_attention, 65, 65, 17, band(65, 65, 0, -16), 32, 16, width=64, dtype=torch.float16)
    require_masked(flash_attention, 33, 70, 40, band(33, 70, 37, -2), 32, 64, width=32)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "masked_test_heads", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("masked", "all batches and heads", part="heads", hidden="other groups, in both dtypes"):

    def key_heads(batch, heads, kv_heads, expected, slips):
        """The values of flat key head n are n, so `out` tells which one a query head read."""
        q = torch.zeros(batch, heads, 20, 16)
        k = torch.zeros(batch, kv_heads, 20, 16)
        v = torch.arange(batch * kv_heads).reshape(batch, kv_heads, 1, 1).expand_as(k).float().contiguous()
        run = replay(flash_attention, q, k, v, None, 16, 16)
        out, lse = run.outputs
        check.shape(out, (batch, heads, 20, 16), what="out")
        got = [round(value, 3) for value in out[:, :, 19, 5].flatten().tolist()]
        hint = unwritten(run, out) or slips.get(tuple(got), "")
        case = f"batch {batch}, heads {heads} on {kv_heads}"
        check.equal(got, expected, what=f"key head that each flat query head reads, {case}", hint=hint)
        spread = out.flatten(2).amax(2) - out.flatten(2).amin(2)
        check.close(spread, torch.zeros(batch, heads), atol=1e-4, what=f"the spread of out in a head, {case}")
        logs = [round(value, 3) for value in lse[:, :, 19].flatten().tolist()]
        check.equal(logs, [2.996] * (batch * heads), what=f"lse of each head's last query, which sees 20 keys, {case}")

    def grouped_check(batch, heads, kv_heads, queries, keys, own, last, width=16, block_m=16, block_n=16, **inputs):
        """`own` holds the flat key head of each flat query head."""
        dtype = inputs.get("dtype", torch.float32)
        q = seeded(batch, heads, queries, width, seed=heads, dtype=dtype)
        k, v = (seeded(batch, kv_heads, keys, width, seed=queries + i, dtype=dtype) for i in range(2))
        v = v.abs() * 12288 if dtype == torch.float16 else v
        case = f"batch {batch}, heads {heads} on {kv_heads}, {queries} queries, {keys} keys, {name_of(dtype)}"
        run = replay(flash_attention, q, k, v, inputs.get("window"), block_m, block_n)
        shared = [tensor.flatten(0, 1)[own].reshape(batch, heads, keys, width) for tensor in (k, v)]
        require_values(run, q, *shared, band(queries, keys, last, inputs.get("first")), case)

    key_heads(1, 2, 2, [0.0, 1.0], {})
    key_heads(
        2, 4, 2,
        [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0],
        {
            (0.0, 1.0, 0.0, 1.0, 2.0, 3.0, 2.0, 3.0): "query head h uses key head h % kv_heads: expected h // group",
            (0.0, 1.0, 2.0, 3.0, 3.0, 3.0, 3.0, 3.0): "each query head uses the key head of its own number",
            (0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0): "all batches use the keys of the first",
        },
    )  # fmt: skip
    grouped_check(2, 4, 2, 20, 21, [0, 0, 1, 1, 2, 2, 3, 3], last=1)
    grouped_check(2, 2, 1, 10, 20, [0, 0, 1, 1], last=10, first=5, window=6, dtype=torch.float16)
    ### BEGIN HIDDEN TESTS
    grouped_check(3, 2, 1, 5, 20, [0, 0, 1, 1, 2, 2], last=15)
    grouped_check(1, 6, 3, 17, 17, [0, 0, 1, 1, 2, 2], 0, 32, 32, 32, dtype=torch.float16)
    grouped_check(1, 2, 2, 33, 50, [0, 1], 17, 64, 32, 16, window=8, first=10)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "masked_test_tiles", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("masked", "which tiles it visits, in one launch, and its code", part="tiles", hidden="other sizes"):

    def masked_tiles(shape, keys, kv_heads, window, blocks, visible, dtype=torch.float32, **work):
        batch, heads, queries, width = shape
        q = seeded(*shape, dtype=dtype)
        k, v = (seeded(batch, kv_heads, keys, width, seed=i, dtype=dtype) for i in (1, 2))
        case = f"{queries} queries, {keys} keys, window {window}, head_dim {width}, blocks {blocks[0]} × {blocks[1]}"
        case += f", batch {batch}, heads {heads} on {kv_heads}" * (batch * heads > 1)
        run = replay(flash_attention, q, k, v, window, *blocks)
        shared = (tensor.repeat_interleave(heads // kv_heads, 1) for tensor in (k, v))
        require_work(run, q, *shared, visible, case, **work)
        return run

    masked_tiles(
        (1, 1, 48, 16), 48, 1, None, (16, 16), band(48, 48, 0),
        tiles=6, every=9, tile_flops=16_384, loaded=15_360, stored=3_264, programs=3, largest=256,
    )  # fmt: skip
    masked_tiles(
        (1, 1, 40, 16), 24, 1, None, (16, 16), band(40, 24, -16),
        tiles=3, every=6, tile_flops=16_384, loaded=7_680, stored=2_720, programs=3, largest=256,
    )  # fmt: skip
    masked_tiles(
        (1, 1, 20, 16), 40, 1, None, (32, 16), band(20, 40, 20),
        tiles=3, every=3, tile_flops=32_768, loaded=6_400, stored=1_360, programs=1, largest=512,
    )  # fmt: skip
    masked_tiles(
        (1, 1, 48, 16), 48, 1, 10, (16, 16), band(48, 48, 0, -9),
        tiles=5, every=9, tile_flops=16_384, loaded=13_312, stored=3_264, programs=3, largest=256,
    )  # fmt: skip
    masked_tiles(
        (1, 1, 64, 16), 64, 1, 17, (16, 16), band(64, 64, 0, -16),
        tiles=7, every=16, tile_flops=16_384, loaded=18_432, stored=4_352, programs=4, largest=256,
    )  # fmt: skip
    masked_tiles(  # the furthest key of the last block ends a tile, where that of 17 begins one
        (1, 1, 48, 16), 48, 1, 18, (16, 16), band(48, 48, 0, -17),
        tiles=6, every=9, tile_flops=16_384, loaded=15_360, stored=3_264, programs=3, largest=256,
    )  # fmt: skip
    masked_tiles(
        (1, 1, 20, 16), 37, 1, 7, (16, 16), band(20, 37, 17, 11),
        tiles=5, every=6, tile_flops=16_384, loaded=8_704, stored=1_360, programs=2, largest=256,
    )  # fmt: skip
    masked_tiles(
        (2, 4, 20, 16), 21, 2, None, (16, 16), band(20, 21, 1),
        tiles=32, every=32, tile_flops=16_384, loaded=53_248, stored=10_880, programs=16, largest=256,
    )  # fmt: skip
    run = masked_tiles(
        (1, 1, 64, 32), 64, 1, 40, (32, 32), band(64, 64, 0, -39),
        tiles=3, every=4, tile_flops=131_072, loaded=32_768, stored=8_448, programs=2, largest=1_024,
    )  # fmt: skip
    require_compiled(run)
    ### BEGIN HIDDEN TESTS
    masked_tiles(
        (1, 1, 65, 64), 33, 1, None, (32, 16), band(65, 33, -32, None), torch.float16,
        tiles=5, every=9, tile_flops=131_072, loaded=24_960, stored=8_580, programs=3, largest=2_048,
    )  # fmt: skip
    masked_tiles(
        (1, 1, 17, 32), 130, 1, None, (16, 64), band(17, 130, 113, None), 
        tiles=6, every=6, tile_flops=131_072, loaded=68_736, stored=2_244, programs=2, largest=2_048,
    )  # fmt: skip
    masked_tiles(
        (1, 1, 65, 64), 65, 1, 17, (32, 16), band(65, 65, 0, -16), torch.float16,
        tiles=7, every=15, tile_flops=131_072, loaded=33_152, stored=8_580, programs=3, largest=2_048,
    )  # fmt: skip
    masked_tiles(
        (1, 1, 70, 32), 70, 1, 40, (32, 64), band(70, 70, 0, -39), 
        tiles=4, every=6, tile_flops=262_144, loaded=59_648, stored=9_240, programs=3, largest=2_048,
    )  # fmt: skip
    masked_tiles(
        (1, 1, 33, 16), 33, 1, 1000, (16, 16), band(33, 33, 0, None), 
        tiles=6, every=9, tile_flops=16_384, loaded=12_480, stored=2_244, programs=3, largest=256,
    )  # fmt: skip
    masked_tiles(
        (1, 6, 10, 32), 40, 2, None, (16, 32), band(10, 40, 30, None), 
        tiles=12, every=12, tile_flops=65_536, loaded=69_120, stored=7_920, programs=6, largest=1_024,
    )  # fmt: skip
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
term("grouped-query attention")
hint(
    "masked",
    "For the loop: which query of the block sees furthest back, and which furthest ahead? Round the beginning down to a tile. The end may be negative, and then the loop has no steps.",
    "Where the maximum is still −∞ after a tile, measure the weights against a finite number instead. At the end, s is 0 for a query that saw nothing, so divide by something else there.",
    "For the heads: only start addresses change. Those of q and out are in `at`. That of lse depends on the number of the query head, those of k and v on the number of the key head.",
)
show.against_prediction("window_share", 14.9, unit="%", source="310 of 2,080 tiles, counted")
debrief(
    "masked",
    """Nearly half of the tiles of a square causal problem are skipped. With a window of 256 most blocks of 64 queries visit 5
    tiles; a causal block visits 32.5 on average. Four tiles hold 256 keys, but a window rarely begins at the edge of a tile. Kernels in production split
    the loop in two, whole tiles without any mask first, because the comparison costs time in every tile.

    Aligning the mask at the end makes decoding a special case: one query at the end of a long cache sees all of it. The
    flash-attn package changed to this rule in version 2.1 (its README, "Changelog"); before, the mask was aligned at the first query.

    A head is only an offset. One division of the flat head number is enough, because no group crosses a batch. Sharing saves memory,
    above all in the KV cache of decoding (lab 15). These programs still ask for as many bytes, because each query head loads its keys
    again.""",
    parts=("causal", "window", "heads", "tiles"),
)

# %% [markdown]
# ## 6 · A piece of the backward pass
#
# The backward pass needs the probabilities, which nobody stored. It computes them again, tile by tile: P = exp(score − lse). With
# dO, the gradient of the output, and dP = dO vᵀ, the gradient of the scores is dS = P ∘ (dP − Σⱼ Pᵢⱼ dPᵢⱼ). The sum runs over **all** keys,
# but it equals dOᵢ · Oᵢ, the number `delta` of query i, which is known before any tile.
#
# *Worked example.* One query, head_dim 1, q = 1, keys 0 and 0, values 1 and 3, so P = (½, ½), O = 2 and lse = log 2. With dO = 4:
# delta = 8 and dP = (4, 12), so dS = (½ · (4 − 8), ½ · (12 − 8)) = (−2, 2). Then dv = (2, 2) and dk = (−2, 2).
#
# ### Exercise 6 (10 points)
#
# `backward_tile(q, k, v, grad, lse, delta, visible)` returns (dq, dk, dv): what one tile adds to the three gradients. Plain
# PyTorch; arguments are not changed.
#
# - `q`, `grad` (= dO) are (m, head_dim), `k`, `v` (n, head_dim), `lse`, `delta` (m,), `visible` (m, n) bool. Scores are
#   q kᵀ / √head_dim, and out is P v.
# - A pair that is not visible has P = 0, even if its score lies hundreds above lse.
# - A query that sees nothing has lse = −inf: it adds zeros.
# - An infinity in `grad` must stay visible: dv of the keys that its query sees must not be finite either, because loss
#   scaling (lab 05) looks for it.
# - float32 or float64, and the results keep the dtype. Summed over all tiles, they are the gradients.


# %% nbgrader={"grade": false, "grade_id": "backward", "locked": false, "schema_version": 3, "solution": true, "task": false}
def backward_tile(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    grad: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    visible: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What a tile adds to the gradients of q, k and v."""
    ### BEGIN SOLUTION
    scale = q.shape[1] ** -0.5
    scores = (q @ k.T * scale).masked_fill(~visible, -math.inf)
    p = torch.exp(scores - torch.where(lse == -math.inf, 0.0, lse)[:, None])
    ds = p * (grad @ v.T - delta[:, None])
    return ds @ k * scale, ds.T @ q * scale, p.T @ grad
    ### END SOLUTION


# %% tags=["setup"] nbgrader={"grade": false, "grade_id": "setup_backward", "locked": true, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
# What the checks of exercise 6 share: a tile of two queries and three keys.
TILE = {
    "q": [[1, 0, 2, 0], [0, 1, 0, -1]],
    "k": [[1, 1, 0, 0], [0, 2, 1, 0], [1, 0, 0, 1]],
    "v": [[1, 0, 0, 2], [0, 1, 3, 0], [2, 0, 1, 1]],
    "grad": [[1, 0, 1, 0], [0, 2, 0, 1]],
    "lse": [3, 2],
    "delta": [1, 0.5],
    "visible": [[1, 1, 1], [1, 1, 1]],
}


def tile_of(dtype=torch.float64, **changes):
    """The tile's tensors, some of them changed."""
    tensors = [torch.tensor(value, dtype=dtype) for value in (TILE | changes).values()]
    return [*tensors[:6], tensors[6].bool()]


def gradients(function, tile):
    """The (dq, dk, dv) of a tile, whose arguments stay as they are."""
    before = [tensor.tolist() for tensor in tile]
    results = function(*map(inout, tile))
    after = [tensor.tolist() for tensor in tile]
    check.equal(str(after), str(before), what="the arguments afterwards")
    for name, result, like in zip(("dq", "dk", "dv"), results, tile[:3], strict=True):
        check.dtype(result, like.dtype, what=name)
        check.shape(result, tuple(like.shape), what=f"{name} of a tile")
    return dict(zip(("dq", "dk", "dv"), results, strict=True))


# %% nbgrader={"grade": true, "grade_id": "backward_test_values", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("backward", "what a tile adds to the gradients", part="values", hidden="other sizes, tiles and masks"):

    def tile_check(expected, case, tile, fine=1e-8):
        results = gradients(backward_tile, tile)
        no_delta = gradients(backward_tile, [*tile[:5], torch.zeros_like(tile[5]), tile[6]])
        for name, right in expected.items():
            cause, right = "", wide(right)
            if name != "dv" and tile[0].shape[1] == 4 and alike(results[name], 2 * right):
                cause = "without 1 / √head_dim: the scores are q kᵀ / √head_dim, so their gradient passes through it"
            elif name != "dv" and torch.equal(results[name], no_delta[name]):
                cause = "delta makes no difference to these values"
            check.close(results[name], right, rtol=fine, atol=fine, what=f"{name} of {case}", hint=cause)

    one = torch.ones(1, 1).double()
    two = torch.zeros(2, 1).double(), wide([[1.0], [3.0]])
    example = [one, *two, 4 * one, math.log(2) * one[0], 8 * one[0], torch.ones(1, 2, dtype=torch.bool)]
    tile_check({"dv": [[2.0], [2.0]], "dk": [[-2.0], [2.0]], "dq": [[0.0]]}, "the worked example", example)
    whole = {
        "dv": [[0.274068619, 0.662997921, 0.274068619, 0.331498960], [0.451862762, 1.093098775, 0.451862762, 0.546549387],
               [0.274068619, 0.243903305, 0.274068619, 0.121951652]],
        "dk": [[-0.198955011, 0.020213423, -0.397910022, -0.020213423], [0.123841403, 0.033326300, 0.247682806, -0.033326300],
               [0.075113608, -0.053539723, 0.150227216, 0.053539723]],
        "dq": [[-0.123841403, 0.048727795, 0.123841403, 0.075113608], [-0.033326300, 0.086866024, 0.033326300, -0.053539723]],
    }  # fmt: skip
    own = {"lse": [1.794376769418, 1.604130605337], "delta": [2.451862761878, 1.878048347690]}
    tile_check(whole, "2 queries and 3 keys, in one tile", tile_of(**own))
    part = {
        "dv": [[0.082084999, 0.446260320, 0.082084999, 0.223130160], [0.135335283, 0.735758882, 0.135335283, 0.367879441],
               [0.082084999, 0.164169997, 0.082084999, 0.082084999]],
        "dk": [[0.0, 0.167347620, 0.0, -0.167347620], [0.135335283, 0.275909581, 0.270670566, -0.275909581],
               [0.082084999, 0.020521250, 0.164169997, -0.020521250]],
        "dq": [[0.082084999, 0.270670566, 0.135335283, 0.082084999], [0.187868870, 0.719166782, 0.275909581, 0.020521250]],
    }  # fmt: skip
    tile_check(part, "2 queries and 3 of their keys, the others in other tiles", tile_of())
    tile_check(part, "the same in float32", tile_of(torch.float32), fine=1e-5)
    hidden = {
        "dv": [[0.082084999, 0.446260320, 0.082084999, 0.223130160], [0.0, 0.735758882, 0.0, 0.367879441], [0.0] * 4],
        "dk": [[0.0, 0.167347620, 0.0, -0.167347620], [0.0, 0.275909581, 0.0, -0.275909581], [0.0] * 4],
        "dq": [[0.0] * 4, [0.167347620, 0.719166782, 0.275909581, 0.0]],
    }
    tile_check(hidden, "three hidden pairs", tile_of(visible=[[1, 0, 0], [1, 1, 0]]))
    ### BEGIN HIDDEN TESTS

    def sums_check(queries, keys, width, block_m, block_n, causal, seed):
        """Sums over all tiles against autograd."""
        q, k, v, grad = (
            seeded(rows, width, seed=seed + i).double() for i, rows in enumerate((queries, keys, keys, queries))
        )
        visible = band(queries, keys, last=keys - queries if causal and keys >= queries else None)
        out, lse = exact(q, k, v, visible)
        delta = (grad * out).sum(1)
        inputs = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
        scores = (inputs[0] @ inputs[1].T / width**0.5).masked_fill(~visible, -1e30)
        result = (scores.softmax(1) * visible) @ inputs[2]
        expected = dict(zip(("dq", "dk", "dv"), torch.autograd.grad(result, inputs, grad), strict=True))
        sums = {name: torch.zeros_like(right) for name, right in expected.items()}
        for i in range(0, queries, block_m):
            for j in range(0, keys, block_n):
                rows, columns = slice(i, i + block_m), slice(j, j + block_n)
                tile = [q[rows], k[columns], v[columns], grad[rows], lse[rows], delta[rows], visible[rows, columns]]
                for name, part in gradients(backward_tile, [tensor.clone() for tensor in tile]).items():
                    sums[name][columns if name != "dq" else rows] += part
        case = f"{queries} queries, {keys} keys, {'causal' if causal else 'no mask'}, tiles {block_m} × {block_n}"
        for name, total in sums.items():
            check.close(total, expected[name], rtol=1e-9, atol=1e-9, what=f"{name}, summed over all tiles, of {case}")

    for seed in range(6):
        sums_check(*(int(n) for n in check.rng(seed).integers(1, 20, 5)), seed % 2 == 0, seed)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "backward_test_edges", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check(
    "backward",
    "hidden pairs, queries that see nothing, and infinities",
    part="edges",
    hidden="the same at other places",
):

    def edge_check(expected, case, hint, tile):
        for name, result in gradients(backward_tile, tile).items():
            cause = hint if result.isnan().any() else ""
            check.close(
                result,
                wide(expected[name]),
                rtol=1e-5,
                atol=1e-5,
                what=f"{name} of {case}",
                hint=cause,
            )

    pair = {
        "dv": [[0.082084999, 0.446260320, 0.082084999, 0.223130160], [0.0, 0.735758882, 0.0, 0.367879441], [0.0] * 4],
        "dk": [[0.0, 0.167347620, 0.0, -0.167347620], [0.0, 0.275909581, 0.0, -0.275909581], [0.0] * 4],
        "dq": [[0.0] * 4, [0.167347620, 0.719166782, 0.275909581, 0.0]],
    }
    high = {"k": [[1, 1, 0, 0], [0, 2, 1, 0], [1600, 0, 0, 0]], "visible": [[1, 0, 0], [1, 1, 0]]}
    for dtype in (torch.float32, torch.float64):
        edge_check(
            pair,
            f"hidden scores 797 above lse, {name_of(dtype)}",
            "NaN: 0 · ∞, because exp(797) overflows",
            tile_of(dtype, **high),
        )
    blind = {
        "dv": [[0.0, 0.446260320, 0.0, 0.223130160], [0.0, 0.735758882, 0.0, 0.367879441], [0.0, 0.164169997, 0.0, 0.082084999]],
        "dk": [[0.0, 0.167347620, 0.0, -0.167347620], [0.0, 0.275909581, 0.0, -0.275909581], [0.0, 0.020521250, 0.0, -0.020521250]],
        "dq": [[0.0] * 4, [0.187868870, 0.719166782, 0.275909581, 0.020521250]],
    }  # fmt: skip
    unseen = {"lse": [-math.inf, 2], "delta": [0, 0.5], "visible": [[0, 0, 0], [1, 1, 1]]}
    edge_check(blind, "a query that sees nothing", "NaN: −inf − (−inf) where a query sees nothing", tile_of(**unseen))
    for depth, lse in ((-10_000.0, -19_999.306852819440), (-1e9, -1_999_999_999.306852819)):
        low = {
            "q": [[4, 0, 0, 0], [4, 0, 0, 0]],
            "k": [[depth, 1, 0, 0], [depth, 0, 0, 1], [depth, 0, 0, 0]],
            "lse": [lse, lse],
            "delta": [2, 2],
            "visible": [[1, 1, 0], [1, 1, 0]],
        }
        halves = {
            "dv": [[0.5, 1.0, 0.5, 0.5], [0.5, 1.0, 0.5, 0.5], [0.0] * 4],
            "dk": [[-1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0] * 4],
            "dq": [[0.0, -0.25, 0.0, 0.25], [0.0] * 4],
        }
        cause = "NaN: hide with −∞, not with a finite number, and subtract lse before the exponential"
        edge_check(halves, f"two visible keys and a hidden one that all score {2 * depth:g}", cause, tile_of(**low))
    nothing = {"lse": [-math.inf, -math.inf], "delta": [0, 0], "visible": [[0, 0, 0], [0, 0, 0]]}
    zeros = {"dv": [[0.0] * 4] * 3, "dk": [[0.0] * 4] * 3, "dq": [[0.0] * 4] * 2}
    edge_check(
        zeros, "a tile of hidden pairs only", "NaN: −inf − (−inf) where a query sees nothing", tile_of(**nothing)
    )
    overflowed = {
        "grad": [[1, 0, 1, 0], [0, math.inf, 0, 1]],
        "delta": [1, math.inf],
        "visible": [[1, 1, 1], [1, 1, 0]],
    }
    dv = gradients(backward_tile, tile_of(torch.float32, **overflowed))["dv"]
    check.equal(
        dv[:2].isfinite().all(1).tolist(),
        [False, False],
        what="whether all of dv is finite, for the two keys that a query with an infinite gradient sees",
        hint="the infinity is hidden, and loss scaling would not see it",
    )
    faint = overflowed | {"lse": [3, 1000]}
    dv = gradients(backward_tile, tile_of(torch.float32, **faint))["dv"]
    check.equal(
        dv[:2].isfinite().all(1).tolist(),
        [False, False],
        what="whether all of dv is finite, for two keys that the query sees with scores far below its lse",
        hint="P is so small that it is rounded to 0, and 0 · ∞ is NaN: let it show",
    )
    ### BEGIN HIDDEN TESTS
    for seed in range(4):
        rng = check.rng(seed)
        q, k, v, grad = (seeded(rows, 8, seed=seed + i) for i, rows in enumerate((9, 13, 13, 9)))
        k[7:] *= 3000.0
        visible = band(9, 13, last=6) & torch.tensor(rng.random((9, 13)) < 0.7)
        visible[:, 7:] = False
        visible[seed] = False
        out, lse = exact(q, k, v, visible)
        tile = [q, k, v, grad, lse.float(), (grad.double() * out).sum(1).float(), visible]
        p = torch.where(visible, (q.double() @ k.double().T / 8**0.5 - lse.clamp(min=-1e30)[:, None]).exp(), 0.0)
        ds = p * (grad.double() @ v.double().T - (grad.double() * out).sum(1)[:, None]) / 8**0.5
        right = {"dq": ds @ k.double(), "dk": ds.T @ q.double(), "dv": p.T @ grad.double()}
        for name, result in gradients(backward_tile, tile).items():
            check.close(result, right[name], rtol=1e-4, atol=1e-4, what=f"{name} with high hidden scores, seed {seed}")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
term("logsumexp")
hint(
    "backward",
    "Compute the scores of the tile, P from `lse`, then dP and dS, all of shape (m, n). out = P v gives dv as for any matmul, S = q kᵀ / √head_dim gives dq and dk.",
    "Set hidden scores to −∞ before the exponential. A factor of 0 after it cannot undo an overflow.",
    "For a query with lse = −∞ the difference of two infinities is NaN: subtract a finite number there.",
)
debrief(
    "backward",
    """Five products instead of two: q kᵀ again, and four for dP, dv, dq and dk. There is still no table. `delta` replaces a sum over the whole
    row by one number per query, so that tiles are independent, just as lse does for the softmax.

    dq sums over keys, dk and dv over queries. A kernel that owns queries can keep dq in registers, but has to add dk and dv with
    atomics, or leave them to a second kernel that owns keys and computes scores and dP again, which makes seven products in all. The library
    does the second; the deep dives run it.""",
    parts=("values", "edges"),
)

# %% [markdown]
# ## In practice: FlexAttention, and what limits attention now
#
# At work you call `torch.nn.functional.scaled_dot_product_attention`, which picks a fused kernel. For other masks,
# **FlexAttention** takes the mask as a Python function of indices, and generates a kernel. `create_block_mask` finds out once
# which tiles hold a visible pair; the kernel visits only those, and masks only the partly visible ones. It is exercise 1
# for any mask; the next cell does it for a window.
#
# On Blackwell the tensor cores are 2.25 times as fast as on Hopper, but exponentials are not. So FlashAttention-4 ([Zadouri et
# al. 2026](https://arxiv.org/abs/2603.05451)) computes a part of them as polynomials, on other units, and corrects the old sums only
# if the maximum has risen enough to matter. The table of scores was the first limit. Its softmax is the next.

# %% tags=["demo"] jupyter={"source_hidden": true}
import warnings

from torch.nn.attention.flex_attention import create_block_mask, flex_attention

predict("flex", "512 tokens, a window of 200, tiles of 64 × 64: how many tiles does FlexAttention visit?", unit="tiles")


def in_window(batch, head, i, j):
    return (j <= i) & (i - j < 200)


mask = create_block_mask(in_window, None, None, 512, 512, device="cpu", BLOCK_SIZE=64)
partial, whole = (
    int(count.sum()) if count is not None else 0 for count in (mask.kv_num_blocks, mask.full_kv_num_blocks)
)
q, k, v = (seeded(1, 2, 512, 64, seed=i) for i in range(3))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # uncompiled it makes the table; torch.compile(flex_attention) generates the kernel
    out = flex_attention(q, k, v, block_mask=mask)
error = float((out - exact(q, k, v, band(512, 512, last=0, first=-199))[0]).abs().max())
show.against_prediction("flex", partial + whole, unit="tiles", source="read from the block mask")
with reveal("flex"):
    show.table(
        [
            ["tiles that hold a visible pair, of 64", 30],
            ["partly visible tiles of the block mask", partial],
            ["whole tiles of the block mask", whole],
            ["largest difference from float64", f"{error:.1e}"],
        ],
        ["window of 200, 512 tokens, tiles of 64 × 64", ""],
    )

# %% [markdown]
# ## Your pieces at work
#
# A prompt's keys may lie on four GPUs (ring attention), or a few queries' keys may be split over four programs (split-K, lab 15).
# Both run your `flash_head` on each shard, then your `merge` and `finish`: an (out, lse) is a summary with m = lse, s = 1 and a = out.

# %% tags=["demo"]
q, k, v = attention.drifting(64, 512)  # each query prefers the keys at its own place
stand_ins = {
    "one_head": {"flash_head": attention.library_head},
    "merging": {"merge": attention.library_merge, "finish": attention.library_finish},
}
if parts := together("one_head", "merging", library=stand_ins):
    shards = [
        parts.flash_head(q, k_shard, v_shard, 32, 32) for k_shard, v_shard in zip(k.chunk(4), v.chunk(4), strict=True)
    ]
    total, *others = (Summary(lse, torch.ones_like(lse), out) for out, lse in shards)
    for other in others:
        total = parts.merge(total, other)
    out, lse = parts.finish(total)

    whole, logs = attention.library_head(q, k, v, 32, 32)
    print(f"largest difference from the library's kernel on all 512 keys: {(out - whole).abs().max():.1e}")
    show.figure(
        attention.draw_shards([(part - logs).exp() for _, part in shards]),
        "The share of each shard of keys in the softmax of each query",
    )
calibration()

# %% [markdown]
# ## What to remember
#
# - The table of scores is the problem, so do not make it. The arithmetic stays, but memory no longer limits it.
# - (m, s, a) is a mergeable summary of any set of keys: loops, split keys and rings of GPUs share one algebra.
# - Traffic stays quadratic, 2·N²·d / block_m elements. *Memory* becomes linear. Say which of the two you mean.
# - A tile that is skipped is saved, a tile that is masked is not. Values cannot show the difference.
# - −inf − (−inf) is NaN. Ask what your kernel does with a query that sees nothing.
# - Backward computes the probabilities again, from one saved number per query.
#
# The deep dives judge seven claims, and cover attention to pairs. Next: `05_mixed_precision`.
#
# ## In your own words
#
# A colleague reads that FlashAttention has "linear memory" and plans to serve prompts of a million tokens with it on one GPU. What
# stays linear, what does not, and which of exercise 2's numbers would you show them? Do the sums for one head of head_dim 128, and for
# a model with 32 layers and 8 key heads in BF16.

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# *Your answer: what is linear, what is quadratic, and the numbers.*
