"""Which tokenizer a model gets: its own if it has one, bytes if it can only have bytes, and otherwise a refusal."""

import json

import pytest
from threeloops.product.text import ByteTokenizer, load_tokenizer
from trained_tokenizer import SIZE, byte_level, write_tokenizer


def test_a_folder_with_a_tokenizer_gets_it(tmp_path):
    tokenizer = load_tokenizer(str(write_tokenizer(tmp_path, byte_level())))
    assert tokenizer.vocabulary == SIZE
    assert len(tokenizer.encode("tokenizer")) < len("tokenizer")


def test_a_folder_of_256_tokens_without_a_tokenizer_takes_bytes(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 256}))
    assert isinstance(load_tokenizer(str(tmp_path)), ByteTokenizer)


@pytest.mark.parametrize(
    ("file", "has"), [(None, "has no tokenizer.json"), ("tokenizer.model", "has tokenizer.model and no tokenizer.json")]
)
def test_another_vocabulary_without_a_tokenizer_is_refused(tmp_path, file, has):
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 2000}))
    if file:
        (tmp_path / file).touch()
    with pytest.raises(ValueError, match=f"{has}, and its vocabulary has 2000 tokens: expected a tokenizer.json"):
        load_tokenizer(str(tmp_path))


def test_the_bytes_of_a_token_are_known_one_by_one(tmp_path):
    tokenizer = load_tokenizer(str(write_tokenizer(tmp_path, byte_level())))
    text = "naïve 👋🏽"
    assert b"".join(map(tokenizer.piece, tokenizer.encode(text))) == text.encode()
    assert tokenizer.piece(SIZE + 1) == b"" == tokenizer.piece(min(tokenizer.encode("<|im_end|>")))
    assert [ByteTokenizer().piece(token) for token in ByteTokenizer().encode("é")] == [b"\xc3", b"\xa9"]
