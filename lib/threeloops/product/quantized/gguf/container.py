"""The container of GGUF: keys and values about a model, then its tensors, each at an aligned place.

Numbers are little-endian. A file has "GGUF", the version, the number of tensors and the number of values. Then come
every value with its key and type, and every tensor's name, sizes (the fastest first, so reversed), type and place.
Padding and the tensors' bytes follow, each padded to the alignment. Version 3 is written. Version 2 has the same layout
and is read too. (Source: docs/gguf.md of the ggml repository.)

A reader of untrusted files must not trust a number in them. So every length is compared with the rest of the file
before anything is read or allocated.
"""

# ruff: noqa: F722  the strings are jaxtyping shapes, not forward references

import mmap
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import UInt8

from threeloops.files import replacing
from threeloops.product.quantized.gguf.blocks import TensorType, row_bytes
from threeloops.product.quantized.gguf.errors import GGUFError

__all__ = ["File", "StoredTensor", "Value", "read_file", "write_file"]

_MAGIC = b"GGUF"
_VERSION = 3
_ALIGNMENT = 32
_READ = (2, 3)
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
"""struct's letter of each type of number."""
_UINT32 = 4
_INT32 = 5
_FLOAT32 = 6
_BOOL = 7
_STRING = 8
_ARRAY = 9
_MOST_DIMENSIONS = 4  # ggml's

Value = str | bool | int | float | list


