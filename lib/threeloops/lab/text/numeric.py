"""Numbers of every origin (Python, numpy, torch, nested lists) brought to one form and compared element by element."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from threeloops.lab.text.plain import is_array, is_size, is_tensor

INT64 = np.iinfo(np.int64)
KINDS = {"b": "bool", "i": "int", "u": "int", "f": "float", "c": "complex"}


@dataclass(frozen=True)
class Numbers:
    """`array` is bool, int64, float64, complex128, or Python ints in an object array when they exceed 64 bits."""

    array: np.ndarray
    kind: str  # "bool", "int", "float", "complex"; an empty list is "float"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape


@dataclass(frozen=True)
class Worst:
    """The element that is furthest outside its tolerance; `outside` of `total` elements are."""

    index: tuple[int, ...]
    value: complex
    expected: complex
    allowed: float
    outside: int
    total: int


def numbers(value: object) -> Numbers | None:
    """The numbers that `value` holds, copied off any device; None if it holds anything else or is ragged."""
    kind = type(value)
    if kind is bool:
        return Numbers(np.asarray(value), "bool")
    if kind is int:
        return _integers(np.asarray(value, dtype=object))
    if kind in (float, complex):
        return Numbers(np.asarray(value), kind.__name__)
    if is_tensor(value):
        return _from_tensor(value)
    if is_array(value):
        return _from_array(np.asarray(value))
    if kind in (list, tuple) or is_size(value):
        return _from_sequence(value)
    return None


def _integers(array: np.ndarray) -> Numbers:
    """Exact: a uint64 or a Python int beyond int64 stays a Python int, where a float64 would round it."""
    if array.dtype == object or (array.dtype.kind == "u" and array.dtype.itemsize == 8):
        fits = all(INT64.min <= int(n) <= INT64.max for n in array.flat)
        return Numbers(array.astype(np.int64 if fits else object), "int")
    return Numbers(array.astype(np.int64), "int")


def _from_array(array: np.ndarray) -> Numbers | None:
    kind = KINDS.get(array.dtype.kind)
    if kind == "int":
        return _integers(array)
    wide = {"bool": np.bool_, "float": np.float64, "complex": np.complex128}.get(kind or "")
    return None if kind is None or wide is None else Numbers(array.astype(wide), kind)


def _from_tensor(tensor) -> Numbers | None:
    import torch

    if tensor.layout is not torch.strided or tensor.device.type == "meta" or tensor.is_quantized:
        return None
    tensor = tensor.detach()
    if tensor.dtype.is_floating_point:
        tensor = tensor.to(torch.float64)  # numpy knows neither bfloat16 nor the 8-bit formats
    return _from_array(tensor.cpu().resolve_conj().resolve_neg().numpy())


def _from_sequence(items) -> Numbers | None:
    kinds = {type(item) for item in items}
    if not kinds:
        return Numbers(np.zeros(0), "float")
    if kinds == {float}:
        return Numbers(np.array(items, dtype=np.float64), "float")
    parts: list[Any] = []
    for item in items:
        part = numbers(item)
        if part is None or (parts and part.shape != parts[0].shape):
            return None
        parts.append(part)
    found = {part.kind for part in parts}
    if "bool" in found:
        return Numbers(np.stack([part.array for part in parts]), "bool") if found == {"bool"} else None
    if found == {"int"}:
        return _integers(np.stack([part.array.astype(object) for part in parts]))
    kind, wide = ("complex", np.complex128) if "complex" in found else ("float", np.float64)
    return Numbers(np.stack([part.array.astype(wide) for part in parts]), kind)


def worst(actual: Numbers, expected: Numbers, rtol: float, atol: float) -> Worst | None:
    """The worst element outside `|actual − expected| ≤ atol + rtol·|expected|`, or None when all are inside.

    NaN is always outside, on either side; an infinity is inside only if the other is the same infinity. Two integers
    are compared without rounding. Shapes must agree already.
    """
    exactly = actual.kind == expected.kind and actual.kind in ("int", "bool")
    decide = _compare_exactly if exactly else _compare_floats
    inside, excess, allowed = decide(actual, expected, rtol, atol)
    if inside.all():
        return None
    at = np.unravel_index(int(np.argmax(np.where(inside, -1.0, excess))), inside.shape)
    return Worst(
        index=tuple(int(i) for i in at),
        value=_scalar(actual.array[at]),
        expected=_scalar(expected.array[at]),
        allowed=float(allowed[at]),
        outside=int((~inside).sum()),
        total=inside.size,
    )


def _scalar(element):
    return element if type(element) is int else element.item()


def _compare_exactly(actual: Numbers, expected: Numbers, rtol: float, atol: float):
    a, e = actual.array, expected.array
    inside = np.asarray(a == e, dtype=bool)
    if not (rtol or atol) and object not in (a.dtype, e.dtype):
        return inside, np.abs(a.astype(np.float64) - e.astype(np.float64)), np.zeros(inside.shape)
    excess, allowed = np.zeros(inside.shape), np.zeros(inside.shape)
    for index in np.argwhere(~inside):
        at = tuple(index)
        difference = abs(int(a[at]) - int(e[at]))
        tolerance = atol + (rtol * abs(int(e[at])) if rtol else 0.0)
        inside[at] = difference <= tolerance
        allowed[at] = tolerance
        excess[at] = min(difference, 10**300) - tolerance
    return inside, np.maximum(excess, 0.0), allowed


def _compare_floats(actual: Numbers, expected: Numbers, rtol: float, atol: float):
    wide = np.complex128 if "complex" in (actual.kind, expected.kind) else np.float64
    a, e = actual.array.astype(wide), expected.array.astype(wide)
    with np.errstate(all="ignore"):
        difference = np.abs(a - e)
        allowed = np.asarray(atol + rtol * np.abs(e))
        inside = (a == e) | (np.isfinite(difference) & np.isfinite(e) & (difference <= allowed))
        excess = np.nan_to_num(difference - allowed, nan=np.inf, posinf=np.inf, neginf=np.inf)
    return inside, np.maximum(excess, 0.0), allowed
