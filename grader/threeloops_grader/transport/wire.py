"""The encoding of values that cross the wall: plain data as a JSON tree and raw buffers. The student's side never sends
a pickle.

`encode` and `decode` know only plain values. Each side handles all other values with a `Special` of its own. The
student's side keeps the object and sends a handle, and the grader's side may send a copy.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import msgspec
import numpy as np
from msgspec import Meta
from threeloops.frames import Buffer

from threeloops_grader.transport.link import LIMITS, WallError
from threeloops_grader.transport.tensors import is_tensor, torch_if_imported

if TYPE_CHECKING:
    import torch

__all__ = ["Buffers", "Special", "decode", "encode"]

_MAX_DEPTH = 64
_MAX_INTEGER_DIGITS = 4096

_TORCH = (
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 complex64 complex128 "
    "int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool"
).split()
_NUMPY_DTYPES = "float64 float32 float16 complex64 complex128 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool"
_NUMPY = {name: np.dtype(name) for name in _NUMPY_DTYPES.split()}

Buffers = list[Any]
"""The bytearrays of one frame, with None in place of each that a value has taken."""

_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)
_Index = Annotated[int, Meta(ge=0)]
_Slice = tuple[int | None, int | None, int | None]


class _Array(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An array. Its elements are the contents of a buffer, without gaps."""

    dtype: str
    shape: Annotated[tuple[_Index, ...], Meta(max_length=32)]
    buffer: _Index


