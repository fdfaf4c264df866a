"""Execute a recording: repeat its allocations, copies, sums and launches on other inputs, with admitted kernels."""

import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from threeloops.inner import launches
from threeloops.inner.meter import L2, Metered, meter
from threeloops.inner.meter.traffic import Traffic
from threeloops.inner.replay.allowlist.admit import Admitted
from threeloops.inner.replay.inputs import view
from threeloops.inner.replay.recordings.steps import (
    Allocate,
    Copy,
    Count,
    Descriptor,
    Fill,
    LaunchStep,
    Recording,
    RecordingRefused,
    StridedView,
    Sum,
    TritonDtype,
    each_output,
)

__all__ = ["Execution", "execute", "execute_compiled"]

_FAULTS = (
    "out-of-bounds", "write-race", "read-write-race", "store-conflict", "false-hint", "undefined-arithmetic",
)  # fmt: skip
"""Findings that no correct kernel has: on a GPU they are crashes, or results that differ from run to run or from the
interpreter's."""

_MOST_IDLE = 256
"""The number of programs that may do nothing, or almost nothing, however small the problem is: about two per SM."""
_LEAST_MOVED = 32
"""Bytes that a working program moves on average, one sector, if there are more than `_MOST_IDLE`."""

_CAST = re.compile("cannot cast .* to (.*)", re.DOTALL)


@dataclass
class Execution:
    """The effects of a recording. `torch_bytes` are read and written by torch's copies, sums and fills, beside the
    kernels."""

    outputs: Any
    traffic: Metered
    launches: list[launches.Launch]
    torch_bytes: int = 0


@dataclass
class _Storage:
    """`copied`: torch put an input's values there. `stored`: the most bytes of it that one launch wrote. `idle`: says
    which launch of no programs was given it."""

    flat: torch.Tensor
    is_input: bool = False
    copied: bool = False
    stored: int = 0
    idle: str = ""


@dataclass
class _Run:
    module: ModuleType
    admitted: Admitted
    storages: list[_Storage]
    traffic: Metered | None
    torch_bytes: int = 0

    def tensor(self, strided: StridedView) -> torch.Tensor:
        return view(self.storages[strided.storage].flat, strided)

    def step(self, step: Any) -> None:
        match step:
            case Allocate():
                device = self.storages[0].flat.device if self.storages else "cpu"
                flat = torch.empty(step.elements, dtype=getattr(torch, step.dtype), device=device)
                self.storages.append(_Storage(flat))
            case Fill():
                self.tensor(step.to).fill_(step.value)
                self._moved(step.to)
            case Count():
                to = self.tensor(step.to)
                kind = torch.float64 if to.is_floating_point() else torch.int64
                steps = torch.arange(to.numel(), dtype=kind, device=to.device)
                to.copy_((step.start + step.step * steps).reshape(to.shape))
                self._moved(step.to)
            case Copy():
                self.tensor(step.to).copy_(self.tensor(step.source))
                source = self.storages[step.source.storage]
                to = self.storages[step.to.storage]
                to.copied = to.copied or source.is_input or source.copied
                to.stored = max(to.stored, min(source.stored, step.to.bytes))
                self._moved(step.source, step.to)
            case Sum():
                self._sum(step)
            case LaunchStep():
                self._launch(step)

    def _moved(self, *views: StridedView) -> None:
        self.torch_bytes += sum(layout.bytes for layout in views)

    def _sum(self, step: Sum) -> None:
        source = self.storages[step.source.storage]
        to = self.tensor(step.to)
        if self.traffic is not None and (source.is_input or source.copied or not source.stored):
            raise RecordingRefused(
                "sums with torch what no kernel wrote: only partial results of a kernel may be summed"
            )
        summed = self.tensor(step.source)
        if step.dimensions:
            to.copy_(torch.sum(summed, dim=step.dimensions, keepdim=step.keepdim, dtype=to.dtype))
        else:
            to.copy_(summed)
        self.storages[step.to.storage].stored = step.to.bytes
        self._moved(step.source, step.to)

    def _launch(self, step: LaunchStep) -> None:
        given = {name: self._value(value) for name, value in step.arguments.items()}
        given |= {name: _constant(value) for name, value in step.constants.items()}
        count = len(self.traffic.launches) if self.traffic is not None else 0
        if 0 in step.grid:
            for strided in step.views().values():
                self.storages[strided.storage].idle = f"the grid of {step.kernel} is {step.grid}, which has 0 programs"
            return
        try:
            getattr(self.module, step.kernel)[step.grid](**given, **step.options)
        except Exception as error:
            raise RecordingRefused(self._failure(step.kernel, error)) from None
        if self.traffic is None:
            return
        for metered in self.traffic.launches[count:]:
            for name, strided in step.views().items():
                moved = metered.arguments.get(name)
                storage = self.storages[strided.storage]
                storage.stored = max(storage.stored, moved.unique_stored if moved else 0)

    def _value(self, value: Any) -> Any:
        if isinstance(value, StridedView):
            return self.tensor(value)
        if isinstance(value, Descriptor):
            from triton.tools.tensor_descriptor import TensorDescriptor

            try:
                shape, strides, block = list(value.shape), list(value.strides), list(value.block_shape)
                return TensorDescriptor(self.tensor(value.base), shape, strides, block, padding=value.padding)
            except Exception as error:
                raise RecordingRefused(f"makes a tensor descriptor that Triton refuses: {error}") from None
        return value

    def _failure(self, kernel: str, error: BaseException) -> str:
        """Return what a kernel's exception says, and the line of the cell that raised it."""
        chain = [error]
        line = 0
        while (cause := chain[-1].__cause__) is not None:
            chain.append(cause)
        for exception in chain:
            own = [f.lineno for f in traceback.extract_tb(exception.__traceback__) if f.filename == self.admitted.file]
            line = (own or [line])[-1] or 0
        first = chain[-1]
        where = f", line {line} of its cell" if line else ""
        return f"launches {kernel}, which fails{where}: {type(first).__name__}: {_explanation(first)[:500]}"

    def output(self, output: StridedView) -> torch.Tensor:
        if self.traffic is not None and output.elements:
            self._require_computed(output, self.storages[output.storage])
        return self.tensor(output)

    def _require_computed(self, output: StridedView, storage: _Storage) -> None:
        if not storage.stored:
            why = storage.idle or "it was given to a kernel, but the kernel stored nothing there"
            raise RecordingRefused(f"returns a tensor that no kernel wrote: {why}")
        if storage.copied and storage.stored < output.bytes:
            raise RecordingRefused(
                f"returns a copy of its input of which no launch wrote more than {storage.stored:,} of "
                f"{output.bytes:,} bytes: the kernel has to write the result, all of it"
            )


