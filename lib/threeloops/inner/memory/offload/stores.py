"""Where an optimiser's state lies while it is not needed: host memory, or memory-mapped files that survive the program.

A store holds some kinds of state ("exp_avg", "exp_avg_sq", "master"), each a flat float32 tensor with an element for
every parameter. `open` says whether what lies there is a state to go on with, and of which step.
"""

import json
import math
import zlib
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from threeloops.files import replace_text

MANIFEST = "states.json"
ELEMENT_BYTES = 4


class StateFileError(ValueError):
    """A state on disk that cannot be gone on with: a file is missing, of another size or format, or was damaged."""


Shapes = Sequence[Sequence[int]]
"""Of the parameters, in their order: that of the elements of each state."""


class Store(Protocol):
    states: dict[str, Tensor]

    def open(self, kinds: tuple[str, ...], shapes: Shapes) -> int:
        """Make or find the states; the step at which they were saved, 0 for new ones, which are zero until the caller
        has filled and saved them."""
        ...

    def save(self, step: int) -> None:
        """All of a step is written: make it last, where this store can."""
        ...


class HostStore:
    """Host memory, page-locked where there is a GPU, so that copies run beside its work."""

    def __init__(self) -> None:
        self.states: dict[str, Tensor] = {}

    def open(self, kinds: tuple[str, ...], shapes: Shapes) -> int:
        pin, elements = torch.cuda.is_available(), _elements(shapes)
        self.states = {kind: torch.zeros(elements, dtype=torch.float32, pin_memory=pin) for kind in kinds}
        return 0

    def save(self, step: int) -> None:
        pass


class FileStore:
    """One memory-mapped file a kind of state in `folder`, and a manifest with shapes, format, step and checksums.

    Written for one program at a time, and not proof against a crash in the middle of a step.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.states: dict[str, Tensor] = {}
        self._shapes: list[list[int]] = []

    def open(self, kinds: tuple[str, ...], shapes: Shapes) -> int:
        """Raises StateFileError where the manifest names other states or parameters than these, or a file is not what
        it says."""
        self.folder.mkdir(parents=True, exist_ok=True)
        manifest, elements = self._manifest(), _elements(shapes)
        self._shapes = [list(shape) for shape in shapes]
        if manifest is None:
            for kind in kinds:
                with self._path(kind).open("wb") as file:
                    file.truncate(elements * ELEMENT_BYTES)
        else:
            self._require(manifest, kinds)
        self.states = {
            kind: torch.from_file(str(self._path(kind)), shared=True, size=elements, dtype=torch.float32)
            for kind in kinds
        }
        if manifest is None:
            return 0
        for kind in kinds:
            if (found := _checksum(self.states[kind])) != manifest["crc32"][kind]:
                raise StateFileError(
                    f"{self._path(kind)}: checksum {found}, expected {manifest['crc32'][kind]}: the file was "
                    "changed after its last save; restore it, or begin anew in an empty folder"
                )
        return manifest["step"]

    def save(self, step: int) -> None:
        """Write the manifest. The pages of the files themselves are the operating system's to write."""
        if not self.states:
            raise StateFileError(f"{self.folder}: no states to save; open it first")
        sums = {kind: _checksum(state) for kind, state in self.states.items()}
        content = {"step": step, "shapes": self._shapes, "dtype": "float32", "crc32": sums}
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
            content = json.loads(path.read_text(encoding="utf-8"))
            manifest = {name: content[name] for name in ("step", "shapes", "dtype", "crc32")}
        except (ValueError, KeyError, TypeError) as error:
            raise StateFileError(f"{path} cannot be read ({error}): restore it, or empty the folder") from None
        for name, holds, expected in (
            ("step", _is_count(manifest["step"]), "an integer ≥ 0"),
            ("shapes", _are_shapes(manifest["shapes"]), "a list of lists of integers ≥ 0"),
            ("crc32", _are_checksums(manifest["crc32"]), "an integer ≥ 0 for each kind of state"),
        ):
            if not holds:
                raise StateFileError(
                    f"{path}: {name} = {manifest[name]!r}, expected {expected}: restore it, or empty the folder"
                )
        return manifest

    def _require(self, manifest: dict, kinds: tuple[str, ...]) -> None:
        path = self.folder / MANIFEST
        if manifest["dtype"] != "float32":
            raise StateFileError(
                f"{path}: dtype = {manifest['dtype']!r}, expected 'float32': this state is of another format"
            )
        if set(manifest["crc32"]) != set(kinds):
            raise StateFileError(
                f"{path}: holds {', '.join(manifest['crc32'])}, expected {', '.join(kinds)}: open it with the options "
                "that it was made with (masters), or begin anew in an empty folder"
            )
        for number, (saved, wanted) in enumerate(zip_longest(manifest["shapes"], self._shapes)):
            if saved != wanted:
                raise StateFileError(
                    f"{path}: shapes[{number}] = {saved}, expected {wanted}: this state belongs to another model, or "
                    "to its parameters in another order"
                )
        size = _elements(self._shapes) * ELEMENT_BYTES
        for kind in kinds:
            path = self._path(kind)
            if not path.exists():
                raise StateFileError(f"{path} is missing: restore it, or begin anew in an empty folder")
            if path.stat().st_size != size:
                raise StateFileError(f"{path} has {path.stat().st_size:,} bytes: expected {size:,}; it was cut off")


def _elements(shapes: Shapes) -> int:
    return sum(map(math.prod, shapes))


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _are_shapes(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(shape, list) and all(map(_is_count, shape)) for shape in value)


def _are_checksums(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_count, value.values()))


def _checksum(state: Tensor) -> int:
    return zlib.crc32(memoryview(state.numpy()).cast("B"))
