"""Copies beside the computation: a queue that carries them out one after another, in a thread or on a CUDA stream."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import torch
from torch import Tensor

Pairs = list[tuple[Tensor, Tensor]]
"""(target, source) of each copy."""


class Channel(Protocol):
    def submit(self, pairs: Pairs) -> Callable[[], None]:
        """Queue some copies; the returned function waits until they are done, for what runs after it."""
        ...

    def close(self) -> None: ...


class ThreadChannel:
    """One thread beside the caller's. With `bytes_per_second` it is as slow as a link or a disk of that bandwidth."""

    def __init__(self, bytes_per_second: float | None = None):
        if bytes_per_second is not None and not bytes_per_second > 0:
            raise ValueError(f"bytes_per_second = {bytes_per_second}: expected a positive bandwidth, or None")
        self._rate = bytes_per_second
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="offload")

    def submit(self, pairs: Pairs) -> Callable[[], None]:
        done: Future[None] = self._thread.submit(self._copy, pairs)
        return lambda: done.result()

    def _copy(self, pairs: Pairs) -> None:
        started = time.perf_counter()
        for target, source in pairs:
            target.copy_(source)
        if self._rate is not None:
            due = started + sum(target.nbytes for target, _ in pairs) / self._rate
            if (left := due - time.perf_counter()) > 0:
                time.sleep(left)

    def close(self) -> None:
        self._thread.shutdown()


class StreamChannel:
    """A CUDA stream of its own: copies wait for the work issued before them, and later work for `submit`'s function.

    Only copies from and to page-locked memory run beside the device's work.
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
