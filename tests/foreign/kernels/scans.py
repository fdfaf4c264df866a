"""Kernels over sequences: prefix sums, recurrences, convolutions, ragged rows, lookups and histograms."""

import torch
import triton
import triton.language as tl

from kernels import FP32, INT32, INT64, case


@triton.jit
def chunked_cumsum_kernel(x, out, n, CHUNK: tl.constexpr):
    row = tl.program_id(0)
    carry = 0.0
    for chunk in range(tl.cdiv(n, CHUNK)):
        at = chunk * CHUNK + tl.arange(0, CHUNK)
        value = tl.load(x + row * n + at, mask=at < n, other=0.0)
        tl.store(out + row * n + at, carry + tl.cumsum(value, axis=0), mask=at < n)
        carry += tl.sum(value)


@case(loaded=FP32 * 2 * 50, stored=FP32 * 2 * 50, tolerance=1e-5)
def prefix_sum_in_chunks():
    """Carry the sum of a chunk to the next one, in a float that starts as a Python number."""
    x = torch.randn(2, 50)
    out = torch.empty(2, 50)
    chunked_cumsum_kernel[(2,)](x, out, 50, CHUNK=16)
    return out, x.double().cumsum(1)


@triton.jit
def linear_step(decay1, state1, decay2, state2):
    return decay1 * decay2, decay2 * state1 + state2


@triton.jit
def linear_scan_kernel(decay, x, out, T: tl.constexpr, REVERSE: tl.constexpr):
    at = tl.program_id(0) * T + tl.arange(0, T)
    _, state = tl.associative_scan((tl.load(decay + at), tl.load(x + at)), 0, linear_step, reverse=REVERSE)
    tl.store(out + at, state)


def recurrence(decay, x):
    """Return h with h[t] = decay[t] h[t-1] + x[t] along the last axis, in float64."""
    states, state = [], torch.zeros(x.shape[:-1], dtype=torch.float64)
    for step in range(x.shape[-1]):
        state = decay[..., step].double() * state + x[..., step]
        states.append(state)
    return torch.stack(states, -1)


@case(loaded=2 * 2 * FP32 * 3 * 32, stored=2 * FP32 * 3 * 32, tolerance=1e-5)
def linear_recurrence_by_associative_scan():
    """Scan pairs of decay and state with a combine function of the kernel's own, forward and in reverse."""
    decay, x = torch.rand(3, 32), torch.randn(3, 32)
    outs = torch.empty(3, 32), torch.empty(3, 32)
    for reverse, out in enumerate(outs):
        linear_scan_kernel[(3,)](decay, x, out, T=32, REVERSE=bool(reverse))
    return outs, (recurrence(decay, x), recurrence(decay.flip(1), x.flip(1)).flip(1))


@triton.jit
def selective_scan_kernel(u, delta, a, b, c, d, out, length, D: tl.constexpr, S: tl.constexpr):
    channel, s = tl.program_id(0), tl.arange(0, S)
    rate = -tl.exp(tl.load(a + channel * S + s))
    skip = tl.load(d + channel)
    state = tl.zeros([S], dtype=tl.float32)
    for step in range(length):
        x = tl.load(u + step * D + channel)
        width = tl.load(delta + step * D + channel)
        width = tl.where(width > 20.0, width, tl.log(1.0 + tl.exp(width)))
        state = tl.exp(width * rate) * state + width * x * tl.load(b + step * S + s)
        tl.store(out + step * D + channel, tl.sum(state * tl.load(c + step * S + s)) + skip * x)


@case(loaded=FP32 * (2 * 10 * 4 + 4 * 8 + 2 * 10 * 8 + 4), stored=FP32 * 10 * 4, tolerance=1e-5)
def selective_scan():
    """Step through a sequence with a state per channel, as in Mamba; all channels share the projections."""
    u, delta, a = torch.randn(10, 4), torch.randn(10, 4), torch.randn(4, 8)
    b, c, d = torch.randn(10, 8), torch.randn(10, 8), torch.randn(4)
    out = torch.empty(10, 4)
    selective_scan_kernel[(4,)](u, delta, a, b, c, d, out, 10, D=4, S=8)
    width = torch.nn.functional.softplus(delta.double())[..., None]
    decay = torch.exp(-width * a.double().exp())
    states = recurrence(decay.movedim(0, -1), (width * u[..., None] * b[:, None]).movedim(0, -1))
    return out, (states.movedim(-1, 0) * c[:, None]).sum(-1) + d * u.double()


