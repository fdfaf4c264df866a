"""How kernels cut a (rows, columns) problem into programs, and the second kernels that sums over programs need.

A program holds a tile of whole rows in registers: one long row, or as many short ones as make about 4,096 elements, so
that each thread has several 128-bit accesses in flight. There should be many programs, because a multiprocessor hides
a memory latency of about a microsecond by running other programs.

A sum over programs takes two steps: each program leaves a partial sum, and a second kernel adds these up. Atomic
additions would be added in the order in which programs finish, so two runs would give two results.

The last kernels are RMSNorm and LayerNorm of rows too long for registers. Forward, a program reads its row twice, the
second time from the L2 cache. Each block's spread is taken around its own mean, and blocks are combined by the formula
of Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances" (1979), so that
rows far from zero lose no digits. Backward, one kernel takes the two sums of each row, and another makes dx and the
column sums tile by tile, so x and dy are read twice.
"""

import torch
import triton
import triton.language as tl

from threeloops.inner.costs import Work
from threeloops.inner.kernels import launching
from threeloops.inner.kernels.launching import Configuration, multiprocessors, target

__all__ = [
    "LONGEST_ROW", "LONGEST_ROW_OF_TWO", "ROW", "as_rows", "long_norm_gradients_kernel", "long_norm_kernel",
    "norm_gradients_long_rows", "partial_sums", "partial_sums_cost", "partial_sums_kernel", "require_gradient",
    "require_vectors", "row_sums_kernel", "row_tile", "row_tile_of_two", "stack_rows", "tiles_per_program",
]  # fmt: skip

_TILE_ELEMENTS = 4096
LONGEST_ROW = 16384
"""The longest row that one program holds in registers: 32 float32 values in each of 512 threads."""
LONGEST_ROW_OF_TWO = 8192
"""The longest row of a program that holds rows of two tensors and the sums of their columns."""
_LARGEST_STACK = 8

_STAGED_BYTES = {"sm_80": 65536, "sm_90": 65536, "sm_100": 65536, "gfx942": 16384}


