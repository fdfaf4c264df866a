"""dropout(gelu(x + bias), p) with a mask that is drawn twice and kept nowhere."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from threeloops.inner.kernels.rows import bias_gelu_dropout as rows_dropout
from threeloops.inner.kernels.rows.bias_gelu_dropout import (
    bias_gelu_dropout,
    bias_gelu_dropout_backward,
    gelu,
    gelu_derivative,
    kept_mask,
    kept_scale,
    reference,
)
from threeloops.inner.kernels.rows.tiles import _LARGEST_STACK
from torch.nn import functional

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SHAPES = ((1, 1), (127, 129), (2, 3, 128))
BIG_SEED = 2**40 + 12345


def oracle(x, bias, mask, p, approximate):
    return functional.gelu(x + bias, approximate=approximate) * mask.to(x.dtype) * kept_scale(p)


@pytest.mark.parametrize("approximate", ("none", "tanh"))
@pytest.mark.parametrize("p", (0.0, 0.3))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_values(normal, as_accurate_as, gradients, shape, dtype, p, approximate):
    x, bias = normal(*shape, dtype=dtype), normal(shape[-1], dtype=dtype, seed=1)
    dy, mask = normal(*shape, dtype=dtype, seed=2), kept_mask(x, p, BIG_SEED)

    def theirs(x, bias):
        return oracle(x, bias, mask, p, approximate)

    def ours(x, bias):
        return bias_gelu_dropout(x, bias, p, seed=BIG_SEED, approximate=approximate)

    as_accurate_as(ours(x, bias), theirs(x.double(), bias.double()), theirs(x, bias))
    exact, peer = gradients(theirs, [x, bias], dy, exact=True), gradients(theirs, [x, bias], dy)
    for what, *each in zip(("dx", "dbias"), gradients(ours, [x, bias], dy), exact, peer, strict=True):
        as_accurate_as(*each, what=what)
    inputs = x.double(), bias.double()
    torch.testing.assert_close(reference(*inputs, p, seed=BIG_SEED, approximate=approximate), theirs(*inputs))


@triton.jit
def words_kernel(out, seed, BLOCK: tl.constexpr):
    counter = tl.arange(0, BLOCK).to(tl.int64) + 4294967290  # across the end of 32 bits
    w0, w1, w2, w3 = tl.randint4x(seed, counter)
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3)).reshape(BLOCK, 4)
    place = tl.arange(0, 4)[None, :] * BLOCK + tl.arange(0, BLOCK)[:, None]
    tl.store(out + place, words.to(tl.int64) & 0xFFFFFFFF)


def philox_by_hand(counters, seed):
    """Ten rounds as the paper states them, in unsigned 64-bit arithmetic."""
    low = np.uint64(0xFFFFFFFF)
    words = [counters & low, counters >> np.uint64(32), np.zeros_like(counters), np.zeros_like(counters)]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        left, right = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [
            (right >> np.uint64(32)) ^ words[1] ^ np.uint64(key[0]),
            right & low,
            (left >> np.uint64(32)) ^ words[3] ^ np.uint64(key[1]),
            left & low,
        ]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return np.stack(words)


def test_philox_gives_the_published_answer():
    """Random123's known answer for counter 0 and key 0."""
    words = rows_dropout._philox(0, torch.zeros(1, dtype=torch.int64))
    assert [int(word) for word in words] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


@pytest.mark.parametrize("seed", (0, 1, 2**31 + 7, 2**63 - 1))
def test_philox_in_pytorch_is_triton_s_bit_for_bit(device, seed):
    out = torch.empty(4, 64, dtype=torch.int64, device=device)
    words_kernel[(1,)](out, seed, BLOCK=64)
    counter = torch.arange(64, device=device) + 4294967290
    assert torch.equal(out, torch.stack(rows_dropout._philox(seed, counter)))
    assert np.array_equal(out.cpu().numpy(), philox_by_hand(counter.cpu().numpy().astype(np.uint64), seed))


@triton.jit
def gelu_kernel(z_ptr, y_ptr, slope_ptr, TANH: tl.constexpr, BLOCK: tl.constexpr):
    index = tl.arange(0, BLOCK)
    z = tl.load(z_ptr + index)
    tl.store(y_ptr + index, gelu(z, TANH))
    tl.store(slope_ptr + index, gelu_derivative(z, TANH))


@pytest.mark.parametrize("approximate", ("none", "tanh"))
def test_gelu_is_exact_to_float32_s_last_digits(device, approximate):
    z = torch.linspace(-12, 12, 4096, device=device)
    y, slope = torch.empty_like(z), torch.empty_like(z)
    gelu_kernel[(1,)](z, y, slope, TANH=approximate == "tanh", BLOCK=4096)
    exact = z.double().requires_grad_()
    expected = functional.gelu(exact, approximate=approximate)
    expected.sum().backward()
    torch.testing.assert_close(y.double(), expected.detach(), rtol=3e-7, atol=4e-7)
    torch.testing.assert_close(slope.double(), exact.grad, rtol=3e-7, atol=6e-7)


