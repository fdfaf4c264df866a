"""Prefetching: the order kept, the memory bounded, errors named, workers gone when it is over."""

import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops.data.errors import WorkerDied, WorkerFailed
from threeloops.data.formats.decode import in_c, in_python
from threeloops.data.loading.loader import Loader
from threeloops.data.loading.prefetch import Prefetcher, prefetch
from threeloops.data.loading.sampler import SamplerState, epoch_order
from threeloops.data.loading.workers import ProcessWorker, SimulatedWorker, ThreadWorker
from threeloops.data.storage.slow_store import SharedLink, VirtualStore
from threeloops.data.storage.store import MemoryStore
from threeloops.simulation.clock import VirtualClock
from threeloops.simulation.pipeline import Stage, simulate

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


class Coded(Exception):
    """Pickles, and does not come back: unpickling calls it with one argument."""

    def __init__(self, code, text):
        super().__init__(f"{text} ({code})")


class Opens:
    """Its pickle opens a file that is not there, in whatever process reads it."""

    def __reduce__(self):
        return open, ("/nowhere/at all",)


class Full:
    def __reduce__(self):
        raise OSError(24, "Too many open files")


def raises_coded(n):
    raise Coded(5, "gone")


def gives_what_cannot_be_read(n):
    return Opens()


def gives_what_cannot_be_written(n):
    return Full()


def megabyte(n):
    return bytes(1_000_000)


def leaves(n):
    if n == 1:
        sys.exit("no configuration")
    return n


def writes_slowly(path):
    path.write_text("begun")
    time.sleep(3600)
    path.write_text("done")


def in_time(call, seconds=600):
    """What `call` returns, or raises; a call that never comes back fails the test, and does not hang it."""
    done = []

    def run():
        try:
            done.append((call(), None))
        except BaseException as error:
            done.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert done, f"still waiting after {seconds} s"
    value, error = done[0]
    if error is not None:
        raise error
    return value


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
    assert epoch_seconds(workers=9, ahead=ahead, link=SharedLink(0.21, float("inf"))) == pytest.approx(expected)


def test_threads_load_while_the_consumer_works():
    """With one sample ahead, the load of the next one begins before the present one is done with."""
    started = {n: threading.Event() for n in range(4)}

    def load(n):
        started[n].set()
        return n

    for n in prefetch(load, range(4), workers=1, ahead=1):
        if n < 3:
            assert started[n + 1].wait(timeout=600)


def test_a_killed_worker_is_named_with_what_it_owed(tmp_path):
    found = []
    with pytest.raises(
        WorkerDied, match=r"worker 0 of 2 was killed by signal 9; \d samples were in flight, the first of them 4"
    ):
        for n in prefetch(partial(die_once, tmp_path), range(10), workers=2, kind="process"):
            found.append(n)
    assert found == [0, 1, 2, 3]


def test_what_a_worker_answered_before_it_died_is_not_lost(tmp_path):
    """Keys sent to the dead are not an error yet: its answers come first, and then its death."""
    worker = ProcessWorker(partial(die_once, tmp_path), "worker")
    for key in (1, 2, 4):
        worker.send(key)
    worker.process.join(timeout=600)
    for key in (5, 6):
        worker.send(key)
    assert [worker.receive().value, worker.receive().value] == [1, 2]
    with pytest.raises(WorkerDied, match="worker was killed by signal 9"):
        worker.receive()
    worker.close()


def test_what_cannot_cross_is_a_named_error():
    with pytest.raises(WorkerFailed, match="cannot cross to the main process"):
        list(prefetch(unpicklable, [1], workers=1, kind="process"))


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (raises_coded, r"Coded: gone \(5\)"),
        (gives_what_cannot_be_read, "FileNotFoundError"),
        (gives_what_cannot_be_written, "Too many open files"),
        (Opens(), "the load cannot be made in a worker process: FileNotFoundError"),
    ],
)
def test_whatever_fails_on_the_way_is_named_with_worker_and_sample(load, said):
    """An OSError of pickling is not the death of a worker, whose end would be awaited for ever."""
    with pytest.raises(WorkerFailed, match=rf"worker 0 of 1, sample 1: .*{said}"):
        in_time(lambda: list(prefetch(load, [1], workers=1, kind="process")))


def test_a_key_that_a_worker_cannot_read_is_named():
    with pytest.raises(WorkerFailed, match="the key cannot cross to the worker process: FileNotFoundError"):
        in_time(lambda: list(prefetch(repr, [Opens()], workers=1, kind="process")))


def test_large_results_and_many_keys_do_not_wait_for_each_other():
    """Both sides of a link write more than fits into it: one of them has to read all the same."""
    sizes = in_time(lambda: [len(data) for data in prefetch(megabyte, range(800), 1, ahead=300, kind="process")])
    assert sizes == [1_000_000] * 800


def test_large_keys_and_large_results_do_not_wait_for_each_other():
    keys = [bytes(1_000_000)] * 4
    assert in_time(lambda: list(prefetch(bytes, keys, 1, kind="process"))) == keys


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_load_that_wants_to_end_everything_ends_the_iteration_by_name(kind):
    with pytest.raises(WorkerFailed, match="worker 1 of 2, sample 1: SystemExit: no configuration") as caught:
        in_time(lambda: list(prefetch(leaves, range(4), 2, kind=kind)))
    assert isinstance(caught.value.__cause__, SystemExit)


