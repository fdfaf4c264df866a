"""Which lanes of a value are undefined, because they come from masked lanes of a load without `other`.

Triton promises nothing about these lanes. That is harmless as long as they are never used: most kernels store under the
mask that they load with. The tracker follows undefined lanes through every operation until a store, an atomic, an
address or a branch needs one.

A lane of a result is undefined if it changes with the contents of undefined lanes of the operands. The tracker knows
this in advance for floating-point arithmetic, in which a NaN would come through, and for operations that only move
lanes. It computes all others again with other contents, such as `tl.where`, reductions and integer arithmetic:
`tl.where(mask, x, 0)` does not change, so it is defined.

This costs nothing until a program loads an undefined lane, and from then on it costs time until that program ends.
Lanes are not followed through memory, loop bounds or `tl.advance`.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

__all__ = ["UndefinedLanes"]

_FILLS = (0x00, 0x7B, 0xFB, 0xFF)
"""Bytes that stand for unknown contents: zero, large and positive, large and negative, and NaN in every floating-point
format."""

_ARITHMETIC = {
    f"create_{name}"
    for name in (
        *("fadd", "fsub", "fmul", "fdiv", "frem", "fneg", "precise_divf", "fma", "fabs", "floor", "ceil"),
        *("exp", "exp2", "log", "log2", "sqrt", "precise_sqrt", "rsqrt", "sin", "cos", "erf"),
        *("si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui", "fp_ext", "fp_trunc", "fp_to_fp", "int_cast", "bitcast"),
        *("add", "sub", "addptr"),
        *(f"fcmp{order}{relation}" for order in "OU" for relation in ("LT", "GT", "LE", "GE", "EQ", "NE")),
    )
}
_MOVES = {
    f"create_{name}"
    for name in ("broadcast", "expand_dims", "reshape", "trans", "splat", "unsplat", "join", "split", "cat")
}
_ELSEWHERE = (
    *("load", "store", "atomic", "descriptor", "tensor_pointer", "print", "assert", "assume", "barrier", "advance"),
    *("make_block_ptr", "make_tensor_descriptor"),
)
"""Parts of the names of operations with effects or without tiles. The meter's hooks handle those of them that use
lanes."""


@dataclass(frozen=True, eq=False)
class _Undefined:
    """`lanes`: bool, in the shape of the value that carries it. `site`: the number of the load's source line."""

    lanes: np.ndarray
    site: int


