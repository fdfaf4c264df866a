"""Zip files that are written completely and reproducibly, and read without trust."""

import hashlib
import stat
import zipfile
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from threeloops.files import replacing

from threeloops_grader.submissions.submitted import BadSubmission

__all__ = ["members", "write_zip"]

_FIRST, _LAST = datetime(1990, 1, 1), datetime(2019, 12, 31)
_MAX_MEMBERS = 20_000


def write_zip(path: Path, files: Mapping[str, Path | bytes], executable: tuple[str, ...] = ()) -> None:
    """Write a zip of `files`, whole or not at all. The bytes depend on names and contents alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in sorted(files.items()):
            content = source if isinstance(source, bytes) else source.read_bytes()
            info = zipfile.ZipInfo(name, _date(content))
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (stat.S_IFREG | (0o755 if name in executable else 0o644)) << 16
            archive.writestr(info, content)


def _date(content: bytes) -> tuple[int, int, int, int, int, int]:
    """Return a date in the past that only this content has, in the zip format's steps of two seconds.

    With one date for all, a file that was replaced by another of its size would still run from the `.pyc` of the old
    one, which Python knows by date and size. A date in the future would make `make` warn.
    """
    steps = int((_LAST - _FIRST).total_seconds()) // 2
    digest = int.from_bytes(hashlib.sha256(content).digest()[:8])
    at = _FIRST + timedelta(seconds=2 * (digest % steps))
    return at.year, at.month, at.day, at.hour, at.minute, at.second


def members(stream: Path | BinaryIO, most_bytes: int) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each file of a zip that comes from outside. Nothing is unpacked to the disk.

    Raises:
        BadSubmission: it is not a zip file, is damaged or encrypted, or a member unpacks to more than `most_bytes`.
    """
    try:
        with zipfile.ZipFile(stream) as archive:
            inside = [info for info in archive.infolist() if not info.is_dir()]
            if len(inside) > _MAX_MEMBERS:
                raise BadSubmission(f"the zip file holds {len(inside):,} files, at most {_MAX_MEMBERS:,} are read")
            for info in inside:
                with archive.open(info) as member:
                    content = member.read(most_bytes + 1)  # what the zip says of its size may be a lie
                if len(content) > most_bytes:
                    raise BadSubmission(f"{info.filename[:100]!r} unpacks to more than {most_bytes >> 20} MiB")
                yield info.filename, content
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError, ValueError) as error:
        raise BadSubmission(f"the zip file cannot be read: {error}") from None
