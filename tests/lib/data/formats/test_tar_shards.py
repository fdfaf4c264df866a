"""Tar shards: others read ours, we read others', and damage is named with shard and offset."""

import bz2
import gzip
import io
import lzma
import shutil
import subprocess
import tarfile
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threeloops.data.errors import CorruptData
from threeloops.data.formats.sample import Sample, split_name
from threeloops.data.formats.small_files import list_samples, read_sample, write_small_files
from threeloops.data.formats.tar_members import BLOCK, header
from threeloops.data.formats.tar_shards import TarShards, read_tar_shard, shard_bytes, write_tar_shards
from threeloops.data.loading.loader import Loader
from threeloops.data.loading.sampler import SamplerState

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


def test_a_name_ends_at_its_first_zero_byte_as_in_tarfile():
    block = bytearray(header("a.cls", 1))
    block[6:13] = b"old.jpg"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    shard = bytes(block) + b"7".ljust(BLOCK, b"\0") + bytes(2 * BLOCK)
    with tarfile.open(fileobj=io.BytesIO(shard)) as tar:
        assert tar.getnames() == ["a.cls"]
    assert read(shard) == [Sample("a", {"cls": b"7"})]


@pytest.mark.parametrize("size", [8**11 - 1, 8**11, 20 << 30, (1 << 63) - 1])
def test_a_size_of_8_gib_or_more_is_binary_as_in_gnu_tar(size):
    info = tarfile.TarInfo("a.bin")
    info.size = size
    for block in (header("a.bin", size), info.tobuf(tarfile.GNU_FORMAT), info.tobuf(tarfile.PAX_FORMAT)):
        with tarfile.open(fileobj=io.BytesIO(block)) as tar:
            assert tar.firstmember.size == size
        with pytest.raises(CorruptData, match=f"a.bin: {size:,} bytes were promised, the shard ends after 5"):
            read(block + b"begin")


def test_a_file_larger_than_its_header_can_say_is_refused():
    with pytest.raises(ValueError, match="expected 0 to"):
        header("a", 1 << 63)
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


@pytest.mark.parametrize("blocks", [1, 2, 20, 300])
def test_the_end_is_any_number_of_zero_blocks(blocks):
    assert read(SHARD[: -2 * BLOCK] + bytes(blocks * BLOCK)) == SAMPLES


def test_zeros_with_members_behind_them_are_a_hole_and_not_the_end():
    """What a file system leaves of a block that was never written before a crash."""
    headers = [place for place in range(0, len(SHARD), BLOCK) if SHARD[place + 257 :].startswith(b"ustar")]
    assert len(headers) == 2 * len(SAMPLES)
    for hole in headers:
        with pytest.raises(CorruptData, match=r"shard-000000\.tar, byte [\d,]+: "):
            read(SHARD[:hole] + bytes(BLOCK) + SHARD[hole + BLOCK :])


def test_what_stands_behind_the_end_is_named_with_its_byte():
    with pytest.raises(CorruptData, match=rf"byte {len(SHARD) + 100_000:,}: .* zeros .* byte {len(SHARD) - 1024:,}"):
        read(SHARD + bytes(100_000) + b"x" + bytes(50))


@pytest.mark.parametrize("size", [b"-0000001000", b"+0000000001", b"0o000000_01", b"000000_0001", b"00000000008"])
def test_a_size_is_written_in_octal_digits_alone(size):
    block = bytearray(header("a.cls", 1))
    block[124:136] = size + b"\0"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    with pytest.raises(CorruptData, match=r"shard-000000\.tar, byte 0: .*not octal"):
        read(bytes(block) + bytes(3 * BLOCK))


def pax(records: bytes) -> bytes:
    """A pax header and its records, padded."""
    return typed(header("pax", len(records)), b"x") + records + bytes(-len(records) % BLOCK)


def record(text: str) -> bytes:
    """A pax record: its own length in decimal, a space, the text, a newline."""
    length = len(text.encode()) + 4
    assert 10 <= length <= 99
    return f"{length} {text}\n".encode()


def typed(block: bytes, kind: bytes) -> bytes:
    """A header made one of another type, its checksum right."""
    changed = block[:148] + b" " * 8 + kind + block[157:]
    return changed[:148] + b"%06o\0 " % sum(changed) + changed[156:]


