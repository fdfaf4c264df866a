"""Token shards: any window of the stream, and a name for every damage."""

import itertools
import json
import os
import pickle
import resource

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops.data.errors import CorruptData, MissingIndex
from threeloops.data.formats.token_shards import (
    _HEADER_BYTES,
    TokenShards,
    _read_header,
    _write_shard,
    write_token_shards,
)


@pytest.fixture
def corpus(tmp_path):
    """1,000 tokens in shards of 300, written from pieces of 130."""
    tokens = np.random.default_rng(0).integers(0, 50_257, 1000).astype(np.uint16)
    write_token_shards(tmp_path, np.array_split(tokens, 8), 300)
    return tmp_path, tokens


def test_the_shards_are_cut_where_they_should_be(corpus):
    folder, tokens = corpus
    shards = TokenShards(folder)
    assert [header.tokens for _, header in shards.shards] == [300, 300, 300, 100]
    assert len(shards) == 1000


@settings(max_examples=60)
@given(st.data())
def test_any_window_is_that_of_the_stream(tmp_path_factory, data):
    kind = data.draw(st.sampled_from([np.uint8, np.uint16, np.uint32]))
    size, per_shard = data.draw(st.integers(0, 60)), data.draw(st.integers(1, 25))
    tokens = np.random.default_rng(size).integers(0, 200, size).astype(kind)
    pieces = np.split(tokens, sorted(data.draw(st.lists(st.integers(0, size), max_size=4))))
    folder = tmp_path_factory.mktemp("tokens")
    write_token_shards(folder, pieces, per_shard)
    shards = TokenShards(folder)
    start = data.draw(st.integers(0, size))
    length = data.draw(st.integers(0, size - start))
    np.testing.assert_array_equal(shards.window(start, length), tokens[start : start + length])


def test_a_window_inside_a_shard_is_no_copy(corpus):
    shards = TokenShards(corpus[0])
    for start in (300, 310, 580):
        assert np.shares_memory(shards.window(start, 20), shards.maps[1])


@pytest.mark.parametrize(("start", "length"), [(-1, 5), (990, 11), (1001, 0), (5, -1)])
def test_a_window_beyond_the_end_is_refused(corpus, start, length):
    with pytest.raises(IndexError, match="of 1,000 tokens"):
        TokenShards(corpus[0]).window(start, length)


def test_a_missing_index_is_named(corpus):
    (corpus[0] / "index.json").unlink()
    with pytest.raises(MissingIndex, match=r"index\.json: missing"):
        TokenShards(corpus[0])


def test_a_cut_shard_is_named_with_its_place(corpus):
    shard = corpus[0] / "tokens-00002.bin"
    shard.write_bytes(shard.read_bytes()[:-3])
    with pytest.raises(CorruptData, match=r"tokens-00002\.bin, byte 661: ends here, 664 bytes were promised"):
        TokenShards(corpus[0])


def test_a_shard_cut_inside_its_header_is_named(corpus):
    (corpus[0] / "tokens-00000.bin").write_bytes(b"3LTOK")
    with pytest.raises(CorruptData, match=r"tokens-00000\.bin, header: the file has 5 bytes"):
        TokenShards(corpus[0])


@pytest.mark.parametrize("position", range(8, _HEADER_BYTES, 5))
def test_a_damaged_header_is_found(corpus, position):
    shard = corpus[0] / "tokens-00001.bin"
    raw = bytearray(shard.read_bytes())
    raw[position] ^= 1
    shard.write_bytes(raw)
    with pytest.raises(CorruptData, match=r"tokens-00001\.bin, header"):
        _read_header(shard)


def test_another_kind_of_file_is_refused(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"PK" + bytes(100))
    with pytest.raises(CorruptData, match=r"x\.bin, byte 0: .* not a token shard"):
        _read_header(tmp_path / "x.bin")


def test_a_shard_that_was_swapped_is_found(corpus):
    _write_shard(corpus[0] / "tokens-00000.bin", np.zeros(300, np.uint16))
    with pytest.raises(CorruptData, match="another shard of this name"):
        TokenShards(corpus[0])


def test_a_shard_that_is_listed_and_gone_is_named(corpus):
    (corpus[0] / "tokens-00003.bin").unlink()
    with pytest.raises(CorruptData, match=r"shard tokens-00003\.bin: is listed and not there"):
        TokenShards(corpus[0])


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{}",
        "[]",
        "7",
        *(json.dumps({"version": 1, "shards": wrong}) for wrong in (7, {"a": 1}, [{"file": "a"}], ["a"])),
    ],
)
def test_a_broken_index_is_named(corpus, text):
    (corpus[0] / "index.json").write_text(text)
    with pytest.raises(CorruptData, match=r"index\.json, index"):
        TokenShards(corpus[0])


