"""Capacity, what is dropped, and loads as data."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threeloops.training.cluster import Cluster
from threeloops.training.expert_parallel import Load, expert_capacity, gather_load, keep_within_capacity


@pytest.mark.parametrize(
    ("tokens", "experts", "k", "factor", "capacity"),
    [
        (16, 4, 1, 1.0, 4),
        (17, 4, 1, 1.0, 5),
        (16, 4, 2, 1.25, 10),
        (100, 10, 1, 1.1, 11),  # 11, although 1.1 is a little more than 11/10 in binary
        (30, 10, 1, 0.1, 1),
        (16, 4, 2, 100.0, 16),  # no expert is chosen twice by a token
        (16, 4, 2, math.inf, 16),
        (0, 4, 2, 1.0, 0),
    ],
)
def test_the_capacity_is_an_even_share_times_the_factor_rounded_up(tokens, experts, k, factor, capacity):
    assert expert_capacity(tokens, experts, k, factor) == capacity


@pytest.mark.parametrize("factor", [0, -1.0, float("nan"), -math.inf])
def test_a_factor_that_leaves_no_room_is_named(factor):
    with pytest.raises(ValueError, match="capacity factor = .*: expected a number above 0; inf drops nothing"):
        expert_capacity(16, 4, 2, factor)


@pytest.mark.parametrize(("tokens", "k"), [(-1, 1), (4, 0), (4, 5)])
def test_counts_that_cannot_be_are_named(tokens, k):
    with pytest.raises(ValueError, match=f"{tokens} tokens, k = {k} of 4 experts"):
        expert_capacity(tokens, 4, k, 1.0)


def test_no_tokens_have_no_choices_to_keep():
    assert keep_within_capacity(torch.empty(0, 2, dtype=torch.long), 4, 1.0).shape == (0, 2)


def test_first_choices_come_before_second_ones_and_earlier_tokens_before_later_ones():
    experts = torch.tensor([[0, 1], [1, 0], [0, 1], [2, 1]])
    kept = [[True, True], [True, False], [True, False], [True, False]]
    assert keep_within_capacity(experts, 4, 1.0).tolist() == kept  # 2 rows for each expert
    kept = [[True, False], [True, False], [False, False], [True, False]]
    assert keep_within_capacity(experts, 4, 0.5).tolist() == kept  # 1 row


@given(st.integers(1, 6), st.integers(0, 12), st.floats(0.1, 4), st.data())
def test_every_expert_keeps_its_first_choices_up_to_the_capacity(experts, tokens, factor, data):
    k = data.draw(st.integers(1, experts))
    chosen = [data.draw(st.permutations(range(experts)))[:k] for _ in range(tokens)]
    kept = keep_within_capacity(torch.tensor(chosen, dtype=torch.long).view(tokens, k), experts, factor)
    room = [expert_capacity(tokens, experts, k, factor)] * experts
    for choice in range(k):
        for token in range(tokens):
            expert = chosen[token][choice]
            assert kept[token, choice].item() == (room[expert] > 0)
            room[expert] -= 1


def test_a_load_says_what_was_dropped_and_how_unbalanced_it_is():
    load = Load(chosen=(9, 0, 2, 1), kept=(6, 0, 2, 0))
    assert load.dropped == 4 and load.per_rank(2) == (6, 2) and load.per_rank(4) == load.kept
    assert load.imbalance == 3.0
    assert Load((0, 0), (0, 0)).imbalance == 1.0 and Load((4, 4), (4, 4)).imbalance == 1.0


def test_loads_of_all_ranks_add_up():
    def program():
        rank = torch.distributed.get_rank()
        return gather_load(Load((rank, 5), (rank, 3 - rank)))

    assert Cluster(3).run(program).results == (Load((3, 15), (3, 6)),) * 3
