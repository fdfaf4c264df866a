"""The container: the `gguf` package reads what we write, and we read what it writes; damage is named."""

import struct

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops.product.quantized.gguf import GGUFError, StoredTensor, TensorType, encode, read_file, write_file

METADATA = {
    "general.architecture": "llama",
    "general.name": "naïve",
    "count": 2**32 - 1,
    "share": 0.25,
    "yes": True,
    "no": False,
    "empty": "",
    "texts": ["a", "", "été"],
    "whole": [1, -2, 2**31 - 1],
    "none": [],
}


def tensors():
    values = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
    made = [StoredTensor(type.name, (3, 64), type, encode(values, type)) for type in TensorType]
    vector = StoredTensor("vector", (5,), TensorType.F32, encode(values[:1, :5], TensorType.F32))
    cube = StoredTensor("cube", (3, 2, 32), TensorType.Q8_0, encode(values.reshape(6, 32), TensorType.Q8_0))
    return [vector, *made, cube]


@pytest.fixture
def path(tmp_path):
    write_file(tmp_path / "a.gguf", METADATA, tensors())
    return tmp_path / "a.gguf"


def test_the_gguf_package_reads_what_is_written(path):
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert fields == METADATA
    assert reader.alignment == 32 and path.stat().st_size % 32 == 0
    assert [tensor.name for tensor in reader.tensors] == [tensor.name for tensor in tensors()]
    for theirs, ours in zip(reader.tensors, tensors(), strict=True):
        assert tuple(reversed(theirs.shape.tolist())) == ours.shape
        assert theirs.tensor_type.name == ours.type.name and theirs.data_offset % 32 == 0
        assert theirs.data.tobytes() == ours.data.tobytes()


def test_what_is_written_is_read_back(path):
    file = read_file(path)
    assert dict(file.metadata) == METADATA
    for ours in tensors():
        back = file.tensors[ours.name]
        assert (back.shape, back.type) == (ours.shape, ours.type)
        assert np.array_equal(back.data, ours.data)


