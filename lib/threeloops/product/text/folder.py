"""The tokenizer of a published model: `tokenizer.json`, run by the `tokenizers` library, and the files around it.

Everything follows transformers: which special tokens there are, whether one is put before or after a text, what user
text may mean, and which chat template applies.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from threeloops.product.text.chat_template import ChatTemplate
from threeloops.product.text.decoder import TextDecoder
from threeloops.product.text.pieces import Pieces
from threeloops.product.text.tokenizer import checked

__all__ = ["LibraryTokenizer", "read_folder", "read_object"]

_NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "chat_template.json",
    "generation_config.json", "config.json",
)  # fmt: skip


class LibraryTokenizer:
    """A tokenizer that the `tokenizers` library runs. Text may contain special tokens, as with transformers."""

    def __init__(
        self,
        library: Any,
        *,
        where: str,
        end_tokens: Iterable[int],
        fingerprint: str,
        template: ChatTemplate | None,
    ) -> None:
        """`library` is a `tokenizers.Tokenizer`. Raises ValueError if its decoder does not work token by token."""
        self._library, self._where, self._template = library, where, template
        library.no_truncation()
        library.no_padding()
        self.vocabulary: int = max(library.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.end_tokens, self.fingerprint = frozenset(end_tokens), fingerprint
        special = frozenset(token for token, added in library.get_added_tokens_decoder().items() if added.special)
        decoder = library.decoder
        described = json.loads(decoder.__getstate__()) if decoder is not None else {"type": None}
        try:
            self._pieces = Pieces(library.id_to_token, special, described)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None

    def encode(self, text: str) -> tuple[int, ...]:
        return self._encoded(text, add_special_tokens=True)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        if self._template is None:
            raise ValueError(
                f"the model has no chat template in {self._where}: send a prompt to /v1/completions, or serve a model "
                "that was trained to chat"
            )
        tokens = self._encoded(self._template.render(messages), add_special_tokens=False)
        if not tokens:
            raise ValueError("the model's chat template writes nothing for this conversation")
        return tokens

    def piece(self, token: int) -> bytes:
        return self._pieces.piece(token)

    def decoder(self, *, continues: bool = False) -> TextDecoder:
        return TextDecoder(self.piece, None if continues else self._pieces.first)

    def _encoded(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        # one text as a batch: that lets other threads run meanwhile, and `encode` does not
        (encoded,) = self._library.encode_batch([checked(text)], add_special_tokens=add_special_tokens)
        return tuple(encoded.ids)


def read_folder(folder: Path) -> LibraryTokenizer:
    """The tokenizer of a folder with a `tokenizer.json`. Raises ValueError for a file that cannot be used."""
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    try:
        library = Tokenizer.from_file(str(file))
    except Exception as error:  # its own, without a type
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
    """The JSON object of a file; an empty one if there is no such file. Raises ValueError for anything else."""
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
    """A token's text: it may be written as such, or with how it matches."""
    return token.get("content") if isinstance(token, dict) else token


def _add_special_tokens(library: Any, settings: Mapping[str, Any]) -> None:
    """Make the tokens that the settings name special, where `tokenizer.json` does not say what they are."""
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
    """Put the special tokens of `add_bos_token` and `add_eos_token` around a text if `tokenizer.json` says nothing.

    If it has a post-processor, that one decides, as in transformers 5: the settings are often older than the file.
    """
    from tokenizers.processors import TemplateProcessing

    if library.post_processor is not None:
        return
    bos, eos = (named.get(f"{name}_token") if settings.get(f"add_{name}_token") else None for name in ("bos", "eos"))
    library.post_processor = TemplateProcessing(
        single=[part for part in (bos, "$A", eos) if part is not None],
        special_tokens=sorted({(text, library.token_to_id(text)) for text in (bos, eos) if text is not None}),
    )


def _end_tokens(folder: Path, library: Any, named: Mapping[str, str]) -> set[int]:
    """Those of generation_config.json or else of config.json, and the tokenizer's own."""
    found = read_object(folder / "generation_config.json").get("eos_token_id")
    if found is None:
        found = read_object(folder / "config.json").get("eos_token_id")
    numbers = [] if found is None else found if isinstance(found, list) else [found]
    if "eos_token" in named and (own := library.token_to_id(named["eos_token"])) is not None:
        numbers = [*numbers, own]
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise ValueError(f"{folder}: eos_token_id = {found!r}: expected a token or a list of tokens")
    return set(numbers)


def _template(folder: Path, settings: Mapping[str, Any], named: Mapping[str, str]) -> ChatTemplate | None:
    """chat_template.jinja, or else the template of the settings; of several, the one with the name "default"."""
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
            raise ValueError(f"{where}: chat_template has {', '.join(templates)}: expected one with the name 'default'")
        found = templates["default"]
    return None if found is None else ChatTemplate(found, str(where), named)
