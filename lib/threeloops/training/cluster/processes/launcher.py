"""Starts ranks from a warm process, which lives as long as this one."""

import atexit
import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

from threeloops.module_process import command
from threeloops.training.cluster.machine.errors import ClusterError
from threeloops.training.cluster.processes.ranks import Sockets
from threeloops.training.cluster.processes.warm import COMMAND, END, PROCESS, START, receive_exactly

__all__ = ["launcher"]

_START_SECONDS = 120.0


class _Launcher:
    """The warm process of this one, started by the first run. It serves one run at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._owner = os.getpid()
        self._busy = threading.Lock()
        atexit.register(self.stop)

    @contextlib.contextmanager
    def ranks(self, size: int, program: bytes, core: int, seconds: float) -> Iterator[Sockets]:
        """`size` ranks that run a pickled program on one core, for so long; all are gone at the end."""
        with self._busy:
            sockets = Sockets(size, lambda descriptors: self._start(program, descriptors, core), seconds)
            try:
                yield sockets
            finally:
                self._end()
                sockets.close()

    def _start(self, program: bytes, descriptors: list[list[int]], core: int) -> list[int]:
        try:
            if self._process is None or self._process.poll() is not None or self._owner != os.getpid():
                self._launch()
            assert self._control is not None
            self._control.sendall(COMMAND.pack(START, len(descriptors), len(program), core))
            self._control.sendall(program)
            for each in descriptors:
                socket.send_fds(self._control, [b"\0"], each)
            return [PROCESS.unpack(receive_exactly(self._control, PROCESS.size))[0] for _ in descriptors]
        except BaseException:
            self.stop()
            raise

    def _end(self) -> None:
        try:
            assert self._control is not None
            self._control.sendall(COMMAND.pack(END, 0, 0, -1))
            receive_exactly(self._control, 1)
        except (OSError, EOFError):
            self.stop()

    def _launch(self) -> None:
        ours, theirs = socket.socketpair()
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [*command("threeloops.training.cluster.processes.warm"), str(theirs.fileno())],
            pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        theirs.close()
        self._owner = os.getpid()
        ours.settimeout(_START_SECONDS)
        try:
            receive_exactly(ours, 1)
        except (OSError, EOFError) as error:
            raise ClusterError(
                f"the process that ranks are forked from did not start within {_START_SECONDS:g} s "
                f"({type(error).__name__}): is the machine busy? Run the cell again"
            ) from None
        self._control = ours

    def stop(self) -> None:
        if self._owner != os.getpid():  # a fork leaves its parent's process alone
            return
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


launcher: Any = _Launcher()