@dataclass(frozen=True)
class StoredTensor:
    """One tensor: bytes of its rows, (rows, bytes of a row). `shape` is that of its numbers, in PyTorch's order."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    data: UInt8[np.ndarray, "rows bytes"]


@dataclass(frozen=True)
class File:
    metadata: Mapping[str, Value]
    tensors: Mapping[str, StoredTensor]


def write_file(path: Path, metadata: Mapping[str, Value], tensors: Iterable[StoredTensor]) -> None:
    """Write a whole file or none. Whole numbers become uint32, others float32; in lists, which hold texts or whole
    numbers, int32.

    Raises ValueError for a value of another kind, and for two tensors of one name.
    """
    tensors = list(tensors)
    if len({tensor.name for tensor in tensors}) < len(tensors):
        raise ValueError("two tensors have the same name: expected each once")
    head = [_MAGIC, struct.pack("<IQQ", _VERSION, len(tensors), len(metadata))]
    head += [_string(key) + _value(key, value) for key, value in metadata.items()]
    place = 0
    for tensor in tensors:
        sizes = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *reversed(tensor.shape))
        head.append(_string(tensor.name) + sizes + struct.pack("<IQ", tensor.type, place))
        place += tensor.data.nbytes + _padding(tensor.data.nbytes)
    start = b"".join(head)
    with replacing(Path(path)) as file:
        file.write(start + bytes(_padding(len(start))))
        for tensor in tensors:
            file.write(np.ascontiguousarray(tensor.data).data)
            file.write(bytes(_padding(tensor.data.nbytes)))


def _padding(size: int, alignment: int = _ALIGNMENT) -> int:
    return -size % alignment


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(key: str, value: Value) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _string(value)
    if isinstance(value, int) and 0 <= value < 2**32:
        return struct.pack("<II", _UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT32, value)
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_string, value))
    if isinstance(value, list) and all(type(number) is int and -(2**31) <= number < 2**31 for number in value):
        return struct.pack(f"<IIQ{len(value)}i", _ARRAY, _INT32, len(value), *value)
    raise ValueError(
        f"{key} = {value!r}: expected text, a truth value, a whole number below 2^32, a float, or a list of texts or "
        "of whole numbers below 2^31"
    )


def read_file(path: Path) -> File:
    """Read a file. Its tensors are views of the mapped file, which are read when they are used.

    Raises GGUFError if it is not a GGUF file of version 2 or 3, is cut short, or has a type that is not supported.
    """
    with Path(path).open("rb") as stream:
        return _Reader(_mapped(stream), Path(path).name).file()


def _mapped(stream: BinaryIO) -> memoryview:
    size = stream.seek(0, 2)
    return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")


class _Reader:
    """Goes through a file from its start; `place` is the next byte."""

    def __init__(self, data: memoryview, name: str):
        self.data = data
        self.name = name
        self.place = 0

    def file(self) -> File:
        if (magic := bytes(self._take(4))) != _MAGIC:
            raise GGUFError(f"{self.name} begins with {magic!r}: expected b'GGUF'; it is not a GGUF file")
        version, tensor_count, value_count = self._numbers("IQQ")
        if version not in _READ:
            what = "it is of a big-endian machine" if version == _VERSION << 24 else "convert it again"
            raise GGUFError(f"{self.name} has version {version}: expected {' or '.join(map(str, _READ))}; {what}")
        metadata: dict[str, Value] = {}
        for _ in range(value_count):
            key = self._text()
            if key in metadata:
                raise GGUFError(f"{self.name} has {key} twice: expected each key once; the file is damaged")
            metadata[key] = self._any(*self._numbers("I"))
        infos = [self._info() for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise GGUFError(f"{self.name} has general.alignment = {alignment!r}: expected a power of two")
        first = self.place + _padding(self.place, alignment)
        tensors = {info[0]: self._tensor(*info, first, alignment) for info in infos}
        if len(tensors) < len(infos):
            raise GGUFError(f"{self.name} has two tensors of one name: expected each once; the file is damaged")
        return File(metadata, tensors)

    def _take(self, size: int) -> memoryview:
        if size > len(self.data) - self.place:
            raise GGUFError(
                f"{self.name} ends at byte {len(self.data)}: expected {size} more at byte {self.place}; the file is "
                "cut short or damaged, copy it again"
            )
        self.place += size
        return self.data[self.place - size : self.place]

    def _numbers(self, letters: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{letters}", self._take(struct.calcsize(f"<{letters}")))

    def _text(self) -> str:
        (size,) = self._numbers("Q")
        return bytes(self._take(size)).decode(errors="replace")

    def _any(self, type: int) -> Value:
        if type in _NUMBERS:
            return self._numbers(_NUMBERS[type])[0]
        if type == _BOOL:
            return bool(self._numbers("B")[0])
        if type == _STRING:
            return self._text()
        if type == _ARRAY:
            inner, count = self._numbers("IQ")
            if inner in _NUMBERS:
                letter = _NUMBERS[inner]
                return np.frombuffer(self._take(count * struct.calcsize(letter)), f"<{letter}").tolist()
            if inner in (_BOOL, _STRING):
                return [self._any(inner) for _ in range(count)]
            type = inner
        raise GGUFError(f"{self.name} has a value of type {type}: expected 0 to 12, and no arrays in arrays")

    def _info(self) -> tuple[str, tuple[int, ...], TensorType, int]:
        name = self._text()
        (dimensions,) = self._numbers("I")
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise GGUFError(f"{self.name}: {name} has {dimensions} dimensions: expected 1 to {_MOST_DIMENSIONS}")
        shape = tuple(reversed(self._numbers(f"{dimensions}Q")))
        if not all(shape):
            raise GGUFError(f"{self.name}: {name} has shape {shape}: expected sizes of at least 1")
        type, place = self._numbers("IQ")
        if type not in TensorType.__members__.values():
            types = ", ".join(f"{member.name} ({member.value})" for member in TensorType)
            raise GGUFError(f"{self.name}: {name} has type {type}: expected one of {types}; convert the file to Q8_0")
        return name, shape, TensorType(type), place

    def _tensor(
        self, name: str, shape: tuple[int, ...], type: TensorType, place: int, first: int, alignment: int
    ) -> StoredTensor:
        rows = 1
        for size in shape[:-1]:
            rows *= size
        try:
            width = row_bytes(type, shape[-1])
        except ValueError as error:
            raise GGUFError(f"{self.name}: {name} has {error}") from None
        if place % alignment:
            raise GGUFError(f"{self.name}: {name} begins at {place}: expected a multiple of the alignment, {alignment}")
        self.place = first + place
        data = np.frombuffer(self._take(rows * width), np.uint8).reshape(rows, width)
        return StoredTensor(name, shape, type, data)
