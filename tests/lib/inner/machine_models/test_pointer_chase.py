"""The ring visits every line once and no order can be guessed; where a compiler is, a load really takes time."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threeloops.inner import interpreter

INTERPRETED = interpreter.enable_without_gpu()

from threeloops.inner.machine_models import pointer_chase
from threeloops.inner.machine_models.pointer_chase import NotMeasurable, latency, latency_of_spread, ring


@given(st.integers(1, 300), st.sampled_from([1, 8, 16]), st.integers(0, 5))
def test_the_ring_is_one_cycle_through_the_first_element_of_every_line(lines, line_elements, seed):
    following, at, seen = ring(lines, line_elements, seed), 0, []
    for _ in range(lines):
        seen.append(at)
        at = int(following[at])
    assert at == 0
    assert sorted(seen) == [line * line_elements for line in range(lines)]


def test_the_stride_between_stops_is_not_constant():
    following = ring(1024, 8, 0)
    strides = (following[::8] - np.arange(0, 8192, 8)) // 8
    assert len(np.unique(strides)) > 500


def test_another_seed_is_another_ring():
    assert not np.array_equal(ring(64, 8, 0), ring(64, 8, 1))


@pytest.mark.parametrize("arguments", [(0, 8, 0), (8, 0, 0)])
def test_an_empty_ring_is_named(arguments):
    with pytest.raises(ValueError, match="= 0: expected at least 1"):
        ring(*arguments)


def test_a_load_takes_between_a_clock_and_a_millisecond():
    try:
        samples = latency(1 << 14, on="cpu", repeats=3)
    except NotMeasurable as reason:
        pytest.skip(str(reason))
    assert len(samples) == 3
    assert all(1e-10 < seconds < 1e-3 for seconds in samples)


def test_every_sample_goes_on_where_the_last_one_stopped(monkeypatch):
    chased = []

    def chase(pointer, at, loads):
        chased.append((at, loads))
        return at + loads

    monkeypatch.setattr(pointer_chase, "_compiled_chase", lambda: chase)
    latency_of_spread(1 << 10, 1, on="cpu", repeats=3)
    starts, loads = zip(*chased, strict=True)
    assert starts == tuple(sum(loads[:i]) for i in range(4))
    assert loads[0] == 1 << 10
    assert len(set(loads[1:])) == 1


@pytest.mark.skipif(not INTERPRETED, reason="kernels are compiled in this process")
def test_the_gpu_kernel_leaves_the_place_that_it_reached():
    following, place = ring(50, 2, 0), torch.zeros(1, dtype=torch.int64)
    expected = [0]
    for _ in range(12):
        expected.append(int(following[expected[-1]]))
    for loads in (5, 7):
        pointer_chase.chase_kernel[(1,)](torch.from_numpy(following), place, loads)
    assert int(place) == expected[12]


def test_without_a_compiler_the_reason_is_named(monkeypatch):
    monkeypatch.setattr(pointer_chase.shutil, "which", lambda name: None)
    pointer_chase._compiled_chase.cache_clear()
    try:
        with pytest.raises(NotMeasurable, match="no C compiler"):
            latency(4096, on="cpu")
    finally:
        pointer_chase._compiled_chase.cache_clear()


def test_a_spread_ring_visits_one_line_in_every_so_many():
    try:
        assert len(latency_of_spread(64, 64, on="cpu", repeats=2)) == 2
    except NotMeasurable as reason:
        pytest.skip(str(reason))
    with pytest.raises(ValueError, match="lines = 0"):
        latency_of_spread(0, 64, on="cpu")


def test_on_a_gpu_every_kernel_is_compiled_before_the_first_sample(monkeypatch):
    """Triton compiles one for an argument of 1, one for multiples of 16, one for the rest."""
    followed, repeats = [], 3

    def on_gpu(following):
        return lambda loads: followed.append(loads) or 1e-6 * loads

    monkeypatch.setattr(pointer_chase, "_follow_on_gpu", on_gpu)
    pointer_chase.latency_of_spread(1 << 10, 1, on="cuda", repeats=repeats)
    before, sampled = followed[: -2 * repeats], followed[-2 * repeats :]
    assert set(sampled) <= set(before)
