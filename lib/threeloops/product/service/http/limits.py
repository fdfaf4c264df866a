"""Limits of HTTP requests: the client is identified before a body is read, the body is read completely and within its
limits before anything looks at it, and work ends when its client leaves.
"""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from threeloops.product.service.admission import Refused
from threeloops.product.service.http.bodies import check_body, has_body
from threeloops.product.service.http.errors import Refusal

__all__ = ["BoundedRequests", "until_disconnected"]

_CLOSE = {"connection": "close"}
_LINGER_SECONDS = 2.0
_PAUSE_SECONDS = 0.2
"""How long a refused body is still received and discarded, in total and between two pieces. If the connection were
reset while the client sends, it would never see the reason."""


class BoundedRequests:
    """ASGI middleware. A body has at most `body_bytes` bytes (else 413) and takes at most `body_seconds` (else 408). It
    is UTF-8 (else 400).

    Before any of it is kept, `check` is called with the scope and may raise Refused. So a client without permission can
    neither fill the memory nor learn what is wrong with a body.
    """

    def __init__(
        self, app: ASGIApp, body_bytes: int, body_seconds: float, check: Callable[[Scope], None] = lambda scope: None
    ) -> None:
        self.app = app
        self.body_bytes = body_bytes
        self.body_seconds = body_seconds
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"")
        is_sending = has_body(headers)
        try:
            self._check(scope)
            if length.isdigit() and int(length[:20]) > self.body_bytes:
                raise self._too_large(int(length[:20]))
        except Refused as refusal:
            if is_sending and b"expect" not in headers:
                await self._linger(receive)
            return await Refusal(refusal, _CLOSE if is_sending else None)(scope, receive, send)
        try:
            async with asyncio.timeout(self.body_seconds):
                body = await self._body(receive)
            check_body(body or b"")
        except TimeoutError:
            late = f"the body did not arrive within {self.body_seconds:g} s: send it faster, or in a smaller request"
            return await Refusal(Refused(408, "body_timeout", late), _CLOSE)(scope, receive, send)
        except Refused as refusal:
            return await Refusal(refusal, _CLOSE)(scope, receive, send)
        if body is None:  # the client has gone
            return None
        rest = [{"type": "http.request", "body": body, "more_body": False}]

        async def replayed() -> Message:
            return rest.pop() if rest else await receive()

        return await self.app(scope, replayed, send)

    async def _body(self, receive: Receive) -> bytes | None:
        """Read the body, or return None if the client leaves before its end."""
        parts = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            if (size := size + len(parts[-1])) > self.body_bytes:
                await self._linger(receive)
                raise self._too_large(size)
            if not message.get("more_body", False):
                return b"".join(parts)

    async def _linger(self, receive: Receive) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + _LINGER_SECONDS
        try:
            async with asyncio.timeout(_PAUSE_SECONDS) as pause:
                for _ in range(1024):
                    message = await receive()
                    pause.reschedule(min(end, loop.time() + _PAUSE_SECONDS))
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        return
        except TimeoutError:
            return

    def _too_large(self, size: int) -> Refused:
        message = f"the body has {size} bytes or more: expected at most {self.body_bytes}"
        return Refused(413, "request_too_large", message)


async def until_disconnected(receive: Receive, work: Awaitable[None]) -> None:
    """Do `work`, and cancel it as soon as the client has gone. Raises what it raises."""
    task = asyncio.ensure_future(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        is_done = task.done()
        for future in (task, gone):
            future.cancel()
        await asyncio.wait({task, gone})
    if is_done:
        task.result()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
