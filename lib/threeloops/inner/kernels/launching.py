"""The parts that every launcher uses: a configuration shipped for each target, and the checks of its arguments.

Tile sizes, warps and pipeline stages are chosen by hand for each target rather than tuned at run time, so that the
library starts in a second.

A kernel gets raw pointers and cannot check anything, so with a wrong shape it reads other memory. A `require_…`
function returns quietly or raises a ValueError (TypeError for an argument that is not a tensor) that names the
quantity, its value, what was expected and the next step. A tensor that is None was not given and passes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

from threeloops.hardware import accelerator
from threeloops.inner import interpreter

__all__ = [
    "Configuration", "LARGEST_INT32", "LOG2_E", "TARGETS", "Tiles", "compiling_for",
    "multiprocessors", "require_columns", "require_dimensions", "require_divides",
    "require_dtypes", "require_finite", "require_fraction", "require_head_dim", "require_one_device",
    "require_shape", "require_tensors", "short", "target",
]  # fmt: skip

_DEVICES = {"sm_80": "A100 SXM 80GB", "sm_90": "H100 SXM", "sm_100": "B200", "gfx942": "MI300X"}
TARGETS = tuple(_DEVICES)
"""The devices that every kernel here is compiled and inspected for; sm_90 is also the H200."""

_forced: ContextVar[str | None] = ContextVar("target", default=None)


@dataclass(frozen=True)
class Configuration:
    """Compile-time constants of one kernel, its warps per program and the depth of its software pipeline."""

    constants: Mapping[str, int] = field(hash=False)
    num_warps: int = 4
    num_stages: int = 1

    def options(self) -> dict[str, int]:
        """Return the keyword arguments of a launch."""
        return {**self.constants, "num_warps": self.num_warps, "num_stages": self.num_stages}


def target() -> str:
    """Return the target for which launchers choose their configuration, one of TARGETS.

    This is the target that `compiling_for` named, or else the nearest of TARGETS that the current GPU can run. In the
    interpreter it is sm_90, so traffic metered on a laptop belongs to the configuration for the H100.
    """
    return _forced.get() or _of_this_machine()


@contextmanager
def compiling_for(name: str) -> Iterator[None]:
    """Let launchers choose as if for `name`, one of TARGETS. Raises ValueError for another."""
    if name not in TARGETS:
        raise ValueError(f"target = {name!r}: expected one of {', '.join(TARGETS)}")
    token = _forced.set(name)
    try:
        yield
    finally:
        _forced.reset(token)


@cache
def _of_this_machine() -> str:
    if not torch.cuda.is_available():
        return "sm_90"
    if torch.version.hip:
        return "gfx942"
    major, _ = torch.cuda.get_device_capability()
    return "sm_100" if major >= 10 else "sm_90" if major == 9 else "sm_80"


def multiprocessors() -> int:
    """Return the multiprocessors of the current GPU, or of the device that the target names if there is none or in
    `compiling_for`."""
    if torch.cuda.is_available() and not _forced.get():
        return torch.cuda.get_device_properties("cuda").multi_processor_count
    return _published_multiprocessors(target())


@cache
def _published_multiprocessors(name: str) -> int:
    count = accelerator(_DEVICES[name]).multiprocessors
    assert count is not None
    return count


LOG2_E = math.log2(math.e)
"""The factor for exponentials. The hardware computes powers of two: exp(x) = exp2(x · log2(e)), and the factor is
folded into the scale."""


@dataclass(frozen=True)
class Tiles:
    """Rows and keys of an attention program's tiles, its warps and the depth of its pipeline of loads."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int

    def configuration(self, constants: Mapping[str, int]) -> Configuration:
        """Return the configuration with these compile-time constants."""
        return Configuration(constants, self.num_warps, self.num_stages)

    def options(self, head_dim: int) -> dict[str, int]:
        """Return the keyword arguments of a launch whose rows are BLOCK_M queries and whose keys are BLOCK_N."""
        return self.configuration({"HEAD_DIM": head_dim, "BLOCK_M": self.rows, "BLOCK_N": self.keys}).options()


_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
LARGEST_INT32 = 2**31 - 1


def require_tensors(**tensors: torch.Tensor | None) -> None:
    """Check that all given tensors share one dtype, one of FLOATS, and lie on one device where kernels can run."""
    require_dtypes(_FLOATS, **tensors)
    _require_same("dtype", "is", "convert", tensors)
    require_one_device(**tensors)


