"""A lab's data files, each vouched for by `data/MANIFEST.json`: its origin, its licence, its size and its hash."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from grader.authoring.labs import Lab, LabError

MANIFEST = "MANIFEST.json"
FIELDS = ("file", "bytes", "sha256", "source", "licence", "what")
SIZE_CAP = 2 * 1024 * 1024
"""Bytes that all data files of one lab may hold together: the course is cloned, not downloaded."""


def data_files(lab: Lab) -> dict[str, Path]:
    """The files to release below the lab's folder: relative name → path. Empty where a lab has no data.

    Raises:
        LabError: a file that the manifest does not list, one that is missing, changed, linked, or without a source.
    """
    if not lab.data.exists():
        return {}
    listed = _read_manifest(lab)
    present = {p.relative_to(lab.data).as_posix(): p for p in sorted(lab.data.rglob("*")) if not _passing(p)}
    if linked := [name for name, path in present.items() if path.is_symlink()]:
        raise _fault(lab, f"{linked[0]} is a symbolic link: put the file itself there")
    if unlisted := sorted(present.keys() - listed.keys() - {MANIFEST}):
        raise _fault(
            lab, f"{unlisted[0]} is not listed in {MANIFEST}: add it with its source and licence, or remove it"
        )
    for name, entry in listed.items():
        if name not in present:
            raise _fault(lab, f"{MANIFEST} lists {name}, which is not there")
        content = present[name].read_bytes()
        if len(content) != entry["bytes"]:
            raise _fault(lab, f"{name} holds {len(content)} bytes, {MANIFEST} says {entry['bytes']}")
        if (digest := hashlib.sha256(content).hexdigest()) != entry["sha256"]:
            raise _fault(lab, f"{name} has sha256 {digest}, {MANIFEST} says {entry['sha256']}: was it edited?")
    if (total := sum(entry["bytes"] for entry in listed.values())) > SIZE_CAP:
        raise _fault(lab, f"the files hold {total} bytes together; a lab may ship {SIZE_CAP}")
    return {f"data/{name}": path for name, path in present.items()}


def _read_manifest(lab: Lab) -> dict[str, dict]:
    path = lab.data / MANIFEST
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _fault(lab, f"there is no {MANIFEST}; it lists {', '.join(FIELDS)} of each file") from None
    except ValueError as error:
        raise _fault(lab, f"{MANIFEST} is not JSON: {error}") from None
    for entry in entries:
        if missing := [field for field in FIELDS if not entry.get(field)]:
            raise _fault(lab, f"{MANIFEST}, entry {entry.get('file', '?')}: {', '.join(missing)} is missing")
    return {entry["file"]: entry for entry in entries}


def _passing(path: Path) -> bool:
    """Folders, and what editors and Python leave behind."""
    return (path.is_dir() and not path.is_symlink()) or any(
        part.startswith(".") or part == "__pycache__" for part in path.parts[-3:]
    )


def _fault(lab: Lab, what: str) -> LabError:
    return LabError(f"lab {lab.slug}, data/: {what}")
