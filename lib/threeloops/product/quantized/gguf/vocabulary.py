"""The vocabulary of a GGUF file. Without a vocabulary, llama.cpp's server does not start.

llama.cpp calls byte-level BPE "gpt2". It writes each byte as a printable character: the space is Ġ, for example. It
cuts text with a regular expression, whose name is the key "pre", and then merges pairs. If the tokens of a model are
bytes, its list of merges is empty. (Source: `llama_vocab::impl::load` in llama.cpp, and get_vocab_base in its
converter.)
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from pathlib import Path
from typing import Any

from threeloops.product.quantized.gguf.container import Value
from threeloops.product.tokenizer_files import byte_characters, end_tokens, read_files
from threeloops.product.trained.text import SEPARATOR

__all__ = ["TokenType", "Vocabulary", "byte_vocabulary", "expression_of", "numbered_vocabulary", "read_tokenizer"]

_BYTES = byte_characters()
_END_OF_MESSAGE = "<|eom_id|>"
"""The token with which Llama 3.1 and later end a message and expect a tool's result."""


class TokenType(IntEnum):
    """The types of tokens, with llama.cpp's numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5


@dataclass(frozen=True)
class Vocabulary:
    """A list of tokens in the order of their numbers, with the rules that turn text into tokens.

    `pre` is llama.cpp's name of the regular expression that cuts text before pairs are merged. `end` is the number of
    the token that ends a text. `other_ends` are the tokens that end a turn or a message of a chat, at most two. `begin`
    is the number of the token that starts a text. llama.cpp adds `begin` to prompts if `add_begin` is set. It adds
    `end` to prompts if `add_end` is set.
    """

    tokens: Sequence[str]
    types: Sequence[TokenType]
    end: int
    begin: int | None = None
    merges: Sequence[str] = ()
    pre: str = "gpt-2"
    add_begin: bool = False
    add_end: bool = False
    chat_template: str | None = None
    other_ends: Sequence[int] = ()

    def metadata(self, size: int) -> dict[str, Value]:
        """Return the keys of the file for a model with `size` tokens. Tokens beyond the vocabulary are marked unused.

        Raises ValueError if the vocabulary has more than `size` tokens, or more ends than a file has keys for.
        """
        unused = range(len(self.tokens), size)
        if len(self.tokens) > size:
            raise ValueError(
                f"the vocabulary has {len(self.tokens)} tokens: expected at most {size}, the model's vocabulary_size; "
                "pass the tokenizer of this model"
            )
        metadata: dict[str, Value] = {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": self.pre,
            "tokenizer.ggml.tokens": [*self.tokens, *(f"[PAD{number}]" for number in unused)],
            "tokenizer.ggml.token_type": [*map(int, self.types), *[TokenType.UNUSED.value for _ in unused]],
            "tokenizer.ggml.merges": list(self.merges),
            "tokenizer.ggml.eos_token_id": self.end,
            "tokenizer.ggml.bos_token_id": self.end if self.begin is None else self.begin,
            "tokenizer.ggml.add_bos_token": self.add_begin,
            "tokenizer.ggml.add_eos_token": self.add_end,
        }
        metadata |= {f"tokenizer.ggml.{name}_token_id": token for name, token in self._named_ends(size).items()}
        return metadata | ({} if self.chat_template is None else {"tokenizer.chat_template": self.chat_template})

    def _named_ends(self, size: int) -> dict[str, int]:
        """Return `other_ends` by llama.cpp's names: "eot" ends a turn, and "eom" a message within a turn.

        llama.cpp stops at both, so the name only matters to programs that show it.
        """
        if len(self.other_ends) > 2 or any(end >= size for end in self.other_ends):
            raise ValueError(
                f"the tokens {[self.end, *self.other_ends]} end a text: expected at most three, each below {size}, "
                "since a GGUF file names one end of a text, of a turn and of a message; correct eos_token_id in "
                "generation_config.json"
            )
        texts = {end: self.tokens[end] if end < len(self.tokens) else "" for end in self.other_ends}
        ends = sorted(self.other_ends, key=lambda end: (texts[end] == _END_OF_MESSAGE, end))
        names = ("eom", "eot") if [texts[end] for end in ends] == [_END_OF_MESSAGE] else ("eot", "eom")
        return dict(zip(names, ends, strict=False))


def byte_vocabulary() -> Vocabulary:
    """Make the vocabulary of the course's models: 256 tokens, one per byte. A zero byte ends a text."""
    return Vocabulary(sorted(_BYTES, key=_BYTES.__getitem__), [TokenType.NORMAL] * 256, end=SEPARATOR)


def numbered_vocabulary(size: int) -> Vocabulary:
    """Make a vocabulary for a model without a known tokenizer. Token 17 is written <17>. It cannot encode text.

    A file must name a token that ends a text. It is token 0, whatever that token means to the model.
    """
    return Vocabulary([f"<{number}>" for number in range(size)], [TokenType.NORMAL] * size, end=0)


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PRE = {
    _CONTRACTIONS + r"\p{N}{1,3}" + _REST: "llama-bpe",
    _CONTRACTIONS + r"\p{N}" + _REST: "qwen2",
}
"""The regular expressions with which Llama 3 and Qwen2 cut text, and llama.cpp's names of them."""


