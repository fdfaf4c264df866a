"""The schema of a recording: a launcher's steps, as plain data, in order, and its results.

A recording holds no values: every tensor is a view of an input's storage or of a storage that the recording allocates.
So it can be executed again on other inputs, elsewhere, in any process that has the kernels. `recorder` makes
recordings, `decode` and `reader` check one that an untrusted process sent, `execution` executes one.

msgspec checks every type, word and bound that concerns one value alone, and refuses unknown fields.
"""

import math
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar, get_args

import msgspec
import torch
from msgspec import Meta

__all__ = [
    "Allocate", "Argument", "BYTES", "BlockSizes", "Constant", "Copy", "Count", "Descriptor", "Dtype", "Fill",
    "GridSize", "LaunchStep", "OPTIONS", "Outputs", "Recording", "RecordingRefused", "Size", "Sizes", "Step",
    "StridedView", "Sum", "TritonDtype", "decode", "dtype_of", "each_output", "malformed",
]  # fmt: skip

Dtype = Literal[
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2",
    "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool",
]  # fmt: skip
BYTES: dict[str, int] = {name: getattr(torch, name).itemsize for name in get_args(Dtype)}
"""The size of one element, for every dtype that a recording can hold."""
OPTIONS = {"num_warps": 64, "num_stages": 16, "num_ctas": 16, "maxnreg": 255}
"""Options of a launch and the largest value of each. Others, such as a debug switch, are dropped by the recorder."""

Size = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Sizes = Annotated[tuple[Size, ...], Meta(max_length=16)]
GridSize = Annotated[int, Meta(ge=0, lt=2**31)]
BlockSizes = Annotated[tuple[Annotated[int, Meta(ge=1, lt=2**31)], ...], Meta(min_length=1, max_length=5)]


class RecordingRefused(Exception):
    """A launcher that cannot be replayed. The message continues a sentence that begins with the launcher's name."""


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    """Any part of a recording, with its kind as a tag."""


class StridedView(_Part, frozen=True, tag="view"):
    """A tensor: a view of storage number `storage`; inputs' storages come first. Strides and offset count elements."""

    storage: Size
    dtype: Dtype
    shape: Sizes
    strides: Sizes
    offset: Size

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.strides):
            raise ValueError(f"{len(self.shape)} sizes and {len(self.strides)} strides")

    @classmethod
    def of(cls, tensor: torch.Tensor, storage: int) -> "StridedView":
        return cls(storage, dtype_of(tensor), tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset())

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * BYTES[self.dtype]

    @property
    def reach(self) -> int:
        """How many elements of its storage it spans, from the storage's first on."""
        if not self.elements:
            return 0
        return self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) + 1


class Descriptor(_Part, frozen=True, tag="descriptor"):
    """A tensor descriptor made by the launcher."""

    base: StridedView
    shape: BlockSizes
    strides: BlockSizes
    block_shape: BlockSizes
    padding: Literal["zero", "nan"]

    def __post_init__(self) -> None:
        if not len(self.shape) == len(self.strides) == len(self.block_shape):
            raise ValueError("a descriptor whose shape, strides and block_shape differ in length")


class TritonDtype(_Part, frozen=True, tag="dtype"):
    """A `tl` dtype given to a kernel as a constant."""

    name: Literal[
        "int1",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "fp16",
        "bf16",
        "fp32",
        "fp64",
        "fp8e4nv",
        "fp8e5",
        "fp8e4b8",
        "fp8e5b16",
        "fp8e4b15",
    ]


_T = TypeVar("_T")
_Few = Annotated[tuple[_T, ...], Meta(max_length=64)]
_Constant = TritonDtype | Annotated[str, Meta(max_length=64)] | bool | int | float | None
Constant = _Constant | _Few[_Constant]
Argument = StridedView | Descriptor | bool | int | float | None

