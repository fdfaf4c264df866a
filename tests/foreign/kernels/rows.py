"""Kernels that reduce rows: softmax, norms and their gradients, losses, argmax, sorting."""

import torch
import triton
import triton.language as tl

from kernels import FP16, FP32, INT32, INT64, case


@triton.jit
def softmax_kernel(x, out, rows, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=2):
        value = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
        weight = tl.exp(value - tl.max(value, axis=0))
        tl.store(out + row * columns + at, weight / tl.sum(weight, axis=0), mask=at < columns)


@case(loaded=FP32 * 7 * 50, stored=FP32 * 7 * 50, tolerance=1e-6)
def softmax_with_a_row_loop():
    """Take every third row in each of three programs, padded with minus infinity."""
    x = torch.randn(7, 50)
    out = torch.empty(7, 50)
    softmax_kernel[(3,)](x, out, 7, 50, BLOCK=64)
    return out, x.double().softmax(1)


@triton.jit
def online_softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    peak, total = -float("inf"), 0.0
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
        higher = tl.maximum(peak, tl.max(value))
        total = total * tl.exp(peak - higher) + tl.sum(tl.exp(value - higher))
        peak = higher
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * columns + at, mask=at < columns)
        tl.store(out + row * columns + at, tl.exp(value - peak) / total, mask=at < columns)


@case(loaded=FP32 * 3 * 75, stored=FP32 * 3 * 75, tolerance=1e-6)
def softmax_in_two_passes():
    """Keep a running maximum and sum, then read the row a second time, which moves no new bytes."""
    x = 5 * torch.randn(3, 75)
    out = torch.empty(3, 75)
    online_softmax_kernel[(3,)](x, out, 75, BLOCK=16)
    return out, x.double().softmax(1)


@triton.jit
def rms_norm_kernel(x, weight, out, rstd, stride, columns, eps, offset, BLOCK: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row * stride + at, mask=inside, other=0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / columns + eps)
    tl.store(rstd + row, scale)
    scaled = value * scale * (offset + tl.load(weight + at, mask=inside, other=0))
    tl.store(out + row * columns + at, scaled.to(out.dtype.element_ty), mask=inside)


@case(loaded=FP16 * 4 * 40 + FP32 * 40, stored=FP16 * 4 * 40 + FP32 * 4, tolerance=2e-3)
def rms_norm_of_a_strided_view():
    """Normalise the left part of wider rows in float32 and store the reciprocal of the norm for the backward pass."""
    x, weight = torch.randn(4, 60).half()[:, :40], torch.randn(40)
    out, rstd = torch.empty(4, 40, dtype=torch.half), torch.empty(4)
    rms_norm_kernel[(4,)](x, weight, out, rstd, x.stride(0), 40, 1e-5, 1.0, BLOCK=64)
    scale = (x.double().square().mean(1) + 1e-5).rsqrt()
    return (out, rstd), (x.double() * scale[:, None] * (1 + weight.double()), scale)


@triton.jit
def layer_norm_kernel(x, weight, bias, out, mean, rstd, columns, eps, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row * columns + at, mask=inside, other=0.0)
    average = tl.sum(value, axis=0) / columns
    centred = tl.where(inside, value - average, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, axis=0) / columns + eps)
    tl.store(mean + row, average)
    tl.store(rstd + row, scale)
    shifted = centred * scale * tl.load(weight + at, mask=inside) + tl.load(bias + at, mask=inside)
    tl.store(out + row * columns + at, shifted, mask=inside)


@case(loaded=FP32 * (5 * 30 + 2 * 30), stored=FP32 * (5 * 30 + 2 * 5), tolerance=1e-5)
def layer_norm():
    """Subtract the mean where lanes are inside, so that padding does not count in the variance."""
    x, weight, bias = 3 + torch.randn(5, 30), torch.randn(30), torch.randn(30)
    out, mean, rstd = torch.empty(5, 30), torch.empty(5), torch.empty(5)
    layer_norm_kernel[(5,)](x, weight, bias, out, mean, rstd, 30, 1e-5, BLOCK=32)
    wide = x.double()
    scale = (wide.var(1, correction=0) + 1e-5).rsqrt()
    expected = (wide - wide.mean(1, keepdim=True)) * scale[:, None] * weight + bias
    return (out, mean, rstd), (expected, wide.mean(1), scale)


