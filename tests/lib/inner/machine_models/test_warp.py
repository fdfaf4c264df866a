"""The warp simulator against the rules it simulates, counted by hand and by brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.inner.machine_models import warp
from threeloops.inner.machine_models.warp import (
    LANES,
    padded,
    plain,
    sectors,
    swizzled,
    transpose,
    triton_swizzle,
    wavefronts,
)

LANE = np.arange(LANES)


@pytest.mark.parametrize(
    ("stride_bytes", "width", "expected"),
    [(4, 4, 4), (8, 4, 8), (32, 4, 32), (128, 4, 32), (0, 4, 1), (2, 2, 2), (16, 16, 16), (8, 8, 8), (1, 1, 1)],
)
def test_sectors_of_a_strided_request(stride_bytes, width, expected):
    assert sectors(LANE * stride_bytes, width) == expected


def test_a_misaligned_warp_touches_one_sector_more():
    assert sectors(4 + LANE * 4, 4) == 5


@pytest.mark.parametrize("stride", range(1, 34))
def test_a_strided_read_of_words_conflicts_by_the_greatest_common_divisor(stride):
    assert wavefronts(LANE * 4 * stride, 4) == np.gcd(stride, 32)


@pytest.mark.parametrize(("width", "least"), [(1, 1), (2, 1), (4, 1), (8, 2), (16, 4)])
def test_consecutive_lanes_take_the_least_number_of_rounds(width, least):
    assert wavefronts(LANE * width, width) == least


def test_one_word_for_all_lanes_is_a_broadcast():
    assert wavefronts(np.zeros(LANES, np.int64), 4) == 1
    assert wavefronts([], 4) == 0


@given(st.lists(st.integers(0, 255), min_size=1, max_size=32))
def test_wavefronts_are_the_busiest_bank(words):
    by_bank = {}
    for word in words:
        by_bank.setdefault(word % 32, set()).add(word)
    assert wavefronts(np.array(words) * 4, 4) == max(map(len, by_bank.values()))
    assert sectors(np.array(words) * 4, 4) == len({word // 8 for word in words})


@pytest.mark.parametrize(
    ("place", "per_request"),
    [(plain, (1 + 32) / 2), (padded, 1.0), (swizzled, 1.0), (triton_swizzle(1, 1, 32, 32), 1.0)],
)
def test_a_transpose_is_right_and_its_placement_decides_the_conflicts(place, per_request):
    matrix = np.random.default_rng(0).normal(size=(32, 32)).astype(np.float32)
    result, counts = transpose(matrix, place)
    assert np.array_equal(result, matrix.T)
    assert counts.shared_wavefronts / counts.shared_requests == per_request
    assert (counts.global_requests, counts.global_sectors / counts.global_requests) == (64, 4.0)


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 8]))
def test_tritons_swizzle_moves_every_element_to_a_place_of_its_own(vec, per_phase, max_phase):
    row, column = (part.reshape(-1) for part in np.indices((16, 64)))
    at = triton_swizzle(vec, per_phase, max_phase, 64)(row, column)
    assert sorted(at) == list(range(16 * 64))
    assert (at // 64 == row).all()


@pytest.mark.parametrize(
    ("addresses", "width", "names"),
    [
        (LANE, 3, "bytes_per_lane = 3"),
        (np.arange(33) * 4, 4, "at most 32"),
        ([2], 4, "address = 2"),
        ([-4], 4, "address = -4"),
        ([0.5], 4, "whole bytes"),
    ],
)
def test_bad_requests_are_named(addresses, width, names):
    for function in (sectors, wavefronts):
        with pytest.raises(ValueError, match=names):
            function(addresses, width)
    with pytest.raises(ValueError, match="one warp transposes"):
        warp.transpose(np.zeros((16, 32), np.float32))
