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
#     title: Can an algorithm move less memory? Deep dives
#     minutes: 70
# ---

# %% [markdown]
# # Can an algorithm move less memory? Deep dives
#
# These sections are complete and ungraded. They judge seven claims about attention, show what tiles cost at the edge of a
# mask, and look at the backward pass, at attention that chooses its keys, and at attention to pairs. They can be read in any
# order.
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] jupyter={"source_hidden": true} nbgrader={"grade": false, "grade_id": "setup_dives", "locked": true, "schema_version": 3, "solution": false, "task": false}
import math

import numpy as np
import torch
from threeloops.hardware import accelerator, device
from threeloops.inner import interpreter
from threeloops.inner.costs import attention
from threeloops.inner.roofline import Roofline
from threeloops.lab import audit, calibration, explore, figure, myth, palette, predict, progress, reveal, show

INTERPRETED = interpreter.enable_without_gpu()  # without a GPU, Triton kernels run in Triton's interpreter, on the CPU
F = torch.nn.functional
h100 = accelerator("H100 SXM")
roof = Roofline(h100, "bf16")

# %% [markdown]
# ## How large is the table?
#
# Two texts give a size for the table of scores. Such a number means little without the number format and what is counted.

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("att-1")
myth("att-6")

# %% tags=["demo"] jupyter={"source_hidden": true}
scores = 4096 * 4096
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

# %% [markdown]
# ## The same arithmetic, another bound
#
# Count the bytes that must at least cross between memory and chip. Naive attention moves Q, K, V and the output once, and
# the table of scores four times. Fused attention moves the same without the table. The right panel divides the FLOPs by
# these bytes.

# %% tags=["demo"] jupyter={"source_hidden": true}
LENGTHS = [2**k for k in range(9, 18)]
naive = [attention(1, 1, n, n, 128) for n in LENGTHS]
fused = [attention(1, 1, n, n, 128, fused=True) for n in LENGTHS]
fig, (left, right) = figure(1, 2, width=12.5, height=4.1)
left.plot(LENGTHS, [work.bytes / 2**20 for work in naive], "o-", color=palette.vermillion)
left.plot(LENGTHS, [work.bytes / 2**20 for work in fused], "o-", color=palette.blue)
left.text(5500, 900, "naive: the scores\ncross four times", color=palette.vermillion, ha="right", va="bottom")
left.text(13000, 9, "Q, K, V and the\noutput, once each", color=palette.blue, va="top")
left.set(ylabel="MiB moved, at least", title="Traffic of one head, head_dim 128, BF16")
right.plot(LENGTHS, [work.intensity for work in naive], "o-", color=palette.vermillion)
right.plot(LENGTHS, [work.intensity for work in fused], "o-", color=palette.blue)
right.axhline(roof.ridge_point, color=palette.ink, ls=":", lw=1.3)
right.text(LENGTHS[-1], roof.ridge_point * 1.15, "ridge point of an H100", ha="right", fontsize=10)
right.text(8192, 35, "naive: memory-bound at every length", color=palette.vermillion, ha="center", va="top")
right.text(8192, fused[4].intensity * 1.4, "without the table ", color=palette.blue, ha="right")
right.set(ylabel="FLOP per byte", title="The same arithmetic, another bound", ylim=(15, 1.5e5))
for axes in (left, right):
    axes.set(xscale="log", yscale="log", xlabel="tokens")
    axes.set_xticks(LENGTHS[::2], [f"{n // 1024}k" if n >= 1024 else n for n in LENGTHS[::2]])
    axes.minorticks_off()
show.figure(fig)

# %% [markdown]
# The naive version stays at some 60 FLOP per byte however long the sequence is, far below the ridge. Without the table the same work is
# limited by the tensor cores from a thousand tokens on.
#
# ## Is the traffic sub-quadratic?
#
# In the next claim, *M* is the size of the on-chip memory, which bounds the block.

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("att-2")

