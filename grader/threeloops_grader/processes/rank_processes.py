"""The ranks of a submission, as seen by its monitor, which forks and measures them.

The monitor has run no line of the student's code. So a rank begins without memory, descriptors or files that another
process of the submission could have prepared.
"""

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import psutil
from threeloops.forking import prepare_to_fork
from threeloops.resident import ResidentMemory, own_bytes

from threeloops_grader.sandbox import confine
from threeloops_grader.transport.link import FrameLink

__all__ = ["RankProcesses"]

_DESCRIPTORS = 2
"""The descriptors of a rank: its socket, and the file for its output."""
_MANY = 16
"""The number of ranks at which `prepare_to_fork` saves as much time as it takes, about half a second."""
_MORE_THAN_PARENT = 8 << 20
"""Bytes that a fork may have allocated or copied before its memory is measured."""


class RankProcesses:
    """Forks ranks at the grader's request.

    Args:
        link: to the grader's side. The descriptors of each rank come through its socket.
        enter: confines a fork, one of a number of ranks. It keeps only the descriptors that it is given, and returns
            their new numbers.
        namespaces: whether each rank gets namespaces of its own.
    """

    def __init__(self, link: FrameLink, enter: Callable[[Sequence[int], int], list[int]], *, namespaces: bool) -> None:
        self.processes: list[int] = []
        self._ended: list[int] = []
        self._started = 0
        self._link = link
        self._enter = enter
        self._own_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC) if namespaces else -1
        self._resident = ResidentMemory([])

    def answer(self, question: dict[str, Any], buffers: Sequence[bytearray]) -> dict[str, Any]:
        """Answer a request of the grader. Raises KeyError if the request is unknown."""
        match question["op"]:
            case "start":
                return {"confined": self._start(question["ranks"], bytes(buffers[0]))}
            case "stack":
                os.kill(self.processes[question["rank"]], signal.SIGUSR1)
                return {}
            case "measure":
                return {"ready": self._measure()}
            case "growth":
                return {"bytes": self._growth()}
            case "end":
                self._end()
                return {}
        raise KeyError(question["op"])

    def _end(self) -> None:
        """End all ranks, with all that they have started. The kernel needs some milliseconds for their namespaces, so
        `_start` waits for them, and not this."""
        for process in self.processes:
            os.kill(process, signal.SIGKILL)
        self._ended += self.processes
        self.processes = []

    def _start(self, ranks: int, program: bytes) -> bool:
        """Fork the ranks. Return whether all of them could be confined, which is before a student's code runs there."""
        for process in self._ended:
            os.waitpid(process, 0)
        self._ended = []
        if self._started < _MANY <= self._started + ranks:
            prepare_to_fork()
        self._started += ranks
        confined, confined_end = os.pipe()
        for rank in range(ranks):
            _, given, _, _ = socket.recv_fds(self._link.socket, 1, _DESCRIPTORS)
            if self._own_namespace >= 0:
                confine.enter(self._own_namespace, confine.NEW_PID)  # the kernel refuses a second one without this
                confine.unshare(confine.NEW_PID)
            process = os.fork()
            if process == 0:
                self._be(rank, ranks, [*given, confined_end], program)
            self.processes.append(process)
            for descriptor in given:
                os.close(descriptor)
        os.close(confined_end)
        with open(confined, "rb", 0) as pipe:
            return len(pipe.readall() or b"") == ranks

    def _be(self, rank: int, ranks: int, descriptors: Sequence[int], program: bytes) -> NoReturn:
        """Be a rank. The last descriptor is the pipe to the monitor, which ends before the program begins."""
        try:
            *given, confined = self._enter(descriptors, ranks)
            os.write(confined, b".")
            os.close(confined)
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
            os._exit(1)
        from threeloops.training.cluster.processes.warm import be_unpacked_rank

        from threeloops_grader.witness.plain import to_bytes

        try:
            be_unpacked_rank(rank, given, program, to_bytes)
        finally:  # the program cannot be unpickled
            os._exit(1)

    def _measure(self) -> bool:
        """Begin to measure memory. Return False if a rank has ended, or has more memory than its parent already."""
        try:
            most = own_bytes(os.getpid()) + _MORE_THAN_PARENT
            self._resident = ResidentMemory(self.processes)
            return all(own_bytes(process) <= most for process in self.processes)
        except ProcessLookupError:
            return False

    def _growth(self) -> list[int] | None:
        """Return how much each rank has grown at most, or None if one has ended or has started another process."""
        try:
            growth = self._resident.growth()
            helpers = [psutil.Process(process).children(recursive=True) for process in self.processes]
            return None if any(helpers) else growth
        except (ProcessLookupError, psutil.Error):
            return None
