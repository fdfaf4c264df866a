"""The failure of a check: an AssertionError whose text is a card, which a notebook also displays as a card."""

import inspect
import itertools
import linecache
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType

from threeloops.lab.course.lab_cells import is_of_lab
from threeloops.lab.text.plain import class_name
from threeloops.lab.text.wording import article, describe

__all__ = ["CheckFailed", "Frame", "exception_line", "frames_of", "is_unwritten", "of_lab", "own_frames", "said"]

_SHOWN = 3
"""The number of innermost lines that a card shows."""


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


@dataclass(frozen=True)
class Frame:
    """The line of a notebook's cell at which an exception left a function.

    `place` names the cell, and `call` is the function with its arguments, or "" if it is not known.
    """

    place: str
    line: int
    text: str
    call: str = ""


def exception_line(error: BaseException) -> str:
    """Return the line of a card that says which exception was raised."""
    return f"raised     {type(error).__name__}: {error}".rstrip(": ")


def own_frames(error: BaseException, test: str = "") -> list[str]:
    """Return where the functions of a notebook's cells were when an exception left them: the outermost call with its
    arguments, then the line of each, innermost last. It is empty if no function of a cell was running.

    `test` is the file of the cell that checks. The exception may also have passed through functions of another process,
    the student's or that of a rank. Then its attribute `further_frames` has them.
    """
    frames = [*frames_of(error.__traceback__, test), *getattr(error, "further_frames", ())]
    if not frames:
        return []
    call = next((frame.call for frame in frames if frame.call), "")
    lines = [f"in         {call}"] if call else []
    lines += [f"at         {frame.place}, line {frame.line}: {frame.text}".rstrip(": ") for frame in frames[-_SHOWN:]]
    return list(dict.fromkeys(lines))  # a comprehension's frame has the line of the one around it


def frames_of(trace: TracebackType | None, test: str = "", *, top_level: bool = False) -> list[Frame]:
    """Return the frames of a traceback that belong to functions of a notebook's cells, and the `top_level` of cells if
    it is wanted."""
    frames = [(frame, line) for frame, line in _frames(trace) if frame.f_globals.get("__name__") == "__main__"]
    frames = [pair for pair in frames if top_level or not _is_top_level(pair[0].f_code)]
    shown = frames[:1] + frames[1:][-_SHOWN:]  # a recursion without end has a thousand
    return [_frame(frame, line, test) for frame, line in shown]


def _frame(frame: FrameType, line: int, test: str) -> Frame:
    code = frame.f_code
    text = linecache.getline(code.co_filename, line).strip()
    if _is_top_level(code):
        return Frame(_place(code, test), line, text)
    arguments = ", ".join(f"{name}={_argument(frame.f_locals.get(name))}" for name in _parameters(code))
    return Frame(_place(code, test), line, text, f"{code.co_name}({arguments})")


def _argument(value: object) -> str:
    try:
        return describe(value, 45)
    except Exception:  # an integer of too many digits, a list that is nested too deeply, no memory for the text
        return article(class_name(value))


def _place(code: CodeType, test: str) -> str:
    if code.co_filename == test:
        return "the test"
    return of_lab(code.co_qualname) if is_of_lab(code.co_filename) else "your cell"


def of_lab(name: str) -> str:
    """Return the words for code of the lab in a message: they name the function of a setup cell that contains it."""
    return "a cell of the lab" if name.startswith("<") else f"the lab's {name.split('.')[0]}"


def _is_top_level(code: CodeType) -> bool:
    return code.co_name == "<module>" or code.co_name.startswith("<cell line")  # IPython 8's name of it


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


def is_unwritten(error: BaseException) -> bool:
    """Tell whether this is the bare `NotImplementedError()` of a released cell. That of torch has a message."""
    return type(error) is NotImplementedError and not str(error)
