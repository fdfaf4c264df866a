"""Reading AMDGCN, the assembly of AMD GPUs, as LLVM prints it: instructions, and what a kernel needs as comments."""

import re
from collections import Counter

from threeloops.inner.bench.codegen.sass import Counts

INSTRUCTION = re.compile(r"^\t(?P<opcode>[a-z][a-z0-9_]*)(?P<operands>[^\n;]*)", re.MULTILINE)
GLOBAL = re.compile(r"(?:global|flat|buffer)_(?P<way>load|store)_(?P<type>[a-z0-9_]+)")
SHARED = re.compile(r"ds_(?P<way>read|write|load|store)(?P<two>2(?:st64)?)?_(?:tr\w*_)?[bui](?P<bits>\d+)")
WORDS = {"dword": 32, "dwordx2": 64, "dwordx3": 96, "dwordx4": 128, "b32": 32, "b64": 64, "b96": 96, "b128": 128}
ATOMIC = re.compile(r"(?:global|flat|buffer)_atomic_")
"""Instructions that move registers are named by 32-bit words, smaller ones by type: ushort, sbyte, short_d16_hi."""

NEEDS = {
    "registers": r"; TotalNumVgprs: (\d+)",
    "accumulation_registers": r"; NumAgprs: (\d+)",
    "scalar_registers": r"\.sgpr_count:\s+(\d+)",
    "spilled_registers": r"\.vgpr_spill_count:\s+(\d+)",
    "spilled_scalars": r"\.sgpr_spill_count:\s+(\d+)",
    "scratch_bytes": r"\.private_segment_fixed_size:\s+(\d+)",
    "warps_by_registers": r"; Occupancy: (\d+)",
}


def read_amdgcn(text: str) -> Counts:
    """Count the instructions of a kernel."""
    opcodes: Counter[str] = Counter()
    moved: dict[str, Counter[int]] = {way: Counter() for way in ("load", "store", "read", "write")}
    async_copies = 0
    for found in INSTRUCTION.finditer(text):
        opcode, operands = found["opcode"], found["operands"]
        opcodes[opcode] += 1
        if access := GLOBAL.match(opcode):
            moved[access["way"]][bits(access["type"])] += 1
            async_copies += access["way"] == "load" and ("_lds_" in opcode or operands.endswith(" lds"))
        elif access := SHARED.match(opcode):
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
        atomics=sum(number for opcode, number in opcodes.items() if ATOMIC.match(opcode)),
        barriers=opcodes["s_barrier"],
        local_loads=refills,
        local_stores=spills,
    )


def bits(type_name: str) -> int:
    """Bits that one lane moves: dwordx4 is 128, ushort and short_d16_hi are 16, sbyte is 8."""
    first = type_name.removeprefix("lds_").split("_")[0]
    if first in WORDS:
        return WORDS[first]
    return 8 if "byte" in first or first.endswith("8") else 16


def kernel_needs(text: str) -> dict[str, int]:
    """What LLVM says that a kernel needs: vector registers a lane, accumulation registers among them, spills, scratch
    bytes a lane, and the warps that one SIMD can hold with so many registers. What it does not say is left out."""
    found = {name: re.findall(pattern, text) for name, pattern in NEEDS.items()}
    return {name: max(map(int, numbers)) for name, numbers in found.items() if numbers}
