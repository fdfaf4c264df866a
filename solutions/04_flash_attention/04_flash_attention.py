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

import numpy as np
import torch
import triton
import triton.language as tl
from threeloops.inner import interpreter
from threeloops.lab import (
    animate,
    calibration,
    check,
    debrief,
    figure,
    hint,
    inout,
    palette,
    predict,
    replay,
    reveal,
    show,
    term,
)
from threeloops.lab.checking.wall import arguments_after

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


# What the test cells and pictures share. Nothing here loops over tiles: it looks at every pair of query and key.


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def seeded(*shape, seed=0, dtype=torch.float32):
    """Normally distributed values, the same in every run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def pairs(queries, keys, causal=False, window=None):
    """(queries, keys): True where the query sees the key. The queries are the last of the keys."""
    i, j = torch.arange(queries, dtype=torch.int32), torch.arange(keys, dtype=torch.int32)
    distance = i[:, None] + (keys - queries) - j[None, :]
    visible = torch.ones(queries, keys, dtype=torch.bool)
    if causal or window is not None:
        visible &= distance >= 0
    return visible if window is None else visible & (distance < window)


def visits(visible, block_m, block_n):
    """For each tile of keys, how many blocks of queries have a query that sees one of its keys."""
    seen = torch.nn.functional.max_pool2d(visible[None].float(), (block_m, block_n), ceil_mode=True)[0]
    return seen.sum(0).int().tolist()


def exact(q, k, v, visible):
    """Output and logsumexp in float64; zeros and −inf for a query that sees nothing."""
    scores = (q.double() @ k.double().transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~visible, -math.inf)
    lse = scores.logsumexp(-1)
    weights = torch.where(visible, (scores - lse.clamp(min=-1e30)[..., None]).exp(), 0.0)
    return weights @ v.double(), lse


def alike(got, expected, tolerance=1e-3):
    """Whether an answer is what a known slip would give."""
    return torch.is_tensor(got) and got.shape == expected.shape and torch.allclose(got.double(), expected, 0, tolerance)


def not_rescaled(q, k, v, visible, block_n):
    """What comes out if sum and vector are not corrected when the maximum rises."""
    scores = (q.double() @ k.double().transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill(~visible, -math.inf)
    tiles = [scores[..., i : i + block_n].amax(-1) for i in range(0, scores.shape[-1], block_n)]
    highest = torch.stack(tiles, -1).cummax(-1).values.repeat_interleave(block_n, -1)[..., : scores.shape[-1]]
    weights = torch.where(visible, (scores - highest.clamp(min=-1e30)).exp(), 0.0)
    return weights @ v.double() / weights.sum(-1, keepdim=True)


def cause_of(got, q, k, v, visible, block_n, others=()):
    """The slip that an output shows, if it is a known one; `others` yields (cause, output) of this exercise."""
    if not torch.is_tensor(got) or got.shape != q.shape:
        return ""
    if got.isinf().any() and q.dtype == torch.float16:
        return "∞: a or s went beyond 65,504, float16's largest number; keep them in float32, and divide in it"
    if got.isnan().any():
        blind = ~visible.any(-1)
        if blind.any() and not got[..., ~blind, :].isnan().any():
            return "only queries that see nothing are NaN: 0 / 0, or −inf − (−inf)"
        return "NaN: −inf − (−inf) where a query has seen nothing yet, masked lanes loaded without `other`, or rows that no program wrote"
    more, width = -k.shape[-2] % block_n, q.shape[-1]
    padded = [torch.nn.functional.pad(each, (0, 0, 0, more)) for each in (k, v)]
    known = [
        *others,
        ("the scores are not divided by √head_dim", exact(q * math.sqrt(width), k, v, visible)[0]),
        ("the old sum and vector are not multiplied by exp(old m − new m)", not_rescaled(q, k, v, visible, block_n)),
    ]
    if more:
        beyond = torch.nn.functional.pad(visible, (0, more), value=True)
        known.append(("keys beyond the end count with a score of 0: expected −inf", exact(q, *padded, beyond)[0]))
    return next((cause for cause, output in known if alike(got, output)), "")


def require_out(got, q, k, v, visible, block_n, case, others=()):
    check.dtype(got, q.dtype, what="out")
    rtol, atol = (1e-4, 1e-5) if q.dtype == torch.float32 else (2e-3, 1e-3)
    expected = exact(q, k, v, visible)[0]
    right = torch.is_tensor(got) and got.shape == expected.shape and torch.allclose(got.double(), expected, rtol, atol)
    cause = "" if right else cause_of(got, q, k, v, visible, block_n, others)
    check.close(got, expected, rtol=rtol, atol=atol, what=f"out of {case}", hint=cause)


def require_lse(got, q, k, v, visible, case):
    check.dtype(got, torch.float32, what="lse")
    expected = exact(q, k, v, visible)[1]
    check.shape(got, tuple(expected.shape), what=f"lse of {case}")
    blind = expected == -math.inf
    check.equal(
        (got == -math.inf).tolist(), blind.tolist(), what=f"whether lse is −inf, {case}", hint="where nothing is seen"
    )
    got, expected = got[~blind], expected[~blind]
    cause = ""
    if alike(got, expected / math.log(2)):
        cause = "that is the logarithm to base two"
    elif alike(got, expected, 5e-3):
        cause = "off by about a rounding to 16 bits: keep scores, m and s in float32"
    check.close(got, expected, rtol=3e-6, atol=3e-6, what=f"lse of {case}", hint=cause)


def require_work(run, q, k, v, visible, block_m, block_n, case, heads=1, lse=True):
    """Check the FLOPs, the requested and written bytes, and the elements that a program holds, for visible tiles only.

    The values of all heads have to be right first.
    """
    if q.ndim == 4:
        k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], 1) for each in (k, v))
    out, of_scores = exact(q, k, v, visible)
    run.require((out, of_scores) if lse else out, what=("(out, lse)" if lse else "out") + f", {case}")
    total, (queries, keys), width, size = run.traffic.total, visible.shape, q.shape[-1], q.element_size()
    counts = visits(visible, block_m, block_n)
    visited, blocks = sum(counts), -(-queries // block_m)
    rows = sum(count * min(block_n, keys - tile * block_n) for tile, count in enumerate(counts))
    each = heads * 4 * block_m * block_n * width
    done, every = total.dot_flops / each, blocks * -(-keys // block_n)
    cause = f"that is {done:g} tiles per head, {visited} of {every} are visible" if done == int(done) else ""
    if done == every > visited and total.requested_loaded == heads * (queries + 2 * blocks * keys) * width * size:
        cause = f"that is all {every} tiles: hidden ones are masked, but not skipped"
    check.equal(len(run.launches), 1, what=f"launches, {case}")
    check.equal(run.torch_bytes, 0, what=f"bytes that PyTorch moves, {case}", hint="torch.empty, and no zeros")
    tile = max(block_m * block_n, block_m * width, block_n * width)
    check.true(
        total.largest_tile <= tile,
        f"{case}: a program works on a tile of {total.largest_tile:,} elements, expected at most {tile:,}",
    )
    check.equal(total.dot_flops, visited * each, what=f"FLOPs of the matrix products, {case}", hint=cause)
    check.equal(
        total.tf32_flops,
        0,
        what=f"FLOPs in TF32, {case}",
        hint='without input_precision="ieee" a product of float32 is rounded to TF32',
    )
    check.equal(
        total.requested_loaded,
        heads * (queries + 2 * rows) * width * size,
        what=f"bytes asked for, {case}",
        hint="the queries once, and the existing rows of K and V of each visible tile once",
    )
    check.equal(
        total.requested_stored,
        heads * queries * (width * size + 4 * lse),
        what=f"bytes written, {case}",
        hint="out and lse, once each" if lse else "out, once",
    )
    check.true(
        total.most_held <= 32 * tile,
        f"{case}: a program holds {total.most_held:,} elements at one time in all its tiles, expected at most 32 · {tile:,}; usually the scores of every tile are kept until the end",
    )
    check.equal([f.message for f in run.traffic.findings], [], what=f"what the meter objects to, {case}")


def require_compiled(run):
    """It compiles for an H100, and fits."""
    for code in run.code("sm_90"):
        check.true(code.fits, f"{code.name}, compiled for an H100, does not fit: {', '.join(code.misfits)}")


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
    given = [each.half().expand(*lead, 16, 16).contiguous() for each in (q, torch.eye(16), v)]
    run = replay(launcher, *given, *args)
    out = run.outputs[0] if isinstance(run.outputs, tuple) else run.outputs
    left = float(out.double()[..., row, row].abs().max())
    check.true(
        left < 2e-5,
        f"float16: where 1 · (−w) + w · 1 should cancel, {left:.1e} is left: round the probabilities to the dtype of v, and multiply in it",
    )


# %% tags=["demo", "opening"] jupyter={"source_hidden": true}
def draw_question():
    fig, axes = figure(width=9.5, height=3.6)
    for left, bottom, width, height, name in (
        (0.6, 0.4, 0.25, 3.0, "Q"),
        (1.6, 3.7, 3.0, 0.25, "K"),
        (5.2, 0.4, 0.25, 3.0, "V"),
        (6.6, 0.4, 0.25, 3.0, "out"),
    ):
        axes.bar([left + width / 2], [height], width, bottom=bottom, color=palette.blue)
        axes.text(left - 0.1, bottom + height / 2, name, ha="right", va="center", weight="bold")
    axes.bar([3.1], [3.0], 3.0, bottom=0.4, color="none", edgecolor=palette.vermillion, linewidth=2)
    axes.text(3.1, 1.9, "4,096 × 4,096 scores\nMiB: ?", ha="center", va="center", color=palette.vermillion)
    axes.text(7.4, 2.4, "written, read, written again,\nread once more:\ndoes it have to exist?", va="center")
    axes.set(xlim=(0, 11), ylim=(0.2, 4.1), xticks=[], yticks=[], title="One head of attention, 4,096 tokens")
    axes.grid(visible=False)
    for side in axes.spines.values():
        side.set_visible(False)
    return fig


show.figure(draw_question(), "narrow strips Q, K, V and out around a huge table of scores with a question mark")

# %% [markdown]
# FlashAttention ([Dao et al. 2022](https://arxiv.org/abs/2205.14135), [Dao 2023](https://arxiv.org/abs/2307.08691); for
# Hopper [Shah et al. 2024](https://arxiv.org/abs/2407.08608)) never makes the table. You will count what it moves, find the
# algebra behind it, write the kernel in four steps, and write a piece of its backward pass.
#
# ## 1 · Which tiles are visited
#
# A program owns a block of `block_m` queries. It walks along the keys in **tiles** of `block_n`, and keeps its part of the
# output in registers until the end.
#
# A **causal** mask hides later keys. If there are more keys than queries, as in decoding, the queries are the *last* ones:
# query *i* sees key *j* where j ≤ i + (keys − queries). With a **sliding window** it sees only the last *w* of those keys,
# where also j > i + (keys − queries) − w. A tile that no query of the block sees need not be loaded. A partly visible one
# is computed in full, and masked.
#
# *Worked example.* 6 causal queries and 8 keys, blocks of 4 queries and tiles of 2 keys. Query 0 sees keys 0 to 2, query 3
# sees keys 0 to 5: the first block visits tiles 0, 1 and 2, which is (0, 3). Queries 4 and 5 see up to key 7: (0, 4). With
# a window of 3, query 4 sees keys 4 to 6 and query 5 keys 5 to 7, so the second block visits (2, 4).
#
# ### Exercise 1 (10 points)
#
# `visible_tiles(p: Problem, block_m, block_n) -> list[tuple[int, int]]`: for each block of queries, from the first, the
# pair (first, end) of tile numbers: tiles first … end − 1 are visited.
#
# - A tile is visited **if and only if** it holds a key that exists and that at least one existing query of the block sees.
#   If there is none: (0, 0).
# - `p.causal` and `p.window` (an int of at least 1, or None) are the rules above. A window implies the causal rule.


# %% nbgrader={"grade": false, "grade_id": "tiles", "locked": false, "schema_version": 3, "solution": true, "task": false}
def visible_tiles(p: Problem, block_m: int, block_n: int) -> list[tuple[int, int]]:
    """First and end of the visited tiles of keys, for each block of queries."""
    ### BEGIN SOLUTION
    found = []
    for top in range(0, p.queries, block_m):
        bottom = min(top + block_m, p.queries) - 1
        offset = p.keys - p.queries
        low, high = 0, p.keys
        if p.causal or p.window is not None:
            high = bottom + offset + 1
        if p.window is not None:
            low = max(0, top + offset - p.window + 1)
        found.append((low // block_n, -(-high // block_n)) if low < high else (0, 0))
    return found
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "tiles_test_mask", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("tiles", "tiles without a mask and with a causal one", part="mask", hidden="other sizes"):

    def tiles_check(expected, slips, p, block_m, block_n):
        got = visible_tiles(p, block_m, block_n)
        cause = next((words for words, tiles in slips.items() if got == tiles), "")
        kind = f"window {p.window}" if p.window else "causal" if p.causal else "no mask"
        case = f"{p.queries} queries, {p.keys} keys, {kind}, blocks {block_m} × {block_n}"
        got = [tuple(each) if isinstance(each, list) else each for each in got] if isinstance(got, list) else got
        check.equal(got, expected, what=f"tiles of {case}", hint=cause)

    tiles_check([(0, 4), (0, 4)], {}, Problem(6, 8, 64), 4, 2)
    tiles_check(
        [(0, 3), (0, 4)],
        {
            "these are the tiles of the first queries: the queries are the last of the keys": [(0, 2), (0, 3)],
            "these are all tiles": [(0, 4), (0, 4)],
        },
        Problem(6, 8, 64, causal=True),
        4,
        2,
    )
    tiles_check(
        [(0, 3), (0, 4)],
        {
            "these are the tiles of the first queries: the queries are the last of the keys": [(0, 2), (0, 3)],
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
        {"these are the tiles of the first queries: the queries are the last of the keys": [(0, 1)]},
        Problem(3, 100, 64, causal=True),
        16,
        64,
    )
    tiles_check(
        [(0, 0), (0, 0), (0, 1), (0, 2), (0, 3)],
        {
            "these are the tiles of the first queries: the queries are the last of the keys": [(0, 1), (0, 2), (0, 3)],
            "these are all tiles": [(0, 3), (0, 3), (0, 3), (0, 3), (0, 3)],
        },
        Problem(20, 12, 64, causal=True),
        4,
        4,
    )
    tiles_check(
        [(0, 0), (0, 2), (0, 4), (0, 4)],
        {
            "these are the tiles of the first queries: the queries are the last of the keys": [(0, 2), (0, 4)],
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
        expected = ranges(pairs(queries, keys, seed % 4 > 0), block_m, block_n)
        tiles_check(expected, {}, Problem(queries, keys, 16, causal=seed % 4 > 0), block_m, block_n)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "tiles_test_window", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("tiles", "tiles of a sliding window", part="window", hidden="other sizes and windows"):

    def window_check(expected, slips, queries, keys, window, block_m, block_n, causal=False):
        got = visible_tiles(Problem(queries, keys, 16, causal=causal, window=window), block_m, block_n)
        cause = next((words for words, tiles in slips.items() if got == tiles), "")
        if {each[1] for each in got} == {-(-keys // block_n)} != {each[1] for each in expected}:
            cause = "every block goes on to the last tile: a window implies the causal rule, with causal=False too"
        got = [tuple(each) if isinstance(each, list) else each for each in got]
        case = f"{queries} queries, {keys} keys, window {window}, blocks {block_m} × {block_n}"
        check.equal(got, expected, what=f"tiles of {case}", hint=cause)

    window_check(
        [(0, 3), (2, 4)], {"that is a window of 4, one key more than asked for": [(0, 3), (1, 4)]}, 6, 8, 3, 4, 2
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
        expected = ranges(pairs(queries, keys, True, window), block_m, block_n)
        window_check(expected, {}, queries, keys, window, block_m, block_n, seed % 2 == 0)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
term("causal mask")
hint(
    "tiles",
    "For one block, find the range of keys that at least one of its queries sees. The end comes from its last existing query, the beginning, with a window, from its first.",
    "Keys low … high − 1 lie in tiles low // block_n … ⌈high / block_n⌉ − 1. The range is empty if high ≤ low, for instance for early queries when there are more queries than keys.",
)
debrief(
    "tiles",
    """Two queries decide: the first of the block sees furthest back, the last sees furthest ahead. Everything between the two
    ends is visited, because the windows of neighbouring queries overlap, so a loop with two bounds is enough.

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
# tiles each, (0, 4) and (0, 4). Loaded are 256 rows of Q and twice 256 rows of K and of V, 1,280 rows of 128 bytes or
# 163,840 bytes. Stored are 256 rows of 128 bytes and one float32 per query (its logsumexp, see section 3), 33,792 bytes. Each of the 8 tiles takes
# two products, 4 · 128 · 64 · 64 FLOPs.
#
# ### Exercise 2 (14 points)
#
# `fused_traffic(p, tiles, block_m, block_n) -> Traffic` of all batches and heads; `tiles` is what exercise 1 gives:
#
# - `loaded`: every query row once, and for each visited tile its **existing** rows of K and of V; for every query head
#   anew;
# - `stored`: the output, and one float32 per query row;
# - `dot_flops`: 4 · block_m · block_n · head_dim per visited tile, masked or not.
#
# An element has `p.bytes_per_element` bytes. All results are ints.
#
# `choose_blocks(p, options: list[Option], chip: Chip) -> tuple[int, int]`: the (block_m, block_n) of one of the options.
# Its tiles of q, k and v, block_m + 2 · block_n rows, must fit into `chip.room` bytes, and `time_us(traffic, block_m, block_n, chip)`
# must be at most 1.05 times that of the best option that fits. At least one does.


