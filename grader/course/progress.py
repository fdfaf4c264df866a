"""Live progress of long commands: one line that is redrawn on a terminal, one line per step in a log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from grader.authoring.labs import Lab
from grader.course.course import Step
from grader.course.execute import OnCell


class Watcher:
    """Prints steps. On a terminal the running step is redrawn in place; elsewhere only finished steps are printed."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self.console, self.live = console, live

    def step(self, step: Step) -> None:
        where = f"{step.cell}/{step.of}" if step.of else ""
        points = f"{step.points:g}/{step.max_points:g} points" if step.points is not None else ""
        line = f"{step.lab:<24} {step.what:<11} {where:>7} {step.seconds:6.1f} s  {points}".rstrip()
        if step.done:
            self.console.print(escape(line), highlight=False)
        elif self.live is not None:
            self.live.update(Text(line, style="dim"))

    def cells(self, lab: Lab) -> OnCell:
        return lambda cell, of: self.step(Step(lab.slug, "executing", cell, of))

    def finished(self, lab: Lab, seconds: float, error: str) -> None:
        self.step(Step(lab.slug, "failed" if error else "executed", seconds=seconds, done=True))
        if error:
            self.console.print(f"  {escape(error)}", style="red", highlight=False)


@contextmanager
def watching(console: Console) -> Iterator[Watcher]:
    """A watcher for the duration of a command."""
    with Live(console=console, transient=True, refresh_per_second=8) if console.is_terminal else nullcontext() as live:
        yield Watcher(console, live)
