"""What a kernel is shipped with: tile sizes, warps and pipeline stages, chosen for each target, not searched for at
run time. Autotuning is a lab's subject; a library that starts in one second is another matter.

The vocabulary of the sparse attention kernels: the tiles that a program works on, and what all tiles add up to.

What launchers ask of their arguments before a kernel gets raw pointers: dtype, device, shape, layout, reach.

A kernel cannot object: a wrong shape there is a read of somebody else's memory. Each function here returns quietly or
raises a ValueError (TypeError for what is not a tensor) that names the quantity, its value, what was expected and the
next step. The `None` among tensors means "not given" and passes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache

import torch

from threeloops.inner import interpreter

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
"""A100, H100 and H200, B200, MI300X: the devices that every kernel here is compiled and inspected for."""

_INTERPRETED = "sm_90"
_forced: ContextVar[str | None] = ContextVar("target", default=None)


@dataclass(frozen=True)
class Configuration:
    """Compile-time constants of one kernel, its warps a program and the depth of its software pipeline."""

    constants: Mapping[str, int] = field(hash=False)
    num_warps: int = 4
    num_stages: int = 1

    def options(self) -> dict[str, int]:
        """Keyword arguments of a launch."""
        return {**self.constants, "num_warps": self.num_warps, "num_stages": self.num_stages}


def target() -> str:
    """The target that launchers choose their configuration for: one of TARGETS.

    The one that `compiling_for` named; else the nearest of TARGETS that the current GPU can run; else, in the
    interpreter, sm_90, so that traffic metered on a laptop is that of the configuration for the H100.
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
        return _INTERPRETED
    if torch.version.hip:
        return "gfx942"
    major, _ = torch.cuda.get_device_capability()
    return "sm_100" if major >= 10 else "sm_90" if major == 9 else "sm_80"


LOG2_E = math.log2(math.e)
"""Powers of two are what the hardware computes: exp(x) = exp2(x · log2(e)), and the factor disappears in the scale."""


