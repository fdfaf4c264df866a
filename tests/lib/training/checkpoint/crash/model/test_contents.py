"""What one file may hold after a crash: counted by hand, with sectors of four bytes."""

from dataclasses import replace

import pytest
from threeloops.training.checkpoint.crash.model.contents import possible_contents
from threeloops.training.checkpoint.crash.model.disk import Disk
from threeloops.training.checkpoint.crash.model.operations import Create, Entry, Sync, Truncate, Write
from threeloops.training.checkpoint.crash.model.rules import EXT4, POSIX, XFS

FILE = 1


def contents(rules, *operations, start=None, most=10_000, **more):
    disk = Disk([] if start is None else [Entry("f", FILE, start)], replace(rules, sector=4))
    for operation in operations if start is not None else (Create(FILE, "f"), *operations):
        disk.apply(operation)
    found = possible_contents(disk.inodes[FILE], disk.rules, most, **more)
    assert found.choices[0].data == disk.inodes[FILE].latest, "the complete content comes first"
    assert len({each.data for each in found.choices}) == len(found.choices)
    return {each.data for each in found.choices}


def test_a_write_that_was_not_synced_may_be_there_in_part_and_a_size_without_its_data_shows_zeros():
    assert contents(POSIX, Write(FILE, "f", 0, b"abc")) == {b"", b"abc", b"\0\0\0"}
    assert contents(POSIX, Write(FILE, "f", 0, b"abcdef")) == {
        b"", b"abcd", b"\0\0\0\0", b"abcdef", b"abcd\0\0", b"\0\0\0\0ef", b"\0\0\0\0\0\0",
    }  # fmt: skip


def test_on_ext4_a_file_that_grew_is_a_prefix_and_on_xfs_the_end_at_least_has_its_data():
    write = Write(FILE, "f", 0, b"abcdefghi")
    assert contents(EXT4, write) == {b"", b"abcd", b"abcdefgh", b"abcdefghi"}
    assert contents(XFS, write) == {
        b"", b"abcd", b"abcdefgh", b"\0\0\0\0efgh",
        b"abcdefghi", b"\0\0\0\0efghi", b"abcd\0\0\0\0i", b"\0\0\0\0\0\0\0\0i",
    }  # fmt: skip


@pytest.mark.parametrize("rules", [POSIX, EXT4, XFS], ids=lambda rules: rules.name)
def test_what_is_overwritten_in_place_is_a_mixture_sector_by_sector_under_all_rules(rules):
    assert contents(rules, Write(FILE, "f", 2, b"BCDE"), start=b"abcdefghi") == {
        b"abcdefghi", b"abBCefghi", b"abcdDEghi", b"abBCDEghi",
    }  # fmt: skip


def test_every_sector_is_as_old_as_it_likes():
    """Two writes of the same sector: also the first of them alone; a third one elsewhere."""
    writes = [Write(FILE, "f", 0, b"1111"), Write(FILE, "f", 0, b"2222"), Write(FILE, "f", 4, b"3333")]
    assert contents(POSIX, *writes, start=b"00000000") == {
        first + second for first in (b"0000", b"1111", b"2222") for second in (b"0000", b"3333")
    }


def test_appends_to_the_same_sector_have_the_sizes_in_between():
    writes = [Write(FILE, "f", 0, b"a"), Write(FILE, "f", 1, b"b")]
    assert contents(EXT4, *writes) == {b"", b"a", b"ab"}
    assert contents(POSIX, *writes) == {b"", b"a", b"\0", b"ab", b"a\0", b"\0\0"}


def test_after_an_fsync_there_is_nothing_to_lose():
    assert contents(POSIX, Write(FILE, "f", 0, b"abcdef"), Sync(FILE, "f")) == {b"abcdef"}
    assert contents(POSIX, Write(FILE, "f", 0, b"abcdef"), Sync(FILE, "f", data_only=True)) == {b"abcdef"}
    assert contents(POSIX, Write(FILE, "f", 0, b"a"), Sync(FILE, "f"), Write(FILE, "f", 1, b"b")) == {
        b"a", b"ab", b"a\0",
    }  # fmt: skip


def test_a_file_that_is_cut_and_written_again_never_mixes_old_and_new():
    operations = [Truncate(FILE, "f", 0), Write(FILE, "f", 0, b"NEWNEW")]
    assert contents(EXT4, *operations, start=b"oldoldold") == {b"oldoldold", b"", b"NEWN", b"NEWNEW"}
    found = contents(POSIX, *operations, start=b"oldoldold")
    assert found == {b"oldoldold", *contents(POSIX, Write(FILE, "f", 0, b"NEWNEW"))}


