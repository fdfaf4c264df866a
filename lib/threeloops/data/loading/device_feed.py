"""Copies from host memory to the device while the device computes.

A copy can run beside kernels only if its source is pinned, because the DMA engine needs pages that do not move, and if
it is queued on a stream of its own. Two pinned buffers and two device buffers are enough: one is filled while the other
is used. Events say when a buffer may be used again, so that nothing waits for the whole device.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch

__all__ = ["DeviceFeed"]


class DeviceFeed:
    """Batches on `device`, in order: tensors of one shape and dtype; the last may have fewer rows.

    On CUDA a batch is valid until the next one is requested: its buffer is then filled again, behind the work that the
    current stream has queued by that moment. On the CPU batches pass through unchanged.

    A batch may be a tuple of the tensor and companions that stay on the host, as `Loader.with_states()` returns them.
    A Loader itself is refused: batches are drawn `buffers - 1` in advance, and it would count them as trained on.
    """

    def __init__(self, batches: Iterable[Any], device: str | torch.device, buffers: int = 2) -> None:
        if buffers < 2:
            raise ValueError(f"buffers = {buffers}: expected at least 2, one to fill while one is used")
        if hasattr(batches, "with_states"):
            raise TypeError(
                "batches: a loader counts a batch as trained on when the next is drawn, and a feed draws in advance; "
                "expected loader.with_states(), and `loader.state = after` after each step"
            )
        self.batches = batches
        self.device = torch.device(device)
        self.buffers = buffers
        if self.device.type not in ("cpu", "cuda"):
            raise ValueError(f"device = {str(self.device)!r}: expected cpu or cuda")

    def __iter__(self) -> Iterator[Any]:
        return self._on_cuda() if self.device.type == "cuda" else iter(self.batches)

    def _on_cuda(self) -> Iterator[Any]:
        copies = torch.cuda.Stream(self.device)
        slots: list[_Slot] = []
        waiting: deque[_Slot] = deque()
        try:
            for number, given in enumerate(self.batches):
                batch, *companions = given if isinstance(given, tuple) else (given,)
                if any(isinstance(companion, torch.Tensor) for companion in companions):
                    raise ValueError("a batch is a tuple of several tensors: expected one, and companions for the host")
                if len(slots) < self.buffers:
                    slots.append(_Slot(slots[0].host if slots else batch, self.device))
                slot = slots[number % self.buffers]
                slot.fill(batch, copies)
                slot.companions = companions
                waiting.append(slot)
                # The copies of the next buffers - 1 batches are queued before a batch is returned.
                if len(waiting) == self.buffers:
                    yield from self._give(waiting.popleft())
            while waiting:
                yield from self._give(waiting.popleft())
        finally:
            copies.synchronize()  # no copy may write to a buffer that is being freed

    def _give(self, slot: "_Slot") -> Iterator[Any]:
        torch.cuda.current_stream(self.device).wait_event(slot.copied)
        batch = slot.device[: slot.rows]
        yield (batch, *slot.companions) if slot.companions else batch
        slot.release()


class _Slot:
    """A pinned buffer and a device buffer for batches like the first, with events that say when each was last used."""

    def __init__(self, like: torch.Tensor, device: torch.device) -> None:
        self.host = torch.empty(like.shape, dtype=like.dtype, pin_memory=True)
        self.device = torch.empty(like.shape, dtype=like.dtype, device=device)
        self.copied = torch.cuda.Event()
        self.used = torch.cuda.Event()
        self.rows = 0
        self.companions = list[Any]()
        self.release()  # work that is already queued may still use this memory

    def fill(self, batch: torch.Tensor, copies: "torch.cuda.Stream") -> None:
        """Queue the copy of a batch. The host waits for the pinned buffer, the stream for the device buffer."""
        if batch.shape[1:] != self.host.shape[1:] or len(batch) > len(self.host) or batch.dtype != self.host.dtype:
            raise ValueError(
                f"a batch is {batch.dtype} {tuple(batch.shape)}, the first was {self.host.dtype} "
                f"{tuple(self.host.shape)}: expected the same, or fewer rows"
            )
        self.copied.synchronize()
        self.rows = rows = len(batch)
        self.host[:rows].copy_(batch)
        copies.wait_event(self.used)
        with torch.cuda.stream(copies):
            self.device[:rows].copy_(self.host[:rows], non_blocking=True)
            self.copied.record(copies)

    def release(self) -> None:
        """Call when the consumer has queued everything that reads this buffer."""
        self.used.record(torch.cuda.current_stream(self.device.device))
