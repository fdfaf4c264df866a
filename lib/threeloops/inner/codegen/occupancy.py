"""Occupancy: how many programs a multiprocessor holds at once, and what stops it from holding more.

A multiprocessor gives each resident program registers and shared memory until one of them runs out. The vendors publish
how much there is and in which portions it is allocated; the compiler says what a kernel needs.
"""

from dataclasses import dataclass

__all__ = ["COMPILATION_TARGETS", "KB", "Occupancy", "Target", "compilation_target", "occupancy"]

KB = 1024


@dataclass(frozen=True)
class Target:
    """The capacity of a multiprocessor of one compilation target.

    A register is 32 bits of one thread. Registers are allocated to whole warps in portions of `register_granularity`
    times the warp size, from the file of one of `partitions` (schedulers, SIMDs). Shared memory is allocated in
    portions of `shared_granularity` bytes, including `shared_reserved` bytes per program. `source` is the vendor's
    document.
    """

    name: str
    backend: str
    arch: int | str
    warp_size: int
    maximum_warps: int
    maximum_programs: int
    maximum_registers: int
    registers: int
    register_granularity: int
    shared_bytes: int
    shared_limit: int
    shared_granularity: int
    shared_reserved: int
    partitions: int = 4
    tensor_memory_columns: int = 0
    source: str = ""

    @property
    def triton(self) -> tuple[str, int | str, int]:
        """Backend, architecture and warp size, as Triton's GPUTarget has them."""
        return self.backend, self.arch, self.warp_size


def _nvidia(capability: int, warps: int, programs: int, shared: int, limit: int, **others: int) -> Target:
    reserved, granularity = (KB, 128) if capability >= 80 else (0, 256)
    return Target(
        f"sm_{capability}",
        "cuda",
        capability,
        warp_size=32,
        maximum_warps=warps,
        maximum_programs=programs,
        maximum_registers=255,
        registers=64 * KB,
        register_granularity=8,
        shared_bytes=shared * KB,
        shared_limit=limit * KB,
        shared_granularity=granularity,
        shared_reserved=reserved,
        source="CUDA C++ Programming Guide, technical specifications per compute capability; cuda_occupancy.h",
        **others,
    )


COMPILATION_TARGETS = {
    target.name: target
    for target in (
        _nvidia(75, warps=32, programs=16, shared=64, limit=64),
        _nvidia(80, warps=64, programs=32, shared=164, limit=163),
        _nvidia(86, warps=48, programs=16, shared=100, limit=99),
        _nvidia(89, warps=48, programs=24, shared=100, limit=99),
        _nvidia(90, warps=64, programs=32, shared=228, limit=227),
        _nvidia(100, warps=64, programs=32, shared=228, limit=227, tensor_memory_columns=512),
        Target(
            "gfx942",
            "hip",
            "gfx942",
            warp_size=64,
            maximum_warps=32,
            maximum_programs=32,
            maximum_registers=512,
            registers=4 * 64 * 512,
            register_granularity=8,
            shared_bytes=64 * KB,
            shared_limit=64 * KB,
            shared_granularity=512,
            shared_reserved=0,
            source="AMD CDNA 3 instruction set and LLVM's AMDGPU user guide",
        ),
    )
}


def compilation_target(name: str) -> Target:
    """Return the target called `name` ("sm_90", "gfx942"). Raises ValueError listing all names."""
    if name not in COMPILATION_TARGETS:
        raise ValueError(f"target = {name!r}: expected one of {', '.join(COMPILATION_TARGETS)}")
    return COMPILATION_TARGETS[name]


@dataclass(frozen=True)
class Occupancy:
    """Programs and warps resident on one multiprocessor at once. `limited_by` names the limit that prevents more:
    "registers", "shared memory", "tensor memory", "warps" or "programs"."""

    resident_programs: int
    resident_warps: int
    maximum_warps: int
    limited_by: str

    @property
    def fraction(self) -> float:
        """Resident warps divided by the maximum."""
        return self.resident_warps / self.maximum_warps

    def __str__(self) -> str:
        return f"{self.resident_warps} of {self.maximum_warps} warps, limited by {self.limited_by}"


def occupancy(
    target: Target,
    *,
    registers: int,
    shared_bytes: int,
    warps: int,
    tensor_memory_columns: int = 0,
    warps_by_registers: int | None = None,
) -> Occupancy:
    """Return how many programs of `warps` warps, `registers` 32-bit registers per thread and `shared_bytes` are
    resident.

    Each resource alone admits some number of programs, possibly 0, and the smallest decides; of equal ones, the first
    of warps, programs, registers, shared memory and tensor memory is named. `warps_by_registers`: the warps that fit on
    one scheduler if the compiler has counted them itself, else None.
    """
    if warps < 1:
        raise ValueError(f"warps = {warps}: expected at least 1 per program")
    if warps_by_registers is None:
        portion = _rounded_up(max(registers, 1), target.register_granularity) * target.warp_size
        warps_by_registers = target.registers // target.partitions // portion
    # A launch is checked as if every scheduler held as many of the program's warps as the fullest one.
    evenly = _rounded_up(warps, target.partitions) // target.partitions
    startable = registers <= target.maximum_registers and evenly <= warps_by_registers
    shared = _rounded_up(shared_bytes + target.shared_reserved, target.shared_granularity)
    admitted = {
        "warps": target.maximum_warps // warps,
        "programs": target.maximum_programs,
        "registers": warps_by_registers * target.partitions // warps if startable else 0,
        "shared memory": target.shared_bytes // shared if shared else target.maximum_programs,
    }
    if shared_bytes > target.shared_limit:
        admitted["shared memory"] = 0
    if tensor_memory_columns:
        admitted["tensor memory"] = target.tensor_memory_columns // tensor_memory_columns
    limit = min(admitted, key=lambda resource: admitted[resource])
    programs = admitted[limit]
    return Occupancy(programs, programs * warps, target.maximum_warps, limit)


def _rounded_up(amount: int, granularity: int) -> int:
    return -(-amount // granularity) * granularity
