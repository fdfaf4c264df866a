"""Failures of a job: where its time goes, and how the state of a lost rank is shared among the survivors."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from threeloops.figures import ON_LIGHT, figure, fitting, legend_above, name_bar, name_rows, palette, text_inches

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_accounts", "draw_delay", "draw_log", "draw_new_parts", "log_account", "travelling"]

_COLOURS = {
    "useful": palette.green, "not saved yet": palette.sky, "lost": palette.vermillion, "save": palette.orange,
    "restart": palette.grey,
}  # fmt: skip
_OF_RANKS = (palette.sky, palette.orange, palette.green, palette.purple, palette.yellow)


class _Stretch(NamedTuple):
    start: float
    end: float
    kind: str


def _log_stretches(events: Sequence[tuple[float, str]], until: float) -> list[_Stretch]:
    """Return what the job did from second 0 to `until`, as it is known then: work is not safe before its save has
    ended.

    Events are (second, kind): "save", "saved", "failed", "running", and "end", after which nothing comes.
    """
    done: list[_Stretch] = []
    doing = "not saved yet"
    since = 0.0
    decided = 0  # so many stretches have their fate
    for at, what in [*events, (until, "now")]:
        if at > until:
            at = until
            what = "now"
        if at > since:
            done.append(_Stretch(since, at, doing))
        since = at
        if what in ("saved", "failed", "end"):
            fate = "useful" if what == "saved" else "lost"
            for n in range(decided, len(done)):
                if done[n].kind == "not saved yet":
                    done[n] = done[n]._replace(kind=fate)
            decided = len(done)
        if what in ("now", "end"):
            return done
        doing = {"save": "save", "failed": "restart"}.get(what, "not saved yet")
    return done


def draw_log(events: Sequence[tuple[float, str]], until: float, unit: str = "s", sums: bool = True) -> "Figure":
    """The log up to `until` on a line, and below, with `sums`, how many seconds of each kind there are."""
    end = max(at for at, _ in events)
    done = _log_stretches(events, until)
    plot, axes = figure(width=9.5, height=2.6 if sums else 1.9)
    for stretch in done:
        axes.barh(
            0,
            stretch.end - stretch.start,
            left=stretch.start,
            height=0.7,
            color=_COLOURS[stretch.kind],
            edgecolor="white",
        )
    for at in (at for at, what in events if what == "failed" and at <= until):
        axes.plot([at, at], [-0.42, 0.42], color=palette.ink, lw=2.2)
        axes.text(at, -0.5, "failure", ha="center", va="bottom", size=10)
    rows = [0.0]
    if sums:
        place = 0.0
        for kind, colour in _COLOURS.items():
            seconds = sum(stretch.end - stretch.start for stretch in done if stretch.kind == kind)
            axes.barh(1.5, seconds, left=place, height=0.7, color=colour, edgecolor="white")
            name_bar(axes, place + seconds / 2, 1.5, fitting(f"{kind} {seconds:g}", seconds / end * 8, 10), 10)
            place += seconds
        rows.append(1.5)
    axes.set(xlim=(0, end), ylim=(2.0 if sums else 0.6, -0.95), xlabel=f"time ({unit})")
    name_rows(axes, rows, ["the job", "its account"][: len(rows)])
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    legend_above(axes, _COLOURS)
    return plot


def log_account(events: Sequence[tuple[float, str]]) -> dict[str, float]:
    """The seconds of a whole log by what they were spent on. It must end with "end"."""
    spent = {"useful": 0.0, "lost": 0.0, "save": 0.0, "restart": 0.0}
    for stretch in _log_stretches(events, events[-1][0]):
        spent[stretch.kind] += stretch.end - stretch.start
    return spent


def draw_accounts(accounts: Mapping[str, Mapping[str, float]], expected: Mapping[str, float]) -> "Figure":
    """Draw the shares of each account in percent, one bar per account, from 60% on if all are at least that useful.

    `expected` is the useful share that a model expects, from 0 to 1; a line marks it.
    """
    plot, axes = figure(width=9.5, height=0.9 + 0.5 * len(accounts))
    useful = [account["useful"] / sum(account.values()) for account in accounts.values()]
    start = 60.0 if min(useful) > 0.6 else 0.0
    for row, (name, account) in enumerate(accounts.items()):
        place = 0.0
        for kind in ("useful", "save", "lost", "restart"):
            share = 100 * account[kind] / sum(account.values())
            axes.barh(row, share, left=place, height=0.66, color=_COLOURS[kind], edgecolor="white")
            shown = place + share - max(place, start)
            name_bar(axes, place + share - shown / 2, row, fitting(f"{share:.1f}%", shown / (100 - start) * 7.4, 9))
            place += share
        line = 100 * expected[name]
        axes.plot([line, line], [row - 0.45, row + 0.45], color=palette.ink, lw=2.2)
    axes.set(
        xlim=(start, 100),
        ylim=(len(accounts) - 0.4, -0.6),
        xlabel="share of the year (%); lines: the model's useful share",
    )
    name_rows(axes, list(range(len(accounts))), list(accounts))
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    legend_above(axes, {kind: _COLOURS[kind] for kind in ("useful", "save", "lost", "restart")})
    return plot


def draw_delay(runs: Mapping[str, Sequence[tuple[str, float]]]) -> "Figure":
    """Draw what runs consist of, one bar per run. A run is a list of (name, seconds)."""
    end = max(sum(seconds for _, seconds in parts) for parts in runs.values())
    colours = {"timeout": palette.vermillion, "step that is lost": palette.orange, "regroup": palette.purple}
    plot, axes = figure(width=9.5, height=2.2)
    for row, parts in enumerate(runs.values()):
        place = 0.0
        for name, seconds in parts:
            colour = colours.get(name, palette.green)
            axes.barh(row, seconds, left=place, height=0.6, color=colour, edgecolor="white")
            labels = (f"{name}: {seconds:.2f} s", f"{seconds:.2f} s", "")
            room = seconds / end * 7.6
            name_bar(
                axes,
                place + seconds / 2,
                row,
                next(text for text in labels if text_inches(text, 9) + 0.1 < room or not text),
            )
            place += seconds
        axes.text(place + end / 100, row, f"{place:.2f} s", va="center", size=10)
    axes.set(xlim=(0, 1.09 * end), ylim=(len(runs) - 0.5, -0.6), xlabel="seconds")
    name_rows(axes, list(range(len(runs))), list(runs))
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    legend_above(axes, {"steps": palette.green} | colours)
    return plot


def _part(elements: int, ranks: int, place: int) -> range:
    return range(place * elements // ranks, (place + 1) * elements // ranks)


def _new_places(elements: int, ranks: int, lost: int) -> list[tuple[int, int, str]]:
    """Each element with its new rank, and how that rank comes by it: "own", "copy" or "travels"."""
    survivors = [rank for rank in range(ranks) if rank != lost]
    return [
        (element, rank, how)
        for place, rank in enumerate(survivors)
        for element in _part(elements, len(survivors), place)
        for how in [
            "own"
            if element in _part(elements, ranks, rank)
            else "copy"
            if element in _part(elements, ranks, (rank - 1) % ranks)
            else "travels"
        ]
    ]


def travelling(elements: int, ranks: int, lost: int) -> int:
    """How many elements the new rank neither has nor keeps as a copy."""
    return sum(how == "travels" for _, _, how in _new_places(elements, ranks, lost))


def draw_new_parts(elements: int, ranks: int, lost: int) -> "Figure":
    """Draw the parts before a loss, their copies, and the new parts, with the data that has to travel."""
    plot, axes = figure(width=9.5, height=2.7)
    for rank in range(ranks):
        own = _part(elements, ranks, rank)
        gone = rank == lost
        for y, holder in ((0.0, rank), (1.0, (rank + 1) % ranks)):
            out = holder == lost
            axes.barh(
                y,
                len(own),
                left=own.start,
                height=0.75,
                edgecolor="white",
                color=palette.grey if out else _OF_RANKS[holder % len(_OF_RANKS)],
                alpha=0.35 if out else 1.0,
            )
            if len(own):
                name = f"rank {holder}" + (" (lost)" if out and not gone * y else "")
                ink = palette.ink if out else ON_LIGHT
                name_bar(axes, own.start + len(own) / 2, y, fitting(name, len(own) / elements * 8, 9), color=ink)
    new_places = _new_places(elements, ranks, lost)
    for rank in {rank for _, rank, _ in new_places}:
        mine = [(element, how) for element, other, how in new_places if other == rank]
        first = mine[0][0]
        last = mine[-1][0] + 1
        axes.barh(2.2, last - first, left=first, height=0.75, color=_OF_RANKS[rank % len(_OF_RANKS)], edgecolor="white")
        for element, how in mine:
            if how == "travels":
                axes.barh(2.2, 1, left=element, height=0.75, color=palette.vermillion)
        name_bar(axes, (first + last) / 2, 2.2, fitting(f"rank {rank}", (last - first) / elements * 8, 9))
    axes.set(xlim=(0, elements), ylim=(2.7, -0.5), xlabel="element of the state")
    name_rows(axes, [0.0, 1.0, 2.2], ["own part", "copy held by", "new parts"])
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    count = travelling(elements, ranks, lost)
    axes.set_title(f"{ranks} ranks, rank {lost} is lost: {count} of {elements} elements travel (red)")
    return plot
