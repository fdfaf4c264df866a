"""How long kernels took, relative to the data sheet: the interval that published measurements give a prediction.

A data sheet says how long a kernel takes at least. Real kernels also need a launch, and reach only a part of the rates.
`intervals.json` has both for each device and kind of kernel, at the two ends of an interval that holds most of the rows
of `threeloops.hardware.measured`. `python -m benchmarks.silicon` fits it, and `python -m benchmarks silicon` counts how
many rows that no fit has seen lie inside.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from threeloops.hardware.accelerators import dtype_name
from threeloops.hardware.measured import MEASURED_BY

__all__ = ["ANY", "NOMINAL", "Spread", "spread_of"]

ANY = "any"
"""The name of all kinds, or of all devices, taken together."""
NOMINAL = 0.86
"""The share of the rows in the fit that an interval holds: as many lie below it as above."""
_SIXTEEN_BITS = ("bf16", "fp16")


@dataclass(frozen=True)
class Spread:
    """The times of `rows` measured kernels: start + factor · (seconds by the data sheet), at the low and the high end.

    At the low end computing and loading overlap in these seconds, and at the high end they add up. `device` or `kind`
    is `ANY` if the device, or its kernels of this kind, were not measured.
    """

    device: str
    kind: str
    rows: int
    low_start: float
    low_factor: float
    high_start: float
    high_factor: float

    def interval(self, best: float, worst: float) -> tuple[float, float]:
        """Return both ends in seconds, from the seconds by the data sheet at best and at worst."""
        return self.low_start + self.low_factor * best, self.high_start + self.high_factor * worst

    @property
    def basis(self) -> str:
        """A sentence that says where the interval comes from."""
        kernels = "kernels" if self.kind == ANY else f"kernels of the kind {self.kind}"
        where = "five other GPUs" if self.device == ANY else self.device
        return (
            f"the interval holds {NOMINAL:.0%} of {self.rows:,} {kernels} on {where}, {MEASURED_BY}; calibrate with "
            "your own measurements to narrow it"
        )


def spread_of(device: str, kind: str, dtype: object) -> Spread:
    """Return the spread of a device's kernels of this kind (`Work.kind`) and dtype, or of the nearest there is."""
    table = _table()
    name = device if device in table else ANY
    precision = "bf16" if dtype_name(dtype) in _SIXTEEN_BITS else dtype_name(dtype)
    exact = f"{kind} {precision}"
    chosen = exact if exact in table[name] else ANY
    rows, *ends = table[name][chosen]
    return Spread(name, chosen, int(rows), *ends)


@cache
def _table() -> dict[str, dict[str, list[float]]]:
    return json.loads((files("threeloops.inner.predict") / "intervals.json").read_text(encoding="utf-8"))
