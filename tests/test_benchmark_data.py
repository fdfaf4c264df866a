"""The data benchmark keeps its targets where they are exact, and compares like with like where they are measured."""

from benchmarks.data import LIBRARY, SMALL_FILES, checksums, disk, far_store, utilisations


def test_prefetching_feeds_a_consumer_that_starves_without_it():
    found = utilisations()
    assert all((value < 0.40) if "nothing" in how else (value >= 0.95) for how, value in found.items()), found
    assert len(found) == 4


def test_shards_are_five_times_small_files_on_the_stated_store():
    ours, small = far_store()
    assert (ours.by, small.by) == (LIBRARY, SMALL_FILES) and small.peer
    assert ours.times_better(small) >= 5


def test_every_party_reads_the_same_samples_from_disk(tmp_path):
    found = disk(tmp_path, 20, rounds=2)
    assert {series.by for series in found} >= {LIBRARY, SMALL_FILES}
    assert all(len(series.samples) == 2 and min(series.samples) > 0 for series in found)
    assert sum(series.peer for series in found) == 2


def test_checksums_are_rates():
    assert all(series.unit == "bytes/s" and series.median > 0 for series in checksums(rounds=1))
