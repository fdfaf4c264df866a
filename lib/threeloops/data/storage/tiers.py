"""Measure memory, the page cache and the disk of this machine: bandwidth, and latency of small reads.

A file that was just written or read is in the page cache, and `forget` asks the kernel to drop it. The caches of a
hypervisor or a disk controller cannot be dropped, so a cold read on a virtual machine may still come from memory.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

__all__ = ["Tier", "forget", "measure_tiers"]

_CHUNK = 1 << 20
_SMALL = 4096


@dataclass(frozen=True)
class Tier:
    """Medians: `bandwidth` in bytes/s of a sequential read, `latency` in seconds of a random read of 4 KiB."""

    name: str
    bandwidth: float
    latency: float


def measure_tiers(folder: Path, size: int = 64 << 20, repeats: int = 3, seed: int = 0) -> list[Tier]:
    """Measure with a temporary file of `size` bytes (a multiple of 4 KiB) in `folder`."""
    if size < _CHUNK or size % _SMALL:
        raise ValueError(f"size = {size} bytes: expected a multiple of {_SMALL}, at least {_CHUNK}")
    generator = np.random.default_rng(seed)
    path = Path(folder) / f"tiers-{os.getpid()}.bin"
    data = generator.bytes(size)
    places = [int(n) * _SMALL for n in generator.integers(0, size // _SMALL, 64)]
    try:
        path.write_bytes(data)
        times = {"memory": _read_memory(data, places, repeats)}
        for name, cold in (("page cache", False), ("disk", True)):
            times[name] = [(_read_all(path, cold), _read_random(path, places, cold)) for _ in range(repeats)]
    finally:
        path.unlink(missing_ok=True)
    return [
        Tier(name, size / median(all_ for all_, _ in readings), median(random for _, random in readings) / len(places))
        for name, readings in times.items()
    ]


def _read_memory(data: bytes, places: list[int], repeats: int) -> list[tuple[float, float]]:
    source = np.frombuffer(data, np.uint8)
    target = np.zeros_like(source)
    small = np.empty(_SMALL, np.uint8)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        np.copyto(target, source)
        copied = time.perf_counter()
        for place in places:
            np.copyto(small, source[place : place + _SMALL])
        times.append((copied - start, time.perf_counter() - copied))
    return times


def forget(path: Path, *, flush: bool = True) -> None:
    """Write the file out and drop it from the page cache, if the system can (Linux).

    Flushing thousands of small files one by one takes seconds. Call `os.sync()` once and pass flush=False instead.
    """
    with Path(path).open("rb") as file:
        if flush:
            os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read_all(path: Path, cold: bool) -> float:
    if cold:
        forget(path)
    buffer = bytearray(_CHUNK)
    start = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - start


def _read_random(path: Path, places: list[int], cold: bool) -> float:
    if cold:
        forget(path)
    with path.open("rb", buffering=0) as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        start = time.perf_counter()
        for place in places:
            file.seek(place)
            file.read(_SMALL)
        return time.perf_counter() - start
