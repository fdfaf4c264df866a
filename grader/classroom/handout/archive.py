"""Zip files: written whole and the same bytes each time, read without trust."""

import stat
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from threeloops.files import replacing

from grader.submissions.submitted import BadSubmission

__all__ = ["members", "write_zip"]

_DATE = (2030, 1, 1, 0, 0, 0)
_MAX_MEMBERS = 20_000


def write_zip(path: Path, files: Mapping[str, Path | bytes], executable: tuple[str, ...] = ()) -> None:
    """Write a zip of `files`, whole or not at all. The bytes depend on names and contents alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            info = zipfile.ZipInfo(name, _DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (stat.S_IFREG | (0o755 if name in executable else 0o644)) << 16
            archive.writestr(info, content if isinstance(content, bytes) else content.read_bytes())


def members(stream: Path | BinaryIO, most_bytes: int) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file of a zip that comes from outside; nothing is unpacked to the disk.

    Raises:
        BadSubmission: it is no zip file, is damaged or encrypted, or a member unpacks to more than `most_bytes`.
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
