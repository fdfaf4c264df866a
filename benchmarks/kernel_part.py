"""One part of the kernels benchmark in a process of its own: where Triton interprets kernels it compiles none, and the
other way round."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from threeloops_grader.evidence.result_rows import BEGUN, ENDED, append, begin, measured, note, settled
from threeloops_grader.machine.child_process import run_child
from threeloops_grader.machine.provenance import Device

from benchmarks.result import Unmeasured

Row = dict[str, Any]
"""One line of a table: plain data, which says what was counted and of which kernel, shape and dtype."""

Piece = tuple[Row, Callable[[], Iterator[Row]]]
"""The subject of a piece of work, and a function that computes its rows as they are asked for."""

OURS, TORCH, LIGER = "threeloops", "torch", "liger"
"""Parties: whose kernel a row is about."""

COPY = "copy"
"""The name under which torch's copy stands among the kernels: its speed is what memory gives to anyone."""

Share = tuple[int, int]
"""(i, n): one of n parts of the work of about the same length."""

CONTEXT_LOST = 3
"""Exit code of a process whose CUDA context a kernel has broken: another process goes on."""


def run_part(
    module: str,
    *,
    quick: bool,
    seconds: float,
    device: Device = "cpu",
    share: Share = (0, 1),
    rows: Path | None = None,
    about: str = "",
) -> list[Row]:
    """The rows of `python -m benchmarks.MODULE`, kernels interpreted (device "cpu") or compiled ("cuda").

    They are written to the file `rows` as they come; what stands there of the same `about` is not done again. Raises
    Unmeasured with the child's last word where it fails or takes longer than `seconds`.
    """
    with tempfile.TemporaryDirectory() as scratch:
        file = rows or Path(scratch) / "rows.jsonl"
        begin(file, about)
        options = ["--share", *map(str, share), *(["--quick"] if quick else []), "--rows", str(file)]
        changes = {"THREELOOPS_DEVICE": device, "TRITON_INTERPRET": None, "OMP_NUM_THREADS": "1"}
        if device == "cpu":  # a launcher that sees a GPU asks it for its multiprocessors, and counts would differ
            changes |= {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
        done = run_child(["-m", f"benchmarks.{module}", *options], seconds, changes=changes)
        if done.returncode != 0:
            kept = f"; {len(measured(file))} rows are kept, and the next call goes on from them" if rows else ""
            raise Unmeasured(f"benchmarks.{module}: {done.why}{kept}")
        return measured(file)


def answer(pieces: Callable[[bool, Share], Iterator[Piece]]) -> None:
    """The other end of `run_part`: parse its options, print each row as it comes, or add it to the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--share", type=int, nargs=2, default=(0, 1))
    parser.add_argument("--rows", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        file = options.rows or Path(scratch) / "rows.jsonl"
        work(pieces(options.quick, tuple(options.share)), file, show=options.rows is None)


def work(pieces: Iterator[Piece], file: Path, *, show: bool = False) -> None:
    """Do the pieces that the file does not hold yet. A piece that raises is a row which says so, and stops no other.

    Exits with CONTEXT_LOST where the exception says that the GPU can no longer be used by this process.
    """
    known = settled(file)
    for about, rows in pieces:
        name = json.dumps(about, ensure_ascii=False, sort_keys=True)
        if known.get(name):
            continue
        abandoned = name in known
        note(file, name, BEGUN)
        lost = False
        try:
            for row in [{**about, "failed": "twice begun and never ended"}] if abandoned else rows():
                append(file, row)
                if show:
                    print(json.dumps(row, ensure_ascii=False), flush=True)
        except Exception as error:
            said = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            append(file, {**about, "failed": said})
            print(f"{name}: {said}", file=sys.stderr, flush=True)
            lost = context_is_lost(error)
        note(file, name, ENDED)
        if lost:
            sys.exit(CONTEXT_LOST)


def context_is_lost(error: Exception) -> bool:
    """Whether every later call of CUDA in this process will fail as well."""
    import torch

    if isinstance(error, torch.OutOfMemoryError) or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except Exception:  # any exception here is an answer
        return True
    return False


def every_row(pieces: Iterator[Piece]) -> Iterator[Row]:
    """The rows of all pieces, one after another."""
    for _, rows in pieces:
        yield from rows()
