"""Every kernel of this package with the shapes it is judged at: one list that feeds the tests, the compile gate, the
meter's tables and the benchmarks."""

from threeloops.inner.kernels.catalog import attention, matrices, rows, sparse
from threeloops.inner.kernels.catalog.entry import Entry, Shape

__all__ = ["Entry", "Shape", "catalog"]


def catalog() -> tuple[Entry, ...]:
    """Return all entries, in the order in which the labs meet them."""
    return (*rows.entries(), *matrices.entries(), *attention.entries(), *sparse.entries())
