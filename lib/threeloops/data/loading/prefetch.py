"""Prefetching: samples are requested before they are needed, a bounded number ahead, and returned in order.

The whole policy runs in the consumer's thread. Key i belongs to worker i mod W, so the next sample is always the oldest
result of one known worker. This needs no shared queue and no reordering, and the result does not depend on which worker
was faster.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import cycle
from typing import Any, Generic, Literal, TypeVar

from threeloops.data.errors import WorkerDied, WorkerFailed
from threeloops.data.loading.workers import Inline, ProcessWorker, ThreadWorker, Worker, said

__all__ = ["Prefetcher", "T", "prefetch"]

T = TypeVar("T")
_KINDS: dict[str, Callable[[Callable[[Any], Any], str], Worker]] = {"thread": ThreadWorker, "process": ProcessWorker}


def prefetch(
    load: Callable[[Any], T],
    keys: Iterable[Any],
    workers: int = 1,
    ahead: int | None = None,
    kind: Literal["thread", "process"] = "thread",
) -> "Prefetcher[T]":
    """`load(key)` for every key, in order, on threads or processes. `workers=0` loads in the consumer's own thread.

    While the consumer has one sample, `ahead` others (by default 2 per worker) may be in flight or waiting: this bounds
    the memory. Processes need a `load` and samples that can be pickled.
    """
    if workers < 0:
        raise ValueError(f"workers = {workers}: expected 0 (load in this thread) or more")
    if kind not in _KINDS:
        raise ValueError(f"kind = {kind!r}: expected one of {', '.join(map(repr, _KINDS))}")

    def start_worker(number: int) -> Worker:
        return _KINDS[kind](load, f"worker {number} of {workers}") if workers else Inline(load)

    return Prefetcher(keys, start_worker, max(workers, 1), 2 * max(workers, 1) if ahead is None else ahead)


class Prefetcher(Generic[T]):
    """Samples in the order of `keys`, from `start_worker(0)` … `start_worker(workers - 1)`, `ahead` of them in advance.

    - When it waits for a sample, exactly that sample and the next `ahead` have been requested. At most `ahead + 1` are
      alive while the consumer works on one, and one more while it waits for the next and still holds the last.
    - An exception of a load ends the iteration as WorkerFailed, which names worker and key and has it as its cause.
    - A worker that dies ends it as WorkerDied.
    - The workers stop when the iteration ends, however it ends. `with` also stops those of one that never began.
    """

    def __init__(self, keys: Iterable[Any], start_worker: Callable[[int], Worker], workers: int, ahead: int) -> None:
        if ahead < 0:
            raise ValueError(f"ahead = {ahead}: expected 0 (nothing in advance) or more")
        self.keys = iter(keys)
        self.ahead = ahead
        self.in_flight: deque[tuple[Worker, Any]] = deque()  # (worker, key) of each sample requested and not returned
        self.closed = False
        self.workers: list[Worker] = []
        try:
            for number in range(workers):
                self.workers.append(start_worker(number))
        except BaseException:
            self.close()
            raise
        self.turns = cycle(self.workers)

    def __iter__(self) -> Iterator[T]:
        if self.closed:
            raise RuntimeError("this prefetcher is closed: its workers have stopped; make a new one")
        try:
            while True:
                self._request(self.ahead + 1)  # the sample that is awaited, and `ahead` behind it
                if not self.in_flight:
                    return
                yield self._receive()
        finally:
            self.close()

    def _request(self, limit: int) -> None:
        """Send keys until `limit` samples are in flight or the keys run out."""
        while len(self.in_flight) < limit and (key := next(self.keys, _NOTHING)) is not _NOTHING:
            worker = next(self.turns)
            self.in_flight.append((worker, key))
            worker.send(key)

    def _receive(self) -> T:
        worker, key = self.in_flight[0]
        try:
            loaded = worker.receive()
        except WorkerDied as death:
            lost = sum(owner is worker for owner, _ in self.in_flight)
            raise WorkerDied(
                f"{death}; {lost} samples were in flight, the first of them {key!r}: resume from the last state"
            ) from death
        if (error := loaded.error) is not None:
            raise WorkerFailed(f"{worker.name}, sample {key!r}: {said(error)}") from error
        self.in_flight.popleft()
        return loaded.value

    def close(self) -> None:
        self.closed = True
        for worker in self.workers:  # all, before waiting for one, since the others would begin new jobs meanwhile
            worker.stop()
        for worker in self.workers:
            worker.close()

    def __enter__(self) -> "Prefetcher[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_NOTHING = object()
