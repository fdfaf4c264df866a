"""The report of `threeloops mutants`: how many mutants die, how many of them visibly, and every survivor."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from threeloops_grader.authoring.labs import Lab
from threeloops_grader.mutation.run import Verdict

__all__ = ["is_enough", "print_report", "to_dict"]

_DEAD = 0.99
_VISIBLY = 0.90
"""Shares of the mutants that some input can tell from the reference: those that must die, and die visibly."""


def is_enough(verdicts: Sequence[Verdict]) -> bool:
    """Return whether the lab's tests catch enough of its mutants, and the visible tests alone catch enough of them."""
    counted = [v for v in verdicts if not v.equivalent]
    dead, visibly = (sum(bool(v.caught_by) and (v.visibly or not seen) for v in counted) for seen in (False, True))
    return dead >= _DEAD * len(counted) and visibly >= _VISIBLY * len(counted)


def print_report(lab: Lab, verdicts: Sequence[Verdict], console: Console) -> None:
    columns = [Column(name, justify="right") for name in ("mutants", "equivalent", "caught", "visibly", "survived")]
    table = Table("exercise", *columns, title=f"Lab {lab.slug}", title_justify="left")
    for name in dict.fromkeys(v.mutant.exercise for v in verdicts):
        table.add_row(name, *_counts([v for v in verdicts if v.mutant.exercise == name]))
    table.add_row("all", *_counts(verdicts), style="bold")
    console.print(table)
    for title, shown in (
        ("survives", [v for v in verdicts if v.survived]),
        ("caught by hidden tests alone", [v for v in verdicts if v.caught_by and not v.visibly]),
    ):
        for v in shown:
            where = f"{v.mutant.exercise}, line {v.mutant.line} ({v.mutant.operator})"
            console.print(f"{title}: [bold]{escape(where)}[/]  {escape(v.mutant.fault)}", highlight=False)
            console.print(f"    in the line: {escape(v.mutant.place)}", highlight=False, soft_wrap=True)


def _counts(verdicts: Sequence[Verdict]) -> list[str]:
    counted = [v for v in verdicts if not v.equivalent]
    caught = [v for v in counted if v.caught_by]
    visibly = sum(v.visibly for v in caught)
    shares = [f"{number} ({number / max(1, len(counted)):.0%})" for number in (len(caught), visibly)]
    return [str(len(verdicts)), str(len(verdicts) - len(counted)), *shares, str(len(counted) - len(caught))]


def to_dict(lab: Lab, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    return {"lab": lab.slug, "mutants": [asdict(verdict) for verdict in verdicts]}
