"""Attention: blocks with a running softmax, pages, merged parts, ragged batches, and linear attention."""

import math

import torch
import triton
import triton.language as tl

from kernels import FP16, FP32, INT32, INT64, case


@triton.jit
def flash_kernel(
    q, k, v, out, lse, scale, T, D: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr, CAUSAL: tl.constexpr
):
    base = tl.program_id(1).to(tl.int64) * T * D
    rq, d = tl.program_id(0) * BQ + tl.arange(0, BQ), tl.arange(0, D)
    queries = tl.load(q + base + rq[:, None] * D + d, mask=rq[:, None] < T, other=0.0)
    peak = tl.full((BQ,), float("-inf"), tl.float32)
    total, mixed = tl.zeros((BQ,), tl.float32), tl.zeros((BQ, D), tl.float32)
    end = tl.minimum((tl.program_id(0) + 1) * BQ, T) if CAUSAL else T
    for start in range(0, end, BK):
        start = tl.multiple_of(start, BK)
        rk = start + tl.arange(0, BK)
        keys = tl.load(k + base + rk[None, :] * D + d[:, None], mask=rk[None, :] < T, other=0.0)
        seen = (rk[None, :] <= rq[:, None]) if CAUSAL else (rk[None, :] < T)
        score = tl.where(seen, tl.dot(queries, keys) * (scale * 1.44269504), float("-inf"))
        higher = tl.maximum(peak, tl.max(score, 1))
        weight, shrink = tl.math.exp2(score - higher[:, None]), tl.math.exp2(peak - higher)
        values = tl.load(v + base + rk[:, None] * D + d, mask=rk[:, None] < T, other=0.0)
        mixed = tl.dot(weight.to(values.dtype), values, mixed * shrink[:, None])
        total = total * shrink + tl.sum(weight, 1)
        peak = higher
    tl.store(out + base + rq[:, None] * D + d, (mixed / total[:, None]).to(out.type.element_ty), mask=rq[:, None] < T)
    tl.store(lse + tl.program_id(1) * T + rq, peak / 1.44269504 + tl.log(total), mask=rq < T)


@case(loaded=FP16 * 3 * 2 * 40 * 16, stored=FP16 * 2 * 40 * 16 + FP32 * 2 * 40, tolerance=3e-3, compiles_slowly=True)
def causal_attention():
    """Stream over the keys before the diagonal with a running softmax to base 2."""
    q, k, v = torch.randn(3, 2, 40, 16).half().unbind()
    out, lse = torch.empty(2, 40, 16, dtype=torch.half), torch.empty(2, 40)
    flash_kernel[(3, 2)](q, k, v, out, lse, 0.25, 40, D=16, BQ=16, BK=16, CAUSAL=True)
    scores = (q.double() @ k.double().mT / 4).masked_fill(torch.ones(40, 40).triu(1).bool(), -torch.inf)
    return (out, lse), (scores.softmax(-1) @ v.double(), scores.logsumexp(-1))


@triton.jit
def paged_kernel(q, pool, table, lengths, out, scale, PAGES: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr):
    sequence, d, at = tl.program_id(0), tl.arange(0, D), tl.arange(0, PAGE)
    query, length = tl.load(q + sequence * D + d), tl.load(lengths + sequence)
    peak, total, mixed = float("-inf"), 0.0, tl.zeros((D,), tl.float32)
    for number in range(tl.cdiv(length, PAGE)):
        page = tl.load(table + sequence * PAGES + number).to(tl.int64)
        row = (page * 2 * PAGE + at)[:, None] * D + d
        inside = number * PAGE + at < length
        keys = tl.load(pool + row, mask=inside[:, None], other=0.0)
        score = tl.where(inside, tl.sum(query[None, :] * keys, 1) * scale, float("-inf"))
        higher = tl.maximum(peak, tl.max(score, 0))
        weight = tl.exp(score - higher)
        values = tl.load(pool + row + PAGE * D, mask=inside[:, None], other=0.0)
        mixed = mixed * tl.exp(peak - higher) + tl.sum(weight[:, None] * values, 0)
        total = total * tl.exp(peak - higher) + tl.sum(weight, 0)
        peak = higher
    tl.store(out + sequence * D + d, mixed / total)