# %% tags=["demo"] jupyter={"source_hidden": true}
TOKENS = [1024, 2048, 4096, 8192, 16384]
fig, axes = figure(width=8.5, height=3.8)
for block, shade in ((64, palette.vermillion), (128, palette.orange), (256, palette.green)):
    loads = [(n + 2 * n * n // block) * 128 * 2 / 2**20 for n in TOKENS]  # Q once, K and V once per block of queries
    axes.plot(TOKENS, loads, "o-", color=shade)
    axes.text(TOKENS[-1] * 1.08, loads[-1], f"asked for, blocks of {block}", color=shade, va="center")
memory = [4 * n * 128 * 2 / 2**20 for n in TOKENS]
axes.plot(TOKENS, memory, "o-", color=palette.blue)
axes.text(TOKENS[-1] * 1.08, memory[-1], "held: Q, K, V, output", color=palette.blue, va="center")
axes.set(
    xscale="log",
    yscale="log",
    xlabel="tokens",
    ylabel="MiB",
    title="One head, head_dim 128, BF16: four times the loads for twice the tokens",
    xlim=(900, 60_000),
)
axes.set_xticks(TOKENS, [f"{n // 1024}k" for n in TOKENS])
axes.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
axes.minorticks_off()
with reveal("att-2"):
    show.figure(fig, "Loads of a fused kernel grow with the square of the tokens; what it holds grows with the tokens")
doubled = [(n + 2 * n * n // 128) * 128 * 2 for n in (4096, 8192)]
audit(
    "att-2",
    round(doubled[1] / doubled[0], 3),
    "× the loads for twice the tokens",
    "model",
    "corrected",
    how="K and V are read once for each block of queries: 2·N²·d / block_m elements, quadratic in N. The block, bounded by the on-chip memory M, divides the constant: Θ(N²d²/M). The caches answer most of these requests, but that does not change how often the programs ask",
)

# %% [markdown]
# So FlashAttention is **not** sub-quadratic in traffic. It divides a quadratic term by the block, and it removes the quadratic
# *memory*. The repeated loads of K and V come from L2, not from DRAM, as long as the keys and values of the running heads fit there.
#
# ## Tiles at the edge
#
# Orange pairs of query and key are seen. Blue ones are hidden, but computed all the same, because their tile is visited.
# Change the sizes: how much is blue?


# %% tags=["demo"] jupyter={"source_hidden": true}
def seen_pairs(mask, tokens):
    distance = np.arange(tokens)[:, None] - np.arange(tokens)[None, :]
    if mask == "none":
        return np.ones((tokens, tokens), bool)
    return (distance >= 0) & ((distance < 64) | (mask == "causal"))


def draw_tiles(mask, tokens, block_m, block_n):
    """Draw the pairs that are seen in orange, and the other pairs of visited tiles in blue."""
    seen = seen_pairs(mask, tokens)
    fig, axes = figure(width=7.5, height=4.6)
    visited = np.zeros_like(seen)
    for top in range(0, tokens, block_m):
        for left in range(0, tokens, block_n):
            tile = np.s_[top : top + block_m, left : left + block_n]
            visited[tile] = seen[tile].any()
    picture = np.where(seen, 2.0, np.where(visited, 1.0, 0.0))
    colours = ["#00000000", palette.blue, palette.orange]
    for level in (1, 2):
        axes.contourf(picture == level, levels=[0.5, 1.5], colors=[colours[level]])
    axes.set(xlim=(-0.5, tokens - 0.5), ylim=(tokens - 0.5, -0.5), xlabel="keys", ylabel="queries", aspect="equal")
    axes.set_title(f"computed: {visited.sum() / seen.sum():.2f} × the pairs that are seen", fontsize=11)
    axes.text(tokens * 1.05, tokens * 0.1, "visited, but hidden", color=palette.blue)
    axes.text(tokens * 1.05, tokens * 0.2, "seen", color=palette.orange)
    axes.grid(visible=False)
    return fig


explore(
    draw_tiles,
    labels={"block_m": "queries in a tile", "block_n": "keys in a tile"},
    mask=["causal", "none", "window of 64"],
    tokens=(64, 320, 16, 256),
    block_m=[64, 32, 128],
    block_n=[32, 16, 64],
)


# %% tags=["demo"] jupyter={"source_hidden": true}
def visited(tokens, window, block):
    return sum(-(-(top + block) // block) - max(0, top - window + 1) // block for top in range(0, tokens, block))


fig, axes = figure(width=8.5, height=3.4)
WINDOWS = [64, 128, 256, 512, 1024, 2048, 4096]
seen = [sum(min(i + 1, window) for i in range(4096)) for window in WINDOWS]
for block, shade in ((32, palette.blue), (64, palette.orange), (128, palette.green)):
    computed = [visited(4096, window, block) * block * block for window in WINDOWS]
    ratios = [pairs / least for pairs, least in zip(computed, seen, strict=True)]
    axes.plot(WINDOWS, ratios, "o-", color=shade)
    axes.text(WINDOWS[0] * 0.93, ratios[0], f"{block} × {block}", color=shade, ha="right", va="center")
axes.set(
    xscale="log",
    xlabel="window",
    ylabel="computed / visible pairs",
    title="4,096 tokens: small windows waste most at the edges of tiles",
    xlim=(30, 4800),
    ylim=(0.9, None),
)
axes.set_xticks(WINDOWS, [f"{window:,}" for window in WINDOWS])
axes.minorticks_off()
show.figure(fig, "Pairs that visited tiles hold, divided by those that are visible, by window and by tile")

# %% [markdown]
# A window of 64 with tiles of 128 computes four times what is visible; with tiles of 64, twice. Small windows waste less with
# small tiles, but small tiles starve the tensor cores. The library's kernel chooses its tiles by device, dtype and
# head_dim, not by window.

# %% [markdown]
# ## Is it exact?
#
# Some texts say that FlashAttention is *exact*, equal to standard attention. In real arithmetic it is. In floating point both
# round, in different places, so the question is which of them is nearer to the truth. Compare each with float64, causal, in FP16 and BF16.

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("att-4")

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.inner.kernels.attention.flash_attention import flash_attention as library_attention


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


MEASURED = {
    (n, dtype): errors(n, dtype)
    for n in progress((128, 256, 512), "exactness")
    for dtype in (torch.float16, torch.bfloat16)
}
with reveal("att-4"):
    show.table(
        [
            [n, str(dtype).removeprefix("torch."), *(f"{e:.2e}" for e in rms), f"{rms[0] / rms[1]:.3f}"]
            for (n, dtype), rms in MEASURED.items()
        ],
        ["tokens", "dtype", "fused kernel", "naive chain", "torch's operator", "fused / naive"],
    )
worst = max(rms[0] / rms[1] for rms in MEASURED.values())
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
# ## The way back
#
# The backward pass needs the probabilities, which nobody stored. It recomputes them, tile by tile, from q, k and the
# logsumexp: P = exp(score − lse). One more trick avoids a second look at each row. The gradient through the softmax needs
# Σⱼ Pᵢⱼ · dPᵢⱼ, and that equals the dot product of the output with its own gradient: one number per query, computed beforehand.
#
# > dV = Pᵀ dO,  dP = dO Vᵀ,  dS = P ∘ (dP − rowsum(dO ∘ O)),  dQ = dS K / √d,  dK = dSᵀ Q / √d
#
# Five products instead of two, q kᵀ again and these four, and still no table. The library splits them in two kernels, one
# that owns keys and sums dK and dV, one that owns queries and sums dQ. Both need the scores and dP, which makes
# seven products. That is the price of avoiding atomics, and of runs that agree bit for bit.

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
# The fused version saves memory, and that can be counted. Eager attention keeps the probabilities of every layer for
# the backward pass; the fused one keeps q, k, v, the output and one number per query.

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("att-7")

# %% tags=["demo"] jupyter={"source_hidden": true}
SIZES = [2**k for k in range(9, 16)]
held_naive = [(4 * n * 128 + n * n) * 2 for n in SIZES]  # q, k, v, out and P of one head, head_dim 128, BF16
held_fused = [4 * n * 128 * 2 + 4 * n for n in SIZES]
fig, axes = figure(width=8.5, height=3.2)
axes.plot(SIZES, [a / b for a, b in zip(held_naive, held_fused, strict=True)], "o-", color=palette.blue)
axes.axhspan(5, 20, color=palette.orange, alpha=0.2, lw=0)
axes.text(SIZES[0], 13, "the claim: 5–20×", fontsize=10, va="center")
axes.set(
    xscale="log",
    yscale="log",
    xlabel="tokens",
    ylabel="× less memory held",
    title="What one head keeps for its backward pass, head_dim 128, BF16",
)
axes.set_yticks([2, 5, 10, 20, 50], [2, 5, 10, 20, 50])
axes.set_xticks(SIZES, [f"{n // 1024}k" if n >= 1024 else n for n in SIZES])
axes.minorticks_off()
with reveal("att-7"):
    show.figure(fig)
audit(
    "att-7",
    round(held_naive[3] / held_fused[3], 1),
    "× less memory held at 4,096 tokens",
    "model",
    "corrected",
    how="counted, for one head of width 128 in BF16: the factor is about 1 + N / 512, so 5–20× belongs to some 2,000 to 9,700 tokens",
)

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("att-3")

# %% tags=["demo"] jupyter={"source_hidden": true}
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
        how=f"forward, 64 heads, head_dim 128, BF16, on {torch.cuda.get_device_name()}",
    )
else:
    audit(
        "att-3",
        4.75,
        "× faster at 4,096 tokens",
        "published",
        "corrected",
        how="the course's own run on an H100 (4.04 on an H200; benchmarks/evidence): forward, 64 heads, head_dim 128, BF16. The factor grows with the length, which the claim does not name. On a GPU this cell measures several lengths",
    )

# %% [markdown]
# ## Attention that chooses its keys
#
# A window decides beforehand which keys a query sees. **DeepSeek's sparse attention** (DSA,
# [2025](https://arxiv.org/abs/2512.02556)) decides for each query. A small *indexer* first scores every earlier token s:
#
# > score(s) = Σⱼ wⱼ · max(0, qⱼ · kₛ), over the indexer's heads j
#
# All of its heads share one short key per token. Then attention reads the keys and values of the 2,048 tokens with the
# highest scores, and no others. [NSA](https://arxiv.org/abs/2502.11089) chooses blocks of 64 tokens instead, so that loads are
# contiguous.
#
# *Worked example.* Six tokens have the scores 0.1, 2.0, 0, 0.7, 1.5, 0.2, and two are read. Those are tokens 1 and 4.
# The softmax runs over these two alone: the others have no weight, as if a mask hid them.
#
# The table of lab 15's paged attention may list any blocks, so listing the chosen ones is all that the kernel needs. The
# meter counts a decode step with 4,096 tokens, of which 16 blocks of 16 are read.

# %% tags=["demo"]
predict(
    "chosen", "How many times fewer bytes do the indexer and the chosen blocks move than dense attention?", unit="×"
)

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.inner.kernels.attention.paged_attention import cost as paged_cost
from threeloops.inner.kernels.attention.paged_attention import paged_attention
from threeloops.inner.kernels.sparse.lightning_indexer import choose_blocks, index_scores
from threeloops.inner.kernels.sparse.lightning_indexer import cost as index_cost

TOKENS_KEPT, BLOCK, CHOSEN, HEADS, WIDTH, INDEX_HEADS, INDEX_WIDTH = 4096, 16, 16, 16, 128, 4, 32
generator = torch.Generator().manual_seed(2)


def bf16(*shape):
    return torch.randn(shape, generator=generator).bfloat16().to(device())


query, keys, values = bf16(1, HEADS, WIDTH), bf16(TOKENS_KEPT, 1, WIDTH), bf16(TOKENS_KEPT, 1, WIDTH)
index_query, index_keys, index_weights = (
    bf16(1, INDEX_HEADS, INDEX_WIDTH),
    bf16(1, TOKENS_KEPT, INDEX_WIDTH),
    bf16(1, 4),
)
length = torch.tensor([TOKENS_KEPT], dtype=torch.int32, device=device())
every_block = torch.arange(TOKENS_KEPT // BLOCK, dtype=torch.int32, device=device())[None]


def dense_step():
    return paged_attention(query, keys, values, every_block, length, BLOCK, splits=1)


def indexer_step():
    return index_scores(index_query, index_keys, index_weights)


choice = choose_blocks(indexer_step(), length, BLOCK, CHOSEN)


def chosen_step():
    return paged_attention(query, keys, values, choice.blocks, choice.lengths, BLOCK, splits=1)


hidden = torch.ones(TOKENS_KEPT // BLOCK, BLOCK, dtype=torch.bool, device=device())
hidden[choice.blocks[0].long()] = False
scores = query[0].double() @ keys[:, 0].double().T / math.sqrt(WIDTH)
truth = scores.masked_fill(hidden.flatten(), -math.inf).softmax(-1) @ values[:, 0].double()
difference = float((chosen_step()[0].double() - truth).abs().max())
print(f"largest difference from dense attention with all other blocks hidden, in float64: {difference:.1e}")
assert difference < 2e-2  # the result is rounded to BF16
if INTERPRETED:
    from threeloops.inner.meter import meter

    moved = {}
    for name, step in (("dense", dense_step), ("indexer", indexer_step), ("chosen blocks", chosen_step)):
        with meter() as traffic:
            step()
        moved[name] = traffic.total.unique_bytes
    forms = {
        "dense": paged_cost(TOKENS_KEPT, 1, HEADS, 1, WIDTH, block_size=BLOCK),
        "indexer": index_cost(TOKENS_KEPT, 1, INDEX_HEADS, INDEX_WIDTH),
        "chosen blocks": paged_cost(CHOSEN * BLOCK, 1, HEADS, 1, WIDTH, block_size=BLOCK),
    }
    with reveal("chosen"):
        show.against_prediction(
            "chosen",
            round(moved["dense"] / (moved["indexer"] + moved["chosen blocks"]), 2),
            unit="×",
            source="counted in Triton's interpreter",
        )
        show.table(
            [(name, f"{size:,}", f"{forms[name].bytes:,.0f}") for name, size in moved.items()],
            ["16 heads share one key and value of 128, BF16", "bytes counted", "closed form"],
            caption="A sixteenth of the tokens is read, but the indexer reads a key of 32 elements of every token",
        )
    assert moved == {name: work.bytes for name, work in forms.items()}
else:
    print("The traffic meter works only in Triton's interpreter, which this course uses on machines without a GPU.")

# %% [markdown]
# In DeepSeek-V3.2, a token's keys and values take 1,152 bytes per layer in BF16 (lab 15's dives say why). The indexer's key
# has 128 elements, which vLLM stores in FP8 with a scale of 4 bytes: 132 bytes.

# %% tags=["demo"]
predict("even", "From how many tokens of context on does it move fewer bytes than dense attention?", unit="tokens")

# %% tags=["demo"] jupyter={"source_hidden": true}
ENTRY, INDEX_ENTRY, READ = 1152, 132, 2048
CONTEXTS = [2**k for k in range(9, 21)]
even = READ * ENTRY / (ENTRY - INDEX_ENTRY)  # context · 1,152 = context · 132 + 2,048 · 1,152
costs = [(n, n * ENTRY, n * INDEX_ENTRY, min(n, READ) * ENTRY) for n in CONTEXTS]
plot, axes = figure(width=8.0, height=3.4)
for place, name, colour in (
    (1, "dense", palette.vermillion),
    (2, "indexer", palette.sky),
    (3, "chosen tokens", palette.green),
):
    axes.plot(CONTEXTS, [row[place] for row in costs], color=colour, lw=1.4)
    axes.text(CONTEXTS[-1] * 1.15, costs[-1][place], name, color=colour, va="top" if name == "indexer" else "center")
axes.plot(CONTEXTS, [row[2] + row[3] for row in costs], "o-", color=palette.blue, ms=3)
axes.text(CONTEXTS[-1] * 1.15, 1.7 * (costs[-1][2] + costs[-1][3]), "indexer + chosen", color=palette.blue, va="center")
axes.axvline(even, color=palette.ink, ls=":", lw=1.2)
axes.set(xscale="log", yscale="log", xlim=(400, 9e6), xlabel="tokens of context", ylabel="bytes per layer and step")
axes.set_xticks(CONTEXTS[1::3], [f"{n // 1024}k" for n in CONTEXTS[1::3]])
axes.minorticks_off()
with reveal("even"):
    show.against_prediction("even", round(even), unit="tokens", source="counted")
    show.figure(
        plot, "bytes that one decode step reads per layer, dense and sparse; they cross just above 2,048 tokens"
    )
    show.table(
        [
            (f"{n:,}", f"{dense / (index + chosen):.2f}×", f"{index / (index + chosen):.0%}")
            for n, dense, index, chosen in costs[::2]
        ],
        ["tokens of context", "fewer bytes than dense", "share of the indexer"],
        caption="DeepSeek-V3.2's sizes: 64 indexer heads, index_topk 2,048, as in transformers' DeepseekV32Config",
    )

# %% [markdown]
# Up to 2,048 tokens nothing is left out, so the indexer's work comes on top. Far above, the chosen tokens hardly count,
# and the indexer limits the gain to 1,152 / 132 = 8.7 times. It still looks at every token, so a prefill stays quadratic
# in the context, with a smaller constant: per pair 64 · 2 · 128 FLOPs instead of 128 · 2 · (192 + 128).
#
# The indexer also has to be trained, because it must learn which tokens matter. DeepSeek trains it to imitate the weights
# of dense attention. With random numbers, as here, its choice means nothing; only bytes and values can be checked.
#
# ## Attention to pairs
#
# Why stop at one key? In **2-simplicial attention** ([Clift et al. 2019](https://arxiv.org/abs/1909.00668), [Roy et al.
# 2025](https://arxiv.org/abs/2507.02754)) a query looks at *pairs* of positions at once:
#
# > score(i, j, k) = Σ_d q[i, d] · k1[j, d] · k2[k, d],  out[i] = Σ weight(i, j, k) · (v1[j] ∘ v2[k])
#
# with one softmax over all pairs. All pairs of 4,096 tokens would be 69 billion scores per head. Two sliding windows, w1 for
# j and w2 for k, reduce that to N · w1 · w2. How many FLOPs per byte is that?

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("att-5")
predict(
    "simplicial",
    "4,096 tokens, windows of 512 and 32, head_dim 128, BF16, 6 · head_dim FLOPs per score: how many FLOP per byte, if q, k1, k2, v1, v2 and the output move once each?",
    unit="FLOP/byte",
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
]  # 6·d FLOPs per score as the paper counts; q, four keys and values, the output
show.against_prediction("simplicial", intensity[2], unit="FLOP/byte", source="model: counted")
with reveal("simplicial"):
    show.table(
        [[f"{a} × {b}", f"{value:,.0f}"] for (a, b), value in zip(PAIRS, intensity, strict=True)]
        + [["ridge point of an H100", f"{roof.ridge_point:,.0f}"]],
        ["windows w1 × w2", "FLOP per byte"],
    )
audit(
    "att-5",
    round(588 / 337, 2),
    "× the plain Triton kernel",
    "published",
    "cannot be tested here",
    how="published for the H100 in PyTorch's blog (Fast 2-Simplicial Attention: Hardware-Efficient Kernels in TLX): 588 TFLOP/s in BF16 for the kernel in TLX, 337 for plain Triton; 588 is 59% of the dense peak. The course's own Triton kernel reached 195 on an H100 (benchmarks/GPU.md)",
)

# %% [markdown]
# Compute-bound means that the tensor cores decide. The trilinear product is not a matrix product, but it becomes one when
# one of its factors is folded into another: for each pair (i, k), q[i] ∘ k2[k] is a made-up query, and the scores of many
# such queries against all j are an ordinary matmul. That is what the library's kernel does.

# %% tags=["demo"] jupyter={"source_hidden": true}
calibration()