@pytest.mark.parametrize(
    "records",
    [
        *(record(f"size={wrong}") for wrong in ("-1", "+1", "1_0", "²", "0x1", " 1")),
        record("comment=x").replace(b"13", b"+13"),
        record("comment=x").replace(b"13", b"99"),
        record("comment=x").replace(b"\n", b" "),
        b"a",
        b"0 path=a\n",
    ],
)
def test_pax_numbers_are_decimal_digits_and_records_are_whole(records):
    with pytest.raises(CorruptData, match=r"byte 0: a pax header that is not made of records"):
        read(pax(records) + header("a.cls", 1) + b"1" + bytes(511) + bytes(1024))


def test_a_pax_header_without_its_file_is_a_cut_shard():
    with pytest.raises(CorruptData, match=r"byte 1,024: .* no file follows"):
        read(pax(record("path=a.cls")) + bytes(1024))


def test_a_long_name_of_gnu_tar_is_read():
    """GNU tar's own format puts a name above 100 bytes into a member of type L before the file."""
    samples = [Sample("deep/" * 60 + "a", {"jpg": b"1", "cls": b"2"}), Sample("b", {"cls": b"3"})]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, data in (pair for sample in samples for pair in sample.files()):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    assert b"././@LongLink" in buffer.getvalue()
    assert read(buffer.getvalue()) == samples


@pytest.mark.parametrize("key", ["GNU.sparse.major=1", "GNU.sparse.map=0,1,9,1"])
def test_a_sparse_file_is_refused_and_not_read_as_its_map(key):
    with pytest.raises(CorruptData, match=r"byte 0: GNU\.sparse\.\w+: .* tar without -S"):
        read(pax(record(key)) + header("a.bin", 1) + b"1" + bytes(511) + bytes(1024))


def test_a_folder_has_no_contents_whatever_its_header_says():
    assert read(typed(header("train", 4096), b"5") + SHARD) == SAMPLES


def test_names_that_are_not_utf_8_stay_apart_and_whole():
    first, second = header("?.x", 0).replace(b"?", b"\xe4"), header("?.y", 0).replace(b"?", b"\xf6")
    shard = typed(first, b"0") + typed(second, b"0") + bytes(1024)
    samples = read(shard)
    assert [sample.key.encode(errors="surrogateescape") for sample in samples] == [b"\xe4", b"\xf6"]
    assert b"".join(shard_bytes(samples)) == shard


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
    write_tar_shards(tmp_path, SAMPLES, len(SAMPLES))
    with pytest.raises(ValueError, match="a ustar header holds 1 to 100"):
        write_tar_shards(tmp_path, [SAMPLES[0], Sample("n" * 101, {"cls": b""})], 2)
    assert path.read_bytes() == SHARD and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("", "expected a name without a dot"),
        ("a/", "expected a name below the folder"),
        ("/tmp/abs", "expected a name below the folder"),
        ("../escaped", "expected a name below the folder"),
        ("a/../../escaped", "expected a name below the folder"),
        ("a\0b", "expected a name below the folder"),
    ],
)
def test_a_key_leads_to_a_file_below_the_folder(key, says):
    with pytest.raises(ValueError, match=says):
        Sample(key, {"cls": b""})


@pytest.mark.parametrize("extension", ["x/y", "/", "a\0b", 7])
def test_an_extension_that_would_be_read_back_as_another_name_is_refused(extension):
    with pytest.raises(ValueError, match="sample 'a': extension"):
        Sample("a", {extension: b""})


@pytest.mark.parametrize("contents", [7, "text", None, [1, 2]])
def test_a_part_is_bytes(contents):
    """bytes(7) is seven zeros."""
    with pytest.raises(TypeError, match=r"part 'cls' of sample 'a' is .*: expected bytes"):
        Sample("a", {"cls": contents})


def test_any_buffer_is_a_part():
    sample = Sample("a", {"tokens": np.arange(3, dtype="<u2"), "raw": bytearray(b"12")})
    assert read(b"".join(shard_bytes([sample]))) == [
        Sample("a", {"tokens": b"\0\0\1\0\2\0", "raw": b"12"}),
    ]


REPEATED = [Sample("a", {"x": b"1"}), Sample("b", {"x": b"2"}), Sample("a", {"y": b"3"})]


@pytest.mark.parametrize(
    "write",
    [
        write_small_files,
        lambda folder, samples: list(shard_bytes(samples)),
        lambda folder, samples: write_tar_shards(folder, samples, 2),
    ],
)
@pytest.mark.parametrize("samples", [REPEATED, REPEATED[::2], REPEATED[:1] * 2])
def test_a_key_that_comes_twice_is_refused_by_every_writer(write, samples, tmp_path):
    with pytest.raises(ValueError, match=rf"sample {len(samples) - 1}: key 'a' was already written"):
        write(tmp_path, samples)


