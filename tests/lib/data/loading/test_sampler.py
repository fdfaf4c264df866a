"""Exact resume: whatever happens to the number of workers, each sample of an epoch is used once."""

import json
from collections import Counter
from dataclasses import asdict
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops.data.formats.token_shards import TokenShards, write_token_shards
from threeloops.data.loading.loader import Loader
from threeloops.data.loading.sampler import SamplerState, advanced, batches, epoch_order, remaining, step_sizes

SIZES, WORKERS, BATCHES = st.integers(1, 60), st.integers(1, 7), st.integers(1, 9)


@given(SIZES, st.integers(0, 2**32 - 1), st.integers(0, 1000))
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
    state = SamplerState(3, 5, data.draw(st.integers(0, samples - 1)))
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
        for indices, after in islice(loader.with_states(), steps):
            used += [(epoch, int(i)) for i in indices]
            loader.state = after
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
        (lambda: Loader(np.copy, 10, 1, SamplerState(0, 0, 11)), "position = 11"),
        (lambda: advanced(SamplerState(0, 0, 11), 10, 1), "position = 11"),
        (lambda: epoch_order(10, 2**32, 0), "seed = 4294967296"),
        (lambda: epoch_order(10, -1, 0), "seed = -1"),
        (lambda: epoch_order(10, 0, -1), "epoch = -1"),
        (lambda: batches(SamplerState(0), 10, 0), "batch = 0"),
        (lambda: list(Loader(np.copy, 10, 1, SamplerState(0), workers=-1)), "workers = -1"),
        (lambda: advanced(SamplerState(0), 0, 1), "samples = 0"),
        (lambda: advanced(SamplerState(0), 5, -1), "used = -1"),
        (lambda: batches(SamplerState(0), 10, 1, 2, 2), "rank = 2, ranks = 2"),
        (lambda: Loader(np.copy, 10, 1, SamplerState(0), rank=-1), "rank = -1, ranks = 1"),
        (lambda: step_sizes(SamplerState(0), 10, 1, 0), "ranks = 0: expected at least 1"),
        (lambda: step_sizes(SamplerState(0), 10, 1, -1), "ranks = -1: expected at least 1"),
        (
            lambda: advanced(SamplerState(0, 0, 4), 10, 7, 3),
            "used = 7, ranks = 3: expected at most 6, .* within this epoch",
        ),
        (lambda: Loader(np.copy, 3, 1, SamplerState(0), ranks=4), "ranks = 4: expected 1 to 3, since each needs one"),
    ],
)
def test_impossible_states_are_named(call, word):
    with pytest.raises(ValueError, match=word):
        call()


def test_a_finished_epoch_has_nothing_left_and_the_next_begins():
    assert len(remaining(SamplerState(0, 0, 10), 10)) == 0
    assert advanced(SamplerState(0, 4, 9), 10, 1) == SamplerState(0, 5, 0)
    assert isinstance(epoch_order(3, 0, 0), np.ndarray)


def test_several_ranks_may_advance_to_the_end_of_an_epoch():
    assert (
        advanced(SamplerState(0, 0, 4), 10, 6, 3) == advanced(SamplerState(0, 0, 4), 10, 4, 3) == SamplerState(0, 1, 0)
    )
    assert advanced(SamplerState(0, 0, 4), 10, 17) == SamplerState(0, 2, 1)


def test_a_loader_at_the_end_of_an_epoch_begins_the_next_one():
    loader = Loader(np.ndarray.tolist, 10, 4, SamplerState(0, 0, 10))
    assert sum(loader, []) == epoch_order(10, 0, 1).tolist()
    assert loader.state == SamplerState(0, 2, 0)


def fails_in_step(number, trained_on):
    def step(indices):
        if len(trained_on) == number:
            raise MemoryError(f"step {number}")
        trained_on.append(indices)

    return step


