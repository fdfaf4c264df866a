"""The fitted constants of each kernel and device, their bounds, and which of them the measurements do not determine."""

import json
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

__all__ = ["Bound", "bounds", "constant", "fitted", "unidentified"]

_Constants = TypeVar("_Constants")
_NEAR = 1.02
"""A constant within this factor of a bound is held there by the bound, not by the measurements."""


@dataclass(frozen=True)
class Bound:
    """The values that a fit may give a constant."""

    low: float
    high: float


def constant(start: float, low: float, high: float) -> Any:
    """Declare a constant of a dataclass: where a fit starts, and its bounds. All of them are positive."""
    return field(default=start, metadata={"bound": Bound(low, high)})


def bounds(kind: type) -> dict[str, Bound]:
    """Return the bounds of the constants of `kind`, by name."""
    return {constant.name: constant.metadata["bound"] for constant in fields(kind)}


def fitted(kind: type[_Constants], device: str, variant: str) -> _Constants:
    """Return the constants of a kind of kernel on a device: `fitted(Gemm, "H100 SXM", "bf16")`.

    Raises LookupError with the devices or variants that were measured.
    """
    devices = _table()[kind.__name__]
    if device not in devices:
        raise LookupError(f"{kind.__name__}: {device!r} was not measured; there are {', '.join(devices)}")
    if variant not in devices[device]:
        variants = ", ".join(devices[device])
        raise LookupError(f"{kind.__name__} on {device}: {variant!r} was not measured; there are {variants}")
    return kind(**devices[device][variant])


@cache
def _table() -> dict[str, Any]:
    return json.loads((files("threeloops.inner.predict.silicon") / "constants.json").read_text(encoding="utf-8"))


def unidentified(constants: Any) -> list[str]:
    """Return the constants that sit on a bound of theirs. They help to predict, but they are not physics."""
    return [
        name
        for name, bound in bounds(type(constants)).items()
        if not bound.low * _NEAR < getattr(constants, name) < bound.high / _NEAR
    ]
