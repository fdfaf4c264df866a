"""Reading machine code: SASS of NVIDIA GPUs from nvdisasm, with the resources that cuobjdump prints, and AMDGCN of AMD
GPUs from LLVM, which prints the resources as comments."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Counts", "TensorCores", "bits", "kernel_needs", "read_amdgcn", "read_sass", "resource_usage", "width"]

TensorCores = Literal["wgmma", "mma", "tcgen05", "mfma"]

_INSTRUCTION = re.compile(
    r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?(?P<opcode>[A-Z][A-Z0-9_]*)(?P<modifiers>(?:\.[A-Za-z0-9_]+)*)(?P<operands>[^;]*);"
)
_USAGE = re.compile(r"REG:(?P<REG>\d+) STACK:(?P<STACK>\d+) SHARED:(?P<SHARED>\d+) LOCAL:(?P<LOCAL>\d+)")
_WIDTHS = {"256": 256, "128": 128, "64": 64, "U16": 16, "S16": 16, "U8": 8, "S8": 8}
"""Modifier → bits that one thread moves. Without one, it is a register of 32 bits."""

_TENSOR_CORE_OPCODES: dict[str, TensorCores] = {
    **dict.fromkeys(("HGMMA", "QGMMA", "IGMMA", "BGMMA"), "wgmma"),
    **dict.fromkeys(("HMMA", "IMMA", "DMMA", "QMMA", "OMMA", "BMMA"), "mma"),
    **dict.fromkeys(("UTCHMMA", "UTCQMMA", "UTCIMMA", "UTCOMMA", "UTCMXQMMA"), "tcgen05"),
}
"""In PTX's terms: wgmma is a warpgroup's product from shared memory (Hopper), mma a warp's from registers, tcgen05
Blackwell's, accumulated in tensor memory."""


@dataclass(frozen=True)
class Counts:
    """Instructions in a kernel's code: one in a loop counts once, however often it runs.

    `loads` and `stores`: accesses to global memory by the bits that one thread moves, asynchronous copies to shared
    memory included; `shared_loads` and `shared_stores` likewise. `local_loads` and `local_stores`: accesses to spilled
    values. `tma`: copies of whole tiles by the tensor memory accelerator.
    """

    opcodes: dict[str, int] = field(default_factory=dict, repr=False)
    loads: dict[int, int] = field(default_factory=dict)
    stores: dict[int, int] = field(default_factory=dict)
    shared_loads: dict[int, int] = field(default_factory=dict)
    shared_stores: dict[int, int] = field(default_factory=dict)
    tensor_cores: TensorCores | None = None
    tensor_core_instructions: int = 0
    tma: int = 0
    async_copies: int = 0
    atomics: int = 0
    barriers: int = 0
    local_loads: int = 0
    local_stores: int = 0
    reuse_flags: int = 0


def read_sass(text: str) -> Counts:
    """Count the instructions of all functions in a dump."""
    opcodes: Counter[str] = Counter()
    widths: dict[str, Counter[int]] = {
        opcode: Counter() for opcode in ("LDG", "LDGSTS", "STG", "LDS", "LDSM", "STS", "STSM")
    }
    reuse_flags = 0
    for line in text.splitlines():
        found = _INSTRUCTION.match(line)
        if found is None:
            continue
        opcode = found["opcode"]
        opcodes[opcode] += 1
        reuse_flags += found["operands"].count(".reuse")
        if opcode in widths:
            widths[opcode][width(opcode, found["modifiers"].split(".")[1:])] += 1
    kind = next(
        (_TENSOR_CORE_OPCODES[opcode] for opcode, _ in opcodes.most_common() if opcode in _TENSOR_CORE_OPCODES), None
    )
    return Counts(
        dict(opcodes.most_common()),
        loads=dict(sorted((widths["LDG"] + widths["LDGSTS"]).items())),
        stores=dict(sorted(widths["STG"].items())),
        shared_loads=dict(sorted((widths["LDS"] + widths["LDSM"]).items())),
        shared_stores=dict(sorted((widths["STS"] + widths["STSM"]).items())),
        tensor_cores=kind,
        tensor_core_instructions=sum(number for opcode, number in opcodes.items() if opcode in _TENSOR_CORE_OPCODES),
        tma=sum(opcodes[opcode] for opcode in ("UTMALDG", "UTMASTG", "UTMAREDG", "UBLKCP")),
        async_copies=opcodes["LDGSTS"],
        atomics=sum(opcodes[opcode] for opcode in ("ATOM", "ATOMG", "RED", "REDG")),
        barriers=opcodes["BAR"],
        local_loads=opcodes["LDL"],
        local_stores=opcodes["STL"],
        reuse_flags=reuse_flags,
    )


