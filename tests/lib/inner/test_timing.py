"""benchmark, and the noise band of a median."""

from itertools import count
from math import comb
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.hardware.accelerators import Caches
from threeloops.inner import timing
from threeloops.inner.timing import (
    Samples,
    _cache_flusher,
    _clock_of,
    _host_clock,
    _last_level_cache_bytes,
    benchmark,
    median_band,
)


class Recorder:
    """Notes in which order inputs are made, caches flushed, calls made and clocks read."""

    def __init__(self, seconds=()):
        self.log = []
        self.seconds = iter(seconds)
        self.serial = count()

    def make_inputs(self):
        serial = next(self.serial)
        self.log.append(("make", serial))
        return (serial,)

    def fn(self, serial):
        self.log.append(("call", serial))

    def flush(self):
        self.log.append("flush")

    def clock(self, call):
        self.log.append("start")
        call()
        self.log.append("stop")
        return next(self.seconds)


def test_every_call_has_fresh_inputs_made_before_the_clock_starts_and_a_flushed_cache():
    recorder = Recorder(seconds=[0.3, 0.1])
    result = benchmark(
        recorder.fn, recorder.make_inputs, warmup=1, samples=2, clock=recorder.clock, flush=recorder.flush
    )
    assert recorder.log == [
        ("make", 0), ("call", 0),
        ("make", 1), "flush", "start", ("call", 1), "stop",
        ("make", 2), "flush", "start", ("call", 2), "stop",
    ]  # fmt: skip
    assert result.seconds == (0.3, 0.1), "raw samples, in the order in which they were taken"


def test_no_flush_when_the_warm_cache_is_wanted():
    recorder = Recorder(seconds=[1.0] * 4)
    benchmark(
        recorder.fn,
        recorder.make_inputs,
        warmup=0,
        samples=4,
        flush_cache=False,
        clock=recorder.clock,
        flush=recorder.flush,
    )
    assert recorder.log.count("flush") == 0
    assert [entry for entry in recorder.log if entry[0] == "call"] == [("call", serial) for serial in range(4)]


def test_inputs_that_the_function_destroys_are_new_each_time():
    seen = []

    def consume(values):
        seen.append(list(values))
        values.clear()

    benchmark(consume, lambda: ([1, 2],), warmup=2, samples=3, flush_cache=False)
    assert seen == [[1, 2]] * 5


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"samples": 0}, ValueError, "samples = 0"),
        ({"samples": 2.5}, TypeError, "samples = 2.5"),
        ({"warmup": -1}, ValueError, "warmup = -1"),
        ({"warmup": True}, TypeError, "warmup = True"),
        ({"fn": 3}, TypeError, "fn = 3"),
        ({"make_inputs": (1,)}, TypeError, "make_inputs"),
        ({"make_inputs": lambda: [1]}, TypeError, r"make_inputs\(\) returned list"),
        ({"device": "tpu"}, ValueError, "device = 'tpu'"),
    ],
)
def test_wrong_arguments_are_named(changed, error, message):
    arguments = {"fn": lambda x: x, "make_inputs": lambda: (1,), "warmup": 0, "samples": 1, "flush_cache": False}
    arguments |= changed
    with pytest.raises(error, match=message):
        benchmark(arguments.pop("fn"), arguments.pop("make_inputs"), **arguments)


def test_a_missing_gpu_is_an_error_and_not_a_cpu_time(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match="no CUDA device is visible"):
        _clock_of("cuda:0")


def test_host_clock_reads_the_clock_around_the_call_and_frees_the_result_outside(monkeypatch):
    now = [1000]
    monkeypatch.setattr(timing.time, "perf_counter_ns", lambda: now[0])

    class Result:
        def __del__(self):
            now[0] += 10**9

    def call():
        now[0] += 250
        return Result()

    assert _host_clock(call) == 250e-9


def test_the_flush_streams_through_more_than_the_last_level_cache(monkeypatch):
    monkeypatch.setattr(timing, "_last_level_cache_bytes", lambda device: 1000)
    flushed = _cache_flusher("cpu")()
    assert flushed.numel() * flushed.element_size() == 2000
    assert flushed.unique().tolist() == [1], "every byte was written"


def test_the_last_level_cache_is_that_of_the_inventory(monkeypatch):
    monkeypatch.setattr(timing, "cpu_caches", lambda: Caches(l1_bytes=48 << 10, l2_bytes=2 << 20, l3_bytes=36 << 20))
    assert _last_level_cache_bytes() == 36 * 2**20
    monkeypatch.setattr(timing, "cpu_caches", Caches)
    assert _last_level_cache_bytes() == timing._CACHE_IF_UNKNOWN


@pytest.mark.parametrize(
    ("samples", "ranks"), [(6, (1, 6)), (10, (2, 9)), (20, (6, 15)), (30, (10, 21)), (100, (40, 61))]
)
def test_ranks_of_the_published_95_percent_table(samples, ranks):
    band = median_band(samples)
    assert (band.low_rank, band.high_rank) == ranks


@given(st.integers(1, 200), st.floats(0.5, 0.999))
def test_band_covers_and_the_next_narrower_one_does_not(samples, confidence):
    def covered(rank):
        return sum(comb(samples, below) for below in range(rank, samples + 1 - rank)) / 2**samples

    band = median_band(samples, confidence)
    assert band.low_rank + band.high_rank == samples + 1
    assert band.coverage == pytest.approx(covered(band.low_rank), abs=1e-12)
    assert band.coverage >= confidence or band.low_rank == 1
    assert covered(band.low_rank + 1) < confidence or 2 * band.low_rank + 1 > samples


