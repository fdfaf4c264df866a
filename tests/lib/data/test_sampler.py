"""Exact resume: whatever happens to the number of workers, each sample of an epoch is used once."""

import json
from collections import Counter
from dataclasses import asdict
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops.data.loader import Loader
from threeloops.data.sampler import SamplerState, advanced, batches, epoch_order, remaining

SIZES, WORKERS, BATCHES = st.integers(1, 60), st.integers(1, 7), st.integers(1, 9)


@given(SIZES, st.integers(0, 2**40), st.integers(0, 1000))
def test_an_epoch_is_a_permutation_that_seed_and_epoch_decide(samples, seed, epoch):
    order = epoch_order(samples, seed, epoch)
    assert sorted(order.tolist()) == list(range(samples))
    assert order.tolist() == epoch_order(samples, seed, epoch).tolist()


def test_seed_and_epoch_are_not_added():
    """With seed + epoch, epoch 1 of seed 0 is epoch 0 of seed 1, and two runs share most of their orders."""
    orders = {(seed, epoch): tuple(epoch_order(50, seed, epoch)) for seed in range(5) for epoch in range(5)}
    assert len(set(orders.values())) == 25


@given(SIZES, BATCHES, WORKERS, st.data())
def test_workers_give_out_the_rest_of_the_epoch_in_order(samples, batch, workers, data):
    state = SamplerState(3, 5, data.draw(st.integers(0, samples)))
    given_out = list(Loader(np.copy, samples, batch, state, workers))
    assert [int(i) for indices in given_out for i in indices] == remaining(state, samples).tolist()
    assert all(len(indices) == batch for indices in given_out[:-1])


@settings(max_examples=50)
@given(SIZES, BATCHES, st.lists(st.tuples(WORKERS, st.integers(0, 12)), max_size=8), st.integers(0, 99))
def test_any_history_of_interruptions_uses_each_sample_once_an_epoch(samples, batch, runs, seed):
    """Each run has another number of workers, fetches as far ahead as it likes, and is killed after so many steps."""
    state, used = SamplerState(seed), []
    for workers, steps in [*runs, (1, samples)]:
        loader, epoch = Loader(np.copy, samples, batch, state, workers), state.epoch
        for indices in islice(loader, steps):
            used += [(epoch, int(i)) for i in indices]
        state = SamplerState(**json.loads(json.dumps(asdict(loader.state))))
    for epoch in range(state.epoch):
        assert Counter(i for e, i in used if e == epoch) == Counter(range(samples))
    assert len([1 for e, _ in used if e == state.epoch]) == state.position
    assert [i for e, i in used if e == 0] == epoch_order(samples, seed, 0)[
        : len([1 for e, _ in used if e == 0])
    ].tolist()


@given(SIZES, st.integers(0, 200), st.integers(0, 200))
def test_advancing_twice_is_advancing_once(samples, first, second):
    once = advanced(SamplerState(1), samples, first + second)
    assert advanced(advanced(SamplerState(1), samples, first), samples, second) == once
    assert 0 <= once.position < samples and once.epoch * samples + once.position == first + second


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: remaining(SamplerState(0, 0, 11), 10), "position = 11: the data set has 10 samples"),
        (lambda: remaining(SamplerState(0, 0, -1), 10), "position = -1"),
        (lambda: batches(SamplerState(0), 10, 0), "batch = 0"),
        (lambda: list(Loader(np.copy, 10, 1, SamplerState(0), workers=-1)), "workers = -1"),
        (lambda: advanced(SamplerState(0), 0, 1), "samples = 0"),
        (lambda: advanced(SamplerState(0), 5, -1), "used = -1"),
    ],
)
def test_impossible_states_are_named(call, word):
    with pytest.raises(ValueError, match=word):
        call()


def test_a_finished_epoch_has_nothing_left_and_the_next_begins():
    assert len(remaining(SamplerState(0, 0, 10), 10)) == 0
    assert advanced(SamplerState(0, 4, 9), 10, 1) == SamplerState(0, 5, 0)
    assert isinstance(epoch_order(3, 0, 0), np.ndarray)
