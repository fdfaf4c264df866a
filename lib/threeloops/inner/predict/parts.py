"""The parts of a prediction, each at best and at worst: bytes moved, loads in flight, and waves of programs."""

import math
from dataclasses import dataclass

from threeloops.hardware.accelerators import Accelerator
from threeloops.inner.codegen.generated_code import Code
from threeloops.inner.codegen.occupancy import compilation_target
from threeloops.inner.costs import Work
from threeloops.inner.meter.traffic import Traffic

__all__ = ["Demand", "Interval", "Latency", "demand_of", "latency_time", "wave_factors"]

Interval = tuple[float, float]
"""At best, at worst."""


@dataclass(frozen=True)
class Latency:
    """Seconds from a load from memory to its data, and the source of that number."""

    seconds: float
    source: str

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ValueError(f"seconds = {self.seconds}: expected a positive latency")


@dataclass(frozen=True)
class Demand:
    """What a launch needs: bytes between memory and chip, the share of them that is loaded, FLOPs by unit."""

    bytes: Interval
    loaded_share: float
    matrix_flops: float
    vector_flops: float


def _effective_l2(accelerator: Accelerator) -> float | None:
    """Half the L2. An A100 or H100 has two partitions, each of which caches what its own half of the multiprocessors
    reads (NVIDIA A100 whitepaper, 2020), so data that both halves read is held twice. None: size unknown."""
    return accelerator.caches.l2_bytes / 2 if accelerator.caches.l2_bytes else None


def demand_of(work: Work | Traffic, accelerator: Accelerator, code: Code | None, how: list[str]) -> Demand:
    """Without a model of the L2, bytes that are read again come from memory again at worst, unless all fit the L2.

    Without `code`, the FLOPs of Work are assumed to be matrix products: the fastest units, so an optimistic choice.
    """
    matrix = code is None or code.tensor_cores is not None
    if isinstance(work, Work):
        how.append("bytes and FLOPs are the least that the operation needs")
        flops = (work.flops, 0.0) if matrix else (0.0, work.flops)
        return Demand((work.bytes, work.bytes), 1.0, *flops)
    products = work.dot_flops if matrix else 0.0
    moved: Interval = (work.unique_bytes, work.unique_bytes)
    if work.dram_bytes is not None:
        moved = (work.dram_bytes, work.dram_bytes)
        how.append(f"{work.dram_bytes:,} bytes to and from memory, by the L2 model")
    elif work.requested_bytes > work.unique_bytes > (_effective_l2(accelerator) or 0.0):
        moved = (work.unique_bytes, work.requested_bytes)
        how.append(f"{work.unique_bytes:,} bytes to and from memory if the L2 catches all repetitions, else up to "
                   f"{work.requested_bytes:,}: meter with an L2 model to know better")  # fmt: skip
    else:
        how.append(f"{work.unique_bytes:,} different bytes to and from memory")
    loaded_share = work.requested_loaded / (work.requested_bytes or 1)
    return Demand(moved, loaded_share, products, work.total_flops - products)


def latency_time(
    demand: Demand, accelerator: Accelerator, code: Code | None, latency: Latency | None, programs: int, how: list[str]
) -> Interval:
    """Little's law, solved for time: a program with n bytes in flight loads n bytes per latency.

    Its loads take bytes × latency / n, and all resident programs load at once. At best all load instructions of the
    code (or what its shared memory holds) are in flight together; at worst each warp waits for one access before it
    makes the next.
    """
    if code is None or latency is None or not programs or not accelerator.multiprocessors:
        return 0.0, 0.0
    warp = compilation_target(code.target).warp_size * code.options["num_warps"]
    one = warp * (code.widest_load or 0) / 8
    every = max(warp * sum(bits * number for bits, number in code.loads.items()) / 8, code.shared_bytes)
    resident = accelerator.multiprocessors * max(code.occupancy.resident_programs, 1)
    if not every:
        return 0.0, 0.0
    needed = latency.seconds * accelerator.memory_bandwidth
    under_way = min(programs, resident)
    how.append(
        f"latency {latency.seconds * 1e9:.4g} ns ({latency.source}): full bandwidth needs {needed:,.0f} bytes in "
        f"flight; {under_way} resident programs have {under_way * (one or every):,.0f} to {under_way * every:,.0f}"
    )
    low, high = (demand.loaded_share * each / programs * latency.seconds for each in demand.bytes)
    waves = programs / resident
    return low / every * max(waves, 1.0), high / (one or every) * math.ceil(waves)


def wave_factors(accelerator: Accelerator, code: Code | None, programs: int, how: list[str]) -> Interval:
    """How much longer computing takes because programs are indivisible: the busiest multiprocessor's share ÷ the mean.

    At best a multiprocessor is as fast with one program as with all that it holds, so that its number of programs
    decides; at worst only a full one is fast, and the last wave of programs takes as long as the others.
    """
    multiprocessors = accelerator.multiprocessors
    if not programs or not multiprocessors:
        how.append("computing spread evenly: the number of programs or of multiprocessors is not known")
        return 1.0, 1.0
    busiest = math.ceil(programs / multiprocessors)
    together = min(code.occupancy.resident_programs if code else 1, busiest) or 1
    waves = programs / (multiprocessors * together)
    low, high = busiest * multiprocessors / programs, math.ceil(waves) / waves
    how.append(
        f"{programs} programs on {multiprocessors} multiprocessors, {together} at once on each: {waves:.3g} waves"
    )
    return low, high