def row_tile(columns: int) -> Configuration:
    """Return the tile of one program, ROWS × BLOCK elements with BLOCK ≥ `columns`, a power of two, and its warps."""
    block = triton.next_power_of_2(columns)
    rows = max(1, min(_TILE_ELEMENTS // block, 64))
    warps = 16 if block > _TILE_ELEMENTS else 8 if rows * block == _TILE_ELEMENTS else 4
    return Configuration({"ROWS": rows, "BLOCK": block}, num_warps=warps)


def row_tile_of_two(rows: int, columns: int, bytes_per_element: int) -> tuple[Configuration, int, int]:
    """Return the tile, programs and tiles per program for a kernel that reads two tensors by rows and sums a third by
    columns.

    The loads of STAGES − 1 tiles are in flight while the program works on another one. They wait in shared memory,
    which two programs share. Rows that do not begin at multiples of 16 bytes cannot be copied there in wide pieces, so
    they are loaded when they are needed and get fewer threads, which leaves each thread more registers. A thread takes
    at least 8 elements, 16 bytes of the smaller types.
    """
    single = row_tile(columns)
    tile_rows, block = max(1, single.constants["ROWS"] // 2), single.constants["BLOCK"]
    aligned = columns % 16 == 0
    stages = 1 + min(2, _STAGED_BYTES[target()] // (2 * tile_rows * block * bytes_per_element)) if aligned else 1
    lanes = 64 if target() == "gfx942" else 32
    warps = min(16 if aligned and block >= _TILE_ELEMENTS else 8, max(1, tile_rows * block // (8 * lanes)))
    chosen = Configuration({"ROWS": tile_rows, "BLOCK": block, "STAGES": stages}, num_warps=warps)
    return chosen, *_share_rows(rows, tile_rows)


def tiles_per_program(rows: int, columns: int) -> int:
    """Return how many tiles of rows each program takes in turn. It is a power of two up to 32 that leaves every
    multiprocessor eight programs, about as many as it holds at once."""
    tiles = rows // (row_tile(columns).constants["ROWS"] * 8 * multiprocessors())
    return min(32, 1 << (max(tiles, 1).bit_length() - 1))


def _share_rows(rows: int, rows_per_tile: int) -> tuple[int, int]:
    """Return (programs, tiles per program) for a kernel in which each program leaves a partial sum: at most two
    programs per multiprocessor."""
    tiles = triton.cdiv(rows, rows_per_tile)
    per_program = triton.cdiv(tiles, min(tiles, 2 * multiprocessors()))
    return triton.cdiv(tiles, per_program), per_program


def stack_rows(rows: int, rows_per_tile: int) -> tuple[int, int]:
    """Return (stacks, tiles per stack) for a kernel in which a program takes one stack of tiles. A stack has many
    tiles, for few partial sums, but at most LARGEST_STACK, a power of two, and every tile has a row."""
    tiles = min(_LARGEST_STACK, triton.next_power_of_2(triton.cdiv(rows, rows_per_tile)))
    return triton.cdiv(rows, tiles * rows_per_tile), tiles


def as_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return a (rows, columns) view in which the elements of a row are adjacent, or a copy if there is no such view."""
    matrix = tensor.reshape(-1, tensor.shape[-1])
    return matrix if matrix.stride(1) == 1 or matrix.shape[1] == 1 else matrix.contiguous()


def require_vectors(x: torch.Tensor, **vectors: torch.Tensor) -> int:
    """Return the columns of x, if each vector has one number for each of them. Their common dtype may differ from
    x's."""
    launching.require_tensors(x=x)
    launching.require_tensors(**vectors)
    launching.require_one_device(x=x, **vectors)
    columns = launching.require_columns("x", x)
    for name, vector in vectors.items():
        launching.require_shape(name, vector, (columns,), "one for each column of x")
    return columns


def require_gradient(dy: torch.Tensor, x: torch.Tensor, **others: torch.Tensor) -> int:
    """Return the columns of x, if dy has the shape and dtype of x and all lie on one device."""
    launching.require_tensors(dy=dy, x=x)
    launching.require_one_device(x=x, **others)
    launching.require_shape("dy", dy, x.shape, "the shape of x")
    return launching.require_columns("x", x)


_PARTIAL_SUMS = Configuration({"ROWS": 32, "COLUMNS": 32}, num_warps=4)


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
    """Sum partial sums: (programs, columns) contiguous float32 → (columns,) of `dtype`, summed in float32 in a fixed
    order."""
    programs, columns = partials.shape
    total = torch.empty(columns, dtype=dtype, device=partials.device)
    grid = (triton.cdiv(columns, _PARTIAL_SUMS.constants["COLUMNS"]),)
    partial_sums_kernel[grid](partials, total, programs, columns, **_PARTIAL_SUMS.options())
    return total


def partial_sums_cost(programs: int, columns: int, bytes_per_element: float = 2) -> Work:
    """Return the work that partial sums add to a kernel: float32 written, then read by the next kernel, which writes
    the total."""
    return Work(columns * (2 * 4 * programs + bytes_per_element), columns * programs)


ROW = Configuration({"BLOCK": 4096}, num_warps=8)
_TILE = Configuration({"ROWS": 16, "COLUMNS": 128}, num_warps=4)


@triton.jit
def long_norm_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, scale_ptr, columns, x_row_stride, epsilon, BLOCK: tl.constexpr
):
    """Normalise one row per program. RMSNorm passes None for bias and mean."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_row_stride
    y_ptr += row * columns
    mean = 0.0
    spread = 0.0
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
        if mean_ptr is not None:
            count = tl.minimum(columns - start, BLOCK)
            block_mean = tl.sum(x, axis=0) / count
            x = tl.where(column < columns, x - block_mean, 0.0)
            step = block_mean - mean
            spread += step * step * count * (start / (start + count))
            mean += step * count / (start + count)
        spread += tl.sum(x * x, axis=0)
    scale = tl.rsqrt(spread / columns + epsilon)
    tl.store(scale_ptr + row, scale)
    if mean_ptr is not None:
        tl.store(mean_ptr + row, mean)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
        y = (x - mean) * scale * tl.load(weight_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
        if bias_ptr is not None:
            y += tl.load(bias_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
        tl.store(y_ptr + column, y.to(y_ptr.dtype.element_ty), mask=column < columns)


@triton.jit
def row_sums_kernel(
    dy_ptr, x_ptr, weight_ptr, mean_ptr, scale_ptr, product_ptr, g_ptr, columns, dy_row_stride, x_row_stride,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    mean = 0.0 if mean_ptr is None else tl.load(mean_ptr + row)
    scale = tl.load(scale_ptr + row)
    product = tl.zeros([BLOCK], tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < columns
        x = tl.load(x_ptr + row * x_row_stride + column, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * dy_row_stride + column, mask=inside, other=0.0).to(tl.float32)
        g = dy * tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
        product += (x - mean) * scale * g
        total += g
    tl.store(product_ptr + row, tl.sum(product, axis=0) / columns)
    tl.store(g_ptr + row, tl.sum(total, axis=0) / columns)


@triton.jit
def long_norm_gradients_kernel(
    dy_ptr, x_ptr, weight_ptr, mean_ptr, scale_ptr, product_ptr, g_ptr, dx_ptr, dweight_ptr, dbias_ptr,
    rows, columns, dy_row_stride, x_row_stride,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    weight = tl.load(weight_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
    dweight = tl.zeros([ROWS, COLUMNS], tl.float32)
    dbias = tl.zeros([ROWS, COLUMNS], tl.float32)
    for tile in range(TILES):
        row = (tl.program_id(1).to(tl.int64) * TILES + tile) * ROWS + tl.arange(0, ROWS)[:, None]
        inside = (row < rows) & (column < columns)
        x = tl.load(x_ptr + row * x_row_stride + column, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + row * dy_row_stride + column, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scale_ptr + row, mask=row < rows, other=0.0)
        product = tl.load(product_ptr + row, mask=row < rows, other=0.0)
        g = dy * weight
        if mean_ptr is not None:
            x -= tl.load(mean_ptr + row, mask=row < rows, other=0.0)
            g -= tl.load(g_ptr + row, mask=row < rows, other=0.0)
        normalised = x * scale
        dx = scale * (g - normalised * product)
        tl.store(dx_ptr + row * columns + column, dx.to(dx_ptr.dtype.element_ty), mask=inside)
        dweight += dy * normalised
        dbias += dy
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    position = tl.program_id(1) * columns + column
    tl.store(dweight_ptr + position, tl.sum(dweight, axis=0), mask=column < columns)
    if dbias_ptr is not None:
        tl.store(dbias_ptr + position, tl.sum(dbias, axis=0), mask=column < columns)


def norm_gradients_long_rows(
    dy: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    mean: torch.Tensor | None,
    scale: torch.Tensor,
    dx: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Fill dx, and return the gradients of the weight and, for LayerNorm, of the bias. dy and x: (rows, columns)."""
    rows, columns = x.shape
    product, g = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))
    strides = dy.stride(0), x.stride(0)
    row_sums_kernel[(rows,)](dy, x, weight, mean, scale, product, g, columns, *strides, **ROW.options())
    stacks, tiles = stack_rows(rows, _TILE.constants["ROWS"])
    dweight, dbias = (torch.empty((stacks, columns), dtype=torch.float32, device=x.device) for _ in range(2))
    grid = (triton.cdiv(columns, _TILE.constants["COLUMNS"]), stacks)
    long_norm_gradients_kernel[grid](
        dy, x, weight, mean, scale, product, g, dx, dweight, None if mean is None else dbias, rows, columns, *strides,
        TILES=tiles, **_TILE.options(),
    )  # fmt: skip
    total = partial_sums(dweight, weight.dtype)
    return total, None if mean is None else partial_sums(dbias, weight.dtype)
