"""Write files completely or not at all, put them on the disk, and read TOML files."""

import errno
import os
import secrets
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["read_toml", "replace_text", "replacing", "sync"]


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """An open file that becomes `path` when the block ends, so that nobody sees half of it, even after a crash.

    If the block raises, `path` stays as it was. A process that has the old file open or mapped keeps its contents.

    Raises:
        FileExistsError: `path` is a folder, a device or a pipe. (Root could replace even /dev/null.)
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
    """Write a text file in UTF-8, completely or not at all."""
    with replacing(path) as stream:
        stream.write(text.encode())


def sync(path: Path) -> None:
    """Put a file's contents, or a folder's entries, on the disk: what a power cut cannot take back."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_toml(path: Path, what: str, error: type[Exception]) -> tuple[str, dict[str, Any]]:
    """Return a file's text, and the TOML document in it. Raises `error` with the file and the reason.

    `what` says in errors what the file is for, such as "the settings".
    """
    try:
        text = path.read_bytes().decode()
        return text, tomllib.loads(text)
    except OSError as failure:
        raise error(f"{path}: {what} cannot be read: {failure.strerror}") from None
    except UnicodeDecodeError as failure:
        raise error(f"{path}: byte {failure.start} is not UTF-8") from None
    except tomllib.TOMLDecodeError as failure:
        raise error(f"{path}: not TOML: {failure}") from None
