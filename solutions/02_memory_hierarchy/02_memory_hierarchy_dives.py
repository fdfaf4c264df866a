# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
#   threeloops:
#     title: Why do kernels stall? Deep dives
#     minutes: 60
# ---

# %% [markdown]
# # Why do kernels stall? Deep dives
#
# These sections are complete and ungraded, and can be read in any order. They show the levels of a GPU's memory with their
# sizes, the banks of shared memory, the TLB (the cache of address translations), what tiles and the length of rows do to a
# matrix product, and what the compiler does about banks of registers. They judge twelve claims.
#
# *Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*

# %% tags=["setup"] jupyter={"source_hidden": true} nbgrader={"grade": false, "grade_id": "setup_dives", "locked": true, "schema_version": 3, "solution": false, "task": false}
import re
from statistics import median

import numpy as np
import torch
from threeloops.hardware import accelerator
from threeloops.inner import interpreter
from threeloops.lab import audit, calibration, figure, myth, palette, predict, progress, reveal, show

INTERPRETED = interpreter.enable_without_gpu()

# %% [markdown]
# ## The levels of an H100
#
# Each level is larger and slower than the one before. First judge seven claims about sizes and rates.

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("mem-1")
myth("mem-3")
myth("mem-12")
myth("mem-8")
myth("mem-9")
myth("mem-10")
myth("mem-11")

# %% tags=["demo"] jupyter={"source_hidden": true}
h100, a100 = accelerator("H100 SXM"), accelerator("A100 SXM 80GB")
REGISTER_FILE_BYTES = 256 * 1024
"""65,536 registers of 32 bits in each SM (CUDA C++ Programming Guide, technical specifications)."""
SHARED_BYTES_PER_CLOCK = 128
"""32 banks of 4 bytes in each SM."""
shared_bandwidth = h100.multiprocessors * SHARED_BYTES_PER_CLOCK * h100.clock_hz
STEPS = {  # capacity in bytes, bandwidth in bytes/s, None if no data sheet has it
    "registers": (h100.multiprocessors * REGISTER_FILE_BYTES, None),
    "shared memory and L1": (h100.multiprocessors * h100.caches.l1_bytes, shared_bandwidth),
    "L2 cache": (h100.caches.l2_bytes, None),
    "HBM3": (h100.memory_bytes, h100.memory_bandwidth),
    "NVLink, to another GPU": (None, h100.link_bandwidth),
    "PCIe, to the host": (None, h100.host_link_bandwidth),
}
fig, (left, right) = figure(1, 2, width=12.5, height=3.9)
names = list(STEPS)
for axes, which, scale, unit in ((left, 0, 2**20, "MiB"), (right, 1, 1e12, "TB/s")):
    values = [(i, STEPS[name][which] / scale) for i, name in enumerate(names) if STEPS[name][which]]
    axes.plot([v for _, v in values], [i for i, _ in values], "o", color=palette.blue, ms=8)
    for i, value in values:
        text = f"{value:,.0f} {unit}" if value > 100 else f"{value:.3g} {unit}"
        axes.annotate(text, (value, i), xytext=(10, 0), textcoords="offset points", va="center")
    axes.set(xscale="log", yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.4, -0.6))
    axes.set_xlim(min(v for _, v in values) / 3, max(v for _, v in values) * 12)
left.set(title="How much fits", xlabel="capacity, all SMs together, MiB")
right.set(title="How much it delivers", xlabel="bandwidth, TB/s", yticklabels=[])
with reveal("mem-9"):
    show.figure(fig, "capacity and bandwidth by level; no dot: no data sheet has a number")
