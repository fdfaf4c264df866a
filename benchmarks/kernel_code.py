"""The compiler's output for each kernel as shipped, for every target: `python -m benchmarks.kernel_code`. No GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch
from threeloops.inner.codegen import Code, CompileError, inspect
from threeloops.inner.kernels.catalog import Entry, Shape
from threeloops.inner.kernels.launching import TARGETS

from benchmarks.kernel_cases import cases, label
from benchmarks.kernel_part import OURS, Piece, Row, Share, answer, every_row

QUICK_TARGETS = ("sm_90",)


def rows(quick: bool, share: Share) -> Iterator[Row]:
    """One row for each launch of each kernel at its compiled shapes, dtypes and targets."""
    return every_row(pieces(quick, share))


def pieces(quick: bool, share: Share) -> Iterator[Piece]:
    targets = QUICK_TARGETS if quick else TARGETS
    for entry, shape, dtype in cases(lambda entry: entry.compiled, quick, share):
        yield label(entry, shape, dtype), partial(of_case, entry, shape, dtype, targets)


def of_case(entry: Entry, shape: Shape, dtype: torch.dtype, targets: Sequence[str]) -> Iterator[Row]:
    inputs = entry.inputs(shape, dtype, "meta", 0)
    about = {**label(entry, shape, dtype), "by": OURS, "tensor_core_kernel": entry.tensor_cores}
    for target in targets:
        try:
            for code in inspect(lambda: entry.launch(*inputs), target):
                yield {**about, **row(code)}
        except CompileError as error:
            yield {**about, "target": target, "not_compiled": str(error).splitlines()[0]}


def row(code: Code) -> Row:
    return {
        "launched": code.name,
        "target": code.target,
        "num_warps": code.options.get("num_warps"),
        "num_stages": code.options.get("num_stages"),
        "registers": code.registers,
        "spilled_bytes": code.spilled_bytes,
        "shared_bytes": code.shared_bytes,
        "shared_limit": code.shared_limit,
        "fits": code.fits,
        "widest_load": code.widest_load,
        "widest_store": code.widest_store,
        "tensor_cores": code.tensor_cores,
        "tensor_core_instructions": code.tensor_core_instructions,
        "occupancy": code.occupancy.fraction,
        "limited_by": code.occupancy.limited_by,
    }


if __name__ == "__main__":
    answer(pieces)
