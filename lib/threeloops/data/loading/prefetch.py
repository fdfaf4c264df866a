"""Prefetching: samples are asked for before they are needed, given out in order, and never more than a few ahead.

The whole policy runs in the consumer's thread. Key i belongs to worker i mod W, so the next sample in order is always
the oldest result of one known worker: no shared queue, no reordering buffer, nothing that depends on who was faster.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Literal, TypeVar

from threeloops.data.errors import WorkerDied, WorkerFailed
from threeloops.data.loading.workers import Inline, ProcessWorker, ThreadWorker, Worker, said

T = TypeVar("T")
_KINDS: dict[str, Callable[[Callable[[Any], Any], str], Worker]] = {"thread": ThreadWorker, "process": ProcessWorker}


def prefetch(
    load: Callable[[Any], T],
    keys: Iterable[Any],
    workers: int = 1,
    ahead: int | None = None,
    kind: Literal["thread", "process"] = "thread",
    restarts: int = 0,
) -> "Prefetcher[T]":
    """`load(key)` for every key, in order, on threads or processes. `workers=0` loads in the consumer's own thread.

    `ahead` samples may be under way or waiting while the consumer has one: it bounds the memory; 2 a worker unless
    given. Processes need a `load` and samples that can be pickled; a dead one is replaced up to `restarts` times.
    """
    if workers < 0:
        raise ValueError(f"workers = {workers}: expected 0 (load in this thread) or more")
    if kind not in _KINDS:
        raise ValueError(f"kind = {kind!r}: expected one of {', '.join(map(repr, _KINDS))}")

    def hire(number: int) -> Worker:
        if not workers:
            return Inline(load)
        return _KINDS[kind](load, f"worker {number} of {workers}")

    return Prefetcher(keys, hire, max(workers, 1), 2 * max(workers, 1) if ahead is None else ahead, restarts)


class Prefetcher(Generic[T]):
    """Samples in the order of `keys`, from `hire(0)` … `hire(workers - 1)`, `ahead` of them in advance.

    - Before it waits for a sample, that one and the `ahead` behind it have been asked for, and nothing else. At most
      `ahead + 1` are alive while the consumer works on one, and one more while it waits for the next and still has the
      last, as the variable of a `for` loop does.
    - What a load raises ends the iteration as WorkerFailed, which names worker and key, from the exception itself.
    - A worker that dies raises WorkerDied, or, up to `restarts` times, is replaced, and what it owed is asked again:
      each sample still comes exactly once.
    - The workers stop when the iteration ends, however it ends. `with` also closes what was never iterated.
    """

    def __init__(
        self, keys: Iterable[Any], hire: Callable[[int], Worker], workers: int, ahead: int, restarts: int = 0
    ) -> None:
        if ahead < 0:
            raise ValueError(f"ahead = {ahead}: expected 0 (nothing in advance) or more")
        if restarts < 0:
            raise ValueError(f"restarts = {restarts}: expected 0 (a dead worker ends the iteration) or more")
        self.keys, self.hire, self.ahead, self.restarts = iter(keys), hire, ahead, restarts
        self.owed: deque[tuple[int, Any]] = deque()  # (worker, key) of each sample asked for and not given out
        self.next_worker, self.closed = 0, False
        self.workers: list[Worker] = []
        try:
            for number in range(workers):
                self.workers.append(hire(number))
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[T]:
        if self.closed:
            raise RuntimeError("this prefetcher is closed: its workers have stopped; make a new one")
        try:
            while True:
                self._ask(self.ahead + 1)  # the sample that is awaited, and `ahead` behind it
                if not self.owed:
                    return
                yield self._receive()
        finally:
            self.close()

    def _ask(self, limit: int) -> None:
        """Send keys until `limit` samples are owed or the keys run out."""
        while len(self.owed) < limit and (key := next(self.keys, _NOTHING)) is not _NOTHING:
            number = self.next_worker
            self.owed.append((number, key))
            self.next_worker = (number + 1) % len(self.workers)
            self.workers[number].send(key)

    def _receive(self) -> T:
        number, key = self.owed[0]
        while True:
            try:
                loaded = self.workers[number].receive()
                break
            except WorkerDied as death:
                self._replace(number, death)
        if (error := loaded.error) is not None:
            raise WorkerFailed(f"{self.workers[number].name}, sample {key!r}: {said(error)}") from error
        self.owed.popleft()
        return loaded.value

    def _replace(self, number: int, death: WorkerDied) -> None:
        """A new worker in the place of a dead one, with everything that the dead one owed."""
        self.workers[number].close()
        lost = [key for owner, key in self.owed if owner == number]
        if not self.restarts:
            raise WorkerDied(
                f"{death}; it owed {len(lost)} samples, the first of them {lost[0]!r}: resume from the last state, or "
                "allow restarts"
            ) from death
        self.restarts -= 1
        self.workers[number] = self.hire(number)
        for key in lost:
            self.workers[number].send(key)

    def close(self) -> None:
        self.closed = True
        for worker in self.workers:  # all of them, before waiting for one: the others would begin other jobs
            worker.stop()
        for worker in self.workers:
            worker.close()

    def __enter__(self) -> "Prefetcher[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_NOTHING = object()
