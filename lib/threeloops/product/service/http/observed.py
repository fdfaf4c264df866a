"""Record every request: a line in the log, and a count of refusals."""

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from threeloops.product.service.admission import Refused
from threeloops.product.service.http.errors import Refusal

__all__ = ["Observed"]

_NAME = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_PROBES = ("/health", "/health/startup", "/ready", "/metrics")
"""Asked every few seconds by machines; a line for each would bury the others."""
_CLIENT_CLOSED = 499
"""NGINX's status, in logs only, of a request whose client went away before there was an answer."""
_log = logging.getLogger(__name__)


class Observed:
    """ASGI middleware. `refused` is called with the code of every refusal, but not for a request that was accepted and
    failed. For that, the application puts "has_ended" into scope["state"].

    Each request has an id: the client's X-Request-Id if it is plain, or a new one. It is in the answer's header of that
    name, and in scope["state"]["request_id"]. The application puts additional fields of the line into
    scope["state"]["log"]. These must never hold what a client sent, least of all keys.

    If the server ends and cancels a request that has no answer yet, the client gets an answer that says so.
    """

    def __init__(self, app: ASGIApp, refused: Callable[[str], None]) -> None:
        self.app = app
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        given = dict(scope["headers"]).get(b"x-request-id", b"")
        name = given if _NAME.fullmatch(given) else uuid.uuid4().hex.encode()
        noted: dict[str, object] = {}
        scope.setdefault("state", {}).update(request_id=name.decode(), log=noted)
        started = time.monotonic()
        status = _CLIENT_CLOSED

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", name)]
            await send(message)

        is_failure = False
        try:
            return await self.app(scope, receive, named)
        except asyncio.CancelledError:
            if status != _CLIENT_CLOSED:
                raise
            ending = Refused(503, "draining", "the service is shutting down: try again", 1.0)
            return await Refusal(ending, {"connection": "close"})(scope, receive, named)
        except Exception:
            is_failure = True
            status = 500
            raise
        finally:
            if "code" in noted and "has_ended" not in scope["state"]:
                self._refused(str(noted["code"]))
            line = {"request_id": name.decode(), "method": scope["method"], "path": scope["path"], "status": status}
            level = logging.ERROR if is_failure else logging.DEBUG if scope["path"] in _PROBES else logging.INFO
            extra = line | {"seconds": round(time.monotonic() - started, 4)} | noted
            _log.log(level, "request", extra=extra, exc_info=is_failure)
