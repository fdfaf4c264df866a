"""The failure of a check: an AssertionError whose text is a card, which a notebook also displays as a card."""

import inspect
import itertools
import linecache
import sys
from types import CodeType, FrameType, TracebackType

from threeloops.lab.text.wording import describe

__all__ = ["CheckFailed", "is_unwritten", "own_frames", "said"]


class CheckFailed(AssertionError):
    """A check that failed. Its text is complete by itself: title, quantity, value, what was expected, difference,
    hint."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython prints instead of a traceback: the card, and the line of the cell that checked."""
        title, lines, asked = said(self)
        return [f"\x1b[1m✗ {title}\x1b[0m", *lines, *([f"\x1b[2m  {asked}\x1b[0m"] if asked else [])]


def said(failure: CheckFailed) -> tuple[str, list[str], str]:
    """Return the title of a failure, its lines, and the line of the cell that checked ("" if there is none)."""
    title, *lines = str(failure).split("\n")
    return title, lines, _asking_line(failure.__traceback__)


def _asking_line(trace: TracebackType | None) -> str:
    """The last line outside the kit on the way to the failure: the line of the test cell."""
    line = ""
    while trace is not None:
        frame = trace.tb_frame
        number = trace.tb_lineno
        inside = str(frame.f_globals.get("__name__")).startswith("threeloops.lab.")
        if not inside and (text := _statement(frame.f_code, trace.tb_lasti, number)):
            line = f"line {number}: {text if len(text) <= 100 else text[:99] + '…'}"
        trace = trace.tb_next
    return line


def _statement(code: CodeType, instruction: int, number: int) -> str:
    """The call that was running, on one line: from line `number` to the last line of its arguments."""
    _, last, _, _ = next(itertools.islice(code.co_positions(), instruction // 2, None), (None,) * 4)
    lines = [linecache.getline(code.co_filename, line).strip() for line in range(number, (last or number) + 1)]
    return " ".join(filter(None, lines)).replace("( ", "(").replace(", )", ")")


def own_frames(error: BaseException) -> list[str]:
    """Return where the reader's own functions were when an exception left them: the outermost call with its arguments,
    then the line of each, innermost last. It is empty if no function of a notebook's cell was running."""
    frames = [(frame, line) for frame, line in _frames(error.__traceback__) if frame.f_code.co_name != "<module>"]
    own = [(frame, line) for frame, line in frames if frame.f_globals.get("__name__") == "__main__"]
    if not own:
        return []
    first = own[0][0]
    arguments = ", ".join(f"{name}={describe(first.f_locals.get(name), 45)}" for name in _parameters(first.f_code))
    lines = [f"in         {first.f_code.co_name}({arguments})"]
    for frame, number in own[-3:]:
        text = linecache.getline(frame.f_code.co_filename, number).strip()
        lines.append(f"at         {_cell(frame.f_code.co_filename)}line {number}: {text}")
    return list(dict.fromkeys(lines))  # a comprehension's frame has the line of the one around it


def _frames(trace: TracebackType | None) -> list[tuple[FrameType, int]]:
    frames = []
    while trace is not None:
        frames.append((trace.tb_frame, trace.tb_lineno))
        trace = trace.tb_next
    return frames


def _parameters(code: CodeType) -> tuple[str, ...]:
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]


def _cell(filename: str) -> str:
    """`cell [7], ` for the code of a notebook's cell, by its number in the notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    number = getattr(getattr(shell, "compile", None), "_filename_map", {}).get(filename)
    return f"cell [{number}], " if number is not None else ""


def is_unwritten(error: BaseException) -> bool:
    """The bare `NotImplementedError()` that a released cell holds; torch raises the same type, with a message."""
    return type(error) is NotImplementedError and not str(error)
