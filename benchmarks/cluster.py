"""Many devices acting as one: the virtual cluster's speed, our DDP beside torch's on it, and our ring on real gloo
processes beside gloo's own all-reduce, as predicted before.

The processes are on this machine and talk over its loopback, so they share its cores: times are those of processes that
copy through the kernel and add on the CPU. Whatever else runs at the same time is in them; `others` says how much.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from threeloops.training.cluster import RankFailed, run_on_processes
from threeloops.training.collectives import (
    Link,
    TorchPeers,
    fit,
    ring_all_reduce,
    ring_all_reduce_cost,
)
from threeloops.units import readable_bytes
from threeloops_grader.machine.provenance import Provenance

from benchmarks.cluster_ddp import ddp_rows
from benchmarks.cluster_router import router_facts, router_rows
from benchmarks.result import Prediction, Result, Series, Unmeasured, percent, readable

OURS, GLOO = "ring of threeloops.training.collectives", "torch.distributed.all_reduce, gloo"
EXCHANGE, REDUCTION = "exchange of a half", "reduction of a half"
"""The data for fitting the model: messages and additions of the size of each step in a ring of two ranks."""
RANKS = 2
SIZES = tuple(1 << power for power in range(16, 27))
BLOCK = 4 << 20
"""Small all-reduces are timed in blocks of so many bytes: one alone is shorter than a scheduler's time slice."""
WINDOW = 4
WANTED_BANDWIDTH, LARGE, WANTED_PREDICTION = 0.7, 16 << 20, 0.2


class Part(NamedTuple):
    """The contribution of one part of the benchmark to its result."""

    series: list[Series]
    predictions: list[Prediction]
    facts: dict[str, Any]
    notes: list[str]


def measure(about: Provenance, *, quick: bool = False) -> Result:
    """Everything on the CPU. Raises Unmeasured where the processes of a part fail."""
    parts = {
        "gloo": gloo_rows(SIZES[::2] if quick else SIZES, rounds=5 if quick else 25, seconds=120 if quick else 600),
        "ddp": Part(ddp_rows(), [], {}, []),
        "router": _router_part(quick),
    }
    return Result(
        "cluster",
        about,
        {"quick": quick},
        [each for part in parts.values() for each in part.series],
        {name: part.facts for name, part in parts.items()},
        [each for part in parts.values() for each in part.predictions],
        [each for part in parts.values() for each in part.notes],
    )


def gloo_rows(sizes: Sequence[int], rounds: int, seconds: float) -> Part:
    """All-reduce of `sizes` bytes on two processes, in turns; α, β and γ come from exchanges and additions alone.

    Raises Unmeasured where the processes fail, or take longer than `seconds`.
    """
    try:
        return gloo_part(run_on_processes("gloo", RANKS, _rank, sizes, rounds, seconds=seconds)[0])
    except RankFailed as error:
        raise Unmeasured(f"all-reduces on gloo: {error}") from None


def _router_part(quick: bool) -> Part:
    rows = router_rows(2 if quick else 7)
    facts = router_facts(rows, 10 if quick else 100)
    note = f"{facts['runs']} runs of one program gave {facts['different']} result; 64 ranks in one cell took "
    return Part(rows, [], facts, [note + readable(facts["seconds_of_64_ranks"], "s")])


