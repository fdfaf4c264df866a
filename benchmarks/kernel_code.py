"""What the compiler makes of each kernel as shipped, for every target: `python -m benchmarks.kernel_code`. No GPU."""

from __future__ import annotations

from collections.abc import Iterator

from threeloops.inner.codegen import Code, CompileError, inspect
from threeloops.inner.kernels.configuration import TARGETS

from benchmarks.kernel_cases import cases, label
from benchmarks.kernel_part import OURS, Row, Share, answer

QUICK_TARGETS = ("sm_90",)


def rows(quick: bool, share: Share) -> Iterator[Row]:
    """One row for each launch of each kernel at its compiled shapes, dtypes and targets."""
    for entry, shape, dtype in cases(lambda entry: entry.compiled, quick, share):
        inputs = entry.inputs(shape, dtype, "meta", 0)
        about = {**label(entry, shape, dtype), "by": OURS, "tensor_core_kernel": entry.tensor_cores}
        for target in QUICK_TARGETS if quick else TARGETS:
            try:
                for code in inspect(lambda: entry.launch(*inputs), target):  # noqa: B023  called at once
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
    answer(rows)
