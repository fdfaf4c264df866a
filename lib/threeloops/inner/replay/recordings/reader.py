"""Reading a recording that a stranger sent: every type, size and bound is checked before anything is done with it.

The recording comes from the process in which the student's launcher ran, so whoever wrote that code may have written the
recording. A recording that passes is harmless, not honest: it touches only the storages that it names, within limits, and
launches only admitted kernels. Whether it computes the right thing is for its results to show.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from threeloops.inner.replay.allowlist.admit import Kernel
from threeloops.inner.replay.recordings.checks import (
    BYTES,
    LARGEST,
    any_mapping,
    constant,
    malformed,
    mapping,
    named,
    number,
    sequence,
    unknown_kernel,
    whole,
    word,
)
from threeloops.inner.replay.recordings.steps import (
    DTYPES,
    EXECUTED,
    OPTIONS,
    STEPS,
    Allocate,
    Copy,
    Count,
    Descriptor,
    Fill,
    LaunchStep,
    Limits,
    Recording,
    RecordingRefused,
    Step,
    StridedView,
    Sum,
    is_dense,
    rearranges,
    repeats,
    row_major,
    without_axes,
    without_ones,
)

_MAX_DIMENSIONS = 16


def read(
    data: Any,
    inputs: Sequence[int],
    kernels: Mapping[str, Kernel],
    limits: Limits = EXECUTED,
    given: Sequence[StridedView] = (),
) -> Recording:
    """The recording in `data`.

    Args:
        data: what came over the wire, or `Recording.to_dict()`.
        inputs: bytes of each storage of the inputs.
        kernels: the admitted ones.
        given: the arguments as the test gave them, which a launcher may make contiguous.

    Raises:
        RecordingRefused: it is no recording, asks for more than the limits, or what it returns comes from no kernel.
    """
    return _Reader(list(inputs), kernels, limits, given).read(data)


class _Reader:
    def __init__(
        self, inputs: list[int], kernels: Mapping[str, Kernel], limits: Limits, given: Sequence[StridedView]
    ) -> None:
        self.given = {without_ones(place) for place in given}
        self.sizes, self.inputs, self.kernels, self.limits = inputs, len(inputs), kernels, limits
        self.launched: set[int] = set()
        self.received: set[int] = set()
        """Storages that torch copied or summed something into."""
        self.assembled: set[int] = set()
        """Those of them in which one storage's elements may stand several times, or in another order."""
        self.fills = self.copies = self.allocated = self.programs = self.launches = self.outputs = self.returned = 0

    def read(self, data: Any) -> Recording:
        given = mapping(data, ("steps", "outputs"))
        steps = sequence(given["steps"], self.limits.steps, "steps")
        if not any(type(step) is dict and step.get("do") == "launch" for step in steps):
            raise RecordingRefused("launches no kernel: what it returns must come from a kernel of its cell")
        recording = Recording(tuple(self._step(step) for step in steps), self._outputs(given["outputs"], 0))
        if not self.outputs:
            raise RecordingRefused("returns no tensor: return what the kernel wrote")
        return recording

    def _step(self, data: Any) -> Step:
        do = data.get("do") if type(data) is dict else None
        readers: dict[str, Callable[[Any], Step]] = {
            "allocate": self._allocate,
            "fill": self._fill,
            "count": self._counting,
            "copy": self._copy,
            "sum": self._sum,
            "launch": self._launch,
        }
        if type(do) is not str or do not in readers:
            malformed("a step of an unknown kind")
        return readers[do](mapping(data, ("do", *(field.name for field in fields(STEPS[do])))))

    def _fill(self, given: dict[str, Any]) -> Fill:
        self.fills += 1
        if self.fills > self.limits.fills:
            raise RecordingRefused(
                f"fills tensors with numbers more than {self.limits.fills} times: let a kernel do it"
            )
        return Fill(self._target(given["to"]), number(given["value"], boolean=True))

    def _counting(self, given: dict[str, Any]) -> Count:
        return Count(self._target(given["to"]), number(given["start"]), number(given["step"]))

    def _allocate(self, given: dict[str, Any]) -> Allocate:
        dtype, elements = word(given["dtype"], DTYPES), whole(given["elements"], 0, LARGEST)
        self.allocated += elements * BYTES[dtype]
        if self.allocated > self.limits.allocated_bytes:
            raise RecordingRefused(
                f"allocates {self.allocated / 2**20:,.0f} MiB: at most {self.limits.allocated_bytes >> 20:,} MiB may "
                "be allocated where kernels are judged; allocate what the result needs"
            )
        self.sizes.append(elements * BYTES[dtype])
        return Allocate(dtype, elements)

    def _copy(self, given: dict[str, Any]) -> Copy:
        to, source = self._target(given["to"]), self._place(given["source"])
        if to.shape != source.shape:
            malformed("a copy between different shapes")
        as_given = without_ones(source) in self.given and not rearranges(to, row_major(to))
        if rearranges(to, source) and not as_given:
            raise RecordingRefused(
                "rearranges elements with torch, as a transpose made contiguous does: give the kernel the strides of "
                "the view; only an argument just as it was given may be made contiguous"
            )
        whole = is_dense(source) and is_dense(to)
        self._move(to, source, repeated=repeats(source) and not as_given, whole=whole)
        return Copy(to, source)

    def _move(self, to: StridedView, source: StridedView, *, repeated: bool = False, whole: bool = False) -> None:
        """Note that torch moves elements. Two moves that keep the order can rearrange together: copy a row twice, or
        into the gaps of another, and pick from that. So what was put together is not taken apart again."""
        self.copies += 1
        if self.copies > self.limits.copies:
            raise RecordingRefused(
                f"copies or sums with torch more than {self.limits.copies} times: let a kernel do it"
            )
        if source.storage in self.assembled and not whole:
            raise RecordingRefused(
                "rearranges elements with torch: it copies or sums parts of a tensor that several copies, or one with "
                "repeated elements, put together; let a kernel read the original tensors"
            )
        if repeated or to.storage in self.received | {source.storage} or source.storage in self.assembled:
            self.assembled.add(to.storage)
        self.received.add(to.storage)
        if source.storage in self.launched:
            self.launched.add(to.storage)

    def _sum(self, given: dict[str, Any]) -> Sum:
        to, source, keepdim = self._target(given["to"]), self._place(given["source"]), given["keepdim"]
        rank = len(source.shape)
        dimensions = tuple(whole(d, 0, rank) for d in sequence(given["dimensions"], _MAX_DIMENSIONS, "dimensions"))
        if type(keepdim) is not bool or len(set(dimensions)) != len(dimensions):
            malformed("a sum")
        left = [1 if d in dimensions else n for d, n in enumerate(source.shape) if keepdim or d not in dimensions]
        if list(to.shape) != left:
            malformed("a sum of another shape")
        if source.storage not in self.launched:
            raise RecordingRefused(
                "sums with torch what no kernel wrote: only partial results of a kernel may be summed"
            )
        left_over = without_axes(to, dimensions) if keepdim else to
        if repeats(source) or rearranges(left_over, without_axes(source, dimensions)):
            raise RecordingRefused(
                "rearranges elements with torch, as a sum over one axis of a transposed view does: sum a tensor as the "
                "kernel wrote it, and leave the order of the other axes as it is"
            )
        self._move(to, source)
        return Sum(to, source, dimensions, keepdim)

    def _launch(self, given: dict[str, Any]) -> LaunchStep:
        name = given["kernel"]
        kernel = self.kernels.get(name) if type(name) is str else None
        if kernel is None:
            raise RecordingRefused(unknown_kernel(name, self.kernels))
        sizes = sequence(given["grid"], 3, "grid")
        grid = tuple(whole(n, 0, 1 << 31) for n in sizes)
        if len(grid) != 3:
            malformed("a grid")
        self.launches += 1
        self.programs += math.prod(grid)
        if self.launches > self.limits.launches or self.programs > self.limits.programs:
            raise RecordingRefused(
                f"launches {self.programs:,} programs of {kernel.name} and others in {self.launches:,} launches: at "
                f"most {self.limits.programs:,} and {self.limits.launches:,} are run where kernels are judged; "
                "give each program more to do"
            )
        arguments = {n: self._argument(v) for n, v in named(given["arguments"], kernel).items()}
        constants = {n: constant(v) for n, v in named(given["constants"], kernel).items()}
        self._check_names(kernel, arguments, constants)
        options = {word(n, OPTIONS): whole(v, 1, OPTIONS[n] + 1) for n, v in any_mapping(given["options"]).items()}
        step = LaunchStep(kernel.name, grid, arguments, constants, options)
        self.launched |= {place.storage for place in step.places().values()}
        return step

    def _check_names(self, kernel: Kernel, arguments: Mapping[str, Any], constants: Mapping[str, Any]) -> None:
        if set(arguments) & kernel.constants or set(constants) - kernel.constants:
            raise RecordingRefused(
                f"launches a {kernel.name} whose tl.constexpr arguments are not those of its cell's text: "
                "run the cell again, and define each kernel once"
            )
        if missing := sorted(set(kernel.parameters) - set(arguments) - set(constants)):
            raise RecordingRefused(f"launches {kernel.name} without {', '.join(missing)}: give each argument a value")

    def _argument(self, data: Any) -> Any:
        if data is None or type(data) in (bool, int, float):
            return data if data is None else number(data, boolean=True)
        if type(data) is dict and set(data) == {"descriptor"}:
            return self._descriptor(data["descriptor"])
        return self._place(data)

    def _descriptor(self, data: Any) -> Descriptor:
        given = mapping(data, ("base", "shape", "strides", "block_shape", "padding"))
        base = self._place({"place": given["base"]})
        shape, strides, block = (
            tuple(whole(n, 1, 1 << 31) for n in sequence(given[name], 5, name))
            for name in ("shape", "strides", "block_shape")
        )
        if not len(shape) == len(strides) == len(block) or not shape:
            malformed("a descriptor")
        return Descriptor(base, shape, strides, block, word(given["padding"], ("zero", "nan")))

    def _target(self, data: Any) -> StridedView:
        """A place that torch may write: never an input's."""
        place = self._place(data)
        if place.storage < self.inputs:
            raise RecordingRefused("changes its input in place with torch: write into a tensor of its own")
        if any(s == 0 and n > 1 for n, s in zip(place.shape, place.strides, strict=True)):
            malformed("a target whose elements overlap")
        return place

    def _place(self, data: Any) -> StridedView:
        given = mapping(mapping(data, ("place",))["place"], ("storage", "dtype", "shape", "strides", "offset"))
        shape = tuple(whole(n, 0, LARGEST) for n in sequence(given["shape"], _MAX_DIMENSIONS, "shape"))
        strides = tuple(whole(n, 0, LARGEST) for n in sequence(given["strides"], _MAX_DIMENSIONS, "strides"))
        if len(shape) != len(strides):
            malformed("a tensor")
        storage = whole(given["storage"], 0, len(self.sizes))
        place = StridedView(storage, word(given["dtype"], DTYPES), shape, strides, whole(given["offset"], 0, LARGEST))
        if place.elements > self.limits.elements:
            raise RecordingRefused(f"uses a tensor of {place.elements:,} elements: at most {self.limits.elements:,}")
        if place.reach * BYTES[place.dtype] > self.sizes[storage]:
            malformed("a tensor outside of its storage")
        return place

    def _outputs(self, data: Any, depth: int) -> Any:
        if data is None:
            return None
        if type(data) is list:
            if depth > 4 or len(data) > self.limits.outputs:
                malformed("what it returns")
            return tuple(self._outputs(each, depth + 1) for each in data)
        place = self._place(data)
        self.outputs += 1
        self.returned += place.elements * BYTES[place.dtype]
        if self.outputs > self.limits.outputs or self.returned > self.limits.output_bytes:
            raise RecordingRefused(
                f"returns {self.outputs:,} tensors of {self.returned / 2**20:,.0f} MiB: at most {self.limits.outputs} "
                f"and {self.limits.output_bytes >> 20} MiB"
            )
        if place.storage not in self.launched:
            raise RecordingRefused("returns a tensor that no launch touched: what it returns must come from a kernel")
        if place.storage in self.assembled and place.elements and not is_dense(place):
            raise RecordingRefused(
                "rearranges elements with torch: it returns parts of a tensor that several copies, or one with "
                "repeated elements, put together; let a kernel write the result"
            )
        return place
