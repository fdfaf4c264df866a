"""The cost of metering a kernel, against the plain interpreter and triton-viz's profiler, which counts bytes too.

In the course's repaired interpreter, where the meter lives, and (not with `--quick`) in Triton's as it ships. Each runs
in a process of its own, because an interpreter that was repaired or patched stays so.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from threeloops.hardware.probe import installed_version
from threeloops_grader.machine.provenance import Provenance

from benchmarks.kernel_part import Row, run_part
from benchmarks.result import Result, Series, Unmeasured

QUICK_SECONDS, FULL_SECONDS = 120.0, 900.0
QUICK_PARTS, PARTS = 2, 4
TRITON_VIZ = "triton-viz profiler"
METER, PLAIN = "meter", "plain interpreter"


def measure(about: Provenance, *, quick: bool = False) -> Result:
    """CPU seconds of every kernel, plain, metered, with an L2 model, and under triton-viz. Raises Unmeasured."""
    started, limit = time.monotonic(), QUICK_SECONDS if quick else FULL_SECONDS
    rows: list[Row] = []
    for part in range(QUICK_PARTS if quick else PARTS):
        # One after another: they would disturb each other's times.
        left = limit - (time.monotonic() - started)
        rows += run_part("meter_kernels", quick=quick, seconds=left, share=(part, PARTS))
    if lost := [row for row in rows if "failed" in row]:
        raise Unmeasured(f"{len(lost)} parts failed, the first: {lost[0]['failed']}")
    facts: dict[str, Any] = {
        "overhead": overheads(rows),
        "counts": [{key: row[key] for key in ("kernel", "by", "counted_bytes", "requested_bytes")}
                   for row in rows if row.get("counted_bytes") is not None],
        "same_bytes": all(row["counted_bytes"] == row["requested_bytes"]
                          for row in rows if row.get("counted_bytes") is not None),
        "not_measured": [row for row in rows if "not_measured" in row],
        "versions": {name: installed_version(name) for name in ("triton", "torch", "numpy", "triton-viz")},
        "seconds": "CPU seconds of the measuring process",
        "rows": rows,
    }  # fmt: skip
    return Result("meter", about, {"quick": quick}, series(rows), facts)


def series(rows: list[Row]) -> list[Series]:
    """A quantity for each kernel and interpreter; the plain interpreter of the meter's own process is the peer."""
    found: dict[tuple[str, str], Series] = {}
    for row in rows:
        if "seconds" in row:
            what = f"{row['kernel']}, {row['interpreter']}"
            found.setdefault(
                (what, row["by"]), Series(what, row["by"], "s", tuple(row["seconds"]), "lower", row["by"] == PLAIN)
            )
    order = list(dict.fromkeys(what for what, _ in found))
    return sorted(found.values(), key=lambda each: order.index(each.what))


def overheads(rows: list[Row]) -> list[Row]:
    """How many times the plain interpreter's median, measured in turns with it, a party takes."""
    found, plain = [], 0.0
    for row in rows:
        if row["by"] == PLAIN:
            plain = median(row["seconds"])
        elif "seconds" in row:
            times = median(row["seconds"]) / plain
            found.append({"interpreter": row["interpreter"], "kernel": row["kernel"], "by": row["by"], "times": times})
    return found