def test_a_function_of_a_notebook_is_named_with_what_to_do_instead():
    """A notebook is a main module that a spawned process cannot import. With little or much bound to the function."""
    for size in (10, 1_000_000):
        code = f"""if True:
            from functools import partial
            from threeloops.data.loading.prefetch import prefetch

            def load(images, n):
                return len(images)

            list(prefetch(partial(load, bytes({size})), range(3), 2, kind="process"))
        """
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
        assert "WorkerFailed: worker 0 of 2, sample 0" in done.stderr and 'kind="thread"' in done.stderr


def test_a_worker_that_dies_before_it_takes_its_load_is_dead_and_no_more(tmp_path):
    """The main module of this program cannot be imported by a worker; the load is larger than any pipe."""
    script = tmp_path / "script.py"
    script.write_text(
        "from functools import partial\n"
        "from threeloops.data.loading.prefetch import prefetch\n"
        "assert __name__ == '__main__', 'no worker may import this'\n"
        "list(prefetch(partial(max, bytes(1_000_000)), range(3), 2, kind='process'))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=600)
    assert "WorkerDied: worker 0 of 2 ended with exit code 1" in done.stderr


@pytest.mark.parametrize("kind", [ThreadWorker, ProcessWorker])
def test_workers_that_were_hired_before_one_could_not_be_are_gone(kind):
    hired = []

    def hire(number):
        if number == 2:
            raise RuntimeError("can't start new thread")
        hired.append(kind(abs, f"worker {number}"))
        return hired[-1]

    with pytest.raises(RuntimeError, match="can't start"):
        Prefetcher(range(3), hire, 3, 2)
    for worker in hired:
        assert not (worker.thread if kind is ThreadWorker else worker.process).is_alive()


def test_no_load_begins_once_the_iteration_is_left(monkeypatch):
    """All threads are told to stop before the first is waited for: only then do the loads at hand end here."""
    begun, at_work, waited_for = [], threading.Semaphore(0), threading.Event()
    close = ThreadWorker.close

    def load(n):
        begun.append(waited_for.is_set())
        at_work.release()
        if n:
            assert waited_for.wait(timeout=600)
        return n

    def close_and_let_loads_end(worker):
        waited_for.set()
        close(worker)

    monkeypatch.setattr(ThreadWorker, "close", close_and_let_loads_end)
    for _ in prefetch(load, range(100), workers=6):
        for _ in range(7):
            assert at_work.acquire(timeout=600)
        break
    assert begun.count(True) == 0


def test_a_process_drops_the_job_at_hand(tmp_path):
    path = tmp_path / "written"
    worker = ProcessWorker(writes_slowly, "worker")
    worker.send(path)
    deadline = time.monotonic() + 600
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    in_time(worker.close)
    assert path.read_text() == "begun"


def test_as_many_samples_are_alive_as_is_said():
    """`ahead + 1`, and one more while the consumer waits with the last one still in its hands."""
    alive, most, lock = set(), [], threading.Lock()

    class Counted:
        def __init__(self):
            with lock:
                alive.add(id(self))
                most.append(len(alive))

        def __del__(self):
            alive.discard(id(self))

    for _ in prefetch(lambda _: Counted(), range(40), workers=3, ahead=2):
        time.sleep(0.005)
        assert len(alive) <= 3
    assert max(most) <= 4


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


def test_an_unknown_kind_of_worker_is_refused():
    with pytest.raises(ValueError, match="'threads'"):
        prefetch(abs, [], 1, kind="threads")


def epoch_seconds(workers, ahead, step=0.05, samples=40, link=None):
    """A loop over a store of 200 ms and 1 MB/s, samples of 10 kB, on a virtual clock."""
    clock = VirtualClock()
    objects = MemoryStore({str(n): n.to_bytes(2, "big") * 5000 for n in range(samples)})
    store = VirtualStore(objects, link or SharedLink(0.2, 1e6), clock)
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


def test_an_object_that_a_store_lacks_is_named():
    store = VirtualStore(MemoryStore({}), SharedLink(0.2, 1e6), VirtualClock())
    with pytest.raises(WorkerFailed, match="worker 0, sample '0': KeyError") as caught:
        list(Prefetcher(["0"], lambda n: SimulatedWorker(store, 0.02, f"worker {n}"), 2, 4))
    assert isinstance(caught.value.__cause__, KeyError)


def trained_with(workers, state, stop, samples=23, batch=4, **how):
    """Batches until `stop` of them were used, and the state to save then."""
    loader = Loader(np.ndarray.tolist, samples, batch, state, workers, **how)
    used = []
    for number, (indices, after) in enumerate(loader.with_states(), 1):
        used.append(indices)
        loader.state = after
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
    needed = "threeloops.data.loading.loader, threeloops.data.formats.tar_shards, threeloops.data.formats.decode"
    code = f"import sys, {needed}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
