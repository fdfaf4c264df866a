"""What each step from disk to memory delivers on this machine: bytes a second, and seconds to the first byte.

A file that was just written or read is in the page cache, and reading it again measures memory. `forget` writes it out
and asks the kernel to drop it. What a hypervisor or a disk controller keeps in caches of its own cannot be dropped from
here: a cold read on a virtual machine may still come from somebody's memory.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

CHUNK = 1 << 20
SMALL = 4096


@dataclass(frozen=True)
class Tier:
    """Medians: `bandwidth` in bytes/s of reading from front to back, `latency` in seconds of reading 4 KiB anywhere."""

    name: str
    bandwidth: float
    latency: float


def measure_tiers(folder: Path, size: int = 64 << 20, repeats: int = 3, seed: int = 0) -> list[Tier]:
    """Memory, the page cache and the disk under `folder`, by a temporary file of `size` bytes (a multiple of 4 KiB)."""
    if size < CHUNK or size % SMALL:
        raise ValueError(f"size = {size} bytes: expected a multiple of {SMALL}, at least {CHUNK}")
    generator = np.random.default_rng(seed)
    path = Path(folder) / f"tiers-{os.getpid()}.bin"
    data = generator.bytes(size)
    places = [int(n) * SMALL for n in generator.integers(0, size // SMALL, 64)]
    try:
        path.write_bytes(data)
        found = [_memory(data, places, repeats)]
        for name, cold in (("page cache", False), ("disk", True)):
            times = [(_front_to_back(path, cold), _anywhere(path, places, cold)) for _ in range(repeats)]
            found.append(Tier(name, size / median(t for t, _ in times), median(t for _, t in times)))
        return found
    finally:
        path.unlink(missing_ok=True)


def _memory(data: bytes, places: list[int], repeats: int) -> Tier:
    source = np.frombuffer(data, np.uint8)
    target, small = np.empty_like(source), np.empty(SMALL, np.uint8)
    np.copyto(target, source)
    whole, single = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        np.copyto(target, source)
        copied = time.perf_counter()
        for place in places:
            np.copyto(small, source[place : place + SMALL])
        whole.append(copied - start)
        single.append((time.perf_counter() - copied) / len(places))
    return Tier("memory", len(data) / median(whole), median(single))


def forget(path: Path, *, flush: bool = True) -> None:
    """Write the file out and drop it from the page cache, where the system can (Linux).

    Flushing thousands of small files one by one takes seconds: call `os.sync()` once, and do without.
    """
    with Path(path).open("rb") as file:
        if flush:
            os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _front_to_back(path: Path, cold: bool) -> float:
    if cold:
        forget(path)
    buffer = bytearray(CHUNK)
    start = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - start


def _anywhere(path: Path, places: list[int], cold: bool) -> float:
    """Seconds a 4 KiB read, one after another, without reading ahead."""
    if cold:
        forget(path)
    with path.open("rb", buffering=0) as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        start = time.perf_counter()
        for place in places:
            file.seek(place)
            file.read(SMALL)
        return (time.perf_counter() - start) / len(places)
