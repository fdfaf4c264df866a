"""A lab's data files, and the pictures that its texts show.

`data/MANIFEST.json` states the origin, licence, size and hash of each file.
"""

import hashlib
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from threeloops_grader.authoring.labs import OPENING, Lab, LabError

__all__ = ["data_files", "missing_pictures"]

_MANIFEST = "MANIFEST.json"
_FIELDS = ("file", "bytes", "sha256", "source", "licence", "what")
_SIZE_CAP = 2 * 1024 * 1024
"""Bytes of all data files of one lab together: everybody who clones the course downloads them."""


_PICTURE = re.compile(r"""!\[[^\]]*\]\(\s*<?([^)>\s]+)|<img\b[^>]*?\bsrc\s*=\s*["']?([^"'>\s]+)""", re.IGNORECASE)
"""A picture of a text, in Markdown or HTML."""


def data_files(lab: Lab) -> dict[str, Path]:
    """Return the files to release below the lab's folder: relative name → path. It is empty if the lab has no data.

    Raises:
        LabError: a file that the manifest does not list, one that is missing, changed, linked, or without a source.
    """
    if not lab.data.exists():
        return {}
    try:
        return {f"data/{name}": path for name, path in _checked(lab.data).items()}
    except ValueError as error:
        raise LabError(f"lab {lab.slug}, data/: {error}") from None


def missing_pictures(lab: Lab, text: str) -> Iterator[str]:
    """Yield the pictures of a prose cell that the released lab would lack, and what to do about each.

    Release copies the contents of `data/` and attaches one picture, which the cell tagged `opening` draws.
    """
    for link in _PICTURE.finditer(text):
        address = link[1] or link[2]
        url = urlsplit(address)
        path = posixpath.normpath(unquote(url.path))
        if address == f"attachment:{OPENING}.png":
            if not any(OPENING in cell.metadata.get("tags", []) for cell in lab.notebooks[0].master().cells):
                yield f"{address}, and no cell draws it: tag a demo cell {OPENING!r} as well, or take the picture out"
        elif url.netloc or url.scheme not in ("", "attachment"):
            continue
        elif url.scheme or not path.startswith("data/") or not (lab.folder / path).is_file():
            yield (
                f"{address}, which the released lab would not have: put the file into data/, list it in "
                f"data/{_MANIFEST}, and show data/{posixpath.basename(path)}"
            )


def _checked(folder: Path) -> dict[str, Path]:
    listed = _read_manifest(folder / _MANIFEST)
    present = {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if not _is_ignored(p)}
    if linked := [name for name, path in present.items() if path.is_symlink()]:
        raise ValueError(f"{linked[0]} is a symbolic link: put the file itself there")
    if unlisted := sorted(present.keys() - listed.keys() - {_MANIFEST}):
        raise ValueError(
            f"{unlisted[0]} is not listed in {_MANIFEST}: add it with its source and licence, or remove it"
        )
    for name, entry in listed.items():
        if name not in present:
            raise ValueError(f"{_MANIFEST} lists {name}, which is not there")
        content = present[name].read_bytes()
        if len(content) != entry["bytes"]:
            raise ValueError(f"{name} holds {len(content)} bytes, {_MANIFEST} says {entry['bytes']}")
        if (digest := hashlib.sha256(content).hexdigest()) != entry["sha256"]:
            raise ValueError(f"{name} has sha256 {digest}, {_MANIFEST} says {entry['sha256']}: was it edited?")
    if (total := sum(entry["bytes"] for entry in listed.values())) > _SIZE_CAP:
        raise ValueError(f"the files hold {total} bytes together; a lab may ship {_SIZE_CAP}")
    return present


def _read_manifest(path: Path) -> dict[str, dict]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"there is no {_MANIFEST}; it lists {', '.join(_FIELDS)} of each file") from None
    except ValueError as error:
        raise ValueError(f"{_MANIFEST} is not JSON: {error}") from None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(
            f"{_MANIFEST} must be a list with an object for each file, [{{…}}, …], that gives {', '.join(_FIELDS)}"
        )
    for entry in entries:
        if missing := [field for field in _FIELDS if not entry.get(field)]:
            raise ValueError(f"{_MANIFEST}, entry {entry.get('file', '?')}: {', '.join(missing)} is missing")
    return {entry["file"]: entry for entry in entries}


def _is_ignored(path: Path) -> bool:
    """Return whether this is a folder, or a file that editors and Python leave behind."""
    left_behind = any(part.startswith(".") or part == "__pycache__" for part in path.parts[-3:])
    return left_behind or (path.is_dir() and not path.is_symlink())
