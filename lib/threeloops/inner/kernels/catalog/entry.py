"""One operation of the catalog, with the shapes it is judged at."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from threeloops.inner.costs import Work

__all__ = ["Cost", "Entry", "Inputs", "Shape", "by_size", "shapes"]

Shape = Mapping[str, Any]
"""Named sizes of one problem, for example {"rows": 4096, "columns": 4096}."""
Inputs = Callable[[Shape, torch.dtype, str, int], tuple[Any, ...]]
Cost = Callable[[Shape, torch.dtype], Work]


@dataclass(frozen=True)
class Entry:
    """One operation.

    `inputs(shape, dtype, device, seed)` makes the positional arguments of both `launch` and `reference`, which return
    one tensor or a tuple of tensors. `cost(shape, dtype)` is the least it needs. `metered` shapes are small enough for
    the interpreter (about 300 programs together), `compiled` ones are typical of real models (the kernel is only
    compiled for them, with arguments on "meta"), `timed` ones are for a GPU, round and ragged. `peers` are other
    implementations, by name.
    """

    name: str
    launch: Callable[..., Any]
    reference: Callable[..., Any]
    inputs: Inputs
    cost: Cost
    metered: tuple[Shape, ...]
    compiled: tuple[Shape, ...]
    timed: tuple[Shape, ...]
    dtypes: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16, torch.float32)
    tensor_cores: bool = False
    peers: Mapping[str, Callable[..., Any]] = field(default_factory=dict, hash=False)


def shapes(*names: str) -> Callable[..., tuple[dict[str, int], ...]]:
    """Name the sizes: shapes("rows", "columns")((4096, 1024), …) → ({"rows": 4096, "columns": 1024}, …)."""
    return lambda *sizes: tuple(dict(zip(names, shape, strict=True)) for shape in sizes)


def by_size(cost: Callable[..., Work], *names: str) -> Cost:
    """Return a function that calls `cost` with the shape's sizes in this order and the dtype's bytes."""
    return lambda shape, dtype: cost(*(shape[name] for name in names), dtype.itemsize)
