"""Announced ends: a spot machine is reclaimed, or a job reaches its time limit or is preempted.

The process first gets a SIGTERM and then has a grace period: 2 minutes on AWS, 30 s on Google Cloud and Azure and
between torchrun's SIGTERM and its SIGKILL, and the time given by `--signal` under Slurm (`requeue.sh`, beside this
module). That is enough to finish the step and save, so only the restart takes extra time.
"""

import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["RESUME_ME", "Grace"]

RESUME_ME = 75
"""Exit status that says: all is saved, start me again. EX_TEMPFAIL of sysexits.h."""


class Grace:
    """A context that only notes signals that ask the process to end.

    >>> with Grace() as grace:
    ...     for number in range(done, steps):
    ...         step(number)
    ...         if grace.agreed():
    ...             save(number + 1)
    ...             sys.exit(RESUME_ME)
    """

    def __init__(self, signals: Sequence[signal.Signals] = (signal.SIGTERM,)) -> None:
        self.requested: signal.Signals | None = None
        """The first signal that came here."""
        self._signals = tuple(signals)
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Grace":
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("Python handles signals in its main thread alone: expected to be entered there")
        self._before = {number: signal.signal(number, self._note) for number in self._signals}
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.requested = self.requested or signal.Signals(number)

    def agreed(self, group: dist.ProcessGroup | None = None) -> bool:
        """Whether any rank was asked to end: the same answer on all, so that all end after the same step.

        The signal reaches ranks at different times, some before this step and some after it. A rank that stopped alone
        would leave the others waiting in their next collective. Every rank must call it.
        """
        asked = torch.tensor(int(self.requested is not None))
        dist.all_reduce(asked, dist.ReduceOp.MAX, group=group)
        return bool(asked)
