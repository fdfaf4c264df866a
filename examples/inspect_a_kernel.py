"""Compile your Triton kernel for a GPU that you do not have: registers, spills, vector width, occupancy."""

import torch
import triton
import triton.language as tl
from threeloops.inner.codegen import inspect


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x + place, mask=place < n) + tl.load(y + place, mask=place < n)
    tl.store(out + place, total, mask=place < n)


x = torch.randn(1 << 16)
for target in ("sm_80", "sm_90"):
    for code in inspect(lambda: add_kernel[(64,)](x, x, torch.empty_like(x), x.numel(), BLOCK=1024), target):
        print(code.report())
