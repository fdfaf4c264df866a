"""Run a program and measure what it and everything it starts use."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.result import Unmeasured

RESIDENT_PERIOD = 0.05
PROPORTIONAL_EVERY = 20
"""Every twentieth look also reads proportional sizes, which costs the kernel a walk through every page table."""


@dataclass(frozen=True)
class Usage:
    """One run. `peak_resident_bytes` sums resident sizes over the process tree, so a page that two processes share
    counts twice; `peak_proportional_bytes` counts it once, and is None where the system does not tell."""

    seconds: float
    peak_resident_bytes: int
    peak_proportional_bytes: int | None
    returncode: int


class TookTooLong(Unmeasured):
    """The program did not end in time and was ended, with everything it had started."""


def run_measured(argv: Sequence[str], cwd: Path, environment: Mapping[str, str], log: Path, seconds: float) -> Usage:
    """Run `argv` to its end, its output going to `log`.

    Raises:
        TookTooLong: it was still running after `seconds`.
    """
    with log.open("wb") as output:
        started = time.perf_counter()
        process = psutil.Popen(
            list(argv),
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        watch = _Watch(process)
        watch.start()
        try:
            code = process.wait(seconds)
        except psutil.TimeoutExpired:
            raise TookTooLong(f"{Path(argv[0]).name} did not end within {seconds:.0f} s") from None
        finally:
            elapsed = time.perf_counter() - started
            watch.stopped.set()
            watch.join()
            if process.is_running():
                _end(process)
    return Usage(elapsed, watch.resident, watch.proportional or None, code)


class _Watch(threading.Thread):
    def __init__(self, process: psutil.Process) -> None:
        super().__init__(daemon=True)
        self.process, self.stopped = process, threading.Event()
        self.resident = self.proportional = 0

    def run(self) -> None:
        look = 0
        while not self.stopped.is_set():
            tree = process_tree(self.process)
            self.resident = max(self.resident, sum(map(_resident, tree)))
            if look % PROPORTIONAL_EVERY == 0:
                self.proportional = max(self.proportional, sum(map(_proportional, tree)))
            look += 1
            self.stopped.wait(RESIDENT_PERIOD)


def process_tree(root: psutil.Process) -> list[psutil.Process]:
    """`root` and everything below it; what ended meanwhile is left out."""
    with suppress(psutil.NoSuchProcess):
        return [root, *root.children(recursive=True)]
    return []


def _resident(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return process.memory_info().rss
    return 0


def _proportional(process: psutil.Process) -> int:
    with suppress(psutil.Error, AttributeError):
        return process.memory_full_info().pss
    return _resident(process)


def _end(root: psutil.Process) -> None:
    tree = process_tree(root)
    for process in tree:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(tree, timeout=10)
