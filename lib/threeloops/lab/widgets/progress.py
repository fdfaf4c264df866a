"""Progress of a long cell: one output that is rewritten in place, one line at the end, nothing on stderr."""

import sys
import time
from collections.abc import Iterable, Iterator, Sized

from threeloops.lab.widgets import cards
from threeloops.lab.widgets.display import in_kernel
from threeloops.lab.widgets.style import palette

__all__ = ["progress"]

_SECONDS_BETWEEN_UPDATES = 0.2


def progress(iterable: Iterable, what: str, total: int | None = None) -> Iterator:
    """Pass the items through and show how many there were. `total` defaults to `len(iterable)` if it has one."""
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    return _count(iterable, _Line(what, total))


def _count(iterable: Iterable, line: "_Line") -> Iterator:
    done = 0
    line.update(done)
    try:
        for item in iterable:
            yield item
            done += 1
            line.update(done)
    finally:
        line.update(done, last=True)


class _Line:
    """The one output of a running loop."""

    def __init__(self, what: str, total: int | None) -> None:
        self.what = what
        self.total = total
        self.started = time.perf_counter()
        self.shown = -_SECONDS_BETWEEN_UPDATES
        self.handle = None

    def update(self, done: int, last: bool = False) -> None:
        elapsed = time.perf_counter() - self.started
        if not last and elapsed - self.shown < _SECONDS_BETWEEN_UPDATES:
            return
        self.shown = elapsed
        of = f"{done:,}" if self.total is None else f"{done:,} of {self.total:,}"
        stopped = " (stopped early)" if last and self.total is not None and done < self.total else ""
        text = f"{self.what}: {of}, {elapsed:.1f} s{stopped}"
        if in_kernel():
            self._display({"text/html": self.html(done, text), "text/plain": text})
        elif last or sys.stdout.isatty():
            print(("\r" if sys.stdout.isatty() else "") + text, end="\n" if last else "", flush=True)

    def _display(self, bundle: dict) -> None:
        from IPython.display import display

        if self.handle is None:
            self.handle = display(bundle, raw=True, display_id=True)
        else:
            self.handle.update(bundle, raw=True)

    def html(self, done: int, text: str) -> str:
        if not self.total:
            return f"<div>{cards.small(text)}</div>"
        shape = "border-radius:3px;height:.5em"
        width = 100 * min(done / self.total, 1.0)
        bar = f'<div style="{shape};background:{palette.blue};width:{width:.1f}%"></div>'
        frame = f'<div style="{shape};background:{palette.grey}40;width:24em;max-width:100%">{bar}</div>'
        return f"<div>{cards.small(text)}{frame}</div>"
