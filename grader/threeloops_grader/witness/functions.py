"""The grader's end of calls to functions that a test offers to the student's threads.

The grader's side sees each call when it happens. The student's process decides whether to call, and with which
arguments. But it cannot pretend that a call was made, nor how the call ended.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from threeloops_grader.transport.link import FrameLink, LinkDead, WallError
from threeloops_grader.transport.wire import decode, encode
from threeloops_grader.witness.plain import PLAIN

__all__ = ["Function", "Functions"]

_MAX_WAITING = 32
_SEND_SECONDS = 10.0


@dataclass(frozen=True, eq=False)
class Function:
    """A function as an argument of a call across the wall. The student's side gets a function that calls it."""

    number: int


@dataclass(frozen=True)
class _Offer:
    function: Callable[..., Any]
    waits: bool


class _Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One call by the student's side. `value` is the encoded list of arguments."""

    call: int
    function: int
    value: Any


class Functions:
    """Answers calls in a thread. A call that may have to wait gets its own thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._calls = FrameLink(sock)
        self._answers = FrameLink(sock)
        self._offers: dict[int, _Offer] = {}
        self._count = 0
        self._sending = threading.Lock()
        self._room = threading.Semaphore(_MAX_WAITING)

    def offer(self, function: Callable[..., Any], *, waits: bool) -> Function:
        """Let the student's threads call `function`. Set `waits` if a call may have to wait for the test."""
        if not self._count:
            threading.Thread(target=self._serve, daemon=True).start()
        self._count += 1
        self._offers[self._count] = _Offer(function, waits)
        return Function(self._count)

    def withdraw(self, function: Function) -> None:
        """Refuse further calls of this function."""
        self._offers.pop(function.number, None)

    def _serve(self) -> None:
        while True:
            try:
                tree, buffers = self._calls.receive()
                call = msgspec.convert(tree, _Call)
            except (LinkDead, ValueError):
                self._hang_up()
                return
            offer = self._offers.get(call.function)
            if offer is None or not offer.waits:
                self._answer(call, buffers, offer)
            elif self._room.acquire(blocking=False):
                threading.Thread(target=self._answer, args=(call, buffers, offer), daemon=True).start()
            else:
                self._hang_up()
                return

    def _answer(self, call: _Call, buffers: list[Any], offer: _Offer | None) -> None:
        out: list[Any] = []
        try:
            if offer is None:
                raise RuntimeError("this function of the test is over")
            arguments = decode(call.value, buffers, PLAIN)
            if type(arguments) is not list:
                raise RuntimeError("a malformed call")
            answer = {"call": call.call, "value": encode(offer.function(*arguments), out, PLAIN)}
        except (Exception, WallError) as error:
            words = [argument if type(argument) is int else str(argument)[:4000] for argument in error.args]
            answer, out = {"call": call.call, "error": [type(error).__name__, words]}, []
        finally:
            if offer is not None and offer.waits:
                self._room.release()
        with self._sending:
            self._answers.deadline = time.monotonic() + _SEND_SECONDS
            try:
                self._answers.send(answer, out)
            except (LinkDead, WallError):
                self._hang_up()

    def _hang_up(self) -> None:
        """End all calls, because the student's side broke the format or does not read its answers."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