class UndefinedLanes:
    """Follows undefined lanes through one launch.

    `quietly`: a context in which computing again is not counted. `on_branch`: called with the load's site when a
    kernel branches on an undefined value.
    """

    def __init__(self, quietly: Callable[[], AbstractContextManager], on_branch: Callable[[int], None]) -> None:
        self._quietly = quietly
        self._on_branch = on_branch
        self._replacements: list[tuple[Any, str, Any, Any]] = []
        """The replacements while lanes are followed: owner, name, the owner's own attribute of that name, and its
        replacement."""
        self._following = False

    def mark(self, value: Any, lanes: np.ndarray, site: int) -> None:
        """Say that these lanes of a handle were left undefined by the load at `site`."""
        value.undefined = _Undefined(lanes, site)
        if not self._following:
            self._follow()

    def used(self, handle: Any, active: np.ndarray | None) -> tuple[int, int] | None:
        """Return how many active lanes of a handle are undefined, and the site of the load, or None if none are."""
        undefined = getattr(handle, "undefined", None) if self._following else None
        if undefined is None:
            return None
        lanes = undefined.lanes if active is None else undefined.lanes & active
        return (int(np.count_nonzero(lanes)), undefined.site) if lanes.any() else None

    def stop(self) -> None:
        """Forget all lanes, as between programs."""
        if self._following:
            self._following = False
            for owner, name, original, ours in self._replacements:
                # At the end of a launch the interpreter has restored its language already.
                if vars(owner).get(name) is ours:
                    delattr(owner, name) if original is None else setattr(owner, name, original)

    def _follow(self) -> None:
        self._following = True
        if not self._replacements:
            self._prepare()
        for owner, name, _, ours in self._replacements:
            setattr(owner, name, ours)

    def _prepare(self) -> None:
        from triton.language.core import tensor
        from triton.runtime import interpreter

        def replace(owner: Any, name: str, ours: Any) -> None:
            self._replacements.append((owner, name, vars(owner).get(name), ours))

        builder = interpreter.interpreter_builder
        for name in dir(builder):
            if name.startswith("create_") and not any(part in name for part in _ELSEWHERE):
                replace(builder, name, self._tracked(getattr(builder, name), name))
        for operation in (interpreter.ReduceOps, interpreter.ScanOps):
            replace(operation, "apply", self._reducing(operation.apply))
        replace(tensor, "T", property(lambda matrix: matrix.trans()))
        replace(tensor, "__bool__", self._deciding(tensor.__bool__))

    def _tracked(self, original: Callable, name: str) -> Callable:
        def tracked(*operands: Any, **options: Any) -> Any:
            result = original(*operands, **options)
            carriers = [operand for operand in operands if getattr(operand, "undefined", None) is not None]
            if carriers:
                again = partial(original, **options)
                if name in _ARITHMETIC:
                    _carry(result, [carrier.undefined.lanes for carrier in carriers], carriers[0].undefined.site)
                elif name == "create_select" and operands[0].undefined is None:
                    _carry(result, [_chosen(*operands)], carriers[0].undefined.site)
                elif name == "create_dot" and operands[0].dtype.is_floating():
                    _carry(result, _dot_lanes(*operands[:3]), carriers[0].undefined.site)
                elif name in _MOVES:
                    self._move(result, again, operands, carriers[0].undefined.site)
                else:
                    self._compare(result, again, operands, carriers)
            return result

        return tracked

    def _reducing(self, original: Callable) -> Callable:
        """Wrap `apply` of reductions and scans, which take one tensor or a tuple of them."""

        def tracked(operation: Any, operands: Any) -> Any:
            result = original(operation, operands)
            carriers = [handle for handle in _handles(operands) if handle.undefined is not None]
            if carriers and isinstance(operands, tuple):  # `apply` calls itself again, with a tuple
                self._compare(result, partial(original, operation), (operands,), carriers)
            return result

        return tracked

    def _deciding(self, original: Callable) -> Callable:
        def truth(tensor: Any) -> bool:
            undefined = tensor.handle.undefined
            if undefined is not None and undefined.lanes.size == 1 and undefined.lanes.all():
                self._on_branch(undefined.site)
            return original(tensor)

        return truth

    def _move(self, result: Any, again: Callable, operands: tuple, site: int) -> None:
        """Move flags as the operation moves values."""
        from triton.language import int1

        def flags(value: Any) -> Any:
            lanes = np.zeros(value.data.shape, bool) if value.undefined is None else value.undefined.lanes
            return type(value)(lanes, int1)

        with self._quietly():
            moved = again(*[flags(operand) if hasattr(operand, "undefined") else operand for operand in operands])
        for handle, lanes in zip(_handles(result), _handles(moved), strict=True):
            _carry(handle, [lanes.data], site)

    def _compare(self, result: Any, again: Callable, operands: tuple, carriers: list) -> None:
        """Compute again with other contents of the undefined lanes, and see which lanes of the results change."""
        site = carriers[0].undefined.site
        results = _handles(result)
        with self._quietly():
            try:
                others = [_handles(again(*[_filled(operand, byte) for operand in operands])) for byte in _FILLS]
            except Exception:  # contents that the operation refuses, such as an index out of range
                for handle in results:
                    alike = [one.undefined.lanes for one in carriers if one.data.shape == handle.data.shape]
                    _carry(handle, alike or [np.ones(handle.data.shape, bool)], site)
                return
        for handle, *rest in zip(results, *others, strict=True):
            _carry(handle, [_differ(handle.data, other.data) for other in rest], site)


def _carry(result: Any, lanes: list[np.ndarray], site: int) -> None:
    together = lanes[0] if len(lanes) == 1 else np.logical_or.reduce(np.broadcast_arrays(*lanes))
    if together.shape != result.data.shape:
        together = np.broadcast_to(together, result.data.shape)
    result.undefined = _Undefined(together, site) if together.any() else None


def _chosen(condition: Any, *values: Any) -> np.ndarray:
    return np.where(condition.data, *[False if value.undefined is None else value.undefined.lanes for value in values])


def _dot_lanes(a: Any, b: Any, accumulator: Any) -> list[np.ndarray]:
    """Return the undefined lanes of a product. An undefined element of `a` reaches a row, and one of `b` a column."""
    lanes = []
    if a.undefined is not None:
        lanes.append(a.undefined.lanes.any(axis=-1, keepdims=True))
    if b.undefined is not None:
        lanes.append(b.undefined.lanes.any(axis=-2, keepdims=True))
    if accumulator is not None and accumulator.undefined is not None:
        lanes.append(accumulator.undefined.lanes)
    return lanes


def _differ(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return (one != other) & ((one == one) | (other == other))


def _handles(value: Any) -> list:
    """Return the handles in a handle, a tensor, or a tuple or list of them."""
    if isinstance(value, (tuple, list)):
        return [handle for member in value for handle in _handles(member)]
    if hasattr(value, "handle"):
        return [value.handle]
    return [value] if hasattr(value, "undefined") else []


def _filled(value: Any, byte: int) -> Any:
    """Return the same operand with other contents in its undefined lanes."""
    if isinstance(value, tuple):
        return tuple(_filled(member, byte) for member in value)
    if hasattr(value, "handle"):
        return type(value)(_filled(value.handle, byte), value.type)
    undefined = getattr(value, "undefined", None)
    if undefined is None:
        return value
    dtype = value.data.dtype
    unknown = byte < 0x80 if dtype.kind == "b" else np.frombuffer(bytes([byte]) * dtype.itemsize, dtype)[0]
    return type(value)(np.where(undefined.lanes, unknown, value.data), value.dtype)
