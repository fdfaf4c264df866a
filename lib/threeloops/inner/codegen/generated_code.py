"""What the inspector knows about one kernel's code for one target.

Which line of the source an instruction was made from: both compilers keep it as debug information.

Showing what the inspector found: a table for the terminal, and pictures of access widths and occupancy.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from threeloops.inner.codegen.assembly import Counts, TensorCores, kernel_needs, read_amdgcn, read_sass, resource_usage
from threeloops.inner.codegen.occupancy import Occupancy, Target, occupancy
from threeloops.palette import palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes


SASS_LINE = re.compile(r'^\s*//## File ".*", line (\d+)')
AMDGCN_LINE = re.compile(r"^\s*\.loc\s+\d+ (\d+) ")
INSTRUCTION = re.compile(
    r"^\s*(?:/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?)?(?P<opcode>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*)(?=[\s;]|$)"
)


def instructions_by_line(text: str, opcodes: str) -> dict[int, int]:
    """Line → number of instructions, of SASS or AMDGCN, whose opcode (with modifiers) starts as `opcodes` says.

    Line 0 has what the compiler ascribes to none.
    """
    wanted = re.compile(opcodes)
    line, found = 0, dict[int, int]()
    for each in text.splitlines():
        if place := SASS_LINE.match(each) or AMDGCN_LINE.match(each):
            line = int(place[1])
        elif (instruction := INSTRUCTION.match(each)) and wanted.match(instruction["opcode"]):
            found[line] = found.get(line, 0) + 1
    return dict(sorted(found.items()))


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


WIDTH_COLOURS = {
    8: palette.vermillion,
    16: palette.orange,
    32: palette.yellow,
    64: palette.sky,
    96: "#3f8fd0",
    128: palette.blue,
    256: "#00405f",
}
"""From few bits an access (warm) to many (dark): the palette, and darker steps of its blue."""
RESIDENT, ABSENT, INK = palette.blue, "#e4e4e4", palette.ink

HEADER = ("kernel", "target", "warps", "registers", "spilled", "shared", "occupancy", "loads", "stores", "tensor cores")


def report(codes: Sequence[Code]) -> str:
    """One line a kernel and target. Widths of global accesses in bits, "4×128" for four instructions; spills in bytes a
    thread; what a kernel lacks to run at all stands below the table."""
    if not codes:
        return "no code: nothing was launched"
    lines = [HEADER, *(row(code) for code in codes)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    text = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    text.insert(1, "  ".join("─" * width for width in widths))
    notes = [f"{code.name} does not fit {code.target}: {'; '.join(code.misfits)}" for code in codes if not code.fits]
    return "\n".join([*text, *notes])


def row(code: Code) -> tuple[str, ...]:
    stages = f", {code.options['num_stages']} stages" if code.tensor_core_instructions else ""
    return (
        code.name,
        code.target,
        f"{code.options['num_warps']}{stages}",
        str(code.registers),
        f"{code.spilled_bytes} B" if code.spilled_bytes else "none",
        f"{kilobytes(code.shared_bytes)} of {kilobytes(code.shared_limit)}" + ("" if code.fits else " !"),
        str(code.occupancy),
        accesses(code.loads) + (f", {code.tma} TMA" if code.tma else ""),
        accesses(code.stores),
        f"{code.tensor_core_instructions} {code.tensor_cores}" if code.tensor_cores else "none",
    )


def kilobytes(size: int) -> str:
    return f"{size / 1024:.4g} KB" if size >= 1024 else f"{size} B"


def labels(codes: Sequence[Code]) -> list[str]:
    """What tells one code from another: the target, the kernel where there are several, options where they differ."""
    several = len({code.name for code in codes}) > 1
    made = [f"{code.name}, {code.target}" if several else code.target for code in codes]
    options = [
        ", ".join(f"{value} {name.removeprefix('num_')}" for name, value in code.options.items()) for code in codes
    ]
    return [f"{label}, {said}" if made.count(label) > 1 else label for label, said in zip(made, options, strict=True)]


def accesses(counts: Mapping[int, int]) -> str:
    """{32: 1, 128: 4} → "4×128 1×32"."""
    return " ".join(f"{number}×{bits}" for bits, number in sorted(counts.items(), reverse=True)) or "none"


def plot_code(
    codes: Sequence[Code], ax: "Axes | None" = None, show: Literal["loads", "stores", "occupancy"] = "loads"
) -> "Axes":
    """One bar a kernel and target, the first on top.

    "loads" and "stores": the instructions that access global memory, by the bits that one thread moves; "occupancy":
    the warps resident on a multiprocessor of those it can hold, with what limits them.
    """
    if not codes:
        raise ValueError("codes = []: expected at least one kernel's code to draw")
    if show not in ("loads", "stores", "occupancy"):
        raise ValueError(f'show = {show!r}: expected "loads", "stores" or "occupancy"')
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(figsize=(7.5, 1.2 + 0.4 * len(codes)), layout="constrained").subplots()
    if show == "occupancy":
        draw_occupancy(codes, ax)
    else:
        draw_widths([code.loads if show == "loads" else code.stores for code in codes], ax)
        ax.set_xlabel(f"{show[:-1]} instructions on global memory, by bits a thread")
    ax.set_yticks(range(len(codes)), labels(codes))
    ax.set_ylim(len(codes) - 0.5, -0.5)
    if len({code.name for code in codes}) == 1:
        ax.set_title(codes[0].name, loc="left", fontsize=10)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.grid(axis="x", color="0.9", linewidth=0.8)
    ax.grid(visible=False, axis="y")
    ax.set_axisbelow(True)
    return ax


def draw_widths(accessed: Sequence[Mapping[int, int]], ax: "Axes") -> None:
    """Stacked bars, narrow accesses first, each piece labelled with its number where there is room."""
    longest = max((sum(counts.values()) for counts in accessed), default=0) or 1
    for bits, colour in WIDTH_COLOURS.items():
        numbers = [counts.get(bits, 0) for counts in accessed]
        if not any(numbers):
            continue
        lefts = [sum(number for narrower, number in counts.items() if narrower < bits) for counts in accessed]
        ax.barh(range(len(accessed)), numbers, left=lefts, height=0.62, color=colour, label=f"{bits}")
        for place, (left, number) in enumerate(zip(lefts, numbers, strict=True)):
            if number > 0.04 * longest:
                dark = bits >= 96 or bits == 8
                ax.text(left + number / 2, place, str(number), color="white" if dark else INK, ha="center", va="center")
    for place, counts in enumerate(accessed):
        if not counts:
            ax.text(0.01 * longest, place, "none", color="0.4", va="center")
    ax.set_xlim(0, longest * 1.02)
    ax.legend(title="bits", loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)


def draw_occupancy(codes: Sequence[Code], ax: "Axes") -> None:
    """Resident warps in percent of the most, so that devices which hold different numbers compare."""
    fractions = [100 * code.occupancy.fraction for code in codes]
    ax.barh(range(len(codes)), [100] * len(codes), height=0.62, color=ABSENT)
    ax.barh(range(len(codes)), fractions, height=0.62, color=RESIDENT)
    for place, (code, fraction) in enumerate(zip(codes, fractions, strict=True)):
        inside = fraction > 55
        warps = f"{code.occupancy.resident_warps} warps" if code.fits else "does not fit"
        text = f"{warps}: {code.occupancy.limited_by}"
        at = fraction - 1 if inside else fraction + 1
        ax.text(
            at, place, text, color="white" if inside else INK, ha="right" if inside else "left", va="center", fontsize=9
        )
    ax.set_xlim(0, 100)
    ax.set_xlabel("resident warps, percent of what a multiprocessor holds")
