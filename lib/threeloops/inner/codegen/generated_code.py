"""One kernel's machine code for one target: instruction counts, registers, occupancy, and a report."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from threeloops.inner.codegen.assembly import Counts, kernel_needs, read_amdgcn, read_sass, resource_usage
from threeloops.inner.codegen.occupancy import Occupancy, Target, occupancy

__all__ = ["Code", "read_code"]

_HEADER = (
    "kernel",
    "target",
    "warps",
    "registers",
    "spilled",
    "shared",
    "occupancy",
    "loads",
    "stores",
    "tensor cores",
)


@dataclass(frozen=True, kw_only=True)
class Code(Counts):
    """The machine code of a kernel for one target, and the numbers read from it.

    `registers` are per thread, 32 bits each; on AMD, vector registers per lane including accumulation registers.
    `spilled_bytes` is local memory per thread, used for registers that do not fit and arrays indexed at run time; on
    AMD, four bytes per spilled vector register, or `scratch_bytes` if that is more. `shared_bytes` per program can be
    at most `shared_limit`. `misfits` are the reasons why the target cannot run the kernel at all. `configuration` is an
    autotuned kernel's configuration, if all of them were compiled.
    """

    name: str
    target: str
    options: dict[str, Any]
    registers: int
    spilled_bytes: int
    shared_bytes: int
    shared_limit: int
    occupancy: Occupancy
    scratch_bytes: int = 0
    tensor_memory_columns: int = 0
    misfits: tuple[str, ...] = ()
    configuration: str = ""
    signature: dict[str, str] = field(default_factory=dict, repr=False)
    divisible_by_16: tuple[str, ...] = field(default=(), repr=False)
    ttgir: str = field(default="", repr=False)
    ptx: str | None = field(default=None, repr=False)
    sass: str | None = field(default=None, repr=False)
    amdgcn: str | None = field(default=None, repr=False)

    @property
    def fits(self) -> bool:
        return not self.misfits

    @property
    def spills(self) -> bool:
        return self.spilled_bytes > 0

    @property
    def widest_load(self) -> int | None:
        """Bits; None if nothing is loaded from global memory (or only by the tensor memory accelerator)."""
        return max(self.loads, default=None)

    @property
    def widest_store(self) -> int | None:
        return max(self.stores, default=None)

    def report(self) -> str:
        """Return a table to print. Global accesses read "4×128": four instructions of 128 bits per thread. Spills are
        in bytes per thread. A kernel that cannot run on the target has the reasons below the table."""
        stages = f", {self.options['num_stages']} stages" if self.tensor_core_instructions else ""
        cells = (
            f"{self.name}[{self.configuration}]" if self.configuration else self.name,
            self.target,
            f"{self.options['num_warps']}{stages}",
            str(self.registers),
            f"{self.spilled_bytes} B" if self.spilled_bytes else "none",
            f"{_kilobytes(self.shared_bytes)} of {_kilobytes(self.shared_limit)}" + ("" if self.fits else " !"),
            str(self.occupancy),
            _accesses(self.loads) + (f", {self.tma} TMA" if self.tma else ""),
            _accesses(self.stores),
            f"{self.tensor_core_instructions} {self.tensor_cores}" if self.tensor_cores else "none",
        )
        widths = [max(len(name), len(cell)) for name, cell in zip(_HEADER, cells, strict=True)]
        rows = (_HEADER, ["─" * width for width in widths], cells)
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        if not self.fits:
            lines.append(f"{self.name} does not fit {self.target}: {'; '.join(self.misfits)}")
        return "\n".join(lines)


def _kilobytes(size: int) -> str:
    return f"{size / 1024:.4g} KB" if size >= 1024 else f"{size} B"


def _accesses(counts: Mapping[int, int]) -> str:
    """Format accesses: {32: 1, 128: 4} → "4×128 1×32"."""
    return " ".join(f"{number}×{bits}" for bits, number in sorted(counts.items(), reverse=True)) or "none"


def read_code(name: str, options: Mapping[str, Any], target: Target, compiled: Mapping[str, Any]) -> Code:
    """Make the Code of the worker's answer: `metadata`, and either `sass`, `usage` and `ptx`, or `amdgcn`."""
    metadata = compiled["metadata"]
    warps = metadata["num_warps"]
    shared = metadata["shared"]
    columns = metadata["tmem_size"] or 0
    scratch = 0
    by_registers = None
    if "amdgcn" in compiled:
        counts = read_amdgcn(compiled["amdgcn"])
        needs = kernel_needs(compiled["amdgcn"])
        registers = needs["registers"]
        scratch = needs.get("scratch_bytes", 0)
        spilled = max(4 * needs.get("spilled_registers", 0), scratch)
        by_registers = needs.get("warps_by_registers")
    else:
        counts = read_sass(compiled["sass"])
        usage = resource_usage(compiled["usage"])
        registers = usage["REG"]
        spilled = usage["STACK"] + usage["LOCAL"]
    misfits = tuple(
        f"{what} {needed:,} of {limit:,} {unit}"
        for what, needed, limit, unit in (
            ("shared memory", shared, target.shared_limit, "bytes"),
            ("tensor memory", columns, target.tensor_memory_columns, "columns"),
            ("threads", warps * target.warp_size, 1024, "per program"),
        )
        if needed > limit
    )
    needed = {"registers": registers, "shared_bytes": shared, "tensor_memory_columns": columns}
    resident = occupancy(target, **needed, warps=warps, warps_by_registers=by_registers)
    if not misfits and not resident.resident_programs:
        misfits = (f"{resident.limited_by}: {warps} warps of {registers} registers per thread",)
    return Code(
        name=name,
        target=target.name,
        options=dict(options) | {option: metadata[option] for option in ("num_warps", "num_stages")},
        spilled_bytes=spilled,
        scratch_bytes=scratch,
        shared_limit=target.shared_limit,
        misfits=misfits,
        occupancy=resident,
        signature=compiled["signature"],
        divisible_by_16=tuple(compiled["divisible_by_16"]),
        **{text: compiled[text] for text in ("ttgir", "ptx", "sass", "amdgcn") if text in compiled},
        **needed,
        **vars(counts),
    )
