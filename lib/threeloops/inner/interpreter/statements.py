"""Execute the statements of a kernel as a compiled kernel does: they decide which numbers are tensors, and which
variables a loop or a branch carries.

A rewritten kernel (`rewriting`) calls these functions by the `NAMES` that the interpreter gives it.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

from threeloops.inner.interpreter.stack import kernel_line

__all__ = ["NAMES", "loop", "scalar"]


def scalar(value: Any, dtype: Any) -> Any:
    return tl.core.tensor(
        interpreter.TensorHandle(np.array([value], dtype=interpreter._get_np_dtype(dtype)), dtype), dtype
    )


def loop(first: Any, second: Any = None, step: Any = 1, **_: Any) -> Iterator[Any]:
    """Stand for `range` and `tl.range` in a kernel. The index is a tensor as wide as the widest bound, at least int32.

    Refuses loops that behave differently when compiled: a compiled loop counts upwards unless its step is a negative
    constant, and it compares unsigned bounds as signed numbers.
    """
    if isinstance(step, tl.core.tensor) and (step.handle.data <= 0).any():
        raise ValueError(f"range with a step of {step}: a step that is not a constant must be at least 1")
    for bound in (first, second):
        if (
            isinstance(bound, tl.core.tensor)
            and (bound.handle.data > np.iinfo(f"i{bound.handle.data.itemsize}").max).any()
        ):
            raise ValueError(f"range with a bound of {bound}: a loop compares {bound.dtype} as a signed integer")
    bounds = [bound.value if isinstance(bound, tl.constexpr) else bound for bound in (first, second, step)]
    bounds = [0, bounds[0], bounds[2]] if second is None else bounds
    semantic = interpreter.interpreter_semantic
    dtype = tl.int32
    for bound in bounds:
        dtype = semantic.integer_promote_impl(dtype, semantic.to_tensor(bound).dtype)
    return (scalar(index, dtype) for index in range(*bounds))


def _assigned(value: Any) -> Any:
    """Make a number, or each number of a tuple, the tensor that a compiled kernel's variable holds."""
    if isinstance(value, tl.core.tensor):
        return value
    if type(value) in (tuple, list):
        return type(value)(map(_assigned, value))
    return interpreter.interpreter_semantic.to_tensor(value, False)


def _logical(is_and: bool, *values: Callable[[], Any]) -> Any:
    """Compute `x and y and …` or `x or y or …`.

    As when compiled, a number decides or does not count, all tensors are computed, and together they make a boolean.
    """
    tensors: list[Any] = []
    value = None
    for operand in values:
        value = operand()
        if isinstance(value, tl.core.tensor):
            tensors.append(value)
        elif bool(value) is not is_and:
            return value
    if not tensors:
        return value
    combine = tl.core.tensor.logical_and if is_and else tl.core.tensor.logical_or
    return functools.reduce(lambda right, left: combine(left, right), reversed(tensors))


def _negated(value: Any) -> Any:
    """Compute `not value`, which is a tensor for a tensor."""
    return value.__not__() if isinstance(value, tl.core.tensor) else not value


def _chosen(condition: Any, first: Callable[[], Any], second: Callable[[], Any]) -> Any:
    """Compute `first if condition else second`. If the condition is a tensor, so is the result."""
    chosen = first() if _condition(condition) else second()
    return _assigned(chosen) if isinstance(condition, tl.core.tensor) else chosen


def _called(function: Callable[..., Any], *values: Any) -> Any:
    """Call `min` or `max`, which are functions of `tl` in a compiled kernel."""
    replacement = {min: tl.minimum, max: tl.maximum}.get(function)
    is_of_tensors = any(isinstance(value, tl.core.tensor) for value in values)
    return functools.reduce(replacement, values) if replacement and is_of_tensors else function(*values)


def _returned(value: Any, *others: "tuple[_Types, bool] | None") -> Any:
    """Return one of several results of a function. Refuses a number unless constants leave out the `others`, each on a
    side of a branch. If several are compiled, the number may become a tensor or not."""
    is_alone = all(side and not side[0].forget and side[0].taken is not side[1] for side in others)
    for output in () if is_alone else value if type(value) in (tuple, list) else (value,):
        if type(output) in (bool, int, float):
            raise ValueError(
                f"return {value}, in a function with several returns: assign the number to a variable, and return that"
            )
    return value


def _refused(what: str, instead: str) -> None:
    raise SyntaxError(f"{what} at {kernel_line()}: Triton compiles none; {instead}")


def _condition(value: Any) -> Any:
    if isinstance(value, tl.core.tensor) and value.handle.data.size != 1:
        shape = list(value.handle.data.shape)
        raise ValueError(
            f"a tile of shape {shape} is a condition at {kernel_line()}: a compiled kernel branches on one number. "
            "Reduce the tile, or use it as a mask or in tl.where"
        )
    return value


def _holds(value: Any) -> bool:
    """Return whether an assertion holds for all elements of a tile."""
    return bool(value.handle.data.all()) if isinstance(value, tl.core.tensor) else bool(value)


class _Types(dict[str, Any]):
    """The types of variables before a loop, or before a branch on a tensor; none before a branch on a constant, which
    may add variables. `forget`: whether added ones have no value afterwards. `taken`: whether the condition holds."""

    forget = True
    taken = True

    def __setitem__(self, name: str, type_: Any) -> None:
        if self.forget:
            super().__setitem__(name, type_)


def _branch(condition: Any) -> _Types:
    types = _Types()
    types.forget = isinstance(condition, tl.core.tensor)
    types.taken = bool(_condition(condition))
    return types


def _type_of(value: Any) -> Any:
    return value.type if isinstance(value, tl.core.tensor) else type(value)


def _kept(name: str, before: Any, value: Any, place: str) -> None:
    """Refuse a variable that a step of a loop, or a branch, leaves with another type than it had before."""
    after = _type_of(value)
    if after != before:
        raise TypeError(
            f"{name} is {_words(before)} before the {place} at {kernel_line()} and {_words(after)} after "
            f"{'a step' if place == 'loop' else 'it'}: a compiled {place} keeps the type of every variable. Begin with "
            f"the type that the {place} computes, or convert the result"
        )


def _words(type_: Any) -> str:
    if not isinstance(type_, tl.dtype):
        return "a constant (an integer argument of 1 is one)" if type_ is int else "a constant"
    return f"{type_.scalar} of shape {[int(size) for size in type_.shape]}" if type_.is_block() else str(type_)


NAMES: dict[str, Any] = {
    "threeloops_range": loop,
    "threeloops_assigned": _assigned,
    "threeloops_logical": _logical,
    "threeloops_negated": _negated,
    "threeloops_chosen": _chosen,
    "threeloops_called": _called,
    "threeloops_returned": _returned,
    "threeloops_type_of": _type_of,
    "threeloops_kept": _kept,
    "threeloops_types": _Types,
    "threeloops_branch": _branch,
    "threeloops_no_value": NameError,
    "threeloops_refused": _refused,
    "threeloops_condition": _condition,
    "threeloops_holds": _holds,
}
"""The names that a rewritten kernel may call."""
