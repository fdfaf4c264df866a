"""uvicorn's HTTP/1.1 with limits that it lacks: on the head of a request, on a reader that has stopped, and on open
connections.

Without the first, a client that sends a byte per second keeps a connection forever, and a few thousand of them keep
everybody else out (the "slowloris" attack). Without the second, a client that never reads its answer can do the same.
Without the third, the process runs out of file descriptors, and can neither start an engine nor write a log.
"""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from threeloops.product.service.admission import Refused
from threeloops.product.service.http.errors import error_json

__all__ = ["BoundedProtocol"]

_AHEAD = 1 << 16
"""Bytes of further requests that are kept for a client that does not wait for its answer."""


class BoundedProtocol(H11Protocol):
    """Give uvicorn a class made by `within`."""

    header_seconds: float
    stall_seconds: float
    most_connections: int

    @classmethod
    def within(cls, header_seconds: float, stall_seconds: float, most_connections: int) -> type["BoundedProtocol"]:
        """Return a protocol with these limits. The head of a request must arrive within `header_seconds`, counted from
        the connection or from its first byte, or the answer is 408. A reader that takes nothing for `stall_seconds` is
        cut off. When its connection ends, it has as many seconds to take the rest. Connections beyond
        `most_connections` are answered 503 and closed."""
        limits = {
            "header_seconds": header_seconds,
            "stall_seconds": stall_seconds,
            "most_connections": most_connections,
        }
        return type(cls.__name__, (cls,), limits)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._is_deaf = False
        self._closing = _Closing(transport, self.loop, self.stall_seconds)
        super().connection_made(self._closing)  # type: ignore[arg-type]
        if len(self.connections) > self.most_connections:
            full = f"{self.most_connections} connections are open, which is all that this service takes: try again"
            self._is_deaf = True
            self._answer(503, error_json(Refused(503, "too_many_connections", full)), [("retry-after", "1")])
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch_head()
        self.resume_writing()
        super().connection_lost(exc)
        self._closing.lost()

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        super().data_received(data)
        self._read_on()
        self._watch_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_head(is_idle=True)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer = self.loop.call_later(self.stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that h11 cannot read, in the format of every other error. uvicorn calls this when it has
        caught h11's error."""
        refusal = Refused(400, "bad_request", "this is not an HTTP/1.1 request")
        if getattr(sys.exc_info()[1], "error_status_hint", 400) == 431:
            refusal = Refused(431, "header_too_large", "the head of the request is too long: send fewer headers")
        self._answer(refusal.status, error_json(refusal))

    def _read_on(self) -> None:
        """uvicorn stops reading when a request comes before the answer to the one before. Then nobody would notice that
        the client has gone, so read on; if more comes than is kept, this answer is the last of its connection."""
        if self.flow.read_paused and self.conn.their_state is h11.DONE:
            if len(self.conn.trailing_data[0]) > _AHEAD:
                self._is_deaf = True
                self.cycle.keep_alive = False
            self.flow.resume_reading()

    def _watch_head(self, is_idle: bool = False) -> None:
        """Start the clock when waiting for a head, and stop it otherwise. Between two requests uvicorn's own keep-alive
        clock runs instead, until a first byte comes."""
        if self.transport.is_closing() or self.conn.their_state is not h11.IDLE or is_idle:
            self._unwatch_head()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.header_seconds, self._head_is_late)

    def _unwatch_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        late = f"the head of the request did not arrive within {self.header_seconds:g} s"
        self._answer(408, error_json(Refused(408, "header_timeout", late)))

    def _answer(self, status: int, body: bytes, more: Sequence[tuple[str, str]] = ()) -> None:
        """Answer without the application, and hang up."""
        headers = [
            *more,
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        try:
            events: list[Any] = [h11.Response(status_code=status, headers=headers), h11.Data(data=body)]
            for event in (*events, h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            pass  # an answer was under way already
        self.transport.close()


class _Closing:
    """A transport that is cut off if, after closing, the client does not take the remaining data within `seconds`."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._transport = transport
        self._loop = loop
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        self._transport.close()
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._transport.abort)

    def lost(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
