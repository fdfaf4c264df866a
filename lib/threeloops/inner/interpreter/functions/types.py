"""Types and tensors of the interpreter, described once per element type and shape.

Each operation of a kernel makes a type and a tensor, and Triton describes both again each time: it unwraps and checks
the shape, formats a name, and multiplies the sizes. That takes a third of an interpreted kernel's time.
"""

from typing import Any

import triton.language as tl
from triton.language.semantic import TritonSemantic

__all__ = ["install"]

_block_type = tl.block_type.__init__
_tensor = tl.core.tensor.__init__
_broadcast = TritonSemantic.broadcast_impl_value

_Sizes = tuple[int, ...]
_types: dict[tuple[str, int, _Sizes], dict[str, Any]] = {}
"""The contents of a block type, by element type, address space and shape. Triton changes nothing in them afterwards."""
_shapes: dict[_Sizes, Any] = {}
"""The shape that all types with these sizes share."""


def _make_block_type(self: Any, element_ty: Any, shape: Any) -> None:
    sizes = tuple([size.value if type(size) is tl.constexpr else size for size in shape])
    if {*map(type, sizes)} != {int}:  # Triton refuses them; looked up, 16.0 and True would be 16 and 1
        _block_type(self, element_ty, shape)
        return
    key = (getattr(element_ty, "name", ""), getattr(element_ty, "address_space", 0), sizes)
    attributes = _types.get(key)
    if attributes is None:
        _block_type(self, element_ty, shape)
        self.shape = _shapes.setdefault(sizes, self.shape)
        self.of_tensors = {}  # one for all types of this key, which the first tensor fills
        attributes = _types[key] = dict(self.__dict__)
    self.__dict__.update(attributes)
    self.element_ty = element_ty


def _make_tensor(self: Any, handle: Any, type: Any) -> None:
    attributes = type.__dict__.setdefault("of_tensors", {})
    if not attributes:
        _tensor(self, handle, type)
        attributes.update(
            (name, value) for name, value in self.__dict__.items() if name not in ("handle", "type", "dtype")
        )
    self.__dict__.update(attributes)
    self.handle = handle
    self.type = type
    self.dtype = type.scalar


def _broadcast_unless_alike(self: Any, lhs: Any, rhs: Any) -> Any:
    """Leave two scalars, or two blocks of one shape, as they are. Broadcast any others."""
    if getattr(lhs.type, "shape", None) is getattr(rhs.type, "shape", None):
        return lhs, rhs
    return _broadcast(self, lhs, rhs)


def install() -> None:
    tl.block_type.__init__ = _make_block_type
    tl.core.tensor.__init__ = _make_tensor
    TritonSemantic.broadcast_impl_value = _broadcast_unless_alike
