"""The parts of a prediction, each at best and at worst: data flow, loads under way, and waves of programs."""

import math
from dataclasses import dataclass

from threeloops.hardware.accelerators import Accelerator
from threeloops.inner.codegen.generated_code import Code
from threeloops.inner.codegen.occupancy import compilation_target
from threeloops.inner.costs import Work
from threeloops.inner.meter.traffic import Traffic
from threeloops.inner.predict.calibration import Calibration, effective_l2

Interval = tuple[float, float]
"""At best, at worst."""


@dataclass(frozen=True)
class Latency:
    """Seconds from a load to its data, from memory, and where that number comes from."""

    seconds: float
    source: str

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ValueError(f"seconds = {self.seconds}: expected a positive latency")


@dataclass(frozen=True)
class Demand:
    """What a launch needs of a device: bytes between memory and chip, those asked of the L2, FLOPs by unit."""

    bytes: Interval
    loaded_share: float
    requested: float
    matrix_flops: float
    vector_flops: float


def demand_of(
    work: Work | Traffic, accelerator: Accelerator, code: Code | None, calibration: Calibration | None, how: list[str]
) -> Demand:
    """Without a model of the L2, bytes that are read again come from memory again at worst, unless all fit the L2.

    Without `code`, the FLOPs of Work are taken for matrix products. A device has no faster unit than the matrix units,
    so that too is at best.
    """
    matrix = code is None or code.tensor_cores is not None
    if isinstance(work, Work):
        how.append("bytes and FLOPs are the least that the operation needs")
        flops = (work.flops, 0.0) if matrix else (0.0, work.flops)
        return Demand((work.bytes, work.bytes), 1.0, work.bytes, *flops)
    products = work.dot_flops if matrix else 0.0
    moved: Interval = (work.unique_bytes, work.unique_bytes)
    room = (calibration and calibration.effective_l2_bytes) or effective_l2(accelerator) or 0.0
    if work.dram_bytes is not None:
        moved = (work.dram_bytes, work.dram_bytes)
        how.append(f"{work.dram_bytes:,} bytes to and from memory, by the L2 model")
    elif work.requested_bytes > work.unique_bytes > room:
        moved = (work.unique_bytes, work.requested_bytes)
        how.append(f"{work.unique_bytes:,} bytes to and from memory if the L2 catches all repetitions, else up to "
                   f"{work.requested_bytes:,}: meter with an L2 model to know better")  # fmt: skip
    else:
        how.append(f"{work.unique_bytes:,} different bytes to and from memory")
    total = work.requested_bytes or 1
    return Demand(moved, work.requested_loaded / total, work.requested_bytes, products, work.total_flops - products)


def memory_time(demand: Demand, accelerator: Accelerator, calibration: Calibration | None, how: list[str]) -> Interval:
    """Bytes over bandwidth, of the memory and, where its bandwidth was measured, of the L2: the slower decides."""
    bandwidth = calibration.bandwidth if calibration else accelerator.memory_bandwidth
    how.append(f"memory at {bandwidth / 1e9:.4g} GB/s")
    cached = 0.0
    if calibration and calibration.l2_bandwidth:
        cached = demand.requested / calibration.l2_bandwidth
        how.append(f"L2 at {calibration.l2_bandwidth / 1e9:.4g} GB/s")
    low, high = (max(each / bandwidth, cached) for each in demand.bytes)
    return low, high


def latency_time(
    demand: Demand, accelerator: Accelerator, code: Code | None, latency: Latency | None, programs: int, how: list[str]
) -> Interval:
    """Little's law, turned round: a program that has `in_flight` bytes under way loads them once in a latency.

    A program's loads take its bytes × latency / in_flight, and as many programs as are resident do that at once.
    At best all load instructions of the code (or what its shared memory holds) are under way together; at worst each
    warp waits for one access before it makes the next.
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
    """How much longer computing takes because programs are whole: the busiest multiprocessor's share over the mean.

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
