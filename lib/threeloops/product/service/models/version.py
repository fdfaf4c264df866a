"""A version of a model: a folder of files, and a manifest that says what is in them."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from threeloops.files import replace_text
from threeloops.places import below

__all__ = ["RegistryError", "Version", "read_version", "write_manifest"]

_MANIFEST = "manifest.json"
_FILES = "files"


class RegistryError(RuntimeError):
    """No such version, an incomplete version, a name that is taken, or a disk that fails. Nothing was changed."""


@dataclass(frozen=True)
class Version:
    """`folder` holds the model's files; `digest` is the SHA-256 of all their names and hashes."""

    name: str
    folder: Path
    digest: str
    published: float  # seconds since 1970

    def __str__(self) -> str:
        return self.name


def write_manifest(place: Path, published: float) -> str:
    """Hash the contents of `place`/files, write a manifest beside them, and return the digest. Raises RegistryError."""
    files = {name: {"bytes": path.stat().st_size, "sha256": _sha256(path)} for name, path in _files(place / _FILES)}
    if not files:
        raise RegistryError("the folder holds no file: expected a model")
    replace_text(place / _MANIFEST, json.dumps({"published": published, "files": files}, indent=2) + "\n")
    return _digest(files)


def read_version(place: Path) -> Version:
    """The version in `place`, every byte of which was compared with the manifest. Raises RegistryError."""
    name = place.name
    try:
        manifest = json.loads((place / _MANIFEST).read_text())
        files = {str(file): (int(about["bytes"]), str(about["sha256"])) for file, about in manifest["files"].items()}
        published = float(manifest["published"])
    except FileNotFoundError:
        state = "there is no such version" if not place.exists() else f"it has no {_MANIFEST}: only half of it is there"
        raise RegistryError(f"version {name!r}: {state}; publish it again") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RegistryError(f"version {name!r}: its {_MANIFEST} cannot be read ({error}); publish it again") from None
    paths = dict(_files(place / _FILES))
    if extra := paths.keys() - files.keys():
        raise RegistryError(f"version {name!r}: {min(extra)} is not in its manifest; remove it, or publish again")
    for file, (size, sha256) in files.items():
        if file not in paths:
            raise RegistryError(f"version {name!r}: {file} is missing: only half of it is there; publish it again")
        if (actual := paths[file].stat().st_size) != size:
            raise RegistryError(f"version {name!r}: {file} has {actual} of {size} bytes; publish it again")
        if _sha256(paths[file]) != sha256:
            raise RegistryError(f"version {name!r}: {file} differs from what was published (its SHA-256 is another)")
    return Version(name, place / _FILES, _digest(manifest["files"]), published)


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Every file below, by its path from here, in order."""
    for path in below(folder):
        if not path.is_dir():
            yield path.relative_to(folder).as_posix(), path


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _digest(files: dict[str, Any]) -> str:
    hashes = sorted((name, about["sha256"]) for name, about in files.items())
    return hashlib.sha256(json.dumps(hashes).encode()).hexdigest()