def test_a_band_of_many_samples_is_the_normal_one_and_takes_no_time():
    start = perf_counter()
    band = median_band(20_000)
    assert perf_counter() - start < 5
    assert band.low_rank == pytest.approx(10_000 - 1.96 * 20_000**0.5 / 2, abs=2)
    assert 0.95 <= band.coverage < 0.9515


def test_the_band_holds_the_true_median_of_a_skewed_distribution_as_often_as_it_says():
    times = np.random.default_rng(0).exponential(size=(4000, 15)) + 1
    held = [Samples(tuple(row)).low <= 1 + np.log(2) <= Samples(tuple(row)).high for row in times.tolist()]
    expected = median_band(15).coverage
    assert abs(np.mean(held) - expected) < 4 * np.sqrt(expected * (1 - expected) / len(held))


def test_median_and_band_of_known_samples():
    samples = Samples(tuple(float(value) for value in (5, 1, 9, 3, 7, 2, 8, 4, 10, 6)))
    assert (samples.median, samples.low, samples.high) == (5.5, 2.0, 9.0)
    assert median_band(10).coverage == 1 - 2 * 11 / 1024


def test_ratio_and_its_worst_case_band():
    numerator, denominator = Samples((4.0, 4.0, 6.0, 6.0, 8.0, 8.0)), Samples((1.0, 2.0, 2.0, 2.0, 2.0, 4.0))
    ratio = numerator.ratio(denominator)
    assert (ratio.value, ratio.low, ratio.high) == (3.0, 1.0, 8.0)


def test_a_time_below_the_clocks_resolution_has_no_ratio():
    with pytest.raises(ValueError, match=r"other\.low = 0"):
        Samples((1.0,)).ratio(Samples((0.0, 1.0)))


@pytest.mark.parametrize("seconds", [(), (1.0, float("nan")), (-1.0,), (float("inf"),)])
def test_impossible_times_are_rejected(seconds):
    with pytest.raises(ValueError, match="seconds"):
        Samples(seconds)


@pytest.mark.parametrize(("samples", "confidence", "name"), [(0, 0.95, "samples = 0"), (9, 1.0, "confidence = 1")])
def test_impossible_bands_are_rejected(samples, confidence, name):
    with pytest.raises(ValueError, match=name):
        median_band(samples, confidence)


class QueuedDevice:
    """A device that does its work in order while the host goes on; times of both in seconds. `issue` is what the host
    takes to launch the call, `kernel` what the device takes for it."""

    def __init__(self, monkeypatch, issue, kernel):
        torch = pytest.importorskip("torch")
        self.host = self.device = 0.0
        self.issue, self.kernel, self.order = issue, kernel, []
        device = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                device.order.append("event")
                device.device = self.at = max(device.host, device.device)

            def synchronize(self):
                device.host = max(device.host, self.at)

            def elapsed_time(self, other):
                return (other.at - self.at) * 1e3

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "_sleep", self.sleep)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: type("P", (), {"clock_rate": 1_000_000}))
        monkeypatch.setattr(timing, "_require_cuda", lambda _: None)
        monkeypatch.setattr(timing.time, "perf_counter_ns", lambda: int(self.host * 1e9))

    def sleep(self, cycles):
        self.order.append("sleep")
        self.device = max(self.host, self.device) + cycles / 1e9

    def call(self):
        self.order.append("call")
        self.host += self.issue
        self.device = max(self.host, self.device) + self.kernel


@pytest.mark.parametrize("issue", [25e-6, 93e-6, 900e-6, 8e-3])
def test_a_kernel_shorter_than_its_launch_is_timed_and_not_its_launch(monkeypatch, issue):
    device = QueuedDevice(monkeypatch, issue, kernel=4e-6)
    found = benchmark(device.call, tuple, device="cuda", flush=lambda: device.order.append("flush"), samples=7)
    assert found.seconds == pytest.approx([4e-6] * 7)
    assert device.order[-5:] == ["flush", "sleep", "event", "call", "event"]


def test_without_a_flush_launches_count(monkeypatch):
    device = QueuedDevice(monkeypatch, 50e-6, kernel=4e-6)
    found = benchmark(device.call, tuple, device="cuda", flush_cache=False, samples=3)
    assert "sleep" not in device.order and found.median == pytest.approx(54e-6)


@pytest.mark.gpu
def test_a_launch_that_takes_long_on_the_host_adds_nothing():
    torch, host_seconds = pytest.importorskip("torch"), 500e-6

    def slow(x):
        stop = perf_counter() + host_seconds
        while perf_counter() < stop:
            pass
        return x.add_(1)

    def inputs():
        return (torch.ones(1 << 20, device="cuda"),)

    assert benchmark(slow, inputs, device="cuda", samples=20).median < host_seconds


@pytest.mark.gpu
def test_cuda_events_time_the_device_and_not_the_launch():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")

    def inputs(size):
        return lambda: (torch.ones(size, size, device="cuda"),)

    small = benchmark(torch.mm, lambda: inputs(1024)() * 2, device="cuda", samples=20)
    large = benchmark(torch.mm, lambda: inputs(8192)() * 2, device="cuda", samples=20)
    assert large.low > small.high
