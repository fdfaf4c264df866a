"""Files that are written whole or not at all."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """An open file that becomes `path` when the block ends: a reader, a full disk or a crash never meets half of it.

    A block that raises leaves `path` as it was. Whoever has the old file open, or mapped, keeps the old contents.

    Raises:
        FileExistsError: `path` is a folder, a device or a pipe. Root could replace even /dev/null by a file.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        raise FileExistsError(errno.EEXIST, "not an ordinary file", str(path))
    half = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with half.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """Write a whole text file, UTF-8, or nothing."""
    with replacing(path) as stream:
        stream.write(text.encode())