_Tensor = StridedView | None
_Shallow = _Tensor | _Few[_Tensor | _Few[_Tensor]]
Outputs = _Tensor | _Few[_Tensor | _Few[_Tensor | _Few[_Shallow]]]
"""The results of the launcher, at most five tuples deep."""


def each_output(outputs: Any, change: Callable[[Any], Any]) -> Any:
    """Return the same tuples of outputs, each of them changed. None stays."""
    if isinstance(outputs, tuple):
        return tuple(each_output(output, change) for output in outputs)
    return None if outputs is None else change(outputs)


class Allocate(_Part, frozen=True, tag="allocate"):
    """A new storage, uninitialised."""

    dtype: Dtype
    elements: Size


class Fill(_Part, frozen=True, tag="fill"):
    to: StridedView
    value: bool | int | float

    def __post_init__(self) -> None:
        _require_64_bits(self.value)


class Count(_Part, frozen=True, tag="count"):
    """`to[i] = start + step · i`: torch.arange."""

    to: StridedView
    start: int | float
    step: int | float

    def __post_init__(self) -> None:
        _require_64_bits(self.start, self.step)


class Copy(_Part, frozen=True, tag="copy"):
    """Element by element, with a change of layout or dtype."""

    to: StridedView
    source: StridedView


class Sum(_Part, frozen=True, tag="sum"):
    """The sum over some dimensions: of partial results, so the source is something that a kernel wrote. The other
    dimensions keep their order."""

    to: StridedView
    source: StridedView
    dimensions: Sizes
    keepdim: bool


class LaunchStep(_Part, frozen=True, tag="launch"):
    """One launch of a kernel by its name; `constants` are its compile-time arguments."""

    kernel: str
    grid: tuple[GridSize, GridSize, GridSize]
    arguments: Annotated[dict[str, Argument], Meta(max_length=256)]
    constants: Annotated[dict[str, Constant], Meta(max_length=256)]
    options: dict[str, Annotated[int, Meta(ge=1)]]

    def __post_init__(self) -> None:
        _require_64_bits(*self.arguments.values(), *self.constants.values())
        for name, value in self.options.items():
            if value > OPTIONS.get(name, 0):
                raise ValueError(f"the option {name[:64]!r} = {value}: expected {OPTIONS}")

    def views(self) -> dict[str, StridedView]:
        """Return the tensors among the arguments."""
        tensors = {
            name: value.base if isinstance(value, Descriptor) else value for name, value in self.arguments.items()
        }
        return {name: value for name, value in tensors.items() if isinstance(value, StridedView)}


Step = Allocate | Fill | Count | Copy | Sum | LaunchStep


class Recording(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The steps of a launcher and its results."""

    steps: tuple[Step, ...]
    outputs: Outputs

    @property
    def launches(self) -> list[LaunchStep]:
        return [step for step in self.steps if isinstance(step, LaunchStep)]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data. `decode` is the way back."""
        return msgspec.to_builtins(self)


def decode(data: Any) -> Recording:
    """Return the recording in plain data from an untrusted process. Its size is bounded by the frame that it came in.

    Raises:
        RecordingRefused: it is not a recording; the message says which part is wrong, and where.
    """
    try:
        return msgspec.convert(data, Recording)
    except (msgspec.ValidationError, RecursionError) as error:
        raise malformed(str(error)[:300]) from None


def malformed(what: str) -> RecordingRefused:
    """Return the error for a recording that no recorder writes."""
    return RecordingRefused(
        f"was recorded in a form that cannot be read ({what}): nothing in its cell may patch the recording"
    )


def dtype_of(tensor: torch.Tensor) -> Any:
    """Return the name of its dtype: a `Dtype`, unless no recording can hold the tensor."""
    return str(tensor.dtype).removeprefix("torch.")


def _require_64_bits(*values: Any) -> None:
    for value in values:
        if isinstance(value, tuple):
            _require_64_bits(*value)
        elif isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise ValueError("an integer of more than 64 bits")