@pytest.mark.parametrize("key", ["./a", "x//a", "x/./a"])
def test_small_files_refuse_a_key_that_the_file_system_would_shorten(tmp_path, key):
    sample = Sample(key, {"cls": b"1"})
    assert read(b"".join(shard_bytes([sample]))) == [sample]
    with pytest.raises(ValueError, match="listed as"):
        write_small_files(tmp_path, [sample])


@pytest.mark.parametrize("name", ["../escaped.cls", "/tmp/abs.cls", "a/../b.cls"])
def test_a_shard_with_names_outside_its_folder_is_refused_with_the_place(name):
    with pytest.raises(CorruptData, match=r"shard-000000\.tar, byte 0: key = .* below the folder"):
        read(header(name, 0) + bytes(1024))


# What others write


class Stream:
    """Cannot seek, and gives at most 1000 bytes at once."""

    def __init__(self, data):
        self.file = io.BytesIO(data)

    def read(self, size):
        data = b""
        while len(data) < size and (piece := self.file.read(min(size - len(data), 1000))):
            data += piece
        return data


def in_order(names):
    files = {name: data for sample in SAMPLES for name, data in sample.files()}
    members = (header(name, len(files[name])) + files[name] + bytes(-len(files[name]) % BLOCK) for name in names)
    return b"".join(members) + bytes(1024)


NAMES = [name for sample in SAMPLES for name, _ in sample.files()]


def test_a_sample_whose_parts_are_not_neighbours_is_named_with_its_key():
    """As `tar -c .` writes a folder, in the order of its directory."""
    said = "train/00000.jpg: other samples are between this part and the rest of sample 'train/00000'.*--sort=name"
    shard = in_order(sorted(NAMES, key=lambda name: name.partition(".")[2]))
    for file in (io.BytesIO(shard), Stream(shard), io.BytesIO(gzip.compress(shard)), Stream(gzip.compress(shard))):
        with pytest.raises(CorruptData, match=said):
            next(read_tar_shard(file, "shard-000000.tar"))  # no half of a sample comes before the error


@pytest.mark.skipif(not shutil.which("tar"), reason="there is no tar command")
def test_gnu_tar_with_a_list_of_names_gives_whole_samples_or_none(tmp_path):
    write_small_files(tmp_path / "s", SAMPLES)
    names = [
        path.relative_to(tmp_path / "s").as_posix() for paths in list_samples(tmp_path / "s").values() for path in paths
    ]
    for listed in (sorted(names), sorted(names, key=lambda name: name.partition(".")[2])):
        command = ["tar", "-C", tmp_path / "s", "-cf", tmp_path / "s.tar", *listed]
        subprocess.run(command, check=True)
        with open(tmp_path / "s.tar", "rb") as file:
            if listed == sorted(names):
                assert [sample.parts for sample in read_tar_shard(file, "s.tar")] == [
                    sample.parts for sample in SAMPLES
                ]
            else:
                with pytest.raises(CorruptData, match="other samples are between"):
                    next(read_tar_shard(file, "s.tar"))


def test_a_shard_may_begin_in_the_middle_of_a_file():
    file = io.BytesIO(b"behind this" + SHARD)
    file.seek(11)
    assert list(read_tar_shard(file, "s.tar")) == SAMPLES


@pytest.mark.parametrize("order", [sorted, lambda names: list(reversed(names))])
def test_the_order_of_samples_and_of_their_parts_is_free(order):
    assert sorted(sample.key for sample in read(in_order(order(NAMES)))) == [sample.key for sample in SAMPLES]


def test_a_gzip_shard_is_read_from_a_file_and_from_a_stream():
    packed = gzip.compress(SHARD)
    assert read(packed) == SAMPLES
    assert list(read_tar_shard(Stream(packed), "s.tar.gz")) == SAMPLES


@given(st.integers(2, len(gzip.compress(SHARD)) - 1))
def test_a_gzip_shard_cut_anywhere_is_never_a_short_shard(length):
    with pytest.raises(CorruptData, match=r"shard-000000\.tar, byte [\d,]+"):
        read(gzip.compress(SHARD)[:length])


def test_a_damaged_gzip_shard_is_named():
    damaged = bytearray(gzip.compress(SHARD))
    damaged[-8] ^= 1  # its CRC
    with pytest.raises(CorruptData, match=r"byte [\d,]+ of the decompressed data: CRC check failed"):
        read(bytes(damaged))


