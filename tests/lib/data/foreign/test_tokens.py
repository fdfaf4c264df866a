"""Token files of other programs are named, and the line that the error gives imports them."""

import re
import struct

import numpy as np
import pytest
from threeloops.data.errors import CorruptData, MissingIndex
from threeloops.data.formats.token_shards import TokenShards, write_token_shards

TOKENS = np.arange(1000, dtype="<u2") * 60


def nanogpt(folder):
    TOKENS.tofile(folder / "train.bin")


def llm_c(folder, magic=20240520, kind="<u2"):
    head = np.zeros(256, "<i4")
    head[:3] = magic, 1, len(TOKENS)
    (folder / "fineweb_train_000001.bin").write_bytes(head.tobytes() + TOKENS.astype(kind).tobytes())


def llm_c_llama(folder):
    llm_c(folder, 20240801, "<u4")


def megatron(folder, code=8, kind="<u2"):
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, 1, 2)
    (folder / "text_document.idx").write_bytes(head + struct.pack("<iqqq", len(TOKENS), 0, 0, 1))
    (folder / "text_document.bin").write_bytes(TOKENS.astype(kind).tobytes())


def megatron_int32(folder):
    megatron(folder, 4, "<i4")


def numpy_array(folder):
    np.save(folder / "tokens.npy", TOKENS)


def numpy_int64(folder):
    np.save(folder / "it's tokens.npy", TOKENS.astype("<i8").reshape(10, 100))


def arrow(folder):
    (folder / "data-00000-of-00001.arrow").write_bytes(b"\xff\xff\xff\xff" + bytes(100))


def parquet(folder):
    (folder / "0000.parquet").write_bytes(b"PAR1" + bytes(100))


@pytest.mark.parametrize("write", [nanogpt, llm_c, llm_c_llama, megatron, megatron_int32, numpy_array, numpy_int64])
def test_the_line_of_the_error_imports_the_tokens(tmp_path, write):
    write(tmp_path)
    with pytest.raises(MissingIndex) as caught:
        TokenShards(tmp_path)
    line = re.fullmatch(r".*index\.json: missing; .* Import it with: (.*)", str(caught.value))[1]
    exec(line, {"new_folder": tmp_path / "ours"})
    assert np.array_equal(TokenShards(tmp_path / "ours").window(0, 1000), TOKENS)


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (nanogpt, "train.bin is a file of tokens without a header, as nanoGPT writes"),
        (llm_c, "fineweb_train_000001.bin is a shard of 1,000 tokens in llm.c's format, as FineWeb's are"),
        (megatron, "text_document.idx is the index of a Megatron corpus, whose tokens are in text_document.bin"),
        (
            arrow,
            "data-00000-of-00001.arrow is an Arrow table, as the package datasets writes.*from datasets import Dataset",
        ),
        (parquet, "0000.parquet is a Parquet table.*from datasets import Dataset"),
    ],
)
def test_each_format_is_named(tmp_path, write, says):
    write(tmp_path)
    with pytest.raises(MissingIndex, match=says):
        TokenShards(tmp_path)


def test_a_foreign_shard_in_a_corpus_is_named(tmp_path):
    write_token_shards(tmp_path, [TOKENS], 1000)
    llm_c(tmp_path)
    (tmp_path / "fineweb_train_000001.bin").replace(tmp_path / "tokens-00000.bin")
    with pytest.raises(
        CorruptData, match=r"tokens-00000\.bin, byte 0: begins with .*: .* is a shard of 1,000 tokens in llm"
    ):
        TokenShards(tmp_path)


def test_what_is_not_known_is_not_guessed(tmp_path):
    (tmp_path / "notes.bin").write_bytes(bytes(9))
    np.save(tmp_path / "weights.npy", np.zeros(9))
    np.save(tmp_path / "objects.npy", np.array([None]), allow_pickle=True)
    with pytest.raises(MissingIndex, match="nobody knows which shards"):
        TokenShards(tmp_path)
