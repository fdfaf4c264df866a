"""Reading machine code: SASS of NVIDIA GPUs from nvdisasm, with the resources that cuobjdump prints, and AMDGCN of AMD
GPUs from LLVM, which prints the resources as comments."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Counts", "TensorCores", "kernel_needs", "read_amdgcn", "read_sass", "resource_usage"]

TensorCores = Literal["wgmma", "mma", "tcgen05", "mfma"]

_INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?(?P<opcode>[A-Z][A-Z0-9_]*)(?P<modifiers>(?:\.[A-Za-z0-9_]+)*)[^;]*;"
)
_USAGE = re.compile(r"REG:(?P<REG>\d+) STACK:(?P<STACK>\d+) SHARED:(?P<SHARED>\d+) LOCAL:(?P<LOCAL>\d+)")
_WIDTHS = {"256": 256, "128": 128, "64": 64, "U16": 16, "S16": 16, "U8": 8, "S8": 8}
"""Modifier → bits that one thread moves. Without one, it is a register of 32 bits."""

_TENSOR_CORE_OPCODES: dict[str, TensorCores] = {
    **dict.fromkeys(("HGMMA", "QGMMA", "IGMMA", "BGMMA"), "wgmma"),
    **dict.fromkeys(("HMMA", "IMMA", "DMMA", "QMMA", "OMMA", "BMMA"), "mma"),
    **dict.fromkeys(("UTCHMMA", "UTCQMMA", "UTCIMMA", "UTCOMMA", "UTCMXQMMA"), "tcgen05"),
}
"""Names in PTX's terms: wgmma is a warpgroup's product from shared memory (Hopper), mma a warp's from registers,
tcgen05 Blackwell's, accumulated in tensor memory."""


@dataclass(frozen=True)
class Counts:
    """Instructions in a kernel's code: one in a loop counts once, however often it runs.

    `loads` and `stores`: accesses to global memory by the bits that one thread moves, asynchronous copies to shared
    memory included. `local_loads` and `local_stores`: accesses to spilled
    values. `tma`: copies of whole tiles by the tensor memory accelerator.
    """

    opcodes: dict[str, int] = field(default_factory=dict, repr=False)
    loads: dict[int, int] = field(default_factory=dict)
    stores: dict[int, int] = field(default_factory=dict)
    tensor_cores: TensorCores | None = None
    tensor_core_instructions: int = 0
    tma: int = 0
    async_copies: int = 0
    atomics: int = 0
    barriers: int = 0
    local_loads: int = 0
    local_stores: int = 0


def read_sass(text: str) -> Counts:
    """Count the instructions of all functions in a dump."""
    opcodes: Counter[str] = Counter()
    widths: dict[str, Counter[int]] = {opcode: Counter() for opcode in ("LDG", "LDGSTS", "STG")}
    for line in text.splitlines():
        instruction = _INSTRUCTION.match(line)
        if instruction is None:
            continue
        opcode = instruction["opcode"]
        opcodes[opcode] += 1
        if opcode in widths:
            modifiers = instruction["modifiers"].split(".")
            widths[opcode][next((_WIDTHS[modifier] for modifier in modifiers if modifier in _WIDTHS), 32)] += 1
    kind = next(
        (_TENSOR_CORE_OPCODES[opcode] for opcode, _ in opcodes.most_common() if opcode in _TENSOR_CORE_OPCODES), None
    )
    return Counts(
        dict(opcodes.most_common()),
        loads=dict(sorted((widths["LDG"] + widths["LDGSTS"]).items())),
        stores=dict(sorted(widths["STG"].items())),
        tensor_cores=kind,
        tensor_core_instructions=sum(number for opcode, number in opcodes.items() if opcode in _TENSOR_CORE_OPCODES),
        tma=sum(opcodes[opcode] for opcode in ("UTMALDG", "UTMASTG", "UTMAREDG", "UBLKCP")),
        async_copies=opcodes["LDGSTS"],
        atomics=sum(opcodes[opcode] for opcode in ("ATOM", "ATOMG", "RED", "REDG")),
        barriers=opcodes["BAR"],
        local_loads=opcodes["LDL"],
        local_stores=opcodes["STL"],
    )


