"""The table of data-parallel steps: both parties reduce the same bytes, and ours is never behind."""

import pytest

from benchmarks.cluster_ddp import BUCKETS_MB, LAYERS, OURS, RANKS, TORCHS, WIDTH, ddp_rows


def test_our_steps_are_never_behind_torchs_and_send_the_same_bytes():
    rows = ddp_rows()
    assert len(rows) == len(BUCKETS_MB) * 2 * 3 * 2
    for ours, theirs in zip(rows[::2], rows[1::2], strict=True):
        assert (ours.what, ours.by, theirs.by, theirs.peer) == (theirs.what, OURS, TORCHS, True)
        assert ours.median <= theirs.median * (1 + 1e-12)
        if "sent" in ours.what:
            assert ours.median == theirs.median == 2 * (RANKS - 1) / RANKS * LAYERS * WIDTH**2 * 4
    later = {row.what: row.median for row in rows[::2] if "step 3" in row.what}
    assert later["one bucket, step 3"] == pytest.approx(5.605728e-3, rel=1e-9)
    assert later["buckets of 0.5 MiB, step 3"] == pytest.approx(4.585728e-3, rel=1e-9)
    assert later["one bucket, step 3: exposed share"] == pytest.approx(1, rel=1e-9)
