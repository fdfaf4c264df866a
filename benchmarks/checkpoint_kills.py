"""Saves that are killed by SIGKILL at random moments: after how many is the checkpoint that was there lost, or broken?

`python -m benchmarks.checkpoint_kills SAVER FOLDER KILLS` prints what it found as JSON. It is a process of its own,
since it forks: the benchmark's has threads, and so has pytest's.
"""

from __future__ import annotations

import json
import logging
import os
import random
import select
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from threeloops.training.checkpoint import Checkpointer, LocalStore

from benchmarks.result import Series

__all__ = ["kill_rows"]

State = dict[str, torch.Tensor]
_ELEMENTS = 30_000


def kill_rows(folder: Path, kills: int) -> list[Series]:
    """Count for each saver, among `kills` killed processes, how many left a checkpoint that is older than what was
    acknowledged, or that cannot be loaded."""
    rows = []
    for saver in _SAVERS:
        place = folder / f"kills {saver}"
        place.mkdir()
        command = [sys.executable, "-m", "benchmarks.checkpoint_kills", saver, str(place), str(kills)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
        found = json.loads(done.stdout)
        rows.append(Series(f"checkpoints lost in {kills} kills", saver, "", (found["lost"] + found["broken"],)))
    return rows


class _Ours:
    """Every other process saves asynchronously, and most of the saves are incremental."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._checkpointer = Checkpointer(LocalStore(folder), keep=2, full_every=4, milestones=0)
        self._asynchronous = os.getpid() % 2 == 1

    def save(self, step: int) -> None:
        if self._asynchronous:
            self._checkpointer.save_async(step, _state(step))
            self._checkpointer.wait()
        else:
            self._checkpointer.save(step, _state(step))

    def load(self) -> State:
        loaded = self._checkpointer.load()
        if loaded.skipped:
            raise RuntimeError(f"skipped: {loaded.skipped}")
        return loaded.state


class _InPlace:
    """torch.save over the file that is there."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "model.pt"

    def save(self, step: int) -> None:
        with self._path.open("wb") as file:
            torch.save(_state(step), file)
            file.flush()
            os.fsync(file.fileno())

    def load(self) -> State:
        return torch.load(self._path, weights_only=True)


class _DcpInPlace:
    """torch.distributed.checkpoint over the folder that is there."""

    def __init__(self, folder: Path) -> None:
        self._place = folder / "checkpoint"

    def save(self, step: int) -> None:
        dcp.save(_state(step), storage_writer=dcp.FileSystemWriter(self._place, sync_files=True), no_dist=True)

    def load(self) -> State:
        state = _state(0)
        dcp.load(state, checkpoint_id=self._place, no_dist=True)
        return state


_SAVERS: dict[str, Callable[[Path], _Ours | _InPlace | _DcpInPlace]] = {
    "threeloops": _Ours,
    "torch.save in place": _InPlace,
    "torch DCP in place": _DcpInPlace,
}


def _state(step: int) -> State:
    """One tensor that changes in every step, one that changes in some blocks, and one that never does."""
    some = torch.arange(600_000, dtype=torch.float32)
    some[(step * 50_021) % len(some)] = step
    return {
        "all": torch.full((_ELEMENTS,), float(step)),
        "some": some,
        "same": torch.ones(_ELEMENTS),
        "step": torch.tensor(step),
    }


def _kill_once(make: Callable[[Path], _Ours | _InPlace | _DcpInPlace], folder: Path, step: int, delay: float) -> int:
    """Let a child save one step after the other, and kill it so many seconds after its first save; the last step that
    it acknowledged."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            saver = make(folder)
            while True:
                step += 1
                saver.save(step)
                os.write(write, step.to_bytes(8, "little"))
        finally:
            os._exit(1)
    os.close(write)
    last = int.from_bytes(os.read(read, 8), "little")
    started = time.monotonic()
    while (left := started + delay - time.monotonic()) > 0:
        if select.select([read], [], [], left)[0]:
            last = int.from_bytes(os.read(read, 8), "little")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while data := os.read(read, 8):
        last = int.from_bytes(data, "little")
    os.close(read)
    return last


def _main(name: str, folder: Path, kills: int) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    make, draw = _SAVERS[name], random.Random(0)
    found = {"kills": kills, "lost": 0, "broken": 0, "interrupted": 0, "acknowledged": 0}
    started = time.monotonic()
    make(folder).save(1)
    once, step = time.monotonic() - started, 1
    for _ in range(kills):
        last = _kill_once(make, folder, step, draw.uniform(0, once))
        found["acknowledged"] = last
        found["interrupted"] += any(path.name.endswith(".tmp") for path in folder.rglob("*"))
        try:
            loaded = make(folder).load()
            step = int(loaded["step"])
            expected = _state(step)
            whole = loaded.keys() == expected.keys() and all(
                torch.equal(loaded[each], expected[each]) for each in loaded
            )
        except (Exception, dcp.api.CheckpointException):  # which is no Exception
            whole = False
        found["broken"] += not whole
        found["lost"] += whole and step < last
        if not whole:
            step = last
            make(folder).save(step)  # as whoever trains would: begin again
    print(json.dumps(found))


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
