"""Occupancy against worked examples, and the targets against the hardware table."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from threeloops.hardware.accelerators import accelerator
from threeloops.inner.codegen.occupancy import COMPILATION_TARGETS, Occupancy, compilation_target, occupancy

DEVICES = {"sm_75": "T4", "sm_80": "A100", "sm_86": "RTX A6000", "sm_89": "L40S", "sm_90": "H100", "sm_100": "B200"}


@pytest.mark.parametrize(
    ("target", "needs", "expected"),
    [
        # 64 registers: 65536 / (64 · 32) = 32 warps, of 8 a program: 4 programs
        ("sm_90", {"registers": 64, "warps": 8}, (4, "registers")),
        # 65 are given out as 72: a scheduler's 16384 / (72 · 32) = 7.1 warps, 28 in all, 3 programs of 8
        ("sm_90", {"registers": 65, "warps": 8}, (3, "registers")),
        # 32 registers and less never limit: 64 warps
        ("sm_80", {"registers": 32, "warps": 4}, (16, "warps")),
        ("sm_80", {"registers": 16, "warps": 1}, (32, "programs")),
        ("sm_75", {"registers": 16, "warps": 1}, (16, "programs")),
        ("sm_86", {"registers": 16, "warps": 4}, (12, "warps")),
        # shared memory: 1 KB a program is reserved. 227 KB is the most, 113 + 1 KB fits twice into 228
        ("sm_90", {"registers": 32, "warps": 4, "shared_bytes": 227 * 1024}, (1, "shared memory")),
        ("sm_90", {"registers": 32, "warps": 4, "shared_bytes": 113 * 1024}, (2, "shared memory")),
        ("sm_90", {"registers": 32, "warps": 4, "shared_bytes": 113 * 1024 + 1}, (1, "shared memory")),
        ("sm_90", {"registers": 32, "warps": 4, "shared_bytes": 227 * 1024 + 1}, (0, "shared memory")),
        ("sm_75", {"registers": 32, "warps": 4, "shared_bytes": 32 * 1024}, (2, "shared memory")),
        # 255 registers and 16 warps: a scheduler holds 2 warps, 4 of each program want a place there
        ("sm_90", {"registers": 255, "warps": 16}, (0, "registers")),
        ("sm_90", {"registers": 255, "warps": 8}, (1, "registers")),
        ("sm_90", {"registers": 256, "warps": 4}, (0, "registers")),
        ("sm_100", {"registers": 64, "warps": 4, "tensor_memory_columns": 256}, (2, "tensor memory")),
        # CDNA 3: 512 registers a lane and SIMD in portions of 8, 8 warps a SIMD, 4 SIMDs
        ("gfx942", {"registers": 128, "warps": 4}, (4, "registers")),
        ("gfx942", {"registers": 129, "warps": 4}, (3, "registers")),
        ("gfx942", {"registers": 64, "warps": 4}, (8, "warps")),
        ("gfx942", {"registers": 64, "warps": 4, "shared_bytes": 24 * 1024}, (2, "shared memory")),
        ("gfx942", {"registers": 64, "warps": 8, "warps_by_registers": 3}, (1, "registers")),
    ],
)
def test_examples(target, needs, expected):
    found = occupancy(compilation_target(target), **{"shared_bytes": 0, **needs})
    assert (found.resident_programs, found.limited_by) == expected
    assert found.resident_warps == found.resident_programs * needs["warps"]


@given(
    target=st.sampled_from(list(COMPILATION_TARGETS.values())),
    registers=st.integers(1, 255),
    shared=st.integers(0, 300 * 1024),
    warps=st.sampled_from([1, 2, 4, 8, 16]),
)
def test_what_is_resident_fits(target, registers, shared, warps):
    found = occupancy(target, registers=registers, shared_bytes=shared, warps=warps)
    assert 0 <= found.fraction <= 1
    assert found.resident_warps * target.warp_size * registers <= target.registers
    assert found.resident_programs * shared <= target.shared_bytes
    more = replace(target, registers=target.registers * 2, shared_bytes=target.shared_bytes * 2)
    assert occupancy(more, registers=registers, shared_bytes=shared, warps=warps).resident_warps >= found.resident_warps


@pytest.mark.parametrize("name", DEVICES)
def test_targets_agree_with_the_hardware_table(name):
    caches, target = accelerator(DEVICES[name]).caches, compilation_target(name)
    assert target.shared_limit == caches.shared_memory_per_block_bytes
    assert target.shared_bytes == caches.shared_memory_bytes
    assert target.source


def test_words():
    assert str(Occupancy(2, 8, 64, "registers")) == "8 of 64 warps, limited by registers"
    with pytest.raises(ValueError, match="warps = 0"):
        occupancy(compilation_target("sm_90"), registers=32, shared_bytes=0, warps=0)
    with pytest.raises(ValueError, match="target = 'sm_91': expected one of sm_75"):
        compilation_target("sm_91")
