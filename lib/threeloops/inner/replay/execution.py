"""Carrying out a recording: the same allocations, copies, sums and launches on other inputs, with admitted kernels only.

The launches of a recording as `launches.record` would have seen them: what the compiler needs, and nothing executed.
"""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from threeloops.inner import launches
from threeloops.inner.launches import DescriptorArgument, Launch, TensorArgument
from threeloops.inner.meter import L2, Metered, meter
from threeloops.inner.replay.allowlist.admit import Admitted
from threeloops.inner.replay.inputs import view
from threeloops.inner.replay.recordings.checks import BYTES
from threeloops.inner.replay.recordings.steps import (
    Allocate,
    Copy,
    Count,
    Descriptor,
    Dtype,
    Fill,
    LaunchStep,
    Recording,
    RecordingRefused,
    StridedView,
    Sum,
)

FAULTS = ("out-of-bounds", "write-race", "read-write-race")
"""Findings that no right kernel has: on a GPU they are crashes and results that change from run to run."""


@dataclass
class Execution:
    """What came of it. `torch_bytes`: read and written by copies, sums and fills of torch beside the kernels."""

    outputs: Any
    traffic: Metered
    launches: list[launches.Launch]
    torch_bytes: int = 0


@dataclass
class _Storage:
    """`copied`: torch put an input's values there. `stored`: the most bytes of it that one launch wrote."""

    flat: torch.Tensor
    is_input: bool = False
    copied: bool = False
    stored: int = 0


@dataclass
class _Run:
    module: ModuleType
    admitted: Admitted
    storages: list[_Storage]
    traffic: Metered | None
    torch_bytes: int = 0

    def tensor(self, place: StridedView) -> torch.Tensor:
        return view(self.storages[place.storage].flat, place)

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
                source, to = self.storages[step.source.storage], self.storages[step.to.storage]
                to.copied = to.copied or source.is_input or source.copied
                moved = step.to.elements * getattr(torch, step.to.dtype).itemsize
                to.stored = max(to.stored, min(source.stored, moved))
                self._moved(step.source, step.to)
            case Sum():
                self._sum(step)
            case LaunchStep():
                self._launch(step)

    def _moved(self, *places: StridedView) -> None:
        self.torch_bytes += sum(place.elements * getattr(torch, place.dtype).itemsize for place in places)

    def _sum(self, step: Sum) -> None:
        source, to = self.storages[step.source.storage], self.tensor(step.to)
        if self.traffic is not None and (source.is_input or source.copied or not source.stored):
            raise RecordingRefused(
                "sums with torch what no kernel wrote: only partial results of a kernel may be summed"
            )
        summed = self.tensor(step.source)
        if step.dimensions:
            to.copy_(torch.sum(summed, dim=step.dimensions, keepdim=step.keepdim, dtype=to.dtype))
        else:
            to.copy_(summed)
        self.storages[step.to.storage].stored = to.numel() * to.element_size()
        self._moved(step.source, step.to)

    def _launch(self, step: LaunchStep) -> None:
        given = {name: self._value(value) for name, value in step.arguments.items()}
        given |= {name: _constant(value) for name, value in step.constants.items()}
        count = len(self.traffic.launches) if self.traffic is not None else 0
        if 0 in step.grid:
            return
        try:
            getattr(self.module, step.kernel)[step.grid](**given, **step.options)
        except Exception as error:
            raise RecordingRefused(self._failure(step.kernel, error)) from None
        if self.traffic is None:
            return
        for metered in self.traffic.launches[count:]:
            for name, place in step.places().items():
                moved = metered.arguments.get(name)
                storage = self.storages[place.storage]
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
        """What a kernel's exception says, and on which line of the cell it arose."""
        chain, line = [error], 0
        while (cause := chain[-1].__cause__) is not None:
            chain.append(cause)
        for each in chain:
            own = [f.lineno for f in traceback.extract_tb(each.__traceback__) if f.filename == self.admitted.file]
            line = (own or [line])[-1] or 0
        first = chain[-1]
        said = str(first) or type(first).__name__
        place = f", line {line} of its cell" if line else ""
        return f"launches {kernel}, which fails{place}: {type(first).__name__}: {said[:500]}"

    def outputs(self, outputs: Any) -> Any:
        if isinstance(outputs, tuple):
            return tuple(self.outputs(each) for each in outputs)
        if outputs is None:
            return None
        storage = self.storages[outputs.storage]
        if self.traffic is not None and outputs.elements:
            self._require_computed(outputs, storage)
        return self.tensor(outputs)

    def _require_computed(self, place: StridedView, storage: _Storage) -> None:
        if not storage.stored:
            raise RecordingRefused(
                "returns a tensor that no kernel wrote: it was given to a kernel, but the kernel stored nothing there"
            )
        whole = place.elements * getattr(torch, place.dtype).itemsize
        if storage.copied and storage.stored < whole:
            raise RecordingRefused(
                f"returns a copy of its input of which no launch wrote more than {storage.stored:,} of {whole:,} "
                "bytes: the kernel has to write the result, all of it"
            )


