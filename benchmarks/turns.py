"""Take times in turns, so that whatever disturbs the machine meets all parties."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from benchmarks.progress import finished
from benchmarks.result import readable


def timed(run: Callable[[], Any], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def in_turns(parties: dict[str, Callable[[], Any]], device: str, rounds: int) -> dict[str, tuple[float, ...]]:
    """Seconds of each party, after one unmeasured run, in rounds: whatever disturbs the machine meets all of them."""
    found: dict[str, list[float]] = {name: [] for name in parties}
    for run in parties.values():
        run()
    for _ in range(rounds):
        for name, run in parties.items():
            found[name].append(timed(run, device))
    for name, times in found.items():
        finished(f"{name}, {rounds} rounds, median {readable(median(times), 's')}")
    return {name: tuple(times) for name, times in found.items()}
