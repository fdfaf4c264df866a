"""The parts of a prediction, each at best and at worst: bytes moved, and waves of programs."""

import math
from dataclasses import dataclass

from threeloops.hardware.accelerators import Accelerator
from threeloops.inner.codegen.generated_code import Code
from threeloops.inner.costs import Work
from threeloops.inner.meter.traffic import Traffic

__all__ = ["Demand", "Interval", "demand_of", "wave_factors"]

Interval = tuple[float, float]
"""The best and the worst case."""


@dataclass(frozen=True)
class Demand:
    """The needs of a launch: bytes between memory and chip, and FLOPs by unit."""

    bytes: Interval
    matrix_flops: float
    vector_flops: float


def _effective_l2(accelerator: Accelerator) -> float | None:
    """Return half the L2, or None if its size is unknown. An A100 or H100 has two partitions, each of which caches what
    its own half of the multiprocessors reads (NVIDIA A100 whitepaper, 2020), so data that both halves read is held
    twice."""
    return accelerator.caches.l2_bytes / 2 if accelerator.caches.l2_bytes else None


def demand_of(work: Work | Traffic, accelerator: Accelerator, code: Code | None, how: list[str]) -> Demand:
    """Return the demand of a launch. There is no model of the L2, so in the worst case bytes that are read again come
    from memory again, unless all fit the L2.

    Without `code`, the FLOPs of Work are assumed to be matrix products. They run on the fastest units, so this choice
    is optimistic.
    """
    matrix = code is None or code.tensor_cores is not None
    if isinstance(work, Work):
        how.append("bytes and FLOPs are the least that the operation needs")
        flops = (work.flops, 0.0) if matrix else (0.0, work.flops)
        return Demand((work.bytes, work.bytes), *flops)
    products = work.dot_flops if matrix else 0.0
    moved: Interval = (work.unique_bytes, work.unique_bytes)
    if work.dram_bytes is not None:
        moved = (work.dram_bytes, work.dram_bytes)
        how.append(f"{work.dram_bytes:,} bytes to and from memory, by the L2 model")
    elif work.requested_bytes > work.unique_bytes > (_effective_l2(accelerator) or 0.0):
        moved = (work.unique_bytes, work.requested_bytes)
        how.append(
            f"{work.unique_bytes:,} bytes to and from memory if the L2 catches all repetitions, else up to "
            f"{work.requested_bytes:,}: meter with an L2 model to know better"
        )
    else:
        how.append(f"{work.unique_bytes:,} different bytes to and from memory")
    return Demand(moved, products, work.total_flops - products)


def wave_factors(accelerator: Accelerator, code: Code | None, programs: int, how: list[str]) -> Interval:
    """Return how much longer computing takes because programs are indivisible: the busiest multiprocessor's share ÷ the
    mean.

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
    low = busiest * multiprocessors / programs
    high = math.ceil(waves) / waves
    how.append(
        f"{programs} programs on {multiprocessors} multiprocessors, {together} at once on each: {waves:.3g} waves"
    )
    return low, high
