"""How long each kernel takes on a GPU, beside all others who compute the same: `python -m benchmarks.kernel_timing`.

Without a GPU every row is there and says that it was not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from statistics import median
from typing import Any

import torch
from threeloops.hardware import device, measure_copy_bandwidth
from threeloops.hardware.measure import default_buffer_bytes
from threeloops.inner.costs import Work
from threeloops.inner.kernels.catalog import Entry, Shape
from threeloops.inner.timing import benchmark

from benchmarks.kernel_cases import GRADIENTS, cases, dealt, entries, label, quick_dtypes
from benchmarks.kernel_error import outputs
from benchmarks.kernel_part import COPY, OURS, TORCH, Piece, Row, Share, answer, context_is_lost, every_row
from benchmarks.kernel_peers import Party, parties
from benchmarks.kernel_prediction import Predictor, predictor

NO_GPU = "no CUDA device"
FORWARD, BOTH, BOTH_IN_ONE = "forward", "forward + backward", "forward and gradients"
SAMPLES, QUICK_SAMPLES = 30, 10
UNTIMED_CALLS = 5
COMPILED = ("flex_attention", "torch.compile")
COMPILE_SECONDS = {OURS: 4.0, "flex_attention": 15.0, "torch.compile": 15.0}
SAMPLE_SECONDS, RANDOM_NUMBERS, RATES = 3e-3, 1e10, (1e12, 1e14)
"""Constants of an estimate: a sample's overhead, random numbers per second, and a slow GPU's bytes/s and FLOP/s."""
LARGEST_DIFFERENCE = 0.05
"""RMS difference from torch's result over the size of that: above it a result is wrong, and its time worth nothing."""


class WrongResult(Exception):
    """A party computed something else than torch."""


def rows(quick: bool, share: Share) -> Iterator[Row]:
    """One row for each kernel, shape, dtype, pass and party: raw seconds, or why there are none."""
    return every_row(pieces(quick, share))


def pieces(quick: bool, share: Share) -> Iterator[Piece]:
    where = device()
    if share[0] == 0:
        yield {"kernel": COPY}, lambda: iter([copy_row(where)])
    predicted = cache(predictor)  # calibrates on a GPU, so not before something is timed
    for entry, shape, dtype in timed_cases(quick, share):
        yield label(entry, shape, dtype), partial(of_case, entry, shape, dtype, where, quick, predicted)


def of_case(
    entry: Entry,
    shape: Shape,
    dtype: torch.dtype,
    where: str,
    quick: bool,
    predictor_of: Callable[[str], Predictor],
) -> Iterator[Row]:
    predicted = predictor_of(where)
    for direction, work in passes(entry, shape, dtype):
        about = {
            **label(entry, shape, dtype),
            "pass": direction,
            "tensor_core_kernel": entry.tensor_cores,
            "bytes": work.bytes,
            "flops": work.flops,
        }
        found = parties(entry, compiled=not quick and shape is entry.timed[0])
        if where == "cpu":
            for by in found:
                model = predicted(work, dtype) if by == OURS else {}
                yield {**about, "by": by, "not_measured": NO_GPU, **model}
            continue
        try:
            inputs = entry.inputs(shape, dtype, where, 0)
            expected = first_result([found[TORCH], *found.values()], inputs)
        except torch.OutOfMemoryError:
            yield from ({**about, "by": by, "not_measured": "too large for this GPU's memory"} for by in found)
            continue
        for by, function in found.items():
            measured = timed(function, inputs, expected, direction, where, quick)
            seconds = median(measured["seconds"]) if "seconds" in measured else None
            model = predicted(work, dtype, seconds) if by == OURS else {}
            yield {**about, "by": by, **measured, **model}
            if by in COMPILED:  # compiled for one shape each; too many of them, and torch runs them uncompiled
                torch._dynamo.reset()


def copy_row(where: str) -> Row:
    """Measure a plain copy: its speed is the standard for kernels that only move data."""
    about = {"kernel": COPY, "dtype": "uint8", "pass": FORWARD, "by": TORCH, "tensor_core_kernel": False, "flops": 0}
    if where == "cpu":
        return {**about, "shape": {}, "bytes": 0, "not_measured": NO_GPU}
    size = default_buffer_bytes(where)
    rates = measure_copy_bandwidth(where, buffer_bytes=size, runs=SAMPLES).samples
    seconds = [2 * size / rate for rate in rates]
    return {**about, "shape": {"bytes": size}, "bytes": 2 * size, "seconds": seconds}