def gloo_part(rows: Sequence[dict[str, Any]]) -> Part:
    """Summarise raw rows: {"size", "by", "seconds": samples, "others": cores that other processes kept busy}."""
    samples = {(row["size"], row["by"]): tuple(row["seconds"]) for row in rows}
    sizes = sorted({row["size"] for row in rows})
    series, predictions, notes, links = [], [], [], {}
    for size in sizes:
        link = links[readable_bytes(size)] = fitted_link(near(size, sizes), samples)
        what = f"all-reduce of {readable_bytes(size)}, {RANKS} gloo processes"
        ours = Series(what, OURS, "s", samples[size, OURS])
        peer = Series(what, GLOO, "s", samples[size, GLOO], peer=True)
        seconds = ring_all_reduce_cost(size // 4, 4, RANKS, link).seconds
        predicted = Prediction("ring all-reduce, gloo", readable_bytes(size), "α–β–γ model", "s", seconds, ours.median)
        series += [peer, ours]
        predictions.append(predicted)
        notes.append(
            f"{readable_bytes(size)}: ring {readable(ours.median, 's')}, predicted {readable(seconds, 's')} (measured "
            f"{percent(predicted.difference)}), {ours.times_better(peer):.2f} times the bandwidth of gloo's"
        )
    others = [each for row in rows for each in row["others"]]
    reached = [s.times_better(p) for p, s in zip(series[::2], series[1::2], strict=True)]
    facts = {
        "fitted_near": {name: parameters(link) for name, link in links.items()},
        "fitted_to_all": parameters(fitted_link(sizes, samples)),
        "bandwidth_of_gloos": dict(zip(map(readable_bytes, sizes), reached, strict=True)),
        "large_enough": all(r >= WANTED_BANDWIDTH for s, r in zip(sizes, reached, strict=True) if s >= LARGE),
        "predicted_enough": all(abs(each.difference) <= WANTED_PREDICTION for each in predictions),
        "cores_busy_with_others": median(others), "rows": list(rows),
    }  # fmt: skip
    notes.append(f"other processes kept {median(others):.1f} of {os.cpu_count()} cores busy meanwhile (median)")
    return Part(series, predictions, facts, notes)


def fitted_link(sizes: Sequence[int], samples: dict[tuple[int, str], tuple[float, ...]]) -> Link:
    """α and β of an exchange, γ of an addition, from the medians at half of each size."""
    halves = [size // 2 for size in sizes]
    message = fit(halves, [median(samples[size, EXCHANGE]) for size in sizes])
    addition = fit(halves, [median(samples[size, REDUCTION]) for size in sizes])
    return Link(message.latency, message.bandwidth, 1 / addition.bandwidth)


def parameters(link: Link) -> dict[str, float]:
    """Return the parameters as numbers that JSON has. If times do not grow with the size, β is infinite."""
    return {"alpha_s": link.latency, "one_over_beta_s_byte": 1 / link.bandwidth, "gamma_s_byte": link.reduce_seconds}


def near(size: int, sizes: Sequence[int]) -> list[int]:
    """Up to WINDOW times larger and smaller: β falls where messages leave the caches, so a line fits only so far."""
    return [each for each in sizes if size <= each * WINDOW and each <= size * WINDOW]


def _rank(sizes: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Measure on this rank, while the other ranks do the same."""
    rows = []
    for size in sizes:
        found: dict[str, list[float]] = {by: [] for by in (OURS, GLOO, EXCHANGE, REDUCTION)}
        others = []
        parties = _parties(size)
        for turn in range(rounds + 1):
            clock = _OtherProcesses()
            for by, run in parties.items():
                seconds = _block(run, max(1, BLOCK // size))
                if turn:  # the first is warm-up
                    found[by].append(seconds)
            if turn:
                others.append(clock.cores())
        rows += [{"size": size, "by": by, "seconds": seconds, "others": others} for by, seconds in found.items()]
    return rows


def _parties(size: int) -> dict[str, Callable[[], Any]]:
    """Zeros stay zeros, however often they are added."""
    peers, other = TorchPeers(), 1 - dist.get_rank()
    whole, half, into = torch.zeros(size // 4), torch.zeros(size // 8), torch.zeros(size // 8)
    return {
        OURS: lambda: ring_all_reduce(peers, whole),
        GLOO: lambda: dist.all_reduce(whole),
        EXCHANGE: lambda: peers.wait(peers.exchange(half, other, into, other)),
        REDUCTION: lambda: half.add_(into),
    }


def _block(run: Callable[[], Any], times: int) -> float:
    """Seconds of one of so many runs."""
    dist.barrier()
    started = time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - started) / times


class _OtherProcesses:
    """How many cores other processes keep busy, from the clocks of the machine and of the ranks."""

    def __init__(self) -> None:
        self._began, self._busy, self._ours = time.perf_counter(), self._machine(), self._ranks()

    def cores(self) -> float:
        busy, ours = self._machine() - self._busy, self._ranks() - self._ours
        return max(0.0, busy - ours) / (time.perf_counter() - self._began)

    def _machine(self) -> float:
        import psutil

        times = psutil.cpu_times()
        return sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)

    def _ranks(self) -> float:
        total = torch.tensor(time.process_time(), dtype=torch.float64)
        dist.all_reduce(total)
        return float(total)
