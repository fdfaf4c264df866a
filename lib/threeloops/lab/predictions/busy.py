"""Warn if other programs keep this machine's cores busy, because measured times are then too long."""

from threeloops.lab.widgets import cards
from threeloops.lab.widgets.display import publish

__all__ = ["busy_notice", "busy_words", "show_busy"]

_SECONDS = 0.1
_BUSY_PERCENT = 30.0


def busy_notice() -> None:
    """Show a notice if other programs use much of this machine's processors now, and nothing otherwise.

    Call it beside a measurement.
    """
    if notice := busy_words():
        show_busy(notice)


def busy_words() -> str:
    """Return the notice, or "" on an idle machine. This process sleeps for 0.1 s and counts the processors' work
    meanwhile."""
    import psutil

    percent = psutil.cpu_percent(interval=_SECONDS)
    if percent < _BUSY_PERCENT:
        return ""
    return (
        f"This machine is busy: other programs use {percent:.0f}% of its processors now. Times measured here are "
        "longer than on an idle machine, and rates lower; run the cell again when it is quiet."
    )


def show_busy(notice: str) -> None:
    publish(notice, {"text/html": cards.frame("plain", cards.small(notice))})
