"""Check a decoded recording as a whole: its views lie within their storages, it stays within the limits, and its
results come from kernels.

The recording comes from the process in which the student's launcher ran, so the author of that code may have written
the recording. One that passes is harmless, but not proved honest: it touches only the storages that it names, within
limits, and launches only admitted kernels. Only its results show whether it computes the right thing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from threeloops.inner.replay.allowlist.admit import Kernel
from threeloops.inner.replay.recordings.layout import (
    is_dense,
    rearranges,
    repeats,
    row_major,
    without_axes,
    without_ones,
)
from threeloops.inner.replay.recordings.steps import (
    BYTES,
    Allocate,
    Copy,
    Count,
    Fill,
    LaunchStep,
    Recording,
    RecordingRefused,
    Step,
    StridedView,
    Sum,
    each_output,
    malformed,
)

__all__ = ["RecordingLimits", "check"]


@dataclass(frozen=True)
class RecordingLimits:
    """The most that one recording may ask for.

    `fills` is limited because a launcher could write remembered results number by number. `copies` is limited because
    it could write a transpose row by row. `programs` counts the programs of all launches. The interpreter runs about a
    thousand per second.
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


_USUAL = RecordingLimits()


def check(
    recording: Recording,
    inputs: Sequence[int],
    kernels: Mapping[str, Kernel],
    limits: RecordingLimits = _USUAL,
    given: Sequence[StridedView] = (),
) -> None:
    """Check a decoded recording.

    Args:
        inputs: bytes of each storage of the inputs.
        kernels: the admitted kernels.
        given: the test's arguments, which a launcher may make contiguous.

    Raises:
        RecordingRefused: it asks for more than the limits, reaches beyond a storage, or returns what no kernel wrote.
    """
    _Reader(inputs, kernels, limits, given).check(recording)