@triton.jit
def locked_sum_kernel(x, dy, partial, locks, columns, GROUPS: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < columns
    product = tl.load(x + row * columns + at, inside, other=0) * tl.load(dy + row * columns + at, inside, other=0)
    group = row % GROUPS
    lock, count = locks + group, locks + GROUPS + group
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    if tl.load(count) == 0:
        tl.atomic_xchg(count, 1)
    else:
        product += tl.load(partial + group * columns + at, inside, other=0)
    tl.store(partial + group * columns + at, product, inside)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@case(
    # Each of the two groups loads its partial sums at its second and third row; a lock and a count are 4 bytes.
    loaded=FP32 * (2 * 6 * 20 + 2 * 20) + INT32 * 2 * 2,
    stored=FP32 * 2 * 20 + INT32 * 2 * 2,
    tolerance=1e-6,
)
def weight_gradient_under_locks():
    """Add rows to two partial sums under a spin lock per sum; the first program to come stores without loading."""
    x, dy = torch.randn(2, 6, 20).unbind()
    partial, locks = torch.empty(2, 20), torch.zeros(4, dtype=torch.int32)
    locked_sum_kernel[(6,)](x, dy, partial, locks, 20, GROUPS=2, BLOCK=32)
    return partial, (x.double() * dy).view(3, 2, 20).sum(0)


@triton.jit
def column_sum_kernel(partial, out, rows, columns, BR: tl.constexpr, BC: tl.constexpr):
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    total = tl.zeros((BR, BC), dtype=tl.float32)
    for start in range(0, rows, BR):
        r = start + tl.arange(0, BR)
        inside = (r[:, None] < rows) & (c[None, :] < columns)
        total += tl.load(partial + r[:, None] * columns + c[None, :], mask=inside, other=0.0)
    tl.store(out + c, tl.sum(total, axis=0), mask=c < columns)


@case(loaded=FP32 * 21 * 40, stored=FP32 * 40, tolerance=1e-5)
def column_sums():
    """Add up the columns of partial sums in a tile, and the rows of the tile at the end."""
    partial = torch.randn(21, 40)
    out = torch.empty(40)
    column_sum_kernel[(3,)](partial, out, 21, 40, BR=8, BC=16)
    return out, partial.double().sum(0)


@triton.jit
def cross_entropy_kernel(logits, target, loss, columns, ignored, count, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(target + row)
    logits += row * columns
    if label == ignored:
        for start in range(0, columns, BLOCK):
            at = start + tl.arange(0, BLOCK)
            tl.store(logits + at, 0.0, mask=at < columns)
        return
    peak, total = float("-inf"), 0.0
    wanted = tl.load(logits + label)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(logits + at, mask=at < columns, other=float("-inf"))
        higher = tl.maximum(peak, tl.max(value))
        total = total * tl.exp(peak - higher) + tl.sum(tl.exp(value - higher))
        peak = higher
    tl.store(loss + row, peak + tl.log(total) - wanted)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(logits + at, mask=at < columns)
        gradient = tl.exp(value - peak) / total - tl.where(at == label, 1.0, 0.0)
        tl.store(logits + at, gradient / count, mask=at < columns)


@case(
    loaded=FP32 * 4 * 50 + INT64 * 5,  # the logits of the ignored row stay unread
    stored=FP32 * (5 * 50 + 4),
    tolerance=1e-6,
)
def cross_entropy_with_its_gradient_in_place():
    """Overwrite the logits by their gradient; a row with the ignored label returns early."""
    logits, target = torch.randn(5, 50), torch.tensor([3, 49, -100, 0, 7])
    leaf, loss = logits.double().requires_grad_(), torch.zeros(5)
    expected = torch.nn.functional.cross_entropy(leaf, target, reduction="none")
    (expected.sum() / 4).backward()
    cross_entropy_kernel[(5,)](logits, target, loss, 50, -100, 4, BLOCK=16)
    return (loss, logits), (expected.detach(), leaf.grad)


@triton.jit
def argmax_kernel(x, value, index, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    loaded = tl.load(x + row * columns + at, mask=at < columns, other=float("-inf"))
    best, where = tl.max(loaded, axis=0, return_indices=True)
    tl.store(value + row, best)
    tl.store(index + row, where)


@case(loaded=FP32 * 6 * 45, stored=(FP32 + INT64) * 6)
def maximum_with_its_index():
    """Reduce to the maximum and its index, the lowest one of equals; the index is stored as int64."""
    x = torch.randint(0, 9, (6, 45)).float()
    value, index = torch.empty(6), torch.empty(6, dtype=torch.int64)
    argmax_kernel[(6,)](x, value, index, 45, BLOCK=64)
    return (value, index), (x.amax(1), (x == x.amax(1, keepdim=True)).int().argmax(1))


@triton.jit
def sort_kernel(x, out, DESCENDING: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.sort(tl.load(x + at), descending=DESCENDING))


@case(loaded=2 * FP32 * 3 * 32, stored=2 * FP32 * 3 * 32)
def sorted_rows():
    """Sort rows in both directions."""
    x = torch.randn(3, 32)
    outs = torch.empty(3, 32), torch.empty(3, 32)
    for descending, out in enumerate(outs):
        sort_kernel[(3,)](x, out, DESCENDING=bool(descending), BLOCK=32)
    return outs, (x.sort(1).values, x.sort(1, descending=True).values)


@triton.jit
def top_k_kernel(scores, weights, experts, E: tl.constexpr, K: tl.constexpr):
    token, at = tl.program_id(0), tl.arange(0, E)
    score = tl.load(scores + token * E + at)
    probability = tl.exp(score - tl.max(score, 0))
    probability /= tl.sum(probability, 0)
    total = 0.0
    for rank in tl.static_range(K):
        best = tl.argmax(probability, axis=0)
        weight = tl.max(probability, axis=0)
        tl.store(weights + token * K + rank, weight)
        tl.store(experts + token * K + rank, best)
        total += weight
        probability = tl.where(at == best, -1.0, probability)
    for rank in tl.static_range(K):
        tl.store(weights + token * K + rank, tl.load(weights + token * K + rank) / total)


@case(loaded=FP32 * (5 * 16 + 5 * 2), stored=(FP32 + INT32) * 5 * 2, tolerance=1e-6)
def gating_by_the_two_best_experts():
    """Take the maximum twice, and read back what the program has stored to normalise it."""
    scores = torch.randn(5, 16)
    weights, experts = torch.empty(5, 2), torch.empty(5, 2, dtype=torch.int32)
    top_k_kernel[(5,)](scores, weights, experts, E=16, K=2)
    best = scores.double().softmax(1).topk(2)
    return (weights, experts), (best.values / best.values.sum(1, keepdim=True), best.indices)


@triton.jit
def packed_top_k_kernel(x, values, N: tl.constexpr, K: tl.constexpr):
    row = tl.program_id(0)
    best = tl.topk(tl.load(x + row * N + tl.arange(0, N)), K)
    tl.store(values + row * K + tl.arange(0, K), best)


@case(loaded=FP32 * 4 * 64, stored=FP32 * 4 * 8)
def top_k_of_the_library():
    """Take the eight largest numbers of a row with the library's top-k."""
    x = torch.randn(4, 64)
    values = torch.empty(4, 8)
    packed_top_k_kernel[(4,)](x, values, N=64, K=8)
    return values, x.topk(8).values


@triton.jit
def combine_moments(mean1, m2_1, count1, mean2, m2_2, count2):
    count = count1 + count2
    share = tl.where(count == 0, 0.0, count2 / count)
    delta = mean2 - mean1
    return mean1 + delta * share, m2_1 + m2_2 + delta * delta * count1 * share, count


@triton.jit
def welford_kernel(x, mean, variance, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row * columns + at, mask=inside, other=0.0)
    average, m2, count = tl.reduce((value, tl.zeros_like(value), inside.to(tl.float32)), 0, combine_moments)
    tl.store(mean + row, average)
    tl.store(variance + row, m2 / count)


@case(loaded=FP32 * 3 * 40, stored=FP32 * 2 * 3, tolerance=1e-5)
def welford_reduction():
    """Reduce a tuple of mean, squared deviations and count with a combine function of the kernel's own."""
    x = 10 + torch.randn(3, 40)
    mean, variance = torch.empty(3), torch.empty(3)
    welford_kernel[(3,)](x, mean, variance, 40, BLOCK=64)
    return (mean, variance), (x.double().mean(1), x.double().var(1, correction=0))


@triton.jit
def group_norm_kernel(x, out, GROUP: tl.constexpr, WIDTH: tl.constexpr):
    c, w = tl.arange(0, GROUP)[:, None], tl.arange(0, WIDTH)[None, :]
    at = tl.program_id(0) * GROUP * WIDTH + c * WIDTH + w
    value = tl.load(x + at)
    mean = tl.sum(value) / (GROUP * WIDTH)
    centred = value - mean
    tl.store(out + at, centred * tl.rsqrt(tl.sum(centred * centred) / (GROUP * WIDTH) + 1e-5))


@case(loaded=FP32 * 2 * 8 * 16, stored=FP32 * 2 * 8 * 16, tolerance=1e-5)
def group_norm():
    """Reduce a tile over both axes at once."""
    x = torch.randn(2, 8, 16)
    out = torch.empty(2, 8, 16)
    group_norm_kernel[(4,)](x, out, GROUP=4, WIDTH=16)
    return out, torch.nn.functional.group_norm(x.double(), 2)


@triton.jit
def kl_kernel(student, teacher, loss, columns, BLOCK: tl.constexpr, LOG_TARGET: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    log_q = tl.load(student + row * columns + at, mask=at < columns, other=0.0)
    p = tl.load(teacher + row * columns + at, mask=at < columns, other=1.0)
    if LOG_TARGET:
        terms = tl.exp(p) * (p - log_q)
    else:
        terms = p * (tl.log(tl.maximum(p, 1e-10)) - log_q)
    tl.atomic_add(loss, tl.sum(tl.where(at < columns, terms, 0.0)) / tl.num_programs(0))


@case(loaded=FP32 * (2 * 4 * 20 + 1), stored=FP32, tolerance=1e-6)
def divergence_of_two_distributions():
    """Add the loss of every row to one number atomically."""
    student, teacher = torch.randn(4, 20).log_softmax(1), torch.randn(4, 20).softmax(1)
    loss = torch.zeros(1)
    kl_kernel[(4,)](student, teacher, loss, 20, BLOCK=32, LOG_TARGET=False)
    wide = teacher.double()
    return loss, (wide * (wide.log() - student)).sum().view(1) / 4
