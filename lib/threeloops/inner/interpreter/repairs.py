"""bfloat16 and fp8 arithmetic for the builder of Triton's interpreter, with the roundings of compiled kernels.

The builder computes on raw bit patterns: 16 bits of a bfloat16 are multiplied, compared and summed as an integer. Each
operation here takes values out of their patterns (exact in float32), computes, and rounds once, as `add.bf16`,
`fma.rn.bf16` and `cvt` do on the GPU.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton._C.libtriton import interpreter as memory
from triton._C.libtriton import ir
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, _get_np_dtype

from threeloops.inner.interpreter.formats import BF16, FORMATS, Format, multiply_add, round_toward_zero

ORIGINAL = {
    name: getattr(InterpreterBuilder, name) for name in ("binary_op", "unary_op", "cast_impl", "create_fp_to_fp")
}
CONVERTIBLE = {"fp16", "fp32", "fp64", *FORMATS}
"""What `to` converts among by these formats. fp8e4b15 and AMD's fp8e4b8 and fp8e5b16 stay as Triton left them."""

Handle = Any
Builder = Any


def format_of(handle: Handle) -> Format | None:
    """The format of a handle that holds bit patterns; None where numpy has the type itself."""
    data = handle.data
    if data.dtype.kind != "u" or data.dtype.itemsize > 2:
        return None
    return FORMATS.get(handle.dtype.scalar.name)


def values_of(handle: Handle) -> np.ndarray:
    """The numbers that a handle holds: float32 for bfloat16 and fp8, else its data as they are."""
    format = format_of(handle)
    return handle.data if format is None else format.decode(handle.data)


def stored(values: np.ndarray, dtype: tl.dtype) -> Handle:
    """A handle of `dtype` (a scalar type) that holds `values`, rounded to it."""
    format = FORMATS.get(dtype.name)
    if format is not None:
        return TensorHandle(format.encode(values), dtype)
    return TensorHandle(np.asarray(values).astype(_get_np_dtype(dtype), copy=False), dtype)


def binary_op(self: Builder, lhs: Handle, rhs: Handle, op: Callable) -> Handle:
    """Arithmetic rounds to the operands' type; comparisons are masks."""
    format = format_of(lhs)
    if format is None:
        return ORIGINAL["binary_op"](self, lhs, rhs, op)
    values = op(format.decode(lhs.data), values_of(rhs))
    return TensorHandle(values, tl.int1) if values.dtype == np.bool_ else stored(values, lhs.dtype.scalar)


def unary_op(self: Builder, arg: Handle, op: Callable) -> Handle:
    format = format_of(arg)
    if format is None:
        return ORIGINAL["unary_op"](self, arg, op)
    return stored(op(format.decode(arg.data)), arg.dtype.scalar)


def create_fma(self: Builder, x: Handle, y: Handle, z: Handle) -> Handle:
    """Rounded once; Triton's interpreter rounds the product first. float64 stays unfused: numpy has nothing wider."""
    dtype = z.dtype.scalar
    if dtype.name not in CONVERTIBLE - {"fp64"}:
        return TensorHandle(x.data * y.data + z.data, dtype)
    return stored(multiply_add(values_of(x), values_of(y), values_of(z)), dtype)


def cast_impl(self: Builder, src: Handle, dst_type: tl.dtype) -> Handle:
    """Also integers to bfloat16, rounded once as `cvt.rn.bf16.s32` (sm_80 and torch go through float32)."""
    if format_of(src) is None and dst_type.scalar.name not in FORMATS:
        return ORIGINAL["cast_impl"](self, src, dst_type)
    return stored(values_of(src), dst_type.scalar)


def create_fp_to_fp(self: Builder, src: Handle, dst_type: tl.dtype, rounding_mode: Any) -> Handle:
    dtype = dst_type.scalar
    if not {src.dtype.scalar.name, dtype.name} <= CONVERTIBLE:
        return ORIGINAL["create_fp_to_fp"](self, src, dst_type, rounding_mode)
    values = values_of(src)
    if rounding_mode != ir.ROUNDING_MODE.RTZ:
        return stored(values, dtype)
    if dtype.name in FORMATS:
        return TensorHandle(FORMATS[dtype.name].encode(values, toward_zero=True), dtype)
    return TensorHandle(round_toward_zero(values, _get_np_dtype(dtype).type), dtype)


