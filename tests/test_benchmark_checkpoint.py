"""The tables of checkpoints: all parties save the same state, and an increment holds little more than what changed."""

import pytest
from threeloops.hardware.capability import probe

from benchmarks.checkpoint import DCP, DCP_ASYNC, FIRST, LATER, LOAD, OURS, OURS_FULL, SAVE, TORCH, measure
from grader.machine.provenance import provenance


@pytest.fixture(scope="module")
def result():
    return measure(provenance(probe(), "cpu", None), quick=True)


def test_every_party_is_measured_beside_torch_dcp(result):
    found = {(series.what, series.by): series for series in result.series}
    assert found.keys() == {(what, by) for what in (SAVE, LOAD) for by in (OURS, OURS_FULL, TORCH, DCP)} | {
        (what, by) for what in (FIRST, LATER) for by in (OURS_FULL, DCP_ASYNC)
    }
    for (what, by), series in found.items():
        assert series.peer == (by in (DCP, DCP_ASYNC))
        assert len(series.samples) == (4 if what == LATER else 2) and min(series.samples) > 0
        assert series.better == ("higher" if what in (SAVE, LOAD) else "lower")


def test_an_increment_holds_little_more_than_what_has_changed(result):
    assert len(result.predictions) == 3
    for each in result.predictions:
        assert 1 <= each.measured / each.predicted <= 1.1, each


def test_the_result_can_be_written(result):
    assert '"benchmark": "checkpoint"' in result.to_json()
