"""A recording: what a launcher did, as plain data: allocations, copies, sums and launches in order, and what came back.

A recording holds no values, only places: every tensor is a view of an input's storage or of a storage that the recording
allocates. So it can be carried out again on other inputs, elsewhere, by whoever has the kernels. `recorder` makes
recordings, `reader` checks one that a stranger sent, `execution` carries one out.

How much a replayed launcher may ask for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

OPTIONS = {"num_warps": 64, "num_stages": 16, "num_ctas": 16, "maxnreg": 255}
"""Options of a launch and the largest value of each. Others, as a debug switch, are dropped when they are recorded."""


@dataclass(frozen=True)
class Limits:
    """What one recording may ask for.

    `fills`: results that a launcher remembered could be written down number by number. `copies`: so could a transpose,
    row by row. `programs` counts those of all launches: the interpreter runs about a thousand a second.
    """

    steps: int = 2000
    fills: int = 64
    copies: int = 32
    launches: int = 256
    programs: int = 200_000
    allocated_bytes: int = 1 << 30
    elements: int = 1 << 27
    outputs: int = 64
    output_bytes: int = 1 << 28


EXECUTED = Limits()
UNEXECUTED = Limits(programs=1 << 62, allocated_bytes=1 << 45, elements=1 << 44, output_bytes=1 << 45)
"""For recordings that are only compiled."""


DTYPES = (
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool"
).split()


class RecordingRefused(Exception):
    """A launcher that cannot be replayed. The message continues a sentence that begins with the launcher's name."""


@dataclass(frozen=True)
class StridedView:
    """A tensor: a view of storage number `storage`; inputs' storages come first. Strides and offset count elements."""

    storage: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @property
    def elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def reach(self) -> int:
        """How many elements of its storage it spans, from the storage's first on."""
        if not self.elements:
            return 0
        return self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) + 1


def without_ones(place: StridedView) -> StridedView:
    """The same elements without dimensions of size 1, whose strides mean nothing."""
    kept = [(n, s) for n, s in zip(place.shape, place.strides, strict=True) if n != 1]
    shape, strides = tuple(n for n, _ in kept), tuple(s for _, s in kept)
    return StridedView(place.storage, place.dtype, shape, strides, place.offset)


def row_major(place: StridedView) -> StridedView:
    """A tensor of this shape with contiguous strides."""
    strides, step = [], 1
    for size in reversed(place.shape):
        strides.append(step)
        step *= max(1, size)
    return StridedView(place.storage, place.dtype, place.shape, tuple(reversed(strides)), 0)


def rearranges(to: StridedView, source: StridedView) -> bool:
    """Whether a copy changes the order in which elements follow one another in memory.

    It keeps the order if each axis, from the target's innermost to its outermost, steps over everything that the axes
    inside it reach, in the target and in the source alike. Comparing the strides alone is not enough: a skewed view
    has descending strides and interleaved elements. An axis of stride 0 in the source repeats elements.
    """
    axes = [(t, s, n) for n, t, s in zip(to.shape, to.strides, source.strides, strict=True) if n > 1]
    written = read = 0
    for target, origin, size in sorted(axes):
        if target <= written or 0 < origin <= read:
            return True
        written += (size - 1) * target
        read += (size - 1) * origin
    return False


def repeats(place: StridedView) -> bool:
    """Whether elements stand in it several times, or its axes interleave like those of a skewed view."""
    return rearranges(place, place)


def is_dense(place: StridedView) -> bool:
    """Whether its elements fill one stretch of memory, in whatever order of the axes."""
    return not repeats(place) and place.reach - place.offset == place.elements


def without_axes(place: StridedView, axes: Sequence[int]) -> StridedView:
    """The tensor at index 0 of these axes."""
    kept = [axis for axis in range(len(place.shape)) if axis not in axes]
    shape, strides = tuple(place.shape[axis] for axis in kept), tuple(place.strides[axis] for axis in kept)
    return StridedView(place.storage, place.dtype, shape, strides, place.offset)


@dataclass(frozen=True)
class Descriptor:
    """A tensor descriptor made by the launcher."""

    base: StridedView
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    block_shape: tuple[int, ...]
    padding: str = "zero"


@dataclass(frozen=True)
class Dtype:
    """A `tl` dtype given to a kernel as a constant."""

    name: str


@dataclass(frozen=True)
class Allocate:
    """A new storage, uninitialised."""

    dtype: str
    elements: int


@dataclass(frozen=True)
class Fill:
    to: StridedView
    value: int | float | bool


@dataclass(frozen=True)
class Count:
    """`to[i] = start + step · i`: torch.arange."""

    to: StridedView
    start: int | float
    step: int | float


@dataclass(frozen=True)
class Copy:
    """Element by element, with a change of layout or dtype."""

    to: StridedView
    source: StridedView


@dataclass(frozen=True)
class Sum:
    """The sum over some dimensions: of partial results, so the source is something that a kernel wrote. What is left
    keeps its order."""

    to: StridedView
    source: StridedView
    dimensions: tuple[int, ...]
    keepdim: bool


@dataclass(frozen=True)
class LaunchStep:
    """One launch of a kernel by its name; `constants` are its compile-time arguments."""

    kernel: str
    grid: tuple[int, int, int]
    arguments: Mapping[str, Any]
    constants: Mapping[str, Any]
    options: Mapping[str, int] = field(default_factory=dict)

    def places(self) -> dict[str, StridedView]:
        """Tensors among the arguments."""
        found = {}
        for name, value in self.arguments.items():
            if isinstance(value, Descriptor):
                found[name] = value.base
            elif isinstance(value, StridedView):
                found[name] = value
        return found


Step = Allocate | Fill | Count | Copy | Sum | LaunchStep
STEPS: dict[str, type] = {
    "allocate": Allocate,
    "fill": Fill,
    "count": Count,
    "copy": Copy,
    "sum": Sum,
    "launch": LaunchStep,
}
_VALUES: dict[type, str] = {StridedView: "place", Descriptor: "descriptor", Dtype: "dtype"}


@dataclass(frozen=True)
class Recording:
    """`outputs` is a StridedView, None, or a tuple or list of these, as the launcher returned it."""

    steps: tuple[Step, ...]
    outputs: Any

    @property
    def launched(self) -> list[str]:
        """Names of the kernels, in the order of their launches."""
        return [step.kernel for step in self.steps if isinstance(step, LaunchStep)]

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `reader.read` is the way back."""
        return {"steps": [_step(step) for step in self.steps], "outputs": plain(self.outputs)}


def _step(step: Step) -> dict[str, Any]:
    do = next(name for name, kind in STEPS.items() if type(step) is kind)
    return {"do": do, **{name: plain(value) for name, value in vars(step).items()}}


def plain(value: Any) -> Any:
    """Places, descriptors, dtypes, numbers and containers of these as JSON has them."""
    if type(value) in _VALUES:
        fields = {n: plain(v) for n, v in asdict(value).items()}
        if isinstance(value, Descriptor):
            fields["base"] = {n: plain(v) for n, v in asdict(value.base).items()}
        return {_VALUES[type(value)]: fields}
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return value
