"""The tokenizer of a GGUF file gives the tokens of the folder that the file was made of, and is refused by name if it
would not."""

import json

import numpy as np
import pytest
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.quantized.gguf import (
    StoredTensor,
    TensorType,
    TokenType,
    byte_vocabulary,
    export_gguf,
    read_tokenizer,
    write_file,
)
from threeloops.product.text import ByteTokenizer, load_tokenizer
from trained_tokenizer import CHATML, SIZE, byte_fallback, byte_level, write_tokenizer

TEXTS = [
    "The model serves  two\r\n", "你好，世界 👋🏽", "e\u0301", "<|im_start|>user\n<tool_call>", "def f(x):", "", "a12",
]  # fmt: skip


def streamed(tokenizer, tokens):
    decoder = tokenizer.decoder()
    return "".join([decoder.push([token]) for token in tokens]) + decoder.end()


def written(path, **keys):
    """A file with nothing but a vocabulary, and an embedding of two rows."""
    embedding = StoredTensor("token_embd.weight", (2, 32), TensorType.F32, np.zeros((2, 128), np.uint8))
    names = {name if name.startswith("tokenizer") else f"tokenizer.ggml.{name}": value for name, value in keys.items()}
    write_file(path, {"general.architecture": "llama", **names}, [embedding])
    return str(path)


def test_a_file_made_of_a_folder_has_the_folders_tokens_texts_and_chats(tmp_path):
    folder = write_tokenizer(
        tmp_path / "folder", byte_level(), eos_token="<|im_end|>", bos_token="<|endoftext|>", chat_template=CHATML
    )
    model = GPT(GPTConfig.tiny(vocabulary_size=SIZE + 3))
    export_gguf(model, tmp_path / "model.gguf", vocabulary=read_tokenizer(folder))
    ours, theirs = load_tokenizer(str(tmp_path / "model.gguf")), load_tokenizer(str(folder))
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)
        assert streamed(ours, ours.encode(text)) == streamed(theirs, theirs.encode(text))
        turn = [{"role": "user", "content": text}]
        assert ours.encode_chat(turn) == theirs.encode_chat(turn)
    assert ours.end_tokens == theirs.end_tokens
    assert ours.piece(SIZE + 1) == b"", "a token that only fills the embedding adds no text"


def test_a_sentencepiece_vocabulary_merges_by_its_scores(tmp_path):
    folder = write_tokenizer(tmp_path / "folder", byte_fallback(), bos_token="<s>", eos_token="</s>")
    numbers = json.loads(byte_fallback())["model"]["vocab"]
    tokens = sorted(numbers, key=numbers.get)
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.NORMAL] * (len(tokens) - 3)]
    path = written(
        tmp_path / "spm.gguf", model="llama", tokens=tokens, scores=[-at for at in range(len(tokens))],
        token_type=[kind.value for kind in types], bos_token_id=1, eos_token_id=2, unknown_token_id=0,
    )  # fmt: skip
    ours, theirs = load_tokenizer(path), load_tokenizer(str(folder))
    for text in [*TEXTS, "<s>a</s>b"]:
        assert ours.encode(text) == theirs.encode(text)
        assert streamed(ours, ours.encode(text)) == streamed(theirs, theirs.encode(text))
    assert ours.end_tokens == {2} and ours.encode("a")[0] == 1


@pytest.mark.parametrize("vocabulary", [byte_vocabulary(), None], ids=["bytes", "none"])
def test_a_file_of_the_courses_own_takes_bytes(tmp_path, vocabulary):
    export_gguf(GPT(GPTConfig.tiny()), tmp_path / "model.gguf", vocabulary=vocabulary)
    assert isinstance(load_tokenizer(str(tmp_path / "model.gguf")), ByteTokenizer)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"model": "bert", "tokens": ["a"]}, "tokenizer.ggml.model = 'bert': expected 'gpt2'"),
        ({}, "has no tokenizer.ggml.model: expected 'gpt2'"),
        ({"model": "none"}, "tokenizer.ggml.model = 'none': expected 'gpt2'"),
        ({"model": "gpt2", "pre": "falcon", "tokens": ["a"]}, "tokenizer.ggml.pre = 'falcon': expected 'gpt-2'"),
        ({"model": "gpt2", "pre": "qwen2", "tokens": ["a"]}, "the vocabulary has no token for some bytes"),
    ],
)
def test_a_vocabulary_that_would_give_other_tokens_is_refused_by_name(tmp_path, keys, sentence):
    with pytest.raises(ValueError, match=sentence):
        load_tokenizer(written(tmp_path / "model.gguf", **keys))
