"""One operation of the catalog, with the shapes it is judged at."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from threeloops.inner.costs import Work

Shape = Mapping[str, Any]
"""Named sizes of one problem, for example {"rows": 4096, "columns": 4096}."""


@dataclass(frozen=True)
class Entry:
    """One operation.

    `inputs(shape, dtype, device, seed)` makes the positional arguments of both `launch` and `reference`, which return
    one tensor or a tuple of tensors. `cost(shape, dtype)` is the least it needs. Shapes: `metered` ones are small
    enough for the interpreter (about 300 programs together), `compiled` ones are typical of real models (arguments are
    never filled: the kernel is only compiled for them), `timed` ones are for a GPU, round and ragged.
    """

    name: str
    launch: Callable[..., Any]
    reference: Callable[..., Any]
    inputs: Callable[[Shape, torch.dtype, str, int], tuple[Any, ...]]
    cost: Callable[[Shape, torch.dtype], Work]
    metered: tuple[Shape, ...]
    compiled: tuple[Shape, ...]
    timed: tuple[Shape, ...]
    dtypes: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16, torch.float32)
    tensor_cores: bool = False
    peers: Mapping[str, Callable[..., Any]] = field(default_factory=dict, hash=False)
