"""Feeding a loop: shards beside small files and webdataset, prefetching beside torch's DataLoader, checksums.

Store and consumer are simulated with stated numbers where the question is the method, and this machine's disk is read
where the question is the machine. Peers that are not installed are named as not measured.
"""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threeloops.data.formats.crc32c import crc32c
from threeloops.data.formats.sample import Sample
from threeloops.data.formats.small_files import list_samples, read_sample, write_small_files
from threeloops.data.formats.tar_members import BLOCK
from threeloops.data.formats.tar_shards import read_tar_shard, write_tar_shards
from threeloops.data.loading.prefetch import Prefetcher, prefetch
from threeloops.data.loading.workers import SimulatedWorker
from threeloops.data.storage.slow_store import SharedLink, SlowStore, VirtualStore
from threeloops.data.storage.store import MemoryStore
from threeloops.data.storage.tiers import forget, measure_tiers
from threeloops.hardware.probe import installed_version
from threeloops.simulation.clock import VirtualClock
from threeloops.simulation.pipeline import Stage, simulate
from threeloops_grader.machine.provenance import Provenance

from benchmarks.result import Result, Series, readable

LIBRARY, SMALL_FILES, WEBDATASET = "threeloops.data", "small files", "webdataset"
LATENCY, BANDWIDTH, READERS = 0.030, 200e6, 16
IMAGE, LABEL, SHARD = 100_000, 2, 100
STEP = 0.010


def measure(about: Provenance, *, quick: bool = False) -> Result:
    """Samples per second, utilisation, bytes per second; everything on the CPU."""
    rounds = 3 if quick else 7
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", ".")) as folder:
        series = [*far_store(), *disk(Path(folder), 500 if quick else 2000, rounds), *loaders(rounds)]
        series += checksums(rounds)
        tiers = measure_tiers(Path(folder), size=(16 if quick else 128) << 20, repeats=rounds)
    facts: dict[str, Any] = {
        "utilisation": utilisations(),
        "store": {"latency_s": LATENCY, "bandwidth_bytes_s": BANDWIDTH, "readers": READERS, "level": "model"},
        "tiers": {tier.name: {"bytes_per_s": tier.bandwidth, "latency_s": tier.latency} for tier in tiers},
        "versions": {name: installed_version(name) for name in ("numpy", "torch", "webdataset", "tensorboard")},
        "not_measured": [name for name in ("webdataset", "tensorboard") if installed_version(name) is None],
    }
    notes = [
        "utilisation of the consumer: " + "; ".join(f"{how} {busy:.1%}" for how, busy in facts["utilisation"].items()),
        "storage tiers: "
        + "; ".join(
            f"{tier.name} {readable(tier.bandwidth, 'bytes/s')}, {readable(tier.latency, 's')}" for tier in tiers
        ),
        *(f"not measured: {name} is not installed" for name in facts["not_measured"]),
    ]
    return Result("data", about, {"quick": quick}, series, facts, notes=notes)


