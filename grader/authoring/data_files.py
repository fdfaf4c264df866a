"""A lab's data files. `data/MANIFEST.json` states the origin, licence, size and hash of each."""

import hashlib
import json
from pathlib import Path

from grader.authoring.labs import Lab, LabError

__all__ = ["data_files"]

_MANIFEST = "MANIFEST.json"
_FIELDS = ("file", "bytes", "sha256", "source", "licence", "what")
_SIZE_CAP = 2 * 1024 * 1024
"""Bytes of all data files of one lab together: everybody who clones the course downloads them."""


def data_files(lab: Lab) -> dict[str, Path]:
    """The files to release below the lab's folder: relative name → path. Empty if the lab has no data.

    Raises:
        LabError: a file that the manifest does not list, one that is missing, changed, linked, or without a source.
    """
    if not lab.data.exists():
        return {}
    try:
        return {f"data/{name}": path for name, path in _checked(lab.data).items()}
    except ValueError as error:
        raise LabError(f"lab {lab.slug}, data/: {error}") from None


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
    for entry in entries:
        if missing := [field for field in _FIELDS if not entry.get(field)]:
            raise ValueError(f"{_MANIFEST}, entry {entry.get('file', '?')}: {', '.join(missing)} is missing")
    return {entry["file"]: entry for entry in entries}


def _is_ignored(path: Path) -> bool:
    """Folders, and files that editors and Python leave behind."""
    left_behind = any(part.startswith(".") or part == "__pycache__" for part in path.parts[-3:])
    return left_behind or (path.is_dir() and not path.is_symlink())
