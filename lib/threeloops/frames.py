"""Messages between two processes of one machine, over a socket or a pair of pipes. This module does not import torch.

- `send` and `receive`: a JSON object and raw buffers, with a deadline. A frame is a header `<u32 JSON bytes, u32
  buffers, u64 buffer bytes>`, the length of each buffer, the JSON text and the raw buffers. The peer may be hostile:
  every length is checked before memory is allocated for it.
- `Channel`: two raw bodies behind a header of the caller's, with one call for a small message.
- `frame` and `FrameReader`: msgspec structs in a stream, which may arrive in pieces of any size. A frame is a length
  (u32) and msgpack.
"""

import json
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import msgspec

__all__ = [
    "Buffer", "Channel", "FrameError", "FrameLimits", "FrameReader", "Late", "TooLarge", "frame", "from_bytes",
    "receive", "receive_exactly", "send", "to_bytes",
]  # fmt: skip

Buffer = bytes | bytearray | memoryview

_HEADER = struct.Struct("<IIQ")
_LENGTH = struct.Struct("<I")
_LARGEST = 1 << 28
"""The most bytes of a struct. A larger length means that the stream is out of step."""
_SMALL_BYTES = 64 << 10
"""A frame with no more buffer bytes is sent, and received, in one piece, so that the other side wakes up once."""
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True)
class FrameLimits:
    """The largest frame that may cross."""

    tree_bytes: int = 64 << 20
    body_bytes: int = 4 << 30
    buffers: int = 4096


class FrameError(Exception):
    """The other side ended, was too slow, or sent something that is not a frame."""


class Late(FrameError):
    """The deadline passed."""


class TooLarge(FrameError):
    """A frame exceeds the limits. Nothing of it was sent, or its body was not read."""


def send(
    fd: int,
    tree: dict[str, Any],
    buffers: Sequence[Buffer] = (),
    deadline: float | None = None,
    limits: FrameLimits = FrameLimits(),
) -> None:
    """Write one frame. `deadline` in seconds of `time.monotonic`. Raises FrameError."""
    parts, body = _parts(tree, buffers, limits)
    for part in [b"".join(parts)] if body <= _SMALL_BYTES else parts:
        _move(fd, memoryview(part), deadline, write=True)


def to_bytes(tree: dict[str, Any], buffers: Sequence[Buffer], limits: FrameLimits = FrameLimits()) -> bytes:
    """Return one frame. Raises TooLarge."""
    return b"".join(_parts(tree, buffers, limits)[0])


def _parts(tree: dict[str, Any], buffers: Sequence[Buffer], limits: FrameLimits) -> tuple[list[Buffer], int]:
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
    limits: FrameLimits = FrameLimits(),
) -> tuple[dict[str, Any], list[bytearray]]:
    """The next frame. Raises FrameError."""
    return _received(lambda size: _read(fd, size, deadline), limits)


def from_bytes(data: Buffer, limits: FrameLimits = FrameLimits()) -> tuple[dict[str, Any], list[bytearray]]:
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


def _received(read: Callable[[int], bytearray], limits: FrameLimits) -> tuple[dict[str, Any], list[bytearray]]:
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


def receive_exactly(connection: socket.socket, size: int, begun: Buffer = b"") -> bytearray:
    """Receive this many bytes, of which `begun` has come before. Raises EOFError if the other side has ended."""
    data = bytearray(size)
    view = memoryview(data)
    view[: len(begun)] = begun
    view = view[len(begun) :]
    while view:
        view = view[_some(connection, view) :]
    return data


def _some(connection: socket.socket, into: memoryview) -> int:
    count = connection.recv_into(into)
    if not count:
        raise EOFError("the other side ended")
    return count


class Channel:
    """A socket whose messages are a header, whose last two fields are lengths, and two bodies of these lengths.

    Two sides that take turns need a single call for each small message, and a third less time than with `send`.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = memoryview(bytearray(_SMALL_BYTES))

    def send(self, parts: Sequence[Any]) -> None:
        if sum(len(part) for part in parts) <= _SMALL_BYTES:
            self._socket.sendall(b"".join(parts))
        else:
            for part in parts:
                self._socket.sendall(part)

    def receive(self, head: struct.Struct, most: int | None = None) -> tuple[tuple[Any, ...], memoryview, memoryview]:
        """Return the header's fields and both bodies. Raises EOFError if the other side has ended, and TooLarge, before
        taking memory, if the message has more than `most` bytes."""
        buffer = self._buffer
        have = _some(self._socket, buffer)
        while have < head.size:
            have += _some(self._socket, buffer[have:])
        fields = head.unpack_from(buffer)
        end = head.size + fields[-2]
        total = end + fields[-1]
        if most is not None and total > most:
            raise TooLarge(f"a message has {total:,} bytes: expected at most {most:,}")
        begun = buffer[: min(have, total)]  # more comes only if two processes share the other end
        data = memoryview(receive_exactly(self._socket, total, begun))
        return fields, data[head.size : end], data[end:]

    def close(self) -> None:
        self._socket.close()

    def rest(self, seconds: float) -> bytes:
        """Read bytes without a header, until nothing has come for `seconds` or the buffer is full."""
        self.bound(seconds)
        have = 0
        with suppress(OSError, EOFError):
            while have < _SMALL_BYTES:
                have += _some(self._socket, self._buffer[have:])
        return bytes(self._buffer[:have])

    def bound(self, seconds: float) -> None:
        """Bound the time of later calls. They raise TimeoutError when it is over."""
        self._socket.settimeout(max(seconds, 1e-3))


def frame(message: msgspec.Struct) -> bytes:
    """Encode a message: its length in four bytes, then msgpack."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Decodes the messages of a stream that comes in pieces, as asyncio gives them.

    `feed` raises ValueError if the bytes are not messages of this kind.
    """

    def __init__(self, kind: object) -> None:
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > _LARGEST:
                raise ValueError(f"a frame of {length} bytes: expected at most {_LARGEST}")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield self._decode(body)
