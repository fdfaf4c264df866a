"""A systolic array, cycle by cycle: a grid of multiply-adders through which operands march in step.

Each element of the grid multiplies what arrives from its left and from above, and hands it on. No element fetches
anything: one value read at the edge is used by a whole row or column, which is how a matrix unit does a thousand
multiply-adds a cycle from a few ports. The price is the slanted wavefront: corners start late and end early, so
a product of M×K by K×N takes M + N + K - 2 cycles instead of K.

Sources: Kung & Leiserson 1979; weight-stationary as in the TPU, Jouppi et al. 2017 (arXiv:1704.04760).
"""

from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float

Dataflow = Literal["output stationary", "weight stationary"]


@dataclass(frozen=True)
class Simulation:
    """What an array did.

    product: M×N, float64. occupancy: cycle × row × column, true where an element multiplied. load_cycles: cycles to
    bring the stationary operand in beforehand, not part of `cycles`: a second set of registers hides them.
    """

    product: Float[np.ndarray, "m n"]  # noqa: F722
    occupancy: Bool[np.ndarray, "cycles rows columns"]  # noqa: F722
    load_cycles: int = 0

    @property
    def cycles(self) -> int:
        return len(self.occupancy)

    @property
    def multiply_adds(self) -> int:
        return int(self.occupancy.sum())

    @property
    def busy(self) -> np.ndarray:
        """Elements at work in each cycle: the rise, plateau and fall of the wavefront."""
        return self.occupancy.sum(axis=(1, 2))

    @property
    def utilisation(self) -> float:
        """Share of element-cycles that multiplied, between 0 and 1."""
        return float(self.occupancy.mean())


def cycles(m: int, n: int, k: int) -> int:
    """Cycles of an M×K by K×N product on an array that holds it whole, for either dataflow: M + N + K - 2.

    The last element starts (M-1) + (N-1) cycles after the first and needs K more. Raises ValueError below 1.
    """
    for name, size in (("m", m), ("n", n), ("k", k)):
        if size < 1:
            raise ValueError(f"{name} = {size}: expected a positive size")
    return m + n + k - 2


def output_stationary(a: Float[np.ndarray, "m k"], b: Float[np.ndarray, "k n"]) -> Simulation:  # noqa: F722
    """C = A·B on an M×N array: every element keeps its own sum; A enters from the left, B from above.

    Reading the sums out is not counted. Raises ValueError for operands that do not multiply.
    """
    m, k, n = _sizes(a, b)
    sums = np.zeros((m, n))
    from_left, from_above = np.zeros((m, n)), np.zeros((m, n))
    occupied = np.zeros((m, n), dtype=bool)
    history: list[np.ndarray] = []
    rows, columns = np.arange(m), np.arange(n)
    while not history or history[-1].any():
        cycle = len(history)
        # Row i of A is delayed by i cycles and column j of B by j, so that partners meet: the slanted wavefront.
        step_left, step_above = cycle - rows, cycle - columns
        from_left = _shift_right(from_left, np.where(_within(step_left, k), a[rows, step_left.clip(0, k - 1)], 0.0))
        from_above = _shift_down(
            from_above, np.where(_within(step_above, k), b[step_above.clip(0, k - 1), columns], 0.0)
        )
        # A valid bit travels with A; it meets a valid B because both were skewed alike.
        occupied = _shift_right(occupied, _within(step_left, k))
        sums += from_left * from_above
        history.append(occupied)
    return Simulation(sums, np.stack(history[:-1]))


def weight_stationary(a: Float[np.ndarray, "m k"], b: Float[np.ndarray, "k n"]) -> Simulation:  # noqa: F722
    """C = A·B on a K×N array that holds B: A enters from the left, partial sums move down, C leaves at the bottom.

    Loading B takes K cycles (`load_cycles`). Raises ValueError for operands that do not multiply.
    """
    m, k, n = _sizes(a, b)
    result = np.zeros((m, n))
    from_left, partial_sums = np.zeros((k, n)), np.zeros((k, n))
    occupied = np.zeros((k, n), dtype=bool)
    history: list[np.ndarray] = []
    rows, columns = np.arange(k), np.arange(n)
    while not history or history[-1].any():
        cycle = len(history)
        # Array row r needs A[i, r] exactly when the partial sum of C[i] has come down r rows.
        sample = cycle - rows
        from_left = _shift_right(from_left, np.where(_within(sample, m), a[sample.clip(0, m - 1), rows], 0.0))
        occupied = _shift_right(occupied, _within(sample, m))
        partial_sums = _shift_down(partial_sums, np.zeros(n)) + from_left * b
        history.append(occupied)
        leaving = occupied[-1]
        result[(cycle - (k - 1) - columns)[leaving], columns[leaving]] = partial_sums[-1, leaving]
    return Simulation(result, np.stack(history[:-1]), load_cycles=k)


