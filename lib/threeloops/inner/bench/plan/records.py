"""Results as plain data and back: numbers, texts, containers and this library's dataclasses, never pickled."""

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

_HOME = "threeloops.inner."
_DEPTH = 32


def to_plain(value: Any) -> Any:
    """The JSON form of a value. Raises TypeError for what is none of the above."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [to_plain(each) for each in value]
    if kind is tuple:
        return {"tuple": [to_plain(each) for each in value]}
    if isinstance(value, Mapping):
        return {"dict": [[to_plain(name), to_plain(each)] for name, each in value.items()]}
    if dataclasses.is_dataclass(value) and kind.__module__.startswith(_HOME):
        fields = [[field.name, to_plain(getattr(value, field.name))] for field in dataclasses.fields(value)]
        return {"record": [kind.__module__, kind.__qualname__, fields]}
    if hasattr(value, "dtype") and getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return to_plain(value.item())
    raise TypeError(f"a {kind.__module__}.{kind.__qualname__} is no plain data")


def from_plain(plain: Any, depth: int = 0) -> Any:
    """The value of a JSON form. Raises ValueError for what `to_plain` does not write."""
    kind = type(plain)
    if plain is None or kind in (bool, int, float, str):
        return plain
    if depth > _DEPTH:
        raise ValueError(f"nested more than {_DEPTH} deep")
    if kind is list:
        return [from_plain(each, depth + 1) for each in plain]
    if kind is not dict or len(plain) != 1:
        raise ValueError("a value of an unknown kind")
    ((tag, content),) = plain.items()
    if type(content) is list and tag == "tuple":
        return tuple(from_plain(each, depth + 1) for each in content)
    if type(content) is list and tag == "dict":
        return {from_plain(name, depth + 1): from_plain(each, depth + 1) for name, each in content}
    if type(content) is list and tag == "record":
        module, name, fields = content
        return _record(module, name, {field: from_plain(each, depth + 1) for field, each in fields})
    raise ValueError("a value of an unknown kind")


def _record(module: Any, name: Any, fields: dict[str, Any]) -> Any:
    """A dataclass of this library's, filled field by field; its `__init__` and `__post_init__` are not run."""
    home = sys.modules.get(module) if type(module) is str and module.startswith(_HOME) else None
    kind = vars(home).get(name) if home is not None else None
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise ValueError(f"a record of an unknown class: {str(name)[:80]!r}")
    if list(fields) != [field.name for field in dataclasses.fields(kind)]:
        raise ValueError(f"a {kind.__name__} with other fields")
    record = object.__new__(kind)
    for field, value in fields.items():
        object.__setattr__(record, field, value)
    return record
