"""Read the tokenizer in a GGUF file, and build it for the `tokenizers` library.

GGUF files call byte-level BPE "gpt2" and list its merges. They call SentencePiece's BPE "llama" and give each token a
score, from which the merges follow. The course's own files have one token per byte.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from threeloops.product.quantized.gguf import File, TokenType, byte_vocabulary, expression_of, read_file
from threeloops.product.text.chat_template import ChatTemplate
from threeloops.product.text.library import LibraryTokenizer
from threeloops.product.text.tokenizer import ByteTokenizer, Tokenizer
from threeloops.product.tokenizer_files import put_around

__all__ = ["read_gguf"]

_PREFIX = "tokenizer.ggml."
_ADDED = (TokenType.UNKNOWN, TokenType.CONTROL, TokenType.USER_DEFINED)
"""Types of tokens that are matched in a text before it is split. The first two types are special."""
_BEGINS = ("llama-bpe",)
"""Values of `tokenizer.ggml.pre` for which a text begins with the BOS token unless the file says otherwise."""


def read_gguf(path: Path) -> Tokenizer:
    """Return the tokenizer of a GGUF file. Raises ValueError if the file has none, or one that is not supported."""
    file = read_file(path)
    keys: dict[str, Any] = {
        key.removeprefix(_PREFIX): value for key, value in file.metadata.items() if key.startswith(_PREFIX)
    }
    kind = keys.get("model", "none")
    tokens = keys.get("tokens", [])
    if tokens == byte_vocabulary().tokens or (kind == "none" and _rows(file) == ByteTokenizer.vocabulary):
        return ByteTokenizer()
    if kind not in ("gpt2", "llama"):
        has = f"tokenizer.ggml.model = {kind!r}" if "model" in keys else "no tokenizer.ggml.model"
        raise ValueError(
            f"{path} has {has}: expected 'gpt2' (byte-level BPE), 'llama' (SentencePiece's BPE), or a model whose "
            f"vocabulary is the {ByteTokenizer.vocabulary} bytes"
        )
    library = _byte_level(keys, path) if kind == "gpt2" else _sentencepiece(keys)
    _add_tokens(library, tokens, keys.get("token_type", []))
    named = {
        f"{name}_token": tokens[keys[key]]
        for name, key in (("bos", "bos_token_id"), ("eos", "eos_token_id"), ("unk", "unknown_token_id"))
        if 0 <= keys.get(key, -1) < len(tokens)
    }
    begins = keys.get("add_bos_token", kind == "llama" or keys.get("pre") in _BEGINS)
    ends = keys.get("add_eos_token", False)
    put_around(library, named.get("bos_token") if begins else None, named.get("eos_token") if ends else None)
    source = file.metadata.get("tokenizer.chat_template")
    described = json.dumps([keys, source], sort_keys=True).encode()
    return LibraryTokenizer(
        library,
        where=str(path),
        end_tokens=[keys[key] for key in ("eos_token_id", "eot_token_id", "eom_token_id") if key in keys],
        fingerprint=hashlib.sha256(described).hexdigest(),
        template=None if source is None else ChatTemplate(str(source), str(path), named),
    )


def _rows(file: File) -> int:
    embedding = file.tensors.get("token_embd.weight")
    return 0 if embedding is None else embedding.shape[0]


def _byte_level(keys: Mapping[str, Any], path: Path) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    pre = keys.get("pre", "gpt-2")
    tokens = keys["tokens"]
    expression = expression_of(pre)
    if expression is None and pre != "gpt-2":
        raise ValueError(
            f"{path} has tokenizer.ggml.pre = {pre!r}: expected 'gpt-2', 'llama-bpe' or 'qwen2', whose rules "
            "for splitting text are supported; serve the folder that the file was converted from"
        )
    if not set(byte_vocabulary().tokens) <= set(tokens):
        raise ValueError(
            f"{path}: the vocabulary has no token for some bytes, so it cannot encode every text; convert it again"
        )
    merges = [tuple(merge.split(" ")) for merge in keys.get("merges", [])]
    made = Tokenizer(models.BPE(_numbers(keys), merges, ignore_merges=pre == "llama-bpe"))
    if pre == "qwen2":
        made.normalizer = normalizers.NFC()
    if expression is None:
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        cut = pre_tokenizers.Split(Regex(expression), behavior="isolated")
        into_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.pre_tokenizer = pre_tokenizers.Sequence([cut, into_bytes])
    made.decoder = decoders.ByteLevel()
    return made


def _sentencepiece(keys: Mapping[str, Any]) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    numbers = _numbers(keys)
    scores = keys.get("scores", [])
    unknown = keys["tokens"][keys.get("unknown_token_id", 0)]
    made = Tokenizer(
        models.BPE(numbers, _merges(numbers, scores), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    begins_with_space = keys.get("add_space_prefix", True)
    spaces = [normalizers.Replace(" ", "▁")]
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), *spaces] if begins_with_space else spaces)
    strip = [decoders.Strip(" ", 1, 0)] if begins_with_space else []
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return made


def _numbers(keys: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of every token in use. Unused tokens only fill rows of the embedding."""
    tokens = keys["tokens"]
    types = keys.get("token_type", [TokenType.NORMAL] * len(tokens))
    return {token: at for at, token in enumerate(tokens) if types[at] != TokenType.UNUSED}


def _merges(numbers: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Return every pair of tokens that form a third, ordered by the score of the third, highest first."""
    merges = [
        (-scores[number], number, token[:at], token[at:])
        for token, number in numbers.items()
        for at in range(1, len(token))
        if token[:at] in numbers and token[at:] in numbers
    ]
    return [(left, right) for _, _, left, right in sorted(merges)]


def _add_tokens(library: Any, tokens: Sequence[str], types: Sequence[int]) -> None:
    from tokenizers import AddedToken

    for text, kind in zip(tokens, types, strict=False):
        if kind in _ADDED:
            library.add_tokens([AddedToken(text, special=kind != TokenType.USER_DEFINED, normalized=False)])
