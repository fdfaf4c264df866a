"""Files that are written whole or not at all."""

import os
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Write a whole file or nothing: a reader, a full disk or a crash never meets half of it."""
    half = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with half.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