audit(
    "mem-1",
    h100.multiprocessors * h100.fp32_lanes,
    "FP32 lanes",
    "published",
    "corrected",
    how=f"{h100.multiprocessors} SMs × {h100.fp32_lanes} lanes on the SXM5; 14,592 = 114 × 128 is the PCIe card",
)
audit(
    "mem-3",
    a100.caches.shared_memory_bytes / 1024,
    "KiB per SM (A100)",
    "published",
    "corrected",
    how="an SM of an A100 has 164 KiB, and other GPUs have other sizes (NVIDIA, CUDA C++ Programming Guide, technical specifications, 2025)",
)
audit(
    "mem-12",
    h100.caches.shared_memory_bytes / 1024,
    "KiB per SM (H100)",
    "published",
    "corrected",
    how=f"an SM of an H100 has 228 KiB, of which a single block may use {h100.caches.shared_memory_per_block_bytes / 1024:.0f} KiB; other GPUs have other sizes (the same table)",
)
audit(
    "mem-8",
    round(h100.memory_bandwidth / h100.host_link_bandwidth, 1),
    "× slower than HBM",
    "model",
    "corrected",
    how=f"PCIe 5.0 moves 32 GT/s × 16 lanes × 128/130 / 8 = {h100.host_link_bandwidth / 1e9:.1f} GB/s each way. Two orders of magnitude are 100×; for an H100 it is 53×, for an H200 {accelerator('H200 SXM').memory_bandwidth / h100.host_link_bandwidth:.0f}×",
)
audit(
    "mem-9",
    round(shared_bandwidth / 1e12, 1),
    "TB/s",
    "model",
    "corrected",
    how=f"132 SMs × 128 bytes × 1.98 GHz. 19 TB/s is an A100's: 108 × 128 × 1.41 GHz = {a100.multiprocessors * 128 * a100.clock_hz / 1e12:.1f}",
)
audit(
    "mem-10",
    round(h100.multiprocessors * h100.caches.shared_memory_bytes / 2**20, 1),
    "MiB",
    "model",
    "corrected",
    how="132 × 228 KiB. 33 MiB is 132 × 256 KiB, which also counts the part that only L1 can use",
)
audit(
    "mem-11",
    round(shared_bandwidth / h100.memory_bandwidth, 1),
    "× the bandwidth of HBM",
    "model",
    "holds",
    how=f"for an H100 SXM: 132 SMs × 128 bytes × 1.98 GHz = {shared_bandwidth / 1e12:.1f} TB/s, over 3.35 TB/s of HBM. In clocks the distance is larger: 29 against 479",
)

# %% [markdown]
# ## Latency in clocks
#
# The next two claims are about latency. They are judged by published measurements, because the course has not measured these
# GPUs itself.

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("mem-2")
audit(
    "mem-2",
    29,
    "clocks to shared memory",
    "published",
    "corrected",
    how="W. Luo et al., Benchmarking and Dissecting the Nvidia Hopper GPU Architecture (2024, arXiv:2402.13499), measured on an H800 PCIe",
)
myth("mem-5")
audit(
    "mem-5",
    82,
    "clocks on Pascal",
    "published",
    "corrected",
    how="Z. Jia et al., Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking (2018, arXiv:1804.06826), table of the memory hierarchy: 28 clocks on V100 and 82, not 84, on P100",
)

# %% [markdown]
# ## Banks of shared memory
#
# In the lab, a column of a tile took 32 rounds in one layout and a single round in two others. A round is called a
# **wavefront**. Triton shows neither lanes nor banks, so `threeloops/inner/machine_models/warp.py` models a warp in NumPy: it
# moves real values and counts wavefronts. Padding costs one wasted column, and the swizzle nothing.
#
# Compilers swizzle, too. The next cell reads from Triton's intermediate code which layout it chose for the operands of an FP16
# matmul on an A100, and counts its wavefronts with the model. Tensor cores fetch such a tile as rows of 16 bytes, eight rows
# at a time (`ldmatrix`), so that is the access to count.

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.inner.codegen import inspect
from threeloops.inner.kernels.matmul.matmul import matmul as library_matmul
from threeloops.inner.machine_models.warp import triton_swizzle, wavefronts