def get_bf16(self: Builder, value: float) -> Handle:
    return stored(np.array([value], dtype=np.float64), tl.bfloat16)


def create_erf(self: Builder, arg: Handle) -> Handle:
    """All elements at once, in float64 as math.erf, which Triton's interpreter calls for one element at a time."""
    values = torch.erf(torch.from_numpy(np.array(arg.data, dtype=np.float64))).numpy()
    return TensorHandle(values.astype(arg.data.dtype), arg.dtype.scalar)


def create_minnumf(self: Builder, lhs: Handle, rhs: Handle) -> Handle:
    """The number where the other one is NaN, as `min.f32`; tl.minimum asks for anything else by propagate_nan."""
    return self.binary_op(lhs, rhs, np.fmin)


def create_maxnumf(self: Builder, lhs: Handle, rhs: Handle) -> Handle:
    return self.binary_op(lhs, rhs, np.fmax)


def create_atomic_rmw(self: Builder, op: Any, ptr: Handle, val: Handle, mask: Handle, sem: Any, scope: Any) -> Handle:
    """bfloat16 addition, which Triton's interpreter lacks. Lanes that share an address take turns."""
    if format_of(val) is not BF16 or op != ir.ATOMIC_OP.FADD:
        return _atomic_rmw(self, op, ptr, val, mask, sem, scope)
    addresses, added = ptr.data.ravel(), BF16.decode(val.data).ravel()
    before = np.zeros(addresses.shape, dtype=np.uint16)
    waiting = np.flatnonzero(np.broadcast_to(mask.data, ptr.data.shape))
    while waiting.size:
        _, first = np.unique(addresses[waiting], return_index=True)
        lanes = waiting[first]
        everywhere = np.ones(lanes.shape, dtype=np.bool_)
        before[lanes] = memory.load(addresses[lanes], everywhere, before[lanes], np.dtype(np.uint16))
        memory.store(addresses[lanes], BF16.encode(BF16.decode(before[lanes]) + added[lanes]), everywhere)
        waiting = np.delete(waiting, first)
    return TensorHandle(before.reshape(ptr.data.shape), val.dtype.scalar)


_atomic_rmw = InterpreterBuilder.create_atomic_rmw


def create_descriptor_load(
    self: Builder, desc: Any, indices: list[Handle], cache_modifier: Any, eviction_policy: Any
) -> Handle:
    """Padding with NaN, which a numpy array of bit patterns cannot hold by that name."""
    dtype = desc.base.dtype.element_ty
    if desc.padding != ir.PADDING_OPTION.PAD_NAN or dtype.name not in FORMATS:
        return _descriptor_load(self, desc, indices, cache_modifier, eviction_policy)
    pointers, mask = desc.materialize_pointers(indices)
    format = FORMATS[dtype.name]
    other = TensorHandle(np.full(pointers.data.shape, format.nan, dtype=format.storage), dtype)
    return self.create_masked_load(
        pointers, mask, other, cache_modifier=cache_modifier, eviction_policy=eviction_policy, is_volatile=False
    )


_descriptor_load = InterpreterBuilder.create_descriptor_load


def create_print(self: Builder, prefix: str, hex: bool, values: list[Handle], is_signed: Any) -> None:
    """Numbers, not their patterns, unless the patterns are asked for."""
    if not hex:
        values = [each if format_of(each) is None else TensorHandle(values_of(each), tl.float32) for each in values]
    _print(self, prefix, hex, values, is_signed)


_print = InterpreterBuilder.create_print


def install() -> None:
    for repair in (
        binary_op,
        unary_op,
        create_fma,
        cast_impl,
        create_fp_to_fp,
        get_bf16,
        create_erf,
        create_minnumf,
        create_maxnumf,
        create_atomic_rmw,
        create_descriptor_load,
        create_print,
    ):
        setattr(InterpreterBuilder, repair.__name__, repair)
