"""Tensors as bytes, in the order of their elements, for the messages of collectives, with the supported dtypes and
reductions. Values that contain tensors are encoded here too, for questions to the grader and their answers.
"""

import math
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import torch

__all__ = ["DTYPES", "REDUCTIONS", "as_bytes", "checksum", "fill", "joined", "packed", "unpacked"]

_TENSOR = 1
"""The code of a tensor among the extension types of MessagePack."""

_COMPARED = 2**20
"""Bytes of a message that `checksum` reads, in a fraction of a millisecond."""

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
        torch.complex128,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    )
}

REDUCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "SUM": torch.Tensor.add_,
    "AVG": torch.Tensor.add_,
    "PRODUCT": torch.Tensor.mul_,
    "MAX": lambda into, other: torch.maximum(into, other, out=into),
    "MIN": lambda into, other: torch.minimum(into, other, out=into),
    "BAND": torch.Tensor.bitwise_and_,
    "BOR": torch.Tensor.bitwise_or_,
    "BXOR": torch.Tensor.bitwise_xor_,
}


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor's elements in order."""
    flat = tensor.detach().contiguous().view(-1)
    return memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else memoryview(b"")


def checksum(tensor: torch.Tensor) -> int:
    """Return a number that changes if elements change. It covers only the first MiB, to keep large messages fast."""
    return zlib.crc32(as_bytes(tensor)[:_COMPARED])


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def fill(tensors: Sequence[torch.Tensor], data: memoryview) -> None:
    """Copy the bytes of a result, or of a message, into tensors of any strides."""
    for tensor in tensors:
        if tensor.nbytes:
            part = data[: tensor.nbytes]
            data = data[tensor.nbytes :]
            tensor.detach().copy_(torch.frombuffer(part, dtype=tensor.dtype).view(tensor.shape))


def packed(value: Any) -> bytes:
    """Encode a value: numbers, texts, bytes, tensors, None, and lists, tuples and dicts of these.

    Raises TypeError for anything else.
    """
    return msgspec.msgpack.encode(value, enc_hook=_as_extension)


def unpacked(data: bytes | memoryview) -> Any:
    """Decode a value. Tuples become lists. The bytes are not trusted: raises ValueError if they are malformed."""
    return msgspec.msgpack.decode(data, ext_hook=_from_extension)


def _as_extension(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"a {type(value).__name__} cannot be sent: expected numbers, texts, tensors or lists of them")
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        raise TypeError(f"a tensor of {dtype} cannot be sent: expected one of {', '.join(DTYPES)}")
    return msgspec.msgpack.Ext(_TENSOR, msgspec.msgpack.encode((dtype, list(value.shape), as_bytes(value))))


def _from_extension(code: int, data: memoryview) -> torch.Tensor:
    if code != _TENSOR:
        raise ValueError(f"an extension of type {code}: expected {_TENSOR}, a tensor")
    name, shape, content = msgspec.msgpack.decode(data, type=tuple[str, list[int], bytes])
    dtype = DTYPES.get(name)
    if dtype is None or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(f"a tensor of {name} with shape {shape} in {len(content):,} bytes")
    return (torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0, dtype=dtype)).view(shape)
