"""Load for real replicas, and what became of it; where NGINX is missing, tests that need it are skipped by name."""

import json
import shutil
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import httpx
import pytest

needs_nginx = pytest.mark.skipif(
    shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin") is None,
    reason="nginx is not installed",
)


def stand_in(load_seconds: float = 0.0):
    """The command of a replica without a model."""
    program = str(Path(__file__).with_name("stand_in_replica.py"))
    return lambda port: [sys.executable, program, str(port), str(load_seconds)]


@dataclass
class Answered:
    """One request: its id, status and text; status 0 if the connection broke without an answer."""

    id: str
    status: int
    text: str

    @property
    def number(self) -> int:
        return int(self.id.removeprefix("request-"))

    @property
    def error_code(self) -> str:
        """Of an error in OpenAI's format; raises if it is none. An answer that its replica had begun before it was
        killed can only be cut off, which the client is told by its length."""
        if self.status == 0 and "without sending complete message body" in self.text:
            return "cut off"
        return json.loads(self.text)["error"]["code"]


@dataclass
class Load:
    """Clients that ask one request after another, each by a connection of its own, until `with` ends."""

    url: str
    clients: int = 4
    body: dict = field(default_factory=lambda: {"max_tokens": 4})
    answers: list[Answered] = field(default_factory=list)

    def __enter__(self) -> "Load":
        self._names, self._stop = count(), threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(self.clients)]
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """Ask nothing more; what was asked is still answered."""
        self._stop.set()

    def __exit__(self, *_) -> None:
        self.stop()
        for thread in self._threads:
            thread.join()

    def take_number(self) -> int:
        """A number that no request has: those with higher ones have not begun to connect."""
        return next(self._names)

    @property
    def statuses(self) -> Counter:
        return Counter(each.status for each in self.answers)

    def _ask(self) -> None:
        with httpx.Client(timeout=60, limits=httpx.Limits(max_keepalive_connections=0)) as client:
            while not self._stop.is_set():
                name = f"request-{next(self._names)}"
                try:
                    answer = client.post(f"{self.url}/v1/completions", json=self.body, headers={"X-Request-Id": name})
                    self.answers.append(Answered(name, answer.status_code, answer.text))
                except httpx.HTTPError as error:
                    self.answers.append(Answered(name, 0, repr(error)))


def done_counts(folder: Path, word: str = "done", logs: str = "*.log") -> Counter:
    """How often each request id stands in these replicas' logs after this word."""
    lines = [line.split() for log in folder.glob(logs) for line in log.read_text().splitlines()]
    return Counter(line[1] for line in lines if len(line) == 2 and line[0] == word)
