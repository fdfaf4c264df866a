"""The author's commands: `threeloops new · test`."""

import time
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from grader.authoring.labs import find_lab

__all__ = ["new", "test"]

_console = Console()


def new(lab: Annotated[str, typer.Argument(help="Number and name of the new lab: 20_my_lab.")]) -> None:
    """Begin a lab: a source with one exercise, three wrong answers and another right one, which passes as it is."""
    from grader.author.new_lab import begin

    made = begin(lab)
    _console.print(
        f"{made.folder} is a lab that passes. Try it with `threeloops test {made.slug[:2]}`.", soft_wrap=True
    )


def test(lab: Annotated[str, typer.Argument(help="Number or name of the lab.")]) -> None:
    """Grade a lab's reference, its right and wrong answers, and the lab untouched and half done."""
    from grader.author.trial import trials
    from grader.machine.installed import require_solutions
    from grader.sandbox import bwrap
    from grader.sandbox.pool import close_pools

    chosen = find_lab(lab)
    require_solutions([chosen])
    started, answers, fell = time.monotonic(), 0, 0
    for trial in trials(chosen, "none" if bwrap.why_not() else "bwrap"):
        mark = "[red]✗[/]" if trial.faults else "[green]✓[/]"
        _console.print(f"{mark} {trial.name} ({trial.answers})", highlight=False)
        for fault in trial.faults:
            _console.print(f"    {fault}".replace("\n", "\n    "), markup=False, highlight=False, soft_wrap=True)
        answers, fell = answers + trial.answers, fell + bool(trial.faults)
    close_pools()
    said = f"{answers} answers in {time.monotonic() - started:.0f} s"
    _console.print(
        escape(f"{said}; {fell} submissions are not as they must be" if fell else f"{said}; all as expected")
    )
    raise typer.Exit(1 if fell else 0)
