"""Read the tokenizer of a published model from its `tokenizer.json` and the files beside it.

The `tokenizers` library runs it.
"""

import hashlib
from pathlib import Path

from threeloops.product.text.chat_template import ChatTemplate
from threeloops.product.text.library import LibraryTokenizer
from threeloops.product.tokenizer_files import end_tokens, read_files

__all__ = ["read_folder"]

_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "chat_template.json",
    "generation_config.json", "config.json",
)  # fmt: skip


def read_folder(folder: Path) -> LibraryTokenizer:
    """Return the tokenizer of a folder that has a `tokenizer.json`. Raises ValueError if a file is not usable."""
    files = read_files(folder)
    digest = hashlib.sha256()
    for path in map(folder.joinpath, _FILES):
        digest.update(path.read_bytes() if path.is_file() else b"\0")
    source = files.template
    where = str(files.template_file)
    return LibraryTokenizer(
        files.library,
        where=str(folder),
        end_tokens=end_tokens(folder, files),
        fingerprint=digest.hexdigest(),
        template=None if source is None else ChatTemplate(source, where, files.named),
    )
