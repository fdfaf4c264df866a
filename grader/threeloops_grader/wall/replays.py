"""Execute the kernels of a submission in forks of a process that has seen nothing of the test.

The grader's half knows the hidden test and the expected values. An admitted kernel therefore gets a process that was
forked before the first cell ran. Every replay is another fork of it, which cannot write files, open sockets, start
programs or send signals. Its memory is limited, and it is ended when its time is up.
"""

import os
import resource
import signal
import socket
from collections.abc import Sequence
from typing import Any

from threeloops.inner.replay import server

from threeloops_grader.sandbox import seccomp
from threeloops_grader.sandbox.confine import PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG, limit_memory, prctl

__all__ = ["Replays", "confine"]

_SECONDS = 30.0
"""The most seconds that one replay may take, or fewer if the test's own time ends before."""

_RESERVE_SECONDS = 1.0


class Replays:
    """The executing process of one submission, as the grader's half sees it."""

    def __init__(self, memory_mb: int, not_its_own: Sequence[int]) -> None:
        """Fork it. `not_its_own`: descriptors of the grader's half that it must not inherit."""
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            ours.close()
            for fd in not_its_own:
                os.close(fd)
            try:
                server.serve(theirs.fileno(), theirs.fileno(), lambda: confine(memory_mb))
            finally:
                os._exit(0)
        theirs.close()
        self.socket = ours

    def ask(self, tree: dict[str, Any], buffers: Sequence[Any], remaining: float) -> tuple[dict[str, Any], list[Any]]:
        """Return the answer to a question. The test has `remaining` seconds. Raises FrameError if the other end is
        gone."""
        seconds = max(0.1, min(_SECONDS, remaining - _RESERVE_SECONDS))
        return server.converse(self.socket.fileno(), self.socket.fileno(), tree, buffers, seconds)


def confine(memory_mb: int) -> None:
    """Leave a fork nothing but memory, CPU time and its pipe."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    limit_memory(memory_mb)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    seccomp.install(kernels_only=True)
