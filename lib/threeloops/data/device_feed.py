"""The last metre: from host memory to the device, while the device computes.

A copy can only run beside kernels if its source is pinned (the DMA engine must not meet a page that has moved) and if
it is queued on a stream of its own. Two pinned buffers and two device buffers are enough: one is filled while the
other is used. Events say when a buffer may be used again; nothing waits for the whole device.
"""

from collections.abc import Iterable, Iterator

import torch


class DeviceFeed:
    """Batches on `device`, in order: tensors of one shape and dtype, the last may have fewer rows.

    On CUDA a batch is valid until the next one is asked for: its buffer is then filled again, behind the work that
    the current stream has queued by that moment.
    On the CPU batches pass through unchanged.
    """

    def __init__(self, batches: Iterable[torch.Tensor], device: str | torch.device, buffers: int = 2) -> None:
        if buffers < 2:
            raise ValueError(f"buffers = {buffers}: expected at least 2, one to fill while one is used")
        self.batches, self.device, self.buffers = batches, torch.device(device), buffers

    def __iter__(self) -> Iterator[torch.Tensor]:
        return self._on_cuda() if self.device.type == "cuda" else iter(self.batches)

    def _on_cuda(self) -> Iterator[torch.Tensor]:
        copies = torch.cuda.Stream(self.device)
        try:
            yield from self._through(copies)
        finally:
            copies.synchronize()  # no copy may write to a buffer that is being freed

    def _through(self, copies: "torch.cuda.Stream") -> Iterator[torch.Tensor]:
        slots: list[_Slot] = []
        waiting: list[tuple[_Slot, int]] = []
        given: _Slot | None = None
        for number, batch in enumerate(self.batches):
            if len(slots) < self.buffers:
                slots.append(_Slot(batch, self.device))
            slot = slots[number % self.buffers]
            waiting.append((slot, slot.fill(batch, copies)))
            # The copies of the next buffers - 1 batches are queued before a batch is given out.
            if len(waiting) == self.buffers:
                given = self._give(waiting)
                yield given.device[: given.rows]
                given.release()
        while waiting:
            given = self._give(waiting)
            yield given.device[: given.rows]
            given.release()

    def _give(self, waiting: list[tuple["_Slot", int]]) -> "_Slot":
        slot, rows = waiting.pop(0)
        slot.rows = rows
        torch.cuda.current_stream(self.device).wait_event(slot.copied)
        return slot


class _Slot:
    """A pinned buffer, a device buffer of the same shape, and what has happened to them."""

    def __init__(self, like: torch.Tensor, device: torch.device) -> None:
        self.host = torch.empty(like.shape, dtype=like.dtype, pin_memory=True)
        self.device = torch.empty(like.shape, dtype=like.dtype, device=device)
        self.copied, self.used, self.rows = torch.cuda.Event(), torch.cuda.Event(), 0
        self.release()  # the allocator may have handed out memory that queued work still uses

    def fill(self, batch: torch.Tensor, copies: "torch.cuda.Stream") -> int:
        """Queue the copy of a batch. The host waits for this pinned buffer, the stream for the device buffer."""
        if batch.shape[1:] != self.host.shape[1:] or len(batch) > len(self.host) or batch.dtype != self.host.dtype:
            raise ValueError(
                f"a batch is {batch.dtype} {tuple(batch.shape)}, the first was {self.host.dtype} "
                f"{tuple(self.host.shape)}: expected the same, or fewer rows"
            )
        self.copied.synchronize()
        rows = len(batch)
        self.host[:rows].copy_(batch)
        copies.wait_event(self.used)
        with torch.cuda.stream(copies):
            self.device[:rows].copy_(self.host[:rows], non_blocking=True)
            self.copied.record(copies)
        return rows

    def release(self) -> None:
        """The consumer has queued everything that reads this buffer."""
        self.used.record(torch.cuda.current_stream(self.device.device))