class _Reader:
    def __init__(
        self,
        inputs: Sequence[int],
        kernels: Mapping[str, Kernel],
        limits: RecordingLimits,
        given: Sequence[StridedView],
    ) -> None:
        self.given = {without_ones(view) for view in given}
        self.sizes = list(inputs)
        self.inputs = len(inputs)
        self.kernels = kernels
        self.limits = limits
        self.launched: set[int] = set()
        self.received: set[int] = set()
        """Storages that torch copied or summed something into."""
        self.assembled: set[int] = set()
        """Those of them in which one storage's elements may stand several times, or in another order."""
        self.fills = self.copies = self.allocated = self.programs = self.launches = self.outputs = self.returned = 0

    def check(self, recording: Recording) -> None:
        if len(recording.steps) > self.limits.steps:
            raise RecordingRefused(f"does too much: {len(recording.steps):,} steps, at most {self.limits.steps:,}")
        if not recording.launches:
            raise RecordingRefused("launches no kernel: what it returns must come from a kernel of its cell")
        for step in recording.steps:
            self._step(step)
        each_output(recording.outputs, self._output)
        if not self.outputs:
            raise RecordingRefused("returns no tensor: return what the kernel wrote")

    def _step(self, step: Step) -> None:
        match step:
            case Allocate():
                self._allocate(step)
            case Fill():
                self.fills += 1
                if self.fills > self.limits.fills:
                    raise RecordingRefused(
                        f"fills tensors with numbers more than {self.limits.fills} times: let a kernel do it"
                    )
                self._target(step.to)
            case Count():
                self._target(step.to)
            case Copy():
                self._copy(step.to, step.source)
            case Sum():
                self._sum(step)
            case LaunchStep():
                self._launch(step)

    def _allocate(self, step: Allocate) -> None:
        size = step.elements * BYTES[step.dtype]
        self.allocated += size
        if self.allocated > self.limits.allocated_bytes:
            raise RecordingRefused(
                f"allocates {self.allocated / 2**20:,.0f} MiB: at most {self.limits.allocated_bytes >> 20:,} MiB may "
                "be allocated where kernels are judged; allocate what the result needs"
            )
        self.sizes.append(size)

    def _copy(self, to: StridedView, source: StridedView) -> None:
        self._target(to)
        self._view(source)
        if to.shape != source.shape:
            raise malformed("a copy between different shapes")
        as_given = without_ones(source) in self.given and not rearranges(to, row_major(to))
        if rearranges(to, source) and not as_given:
            raise RecordingRefused(
                "rearranges elements with torch, as a transpose made contiguous does: give the kernel the strides of "
                "the view; only an argument just as it was given may be made contiguous"
            )
        whole = is_dense(source) and is_dense(to)
        self._move(to, source, repeated=repeats(source) and not as_given, whole=whole)

    def _move(self, to: StridedView, source: StridedView, *, repeated: bool = False, whole: bool = False) -> None:
        """Note that torch moves elements. Two moves that each keep the order can together rearrange elements: copy a
        row twice, or into the gaps of another, and pick from the result. So assembled tensors may not be taken apart
        again."""
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

    def _sum(self, step: Sum) -> None:
        to = step.to
        source = step.source
        dimensions = step.dimensions
        self._target(to)
        self._view(source)
        if len(set(dimensions)) != len(dimensions) or max(dimensions, default=-1) >= len(source.shape):
            raise malformed("a sum over dimensions that its source lacks, or over one of them twice")
        axes = enumerate(source.shape)
        if list(to.shape) != [1 if d in dimensions else n for d, n in axes if step.keepdim or d not in dimensions]:
            raise malformed("a sum of another shape")
        if source.storage not in self.launched:
            raise RecordingRefused(
                "sums with torch what no kernel wrote: only partial results of a kernel may be summed"
            )
        left_over = without_axes(to, dimensions) if step.keepdim else to
        if repeats(source) or rearranges(left_over, without_axes(source, dimensions)):
            raise RecordingRefused(
                "rearranges elements with torch, as a sum over one axis of a transposed view does: sum a tensor as the "
                "kernel wrote it, and leave the order of the other axes as it is"
            )
        self._move(to, source)

    def _launch(self, step: LaunchStep) -> None:
        kernel = self.kernels.get(step.kernel)
        if kernel is None:
            has = ", ".join(sorted(self.kernels)) or "none"
            raise RecordingRefused(
                f"launches {step.kernel[:64]!r}, which its cell does not define as a @triton.jit function at the top "
                f"level (admitted there: {has}); a kernel stands in the cell of its launcher, under its own name"
            )
        self.launches += 1
        self.programs += math.prod(step.grid)
        if self.launches > self.limits.launches or self.programs > self.limits.programs:
            raise RecordingRefused(
                f"launches {self.programs:,} programs of {kernel.name} and others in {self.launches:,} launches: at "
                f"most {self.limits.programs:,} and {self.limits.launches:,} are run where kernels are judged; "
                "give each program more to do"
            )
        self._check_names(step, kernel)
        for view in step.views().values():
            self._view(view)
            self.launched.add(view.storage)

    def _check_names(self, step: LaunchStep, kernel: Kernel) -> None:
        arguments = set(step.arguments)
        constants = set(step.constants)
        parameters = set(kernel.parameters)
        if not arguments | constants <= parameters:
            raise RecordingRefused(
                f"launches a {kernel.name} with arguments that its cell's text does not have: run the cell again, and "
                "define each kernel once"
            )
        if arguments & kernel.constants or constants - kernel.constants:
            raise RecordingRefused(
                f"launches a {kernel.name} whose tl.constexpr arguments are not those of its cell's text: "
                "run the cell again, and define each kernel once"
            )
        if missing := sorted(parameters - arguments - constants):
            raise RecordingRefused(f"launches {kernel.name} without {', '.join(missing)}: give each argument a value")

    def _target(self, view: StridedView) -> None:
        """Check a view that torch may write: never an input's."""
        self._view(view)
        if view.storage < self.inputs:
            raise RecordingRefused("changes its input in place with torch: write into a tensor of its own")
        if any(s == 0 and n > 1 for n, s in zip(view.shape, view.strides, strict=True)):
            raise malformed("a target whose elements overlap")

    def _view(self, view: StridedView) -> None:
        if view.storage >= len(self.sizes):
            raise malformed(f"a tensor in storage {view.storage} of {len(self.sizes)}")
        if view.elements > self.limits.elements:
            raise RecordingRefused(f"uses a tensor of {view.elements:,} elements: at most {self.limits.elements:,}")
        if view.reach * BYTES[view.dtype] > self.sizes[view.storage]:
            raise malformed("a tensor outside of its storage")

    def _output(self, view: StridedView) -> None:
        self._view(view)
        self.outputs += 1
        self.returned += view.bytes
        if self.outputs > self.limits.outputs or self.returned > self.limits.output_bytes:
            raise RecordingRefused(
                f"returns {self.outputs:,} tensors of {self.returned / 2**20:,.0f} MiB: at most {self.limits.outputs} "
                f"and {self.limits.output_bytes >> 20} MiB"
            )
        if view.storage not in self.launched:
            raise RecordingRefused("returns a tensor that no launch touched: what it returns must come from a kernel")
        if view.storage in self.assembled and view.elements and not is_dense(view):
            raise RecordingRefused(
                "rearranges elements with torch: it returns parts of a tensor that several copies, or one with "
                "repeated elements, put together; let a kernel write the result"
            )