@triton.jit
def causal_convolution_kernel(x, weight, bias, out, length, W: tl.constexpr, BLOCK: tl.constexpr):
    channel, t = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32) + tl.load(bias + channel)
    for tap in tl.static_range(W):
        earlier = t - (W - 1 - tap)
        value = tl.load(x + channel * length + earlier, mask=(earlier >= 0) & (earlier < length), other=0.0)
        total += value * tl.load(weight + channel * W + tap)
    tl.store(out + channel * length + t, total * tl.sigmoid(total), mask=t < length)


@case(loaded=FP32 * (3 * 40 + 3 * 4 + 3), stored=FP32 * 3 * 40, tolerance=1e-6)
def causal_convolution():
    """Convolve every channel with four taps; the masked taps point before the sequence."""
    x, weight, bias = torch.randn(3, 40), torch.randn(3, 4), torch.randn(3)
    out = torch.empty(3, 40)
    causal_convolution_kernel[(3, 3)](x, weight, bias, out, 40, W=4, BLOCK=16)
    padded = torch.nn.functional.pad(x.double(), (3, 0))[None]
    convolved = torch.nn.functional.conv1d(padded, weight.double()[:, None], bias.double(), groups=3)[0]
    return out, torch.nn.functional.silu(convolved)


@triton.jit
def convolution_kernel(x, weight, out, H: tl.constexpr, W: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr):
    r, c = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for i in range(K):
        for j in range(K):
            inside = (r + i < H) & (c + j < W)
            total += tl.load(x + (r + i) * W + c + j, mask=inside, other=0) * tl.load(weight + i * K + j)
    tl.store(out + r * W + c, total, mask=(r < H) & (c < W))


@case(loaded=FP32 * (12 * 14 + 9), stored=FP32 * 12 * 14, tolerance=1e-6)
def two_dimensional_convolution():
    """Convolve an image with a small filter by two nested loops."""
    x, weight = torch.randn(12, 14), torch.randn(3, 3)
    out = torch.empty(12, 14)
    convolution_kernel[(1,)](x, weight, out, H=12, W=14, K=3, BLOCK=16)
    padded = torch.nn.functional.pad(x.double(), (0, 2, 0, 2))[None, None]
    return out, torch.nn.functional.conv2d(padded, weight.double()[None, None])[0, 0]


@triton.jit
def ragged_mean_kernel(values, offsets, out, D: tl.constexpr, BLOCK: tl.constexpr):
    sequence, d = tl.program_id(0), tl.arange(0, D)
    start, end = tl.load(offsets + sequence), tl.load(offsets + sequence + 1)
    total = tl.zeros((D,), dtype=tl.float32)
    for first in range(start, end, BLOCK):
        row = first + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(values + row[:, None] * D + d, mask=(row < end)[:, None], other=0.0), axis=0)
    tl.store(out + sequence * D + d, total / tl.maximum(end - start, 1))


@case(loaded=FP32 * 14 * 8 + INT32 * 5, stored=FP32 * 4 * 8, tolerance=1e-6)
def mean_of_ragged_sequences():
    """Loop from one loaded offset to the next; one sequence is empty."""
    values, offsets = torch.randn(14, 8), torch.tensor([0, 3, 3, 10, 14], dtype=torch.int32)
    out = torch.empty(4, 8)
    ragged_mean_kernel[(4,)](values, offsets, out, D=8, BLOCK=4)
    sums = [
        values[start:end].double().sum(0) / max(end - start, 1) for start, end in [(0, 3), (3, 3), (3, 10), (10, 14)]
    ]
    return out, torch.stack(sums)


@triton.jit
def pad_kernel(values, offsets, out, longest, fill, BLOCK: tl.constexpr):
    sequence, at = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    start = tl.load(offsets + sequence)
    length = tl.load(offsets + sequence + 1) - start
    value = tl.load(values + start + at, mask=at < length, other=fill)
    tl.store(out + sequence * longest + at, value, mask=at < longest)


@case(loaded=FP32 * 15 + INT64 * 4, stored=FP32 * 3 * 9)
def padding_of_ragged_sequences():
    """Fill the lanes outside a sequence with an argument."""
    values, offsets = torch.randn(15), torch.tensor([0, 2, 11, 15])
    out = torch.empty(3, 9)
    pad_kernel[(3, 2)](values, offsets, out, 9, -1.0, BLOCK=8)
    return out, torch.nn.utils.rnn.pad_sequence(values.split([2, 9, 4]), True, -1.0)


@triton.jit
def embedding_kernel(tokens, table, out, D: tl.constexpr, BLOCK: tl.constexpr):
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(tokens + t)
    d = tl.arange(0, D)
    tl.store(out + t[:, None] * D + d, tl.load(table + token[:, None] * D + d))


