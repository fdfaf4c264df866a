"""The author's commands: `threeloops new · test · leaks`."""

import time
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape

from threeloops_grader.authoring.labs import all_labs, find_lab
from threeloops_grader.machine.installed import require_solutions

__all__ = ["leaks", "new", "test"]

_console = Console()


def new(lab: Annotated[str, typer.Argument(help="Number and name of the new lab: 30_my_lab.")]) -> None:
    """Begin a lab: a source with one exercise, three wrong answers and another right one. It passes unchanged."""
    from threeloops_grader.author.new_lab import begin

    made = begin(lab)
    _console.print(
        f"{made.folder} is a lab that passes. Try it with `threeloops test {made.slug[:2]}`.", soft_wrap=True
    )


def test(lab: Annotated[str, typer.Argument(help="Number or name of the lab.")]) -> None:
    """Grade a lab's reference, its right and wrong answers, and the lab untouched and half done."""
    from threeloops_grader.author.trial import trials
    from threeloops_grader.sandbox import bwrap
    from threeloops_grader.sandbox.pool import close_pools

    chosen = find_lab(lab)
    require_solutions([chosen])
    started = time.monotonic()
    answers = 0
    fell = 0
    for trial in trials(chosen, "none" if bwrap.why_not() else "bwrap"):
        mark = "[red]✗[/]" if trial.faults else "[green]✓[/]"
        _console.print(f"{mark} {trial.name} ({trial.answers})", highlight=False)
        for fault in trial.faults:
            _console.print(f"    {fault}".replace("\n", "\n    "), markup=False, highlight=False, soft_wrap=True)
        answers += trial.answers
        fell += bool(trial.faults)
    close_pools()
    summary = f"{answers} answers in {time.monotonic() - started:.0f} s"
    _console.print(
        escape(f"{summary}; {fell} submissions are not as they must be" if fell else f"{summary}; all as expected")
    )
    raise typer.Exit(1 if fell else 0)


def leaks(
    labs: Annotated[list[str] | None, typer.Argument(help="Labs; all of them if none is named.")] = None,
    source: Annotated[
        Literal["notebook", "ranks", "library"],
        typer.Option(help="ranks: parts that run on ranks or a recorded disk; library: functions of the library."),
    ] = "notebook",
    jobs: Annotated[int, typer.Option(min=1, help="Labs searched at a time.")] = 2,
) -> None:
    """Try answers copied from the released notebooks or from the library, and exit 1 if one earns points.

    Exercises whose answer a lab gives on purpose are listed under `handed_out` in its header, and may leak.
    The library's functions are tried in namespaces of their own, and not at all on a machine that has none.
    """
    from threeloops_grader.machine.side_by_side import side_by_side
    from threeloops_grader.proposals.faults import faults
    from threeloops_grader.proposals.search import find_leaks
    from threeloops_grader.proposals.trial import why_not_alone

    if source == "library" and (reason := why_not_alone()):
        _console.print(f"The library was not searched: its functions need namespaces of their own ({reason}).")
        return
    chosen = [find_lab(name) for name in labs] if labs else all_labs()
    require_solutions(chosen)
    started = time.monotonic()
    faulty = 0
    earned = 0.0
    exercises = 0
    with _console.status("") as status:
        searched = side_by_side(find_leaks, [(lab, source) for lab in chosen], status.update, jobs)
        for lab, leaking in searched:
            exercises += len(leaking)
            earned += sum(leak.points for leak in leaking)
            for fault in faults(lab, leaking, source):
                faulty += 1
                _console.print(f"✗ {fault}", markup=False, highlight=False, soft_wrap=True)
    _console.print(
        f"{exercises} exercises leak {earned:g} points, {exercises - faulty} of them on purpose "
        f"({time.monotonic() - started:.0f} s)"
    )
    raise typer.Exit(1 if faulty else 0)
