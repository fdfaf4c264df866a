"""Messages between two processes of one machine: a JSON object and raw buffers over a socket or a pair of pipes."""

import json
import os
import select
import struct
import time
from collections.abc import Sequence
from typing import Any

MAX_TREE_BYTES = 64 << 20
MAX_BODY_BYTES = 4 << 30
MAX_BUFFERS = 4096
_HEADER = struct.Struct("<IIQ")

Buffer = bytes | bytearray | memoryview


class FrameError(Exception):
    """The other side ended, was too slow, or sent something that is no frame."""


class Late(FrameError):
    """The deadline passed."""


def send(fd: int, tree: dict[str, Any], buffers: Sequence[Buffer] = (), deadline: float | None = None) -> None:
    """Write one frame. `deadline` in seconds of `time.monotonic`. Raises FrameError."""
    text = json.dumps(tree).encode()
    views = [memoryview(buffer).cast("B") for buffer in buffers]
    lengths = [len(view) for view in views]
    head = _HEADER.pack(len(text), len(views), sum(lengths)) + struct.pack(f"<{len(views)}Q", *lengths)
    os.set_blocking(fd, False)
    for part in (memoryview(head), memoryview(text), *views):
        while part:
            _wait(fd, deadline, write=True)
            try:
                part = part[os.write(fd, part) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise FrameError(f"it ended ({type(error).__name__})") from None


def receive(fd: int, deadline: float | None = None) -> tuple[dict[str, Any], list[bytearray]]:
    """The next frame. Raises FrameError."""
    text_bytes, count, body = _HEADER.unpack(_read(fd, _HEADER.size, deadline))
    if text_bytes > MAX_TREE_BYTES or count > MAX_BUFFERS or body > MAX_BODY_BYTES:
        raise FrameError("it sent too much")
    lengths = struct.unpack(f"<{count}Q", _read(fd, 8 * count, deadline))
    if sum(lengths) != body:
        raise FrameError("it sent no frame")
    try:
        tree = json.loads(bytes(_read(fd, text_bytes, deadline)))
    except (ValueError, RecursionError):
        raise FrameError("it sent no frame") from None
    if type(tree) is not dict:
        raise FrameError("it sent no frame")
    return tree, [_read(fd, length, deadline) for length in lengths]


def _read(fd: int, size: int, deadline: float | None) -> bytearray:
    data = bytearray(size)
    view, got = memoryview(data), 0
    os.set_blocking(fd, False)
    while got < size:
        _wait(fd, deadline, write=False)
        try:
            count = os.readv(fd, [view[got:]])
        except BlockingIOError:
            continue
        except OSError as error:
            raise FrameError(f"it ended ({type(error).__name__})") from None
        if not count:
            raise FrameError("it ended")
        got += count
    return data


def _wait(fd: int, deadline: float | None, *, write: bool) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLOUT if write else select.POLLIN)
    if not poll.poll(None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000):
        raise Late("it gave no answer in time")
