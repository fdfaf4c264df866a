"""Serve the application on a port until SIGTERM or Ctrl-C, and then drain it.

While it drains it still listens, and answers 503 with Retry-After. To a client, or to a load balancer that has not
noticed yet, a refused connection would look like a crash.
"""

import asyncio
import errno
import resource
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from threeloops.product.service.app import Service, create_app
from threeloops.product.service.http.protocol import BoundedProtocol
from threeloops.product.service.models import RegistryError
from threeloops.product.service.observability import configure_logs
from threeloops.product.service.settings import Settings, SettingsError

__all__ = ["StartFailed", "run"]

_SEND_BUFFER = 64 << 10
"""Bytes that the kernel keeps for a client that does not read. Its own choice of megabytes would hide slow readers from
the engine, which pauses them."""
_WAITING = 2048
"""Connections that the kernel keeps until they are accepted."""
_OTHER_FILES = 96
"""File descriptors for Redis, two engines, the registry, logs, and Python's own open files."""


class StartFailed(RuntimeError):
    """The first model could not be served."""


def run(settings: Settings, announce: Callable[[str], None] = print) -> None:
    """Serve until a signal, then drain. `announce` is told the address once the port is open, before the model is
    loaded.

    Raises SettingsError for a port in use, a host that is not this machine's, a registry that cannot be used or too
    small a limit of open files, KeysFileError for bad keys, and StartFailed if the model cannot be loaded.
    """
    at_once, connections = _bounds(settings.max_connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    try:
        app = create_app(settings)
    except RegistryError as error:
        raise SettingsError(f"registry = {str(settings.registry)!r}: {error}") from None
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
        http=BoundedProtocol.within(settings.header_seconds, settings.request_seconds, connections),
        backlog=at_once,
        ws="none",
        loop="asyncio",
        log_config=None,
        access_log=False,  # it would have the query, and with it what somebody took for a place of a key
        server_header=False,
        timeout_graceful_shutdown=5,
    )
    announce(f"{settings.name} on http://{f'[{host}]' if ':' in host else host}:{port}")
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

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """asyncio has told the kernel to let no more connections wait than it accepts at once, which is few."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_WAITING)

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


def _bounds(wanted: int, open_files: int) -> tuple[int, int]:
    """Return how many connections are accepted at once, and how many may be open, if a process may have `open_files`
    open (-1: any number). Raises SettingsError if it may have too few.

    A connection counts a few turns of the event loop after it was accepted, and a refused one is closed a few turns
    later. So room is kept for five times as many as are accepted in one turn.
    """
    if open_files < 0:
        return 128, wanted
    at_once = max(1, min(128, open_files // 32))
    room = open_files - 5 * at_once - _OTHER_FILES
    if room < 1:
        raise SettingsError(
            f"this process may have {open_files} files open: expected at least {_OTHER_FILES + 32}; raise `ulimit -n`"
        )
    return at_once, min(wanted, room)


def _listen(settings: Settings) -> socket.socket:
    try:
        addresses = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise SettingsError(f"host = {settings.host!r}: {error.strerror or error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        listener.bind(address)
        listener.listen(_WAITING)  # now, so that whoever reads the announcement can connect
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            why = "another program uses it; choose another port, or stop that program"
        else:
            why = f"{error.strerror}"
        raise SettingsError(f"port = {settings.port} of {settings.host}: {why}") from None
    return listener
