"""Tar shards: others read ours, we read others', and damage is named with shard and offset."""

import io
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.data.errors import CorruptData
from threeloops.data.sample import Sample, split_name
from threeloops.data.small_files import list_samples, read_sample, write_small_files
from threeloops.data.tar_members import BLOCK, header
from threeloops.data.tar_shards import read_tar_shard, shard_bytes, write_tar_shard, write_tar_shards

SAMPLES = [
    Sample(f"train/{i:05d}", {"jpg": np.random.default_rng(i).bytes(size), "cls": str(i).encode()})
    for i, size in enumerate((0, 1, 511, 512, 513, 5000))
]
SHARD = b"".join(shard_bytes(SAMPLES))


def read(shard: bytes) -> list[Sample]:
    return list(read_tar_shard(io.BytesIO(shard), "shard-000000.tar"))


def test_we_read_what_we_write():
    assert read(SHARD) == SAMPLES


def test_pythons_tarfile_reads_what_we_write():
    with tarfile.open(fileobj=io.BytesIO(SHARD)) as tar:
        found = {member.name: tar.extractfile(member).read() for member in tar}
    assert found == {name: data for sample in SAMPLES for name, data in sample.files()}


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT])
def test_we_read_what_pythons_tarfile_writes(kind):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as tar:
        for name, data in (pair for sample in SAMPLES for pair in sample.files()):
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uname = len(data), 1_700_000_000, "someone"
            tar.addfile(member, io.BytesIO(data))
    assert read(buffer.getvalue()) == SAMPLES


def test_webdataset_reads_what_we_write(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    paths = write_tar_shards(tmp_path, SAMPLES, 4)
    assert [path.name for path in paths] == ["shard-000000.tar", "shard-000001.tar"]
    found = list(webdataset.WebDataset([str(path) for path in paths], shardshuffle=False))
    assert [(each["__key__"], each["jpg"], each["cls"]) for each in found] == [
        (sample.key, sample.parts["jpg"], sample.parts["cls"]) for sample in SAMPLES
    ]


def test_we_read_what_webdataset_writes(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(str(tmp_path / "theirs.tar")) as writer:
        for sample in SAMPLES:
            writer.write({"__key__": sample.key, **sample.parts})
    found = read((tmp_path / "theirs.tar").read_bytes())
    assert {sample.key: dict(sample.parts) for sample in found} == {s.key: dict(s.parts) for s in SAMPLES}


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.jpg", ("a", "jpg")), ("d.v1/a.seg.png", ("d.v1/a", "seg.png")), ("x/y", ("x/y", ""))],
)
def test_a_key_ends_at_the_first_dot_of_the_file_name(name, expected):
    assert split_name(name) == expected


@given(st.integers(0, 8**11 - 1), st.text("abc/ü_1", min_size=1, max_size=40))
def test_a_header_is_what_tarfile_reads_in_it(size, name):
    info = tarfile.TarInfo.frombuf(header(name, size), "utf-8", "strict")
    assert (info.name, info.size, info.isreg()) == (name.rstrip("/"), size, True) or name.endswith("/")


def test_a_file_larger_than_its_header_can_say_is_refused():
    with pytest.raises(ValueError, match="less than 8 GiB"):
        header("a", 8**11)
    with pytest.raises(ValueError, match="101 bytes"):
        header("n" * 101, 1)


@pytest.mark.parametrize("position", [0, 50, 124, 130, 148, 156, 300])
def test_a_damaged_header_is_named_with_its_offset(position):
    second = BLOCK + BLOCK  # behind the header of an empty part, and the header and the block of the second part
    third = second + BLOCK
    damaged = bytearray(SHARD)
    damaged[third + position] ^= 0x05
    with pytest.raises(CorruptData, match=rf"shard-000000\.tar, byte {third:,}: "):
        read(bytes(damaged))


@given(st.integers(0, len(SHARD) - 2 * BLOCK))
def test_a_shard_cut_anywhere_is_never_a_short_shard(length):
    with pytest.raises(CorruptData, match=r"shard-000000\.tar, byte [\d,]+: "):
        read(SHARD[:length])


def test_a_member_that_is_no_file_is_refused():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        link = tarfile.TarInfo("a.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(CorruptData, match="type '2'; a shard holds regular files only"):
        read(buffer.getvalue())


def test_a_part_that_comes_twice_is_refused():
    with pytest.raises(CorruptData, match=r"byte 1,024: a\.cls: sample 'a' already has a part 'cls'"):
        read((header("a.cls", 1) + b"1" + bytes(511)) * 2 + bytes(1024))


def test_equal_samples_make_equal_shards():
    assert b"".join(shard_bytes(SAMPLES)) == SHARD


def test_the_small_files_hold_the_same_samples(tmp_path):
    write_small_files(tmp_path, SAMPLES)
    found = [read_sample(key, files) for key, files in list_samples(tmp_path).items()]
    assert [(sample.key, dict(sample.parts)) for sample in found] == [(s.key, dict(s.parts)) for s in SAMPLES]


@pytest.mark.parametrize("key", ["", "a.b", "x/.hidden"])
def test_a_key_with_a_dot_would_be_read_back_as_another(key):
    with pytest.raises(ValueError, match="expected a name without a dot"):
        Sample(key, {"cls": b""})


def test_a_shard_that_cannot_be_written_leaves_the_old_one(tmp_path):
    path = tmp_path / "shard-000000.tar"
    write_tar_shard(path, SAMPLES)
    with pytest.raises(ValueError, match="a ustar header holds 1 to 100"):
        write_tar_shard(path, [SAMPLES[0], Sample("n" * 101, {"cls": b""})])
    assert path.read_bytes() == SHARD and list(tmp_path.iterdir()) == [path]
