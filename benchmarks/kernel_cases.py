"""The cases of the kernels benchmark: every kernel of the course at its shapes and dtypes."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator

import torch
from threeloops.inner.kernels.catalog import Entry, Shape, catalog

from benchmarks.kernel_part import Row, Share

Case = tuple[Entry, Shape, torch.dtype]

GRADIENTS = ("_with_gradients", "_and_gradient", "_and_gradients")
"""How the names of entries end that compute a result and its gradients in one call."""


def entries() -> tuple[Entry, ...]:
    """The catalog's kernels, and that on weights of few bits where the models' packages are installed."""
    if importlib.util.find_spec("jaxtyping") is None:
        warnings.warn("jaxtyping is not installed; kernels on weights of few bits are left out", stacklevel=2)
        return catalog()
    from benchmarks.kernel_quantized import quantized_entries

    return (*catalog(), *quantized_entries())


def cases(
    shapes: Callable[[Entry], tuple[Shape, ...]], quick: bool, share: Share = (0, 1)
) -> Iterator[tuple[Entry, Shape, torch.dtype]]:
    """Every kernel at its shapes and dtypes; quick: its first shape in its first 16-bit dtype."""
    every = [
        (entry, shape, dtype)
        for entry in entries()
        for shape in shapes(entry)[: 1 if quick else None]
        for dtype in (quick_dtypes(entry) if quick else entry.dtypes)
    ]
    return iter(dealt(every, share))


def dealt(every: list[Case], share: Share) -> list[Case]:
    """The cases of one share, in their order. The longest is dealt first, each to the share that has least to do."""
    number, of = share
    lengths, mine = [0.0] * of, []
    for at in sorted(range(len(every)), key=lambda at: -weight(*every[at])):
        least = lengths.index(min(lengths))
        lengths[least] += weight(*every[at])
        if least == number:
            mine.append(at)
    return [every[at] for at in sorted(mine)]


def weight(entry: Entry, shape: Shape, dtype: torch.dtype) -> float:
    """About how long a case takes, in seconds: its compilation, and then what it moves and computes."""
    work = entry.cost(shape, dtype)
    return 1.0 + work.bytes / 1e10 + work.flops / 1e13


def quick_dtypes(entry: Entry) -> tuple[torch.dtype, ...]:
    return (torch.bfloat16,) if torch.bfloat16 in entry.dtypes else entry.dtypes[:1]


def label(entry: Entry, shape: Shape, dtype: torch.dtype) -> Row:
    return {"kernel": entry.name, "shape": dict(shape), "dtype": str(dtype).removeprefix("torch.")}