def width(opcode: str, modifiers: list[str]) -> int:
    """Bits per thread. A matrix load or store moves one register per matrix: `.M88.4` is 128 bits."""
    if opcode in ("LDSM", "STSM"):
        return 32 * next((int(modifier) for modifier in modifiers if modifier in ("2", "4")), 1)
    return next((_WIDTHS[modifier] for modifier in modifiers if modifier in _WIDTHS), 32)


def resource_usage(text: str) -> dict[str, int]:
    """REG, STACK and LOCAL (bytes of local memory) per thread, and SHARED: the maximum over all functions.

    SHARED does not include Triton's shared memory, which is allocated at the launch. Raises ValueError if `text` has no
    resource usage.
    """
    found = [{name: int(number) for name, number in each.groupdict().items()} for each in _USAGE.finditer(text)]
    if not found:
        raise ValueError(f"no resource usage in the {len(text)} characters that cuobjdump printed: {text[:200]!r}")
    return {name: max(each[name] for each in found) for name in found[0]}


_AMD_INSTRUCTION = re.compile(r"^\t(?P<opcode>[a-z][a-z0-9_]*)(?P<operands>[^\n;]*)", re.MULTILINE)
_GLOBAL = re.compile(r"(?:global|flat|buffer)_(?P<way>load|store)_(?P<type>[a-z0-9_]+)")
_SHARED = re.compile(r"ds_(?P<way>read|write|load|store)(?P<two>2(?:st64)?)?_(?:tr\w*_)?[bui](?P<bits>\d+)")
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
    moved: dict[str, Counter[int]] = {way: Counter() for way in ("load", "store", "read", "write")}
    async_copies = 0
    for found in _AMD_INSTRUCTION.finditer(text):
        opcode, operands = found["opcode"], found["operands"]
        opcodes[opcode] += 1
        if access := _GLOBAL.match(opcode):
            moved[access["way"]][bits(access["type"])] += 1
            async_copies += access["way"] == "load" and ("_lds_" in opcode or operands.endswith(" lds"))
        elif access := _SHARED.match(opcode):
            way = {"load": "read", "store": "write"}.get(access["way"], access["way"])
            moved[way][int(access["bits"]) * (2 if access["two"] else 1)] += 1
    products = sum(number for opcode, number in opcodes.items() if opcode.startswith(("v_mfma", "v_smfmac")))
    spills = sum(number for opcode, number in opcodes.items() if opcode.startswith("scratch_store"))
    refills = sum(number for opcode, number in opcodes.items() if opcode.startswith("scratch_load"))
    return Counts(
        dict(opcodes.most_common()),
        loads=dict(sorted(moved["load"].items())),
        stores=dict(sorted(moved["store"].items())),
        shared_loads=dict(sorted(moved["read"].items())),
        shared_stores=dict(sorted(moved["write"].items())),
        tensor_cores="mfma" if products else None,
        tensor_core_instructions=products,
        async_copies=async_copies,
        atomics=sum(number for opcode, number in opcodes.items() if _ATOMIC.match(opcode)),
        barriers=opcodes["s_barrier"],
        local_loads=refills,
        local_stores=spills,
    )


def bits(type_name: str) -> int:
    """Bits that one lane moves: dwordx4 is 128, ushort and short_d16_hi are 16, sbyte is 8."""
    first = type_name.removeprefix("lds_").split("_")[0]
    if first in _WORDS:
        return _WORDS[first]
    return 8 if "byte" in first or first.endswith("8") else 16


def kernel_needs(text: str) -> dict[str, int]:
    """What LLVM says about a kernel: vector registers per lane including accumulation registers, spills, scratch bytes
    per lane, and how many warps one SIMD holds with that many registers. Anything not printed is left out."""
    found = {name: re.findall(pattern, text) for name, pattern in _NEEDS.items()}
    return {name: max(map(int, numbers)) for name, numbers in found.items() if numbers}
