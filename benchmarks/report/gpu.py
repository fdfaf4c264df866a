"""Rows that only a GPU can give: attention, sustained rates, the GPU tests, and the time of every kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.kernel_part import COPY, OURS, TORCH
from benchmarks.report.evidence import COLLECTED, Evidence
from benchmarks.report.inner import Record, errors
from benchmarks.report.rows import FASTER, LOSS, SAME, Row, amount, distance, fact, predicted, verdict

TIMES = ("kernel", "ours", "torch", "best other peer", "our rate", "ours against the best")
"""The columns of `kernel_times`."""


def collected(evidence: Evidence) -> Iterator[Row]:
    """Yield the findings of `make evidence`: tests, errors of compiled kernels, labs."""
    parts: Mapping[str, Any] = evidence.facts
    if tests := ((parts.get("GPU tests") or {}).get("result") or {}).get("tests"):
        passed = sum(test["outcome"] == "passed" for test in tests)
        yield fact(evidence, "GPU tests that pass", f"{passed} of {len(tests)}")
    if rows := [row for name, part in parts.items() if name.startswith("kernel errors") for row in rows_of(part)]:
        right = sum(bool(row.get("within")) for row in rows)
        yield fact(evidence, "outputs of compiled kernels within their error limit", f"{right} of {len(rows)}")
        yield from errors(evidence, rows)
    off = [row["prediction_error"] for row in rows_of(parts.get("kernel times")) if "prediction_error" in row]
    if off:
        inside = sum(not error for error in off)
        outcome = f"{inside} of {len(off)} within the predicted range; {distance(off)}, median {median(off):+.0%}"
        say = "call time, predicted from the minimum bytes and FLOPs"
        yield from predicted(evidence, say, (f"{len(off)} kernels and passes", outcome))
    if labs := [part for name, part in parts.items() if name.startswith("lab ")]:
        done = sum(part["status"] == "ok" for part in labs)
        yield fact(evidence, "labs whose solution notebook runs to the end", f"{done} of {len(labs)}")


def rows_of(part: Record | None) -> list[Record]:
    """The rows of a part that works piece by piece, finished or not."""
    result = (part or {}).get("result") or []
    return list(result["rows"] if isinstance(result, dict) else result)


def sustained(evidence: Evidence) -> Iterator[Row]:
    """Yield the rate under load compared with a burst's, with the clock, power and temperature at the end."""
    for series in evidence.series:
        peer = evidence.peer_of(series)
        if series.by.startswith("last") and peer:
            state = evidence.note(rf"^{re.escape(series.what)}: .*last ten seconds(, .*)$")
            left = series.median / peer.median
            against = (
                f"{peer.by}: {amount(peer.samples, peer.unit)}",
                f"{LOSS if left < 1 else SAME} {left:.0%} of the burst rate",
            )
            yield fact(evidence, f"{series.what}, {series.by}", amount(series.samples, series.unit) + state, against)


def attention_backward(evidence: Evidence) -> Iterator[Row]:
    """Both passes in FLOP/s by the width of a head, and how much longer the backward pass takes."""
    rates, shapes = evidence.facts["rates"], evidence.facts["shapes"]
    peers = [by for by in dict.fromkeys(row["by"] for row in rates) if by != OURS]
    widths = sorted({shape["head_dim"] for shape in shapes.values()})
    for direction in ("forward", "backward"):
        for width in widths:
            names = [name for name, shape in shapes.items() if shape["head_dim"] == width]
            say = f"attention {direction}, heads of {width}, {len(names)} shapes"
            yield from _attention(evidence, f"{direction}_flops_per_second", "FLOP/s", names, peers, say)
    say = "attention: backward ÷ forward time (five matrix products in the backward pass, two in the forward pass)"
    yield from _attention(evidence, "backward_over_forward", "", list(shapes), peers, say)


def _attention(
    evidence: Evidence, name: str, unit: str, shapes: Sequence[str], peers: Sequence[str], say: str
) -> Iterator[Row]:
    """One number of the benchmark over some shapes, ours beside each peer's; only rates are judged."""
    known = {(row["shape"], row["by"]): row[name] for row in evidence.facts["rates"] if row.get(name) is not None}
    against, mine = [], ""
    for peer in peers:
        if both := [shape for shape in shapes if (shape, OURS) in known and (shape, peer) in known]:
            ours, theirs = ([known[shape, by] for shape in both] for by in (OURS, peer))
            ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
            mine = mine or amount(ours, unit)
            against.append((f"{peer}: {amount(theirs, unit)}", verdict(ratios, FASTER) if unit else ""))
    if against:
        yield fact(evidence, say, mine, *against)


def kernel_times(files: Sequence[Evidence]) -> tuple[Evidence | None, list[tuple[str, ...]]]:
    """A line per kernel and pass, over its shapes and dtypes: from the full benchmark, or from `make evidence`."""
    for name in ("kernels", COLLECTED):
        for evidence in (each for each in files if each.name == name):
            rows = evidence.facts["time"] if name == "kernels" else rows_of(evidence.facts.get("kernel times"))
            if lines := list(_lines([row for row in map(_with_median, rows) if "median_seconds" in row])):
                return evidence, lines
    return None, []


def _with_median(row: Record) -> Record:
    return {**row, "median_seconds": median(row["seconds"])} if "seconds" in row else row


def _lines(rows: Sequence[Record]) -> Iterator[tuple[str, ...]]:
    for kernel, direction in dict.fromkeys((row["kernel"], row["pass"]) for row in rows):
        cases: dict[str, dict[str, Record]] = {}
        for row in rows:
            if (row["kernel"], row["pass"]) == (kernel, direction):
                cases.setdefault(f"{row['shape']} {row['dtype']}", {})[row["by"]] = row
        shared = [parties for parties in cases.values() if OURS in parties and len(parties) > 1]
        if kernel == COPY:
            torch = [parties[TORCH] for parties in cases.values()]
            yield (kernel, "", f"{_times(torch)}, {_rates(torch)}", "", "", "")
        elif shared:
            yield (kernel if direction == "forward" else f"{kernel}, {direction}", *_cells(shared))


def _cells(cases: Sequence[Mapping[str, Record]]) -> tuple[str, ...]:
    """Ours, torch's, the best other peer's, our rate and the verdict, over all cases of one kernel and pass."""
    ours = [case[OURS] for case in cases]
    torch = [case[TORCH] for case in cases if TORCH in case]
    others = [[row for by, row in case.items() if by not in (OURS, TORCH)] for case in cases]
    best = [min(rows, key=_seconds) for rows in others if rows]
    names = ", ".join(dict.fromkeys(row["by"] for row in best))
    fastest = [min(_seconds(row) for by, row in case.items() if by != OURS) for case in cases]
    ratios = [theirs / _seconds(mine) for mine, theirs in zip(ours, fastest, strict=True)]
    other = f"{names}: {_times(best)}" if best else ""
    return _times(ours), _times(torch) if torch else "", other, _rates(ours), verdict(ratios, FASTER)


def _seconds(row: Record) -> float:
    return float(row["median_seconds"])


def _times(rows: Sequence[Record]) -> str:
    return amount([_seconds(row) for row in rows], "s")


def _rates(rows: Sequence[Record]) -> str:
    """FLOP/s if arithmetic bounds the kernel by the model's prediction, else bytes/s."""
    work, unit = ("flops", "FLOP/s") if rows[0].get("predicted_bound") == "compute" else ("bytes", "bytes/s")
    return amount([row[work] / _seconds(row) for row in rows], unit)
