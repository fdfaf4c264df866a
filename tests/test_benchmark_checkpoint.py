"""The tables of checkpoints: all parties save the same state, and an increment holds little more than what changed."""

import pytest
from threeloops.hardware.capability import probe
from threeloops_grader.machine.provenance import provenance

from benchmarks.checkpoint import (
    DCP,
    DCP_ASYNC,
    FIRST,
    LATER,
    LOAD,
    OURS,
    OURS_FULL,
    SAFETENSORS,
    SAVE,
    TORCH,
    measure,
)


@pytest.fixture(scope="module")
def result():
    return measure(provenance(probe(), "cpu", None), quick=True)


def test_every_party_is_measured_beside_torch_dcp(result):
    found = {(series.what, series.by): series for series in result.series}
    throughput = {key: series for key, series in found.items() if not key[0].startswith(("crash", "checkpoints lost"))}
    small = "save of 2,000 small tensors"
    assert throughput.keys() == (
        {(what, by) for what in (SAVE, LOAD) for by in (OURS, OURS_FULL, TORCH, DCP)}
        | {(SAVE, SAFETENSORS)}
        | {(small, by) for by in (OURS, OURS_FULL, TORCH)}
        | {(what, by) for what in (FIRST, LATER) for by in (OURS_FULL, DCP_ASYNC)}
    )
    for (what, by), series in throughput.items():
        assert series.peer == (by == TORCH if what == small else by in (DCP, DCP_ASYNC))
        assert len(series.samples) == (4 if what == LATER else 2) and min(series.samples) > 0
        assert series.better == ("higher" if what in (SAVE, LOAD) else "lower")


def test_ours_loses_nothing_in_any_crash_state_nor_to_kills_and_torch_in_place_does(result):
    counts = {}
    for series in result.series:
        if series.what.startswith(("crash", "checkpoints lost")):
            counts[series.what, series.by] = series.samples[0]
    lost = {key: count for key, count in counts.items() if "lost" in key[0]}
    assert not [key for key, count in lost.items() if key[1] in (OURS, "threeloops") and count]
    assert len({by for what, by in counts if what.startswith("crash")}) == 5
    for rules in ("POSIX", "ext4"):
        for by in ("torch.save in place", "torch DCP in place"):
            assert counts[f"crash states under {rules} rules: both lost", by] > 0
        assert counts[f"crash states under {rules} rules: states", OURS] > 10


def test_an_increment_holds_little_more_than_what_has_changed(result):
    assert len(result.predictions) == 3
    for each in result.predictions:
        assert 1 <= each.measured / each.predicted <= 1.1, each


def test_the_result_can_be_written(result):
    assert '"benchmark": "checkpoint"' in result.to_json()
