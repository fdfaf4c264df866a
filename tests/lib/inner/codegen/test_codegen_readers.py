"""Reading machine code: excerpts of what nvdisasm, cuobjdump and LLVM print, with every form of what is counted."""

import pytest
from threeloops.inner.codegen.assembly import kernel_needs, read_amdgcn, read_sass, resource_usage
from threeloops.inner.codegen.generated_code import read_code
from threeloops.inner.codegen.occupancy import compilation_target

SASS = """\
	.headerflags	@"EF_CUDA_SM90 LDG.E.128"
.text.kernel:
	//## File "/home/LDG.E.128/file.py", line 39
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   LDG.E R2, desc[UR4][R4.64] ;
        /*0020*/              @!P0 LDG.E.128 R16, desc[UR6][R4.64] ;
        /*0030*/              @P1  LDG.E.EF.LTC128B.64 R16, desc[UR6][R4.64+0x400] ;
	//## File "/home/LDG.E.128/file.py", line 40
        /*0040*/                   LDG.E.U16.CONSTANT R16, [R4.64] ;
        /*0050*/             @!UPT LDG.E.S8.SYS R16, [R4] ;
        /*0060*/                   LDG.E.ENL2.256 R16, R20, desc[UR6][R4.64] ;
        /*0070*/                   LDGSTS.E.BYPASS.LTC128B.128 [R3+0x1000], desc[UR6][R4.64] ;
        /*0080*/                   LDGSTS.E.LTC128B [R3], desc[UR6][R4.64], P0 ;
        /*0090*/                   STG.E.U8 desc[UR6][R4.64], R2 ;
        /*00a0*/                   STG.E.128 desc[UR6][R4.64], R8.reuse ;
        /*00b0*/                   LDSM.16.M88.4 R8, [R3] ;
        /*00c0*/                   LDSM.16.MT88.2 R8, [R3] ;
        /*00d0*/                   LDS.128 R8, [R3] ;
        /*00e0*/                   STSM.16.M88 [R3], R8 ;
        /*00f0*/                   STS.U16 [R3], R8 ;
.L_x_0:
	//## File "/home/LDG.E.128/file.py", line 41
        /*0100*/                   LDL.LU R8, [R1+0x8] ;
        /*0110*/                   LDL.64 R8, [R1+0x8] ;
        /*0120*/                   STL [R1], R8 ;
        /*0130*/                   IMAD R8, R2.reuse, R3.reuse, R5 ;
        /*0140*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24 ;
        /*0150*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24, gsb0 ;
        /*0160*/               @UP2 UTMALDG.2D [UR8], [UR6] ;
        /*0170*/                   UTMASTG.2D [UR8], [UR6] ;
        /*0180*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0190*/                   REDG.E.ADD.F32.FTZ.RN.STRONG.GPU desc[UR4][R4.64], R3 ;
        /*01a0*/                   BRA `(.L_x_0);
"""

USAGE = """
Resource usage:
 Common:
  GLOBAL:0
 Function helper:
  REG:40 STACK:64 SHARED:0 LOCAL:0 TEXTURE:0
 Function kernel:
  REG:26 STACK:0 SHARED:1024 LOCAL:8 CONSTANT[0]:568
"""

AMDGCN = """\
	.text
kernel:                                 ; @kernel
	.loc	1 11 24 prologue_end            ; global_load_dwordx4 in a comment
	global_load_dwordx4 v[2:5], v1, s[2:3]
	global_load_dwordx2 v[2:3], v1, s[2:3]
	global_load_dwordx3 v[2:4], v1, s[2:3]
	global_load_dword v2, v1, s[2:3] offset:16
	global_load_ushort v2, v1, s[2:3]
	global_load_short_d16_hi v2, v1, s[2:3]
	global_load_sbyte v2, v1, s[2:3]
.LBB0_1:                                ; =>This Inner Loop Header: Depth=1
	.loc	1 12 20
	buffer_load_dwordx4 v[2:5], v1, s[4:7], 0 offen
	buffer_load_dword v1, s[4:7], 0 offen lds
	flat_load_dword v1, v[2:3]
	s_load_dwordx4 s[4:7], s[0:1], 0x0
	s_barrier
	ds_read_b128 v[2:5], v1
	ds_read2st64_b64 v[2:5], v1 offset1:8
	ds_write_b64 v1, v[2:3]
	ds_read_u16 v1, v2
	v_mfma_f32_32x32x8_bf16_1k a[0:15], v[2:3], v[4:5], a[0:15]
	v_mfma_f32_16x16x16_f16 a[0:3], v[2:3], v[4:5], a[0:3]
	.loc	1 15 4
	buffer_store_dwordx2 v[2:3], v1, s[4:7], 0 offen
	global_store_short v1, v2, s[2:3]
	global_store_byte v1, v2, s[2:3]
	global_atomic_add_f32 v1, v2, s[2:3]
	scratch_store_dword off, v1, s0
	scratch_load_dwordx2 v[2:3], off, s0
	s_endpgm
; NumVgprs: 120
; NumAgprs: 16
; TotalNumVgprs: 136
; Occupancy: 3
    .private_segment_fixed_size: 24
    .sgpr_count:     38
    .sgpr_spill_count: 0
    .vgpr_count:     136
    .vgpr_spill_count: 5
"""


