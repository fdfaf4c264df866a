"""A rank's records of its calls: the collectives whose time is not charged yet, and the handles of all calls."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future

from threeloops.training.cluster.programs.actor import ActorSocket

__all__ = ["Rank", "Work"]

_ON_THE_WAY = (
    __name__,
    f"{__package__}.group",
    "torch.distributed.distributed_c10d",
    "torch.distributed.c10d_logger",
)
"""The modules between a program's call and this one."""


class Rank:
    """This process: its number, its conversation with the router, and collectives whose time is still to be charged."""

    def __init__(self, rank: int, size: int, main: ActorSocket) -> None:
        self.rank = rank
        self.size = size
        self.main = main
        self.unsettled: list[int] = []
        self._settles_after = -1
        self._under_way: dict[int, tuple[int, int, str]] = {}
        self._left_by_torch: set[int] = set()

    def begin(self, handle: int) -> int:
        """Note a collective. A program must wait for each of its own collectives. torch itself never waits for some of
        its collectives, such as those of `DDP.join`, so `finish` waits for them."""
        if _by_torch():
            self._left_by_torch.add(handle)
        return handle

    def finish(self) -> None:
        """Wait, after the program has returned, for everything that it did not wait for itself."""
        self.main.check_thread()
        self.synchronize()
        if self._left_by_torch:
            self.main.wait(*sorted(self._left_by_torch))

    def synchronize(self) -> None:
        """Let the clock of the program catch up with the collectives whose values it has seen."""
        if self.unsettled:
            handles = self.unsettled
            self.unsettled = []
            self.main.wait(*handles)

    def leave_unsettled(self, handle: int) -> None:
        """Charge the time of this collective at the end of the backward pass, if one is running, else at the next
        `synchronize`. torch's DDP makes the current stream wait for its collectives in a callback of the autograd
        engine, which runs then."""
        self.unsettled.append(handle)
        self._left_by_torch.discard(handle)
        task = torch._C._current_graph_task_id()
        if task not in (-1, self._settles_after):
            self._settles_after = task
            torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)

    def _after_backward(self) -> None:
        self._settles_after = -1  # what other callbacks of this backward pass begin needs a callback of its own
        self.synchronize()

    def settle(self, handle: int) -> None:
        """Charge the time of one unsettled collective now."""
        if handle in self.unsettled:
            self.unsettled.remove(handle)
            self.main.wait(handle)

    def message(self, begin: Callable[[], int], tensor: torch.Tensor, what: str) -> int:
        """Begin a message out of this tensor or into it.

        Raises if another unfinished message fills the same memory, or if this one would fill memory that is still to be
        sent. torch itself may do so: its pipelining opens all connections before the first step with numbers that
        nobody reads, and receives those of both neighbours into one tensor.
        """
        start = tensor.data_ptr()
        end = tensor.data_ptr() + tensor.nbytes * tensor.is_contiguous()
        for other_start, other_end, other in self._under_way.values():
            sent = what.startswith("isend") and other.startswith("isend")
            if start < other_end and other_start < end and not sent and not _by_torch():
                raise RuntimeError(
                    f"the tensor of this {what} shares memory with that of the {other}, which is not over: wait() for "
                    "that one first, or use another tensor"
                )
        handle = begin()
        self._under_way[handle] = start, end, what
        return handle

    def wait(self, handle: int) -> memoryview:
        self._under_way.pop(handle, None)
        self._left_by_torch.discard(handle)
        return self.main.wait(handle)[0]


def _by_torch() -> bool:
    """Whether torch itself makes the call, and not the program."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") in _ON_THE_WAY:
        frame = frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).startswith("torch.")


class Work(dist.Work):
    """A handle. `wait` moves the program's clock; `get_future` gives the values at once, and its `wait` moves the clock
    if Python calls it. C++ code, such as torch's DDP, waits for the future where we do not see it: see
    `Rank.leave_unsettled`. A poll waits, because a program that polls lets no virtual time pass."""

    def __init__(
        self, rank: Rank, handle: int, result: Any, put: Callable[[memoryview], None], collective: bool
    ) -> None:
        super().__init__()
        self._rank = rank
        self._handle = handle
        self._result = result
        self._put = put
        self._collective = collective
        self._done = False

    def wait(self, timeout: Any = None) -> bool:
        if not self._done:
            self._put(self._rank.wait(self._handle))
            self._done = True
        self._rank.settle(self._handle)
        return True

    def is_completed(self) -> bool:
        return self.wait()

    def is_success(self) -> bool:
        return self._done

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> Any:
        return self._result

    def get_future(self) -> Future:
        if self._collective and not self._done:
            self._put(self._rank.main.wait_for_values(self._handle))
            self._rank.leave_unsettled(self._handle)
            self._done = True
        elif not self._done:
            self.wait()
        return _Values(self, self._result)


class _Values(Future):
    """A future that has its result. A program that waits for it, or for anything derived from it, also waits for the
    time of the collective."""

    def __init__(self, work: Work, result: Any) -> None:
        super().__init__()
        self._work = work
        self.set_result(result)

    def wait(self) -> Any:
        self._work.wait()
        return super().wait()

    def then(self, callback: Callable[[Future], Any]) -> Future:
        return _Values(self._work, callback(self))