class _Tensor(_Array, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A tensor. `stride` is None if the tensor itself has no gaps."""

    grad: Any
    stride: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(max_length=32)] | None


class Special(Protocol):
    """One side's treatment of values that are not plain data."""

    def encode_tensor(self, tensor: torch.Tensor) -> Any:
        """Return a JSON value that tells the other side about the tensor's place in autograd, or None."""

    def encode_record(self, value: Any) -> bool:
        """Return whether a dataclass instance, enum member or named tuple may cross field by field."""

    def encode_object(self, value: Any, inner: Callable[[Any], Any]) -> Any:
        """Return the JSON form of anything else, with `inner` for its parts."""

    def decode_tensor(self, tensor: torch.Tensor, grad: Any) -> Any: ...

    def decode_record(self, module: Any, name: Any, fields: Any) -> Any: ...

    def decode_object(self, tag: str, value: Any, decode: Callable[[Any], Any]) -> Any: ...


def encode(value: Any, buffers: list[Buffer], special: Special, depth: int = 0) -> Any:
    """Return the JSON form of `value`. Array data is appended to `buffers`."""
    if depth > _MAX_DEPTH:
        raise WallError(f"a value nested more than {_MAX_DEPTH} deep cannot cross the wall")
    kind = type(value)
    if value is None or kind in (bool, str, float):
        return value
    if kind is np.str_:  # a name out of an array of names
        return str(value)
    if kind is int:
        return value if -(2**60) < value < 2**60 else {"i": _hex(value)}

    def inner(item: Any) -> Any:
        return encode(item, buffers, special, depth + 1)

    if kind in (list, collections.deque):
        return [inner(v) for v in value]
    torch = torch_if_imported()
    if kind is tuple or (torch and kind is torch.Size):
        return {"t": [inner(v) for v in value]}
    if kind in _MAPPINGS:
        return {"d": [[inner(k), inner(v)] for k, v in value.items()]}
    if kind in (set, frozenset):
        return {"s": [inner(v) for v in value]}
    if kind in (bytes, bytearray):
        return {"b": _append(buffers, bytes(value))}
    if kind is complex:
        return {"c": [value.real, value.imag]}
    if kind is slice:
        return {"sl": [inner(v) for v in (value.start, value.stop, value.step)]}
    if kind is range:
        return {"rg": [value.start, value.stop, value.step]}
    if torch and kind is torch.dtype:
        return {"dt": _name_of(value)}
    if torch and kind is torch.device:
        return {"dv": value.type}
    if is_tensor(value):
        return _encode_tensor(value, buffers, special)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.name in _NUMPY:
        array = np.asarray(value).astype(_NUMPY[value.dtype.name], copy=False)  # in this machine's byte order
        data = _append(buffers, np.ascontiguousarray(array).tobytes())
        return {"g" if isinstance(value, np.generic) else "a": [array.dtype.name, list(array.shape), data]}
    return _encode_record(value, inner, special)


def _hex(value: int) -> str:
    if value.bit_length() > 4 * _MAX_INTEGER_DIGITS:
        raise WallError(f"an integer of {value.bit_length()} bits is too large to cross the wall")
    return hex(value)


def _append(buffers: list[Buffer], data: Buffer) -> int:
    buffers.append(data)
    return len(buffers) - 1


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype_of(name: Any) -> torch.dtype:
    """Look up a dtype. Raises KeyError for a name that may not come back."""
    import torch

    if name not in _TORCH:
        raise KeyError(name)
    return getattr(torch, name)  # type: ignore[no-any-return]


def _encode_tensor(value: torch.Tensor, buffers: list[Buffer], special: Special) -> Any:
    import torch

    name = _name_of(value.dtype)
    if value.layout is not torch.strided or name not in _TORCH:
        return special.encode_object(value, lambda part: encode(part, buffers, special))
    dense = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    flat = dense.as_strided((dense.numel(),), (1,))  # one element alone may keep any stride and be called contiguous
    data = _append(buffers, memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else b"")
    stride = None if value.is_contiguous() or min(value.stride(), default=1) < 1 else list(value.stride())
    return {"T": [name, list(value.shape), data, special.encode_tensor(value), stride]}


def _encode_record(value: Any, inner: Callable[[Any], Any], special: Special) -> Any:
    kind = type(value)
    name = [kind.__module__, kind.__qualname__]
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and special.encode_record(value):
        return {"r": [*name, [[f.name, inner(getattr(value, f.name))] for f in dataclasses.fields(value)]]}
    if isinstance(value, enum.Enum) and special.encode_record(value):
        return {"r": [*name, value.name]}
    if isinstance(value, tuple) and hasattr(kind, "_fields") and special.encode_record(value):
        return {"r": [*name, [["", inner(v)] for v in value]]}
    return special.encode_object(value, inner)


def decode(tree: Any, buffers: Buffers, special: Special, depth: int = 0) -> Any:
    """Decode a JSON form into its value. It trusts nothing: every tag, index, shape and size is checked.

    Each buffer is taken out of `buffers` by the one value that names it, so that a short frame stays a small value.

    Raises:
        WallError: the tree is not something `encode` writes, or its value does not fit into memory.
    """
    try:
        return _decode(tree, buffers, special, depth)
    except msgspec.ValidationError as error:
        raise WallError(f"a malformed value came back ({error})") from None
    except Exception as error:
        raise WallError(f"a malformed value came back ({type(error).__name__})") from None


def _decode(tree: Any, buffers: Buffers, special: Special, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise WallError(f"a value nested more than {_MAX_DEPTH} deep cannot cross the wall")
    kind = type(tree)
    if tree is None or kind in (bool, int, float, str):
        return tree

    def inner(item: Any) -> Any:
        return _decode(item, buffers, special, depth + 1)

    if kind is list:
        return [inner(v) for v in tree]
    if kind is not dict or len(tree) != 1:
        raise WallError("a malformed value came back (unknown tag)")
    ((tag, value),) = tree.items()
    match tag:
        case "i" if type(value) is str and len(value) <= _MAX_INTEGER_DIGITS + len("-0x"):
            return int(value, 16)
        case "t" if type(value) is list:
            return tuple(inner(v) for v in value)
        case "d" if type(value) is list:
            return {inner(k): inner(v) for k, v in value}
        case "s" if type(value) is list:
            return {inner(v) for v in value}
        case "b":
            return bytes(_buffer(buffers, value))
        case "c":
            return complex(float(value[0]), float(value[1]))
        case "sl":
            return slice(*msgspec.convert([inner(v) for v in value], _Slice))
        case "rg":
            return range(*msgspec.convert([inner(v) for v in value], tuple[int, int, int]))
        case "dt":
            return _dtype_of(value)
        case "dv":
            import torch

            return torch.device("cpu" if value == "cpu" else "cuda")
        case "a" | "g":
            array = _decode_array(msgspec.convert(value, _Array), buffers)
            return array[()] if tag == "g" else array
        case "T":
            return _decode_tensor(msgspec.convert(value, _Tensor), buffers, special)
        case "r":
            module, name, fields = value
            if type(fields) is not str:
                fields = [(field, inner(v)) for field, v in fields]
            return special.decode_record(module, name, fields)
        case _:
            return special.decode_object(tag, value, inner)


def _buffer(buffers: Buffers, index: Any) -> bytearray:
    data = buffers[index] if type(index) is int and 0 <= index < len(buffers) else None
    if data is None:
        raise WallError("a malformed value came back (no such buffer)")
    buffers[index] = None
    return data


def _elements(array: _Array, buffers: Buffers, itemsize: int) -> bytearray:
    data = _buffer(buffers, array.buffer)
    if len(data) != math.prod(array.shape) * itemsize:
        raise WallError("a malformed value came back (its size does not match its shape)")
    if array.dtype == "bool" and np.frombuffer(data, np.uint8).max(initial=0) > 1:
        raise WallError("a malformed value came back (a bool that is neither true nor false)")
    return data


def _decode_array(array: _Array, buffers: Buffers) -> Any:
    dtype = _NUMPY[array.dtype]
    return np.frombuffer(_elements(array, buffers, dtype.itemsize), dtype).reshape(array.shape)


def _decode_tensor(array: _Tensor, buffers: Buffers, special: Special) -> Any:
    import torch

    dtype = _dtype_of(array.dtype)
    shape = array.shape
    stride = array.stride
    data = _elements(array, buffers, dtype.itemsize)
    tensor = torch.frombuffer(data, dtype=dtype).reshape(shape) if data else torch.empty(shape, dtype=dtype)
    if stride is not None:
        reach = sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) + 1
        if reach * dtype.itemsize > LIMITS.body_bytes:
            raise WallError("a malformed value came back (stride too large)")
        tensor = torch.empty_strided(shape, stride, dtype=dtype).copy_(tensor)
    return special.decode_tensor(tensor, array.grad)
