"""The safetensors format, written as a stream: 8 bytes of header length, a header in JSON, then the tensors' raw bytes.

The format is described at https://github.com/huggingface/safetensors: numbers are little-endian, `data_offsets` count
from the end of the header, and the data leave no holes. Nothing in such a file is executed when it is read, as a pickle
would be. The header is padded with spaces to a multiple of 64, and wide types come first, so that every tensor lies
where its type may be read in place.
"""

import base64
import hashlib
import math
import sys
import zlib
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

__all__ = [
    "DTYPES", "CheckpointError", "CorruptCheckpointError", "NewerCheckpointError", "bytes_of", "checksum", "from_plain",
    "header", "is_as_written", "item_size", "name_of", "octets_of", "to_plain",
]  # fmt: skip

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
    "BOOL": torch.bool, "C64": torch.complex64, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz, "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip
"""The format's name of each of torch's types that it has."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


_CRC_BYTES = 4
_DEEPEST = 100


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, or none could be read. Earlier checkpoints are unchanged."""


class CorruptCheckpointError(CheckpointError):
    """The data read differ from the data written."""


class NewerCheckpointError(CheckpointError):
    """The data were written by a newer release, and may be intact."""


def name_of(dtype: torch.dtype) -> str:
    """Raises TypeError for a type that the format does not have."""
    if dtype not in _NAMES:
        raise TypeError(f"{dtype}: safetensors has {', '.join(map(str, _NAMES))}; convert the tensor to one of these")
    return _NAMES[dtype]


def item_size(name: str) -> int:
    return DTYPES[name].itemsize


def bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU, without a copy."""
    return memoryview(octets_of(tensor))  # type: ignore[arg-type]


def octets_of(tensor: Tensor) -> np.ndarray:
    """Return the memory of a contiguous tensor on the CPU as an array. The garbage collector skips its slices."""
    if sys.byteorder != "little":
        raise CheckpointError("this machine is big-endian: the format is little-endian, and nothing here swaps bytes")
    octets: np.ndarray = tensor.reshape(-1).view(torch.uint8).numpy()
    return octets


def checksum(data: bytes | bytearray | memoryview, *, identifies: bool) -> bytes:
    """Compute a checksum. It is SHA-256 if it has to distinguish a block from every other block, because an incremental
    save that confuses two blocks keeps an old value. If it only has to find damage, it is CRC-32, which costs half as
    much or less."""
    return hashlib.sha256(data).digest() if identifies else zlib.crc32(data).to_bytes(_CRC_BYTES, "little")


def is_as_written(data: bytes | bytearray | memoryview, expected: bytes) -> bool:
    """Whether data have this checksum, of either kind."""
    return checksum(data, identifies=len(expected) != _CRC_BYTES) == expected


class _Described(msgspec.Struct, gc=False):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def header(tensors: Sequence[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
    """Return the beginning of a file that holds these tensors in this order, each given as key, type and shape.

    Raises ValueError if a key appears twice.
    """
    described: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for key, dtype, shape in tensors:
        if key in described:
            raise ValueError(f"{key!r} appears twice in one file: rename one of the tensors")
        begin = end
        end += item_size(dtype) * prod(shape)
        described[key] = _Described(dtype, shape, (begin, end))
    text = msgspec.json.encode(described)
    text += b" " * (-(8 + len(text)) % 64)
    return len(text).to_bytes(8, "little") + text


def to_plain(value: Any, depth: int = 0) -> Any:
    """Convert a plain value to JSON, and keep what JSON would change: tuples and sizes, ordered dicts and counters,
    keys that are not strings, bytes, and floats that are not finite. Each becomes an object whose only key begins with
    "!".

    Raises TypeError or ValueError for a value that would come back changed.
    """
    if depth > _DEEPEST:
        raise ValueError(f"a value nested more than {_DEEPEST} deep, or one that contains itself")
    if type(value) is float and not math.isfinite(value):
        return {"!float": repr(value)}
    if type(value) is str:
        _require_unicode(value)
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is bytes:
        return {"!bytes": base64.b64encode(value).decode()}
    if type(value) is dict and all(type(key) is str and not key.startswith("!") for key in value):
        for key in value:
            _require_unicode(key)
        return {key: to_plain(inner, depth + 1) for key, inner in value.items()}
    if type(value) in (list, tuple, torch.Size):
        plain = [to_plain(inner, depth + 1) for inner in value]
        return plain if type(value) is list else {f"!{type(value).__name__}": plain}
    if type(value) in (dict, OrderedDict, Counter):
        pairs = [[to_plain(key, depth + 1), to_plain(inner, depth + 1)] for key, inner in value.items()]
        tagged: dict[str, Any] = {f"!{type(value).__name__}": pairs}
        if attributes := getattr(value, "__dict__", None):  # as the versions in a module's `state_dict()`
            tagged = {"!with": [tagged, to_plain(attributes, depth + 1)]}
        return tagged
    kind = type(value).__name__
    if isinstance(value, torch.Tensor):
        raise TypeError("a tensor inside of a value: give it a name of its own in the state")
    if near := next(
        (builtin for builtin in (dict, tuple, list, bytes, str, float, int) if isinstance(value, builtin)), None
    ):
        raise TypeError(f"{kind} would come back as {near.__name__}: save {near.__name__}(value)")
    raise TypeError(
        f"{kind}: expected a tensor, or a number, text, bytes, None, list, tuple or dict (a scalar of NumPy is .item())"
    )


def _require_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"text with a lone surrogate at {error.start}, which UTF-8 does not have; save it as bytes, "
            "with .encode(errors='surrogatepass')"
        ) from None


def from_plain(value: Any) -> Any:
    """Return the value that `to_plain` was given. Raises CorruptCheckpointError for anything that it cannot produce."""
    if isinstance(value, list):
        return [from_plain(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    try:
        match list(value.items()):
            case [("!float", str(text))]:
                return float(text)
            case [("!bytes", str(text))]:
                return base64.b64decode(text, validate=True)
            case [("!tuple" | "!Size" as kind, list(elements))]:
                return _CONTAINERS[kind](map(from_plain, elements))
            case [("!dict" | "!OrderedDict" | "!Counter" as kind, list(pairs))]:
                return _CONTAINERS[kind]({from_plain(key): from_plain(inner) for key, inner in pairs})
            case [("!with", [inner, dict(attributes)])]:
                container = from_plain(inner)
                vars(container).update(from_plain(attributes))
                return container
            case [(str(kind), _)] if kind.startswith("!"):
                raise ValueError(f"{kind!r} is not a kind of value")
    except (TypeError, ValueError) as error:
        raise CorruptCheckpointError(f"{str(value)[:100]} is not a value: {error}") from None
    return {key: from_plain(inner) for key, inner in value.items()}


_CONTAINERS: dict[str, Any] = {
    "!tuple": tuple, "!Size": torch.Size, "!dict": dict, "!OrderedDict": OrderedDict, "!Counter": Counter,
}  # fmt: skip