@dataclass(frozen=True)
class Tile:
    """One pass of the array: C[rows, columns] += A[rows, depth] · B[depth, columns], starting at cycle `start`."""

    rows: slice
    columns: slice
    depth: slice
    start: int
    cycles: int

    @property
    def multiply_adds(self) -> int:
        extents = [part.stop - part.start for part in (self.rows, self.columns, self.depth)]
        return extents[0] * extents[1] * extents[2]


@dataclass(frozen=True)
class Tiling:
    """A matmul cut into passes of a fixed array of `array` = (rows, columns) elements."""

    array: tuple[int, int]
    dataflow: Dataflow
    tiles: tuple[Tile, ...]

    @property
    def cycles(self) -> int:
        return max(tile.start + tile.cycles for tile in self.tiles)

    @property
    def multiply_adds(self) -> int:
        return sum(tile.multiply_adds for tile in self.tiles)

    @property
    def utilisation(self) -> float:
        """Multiply-adds done over those the array could have done in these cycles, between 0 and 1."""
        return self.multiply_adds / (self.array[0] * self.array[1] * self.cycles)


def tile(
    m: int,
    n: int,
    k: int,
    array: tuple[int, int] = (128, 128),
    *,
    dataflow: Dataflow = "weight stationary",
    overlapped: bool = True,
) -> Tiling:
    """Cut an M×K by K×N product into passes of a fixed array (rows, columns).

    Output stationary holds a block of C and streams all of K; an edge block uses a corner of the array. Weight
    stationary holds a block of B and streams all of M; an edge block is filled up with zero weights, because sums
    leave only at the bottom, after all rows. With `overlapped` the next pass enters right behind the last operand of
    the one before, and its weights are loaded meanwhile, which takes a cycle for each row of the array; otherwise a
    pass waits until the array is empty. The first load is not counted.

    Raises ValueError for sizes below 1 or an unknown dataflow.
    """
    cycles(m, n, k)  # the same demands on the sizes, with the same message
    if min(array) < 1:
        raise ValueError(f"array = {array}: expected positive numbers of rows and columns")
    if dataflow not in ("output stationary", "weight stationary"):
        raise ValueError(f"dataflow = {dataflow!r}: expected 'output stationary' or 'weight stationary'")
    holds_output = dataflow == "output stationary"
    row_blocks = _blocks(m, array[0]) if holds_output else [slice(0, m)]
    depth_blocks = [slice(0, k)] if holds_output else _blocks(k, array[0])

    tiles, start = [], 0
    for rows, columns, depth in product(row_blocks, _blocks(n, array[1]), depth_blocks):
        m_tile, n_tile = rows.stop - rows.start, columns.stop - columns.start
        taken = cycles(m_tile, n_tile, k if holds_output else array[0])
        tiles.append(Tile(rows, columns, depth, start, taken))
        if not overlapped:
            start += taken
        else:
            start += k if holds_output else max(m, array[0])
    return Tiling(array, dataflow, tuple(tiles))


def _blocks(size: int, block: int) -> list[slice]:
    return [slice(start, min(start + block, size)) for start in range(0, size, block)]


def _within(step: np.ndarray, length: int) -> np.ndarray:
    return (step >= 0) & (step < length)


def _shift_right(grid: np.ndarray, entering: np.ndarray) -> np.ndarray:
    return np.concatenate([entering[:, None], grid[:, :-1]], axis=1)


def _shift_down(grid: np.ndarray, entering: np.ndarray) -> np.ndarray:
    return np.concatenate([entering[None, :], grid[:-1]], axis=0)


def _sizes(a: np.ndarray, b: np.ndarray) -> tuple[int, int, int]:
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"a is {a.shape} and b is {b.shape}: expected (m, k) and (k, n)")
    cycles(a.shape[0], b.shape[1], a.shape[1])
    return a.shape[0], a.shape[1], b.shape[1]
