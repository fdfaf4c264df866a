"""`threeloops plan`: make a plan from a scenario, print it, and write it as documents on request."""

import datetime
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from threeloops.commands.faults import CommandError

if TYPE_CHECKING:
    from threeloops.capstone import Plan

__all__ = ["plan"]

_FORMATS = "md,docx,xlsx,pdf,pptx"


def plan(
    scenario: Annotated[str | None, typer.Argument(help="A TOML file, or the name of an example.")] = None,
    output: Annotated[Path | None, typer.Option("--output", help="Folder for the plan's documents.")] = None,
    formats: Annotated[str, typer.Option(help="Which documents to write.")] = _FORMATS,
    prices: Annotated[Path | None, typer.Option(help="A TOML file with prices, instead of the library's.")] = None,
    examples: Annotated[bool, typer.Option("--list", help="Name the examples.")] = False,
) -> None:
    """Plan a training run or a fleet: the hardware, the configuration, the duration, the cost, and what could change
    them.

    Exits 1 if nothing that the scenario allows is feasible, and prints changes that would make it feasible.
    """
    from threeloops.capstone import Infeasible, ScenarioError, make_plan, read_prices, read_scenario
    from threeloops.capstone import examples as names

    if examples:
        print("\n".join(names()))
        return
    if scenario is None:
        raise CommandError(f"no scenario: name a TOML file, or one of the examples {', '.join(names())}")
    console = Console(highlight=False)
    try:
        made = make_plan(read_scenario(scenario), read_prices(prices))
    except ScenarioError as error:
        raise CommandError(str(error)) from None
    except Infeasible as error:
        Console(stderr=True, highlight=False).print(f"[bold red]not feasible:[/] {escape(str(error))}", soft_wrap=True)
        raise typer.Exit(1) from None
    _show(made, console)
    if output is not None:
        from threeloops.capstone.documents import write

        chosen = tuple(name.strip() for name in formats.split(","))
        try:
            written = write(made, output, chosen, date=datetime.date.today().isoformat())
        except ValueError as error:
            raise CommandError(f"--formats {formats}: {error}") from None
        except OSError as error:
            raise CommandError(f"--output {output}: {error.strerror}") from None
        console.print("\n".join(f"wrote {path}" for path in written), markup=False, soft_wrap=True)


def _show(made: "Plan", console: Console) -> None:
    """Print tables that fit 80 columns. A pipe has this width in any terminal."""
    if not sys.stdout.isatty():
        console.width = 80
    console.print(f"[bold]{escape(made.scenario.title)}[/]\n")
    table = Table("decision", "choice", "why", expand=True, show_lines=True)
    for decision in made.decisions:
        other = "" if decision.runner_up == "none" else f"; the runner-up is {decision.runner_up}"
        table.add_row(
            decision.topic,
            f"[bold]{escape(decision.choice)}[/]",
            escape(f"{decision.reason} ({decision.margin}{other})"),
        )
    console.print(table)
    table = Table("accelerator", "cost, USD", "days", "GPUs", "plan", expand=True)
    for option in made.options:
        numbers = map(_number, (option.cost, option.days, option.gpus))
        table.add_row(option.accelerator, *numbers, escape(option.note))
    console.print(table)
    table = Table("bill", "USD", expand=True)
    for line in made.costs:
        table.add_row(line.label, f"{line.amount:,.0f}")
    table.add_row("[bold]Total[/]", f"[bold]{made['total_cost']:,.0f}[/]")
    console.print(table)
    table = Table("if", "cost, USD", "days", "then", expand=True, show_lines=True)
    for change in made.sensitivity:
        what = "; ".join(change.decisions) or "the same decisions"
        table.add_row(change.change, _number(change.cost), _number(change.days), escape(what))
    console.print(table)


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
