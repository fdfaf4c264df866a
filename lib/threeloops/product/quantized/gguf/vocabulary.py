"""The vocabulary in a GGUF file: without one, llama.cpp's server does not start.

llama.cpp knows byte-level BPE as "gpt2". It writes each byte as a printable character, the space as Ġ for example, cuts
text by a regular expression that it knows by name ("pre"), and then merges pairs. A model whose tokens are bytes is the
case without merges. (Source: `llama_vocab::impl::load` in llama.cpp, and get_vocab_base in its converter.)
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from threeloops.product.quantized.gguf.container import Value
from threeloops.product.trained.text import SEPARATOR

__all__ = ["TokenType", "Vocabulary", "byte_vocabulary", "numbered_vocabulary", "read_tokenizer"]


class TokenType(IntEnum):
    """llama.cpp's numbers."""

    NORMAL = 1
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5


@dataclass(frozen=True)
class Vocabulary:
    """The tokens in the order of their numbers, each with its type, and how text becomes tokens.

    `pre` is llama.cpp's name of the regular expression that cuts text first. `end` is the token that ends a text,
    `begin` the one before it, which is added to prompts if `add_begin` is set.
    """

    tokens: Sequence[str]
    types: Sequence[TokenType]
    end: int
    begin: int | None = None
    merges: Sequence[str] = ()
    pre: str = "gpt-2"
    add_begin: bool = False
    chat_template: str | None = None

    def metadata(self, size: int) -> dict[str, Value]:
        """The file's keys, for a model of `size` tokens; those beyond the vocabulary are marked as unused.

        Raises ValueError if the vocabulary is larger than the model's.
        """
        unused = range(len(self.tokens), size)
        if len(self.tokens) > size:
            raise ValueError(
                f"the vocabulary has {len(self.tokens)} tokens: expected at most {size}, the model's vocabulary_size; "
                "is it the tokenizer of this model?"
            )
        found: dict[str, Value] = {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": self.pre,
            "tokenizer.ggml.tokens": [*self.tokens, *(f"[PAD{number}]" for number in unused)],
            "tokenizer.ggml.token_type": [*map(int, self.types), *[TokenType.UNUSED.value for _ in unused]],
            "tokenizer.ggml.merges": list(self.merges),
            "tokenizer.ggml.eos_token_id": self.end,
            "tokenizer.ggml.bos_token_id": self.end if self.begin is None else self.begin,
            "tokenizer.ggml.add_bos_token": self.add_begin,
        }
        return found | ({} if self.chat_template is None else {"tokenizer.chat_template": self.chat_template})


def byte_vocabulary() -> Vocabulary:
    """256 tokens, each a byte, as in the course's models; a zero byte ends a text."""
    return Vocabulary(_printable_bytes(), [TokenType.NORMAL] * 256, end=SEPARATOR)


def numbered_vocabulary(size: int) -> Vocabulary:
    """Tokens of which nothing but the number is known: 17 is written <17>. Text cannot become such tokens."""
    return Vocabulary([f"<{number}>" for number in range(size)], [TokenType.NORMAL] * size, end=0)


def _printable_bytes() -> list[str]:
    """Every byte as a character of its own: itself if it is printable, else the next one from U+0100 (GPT-2)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PRE = {
    _CONTRACTIONS + r"\p{N}{1,3}" + _REST: "llama-bpe",
    _CONTRACTIONS + r"\p{N}" + _REST: "qwen2",
}
"""llama.cpp's names of the expressions that Llama 3 and Qwen2 cut text by."""


def read_tokenizer(folder: Path) -> Vocabulary:
    """The vocabulary of a published model: its tokenizer.json, and tokenizer_config.json where there is one.

    Raises FileNotFoundError without a tokenizer.json, and ValueError naming what llama.cpp's "gpt2" does not do.
    """
    described = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    settings = _json_of(folder / "tokenizer_config.json")
    model = described["model"]
    pre = _pre_of(described, folder)
    by_id = {number: (token, TokenType.NORMAL) for token, number in model["vocab"].items()}
    for added in described.get("added_tokens", ()):
        kind = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
        by_id[added["id"]] = added["content"], kind
    listed = [by_id.get(number, (f"[PAD{number}]", TokenType.UNUSED)) for number in range(max(by_id) + 1)]
    ids = {token: number for number, (token, _) in by_id.items()}
    first = _first_token(described.get("post_processor"))
    begin = ids.get(first or _text(settings.get("bos_token")) or "")
    end = ids.get(_text(settings.get("eos_token")) or "")
    if end is None:
        raise ValueError(
            f"{folder / 'tokenizer_config.json'} has eos_token = {settings.get('eos_token')!r}: expected a token of "
            "tokenizer.json; without one, llama.cpp takes token 11 for the end of a text"
        )
    template = folder / "chat_template.jinja"
    return Vocabulary(
        [token for token, _ in listed],
        [kind for _, kind in listed],
        end=end,
        begin=begin,
        merges=[merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]],
        pre=pre,
        add_begin=bool(begin is not None and (first or settings.get("add_bos_token"))),
        chat_template=template.read_text(encoding="utf-8") if template.exists() else settings.get("chat_template"),
    )


def _pre_of(described: Mapping[str, Any], folder: Path) -> str:
    """llama.cpp's name of how the tokenizer cuts text, if all of it is what llama.cpp does under that name."""
    model, steps = described["model"], _steps(described.get("pre_tokenizer"), "pretokenizers")
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
                "byte-level BPE as in GPT-2, Llama 3 or Qwen2; export without a vocabulary, and give llama.cpp tokens"
            )
    return str(pre)


def _steps(described: Mapping[str, Any] | None, parts: str) -> list[Mapping[str, Any]]:
    """One step, or those of a sequence."""
    if described is None:
        return []
    return list(described[parts]) if described["type"] == "Sequence" else [described]


def _first_token(processor: Mapping[str, Any] | None) -> str | None:
    """The token that the tokenizer puts before every text, if there is one."""
    for step in _steps(processor, "processors"):
        if step["type"] == "TemplateProcessing" and "SpecialToken" in step["single"][0]:
            return str(step["single"][0]["SpecialToken"]["id"])
    return None


def _text(token: Any) -> str | None:
    """A special token is written as text, or as an object with its `content`."""
    return token["content"] if isinstance(token, dict) else token


def _json_of(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}
