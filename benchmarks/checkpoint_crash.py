"""Crash states of common ways to save: in how many of them neither the old nor the new checkpoint can be loaded.

Each saves a small state over another one. What a power cut may leave is enumerated under the weakest rules and under
ext4's (`threeloops.training.checkpoint.crash`), and loaded.
"""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from threeloops.training.checkpoint.crash import EXT4, POSIX, check, recording

from benchmarks.result import Series

__all__ = ["Saver", "crash_rows", "dcp_load", "errors_in_a_file", "state_of", "torch_load"]

State = dict[str, torch.Tensor]
_ELEMENTS = 300


@dataclass(frozen=True)
class Saver:
    """A way to save a state of a step into a folder, and to load what is there."""

    name: str
    save: Callable[[Path, State, int], None]
    load: Callable[[Path], State]


def crash_rows(ours: Saver | None = None, *, most: int = 300) -> list[Series]:
    """Count, for each saver under each set of rules, states that lose both checkpoints or an acknowledged one.

    Args:
        ours: what the others are compared with.
        most: states right before each fsync, see `check`.
    """
    rows = []
    for rules in (POSIX, EXT4):
        for saver in (*([ours] if ours else []), *_PEERS):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", module="torch.distributed.checkpoint")
                found = _explored(saver, rules, most)
            for what, count in zip(("states", "both lost", "lost after it returned"), found, strict=True):
                rows.append(Series(f"crash states under {rules.name} rules: {what}", saver.name, "", (count,)))
    return sorted(rows, key=lambda row: row.what)


@contextmanager
def errors_in_a_file() -> Iterator[Path]:
    """Send stderr of this process and its children to a file: for each state that it cannot load, DCP prints
    tracebacks. An empty file is removed."""
    sys.stderr.flush()
    descriptor, name = tempfile.mkstemp(prefix="threeloops-checkpoint-", suffix=".log")
    plain = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield Path(name)
    finally:
        sys.stderr.flush()
        os.dup2(plain, 2)
        os.close(plain)
        os.close(descriptor)
        if not os.path.getsize(name):
            os.unlink(name)


def _explored(saver: Saver, rules, most: int) -> tuple[int, int, int]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        saver.save(folder, state_of(1), 1)
        with recording(folder) as recorder:
            saver.save(folder, state_of(2), 2)
        report = check(recorder.record, saver.load, rules, most=most)
    return report.states, report.count("broken"), report.count("lost")


def state_of(step: int) -> State:
    """Make the small state that a step saves."""
    return {name: torch.full((_ELEMENTS,), float(step)) for name in ("weight", "momentum")}


def _in_place(folder: Path, state: State, step: int) -> None:
    with open(folder / "model.pt", "wb") as file:
        torch.save(state, file)


def _replaced(folder: Path, state: State, step: int) -> None:
    with open(folder / "model.pt.tmp", "wb") as file:
        torch.save(state, file)
    os.replace(folder / "model.pt.tmp", folder / "model.pt")


def _dcp_in_place(folder: Path, state: State, step: int) -> None:
    dcp.save(state, checkpoint_id=folder / "checkpoint", no_dist=True)


def _dcp_steps(folder: Path, state: State, step: int) -> None:
    dcp.save(state, checkpoint_id=folder / f"step-{step}", no_dist=True)
    (folder / "latest.tmp").write_text(f"step-{step}")
    os.replace(folder / "latest.tmp", folder / "latest")


def torch_load(folder: Path) -> State:
    """Load the state that torch.save wrote into `model.pt`."""
    return torch.load(folder / "model.pt", weights_only=True)


def dcp_load(folder: Path) -> State:
    """Load the state that DCP saved in a folder."""
    state = {name: torch.zeros(_ELEMENTS) for name in ("weight", "momentum")}
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    return state


_PEERS = (
    Saver("torch.save in place", _in_place, torch_load),
    Saver("torch.save, os.replace, no fsync", _replaced, torch_load),
    Saver("torch DCP in place", _dcp_in_place, lambda folder: dcp_load(folder / "checkpoint")),
    Saver(
        "torch DCP step folders, pointer",
        _dcp_steps,
        lambda folder: dcp_load(folder / (folder / "latest").read_text()),
    ),
)
