"""The side of an engine's process that talks to the front, over a socket."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterable
from typing import Any, NoReturn

import msgspec

from threeloops.frames import FrameReader, frame
from threeloops.product.service.engine.messages import Failed

__all__ = ["Front"]


class Front:
    """The other end of the socket that is standard input. A thread reads its messages, which are of `kind`. If it hangs
    up, this process ends at once.

    From here on, printed output goes to standard error.
    """

    def __init__(self, kind: object) -> None:
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # Ctrl-C reaches the whole terminal; the front decides what it means
        self._end = socket.socket(fileno=os.dup(0))
        os.dup2(2, 1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        self._kind = kind
        self._changed = threading.Condition()
        self._heard: list[Any] = []
        threading.Thread(target=self._listen, name="front", daemon=True).start()

    def hear(self, message: object) -> None:
        """Add a message from this process itself. Any thread may call this."""
        with self._changed:
            self._heard.append(message)
            self._changed.notify()

    def heard(self, wait: bool) -> list[Any]:
        """Return the messages since the last call. If `wait` is set, wait until there is one."""
        with self._changed:
            while wait and not self._heard:
                self._changed.wait()
            heard = self._heard
            self._heard = []
            return heard

    def tell(self, messages: Iterable[msgspec.Struct]) -> None:
        try:
            self._end.sendall(b"".join(map(frame, messages)))
        except OSError:
            self.hang_up(0)

    def give_up(self, reason: str) -> NoReturn:
        """Tell why this process cannot go on, and end it."""
        self.tell([Failed(reason)])
        self.hang_up(1)

    def hang_up(self, code: int) -> NoReturn:
        """End the process even while its threads load a model or compute a step."""
        sys.stderr.flush()
        os._exit(code)

    def _listen(self) -> None:
        reader = FrameReader(self._kind)
        try:
            while data := self._end.recv(1 << 16):
                for message in reader.feed(data):
                    self.hear(message)
        finally:  # also what is no message: the front would never make sense again
            self.hang_up(0)
