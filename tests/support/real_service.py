"""The service for tests: in this process, on a loop of its own, so that what it holds can be looked at; or as a process
of its own, as an operator starts it."""

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import torch
import uvicorn
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.models.llama_folder import save_llama_folder
from threeloops.product.decode import generate
from threeloops.product.request import Sampling
from threeloops.product.service.admission import Client
from threeloops.product.service.app import create_app
from threeloops.product.service.http.protocol import BoundedProtocol
from threeloops.product.service.settings import Settings
from threeloops.product.trained import decode, encode, trained

PATIENCE = 60
"""Seconds; only a hang takes them."""


def eventually(condition, what, seconds=PATIENCE):
    """Look again and again until the condition holds. Returns what it returned."""
    end = time.monotonic() + seconds
    while True:
        if found := condition():
            return found
        assert time.monotonic() < end, f"still not so after {seconds} s: {what}"
        time.sleep(0.005)


def event_data(body):
    """The data of the server-sent events of a whole body; "[DONE]" stays as it is."""
    events = [part.removeprefix("data: ") for part in body.split("\n\n") if part]
    return [each if each == "[DONE]" else json.loads(each) for each in events]


def long_model(folder):
    """A folder with a model of random weights that goes on for 16,384 tokens; small, so that a step is short."""
    torch.manual_seed(0)
    config = GPTConfig(256, layers=1, heads=1, kv_heads=1, width=8, mlp_width=8, max_sequence=16384)
    save_llama_folder(GPT(config), folder)
    return folder


def answer_of(prompt, tokens):
    """What the small model goes on with at temperature 0, computed without any engine. 0 would end a text."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the machine may be busy
    try:
        found = generate(trained("tiny"), [encode(prompt)], Sampling(max_tokens=tokens))[0]
    finally:
        torch.set_num_threads(threads)
    assert 0 not in found
    return decode(found)


class LocalService:
    """An application on a free port, in a thread of this process. `with` ends it."""

    def __init__(self, **changes):
        self.settings = Settings(port=0, threads=1, **changes)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="service", daemon=True)
        self._thread.start()
        self.app = create_app(self.settings)
        self.service = self.app.state.service
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32 << 10)
        self.port = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        protocol = BoundedProtocol.within(self.settings.header_seconds, self.settings.request_seconds, 1000)
        config = uvicorn.Config(self.app, http=protocol, ws="none", log_config=None, timeout_graceful_shutdown=2)
        self.server = uvicorn.Server(config)
        self._task = asyncio.run_coroutine_threadsafe(self.server._serve([self.listener]), self._loop)
        eventually(lambda: self.server.started or self._task.done(), "the server listens")

    def __enter__(self):
        eventually(lambda: self.is_ready() or self.service.failure, "the model is loaded")
        assert not self.service.failure
        self.tasks = self._tasks()
        return self

    def __exit__(self, *_):
        self.server.should_exit = True
        self._task.result(PATIENCE)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    def call(self, coroutine):
        """The result of a coroutine, run on the service's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE)

    def is_ready(self):
        return self.call(self.service.state())[0] == "ready"

    def stats(self):
        async def ask():
            async with self.service.switch.lease() as engine:
                return await engine.stats()

        return self.call(ask())

    def engine_pid(self):
        async def ask():
            async with self.service.switch.lease() as engine:
                return engine.pid

        return self.call(ask())

    @contextlib.contextmanager
    def held_place(self):
        """Somebody else's request, who takes a place and gives it back in the end."""

        async def hold():
            async with self.service.admission.admit(Client("somebody else"), 1):
                held.set()
                await release.wait()

        held, release = threading.Event(), asyncio.Event()
        holding = asyncio.run_coroutine_threadsafe(hold(), self._loop)
        assert held.wait(PATIENCE)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(release.set)
            holding.result(PATIENCE)

    def settle(self):
        """Wait until nothing of any request is left: no answer, no place, no stream, no block, no task."""

        def is_empty():
            stats, admission = self.stats(), self.service.admission
            counts = (stats.streams, stats.running, stats.waiting, stats.paused, admission.running, admission.queued)
            is_idle = not any(counts) and not self.service.open_answers
            return is_idle and stats.blocks_free == stats.blocks_total

        eventually(is_empty, "every block, place and stream was given back")
        eventually(lambda: not self.server.server_state.tasks, "every request's task has ended")
        eventually(lambda: self._tasks() <= self.tasks, "no task is left")

    def _tasks(self):
        async def count():
            return len(asyncio.all_tasks()) - 1

        return self.call(count())

    @contextlib.contextmanager
    def changed(self, **parts):
        """Other parts of the service meanwhile, such as `admission`; settings by their own names."""
        settings = {name: value for name, value in parts.items() if name in Settings.model_fields}
        parts = {name: value for name, value in parts.items() if name not in settings}
        if settings:
            parts["settings"] = self.service.settings.model_copy(update=settings)
        before = {name: getattr(self.service, name) for name in parts}
        vars(self.service).update(parts)
        try:
            yield
        finally:
            self.settle()
            vars(self.service).update(before)


class ServiceProcess:
    """`python -m threeloops.product.service` with its output. `with` ends it, whatever it is doing."""

    def __init__(self, *words, open_files=None, **settings):
        limit = ["bash", "-c", f'ulimit -n {open_files} && exec "$0" "$@"'] if open_files else []
        names = {f"THREELOOPS_SERVE_{name.upper()}": str(value) for name, value in {"threads": 1, **settings}.items()}
        self.process = subprocess.Popen(
            [*limit, sys.executable, "-m", "threeloops.product.service", "--port", "0", *words],
            env={**os.environ, **names},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self):
        found, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        self.line = self.process.stdout.readline() if found else ""
        self.url = self.line.split()[-1] if self.line else ""
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def wait_ready(self):
        eventually(lambda: httpx.get(f"{self.url}/ready").status_code == 200, "the model is loaded")
        return self

    def ended(self):
        """(exit code, stderr)"""
        _, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, errors
