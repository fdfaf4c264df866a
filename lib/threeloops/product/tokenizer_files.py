"""Read the files that describe the tokenizer of a published model: `tokenizer.json` and those beside it.

The rules are those of transformers: which special tokens exist, whether one is put before or after a text, and which
chat template applies. The service runs the tokenizer, and an export to GGUF writes it to the file.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["TokenizerFiles", "byte_characters", "end_tokens", "put_around", "read_files", "read_object"]

_NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))


@dataclass(frozen=True)
class TokenizerFiles:
    """The tokenizer that the files of a folder describe together."""

    library: Any
    """A `tokenizers.Tokenizer` with the special tokens of all files. Its post-processor puts them around a text."""
    named: Mapping[str, str]
    """The texts of special tokens by their names, such as `eos_token`."""
    template: str | None
    """The chat template."""
    template_file: Path


def read_files(folder: Path) -> TokenizerFiles:
    """Read the files of a folder that has a `tokenizer.json`. Raises ValueError if a file is not usable."""
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    try:
        library = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain `Exception`
        raise ValueError(f"{file} cannot be read as a tokenizer ({error}): download it again") from None
    settings = read_object(folder / "special_tokens_map.json") | read_object(folder / "tokenizer_config.json")
    _add_special_tokens(library, settings)
    named = {name: text for name in _NAMED if (text := _text(settings.get(name))) is not None}
    _place_special_tokens(library, settings, named)
    return TokenizerFiles(library, named, *_template(folder, settings))


def end_tokens(folder: Path, files: TokenizerFiles) -> set[int]:
    """Return the tokens that end a text: the tokenizer's own, and those of `generation_config.json`.

    Reads `config.json` if `generation_config.json` names none. Raises ValueError if a file names anything but tokens.
    """
    eos = read_object(folder / "generation_config.json").get("eos_token_id")
    if eos is None:
        eos = read_object(folder / "config.json").get("eos_token_id")
    numbers = [] if eos is None else eos if isinstance(eos, list) else [eos]
    if "eos_token" in files.named and (own := files.library.token_to_id(files.named["eos_token"])) is not None:
        numbers = [*numbers, own]
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise ValueError(f"{folder}: eos_token_id = {eos!r}: expected the number of a token, or a list of them")
    return set(numbers)


def read_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or an empty one if the file does not exist.

    Raises ValueError if the file holds anything else.
    """
    try:
        value = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON ({error}): download it again") from None
    if not isinstance(value, dict):
        raise ValueError(f"{file} holds a {type(value).__name__}: expected an object; download it again")
    return value


def _text(token: Any) -> str | None:
    """Return the text of a token, which the settings give as a string or as an object with a `content`."""
    return token.get("content") if isinstance(token, dict) else token


def _add_special_tokens(library: Any, settings: Mapping[str, Any]) -> None:
    """Add the tokens that the settings describe and `tokenizer.json` lacks, or describes differently."""
    from tokenizers import AddedToken

    tokens = library.get_added_tokens_decoder()
    texts = {added.content for added in tokens.values()}
    for number, described in sorted(settings.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0])):
        token = AddedToken(**{name: value for name, value in described.items() if name != "__type"})
        if repr(tokens.get(int(number))) != repr(token):
            library.add_tokens([token])
            texts.add(token.content)
    extra = settings.get("extra_special_tokens", settings.get("additional_special_tokens")) or ()
    for special in (*map(settings.get, _NAMED), *(extra.values() if isinstance(extra, dict) else extra)):
        if (text := _text(special)) is not None and text not in texts:
            ways = {
                name: special[name]
                for name in ("lstrip", "rstrip", "normalized")
                if isinstance(special, dict) and name in special
            }
            library.add_tokens([AddedToken(text, special=True, **ways)])
            texts.add(text)


def _place_special_tokens(library: Any, settings: Mapping[str, Any], named: Mapping[str, str]) -> None:
    """Follow the settings `add_bos_token` and `add_eos_token` if `tokenizer.json` has no post-processor.

    If the file has a post-processor, it alone decides which special tokens are put around a text. transformers 5 does
    the same, because the settings are often older than the file.
    """
    if library.post_processor is None:
        bos, eos = (
            named.get(f"{name}_token") if settings.get(f"add_{name}_token") else None for name in ("bos", "eos")
        )
        put_around(library, bos, eos)


def _template(folder: Path, settings: Mapping[str, Any]) -> tuple[str | None, Path]:
    """Return the template in `chat_template.jinja`, or else the one in the settings, and its file.

    If the settings have several templates, the one named "default" applies.
    """
    where = folder / "chat_template.jinja"
    template = None
    if where.is_file():
        try:
            template = where.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{where}: byte {error.start} is not UTF-8") from None
    else:
        where = folder / "tokenizer_config.json"
        template = settings.get("chat_template", read_object(folder / "chat_template.json").get("chat_template"))
    if isinstance(template, list):
        templates = {entry["name"]: entry["template"] for entry in template}
        if "default" not in templates:
            raise ValueError(f"{where}: chat_template has {', '.join(templates)}: expected one named 'default'")
        template = templates["default"]
    return template, where


def put_around(library: Any, bos: str | None, eos: str | None) -> None:
    """Put the special tokens `bos` and `eos` before and after every text that is not a conversation."""
    from tokenizers.processors import TemplateProcessing

    library.post_processor = TemplateProcessing(
        single=[part for part in (bos, "$A", eos) if part is not None],
        special_tokens=sorted({(text, library.token_to_id(text)) for text in (bos, eos) if text is not None}),
    )


def byte_characters() -> dict[str, int]:
    """Return the byte for each character of a byte-level vocabulary.

    A printable byte is written as its own character, and any other as a character from 256 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}
