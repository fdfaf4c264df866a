"""Parts of a notebook that stay folded until something has happened: a guess, or a passed check.

Without a front end nobody can press a button, so nothing is folded: papermill and exported pages show everything.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from threeloops.lab.recording.notes import note, recording
from threeloops.lab.widgets import cards
from threeloops.lab.widgets.display import Piece, capture, execution, html_widget, live, publish

__all__ = ["fold", "folded", "forget", "happened", "happens", "when"]

_happened: set[str] = set()
_waiting: dict[str, list[Callable[[], None]]] = {}
_said_in: dict[str, int] = {}
"""The execution of a cell that last printed what it waits for, by event."""
_folding: list[str] = []
"""The events of the folded blocks that are being run, the outermost first."""


def happens(event: str) -> None:
    """Unfold everything that waits for this event, and do not fold later parts that wait for it."""
    _happened.add(event)
    for act in _waiting.pop(event, []):
        act()


def forget(event: str) -> None:
    """Note that an event no longer holds, because a check that passed before has failed."""
    _happened.discard(event)


def happened(event: str) -> bool:
    return event in _happened


def when(event: str, act: Callable[[], None]) -> None:
    """Call `act` once, at the next `happens(event)`."""
    _waiting.setdefault(event, []).append(act)


@contextmanager
def folded(event: str, until: str) -> Iterator[None]:
    """Fold what is shown inside until `event`. `until` tells the reader what to do for it."""
    if _open(event):
        with _noting(event):
            yield
        return
    _folding.append(event)
    try:
        with capture() as pieces:
            yield
    finally:
        _folding.pop()
    _publish(event, pieces, until, lambda: pieces)


def fold(event: str, until: str, show: Callable[[], None]) -> None:
    """Fold what `show` shows until `event`, and call it again then."""

    def shown() -> list[Piece]:
        with capture() as pieces:
            show()
        return pieces

    if _open(event):
        with _noting(event):
            show()
    else:
        _publish(event, shown(), until, shown)


@contextmanager
def _noting(event: str) -> Iterator[None]:
    """Note in a recording what the outputs inside would wait for. Printed text becomes an output of its own."""
    if not recording():
        yield
        return
    with capture() as pieces:
        yield
    with note(until=event):
        for piece in pieces:
            publish(piece.text, piece.bundle, piece.metadata, piece.widget)


def _open(event: str) -> bool:
    return not live() or happened(event)


def _publish(event: str, pieces: list[Piece], until: str, unfolded: Callable[[], list[Piece]]) -> None:
    """Publish one output that opens with the `unfolded` pieces. If no kernel answers, `pieces` are shown instead."""
    html = "".join(piece.html() for piece in pieces)
    publish(until, {"text/html": html}, widget=_box(event, unfolded, until))


def _box(event: str, unfolded: Callable[[], list[Piece]], until: str) -> Any:
    """Return the live form. Only the first box of a cell says what it waits for. The others stay empty until they open.

    A box inside a folded block that waits for the same event stays empty too.
    """
    import ipywidgets

    inside = event in _folding
    announced = inside or _said_in.get(event) == execution()
    if not inside:
        _said_in[event] = execution()
    notice = [] if announced else [html_widget(cards.frame("plain", cards.small(until)))]
    box = ipywidgets.VBox(notice).add_class("threeloops-folded")

    def unfold() -> None:
        box.remove_class("threeloops-folded")
        box.children = [piece.as_widget() for piece in unfolded()]

    when(event, unfold)
    return box
