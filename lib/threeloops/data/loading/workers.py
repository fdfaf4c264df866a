"""Workers, which load samples: in the consumer's own thread, in another thread or process, or on a virtual clock.

A worker returns results in the order of its keys. `threeloops.data.loading.prefetch` assigns the keys to workers.
"""

import multiprocessing
import queue
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

from threeloops.data.errors import WorkerDied, WorkerFailed
from threeloops.data.storage.slow_store import VirtualStore

__all__ = ["Inline", "Loaded", "ProcessWorker", "SimulatedWorker", "ThreadWorker", "Worker", "said"]


@dataclass(frozen=True)
class Loaded:
    """The result for one key: a value, or the exception that its load raised."""

    value: Any = None
    error: BaseException | None = None


class Worker(Protocol):
    name: str

    def send(self, key: Any) -> None: ...

    def receive(self) -> Loaded:
        """The result of the oldest key not yet received. Raises WorkerDied when there will be none."""
        ...

    def stop(self) -> None:
        """Begin no other job, without waiting: a thread still finishes its present one, a process drops it."""
        ...

    def close(self) -> None:
        """Stop, and wait until the worker has ended. May be called twice."""
        self.stop()


def _attempt(load: Callable[[Any], Any], key: Any, caught: type[BaseException] = Exception) -> Loaded:
    try:
        return Loaded(load(key))
    except caught as error:
        return Loaded(error=error)


class Inline(Worker):
    """Loads in the consumer's own thread, when it asks for the result."""

    def __init__(self, load: Callable[[Any], Any]) -> None:
        self.name = "the main process"
        self.load = load
        self.keys = deque[Any]()

    def send(self, key: Any) -> None:
        self.keys.append(key)

    def receive(self) -> Loaded:
        return _attempt(self.load, self.keys.popleft())

    def stop(self) -> None:
        self.keys.clear()


class ThreadWorker(Worker):
    """A thread, which shares the GIL with its consumer: right for waiting, and for C code that releases the GIL."""

    def __init__(self, load: Callable[[Any], Any], name: str) -> None:
        self.name = name
        self.load = load
        self.jobs: queue.SimpleQueue = queue.SimpleQueue()
        self.results: queue.SimpleQueue = queue.SimpleQueue()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (key := self.jobs.get()) is not _STOP and not self.stopped.is_set():
            # BaseException, because a thread that ended with SystemExit would leave its consumer waiting for ever.
            self.results.put(_attempt(self.load, key, BaseException))

    def send(self, key: Any) -> None:
        self.jobs.put(key)

    def receive(self) -> Loaded:
        return self.results.get()

    def stop(self) -> None:
        self.stopped.set()
        self.jobs.put(_STOP)

    def close(self) -> None:
        self.stop()
        self.thread.join()


_STOP = object()


class ProcessWorker(Worker):
    """A process, for Python code that computes. `load` and its results have to be picklable.

    It is spawned, because a fork of a process that runs threads, or has initialised CUDA, may hang. A load that cannot
    be pickled raises at once. A load, key, value or exception that cannot be unpickled becomes a WorkerFailed in place
    of its result.
    """

    def __init__(self, load: Callable[[Any], Any], name: str) -> None:
        self.name = name
        packed = ForkingPickler.dumps(load)  # before the process is started, which an error would leave behind
        context = multiprocessing.get_context("spawn")
        self.link, theirs = context.Pipe()
        # The load is sent over the link, not as an argument: `start` would write for ever to a process that dies.
        self.process = context.Process(target=_serve, args=(theirs,), name=name, daemon=True)
        self.process.start()
        theirs.close()  # the worker holds the only other end, so its death ends the stream
        self._post(packed)

    def send(self, key: Any) -> None:
        self._post(ForkingPickler.dumps(key))

    def _post(self, packed: memoryview) -> None:
        # A worker that died may have left answers in the pipe; `receive` returns those and then reports the death.
        with suppress(OSError):
            self.link.send_bytes(packed)

    def receive(self) -> Loaded:
        try:
            packed = self.link.recv_bytes()
        except (EOFError, OSError):
            raise self._died() from None
        try:
            return ForkingPickler.loads(packed)
        except Exception as error:
            return _stuck(error)

    def _died(self) -> WorkerDied:
        self.process.join(timeout=10)
        code = self.process.exitcode
        if code is None:
            return WorkerDied(f"{self.name} closed its link, but its process {self.process.pid} still runs")
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return WorkerDied(f"{self.name} {how}")

    def stop(self) -> None:
        self.link.close()
        self.process.terminate()

    def close(self) -> None:
        self.stop()
        self.process.join()


def _serve(link: Connection) -> None:
    """Runs in the worker process: the first message is the load, every other one a key."""
    messages: queue.SimpleQueue = queue.SimpleQueue()
    threading.Thread(target=_read, args=(link, messages), daemon=True).start()
    try:
        load = _attempt(partial(_unpacked, wrong=_NO_LOAD), messages.get())

        def load_packed(key: bytes) -> Any:
            if load.error is not None:
                raise load.error
            return load.value(_unpacked(key, _NO_KEY))

        while (key := messages.get()) is not _STOP:
            link.send_bytes(_packed(_attempt(load_packed, key, BaseException)))
    except (KeyboardInterrupt, OSError):  # the whole program was interrupted, or the consumer has gone
        return


def _read(link: Connection, messages: queue.SimpleQueue) -> None:
    """Read messages as they come. Otherwise both sides might write to full pipes, and neither read."""
    with suppress(EOFError, OSError):
        while True:
            messages.put(link.recv_bytes())
    messages.put(_STOP)  # in the place of a load that never came
    messages.put(_STOP)


_NO_KEY = "the key cannot cross to the worker process: {}"
_NO_LOAD = (
    "the load cannot be made in a worker process: {}. What a notebook defines cannot be imported there: put it into a "
    'module, or use kind="thread"'
)


def _unpacked(packed: bytes, wrong: str) -> Any:
    try:
        return ForkingPickler.loads(packed)
    except Exception as error:
        raise WorkerFailed(wrong.format(said(error))) from error


def _packed(loaded: Loaded) -> memoryview:
    """A result as bytes that the consumer can read. Exceptions are tried here: many pickle but do not unpickle."""
    try:
        packed = ForkingPickler.dumps(loaded)
        if loaded.error is not None:
            ForkingPickler.loads(packed)
        return packed
    except Exception as error:
        return ForkingPickler.dumps(_stuck(error if loaded.error is None else loaded.error))


def _stuck(error: BaseException) -> Loaded:
    return Loaded(error=WorkerFailed(f"cannot cross to the main process: {said(error)}"))


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


class SimulatedWorker(Worker):
    """Fetches one object at a time from a VirtualStore, on its clock, and then decodes it for a stated time."""

    def __init__(self, store: VirtualStore, decode_seconds: float, name: str) -> None:
        self.store = store
        self.decode_seconds = decode_seconds
        self.name = name
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

    def stop(self) -> None:
        self.jobs.clear()
