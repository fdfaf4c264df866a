"""One warp, lane by lane: 32 threads that issue one memory instruction together, and how memory serves it.

Global memory answers in 32-byte sectors: a request costs as many as its lanes touch. Shared memory has 32 banks of
4-byte words. Lanes that want different words of one bank wait for each other, and each round is a *wavefront*; lanes
that want the same word are served together. Wider accesses are issued in parts, 8 bytes by half-warps and 16 bytes by
quarter-warps. Triton shows neither lanes nor banks, so they are simulated here, values included.
Source: CUDA C++ Programming Guide, "Shared Memory", compute capability 5.x and later.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Counts", "LANES", "Placement", "padded", "plain", "sectors", "swizzled", "transpose",
    "triton_swizzle", "wavefronts",
]  # fmt: skip

LANES = 32
_BANKS = 32
_BANK_BYTES = 4
_SECTOR_BYTES = 32
_WIDTHS = (1, 2, 4, 8, 16)

_Addresses = NDArray[np.int64]


def sectors(addresses: ArrayLike, bytes_per_lane: int = 4) -> int:
    """Return how many 32-byte sectors of global memory one request touches.

    Args:
        addresses: byte address of each active lane, at most 32, each a multiple of `bytes_per_lane`.
        bytes_per_lane: 1, 2, 4, 8 or 16.
    """
    at = _checked(addresses, bytes_per_lane)
    return len(np.unique(at // _SECTOR_BYTES))


def wavefronts(addresses: ArrayLike, bytes_per_lane: int = 4) -> int:
    """Return how many rounds one request to shared memory takes. 1 means free of conflicts for accesses of up to 4
    bytes.

    The least for 8 bytes per lane is 2, and 4 for 16 bytes: a round delivers at most 32 banks of 4 bytes.
    """
    at = _checked(addresses, bytes_per_lane)
    lanes_at_once = LANES * _BANK_BYTES // max(bytes_per_lane, _BANK_BYTES)
    return sum(_rounds(at[i : i + lanes_at_once], bytes_per_lane) for i in range(0, len(at), lanes_at_once))


def _rounds(at: _Addresses, bytes_per_lane: int) -> int:
    words = np.unique(at[:, None] // _BANK_BYTES + np.arange(max(bytes_per_lane // _BANK_BYTES, 1)))
    return int(np.bincount(words % _BANKS).max())


def _checked(addresses: ArrayLike, bytes_per_lane: int) -> _Addresses:
    at = np.asarray(addresses)
    if bytes_per_lane not in _WIDTHS:
        raise ValueError(f"bytes_per_lane = {bytes_per_lane}: expected one of {', '.join(map(str, _WIDTHS))}")
    if at.ndim != 1 or len(at) > LANES:
        raise ValueError(f"addresses of shape {at.shape}: expected one for each active lane, at most {LANES}")
    if at.size and not np.issubdtype(at.dtype, np.integer):
        raise ValueError(f"addresses of dtype {at.dtype}: expected whole bytes")
    at = at.astype(np.int64)
    if (at < 0).any() or (at % bytes_per_lane).any():
        wrong = int(at[(at < 0) | (at % bytes_per_lane != 0)][0])
        raise ValueError(f"address = {wrong}: expected a multiple of bytes_per_lane = {bytes_per_lane}, at least 0")
    return at


@dataclass
class Counts:
    """The requests of one warp to the memories so far."""

    global_requests: int = 0
    global_sectors: int = 0
    shared_requests: int = 0
    shared_wavefronts: int = 0


Placement = Callable[[NDArray, NDArray], NDArray]
"""A function that gives the place of element (row, column) of a tile in shared memory, counted in elements."""


def plain(row: NDArray, column: NDArray) -> NDArray:
    """Place row after row: a column of 32 four-byte elements lies in one bank."""
    return row * LANES + column


def padded(row: NDArray, column: NDArray) -> NDArray:
    """Leave one unused element after each row: neighbours in a column lie in neighbouring banks, for 1/32 more
    memory."""
    return row * (LANES + 1) + column


def swizzled(row: NDArray, column: NDArray) -> NDArray:
    """Permute the columns by the row, `column XOR row`. This is free of conflicts both ways, and wastes no element."""
    return row * LANES + (column ^ row)


def triton_swizzle(vec: int, per_phase: int, max_phase: int, columns: int) -> Placement:
    """Return the placement of Triton's `#ttg.swizzled_shared<{vec, perPhase, maxPhase}>` for rows of `columns`
    elements.

    Groups of `vec` columns are exchanged by XOR with the row's phase, (row // per_phase) % max_phase.
    """

    def place(row: NDArray, column: NDArray) -> NDArray:
        group = (column // vec) ^ ((row // per_phase) % max_phase)
        return row * columns + group * vec + column % vec

    return place


def transpose(matrix: NDArray, place: Placement = plain) -> tuple[NDArray, Counts]:
    """Transpose a (32, 32) matrix as one warp does it through shared memory, and count the accesses.

    Rows go from global to shared memory; then columns are read from shared memory and written to global memory as rows.
    """
    if matrix.shape != (LANES, LANES):
        raise ValueError(f"matrix of shape {matrix.shape}: one warp transposes {LANES} × {LANES}")
    lane, counts, itemsize = np.arange(LANES), Counts(), matrix.itemsize
    result = np.empty_like(matrix)
    shared = np.zeros(LANES * (LANES + 1), matrix.dtype)

    def count(global_row: int, shared_index: NDArray) -> None:
        counts.global_requests += 1
        counts.global_sectors += sectors((global_row * LANES + lane) * itemsize, itemsize)
        counts.shared_requests += 1
        counts.shared_wavefronts += wavefronts(shared_index * itemsize, itemsize)

    for row in range(LANES):
        at = place(np.full(LANES, row), lane)
        shared[at] = matrix[row]
        count(row, at)
    for column in range(LANES):
        at = place(lane, np.full(LANES, column))
        result[column] = shared[at]
        count(column, at)
    return result, counts