A_META, B_META = (torch.empty(1024, 1024, dtype=torch.float16, device="meta") for _ in range(2))
(ampere,) = inspect(lambda: library_matmul(A_META, B_META), "sm_80")
layouts = sorted(
    set(re.findall(r"#ttg\.swizzled_shared<\{vec = (\d+), perPhase = (\d+), maxPhase = (\d+)", ampere.ttgir))
)
tile_rows, block_k = map(int, re.search(r"memdesc<(\d+)x(\d+)xf16, #shared", ampere.ttgir).groups())
rows = []
for vec, per_phase, max_phase in (tuple(map(int, layout)) for layout in layouts):
    for name, place in (
        ("as compiled", triton_swizzle(vec, per_phase, max_phase, block_k)),
        ("without the swizzle", triton_swizzle(1, 1, 1, block_k)),
    ):
        eight_rows = place(np.arange(8), np.zeros(8, int)) * 2  # the 16-byte rows of one 8 × 8 block of FP16
        rows.append(
            [f"vec {vec}, perPhase {per_phase}, maxPhase {max_phase}", name, wavefronts(eight_rows // 16 * 16, 16)]
        )
show.table(rows, [f"layout of a tile of {tile_rows} × {block_k} FP16 values", "", "wavefronts for one 8 × 8 block"])

# %% [markdown]
# On Hopper, with tensor descriptors, the tensor memory accelerator writes the tile into shared memory with a swizzle of
# 32, 64 or 128 bytes (`#ttg.nvmma_shared`). The matrix instruction `wgmma` reads it from there, so operands need not
# pass through registers.
#
# ## The other cache, the TLB
#
# An address is translated before it is fetched, page by page, and the translations have a cache of their own, the
# **TLB**. The lab's pointer chase through a large working set visits another page almost every time, so part of its
# last step is translation. To see it, chase the *same number of lines* three times. First visit lines next to each
# other. Then visit one line in every 64: with lines of 64 bytes they are 4,096 bytes apart, one per page. Last, visit
# one in every 65. They are 4,160 bytes apart, so they also lie in different pages. The cell takes a few seconds.

# %% tags=["demo"] jupyter={"source_hidden": true}
predict(
    "one_line_per_page",
    "A chase visits 4,096 lines, on most CPUs 256 KiB. A line's address decides which set of a cache it may lie in: on most CPUs the addresses of one line in every 64 fall into few sets, those of one in every 65 into all. Which chase is slowest?",
    options=("lines next to each other", "one line in every 64", "one line in every 65"),
)

# %% tags=["demo"] jupyter={"source_hidden": true}
from threeloops.inner.machine_models.pointer_chase import NotMeasurable, latency_of_spread

try:
    LINES = [2**k for k in range(4, 13)]
    SPACINGS = {64: "one line in every 64", 65: "one line in every 65", 1: "lines next to each other"}
    curves = {
        spacing: [median(latency_of_spread(lines, spacing, repeats=5)) * 1e9 for lines in progress(LINES, name)]
        for spacing, name in SPACINGS.items()
    }
    slowest = max(curves, key=lambda spacing: curves[spacing][-1])
    show.against_prediction("one_line_per_page", SPACINGS[slowest], source="measured here")
    fig, axes = figure(width=9.5, height=3.6)
    for (spacing, name), shade in zip(
        SPACINGS.items(), (palette.vermillion, palette.orange, palette.blue), strict=True
    ):
        axes.plot(LINES, curves[spacing], "o-", color=shade, ms=4)
        axes.text(LINES[-1] * 1.1, curves[spacing][-1], name, color=shade, va="center")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="lines visited",
        ylabel="ns per dependent load",
        title="The same number of lines, in more pages",
    )
    axes.set_xlim(right=LINES[-1] * 6)
    axes.set_xticks(LINES[::2], [f"{lines:,}" for lines in LINES[::2]])
    axes.set_yticks([1, 3, 10, 30, 100], ["1", "3", "10", "30", "100"])
    axes.set_ylim(min(map(min, curves.values())) / 1.3, max(map(max, curves.values())) * 1.3)
    axes.minorticks_off()
    with reveal("one_line_per_page"):
        show.figure(fig)
        show.busy_notice()
except NotMeasurable as reason:
    print(f"not measured here: {reason}")

# %% [markdown]
# The same number of lines fits into the same caches. Between lines next to each other and one in every 65, only the
# number of pages differs, so the extra time is translation. It begins at the size at which the TLB is full. One line in
# every 64 has as many pages as one in every 65, but addresses that are a power of two apart fall into the same few sets
# of a set-associative cache, and even 16 lines can be too many for those. That is why a leading dimension of exactly
# 4,096 bytes can be slower than one of 4,160.
#
# ## What tiles save, and what an odd length costs
#
# Exercise 5 counts what a tiled product asks for. Two more claims are about that number.

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("mem-13")
myth("mem-4")
naive_loads, tiled_loads = 2 * 1000**3, 2 * 1000 * 1000 * -(-1000 // 16)
audit(
    "mem-13",
    naive_loads / (2 * 1000**2),
    "loads of each value",
    "model",
    "holds",
    how="each value of A and of B is a factor in 1000 of the 1000³ products, and without tiles each product loads both of its factors. Caches may answer most of these loads",
)
audit(
    "mem-4",
    round(naive_loads / tiled_loads, 2),
    "× fewer loads",
    "model",
    "corrected",
    how="1000³ in 16 × 16 tiles: ⌈1000 / 16⌉ = 63 fetches of each value instead of 1000. The saving is 16× only if 16 divides the size. L2 saves more on top of that: see the last figure of the lab",
)

# %% [markdown]
# The next cell compiles the library's product for an A100 at three inner lengths, each time with the same tile.

# %% tags=["demo"] jupyter={"source_hidden": true}
rows = []
for inner in (1024, 1008, 1001):
    left, right = (torch.empty(shape, dtype=torch.float16, device="meta") for shape in ((512, inner), (inner, 512)))
    (code,) = inspect(
        lambda left=left, right=right: library_matmul(left, right, block_m=64, block_n=128, block_k=32), "sm_80"
    )
    widths = ", ".join(f"{count} × {bits} bits" for bits, count in sorted(code.loads.items()))
    rows.append([inner, widths, code.sass.count("LDGSTS"), code.registers])
show.table(rows, ["k", "loads per thread", "of which straight to shared memory", "registers"])

# %% [markdown]
# With k = 1,001 a row of A has 2,002 bytes. Most rows do not begin at a multiple of 16 bytes, so A is loaded 16 bits at a
# time, through registers and not straight to shared memory. Rows of B still have 1,024 bytes. Padding k to 1,008 with zeros
# avoids this.
#
# The table counts instructions in the code, not those that are executed. A step needs 1 load of A and 2 of B at 128
# bits. The first two rows have 9 loads, because the compiler pipelines the loop: it loads the tiles of two steps before
# the loop and those of a later step inside it. With 16 bits a step needs 8 loads of A. A copy straight to shared memory
# has at least 32 bits, and Triton pipelines only such copies. So these 8 stay inside the loop, which waits for them in
# every step. B is loaded for one step before the loop and for the next inside it, 4 loads. If A were pipelined as
# before, it would have 24 loads instead of 8, so fewer load instructions can be a bad sign.
#
# Left to itself, the library takes a larger tile for k = 1,024: 128 × 128 with an inner length of 64, which has 24
# loads.
#
# ## Registers have banks too
#
# Each scheduler of an SM reads operands from a register file that is divided into banks, and a multiply-add needs three
# operands. The compiler places operands so that they rarely share a bank. One trace of this is the `.reuse` flag in the
# machine code. It means: keep this operand in the operand cache, because the next instruction needs it, too. Uniform
# registers (`UR`) hold values that are the same for the whole warp, such as the base address of a tile, and have a file
# of their own.

# %% tags=["demo"] jupyter={"source_hidden": true}
myth("mem-7")
(ieee,) = inspect(lambda: library_matmul(A_META.float(), B_META.float(), input_precision="ieee"), "sm_80")
body = [line for line in ieee.sass.splitlines() if "FFMA" in line]
flagged = sum(".reuse" in line for line in body)
uniform = sum(bool(re.search(r"\bUR\d+", line)) for line in ieee.sass.splitlines())
print(
    f"FP32 matmul without tensor cores, sm_80: {len(body)} FFMA instructions, {flagged} with a .reuse flag; "
    f"{uniform} instructions use a uniform register\n"
)
print(*[re.sub(r"/\*[0-9a-fx]+\*/", "", line).strip() for line in body[:6]], sep="\n")
audit(
    "mem-7",
    round(100 * flagged / max(len(body), 1), 1),
    "% of FFMA with .reuse",
    "compiled",
    "cannot be tested here",
    how="Z. Jia et al., Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking (2018, arXiv:1804.06826), placed registers by hand. To measure the gain, one would have to write machine code, and Triton cannot do that. What the compiler does by itself, the .reuse flag, is counted here in an FP32 matmul compiled for sm_80",
)
calibration()
