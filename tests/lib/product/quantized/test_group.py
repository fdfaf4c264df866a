"""Codes, scales and zero points of groups: against the definition, written out weight by weight in exact fractions."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops.product.quantized import Scheme, quantize_weight
from threeloops.product.quantized.group import pack, unpack

SCHEMES = [
    Scheme(bits, group, symmetric, dtype)
    for bits in (4, 8)
    for symmetric in (True, False)
    for group, dtype in ((16, torch.float16), (32, torch.float32), (64, torch.bfloat16))
]


def name(scheme):
    return f"int{scheme.bits}-{scheme.group}-{'sym' if scheme.symmetric else 'asym'}"


def weights(rows, columns, seed=0, shift=0.3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64) + shift


def code_at(quantized, row, column):
    """Read one code out of the bytes as the layout is documented."""
    if quantized.scheme.bits == 8:
        return int(quantized.codes[row, column])
    byte = int(quantized.codes[row, column // 2])
    return byte >> 4 if column % 2 else byte & 15


@pytest.mark.parametrize("scheme", SCHEMES, ids=name)
@pytest.mark.parametrize("columns", [1, 15, 16, 63, 129])
def test_every_weight_becomes_the_nearest_that_its_group_can_hold(scheme, columns):
    weight = weights(3, columns)
    quantized = quantize_weight(weight, scheme)
    assert quantized.scales.dtype == scheme.scale_dtype
    assert quantized.scales.shape == (3, -(-columns // scheme.group))
    assert (quantized.zeros is None) == scheme.symmetric
    back = quantized.dequantize(torch.float64)
    assert back.shape == (3, columns)
    top = 2**scheme.bits - 1
    for row in range(3):
        for column in range(columns):
            group = column // scheme.group
            members = [Fraction(float(w)) for w in weight[row, group * scheme.group : (group + 1) * scheme.group]]
            if scheme.symmetric:
                exact, zero = 2 * max(map(abs, members)) / top, 2 ** (scheme.bits - 1)
            else:
                exact, zero = (max(*members, 0) - min(*members, 0)) / top, int(quantized.zeros[row, group])
                assert abs(zero - -min(*members, 0) / exact) <= 0.5 + top * torch.finfo(scheme.scale_dtype).eps
            scale = Fraction(float(quantized.scales[row, group]))
            known = torch.finfo(scheme.scale_dtype)
            assert abs(scale - exact) <= max(exact, Fraction(known.smallest_normal)) * Fraction(known.eps) / 2
            value = Fraction(float(weight[row, column]))
            best = min(range(top + 1), key=lambda code: abs(scale * (code - zero) - value))
            code = code_at(quantized, row, column)
            assert abs(scale * (code - zero) - value) == abs(scale * (best - zero) - value)
            assert Fraction(float(back[row, column])) == pytest.approx(scale * (code - zero), rel=1e-15)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(SCHEMES), st.integers(1, 70), st.floats(-3, 3), st.floats(1e-3, 1e3), st.integers(0, 2**31))
def test_no_weight_moves_by_more_than_the_stated_bound(scheme, columns, shift, size, seed):
    weight = weights(2, columns, seed, shift) * size
    quantized = quantize_weight(weight, scheme)
    top = 2**scheme.bits - 1
    for group, (scales, members) in enumerate(
        zip(quantized.scales.double().T, weight.split(scheme.group, 1), strict=True)
    ):
        if scheme.symmetric:
            exact = 2 * members.abs().amax(1) / top
        else:
            exact = (members.amax(1).clamp(min=0) - members.amin(1).clamp(max=0)) / top
        moved = quantized.dequantize(torch.float64)[:, group * scheme.group :][:, : members.shape[1]] - members
        bound = scales / 2 + top * (scales - exact).abs()
        assert (moved.abs() <= bound[:, None] * (1 + 1e-9)).all()


@pytest.mark.parametrize("scheme", SCHEMES, ids=name)
def test_zero_stays_zero_and_so_does_a_group_of_zeros(scheme):
    weight = weights(2, 100)
    weight[:, ::7] = 0
    weight[1, :64] = 0
    back = quantize_weight(weight, scheme).dequantize()
    assert (back[:, ::7] == 0).all() and (back[1, :64] == 0).all()
    nothing = quantize_weight(torch.zeros(1, 16), scheme)
    middle = 2 ** (scheme.bits - 1) if scheme.symmetric else 0
    assert set(unpack(nothing.codes, scheme.bits, 16)[0].tolist()) == {middle}


def test_weights_too_small_for_the_scales_dtype_become_zero_not_nan():
    tiny = torch.full((1, 20), 1e-9)
    for symmetric in (True, False):
        back = quantize_weight(tiny, Scheme(4, 16, symmetric)).dequantize()
        assert (back == 0).all()
    assert quantize_weight(tiny, Scheme(4, 16, scale_dtype=torch.bfloat16)).dequantize() == pytest.approx(1e-9, rel=0.1)


def test_all_codes_are_used():
    grid = torch.arange(16.0)[None] - 8
    assert sorted(unpack(quantize_weight(grid, Scheme(4, 16)).codes, 4, 16)[0].tolist()) == list(range(16))
    shifted = grid + 8.0
    quantized = quantize_weight(shifted, Scheme(4, 16, symmetric=False))
    assert torch.equal(quantized.dequantize(), shifted) and quantized.zeros.tolist() == [[0]]


def test_a_zero_point_spends_no_codes_on_numbers_that_no_weight_has():
    positive = weights(4, 64).abs()
    error = [
        float((quantize_weight(positive, Scheme(4, 64, symmetric)).dequantize() - positive).square().mean())
        for symmetric in (True, False)
    ]
    assert error[0] > 3 * error[1]


@pytest.mark.parametrize(
    ("scheme", "rows", "columns", "expected"),
    [
        (Scheme(8, 128), 1, 1024, 1024 + 8 * 2),
        (Scheme(4, 128), 1, 1024, 512 + 8 * 2),
        (Scheme(4, 128, symmetric=False), 10, 1024, 10 * (512 + 8 * 3)),
        (Scheme(4, 32, scale_dtype=torch.float32), 3, 129, 3 * (65 + 5 * 4)),
        (Scheme(8, 64, symmetric=False), 2, 65, 2 * (65 + 2 * 3)),
    ],
)
def test_bytes_are_exact(scheme, rows, columns, expected):
    assert scheme.nbytes(rows, columns) == expected
    assert quantize_weight(weights(rows, columns), scheme).nbytes == expected


def test_claim_int8_is_half_of_bfloat16_and_int4_nearly_a_quarter():
    bfloat16 = 4096 * 4096 * 2
    assert bfloat16 / Scheme(8, 4096).nbytes(4096, 4096) == pytest.approx(2, rel=1e-3)
    assert bfloat16 / Scheme(4, 128).nbytes(4096, 4096) == pytest.approx(16 / 4.125)
    assert bfloat16 / Scheme(4, 32, symmetric=False).nbytes(4096, 4096) == pytest.approx(16 / 4.75)


@given(st.integers(1, 5), st.integers(1, 33), st.sampled_from([4, 8]), st.integers(0, 2**31))
def test_packing_loses_nothing(rows, columns, bits, seed):
    codes = torch.randint(2**bits, (rows, columns), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    packed = pack(codes, bits)
    assert packed.shape == (rows, -(-columns * bits // 8)) and packed.is_contiguous()
    assert torch.equal(unpack(packed, bits, columns), codes)


def test_even_columns_are_in_the_low_half_of_a_byte():
    assert pack(torch.tensor([[1, 2, 3]], dtype=torch.uint8), 4).tolist() == [[0x21, 0x03]]


def test_16_bit_weights_are_rounded_as_their_float32_values():
    weight = weights(3, 40).bfloat16()
    for scheme in SCHEMES:
        ours, wide = quantize_weight(weight, scheme), quantize_weight(weight.float(), scheme)
        assert torch.equal(ours.codes, wide.codes) and torch.equal(ours.scales, wide.scales)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Scheme(bits=3), "bits = 3: expected 4 or 8"),
        (lambda: Scheme(group=100), "group = 100: expected a power of two, at least 16"),
        (lambda: Scheme(group=8), "group = 8: expected a power of two, at least 16"),
        (lambda: Scheme(scale_dtype=torch.int8), "scale_dtype = torch.int8: expected one of float16, bfloat16"),
        (lambda: quantize_weight(torch.ones(3), Scheme()), r"weight has shape \(3,\): expected \(rows, columns\)"),
        (lambda: quantize_weight(torch.ones(0, 3), Scheme()), r"weight has shape \(0, 3\)"),
        (lambda: quantize_weight(torch.tensor([[1.0, float("nan")]]), Scheme()), "1 weights are not finite"),
        (lambda: quantize_weight(torch.full((1, 2), 1e9), Scheme()), r"scale = 1.33e\+08: expected at most 6.55e\+04"),
    ],
)
def test_errors_name_what_is_wrong(build, words):
    with pytest.raises(ValueError, match=words):
        build()