def expression_of(pre: str) -> str | None:
    """Return the regular expression that llama.cpp calls `pre`, or None for others than Llama 3's and Qwen2's."""
    return next((expression for expression, name in _PRE.items() if name == pre), None)


def read_tokenizer(folder: Path) -> Vocabulary:
    """Read the vocabulary of a published model from tokenizer.json and the files beside it, as the service reads them.

    Raises:
        FileNotFoundError: the folder has no tokenizer.json.
        ValueError: the tokenizer differs from llama.cpp's "gpt2", or names no token that ends a text. Or a file is not
            usable.
    """
    if not (folder / "tokenizer.json").exists():
        raise FileNotFoundError(f"{folder} has no tokenizer.json: expected the folder of a published model")
    files = read_files(folder)
    described = json.loads(files.library.to_str())
    model = described["model"]
    pre = _pre_of(described, folder)
    end = files.library.token_to_id(files.named.get("eos_token", ""))
    if end is None:
        raise ValueError(
            f"{folder} names no eos_token: expected one in tokenizer_config.json or special_tokens_map.json; without "
            "one, llama.cpp takes token 11 for the end of a text"
        )
    before, after = _around(described["post_processor"], end, folder)
    by_id = {number: (token, TokenType.NORMAL) for token, number in model["vocab"].items()}
    for added in described["added_tokens"]:
        kind = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
        by_id[added["id"]] = added["content"], kind
    listed = [by_id.get(number, (f"[PAD{number}]", TokenType.UNUSED)) for number in range(max(by_id) + 1)]
    return Vocabulary(
        [token for token, _ in listed],
        [kind for _, kind in listed],
        end=end,
        begin=before[0] if before else files.library.token_to_id(files.named.get("bos_token", "")),
        merges=[" ".join(merge) for merge in model["merges"]],
        pre=pre,
        add_begin=bool(before),
        add_end=bool(after),
        chat_template=files.template,
        other_ends=sorted(end_tokens(folder, files) - {end}),
    )


def _pre_of(described: Mapping[str, Any], folder: Path) -> str:
    """Return llama.cpp's name of the way in which a tokenizer cuts text.

    Raises ValueError if llama.cpp would turn text into tokens differently.
    """
    model = described["model"]
    steps = _steps(described.get("pre_tokenizer"), "pretokenizers")
    normalizers = [step["type"] for step in _steps(described.get("normalizer"), "normalizers")]
    kinds = [step["type"] for step in steps]
    pre = None
    if kinds == ["Split", "ByteLevel"] and not steps[1].get("use_regex", True):
        pre = _PRE.get(steps[0]["pattern"].get("Regex"))
    elif kinds == ["ByteLevel"] and steps[0].get("use_regex", True):
        pre = "gpt-2"
    beyond = {
        "model": model.get("type", "BPE") != "BPE" or model.get("byte_fallback"),
        "pre_tokenizer": pre is None or any(step.get("add_prefix_space") for step in steps),
        "normalizer": normalizers not in ([], ["NFC"]),
        "ignore_merges": bool(model.get("ignore_merges")) and pre != "llama-bpe",
    }
    for name, is_beyond in beyond.items():
        if is_beyond:
            kind = {key: value for key, value in model.items() if key not in ("vocab", "merges")}
            value = {"model": kind, "ignore_merges": True}.get(name, described.get(name))
            raise ValueError(
                f"{folder / 'tokenizer.json'} has {name} = {json.dumps(value, ensure_ascii=False)}: expected "
                "byte-level BPE as in GPT-2, Llama 3 or Qwen2; export without a vocabulary, and send llama.cpp tokens"
            )
    return str(pre)


def _steps(described: Mapping[str, Any] | None, parts: str) -> list[Mapping[str, Any]]:
    """List the steps of a part of tokenizer.json, which is a single step or a sequence."""
    if described is None:
        return []
    return list(described[parts]) if described["type"] == "Sequence" else [described]


def _around(processor: Mapping[str, Any] | None, end: int, folder: Path) -> tuple[list[int], list[int]]:
    """Return the tokens that the post-processor puts before and after every text.

    Raises ValueError unless llama.cpp can do the same: it puts at most one token before a text, and `end` after it.
    """
    before: list[int] = []
    after: list[int] = []
    is_supported = True
    for step in _steps(processor, "processors"):
        if step["type"] == "ByteLevel":  # it adds no tokens
            continue
        parts = step["single"] if step["type"] == "TemplateProcessing" else []
        special = [
            step["special_tokens"][part["SpecialToken"]["id"]]["ids"] if "SpecialToken" in part else []
            for part in parts
        ]
        texts = [at for at, part in enumerate(parts) if "Sequence" in part]
        is_supported &= len(texts) == 1
        at = texts[0] if texts else 0
        before = [*chain(*special[:at]), *before]
        after = [*after, *chain(*special[at:])]
    if not is_supported or len(before) > 1 or after not in ([], [end]):
        raise ValueError(
            f"{folder / 'tokenizer.json'} has post_processor = {json.dumps(processor, ensure_ascii=False)}: expected "
            f"at most one token before a text, and nothing or the eos_token, {end}, after it; export without a "
            "vocabulary, and send llama.cpp tokens"
        )
    return before, after