def test_a_batch_whose_step_failed_does_not_count():
    loader, trained_on = Loader(np.ndarray.tolist, 12, 3, SamplerState(0)), []
    step = fails_in_step(2, trained_on)
    with pytest.raises(MemoryError):
        for indices, after in loader.with_states():
            step(indices)
            loader.state = after
    assert loader.state == SamplerState(0, 0, 6)
    assert sum(trained_on + list(Loader(np.ndarray.tolist, 12, 3, loader.state)), []) == epoch_order(12, 0, 0).tolist()


def drawn_ahead(batches, count=2):
    """Batches in order, of which `count` more were drawn before one is given out: a feed, a queue, a pipeline."""
    waiting = []
    for each in batches:
        waiting.append(each)
        if len(waiting) > count:
            yield waiting.pop(0)
    yield from waiting


@pytest.mark.parametrize("steps", range(5))
def test_batches_that_wait_on_the_way_to_the_step_do_not_count(steps):
    loader, used = Loader(np.ndarray.tolist, 10, 3, SamplerState(5)), []
    for indices, after in islice(drawn_ahead(loader.with_states()), steps):
        used += indices
        loader.state = after
    assert loader.state == advanced(SamplerState(5), 10, len(used))
    assert used == epoch_order(10, 5, 0)[: len(used)].tolist()


@pytest.mark.parametrize("how", ["in the body", "behind a break", "behind an error"])
def test_a_state_that_only_the_loop_knows_is_not_guessed(how):
    loader = Loader(np.ndarray.tolist, 12, 3, SamplerState(0))
    try:
        for _ in loader:
            if how == "in the body":
                with pytest.raises(RuntimeError, match="only the loop knows"):
                    loader.state  # noqa: B018
            if how == "behind an error":
                raise MemoryError
            break
    except MemoryError:
        pass
    with pytest.raises(RuntimeError, match="only the loop knows"):
        list(loader)
    loader.state = SamplerState(0, 0, 3)
    assert sum(loader, []) == epoch_order(12, 0, 0)[3:].tolist()


def test_a_simple_loop_goes_from_epoch_to_epoch():
    loader = Loader(np.ndarray.tolist, 7, 3, SamplerState(0))
    epochs = [sum(loader, []) for _ in range(3)]
    assert epochs == [epoch_order(7, 0, epoch).tolist() for epoch in range(3)]
    assert loader.state == SamplerState(0, 3, 0)


def test_an_epoch_that_nobody_counted_is_not_given_out_again():
    loader = Loader(np.ndarray.tolist, 7, 3, SamplerState(0))
    list(loader.with_states())
    with pytest.raises(RuntimeError, match=r"set `loader.state = after` after each step"):
        list(loader.with_states())
    loader.state = SamplerState(0)
    assert len(list(loader.with_states())) == 3


# Ranks


def run_together(samples, batch, state, ranks, steps, workers=0):
    """What each rank trains on until all have made so many steps, or the epoch ends; and the state after that."""
    loaders = [Loader(np.ndarray.tolist, samples, batch, state, workers, rank=r, ranks=ranks) for r in range(ranks)]
    trained_on = [[] for _ in loaders]
    for loader, own in zip(loaders, trained_on, strict=True):
        for indices, after in islice(loader.with_states(), steps):
            own.append(indices)
            loader.state = after
    assert len({loader.state for loader in loaders}) == 1
    return trained_on, loaders[0].state


RANKS = st.integers(1, 6)


@given(st.integers(6, 60), BATCHES, RANKS, st.integers(0, 99))
def test_ranks_have_disjoint_shares_and_end_their_epoch_together(samples, batch, ranks, seed):
    trained_on, state = run_together(samples, batch, SamplerState(seed), ranks, samples)
    assert len({len(own) for own in trained_on}) == 1 and state == SamplerState(seed, 1, 0)
    for number, step in enumerate(zip(*trained_on, strict=True)):
        sizes = [len(indices) for indices in step]
        assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1
        assert sizes == [batch] * ranks or number == len(trained_on[0]) - 1
    used = Counter(i for own in trained_on for indices in own for i in indices)
    assert max(used.values()) == 1 and samples - len(used) < ranks


