"""CRC32C and TFRecord framing: the RFC's vectors, TensorBoard's own writer and reader, and every kind of damage."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops.data.errors import CorruptData
from threeloops.data.formats.crc32c import _TABLE, crc32c, masked
from threeloops.data.formats.tfrecord import frame, read_records

READ_COMMAND = bytes.fromhex(
    "01c00000 00000000 00000000 00000000 14000000 00000400 00000014 00000018 28000000 00000000 02000000 00000000"
)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (READ_COMMAND, 0xD9963A56),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
    ids=["zeros", "ones", "ascending", "descending", "an iSCSI read", "check value", "nothing"],
)
def test_the_vectors_of_rfc_3720(data, expected):
    assert crc32c(data) == expected


def one_bit_at_a_time(data: bytes) -> int:
    """The definition: a shift register, no table."""
    state = 0xFFFFFFFF
    for octet in data:
        state ^= octet
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 8191, 8193, 20_001])
def test_long_data_cut_into_lanes_have_the_crc_of_the_definition(size):
    data = np.random.default_rng(size).bytes(size)
    assert crc32c(data) == one_bit_at_a_time(data)


@given(st.binary(max_size=64), st.binary(max_size=64))
def test_a_crc_can_be_taken_in_pieces(first, second):
    assert crc32c(second, crc32c(first)) == crc32c(first + second)


@settings(max_examples=30)
@given(st.integers(0, 30_000), st.integers(0, 30_000))
def test_pieces_of_any_length_agree(size, cut):
    data = np.random.default_rng(size).bytes(size)
    cut = min(cut, size)
    assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data)


def test_arrays_are_summed_as_their_bytes():
    array = np.arange(5000, dtype=np.uint16)
    assert crc32c(array) == crc32c(array.tobytes())
    assert len(_TABLE) == 256 and _TABLE[1] == 0xF26B8303


@given(st.integers(0, 2**32 - 1))
def test_masking_can_be_undone_and_changes_every_crc(crc):
    rotated = (masked(crc) - 0xA282EAD8) % 2**32
    assert (rotated >> 17 | rotated << 15) % 2**32 == crc
    assert masked(crc) < 2**32


def test_tensorboard_reads_what_we_write(tmp_path):
    tensorflow_stub = pytest.importorskip("tensorboard.compat.tensorflow_stub.pywrap_tensorflow")
    records = [b"", b"one", np.random.default_rng(0).bytes(10_000)]
    (tmp_path / "ours").write_bytes(b"".join(map(frame, records)))
    reader, found = tensorflow_stub.PyRecordReader_New(str(tmp_path / "ours")), []
    for _ in records:
        reader.GetNext()
        found.append(reader.record())
    assert found == records


def test_we_read_what_tensorboard_writes(tmp_path):
    writer = pytest.importorskip("tensorboard.summary.writer.record_writer")
    records = [b"first", b"", b"x" * 5000]
    with (tmp_path / "theirs").open("wb") as file:
        for record in records:
            writer.RecordWriter(file).write(record)
    assert list(read_records(tmp_path / "theirs")) == records


@given(st.lists(st.binary(max_size=50), max_size=6))
def test_what_was_written_is_read(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("records") / "file"
    path.write_bytes(b"".join(map(frame, records)))
    assert list(read_records(path)) == records
    assert path.stat().st_size == sum(len(record) + 16 for record in records)


@pytest.mark.parametrize(
    ("position", "what"),
    [(0, "CRC of its length"), (9, "CRC of its length"), (13, "CRC of its data"), (21, "CRC of its data")],
)
def test_a_flipped_bit_is_found_and_placed(tmp_path, position, what):
    """The damage is in record 2; the two before it are read."""
    good, path = frame(b"good one"), tmp_path / "train.tfrecord"
    damaged = bytearray(frame(b"bad data"))
    damaged[position] ^= 0x10
    path.write_bytes(good + good + damaged)
    records = read_records(path)
    assert [next(records), next(records)] == [b"good one"] * 2
    with pytest.raises(CorruptData, match=rf"train\.tfrecord, record 2 at byte {2 * len(good)}: the {what}"):
        next(records)


@pytest.mark.parametrize("left", [1, 11, 12, 15, 23])
def test_a_cut_file_is_not_a_short_one(tmp_path, left):
    path, good = tmp_path / "train.tfrecord", frame(b"12345678")
    path.write_bytes(good + good[:left])
    with pytest.raises(CorruptData, match=f"record 1 at byte {len(good)}"):
        list(read_records(path))


@pytest.mark.parametrize("left", [0, 5, 12, 1 << 19, (1 << 20) + 13])
def test_a_file_that_is_cut_while_it_is_read_is_no_shorter_file(tmp_path, left):
    """Records longer than a read buffer, so that each is read when it is asked for."""
    path, size = tmp_path / "train.tfrecord", 1 << 20
    path.write_bytes(frame(bytes(size)) * 3)
    records = read_records(path)
    next(records)
    with path.open("r+b") as file:
        file.truncate(size + 16 + left)
    with pytest.raises(CorruptData, match=f"record 1 at byte {size + 16:,}: .*cut"):
        next(records)
