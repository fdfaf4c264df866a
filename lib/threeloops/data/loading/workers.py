"""Who loads a sample: nobody else, a thread, a process, or a simulation of one.

A worker takes jobs and gives results back in the same order. Which job goes to which worker is not its business: see
`threeloops.data.loading.prefetch`.
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


@dataclass(frozen=True)
class Loaded:
    """What came back for one key: a value, or the exception that its load raised."""

    value: Any = None
    error: BaseException | None = None


class Worker(Protocol):
    name: str

    def send(self, key: Any) -> None: ...

    def receive(self) -> Loaded:
        """The result of the oldest key not yet received. Raises WorkerDied when there will be none."""
        ...

    def stop(self) -> None:
        """Begin no other job: a thread finishes the one at hand, a process drops it. Does not wait."""
        ...

    def close(self) -> None:
        """Stop, and wait until that is done; safe to call twice."""
        ...


def attempt(load: Callable[[Any], Any], key: Any, caught: type[BaseException] = Exception) -> Loaded:
    try:
        return Loaded(load(key))
    except caught as error:
        return Loaded(error=error)


class Inline:
    """Zero workers: the consumer loads for itself, when it asks."""

    def __init__(self, load: Callable[[Any], Any]) -> None:
        self.name, self.load, self.keys = "the main process", load, deque[Any]()

    def send(self, key: Any) -> None:
        self.keys.append(key)

    def receive(self) -> Loaded:
        return attempt(self.load, self.keys.popleft())

    def stop(self) -> None:
        self.keys.clear()

    def close(self) -> None:
        self.stop()


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
            # sys.exit() and a cancellation too: a thread that died of them would leave its consumer waiting for ever.
            self.results.put(attempt(self.load, key, BaseException))

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


class ProcessWorker:
    """A process of its own: right for Python code that computes. `load` and what it returns have to be picklable.

    Processes are spawned: a fork of a process that already runs threads, or has initialised CUDA, may hang.
    `load` is the first message on the link, its keys follow; one that cannot be pickled raises here, at once. What
    fails on the way, a load, a key, a value or an exception, is a WorkerFailed in the place of that result.
    """

    def __init__(self, load: Callable[[Any], Any], name: str) -> None:
        self.name = name
        packed = ForkingPickler.dumps(load)  # before there is a process: what cannot be pickled leaves none behind
        context = multiprocessing.get_context("spawn")
        self.link, theirs = context.Pipe()
        # Nothing large goes to the process but over the link: to a process that dies, `start` would write for ever.
        self.process = context.Process(target=_serve, args=(theirs,), name=name, daemon=True)
        self.process.start()
        theirs.close()  # the worker holds the only other end, so its death ends the stream
        self._post(packed)

    def send(self, key: Any) -> None:
        self._post(ForkingPickler.dumps(key))

    def _post(self, packed: memoryview) -> None:
        # A dead worker takes no key. What it answered before may still lie in the pipe: `receive` finds out, in order.
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
            return WorkerDied(f"{self.name} closed its link, and its process {self.process.pid} goes on without it")
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return WorkerDied(f"{self.name} {how}")

    def stop(self) -> None:
        self.link.close()
        self.process.terminate()

    def close(self) -> None:
        self.stop()
        self.process.join()


def _serve(link: Connection) -> None:
    """What runs in a worker process: the first message is the load, every other one a key."""
    messages: queue.SimpleQueue = queue.SimpleQueue()
    threading.Thread(target=_read, args=(link, messages), daemon=True).start()
    try:
        made = attempt(partial(_unpacked, wrong=_NO_LOAD, advice=_ADVICE), messages.get())

        def load_packed(key: bytes) -> Any:
            if made.error is not None:
                raise made.error
            return made.value(_unpacked(key, _NO_KEY))

        while (key := messages.get()) is not _STOP:
            link.send_bytes(_packed(attempt(load_packed, key, BaseException)))
    except (KeyboardInterrupt, OSError):  # interrupted with the whole program, or there is nobody to answer any more
        return


def _read(link: Connection, messages: queue.SimpleQueue) -> None:
    """Take messages off the link as they come: else both sides may write, with full pipes, and neither read."""
    with suppress(EOFError, OSError):
        while True:
            messages.put(link.recv_bytes())
    messages.put(_STOP)  # for whoever awaits the load
    messages.put(_STOP)


def _unpacked(packed: bytes, wrong: str, advice: str = "") -> Any:
    try:
        return ForkingPickler.loads(packed)
    except Exception as error:
        raise WorkerFailed(f"{wrong}: {said(error)}{advice}") from error


_NO_KEY = "the key cannot cross to the worker process"
_NO_LOAD = "the load cannot be made in a worker process"
_ADVICE = '. What a notebook defines cannot be imported there: put it into a module, or use kind="thread"'


def _packed(loaded: Loaded) -> memoryview:
    """A result as bytes that the other side can read. Exceptions are tried: many pickle and do not come back."""
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

    def stop(self) -> None:
        self.jobs.clear()

    def close(self) -> None:
        self.stop()
