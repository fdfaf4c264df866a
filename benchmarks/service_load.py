"""Servers as processes of their own, and a load on them: an open loop, whose arrivals never wait for the server.

The client speaks HTTP by hand, because it shares two cores with what it measures.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random

import psutil
from threeloops.product.fleet.real.waiting import free_port

from benchmarks.result import Unmeasured

__all__ = ["Call", "Load", "Server", "at_once", "call", "closed_loop", "open_loop", "serving"]

_START_SECONDS = 120.0
_CALL_SECONDS = 120.0


@dataclass(frozen=True)
class Load:
    """The sizes of each request."""

    prompt: int  # tokens
    answer: int  # tokens
    stream: bool = True

    def text(self, number: int) -> str:
        """Every prompt is another one, so that no prefix cache helps."""
        return "".join(Random(number).choices("abcdefghijklmnopqrstuvwxyz ", k=self.prompt))

    def body(self, number: int) -> bytes:
        sizes = {"prompt": self.text(number), "max_tokens": self.answer, "stream": self.stream}
        return json.dumps({"model": "model", "temperature": 0, "ignore_eos": True, **sizes}).encode()


@dataclass
class Call:
    """One request. Seconds are those of `time.monotonic`, and `at` is when it should have been sent."""

    at: float
    status: int = 0  # 0: no answer
    first: float = math.nan  # first byte of the body
    end: float = math.nan
    events: int = 0

    @property
    def ttft(self) -> float:
        return self.first - self.at

    @property
    def latency(self) -> float:
        return self.end - self.at

    @property
    def tpot(self) -> float:
        return (self.end - self.first) / max(1, self.events - 1)


@dataclass
class Server:
    """A process and its port, and how much memory it and its children hold, in bytes, second by second."""

    port: int
    process: subprocess.Popen[bytes]
    memory: list[int] = field(default_factory=list)

    def look(self) -> None:
        with suppress(psutil.Error):
            tree = psutil.Process(self.process.pid)
            self.memory.append(sum(each.memory_info().rss for each in (tree, *tree.children(recursive=True))))

    def cpu_seconds(self) -> tuple[float, float]:
        """Return CPU seconds of the process and of its running children."""
        tree = psutil.Process(self.process.pid)
        own, *others = (
            (used := each.cpu_times()).user + used.system for each in (tree, *tree.children(recursive=True))
        )
        return own, sum(others)


@contextmanager
def serving(words: Sequence[str], **environment: str) -> Iterator[Server]:
    """`python -m words`, with {port} replaced by a free port; until the block ends. Raises Unmeasured if it does not
    start."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", *(word.format(port=port) for word in words)],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + _START_SECONDS
        while asyncio.run(_status(port)) != 200:
            if process.poll() is not None or time.monotonic() > end:
                raise Unmeasured(f"{words[0]} did not start: exit code {process.poll()}")
            time.sleep(0.1)
        yield Server(port, process)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


async def call(server: Server, body: bytes, at: float | None = None) -> Call:
    """Send one request and read its answer to the end. Whatever goes wrong leaves the status 0."""
    found = Call(time.monotonic() if at is None else at)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        async with asyncio.timeout(_CALL_SECONDS):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            try:
                writer.write(f"{head}\r\nconnection: close\r\n\r\n".encode() + body)
                status = int((await reader.readuntil(b"\r\n\r\n")).split()[1])
                while part := await reader.read(1 << 16):
                    if math.isnan(found.first):
                        found.first = time.monotonic()
                    found.events += part.count(b"data: ")
                found.end = time.monotonic()
                found.status = status
            finally:
                writer.transport.abort()
    return found


async def open_loop(server: Server, load: Load, rate: float, seconds: float) -> list[Call]:
    """Poisson arrivals of `rate` requests per second for `seconds`; returns when all are answered."""
    random, started, at = Random(7), time.monotonic(), 0.0
    calls: list[asyncio.Task[Call]] = []
    looking = asyncio.create_task(_look(server))
    while (at := at + random.expovariate(rate)) < seconds:
        await asyncio.sleep(max(0.0, started + at - time.monotonic()))
        calls.append(asyncio.create_task(call(server, load.body(len(calls)), started + at)))
    found = await asyncio.gather(*calls)
    looking.cancel()
    return list(found)


async def at_once(server: Server, load: Load, requests: int, first: int = 0) -> tuple[float, list[Call]]:
    """All requests at the same time; seconds until the last is answered."""
    started = time.monotonic()
    found = await asyncio.gather(*(call(server, load.body(first + number)) for number in range(requests)))
    return time.monotonic() - started, list(found)


async def closed_loop(server: Server, load: Load, clients: int, seconds: float) -> list[Call]:
    """Run a number of clients, each of which asks again as soon as it is answered."""
    end, found = time.monotonic() + seconds, []

    async def ask_again() -> None:
        while time.monotonic() < end:
            number = 10**7 + len(found)
            found.append(await call(server, load.body(number)))

    await asyncio.gather(*(ask_again() for _ in range(clients)))
    return found


async def _look(server: Server) -> None:
    while True:
        server.look()
        await asyncio.sleep(1.0)


async def _status(port: int) -> int:
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /ready HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        head = await reader.readuntil(b"\r\n")
        writer.close()
        return int(head.split()[1])
    except (OSError, ValueError, IndexError, asyncio.IncompleteReadError):
        return 0
