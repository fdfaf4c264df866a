"""How far each kernel is from float64, beside torch's own operator at the same dtype and on the same bits:
`python -m benchmarks.kernel_error`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import isfinite
from typing import Any

import torch
from threeloops.hardware import device
from threeloops.inner.kernels.catalog import Entry, Shape

from benchmarks.kernel_cases import cases, label
from benchmarks.kernel_part import Piece, Row, Share, answer, every_row
from benchmarks.kernel_peers import torch_own

LIMITS = {"float32": 3.0, "float16": 1.05, "bfloat16": 1.05}
"""How many times torch's RMS error a kernel's may be, or that of rounding alone where torch is luckier than that."""


def rows(quick: bool, share: Share) -> Iterator[Row]:
    """One row for each floating-point output: RMS and largest error, and how many times torch's they are."""
    return every_row(pieces(quick, share))


def pieces(quick: bool, share: Share) -> Iterator[Piece]:
    where = device()
    for entry, shape, dtype in cases(lambda entry: entry.metered, quick, share):
        yield label(entry, shape, dtype), partial(of_case, entry, shape, dtype, where)


def of_case(entry: Entry, shape: Shape, dtype: torch.dtype, where: str) -> Iterator[Row]:
    about = label(entry, shape, dtype)
    inputs = entry.inputs(shape, dtype, where, 0)
    for output, ours, theirs in errors(entry, inputs):
        allowed = LIMITS[about["dtype"]] * max(theirs.rms, ours.rounding_rms)
        if not isfinite(ours.rms):  # JSON has no NaN
            yield {**about, "on": where, "output": output, "failed": f"its RMS error is {ours.rms}"}
            continue
        yield {
            **about,
            "on": where,
            "output": output,
            "within": ours.rms <= allowed,
            "rms": ours.rms,
            "max": ours.max,
            "rounding_rms": ours.rounding_rms,
            "torch_rms": theirs.rms,
            "torch_max": theirs.max,
            "rms_ratio": ratio(ours.rms, theirs.rms),
            "max_ratio": ratio(ours.max, theirs.max),
        }


class Error:
    """Distance of `found` from `exact`; `rounding_rms`: that of a result which is rounded once and otherwise exact."""

    def __init__(self, found: torch.Tensor, exact: torch.Tensor):
        same = found == exact  # infinities too, whose difference is no number
        distance = torch.where(same, 0.0, (found.double() - exact).abs())
        self.rms, self.max = distance.square().mean().sqrt().item(), distance.max().item()
        half_a_step = exact.where(exact.isfinite(), 0.0) * torch.finfo(found.dtype).eps / 2
        self.rounding_rms = half_a_step.square().mean().sqrt().item()


def errors(entry: Entry, inputs: tuple[Any, ...]) -> Iterator[tuple[int, Error, Error]]:
    """(number of the output, our error, torch's) of each output that is not empty and not whole numbers."""
    exact = outputs(entry.reference(*(widened(value) for value in inputs)))
    found = zip(outputs(entry.launch(*inputs)), outputs(torch_own(entry)(*inputs)), exact, strict=True)
    for number, (ours, theirs, reference) in enumerate(found):
        if reference.numel() and reference.is_floating_point():
            yield number, Error(ours, reference), Error(theirs, reference)


def widened(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def outputs(returned: Any) -> tuple[torch.Tensor, ...]:
    return tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)


def ratio(ours: float, theirs: float) -> float | None:
    """Return the ratio of errors, or None if torch's result is exact and ours is not, since no ratio would say that."""
    if theirs:
        return ours / theirs
    return None if ours else 1.0


if __name__ == "__main__":
    answer(pieces)
