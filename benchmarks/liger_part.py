"""Liger's operations in the course's interpreter, timed in a process of their own: `python -m benchmarks.liger_part`.

Share (0, 2): the meter; share (1, 2): triton-viz's profiler. Each takes turns with the plain interpreter. Times are
this process's CPU seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import cache, partial
from typing import Any
from unittest import mock

import torch
from threeloops.inner.interpreter import enable_without_gpu

enable_without_gpu()

from threeloops.inner.meter import meter

from benchmarks.kernel_part import Piece, Row, Share, answer
from benchmarks.kernel_peers import no_liger
from benchmarks.liger_operations import OPERATIONS, Operation, Tensors
from benchmarks.meter_kernels import METER, PLAIN, TRITON_VIZ, no_triton_viz, timed

Outcome = tuple[list[torch.Tensor], Row]
"""Outputs and gradients, and what else a party says about a run."""
Party = Callable[[Operation, Tensors], Outcome]


def pieces(quick: bool, share: Share) -> Iterator[Piece]:
    for operation in OPERATIONS:
        yield {"operation": operation.name}, partial(rows, operation, 1 if quick else 3, bool(share[0]))


def rows(operation: Operation, rounds: int, peer: bool) -> Iterator[Row]:
    """A row of the plain interpreter and one of the meter, or of triton-viz."""
    by = TRITON_VIZ if peer else METER
    about = {"operation": operation.name, "counted_by_hand": operation.requested}
    if absent := no_liger() or (no_triton_viz() if peer else None):
        yield {**about, "by": by, "not_measured": absent}
        return
    torch.manual_seed(0)
    inputs = operation.inputs()
    expected = operation.torch(inputs)
    parties: dict[str, Party] = {PLAIN: plain, by: with_triton_viz if peer else metered}
    seconds: dict[str, list[float]] = {name: [] for name in parties}
    said: dict[str, Row] = {}
    for _ in range(1 + rounds):
        for name, party in list(parties.items()):
            outcome: list[Outcome] = []
            try:
                seconds[name].append(timed(lambda: outcome.append(party(operation, inputs))))  # noqa: B023
            except Exception as error:
                why = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
                said[name] = {"fails": why}
                del parties[name]
                continue
            results, found = outcome[0]
            said[name] = {**found, "error_over_tolerance": error_over_tolerance(operation, results, expected)}
    for name in said:
        # The first run imports and fills caches.
        yield {**about, "by": name, "seconds": seconds[name][1:], **said[name]}


def plain(operation: Operation, inputs: Tensors) -> Outcome:
    return operation.liger(inputs), {}


def metered(operation: Operation, inputs: Tensors) -> Outcome:
    with meter() as traffic:
        results = operation.liger(inputs)
    found = [str(finding) for finding in traffic.findings]
    return results, {"requested_bytes": traffic.total.requested_bytes, "findings": found}


def with_triton_viz(operation: Operation, inputs: Tensors) -> Outcome:
    import triton_viz
    from triton.runtime import KernelInterface
    from triton_viz.clients import Profiler

    profiler, launched = Profiler(), KernelInterface.__getitem__
    traced = cache(triton_viz.trace(profiler))

    def launch(kernel: Any, grid: Any) -> Any:
        return launched(traced(kernel), grid)

    with mock.patch.object(KernelInterface, "__getitem__", launch), redirect_stdout(sys.stderr):
        try:
            results = operation.liger(inputs)
        finally:
            triton_viz.clear()
    counted = int(profiler.load_bytes.total_bytes_true + profiler.store_bytes.total_bytes_true)
    return results, {"requested_bytes": counted}


def error_over_tolerance(operation: Operation, results: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest error of an output or gradient, as a part of what Liger's own tests allow."""
    parts = [
        (mine.double() - right).abs() / (operation.atol + operation.rtol * right.abs())
        for mine, right in zip(results, expected, strict=True)
    ]
    return float(torch.stack([part.max() for part in parts]).max())


if __name__ == "__main__":
    answer(pieces)