def execute(
    recording: Recording, admitted: Admitted, inputs: Sequence[torch.Tensor], l2: L2 | str | None = None
) -> Execution:
    """Carry out a recording in this process, in Triton's interpreter, under the meter.

    Args:
        recording: one that `reader.read` accepted.
        inputs: the storages of the inputs, flat uint8 tensors; kernels may change them.
        l2: a cache model for the meter.

    Raises:
        RecordingRefused: a kernel fails, accesses memory out of bounds or races, or stored nothing of what is returned.
    """
    module = admitted.load()
    with launches.record() as recorded, meter(l2, arguments_only=True) as traffic:
        run = _Run(module, admitted, [_Storage(flat, is_input=True) for flat in inputs], traffic)
        for step in recording.steps:
            run.step(step)
    for finding in traffic.findings:
        if finding.kind in FAULTS:
            raise RecordingRefused(f"launches a kernel with a fault: {finding}")
    return Execution(run.outputs(recording.outputs), traffic, recorded, run.torch_bytes)


def execute_compiled(recording: Recording, admitted: Admitted, inputs: Sequence[torch.Tensor]) -> Any:
    """The outputs of a recording on the device where the inputs lie, its kernels compiled there; nothing is metered."""
    run = _Run(admitted.load(), admitted, [_Storage(flat, is_input=True) for flat in inputs], None)
    for step in recording.steps:
        run.step(step)
    return run.outputs(recording.outputs)


def _constant(value: Any) -> Any:
    if isinstance(value, Dtype):
        import triton.language as tl

        return tl.dtype(value.name)
    if isinstance(value, tuple):
        return tuple(_constant(each) for each in value)
    return value


_ALIGNED = 16
"""Where storages begin: allocators of CPUs and GPUs align more than a compiler asks for."""


def described(recording: Recording, admitted: Admitted, inputs: Sequence[int]) -> list[Launch]:
    """Every launch, in order. `inputs`: bytes of each storage of the inputs."""
    sizes = [*inputs, *(s.elements * BYTES[s.dtype] for s in recording.steps if isinstance(s, Allocate))]
    return [_launch(step, admitted, sizes) for step in recording.steps if isinstance(step, LaunchStep)]


def _launch(step: LaunchStep, admitted: Admitted, sizes: Sequence[int]) -> Launch:
    kernel = admitted.kernels[step.kernel]
    given = {**step.constants, **step.arguments}
    return Launch(
        step.kernel,
        step.grid,
        {n: _argument(given[n], sizes) for n in kernel.parameters if n not in kernel.constants},
        {n: _described_constant(given[n]) for n in kernel.parameters if n in kernel.constants},
        dict(step.options),
        module="admitted",
        file=admitted.file,
        line=kernel.line,
    )


def _argument(value: Any, sizes: Sequence[int]) -> Any:
    if isinstance(value, StridedView):
        address = value.offset * BYTES[value.dtype]
        aligned = next(n for n in (_ALIGNED, 8, 4, 2, 1) if address % n == 0)
        return TensorArgument(
            value.dtype, value.shape, value.strides, value.storage, value.offset, sizes[value.storage], aligned
        )
    if isinstance(value, Descriptor):
        base = _argument(value.base, sizes)
        return DescriptorArgument(base, value.shape, value.strides, value.block_shape, value.padding)
    return value


def _described_constant(value: Any) -> Any:
    if isinstance(value, Dtype):
        import triton.language as tl

        return tl.dtype(value.name)
    return tuple(_described_constant(each) for each in value) if isinstance(value, tuple) else value
