"""Rows about single kernels: what they move, the code they compile to, their errors, and what judging them costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.kernel_part import LIGER, OURS
from benchmarks.report.evidence import Evidence
from benchmarks.report.rows import (
    FASTER,
    GAIN,
    HIGHER,
    LOSS,
    NEARLY,
    PUBLISHED,
    SAME,
    Row,
    beside,
    fact,
    verdict,
    within,
)
from benchmarks.result import readable
from benchmarks.tables import span

Record = Mapping[str, Any]

BITS = {"16-bit": ("float16", "bfloat16"), "32-bit": ("float32",)}
GATHER = "random gather"
"""The kernel that costs a meter most: it touches a sector per element."""
_INSIDE = "inside its interval"


def kernels(evidence: Evidence) -> Iterator[Row]:
    """Counted traffic, generated code and errors, or on a GPU errors alone: the rest is the same on every machine."""
    on = "cuda" if evidence.on_gpu else "cpu"
    if not evidence.on_gpu:
        yield from traffic(evidence)
        yield from code(evidence)
    yield from errors(evidence, [row for row in evidence.facts["error"] if row["on"] == on])


def traffic(evidence: Evidence) -> Iterator[Row]:
    rows = evidence.facts["traffic"]
    apart = max(abs(row["unique_bytes"] / row["least_bytes"] - 1) for row in rows)
    names, dtypes = ({row[key] for row in rows} for key in ("kernel", "dtype"))
    say = f"unique bytes moved by {len(names)} kernels in {len(dtypes)} dtypes, round and ragged shapes"
    least = ("the least that the operation must move", f"{SAME} within {within(apart)}")
    yield fact(evidence, say, f"{len(rows)} cases", least)
    findings = sum(bool(row["findings"]) for row in rows)
    say = "cases with out-of-bounds accesses, races or uninitialised reads"
    yield fact(evidence, say, f"{findings} of {len(rows)}")


def code(evidence: Evidence) -> Iterator[Row]:
    """Pieces of compiled code: how many spill registers, fit their target, and use tensor cores."""
    rows = [row for row in evidence.facts["code"] if "not_compiled" not in row]
    ours, theirs = ([row for row in rows if row["by"] == by] for by in (OURS, LIGER))
    share, other = (sum(row["spilled_bytes"] > 0 for row in some) / max(len(some), 1) for some in (ours, theirs))
    outcome = f"{SAME} as many" if share == other else f"{GAIN} fewer" if share < other else f"{LOSS} more"
    say = f"compiled kernels that spill registers, for {', '.join(dict.fromkeys(row['target'] for row in ours))}"
    against = [(f"Liger: {counted(theirs, 'spilled_bytes')}", outcome)] if theirs else []
    yield fact(evidence, say, counted(ours, "spilled_bytes"), *against)
    yield fact(evidence, "compiled kernels that their target can run", counted(ours, "fits"))
    cores = evidence.facts["summary"]["16-bit kernels of matrix operations on tensor cores"]
    yield fact(evidence, "16-bit matrix kernels that use tensor cores", f"{cores['are']} of {cores['of']}")


def counted(rows: Sequence[Record], name: str) -> str:
    return f"{sum(bool(row[name]) for row in rows):,} of {len(rows):,}"


def errors(evidence: Evidence, rows: Sequence[Record]) -> Iterator[Row]:
    """RMS errors against float64 over those of torch's own operators, by the width of the dtype."""
    how = "compiled" if evidence.on_gpu else "interpreted"
    for name, dtypes in BITS.items():
        known = [row["rms_ratio"] for row in rows if row["dtype"] in dtypes and row.get("rms_ratio") is not None]
        if known:
            sign = LOSS if max(known) > 1 + NEARLY else SAME
            outcome = f"{sign} at most {max(known):.2f} times as large, median {median(known):.2f}"
            say = f"RMS error against float64, {name} kernels, {how}"
            yield fact(evidence, say, f"{len(known)} outputs", ("torch's own operators", outcome))


def meter(evidence: Evidence) -> Iterator[Row]:
    """Yield the overhead of counting bytes in an interpreted kernel, beside that of triton-viz's profiler.

    A random gather has a row of its own.
    """
    for interpreter in dict.fromkeys(row["interpreter"] for row in evidence.facts["overhead"]):
        for gather in (False, True):
            rows = [row for row in evidence.facts["overhead"] if row["interpreter"] == interpreter]
            here = [row for row in rows if (row["kernel"] == GATHER) == gather]
            ours, theirs = (_times(here, by) for by in ("meter", "triton-viz profiler"))
            both = [kernel for kernel in ours if kernel in theirs]
            outcome = verdict([theirs[kernel] / ours[kernel] for kernel in both], FASTER)
            name = "triton-viz's profiler"
            peer = f"{name}: {span(theirs.values(), '{:.2f}'.format)}" if theirs else f"{name} fails"
            say = f"time with the meter ÷ time without it, in {interpreter}: {', '.join(ours)}"
            yield fact(evidence, say, span(ours.values(), "{:.2f}".format), (peer, outcome))


