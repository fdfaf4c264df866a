"""Turn an exception of the student's code into plain data, which can cross the wall."""

import errno
from dataclasses import asdict
from typing import Any

from threeloops.lab.checking.failure import frames_of

__all__ = ["described"]

_LONGEST_LINE = 200
"""Characters of a line with a syntax error that are shown."""


def _marked(error: SyntaxError) -> str:
    """Return the line number and message of a syntax error, and below them the code with a caret, as Python does."""
    reason = "a bracket or a text is not closed" if error.msg == "incomplete input" else error.msg  # IPython's message
    text = (error.text or "").rstrip("\n")[:_LONGEST_LINE]
    indent = len(text) - len(text.lstrip())
    caret = " " * max(0, min((error.offset or 1) - 1, len(text)) - indent) + "^"
    return f"line {error.lineno}: {reason}\n    {text.lstrip()}\n    {caret}"


def described(error: BaseException) -> dict[str, Any]:
    """Return an exception as plain data: the names of its classes, its message and the lines of cells that it has
    passed through, the one that raised it last."""
    try:
        # str of a KeyError is the repr of its key, and the other side would take the repr of that.
        message = str(error.args[0] if isinstance(error, KeyError) and len(error.args) == 1 else error)[:4000]
    except BaseException:
        message = "<an exception without a readable message>"
    frames = _frames(error)
    if isinstance(error, SyntaxError) and isinstance(error.text, str) and isinstance(error.lineno, int):
        message = _marked(error)[:4000]
        frames = []  # the message has the place; the traceback only shows the compiler
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        message = f"{message}: the cell printed or wrote more than one file may hold in a graded run"
    names = [f"{c.__module__}.{c.__qualname__}" for c in type(error).__mro__ if isinstance(c, type)]
    return {"classes": names[:12], "message": message, "frames": frames}


def _frames(error: BaseException) -> list[dict[str, Any]]:
    try:
        return [asdict(frame) for frame in frames_of(error.__traceback__, top_level=True)]
    except BaseException:  # an argument that cannot be printed, or no memory for its text
        return []
