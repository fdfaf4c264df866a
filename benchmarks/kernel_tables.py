"""The kernels benchmark as tables for people, a line per kernel over all shapes and dtypes; its JSON has every row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from rich.console import Group

from benchmarks.kernel_part import OURS, Row
from benchmarks.result import readable
from benchmarks.tables import span, summary_table


def tables(facts: Mapping[str, Any]) -> Group:
    ours = {_case(row): row["median_seconds"] for row in facts["time"] if row["by"] == OURS and "median_seconds" in row}
    traffic = "traffic and arithmetic, counted (CPU, exact)"
    code = "generated code as shipped (CPU, compiled)"
    error = "error against float64 (cpu: interpreted, cuda: compiled)"
    found = [
        summary_table(traffic, ("kernel",), TRAFFIC, traffic_cells, facts["traffic"]),
        summary_table(code, ("kernel", "by", "launched", "target"), CODE, code_cells, facts["code"]),
        summary_table(error, ("kernel", "dtype", "on"), ERROR, error_cells, facts["error"]),
        summary_table(
            "time of a call", ("kernel", "pass", "by"), TIME, lambda rows: time_cells(rows, ours), facts["time"]
        ),
    ]
    return Group(*found, *(f"{what}: {counted(how)}" for what, how in facts["summary"].items()))


def counted(how: Mapping[str, Any]) -> str:
    missing = f"; not: {', '.join(how['not'])}" if how["not"] else ""
    return f"{how['are']} of {how['of']}{missing}"


TRAFFIC = ("unique / least", "requested / unique", "FLOPs / least", "sectors a request", "findings")


def traffic_cells(rows: Sequence[Row]) -> tuple[str, ...]:
    return (
        span((row["unique_bytes"] / row["least_bytes"] for row in rows), "{:.3f}".format),
        span((row["requested_bytes"] / row["unique_bytes"] for row in rows), "{:.2f}".format),
        span((row["flops"] / row["least_flops"] for row in rows if row["least_flops"]), "{:.2f}".format),
        span((row["sectors_per_request"] for row in rows), "{:.1f}".format),
        str(sum(len(row["findings"]) for row in rows)),
    )


CODE = ("registers", "spilled", "shared / limit", "load, store bits", "tensor cores", "occupancy")


def code_cells(rows: Sequence[Row]) -> tuple[str, ...]:
    compiled = [row for row in rows if "not_compiled" not in row]
    if not compiled:
        return (rows[0]["not_compiled"], *[""] * (len(CODE) - 1))
    shared, limit = max(row["shared_bytes"] for row in compiled), compiled[0]["shared_limit"]
    widths = (span((row[name] or 0 for row in compiled), "{:.0f}".format) for name in ("widest_load", "widest_store"))
    return (
        span((row["registers"] for row in compiled), "{:.0f}".format),
        span((row["spilled_bytes"] for row in compiled), "{:.0f}".format),
        f"{shared / 1024:.0f} / {limit / 1024:.0f} KiB",
        ", ".join(widths),
        " ".join(sorted({row["tensor_cores"] or "none" for row in compiled})),
        span((row["occupancy"] for row in compiled), "{:.0%}".format),
    )


ERROR = ("RMS, × torch's", "largest, × torch's")


def error_cells(rows: Sequence[Row]) -> tuple[str, ...]:
    """Spans over shapes and outputs; where torch is exact there is no ratio."""
    ratios = ([row[name] for row in rows if row[name] is not None] for name in ("rms_ratio", "max_ratio"))
    return tuple(span(found, "{:.2f}".format) or "torch is exact" for found in ratios)


TIME = ("median", "rate", "of a copy", "ours is faster", "predicted, measured")


def time_cells(rows: Sequence[Row], ours: Mapping[str, float]) -> tuple[str, ...]:
    """Spans over shapes; geometric means of the share of a copy's bandwidth, and of the time over ours."""
    if "published_flops" in rows[0]:
        return ("", readable(rows[0]["published_flops"], "FLOP/s"), "", "", "")
    measured = [row for row in rows if "median_seconds" in row]
    if not measured:
        return (f"not measured: {rows[0]['not_measured']}", "", "", "", predicted(rows))
    shares = [row["share_of_copy"] for row in measured if "share_of_copy" in row]
    against = [row["median_seconds"] / ours[_case(row)] for row in measured if row["by"] != OURS and _case(row) in ours]
    return (
        span((row["median_seconds"] for row in measured), lambda value: readable(value, "s")),
        span(map(rate, measured), lambda value: readable(value, unit_of_rate(measured[0]))),
        f"{geometric_mean(shares):.0%}" if shares else "",
        f"{geometric_mean(against):.2f}×" if against else "",
        predicted(rows),
    )


def predicted(rows: Sequence[Row]) -> str:
    found = [row for row in rows if "predicted_low" in row]
    if not found:
        return ""
    times = (row[end] for row in found for end in ("predicted_low", "predicted_high"))
    text = f"{span(times, lambda value: readable(value, 's'))} on {found[0]['predicted_for']}"
    errors = [row["prediction_error"] for row in found if row.get("prediction_error") is not None]
    return text + (f", {span(errors, '{:+.0%}'.format)}" if errors else "")


def rate(row: Row) -> float:
    return (row["flops"] if row["tensor_core_kernel"] else row["bytes"]) / row["median_seconds"]


def unit_of_rate(row: Row) -> str:
    return "FLOP/s" if row["tensor_core_kernel"] else "bytes/s"


def _case(row: Row) -> str:
    return f"{row['kernel']} {row['pass']} {row['shape']} {row['dtype']}"
