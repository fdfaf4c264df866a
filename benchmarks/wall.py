"""The cost of the wall itself: a cold start, a fork, a call, a test cell, a tensor there and back."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from jupyter_client.manager import start_new_kernel
from threeloops_grader.authoring.labs import Lab
from threeloops_grader.authoring.manifest import Kind, Manifest, manifest
from threeloops_grader.grading.session import Session
from threeloops_grader.machine.child_process import environment
from threeloops_grader.sandbox.pool import Pool, Sandbox

from benchmarks.result import Series

_SOURCE = """\
# %% nbgrader={"grade": false, "grade_id": "echo", "locked": false, "schema_version": 3, "solution": true}
def nothing():
    return None


def echo(x):
    return x

# %% nbgrader={"grade": true, "grade_id": "echo_test", "points": 1, "schema_version": 3, "solution": false}
assert echo(1) == 1
"""
_ANSWER = "def nothing():\n    return None\n\n\ndef echo(x):\n    return x\n"
_TIMED = """\
import json, time
import numpy as np
import torch
values = {values}
values = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
for _ in range({warm}):
    {call}
seconds = []
for _ in range({samples}):
    started = time.perf_counter()
    {call}
    seconds.append(time.perf_counter() - started)
print(json.dumps(seconds))
"""
_PIPE = """\
import json, multiprocessing, time
import numpy as np

def serve(connection):
    while (value := connection.recv()) is not None:
        connection.send(value)

ours, theirs = multiprocessing.Pipe()
process = multiprocessing.get_context("fork").Process(target=serve, args=(theirs,), daemon=True)
process.start()
for _ in range({warm}):
    ours.send({value}), ours.recv()
seconds = []
for _ in range({samples}):
    value = {value}
    started = time.perf_counter()
    ours.send(value), ours.recv()
    seconds.append(time.perf_counter() - started)
ours.send(None)
print(json.dumps(seconds))
"""
PICKLE, KERNEL, WALL = "multiprocessing.Pipe (pickle)", "Jupyter kernel", "the wall"


@dataclass(frozen=True)
class Effort:
    """How many samples to take of each thing."""

    starts: int
    forks: int
    cells: int
    calls: int
    large: int


QUICK, FULL = Effort(1, 10, 50, 200, 10), Effort(5, 40, 200, 1000, 40)


def wall_costs(sandbox: Sandbox, effort: Effort) -> list[Series]:
    """Each cost of the wall beside what the usual tool takes for the same: a Jupyter kernel, or a pickling pipe."""
    with tempfile.TemporaryDirectory() as scratch:
        trusted = _lab(Path(scratch))
        cold, warm = [], []
        for _ in range(effort.starts):
            started = time.perf_counter()
            pool = Pool(trusted.lab, sandbox)
            with Session(trusted, pool) as session:
                _run(session, Kind.SOLUTION, _ANSWER)
                cold.append(time.perf_counter() - started)
            if len(cold) < effort.starts:
                pool.close()
        try:
            for _ in range(effort.forks):
                started = time.perf_counter()
                with Session(trusted, pool) as session:
                    _run(session, Kind.SOLUTION, _ANSWER)
                    warm.append(time.perf_counter() - started)
            with Session(trusted, pool) as session:
                inside = list(_inside(session, effort))
        finally:
            pool.close()
    kernel_cold, kernel_cells = _kernel(effort.starts, effort.cells)
    return [
        Series("cold start to the first answer, torch imported", KERNEL, "s", tuple(kernel_cold), peer=True),
        Series("cold start to the first answer, torch imported", WALL, "s", tuple(cold)),
        Series("next submission to its first answer", WALL, "s", tuple(warm)),
        Series("one empty test cell", KERNEL, "s", tuple(kernel_cells), peer=True),
        *inside,
    ]


def _inside(session: Session, effort: Effort) -> Iterator[Series]:
    _run(session, Kind.SOLUTION, _ANSWER)
    empty = []
    for _ in range(effort.cells):
        started = time.perf_counter()
        _run(session, Kind.TEST, "1.0")
        empty.append(time.perf_counter() - started)
    yield Series("one empty test cell", WALL, "s", tuple(empty))
    yield from _compare(session, "one call", "nothing()", "0", effort.calls)
    small, large = "np.zeros((64, 64), np.float32)", "np.zeros(4 << 20, np.float32)"
    yield from _compare(session, "a 64 × 64 tensor there and back", "echo(values)", small, effort.calls)
    yield from _compare(session, "16 MiB there and back", "echo(values)", large, effort.large)


def _compare(session: Session, what: str, call: str, value: str, samples: int) -> Iterator[Series]:
    warm = min(5, samples)
    yield Series(what, PICKLE, "s", tuple(_pipe(value, samples, warm)), peer=True)
    printed = _run(session, Kind.TEST, _TIMED.format(call=call, values=value, samples=samples, warm=warm))
    yield Series(what, WALL, "s", tuple(json.loads(printed)))


def _run(session: Session, kind: Kind, source: str) -> str:
    outcome = session.cell(kind, source)
    if not outcome.ok:
        raise RuntimeError(f"the wall's own benchmark cell failed: {outcome.reason}")
    return outcome.printed


def _pipe(value: str, samples: int, warm: int) -> list[float]:
    """Round trips through multiprocessing's pipe: numpy arrays, since torch's tensors would pass by shared memory."""
    source = _PIPE.format(value=value, samples=samples, warm=warm)
    argv = [sys.executable, "-c", source]
    variables = environment({"OMP_NUM_THREADS": "1"})
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=True, env=variables)
    return json.loads(done.stdout)


def _kernel(starts: int, cells: int) -> tuple[list[float], list[float]]:
    """Cold starts of a Jupyter kernel that imports torch, and its time for an empty cell."""
    cold, empty = [], []
    for number in range(starts):
        started = time.perf_counter()
        with _started_kernel() as client:
            client.execute_interactive("import torch", timeout=120, output_hook=lambda message: None)
            cold.append(time.perf_counter() - started)
            for _ in range(cells if number == starts - 1 else 0):
                started = time.perf_counter()
                client.execute_interactive("1.0", timeout=60, output_hook=lambda message: None)
                empty.append(time.perf_counter() - started)
    return cold, empty


@contextmanager
def _started_kernel() -> Iterator:
    manager, client = start_new_kernel(kernel_name="python3", env=environment(), stderr=subprocess.DEVNULL)
    try:
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _lab(root: Path) -> Manifest:
    lab = Lab("90_echo", root)
    lab.folder.mkdir(parents=True)
    lab.source.write_text(_SOURCE, encoding="utf-8")
    return manifest(lab)
