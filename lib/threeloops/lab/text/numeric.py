"""Numbers from Python, numpy, torch and nested lists, brought to one form and compared element by element."""

from dataclasses import dataclass

import numpy as np

from threeloops.lab.text.plain import is_array, is_size, is_tensor

__all__ = ["Numbers", "Worst", "numbers", "worst"]

_INT64 = np.iinfo(np.int64)
_KINDS = {"b": "bool", "i": "int", "u": "int", "O": "int", "f": "float", "c": "complex"}
_WIDEST = {"bool": np.bool_, "int": object, "float": np.float64, "complex": np.complex128}


@dataclass(frozen=True)
class Numbers:
    """`array` is bool, int64, float64, complex128, or Python ints in an object array when they exceed 64 bits."""

    array: np.ndarray

    @property
    def kind(self) -> str:
        """ "bool", "int", "float" or "complex"; an empty list is "float"."""
        return _KINDS[self.array.dtype.kind]

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
    if kind is int:
        return _integers(np.asarray(value, dtype=object))
    if kind in (bool, float, complex):
        return Numbers(np.asarray(value))
    if is_tensor(value):
        return _from_tensor(value)
    if is_array(value):
        return _from_array(np.asarray(value))
    if kind in (list, tuple) or is_size(value):
        return _from_sequence(value)
    return None


def _integers(array: np.ndarray) -> Numbers:
    """Convert integers exactly. A uint64 or a Python int beyond int64 stays a Python int, because a float64 would round
    it."""
    fits = np.can_cast(array.dtype, np.int64) or all(_INT64.min <= int(n) <= _INT64.max for n in array.flat)
    return Numbers(array.astype(np.int64 if fits else object))


def _from_array(array: np.ndarray) -> Numbers | None:
    kind = _KINDS.get(array.dtype.kind)
    if kind is None:
        return None
    return _integers(array) if kind == "int" else Numbers(array.astype(_WIDEST[kind]))


def _from_tensor(tensor) -> Numbers | None:
    import torch

    if tensor.layout is not torch.strided or tensor.device.type == "meta" or tensor.is_quantized:
        return None
    tensor = tensor.detach()
    if tensor.dtype.is_floating_point:
        tensor = tensor.to(torch.float64)  # numpy knows neither bfloat16 nor the 8-bit formats
    return _from_array(tensor.cpu().resolve_conj().resolve_neg().numpy())


def _from_sequence(items) -> Numbers | None:
    if all(type(item) is float for item in items):
        return Numbers(np.array(items, dtype=np.float64))
    parts: list[Numbers] = []
    for item in items:
        part = numbers(item)
        if part is None or (parts and part.shape != parts[0].shape):
            return None
        parts.append(part)
    kinds = {part.kind for part in parts}
    if "bool" in kinds and len(kinds) > 1:
        return None
    kind = next(kind for kind in ("complex", "float", "int", "bool") if kind in kinds)
    array: np.ndarray = np.stack([part.array.astype(_WIDEST[kind]) for part in parts])
    return _integers(array) if kind == "int" else Numbers(array)


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
    a = actual.array
    e = expected.array
    inside = np.asarray(a == e, dtype=bool)
    excess = np.zeros(inside.shape)
    allowed = np.zeros(inside.shape)
    if not (rtol or atol) and object not in (a.dtype, e.dtype):
        return inside, np.abs(a.astype(np.float64) - e.astype(np.float64)), allowed
    for index in map(tuple, np.argwhere(~inside)):
        given = int(a[index])
        wanted = int(e[index])
        difference = abs(given - wanted)
        tolerance = atol + (rtol * abs(wanted) if rtol else 0.0)
        inside[index] = difference <= tolerance
        allowed[index] = tolerance
        excess[index] = min(difference, 10**300) - tolerance
    return inside, np.maximum(excess, 0.0), allowed


def _compare_floats(actual: Numbers, expected: Numbers, rtol: float, atol: float):
    wide = np.complex128 if "complex" in (actual.kind, expected.kind) else np.float64
    a = actual.array.astype(wide)
    e = expected.array.astype(wide)
    with np.errstate(all="ignore"):
        difference = np.abs(a - e)
        allowed = np.asarray(atol + rtol * np.abs(e))
        inside = (a == e) | (np.isfinite(difference) & np.isfinite(e) & (difference <= allowed))
        excess = np.nan_to_num(difference - allowed, nan=np.inf, posinf=np.inf, neginf=np.inf)
    return inside, np.maximum(excess, 0.0), allowed