def test_a_cut_in_the_middle_of_a_sector_leaves_what_is_below_it():
    assert contents(POSIX, Truncate(FILE, "f", 2), start=b"abcdef") == {b"abcdef", b"ab"}
    assert contents(POSIX, Truncate(FILE, "f", 2), Truncate(FILE, "f", 5), start=b"abcdef") == {
        b"abcdef", b"ab", b"ab\0\0\0",
    }  # fmt: skip


def test_a_gap_is_zeros_and_under_no_rules_has_to_be_written_first():
    operations = [Write(FILE, "f", 0, b"a"), Write(FILE, "f", 9, b"z")]
    assert contents(EXT4, *operations) == {
        b"", b"a", b"a\0\0\0", b"a" + bytes(7), b"a" + bytes(8) + b"z",
    }  # fmt: skip


def test_a_size_that_a_truncate_gave_needs_the_data_that_were_written_and_no_more():
    grown = [Write(FILE, "f", 0, b"abcdefgh"), Write(FILE, "f", 0, b"X"), Truncate(FILE, "f", 12)]
    assert contents(EXT4, *grown) == {
        b"", b"abcd", b"Xbcd", b"abcdefgh", b"Xbcdefgh", b"abcdefgh\0\0\0\0", b"Xbcdefgh\0\0\0\0",
    }  # fmt: skip
    assert contents(XFS, grown[0], grown[2]) == {
        b"", b"abcd", b"abcdefgh", b"\0\0\0\0efgh", b"abcdefgh\0\0\0\0", b"\0\0\0\0efgh\0\0\0\0",
    }  # fmt: skip
    filled = [Write(FILE, "f", 0, b"A"), Truncate(FILE, "f", 5), Write(FILE, "f", 0, b"CCCCC")]
    assert b"\0\0\0\0C" in contents(XFS, *filled) and b"\0\0\0\0C" not in contents(EXT4, *filled)
    assert contents(EXT4, grown[0], Truncate(FILE, "f", 6)) == {b"", b"abcd", b"abcdefgh", b"abcdef"}


def test_flushed_data_are_there_and_a_cut_that_is_on_disk_cannot_be_undone():
    operations = [Write(FILE, "f", 0, b"abcd"), Truncate(FILE, "f", 0), Write(FILE, "f", 0, b"ef")]
    assert contents(EXT4, *operations, start=b"", flushed=1) == {b"", b"ef"}
    assert contents(EXT4, *operations, start=b"", cut=1) == {b"", b"ef"}
    assert contents(EXT4, *operations, start=b"", cut=0) == {b"", b"abcd", b"ef"}
    assert contents(EXT4, *operations, start=b"", flushed=2) == {b"ef"}


def test_where_there_are_too_many_the_corners_are_among_them():
    whole = bytes(range(1, 201))
    found = contents(POSIX, Write(FILE, "f", 0, whole), most=100)
    zeros = bytes(200)
    assert {
        b"", whole, zeros, whole[:4] + zeros[4:], zeros[:4] + whole[4:], whole[:-4] + zeros[-4:],
        zeros[:-4] + whole[-4:], whole[:100] + zeros[100:], zeros[:100] + whole[100:],
    } <= found  # fmt: skip
    assert len(found) < 200 and any(whole.startswith(each) and 0 < len(each) < 200 for each in found)
    in_place = contents(POSIX, Write(FILE, "f", 0, whole), start=zeros, most=100)
    half = {whole[:100] + zeros[100:], zeros[:100] + whole[100:]}
    assert {zeros, whole, whole[:4] + zeros[4:], zeros[:4] + whole[4:]} | half <= in_place
    assert contents(POSIX, Write(FILE, "f", 0, whole), most=100) == found, "the sample is the same each time"


def test_what_is_kept_of_a_large_file_is_one_table_and_the_count_of_choices_grows_with_it():
    """Twice the size takes twice the memory, and no choice is put together before it is asked for."""
    import tracemalloc

    def peak(sectors):
        disk = Disk([], POSIX)
        disk.apply(Create(FILE, "f"))
        disk.apply(Write(FILE, "f", 0, bytes(range(1, 129)) * 4 * sectors))
        tracemalloc.start()
        found = possible_contents(disk.inodes[FILE], POSIX, 512)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert len({each.data for each in found.choices}) == len({each.key for each in found.choices}) > 50
        return most

    small, large = peak(2_000), peak(4_000)
    assert small < 20 * 2_000 * 512 and large < 2.5 * small