def resource_usage(text: str) -> dict[str, int]:
    """Return REG, STACK and LOCAL (bytes of local memory) per thread, and SHARED: the maximum over all functions.

    SHARED does not include Triton's shared memory, which is allocated at the launch. Raises ValueError if `text` has no
    resource usage.
    """
    usages = [{name: int(number) for name, number in match.groupdict().items()} for match in _USAGE.finditer(text)]
    if not usages:
        raise ValueError(f"no resource usage in the {len(text)} characters that cuobjdump printed: {text[:200]!r}")
    return {name: max(usage[name] for usage in usages) for name in usages[0]}


_AMD_INSTRUCTION = re.compile(r"^\t(?P<opcode>[a-z][a-z0-9_]*)(?P<operands>[^\n;]*)", re.MULTILINE)
_GLOBAL = re.compile(r"(?:global|flat|buffer)_(?P<way>load|store)_(?P<type>[a-z0-9_]+)")
_WORDS = {"dword": 32, "dwordx2": 64, "dwordx3": 96, "dwordx4": 128, "b32": 32, "b64": 64, "b96": 96, "b128": 128}
"""Instructions that move registers are named by 32-bit words, smaller ones by type: ushort, sbyte, short_d16_hi."""
_ATOMIC = re.compile(r"(?:global|flat|buffer)_atomic_")

_NEEDS = {
    "registers": r"; TotalNumVgprs: (\d+)",
    "spilled_registers": r"\.vgpr_spill_count:\s+(\d+)",
    "scratch_bytes": r"\.private_segment_fixed_size:\s+(\d+)",
    "warps_by_registers": r"; Occupancy: (\d+)",
}


def read_amdgcn(text: str) -> Counts:
    """Count the instructions of a kernel."""
    opcodes: Counter[str] = Counter()
    moved: dict[str, Counter[int]] = {way: Counter() for way in ("load", "store")}
    async_copies = 0
    for instruction in _AMD_INSTRUCTION.finditer(text):
        opcode = instruction["opcode"]
        operands = instruction["operands"]
        opcodes[opcode] += 1
        if access := _GLOBAL.match(opcode):
            moved[access["way"]][_bits(access["type"])] += 1
            async_copies += access["way"] == "load" and ("_lds_" in opcode or operands.endswith(" lds"))
    products = sum(number for opcode, number in opcodes.items() if opcode.startswith(("v_mfma", "v_smfmac")))
    spills = sum(number for opcode, number in opcodes.items() if opcode.startswith("scratch_store"))
    refills = sum(number for opcode, number in opcodes.items() if opcode.startswith("scratch_load"))
    return Counts(
        dict(opcodes.most_common()),
        loads=dict(sorted(moved["load"].items())),
        stores=dict(sorted(moved["store"].items())),
        tensor_cores="mfma" if products else None,
        tensor_core_instructions=products,
        async_copies=async_copies,
        atomics=sum(number for opcode, number in opcodes.items() if _ATOMIC.match(opcode)),
        barriers=opcodes["s_barrier"],
        local_loads=refills,
        local_stores=spills,
    )


def _bits(type_name: str) -> int:
    """Return the bits that one lane moves: dwordx4 is 128, ushort and short_d16_hi are 16, sbyte is 8."""
    first = type_name.removeprefix("lds_").split("_")[0]
    if first in _WORDS:
        return _WORDS[first]
    return 8 if "byte" in first or first.endswith("8") else 16


def kernel_needs(text: str) -> dict[str, int]:
    """Return what LLVM reports about a kernel: vector registers per lane including accumulation registers, spills,
    scratch bytes per lane, and how many warps one SIMD holds with that many registers. Anything not printed is left
    out."""
    matches = {name: re.findall(pattern, text) for name, pattern in _NEEDS.items()}
    return {name: max(map(int, numbers)) for name, numbers in matches.items() if numbers}
