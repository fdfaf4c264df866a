"""uvicorn's HTTP/1.1 with two limits that it lacks: for the head of a request, and for a reader that stands still.

Without the first, a client that sends a byte per second keeps a connection for ever, and a few thousand of them keep
everybody else out (the "slowloris" attack). Without the second, so does a client that never reads its answer.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from threeloops.product.service.admission import Refused
from threeloops.product.service.http.errors import error_json

__all__ = ["BoundedProtocol"]


class BoundedProtocol(H11Protocol):
    """Give uvicorn a class made by `within`."""

    header_seconds: float
    stall_seconds: float

    @classmethod
    def within(cls, header_seconds: float, stall_seconds: float) -> type["BoundedProtocol"]:
        """The head of a request must be here after `header_seconds`, from the connection or its first byte (else 408);
        a reader must take something within `stall_seconds`, or is cut off."""
        return type(cls.__name__, (cls,), {"header_seconds": header_seconds, "stall_seconds": stall_seconds})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch_head()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
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
        """What h11 cannot read, in the format of every other error."""
        self._answer(400, error_json(Refused(400, "bad_request", "this is not an HTTP/1.1 request")))

    def _watch_head(self, is_idle: bool = False) -> None:
        """Start the clock where a head is being waited for, and stop it where none is. Between two requests uvicorn's
        own keep-alive clock runs instead, until a first byte comes."""
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

    def _answer(self, status: int, body: bytes) -> None:
        """Answer without the application, and hang up."""
        headers = [
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