@case(
    # 9 and 4 tokens on 3 and 1 pages, a key and a value of 16 numbers each.
    loaded=FP32 * (2 * 16 + (9 + 4) * 2 * 16) + INT32 * (3 + 1 + 2),
    stored=FP32 * 2 * 16,
    tolerance=1e-5,
)
def attention_over_pages():
    """Find keys and values by a table of pages, as many pages as a loaded length needs."""
    q, pool, lengths = torch.randn(2, 16), torch.randn(6, 2, 4, 16), torch.tensor([9, 4], dtype=torch.int32)
    table = torch.tensor([[5, 0, 3], [2, -1, -1]], dtype=torch.int32)
    out = torch.empty(2, 16)
    paged_kernel[(2,)](q, pool, table, lengths, out, 0.25, PAGES=3, PAGE=4, D=16)
    expected = []
    for query, pages, length in zip(q.double(), table.long(), (9, 4), strict=True):
        keys, values = pool[pages].double().transpose(0, 1).reshape(2, 12, 16)[:, :length]
        expected.append((keys @ query / 4).softmax(0) @ values)
    return out, torch.stack(expected)


@triton.jit
def merge_kernel(a, a_lse, b, b_lse, out, lse, D: tl.constexpr):
    row, d = tl.program_id(0), tl.arange(0, D)
    first, second = tl.load(a_lse + row), tl.load(b_lse + row)
    first = float("-inf") if first == float("inf") else first
    second = float("-inf") if second == float("inf") else second
    peak = tl.maximum(first, second)
    first, second = tl.exp(first - peak), tl.exp(second - peak)
    total = first + second
    mixed = tl.load(a + row * D + d) * (first / total) + tl.load(b + row * D + d) * (second / total)
    tl.store(out + row * D + d, mixed)
    tl.store(lse + row, tl.log(total) + peak)


@case(loaded=FP32 * 2 * (5 * 8 + 5), stored=FP32 * (5 * 8 + 5), tolerance=1e-6)
def merging_of_two_attention_states():
    """Weigh two partial results by their logarithms of sums; plus infinity stands for an empty part."""
    a, b, a_lse, b_lse = torch.randn(5, 8), torch.randn(5, 8), torch.randn(5), torch.randn(5)
    a_lse[2] = torch.inf
    out, lse = torch.empty(5, 8), torch.empty(5)
    merge_kernel[(5,)](a, a_lse, b, b_lse, out, lse, D=8)
    both = torch.stack([a_lse, b_lse]).double().masked_fill(torch.stack([a_lse, b_lse]) == torch.inf, -torch.inf)
    mixed = (both.softmax(0)[..., None] * torch.stack([a, b]).double()).sum(0)
    return (out, lse), (mixed, both.logsumexp(0))