@settings(max_examples=50)
@given(st.integers(6, 40), st.lists(st.tuples(RANKS, BATCHES, st.integers(0, 9)), max_size=6), st.integers(0, 99))
def test_any_history_of_ranks_uses_each_sample_at_most_once_an_epoch(samples, runs, seed):
    state, used = SamplerState(seed), Counter()
    for ranks, batch, steps in [*runs, (1, 1, samples)]:
        epoch = advanced(state, samples, 0, ranks).epoch  # the next one, if there are fewer samples left than ranks
        trained_on, state = run_together(samples, batch, state, ranks, steps)
        used.update((epoch, i) for own in trained_on for b in own for i in b)
    assert set(used.values()) == {1}
    for epoch in range(state.epoch):
        assert samples - sum(e == epoch for e, _ in used) < 6


def test_the_samples_of_a_step_do_not_depend_on_the_ranks():
    alone, _ = run_together(48, 12, SamplerState(7), 1, 4)
    together, _ = run_together(48, 3, SamplerState(7), 4, 4, workers=2)
    assert [sum(step, []) for step in zip(*together, strict=True)] == alone[0]


def test_windows_of_uneven_token_shards_are_shared_evenly(tmp_path):
    write_token_shards(tmp_path, [np.arange(101, dtype=np.uint16)], 37)  # shards of 37, 37 and 27 tokens
    tokens, length = TokenShards(tmp_path), 5

    def load(indices):
        return [tokens.window(int(i) * length, length).tolist() for i in indices]

    loaders = [Loader(load, len(tokens) // length, 3, SamplerState(1), rank=rank, ranks=2) for rank in range(2)]
    shares = [[window for batch in loader for window in batch] for loader in loaders]
    assert [len(share) for share in shares] == [10, 10]
    assert sorted(shares[0] + shares[1]) == [list(range(n, n + 5)) for n in range(0, 100, 5)]


SHARDS = st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(lambda sizes: sum(sizes) >= 6)


@given(SHARDS, st.integers(0, 99), st.integers(0, 3))
def test_whole_shards_are_shuffled_and_their_samples_stay_in_order(sizes, seed, epoch):
    order = epoch_order(sum(sizes), seed, epoch, sizes).tolist()
    assert sorted(order) == list(range(sum(sizes)))
    starts = [sum(sizes[:shard]) for shard in range(len(sizes))]
    shuffled = sorted((order.index(start), start, size) for start, size in zip(starts, sizes, strict=True) if size)
    assert order == [number for _, start, size in shuffled for number in range(start, start + size)]


def test_every_epoch_shuffles_its_shards():
    assert len({tuple(epoch_order(12, 1, epoch, [3, 3, 3, 3])) for epoch in range(20)}) > 10


@given(SHARDS, BATCHES, st.tuples(RANKS, RANKS), st.integers(0, 5), st.integers(0, 99))
def test_ranks_share_uneven_shards_and_another_number_of_them_goes_on(sizes, batch, ranks, steps, seed):
    samples, state, used = sum(sizes), SamplerState(seed), Counter()
    for count, most in zip(ranks, (steps, samples), strict=True):
        if state.epoch:
            break
        loaders = [
            Loader(np.ndarray.tolist, samples, batch, state, rank=rank, ranks=count, shards=sizes)
            for rank in range(count)
        ]
        if loaders[0].state.epoch:
            break  # fewer samples than ranks are left
        shares = [list(islice(loader.with_states(), most)) for loader in loaders]
        assert len({len(share) for share in shares}) == 1
        used.update(number for share in shares for indices, _ in share for number in indices)
        state = shares[0][-1][1] if shares[0] else state
    assert set(used.values()) <= {1}
    assert not state.epoch or samples - len(used) < 6


@pytest.mark.parametrize("sizes", [[3, 3], [], [8, -1]])
def test_shards_have_all_samples(sizes):
    with pytest.raises(ValueError, match="expected sizes of 0 or more with a sum of 7"):
        epoch_order(7, 0, 0, sizes)
