"""Streams of random numbers: which ranks share one."""

import random

import numpy as np
import pytest
import torch
from threeloops.training.data_parallel import seed_rank
from torch.nn import functional as F


@pytest.fixture(autouse=True)
def generators_as_before():
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


def drawn(*seed):
    """The first numbers of all three generators."""
    seed_rank(*seed)
    return tuple(random.random() for _ in range(3)), tuple(np.random.rand(3)), tuple(torch.rand(3).tolist())


def test_the_same_seed_gives_the_same_numbers():
    assert drawn(3) == drawn(3) and drawn(3, 5) == drawn(3, 5)


def test_every_seed_and_rank_has_a_stream_of_its_own_in_each_generator():
    streams = [drawn(seed) for seed in range(8)] + [drawn(seed, rank) for seed in range(8) for rank in range(64)]
    for generator in zip(*streams, strict=True):
        assert len(set(generator)) == len(streams)


def test_ranks_initialise_alike_and_drop_different_units():
    weights, kept = [], []
    for rank in range(4):
        seed_rank(0)
        weights.append(torch.nn.Linear(8, 8).weight)
        seed_rank(0, rank)
        kept.append(F.dropout(torch.ones(64)))
    assert all(torch.equal(weight, weights[0]) for weight in weights)
    assert not any(torch.equal(kept[a], kept[b]) for a in range(4) for b in range(a))


def test_streams_of_ranks_are_not_correlated():
    numbers = []
    for rank in range(4):
        seed_rank(0, rank)
        numbers.append(torch.randn(10_000, dtype=torch.float64))
    correlation = torch.corrcoef(torch.stack(numbers)) - torch.eye(4)
    assert correlation.abs().max() < 0.05


@pytest.mark.parametrize(("seed", "said"), [((-1,), "seed = -1"), ((0, -2), "rank = -2")])
def test_negative_numbers_are_named(seed, said):
    with pytest.raises(ValueError, match=f"{said}: expected 0 or more"):
        seed_rank(*seed)