@triton.jit
def cache_write_kernel(key, cache, slots, width: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr):
    token, at = tl.program_id(0), tl.arange(0, BLOCK)
    slot = tl.load(slots + token).to(tl.int64)
    if slot < 0:
        return
    value = tl.load(key + token * width + at, mask=at < width)
    tl.store(cache + (slot // PAGE * PAGE + slot % PAGE) * width + at, value, mask=at < width)


@case(loaded=INT64 * 5 + FP32 * 4 * 12, stored=FP32 * 4 * 12)
def writing_keys_into_pages():
    """Scatter rows to the slots of a cache; a negative slot is padding and returns at once."""
    key, cache, slots = torch.randn(5, 12), torch.zeros(4, 4, 12), torch.tensor([7, 0, -1, 13, 2])
    cache_write_kernel[(5,)](key, cache, slots, width=12, PAGE=4, BLOCK=16)
    expected = torch.zeros(16, 12)
    expected[[7, 0, 13, 2]] = key[[0, 1, 3, 4]]
    return cache, expected.view(4, 4, 12)


@triton.jit
def ragged_attention_kernel(q, k, v, out, starts, scale, H: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
    sequence, head = tl.program_id(0), tl.program_id(1)
    start = tl.load(starts + sequence)
    length = tl.load(starts + sequence + 1) - start
    r, d = tl.arange(0, BLOCK), tl.arange(0, D)
    at, inside = ((start + r) * H + head)[:, None] * D + d, (r < length)[:, None]
    queries = tl.load(q + at, mask=inside, other=0.0)
    keys, values = tl.load(k + at, mask=inside, other=0.0), tl.load(v + at, mask=inside, other=0.0)
    bias = (r[None, :] - r[:, None]) * tl.exp2(-(head + 1).to(tl.float32))
    score = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale + bias
    score = tl.where(r[None, :] < length, score, -1e9)
    weight = tl.exp(score - tl.max(score, 1)[:, None])
    weight /= tl.sum(weight, 1)[:, None]
    tl.store(out + at, tl.dot(weight, values, input_precision="ieee"), mask=inside)


@case(loaded=FP32 * 3 * 20 * 2 * 16 + INT32 * 3, stored=FP32 * 20 * 2 * 16, tolerance=1e-5, compiles_slowly=True)
def ragged_attention_with_a_linear_bias():
    """Attend within two packed sequences, with a bias by distance whose slope depends on the head."""
    q, k, v = torch.randn(3, 20, 2, 16).unbind()
    out, starts = torch.empty(20, 2, 16), torch.tensor([0, 7, 20], dtype=torch.int32)
    ragged_attention_kernel[(2, 2)](q, k, v, out, starts, 0.25, H=2, D=16, BLOCK=16)
    expected = []
    for part in (slice(0, 7), slice(7, 20)):
        query, key, value = (each[part].double().transpose(0, 1) for each in (q, k, v))
        at = torch.arange(query.shape[1])
        bias = (at[None] - at[:, None]) * torch.tensor([0.5, 0.25]).view(2, 1, 1)
        expected.append(((query @ key.mT / 4 + bias).softmax(-1) @ value).transpose(0, 1))
    return out, torch.cat(expected)


@triton.jit
def delta_rule_kernel(q, k, v, beta, out, T, D: tl.constexpr, BV: tl.constexpr):
    d, column = tl.arange(0, D), tl.program_id(0) * BV + tl.arange(0, BV)
    state = tl.zeros([BV, D], dtype=tl.float32)
    for _ in range(T):
        key = tl.load(k + d).to(tl.float32)
        value = tl.load(v + column).to(tl.float32)
        value -= tl.sum(state * key[None, :], axis=1)
        value *= tl.load(beta)
        state += key[None, :] * value[:, None]
        tl.store(out + column, tl.sum(state * tl.load(q + d)[None, :], axis=1))
        q, k, v, out, beta = q + D, k + D, v + D, out + D, beta + 1


@case(loaded=FP32 * (3 * 6 * 16 + 6), stored=FP32 * 6 * 16, tolerance=1e-5)
def recurrent_delta_rule():
    """Move five pointers on in a loop and correct a matrix-valued state at every step."""
    q, k, v, beta = torch.randn(6, 16), torch.randn(6, 16) / 4, torch.randn(6, 16), torch.rand(6)
    out = torch.empty(6, 16)
    delta_rule_kernel[(2,)](q, k, v, beta, out, 6, D=16, BV=8)
    state, expected = torch.zeros(16, 16, dtype=torch.float64), []
    for query, key, value, rate in zip(q.double(), k.double(), v.double(), beta.double(), strict=True):
        state = state + torch.outer(rate * (value - state @ key), key)
        expected.append(state @ query)
    return out, torch.stack(expected)


@triton.jit
def chunk_kernel(q, k, v, out, decay, T, D: tl.constexpr, C: tl.constexpr, PADDING: tl.constexpr):
    log_decay = tl.load(decay + tl.program_id(0))
    base, c = tl.program_id(0) * T * D, tl.arange(0, C)
    state = tl.zeros((D, D), dtype=tl.float32)
    inner = tl.where(c[:, None] >= c[None, :], tl.exp((c[:, None] - c[None, :]) * log_decay), 0.0)
    for chunk in range(tl.cdiv(T, C)):
        pq = tl.make_block_ptr(q + base, (T, D), (D, 1), (chunk * C, 0), (C, D), (1, 0))
        pk = tl.make_block_ptr(k + base, (D, T), (1, D), (0, chunk * C), (D, C), (0, 1))
        pv = tl.make_block_ptr(v + base, (T, D), (D, 1), (chunk * C, 0), (C, D), (1, 0))
        po = tl.make_block_ptr(out + base, (T, D), (D, 1), (chunk * C, 0), (C, D), (1, 0))
        queries = tl.load(pq, boundary_check=(0, 1), padding_option=PADDING)
        keys = tl.load(pk, boundary_check=(0, 1), padding_option=PADDING)
        values = tl.load(pv, boundary_check=(0, 1), padding_option=PADDING)
        near = tl.dot(tl.dot(queries, keys, allow_tf32=False) * inner, values, allow_tf32=False)
        far = tl.dot(queries * tl.exp((c + 1) * log_decay)[:, None], state, allow_tf32=False)
        tl.store(po, near + far, boundary_check=(0, 1))
        faded = keys * tl.exp((C - 1 - c) * log_decay)[None, :]
        state = tl.exp(C * log_decay) * state + tl.dot(faded, values, allow_tf32=False)


def chunked_linear_attention(padding):
    q, k, v = torch.randn(3, 2, 40, 16).unbind()
    out, decay = torch.empty(2, 40, 16), torch.tensor([-0.1, -0.5])
    chunk_kernel[(2,)](q, k, v, out, decay, 40, D=16, C=16, PADDING=padding)
    distance = (torch.arange(40)[:, None] - torch.arange(40)).double()
    weight = torch.where(distance >= 0, (distance * decay.double().view(2, 1, 1)).exp(), 0.0)
    return out, (q.double() @ k.double().mT * weight) @ v.double()


LINEAR_ATTENTION = {
    "loaded": FP32 * (3 * 2 * 40 * 16 + 2), "stored": FP32 * 2 * 40 * 16, "until": "3.8", "compiles_slowly": True,
}  # fmt: skip


@case(**LINEAR_ATTENTION, tolerance=1e-5)
def linear_attention_in_chunks():
    """Combine attention within a chunk with a decayed state of the chunks before it, by block pointers."""
    return chunked_linear_attention("zero")


@case(**LINEAR_ATTENTION, faults=("undefined-lane",))
def linear_attention_without_padding():
    """Load by block pointers that check boundaries without a padding option, and multiply the undefined rows by 0."""
    return chunked_linear_attention("")


@triton.jit
def decode_kernel(q, k, v, mixed, lse, T, D: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    kv_head, split = tl.program_id(0), tl.program_id(1)
    share = tl.cdiv(T, SPLITS)
    g, d = tl.arange(0, 4), tl.arange(0, D)
    queries = tl.load(q + (kv_head * 4 + g)[:, None] * D + d)
    peak, total = tl.zeros([4], tl.float32) - float("inf"), tl.zeros([4], tl.float32)
    result = tl.zeros([4, D], tl.float32)
    end = tl.minimum((split + 1) * share, T)
    for start in range(split * share, end, BLOCK):
        t = start + tl.arange(0, BLOCK)
        at, inside = (kv_head * T + t)[:, None] * D + d, (t < end)[:, None]
        keys, values = tl.load(k + at, inside, other=0.0), tl.load(v + at, inside, other=0.0)
        score = tl.sum(queries[:, None, :] * keys[None, :, :], 2)
        score = tl.where(t[None, :] < end, score, float("-inf"))
        higher = tl.maximum(peak, tl.max(score, 1))
        weight = tl.exp(score - higher[:, None])
        result = result * tl.exp(peak - higher)[:, None] + tl.sum(weight[:, :, None] * values[None, :, :], 1)
        total = total * tl.exp(peak - higher) + tl.sum(weight, 1)
        peak = higher
    row = (kv_head * SPLITS + split) * 4 + g
    tl.store(mixed + row[:, None] * D + d, result / total[:, None])
    tl.store(lse + row, peak + tl.log(total))


@triton.jit
def combine_kernel(mixed, lse, out, D: tl.constexpr, SPLITS: tl.constexpr):
    head, group = tl.program_id(0), tl.program_id(1)
    row, d = (head * SPLITS + tl.arange(0, SPLITS)) * 4 + group, tl.arange(0, D)
    weight = tl.load(lse + row)
    weight = tl.exp(weight - tl.max(weight, 0))
    parts = tl.load(mixed + row[:, None] * D + d)
    tl.store(out + (head * 4 + group) * D + d, tl.sum(parts * weight[:, None], 0) / tl.sum(weight, 0))


@case(
    loaded=FP32 * (8 * 16 + 2 * 2 * 30 * 16 + 2 * 2 * 4 * (16 + 1)),
    stored=FP32 * (2 * 2 * 4 * (16 + 1) + 8 * 16),
    tolerance=1e-5,
    compiles_slowly=True,
)
def decoding_with_split_keys():
    """Give each of two programs half of the keys, for four query heads at once, and combine them in a second launch."""
    q, k, v = torch.randn(8, 16) / math.sqrt(16), torch.randn(2, 30, 16), torch.randn(2, 30, 16)
    mixed, lse, out = torch.empty(2, 2, 4, 16), torch.empty(2, 2, 4), torch.empty(8, 16)
    decode_kernel[(2, 2)](q, k, v, mixed, lse, 30, D=16, SPLITS=2, BLOCK=8)
    combine_kernel[(2, 4)](mixed, lse, out, D=16, SPLITS=2)
    weight = (q.double().view(2, 4, 16) @ k.double().mT).softmax(-1)
    return out, (weight @ v.double()).reshape(8, 16)
