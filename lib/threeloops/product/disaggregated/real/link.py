"""A socket between two processes that carries messages and the bytes of blocks.

A frame is a header `<u32 message bytes, u64 block bytes>`, the message in msgpack, and the blocks. The other side is
not trusted: a length is checked before memory is taken for it, and anything that is not a frame ends the link with a
reason.
"""

import queue
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

import msgspec

from threeloops.frames import Buffer, receive_exactly
from threeloops.product.disaggregated.real.messages import HandoverError

__all__ = ["BlockLink"]

_HEAD = struct.Struct("<IQ")
_LARGEST_MESSAGE = 1 << 26
_encode = msgspec.msgpack.Encoder().encode


class BlockLink:
    """One end of the socket. `kind`: the messages that the other end may send. `most`: the most bytes of blocks in one
    frame.

    Until `start` is called, `receive` waits for one message at a time. After it, one thread receives and another sends,
    so that neither `send` nor `hear` makes a step wait for the socket. `hear` is called from the thread with each
    message and its blocks, and `lost` once, with the reason, after the last message.
    """

    def __init__(self, end: socket.socket, kind: object, most: int) -> None:
        self.sent_bytes = 0
        """The bytes of blocks that were sent."""
        self._end = end
        self._most = most
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._outbox: queue.SimpleQueue[tuple[msgspec.Struct, Buffer] | None] = queue.SimpleQueue()

    def start(self, hear: Callable[[msgspec.Struct, bytearray], None], lost: Callable[[str], None]) -> None:
        """Receive and send in threads from now on."""
        self._end.settimeout(None)
        threading.Thread(target=self._listen, args=(hear, lost), name="blocks in", daemon=True).start()
        threading.Thread(target=self._work, name="blocks out", daemon=True).start()

    def bound(self, seconds: float) -> None:
        """Bound the time of each `receive` and `send_now`. They raise TimeoutError."""
        self._end.settimeout(seconds)

    def send(self, message: msgspec.Struct, blocks: Buffer = b"") -> None:
        """Send from a thread. Nothing happens once the link has ended."""
        self._outbox.put((message, blocks))

    def send_now(self, message: msgspec.Struct, blocks: Buffer = b"") -> None:
        """Send, and wait until the system has taken it. Raises OSError."""
        body = _encode(message)
        head = _HEAD.pack(len(body), len(blocks)) + body
        self._end.sendall(head)
        if blocks:
            self.sent_bytes += len(blocks)
            self._end.sendall(blocks)

    def receive(self) -> tuple[msgspec.Struct, bytearray]:
        """Return the next message and its blocks. Raises EOFError if the other side has ended, OSError, and
        HandoverError for something that is not a message."""
        size, blocks = _HEAD.unpack(self._received(_HEAD.size, "the other process has ended"))
        if size > _LARGEST_MESSAGE or blocks > self._most:
            raise HandoverError(
                f"a frame has a message of {size:,} bytes and blocks of {blocks:,}: expected at most "
                f"{_LARGEST_MESSAGE:,} and {self._most:,}"
            )
        cut = f"the other process has ended in the middle of a message of {size + blocks:,} bytes"
        try:
            message = self._decode(bytes(self._received(size, cut)))
        except msgspec.MsgspecError as error:
            raise HandoverError(f"a frame of {size:,} bytes is not a message: {error}") from None
        return message, self._received(blocks, cut) if blocks else bytearray()

    def close(self) -> None:
        """End the link, without the messages that still wait. Its threads end, and `lost` is called if it was not."""
        self._outbox.put(None)
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def _received(self, size: int, cut: str) -> bytearray:
        try:
            return receive_exactly(self._end, size)
        except EOFError:
            raise EOFError(cut) from None

    def _listen(self, hear: Callable[[msgspec.Struct, bytearray], None], lost: Callable[[str], None]) -> None:
        reason = "the other process has ended"
        try:
            while True:
                hear(*self.receive())
        except (HandoverError, EOFError) as error:
            reason = str(error)
        except OSError as error:
            reason = f"{reason} ({type(error).__name__})"
        finally:
            self.close()
            lost(reason)

    def _work(self) -> None:
        try:
            while (item := self._outbox.get()) is not None:
                self.send_now(*item)
        except OSError:  # the thread that receives sees the same, and says why
            self.close()
