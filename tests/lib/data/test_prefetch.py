"""Prefetching: the order kept, the memory bounded, errors named, workers gone when it is over."""

import os
import signal
import subprocess
import sys
import threading
import zlib
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops.data.clock import VirtualClock
from threeloops.data.decode import in_c, in_python
from threeloops.data.errors import StoreTimeout, WorkerDied, WorkerFailed
from threeloops.data.loader import Loader
from threeloops.data.pipeline import Stage, simulate
from threeloops.data.prefetch import Prefetcher, prefetch
from threeloops.data.sampler import SamplerState, epoch_order
from threeloops.data.slow_store import Link, VirtualStore
from threeloops.data.store import MemoryStore
from threeloops.data.workers import ProcessWorker, SimulatedWorker

KINDS = [("thread", 0), ("thread", 1), ("thread", 3), ("process", 2)]


def squared(n):
    if n == 13:
        raise OSError("no such file: thirteen")
    return n * n


def die_once(folder, n):
    """Kill this process at key 4, the first time that anybody loads it."""
    if n == 4 and not os.path.exists(f"{folder}/died"):
        open(f"{folder}/died", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return n


def unpicklable(n):
    return threading.Lock()


@pytest.mark.parametrize(("kind", "workers"), KINDS)
def test_samples_come_in_the_order_of_their_keys(kind, workers):
    assert list(prefetch(squared, range(12), workers, kind=kind)) == [n * n for n in range(12)]


@pytest.mark.parametrize(("kind", "workers"), KINDS)
def test_an_error_names_worker_and_sample_and_what_was_before_it_is_given_out(kind, workers):
    found = []
    with pytest.raises(WorkerFailed, match=r"sample 13: OSError: no such file: thirteen") as caught:
        found.extend(prefetch(squared, range(20), workers, kind=kind))
    assert isinstance(caught.value.__cause__, OSError)
    assert (f"worker {13 % workers} of {workers}" if workers else "the main process") in str(caught.value)
    assert found == [n * n for n in range(13)]


@settings(max_examples=40)
@given(st.integers(0, 25), st.integers(1, 5), st.integers(0, 9))
def test_any_number_of_workers_and_samples_ahead(samples, workers, ahead):
    assert list(prefetch(squared, range(samples) if samples < 13 else range(14, 14 + samples), workers, ahead)) == [
        n * n for n in (range(samples) if samples < 13 else range(14, 14 + samples))
    ]


@pytest.mark.parametrize("ahead", [0, 1, 4])
def test_no_more_is_asked_for_than_ahead(ahead):
    """Keys are drawn lazily: what was drawn and not given out is what may lie in memory."""
    drawn = []

    def keys():
        for n in range(30):
            drawn.append(n)
            yield n

    for given_out, _ in enumerate(prefetch(abs, keys(), workers=3, ahead=ahead), 1):
        assert len(drawn) == min(30, given_out + ahead)


@pytest.mark.parametrize("ahead", range(5))
def test_a_sample_is_awaited_with_as_many_behind_it_as_the_pipeline_has(ahead):
    """One meaning of `ahead`: the simulated pipeline and the prefetcher take the same time, to the last step."""
    stages = [Stage("fetch", 0.23, workers=9), Stage("train", 0.05)]
    expected = simulate(stages, [1] * 40, ahead).seconds
    assert epoch_seconds(workers=9, ahead=ahead, link=Link(0.21, float("inf"))) == pytest.approx(expected)


def test_threads_load_while_the_consumer_works():
    """With one sample ahead, the load of the next one begins before the present one is done with."""
    started = {n: threading.Event() for n in range(4)}

    def load(n):
        started[n].set()
        return n

    for n in prefetch(load, range(4), workers=1, ahead=1):
        if n < 3:
            assert started[n + 1].wait(timeout=30)


def test_a_killed_worker_is_named_with_what_it_owed(tmp_path):
    found = []
    with pytest.raises(
        WorkerDied, match=r"worker 0 of 2 was killed by signal 9; it owed \d samples, the first of them 4"
    ):
        for n in prefetch(partial(die_once, tmp_path), range(10), workers=2, kind="process"):
            found.append(n)
    assert found == [0, 1, 2, 3]


def test_what_a_worker_answered_before_it_died_is_not_lost(tmp_path):
    """Keys sent to the dead are not an error yet: its answers come first, and then its death."""
    worker = ProcessWorker(partial(die_once, tmp_path), "worker")
    for key in (1, 2, 4):
        worker.send(key)
    worker.process.join(timeout=60)
    for key in (5, 6):
        worker.send(key)
    assert [worker.receive().value, worker.receive().value] == [1, 2]
    with pytest.raises(WorkerDied, match="worker was killed by signal 9"):
        worker.receive()
    worker.close()


def test_a_replaced_worker_loses_and_repeats_nothing(tmp_path):
    loaded = prefetch(partial(die_once, tmp_path), range(11), workers=2, ahead=6, kind="process", restarts=1)
    assert list(loaded) == list(range(11))
    assert (tmp_path / "died").exists()


def test_what_cannot_cross_is_a_named_error():
    with pytest.raises(WorkerFailed, match="cannot cross to the main process"):
        list(prefetch(unpicklable, [1], workers=1, kind="process"))


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_workers_are_gone_when_the_iteration_is_left(kind):
    threads = threading.active_count()
    fetched = prefetch(abs, range(100), workers=2, kind=kind)
    for n in fetched:
        if n == 5:
            break
    del n
    fetched.close()
    for worker in fetched.workers:
        assert not (worker.thread if kind == "thread" else worker.process).is_alive()
    assert threading.active_count() == threads
    with pytest.raises(RuntimeError, match="is closed"):
        next(iter(fetched))


def test_a_prefetcher_that_is_never_iterated_can_be_closed():
    with prefetch(abs, range(3), workers=2) as fetched:
        pass
    assert not any(worker.thread.is_alive() for worker in fetched.workers)


@pytest.mark.parametrize(("workers", "ahead", "word"), [(-1, 2, "workers = -1"), (1, -1, "ahead = -1")])
def test_impossible_numbers_are_refused(workers, ahead, word):
    with pytest.raises(ValueError, match=word):
        prefetch(abs, [], workers, ahead)


def epoch_seconds(workers, ahead, step=0.05, samples=40, timeout=float("inf"), link=None):
    """A loop over a store of 200 ms and 1 MB/s, samples of 10 kB, on a virtual clock."""
    clock = VirtualClock()
    objects = MemoryStore({str(n): n.to_bytes(2, "big") * 5000 for n in range(samples)})
    store = VirtualStore(objects, link or Link(0.2, 1e6), clock, timeout)
    keys = [str(n) for n in range(samples)]
    found = []
    for data in Prefetcher(keys, lambda n: SimulatedWorker(store, 0.02, f"worker {n}"), workers, ahead):
        found.append(int.from_bytes(data[:2], "big"))
        clock.sleep_until(clock.now() + step)
    assert found == list(range(samples))
    return clock.now()


def test_a_serial_loop_over_a_slow_store_starves():
    assert epoch_seconds(workers=1, ahead=0) == pytest.approx(40 * (0.2 + 0.01 + 0.02 + 0.05))


def test_one_worker_ahead_hides_the_shorter_of_the_two():
    assert epoch_seconds(workers=1, ahead=2) == pytest.approx(40 * 0.23 + 0.05)


def test_enough_workers_ahead_leave_only_the_steps():
    """0.23 s a sample, 0.05 s a step: five workers are enough. Four are not."""
    assert epoch_seconds(workers=5, ahead=10) == pytest.approx(0.23 + 40 * 0.05)
    assert epoch_seconds(workers=4, ahead=8) > 0.23 + 40 * 0.055


def test_workers_do_not_widen_a_link():
    """At 4 ms a step the bytes are the limit: 10 ms a sample, however many fetch."""
    assert epoch_seconds(workers=60, ahead=40, step=0.004) == pytest.approx(0.2 + 40 * 0.01 + 0.02 + 0.004)


def test_a_store_that_does_not_answer_is_named():
    with pytest.raises(WorkerFailed, match="worker 0, sample '0': StoreTimeout") as caught:
        epoch_seconds(workers=2, ahead=4, timeout=0.1)
    assert isinstance(caught.value.__cause__, StoreTimeout)


def trained_with(workers, state, stop, samples=23, batch=4, **how):
    """Batches until `stop` of them were used, and the state to save then."""
    loader = Loader(np.ndarray.tolist, samples, batch, state, workers, **how)
    used = []
    for number, indices in enumerate(loader, 1):
        used.append(indices)
        if number == stop:
            break
    return used, loader.state


@settings(max_examples=25)
@given(st.integers(0, 3), st.integers(0, 3), st.integers(1, 5), st.integers(0, 100))
def test_an_interrupted_epoch_goes_on_where_it_was(before, after, stop, seed):
    first, state = trained_with(before, SamplerState(seed), stop)
    second, end = trained_with(after, state, stop=None)
    assert sum(first + second, []) == epoch_order(23, seed, 0).tolist()
    assert end == SamplerState(seed, epoch=1)


def test_a_worker_killed_mid_epoch_costs_no_sample(tmp_path):
    """The loop dies with its worker; from the state that was saved, the rest of the epoch follows."""
    load = partial(die_at_index, str(tmp_path), int(epoch_order(23, 7, 0)[9]))
    loader = Loader(load, 23, 4, SamplerState(7), workers=2, kind="process")
    used = []
    with pytest.raises(WorkerDied):
        for indices in loader:
            used.extend(indices)
    assert loader.state == SamplerState(7, 0, 8) and used == epoch_order(23, 7, 0)[:8].tolist()
    rest, _ = trained_with(3, loader.state, stop=None)
    assert used + sum(rest, []) == epoch_order(23, 7, 0).tolist()


def die_at_index(folder, index, indices):
    if index in indices:
        os.kill(os.getpid(), signal.SIGKILL)
    return indices.tolist()


@pytest.mark.parametrize("size", [0, 1, 100_000])
def test_both_ways_to_decode_agree(size):
    packed = zlib.compress(np.random.default_rng(size).bytes(size))
    assert in_python(packed) == in_c(packed)


def test_a_worker_process_need_not_import_torch():
    """A spawned worker imports what its load needs; torch alone would cost it seconds."""
    needed = "threeloops.data.loader, threeloops.data.tar_shards, threeloops.data.decode"
    code = f"import sys, {needed}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
