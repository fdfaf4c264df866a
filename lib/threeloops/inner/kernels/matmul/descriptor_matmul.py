"""Matrix product through tensor descriptors: the hardware fetches whole tiles (TMA on Hopper and Blackwell).

Source: the persistent matrix multiplication tutorial of Triton; CUDA C++ Programming Guide, "Tensor Memory Access".

A descriptor tells the copy engine once where a matrix begins, its sizes and the size of a tile. One thread then asks
for a tile by its coordinates, and no thread computes an address or a mask: what lies outside reads as zero and is not
written. In exchange the matrix must start at a multiple of 16 bytes, and so must each of its rows.
"""

from typing import Unpack

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from threeloops.inner.kernels.launching import Configuration, target
from threeloops.inner.kernels.matmul import matmul as pointers
from threeloops.inner.kernels.matmul.matmul import grouped_tile
from threeloops.inner.kernels.matmul.matrix_product import Options, multiply, tiles

__all__ = ["descriptor_matmul", "descriptor_matmul_kernel", "launch"]

_ALIGNMENT_BYTES = 16
_WITHOUT_COPY_ENGINE = ("sm_80", "gfx942")


@triton.jit
def descriptor_matmul_kernel(
    a, b, c, m, n, k,
    A_IS_TRANSPOSED: tl.constexpr, B_IS_TRANSPOSED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    row, column = grouped_tile(tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), GROUP_M)
    first_row = row * BLOCK_M
    first_column = column * BLOCK_N
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        if A_IS_TRANSPOSED:
            a_values = a.load([start, first_row]).T
        else:
            a_values = a.load([first_row, start])
        if B_IS_TRANSPOSED:
            b_values = b.load([first_column, start]).T
        else:
            b_values = b.load([start, first_column])
        total = tl.dot(a_values, b_values, total, input_precision=INPUT_PRECISION)
    c.store([first_row, first_column], total.to(c.dtype))


def descriptor_matmul(a: torch.Tensor, b: torch.Tensor, **options: Unpack[Options]) -> torch.Tensor:
    """Compute a @ b: (m, k) @ (k, n) → (m, n), like `matmul`, for matrices that descriptors can describe.

    Rows must be multiples of 16 bytes, so k and n (and m, for a transposed a) times the element size must be. The data
    must begin at a multiple of 16 bytes. A ValueError says what does not fit. If the target has no such engine,
    `matmul`'s kernel is launched instead.
    """
    return multiply(launch, a, b, False, True, **options)


def launch(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, precision: str, chosen: Configuration) -> None:
    if target() in _WITHOUT_COPY_ENGINE:
        pointers.launch(a, b, c, precision, chosen)
        return
    k = a.shape[1]
    if k == 0:
        c.zero_()
        return
    block_m, block_n, block_k = (chosen.constants[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K"))
    a_described, a_is_transposed = _described("a", a, block_m, block_k)
    b_described, b_is_transposed = _described("b", b, block_k, block_n)
    c_described, _ = _described("the product", c, block_m, block_n)
    descriptor_matmul_kernel[(tiles(c, chosen),)](
        a_described, b_described, c_described, *c.shape, k,
        A_IS_TRANSPOSED=a_is_transposed,
        B_IS_TRANSPOSED=b_is_transposed,
        INPUT_PRECISION=precision,
        **chosen.options(),
    )  # fmt: skip


def _described(name: str, matrix: torch.Tensor, block_rows: int, block_columns: int) -> tuple[TensorDescriptor, bool]:
    """Return a descriptor of `matrix` for tiles of this size, and whether it describes the transpose, as it does for
    contiguous columns.

    A matrix with neither contiguous rows nor columns is copied. Raises ValueError for a matrix that is not aligned.
    """
    transposed = matrix.stride(1) != 1 and matrix.stride(0) == 1
    if transposed:
        matrix, block_rows, block_columns = matrix.mT, block_columns, block_rows
    elif matrix.stride(1) != 1:
        matrix = matrix.contiguous()
    row_bytes = matrix.stride(0) * matrix.element_size()
    if row_bytes % _ALIGNMENT_BYTES:
        raise ValueError(
            f"{name} has rows {matrix.stride(0)} elements apart, {row_bytes} bytes: expected a multiple of "
            f"{_ALIGNMENT_BYTES} bytes; pad the rows, or use matmul, which needs no alignment"
        )
    if matrix.data_ptr() % _ALIGNMENT_BYTES:
        raise ValueError(
            f"{name} begins {matrix.data_ptr() % _ALIGNMENT_BYTES} bytes after a multiple of {_ALIGNMENT_BYTES}: "
            "expected aligned data; copy it with .clone(), or use matmul, which needs no alignment"
        )
    return TensorDescriptor.from_tensor(matrix, [block_rows, block_columns]), transposed
