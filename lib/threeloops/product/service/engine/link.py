"""One end of the socket between the front and the engine's process, for asyncio."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import msgspec

from threeloops.frames import FrameReader, frame

__all__ = ["MessageLink"]


class MessageLink(asyncio.Protocol):
    """Send messages, and receive those of `kind`. Messages sent within one turn of the loop go out in one write.

    `receive` is called with each message. `lost` is called once, when the other end is gone or sent something that is
    not a message.
    """

    def __init__(self, kind: object, receive: Callable[[Any], None], lost: Callable[[], None]) -> None:
        self._reader = FrameReader(kind)
        self._receive = receive
        self._lost = lost
        self._outbox: list[bytes] = []
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def open(
        cls, end: socket.socket, kind: object, receive: Callable[[Any], None], lost: Callable[[], None]
    ) -> "MessageLink":
        _, link = await asyncio.get_running_loop().create_unix_connection(lambda: cls(kind, receive, lost), sock=end)
        return link

    def send(self, message: msgspec.Struct) -> None:
        """Send a message, or do nothing once the link is lost."""
        if self._transport is None or self._transport.is_closing():
            return
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(frame(message))

    def close(self) -> None:
        """Send the remaining messages, and hang up."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def _flush(self) -> None:
        if self._outbox and self._transport is not None:
            self._transport.write(b"".join(self._outbox))
            self._outbox.clear()

    # What follows is called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                self._receive(message)
        except ValueError:  # also msgspec's: nothing behind it can be understood
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._outbox.clear()
        self._lost()
