"""Start ranks and other processes from a warm process, which lives as long as this one."""

import atexit
import contextlib
import os
import pickle
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from threeloops.frames import receive_exactly
from threeloops.module_process import command
from threeloops.training.cluster.machine.errors import ClusterError
from threeloops.training.cluster.processes.ranks import Sockets
from threeloops.training.cluster.processes.warm import AT_WORK, COMMAND, END, PROCESS, PROCESSES, START, STATUS

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
            sockets = Sockets(
                size,
                lambda descriptors: self._start(program, descriptors, core),
                seconds,
                lambda: self._statuses(size),
            )
            try:
                yield sockets
            finally:
                self._end()
                sockets.close()

    @contextlib.contextmanager
    def processes(
        self, size: int, function: Callable[[int], None], environment: Mapping[str, str], program: bytes
    ) -> Iterator[Callable[[], list[int | None]]]:
        """Start `size` processes, each of which calls a function of this library with its number. Otherwise it is as if
        this process had started it: it has its output, current folder and cores. The processes will run `program`, from
        `to_bytes`.

        Yields a function that returns the exit status of each, None for one that is still running. All are gone at the
        end.
        """
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        libraries = pickle.loads(program)[0]
        task = pickle.dumps((libraries, pickle.dumps((dict(environment), cores, function)), None))
        folder = os.open(".", os.O_RDONLY)
        try:
            with self._busy:
                try:
                    self._command(PROCESSES, size, task, -1, [[1, 2, folder]])
                    self._answers(size)
                    yield lambda: self._statuses(size)
                finally:
                    self._end()
        finally:
            os.close(folder)

    def _statuses(self, size: int) -> list[int | None]:
        try:
            assert self._control is not None
            self._control.sendall(COMMAND.pack(STATUS, 0, 0, -1))
            return [None if status == AT_WORK else status for status in self._answers(size)]
        except BaseException:
            self.stop()
            raise

    def _start(self, program: bytes, descriptors: list[list[int]], core: int) -> list[int]:
        self._command(START, len(descriptors), program, core, descriptors)
        return self._answers(len(descriptors))

    def _command(self, command: bytes, size: int, program: bytes, core: int, descriptors: list[list[int]]) -> None:
        try:
            if self._process is None or self._process.poll() is not None or self._owner != os.getpid():
                self._launch()
            assert self._control is not None
            self._control.sendall(COMMAND.pack(command, size, len(program), core))
            self._control.sendall(program)
            for batch in descriptors:
                socket.send_fds(self._control, [b"\0"], batch)
        except BaseException:
            self.stop()
            raise

    def _answers(self, size: int) -> list[int]:
        try:
            assert self._control is not None
            return [PROCESS.unpack(receive_exactly(self._control, PROCESS.size))[0] for _ in range(size)]
        except BaseException:
            self.stop()
            raise

    def _end(self) -> None:
        if self._control is None:  # what went wrong stopped the warm process
            return
        try:
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