def require_dtypes(dtypes: Sequence[torch.dtype], **tensors: torch.Tensor | None) -> None:
    """Check that each given tensor has one of `dtypes`, which may differ between them."""
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}: expected a torch.Tensor; make one with torch.tensor")
        if tensor.dtype not in dtypes:
            raise ValueError(
                f"{name} is {short(tensor.dtype)}: expected {' or '.join(short(dtype) for dtype in dtypes)}; "
                f"convert it with {name}.to(torch.{short(dtypes[0])})"
            )


def require_one_device(**tensors: torch.Tensor | None) -> None:
    """Check that all given tensors lie on one device where this process can run kernels.

    That is the CPU if kernels are interpreted, else the current GPU, where Triton launches kernels regardless of the
    arguments' device. "meta" tensors pass, since a recorded launch may have them.
    """
    first, device = _require_same("device", "is on", "move", tensors)
    if device.type == "cpu" and not interpreter.interpreted():
        raise ValueError(
            f"{first} is on cpu: expected a GPU, since kernels are compiled in this process; move it with "
            f'{first}.to("cuda"), or set TRITON_INTERPRET=1 before the kernels are imported'
        )
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        raise ValueError(
            f"{first} is on {device}: expected the current device, cuda:{torch.cuda.current_device()}; "
            f"call torch.cuda.set_device({device.index}), or `with torch.cuda.device({first}.device):`"
        )


def _require_same(quantity: str, verb: str, step: str, tensors: Mapping[str, torch.Tensor | None]) -> tuple[str, Any]:
    """Return the name of the first given tensor and its `quantity`, "dtype" or "device". All others must have the
    same."""
    (first, expected), *others = [
        (name, getattr(tensor, quantity)) for name, tensor in tensors.items() if tensor is not None
    ]
    for name, value in others:
        if value != expected:
            raise ValueError(
                f"{name} {verb} {short(value)} and {first} {verb} {short(expected)}: expected one {quantity} for both; "
                f"{step} one, for example {name}.to({first}.{quantity})"
            )
    return first, expected


def require_dimensions(name: str, tensor: torch.Tensor, dimensions: str) -> None:
    """Check that `tensor` has as many dimensions as the names in `dimensions`, for example "batch, heads, sequence,
    head_dim"."""
    expected = len(dimensions.split(","))
    if tensor.ndim != expected:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}: expected {expected} dimensions ({dimensions}); reshape it"
        )


def require_shape(name: str, tensor: torch.Tensor | None, shape: Sequence[int], meaning: str) -> None:
    """Check that a given `tensor` has exactly this shape. `meaning` says where the shape comes from: "(columns,) of
    x"."""
    if tensor is not None and tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}: expected {tuple(shape)}, {meaning}; reshape it")


def require_columns(name: str, tensor: torch.Tensor) -> int:
    """Return the length of the last dimension. Zero rows are an empty result; zero columns have no maximum and no
    mean."""
    if tensor.ndim == 0:
        raise ValueError(f"{name} has no dimensions: expected at least one, a row; use {name}.reshape(1)")
    if tensor.shape[-1] == 0:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}: expected rows of at least 1 element; an empty row has no result"
        )
    return tensor.shape[-1]


def require_head_dim(head_dim: int, allowed: Sequence[int]) -> None:
    """Check that the kernel has tiles for `head_dim`."""
    if head_dim not in allowed:
        larger = [size for size in allowed if size > head_dim]
        step = f"pad the heads with zeros to {min(larger)}" if larger else "split the head, or use torch's own operator"
        raise ValueError(f"head_dim = {head_dim}: expected one of {', '.join(map(str, allowed))}; {step}")


def require_divides(name: str, part: int, whole_name: str, whole: int) -> None:
    """Check that `part` is positive and divides `whole`, such as key-value heads and query heads, or groups and their
    elements."""
    if part < 1 or whole % part:
        raise ValueError(f"{name} = {part}: expected a positive divisor of {whole_name} = {whole}")


def require_fraction(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} = {value}: expected a number from 0 to 1")


def require_finite(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise ValueError(f"{name} = {value}: expected a finite number")


def short(value: torch.dtype | torch.device) -> str:
    return str(value).removeprefix("torch.")
