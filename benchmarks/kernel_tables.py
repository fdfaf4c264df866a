"""The kernels benchmark as tables for people; its JSON holds every row in full."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.console import Group
from rich.table import Table

from benchmarks.kernel_part import Row
from benchmarks.result import readable

Cells = Callable[[Row], tuple[str, ...]]


def tables(facts: Mapping[str, Any]) -> Group:
    found = [
        table("traffic and arithmetic, counted (CPU, exact)", TRAFFIC_COLUMNS, traffic_cells, facts["traffic"]),
        table("generated code as shipped (CPU, compiled)", CODE_COLUMNS, code_cells, facts["code"]),
        table("error against float64 (cpu: interpreted, cuda: compiled)", ERROR_COLUMNS, error_cells, facts["error"]),
        table("time of a call", TIME_COLUMNS, time_cells, facts["time"]),
    ]
    return Group(*found, *(f"{what}: {counted(how)}" for what, how in facts["summary"].items()))


def counted(how: Mapping[str, Any]) -> str:
    missing = f"; not {', '.join(how['not'])}" if how["not"] else ""
    return f"{how['are']} of {how['of']}{missing}"


def table(title: str, columns: tuple[str, ...], cells: Cells, rows: Iterable[Row]) -> Table:
    """A line of cells for each row; a kernel's name, shape and dtype are not repeated."""
    made = Table(title=title, title_justify="left", box=None)
    for name in ("kernel", "shape", "dtype"):
        made.add_column(name)
    for name in columns:
        made.add_column(name, justify="right")
    before: tuple[str, ...] = ()
    for row in rows:
        about = (row["kernel"], " ".join(f"{k}={v}" for k, v in row["shape"].items()), row["dtype"])
        shown = tuple(now if before[: place + 1] != about[: place + 1] else "" for place, now in enumerate(about))
        made.add_row(*shown, *cells(row))
        before = about
    return made


TRAFFIC_COLUMNS = (
    "programs",
    "requested",
    "unique",
    "unique / least",
    "dot FLOPs",
    "FLOPs / least",
    "sectors a request",
)


def traffic_cells(row: Row) -> tuple[str, ...]:
    return (
        str(row["programs"]),
        readable(row["requested_bytes"], "bytes"),
        readable(row["unique_bytes"], "bytes"),
        f"{row['unique_bytes'] / row['least_bytes']:.3f}",
        f"{row['dot_flops']:,.0f}" if row["dot_flops"] else "",
        f"{row['flops'] / row['least_flops']:.2f}" if row["least_flops"] else "",
        f"{row['sectors_per_request']:.1f}",
    )


CODE_COLUMNS = ("by", "launches", "target", "warps", "registers", "spilled", "shared / limit", "load, store bits",
                "tensor cores", "occupancy")  # fmt: skip


def code_cells(row: Row) -> tuple[str, ...]:
    if "not_compiled" in row:
        return (row["by"], row["not_compiled"], *[""] * (len(CODE_COLUMNS) - 2))
    cores = f"{row['tensor_core_instructions']} {row['tensor_cores']}" if row["tensor_cores"] else ""
    return (
        row["by"],
        row["launched"],
        row["target"],
        str(row["num_warps"]),
        str(row["registers"]),
        str(row["spilled_bytes"]),
        f"{row['shared_bytes'] / 1024:.0f} / {row['shared_limit'] / 1024:.0f} KiB",
        f"{row['widest_load'] or '–'}, {row['widest_store'] or '–'}",
        cores,
        f"{row['occupancy']:.0%} ({row['limited_by']})",
    )


ERROR_COLUMNS = ("on", "output", "RMS", "× torch's", "largest", "× torch's")


def error_cells(row: Row) -> tuple[str, ...]:
    def times(value: float | None) -> str:
        return "torch is exact" if value is None else f"{value:.2f}"

    return (
        row["on"],
        str(row["output"]),
        f"{row['rms']:.3g}",
        times(row["rms_ratio"]),
        f"{row['max']:.3g}",
        times(row["max_ratio"]),
    )


TIME_COLUMNS = ("pass", "by", "median", "rate", "of a copy", "predicted")


def time_cells(row: Row) -> tuple[str, ...]:
    who = (row["pass"], row["by"])
    if "published_flops" in row:
        return (*who, "", readable(row["published_flops"], "FLOP/s"), "", "")
    predicted = ""
    if "predicted_low" in row:
        low, high = (readable(row[name], "s") for name in ("predicted_low", "predicted_high"))
        predicted = f"{low} … {high} on {row['predicted_for']}"
    if error := row.get("prediction_error"):
        predicted += f", measured {error:+.0%}"
    if "not_measured" in row:
        return (*who, f"not measured: {row['not_measured']}", "", "", predicted)
    seconds = row["median_seconds"]
    amount, unit = (row["flops"], "FLOP/s") if row["tensor_core_kernel"] else (row["bytes"], "bytes/s")
    share = f"{row['share_of_copy']:.0%}" if "share_of_copy" in row else ""
    return (*who, readable(seconds, "s"), readable(amount / seconds, unit), share, predicted)
