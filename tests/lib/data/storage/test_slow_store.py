"""A far store, on a virtual clock: latencies overlap, bytes do not; a cache in front of it."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops.data.storage.cache import CachedStore
from threeloops.data.storage.slow_store import SharedLink, SlowStore, VirtualStore
from threeloops.data.storage.store import MemoryStore
from threeloops.simulation.clock import VirtualClock

OBJECTS = MemoryStore({f"object {i}": bytes([i]) * 1000 for i in range(8)})


def arrivals(link: SharedLink, keys: list[str]) -> list[tuple[float, object]]:
    """(when, what) for requests that are all made at 0 s."""
    clock, found = VirtualClock(), []
    store = VirtualStore(OBJECTS, link, clock)
    for key in keys:
        store.request(key, lambda answer: found.append((clock.now(), answer)))
    clock.sleep_until(1e9)
    return found


def test_one_request_takes_a_latency_and_its_bytes():
    ((when, data),) = arrivals(SharedLink(0.5, 10_000), ["object 3"])
    assert when == pytest.approx(0.6) and data == b"\3" * 1000


def test_latencies_of_concurrent_requests_overlap_and_bytes_queue():
    found = arrivals(SharedLink(0.5, 10_000), [f"object {i}" for i in range(8)])
    assert [when for when, _ in found] == pytest.approx([0.6 + 0.1 * i for i in range(8)])


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 5000)), min_size=1, max_size=20))
def test_the_link_is_never_faster_than_its_two_numbers(requests):
    link = SharedLink(0.3, 2_000)
    ends = [link.reserve(asked, size) for asked, size in sorted(requests)]
    assert ends == sorted(ends)
    assert all(
        end >= asked + 0.3 + size / 2_000 - 1e-9 for end, (asked, size) in zip(ends, sorted(requests), strict=True)
    )
    total = sum(size for _, size in requests)
    assert ends[-1] >= min(asked for asked, _ in requests) + 0.3 + total / 2_000 - 1e-9
    assert (link.requests, link.bytes) == (len(requests), total)


def test_serial_reads_on_the_virtual_clock_pay_every_latency():
    clock = VirtualClock()
    store = SlowStore(OBJECTS, SharedLink(0.5, 10_000), clock=clock)
    assert [store.get(f"object {i}")[0] for i in range(4)] == [0, 1, 2, 3]
    assert clock.now() == pytest.approx(4 * 0.6)


def test_an_unknown_object_is_a_key_error_after_the_latency():
    ((when, error),) = arrivals(SharedLink(0.5, 1), ["nothing"])
    assert when == 0.5 and isinstance(error, KeyError) and "nothing" in str(error)


@pytest.mark.parametrize(("key", "latency"), [("object 1", 0.2), ("object 1", 3.0), ("nothing", 0.2), ("nothing", 3.0)])
def test_real_waiting_and_events_give_the_same_answer_at_the_same_time(key, latency):
    """Objects that are there and that are not."""
    serial, seen = VirtualClock(), []
    store = SlowStore(OBJECTS, one := SharedLink(latency, 10_000), clock=serial)
    other = SharedLink(latency, 10_000)
    ((when, answer),) = arrivals(other, [key])
    try:
        seen.append(store.get(key))
    except Exception as error:
        seen.append(error)
    assert (serial.now(), repr(seen[0]), one) == (when, repr(answer), other)
    assert when == pytest.approx(latency + (0.1 if key in OBJECTS.objects else 0.0))


class Failing:
    def get(self, key):
        raise OSError(f"{key}: the disk failed")


def test_what_a_store_raises_is_an_answer_too():
    clock, found = VirtualClock(), []
    VirtualStore(Failing(), SharedLink(0.5, 1), clock).request("file", found.append)
    clock.run_until(lambda: bool(found))
    assert clock.now() == 0.5 and isinstance(found[0], OSError)


@pytest.mark.parametrize(("latency", "bandwidth"), [(-1, 1), (0, 0), (math.nan, 1), (0, math.nan)])
def test_a_link_needs_two_sensible_numbers(latency, bandwidth):
    with pytest.raises(ValueError, match="expected ≥ 0 and positive"):
        SharedLink(latency, bandwidth)


def test_planned_things_happen_in_order_and_waiting_for_nothing_is_a_deadlock():
    clock, seen = VirtualClock(), []
    for moment, name in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        clock.at(moment, lambda name=name: seen.append((clock.now(), name)))
    clock.sleep_until(1.5)
    assert seen == [(1.0, "a"), (1.0, "b")] and clock.now() == 1.5
    clock.run_until(lambda: len(seen) == 3)
    with pytest.raises(RuntimeError, match="deadlock at 2 s"):
        clock.run_until(lambda: False)
    with pytest.raises(ValueError, match="is past"):
        clock.at(1.0, print)


class Counting:
    """A store that counts what it is asked for."""

    def __init__(self):
        self.asked = []

    def get(self, key):
        self.asked.append(key)
        return OBJECTS.get(key)


def test_a_cache_answers_the_second_time(tmp_path):
    source = Counting()
    cache = CachedStore(source, tmp_path, 3 * 1004)
    for key in ("object 1", "object 2", "object 1", "object 1"):
        assert cache.get(key) == OBJECTS.get(key)
    assert source.asked == ["object 1", "object 2"]
    assert (cache.hits, cache.misses, cache.evictions, cache.stored_bytes) == (2, 2, 0, 2008)


def test_the_least_recently_used_goes_first(tmp_path):
    source = Counting()
    cache = CachedStore(source, tmp_path, 2 * 1004)
    for key in ("object 1", "object 2", "object 1", "object 3", "object 1", "object 2"):
        cache.get(key)
    assert source.asked == ["object 1", "object 2", "object 3", "object 2"]


@settings(max_examples=40)
@given(st.lists(st.integers(0, 7), max_size=40), st.integers(0, 6))
def test_a_cache_never_exceeds_its_bytes_and_never_lies(tmp_path_factory, keys, objects):
    folder = tmp_path_factory.mktemp("cache")
    cache = CachedStore(OBJECTS, folder, objects * 1004 + 500)
    recent: list[int] = []
    for key in keys:
        hits = cache.hits
        assert cache.get(f"object {key}") == bytes([key]) * 1000
        assert (cache.hits > hits) == (key in recent[-objects:] if objects else False)
        recent = [k for k in recent if k != key] + [key]
        on_disk = sum(path.stat().st_size for path in folder.iterdir())
        assert on_disk == cache.stored_bytes <= cache.limit_bytes


def test_a_damaged_entry_is_fetched_again(tmp_path):
    source = Counting()
    CachedStore(source, tmp_path, 10_000).get("object 1")
    (entry,) = tmp_path.iterdir()
    for damage in (b"", entry.read_bytes()[:500], entry.read_bytes()[:-1] + b"\0"):
        entry.write_bytes(damage)
        assert CachedStore(source, tmp_path, 10_000).get("object 1") == b"\1" * 1000
    assert source.asked == ["object 1"] * 4


def test_a_restart_keeps_the_order_of_use_and_sweeps_what_is_unfinished(tmp_path):
    cache = CachedStore(OBJECTS, tmp_path, 10_000)
    for i in range(3):
        cache.get(f"object {i}")
    for age, path in enumerate(sorted(tmp_path.iterdir(), key=lambda p: p.read_bytes()[4])):
        os.utime(path, ns=(age, age))
    cache.get("object 0")
    (tmp_path / "x.1-1.unfinished").write_bytes(b"half")
    source = Counting()
    again = CachedStore(source, tmp_path, 2 * 1004)
    assert again.stored_bytes == 2008 and not list(tmp_path.glob("*.unfinished"))
    assert again.get("object 0") and again.get("object 2") and source.asked == []


def test_an_object_larger_than_the_cache_passes_through(tmp_path):
    cache = CachedStore(OBJECTS, tmp_path, 1003)
    assert cache.get("object 1") == b"\1" * 1000 and cache.stored_bytes == 0
    with pytest.raises(ValueError, match="limit_bytes = -1"):
        CachedStore(OBJECTS, tmp_path, -1)


def test_a_full_disk_costs_the_cache_and_not_the_data(tmp_path):
    """The limit on the size of files stands for the end of the disk; it holds in a process of its own."""
    code = f"""if True:
        import resource, signal
        from pathlib import Path
        from threeloops.data.storage.cache import CachedStore
        from threeloops.data.storage.store import MemoryStore

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
        objects = MemoryStore({{"large": bytes(1_000_000), "small": b"1234"}})
        cache = CachedStore(objects, Path({str(tmp_path)!r}), 2_000_000)
        for _ in range(3):
            assert cache.get("large") == bytes(1_000_000) and cache.get("small") == b"1234"
        assert (cache.misses, cache.hits, cache.stored_bytes) == (4, 2, 8)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 8


