"""The application on a port, until SIGTERM or Ctrl-C; then it drains.

While it drains it still listens, and answers 503 with Retry-After: a connection that is refused looks like a crash to a
client, and to a load balancer that has not noticed yet.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from threeloops.product.service.app import Service, create_app
from threeloops.product.service.http.protocol import BoundedProtocol
from threeloops.product.service.observability import configure_logs
from threeloops.product.service.settings import Settings, SettingsError

__all__ = ["StartFailed", "run"]

_SEND_BUFFER = 64 << 10
"""Bytes that the kernel keeps for a client that does not read. Its own choice of megabytes would hide slow readers from
the engine, which pauses them."""


class StartFailed(RuntimeError):
    """The first model could not be served."""


def run(settings: Settings, announce: Callable[[str], None] = print) -> None:
    """Serve until a signal, then drain. `announce` is told the address once the port is open, before the model is
    loaded.

    Raises SettingsError for a port in use or a host that is not this machine's, KeysFileError for bad keys, and
    StartFailed if the model cannot be loaded.
    """
    app = create_app(settings)
    service: Service = app.state.service
    listener = _listen(settings)
    try:
        service.logs = configure_logs(settings.log_file)
    except OSError as error:
        listener.close()
        raise SettingsError(f"log_file = {str(settings.log_file)!r}: {error.strerror}") from None
    host, port = listener.getsockname()[:2]
    config = uvicorn.Config(
        app,
        http=BoundedProtocol.within(settings.header_seconds, settings.request_seconds),
        ws="none",
        loop="asyncio",
        log_config=None,
        access_log=False,  # it would have the query, and with it what somebody took for a place of a key
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    announce(f"{settings.name} on http://{f'[{host}]' if ':' in host else host}:{port}")
    uvicorns = logging.getLogger("uvicorn")
    uvicorns.addHandler(service.logs)
    uvicorns.setLevel(logging.WARNING)
    uvicorns.propagate = False
    with listener, service.logs:
        asyncio.run(_Server(config, service).serve(sockets=[listener]))
    if service.failure:
        raise StartFailed(service.failure)


class _Server(uvicorn.Server):
    """uvicorn's server, which a signal makes drain before it stops listening; a second one ends it at once."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._signals = 0

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        watch = asyncio.create_task(self._stop_on_failure())
        try:
            await super().serve(sockets)
        finally:
            watch.cancel()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals > 1:
            self.should_exit = self.force_exit = True
        else:
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._draining = asyncio.create_task(self._drain_then_exit())

    async def _drain_then_exit(self) -> None:
        try:
            await self._service.drain()
        finally:
            self.should_exit = True

    async def _stop_on_failure(self) -> None:
        await self._service.failed.wait()
        self.should_exit = True


def _listen(settings: Settings) -> socket.socket:
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise SettingsError(f"host = {settings.host!r}: {error.strerror or error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        listener.bind(address)
        listener.listen(2048)  # now, so that whoever reads the announcement can connect
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            why = "another program uses it; choose another port, or stop that program"
        else:
            why = f"{error.strerror}"
        raise SettingsError(f"port = {settings.port} of {settings.host}: {why}") from None
    return listener