@pytest.mark.parametrize(
    "tokens", [np.zeros(3), np.zeros(3, np.int16), np.zeros((3, 1), np.uint8), np.zeros(3, np.uint64)]
)
def test_only_flat_unsigned_tokens_are_written(tmp_path, tokens):
    with pytest.raises(ValueError, match="expected uint8, uint16 or uint32"):
        _write_shard(tmp_path / "x", tokens)


def test_a_corpus_that_is_written_again_and_fails_is_still_the_old_one(corpus):
    def dying():
        yield np.full(700, 7, np.uint16)
        raise OSError("the tokeniser died")

    folder, tokens = corpus
    before = sorted(folder.iterdir())
    with pytest.raises(OSError, match="the tokeniser died"):
        write_token_shards(folder, dying(), 300)
    shards = TokenShards(folder)
    np.testing.assert_array_equal(shards.window(0, 1000), tokens)
    assert sorted(folder.iterdir()) == before


def test_a_corpus_that_is_written_again_replaces_the_old_one(corpus):
    folder, tokens = corpus
    opened_before = TokenShards(folder)
    write_token_shards(folder, [np.arange(10, dtype=np.uint16)], 300)
    np.testing.assert_array_equal(TokenShards(folder).window(0, 10), np.arange(10))
    np.testing.assert_array_equal(opened_before.window(0, 1000), tokens)
    assert len(list(folder.glob("*.bin"))) == 1


def test_a_shard_that_is_written_again_does_not_change_under_a_reader(corpus):
    folder, tokens = corpus
    shards = TokenShards(folder)
    _write_shard(folder / "tokens-00001.bin", np.zeros(1, np.uint16))
    np.testing.assert_array_equal(shards.window(300, 300), tokens[300:600])


def test_a_worker_process_is_sent_the_folder_and_not_the_tokens(corpus, monkeypatch, tmp_path_factory):
    folder, tokens = corpus
    monkeypatch.chdir(folder.parent)
    sent = pickle.dumps(TokenShards(folder.relative_to(folder.parent)))
    assert len(sent) < 500 + len(str(folder))
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    arrived = pickle.loads(sent)
    np.testing.assert_array_equal(arrived.window(0, 1000), tokens)
    assert isinstance(arrived.maps[0], np.memmap)


def test_an_empty_window_has_the_type_of_the_tokens(corpus):
    shards = TokenShards(corpus[0])
    assert [shards.window(start, 0).dtype for start in (0, 5, 300, 1000)] == [np.uint16] * 4


def test_more_shards_than_file_descriptors_are_refused_with_the_way_out(tmp_path):
    write_token_shards(tmp_path, [np.arange(100, dtype=np.uint8)], 1)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(number) for number in os.listdir("/proc/self/fd")}  # by pytest, and by gloo
    free = itertools.islice((number for number in itertools.count() if number not in taken), 32)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(free) + 1, limits[1]))
    try:
        with pytest.raises(OSError, match=r"100 shards .* one file descriptor each.*ulimit"):
            TokenShards(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def rewrite_index(folder, change):
    index = json.loads((folder / "index.json").read_text())
    change(index)
    (folder / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("version", [99, "1", True, None])
def test_an_index_of_another_version_is_refused(corpus, version):
    rewrite_index(corpus[0], lambda index: index.update(version=version))
    with pytest.raises(CorruptData, match=rf"index\.json, index: .*version {version!r}.* expected 1"):
        TokenShards(corpus[0])


@pytest.mark.parametrize("name", [5, None, "", ".", "..", "../tokens-00000.bin", "/etc/hostname", "a/b", "a\0b"])
def test_an_index_lists_files_of_its_folder(corpus, name):
    rewrite_index(corpus[0], lambda index: index["shards"][1].update(file=name))
    with pytest.raises(CorruptData, match=r"index\.json, index: .* expected the name of a file in this folder"):
        TokenShards(corpus[0])


@pytest.mark.parametrize("field", ["token_bytes", "tokens", "crc"])
@pytest.mark.parametrize("kind", [float, str])
def test_the_numbers_of_an_index_are_whole(corpus, field, kind):
    rewrite_index(corpus[0], lambda index: index["shards"][1].update({field: kind(index["shards"][1][field])}))
    with pytest.raises(CorruptData, match=r"index\.json, index: .* expected whole numbers"):
        TokenShards(corpus[0])
