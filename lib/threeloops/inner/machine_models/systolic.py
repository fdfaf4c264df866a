"""A systolic array, cycle by cycle: a grid of multiply-adders through which operands march in step.

Each element of the grid multiplies what arrives from its left and from above, and hands it on. No element fetches
anything: a value that is read at the edge is used by a whole row or column, which is how a matrix unit does a thousand
multiply-adds per cycle with a few ports. The price is the slanted wavefront: corners start late and end early, so that
a product of M×K by K×N takes M + N + K - 2 cycles instead of K.

Sources: Kung & Leiserson 1979; arrays that hold weights: the TPU, Jouppi et al. 2017 (arXiv:1704.04760).
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
from jaxtyping import Bool, Float

__all__ = ["Simulation", "Tile", "Tiling", "cycles", "output_stationary", "tile"]


@dataclass(frozen=True)
class Simulation:
    """The activity of an array. `occupancy` is true where an element multiplied."""

    product: Float[np.ndarray, "m n"]  # noqa: F722
    occupancy: Bool[np.ndarray, "cycles rows columns"]  # noqa: F722

    @property
    def cycles(self) -> int:
        return len(self.occupancy)

    @property
    def busy(self) -> np.ndarray:
        """Elements at work in each cycle: the rise, plateau and fall of the wavefront."""
        return self.occupancy.sum(axis=(1, 2))


def cycles(m: int, n: int, k: int) -> int:
    """Count the cycles of an M×K by K×N product on an array that is large enough: M + N + K - 2.

    The last element starts (M-1) + (N-1) cycles after the first and needs K more; an array that holds B instead of the
    product takes as long. Raises ValueError for sizes below 1.
    """
    _require_positive(m=m, n=n, k=k)
    return m + n + k - 2


def output_stationary(a: Float[np.ndarray, "m k"], b: Float[np.ndarray, "k n"]) -> Simulation:  # noqa: F722
    """Simulate C = A·B on an M×N array: every element keeps its own sum, A enters from the left and B from above.

    Reading the sums out is not counted. Raises ValueError for operands that do not multiply.
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"a is {a.shape} and b is {b.shape}: expected (m, k) and (k, n)")
    m, k = a.shape
    n = b.shape[1]
    _require_positive(m=m, n=n, k=k)
    sums, from_left, from_above = np.zeros((3, m, n))
    occupied = np.zeros((m, n), dtype=bool)
    history: list[np.ndarray] = []
    rows = np.arange(m)
    columns = np.arange(n)
    while not history or history[-1].any():
        cycle = len(history)
        # Row i of A is delayed by i cycles and column j of B by j, so that partners meet: the slanted wavefront.
        step_left = cycle - rows
        step_above = cycle - columns
        entering_left = np.where(_within(step_left, k), a[rows, step_left.clip(0, k - 1)], 0.0)
        entering_above = np.where(_within(step_above, k), b[step_above.clip(0, k - 1), columns], 0.0)
        from_left = np.column_stack([entering_left, from_left[:, :-1]])
        from_above = np.vstack([entering_above, from_above[:-1]])
        # A valid bit travels with A. It meets a valid B because both are delayed alike.
        occupied = np.column_stack([_within(step_left, k), occupied[:, :-1]])
        sums += from_left * from_above
        history.append(occupied)
    return Simulation(sums, np.stack(history[:-1]))


@dataclass(frozen=True)
class Tile:
    """One pass of the array, which holds B[depth, columns] while all rows of A enter from cycle `start` on."""

    columns: slice
    depth: slice
    start: int
    cycles: int


@dataclass(frozen=True)
class Tiling:
    """A matmul cut into passes of a fixed array of `array` = (rows, columns) elements."""

    array: tuple[int, int]
    multiply_adds: int
    tiles: tuple[Tile, ...]

    @property
    def cycles(self) -> int:
        return max(tile.start + tile.cycles for tile in self.tiles)

    @property
    def utilisation(self) -> float:
        """Multiply-adds done over those the array could have done in these cycles, between 0 and 1."""
        return self.multiply_adds / (self.array[0] * self.array[1] * self.cycles)


def tile(m: int, n: int, k: int, array: tuple[int, int] = (128, 128)) -> Tiling:
    """Cut an M×K by K×N product into passes of a fixed array (rows, columns) that holds weights, as in the TPU.

    A pass holds a block of B and streams all rows of A through it. Partial sums leave only at the bottom, so a block at
    the lower edge is filled up with zero weights. The next pass enters right behind the last row of A, and its weights
    are loaded meanwhile, in one cycle per row of the array; the first load is not counted. Raises ValueError for sizes
    below 1.
    """
    _require_positive(m=m, n=n, k=k)
    if min(array) < 1:
        raise ValueError(f"array = {array}: expected positive numbers of rows and columns")
    tiles = [
        Tile(columns, depth, number * max(m, array[0]), cycles(m, columns.stop - columns.start, array[0]))
        for number, (columns, depth) in enumerate(product(_blocks(n, array[1]), _blocks(k, array[0])))
    ]
    return Tiling(array, m * n * k, tuple(tiles))


def _blocks(size: int, block: int) -> list[slice]:
    return [slice(start, min(start + block, size)) for start in range(0, size, block)]


def _require_positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} = {size}: expected a positive size")


def _within(step: np.ndarray, length: int) -> np.ndarray:
    return (step >= 0) & (step < length)
