"""Encode data between the student's threads and the functions that a test offers them. Only plain data can pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from threeloops import frames
from threeloops.frames import Buffer

from threeloops_grader.transport.link import LIMITS, WallError
from threeloops_grader.transport.wire import encode

if TYPE_CHECKING:
    import torch

__all__ = ["PLAIN", "Plain", "to_bytes"]


class Plain:
    """Treats all that is not plain data as an error."""

    def encode_tensor(self, tensor: torch.Tensor) -> None:
        return None

    def decode_tensor(self, tensor: torch.Tensor, grad: Any) -> torch.Tensor:
        return tensor

    def encode_record(self, value: Any) -> bool:
        return False

    def encode_object(self, value: Any, inner: Callable[[Any], Any]) -> NoReturn:
        raise WallError(f"expected plain data (numbers, bytes, lists, tensors), got a {type(value).__name__!r} object")

    def decode_record(self, module: Any, name: Any, fields: Any) -> NoReturn:
        raise WallError("a malformed value came back (a record in plain data)")

    def decode_object(self, tag: str, value: Any, inner: Callable[[Any], Any]) -> NoReturn:
        raise WallError("a malformed value came back (an object in plain data)")


class _Result(Plain):
    """A result, which may also hold records. The grader's side accepts records of its own classes."""

    def encode_record(self, value: Any) -> bool:
        return True

    def encode_object(self, value: Any, inner: Callable[[Any], Any]) -> Any:
        if isinstance(value, tuple):
            return {"t": [inner(part) for part in tuple.__iter__(value)]}
        raise TypeError(f"the program returned a {type(value).__name__!r} object, which cannot be sent")


PLAIN = Plain()


def to_bytes(value: Any) -> bytes:
    """Encode the result of a rank, for `Wall.result`."""
    buffers: list[Buffer] = []
    return frames.to_bytes({"value": encode(value, buffers, _Result())}, buffers, LIMITS)
