"""Queries, keys and values in one launch, in the layout that attention reads."""

import pytest
import torch
from threeloops.inner.kernels.matmul.qkv_projection import (
    _configuration,
    _rotate,
    cost,
    qkv_projection,
    reference,
    rotary_tables,
)

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# batch, sequence, width, heads, kv_heads, head_dim
SHAPES = ((1, 1, 127, 3, 1, 10), (2, 129, 128, 4, 2, 16), (3, 127, 129, 2, 2, 48), (1, 128, 96, 1, 1, 128))


@pytest.fixture
def problem(normal):
    def make(batch, sequence, width, heads, kv_heads, head_dim, dtype=torch.float32):
        rows = (heads + 2 * kv_heads) * head_dim
        x, weight = normal(batch, sequence, width, dtype=dtype), normal(rows, width, dtype=dtype, seed=1, scale=0.1)
        return x, weight, normal(rows, dtype=dtype, seed=2)

    return make


def by_hand(x, weight, bias, heads, kv_heads, rotary):
    """Three linear layers, the rotation as complex numbers, and the transposition."""
    batch, sequence, _ = x.shape
    head_dim = weight.shape[0] // (heads + 2 * kv_heads)
    results, start = [], 0
    for number, turned in ((heads, True), (kv_heads, True), (kv_heads, False)):
        rows = slice(start, start + number * head_dim)
        start = rows.stop
        part = torch.nn.functional.linear(x, weight[rows], None if bias is None else bias[rows])
        part = part.view(batch, sequence, number, head_dim)
        if rotary and turned:
            half = head_dim // 2
            angle = torch.complex(*(table.to(x.dtype) for table in rotary))[:, None]
            product = torch.complex(part[..., :half], part[..., half:]) * angle
            part = torch.cat((product.real, product.imag), -1)
        results.append(part.transpose(1, 2))
    return tuple(results)


@pytest.mark.parametrize("rotated", (False, True))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SHAPES)
def test_values(problem, device, as_accurate_as, sizes, dtype, rotated):
    x, weight, bias = problem(*sizes, dtype=dtype)
    heads, kv_heads, head_dim = sizes[3:]
    rotary = rotary_tables(sizes[1], head_dim, device=device) if rotated else None
    options = {"heads": heads, "kv_heads": kv_heads, "rotary": rotary}
    actual = qkv_projection(x, weight, bias=bias, **options)
    exact = by_hand(x.double(), weight.double(), bias.double(), heads, kv_heads, rotary)
    peer = reference(x, weight, bias=bias, **options)
    for what, *each in zip("qkv", actual, exact, peer, strict=True):
        as_accurate_as(*each, what=what)
        assert each[0].is_contiguous()


@pytest.mark.parametrize("rotated", (False, True))
def test_gradients(problem, normal, device, gradients, rotated):
    x, weight, bias = problem(2, 33, 40, 4, 2, 16)
    rotary = rotary_tables(33, 16, device=device) if rotated else None
    weights = [normal(2, number, 33, 16, seed=number) for number in (4, 2, 2)]

    def total(parts):
        return sum((part * factor.to(part.dtype)).sum() for part, factor in zip(parts, weights, strict=True))

    one = torch.ones((), device=device)
    actual = gradients(
        lambda x, w, b: total(qkv_projection(x, w, heads=4, kv_heads=2, bias=b, rotary=rotary)), [x, weight, bias], one
    )
    exact = gradients(lambda x, w, b: total(by_hand(x, w, b, 4, 2, rotary)), [x, weight, bias], one, exact=True)
    for ours, theirs in zip(actual, exact, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)


def test_only_what_is_used_needs_a_gradient(problem):
    x, weight, _ = problem(1, 5, 8, 2, 1, 4)
    q, k, v = qkv_projection(x, weight.requires_grad_(), heads=2, kv_heads=1)
    v.sum().backward()
    assert weight.grad[-4:].any() and not weight.grad[:-4].any()


def test_rotation_keeps_lengths_and_depends_on_distance_only(normal, device):
    tables = rotary_tables(64, 16, device=device)
    q, k = (_rotate(normal(16, seed=seed).expand(64, 16), *tables) for seed in (1, 2))
    torch.testing.assert_close(q.norm(dim=-1), q[:1].norm(dim=-1).expand(64))
    scores = q @ k.T
    torch.testing.assert_close(scores[1:, 1:], scores[:-1, :-1], rtol=1e-4, atol=1e-4)
    assert torch.equal(q[0], normal(16, seed=1))  # position 0 is not turned


def test_strides(problem):
    x, weight, bias = problem(2, 33, 40, 4, 2, 16)
    turned = x.transpose(0, 1).contiguous().transpose(0, 1), weight.T.contiguous().T
    for ours, theirs in zip(
        qkv_projection(*turned, heads=4, kv_heads=2), qkv_projection(x, weight, heads=4, kv_heads=2), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_empty(device):
    weight = torch.zeros(24, 8, device=device)
    for shape in ((0, 5, 8), (2, 0, 8)):
        q, k, v = qkv_projection(torch.empty(shape, device=device), weight, heads=2, kv_heads=2)
        assert q.shape == k.shape == v.shape == (shape[0], 2, shape[1], 4)


def test_errors_name_what_is_wrong(problem, device):
    x, weight, bias = problem(2, 33, 40, 4, 2, 16)
    for options, words in (
        ({"heads": 4, "kv_heads": 3}, "kv_heads = 3: expected a positive divisor of heads = 4"),
        ({"heads": 5, "kv_heads": 5}, r"weight has 128 rows: .*15·head_dim"),
        ({"heads": 4, "kv_heads": 2, "bias": bias[1:]}, r"bias has shape \(127,\): expected \(128,\)"),
        (
            {"heads": 4, "kv_heads": 2, "rotary": rotary_tables(32, 16, device=device)},
            r"rotary\[0\] has shape \(32, 8\): expected \(33, 8\)",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            qkv_projection(x, weight, **options)
    with pytest.raises(ValueError, match=r"x has shape \(33, 40\): expected 3 dimensions \(batch, sequence, width\)"):
        qkv_projection(x[0], weight, heads=4)


def test_traffic(entry, least_traffic):
    least_traffic(entry("qkv_projection"))


@pytest.mark.parametrize("dtype", (torch.float16, torch.float32))
def test_tiles_of_x_and_weight_are_read_once_for_each_tile_of_the_other(interpreted, problem, dtype):
    from threeloops.inner.meter import meter

    x, weight, _ = problem(2, 129, 96, 4, 2, 32, dtype=dtype)
    sizes = _configuration(dtype).constants
    tokens, columns, width = 258, 256, 96
    tiles_m, tiles_n = -(-tokens // sizes["BLOCK_M"]), -(-columns // sizes["BLOCK_N"])
    with meter() as traffic:
        qkv_projection(x, weight, heads=4, kv_heads=2)
    requested = tokens * width * tiles_n + columns * width * tiles_m + tokens * columns
    assert traffic.total.requested_bytes == requested * dtype.itemsize
    depth = -(-width // sizes["BLOCK_K"]) * sizes["BLOCK_K"]
    assert traffic.total.dot_flops == 2 * tiles_m * sizes["BLOCK_M"] * tiles_n * sizes["BLOCK_N"] * depth
    assert traffic.total.unique_bytes == cost(2, 129, 96, 4, 2, 32, dtype.itemsize).bytes


def test_code(entry, clean_code):
    (code,) = clean_code(entry("qkv_projection"), "sm_90")
    assert code.tensor_cores == "wgmma"
