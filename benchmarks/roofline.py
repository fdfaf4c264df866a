"""This machine's copy bandwidth and matmul rates as the library measures them, against other people's stopwatches.

The roofline of every lab stands on these numbers, so they must agree with numpy's own kernels and torch's own timer.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from threeloops.hardware.measure import (
    MATMUL_DTYPES,
    default_buffer_bytes,
    float32_precision,
    matmul_dtypes,
    measure_copy_bandwidth,
    measure_matmul_rate,
)
from threeloops_grader.machine.provenance import Device, Provenance
from torch.utils.benchmark import Timer

from benchmarks.result import Result, Series

LIBRARY = "threeloops.hardware"
TORCH_TIMER = "torch.utils.benchmark"
NUMPY = "numpy"
TRITON = "triton.testing.do_bench"
Rates = Callable[[int], list[float]]
"""A function that returns the rates of a given number of runs."""


def measure(provenance: Provenance, *, quick: bool = False) -> Result:
    """Rates of `provenance.device`, the library's and its peers' measured in turns."""
    device = provenance.device
    rounds, runs = (3, 3) if quick else (9, 5)
    sizes = {name: _matrix_size(device, name) for name in matmul_dtypes(device)}
    buffer_bytes = default_buffer_bytes(device)
    series = _in_turns("copy bandwidth", "bytes/s", copy_parties(device, buffer_bytes), rounds, runs)
    for name in matmul_dtypes(device):
        if device == "cpu" and name in ("bf16", "fp16") and quick:
            continue
        series += _in_turns(f"matmul rate, {name}", "FLOP/s", matmul_parties(device, name, sizes[name]), rounds, runs)
    settings = {"rounds": rounds, "runs": runs, "matrix": sizes, "buffer_bytes": buffer_bytes}
    return Result("roofline", provenance, settings, series, {"torch_threads": torch.get_num_threads()})


def _matrix_size(device: Device, dtype: str) -> int:
    """Large enough to keep the device busy; FP64 is smaller, since many GPUs do it at a 64th of their FP32 rate."""
    if device == "cpu":
        return 1024
    return 4096 if dtype == "fp64" else 8192


def _in_turns(what: str, unit: str, parties: dict[str, Rates], rounds: int, runs: int) -> list[Series]:
    found: dict[str, list[float]] = {name: [] for name in parties}
    for _ in range(rounds):
        for name, rates in parties.items():
            found[name] += rates(runs)
    return [Series(what, n, unit, tuple(samples), "higher", n == TORCH_TIMER) for n, samples in found.items()]


def copy_parties(device: Device, size: int) -> dict[str, Rates]:
    """Copy a buffer of `size` bytes; each byte counts as read once and written once."""
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    parties: dict[str, Rates] = {
        TORCH_TIMER: lambda runs: _timer("target.copy_(source)", {"target": target, "source": source}, 2 * size, runs),
        LIBRARY: lambda runs: list(measure_copy_bandwidth(device, buffer_bytes=size, runs=runs).samples),
    }
    if device == "cpu":
        ours, theirs = np.ones(size, np.uint8), np.zeros(size, np.uint8)
        parties[NUMPY] = lambda runs: _stopwatch(lambda: np.copyto(theirs, ours), 2 * size, runs)
    else:
        parties[TRITON] = lambda runs: _do_bench(lambda: target.copy_(source), 2 * size, runs)
    return parties


def matmul_parties(device: Device, dtype: str, size: int) -> dict[str, Rates]:
    """Multiply two matrices of `size` × `size`: 2·size³ operations."""
    kind = getattr(torch, MATMUL_DTYPES[dtype])
    precision = "high" if dtype == "tf32" else "highest"
    left, right = (torch.randn(size, size, device=device).to(kind) for _ in range(2))
    out, work = torch.empty_like(left), 2 * size**3
    names = {"torch": torch, "left": left, "right": right, "out": out}

    def timed(runs: int) -> list[float]:
        with float32_precision(precision):
            return _timer("torch.mm(left, right, out=out)", names, work, runs)

    def benched(runs: int) -> list[float]:
        with float32_precision(precision):
            return _do_bench(lambda: torch.mm(left, right, out=out), work, runs)

    parties: dict[str, Rates] = {
        TORCH_TIMER: timed,
        LIBRARY: lambda runs: list(measure_matmul_rate(dtype, device, size=size, runs=runs).samples),
    }
    if device == "cuda":
        parties[TRITON] = benched
    elif dtype in ("fp32", "fp64"):
        ours, theirs = left.numpy(), right.numpy()
        product = np.empty_like(ours)
        parties[NUMPY] = lambda runs: _stopwatch(lambda: np.matmul(ours, theirs, out=product), work, runs)
    return parties


def _timer(statement: str, names: dict[str, object], work: float, runs: int) -> list[float]:
    timer = Timer(statement, globals=names, num_threads=torch.get_num_threads())
    timer.timeit(2)
    return [work / timer.timeit(1).mean for _ in range(runs)]


def _stopwatch(call: Callable[[], object], work: float, runs: int) -> list[float]:
    call()
    rates = []
    for _ in range(runs):
        started = time.perf_counter()
        call()
        rates.append(work / (time.perf_counter() - started))
    return rates


def _do_bench(call: Callable[[], object], work: float, runs: int) -> list[float]:
    from triton.testing import do_bench

    return [work / (do_bench(call, warmup=5, rep=20, return_mode="median") / 1e3) for _ in range(runs)]
