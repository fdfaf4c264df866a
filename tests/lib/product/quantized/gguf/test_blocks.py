"""Blocks of Q8_0 and Q4_0: byte for byte what the `gguf` package writes, and by the definition on numbers by hand."""

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from threeloops.product.quantized.gguf import TensorType, decode, encode
from threeloops.product.quantized.gguf.blocks import row_bytes, to_quantized_weight

TYPES = tuple(TensorType)
QUANTISED = (TensorType.Q4_0, TensorType.Q8_0)


def theirs(type):
    return gguf.GGMLQuantizationType[type.name]


def normal(rows, columns, seed=0, size=1.0):
    return np.random.default_rng(seed).normal(0, size, (rows, columns)).astype(np.float32)


@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
@pytest.mark.parametrize("size", [1e-9, 1e-3, 1.0, 1e3])
def test_bytes_are_those_of_the_gguf_package(type, size):
    values = normal(37, 96, size=size)
    values[3, 32:64] = 0  # a block of zeros
    values[4, ::2] = -values[4, 1::2]  # equal sizes of both signs
    values[5] = np.round(values[5] / size * 8) / 8 * size  # many halves of a step
    expected = gguf.quantize(values, theirs(type)).view(np.uint8)
    ours = encode(values, type)
    assert ours.shape == (37, row_bytes(type, 96)) and ours.dtype == np.uint8
    assert np.array_equal(ours, expected.reshape(37, -1))
    back = gguf.dequantize(expected if type in QUANTISED else gguf.quantize(values, theirs(type)), theirs(type))
    assert np.array_equal(decode(ours, type), back)


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from(QUANTISED),
    arrays.arrays(
        np.float32, (2, 32), elements=st.floats(-1000, 1000, width=32) | st.sampled_from([0.0, 0.5, 1.0, -1.0, 127.0])
    ),
)
def test_bytes_are_those_of_the_gguf_package_for_any_numbers(type, values):
    with np.errstate(all="ignore"):
        expected = gguf.quantize(values, theirs(type))
    if np.isfinite(gguf.dequantize(expected, theirs(type))).all() and np.abs(values).max() > 1e-30:
        assert np.array_equal(encode(values, type), expected)


def test_q8_0_by_hand():
    values = np.zeros((1, 32), np.float32)
    values[0, :5] = 127, -127, 0.5, -2.5, np.nextafter(np.float32(0.5), np.float32(0))
    # the scale is 1; halves go away from zero
    block = encode(values, TensorType.Q8_0)[0]
    assert block[:2].view(np.float16) == 1
    assert block[2:7].view(np.int8).tolist() == [127, -127, 1, -3, 0] and not block[7:].any()


def test_q4_0_by_hand():
    values = np.zeros((1, 32), np.float32)
    values[0, 0], values[0, 1], values[0, 16] = -8, 7.6, 3  # the scale is 1: codes 0, 15 and 11; zeros are 8
    block = encode(values, TensorType.Q4_0)[0]
    assert block[:2].view(np.float16) == 1
    assert block[2:4].tolist() == [11 << 4 | 0, 8 << 4 | 15] and set(block[4:]) == {0x88}
    assert decode(block[None], TensorType.Q4_0)[0, [0, 1, 2, 16]].tolist() == [-8, 7, 0, 3]
    positive = encode(-values, TensorType.Q4_0)[0]
    assert positive[:2].view(np.float16) == -1 and np.array_equal(positive[2:], block[2:])


@pytest.mark.parametrize("type", QUANTISED, ids=lambda type: type.name)
def test_they_are_groups_of_32_in_the_layout_of_the_kernels(type):
    data = encode(normal(5, 96), type)
    weight = to_quantized_weight(data, type)
    assert (weight.rows, weight.columns, weight.scheme.group, weight.scheme.symmetric) == (5, 96, 32, True)
    assert weight.nbytes == data.nbytes
    assert np.array_equal(weight.dequantize(torch.float32).numpy(), decode(data, type))


def test_errors_name_what_is_wrong():
    with pytest.raises(ValueError, match="rows of 33 weights in Q8_0: expected whole blocks of 32"):
        encode(normal(2, 33), TensorType.Q8_0)
    with pytest.raises(ValueError, match="not finite"):
        encode(np.full((1, 32), np.nan, np.float32), TensorType.Q4_0)
