"""The course's kernels judged four ways: bytes and FLOPs counted against the least that is needed, the code that the
compiler makes beside Liger's, errors beside torch's, and, on a GPU, time beside everybody's.

The first three are the same on every machine. A GPU adds the fourth; without one its rows say that nobody measured.
"""

from __future__ import annotations

import math
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Group
from threeloops_grader.machine.provenance import Provenance

from benchmarks.kernel_part import COPY, OURS, TORCH, Row, run_part
from benchmarks.kernel_tables import tables
from benchmarks.kernel_timing import estimate
from benchmarks.result import Result, Series

JOBS = min(max(os.cpu_count() or 1, 2), 8)
CODE_SHARES = 8
QUICK_SECONDS, FULL_SECONDS = 110.0, 530.0
"""The time limits of one call. Its results are kept, and the next call continues from there."""
LEAST_SECONDS = 30.0
"""The time of a part that begins just before the limit. On a busy machine a late result is better than none."""
TRAFFIC_TOLERANCE = 0.02
WITHOUT_PRODUCTS = ("prepare_rows_kernel",)
"""Launched by kernels of matrix products, and multiply no matrices themselves: row sums before the backward pass."""

PUBLISHED: list[Row] = [
    {
        "kernel": "simplicial_attention",
        "shape": {},
        "dtype": "bfloat16",
        "pass": "forward",
        "by": f"published: {by}, H100",
        "published_flops": rate,
        "counted": "6·head_dim FLOPs a triple of positions; cost() counts 4",
        "source": "https://pytorch.org/blog/fast-2-simplicial-attention-hardware-efficient-kernels-in-tlx",
    }
    for by, rate in (("Triton", 337e12), ("TLX", 588e12))
]
"""Published numbers, which were not measured here, for the comparison with our own row."""


@dataclass
class KernelResult(Result):
    """A result whose tables are those of its parts."""

    def tables(self) -> Group:
        return tables(self.facts)


def measure(about: Provenance, *, quick: bool = False, folder: Path | None = None) -> Result:
    """All tables; `about.device` says whether a GPU is timed. Rows are kept in `folder` until all are there.

    Raises Unmeasured where a part fails or is not finished.
    """
    started, limit = time.monotonic(), QUICK_SECONDS if quick else FULL_SECONDS

    def part(name: str, **options: Any) -> list[Row]:
        left = max(limit - (time.monotonic() - started), LEAST_SECONDS)
        share, on = options.get("share", (0, 1)), options.get("device", "cpu")
        place = folder / f"kernel_{name}_{on}_{share[0]}_of_{share[1]}.jsonl" if folder else None
        key = f"{about.key} {'quick' if quick else 'full'}"
        return run_part(f"kernel_{name}", quick=quick, seconds=left, rows=place, about=key, **options)

    if about.device == "cuda":
        seconds = estimate(quick)
        calls = f"calls of {limit:.0f} s needed: {math.ceil(seconds / limit)}"
        print(f"kernel times: about {seconds:.0f} s by estimate; {calls}", file=sys.stderr, flush=True)

    with ThreadPoolExecutor(JOBS) as pool:
        # The longest first, so that all processes end together.
        code = [pool.submit(part, "code", share=(i, CODE_SHARES)) for i in range(CODE_SHARES)]
        liger, traffic, error = (pool.submit(part, name) for name in ("liger", "traffic", "error"))
    # Alone: nothing else may keep the machine busy while something is timed.
    times = part("timing", device=about.device)
    compiled_error = part("error", device="cuda") if about.device == "cuda" else []
    facts: dict[str, Any] = {
        "traffic": traffic.result(),
        "code": [row for each in code for row in each.result()] + liger.result(),
        "error": error.result() + compiled_error,
        "time": with_share_of_copy([without_samples(row) for row in times]) + PUBLISHED,
    }
    lost = [row for rows in facts.values() for row in rows if "failed" in row]
    facts = {name: [row for row in rows if "failed" not in row] for name, rows in facts.items()}
    order = list(dict.fromkeys(row["kernel"] for row in facts["traffic"]))
    for rows in facts.values():
        rows.sort(key=lambda row: order.index(row["kernel"]) if row["kernel"] in order else -1)
    facts["summary"] = summary(facts)
    facts["failed"] = lost
    settings = {"quick": quick, "jobs": JOBS}
    return KernelResult("kernels", about, settings, series(times), facts)


def series(times: list[Row]) -> list[Series]:
    """The raw seconds of what was timed; torch is the peer."""
    found = []
    for row in times:
        if "seconds" in row:
            shape = ", ".join(f"{name} {size}" for name, size in row["shape"].items())
            what = f"{row['kernel']} {row['pass']}, {shape}, {row['dtype']}"
            found.append(Series(what, row["by"], "s", tuple(row["seconds"]), peer=row["by"] == TORCH))
    return found


def without_samples(row: Row) -> Row:
    """The samples stand in the result's series; here their median is enough."""
    if "seconds" not in row:
        return row
    return {
        **{name: value for name, value in row.items() if name != "seconds"},
        "median_seconds": median(row["seconds"]),
    }


def with_share_of_copy(rows: list[Row]) -> list[Row]:
    """Kernels that only move data, with their bytes per second over those of a copy."""
    copy = next((row for row in rows if row["kernel"] == COPY and "median_seconds" in row), None)
    for row in rows:
        if copy and "median_seconds" in row and not row["tensor_core_kernel"]:
            rate = row["bytes"] / row["median_seconds"]
            row["share_of_copy"] = rate / (copy["bytes"] / copy["median_seconds"])
    return rows


def summary(facts: dict[str, Any]) -> dict[str, Any]:
    """The counts that one looks for first: how much is as it should be, and what is not: kernels, or reasons."""

    def named(row: Row) -> str:
        return row.get("not_measured") or row.get("launched") or row["kernel"]

    tried = [row for row in facts["code"] if row["by"] == OURS]
    code = [row for row in tried if "not_compiled" not in row]
    cores = [
        row
        for row in code
        if row["tensor_core_kernel"] and row["dtype"] != "float32" and row["launched"] not in WITHOUT_PRODUCTS
    ]
    apart = [row for row in facts["traffic"] if abs(row["unique_bytes"] / row["least_bytes"] - 1) > TRAFFIC_TOLERANCE]
    inaccurate = [row for row in facts["error"] if not row["within"]]
    timed = [row for row in facts["time"] if "published_flops" not in row]
    counted = {
        "traffic within 2% of the least": (facts["traffic"], apart),
        "without findings (bounds, races, uninitialised)": (
            facts["traffic"],
            [r for r in facts["traffic"] if r["findings"]],
        ),
        "RMS error at most torch's, times 1.05 in 16 bits, 3 in float32": (facts["error"], inaccurate),
        "compiled": (tried, [row for row in tried if "not_compiled" in row]),
        "compiled without spills": (code, [row for row in code if row["spilled_bytes"]]),
        "compiled and fit the target": (code, [row for row in code if not row["fits"]]),
        "16-bit kernels of matrix operations on tensor cores": (
            cores,
            [row for row in cores if not row["tensor_cores"]],
        ),
        "timed": (timed, [row for row in timed if "not_measured" in row]),
    }
    return {
        what: {
            "of": len(rows),
            "are": len(rows) - len(wrong),
            "not": sorted({named(row) for row in wrong}),
        }
        for what, (rows, wrong) in counted.items()
    }
