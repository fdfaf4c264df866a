"""Who loads a sample: nobody else, a thread, a process, or a simulation of one.

A worker takes jobs and gives results back in the same order. Which job goes to which worker is not its business: see
`threeloops.data.prefetch`.
"""

import multiprocessing
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

from threeloops.data.errors import WorkerDied, WorkerFailed
from threeloops.data.slow_store import VirtualStore


@dataclass(frozen=True)
class Loaded:
    """What came back for one key: a value, or the exception that its load raised."""

    value: Any = None
    error: Exception | None = None


class Worker(Protocol):
    name: str

    def send(self, key: Any) -> None: ...

    def receive(self) -> Loaded:
        """The result of the oldest key not yet received. Raises WorkerDied when there will be none."""
        ...

    def close(self) -> None:
        """Stop after the job at hand, drop the rest; safe to call twice."""
        ...


def attempt(load: Callable[[Any], Any], key: Any) -> Loaded:
    try:
        return Loaded(load(key))
    except Exception as error:
        return Loaded(error=error)


class Inline:
    """Zero workers: the consumer loads for itself, when it asks."""

    def __init__(self, load: Callable[[Any], Any]) -> None:
        self.name, self.load, self.keys = "the main process", load, deque[Any]()

    def send(self, key: Any) -> None:
        self.keys.append(key)

    def receive(self) -> Loaded:
        return attempt(self.load, self.keys.popleft())

    def close(self) -> None:
        self.keys.clear()


class ThreadWorker:
    """Shares memory and the GIL with its consumer: right for waiting, and for C code that lets go of the GIL."""

    def __init__(self, load: Callable[[Any], Any], name: str) -> None:
        self.name, self.load = name, load
        self.jobs: queue.SimpleQueue = queue.SimpleQueue()
        self.results: queue.SimpleQueue = queue.SimpleQueue()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (key := self.jobs.get()) is not _STOP and not self.stopped.is_set():
            self.results.put(attempt(self.load, key))

    def send(self, key: Any) -> None:
        self.jobs.put(key)

    def receive(self) -> Loaded:
        return self.results.get()

    def close(self) -> None:
        self.stopped.set()
        self.jobs.put(_STOP)
        self.thread.join()


_STOP = object()


class ProcessWorker:
    """A process of its own: right for Python code that computes. `load` and what it returns have to be picklable.

    Processes are spawned: a fork of a process that already runs threads, or has initialised CUDA, may hang.
    """

    def __init__(self, load: Callable[[Any], Any], name: str) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self.link, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, load), name=name, daemon=True)
        self.process.start()
        theirs.close()  # the worker holds the only other end, so its death ends the stream

    def send(self, key: Any) -> None:
        # A dead worker takes no key. What it answered before may still lie in the pipe: `receive` finds out, in order.
        with suppress(OSError):
            self.link.send(key)

    def receive(self) -> Loaded:
        try:
            return self.link.recv()
        except (EOFError, OSError):
            raise self._died() from None

    def _died(self) -> WorkerDied:
        self.process.join()
        code = self.process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        return WorkerDied(f"{self.name} {how}")

    def close(self) -> None:
        self.link.close()
        self.process.terminate()
        self.process.join()


def _serve(link: Connection, load: Callable[[Any], Any]) -> None:
    while True:
        try:
            key = link.recv()
            loaded = attempt(load, key)
        except (EOFError, KeyboardInterrupt):
            return
        try:
            link.send(loaded)
        except OSError:
            return
        except Exception as error:  # what was loaded, or the exception itself, cannot be pickled
            said = (
                f"{type(loaded.error).__name__}: {loaded.error}" if loaded.error else f"{type(error).__name__}: {error}"
            )
            link.send(Loaded(error=WorkerFailed(f"cannot cross to the main process: {said}")))


class SimulatedWorker:
    """A worker on a virtual clock: fetches one object at a time from a VirtualStore, then decodes for a stated time."""

    def __init__(self, store: VirtualStore, decode_seconds: float, name: str) -> None:
        self.store, self.decode_seconds, self.name = store, decode_seconds, name
        self.jobs: deque[str] = deque()
        self.results: deque[Loaded] = deque()
        self.busy = False

    def send(self, key: str) -> None:
        self.jobs.append(key)
        self._next()

    def _next(self) -> None:
        if self.jobs and not self.busy:
            self.busy = True
            self.store.request(self.jobs.popleft(), self._fetched)

    def _fetched(self, answer: bytes | Exception) -> None:
        loaded = Loaded(error=answer) if isinstance(answer, Exception) else Loaded(answer)
        seconds = 0.0 if loaded.error else self.decode_seconds
        self.store.clock.at(self.store.clock.now() + seconds, lambda: self._done(loaded))

    def _done(self, loaded: Loaded) -> None:
        self.results.append(loaded)
        self.busy = False
        self._next()

    def receive(self) -> Loaded:
        self.store.clock.run_until(lambda: bool(self.results))
        return self.results.popleft()

    def close(self) -> None:
        self.jobs.clear()
