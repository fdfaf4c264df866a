"""The compiling worker seen from the process that asks: started when first needed, kept, restarted when it dies."""

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

START_SECONDS = 120.0
"""Time to import Triton: about a second on an idle machine."""

COMPILES_A_WORKER = 1000
"""A worker is replaced after so many: the compiler's contexts are not all given back."""


class WorkerFailed(RuntimeError):
    """The worker died or was killed while it compiled. The next request starts another."""


class Worker:
    """One process. All of its methods must be called by one thread at a time."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="threeloops-compile-"))
        self.log: IO[bytes] = open(self.folder / "stderr", "w+b")  # noqa: SIM115 (lives as long as the worker)
        self.requests = 0
        self.process = subprocess.Popen(
            command("threeloops.inner.codegen.worker"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=worker_environment(self.folder),
            bufsize=0,
            start_new_session=True,  # an interrupt in the terminal is not for it, and its ptxas dies with it
        )
        self.buffer = b""

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def start(self) -> None:
        """Wait until it can be asked. Raises WorkerFailed."""
        self.answer(START_SECONDS, "not started", 0)

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to one request. Raises WorkerFailed if the worker dies or needs more than `seconds`."""
        self.requests += 1
        before = self.log_size()
        with contextlib.suppress(BrokenPipeError):  # it died: the answer's absence is looked into
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
        """Unbuffered: a fork in the meantime must not inherit half a request."""
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
        """The end of what the compiler printed since then, on a line of its own."""
        size = self.log_size() - position
        words = os.pread(self.log.fileno(), min(size, 2000), position + max(0, size - 2000)).decode(errors="replace")
        return f"\n{words.strip()}" if words.strip() else ""

    def end(self) -> None:
        """Kill the worker and what it started, and remove its folder."""
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


def worker_environment(folder: Path) -> dict[str, str]:
    """No interpreter, no GPU, and a folder for temporary files that goes with the worker."""
    kept = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": ""}
    return kept | hidden | {"THREELOOPS_COMPILE_ONLY": "1", "TMPDIR": str(folder)}


def triton_environment(folder: Path) -> dict[str, str]:
    """Triton's variables as they are now, and a cache that can be written."""
    kept = {name: text for name, text in os.environ.items() if name.startswith("TRITON_")}
    kept.pop("TRITON_INTERPRET", None)
    if "TRITON_CACHE_DIR" not in kept:
        cache = Path(kept.get("TRITON_HOME") or Path.home()) / ".triton" / "cache"
        if not os.access(next(path for path in (cache, *cache.parents) if path.exists()), os.W_OK):
            kept["TRITON_CACHE_DIR"] = str(folder / "cache")
    return kept


_lock = threading.Lock()
_worker: Worker | None = None


def ask_worker(request: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Let this process's worker answer `request`; start one if there is none. Raises WorkerFailed."""
    global _worker
    with _lock:
        if _worker is not None and (not _worker.alive or _worker.requests >= COMPILES_A_WORKER):
            end_worker()
        try:
            if _worker is None:
                _worker = Worker()
                _worker.start()
            environment = triton_environment(_worker.folder)
            return _worker.ask({**request, "environment": environment, "path": list(sys.path)}, seconds)
        except BaseException:  # an interrupt too: its answer would be taken for the next one's
            end_worker()
            raise


def end_worker() -> None:
    """End this process's worker, if it has one."""
    global _worker
    if _worker is not None:
        _worker.end()
        _worker = None


def _forget_in_child() -> None:
    """A forked child has its own worker. The parent's pipes are closed here, and nothing of the parent's is ended."""
    global _worker, _lock
    _lock = threading.Lock()
    if _worker is not None:
        _worker.abandon()
        _worker.process.returncode = 0  # not this process's child: never waited for
        _worker = None


atexit.register(end_worker)
os.register_at_fork(after_in_child=_forget_in_child)
