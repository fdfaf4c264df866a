"""A save, one operation per frame, with a square for each state that a power cut may leave after it."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from threeloops.figures import figure, palette
from threeloops.training.checkpoint.crash.explore import loaded
from threeloops.training.checkpoint.crash.model.operations import Record
from threeloops.training.checkpoint.crash.model.rules import POSIX, Rules
from threeloops.training.checkpoint.crash.model.states import states_after

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Moment", "draw_power_cut", "power_cuts"]

_Verdict = Literal["old", "new", "neither"]
_COLOURS: dict[_Verdict, str] = {"old": palette.blue, "new": palette.green, "neither": palette.vermillion}
_PER_ROW = 12
_MOST_SHOWN = 84


class Moment(NamedTuple):
    """The moment after an operation: the result of a load in each state that a power cut may leave."""

    operation: str
    verdicts: tuple[_Verdict, ...]


def power_cuts(
    record: Record, load: Callable[[Path], Any], old: Any, new: Any, rules: Rules = POSIX
) -> tuple[Moment, ...]:
    """One moment for each operation of a record that replaces the value `old` by `new`."""
    moments = []
    for count, operation in enumerate(record.operations, start=1):
        verdicts: list[_Verdict] = []
        for state in states_after(Record(record.start, record.operations[:count]), rules):
            value = loaded(load, state.files)
            verdicts.append("old" if value == old else "new" if value == new else "neither")
        moments.append(Moment(str(operation), tuple(sorted(verdicts, key=list(_COLOURS).index))))
    return tuple(moments)


def draw_power_cut(moments: tuple[Moment, ...], at: int, title: str = "") -> "Figure":
    """The operations up to number `at` on the left; on the right the states that a power cut after it may leave."""
    fig, axes = figure(width=10.0, height=max(3.0, 0.34 * len(moments) + 1.1))
    step = 1.0 / max(8, len(moments))
    for place, moment in enumerate(moments):
        done = place <= at
        weight = "bold" if place == at else "normal"
        colour = palette.ink if done else palette.grey
        axes.text(0.03, 0.9 - place * step, moment.operation, va="center", fontsize=10, color=colour, weight=weight)
    axes.plot([0.0, 0.45], [0.9 - (at + 0.5) * step] * 2, color=palette.vermillion, lw=1.5, ls="--")
    verdicts = moments[at].verdicts
    for place, verdict in enumerate(verdicts[:_MOST_SHOWN]):
        row, column = divmod(place, _PER_ROW)
        x = 0.52 + 0.036 * column
        y = 0.8 - 0.085 * row
        axes.scatter([x], [y], marker="s", s=130, color=_COLOURS[verdict])
    counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in _COLOURS if verdicts.count(verdict)]
    more = f" ({_MOST_SHOWN} shown)" if len(verdicts) > _MOST_SHOWN else ""
    states = "1 state" if len(verdicts) == 1 else f"{len(verdicts)} states"
    axes.text(0.51, 0.92, f"{states}: {', '.join(counts)}{more}", va="center", fontsize=11, color=palette.ink)
    axes.set(xlim=(0, 1), ylim=(0.9 - len(moments) * step - 0.05 if len(moments) > 8 else -0.05, 1))
    axes.axis("off")
    axes.set_title(title or "A power cut at the dashed line may leave one of these states")
    return fig
