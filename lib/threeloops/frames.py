"""Messages between two processes of one machine: a JSON object and raw buffers over a socket or a pair of pipes.

A frame is a header `<u32 JSON bytes, u32 buffers, u64 buffer bytes>`, the length of each buffer, the JSON text and the
raw buffers. The peer may be hostile: every length is checked before memory is allocated for it. This module does not
import torch.
"""

import json
import os
import select
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

__all__ = ["Buffer", "FrameError", "Late", "Limits", "TooLarge", "from_bytes", "receive", "send", "to_bytes"]

Buffer = bytes | bytearray | memoryview

_HEADER = struct.Struct("<IIQ")
_SMALL_BYTES = 64 << 10
"""A frame with no more buffer bytes is sent, and received, in one piece, so that the other side wakes up once."""


@dataclass(frozen=True)
class Limits:
    """The largest frame that may cross."""

    tree_bytes: int = 64 << 20
    body_bytes: int = 4 << 30
    buffers: int = 4096


class FrameError(Exception):
    """The other side ended, was too slow, or sent something that is not a frame."""


class Late(FrameError):
    """The deadline passed."""


class TooLarge(FrameError):
    """A frame exceeds the limits, and nothing of it was sent."""


def send(
    fd: int,
    tree: dict[str, Any],
    buffers: Sequence[Buffer] = (),
    deadline: float | None = None,
    limits: Limits = Limits(),
) -> None:
    """Write one frame. `deadline` in seconds of `time.monotonic`. Raises FrameError."""
    parts, body = _parts(tree, buffers, limits)
    for part in [b"".join(parts)] if body <= _SMALL_BYTES else parts:
        _move(fd, memoryview(part), deadline, write=True)


def to_bytes(tree: dict[str, Any], buffers: Sequence[Buffer], limits: Limits = Limits()) -> bytes:
    """Return one frame. Raises TooLarge."""
    return b"".join(_parts(tree, buffers, limits)[0])


def _parts(tree: dict[str, Any], buffers: Sequence[Buffer], limits: Limits) -> tuple[list[Buffer], int]:
    """The parts of a frame, and the number of bytes in its buffers."""
    text = json.dumps(tree).encode()
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    lengths = [len(view) for view in views]
    body = sum(lengths)
    if len(text) > limits.tree_bytes or body > limits.body_bytes or len(lengths) > limits.buffers:
        raise TooLarge(
            f"a value of {(len(text) + body) / 2**20:.0f} MiB is too large to cross between processes: at most "
            f"{limits.body_bytes >> 20} MiB of array data and {limits.tree_bytes >> 20} MiB of everything else"
        )
    head = _HEADER.pack(len(text), len(lengths), body) + struct.pack(f"<{len(lengths)}Q", *lengths) + text
    return [head, *views], body


def receive(
    fd: int,
    deadline: float | None = None,
    limits: Limits = Limits(),
) -> tuple[dict[str, Any], list[bytearray]]:
    """The next frame. Raises FrameError."""
    return _received(lambda size: _read(fd, size, deadline), limits)


def from_bytes(data: Buffer, limits: Limits = Limits()) -> tuple[dict[str, Any], list[bytearray]]:
    """Return the parts of one frame. Raises FrameError."""
    rest = memoryview(data)

    def read(size: int) -> bytearray:
        nonlocal rest
        if size > len(rest):
            raise FrameError("it ended")
        part = bytearray(rest[:size])
        rest = rest[size:]
        return part

    return _received(read, limits)


def _received(read: Callable[[int], bytearray], limits: Limits) -> tuple[dict[str, Any], list[bytearray]]:
    text_bytes, count, body = _HEADER.unpack(read(_HEADER.size))
    if text_bytes > limits.tree_bytes or count > limits.buffers or body > limits.body_bytes:
        raise FrameError("it sent more than may cross between processes")
    start = 8 * count + text_bytes
    data = read(start + (body if body <= _SMALL_BYTES else 0))
    lengths = struct.unpack_from(f"<{count}Q", data)
    try:
        tree = json.loads(data[8 * count : start].decode())
    except (ValueError, RecursionError, MemoryError):
        tree = None
    if type(tree) is not dict or sum(lengths) != body:
        raise FrameError("it broke the protocol")
    if body > _SMALL_BYTES:
        return tree, [read(length) for length in lengths]
    return tree, [data[i:j] for i, j in pairwise(accumulate(lengths, initial=start))]


def _read(fd: int, size: int, deadline: float | None) -> bytearray:
    try:
        data = bytearray(size)
    except MemoryError:
        raise FrameError("it sent more than fits into memory") from None
    _move(fd, memoryview(data), deadline, write=False)
    return data


def _move(fd: int, part: memoryview, deadline: float | None, *, write: bool) -> None:
    """Write all of `part`, or fill it."""
    while part:
        remaining = None if deadline is None else deadline - time.monotonic()
        if remaining is not None and remaining <= 0:  # even where data is there: a peer could drip for ever
            raise Late("it did not read its input in time" if write else "it gave no answer in time")
        try:
            if remaining is not None:
                os.set_blocking(fd, False)
            count = os.write(fd, part) if write else os.readv(fd, [part])
        except BlockingIOError:
            poll = select.poll()
            poll.register(fd, select.POLLOUT if write else select.POLLIN)
            poll.poll(None if remaining is None else remaining * 1000)
            continue
        except OSError as error:
            raise FrameError(f"it ended ({type(error).__name__})") from None
        if not count:
            raise FrameError("it ended")
        part = part[count:]
