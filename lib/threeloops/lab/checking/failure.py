"""The failure of a check: an AssertionError whose text is a card, and which a notebook shows as one."""

import linecache
from types import TracebackType

__all__ = ["CheckFailed", "is_unwritten"]


class CheckFailed(AssertionError):
    """A check that did not hold. Its text stands alone: title, quantity, value, what was expected, difference, hint."""

    def _render_traceback_(self) -> list[str]:
        """What IPython prints instead of a traceback: the card, and the line of the cell that checked."""
        title, *lines = str(self).split("\n")
        asked = _asking_line(self.__traceback__)
        return [f"\x1b[1m✗ {title}\x1b[0m", *lines, *([f"\x1b[2m  {asked}\x1b[0m"] if asked else [])]


def _asking_line(trace: TracebackType | None) -> str:
    """The last line outside the kit on the way to the failure: the line of the test cell."""
    found = ""
    while trace is not None:
        frame, number = trace.tb_frame, trace.tb_lineno
        inside = str(frame.f_globals.get("__name__")).startswith("threeloops.lab.")
        if not inside and (text := linecache.getline(frame.f_code.co_filename, number).strip()):
            found = f"line {number}: {text if len(text) <= 100 else text[:99] + '…'}"
        trace = trace.tb_next
    return found


def is_unwritten(error: BaseException) -> bool:
    """The bare `NotImplementedError()` that a released cell holds; torch raises the same type, with a message."""
    return type(error) is NotImplementedError and not str(error)
