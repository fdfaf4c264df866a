"""Stores of an optimizer's state between updates: host memory, or memory-mapped files that outlive the program.

A store holds some kinds of state ("exp_avg", "exp_avg_sq", "master"), each a flat float32 tensor with as many elements
as all parameters together.
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

__all__ = ["FileStore", "HostStore", "Shapes", "StateFileError", "Store"]

_MANIFEST = "states.json"
_ELEMENT_BYTES = 4
_RESTORE = "restore it, or start again in an empty folder"


class StateFileError(ValueError):
    """A state on disk that cannot be resumed: a file is missing, of another size or format, or damaged."""


Shapes = Sequence[Sequence[int]]
"""The shapes of the parameters, in their order. The elements of each state have the same order."""


class Store(Protocol):
    states: dict[str, Tensor]

    def open(self, kinds: tuple[str, ...], shapes: Shapes) -> int:
        """Make or find `states`. Returns the step at which they were saved, or 0 for new ones, which are zero."""
        ...

    def save(self, step: int) -> None:
        """Save the present states as the states of `step`, if this store outlives the program."""
        ...


class HostStore:
    """Host memory, page-locked if there is a GPU, so that copies run beside its work."""

    def __init__(self) -> None:
        self.states: dict[str, Tensor] = {}

    def open(self, kinds: tuple[str, ...], shapes: Shapes) -> int:
        pin = torch.cuda.is_available()
        elements = _elements(shapes)
        self.states = {kind: torch.zeros(elements, dtype=torch.float32, pin_memory=pin) for kind in kinds}
        return 0

    def save(self, step: int) -> None:
        pass


class FileStore:
    """A memory-mapped file for each kind of state in `folder`, and a manifest with shapes, format, step and checksums.

    Only one program may use it at a time, and a crash in the middle of a step makes it unusable.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.states: dict[str, Tensor] = {}
        self._shapes: list[list[int]] = []

    def open(self, kinds: tuple[str, ...], shapes: Shapes) -> int:
        """Open the files. Raises StateFileError if the manifest lists other states or parameters, or does not match the
        files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        manifest = self._manifest()
        elements = _elements(shapes)
        self._shapes = [list(shape) for shape in shapes]
        if manifest is None:
            for kind in kinds:
                with self._path(kind).open("wb") as file:
                    file.truncate(elements * _ELEMENT_BYTES)
        else:
            self._require(manifest, kinds)
        self.states = {
            kind: torch.from_file(str(self._path(kind)), shared=True, size=elements, dtype=torch.float32)
            for kind in kinds
        }
        if manifest is None:
            return 0
        for kind in kinds:
            if (checksum := _checksum(self.states[kind])) != manifest["crc32"][kind]:
                raise StateFileError(
                    f"{self._path(kind)}: checksum {checksum}, expected {manifest['crc32'][kind]}: the file was "
                    f"changed after its last save; {_RESTORE}"
                )
        return manifest["step"]

    def save(self, step: int) -> None:
        """Write the manifest; the operating system writes the pages of the files."""
        if not self.states:
            raise StateFileError(f"{self.folder}: no states to save; open it first")
        sums = {kind: _checksum(state) for kind, state in self.states.items()}
        content = {"step": step, "shapes": self._shapes, "dtype": "float32", "crc32": sums}
        replace_text(self.folder / _MANIFEST, json.dumps(content))

    def _path(self, kind: str) -> Path:
        return self.folder / f"{kind}.bin"

    def _manifest(self) -> dict | None:
        path = self.folder / _MANIFEST
        if not path.exists():
            if files := sorted(file.name for file in self.folder.glob("*.bin")):
                raise StateFileError(f"{path} is missing beside {', '.join(files)}: {_RESTORE}")
            return None
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            manifest = {name: content[name] for name in ("step", "shapes", "dtype", "crc32")}
        except (ValueError, KeyError, TypeError) as error:
            raise StateFileError(f"{path} cannot be read ({error}): {_RESTORE}") from None
        for name, is_valid, expected in (
            ("step", _is_count, "an integer ≥ 0"),
            ("shapes", _are_shapes, "a list of lists of integers ≥ 0"),
            ("crc32", _are_checksums, "an integer ≥ 0 for each kind of state"),
        ):
            if not is_valid(manifest[name]):
                raise StateFileError(f"{path}: {name} = {manifest[name]!r}, expected {expected}: {_RESTORE}")
        return manifest

    def _require(self, manifest: dict, kinds: tuple[str, ...]) -> None:
        path = self.folder / _MANIFEST
        if manifest["dtype"] != "float32":
            raise StateFileError(f"{path}: dtype = {manifest['dtype']!r}, expected 'float32': {_RESTORE}")
        if set(manifest["crc32"]) != set(kinds):
            raise StateFileError(
                f"{path}: holds {', '.join(manifest['crc32'])}, expected {', '.join(kinds)}: open it with the options "
                "it was made with (masters), or start again in an empty folder"
            )
        for number, (saved, wanted) in enumerate(zip_longest(manifest["shapes"], self._shapes)):
            if saved != wanted:
                raise StateFileError(
                    f"{path}: shapes[{number}] = {saved}, expected {wanted}: this state belongs to another model, or "
                    "to its parameters in another order"
                )
        size = _elements(self._shapes) * _ELEMENT_BYTES
        for kind in kinds:
            path = self._path(kind)
            if not path.exists():
                raise StateFileError(f"{path} is missing: {_RESTORE}")
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
