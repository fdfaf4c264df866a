"""Read the tokenizer of a published model from its `tokenizer.json` and the files beside it.

The `tokenizers` library runs it.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from threeloops.product.text.chat_template import ChatTemplate
from threeloops.product.text.library import LibraryTokenizer
from threeloops.product.tokenizer_files import read_files, read_object

__all__ = ["read_folder"]

_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "chat_template.json",
    "generation_config.json", "config.json",
)  # fmt: skip


def read_folder(folder: Path) -> LibraryTokenizer:
    """Return the tokenizer of a folder that has a `tokenizer.json`. Raises ValueError if a file is not usable."""
    files = read_files(folder)
    found = hashlib.sha256()
    for path in map(folder.joinpath, _FILES):
        found.update(path.read_bytes() if path.is_file() else b"\0")
    source, where = files.template, str(files.template_file)
    return LibraryTokenizer(
        files.library,
        where=str(folder),
        end_tokens=_end_tokens(folder, files.library, files.named),
        fingerprint=found.hexdigest(),
        template=None if source is None else ChatTemplate(source, where, files.named),
    )


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