def test_what_another_process_is_writing_is_not_swept(tmp_path):
    """A writer is stopped in the middle, and another cache opens the folder; when it is dead, the next one sweeps."""
    code = f"""if True:
        import os, time
        from pathlib import Path
        from threeloops.data.storage.cache import CachedStore
        from threeloops.data.storage.store import MemoryStore

        def replace(*_):
            print("writing", flush=True)
            time.sleep(3600)

        os.replace = replace
        CachedStore(MemoryStore({{"a": bytes(1000)}}), Path({str(tmp_path)!r}), 10_000).get("a")
    """
    writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout.readline() == "writing\n"
        CachedStore(OBJECTS, tmp_path, 10_000)
        assert len(list(tmp_path.glob("*.unfinished"))) == 1
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
    CachedStore(OBJECTS, tmp_path, 10_000)
    assert not list(tmp_path.iterdir())


def test_an_entry_that_another_process_throws_out_meanwhile_is_not_there(tmp_path, monkeypatch):
    cache = CachedStore(OBJECTS, tmp_path, 10_000)
    for i in range(3):
        cache.get(f"object {i}")
    stat = Path.stat

    def thrown_out(path, **how):
        if path.suffix == ".cached" and path.name == names[0]:
            path.unlink(missing_ok=True)
        return stat(path, **how)

    names = sorted(path.name for path in tmp_path.iterdir())
    monkeypatch.setattr(Path, "stat", thrown_out)
    assert CachedStore(OBJECTS, tmp_path, 10_000).stored_bytes == 2 * 1004
    assert all(cache.get(f"object {i}") == bytes([i]) * 1000 for i in range(3))
