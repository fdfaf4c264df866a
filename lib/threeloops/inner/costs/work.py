"""Bytes that move and arithmetic that is done, as one amount that can be added up."""

import math
from dataclasses import dataclass, field

__all__ = ["Work", "require_positive"]


@dataclass(frozen=True)
class Work:
    """Bytes moved and floating-point operations done. `a + b` does both, `3 * a` does it three times.

    `kind` names the operation if it is one: "product", "attention", "decoding" or "experts" (a layer of them).
    """

    bytes: float
    flops: float
    kind: str = field(default="", repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, amount in (("bytes", self.bytes), ("flops", self.flops)):
            if not (0 <= amount < math.inf):
                raise ValueError(f"{name} = {amount}: expected a finite number, at least 0")

    @property
    def intensity(self) -> float:
        """FLOP per byte; infinite for arithmetic that moves nothing. Raises ValueError for no work at all."""
        if self.bytes:
            return self.flops / self.bytes
        if self.flops:
            return math.inf
        raise ValueError("bytes = 0 and flops = 0: no work has no intensity")

    def __add__(self, other: "Work") -> "Work":
        if not isinstance(other, Work):
            return NotImplemented
        kind = self.kind if self.kind == other.kind else ""
        return Work(self.bytes + other.bytes, self.flops + other.flops, kind)

    def __radd__(self, other: object) -> "Work":
        """Accept 0, with which `sum` of an iterable of Work begins."""
        return self if other == 0 else NotImplemented

    def __mul__(self, times: float) -> "Work":
        if isinstance(times, Work):
            return NotImplemented
        return Work(self.bytes * times, self.flops * times, self.kind)

    __rmul__ = __mul__


def require_positive(**sizes: float) -> None:
    """Raise ValueError, with a name and a value, unless all sizes are positive and finite."""
    for name, size in sizes.items():
        if not (0 < size < math.inf):
            raise ValueError(f"{name} = {size}: expected a positive number")