def _times(rows: Sequence[Record], by: str) -> dict[str, float]:
    return {row["kernel"]: row["times"] for row in rows if row["by"] == by}


def liger(evidence: Evidence) -> Iterator[Row]:
    """Liger's operations: how many the meter runs and counts as by hand, and what that adds beside triton-viz."""
    summary, table = evidence.facts["summary"], evidence.facts["operations"]

    def share(what: str) -> str:
        return f"{summary[what]['are']} of {summary[what]['of']}"

    say = "operations of Liger that run in the meter, with values within Liger's tolerances and bytes counted by hand"
    whole = ("run in the meter", "values within Liger's tolerances", "bytes as counted by hand")
    peer = (f"triton-viz's profiler, bytes: {share('bytes as counted by hand, by triton-viz')}", "")
    yield fact(evidence, say, ", ".join(share(what) for what in whole), peer)
    both = [row for row in table if "times" in row["meter"] and "times" in row.get("triton_viz", {})]
    ours, theirs = ([row[by]["times"] for row in both] for by in ("meter", "triton_viz"))
    outcome = verdict([peer / own for own, peer in zip(ours, theirs, strict=True)], FASTER)
    say = "time with the meter ÷ time without it, operations of Liger on a few rows, forward and backward"
    against = (f"triton-viz's profiler: {span(theirs, '{:.2f}'.format)}", outcome)
    yield fact(evidence, say, span(ours, "{:.2f}".format), against)


def replay(evidence: Evidence) -> Iterator[Row]:
    """Yield the time for judging one kernel of a student's."""
    facts = evidence.facts
    budget = (
        f"budget: {readable(facts['budget_seconds'], 's')}",
        f"{GAIN} met" if facts["within_budget"] else f"{LOSS} missed",
    )
    whats = evidence.quantities("")
    say = f"replay of a student's kernel: {', '.join(whats)}"
    yield from beside(evidence, whats, "replay behind the wall", say=say, also=[budget])


def roofline(evidence: Evidence) -> Iterator[Row]:
    """The machine's rates as the library measures them, beside torch's own stopwatch."""
    for what in evidence.quantities(""):
        yield from beside(evidence, what, "threeloops.hardware", say=f"{what}, measured by the library", words=HIGHER)


def silicon(evidence: Evidence) -> Iterator[Row]:
    """The errors of predicted kernels on shapes left out of the fit, a row per kind of kernel."""
    kernels = evidence.facts["report"]["kernels"]
    for kind in dict.fromkeys(name.rpartition(", ")[0] for name in kernels):
        members = [kernel for name, kernel in kernels.items() if name.startswith(f"{kind}, ")]
        errors = [kernel["held-out"]["MAPE"] for kernel in members]
        ours = ", ".join(f"{of['device']} {error:.1%}" for of, error in zip(members, errors, strict=True))
        against = []
        for party, name in (("nearest neighbour", "nearest shape"), ("present predictor", _present(members))):
            others = [kernel[party]["MAPE"] for kernel in members]
            against.append((f"{name}: {span(others, '{:.1%}'.format)}", _smaller(errors, others)))
        say = f"mean error of predicted times on shapes left out of the fit: {kind}"
        yield fact(evidence, say, ours, *against, level=PUBLISHED)
    for kind in dict.fromkeys(kernel["kind"] for kernel in kernels.values()):
        parties = [kernel["present predictor"] for kernel in kernels.values() if kernel["kind"] == kind]
        shares = [party[_INSIDE] for party in parties if _INSIDE in party]
        if not shares:
            continue
        say = f"published times inside the interval of predict(), shapes left out of its fit: {kind}"
        yield fact(evidence, say, span(shares, "{:.0%}".format), level=PUBLISHED)
    served = evidence.facts["time per output token"]
    ours = ", ".join(f"{name}: {table['median']:.1%} (p90 {table['p90']:.1%})" for name, table in served.items())
    yield fact(evidence, "median error of the predicted time per output token, from kernels", ours, level=PUBLISHED)
    trained = evidence.facts["training runs"]
    ours = ", ".join(f"{name} {of['mean']:.1%} (largest {of['largest']:.0%})" for name, of in trained.items())
    present = ", ".join(f"{name} {of['mean by rates']:.1%}" for name, of in trained.items())
    say = "mean error of the step of published training runs, from kernels"
    outcome = _smaller([of["mean"] for of in trained.values()], [of["mean by rates"] for of in trained.values()])
    yield fact(evidence, say, ours, (f"rates of the machine: {present}", outcome), level=PUBLISHED)


def _present(members: Sequence[Record]) -> str:
    return "data sheet" if _INSIDE in members[0]["present predictor"] else "closed form"


def _smaller(errors: Sequence[float], others: Sequence[float]) -> str:
    worse = sum(ours >= theirs for ours, theirs in zip(errors, others, strict=True))
    return f"{LOSS} not smaller on {worse} of {len(errors)}" if worse else f"{GAIN} smaller on all"
