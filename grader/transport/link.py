"""Frames over one Unix socket: the only thing that connects the two sides of the wall. Imports no torch.

A frame is a header `<u32 tree bytes, u32 buffers, u64 buffer bytes>`, the length of each buffer, one JSON object and
the raw buffers. Every receive has a deadline and a size limit; a peer that breaks the format is cut off for good.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NoReturn

MAX_TREE_BYTES = 4 << 20
MAX_BODY_BYTES = 512 << 20
MAX_BUFFERS = 4096

_HEADER = struct.Struct("<IIQ")
_SMALL_BYTES = 64 << 10
"""Of a frame that is no larger, all parts are sent, and received, at once: the other side is woken once."""

Buffer = bytes | bytearray | memoryview


class WallError(BaseException):
    """Something that may not cross the wall tried to.

    A BaseException on purpose: a test that expects "some exception" of the student's code must not be satisfied by
    the wall's own refusal.
    """


class LinkDead(BaseException):
    """There is no answer from the other side, and there will be none."""


class Link:
    """One end of the channel. `deadline`, in seconds of `time.monotonic`, bounds every send and receive."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.deadline: float | None = None
        self.dead: str | None = None

    def send(self, tree: dict[str, Any], buffers: Sequence[Buffer] = ()) -> None:
        """Send one frame.

        Raises:
            WallError: the frame exceeds the size limits; nothing was sent and the link lives on.
            LinkDead: the other side is gone or did not read in time.
        """
        text = json.dumps(tree).encode()
        lengths = [len(b) for b in buffers]
        body = sum(lengths)
        if len(text) > MAX_TREE_BYTES or body > MAX_BODY_BYTES or len(lengths) > MAX_BUFFERS:
            raise WallError(
                f"a value of {(len(text) + body) / 2**20:.0f} MiB is too large to cross the wall: at most "
                f"{MAX_BODY_BYTES >> 20} MiB of array data and {MAX_TREE_BYTES >> 20} MiB of everything else"
            )
        if self.dead:
            raise LinkDead(self.dead)
        head = _HEADER.pack(len(text), len(lengths), body) + struct.pack(f"<{len(lengths)}Q", *lengths)
        try:
            for part in [b"".join([head, text, *buffers])] if body <= _SMALL_BYTES else [head + text, *buffers]:
                self._arm()
                self.socket.sendall(part)
        except TimeoutError:
            self._die("it did not read its input in time")
        except OSError as error:
            self._die(f"it ended ({type(error).__name__})")

    def receive(self) -> tuple[dict[str, Any], list[bytearray]]:
        """The next frame.

        Raises:
            LinkDead: the deadline passed, the other side ended, or it sent something that is no frame.
        """
        if self.dead:
            raise LinkDead(self.dead)
        text_bytes, count, body = _HEADER.unpack(self._read(_HEADER.size))
        if text_bytes > MAX_TREE_BYTES or count > MAX_BUFFERS or body > MAX_BODY_BYTES:
            self._die("it sent more than may cross the wall")
        at_once = 8 * count + text_bytes + (body if body <= _SMALL_BYTES else 0)
        data = self._read(at_once)
        lengths = struct.unpack_from(f"<{count}Q", data)
        if sum(lengths) != body:
            self._die("it broke the protocol")
        start = 8 * count + text_bytes
        try:
            tree = json.loads(data[8 * count : start].decode())
        except (ValueError, RecursionError, MemoryError):
            self._die("it broke the protocol")
        if type(tree) is not dict:
            self._die("it broke the protocol")
        if at_once == start:
            return tree, [self._read(n) for n in lengths]
        ends = list(accumulate(lengths, initial=start))
        return tree, [data[i:j] for i, j in pairwise(ends)]

    def close(self) -> None:
        self.dead = self.dead or "it was closed"
        self.socket.close()

    def _arm(self) -> None:
        """Raises TimeoutError after the deadline, even where data is there: a peer could drip for ever."""
        left = None if self.deadline is None else self.deadline - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError
        self.socket.settimeout(left)

    def _read(self, size: int) -> bytearray:
        try:
            data = bytearray(size)
        except MemoryError:
            self._die("it sent more than fits into memory")
        view, got = memoryview(data), 0
        while got < size:
            try:
                self._arm()
                n = self.socket.recv_into(view[got:])
            except TimeoutError:
                self._die("it gave no answer in time")
            except OSError as error:
                self._die(f"it ended ({type(error).__name__})")
            if not n:
                self._die("it ended")
            got += n
        return data

    def _die(self, why: str) -> NoReturn:
        self.dead = self.dead or why
        raise LinkDead(self.dead)
