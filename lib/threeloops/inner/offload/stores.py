"""Where an optimiser's state lies while it is not needed: host memory, or memory-mapped files that survive the program.

A store holds some kinds of state ("exp_avg", "exp_avg_sq", "master"), each a flat float32 tensor with an element for
every parameter. `open` says whether what lies there is a state to go on with, and of which step.
"""

import json
import zlib
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from threeloops.files import replace_text

MANIFEST = "states.json"
ELEMENT_BYTES = 4


class StateFileError(ValueError):
    """A state on disk that cannot be gone on with: a file is missing, of another size or format, or was damaged."""


class Store(Protocol):
    states: dict[str, Tensor]

    def open(self, kinds: tuple[str, ...], elements: int) -> int:
        """Make or find the states; the step at which they were saved, 0 for new ones, which are zero."""
        ...

    def save(self, step: int) -> None:
        """All of a step is written: make it last, where this store can."""
        ...


class HostStore:
    """Host memory, page-locked where there is a GPU, so that copies run beside its work."""

    def __init__(self) -> None:
        self.states: dict[str, Tensor] = {}

    def open(self, kinds: tuple[str, ...], elements: int) -> int:
        pin = torch.cuda.is_available()
        self.states = {kind: torch.zeros(elements, dtype=torch.float32, pin_memory=pin) for kind in kinds}
        return 0

    def save(self, step: int) -> None:
        pass


class FileStore:
    """One memory-mapped file a kind of state in `folder`, and a manifest with sizes, format, step and checksums.

    Written for one program at a time, and not proof against a crash in the middle of a step.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.states: dict[str, Tensor] = {}

    def open(self, kinds: tuple[str, ...], elements: int) -> int:
        """Raises StateFileError where the manifest names other states than these, or a file is not what it says."""
        self.folder.mkdir(parents=True, exist_ok=True)
        manifest = self._manifest()
        if manifest is None:
            for kind in kinds:
                with self._path(kind).open("wb") as file:
                    file.truncate(elements * ELEMENT_BYTES)
        else:
            self._require(manifest, kinds, elements)
        self.states = {
            kind: torch.from_file(str(self._path(kind)), shared=True, size=elements, dtype=torch.float32)
            for kind in kinds
        }
        if manifest is None:
            self.save(0)
            return 0
        for kind in kinds:
            if (found := _checksum(self.states[kind])) != manifest["crc32"].get(kind):
                raise StateFileError(
                    f"{self._path(kind)}: checksum {found}, expected {manifest['crc32'].get(kind)}: the file was "
                    "changed after its last save; restore it, or begin anew in an empty folder"
                )
        return manifest["step"]

    def save(self, step: int) -> None:
        """Write the manifest. The pages of the files themselves are the operating system's to write."""
        sums = {kind: _checksum(state) for kind, state in self.states.items()}
        elements = len(next(iter(self.states.values())))
        content = {"step": step, "elements": elements, "dtype": "float32", "crc32": sums}
        replace_text(self.folder / MANIFEST, json.dumps(content))

    def _path(self, kind: str) -> Path:
        return self.folder / f"{kind}.bin"

    def _manifest(self) -> dict | None:
        path = self.folder / MANIFEST
        if not path.exists():
            if left := sorted(file.name for file in self.folder.glob("*.bin")):
                raise StateFileError(f"{path} is missing beside {', '.join(left)}: restore it, or empty the folder")
            return None
        try:
            manifest = json.loads(path.read_text(encoding="utf-8"))
            return {name: manifest[name] for name in ("step", "elements", "dtype", "crc32")}
        except (ValueError, KeyError, TypeError) as error:
            raise StateFileError(f"{path} cannot be read ({error}): restore it, or empty the folder") from None

    def _require(self, manifest: dict, kinds: tuple[str, ...], elements: int) -> None:
        for name, wanted in (("elements", elements), ("dtype", "float32")):
            if manifest[name] != wanted:
                raise StateFileError(
                    f"{self.folder / MANIFEST}: {name} = {manifest[name]!r}, expected {wanted!r}: this state "
                    "belongs to another model or format"
                )
        for kind in kinds:
            path, size = self._path(kind), elements * ELEMENT_BYTES
            if not path.exists():
                raise StateFileError(f"{path} is missing: restore it, or begin anew in an empty folder")
            if path.stat().st_size != size:
                raise StateFileError(f"{path} has {path.stat().st_size:,} bytes: expected {size:,}; it was cut off")


def _checksum(state: Tensor) -> int:
    return zlib.crc32(memoryview(state.numpy()).cast("B"))
