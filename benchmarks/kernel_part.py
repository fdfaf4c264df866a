"""One part of the kernels benchmark in a process of its own: where Triton interprets kernels it compiles none, and the
other way round."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.result import Unmeasured
from grader.child import run_child
from grader.provenance import Device

Row = dict[str, Any]
"""One line of a table: plain data, which says what was counted and of which kernel, shape and dtype."""

OURS, TORCH, LIGER = "threeloops", "torch", "liger"
"""Parties: whose kernel a row is about."""

COPY = "copy"
"""The name under which torch's copy stands among the kernels: its speed is what memory gives to anyone."""

Share = tuple[int, int]
"""(i, n): every n-th piece of the work, from the i-th on."""


def run_part(module: str, *, quick: bool, seconds: float, device: Device = "cpu", share: Share = (0, 1)) -> list[Row]:
    """The rows of `python -m benchmarks.MODULE`, kernels interpreted (device "cpu") or compiled ("cuda").

    Raises Unmeasured with the child's last word where it fails or takes longer than `seconds`.
    """
    options = ["--share", *map(str, share), *(["--quick"] if quick else [])]
    changes = {"THREELOOPS_DEVICE": device, "TRITON_INTERPRET": None, "OMP_NUM_THREADS": "1"}
    if device == "cpu":  # a launcher that sees a GPU asks it for its multiprocessors, and counts would differ
        changes |= {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    done = run_child(["-m", f"benchmarks.{module}", *options], seconds, changes=changes)
    if done.returncode != 0:
        raise Unmeasured(f"benchmarks.{module}: {done.why}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def answer(rows: Callable[[bool, Share], Iterator[Row]]) -> None:
    """The other end of `run_part`: parse its options, print the rows as the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--share", type=int, nargs=2, default=(0, 1))
    options = parser.parse_args()
    found = list(rows(options.quick, tuple(options.share)))
    sys.stdout.write("\n" + json.dumps(found, ensure_ascii=False, allow_nan=False) + "\n")
