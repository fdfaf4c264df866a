"""The tables of sharded steps: ours hide at least what torch's do, send as much, and hold what the formulas say."""

import pytest

from benchmarks.parallel_sharded import (
    BACKWARD,
    FORWARD,
    LAYERS,
    OURS,
    OURS_DDP,
    PREFETCHED,
    TORCHS,
    ZERO,
    sharded_predictions,
    sharded_rows,
)


@pytest.fixture(scope="module")
def rows():
    return {(series.what, series.by): series.median for series in sharded_rows()}


def test_our_steps_hide_at_least_what_fully_shard_hides_and_send_the_same_bytes(rows):
    assert {by for _, by in rows} == {OURS_DDP, ZERO, OURS, TORCHS, PREFETCHED}
    step, exposed, sent = (f"sharded, {what}" for what in ("step", "exposed share of communication", "sent per rank"))
    for theirs in (TORCHS, PREFETCHED):
        assert rows[step, OURS] < rows[step, theirs]
        assert rows[exposed, OURS] < rows[exposed, theirs]
        assert rows[sent, OURS] == rows[sent, theirs]
    gather = 3 * (10e-6 + 256 * 256 * 4 / 4 / 1e9)
    computed = LAYERS * (FORWARD + BACKWARD)
    assert rows[step, OURS] == pytest.approx(computed + 3 * gather, rel=1e-9)
    assert rows[exposed, OURS] == pytest.approx(3 / (3 * LAYERS), rel=1e-9)
    assert rows[step, PREFETCHED] - (LAYERS - 1) * gather == pytest.approx(rows[step, OURS], rel=1e-9)  # as noted
    assert rows[sent, OURS_DDP] == rows[sent, ZERO] == rows[sent, OURS] * 2 / 3


def test_predictions_are_met():
    found = sharded_predictions()
    assert {prediction.what for prediction in found} == {"bytes sent per rank", "model states"}
    for prediction in found:
        if prediction.what == "bytes sent per rank":
            assert prediction.measured == prediction.predicted
        assert abs(prediction.difference) < 0.02