@case(loaded=INT64 * 8 + FP32 * 5 * 16, stored=FP32 * 8 * 16)
def embedding_lookup():
    """Gather rows of a table; eight tokens name five different rows."""
    tokens, table = torch.tensor([3, 1, 3, 0, 9, 9, 3, 7]), torch.randn(10, 16)
    out = torch.empty(8, 16)
    embedding_kernel[(2,)](tokens, table, out, D=16, BLOCK=4)
    return out, table[tokens]


@triton.jit
def embedding_gradient_kernel(tokens, gradient, table, D: tl.constexpr):
    t, d = tl.program_id(0), tl.arange(0, D)
    token = tl.load(tokens + t)
    tl.atomic_add(table + token * D + d, tl.load(gradient + t * D + d), sem="relaxed")


@case(loaded=INT64 * 8 + FP32 * (8 + 5) * 16, stored=FP32 * 5 * 16, tolerance=1e-6)
def embedding_gradient():
    """Add the gradients of equal tokens atomically."""
    tokens, gradient = torch.tensor([3, 1, 3, 0, 9, 9, 3, 7]), torch.randn(8, 16)
    table = torch.zeros(10, 16)
    embedding_gradient_kernel[(8,)](tokens, gradient, table, D=16)
    return table, torch.zeros(10, 16, dtype=torch.float64).index_add_(0, tokens, gradient.double())


@triton.jit
def histogram_kernel(x, counts, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.histogram(tl.load(x + at, mask=at < n, other=0), BINS, mask=at < n)
    bins = tl.arange(0, BINS)
    tl.atomic_add(counts + bins, found, mask=found > 0)


@case(loaded=INT32 * (100 + 6), stored=INT32 * 6)
def histogram_of_the_library():
    """Count a block with the library's histogram and add only the bins that are not empty."""
    x = torch.arange(100, dtype=torch.int32) % 6
    counts = torch.zeros(16, dtype=torch.int32)
    histogram_kernel[(4,)](x, counts, 100, BINS=16, BLOCK=32)
    return counts, torch.bincount(x, minlength=16)


@triton.jit
def atomic_histogram_kernel(x, counts, n, low, high, BINS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=low)
    bucket = ((value - low) / (high - low) * BINS).to(tl.int32)
    bucket = tl.minimum(tl.maximum(bucket, 0), BINS - 1)
    tl.atomic_add(counts + bucket, 1, mask=at < n)


@case(loaded=FP32 * 60 + INT32 * 8, stored=INT32 * 8)
def histogram_by_atomics():
    """Turn floats into bins and count them with atomic additions that collide."""
    x = torch.linspace(-0.1, 1.1, 60)
    counts = torch.zeros(8, dtype=torch.int32)
    atomic_histogram_kernel[(2,)](x, counts, 60, 0.0, 1.0, BINS=8, BLOCK=32)
    return counts, torch.bincount((x * 8).int().clamp(0, 7), minlength=8)


@triton.jit
def csr_kernel(starts, columns, values, x, out, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    start, end = tl.load(starts + row), tl.load(starts + row + 1)
    total = 0.0
    at = start
    while at < end:
        lane = at + tl.arange(0, BLOCK)
        column = tl.load(columns + lane, mask=lane < end, other=0)
        total += tl.sum(
            tl.load(values + lane, mask=lane < end, other=0.0) * tl.load(x + column, mask=lane < end, other=0.0)
        )
        at += BLOCK
    tl.store(out + row, total)


@case(loaded=INT32 * (4 + 7) + FP32 * (7 + 5), stored=FP32 * 3, tolerance=1e-6)
def sparse_matrix_times_vector():
    """Loop over the entries of a compressed row with `while`; seven entries read five elements of the vector."""
    starts = torch.tensor([0, 5, 5, 7], dtype=torch.int32)
    columns = torch.tensor([0, 2, 3, 5, 7, 2, 7], dtype=torch.int32)
    values, x, out = torch.randn(7), torch.randn(8), torch.empty(3)
    csr_kernel[(3,)](starts, columns, values, x, out, BLOCK=4)
    matrix = torch.zeros(3, 8, dtype=torch.float64)
    matrix[[0] * 5 + [2] * 2, columns.long()] = values.double()
    return out, matrix @ x.double()


@triton.jit
def gather_kernel(x, index, out, N: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, N)
    tl.store(out + row * N + at, tl.gather(tl.load(x + row * N + at), tl.load(index + row * N + at), axis=0))


@case(loaded=(FP32 + INT32) * 3 * 16, stored=FP32 * 3 * 16)
def gather_within_a_tile():
    """Permute a loaded tile by a loaded tile of indices."""
    x, index = torch.randn(3, 16), torch.stack([torch.randperm(16) for _ in range(3)]).int()
    out = torch.empty(3, 16)
    gather_kernel[(3,)](x, index, out, N=16)
    return out, x.gather(1, index.long())