def far_store(samples: int = 2000) -> list[Series]:
    """Samples per second from a simulated store, images of 100 kB with a label; exact, so one number each."""
    padded = sum(BLOCK + size + -size % BLOCK for size in (IMAGE, LABEL))
    parties = {
        LIBRARY: [SHARD * padded + 2 * BLOCK] * (samples // SHARD),
        SMALL_FILES: [IMAGE, LABEL] * samples,
    }
    what = f"samples/s from a simulated store of {LATENCY * 1e3:.0f} ms, {BANDWIDTH / 1e6:.0f} MB/s, {READERS} readers"
    found = []
    for by, objects in parties.items():
        link, free = SharedLink(LATENCY, BANDWIDTH), [0.0] * READERS
        for number, size in enumerate(objects):
            free[number % READERS] = link.reserve(free[number % READERS], size)
        found.append(Series(what, by, "samples/s", (samples / max(free),), "higher", by == SMALL_FILES))
    return found


def disk(folder: Path, count: int, rounds: int) -> list[Series]:
    """The same samples from this machine's disk, one reader, in turns; 8 kB and a label each."""
    generator = np.random.default_rng(0)
    samples = [Sample(f"{n:06d}", {"jpg": generator.bytes(8000), "cls": b"7"}) for n in range(count)]
    write_small_files(folder / "small", samples)
    shards = write_tar_shards(folder / "shards", samples, count // 2)
    index = list_samples(folder / "small")
    files = [path for found in index.values() for path in found]
    os.sync()
    parties: dict[str, tuple[list[Path], Callable[[], Iterable]]] = {
        LIBRARY: (shards, lambda: (sample for path in shards for sample in from_shard(path))),
        SMALL_FILES: (files, lambda: (read_sample(key, found) for key, found in index.items())),
    }
    if installed_version("webdataset") is not None:
        import webdataset

        names = [str(path) for path in shards]
        parties[WEBDATASET] = (shards, lambda: webdataset.WebDataset(names, shardshuffle=False))
    found = []
    for cold in (False, True):
        what = f"samples/s from this disk, {'after forgetting' if cold else 'in the page cache'}"
        rates: dict[str, list[float]] = {by: [] for by in parties}
        for _ in range(rounds):
            for by, (paths, read) in parties.items():
                if cold:
                    for path in paths:
                        forget(path, flush=False)
                rates[by].append(rate(read))
        found += [Series(what, by, "samples/s", tuple(each), "higher", by == SMALL_FILES) for by, each in rates.items()]
    return found


def from_shard(path: Path) -> Iterable[Sample]:
    with path.open("rb") as file:
        yield from read_tar_shard(file, path.name)


def rate(read: Callable[[], Iterable]) -> float:
    start = time.perf_counter()
    count = sum(1 for _ in read())
    return count / (time.perf_counter() - start)


class FarSamples(torch.utils.data.Dataset):
    """A map-style data set over a far store with real waiting: what torch's DataLoader reads."""

    def __init__(self, count: int) -> None:
        self.store = SlowStore(MemoryStore({str(n): bytes(1000) for n in range(count)}), SharedLink(0.005, 1e9))
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> bytes:
        return self.store.get(str(number))


def loaders(rounds: int, count: int = 200, workers: int = 4) -> list[Series]:
    """Samples per second over a store of 5 ms with real waiting, and the time from the call to the first sample.

    torch's workers are processes, each of which has a link of its own here; at 5 ms and 1 kB the link is no limit.
    """
    parties: dict[str, Callable[[], Iterable]] = {
        f"{LIBRARY}, {workers} threads": lambda: prefetch(FarSamples(count).__getitem__, range(count), workers),
        f"torch DataLoader, {workers} processes": lambda: torch.utils.data.DataLoader(
            FarSamples(count), batch_size=None, num_workers=workers, prefetch_factor=2, multiprocessing_context="fork"
        ),
    }
    seconds: dict[str, list[tuple[float, float]]] = {by: [] for by in parties}
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "This DataLoader will create"
        )  # they wait, so more of them than cores is right
        for _ in range(rounds):
            for by, make in parties.items():
                start = time.perf_counter()
                samples = iter(make())
                next(samples)
                first = time.perf_counter()
                rest = sum(1 for _ in samples)
                seconds[by].append((first - start, rest / (time.perf_counter() - first)))
    found = []
    for by, pairs in seconds.items():
        peer = by.startswith("torch")
        firsts, rates = zip(*pairs, strict=True)
        found.append(Series("seconds to the first sample, 5 ms store", by, "s", firsts, "lower", peer))
        found.append(Series("samples/s behind it, 5 ms store", by, "samples/s", rates, "higher", peer))
    return sorted(found, key=lambda series: series.what, reverse=True)


def checksums(rounds: int) -> list[Series]:
    """Bytes per second of CRC32C."""
    data = np.random.default_rng(0).bytes(4 << 20)
    small = data[: 64 << 10]
    parties: list[tuple[str, Callable[[bytes], int], bytes]] = [("threeloops.data.formats.crc32c, 4 MiB", crc32c, data)]
    parties.append(("threeloops.data.formats.crc32c, 64 KiB", crc32c, small))
    if installed_version("tensorboard") is not None:
        from tensorboard.compat.tensorflow_stub import pywrap_tensorflow

        parties.append(("tensorboard's own, 64 KiB", pywrap_tensorflow.crc32c, small))
    found = []
    for by, function, octets in parties:
        rates = []
        for _ in range(rounds):
            start = time.perf_counter()
            function(octets)
            rates.append(len(octets) / (time.perf_counter() - start))
        found.append(Series("CRC32C", by, "bytes/s", tuple(rates), "higher", by.startswith("tensorboard")))
    return found


def utilisations() -> dict[str, float]:
    """Return the utilisation of a consumer of 10 ms per step over the stated store, by the model and by the
    prefetcher."""
    size = 600_000
    stages = [
        Stage("request", latency=LATENCY, workers=8),
        Stage("transfer", bandwidth=BANDWIDTH),
        Stage("decode", latency=0.004, workers=2),
        Stage("train", latency=STEP),
    ]
    objects = MemoryStore({str(n): bytes(size) for n in range(100)})

    def prefetched(workers: int, ahead: int) -> float:
        clock, began = VirtualClock(), None
        store = VirtualStore(objects, SharedLink(LATENCY, BANDWIDTH), clock)
        hire: Callable[[int], SimulatedWorker] = lambda n: SimulatedWorker(store, 0.004, str(n))  # noqa: E731
        for _ in Prefetcher(list(objects.objects), hire, workers, ahead):
            began = clock.now() if began is None else began
            clock.sleep_until(clock.now() + STEP)
        return len(objects.objects) * STEP / (clock.now() - (began or 0.0))

    return {
        "pipeline model, nothing in advance": simulate(stages, [size] * 100, ahead=0).utilisation,
        "pipeline model, 12 ahead": simulate(stages, [size] * 100, ahead=12).utilisation,
        "prefetcher on a virtual clock, nothing in advance": prefetched(1, 0),
        "prefetcher on a virtual clock, 4 workers, 8 ahead": prefetched(4, 8),
    }
