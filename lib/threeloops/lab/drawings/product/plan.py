"""A run of a plan, day by day, with its failures. The end of lab 19 draws it."""

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from threeloops.figures import figure, legend_above, palette

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Span", "calendar_of", "draw_calendar"]

_DAY = 86400
_COLORS = {"kept": palette.green, "lost": palette.vermillion, "recovery": palette.orange}


class Span(NamedTuple):
    """Seconds from the start of the run, and "kept" (work and its save), "lost" or "recovery"."""

    begin: float
    end: float
    kind: str


def calendar_of(
    work: float, interval: float, save: float, recovery: float, mtbf: float, seed: int = 0
) -> tuple[list[Span], list[float]]:
    """Draw a run at random: its spans, and the moments of its failures. All times are in seconds.

    Failures are exponential with the mean `mtbf` of the whole job. A save and a recovery may fail as well.
    """
    rng = random.Random(seed)
    spans: list[Span] = []
    failures: list[float] = []
    now = done = 0.0
    failure = rng.expovariate(1 / mtbf)
    while done < work:
        piece = min(interval, work - done)
        end = now + piece + save
        if failure >= end:
            spans.append(Span(now, end, "kept"))
            done += piece
            now = end
            continue
        spans.append(Span(now, failure, "lost"))
        while True:
            now = failure
            failures.append(now)
            failure = now + rng.expovariate(1 / mtbf)
            end = min(now + recovery, failure)
            spans.append(Span(now, end, "recovery"))
            if failure > now + recovery:
                now = end
                break
    return spans, failures


def draw_calendar(spans: Sequence[Span], failures: Sequence[float], planned: float) -> "Figure":
    """Draw a row per day, from midnight to midnight; `planned` is the day on which the plan says the run is done."""
    days = int(spans[-1].end / _DAY) + 1
    fig, axes = figure(width=9.5, height=0.8 + 0.115 * max(days, planned))
    for span in spans:
        begin = span.begin
        while begin < span.end:
            day = int(begin / _DAY)
            end = min(span.end, (day + 1) * _DAY)
            axes.barh([day], [(end - begin) / 3600], left=begin / 3600 - 24 * day, height=0.8, color=_COLORS[span.kind])
            begin = end if end > begin else span.end
    for moment in failures:
        axes.plot(moment / 3600 % 24, int(moment / _DAY), "x", color=palette.ink, ms=5)
    axes.axhline(int(planned) + 0.5, color=palette.blue, ls="--", lw=1)
    axes.text(24.2, int(planned) + 0.5, "planned end", color=palette.blue, va="center", size=9)
    names = {"kept": "work that is kept", "lost": "work lost by a failure (×)", "recovery": "recovery"}
    legend_above(axes, {names[kind]: color for kind, color in _COLORS.items()})
    axes.set(xlim=(0, 24), ylim=(max(days, planned) + 0.5, -0.7), xlabel="hour of the day", ylabel="day of the run")
    axes.set_xticks(range(0, 25, 3))
    return fig
