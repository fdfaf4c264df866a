"""Stand-ins for launch arguments and for the GPU, in the process that compiles: what Triton's just-in-time path reads
of them and no more."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class Dtype(str):
    """What Triton reads of a torch dtype."""

    @property
    def itemsize(self) -> int:
        from triton._utils import canonicalize_dtype, get_primitive_bitwidth

        return max(1, get_primitive_bitwidth(canonicalize_dtype(self)) // 8)

    @property
    def is_floating_point(self) -> bool:
        return "float" in self


class Tensor:
    """What Triton reads of a tensor argument: its type, whether its address is aligned and how large its storage is."""

    def __init__(self, dtype: str, alignment: int, storage_bytes: int) -> None:
        self.dtype, self.alignment, self.storage_bytes, self.shape = Dtype(dtype), alignment, storage_bytes, [1]

    def data_ptr(self) -> int:
        return self.alignment

    def ptr_range(self) -> int:
        return self.storage_bytes


class Driver:
    """A driver without a device: it only knows what it compiles for."""

    def __init__(self, backend: str, arch: Any, warp_size: int) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget(backend, arch, warp_size)

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return self.target.arch  # the key under which a kernel keeps what it compiled

    def get_current_stream(self, device):
        return 0


def argument(plain: Any) -> Any:
    """The object that stands for a launch argument. A number is itself."""
    if not isinstance(plain, dict):
        return plain
    if "tensor" in plain:
        return Tensor(**plain["tensor"])
    if "tuple" in plain:
        return tuple(argument(each) for each in plain["tuple"])
    from triton.tools.tensor_descriptor import TensorDescriptor

    descriptor = plain["descriptor"]
    base = Tensor(**descriptor["base"]["tensor"])
    return TensorDescriptor(base, descriptor["shape"], descriptor["strides"], descriptor["block_shape"])


@contextmanager
def without_torch() -> Iterator[None]:
    """Let Triton find an empty torch inside the block, if the real one is not there yet.

    For AMD it imports torch, some seconds of work, only to ask whether an argument is a torch.Tensor and how large the
    storage of one is: our stand-ins are none, and say it themselves.
    """
    if "torch" in sys.modules:
        yield
        return
    empty: Any = ModuleType("torch")
    empty.Tensor = type("Tensor", (), {})
    sys.modules["torch"] = empty
    try:
        yield
    finally:
        del sys.modules["torch"]