def timed_cases(quick: bool, share: Share) -> Iterator[tuple[Entry, Shape, torch.dtype]]:
    """Every shape in 16 bits; quick: the first. torch.compile sees the first one only, since it takes seconds a shape.

    Backward passes are timed with the forward pass that they belong to: nobody else offers them alone.
    """
    every = [
        (entry, shape, dtype)
        for entry, shape, dtype in cases(lambda entry: entry.timed, False)
        if not entry.name.endswith("_backward") and dtype in quick_dtypes(entry)
        if not quick or shape is entry.timed[0]
    ]
    return iter(dealt(every, share))


def estimate(quick: bool) -> float:
    """About how many seconds the timing of everything takes on a GPU of this decade: inputs are drawn there, each party
    compiles once per pass, and each sample empties the cache and covers its launch."""
    calls = (QUICK_SAMPLES if quick else SAMPLES) + UNTIMED_CALLS
    total = 0.0
    for entry, shape, dtype in timed_cases(quick, (0, 1)):
        for _, work in passes(entry, shape, dtype):
            found = parties(entry, compiled=not quick and shape is entry.timed[0])
            compiling = sum(COMPILE_SECONDS.get(by, COMPILE_SECONDS[OURS] if by == OURS else 0.5) for by in found)
            each = SAMPLE_SECONDS + work.bytes / RATES[0] + work.flops / RATES[1]
            total += work.bytes / dtype.itemsize / RANDOM_NUMBERS + compiling + len(found) * calls * each
    return total


def passes(entry: Entry, shape: Shape, dtype: torch.dtype) -> Iterator[tuple[str, Work]]:
    """Forward, and both passes where the catalog holds the backward one; an entry that computes gradients does both."""
    work = entry.cost(shape, dtype)
    if entry.name.endswith(GRADIENTS):
        yield BOTH_IN_ONE, work
        return
    yield FORWARD, work
    for other in entries():
        if other.name == f"{entry.name}_backward":
            yield BOTH, work + other.cost(shape, dtype)


def first_result(functions: Iterable[Party], inputs: tuple[Any, ...]) -> Any:
    """Return the result that the others are compared with: torch's, or the next one's if torch's operator needs more
    memory than there is."""
    for function in functions:
        try:
            if not isinstance(function, str):
                return function(*fresh(inputs))
        except torch.OutOfMemoryError:
            continue
    raise torch.OutOfMemoryError


def timed(function: Party, inputs: tuple[Any, ...], expected: Any, direction: str, where: str, quick: bool) -> Row:
    """{"seconds": …}, or {"not_measured": …} with the reason: a foreign kernel may refuse a shape, a dtype, a GPU."""
    if isinstance(function, str):
        return {"not_measured": function}
    try:
        require_alike(function(*fresh(inputs)), expected)
        call = both_passes(function, expected) if direction == BOTH else function
        samples = benchmark(call, lambda: fresh(inputs), device=where, samples=QUICK_SAMPLES if quick else SAMPLES)
    except Exception as error:
        if context_is_lost(error):
            raise
        return {"not_measured": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}
    return {"seconds": list(samples.seconds)}


def fresh(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copies: some operators write over their inputs, Liger's cross-entropy its gradient over the logits."""
    return tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in inputs)


def require_alike(found: Any, expected: Any) -> None:
    """Raises WrongResult where an output is not torch's, up to rounding."""
    for ours, theirs in zip(outputs(found), outputs(expected), strict=True):
        if theirs.is_floating_point() and theirs.numel():
            size = theirs.double().square().mean().sqrt().item()
            difference = (ours.double() - theirs.double()).square().mean().sqrt().item()
            if not difference <= LARGEST_DIFFERENCE * size:
                raise WrongResult(f"differs from torch by {difference:.3g} where the result is of size {size:.3g}")


def both_passes(function: Callable[..., Any], expected: Any) -> Callable[..., Any]:
    """A call that computes the first output and the gradients of all floating-point inputs."""
    gradient = torch.randn_like(outputs(expected)[0])

    def call(*inputs: Any) -> Any:
        leaves = [differentiable(value) for value in inputs]
        wanted = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        return torch.autograd.grad(outputs(function(*leaves))[0], wanted, gradient)

    return call


def differentiable(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().requires_grad_()
    return value


if __name__ == "__main__":
    answer(pieces)
