"""How kernels that work on rows cut a (rows, columns) problem into programs.

A program holds a tile of whole rows in registers: one long row, or as many short ones as make about 4,096 elements, so
that each of its threads has several 128-bit accesses in flight whatever the row length. Programs are to be many: a
multiprocessor hides a memory latency of about a microsecond by having other programs to run.
"""

from functools import cache

import torch
import triton

from threeloops.hardware import accelerator
from threeloops.inner.kernels.configuration import Configuration, target

TILE_ELEMENTS = 4096
LONGEST_ROW = 16384
"""The longest row that one program holds in registers: 32 float32 values in each of 512 threads."""
LONGEST_ROW_OF_TWO = 8192
"""The same where it holds rows of two tensors, and the sums of their columns beside them."""

_DEVICES = {"sm_80": "A100 SXM 80GB", "sm_90": "H100 SXM", "sm_100": "B200", "gfx942": "MI300X"}
_STAGED_BYTES = {"sm_80": 65536, "sm_90": 65536, "sm_100": 65536, "gfx942": 16384}


def row_tile(columns: int) -> Configuration:
    """ROWS × BLOCK elements with BLOCK ≥ `columns`, a power of two: the tile of one program, and its warps."""
    block = triton.next_power_of_2(columns)
    rows = max(1, min(TILE_ELEMENTS // block, 64))
    warps = 16 if block > TILE_ELEMENTS else 8 if rows * block == TILE_ELEMENTS else 4
    return Configuration({"ROWS": rows, "BLOCK": block}, num_warps=warps)


def row_tile_of_two(columns: int, bytes_per_element: int) -> Configuration:
    """The tile of a program that reads two tensors row by row and sums a third down the columns: half as many rows.

    STAGES: the loads of that many tiles, less one, are under way while the program works on another. They wait in
    shared memory, which two programs of a multiprocessor divide between them. Rows that do not begin at multiples of 16
    bytes cannot be copied there in wide pieces: they are loaded when they are needed, by threads that need the more
    registers for it. A thread takes 8 elements at least, 16 bytes of the smaller types.
    """
    single = row_tile(columns)
    rows, block = max(1, single.constants["ROWS"] // 2), single.constants["BLOCK"]
    aligned = columns % 16 == 0
    stages = 1 + min(2, _STAGED_BYTES[target()] // (2 * rows * block * bytes_per_element)) if aligned else 1
    lanes = 64 if target() == "gfx942" else 32
    warps = min(16 if aligned and block >= TILE_ELEMENTS else 8, max(1, rows * block // (8 * lanes)))
    return Configuration({"ROWS": rows, "BLOCK": block, "STAGES": stages}, num_warps=warps)


def tiles_per_program(rows: int, columns: int) -> int:
    """How many tiles of rows one program takes in turn, a power of two up to 32: as many as leave each multiprocessor
    eight programs, which is about what it holds at once."""
    tiles = rows // (row_tile(columns).constants["ROWS"] * 8 * multiprocessors())
    return min(32, 1 << (max(tiles, 1).bit_length() - 1))


def share_rows(rows: int, rows_per_tile: int) -> tuple[int, int]:
    """(programs, tiles a program) where each program leaves a partial sum: at most two programs a multiprocessor."""
    tiles = triton.cdiv(rows, rows_per_tile)
    each = triton.cdiv(tiles, min(tiles, 2 * multiprocessors()))
    return triton.cdiv(tiles, each), each


def multiprocessors() -> int:
    """Of the device that launchers choose configurations for: the one at hand, or that of the target."""
    return _multiprocessors(target())


@cache
def _multiprocessors(name: str) -> int:
    if torch.cuda.is_available():
        return torch.cuda.get_device_properties("cuda").multi_processor_count
    count = accelerator(_DEVICES[name]).multiprocessors
    assert count is not None
    return count


def as_rows(tensor: torch.Tensor) -> torch.Tensor:
    """A (rows, columns) view in which a row's elements lie side by side; a copy only where there is no such view."""
    matrix = tensor.reshape(-1, tensor.shape[-1])
    return matrix if matrix.stride(1) == 1 or matrix.shape[1] == 1 else matrix.contiguous()