@pytest.mark.parametrize(
    ("magic", "said"),
    [
        (b"\x28\xb5\x2f\xfd", "compressed with zstd, expected gzip or none: decompress the shard with zstd -d"),
        (bz2.compress(SHARD), "bzip2"),
        (lzma.compress(SHARD), "xz"),
        (b"PK\x03\x04", "zip"),
    ],
)
def test_another_compression_is_named(magic, said):
    with pytest.raises(CorruptData, match=f"byte 0: .*{said}"):
        read(magic + bytes(600))


def test_a_name_that_begins_like_bzip2_is_no_compression():
    samples = [Sample("BZh91", {"txt": b"abc"})]
    assert read(b"".join(shard_bytes(samples))) == samples


def corrupt(index):
    raise CorruptData("shard-000003.tar", "byte 512", "a cut shard")


class Damaged(torch.utils.data.Dataset):
    __len__ = lambda self: 4  # noqa: E731
    __getitem__ = lambda self, index: corrupt(index)  # noqa: E731


def test_corrupt_data_crosses_a_worker_of_pytorch_as_itself():
    loader = torch.utils.data.DataLoader(Damaged(), num_workers=1, multiprocessing_context="fork")
    with pytest.raises(CorruptData, match="shard-000003.tar, byte 512: a cut shard"):
        next(iter(loader))


# Samples by number


def uneven(folder):
    """Shards of 5, 0, 3 and 9 samples."""
    numbers, paths = iter(range(17)), []
    for shard, count in enumerate((5, 0, 3, 9)):
        samples = [Sample(f"{n:03}", {"cls": str(n).encode(), "bin": bytes(n * 100)}) for n in islice(numbers, count)]
        paths.append(folder / f"shard-{shard}.tar")
        paths[-1].write_bytes(b"".join(shard_bytes(samples)))
    return paths


def test_samples_are_read_by_number_in_any_order(tmp_path):
    paths = uneven(tmp_path)
    shards = TarShards(paths)
    assert shards.sizes == (5, 0, 3, 9) and len(shards) == 17
    in_order = []
    for path in paths:
        with path.open("rb") as file:
            in_order += read_tar_shard(file, path.name)
    for numbers in ([], [16], range(17), [4, 5, 0, 7, 8, 8], np.array([3, 12])):
        assert shards.load(numbers) == [in_order[number] for number in numbers]
    for number in (-1, 17):
        with pytest.raises(IndexError, match=f"sample {number}: expected 0 to 16"):
            shards.load([0, number])


def test_neighbours_are_read_with_one_open(tmp_path, monkeypatch):
    shards, opened = TarShards(uneven(tmp_path)), []
    original = Path.open
    monkeypatch.setattr(Path, "open", lambda path, *mode: (opened.append(path.name), original(path, *mode))[1])
    shards.load([2, 3, 4, 5, 6])
    assert opened == ["shard-0.tar", "shard-2.tar"]


def test_shards_that_cannot_be_read_from_the_middle_are_named(tmp_path):
    path = tmp_path / "s.tar.gz"
    path.write_bytes(gzip.compress(SHARD))
    with pytest.raises(CorruptData, match=r"s.tar.gz, byte 0: compressed with gzip, expected none: .* with gunzip"):
        TarShards([path])


def test_a_shard_that_was_cut_after_it_was_listed_is_named(tmp_path):
    paths = uneven(tmp_path)
    shards = TarShards(paths)
    paths[3].write_bytes(paths[3].read_bytes()[:700])
    with pytest.raises(CorruptData, match="byte 1,024: 008.bin: 0 bytes where its header promised 800: .* cut after"):
        shards.load([8])


@pytest.mark.parametrize(("workers", "kind"), [(0, "thread"), (2, "thread"), (2, "process")])
def test_ranks_and_workers_share_uneven_shards_and_others_go_on(tmp_path, workers, kind):
    """Three ranks make two steps, and then two ranks end the epoch together; each sample is used once."""
    shards, state, used = TarShards(uneven(tmp_path)), SamplerState(3), []
    for ranks, steps in ((3, 2), (2, 9)):
        ends = set()
        for rank in range(ranks):
            loader = Loader(
                shards.load, len(shards), 2, state, workers, kind=kind, rank=rank, ranks=ranks, shards=shards.sizes
            )
            made = 0
            for samples, after in islice(loader.with_states(), steps):
                used += [int(sample.parts["cls"]) for sample in samples]
                loader.state, made = after, made + 1
            ends.add((made, loader.state))
        assert len(ends) == 1
        state = ends.pop()[1]
    assert sorted(used) == sorted(set(used)) and len(used) >= 16 and state == SamplerState(3, 1, 0)
