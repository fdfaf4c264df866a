"""What the inspector knows about one kernel's code for one target."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from threeloops.inner.bench.codegen.amdgcn import kernel_needs, read_amdgcn
from threeloops.inner.bench.codegen.occupancy import Occupancy, Target, occupancy
from threeloops.inner.bench.codegen.sass import Counts, TensorCores, read_sass, resource_usage
from threeloops.inner.bench.codegen.source_lines import instructions_by_line


@dataclass(frozen=True)
class Code:
    """The machine code of a kernel, and what stands in it. Counts are of instructions in the text, not of executions.

    `registers` a thread (32 bits each; on AMD the vector registers a lane, accumulation registers included).
    `spilled_bytes`: local memory a thread, where registers go that do not fit, and arrays indexed at run time: 0 is
    clean. On AMD, four bytes a spilled vector register, or the scratch memory if that is more (`scratch_bytes`).
    `shared_bytes` a program, of at most `shared_limit`; `fits` says whether the target can run it at all, and `misfits`
    why it cannot. `loads` and `stores`: accesses to global memory by width in bits a thread.
    """

    name: str
    target: str
    options: dict[str, Any]
    registers: int
    spilled_bytes: int
    shared_bytes: int
    shared_limit: int
    occupancy: Occupancy
    counts: Counts = field(repr=False)
    scratch_bytes: int = 0
    tensor_memory_columns: int = 0
    misfits: tuple[str, ...] = ()
    signature: dict[str, str] = field(default_factory=dict, repr=False)
    divisible_by_16: tuple[str, ...] = field(default=(), repr=False)
    ttgir: str = field(default="", repr=False)
    ptx: str | None = field(default=None, repr=False)
    sass: str | None = field(default=None, repr=False)
    amdgcn: str | None = field(default=None, repr=False)
    triton_version: str = ""

    @property
    def fits(self) -> bool:
        return not self.misfits

    @property
    def spills(self) -> bool:
        return self.spilled_bytes > 0

    @property
    def loads(self) -> dict[int, int]:
        return self.counts.loads

    @property
    def stores(self) -> dict[int, int]:
        return self.counts.stores

    @property
    def widest_load(self) -> int | None:
        """Bits; None if nothing is loaded from global memory (or only by the tensor memory accelerator)."""
        return max(self.loads, default=None)

    @property
    def narrowest_load(self) -> int | None:
        return min(self.loads, default=None)

    @property
    def widest_store(self) -> int | None:
        return max(self.stores, default=None)

    @property
    def narrowest_store(self) -> int | None:
        return min(self.stores, default=None)

    @property
    def tensor_cores(self) -> TensorCores | None:
        """What kind of matrix instruction there is, if any."""
        return self.counts.tensor_cores

    @property
    def tensor_core_instructions(self) -> int:
        return self.counts.tensor_core_instructions

    @property
    def tma(self) -> int:
        return self.counts.tma

    @property
    def async_copies(self) -> int:
        return self.counts.async_copies

    @property
    def atomics(self) -> int:
        return self.counts.atomics

    @property
    def barriers(self) -> int:
        return self.counts.barriers

    @property
    def reuse_flags(self) -> int:
        return self.counts.reuse_flags

    @property
    def opcodes(self) -> dict[str, int]:
        return self.counts.opcodes

    @property
    def text(self) -> str:
        """The machine code: SASS or AMDGCN."""
        return self.sass or self.amdgcn or ""

    def lines(self, opcodes: str) -> dict[int, int]:
        """Source line → instructions made from it whose opcode matches `opcodes`, a regular expression: "STL|LDL" shows
        where registers spill, "LDG" where global memory is read."""
        return instructions_by_line(self.text, opcodes)

    def report(self) -> str:
        """A table of one kernel: see `code_report.report` for several."""
        from threeloops.inner.bench.codegen.report import report

        return report([self])


def read_code(name: str, options: Mapping[str, Any], target: Target, compiled: Mapping[str, Any]) -> Code:
    """Code from what the worker answered: `sass`, `usage` and `ptx`, or `amdgcn`; and `metadata`."""
    metadata = compiled["metadata"]
    warps, shared, columns = metadata["num_warps"], metadata["shared"], metadata["tmem_size"] or 0
    scratch, by_registers = 0, None
    if "amdgcn" in compiled:
        counts, needs = read_amdgcn(compiled["amdgcn"]), kernel_needs(compiled["amdgcn"])
        registers, scratch = needs["registers"], needs.get("scratch_bytes", 0)
        spilled, by_registers = max(4 * needs.get("spilled_registers", 0), scratch), needs.get("warps_by_registers")
    else:
        counts, usage = read_sass(compiled["sass"]), resource_usage(compiled["usage"])
        registers, spilled = usage["REG"], usage["STACK"] + usage["LOCAL"]
    misfits: tuple[str, ...] = tuple(
        f"{what} {needed:,} of {limit:,} {unit}"
        for what, needed, limit, unit in (
            ("shared memory", shared, target.shared_limit, "bytes"),
            ("tensor memory", columns, target.tensor_memory_columns, "columns"),
            ("threads", warps * target.warp_size, 1024, "a program"),
        )
        if needed > limit
    )
    needed = {"registers": registers, "shared_bytes": shared, "warps": warps, "tensor_memory_columns": columns}
    resident = occupancy(target, **needed, warps_by_registers=by_registers)
    if not misfits and not resident.resident_programs:
        misfits = (f"{resident.limited_by}: {warps} warps of {registers} registers a thread",)
    return Code(
        name=name,
        target=target.name,
        options=dict(options) | {each: metadata[each] for each in ("num_warps", "num_stages")},
        registers=registers,
        spilled_bytes=spilled,
        scratch_bytes=scratch,
        shared_bytes=shared,
        shared_limit=target.shared_limit,
        tensor_memory_columns=columns,
        misfits=misfits,
        occupancy=resident,
        counts=counts,
        signature=compiled["signature"],
        divisible_by_16=tuple(compiled["divisible_by_16"]),
        ttgir=compiled["ttgir"],
        ptx=compiled.get("ptx"),
        sass=compiled.get("sass"),
        amdgcn=compiled.get("amdgcn"),
        triton_version=metadata["triton_version"],
    )