@pytest.mark.parametrize("alignment", [None, 8, 4096])
def test_what_the_gguf_package_writes_is_read(tmp_path, alignment):
    writer = gguf.GGUFWriter(tmp_path / "b.gguf", "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    numbers = {
        "uint8": 255, "int8": -128, "uint16": 65535, "int16": -32768, "uint32": 2**32 - 1, "int32": -(2**31),
        "uint64": 2**64 - 1, "int64": -(2**63), "float32": 0.1, "float64": 0.1,
    }  # fmt: skip
    for kind, value in numbers.items():
        getattr(writer, f"add_{kind}")(kind, value)
    writer.add_bool("bool", True)
    writer.add_array("texts", ["a", "", "été"])
    writer.add_array("whole", [1, -2, 3])
    writer.add_array("parts", [0.5, 1.5])
    writer.add_array("flags", [True, False])
    values = np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)
    writer.add_tensor("first", values[0, :3])
    for type in (gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q8_0):
        writer.add_tensor(type.name, gguf.quantize(values, type), raw_dtype=type)
    writer.add_tensor("last", values.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_file(tmp_path / "b.gguf")
    assert {kind: file.metadata[kind] for kind in numbers} == {**numbers, "float32": float(np.float32(0.1))}
    assert file.metadata["bool"] is True and file.metadata["texts"] == ["a", "", "été"]
    assert (file.metadata["whole"], file.metadata["parts"]) == ([1, -2, 3], [0.5, 1.5])
    assert file.metadata["flags"] == [True, False]
    assert np.array_equal(file.tensors["first"].data.view(np.float32)[0], values[0, :3])
    assert np.array_equal(file.tensors["Q4_0"].data, encode(values, TensorType.Q4_0))
    assert np.array_equal(file.tensors["Q8_0"].data, encode(values, TensorType.Q8_0))
    assert np.array_equal(file.tensors["last"].data.view(np.float16), values.astype(np.float16))


def test_version_2_is_read_alike(path):
    """Both have the same layout; version 3 only allows big-endian files too."""
    data = path.read_bytes()
    path.write_bytes(data[:4] + struct.pack("<I", 2) + data[8:])
    test_what_is_written_is_read_back(path)


def data_end(path):
    """Bytes without the padding behind the last tensor, which nobody misses."""
    return max(int(tensor.data_offset + tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors)


def test_a_file_cut_short_anywhere_is_refused(path, tmp_path):
    whole, end = path.read_bytes(), data_end(path)
    cut = tmp_path / "cut.gguf"
    for size in [*range(0, 400, 3), *range(400, end, 97), end - 1]:
        cut.write_bytes(whole[:size])
        with pytest.raises(
            GGUFError, match=rf"cut.gguf ends at byte {size}: expected \d+ more at byte \d+; the file is"
        ):
            read_file(cut)
    cut.write_bytes(whole[:end])
    assert len(read_file(cut).tensors) == len(tensors())


@settings(deadline=None, max_examples=300)
@given(changes=st.dictionaries(st.integers(0, 700), st.integers(0, 255), min_size=1, max_size=4))
def test_a_file_with_damaged_bytes_is_read_or_refused_by_name(changes, damaged):
    whole, write = damaged
    changed = bytearray(whole)
    for place, value in changes.items():
        changed[place] = value
    path = write(bytes(changed))
    try:
        file = read_file(path)
    except GGUFError:
        return
    assert all(tensor.data.nbytes <= len(whole) for tensor in file.tensors.values())


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damaged")
    write_file(folder / "a.gguf", METADATA, tensors())

    def write(data):
        (folder / "b.gguf").write_bytes(data)
        return folder / "b.gguf"

    return (folder / "a.gguf").read_bytes(), write


def head(values=(), infos=(), version=3, magic=b"GGUF"):
    """A file of these raw values and descriptions of tensors."""
    return magic + struct.pack("<IQQ", version, len(infos), len(values)) + b"".join([*values, *infos])


def text(word):
    return struct.pack("<Q", len(word)) + word


def info(name=b"t", sizes=(4,), type=0, place=0):
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, type, place)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"PK\x03\x04" + bytes(100), r"begins with b'PK\\x03\\x04': expected b'GGUF'; it is not a GGUF file"),
        (head(version=1), "has version 1: expected 2 or 3; convert it again"),
        (head(version=3 << 24), "has version 50331648: expected 2 or 3; it is of a big-endian machine"),
        (head(infos=[info(type=12)]), r"t has type 12: expected one of F32 \(0\), F16 \(1\), Q4_0 \(2\), Q8_0 \(8\)"),
        (head(infos=[info(sizes=(33,), type=8)]), "t has rows of 33 weights in Q8_0: expected whole blocks of 32"),
        (head(infos=[info(sizes=())]), "t has 0 dimensions: expected 1 to 4"),
        (head(infos=[info(sizes=(4, 0))]), r"t has shape \(0, 4\): expected sizes of at least 1"),
        (head(infos=[info(sizes=(1, 1, 1, 1, 1))]), "t has 5 dimensions"),
        (head(infos=[info(place=4)]) + bytes(64), "t begins at 4: expected a multiple of the alignment, 32"),
        (head(infos=[info(), info()]) + bytes(64), "has two tensors of one name"),
        (head(infos=[info(sizes=(2**40, 2**40))]) + bytes(64), r"expected \d+ more at byte"),
        (head(values=[text(b"k") + struct.pack("<I", 13)]), "has a value of type 13: expected 0 to 12"),
        (head(values=[text(b"k") + struct.pack("<IIQ", 9, 9, 1)]), "has a value of type 9: .* no arrays in arrays"),
        (head(values=[text(b"k") + struct.pack("<IIQ", 9, 4, 2**62)]), r"expected \d+ more at byte"),
        (head(values=[text(b"k") + struct.pack("<IB", 0, 1)] * 2), "has k twice"),
        (head(values=[struct.pack("<Q", 2**60)]), r"expected 1152921504606846976 more at byte"),
        (head(values=[text(b"general.alignment") + struct.pack("<II", 4, 24)]), "alignment = 24: expected a power"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 2**63, 0), r"expected 8 more at byte 24"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_errors_name_what_is_wrong(tmp_path, data, words):
    (tmp_path / "bad.gguf").write_bytes(data)
    with pytest.raises(GGUFError, match="^bad.gguf.* ?" + words):
        read_file(tmp_path / "bad.gguf")


def test_what_cannot_be_written_leaves_the_old_file(path):
    before = path.read_bytes()
    for metadata, values, words in (
        ({"k": -1}, [], "k = -1: expected text"),
        ({"k": 2**32}, [], "k = 4294967296"),
        ({"k": [0.5]}, [], r"k = \[0.5\]"),
        ({"k": [2**31]}, [], r"k = \[2147483648\]"),
        ({"k": [1, "a"]}, [], r"k = \[1, 'a'\]: expected text, .* or a list of texts or of whole numbers"),
        ({}, tensors() + tensors(), "two tensors have the same name"),
    ):
        with pytest.raises(ValueError, match=words):
            write_file(path, metadata, values)
    assert path.read_bytes() == before and len(list(path.parent.iterdir())) == 1
