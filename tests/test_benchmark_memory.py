"""The memory benchmark measures what it says, in small."""

import pytest
from threeloops.inner.memory.offload import Rates

from benchmarks import memory
from benchmarks.memory_offload import ChannelClock, offloading
from benchmarks.turns import in_turns


@pytest.mark.parametrize("name", ["kv_heads", "recompute"])
def test_count_tracker_and_pytorchs_tracker_agree(name):
    tracked, pytorch = memory.peaks(name, "cpu")
    assert (tracked.by, pytorch.by) == ("LiveStorage", "PyTorch's MemTracker")
    assert abs(tracked.difference) < 0.05
    assert tracked.measured == pytest.approx(pytorch.measured, rel=0.01)  # PyTorch's leaves the tokens out


def test_segments_follow_the_formula():
    rows, best = memory.segments(6)
    assert all(abs(row.difference) < 0.05 for row in rows)
    assert [row.case for row in rows] == [f"6 layers, {k} a segment" for k in (1, 2, 3, 6)]
    assert best["found"] == best["by_formula"]


def test_every_prediction_of_an_offloaded_step_stands_beside_its_measurement():
    series, predictions, facts = offloading("cpu", elements=1 << 12, rounds=2)
    measured = {each.by: each.median for each in series}
    assert [each.peer for each in series].count(True) == 1 and "two chunks" not in measured
    assert len(predictions) == 4 and {row.by: row.measured for row in predictions}.items() <= measured.items()
    assert set(facts["bytes_per_second"]) == {"fetch", "write", "update"}


def test_a_slow_link_is_what_the_prediction_says_it_is():
    """No step is faster than its bytes over the link, there and back; what a busy machine adds is not judged here."""
    elements = 1 << 16
    _, predictions, _ = offloading("cpu", elements, rounds=2)
    behind_link = [row for row in predictions if "1 GB/s" in row.by]
    assert len(behind_link) == 2
    for row in behind_link:
        assert min(row.measured, row.predicted) > 2 * 8 * elements / 1e9, row


def test_the_clock_of_a_channel_tells_fetches_from_writes():
    clock = ChannelClock("cpu")
    clock.seconds = [9.0] * 4 + [1.0, 2.0, 1.0, 2.0] * 3  # a warm-up step, then three of two chunks
    clock.close()
    assert clock.rates((10.0, 11.0, 12.0), step_bytes=40) == Rates(fetch=20.0, write=10.0, update=8.0)


def test_parties_take_turns():
    order = []
    found = in_turns({name: lambda name=name: order.append(name) for name in "ab"}, "cpu", 3)
    assert order == list("ab" * 4)
    assert {name: len(times) for name, times in found.items()} == {"a": 3, "b": 3}
