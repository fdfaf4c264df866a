"""The memory benchmark measures what it says, in small."""

import pytest

from benchmarks import memory
from benchmarks.memory_offload import offloading
from benchmarks.turns import in_turns


@pytest.mark.parametrize("name", ["kv_heads", "recompute"])
def test_count_tracker_and_pytorchs_tracker_agree(name):
    row = memory.peaks(name, "cpu")
    assert abs(row["difference"]) < 0.05
    assert row["tracked_bytes"] == pytest.approx(row["MemTracker_bytes"], rel=0.01)  # it leaves the tokens out


def test_segments_follow_the_formula():
    (row,) = memory.segments((6,))
    assert abs(row["worst_difference"]) < 0.05
    assert row["best_k"] == row["best_k_by_formula"] and set(row["tracked_bytes"]) == {1, 2, 3, 6}


def test_every_prediction_of_an_offloaded_step_stands_beside_its_measurement():
    series, facts = offloading("cpu", elements=1 << 12, rounds=2)
    measured = {each.by: each.median for each in series}
    assert [each.peer for each in series].count(True) == 1 and not {"fetch", "write", "update"} & set(measured)
    assert len(facts["predicted"]) == 4
    for row in facts["predicted"]:
        assert row["measured_seconds"] == measured[row["by"]]
        assert row["difference"] == pytest.approx(row["measured_seconds"] / row["predicted_seconds"] - 1)


def test_parties_take_turns():
    order = []
    found = in_turns({name: lambda name=name: order.append(name) for name in "ab"}, "cpu", 3)
    assert order == list("ab" * 4)
    assert {name: len(times) for name, times in found.items()} == {"a": 3, "b": 3}
