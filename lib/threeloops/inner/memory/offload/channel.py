"""Copies beside the computation, one after another, in a thread or on a CUDA stream."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import torch
from torch import Tensor

from threeloops.simulation.clock import RealClock
from threeloops.simulation.link import SharedLink

__all__ = ["Channel", "Pairs", "StreamChannel", "ThreadChannel", "channel_for"]

Pairs = list[tuple[Tensor, Tensor]]
"""(target, source) of each copy."""


class Channel(Protocol):
    def submit(self, pairs: Pairs) -> Callable[[], None]:
        """Queue copies. The returned function makes later work wait until they are done."""
        ...

    def close(self) -> None: ...


class ThreadChannel:
    """A thread. With `bytes_per_second` it is as slow as a link or a disk of that bandwidth."""

    def __init__(self, bytes_per_second: float | None = None):
        if bytes_per_second is not None and not bytes_per_second > 0:
            raise ValueError(f"bytes_per_second = {bytes_per_second}: expected a positive bandwidth, or None")
        self._link = SharedLink(0.0, bytes_per_second or math.inf)
        self._clock = RealClock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="offload")

    def submit(self, pairs: Pairs) -> Callable[[], None]:
        return self._thread.submit(self._copy, pairs).result

    def _copy(self, pairs: Pairs) -> None:
        arrives = self._link.reserve(self._clock.now(), sum(target.nbytes for target, _ in pairs))
        for target, source in pairs:
            target.copy_(source)
        self._clock.sleep_until(arrives)

    def close(self) -> None:
        self._thread.shutdown()


class StreamChannel:
    """A separate CUDA stream, on which only copies from and to page-locked memory run beside the device's work.

    Copies wait for the work that was queued before them.
    """

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()

    def submit(self, pairs: Pairs) -> Callable[[], None]:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
            done: Any = self._stream.record_event()
        return lambda: torch.cuda.current_stream().wait_event(done)

    def close(self) -> None:
        self._stream.synchronize()


def channel_for(device: torch.device) -> Channel:
    return StreamChannel() if device.type == "cuda" else ThreadChannel()
