"""Liger's own operations in the meter: whether they run, their values, their bytes against a count by hand, and what
metering costs beside triton-viz.

triton-viz counts loads and stores and leaves atomic updates out. Both run in the course's repaired interpreter, since
Triton's own refuses most of Liger's kernels.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import Group
from threeloops.hardware.probe import installed_version
from threeloops_grader.machine.provenance import Provenance

from benchmarks.kernel_part import Row, run_part
from benchmarks.result import Result, Series, Unmeasured
from benchmarks.tables import Lines

SECONDS = 300.0
METER, PLAIN, TRITON_VIZ = "meter", "plain interpreter", "triton-viz profiler"
"""The names that `meter_kernels` uses. That module repairs the interpreter when it is imported."""
REPORTED = ("requested_bytes", "findings", "error_over_tolerance", "fails")


@dataclass
class LigerResult(Result):
    """A result with a line for each operation."""

    def tables(self) -> Group:
        summary = [f"{what}: {each['are']} of {each['of']}" for what, each in self.facts["summary"].items()]
        return Group(operations(self.facts["operations"]), *summary)


def measure(about: Provenance, *, quick: bool = False) -> Result:
    """Run every operation forward and backward, metered and under triton-viz. Raises Unmeasured if a part fails."""
    started = time.monotonic()
    rows: list[Row] = []
    for part in range(2):
        # One after another: they would disturb each other's times.
        left = SECONDS - (time.monotonic() - started)
        rows += run_part("liger_part", quick=quick, seconds=left, share=(part, 2))
    if lost := [row for row in rows if "failed" in row or "not_measured" in row]:
        raise Unmeasured(f"{len(lost)} rows are missing, the first: {lost[0].get('failed') or lost[0]['not_measured']}")
    table = by_operation(rows)
    facts: dict[str, Any] = {
        "operations": table,
        "summary": summary(table),
        "versions": {name: installed_version(name) for name in ("triton", "torch", "numpy", "triton-viz")}
        | {"liger-kernel": "see requirements-peers.txt"},
        "seconds": "CPU seconds of the measuring process",
        "rows": rows,
        "failed": [row for row in table if not is_right(row)],
    }
    return LigerResult("liger", about, {"quick": quick}, series(rows), facts)


def by_operation(rows: list[Row]) -> list[Row]:
    """A row for each operation: its bytes as counted by hand, by the meter and by triton-viz, its error, its times."""
    table: dict[str, Row] = {}
    plain = 1.0
    for row in rows:
        if row["by"] == PLAIN:
            plain = median(row["seconds"]) if row["seconds"] else 1.0
            continue
        line = table.setdefault(row["operation"], {"operation": row["operation"], "by_hand": row["counted_by_hand"]})
        named = "meter" if row["by"] == METER else "triton_viz"
        line[named] = {key: row[key] for key in REPORTED if key in row}
        if row["seconds"]:
            line[named]["times"] = median(row["seconds"]) / plain
    return list(table.values())


def is_right(row: Row) -> bool:
    """Whether the meter ran it without findings, within Liger's tolerances and with the bytes counted by hand."""
    meter = row.get("meter", {"fails": "not run"})
    return (
        "fails" not in meter
        and meter["requested_bytes"] == row["by_hand"]
        and meter["error_over_tolerance"] <= 1
        and not meter["findings"]
    )


def summary(table: list[Row]) -> dict[str, Row]:
    """How many operations are as they should be, and the names of the others."""
    ran = [row for row in table if "fails" not in row["meter"]]
    peers = [row for row in ran if "times" in row.get("triton_viz", {})]
    counted = {
        "run in the meter": (table, ran),
        "values within Liger's tolerances": (table, [row for row in ran if row["meter"]["error_over_tolerance"] <= 1]),
        "bytes as counted by hand": (table, [row for row in ran if row["meter"]["requested_bytes"] == row["by_hand"]]),
        "without findings": (table, [row for row in ran if not row["meter"]["findings"]]),
        "run under triton-viz": (table, [row for row in table if "fails" not in row.get("triton_viz", {"fails": ""})]),
        "bytes as counted by hand, by triton-viz": (
            table,
            [row for row in table if row.get("triton_viz", {}).get("requested_bytes") == row["by_hand"]],
        ),
        "metered in less time than triton-viz takes": (
            peers,
            [row for row in peers if row["meter"]["times"] < row["triton_viz"]["times"]],
        ),
    }
    return {
        what: {"of": len(all_), "are": len(good), "not": [row["operation"] for row in all_ if row not in good]}
        for what, (all_, good) in counted.items()
    }


def operations(table: list[Row]) -> Lines:
    """A line for each operation."""
    columns = ("by hand", "meter", "triton-viz", "error / tolerance", "meter / plain", "triton-viz / plain")

    def cells(row: Row) -> tuple[str, ...]:
        meter, peer = row["meter"], row.get("triton_viz", {})
        counts = (f"{each['requested_bytes']:,}" if "requested_bytes" in each else "fails" for each in (meter, peer))
        times = (f"{each['times']:.2f}" if "times" in each else "—" for each in (meter, peer))
        error = f"{meter['error_over_tolerance']:.2g}" if "error_over_tolerance" in meter else "—"
        return (f"{row['by_hand']:,}", *counts, error, *times)

    rows = [("", row["operation"], cells(row)) for row in table]
    return Lines("Liger's operations, forward and backward: bytes, errors, times", columns, rows)


def series(rows: list[Row]) -> list[Series]:
    """The raw seconds; triton-viz is the peer where it ran."""
    return [
        Series(row["operation"], row["by"], "s", tuple(row["seconds"]), "lower", row["by"] == TRITON_VIZ)
        for row in rows
        if row["seconds"] and row["by"] != PLAIN
    ]
