"""Mixtures of experts: counting, placing, multiplying and bringing back the tokens of each expert."""

import torch
import triton
import triton.language as tl

from kernels import FP16, FP32, INT32, case


@triton.jit
def place_kernel(experts, cursor, places, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    expert = tl.load(experts + at, mask=at < n, other=0)
    tl.store(places + at, tl.atomic_add(cursor + expert, 1, mask=at < n), mask=at < n)


@case(loaded=INT32 * (20 + 4), stored=INT32 * (20 + 4))
def places_by_atomic_counters():
    """Use what an atomic addition returns as the place of a token among those of its expert."""
    experts = torch.randint(0, 4, (20,), dtype=torch.int32)
    cursor, places = torch.zeros(4, dtype=torch.int32), torch.empty(20, dtype=torch.int32)
    place_kernel[(3,)](experts, cursor, places, 20, BLOCK=8)
    # Any order within an expert is right, so its places are compared sorted.
    ours = torch.cat([places[experts == expert].sort().values for expert in range(4)])
    count = torch.bincount(experts, minlength=4)
    return (ours, cursor), (torch.cat([torch.arange(each) for each in count]), count)


@triton.jit
def expert_product_kernel(
    x, w, out, order, block_expert, n, TOP: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr
):
    block = tl.program_id(0)
    slot = tl.load(order + block * BLOCK + tl.arange(0, BLOCK))
    expert = tl.load(block_expert + block).to(tl.int64)
    column, k = tl.arange(0, N), tl.arange(0, K)
    real = (slot < n)[:, None]
    rows = tl.load(x + (slot // TOP)[:, None] * K + k, mask=real, other=0.0)
    product = tl.dot(rows, tl.load(w + expert * K * N + k[:, None] * N + column))
    tl.store(out + slot[:, None] * N + column, product.to(tl.float16), mask=real)


@case(
    # 3 blocks of 16 slots; the last one is all padding. 2 of the 4 experts are used, and all 9 tokens.
    loaded=INT32 * (48 + 3) + FP16 * (9 * 16 + 2 * 16 * 32),
    stored=FP16 * 18 * 32,
    tolerance=2e-3,
    compiles_slowly=True,
)
def product_of_tokens_with_their_experts():
    """Multiply padded blocks of tokens, each by the weights of one expert; slots past the end are padding."""
    x, w = torch.randn(9, 16).half(), torch.randn(4, 16, 32).half()
    experts = torch.tensor([[1, 3]] * 8 + [[1, 1]]).flatten()
    ones, threes = (experts == 1).nonzero().flatten(), (experts == 3).nonzero().flatten()
    order = torch.full((48,), 18, dtype=torch.int32)
    order[:10], order[16:24] = ones, threes
    out = torch.empty(18, 32, dtype=torch.half)
    block_expert = torch.tensor([1, 3, 3], dtype=torch.int32)
    expert_product_kernel[(3,)](x, w, out, order, block_expert, 18, TOP=2, N=32, K=16, BLOCK=16)
    return out, (x.double().repeat_interleave(2, 0)[:, None] @ w[experts].double())[:, 0]


@triton.jit
def bring_back_kernel(rows, places, weights, out, D: tl.constexpr, TOP: tl.constexpr):
    token, d = tl.program_id(0), tl.arange(0, D)
    total = tl.zeros((D,), dtype=tl.float32)
    for rank in range(TOP):
        place = tl.load(places + token * TOP + rank)
        total += tl.load(weights + token * TOP + rank) * tl.load(rows + place * D + d).to(tl.float32)
    tl.store(out + token * D + d, total)


@case(loaded=FP16 * 12 * 16 + (INT32 + FP32) * 12, stored=FP32 * 6 * 16, tolerance=1e-6)
def weighted_sum_of_the_experts():
    """Gather the rows of a token from where they were placed and add them up by weight."""
    rows, places = torch.randn(12, 16).half(), torch.randperm(12).int().view(6, 2)
    weights, out = torch.rand(6, 2), torch.empty(6, 16)
    bring_back_kernel[(6,)](rows, places, weights, out, D=16, TOP=2)
    return out, (rows[places.long()].double() * weights[..., None]).sum(1)


@triton.jit
def aligned_counts_kernel(counts, starts, E: tl.constexpr, BLOCK: tl.constexpr):
    expert = tl.arange(0, E)
    aligned = tl.cdiv(tl.load(counts + expert), BLOCK) * BLOCK
    end = tl.cumsum(aligned, 0)
    tl.store(starts + expert, end - aligned)
    tl.store(starts + E, tl.sum(aligned, 0))


@case(loaded=INT32 * 8, stored=INT32 * 9)
def starts_of_padded_experts():
    """Round counts up to whole blocks and turn them into starts with a prefix sum."""
    counts, starts = torch.tensor([3, 0, 16, 17, 1, 0, 0, 40]).int(), torch.empty(9, dtype=torch.int32)
    aligned_counts_kernel[(1,)](counts, starts, E=8, BLOCK=16)
    return starts, torch.tensor([0, 16, 16, 32, 64, 80, 80, 80, 128])
