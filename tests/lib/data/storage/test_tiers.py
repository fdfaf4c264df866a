"""Measuring tiers: plausible numbers, no file left behind."""

import pytest
from threeloops.data.storage.tiers import _CHUNK, forget, measure_tiers


def test_every_tier_has_a_bandwidth_and_a_latency(tmp_path):
    tiers = measure_tiers(tmp_path, size=2 * _CHUNK, repeats=1)
    assert [tier.name for tier in tiers] == ["memory", "page cache", "disk"]
    assert all(tier.bandwidth > 0 and tier.latency > 0 for tier in tiers)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", [0, _CHUNK - 4096, _CHUNK + 1])
def test_a_size_that_measures_nothing_is_refused(tmp_path, size):
    with pytest.raises(ValueError, match=f"size = {size} bytes"):
        measure_tiers(tmp_path, size)


def test_a_forgotten_file_is_still_the_same_file(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 5000)
    forget(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"x" * 5000
