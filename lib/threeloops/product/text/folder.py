"""Read the tokenizer of a published model from its `tokenizer.json` and the files beside it.

The `tokenizers` library runs it. The rules are those of transformers: which special tokens exist, whether one is put
before or after a text, whether user text may contain special tokens, and which chat template applies.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from threeloops.product.text.chat_template import ChatTemplate
from threeloops.product.text.library import LibraryTokenizer, put_around

__all__ = ["read_folder", "read_object"]

_NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "chat_template.json",
    "generation_config.json", "config.json",
)  # fmt: skip


def read_folder(folder: Path) -> LibraryTokenizer:
    """Return the tokenizer of a folder that has a `tokenizer.json`. Raises ValueError if a file is not usable."""
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
    found = hashlib.sha256()
    for path in map(folder.joinpath, _FILES):
        found.update(path.read_bytes() if path.is_file() else b"\0")
    return LibraryTokenizer(
        library,
        where=str(folder),
        end_tokens=_end_tokens(folder, library, named),
        fingerprint=found.hexdigest(),
        template=_template(folder, settings, named),
    )


def read_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or an empty one if the file does not exist.

    Raises ValueError if the file holds anything else.
    """
    try:
        found = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON ({error}): download it again") from None
    if not isinstance(found, dict):
        raise ValueError(f"{file} holds a {type(found).__name__}: expected an object; download it again")
    return found


def _text(token: Any) -> str | None:
    """Return the text of a token, which the settings give as a string or as an object with a `content`."""
    return token.get("content") if isinstance(token, dict) else token


def _add_special_tokens(library: Any, settings: Mapping[str, Any]) -> None:
    """Add the tokens that the settings describe and `tokenizer.json` lacks, or describes differently."""
    from tokenizers import AddedToken

    known = library.get_added_tokens_decoder()
    texts = {added.content for added in known.values()}
    for number, described in sorted(settings.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0])):
        token = AddedToken(**{name: value for name, value in described.items() if name != "__type"})
        if repr(known.get(int(number))) != repr(token):
            library.add_tokens([token])
            texts.add(token.content)
    extra = settings.get("extra_special_tokens", settings.get("additional_special_tokens")) or ()
    for each in (*map(settings.get, _NAMED), *(extra.values() if isinstance(extra, dict) else extra)):
        if (text := _text(each)) is not None and text not in texts:
            ways = {
                name: each[name]
                for name in ("lstrip", "rstrip", "normalized")
                if isinstance(each, dict) and name in each
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


def _end_tokens(folder: Path, library: Any, named: Mapping[str, str]) -> set[int]:
    """Return the tokens that end a text: the tokenizer's own, and those of `generation_config.json`.

    `config.json` is read if `generation_config.json` names none.
    """
    found = read_object(folder / "generation_config.json").get("eos_token_id")
    if found is None:
        found = read_object(folder / "config.json").get("eos_token_id")
    numbers = [] if found is None else found if isinstance(found, list) else [found]
    if "eos_token" in named and (own := library.token_to_id(named["eos_token"])) is not None:
        numbers = [*numbers, own]
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise ValueError(f"{folder}: eos_token_id = {found!r}: expected the number of a token, or a list of them")
    return set(numbers)


def _template(folder: Path, settings: Mapping[str, Any], named: Mapping[str, str]) -> ChatTemplate | None:
    """Return the template in `chat_template.jinja`, or else the one in the settings.

    If the settings have several templates, the one named "default" applies.
    """
    where, found = folder / "chat_template.jinja", None
    if where.is_file():
        try:
            found = where.read_text()
        except UnicodeDecodeError as error:
            raise ValueError(f"{where}: byte {error.start} is not UTF-8") from None
    else:
        where = folder / "tokenizer_config.json"
        found = settings.get("chat_template", read_object(folder / "chat_template.json").get("chat_template"))
    if isinstance(found, list):
        templates = {each["name"]: each["template"] for each in found}
        if "default" not in templates:
            raise ValueError(f"{where}: chat_template has {', '.join(templates)}: expected one named 'default'")
        found = templates["default"]
    return None if found is None else ChatTemplate(found, str(where), named)