@dataclass(frozen=True)
class Tiles:
    """Rows and keys of a program's tiles, its warps and the depth of its pipeline of loads."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int

    def configuration(self, constants: Mapping[str, int]) -> Configuration:
        """With these compile-time constants."""
        return Configuration(constants, self.num_warps, self.num_stages)

    def options(self, head_dim: int) -> dict[str, int]:
        """Keyword arguments of a launch whose rows are BLOCK_M queries and whose keys are BLOCK_N."""
        return self.configuration({"HEAD_DIM": head_dim, "BLOCK_M": self.rows, "BLOCK_N": self.keys}).options()


@dataclass(frozen=True)
class TiledTraffic:
    """Of one launch: tiles visited by all programs together, bytes asked for, FLOPs of the tiles' matrix products.

    Bytes asked for are those of rows that exist, each time that a program loads them, whatever a cache then catches.
    Products are counted whole, with what a mask hides and with the zeros that fill a tile past the end.
    """

    tiles: int
    loaded: int
    stored: int
    dot_flops: int


FLOATS = (torch.float16, torch.bfloat16, torch.float32)
LARGEST_INT32 = 2**31 - 1


def require_tensors(*, dtypes: Sequence[torch.dtype] = FLOATS, **tensors: torch.Tensor | None) -> None:
    """All given tensors have one and the same dtype, one of `dtypes`, and lie on one device where kernels can run."""
    require_dtypes(dtypes, **tensors)
    (first, reference), *others = [(name, each) for name, each in tensors.items() if each is not None]
    for name, each in others:
        if each.dtype != reference.dtype:
            raise ValueError(
                f"{name} is {short(each.dtype)} and {first} is {short(reference.dtype)}: expected one dtype for both; "
                f"convert one, for example {name}.to({first}.dtype)"
            )
    require_one_device(**tensors)


def require_dtypes(dtypes: Sequence[torch.dtype], **tensors: torch.Tensor | None) -> None:
    """Each given tensor has one of `dtypes`, which may differ between them."""
    for name, each in tensors.items():
        if each is None:
            continue
        if not isinstance(each, torch.Tensor):
            raise TypeError(f"{name} is a {type(each).__name__}: expected a torch.Tensor; make one with torch.tensor")
        if each.dtype not in dtypes:
            raise ValueError(
                f"{name} is {short(each.dtype)}: expected {' or '.join(short(dtype) for dtype in dtypes)}; "
                f"convert it with {name}.to(torch.{short(dtypes[0])})"
            )


def require_one_device(**tensors: torch.Tensor | None) -> None:
    """All given tensors lie on one device, and kernels of this process can run there.

    That is the current GPU, or the CPU where kernels are interpreted; "meta" tensors pass, since a recorded launch may
    have them. Triton launches on the current GPU whatever its arguments, and another one would read foreign addresses.
    """
    (first, reference), *others = [(name, each) for name, each in tensors.items() if each is not None]
    for name, each in others:
        if each.device != reference.device:
            raise ValueError(
                f"{name} is on {each.device} and {first} is on {reference.device}: expected one device for both; "
                f"move one, for example {name}.to({first}.device)"
            )
    if reference.device.type == "cpu" and not interpreter.interpreted():
        raise ValueError(
            f"{first} is on cpu: expected a GPU, since kernels are compiled in this process; move it with "
            f'{first}.to("cuda"), or set TRITON_INTERPRET=1 before the kernels are imported'
        )
    if reference.device.type == "cuda" and reference.device.index != torch.cuda.current_device():
        raise ValueError(
            f"{first} is on {reference.device}: expected the current device, cuda:{torch.cuda.current_device()}; "
            f"call torch.cuda.set_device({reference.device.index}), or `with torch.cuda.device({first}.device):`"
        )


def require_dimensions(name: str, tensor: torch.Tensor, dimensions: str) -> None:
    """`tensor` has as many dimensions as the names in `dimensions`, for example "batch, heads, sequence, head_dim"."""
    expected = len(dimensions.split(","))
    if tensor.ndim != expected:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}: expected {expected} dimensions ({dimensions}); reshape it"
        )


def require_shape(name: str, tensor: torch.Tensor | None, shape: Sequence[int], meaning: str) -> None:
    """A given `tensor` has exactly this shape. `meaning` says where it comes from: "(columns,) of x"."""
    if tensor is not None and tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}: expected {tuple(shape)}, {meaning}; reshape it")


def require_columns(name: str, tensor: torch.Tensor) -> int:
    """The length of the last dimension. Zero rows are an empty result; zero columns have no maximum and no mean."""
    if tensor.ndim == 0:
        raise ValueError(f"{name} has no dimensions: expected at least one, a row; use {name}.reshape(1)")
    if tensor.shape[-1] == 0:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}: expected rows of at least 1 element; an empty row has no result"
        )
    return tensor.shape[-1]


def require_head_dim(head_dim: int, allowed: Sequence[int]) -> None:
    """`head_dim` is one that the kernel has tiles for."""
    if head_dim not in allowed:
        larger = [size for size in allowed if size > head_dim]
        step = f"pad the heads with zeros to {min(larger)}" if larger else "split the head, or use torch's own operator"
        raise ValueError(f"head_dim = {head_dim}: expected one of {', '.join(map(str, allowed))}; {step}")


def require_divides(name: str, part: int, whole_name: str, whole: int) -> None:
    """`part` is positive and divides `whole`: key-value heads and query heads, groups and what they group."""
    if part < 1 or whole % part:
        raise ValueError(f"{name} = {part}: expected a positive divisor of {whole_name} = {whole}")


def require_contiguous(name: str, tensor: torch.Tensor, why: str) -> None:
    """For outputs and in-place arguments only: an input can be copied, a result that nobody sees cannot be."""
    if not tensor.is_contiguous():
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)} and strides {tensor.stride()}: expected a contiguous tensor, "
            f"{why}; call {name}.contiguous() first"
        )


def require_fraction(name: str, value: float, *, one_allowed: bool = False) -> None:
    """A probability: 0 ≤ value < 1, or ≤ 1."""
    if not (0 <= value < 1 or (one_allowed and value == 1)):
        raise ValueError(f"{name} = {value}: expected a number from 0 {'to 1' if one_allowed else 'up to, not at, 1'}")


def require_finite(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise ValueError(f"{name} = {value}: expected a finite number")


def reach(tensor: torch.Tensor) -> int:
    """How far, in elements, the tensor's farthest element lies from its first: what an offset must be able to hold."""
    if tensor.numel() == 0:
        return 0
    return sum((size - 1) * abs(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def needs_int64(*tensors: torch.Tensor | None) -> bool:
    """Whether an element of any of these lies beyond what a 32-bit offset can hold.

    Most kernels here do without asking: they make only the *start* of their tile a 64-bit number (one scalar a program)
    and keep offsets inside the tile at 32 bits. Ask where a whole tile of offsets spans the tensor.
    """
    return any(each is not None and reach(each) > LARGEST_INT32 for each in tensors)


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