def _explanation(error: BaseException) -> str:
    """Describe a kernel's exception, and add the fix for mistakes that the interpreter's message does not explain."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    message = str(error) or (last[0].line if last else "") or type(error).__name__  # of a bare assertion, its own text
    if cast := _CAST.fullmatch(message):  # the interpreter prints every element of the tile
        message = f"cannot cast a value to {cast[1]}"
        if "pointer<" in cast[1]:
            message += (
                ": if x is a pointer, x.dtype is the pointer's type, and that of its elements is x.dtype.element_ty"
            )
    elif isinstance(error, UnboundLocalError):
        message += ": a loop's index has no value after the loop, and what only one branch sets has none in the other"
    elif message.startswith("assert acc.type"):
        message = "the accumulator of tl.dot needs the shape and type of the product: float32 unless out_dtype is set"
    elif message.endswith("not iterable") and last and last[0].name == "__getitem__":
        message += ": pointers and tiles are not indexed by offsets; write tl.load(pointer + offsets)"
    return message


def execute(
    recording: Recording, admitted: Admitted, inputs: Sequence[torch.Tensor], l2: L2 | str | None = None
) -> Execution:
    """Execute a recording in this process, in Triton's interpreter, under the meter.

    Args:
        recording: one that `reader.check` accepted.
        inputs: the storages of the inputs, flat uint8 tensors; kernels may change them.
        l2: a cache model for the meter.

    Raises:
        RecordingRefused: a kernel fails, accesses memory out of bounds or has a race, no kernel stored the returned
            values, or most of the programs have nothing to do.
    """
    with launches.record() as recorded, meter(l2, arguments_only=True) as traffic:
        run = _run(recording, admitted, inputs, traffic)
    for finding in traffic.findings:
        if finding.kind in _FAULTS:
            raise RecordingRefused(f"launches a kernel with a fault: {finding}")
    _require_busy(traffic.total)
    return Execution(each_output(recording.outputs, run.output), traffic, recorded, run.torch_bytes)


def _require_busy(total: Traffic) -> None:
    """Refuse a grid that is larger than the problem. On a GPU each program takes up space, even if it does nothing."""
    working = total.programs - total.idle
    if total.idle > max(working, _MOST_IDLE):
        raise RecordingRefused(
            f"launches {total.programs:,} programs, of which {total.idle:,} write nothing: at most {_MOST_IDLE}, or as "
            "many as those that write, may be idle. Launch a program per block, as triton.cdiv(n, BLOCK) counts them"
        )
    if working > _MOST_IDLE and total.requested_bytes < _LEAST_MOVED * working:
        raise RecordingRefused(
            f"launches {working:,} programs that move {total.requested_bytes:,} bytes, fewer than {_LEAST_MOVED} each: "
            "give a program a whole block of elements"
        )


def execute_compiled(recording: Recording, admitted: Admitted, inputs: Sequence[torch.Tensor]) -> Any:
    """Return the outputs of a recording on the device of the inputs, its kernels compiled there. Nothing is metered."""
    return each_output(recording.outputs, _run(recording, admitted, inputs, None).output)


def _run(recording: Recording, admitted: Admitted, inputs: Sequence[torch.Tensor], traffic: Metered | None) -> _Run:
    run = _Run(admitted.load(), admitted, [_Storage(flat, is_input=True) for flat in inputs], traffic)
    for step in recording.steps:
        run.step(step)
    return run


def _constant(value: Any) -> Any:
    if isinstance(value, TritonDtype):
        import triton.language as tl

        return tl.dtype(value.name)
    return tuple(map(_constant, value)) if isinstance(value, tuple) else value
