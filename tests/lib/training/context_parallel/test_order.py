"""Placement of tokens, and the causal work that it gives each rank, against counting."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threeloops.training.context_parallel import chunks_of, token_positions, visible_pairs

ORDERS = ("contiguous", "zigzag")


def test_zigzag_gives_each_rank_an_early_and_a_late_chunk():
    assert [chunks_of(rank, 4, "zigzag") for rank in range(4)] == [(0, 7), (1, 6), (2, 5), (3, 4)]
    assert token_positions(12, 1, 3).tolist() == [2, 3, 8, 9]
    assert token_positions(12, 1, 3, "contiguous").tolist() == [4, 5, 6, 7]


@given(st.integers(1, 8), st.integers(0, 5), st.sampled_from(ORDERS))
def test_every_token_has_one_place_and_pairs_are_counted_exactly(ranks, length, order):
    tokens = 2 * ranks * length
    positions = [token_positions(tokens, rank, ranks, order) for rank in range(ranks)]
    assert torch.cat(positions).sort().values.tolist() == list(range(tokens))
    pairs = visible_pairs(tokens, ranks, order)
    for rank in range(ranks):
        assert positions[rank].diff().gt(0).all()
        for step in range(ranks):
            keys = positions[(rank - step) % ranks]
            assert pairs[rank][step] == (keys[None] <= positions[rank][:, None]).sum().item()
    assert sum(map(sum, pairs)) == tokens * (tokens + 1) // 2


@given(st.integers(1, 16), st.integers(1, 20))
def test_zigzag_is_balanced_in_every_step_and_contiguous_leaves_ranks_idle(ranks, length):
    zigzag, contiguous = (visible_pairs(2 * ranks * length, ranks, order) for order in ("zigzag", "contiguous"))
    assert len(set(zigzag)) == 1
    assert contiguous[0][1:] == (0,) * (ranks - 1)
    slowest = [sum(max(each) for each in zip(*pairs, strict=True)) for pairs in (zigzag, contiguous)]
    assert slowest[0] <= slowest[1] and (ranks == 1 or slowest[0] < slowest[1])


def test_lengths_and_orders_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="12 tokens cannot be cut into 8 equal chunks, which zigzag order on 4 ranks"):
        token_positions(12, 0, 4)
    assert len(token_positions(12, 0, 4, "contiguous")) == 3
    with pytest.raises(ValueError, match="order = 'striped': expected 'contiguous' or 'zigzag'"):
        visible_pairs(12, 3, "striped")
