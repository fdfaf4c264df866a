"""Plain data, the only data that a check may look at, recognised by its exact type.

Behind the grading wall an answer may be a proxy whose every operator refuses. In self-study it may be anything. So
nothing here calls a method of an unknown object: `type(value)` is the only question that an object cannot lie about.
"""

import dataclasses
import enum
import operator
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from types import EllipsisType, NoneType
from typing import Any

import numpy as np

__all__ = [
    "MAPPINGS", "SEQUENCES", "SETS", "class_name", "field", "foreign", "is_array", "is_enum", "is_size", "is_tensor",
    "record_fields",
]  # fmt: skip

_SCALARS = (NoneType, EllipsisType, bool, int, float, complex, str, bytes, bytearray, range, slice)
SEQUENCES = (list, tuple, deque)
MAPPINGS = (dict, OrderedDict, defaultdict, Counter)
SETS = (set, frozenset)
_DEPTH = 64


def _torch_types(*names: str) -> tuple[type, ...]:
    """Return types of torch by name, without importing torch: a process that has a value of such a type has imported
    it."""
    torch = sys.modules.get("torch")
    return () if torch is None else tuple(operator.attrgetter(name)(torch) for name in names)


def is_tensor(value: Any) -> bool:
    """A `torch.Tensor` or `nn.Parameter`, of no other subclass."""
    return type(value) in _torch_types("Tensor", "nn.Parameter")


def is_array(value: Any) -> bool:
    """An array or a scalar of numpy's own, memory-mapped or not; no other subclass, and no array of objects."""
    kind = type(value)
    if kind in (np.ndarray, np.memmap):
        return not value.dtype.hasobject
    return issubclass(kind, np.generic) and kind.__module__ == "numpy"


def is_size(value: Any) -> bool:
    """A `torch.Size`, which counts as a tuple."""
    return type(value) in _torch_types("Size")


def _is_descriptor(value: Any) -> bool:
    """A dtype or a device: compared by `==`, holds no data."""
    return issubclass(type(value), np.dtype) or type(value) in _torch_types("dtype", "device")


def is_enum(value: Any) -> bool:
    return issubclass(type(value), enum.Enum)


def record_fields(value: Any) -> list[str] | None:
    """Field names of a dataclass instance or named tuple; None for anything else."""
    kind = type(value)
    if issubclass(kind, tuple) and type(kind.__dict__.get("_fields")) is tuple:
        return list(kind.__dict__["_fields"])
    if any("__dataclass_fields__" in base.__dict__ for base in kind.__mro__):
        return [f.name for f in dataclasses.fields(kind)]
    return None


def field(value: Any, name: str) -> object:
    """One field of a record, past any `__getattribute__` that its class may define."""
    return object.__getattribute__(value, name)


def class_name(value: Any) -> str:
    """Return the name of a value's class, or, behind the wall, that of the object that the value stands for."""
    stands_for = value.__name__ if getattr(type(value), "stands_for_another", False) is True else None
    return stands_for if isinstance(stands_for, str) else type(value).__name__


def foreign(value: Any, depth: int = 0) -> str | None:
    """The type name of the first thing in `value` that is not plain data; None when all of it is plain."""
    kind = type(value)
    if depth > _DEPTH:
        return f"{kind.__name__} nested more than {_DEPTH} deep"
    if kind in _SCALARS or is_array(value) or is_tensor(value) or _is_descriptor(value) or is_enum(value):
        return None
    if kind in SEQUENCES or kind in SETS or is_size(value):
        inside = value
    elif kind in MAPPINGS:
        inside = [*value.keys(), *value.values()]
    elif (names := record_fields(value)) is not None:
        inside = [field(value, name) for name in names]
    else:
        return class_name(value)
    return next((name for item in inside if (name := foreign(item, depth + 1)) is not None), None)
