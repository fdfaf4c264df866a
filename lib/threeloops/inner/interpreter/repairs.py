"""bfloat16 and fp8 arithmetic for the builder of Triton's interpreter, rounded as in compiled kernels.

Triton's builder computes on raw bit patterns: it multiplies, compares and adds bfloat16 numbers as 16-bit integers. The
operations here decode the values (exact in float32), compute, and round once, as `add.bf16`, `fma.rn.bf16` and `cvt` do
on a GPU.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton._C.libtriton import interpreter as memory
from triton._C.libtriton import ir
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, _get_np_dtype

from threeloops.inner.interpreter.formats import BF16, FORMATS, Format, multiply_add, round_toward_zero
from threeloops.inner.interpreter.stack import kernel_line

__all__ = ["Handle", "format_of", "install", "stored", "values_of"]

_CONVERTIBLE = {"fp16", "fp32", "fp64", *FORMATS}
"""Types among which `to` converts with these formats. Conversions of fp8e4b15, fp8e4b8 and fp8e5b16 stay Triton's."""

Handle = Any


def format_of(handle: Handle) -> Format | None:
    """Return the format of a handle that holds bit patterns, or None if NumPy has the type itself."""
    data = handle.data
    if data.dtype.kind != "u" or data.dtype.itemsize > 2:
        return None
    return FORMATS.get(handle.dtype.scalar.name)


def values_of(handle: Handle) -> np.ndarray:
    """Return the numbers that a handle holds: float32 for bfloat16 and fp8, else its data unchanged."""
    format = format_of(handle)
    return handle.data if format is None else format.decode(handle.data)


def stored(values: np.ndarray, dtype: tl.dtype) -> Handle:
    """Return a handle of `dtype` (a scalar type) that holds `values`, rounded to it."""
    format = FORMATS.get(dtype.name)
    if format is not None:
        return TensorHandle(format.encode(values), dtype)
    return TensorHandle(np.asarray(values).astype(_get_np_dtype(dtype), copy=False), dtype)


def _to_integer(src: Handle, dtype: tl.dtype) -> Handle:
    """Convert floats to integers, cut off toward zero, as `cvt.rzi` does. Numbers that do not fit become the nearest
    that does, and NaN 0, or with 64 bits on either side only the highest bit. 8 bits are the lower half of 16.

    Source: PTX ISA 9.0, cvt: "In float-to-integer conversions …"; which cvt is used, from the PTX of Triton 3.7.
    """
    target = np.dtype(_get_np_dtype(dtype))
    values = values_of(src)
    wide = np.dtype(f"{target.kind}{max(target.itemsize, 2)}")
    limits = np.iinfo(wide)
    nan = 1 << (8 * wide.itemsize - 1) if values.dtype == np.float64 or wide.itemsize == 8 else 0
    above = values >= 2.0 ** (limits.bits - (wide.kind == "i"))
    below = values < limits.min
    missing = np.isnan(values)
    whole = np.where(above | below | missing, 0, values).astype(wide)
    if above.any() or below.any() or missing.any():
        whole = np.where(above, wide.type(limits.max), np.where(below, wide.type(limits.min), whole))
        whole = np.where(missing, np.array(nan, dtype=f"u{wide.itemsize}").astype(wide), whole)
    return TensorHandle(whole.astype(target, copy=False), dtype)


def _as_mask(mask: Handle) -> Handle:
    """Return a handle of numbers as a handle of truth values. Descriptors of Triton 3.7 give arrays of truth values,
    which stay."""
    if isinstance(mask, np.ndarray) or mask.data.dtype == np.bool_:
        return mask
    return TensorHandle(mask.data.astype(np.bool_), tl.int1)


class _Polls:
    """Reads of single numbers, to find a program that waits for a later one: programs run one after another here."""

    def __init__(self) -> None:
        self.repeated = 0
        self._last_read: dict[int, bytes] = {}

    def clear(self) -> None:
        self.repeated = 0
        self._last_read.clear()

    def read(self, ptr: Handle, old: Handle) -> None:
        """Raise if the program has read only numbers that it knew, many thousand times."""
        if ptr.data.size != 1:
            self.clear()
            return
        address = int(ptr.data.flat[0])
        value = old.data.tobytes()
        if self._last_read.get(address) != value:
            self.clear()
            self._last_read[address] = value
            return
        self.repeated += 1
        if self.repeated > _MOST_POLLS:
            self.clear()
            raise RuntimeError(
                f"program {interpreter.interpreter_builder.grid_idx} waits at {kernel_line()} for a later program: it "
                f"has read the same number {_MOST_POLLS:,} times. The interpreter runs programs one after another, so "
                "only values of earlier ones can arrive"
            )


