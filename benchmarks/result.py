"""The result of every benchmark: raw samples by name, and how each compares to its named peer."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Literal

from rich.console import Group
from threeloops_grader.machine.provenance import Provenance, anonymous

from benchmarks.tables import Lines, span, summary_table

_SCALES = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "bytes": ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")),
    "bytes/s": ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s")),
    "FLOP/s": ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s")),
}


class Unmeasured(Exception):
    """A benchmark could not be run to its end; the message says why."""


@dataclass(frozen=True)
class Series:
    """Raw samples of one quantity, `what`, as one party, `by`, reached it; `peer` marks the one to compare with."""

    what: str
    by: str
    unit: str
    samples: tuple[float, ...]
    better: Literal["lower", "higher"] = "lower"
    peer: bool = False

    @property
    def median(self) -> float:
        return median(self.samples)

    def times_better(self, peer: Series) -> float:
        """How many times better than the peer this median is; below 1 it is worse."""
        return peer.median / self.median if self.better == "lower" else self.median / peer.median


@dataclass(frozen=True)
class Prediction:
    """One case of a quantity, `what`: computed before, and as one party, `by`, then measured it."""

    what: str
    case: str
    by: str
    unit: str
    predicted: float
    measured: float

    @property
    def difference(self) -> float:
        """How far the measurement lies from the prediction, as a part of the prediction."""
        return self.measured / self.predicted - 1


@dataclass
class Result:
    """One benchmark's outcome. `facts` are numbers beside the comparison, and whatever makes it reproducible; `notes`
    are sentences that a reader of the tables should not miss."""

    name: str
    provenance: Provenance
    settings: dict[str, Any]
    series: list[Series]
    facts: dict[str, Any] = field(default_factory=dict)
    predictions: list[Prediction] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def peer_of(self, series: Series) -> Series | None:
        return next((s for s in self.series if s.what == series.what and s.peer and s is not series), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data with every raw sample; no host name, user name or path."""
        rows = []
        for series in self.series:
            peer = self.peer_of(series)
            better = {"peer_name": peer.by, "times_better": series.times_better(peer)} if peer else {}
            rows.append({**asdict(series), "samples": list(series.samples), "median": series.median, **better})
        provenance = {**asdict(self.provenance), "verified_on": self.provenance.verified_on}
        return anonymous(
            {
                "benchmark": self.name,
                "provenance": provenance,
                "settings": self.settings,
                "series": rows,
                "predictions": [{**asdict(each), "difference": each.difference} for each in self.predictions],
                "notes": self.notes,
                "facts": self.facts,
            }
        )

    def to_json(self) -> str:
        return a_row_a_line(self.to_dict()) + "\n"

    def tables(self) -> Group:
        """All of it for people: how parties compare, how predictions did, and the notes."""
        return Group(self.table(), *([self.differences()] if self.predictions else []), *self.notes)

    def differences(self) -> Lines:
        """A line for each quantity and party: how far all its cases were from their predictions."""
        rows = [{"quantity": each.what, "measured by": each.by, "off": each.difference} for each in self.predictions]
        return summary_table(
            "predicted, then measured",
            ("quantity", "measured by"),
            ("measured over predicted",),
            lambda cases: (span((case["off"] for case in cases), percent),),
            rows,
        )

    def table(self) -> Lines:
        """A line for each quantity and party, and how it compares to the peer."""
        made = Lines(
            f"{self.name} on {self.provenance.verified_on}", ("median", "lowest … highest", "better than peer")
        )
        for series in self.series:
            peer = self.peer_of(series)
            ratio = "the peer" if series.peer else f"{series.times_better(peer):.2f}×" if peer else ""
            size, unit = scale(series.median, series.unit)
            low, high = (digits(end(series.samples) / size) for end in (min, max))
            made.rows.append(
                (series.what, series.by, (readable(series.median, series.unit), f"{low} … {high} {unit}", ratio))
            )
        return made


def percent(part: float) -> str:
    return f"{round(100 * part, 1) or 0.0:+.1f}%"


def a_row_a_line(value: Any, indent: str = "") -> str:
    """JSON with one record per line, so that the difference between two runs can be read."""
    if isinstance(value, dict) and any(isinstance(each, dict | list) for each in value.values()):
        parts, ends = [f"{_plain(name)}: {a_row_a_line(each, indent + ' ')}" for name, each in value.items()], "{}"
    elif isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
        parts, ends = [_plain(each) for each in value], "[]"
    else:
        return _plain(value)
    lines = ",\n".join(f"{indent} {part}" for part in parts)
    return f"{ends[0]}\n{lines}\n{indent}{ends[1]}"


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def readable(value: float, unit: str) -> str:
    """A number with a unit of fitting size: 0.00052, "s" → "520 µs"."""
    size, name = scale(value, unit)
    return f"{digits(value / size)} {name}"


def digits(value: float) -> str:
    """Three digits, or all digits before the point if there are more."""
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


def scale(value: float, unit: str) -> tuple[float, str]:
    """The size and name of the unit that fits a number: 0.00052, "s" → (1e-6, "µs")."""
    scales = _SCALES.get(unit, ((1.0, unit),))
    return next((s for s in scales if abs(value) >= s[0]), scales[-1])
