"""Which gradients share an all-reduce."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from threeloops.training.data_parallel.buckets import assign_buckets

MB = 2**20


def test_buckets_are_filled_from_the_last_gradient_on_and_the_first_of_them_is_smaller():
    assert assign_buckets([MB] * 7, 3, 1) == [[6], [5, 4, 3], [2, 1, 0]]


def test_a_bucket_is_closed_by_the_gradient_that_reaches_the_cap_and_the_last_one_by_the_end():
    sizes = [MB // 4] * 5
    assert assign_buckets(sizes, 0.5, 0.5) == [[4, 3], [2, 1], [0]]
    assert assign_buckets(sizes, 0.6, 0.6) == [[4, 3, 2], [1, 0]]
    assert assign_buckets(sizes, 100, 100) == [[4, 3, 2, 1, 0]]
    assert assign_buckets([10 * MB, 1], 1, 1) == [[1, 0]] and assign_buckets([1, 10 * MB], 1, 1) == [[1], [0]]


def test_by_default_the_first_bucket_holds_1_mib_and_the_others_25():
    assert [len(bucket) for bucket in assign_buckets([MB] * 60)] == [1, 25, 25, 9]


def test_the_first_bucket_is_never_larger_than_the_others():
    assert assign_buckets([MB // 4] * 4, 0.5, 1.0) == [[3, 2], [1, 0]]


def test_kinds_never_share_a_bucket_and_the_bucket_that_is_full_first_comes_first():
    kinds = ["float32", "bfloat16", "float32", "bfloat16", "float32"]
    assert assign_buckets([MB] * 5, 100, 100, kinds) == [[3, 1], [4, 2, 0]]
    assert assign_buckets([MB] * 5, 2, 1, kinds) == [[4], [3], [1], [2, 0]]


@pytest.mark.parametrize("caps", [(0, 1), (1, 0), (-1, 1), (float("nan"), 1), (1, float("nan"))])
def test_a_cap_that_is_no_size_is_named(caps):
    with pytest.raises(ValueError, match="bucket.*_mb = (0|-1|nan): expected a size in MiB above 0"):
        assign_buckets([1], *caps)


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(1, 60), st.integers(1, 60), st.data())
def test_every_gradient_is_in_one_bucket_and_every_bucket_but_the_last_of_its_kind_just_reaches_its_cap(
    sizes, cap, first, data
):
    kinds = [data.draw(st.sampled_from(["a", "b"])) for _ in sizes]
    buckets = assign_buckets(sizes, cap / MB, first / MB, kinds)
    assert sorted(index for bucket in buckets for index in bucket) == list(range(len(sizes)))
    last_members = [min(bucket) for bucket in buckets]
    assert last_members == sorted(last_members, reverse=True)
    for kind in set(kinds):
        same = [bucket for bucket in buckets if kinds[bucket[0]] == kind]
        assert all(kinds[index] == kind for bucket in same for index in bucket)
        assert [index for bucket in same for index in bucket] == [
            index for index in reversed(range(len(sizes))) if kinds[index] == kind
        ]
        for number, bucket in enumerate(same):
            limit = min(first, cap) if number == 0 else cap
            assert sum(sizes[index] for index in bucket[:-1]) < limit
            assert number == len(same) - 1 or sum(sizes[index] for index in bucket) >= limit


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 60), st.integers(1, 60))
def test_they_are_torchs_own(sizes, cap, first):
    """torch fills buckets in the order in which it is given tensors: here reversed, as after its first iteration."""
    tensors = [torch.empty(size, dtype=torch.uint8) for size in reversed(sizes)]
    theirs, _ = dist._compute_bucket_assignment_by_size(tensors, [min(first, cap), cap], [False] * len(sizes))
    ours = assign_buckets(sizes, cap / MB, first / MB)
    assert [[len(sizes) - 1 - index for index in bucket] for bucket in ours] == [list(bucket) for bucket in theirs]