# %% nbgrader={"grade": false, "grade_id": "blocks", "locked": false, "schema_version": 3, "solution": true, "task": false}
def fused_traffic(p: Problem, tiles: list[tuple[int, int]], block_m: int, block_n: int) -> Traffic:
    """What a fused kernel asks for."""
    ### BEGIN SOLUTION
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


def choose_blocks(p: Problem, options: list[Option], chip: Chip) -> tuple[int, int]:
    """The blocks of the fastest option that fits."""
    ### BEGIN SOLUTION
    row = p.head_dim * p.bytes_per_element
    fitting = [each for each in options if (each.block_m + 2 * each.block_n) * row <= chip.room]

    def time_of(each):
        traffic = fused_traffic(p, each.tiles, each.block_m, each.block_n)
        return time_us(traffic, each.block_m, each.block_n, chip)

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
            value, known = getattr(got, name), slips.get(name, {})
            few = ["not all batches and heads are counted"] * any(value == right // share for share in shares)
            hints[name] = ", or ".join([known[value], *few] if value in known else few)
        if got == Traffic(*expected):
            hints = ""
        check.equal(got, Traffic(*expected), what=f"traffic of {case}", hint=hints)

    traffic_check(
        (163840, 33792, 16777216),
        {
            "loaded": {
                98304: "that reads K and V once: each block of queries reads its tiles, or that is K or V, not both"
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
        visible = pairs(queries, keys, p.causal, p.window)
        counts, each, width = visits(visible, block_m, block_n), batch * heads, 16 * p.bytes_per_element
        rows = sum(count * min(block_n, keys - tile * block_n) for tile, count in enumerate(counts))
        loaded, stored = each * (queries + 2 * rows) * width, each * queries * (width + 4)
        flops = each * sum(counts) * 64 * block_m * block_n
        traffic_check((loaded, stored, flops), {}, p, ranges(visible, block_m, block_n), block_m, block_n)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "blocks_test_choice", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("blocks", "blocks that fit and are fast", part="choice", hidden="other masks and chips"):

    def choice_check(p, options, *chips):
        """`options` maps blocks to tiles. Each chip comes with the µs of every option that fits."""
        row = p.head_dim * p.bytes_per_element
        kind = f"window {p.window}" if p.window else "causal" if p.causal else "no mask"
        for chip, times in chips:
            got = tuple(choose_blocks(p, [Option(*blocks, list(tiles)) for blocks, tiles in options.items()], chip))
            case = f"{p.queries} tokens, {kind}, head_dim {p.head_dim}, {chip}"
            check.true(got in options, f"{got}, expected the blocks of an option: {case}")
            check.true(
                got in times,
                f"blocks {got} need {(got[0] + 2 * got[1]) * row:,} bytes on the chip, expected at most {chip.room:,}: {case}",
            )
            found, least = times[got], min(times.values())
            check.true(
                found <= 1.0501 * least,  # the times have four digits
                f"blocks {got} take {found:.3g} µs, expected at most {1.05 * least:.3g}, 1.05 times the best: {case}",
            )
            check.note(f"{kind}, {p.queries} tokens", found, least, "µs")

    choice_check(
        Problem(512, 512, 64, causal=True),
        {
            (64, 16): [(0, 4), (0, 8), (0, 12), (0, 16), (0, 20), (0, 24), (0, 28), (0, 32)],
            (64, 32): [(0, 2), (0, 4), (0, 6), (0, 8), (0, 10), (0, 12), (0, 14), (0, 16)],
            (64, 64): [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (0, 6), (0, 7), (0, 8)],
            (64, 128): [(0, 1), (0, 1), (0, 2), (0, 2), (0, 3), (0, 3), (0, 4), (0, 4)],
            (128, 16): [(0, 8), (0, 16), (0, 24), (0, 32)],
            (128, 32): [(0, 4), (0, 8), (0, 12), (0, 16)],
            (128, 64): [(0, 2), (0, 4), (0, 6), (0, 8)],
            (128, 128): [(0, 1), (0, 2), (0, 3), (0, 4)],
        },
        (
            Chip(room=100_000, flops=1e14, bandwidth=1e13),
            {
                (64, 16): 1.51,
                (64, 32): 0.755,
                (64, 64): 0.3775,
                (64, 128): 0.4194,
                (128, 16): 1.678,
                (128, 32): 0.8389,
                (128, 64): 0.4194,
                (128, 128): 0.4194,
            },
        ),
        (
            Chip(room=100_000, flops=1e15, bandwidth=1e12),
            {
                (64, 16): 0.7229,
                (64, 32): 0.7229,
                (64, 64): 0.7229,
                (64, 128): 0.7885,
                (128, 16): 0.4608,
                (128, 32): 0.4608,
                (128, 64): 0.4608,
                (128, 128): 0.4608,
            },
        ),
    )
    choice_check(
        Problem(512, 512, 64, window=32),
        {
            (64, 16): [(0, 4), (2, 8), (6, 12), (10, 16), (14, 20), (18, 24), (22, 28), (26, 32)],
            (64, 32): [(0, 2), (1, 4), (3, 6), (5, 8), (7, 10), (9, 12), (11, 14), (13, 16)],
            (64, 64): [(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6), (5, 7), (6, 8)],
            (64, 128): [(0, 1), (0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (2, 4), (3, 4)],
            (128, 16): [(0, 8), (6, 16), (14, 24), (22, 32)],
            (128, 32): [(0, 4), (3, 8), (7, 12), (11, 16)],
            (128, 64): [(0, 2), (1, 4), (3, 6), (5, 8)],
            (128, 128): [(0, 1), (0, 2), (1, 3), (2, 4)],
        },
        (
            Chip(room=100_000, flops=1e14, bandwidth=1e13),
            {
                (64, 16): 0.4823,
                (64, 32): 0.2412,
                (64, 64): 0.1573,
                (64, 128): 0.2307,
                (128, 16): 0.7969,
                (128, 32): 0.3985,
                (128, 64): 0.2307,
                (128, 128): 0.2936,
            },
        ),
    )
    choice_check(
        Problem(256, 256, 64, causal=True, bytes_per_element=4),
        {
            (64, 16): [(0, 4), (0, 8), (0, 12), (0, 16)],
            (64, 32): [(0, 2), (0, 4), (0, 6), (0, 8)],
            (64, 64): [(0, 1), (0, 2), (0, 3), (0, 4)],
            (64, 128): [(0, 1), (0, 1), (0, 2), (0, 2)],
            (128, 16): [(0, 8), (0, 16)],
            (128, 32): [(0, 4), (0, 8)],
            (128, 64): [(0, 2), (0, 4)],
            (128, 128): [(0, 1), (0, 2)],
        },
        (Chip(room=40_000, flops=1e14, bandwidth=3e12), {(64, 16): 0.4194, (64, 32): 0.2097}),
    )
    choice_check(
        Problem(256, 256, 64),
        {(m, n): [(0, 256 // n)] * (256 // m) for m in (16, 32, 64, 128) for n in (16, 32, 64, 128)},
        (
            Chip(room=20_480, flops=1e15, bandwidth=1e12),
            {
                (16, 16): 1.115,
                (16, 32): 1.115,
                (16, 64): 1.115,
                (32, 16): 0.5908,
                (32, 32): 0.5908,
                (32, 64): 0.5908,
                (64, 16): 0.3287,
                (64, 32): 0.3287,
                (128, 16): 0.1976,
            },
        ),
    )
    ### BEGIN HIDDEN TESTS

    def ranges(visible, block_m, block_n):
        """First and end of the tiles that hold a key which a query of the block sees, for each block of queries."""
        seen = [(rows.any(0).nonzero()[:, 0] // block_n).tolist() for rows in visible.split(block_m)]
        return [(tiles[0], tiles[-1] + 1) if tiles else (0, 0) for tiles in seen]

    def choice_elsewhere(p, *chips):
        """The options of one problem, on several chips."""
        visible, options, traffic = pairs(p.queries, p.keys, p.causal, p.window), {}, {}
        row, count = p.head_dim * p.bytes_per_element, p.batch * p.heads
        for m, n in ((m, n) for m in (16, 32, 64, 128) for n in (16, 32, 64, 128)):
            options[m, n] = ranges(visible, m, n)
            rows = sum(min(end * n, p.keys) - first * n for first, end in options[m, n])
            loaded, stored = count * (p.queries + 2 * rows) * row, count * p.queries * (row + 4)
            visited = sum(end - first for first, end in options[m, n])
            traffic[m, n] = Traffic(loaded, stored, count * visited * 4 * m * n * p.head_dim)
        for chip in chips:
            fits = {(m, n): each for (m, n), each in traffic.items() if (m + 2 * n) * row <= chip.room}
            choice_check(p, options, (chip, {blocks: time_us(each, *blocks, chip) for blocks, each in fits.items()}))

    # All options of the visible cases, which show some of them
    fast = Chip(room=100_000, flops=1e14, bandwidth=1e13)
    choice_elsewhere(Problem(512, 512, 64, causal=True), fast, Chip(room=100_000, flops=1e15, bandwidth=1e12))
    choice_elsewhere(Problem(512, 512, 64, window=32), fast)
    small = Chip(room=13_000, flops=1e14, bandwidth=3e12)
    choice_elsewhere(Problem(256, 256, 64, causal=True, bytes_per_element=4), small)
    many = [Chip(room, *rates) for room in (12_288, 24_576, 40_000) for rates in ((1e14, 3e12), (1e15, 2e12))]
    choice_elsewhere(Problem(200, 200, 32, 2, 3, window=100), *many)
    choice_elsewhere(Problem(150, 250, 64, causal=True, bytes_per_element=4), *many)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "blocks",
    "Add up end − first over all blocks of queries for the tiles, and the rows of those tiles for the bytes.",
    "Only the last tile can stick out: min(end · block_n, keys) − first · block_n rows exist.",
    "Drop the options that do not fit, compute the time of each of the others, and take `min(…, key=…)`.",
)
N, D = 4096, 128
show.against_prediction("scores", N * N * 2 / 2**20, unit="MiB", source="model: counted")
show.against_prediction("kv_reads", N // 128, unit="times", source="model: counted")
BLOCKS = [16, 32, 64, 128, 256, 512]
with reveal("kv_reads"):
    plot, panels = figure(1, 2, width=11.5, height=3.6)
    for axes, title, naive, fused in (
        (panels[0], "every byte once (DRAM, a perfect cache)", [4 * N * D + 4 * N * N] * 6, [4 * N * D] * 6),
        (
            panels[1],
            "asked for by the programs (DRAM and caches)",
            [3 * N * N * D // m + 2 * N * D + 4 * N * N for m in BLOCKS],  # q kᵀ in tiles of m × m, softmax, p v
            [2 * N * N * D // m + 2 * N * D for m in BLOCKS],
        ),
    ):
        axes.plot(BLOCKS, [2 * b / 2**20 for b in naive], "o-", color=palette.vermillion)
        axes.plot(BLOCKS, [2 * b / 2**20 for b in fused], "o-", color=palette.blue)
        axes.text(BLOCKS[-1], 2.6 * naive[-1] / 2**20, "naive", color=palette.vermillion, ha="right")
        axes.text(BLOCKS[-1], 1.7 * fused[-1] / 2**20, "fused", color=palette.blue, ha="right", va="top")
        axes.set(xscale="log", yscale="log", xlabel="queries per block", ylabel="MiB", title=title, ylim=(2, 2000))
        axes.set_xticks(BLOCKS, BLOCKS)
        axes.minorticks_off()
    show.figure(plot, "Naive and fused traffic of one head, each once as least bytes and once as requested bytes")
debrief(
    "blocks",
    """Each panel compares the two kernels in one measure, for one head of 4,096 tokens, head_dim 128, in BF16. Fused attention saves
    the table in both. But what its programs ask for,
    2·N²·d / block_m elements of K and V, is still quadratic in N. The block only divides it: the *memory* is linear, the traffic is not.

    The choice has no rule of thumb. If bytes decide, a large block of queries wins as long as it fits. If arithmetic decides,
    small tiles waste less at the edge of the mask, until they are too small for the tensor cores.""",
    parts=("traffic", "choice"),
)

# %% [markdown]
# ## 3 · A summary that can be merged
#
# Softmax wants the whole row before it divides, and the row arrives in tiles. For each query, let a block of keys leave
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
# `summarise(scores, values) -> Summary`: `scores` (queries, keys), some −inf, `values` (keys, head_dim). If all scores of a
# query are −inf: m = −inf, s = 0, a = 0. There may be no keys.
#
# `merge(left, right) -> Summary`. A side with m = −inf changes nothing.
#
# `finish(summary) -> tuple[Tensor, Tensor]`: the output (queries, head_dim) and the logsumexp (queries,). A query that saw
# nothing gets zeros and −inf.
#
# No result holds a NaN. Everything is float32 or float64, and so are the results. Plain PyTorch; arguments are not changed.


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


# %% nbgrader={"grade": true, "grade_id": "merging_test_values", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("merging", "summaries of blocks, merged in any order", part="values", hidden="other blocks and orders"):

    def random_case(queries, keys, width, seed, dtype=torch.float64):
        scores, values = 4 * seeded(queries, keys, seed=seed), seeded(keys, width, seed=seed + 1)
        return scores.to(dtype), values.to(dtype)

    def summed(scores, values):
        return summarise(scores.clone(), values.clone())

    def joined(left, right):
        return merge(*(Summary(each.m.clone(), each.s.clone(), each.a.clone()) for each in (left, right)))

    def finished(summary, scores, values, case):
        fine = 1e-12 if scores.dtype == torch.float64 else 1e-5
        check.dtype(summary.m, scores.dtype, what=f"m of {case}")
        out, lse = finish(summary)
        wide, expected = scores.double(), scores.double().softmax(1) @ values.double()
        check.dtype(out, scores.dtype, what=f"the output of {case}")
        check.close(out, expected, rtol=fine, atol=fine, what=f"the output of {case}")
        check.close(lse, wide.logsumexp(1), rtol=fine, atol=fine, what=f"the logsumexp of {case}")

    scores, values = torch.tensor([[1.0, 3.0, 2.0]]).double(), torch.tensor([[10.0], [20.0], [30.0]]).double()
    whole = summed(scores[:, :2], values[:2])
    check.close(whole.m, [3.0], what="m of the scores 1, 3")
    check.close(whole.s, [1 + math.exp(-2)], what="s of the scores 1, 3")
    check.close(whole.a, [[20 + 10 * math.exp(-2)]], what="a of the scores 1, 3 and values 10, 20")
    merged = joined(whole, summed(scores[:, 2:], values[2:]))
    check.close(merged.s, [1 + math.exp(-2) + math.exp(-1)], what="s of 1, 3 | 2, merged")
    check.close(merged.a, [[20 + 10 * math.exp(-2) + 30 * math.exp(-1)]], what="a of 1, 3 | 2, merged")
    scores, values = random_case(5, 12, 3, 0)
    finished(summed(scores, values), scores, values, "one block")
    first, second, third = (summed(scores[:, i : i + 5], values[i : i + 5]) for i in range(0, 12, 5))
    finished(joined(joined(first, second), third), scores, values, "three blocks, merged from the left")
    finished(joined(first, joined(third, second)), scores, values, "three blocks, merged from the right")
    scores, values = random_case(2, 4, 3, 5, torch.float32)
    finished(joined(summed(scores[:, :1], values[:1]), summed(scores[:, 1:], values[1:])), scores, values, "float32")
    ### BEGIN HIDDEN TESTS
    for seed in range(6):
        rng = check.rng(seed)
        queries, keys, width = (int(v) for v in rng.integers(1, 20, 3))
        scores, values = random_case(queries, keys, width, 100 + seed)
        scores[:, : keys // 3] += 300.0 * (seed % 4)
        cuts = sorted({0, keys, *(int(v) for v in rng.integers(0, keys + 1, 3))})
        parts = [summed(scores[:, a:b], values[a:b]) for a, b in zip(cuts, cuts[1:], strict=False)]
        parts = [parts[i] for i in rng.permutation(len(parts))]
        while len(parts) > 1:
            at = int(rng.integers(len(parts) - 1))
            parts[at : at + 2] = [joined(parts[at], parts[at + 1])]
        finished(parts[0], scores, values, f"{queries} queries and {keys} keys in {len(cuts) - 1} blocks")
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "merging_test_edges", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("merging", "−inf, no keys, and arguments that stay", part="edges", hidden="them in other places"):

    def masked(queries, keys, width, seed, hide):
        scores, values = 4 * seeded(queries, keys, seed=seed).double(), seeded(keys, width, seed=seed + 1).double()
        scores[torch.rand(queries, keys, generator=torch.Generator().manual_seed(seed)) < hide] = -math.inf
        return scores, values

    def summed(scores, values):
        return summarise(scores.clone(), values.clone())

    def copied(summary):
        return Summary(summary.m.clone(), summary.s.clone(), summary.a.clone())

    def joined(left, right):
        return merge(copied(left), copied(right))

    def require_summary(summary, case):
        check.equal(summary.m.tolist(), [-math.inf] * len(summary.m), what=f"m of {case}")
        check.equal(summary.s.tolist(), [0.0] * len(summary.m), what=f"s of {case}", hint="exp(−inf − 0) is 0")
        check.equal(summary.a.abs().max().item(), 0.0, what=f"the largest a of {case}")

    def require_same(summary, scores, values, case):
        """Against sums over the visible keys of each query."""
        out, lse = finish(copied(summary))
        expected, logs = (
            torch.zeros(len(scores), values.shape[1]).double(),
            torch.full((len(scores),), -math.inf).double(),
        )
        for i, row in enumerate(scores):
            if (seen := row > -math.inf).any():
                expected[i], logs[i] = row[seen].softmax(0) @ values[seen], row[seen].logsumexp(0)
        cause = "NaN: 0 / 0, or −inf − (−inf)" if out.isnan().any() else ""
        check.close(out, expected, rtol=1e-10, atol=1e-12, what=f"the output of {case}", hint=cause)
        check.close(lse, logs, rtol=1e-10, atol=1e-12, what=f"the logsumexp of {case}")

    scores, values = masked(5, 12, 3, 0, 0.0)
    whole, blank = summed(scores, values), torch.full((5, 4), -math.inf).double()
    hidden = summed(blank, values[:4])
    require_summary(hidden, "a block of −inf")
    nothing = summed(scores[:, :0], values[:0])
    require_summary(nothing, "a block of no keys")
    for name in ("m", "s", "a"):
        check.dtype(getattr(nothing, name), torch.float64, what=f"{name} of a block of no keys, all in float64")
    require_same(hidden, blank, values[:4], "queries that saw nothing")
    require_summary(joined(hidden, hidden), "two blocks of −inf")
    require_same(joined(hidden, whole), scores, values, "a block of −inf, then an ordinary one")
    require_same(joined(whole, hidden), scores, values, "an ordinary block, then one of −inf")

    def unchanged(name, function, *args):
        """In the student's process, on copies that travel there."""
        fresh = [each.clone() if torch.is_tensor(each) else copied(each) for each in args]
        for number, (now, then) in enumerate(zip(arguments_after(function, *fresh), args, strict=True), start=1):
            fields = [(now, then)] if torch.is_tensor(then) else [(now.m, then.m), (now.s, then.s), (now.a, then.a)]
            same = all(torch.equal(x, y) for x, y in fields)
            check.true(same, f"{name} changes its argument number {number} in place: work on new tensors")

    unchanged("summarise", summarise, scores, values)
    unchanged("merge", merge, whole, summed(scores + 1, values))
    unchanged("merge", merge, summed(scores + 1, values), whole)
    unchanged("finish", finish, whole)
    unchanged("finish", finish, hidden)
    ### BEGIN HIDDEN TESTS
    for seed in range(6):
        rng = check.rng(seed)
        queries, keys, width = (int(v) for v in rng.integers(1, 20, 3))
        scores, values = masked(queries, keys, width, 100 + seed, [0.5, 0.97][seed % 2])
        cut = int(rng.integers(0, keys + 1))
        left, right = summed(scores[:, :cut], values[:cut]), summed(scores[:, cut:], values[cut:])
        require_same(joined(right, left), scores, values, f"{queries} queries, {keys} keys, many of them −inf")
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "merging",
    "Everything in a summary is measured against its own m. To compare two, express both against the larger one: multiply by exp(own m − larger m), which is at most 1.",
    "The trap is −inf − (−inf) = NaN. Subtract 0 instead of the maximum wherever the maximum is −inf: exp(−inf − 0) is exactly 0.",
    "`amax` of a block with no keys raises. One more column of −inf gives every query a maximum.",
)


def draw_walk(step):
    """One program with 32 queries and 160 keys in tiles of 32, and the summary of its last query."""
    fig, (axes, side) = figure(1, 2, width=11, height=2.9, width_ratios=[3, 2])
    for tile in range(5):
        shade = palette.blue if tile < step else palette.orange if tile == step else "none"
        axes.bar([32 * tile + 16], [32], 31, color=shade, edgecolor=palette.grey)
        name = "done" if tile < step else "now" if tile == step else "waits"
        axes.text(32 * tile + 16, 16, name, ha="center", va="center")
    axes.set(xlim=(0, 160), ylim=(32, 0), xlabel="keys", ylabel="queries", title=f"tile {step} of 5, from 0")
    axes.grid(visible=False)
    scores = 2.2 * np.sin(np.arange(160) / 19.0 - 1) + np.arange(160) / 80
    m, s, sums, heights = -np.inf, 0.0, [], []
    for tile in range(step + 1):
        seen = scores[32 * tile : 32 * tile + 32]
        raised = max(m, seen.max())
        s, m = s * np.exp(m - raised) + np.exp(seen - raised).sum(), raised
        heights.append(m)
        sums.append(s)
    side.plot(range(step + 1), heights, "o-", color=palette.vermillion)
    side.plot(range(step + 1), sums, "o-", color=palette.green)
    side.text(step + 0.15, heights[-1], "m", color=palette.vermillion, va="center")
    side.text(step + 0.15, sums[-1], "s", color=palette.green, va="center")
    side.set(xlim=(-0.3, 5), ylim=(0, 70), xlabel="tile", title="the last query's m and s")
    return fig


animate(
    draw_walk, range(5), seconds=1.2, caption="A program walks along the keys; its summary never grows (made-up scores)"
)
debrief(
    "merging",
    """m, s and a are measured against m, so a summary is worth exp(m) · s and exp(m) · a, whatever m is. Merging adds these two
    numbers, and addition is associative and commutative: blocks can be summarised in any order, by anyone. A loop does it (the
    next exercise), so do programs that split the keys between them (decoding) and GPUs in a ring (context parallelism).

    Subtracting 0 where the maximum is −inf makes an empty side weigh exactly nothing. Careless code turns one masked tile
    into a row of NaN.""",
    parts=("values", "edges"),
)

# %% [markdown]
# ## 4 · One head
#
# The next cell holds a complete kernel for keys that fill exactly one tile. A program owns BLOCK_M queries. `tl.dot` is the
# matrix product of two whole tiles, accumulated in float32, and `tl.trans` transposes. Without `input_precision="ieee"` a product
# of float32 would be rounded to TF32 on the tensor cores. The probabilities are converted to the dtype of v, because
# both sides of a `tl.dot` have one dtype.
#
# *Worked example.* For 40 keys in tiles of 16 the loop takes three steps, at 0, 16 and 32. In the last one the columns are 32
# to 47, and 40 to 47 do not exist: load them as zeros, and set their scores to −inf, because a score of 0 has a weight too.
#
# ### Exercise 4 (18 points)
#
# `flash_head(q, k, v, block_m, block_n) -> tuple[Tensor, Tensor]` returns (out, lse) of one head without a mask.
#
# - `q` (queries, head_dim), `k` and `v` (keys, head_dim): contiguous, float32 or float16. Any number of queries and keys
#   from 1 on; head_dim is 16, 32 or 64; blocks are powers of two, at least 16.
# - `out` = softmax(q kᵀ / √head_dim) v, like q. `lse` (queries,): the logsumexp of the scaled scores. Scores, m, s, a and
#   `lse` are float32. The division comes last, once.
# - One launch, ⌈queries / block_m⌉ programs. Each loads its queries once and each tile of K and of V once. Nothing but `out`
#   and `lse` is written, and PyTorch moves nothing.
# - No tile has more elements than the largest of block_m · block_n, block_m · head_dim and block_n · head_dim; a program holds
#   at most 32 times as many at one time.
#
# Go in two steps: first keys that fill all tiles, then the ragged end. The bytes that a kernel moves count only if the values
# of the run are right.


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
    print(f"largest difference: {(out - torch.softmax(q @ k.T / 4, -1) @ v).abs().max():.1e}")


# %% nbgrader={"grade": false, "grade_id": "one_head", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def head_kernel(
    q, k, v, out, lse, queries, keys, scale, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """BLOCK_M queries and all keys."""
    ### BEGIN SOLUTION
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    width = tl.arange(0, HEAD_DIM)
    at = row[:, None] * HEAD_DIM + width[None, :]
    query = tl.load(q + at, mask=row[:, None] < queries, other=0.0)
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    s = tl.zeros((BLOCK_M,), tl.float32)
    a = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    for first in range(0, keys, BLOCK_N):
        column = first + tl.arange(0, BLOCK_N)
        tile = column[:, None] * HEAD_DIM + width[None, :]
        key = tl.load(k + tile, mask=column[:, None] < keys, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(column[None, :] < keys, scores, -float("inf"))
        raised = tl.maximum(m, tl.max(scores, axis=1))
        kept = tl.exp(m - raised)
        weights = tl.exp(scores - raised[:, None])
        value = tl.load(v + tile, mask=column[:, None] < keys, other=0.0)
        a = a * kept[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        s = s * kept + tl.sum(weights, axis=1)
        m = raised
    tl.store(out + at, (a / s[:, None]).to(out.dtype.element_ty), mask=row[:, None] < queries)
    tl.store(lse + row, m + tl.log(s), mask=row < queries)
    ### END SOLUTION


def flash_head(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_m: int, block_n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of one head without the table of scores."""
    ### BEGIN SOLUTION
    (queries, head_dim), keys = q.shape, len(k)
    out, lse = torch.empty_like(q), torch.empty(queries, dtype=torch.float32, device=q.device)
    head_kernel[(triton.cdiv(queries, block_m),)](
        q, k, v, out, lse, queries, keys, head_dim**-0.5, HEAD_DIM=head_dim, BLOCK_M=block_m, BLOCK_N=block_n
    )
    return out, lse
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "one_head_test_values", "locked": true, "points": 11, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("one_head", "attention of one head", part="values", hidden="other sizes and blocks, in both dtypes"):

    def head_check(queries, keys, width, block_m, block_n, dtype=torch.float32, spread=1.0):
        q, k, v = (seeded(rows, width, seed=queries + i, dtype=dtype) for i, rows in enumerate((queries, keys, keys)))
        q, visible = q * spread, pairs(queries, keys)
        v = v.abs() * 12288 if dtype == torch.float16 else v  # so that a exceeds what a float16 holds
        case = f"{queries} queries, {keys} keys, head_dim {width}, blocks {block_m} × {block_n}, {name_of(dtype)}"
        case += f", q {spread:g} times as large" * (spread != 1)
        out, lse = replay(flash_head, q, k, v, block_m, block_n).outputs
        require_out(out, q, k, v, visible, block_n, case)
        require_lse(lse, q, k, v, visible, case)

    head_check(16, 16, 16, 16, 16)  # one tile
    head_check(32, 48, 16, 16, 16)  # whole tiles
    head_check(16, 40, 16, 16, 16)  # a ragged end
    head_check(20, 33, 32, 16, 32)
    head_check(20, 70, 32, 16, 64, torch.float16)
    head_check(16, 40, 16, 16, 16, spread=300.0)
    require_rounded(flash_head, 16, 16)
    ### BEGIN HIDDEN TESTS
    head_check(1, 1, 16, 16, 16)
    head_check(65, 31, 64, 32, 16)
    head_check(33, 100, 32, 64, 32, torch.float16)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "one_head_test_traffic", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("one_head", "what it moves and holds, and its code", part="traffic", hidden="other sizes"):

    def head_traffic(queries, keys, width, block_m, block_n, dtype=torch.float32):
        q, k, v = (seeded(rows, width, seed=i, dtype=dtype) for i, rows in enumerate((queries, keys, keys)))
        case = f"{queries} queries, {keys} keys, head_dim {width}, blocks {block_m} × {block_n}, {name_of(dtype)}"
        run = replay(flash_head, q, k, v, block_m, block_n)
        require_work(run, q, k, v, pairs(queries, keys), block_m, block_n, case)
        return run

    head_traffic(20, 40, 16, 16, 16)
    head_traffic(16, 64, 32, 16, 32, torch.float16)
    head_traffic(16, 640, 16, 16, 16)
    require_compiled(head_traffic(64, 64, 32, 32, 32))
    ### BEGIN HIDDEN TESTS
    head_traffic(65, 31, 64, 32, 16)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
term("FlashAttention")
hint(
    "one_head",
    "Three blocks live through the loop: m = −inf and s = 0 of shape (BLOCK_M,), a = 0 of shape (BLOCK_M, HEAD_DIM). The loop body is `summarise` and `merge` in one.",
    "In the loop: `raised = tl.maximum(m, tl.max(scores, axis=1))`, and `kept = tl.exp(m - raised)` corrects both s and a.",
    "`scores = tl.where(column[None, :] < keys, scores, -float('inf'))` comes before the maximum; K and V are loaded with a mask and `other=0.0`.",
)
debrief(
    "one_head",
    """One program needs a query tile, one tile of K and of V, and a summary, however many keys there are. The table
    exists only tile by tile, in registers. The first tile always holds a key, so m is finite after it, and exp(−inf − m) = 0
    makes the empty summary vanish by itself.

    Keys beyond the end must be −inf *before* the maximum. A score of 0 adds exp(−m) to the sum, which is small enough to
    look like rounding when scores are large.""",
    parts=("values", "traffic"),
)

# %% [markdown]
# ## 5 · Causal
#
# A causal kernel saves nothing by masking. It has to end its loop early, after the last tile that holds a key which its last
# existing query sees. And now a query may have seen nothing yet: with more queries than keys, the first ones never do. Then m
# is still −inf, and −inf − (−inf) is NaN, so subtract 0 there, as in exercise 3.
#
# *Worked example.* 40 queries and 24 keys: query *i* sees j ≤ i − 16. In blocks of 16 queries, the first sees nothing and visits
# no tile. Queries 16 to 31 see up to key 15. Queries 32 to 39 see up to key 23: two tiles of 16.
#
# ### Exercise 5 (12 points)
#
# `flash_causal(q, k, v, block_m, block_n) -> tuple[Tensor, Tensor]`: exercise 4 with the causal rule of exercise 1. Start from your kernel.
#
# - A query that sees nothing gets zeros and lse = −inf.
# - Exactly the tiles of exercise 1 are visited. Everything else is as in exercise 4.


# %% nbgrader={"grade": false, "grade_id": "causal", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def causal_kernel(
    q, k, v, out, lse, queries, keys, scale, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """BLOCK_M queries and the keys that they see."""
    ### BEGIN SOLUTION
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    width = tl.arange(0, HEAD_DIM)
    at = row[:, None] * HEAD_DIM + width[None, :]
    query = tl.load(q + at, mask=row[:, None] < queries, other=0.0)
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    s = tl.zeros((BLOCK_M,), tl.float32)
    a = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    end = tl.minimum((tl.program_id(0) + 1) * BLOCK_M, queries) + keys - queries
    for first in range(0, end, BLOCK_N):
        column = first + tl.arange(0, BLOCK_N)
        tile = column[:, None] * HEAD_DIM + width[None, :]
        key = tl.load(k + tile, mask=column[:, None] < keys, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        visible = (column[None, :] < keys) & (column[None, :] <= row[:, None] + keys - queries)
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
    tl.store(lse + row, m + tl.log(s), mask=row < queries)
    ### END SOLUTION


def flash_causal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_m: int, block_n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention of one head."""
    ### BEGIN SOLUTION
    (queries, head_dim), keys = q.shape, len(k)
    out, lse = torch.empty_like(q), torch.empty(queries, dtype=torch.float32, device=q.device)
    causal_kernel[(triton.cdiv(queries, block_m),)](
        q, k, v, out, lse, queries, keys, head_dim**-0.5, HEAD_DIM=head_dim, BLOCK_M=block_m, BLOCK_N=block_n
    )
    return out, lse
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "causal_test_values", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("causal", "causal attention of one head", part="values", hidden="other sizes and blocks, in both dtypes"):

    def causal_check(queries, keys, width, block_m, block_n, dtype=torch.float32, spread=1.0):
        q, k, v = (seeded(rows, width, seed=queries + i, dtype=dtype) for i, rows in enumerate((queries, keys, keys)))
        q, visible = q * spread, pairs(queries, keys, causal=True)
        case = f"{queries} queries, {keys} keys, head_dim {width}, blocks {block_m} × {block_n}, {name_of(dtype)}"
        case += f", q {spread:g} times as large" * (spread != 1)
        out, lse = replay(flash_causal, q, k, v, block_m, block_n).outputs
        rows, columns = torch.arange(queries)[:, None], torch.arange(keys)[None, :]
        others = (
            (words, exact(q, k, v, mask)[0])
            for words, mask in (
                ("these are the values of j ≤ i: the queries are the last of the keys", columns <= rows),
                ("the query's own key is hidden: j ≤ i + (keys − queries)", columns < rows + keys - queries),
                ("one key too many is seen: j ≤ i + (keys − queries)", columns <= rows + keys - queries + 1),
                ("these are the values without a mask", columns >= 0),
            )
            if not (mask == visible).all()
        )
        require_out(out, q, k, v, visible, block_n, case, others)
        require_lse(lse, q, k, v, visible, case)

    causal_check(32, 32, 16, 16, 16)
    causal_check(20, 37, 16, 16, 16)
    causal_check(40, 24, 16, 16, 16)
    causal_check(20, 12, 16, 16, 16)  # a tile that some of its queries do not see
    causal_check(1, 40, 32, 16, 32, torch.float16)
    causal_check(16, 20, 16, 16, 16, spread=300.0)
    require_rounded(flash_causal, 16, 16)
    ### BEGIN HIDDEN TESTS
    causal_check(1, 1, 16, 16, 16)
    causal_check(65, 33, 64, 32, 16, torch.float16)
    causal_check(33, 65, 32, 64, 32)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "causal_test_tiles", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("causal", "which tiles it visits", part="tiles", hidden="other sizes"):

    def causal_tiles(queries, keys, width, block_m, block_n, dtype=torch.float32):
        q, k, v = (seeded(rows, width, seed=i, dtype=dtype) for i, rows in enumerate((queries, keys, keys)))
        case = f"{queries} queries, {keys} keys, head_dim {width}, blocks {block_m} × {block_n}"
        run = replay(flash_causal, q, k, v, block_m, block_n)
        require_work(run, q, k, v, pairs(queries, keys, causal=True), block_m, block_n, case)

    causal_tiles(48, 48, 16, 16, 16)
    causal_tiles(40, 24, 16, 16, 16)
    causal_tiles(20, 40, 16, 32, 16)
    ### BEGIN HIDDEN TESTS
    causal_tiles(65, 33, 64, 32, 16, torch.float16)
    causal_tiles(17, 130, 32, 16, 64)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "causal",
    "Two changes: the loop ends after the last key that the block's last *existing* query sees, and inside it column is compared with row + keys − queries.",
    "`reference = tl.where(raised == -float('inf'), 0.0, raised)` is what to subtract; at the end divide by `tl.where(s == 0.0, 1.0, s)`.",
    "The last existing query of the block is `tl.minimum((tl.program_id(0) + 1) * BLOCK_M, queries) - 1`. The end of the loop may be negative, and then the loop has no steps.",
)
debrief(
    "causal",
    """Nearly half of the tiles of a square causal problem are skipped, and the rest of the work is masked only on the diagonal.
    Kernels in production split the loop in two, whole tiles without any mask first, because the comparison costs time in every tile.

    Aligning the mask at the end makes decoding a special case: one query at the end of a long cache sees all of it. The
    flash-attn package changed to this rule in version 2.1 (its README, "Changelog"); before, the mask was aligned at the first query.""",
    parts=("values", "tiles"),
)

# %% [markdown]
# ## 6 · Many heads that share keys
#
# In **grouped-query attention** several query heads share one head of keys and values. With 4 query heads on 2 key heads,
# heads 0 and 1 use key head 0, heads 2 and 3 key head 1: head h uses h // group, where group = heads / kv_heads = 2.
#
# *Worked example.* Batch 2, 4 heads on 2, flattened: query heads 0 to 7, key heads 0 to 3. Flat head 5 is head 1 of batch 1. Its
# keys are head 0 of batch 1, flat key head 2, and 5 // 2 = 2: the same division works for flat numbers. A head of n rows begins n · head_dim
# elements after the previous one.
#
# ### Exercise 6 (10 points)
#
# `flash_attention(q, k, v, block_m, block_n) -> tuple[Tensor, Tensor]`: causal attention of all heads, in one launch.
#
# - `q` (batch, heads, queries, head_dim), `k` and `v` (batch, kv_heads, keys, head_dim), contiguous; `heads` is a multiple of
#   `kv_heads`. `out` is like q, `lse` (batch, heads, queries).
# - One program per block of queries of each head. Nothing is copied or repeated. Everything else is as in exercise 5.


# %% nbgrader={"grade": false, "grade_id": "grouped", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def grouped_kernel(
    q, k, v, out, lse, queries, keys, group, scale, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """BLOCK_M queries of one head; the second program id counts batch and heads."""
    ### BEGIN SOLUTION
    head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    width = tl.arange(0, HEAD_DIM)
    k += head // group * keys * HEAD_DIM
    v += head // group * keys * HEAD_DIM
    at = (head * queries + row[:, None]) * HEAD_DIM + width[None, :]
    query = tl.load(q + at, mask=row[:, None] < queries, other=0.0)
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    s = tl.zeros((BLOCK_M,), tl.float32)
    a = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    end = tl.minimum((tl.program_id(0) + 1) * BLOCK_M, queries) + keys - queries
    for first in range(0, end, BLOCK_N):
        column = first + tl.arange(0, BLOCK_N)
        tile = column[:, None] * HEAD_DIM + width[None, :]
        key = tl.load(k + tile, mask=column[:, None] < keys, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        visible = (column[None, :] < keys) & (column[None, :] <= row[:, None] + keys - queries)
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
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_m: int, block_n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention of all heads."""
    ### BEGIN SOLUTION
    batch, heads, queries, head_dim = q.shape
    kv_heads, keys = k.shape[1:3]
    out, lse = torch.empty_like(q), torch.empty((batch, heads, queries), dtype=torch.float32, device=q.device)
    grouped_kernel[(triton.cdiv(queries, block_m), batch * heads)](
        q, k, v, out, lse, queries, keys, heads // kv_heads, head_dim**-0.5,
        HEAD_DIM=head_dim, BLOCK_M=block_m, BLOCK_N=block_n,
    )  # fmt: skip
    return out, lse
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "grouped_test_values", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("grouped", "all batches and heads", part="values", hidden="other groups, in both dtypes"):

    def grouped_check(
        batch, heads, kv_heads, queries, keys, width=16, block_m=16, block_n=16, dtype=torch.float32, spread=1.0
    ):
        q = seeded(batch, heads, queries, width, seed=heads, dtype=dtype) * spread
        k, v = (seeded(batch, kv_heads, keys, width, seed=queries + i, dtype=dtype) for i in range(2))
        visible, group = pairs(queries, keys, causal=True), heads // kv_heads
        case = f"batch {batch}, heads {heads} on {kv_heads}, {queries} queries, {keys} keys, {name_of(dtype)}"
        case += f", q {spread:g} times as large" * (spread != 1)

        def shared(of, *head_numbers):
            """The keys or values of each flat query head, by flat numbers of key heads."""
            return of.flatten(0, 1)[list(head_numbers)].reshape(batch, heads, keys, width)

        flat, last = range(batch * heads), batch * kv_heads - 1
        maps = {
            "": [h // group for h in flat],
            "query head h uses key head h % kv_heads there: expected h // group": [
                h // heads * kv_heads + h % heads % kv_heads for h in flat
            ],
            "each query head uses the key head of its own number": [min(h, last) for h in flat],
            "all batches use the keys of the first": [h % heads // group for h in flat],
        }
        others = (
            (words, exact(q, shared(k, *to), shared(v, *to), visible)[0])
            for words, to in maps.items()
            if words and to != maps[""]
        )
        out, lse = replay(flash_attention, q, k, v, block_m, block_n).outputs
        own = [shared(each, *maps[""]) for each in (k, v)]
        require_out(out, q, *own, visible, block_n, case, others)
        require_lse(lse, q, *own, visible, case)

    grouped_check(1, 2, 2, 16, 16)
    grouped_check(1, 4, 2, 16, 20)
    grouped_check(2, 4, 2, 20, 17)
    grouped_check(2, 2, 1, 10, 20, dtype=torch.float16)
    grouped_check(1, 2, 1, 16, 20, spread=300.0)
    require_rounded(flash_attention, 16, 16, lead=(1, 1))
    ### BEGIN HIDDEN TESTS
    grouped_check(3, 2, 1, 5, 20)
    grouped_check(1, 6, 3, 17, 17, 32, 32, 32, torch.float16)
    grouped_check(1, 2, 2, 33, 18, 64, 32, 16)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "grouped_test_traffic", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("grouped", "one launch that copies nothing", part="traffic", hidden="other groups"):

    def grouped_traffic(batch, heads, kv_heads, queries, keys, width=16, block_m=16, block_n=16):
        q = seeded(batch, heads, queries, width)
        k, v = (seeded(batch, kv_heads, keys, width, seed=i) for i in (1, 2))
        case = f"batch {batch}, heads {heads} on {kv_heads}, {queries} queries, {keys} keys"
        run = replay(flash_attention, q, k, v, block_m, block_n)
        require_work(run, q, k, v, pairs(queries, keys, causal=True), block_m, block_n, case, heads=batch * heads)
        blocks = -(-queries // block_m)
        check.equal(run.traffic.total.programs, blocks * batch * heads, what=f"programs, {case}")

    grouped_traffic(2, 4, 2, 20, 17)
    ### BEGIN HIDDEN TESTS
    grouped_traffic(1, 6, 2, 10, 40, 32, 16, 32)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
term("grouped-query attention")
hint(
    "grouped",
    "Give the grid a second axis of batch · heads, and let `tl.program_id(1)` be the flat head. Only the beginnings of q, k, v, out and lse move.",
    "`k += head // group * keys * HEAD_DIM`, the same for v. Queries, out and lse begin at head · queries rows.",
)
debrief(
    "grouped",
    """The kernel itself is unchanged: a head is an offset. Flat numbers make one division enough, because `heads` is a multiple of
    `kv_heads`, so no group crosses a batch.

    Sharing saves memory, above all in the KV cache of decoding (lab 15). It does not save what these programs ask for, because
    each query head loads its keys anew; those requests go to the L2 cache. `.to(tl.int64)` keeps offsets right
    beyond 2³¹ elements.""",
    parts=("values", "traffic"),
)
predict(
    "window_share",
    "4,096 tokens, a window of 256, tiles of 64 × 64: what percentage of the tiles of a causal kernel must be visited?",
    unit="%",
)

# %% [markdown]
# ## 7 · Skip, do not mask
#
# With a sliding window each query sees only the last *w* keys, as in Mistral 7B ([Jiang et al.
# 2023](https://arxiv.org/abs/2310.06825)). The arithmetic that is needed falls from N²/2 to N·w. What is *done* falls only if
# the loop also begins late. A kernel that visits all tiles and masks them returns the same values.
#
# *Worked example.* 48 tokens, window 10, blocks of 16 × 16. The block of queries 32 to 47 begins with query 32, which sees
# keys 23 to 32. Key 23 lies in tile 1, which begins at key 16. The loop takes two steps, at 16 and at 32. In the first one, query
# 41 and those after it see nothing at all.
#
# ### Exercise 7 (12 points)
#
# `window_attention(q, k, v, window, block_m, block_n) -> Tensor`: one head again, and only `out`.
#
# - `q`, `k` and `v` are (tokens, head_dim), contiguous, float32 or float16.
# - Query i sees key j where i − window < j ≤ i. `window` is at least 1 and may exceed the number of tokens.
# - Exactly the tiles of exercise 1 are visited. Everything else is as in exercise 4; no logsumexp is stored.


# %% nbgrader={"grade": false, "grade_id": "window", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def window_kernel(
    q, k, v, out, tokens, scale, window, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """BLOCK_M queries, and only the tiles that their windows touch."""
    ### BEGIN SOLUTION
    top = tl.program_id(0) * BLOCK_M
    row = top + tl.arange(0, BLOCK_M)
    width = tl.arange(0, HEAD_DIM)
    at = row[:, None] * HEAD_DIM + width[None, :]
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
    tokens, head_dim = q.shape
    out = torch.empty_like(q)
    window_kernel[(triton.cdiv(tokens, block_m),)](
        q, k, v, out, tokens, head_dim**-0.5, window, HEAD_DIM=head_dim, BLOCK_M=block_m, BLOCK_N=block_n
    )
    return out
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "window_test_values", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("window", "attention to the last keys", part="values", hidden="other windows and sizes, in both dtypes"):

    def window_values(tokens, window, width, block_m, block_n, dtype=torch.float32, spread=1.0):
        q, k, v = (seeded(tokens, width, seed=tokens + i, dtype=dtype) for i in range(3))
        q, visible = q * spread, pairs(tokens, tokens, window=window)
        case = f"{tokens} tokens, window {window}, head_dim {width}, blocks {block_m} × {block_n}, {name_of(dtype)}"
        case += f", q {spread:g} times as large" * (spread != 1)
        out = replay(window_attention, q, k, v, window, block_m, block_n).outputs
        distance = torch.arange(tokens)[:, None] - torch.arange(tokens)[None, :]
        others = (
            (words, exact(q, k, v, mask)[0])
            for words, mask in (
                ("the window is one key too wide", (distance >= 0) & (distance <= window)),
                ("the window is one key too narrow", (distance >= 0) & (distance < window - 1)),
                ("the query's own key is hidden", (distance > 0) & (distance < window)),
                ("later keys are seen", distance < window),
                ("these are the values without a window", distance >= 0),
            )
            if not (mask == visible).all()
        )
        require_out(out, q, k, v, visible, block_n, case, others)

    window_values(48, 10, 16, 16, 16)
    window_values(50, 30, 16, 32, 16)
    window_values(35, 1, 16, 16, 32)
    window_values(20, 1000, 32, 16, 16, torch.float16)
    window_values(20, 10, 16, 16, 16, spread=300.0)
    require_rounded(window_attention, 5, 16, 16)
    ### BEGIN HIDDEN TESTS
    window_values(1, 5, 16, 16, 16)
    window_values(65, 17, 64, 32, 16, torch.float16)
    window_values(70, 40, 32, 32, 64)
    ### END HIDDEN TESTS

# %% nbgrader={"grade": true, "grade_id": "window_test_tiles", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("window", "which tiles it visits, and its code", part="tiles", hidden="other windows and sizes"):

    def window_tiles(tokens, window, width, block_m, block_n, dtype=torch.float32):
        q, k, v = (seeded(tokens, width, seed=i, dtype=dtype) for i in range(3))
        case = f"{tokens} tokens, window {window}, head_dim {width}, blocks {block_m} × {block_n}"
        run = replay(window_attention, q, k, v, window, block_m, block_n)
        require_work(run, q, k, v, pairs(tokens, tokens, window=window), block_m, block_n, case, lse=False)
        return run

    window_tiles(48, 10, 16, 16, 16)
    window_tiles(64, 17, 16, 16, 16)
    window_tiles(48, 18, 16, 16, 16)  # the furthest key of the last block ends a tile, where that of 17 begins one
    window_tiles(40, 30, 16, 32, 16)
    require_compiled(window_tiles(64, 40, 32, 32, 32))
    ### BEGIN HIDDEN TESTS
    window_tiles(65, 17, 64, 32, 16, torch.float16)
    window_tiles(70, 40, 32, 32, 64)
    window_tiles(33, 1000, 16, 16, 16)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
hint(
    "window",
    "It is the causal kernel with another beginning of the loop. Which query of the block sees furthest back, and how far?",
    "The first query, row `top`, sees keys from top − window + 1 on, and not below 0. The loop begins at the tile that holds this key: round down to a multiple of BLOCK_N.",
)
counts = {w: sum(visits(pairs(4096, 4096, window=w), 64, 64)) for w in (256, 4096)}
share = round(100 * counts[256] / counts[4096], 1)
show.against_prediction("window_share", share, unit="%", source="model: counted")
debrief(
    "window",
    """At 4,096 tokens a window of 256 visits 5 tiles per block of 64 queries instead of 32.5 on average. Four tiles hold 256
    keys, but a window rarely begins at the edge of a tile, so a fifth is touched.

    A tile may be hidden from some of its queries, so m can be −inf after it, and the guard of exercise 5 is needed even
    though every query sees at least its own key. How much the edges cost depends on the tile: the deep dives draw it.""",
    parts=("values", "tiles"),
)

# %% [markdown]
# ## 8 · A piece of the way back
#
# The backward pass needs the probabilities, which nobody stored. It computes them again, tile by tile: P = exp(score − lse). With
# dO, the gradient of the output, and dP = dO vᵀ, the gradient of the scores is dS = P ∘ (dP − Σⱼ Pᵢⱼ dPᵢⱼ). The sum runs over **all** keys,
# but it equals dOᵢ · Oᵢ, the number `delta` of query i, which is known before any tile.
#
# *Worked example.* One query, head_dim 1, q = 1, keys 0 and 0, values 1 and 3, so P = (½, ½), O = 2 and lse = log 2. With dO = 4:
# delta = 8 and dP = (4, 12), so dS = (½ · (4 − 8), ½ · (12 − 8)) = (−2, 2). Then dv = (2, 2) and dk = (−2, 2).
#
# ### Exercise 8 (8 points)
#
# `backward_tile(q, k, v, grad, lse, delta, visible)` returns (dq, dk, dv): what one tile adds to the three gradients. Plain
# PyTorch; arguments are not changed.
#
# - `q`, `grad` (= dO) are (m, head_dim), `k`, `v` (n, head_dim), `lse`, `delta` (m,), `visible` (m, n) bool: a pair that is not visible
#   has P = 0. Scores are q kᵀ / √head_dim, and out is P v.
# - A query that sees nothing has lse = −inf: it adds zeros.
# - float32 or float64, and the results likewise. Summed over all tiles, they are the gradients.


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


# %% nbgrader={"grade": true, "grade_id": "backward_test", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false} jupyter={"source_hidden": true}
with check("backward", "what a tile adds to the gradients", hidden="other sizes, tiles and masks"):

    def backward_check(queries, keys, width, block_m, block_n, causal, dtype=torch.float64, seed=0):
        q, k, v, grad = (
            seeded(rows, width, seed=seed + i).to(dtype) for i, rows in enumerate((queries, keys, keys, queries))
        )
        visible = pairs(queries, keys, causal)
        out, lse = exact(q, k, v, visible)
        delta = (grad.double() * out).sum(1)
        inputs = [each.double().clone().requires_grad_() for each in (q, k, v)]
        scores = (inputs[0] @ inputs[1].T / width**0.5).masked_fill(~visible, -1e30)
        result = (scores.softmax(1) * visible) @ inputs[2]
        expected = dict(zip(("dq", "dk", "dv"), torch.autograd.grad(result, inputs, grad.double()), strict=True))
        sums = {"dq": torch.zeros_like(q), "dk": torch.zeros_like(k), "dv": torch.zeros_like(v)}
        no_delta = {name: total.clone() for name, total in sums.items()}
        given = [lse.to(dtype), delta.to(dtype)]
        for i in range(0, queries, block_m):
            for j in range(0, keys, block_n):
                rows, columns = slice(i, i + block_m), slice(j, j + block_n)
                tile = [q[rows], k[columns], v[columns], grad[rows], *(each[rows] for each in given)]
                tile = [each.clone() for each in [*tile, visible[rows, columns]]]
                before = [each.tolist() for each in tile]
                parts = backward_tile(*map(inout, tile))
                check.equal([each.tolist() for each in tile], before, what="the arguments afterwards")
                for (name, total), part in zip(sums.items(), parts, strict=True):
                    check.dtype(part, dtype, what=name)
                    check.shape(part, tuple(total[columns if name != "dq" else rows].shape), what=f"{name} of a tile")
                    total[columns if name != "dq" else rows] += part
                tile[5] = torch.zeros_like(tile[5])
                for (name, total), part in zip(no_delta.items(), backward_tile(*tile), strict=True):
                    total[columns if name != "dq" else rows] += part
        case = f"{queries} queries, {keys} keys, {'causal' if causal else 'no mask'}, tiles {block_m} × {block_n}"
        fine = 1e-9 if dtype == torch.float64 else 1e-4
        for name, total in sums.items():
            cause = ""
            if total.isnan().any():
                cause = "NaN: −inf − (−inf) where a query sees nothing"
            elif name != "dv" and alike(total, expected[name] * width**0.5, 1e-4):
                cause = "without 1 / √head_dim: the scores are q kᵀ / √head_dim, so their gradient passes through it"
            elif name != "dv" and torch.equal(total, no_delta[name]):
                cause = "these are the values without delta: delta makes no difference"
            check.close(
                total,
                expected[name],
                rtol=fine,
                atol=fine,
                what=f"{name}, summed over all tiles, of {case}",
                hint=cause,
            )

    one = torch.ones(1, 1).double()
    dq, dk, dv = backward_tile(
        one,
        torch.zeros(2, 1).double(),
        torch.tensor([[1.0], [3.0]]).double(),
        4 * one,
        math.log(2) * one[0],
        8 * one[0],
        torch.ones(1, 2, dtype=torch.bool),
    )
    check.close(dv, [[2.0], [2.0]], rtol=1e-9, what="dv of the worked example")
    check.close(dk, [[-2.0], [2.0]], rtol=1e-9, what="dk of the worked example")
    check.close(dq, [[0.0]], atol=1e-12, what="dq of the worked example, whose keys are 0")
    backward_check(6, 8, 4, 6, 8, causal=False)
    backward_check(6, 8, 4, 4, 3, causal=True)
    backward_check(8, 5, 4, 3, 3, causal=True)
    backward_check(5, 7, 16, 5, 4, causal=True, dtype=torch.float32)
    ### BEGIN HIDDEN TESTS
    for seed in range(6):
        queries, keys, width, block_m, block_n = (int(n) for n in check.rng(seed).integers(1, 20, 5))
        backward_check(queries, keys, width, block_m, block_n, seed % 2 == 0, seed=seed)
    ### END HIDDEN TESTS

# %% tags=["demo"] jupyter={"source_hidden": true}
term("logsumexp")
hint(
    "backward",
    "Compute the scores of the tile, P from `lse`, then dP = grad vᵀ and dS. out = P v gives dv as for any matmul, S = q kᵀ / √head_dim gives dq and dk.",
    "exp(−inf − (−inf)) is NaN: for a query with lse = −inf, subtract 0.",
)
debrief(
    "backward",
    """Five products instead of two: q kᵀ again, and four for dP, dv, dq and dk. Still no table. `delta` replaces a sum over the whole
    row by one number per query, so that tiles are independent, just as lse does for the softmax.

    dq sums over keys, dk and dv over queries. A kernel that owns queries can keep dq in registers, but has to add dk and dv with
    atomics, or leave them to a second kernel that owns keys and computes scores and dP again, seven products in all. The library
    does the second; the deep dives run it.""",
)

# %% [markdown]
# ## In practice: FlexAttention
#
# At work you call `torch.nn.functional.scaled_dot_product_attention`, which picks a fused kernel. For other masks,
# **FlexAttention** takes the mask as a Python function of indices, and generates a kernel. `create_block_mask` finds out once
# which tiles hold a visible pair; the kernel visits only those, and masks only the partly visible ones. It is exercise 1,
# done for any mask. The last cell asks it for a window, and compares.
#
# ## What to remember
#
# - The table of scores is the problem, so do not make it. The arithmetic stays; what limits it is no longer the memory.
# - (m, s, a) is a mergeable summary of any set of keys: loops, split keys and rings of GPUs share one algebra.
# - Traffic stays quadratic, 2·N²·d / block_m elements. *Memory* becomes linear. Say which of the two you mean.
# - A tile that is skipped is saved, a tile that is masked is not. Values cannot show the difference.
# - −inf − (−inf) is NaN. Ask what your kernel does with a query that sees nothing.
# - Backward computes the probabilities again, from one saved number per query.
#
# The deep dives (`04_flash_attention_dives.ipynb`) judge six claims, and cover exactness, the gradients of the library's kernel and attention
# to pairs. Next: `05_mixed_precision`. Half the bits, half the bytes, and what they cost.
#
# ## In your own words
#
# A colleague reads that FlashAttention has "linear memory" and plans to serve prompts of a million tokens with it on one GPU. What
# does stay linear, what does not, and which of exercise 2's numbers would you show them? Do the sums for one head of 128, and for
# a model with 32 layers and 8 key heads in BF16.

# %% [markdown] nbgrader={"grade": false, "grade_id": "reflection", "locked": false, "schema_version": 3, "solution": true, "task": false}
# *Your answer: what is linear, what is quadratic, and the numbers.*

# %% tags=["demo"] jupyter={"source_hidden": true}
import warnings

from torch.nn.attention.flex_attention import create_block_mask, flex_attention

predict("flex", "512 tokens, a window of 100, tiles of 64 × 64: how many tiles does FlexAttention visit?", unit="tiles")


def in_window(batch, head, i, j):
    return (j <= i) & (i - j < 100)


mask = create_block_mask(in_window, None, None, 512, 512, device="cpu", BLOCK_SIZE=64)
partial, whole = (int(each.sum()) if each is not None else 0 for each in (mask.kv_num_blocks, mask.full_kv_num_blocks))
q, k, v = (seeded(1, 2, 512, 64, seed=i) for i in range(3))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # uncompiled it makes the table; torch.compile(flex_attention) generates the kernel
    out = flex_attention(q, k, v, block_mask=mask)
visible = pairs(512, 512, window=100)
ours = sum(visits(visible, 64, 64))
show.against_prediction("flex", partial + whole, unit="tiles", source="read from the block mask")
with reveal("flex"):
    show.table(
        [
            ["tiles that hold a visible pair, counted pair by pair", ours],
            ["partly visible tiles of the block mask", partial],
            ["whole tiles of the block mask", whole],
            ["largest difference from float64", f"{float((out - exact(q, k, v, visible)[0]).abs().max()):.1e}"],
        ],
        ["window of 100, 512 tokens, tiles of 64 × 64", ""],
    )
calibration()
