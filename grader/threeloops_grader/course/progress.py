"""Live progress of long commands: one line that is redrawn on a terminal, one line per step in a log."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from threeloops_grader.course.course import Progress, Watch

__all__ = ["watching"]


@contextmanager
def watching(console: Console) -> Iterator[Watch]:
    """Print steps. On a terminal the running step is redrawn in place. Elsewhere only finished steps are printed."""
    live = Live(console=console, transient=True, refresh_per_second=8)

    def show(step: Progress) -> None:
        where = f"{step.cell}/{step.of}" if step.of else ""
        points = f"{step.points:g}/{step.max_points:g} points" if step.points is not None else ""
        line = f"{step.lab:<24} {step.what:<11} {where:>7} {step.seconds:6.1f} s  {points}".rstrip()
        if step.done:
            console.print(escape(line), highlight=False)
        elif console.is_terminal:
            live.update(Text(line, style="dim"))
        if step.error:
            console.print(f"  {escape(step.error)}", style="red", highlight=False)

    with live if console.is_terminal else nullcontext():
        yield show
