"""How far each kernel is from float64, beside torch's own operator at the same dtype and on the same bits:
`python -m benchmarks.kernel_error`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from threeloops.hardware import device
from threeloops.inner.kernels.catalog import Entry

from benchmarks.kernel_cases import cases, label
from benchmarks.kernel_part import Row, Share, answer
from benchmarks.kernel_peers import torch_own


def rows(quick: bool, share: Share) -> Iterator[Row]:
    """One row for each floating-point output: RMS and largest error, and how many times torch's they are."""
    where = device()
    for entry, shape, dtype in cases(lambda entry: entry.metered, quick, share):
        inputs = entry.inputs(shape, dtype, where, 0)
        for output, ours, theirs in errors(entry, inputs):
            yield {
                **label(entry, shape, dtype),
                "on": where,
                "output": output,
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
    """None where torch's is exact and ours is not: no number of times would say that."""
    if theirs:
        return ours / theirs
    return None if ours else 1.0


if __name__ == "__main__":
    answer(rows)