def test_the_mask_is_the_same_whatever_the_tile(normal):
    x = normal(200, 300)
    mask = kept_mask(x, 0.5, 7)
    assert torch.equal(mask[:100], kept_mask(x[:100], 0.5, 7))
    y = bias_gelu_dropout(x, x.new_full((300,), 20.0), 0.5, seed=7)  # gelu(x + 20) is never 0
    assert torch.equal(y != 0, mask)


def test_as_many_are_dropped_as_asked_and_the_mean_stays(device):
    mask = kept_mask(torch.empty(500, 800, device=device), 0.3, 11).double()
    deviation = (0.3 * 0.7 / mask.numel()) ** 0.5
    assert abs(mask.mean() - 0.7) < 5 * deviation
    assert abs((mask * kept_scale(0.3)).mean() - 1) < 5 * deviation / 0.7
    for moved in (mask.roll(1, 0), mask.roll(1, 1), kept_mask(torch.empty(500, 800, device=device), 0.3, 12).double()):
        assert abs(((mask - 0.7) * (moved - 0.7)).mean()) < 5 * 0.21 / mask.numel() ** 0.5  # independent


def test_nothing_but_the_inputs_is_kept_for_the_backward_pass(normal):
    x, bias = normal(33, 65).requires_grad_(), normal(65, seed=1).requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each.data_ptr()) or each, lambda each: each):
        bias_gelu_dropout(x, bias, 0.1, seed=3)
    assert kept == [x.data_ptr(), bias.data_ptr()]


def test_the_gradient_is_dropped_where_the_output_was(normal):
    x, bias = normal(127, 129).requires_grad_(), torch.zeros(129, device=normal(1).device)
    y = bias_gelu_dropout(x, bias, 0.4, seed=5)
    y.sum().backward()
    assert torch.equal(x.grad == 0, y == 0)


def test_the_bias_s_gradient_is_the_same_in_every_run(normal):
    x, bias, dy = normal(700, 128), normal(128, seed=1), normal(700, 128, seed=2)
    assert 2 * 16 * _LARGEST_STACK < 700  # several partial sums
    first, second = (bias_gelu_dropout_backward(dy, x, bias, 0.1, 3, False)[1] for _ in range(2))
    assert torch.equal(first, second)


def test_all_dropped_none_dropped(normal):
    x, bias = normal(5, 9).requires_grad_(), normal(9, seed=1)
    y = bias_gelu_dropout(x, bias, 1.0, seed=1)
    y.sum().backward()
    assert not y.any() and not x.grad.any()
    torch.testing.assert_close(bias_gelu_dropout(x, bias, 0.0), functional.gelu(x + bias))


def test_strides(normal):
    x, bias = normal(130, 140), normal(140, seed=1)
    for view in (x[::2], x[:, :131], x.reshape(10, 13, 140).transpose(0, 1), x.T[:, :130]):
        torch.testing.assert_close(
            bias_gelu_dropout(view, bias[: view.shape[-1]], 0.2, seed=1),
            reference(view, bias[: view.shape[-1]], 0.2, seed=1),
        )


def test_empty(device):
    x, bias = torch.empty(0, 5, device=device).requires_grad_(), torch.ones(5, device=device).requires_grad_()
    bias_gelu_dropout(x, bias, 0.5, seed=1).sum().backward()
    assert x.grad.shape == (0, 5) and torch.equal(bias.grad, torch.zeros_like(bias))


def test_errors_name_what_is_wrong(normal):
    x, bias = normal(3, 5), normal(5)
    for arguments, words in (
        ((x, normal(4), 0.0), r"bias has shape \(4,\): expected \(5,\)"),
        ((x, bias, 1.5), "p = 1.5"),
    ):
        with pytest.raises(ValueError, match=words):
            bias_gelu_dropout(*arguments)
    with pytest.raises(ValueError, match="seed = -1"):
        bias_gelu_dropout(x, bias, 0.1, seed=-1)
    with pytest.raises(ValueError, match="approximate = 'fast'"):
        bias_gelu_dropout(x, bias, 0.0, approximate="fast")


def test_traffic(entry, least_traffic):
    least_traffic(entry("bias_gelu_dropout"))
    least_traffic(entry("bias_gelu_dropout_backward"))


def test_code(entry, clean_code):
    clean_code(entry("bias_gelu_dropout"), "sm_90")
    clean_code(entry("bias_gelu_dropout_backward"), "sm_90")
