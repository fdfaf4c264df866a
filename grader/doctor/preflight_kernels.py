"""The two kernels of `threeloops doctor`. Only `preflight` imports them, in processes with TRITON_INTERPRET set as each
check needs it: Triton decides when a kernel is decorated whether to interpret or to compile it."""

import triton
import triton.language as tl


@triton.jit
def saxpy(x, y, out, a, n, BLOCK: tl.constexpr):
    """out = a·x + y for n elements; each program loops over its share of the blocks.

    The loop bounds are runtime integers, which triton 3.6 with numpy 2.4 cannot interpret.
    """
    for block in range(tl.program_id(0), tl.cdiv(n, BLOCK), tl.num_programs(0)):
        at = block * BLOCK + tl.arange(0, BLOCK)
        inside = at < n
        values = a * tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)
        tl.store(out + at, values, mask=inside)


@triton.jit
def dot_16(left, right, out):
    """out = left @ right for row-major 16 × 16 matrices, accumulated in float32."""
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(out + at, tl.dot(tl.load(left + at), tl.load(right + at)))
