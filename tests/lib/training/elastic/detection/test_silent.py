"""Checksums against errors that were made on purpose, and what looking for them costs."""

import math
import struct

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from threeloops.training.cluster import Cluster, compute, uniform
from threeloops.training.collectives import Link
from threeloops.training.elastic.detection import (
    checksum,
    cross_check,
    cross_check_cost,
    odd_ranks,
    odd_ranks_cost,
    outlying,
)


def splitmix64(state):
    """What Vigna's generator gives in this state (https://prng.di.unimi.it/splitmix64.c)."""
    x = state % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def by_hand(*parts):
    """The oracle: integers of Python, which do not wrap."""
    total = place = 0
    for data in parts:
        data += b"\0" * (-len(data) % 8)
        for (word,) in struct.iter_unpack("<q", data):
            place += 1
            total += splitmix64(place * 0x9E3779B97F4A7C15 + word)
    return (total + 2**63) % 2**64 - 2**63


@given(st.lists(st.binary(max_size=70), max_size=4))
def test_the_checksum_is_a_sum_of_mixed_words(parts):
    tensors = [torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0) for data in parts]
    assert checksum(tensors) == by_hand(*parts)


def test_zeros_have_the_sums_of_what_splitmix64_gives_from_seed_0():
    """Its first numbers, as published with many implementations."""
    published = 0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F
    for count in (1, 2, 3):
        assert checksum([torch.zeros(count, dtype=torch.int64)]) % 2**64 == sum(published[:count]) % 2**64


def test_a_tensor_in_many_pieces_has_the_same_sum(monkeypatch):
    x = torch.randn(1001)
    whole = checksum([x, x])
    monkeypatch.setattr("threeloops.training.elastic.detection.silent._AT_A_TIME", 7)
    assert checksum([x, x]) == whole


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("those", [slice(None), [1, 3], [1, 5], [0, 2], slice(2, 34)], ids=str)
def test_flipped_signs_are_seen(dtype, those):
    """The top bits of two words cancel in any sum of words times odd numbers."""
    x = torch.randn(100, generator=torch.Generator().manual_seed(0)).to(dtype)
    changed = x.clone()
    changed[those] *= -1
    assert checksum([changed]) != checksum([x])


@given(st.binary(min_size=1, max_size=200), st.data())
def test_any_error_inside_of_one_word_is_seen(data, draw):
    word = draw.draw(st.integers(0, (len(data) - 1) // 8))
    changed = bytearray(data)
    length = len(data[8 * word : 8 * word + 8])
    changed[8 * word : 8 * word + 8] = draw.draw(st.binary(min_size=length, max_size=length))
    sums = [checksum([torch.frombuffer(bytearray(each), dtype=torch.uint8)]) for each in (data, changed)]
    assert (sums[0] == sums[1]) == (bytes(changed) == data)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.bool, torch.int16])
def test_every_dtype_and_every_layout(dtype):
    x = (torch.arange(35) % 3).to(dtype).view(5, 7)
    flat = bytes(x.contiguous().view(-1).view(torch.uint8).tolist())
    assert checksum([x]) == by_hand(flat)
    assert checksum([x.T]) == checksum([x.T.contiguous()]) and checksum([x.T]) != checksum([x])
    assert checksum([x.view(-1)[3:]]) == checksum([x.view(-1)[3:].clone()]), "a view that begins inside of a word"
    assert checksum([x[:2], x[2:]]) == checksum([x[:2].clone(), x[2:].clone()])
    assert checksum([x, x + 1 if dtype != torch.bool else ~x]) != checksum([x + 1 if dtype != torch.bool else ~x, x])


def test_minus_zero_is_another_zero_and_nan_equals_itself():
    assert checksum([torch.tensor([0.0])]) != checksum([torch.tensor([-0.0])])
    assert checksum([torch.tensor([math.nan])]) == checksum([torch.tensor([math.nan])])


