"""Starting and asking the worker process that compiles: it is started when first needed and replaced when it dies."""

import atexit
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any

from threeloops.module_process import command

__all__ = ["WorkerFailed", "ask_worker", "end_worker"]

_START_SECONDS = 120.0
"""Time to import Triton: about a second on an idle machine."""

_COMPILES_PER_WORKER = 1000
"""A worker is replaced after this many, because the compiler leaks memory."""


class WorkerFailed(RuntimeError):
    """The worker died or was killed while compiling. The next request starts another."""


class _Worker:
    """One process. Its methods must be called by one thread at a time."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="threeloops-compile-"))
        self.log: IO[bytes] = open(self.folder / "stderr", "w+b")  # noqa: SIM115 (lives as long as the worker)
        self.requests = 0
        environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
        hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}
        self.process = subprocess.Popen(
            command("threeloops.inner.codegen.compiler"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=environment | hidden | {"THREELOOPS_COMPILE_ONLY": "1", "TMPDIR": str(self.folder)},
            bufsize=0,
            start_new_session=True,  # so an interrupt in the terminal spares it, and killing it kills its ptxas
        )
        self.buffer = b""

    def start(self) -> None:
        """Wait until it is ready. Raises WorkerFailed."""
        self.answer(_START_SECONDS, "not started", 0)

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to one request. Raises WorkerFailed if the worker dies or needs more than `seconds`."""
        self.requests += 1
        before = self.log_size()
        with contextlib.suppress(BrokenPipeError):  # it died, which reading the answer reports
            self.write(json.dumps(request).encode() + b"\n")
        answer = self.answer(seconds, "not compiled", before)
        if "failed" in answer:
            answer["failed"]["printed"] = self.words_since(before)
        return answer

    def answer(self, seconds: float, late: str, before: int) -> dict[str, Any]:
        try:
            return json.loads(self.line(time.monotonic() + seconds))
        except TimeoutError:
            raise WorkerFailed(f"{late} after {seconds:g} s{self.words_since(before)}") from None
        except EOFError:
            code = self.process.wait()
            cause = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise WorkerFailed(f"the compiler's process ended ({cause}){self.words_since(before)}") from None

    def write(self, data: bytes) -> None:
        """Unbuffered, because a fork meanwhile must not inherit half a request."""
        assert self.process.stdin is not None
        while data:
            data = data[os.write(self.process.stdin.fileno(), data) :]

    def line(self, deadline: float) -> bytes:
        assert self.process.stdout is not None
        while b"\n" not in self.buffer:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            read = os.read(self.process.stdout.fileno(), 1 << 20)
            if not read:
                raise EOFError
            self.buffer += read
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def log_size(self) -> int:
        return os.fstat(self.log.fileno()).st_size

    def words_since(self, position: int) -> str:
        """The end of what the compiler has printed since then, on a new line."""
        size = self.log_size() - position
        words = os.pread(self.log.fileno(), min(size, 2000), position + max(0, size - 2000)).decode(errors="replace")
        return f"\n{words.strip()}" if words.strip() else ""

    def end(self) -> None:
        """Kill the worker and its children, and remove its folder."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.abandon()
        shutil.rmtree(self.folder, ignore_errors=True)

    def abandon(self) -> None:
        """Close this process's ends of the pipes."""
        for pipe in (self.process.stdin, self.process.stdout, self.log):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()


def _triton_environment(folder: Path) -> dict[str, str]:
    """The current TRITON_… variables, with a cache folder that can be written."""
    kept = {name: text for name, text in os.environ.items() if name.startswith("TRITON_")}
    kept.pop("TRITON_INTERPRET", None)
    if "TRITON_CACHE_DIR" not in kept:
        cache = Path(kept.get("TRITON_HOME") or Path.home()) / ".triton" / "cache"
        if not os.access(next(path for path in (cache, *cache.parents) if path.exists()), os.W_OK):
            kept["TRITON_CACHE_DIR"] = str(folder / "cache")
    return kept


_lock = threading.Lock()
_worker: _Worker | None = None


def ask_worker(request: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The worker's answer to `request`; starts a worker if this process has none. Raises WorkerFailed."""
    global _worker
    with _lock:
        if _worker is not None and (_worker.process.poll() is not None or _worker.requests >= _COMPILES_PER_WORKER):
            end_worker()
        try:
            if _worker is None:
                _worker = _Worker()
                _worker.start()
            environment = _triton_environment(_worker.folder)
            return _worker.ask({**request, "environment": environment, "path": list(sys.path)}, seconds)
        except BaseException:  # also an interrupt, whose answer would be taken for that of the next request
            end_worker()
            raise


def end_worker() -> None:
    """End this process's worker, if it has one."""
    global _worker
    if _worker is not None:
        _worker.end()
        _worker = None


def _forget_in_child() -> None:
    """A forked child gets its own worker: close the pipes of the parent's, and leave that running."""
    global _worker, _lock
    _lock = threading.Lock()
    if _worker is not None:
        _worker.abandon()
        _worker.process.returncode = 0  # it is not this process's child and must not be waited for
        _worker = None


atexit.register(end_worker)
os.register_at_fork(after_in_child=_forget_in_child)
