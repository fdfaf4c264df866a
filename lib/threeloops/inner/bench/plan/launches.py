"""The launches of a plan as `launches.record` would have seen them: what the compiler needs, and nothing executed."""

from collections.abc import Sequence
from typing import Any

from threeloops.inner.bench.admission.admit import Admitted
from threeloops.inner.bench.plan.checks import BYTES
from threeloops.inner.bench.plan.plan import Allocate, Descriptor, Dtype, LaunchStep, Place, Plan
from threeloops.inner.launches import DescriptorArgument, Launch, TensorArgument

_ALIGNED = 16
"""Where storages begin: allocators of CPUs and GPUs align more than a compiler asks for."""


def described(plan: Plan, admitted: Admitted, inputs: Sequence[int]) -> list[Launch]:
    """Every launch, in order. `inputs`: bytes of each storage of the inputs."""
    sizes = [*inputs, *(s.elements * BYTES[s.dtype] for s in plan.steps if isinstance(s, Allocate))]
    return [_launch(step, admitted, sizes) for step in plan.steps if isinstance(step, LaunchStep)]


def _launch(step: LaunchStep, admitted: Admitted, sizes: Sequence[int]) -> Launch:
    kernel = admitted.kernels[step.kernel]
    given = {**step.constants, **step.arguments}
    return Launch(
        step.kernel,
        step.grid,
        {n: _argument(given[n], sizes) for n in kernel.parameters if n not in kernel.constants},
        {n: _constant(given[n]) for n in kernel.parameters if n in kernel.constants},
        dict(step.options),
        module="admitted",
        file=admitted.file,
        line=kernel.line,
    )


def _argument(value: Any, sizes: Sequence[int]) -> Any:
    if isinstance(value, Place):
        address = value.offset * BYTES[value.dtype]
        aligned = next(n for n in (_ALIGNED, 8, 4, 2, 1) if address % n == 0)
        return TensorArgument(
            value.dtype, value.shape, value.strides, value.storage, value.offset, sizes[value.storage], aligned
        )
    if isinstance(value, Descriptor):
        base = _argument(value.base, sizes)
        return DescriptorArgument(base, value.shape, value.strides, value.block_shape, value.padding)
    return value


def _constant(value: Any) -> Any:
    if isinstance(value, Dtype):
        import triton.language as tl

        return tl.dtype(value.name)
    return tuple(_constant(each) for each in value) if isinstance(value, tuple) else value
