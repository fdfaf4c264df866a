"""tl.reduce and tl.associative_scan for the interpreter, on whole tensors in the order of a tree.

Triton's interpreter calls a combine function once per element, on scalars. Here it is called log2(n) times, on halves
of the tensor: neighbours are combined first, left before right, so associative functions need not be commutative. Sums
of float16 and bfloat16 round at every addition, as when compiled: `tl.sum` does not promote them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import ReduceOps, ScanOps, TensorHandle, _get_np_dtype

from threeloops.inner.interpreter.repairs import format_of, stored, values_of

__all__ = ["NotElementwise", "add", "install"]

_Array = np.ndarray
_reduce_as_triton = ReduceOps.apply_impl
_scan_as_triton = ScanOps.apply_impl
_to_tensor = ReduceOps.to_tensor


def _first_place_of(best: np.ufunc) -> Callable:
    """Return a function like np.argmax that prefers every number to NaN. If there is only NaN, its place is the
    last."""

    def place(values: _Array, axis: int | None, keepdims: bool) -> _Array:
        is_best = values == best.reduce(values, axis=axis, keepdims=True)
        first = is_best.argmax(axis=axis, keepdims=keepdims)
        last = (values.size if axis is None else values.shape[axis]) - 1
        return np.where(is_best.any(axis=axis, keepdims=keepdims), first, last)

    return place


_EXTREMES = {
    f"_arg{name}_combine_tie_break_{tie}": (best.reduce, _first_place_of(best))
    for name, best in (("max", np.fmax), ("min", np.fmin))
    for tie in ("left", "fast")
} | {"_elementwise_max": (np.fmax.reduce, None), "_elementwise_min": (np.fmin.reduce, None)}
"""Combine function → functions for the value and the place. Of equal values the first counts."""


class NotElementwise(Exception):
    """A combine function used a tensor as a condition (`if`, `and`, `or`), which only scalars can be."""


def _reduce(self: Any, input: tuple) -> Any:
    """Replace ReduceOps.apply_impl. Returns one tensor, or a list of them."""
    name = _library_name(self.combine_fn)
    if name in _EXTREMES and format_of(input[0].handle) is None:
        return self.min_max(input[0], *_EXTREMES[name])
    if name == "_sum_combine" and _rounds_each_step(input):
        return _reduce_in_halves(self, input, add)
    if name == "_sum_combine":
        return _reduce_as_triton(self, input)
    try:
        return _reduce_in_halves(self, input, self.combine_fn.fn)
    except Exception:  # one element at a time either works or gives the better error
        return self.generic_reduce(input)


def _scan(self: Any, input: tuple) -> Any:
    """Replace ScanOps.apply_impl. Returns a list of tensors."""
    if _library_name(self.combine_fn) in ("_sum_combine", "_prod_combine") and not _rounds_each_step(input):
        return _scan_as_triton(self, input)
    try:
        return _scan_by_doubling(self, input)
    except Exception:
        return _scan_as_triton(self, input)


def _reduce_in_halves(self: Any, input: tuple, combine: Callable) -> list:
    data = [tensor.handle.data for tensor in input]
    rank = data[0].ndim
    axis = self.axis
    if axis is None:
        data = [array.reshape(-1) for array in data]
        axis = 0
    parts = [np.moveaxis(array, axis, 0) for array in data]
    dtypes = [tensor.dtype for tensor in input]
    while (length := len(parts[0])) > 1:
        if length % 2:
            raise ValueError(f"{length} elements along axis {self.axis}: Triton's tensors have a power of two")
        parts = _combined(combine, dtypes, [part[0::2] for part in parts], [part[1::2] for part in parts])
    results = [part[0] for part in parts]
    if self.keep_dims:
        axes = tuple(range(rank)) if self.axis is None else axis
        results = [np.expand_dims(array, axes) for array in results]
    return [self.to_tensor(array, dtype) for array, dtype in zip(results, dtypes, strict=True)]


def _scan_by_doubling(self: Any, input: tuple) -> list:
    """Scan by doubling, as in Hillis and Steele, "Data parallel algorithms" (1986): after step k every element covers
    2ᵏ elements."""
    dtypes = [tensor.dtype for tensor in input]
    parts = [np.moveaxis(tensor.handle.data, self.axis, 0) for tensor in input]
    if self.reverse:
        parts = [np.flip(part, axis=0) for part in parts]
    length = len(parts[0])
    distance = 1
    while distance < length:
        earlier = [np.roll(part, distance, axis=0) for part in parts]
        step = _combined(self.combine_fn.fn, dtypes, earlier, parts)
        parts = [np.concatenate([old[:distance], new[distance:]]) for old, new in zip(parts, step, strict=True)]
        distance *= 2
    if self.reverse:
        parts = [np.flip(part, axis=0) for part in parts]
    results = [np.moveaxis(part, 0, self.axis) for part in parts]
    return [self.to_tensor(array, dtype) for array, dtype in zip(results, dtypes, strict=True)]


def _combined(combine: Callable, dtypes: list[tl.dtype], left: list[_Array], right: list[_Array]) -> list[_Array]:
    """Call a combine function on whole tensors, which must not be used as conditions meanwhile."""
    shape = left[0].shape
    operands = [
        tl.core.tensor(TensorHandle(data, dtype), tl.block_type(dtype, list(shape)))
        for data, dtype in zip(left + right, dtypes * 2, strict=True)
    ]
    truth = tl.core.tensor.__bool__
    tl.core.tensor.__bool__ = _refuse_truth
    try:
        results = combine(*operands)
    finally:
        tl.core.tensor.__bool__ = truth
    results = results if isinstance(results, (tuple, tl.core.tuple)) else (results,)
    return [np.broadcast_to(_as_stored(value, dtype), shape) for value, dtype in zip(results, dtypes, strict=True)]


def _as_stored(result: Any, dtype: tl.dtype) -> _Array:
    if not isinstance(result, tl.core.tensor):
        return stored(np.asarray(result), dtype).data
    return result.handle.data if result.dtype == dtype else stored(values_of(result.handle), dtype).data


def _refuse_truth(self: Any) -> bool:
    raise NotElementwise("this combine function is called on scalars instead")


def _library_name(combine_fn: Any) -> str:
    """Return the name of a combine function in `triton.language.standard`, or "" for any other function."""
    name = getattr(combine_fn.fn, "__name__", "")
    return name if getattr(tl.standard, name, None) is combine_fn else ""


def _rounds_each_step(input: tuple) -> bool:
    """Return whether compiled kernels round sums of this type at every addition, which NumPy does not do."""
    return input[0].dtype.is_floating() and input[0].dtype.primitive_bitwidth <= 16


def add(left: Any, right: Any) -> Any:
    handle = stored(values_of(left.handle) + values_of(right.handle), left.dtype)
    return tl.core.tensor(handle, left.type)


def _narrowed(self: Any, result: Any, dtype: tl.dtype) -> Any:
    """Replace ReduceOps.to_tensor, which up to Triton 3.8 refuses a scalar that does not fit. Here integers wrap
    around."""
    return _to_tensor(self, np.asarray(result).astype(_get_np_dtype(dtype)), dtype)


def install() -> None:
    ReduceOps.apply_impl = _reduce
    ScanOps.apply_impl = _scan
    ReduceOps.to_tensor = _narrowed
