"""The student's end of calls to functions of the test. Any thread may call, and each call waits for its answer."""

from __future__ import annotations

import builtins
import functools
import os
import queue
import socket
import threading
from collections.abc import Callable
from typing import Any

from threeloops_grader.transport.link import FrameLink, LinkDead
from threeloops_grader.transport.wire import decode, encode
from threeloops_grader.witness.plain import PLAIN

__all__ = ["Calls"]


class Calls:
    """Calls the functions that a test has offered. From the first call on, one thread receives the answers."""

    def __init__(self, sock: socket.socket) -> None:
        self._link = FrameLink(sock)
        self._lock = threading.Lock()
        self._waiting: dict[int, queue.SimpleQueue[Any]] = {}
        self._next = 0
        self._process = os.getpid()

    def function(self, number: int) -> Callable[..., Any]:
        return functools.partial(self._call, number)

    def _call(self, function: int, *arguments: Any) -> Any:
        if os.getpid() != self._process:
            raise RuntimeError("only the process that a test has called may call a function of the test")
        buffers: list[Any] = []
        value = encode(list(arguments), buffers, PLAIN)
        answer = queue.SimpleQueue[Any]()
        with self._lock:
            if not self._next:
                threading.Thread(target=self._take_answers, daemon=True).start()
            self._next += 1
            self._waiting[self._next] = answer
            self._link.send({"call": self._next, "function": function, "value": value}, buffers)
        tree, buffers = answer.get()
        if "error" in tree:
            name, arguments = tree["error"]
            raise getattr(builtins, name, RuntimeError)(*arguments)
        return decode(tree["value"], buffers, PLAIN)

    def _take_answers(self) -> None:
        while True:
            try:
                tree, buffers = self._link.receive()
            except LinkDead as dead:
                for answer in list(self._waiting.values()):
                    answer.put(({"error": ["RuntimeError", [f"the test is over ({dead})"]]}, []))
                return
            self._waiting.pop(tree["call"]).put((tree, buffers))
