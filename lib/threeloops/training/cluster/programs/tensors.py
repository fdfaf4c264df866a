"""What collectives are made of: dtypes, reductions, and tensors as bytes in the order of their elements."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["DTYPES", "REDUCTIONS", "as_bytes", "fill", "joined"]

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
        torch.float32, torch.float64, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
    )
}  # fmt: skip

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


def joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def fill(tensors: Sequence[torch.Tensor], data: memoryview) -> None:
    """Copy the bytes of a result, or of a message, into tensors of any strides."""
    for tensor in tensors:
        if tensor.nbytes:
            part, data = data[: tensor.nbytes], data[tensor.nbytes :]
            tensor.detach().copy_(torch.frombuffer(part, dtype=tensor.dtype).view(tensor.shape))
