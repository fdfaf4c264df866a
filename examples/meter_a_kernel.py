"""Count the bytes, sectors and FLOPs of your Triton kernel, without a GPU."""

import torch
import triton
import triton.language as tl
from threeloops.inner.meter import meter  # before the kernel is decorated


@triton.jit
def scale_kernel(x, y, n, STRIDE: tl.constexpr, BLOCK: tl.constexpr):
    place = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)) * STRIDE
    tl.store(y + place, 2 * tl.load(x + place, mask=place < n), mask=place < n)


x = torch.randn(1 << 14)
for stride in (1, 8):
    with meter() as traffic:
        scale_kernel[(16,)](x, torch.empty_like(x), x.numel(), STRIDE=stride, BLOCK=1024)
    print(f"stride {stride}")
    print(traffic.report())