def test_sass():
    counts = read_sass(SASS)
    assert counts.loads == {8: 1, 16: 1, 32: 2, 64: 1, 128: 2, 256: 1}  # LTC128B is a cache policy, not a width
    assert counts.stores == {8: 1, 128: 1}
    assert (counts.local_loads, counts.local_stores) == (2, 1)
    assert (counts.tensor_cores, counts.tensor_core_instructions) == ("wgmma", 2)
    assert (counts.tma, counts.async_copies, counts.barriers, counts.atomics) == (2, 2, 1, 1)
    assert counts.opcodes["LDG"] == 6 and sum(counts.opcodes.values()) == 27


@pytest.mark.parametrize(
    ("instruction", "kind"),
    [
        ("HMMA.16816.F32.BF16 R4, R8, R12, R4", "mma"),
        ("DMMA.16x8x16 R8, R16, R8, RZ", "mma"),
        ("IMMA.16832.S8.S8 R4, R8.ROW, R12.COL, R4", "mma"),
        ("QGMMA.64x64x32.F32.E4M3.E4M3 R24, gdesc[UR8], R24", "wgmma"),
        ("UTCHMMA gdesc[UR8], gdesc[UR10], tmem[UR4], tmem[UR12], idesc[UR13], UP1", "tcgen05"),
        ("UTCQMMA gdesc[UR8], gdesc[UR10], tmem[UR4], tmem[UR12], idesc[UR13], UP1", "tcgen05"),
        ("HFMA2.MMA R4, -RZ, RZ, 0, 0", None),
        ("UTCBAR [UR4], URZ", None),
    ],
)
def test_tensor_core_instructions(instruction, kind):
    counts = read_sass(f"        /*0000*/                   {instruction} ;\n")
    assert counts.tensor_cores == kind
    assert counts.tensor_core_instructions == (kind is not None)


def test_resources_are_the_most_of_all_functions():
    assert resource_usage(USAGE) == {"REG": 40, "STACK": 64, "SHARED": 1024, "LOCAL": 8}
    with pytest.raises(ValueError, match="no resource usage"):
        resource_usage("cuobjdump info: nothing here")


def test_amdgcn():
    counts = read_amdgcn(AMDGCN)
    assert counts.loads == {8: 1, 16: 2, 32: 3, 64: 1, 96: 1, 128: 2}
    assert counts.stores == {8: 1, 16: 1, 64: 1}
    assert (counts.tensor_cores, counts.tensor_core_instructions) == ("mfma", 2)
    assert (counts.async_copies, counts.barriers, counts.atomics, counts.tma) == (1, 1, 1, 0)
    assert (counts.local_loads, counts.local_stores) == (1, 1)


def test_what_an_amd_kernel_needs():
    assert kernel_needs(AMDGCN) == {
        "registers": 136,
        "spilled_registers": 5,
        "scratch_bytes": 24,
        "warps_by_registers": 3,
    }
    assert kernel_needs("") == {}


def answer(warps=4, shared=0, columns=0, **texts):
    """What the worker says of a kernel."""
    metadata = {"num_warps": warps, "num_stages": 2, "shared": shared, "tmem_size": columns}
    return {"metadata": metadata, "signature": {}, "divisible_by_16": [], "ttgir": "", **texts}


def test_local_memory_is_what_nvidia_spills_to():
    code = read_code("kernel", {}, compilation_target("sm_90"), answer(sass=SASS, usage=USAGE, ptx="// text"))
    assert (code.registers, code.spilled_bytes, code.shared_bytes) == (40, 72, 0)  # the system's 1,024 are nobody's
    assert code.fits and code.sass == SASS


def test_spilled_registers_or_scratch_are_what_amd_spills_to():
    code = read_code("kernel", {}, compilation_target("gfx942"), answer(amdgcn=AMDGCN))
    assert (code.registers, code.spilled_bytes, code.scratch_bytes) == (136, 24, 24)
    assert code.occupancy.resident_warps == 12  # 3 on each of 4 SIMDs, as LLVM says
    more = AMDGCN.replace(".vgpr_spill_count: 5", ".vgpr_spill_count: 9")
    assert read_code("kernel", {}, compilation_target("gfx942"), answer(amdgcn=more)).spilled_bytes == 36


@pytest.mark.parametrize(
    ("needs", "misfit"),
    [
        ({"shared": 227 * 1024 + 1}, "shared memory 232,449 of 232,448 bytes"),
        ({"columns": 1024}, "tensor memory 1,024 of 512 columns"),
        ({"warps": 64}, "threads 2,048 of 1,024 per program"),
        ({"warps": 32, "usage": USAGE.replace("REG:26", "REG:200")}, "registers: 32 warps of 200 registers per thread"),
    ],
)
def test_what_a_target_cannot_hold(needs, misfit):
    code = read_code("kernel", {}, compilation_target("sm_100"), answer(**{"sass": SASS, "usage": USAGE, **needs}))
    assert not code.fits and code.misfits[0] == misfit
    assert code.occupancy.resident_programs == 0
