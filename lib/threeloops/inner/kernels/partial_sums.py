"""The second half of a sum over many programs: add up the partial sums that they left behind.

Atomic additions would need no second kernel, but they add in the order in which programs happen to finish, and float
addition is not associative: two runs give two gradients. Partial sums cost a little traffic and always give the same.
"""

import torch
import triton
import triton.language as tl

from threeloops.inner.costs import Work
from threeloops.inner.kernels.configuration import Configuration

CONFIGURATION = Configuration({"ROWS": 32, "COLUMNS": 32}, num_warps=4)


@triton.jit
def partial_sums_kernel(partials_ptr, total_ptr, programs, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    row = tl.arange(0, ROWS)[:, None]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, programs, ROWS):
        inside = (start + row < programs) & (column < columns)
        position = (start + row).to(tl.int64) * columns + column
        total += tl.load(partials_ptr + position, mask=inside, other=0.0)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(total_ptr + column, tl.sum(total, axis=0).to(total_ptr.dtype.element_ty), mask=column < columns)


def partial_sums(partials: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(programs, columns) contiguous float32 → (columns,) of `dtype`, summed in float32 in a fixed order."""
    programs, columns = partials.shape
    total = torch.empty(columns, dtype=dtype, device=partials.device)
    grid = (triton.cdiv(columns, CONFIGURATION.constants["COLUMNS"]),)
    partial_sums_kernel[grid](partials, total, programs, columns, **CONFIGURATION.options())
    return total


def cost(programs: int, columns: int, bytes_per_element: float = 2) -> Work:
    """What partial sums add to a kernel: float32 written by one kernel and read by the next, and the total written."""
    return Work(columns * (2 * 4 * programs + bytes_per_element), columns * programs)