def _missing_atomic(op: Any, val: Handle) -> Callable[..., np.ndarray] | None:
    """Return the function of an atomic operation that Triton's interpreter cannot do, or None if it can."""
    if op == ir.ATOMIC_OP.FADD:
        return np.add if format_of(val) is BF16 else None
    if val.dtype.scalar.is_floating():
        return {ir.ATOMIC_OP.MIN: np.fmin, ir.ATOMIC_OP.MAX: np.fmax}.get(op)
    return None


_polls = _Polls()
_MOST_POLLS = 20_000


class _RepairedBuilder(InterpreterBuilder):
    """Triton's builder with these operations repaired."""

    def set_grid_idx(self, *place: int) -> None:
        _polls.clear()
        InterpreterBuilder.set_grid_idx(self, *place)

    def create_atomic_cas(self, ptr: Handle, *rest: Any) -> Handle:
        old = InterpreterBuilder.create_atomic_cas(self, ptr, *rest)
        _polls.read(ptr, old)
        return old

    def binary_op(self, lhs: Handle, rhs: Handle, op: Callable) -> Handle:
        """Compute a binary operation. Arithmetic rounds to the operands' type, and comparisons are masks."""
        format = format_of(lhs)
        if format is None:
            if op in (np.add, np.subtract) and lhs.data.dtype == np.bool_:
                op = np.bitwise_xor  # one bit wraps around: NumPy's sum of two truths is a truth
            return InterpreterBuilder.binary_op(self, lhs, rhs, op)
        values = op(format.decode(lhs.data), values_of(rhs))
        return TensorHandle(values, tl.int1) if values.dtype == np.bool_ else stored(values, lhs.dtype.scalar)

    def unary_op(self, arg: Handle, op: Callable) -> Handle:
        format = format_of(arg)
        if format is None:
            return InterpreterBuilder.unary_op(self, arg, op)
        return stored(op(format.decode(arg.data)), arg.dtype.scalar)

    def create_fma(self, x: Handle, y: Handle, z: Handle) -> Handle:
        """Round once; Triton's interpreter rounds the product first. float64 stays unfused: NumPy has nothing wider."""
        dtype = z.dtype.scalar
        if dtype.name not in _CONVERTIBLE - {"fp64"}:
            return TensorHandle(x.data * y.data + z.data, dtype)
        return stored(multiply_add(values_of(x), values_of(y), values_of(z)), dtype)

    def cast_impl(self, src: Handle, dst_type: tl.dtype) -> Handle:
        """Cast a value. Integers become bfloat16 with one rounding, as in `cvt.rn.bf16.s32` (sm_80 and torch go through
        float32)."""
        if format_of(src) is None and dst_type.scalar.name not in FORMATS:
            return InterpreterBuilder.cast_impl(self, src, dst_type)
        return stored(values_of(src), dst_type.scalar)

    def create_fp_to_si(self, src: Handle, dst_type: tl.dtype) -> Handle:
        return _to_integer(src, dst_type.scalar)

    def create_fp_to_ui(self, src: Handle, dst_type: tl.dtype) -> Handle:
        return _to_integer(src, dst_type.scalar)

    def create_fp_to_fp(self, src: Handle, dst_type: tl.dtype, rounding_mode: Any) -> Handle:
        dtype = dst_type.scalar
        if not {src.dtype.scalar.name, dtype.name} <= _CONVERTIBLE:
            return InterpreterBuilder.create_fp_to_fp(self, src, dst_type, rounding_mode)
        values = values_of(src)
        if rounding_mode != ir.ROUNDING_MODE.RTZ:
            return stored(values, dtype)
        if dtype.name in FORMATS:
            return TensorHandle(FORMATS[dtype.name].encode(values, toward_zero=True), dtype)
        return TensorHandle(round_toward_zero(values, _get_np_dtype(dtype).type), dtype)

    def get_bf16(self, value: float) -> Handle:
        return stored(np.array([value], dtype=np.float64), tl.bfloat16)

    def create_erf(self, arg: Handle) -> Handle:
        """Compute all elements at once, in float64 like math.erf, which Triton's interpreter calls for every single
        element."""
        values = torch.erf(torch.from_numpy(np.array(arg.data, dtype=np.float64))).numpy()
        return TensorHandle(values.astype(arg.data.dtype), arg.dtype.scalar)

    def create_minnumf(self, lhs: Handle, rhs: Handle) -> Handle:
        """Return the number if the other operand is NaN, as in `min.f32`. tl.minimum has propagate_nan for anything
        else."""
        return self.binary_op(lhs, rhs, np.fmin)

    def create_maxnumf(self, lhs: Handle, rhs: Handle) -> Handle:
        return self.binary_op(lhs, rhs, np.fmax)

    def create_histogram(self, data: Handle, bins: int, mask: Handle | None) -> Handle:
        """Count in 32 bits, and only numbers that have a bin, as on NVIDIA's GPUs."""
        numbers = data.data if mask is None else data.data[_as_mask(mask).data]
        inside = numbers[(numbers >= 0) & (numbers < bins)].astype(np.int64)
        return TensorHandle(np.bincount(inside, minlength=bins).astype(np.int32), tl.int32)

    def create_atomic_rmw(self, op: Any, ptr: Handle, val: Handle, mask: Handle, sem: Any, scope: Any) -> Handle:
        """Add the operations on floats that Triton's interpreter lacks: additions in bfloat16, minima and maxima.

        Lanes that share an address take turns.
        """
        mask = _as_mask(mask)
        combine = _missing_atomic(op, val)
        dtype = val.dtype.scalar
        if combine is None:
            old = InterpreterBuilder.create_atomic_rmw(self, op, ptr, val, mask, sem, scope)
            _polls.read(ptr, old)
            return old
        addresses = ptr.data.ravel()
        values = values_of(val).ravel()
        before = np.zeros(addresses.shape, dtype=val.data.dtype)
        waiting = np.flatnonzero(np.broadcast_to(mask.data, ptr.data.shape))
        while waiting.size:
            _, first = np.unique(addresses[waiting], return_index=True)
            lanes = waiting[first]
            everywhere = np.ones(lanes.shape, dtype=np.bool_)
            before[lanes] = memory.load(addresses[lanes], everywhere, before[lanes], before.dtype)
            result = combine(values_of(TensorHandle(before[lanes], dtype)), values[lanes])
            memory.store(addresses[lanes], stored(result, dtype).data, everywhere)
            waiting = np.delete(waiting, first)
        return TensorHandle(before.reshape(ptr.data.shape), dtype)

    def create_descriptor_reduce(self, kind: Any, desc: Any, value: Handle, indices: list[Handle]) -> None:
        """Run `atomic_add` and the like of a tensor descriptor as relaxed atomics on the elements within its shape."""
        pointers, mask = desc.materialize_pointers(indices)
        name = kind.name
        dtype = value.dtype.scalar
        if name == "ADD" and dtype.is_floating():
            name = "FADD"
        elif name in ("MIN", "MAX") and dtype.is_int_unsigned():
            name = f"U{name}"
        lanes = TensorHandle(mask, tl.int1) if isinstance(mask, np.ndarray) else mask
        self.create_atomic_rmw(
            getattr(ir.ATOMIC_OP, name), pointers, value, lanes, ir.MEM_SEMANTIC.RELAXED, ir.MEM_SYNC_SCOPE.GPU
        )

    def create_masked_load(self, ptrs: Handle, mask: Handle, *rest: Any, **options: Any) -> Handle:
        """Load under a mask of integers as well, such as `(rows < n) & (chunk == 0)` with a Python number `chunk`. Only
        the interpreter of Triton 3.9 refuses such a mask."""
        loaded = InterpreterBuilder.create_masked_load(self, ptrs, _as_mask(mask), *rest, **options)
        _polls.read(ptrs, loaded)
        return loaded

    def create_masked_store(self, ptrs: Handle, value: Handle, mask: Handle, *rest: Any, **options: Any) -> Any:
        _polls.clear()
        return InterpreterBuilder.create_masked_store(self, ptrs, value, _as_mask(mask), *rest, **options)

    def create_descriptor_load(self, desc: Any, indices: list[Handle], *cache: Any) -> Handle:
        """Pad with the bit pattern of NaN. Triton's interpreter would write a float NaN among bit patterns.

        `cache` says how to cache: a modifier and an eviction policy, since Triton 3.9 both in one.
        """
        dtype = desc.base.dtype.element_ty
        if desc.padding != ir.PADDING_OPTION.PAD_NAN or dtype.name not in FORMATS:
            return InterpreterBuilder.create_descriptor_load(self, desc, indices, *cache)
        pointers, mask = desc.materialize_pointers(indices)
        format = FORMATS[dtype.name]
        other = TensorHandle(np.full(pointers.data.shape, format.exact.nan_code, dtype=format.exact.storage), dtype)
        return self.create_masked_load(pointers, mask, other, *cache, False)

    def create_print(self, prefix: str, hex: bool, values: list[Handle], is_signed: Any) -> None:
        """Print numbers instead of bit patterns, unless `hex` asks for the patterns."""
        if not hex:
            values = [
                value if format_of(value) is None else TensorHandle(values_of(value), tl.float32) for value in values
            ]
        InterpreterBuilder.create_print(self, prefix, hex, values, is_signed)


def install() -> None:
    for name in vars(_RepairedBuilder):
        if name not in ("get_bf16", "create_descriptor_reduce"):
            getattr(InterpreterBuilder, name)  # raises AttributeError if this Triton would never call the repair
    interpreter.interpreter_builder.__class__ = _RepairedBuilder
    # sm_90 supports this. Triton asks a GPU before it lets a descriptor find minima of 16-bit floats.
    interpreter.interpreter_semantic._has_native_tma = lambda: True
