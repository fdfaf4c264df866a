"""Each kernel's traffic in the meter, against the least that is needed: `python -m benchmarks.kernel_traffic`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from threeloops.inner.kernels.catalog import Entry, Shape
from threeloops.inner.meter import meter

from benchmarks.kernel_cases import cases, label
from benchmarks.kernel_part import Piece, Row, Share, answer, every_row


def rows(quick: bool, share: Share) -> Iterator[Row]:
    """Exact counts, in bytes and FLOPs; they depend on the shape and on nothing of this machine."""
    return every_row(pieces(quick, share))


def pieces(quick: bool, share: Share) -> Iterator[Piece]:
    for entry, shape, dtype in cases(lambda entry: entry.metered, quick, share):
        yield label(entry, shape, dtype), partial(of_case, entry, shape, dtype)


def of_case(entry: Entry, shape: Shape, dtype: torch.dtype) -> Iterator[Row]:
    inputs = entry.inputs(shape, dtype, "cpu", 0)
    with meter() as traffic:
        entry.launch(*inputs)
    counted, least = traffic.total, entry.cost(shape, dtype)
    yield {
        **label(entry, shape, dtype),
        "launches": len(traffic.launches),
        "programs": counted.programs,
        "requested_bytes": counted.requested_bytes,
        "unique_bytes": counted.unique_bytes,
        "least_bytes": least.bytes,
        "dot_flops": counted.dot_flops,
        "flops": sum(counted.flops.values()),
        "least_flops": least.flops,
        "sectors_per_request": counted.sectors_per_request,
        "atomics": counted.atomics,
        "findings": [f"{finding.kind}: {finding.message}" for finding in traffic.findings],
    }


if __name__ == "__main__":
    answer(pieces)