def compares(wrong):
    x = torch.arange(1000.0)
    if dist.get_rank() in wrong:
        x[17] = torch.nextafter(x[17], torch.tensor(1e9))
    return odd_ranks([x, torch.ones(3)])


@pytest.mark.parametrize(
    ("ranks", "wrong", "named"),
    [(5, [3], [3]), (5, [], []), (5, [0, 4], [0, 4]), (3, [1, 2], [0]), (2, [1], [0, 1]), (4, [0, 1], [0, 1, 2, 3])],
)
def test_the_majority_names_the_others_and_costs_what_is_stated(ranks, wrong, named):
    """Of three ranks two that are wrong in the same way are the majority: a checksum knows no truth."""
    run = Cluster(uniform(ranks, 2**-10, 2**20)).run(compares, wrong)
    assert run.results == (named,) * ranks
    cost = odd_ranks_cost(ranks, Link(2**-10, 2**20))
    assert [sum(row) for row in run.bytes] == list(cost.bytes) == [8 * (ranks - 1)] * ranks
    assert run.seconds == cost.seconds == (ranks - 1) * (2**-10 + 8 / 2**20)


def norms(values, limit):
    return outlying(values[dist.get_rank()], limit=limit)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([1.0, 1.1, 0.9, 1.05, 30.0], [4]),
        ([1.0, 1.1, 0.9, 1.05, 1.4], []),
        ([1.0, 1.1, math.nan, 1.05, 0.9], [2]),
        ([1.0, 1.0, 1.0, 1.0 + 1e-9, 1.0], [3]),
        ([math.inf] * 3, [0, 1, 2]),
        ([5.0, 5.0], []),
        ([5.0, 1e30], []),
        ([5.0, math.inf], [1]),
    ],
)
def test_a_norm_far_from_the_median_is_named(values, found):
    assert Cluster(len(values)).run(norms, values, 10.0).results == (found,) * len(values)


SECONDS = 0.25


def checks_across(wrong, once):
    """Gradients of a microbatch; a rank that is wrong spoils them in the last bit, all the time or once."""
    calls = []

    def gradients(seed):
        compute(SECONDS)
        x = torch.randn(50, generator=torch.Generator().manual_seed(seed))
        calls.append(seed)
        if dist.get_rank() in wrong and (not once or len(calls) == 1):
            x.view(torch.int32)[7] ^= 1
        return [x]

    ranks, rank = dist.get_world_size(), dist.get_rank()
    return cross_check(gradients, rank, (rank - 1) % ranks)


@pytest.mark.parametrize(
    ("ranks", "wrong", "once", "named"),
    [
        (4, [2], False, [2]), (4, [0], False, [0]), (3, [1], False, [1]), (4, [], False, []), (2, [1], False, [0, 1]),
        (6, [1, 3], False, [1, 2, 3]), (7, [1, 4], False, [1, 4]),
    ],
)  # fmt: skip
def test_two_ranks_that_compute_the_same_microbatch_find_what_a_checksum_after_the_all_reduce_cannot(
    ranks, wrong, once, named
):
    run = Cluster(uniform(ranks, 2**-10, 2**20)).run(checks_across, wrong, once)
    assert run.results == (named,) * ranks
    cost = cross_check_cost(ranks, Link(2**-10, 2**20), SECONDS)
    assert run.seconds == cost.seconds and [sum(row) for row in run.bytes] == list(cost.bytes)


def test_an_error_that_came_once_is_narrowed_down_to_two_ranks():
    assert Cluster(4).run(checks_across, [2], True).results == ([2, 3],) * 4


def averages_something_wrong():
    """Rank 1's gradient is wrong before the all-reduce."""
    gradient = torch.full((64,), 1.0 + dist.get_rank() / 100)
    if dist.get_rank() == 1:
        gradient[5] *= -4
    dist.all_reduce(gradient)
    return odd_ranks([gradient])


def test_what_a_checksum_after_the_all_reduce_cannot_find():
    assert Cluster(3).run(averages_something_wrong).results == ([], [], [])
