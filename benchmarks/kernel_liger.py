"""Liger's kernels through the same compile gate as ours, forward and backward: `python -m benchmarks.kernel_liger`.

Liger chooses warps and blocks for the GPU that it runs on, NVIDIA's or AMD's, so without one only NVIDIA's choice is
seen; and where it asks the GPU for its number of multiprocessors it takes 1, which changes grids and no code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from threeloops.inner.codegen import CompileError, compile_launches
from threeloops.inner.kernels.catalog import Entry, Shape
from threeloops.inner.launches import record

from benchmarks.kernel_cases import GRADIENTS, cases, label
from benchmarks.kernel_code import QUICK_TARGETS, row
from benchmarks.kernel_part import LIGER, Piece, Row, Share, answer, every_row
from benchmarks.kernel_peers import LIGER_FUNCTIONS, no_liger

TARGETS = ("sm_80", "sm_90", "sm_100")


def rows(quick: bool, share: Share) -> Iterator[Row]:
    """Rows like those of our kernels, under the name of the same operation; what could not be launched says why."""
    return every_row(pieces(quick, share))


def pieces(quick: bool, share: Share) -> Iterator[Piece]:
    targets = QUICK_TARGETS if quick else TARGETS
    for entry, shape, dtype in cases(shapes, quick, share):
        yield label(entry, shape, dtype), partial(of_case, entry, shape, dtype, targets)


def of_case(entry: Entry, shape: Shape, dtype: torch.dtype, targets: Sequence[str]) -> Iterator[Row]:
    about = {**label(entry, shape, dtype), "by": LIGER}
    if reason := no_liger():
        yield {**about, "not_compiled": reason}
        return
    with record(execute=False) as launches:
        failed = launch(LIGER_FUNCTIONS[entry.name], entry.inputs(shape, dtype, "meta", 0))
    if failed:
        yield {**about, "not_compiled": f"not launched without a GPU: {failed}"}
    try:
        for code in compile_launches(launches, targets):
            yield {**about, "tensor_core_kernel": False, **row(code)}
    except CompileError as error:
        yield {**about, "not_compiled": str(error).splitlines()[0]}


def shapes(entry: Entry) -> tuple[Shape, ...]:
    """Return the shapes of Liger's operations. An entry that adds gradients launches the same kernels again."""
    return entry.compiled if entry.name in LIGER_FUNCTIONS and not entry.name.endswith(GRADIENTS) else ()


def launch(function: Callable[..., Any], inputs: tuple[Any, ...]) -> str | None:
    """Make all launches of a forward and a backward pass while they are recorded; the reason where one cannot be made.

    The arguments lie on the CPU and are never read: pages that nobody touches take no memory.
    """
    try:
        output = function(*(unfilled(value) for value in inputs))
        output.backward(torch.empty_like(output))
    except Exception as error:  # whatever a foreign library raises where its GPU is missing
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return None


def unfilled(value: Any) -> Any:
    """A tensor of zeros that the system gives out page by page, as an argument whose gradient is asked for."""
    if not isinstance(value, torch.Tensor):
        return value
    made = torch.zeros(value.shape, dtype=value.dtype)
    return made.requires_grad_() if made.is_floating_point() else made


if __name__ == "__main__":
    answer(pieces)
