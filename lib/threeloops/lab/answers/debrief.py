"""`debrief`: text that unfolds after an exercise is solved: why it works, and a model answer beside the reader's."""

import ast
import linecache
import re
import sys
from html import escape
from typing import Any

from threeloops.lab.answers.model import model_answer
from threeloops.lab.course import journal
from threeloops.lab.predictions import gate
from threeloops.lab.recording.notes import note as noting
from threeloops.lab.text.wording import number, with_unit
from threeloops.lab.widgets import cards
from threeloops.lab.widgets.display import html_widget, live, preformatted, publish

__all__ = ["debrief", "failed", "note", "passed", "solved"]

_facts: dict[str, dict[str, tuple[float, float, str]]] = {}
"""The reader's number, the model answer's number and the unit, by exercise and quantity."""
_parts: dict[str, dict[str, bool]] = {}
"""Whether each part of an exercise passed when this notebook last ran its check."""


def passed(exercise: str, part: str) -> None:
    """A check of an exercise held in full."""
    journal.record(exercise, part)
    _parts.setdefault(exercise, {})[part] = True
    gate.happens(_event(exercise, part))


def failed(exercise: str, part: str) -> None:
    """Note that a check failed: its points are lost, and its debrief waits until the check passes again."""
    journal.forget(exercise, part)
    _parts.setdefault(exercise, {})[part] = False
    gate.forget(_event(exercise, part))


def solved(exercise: str) -> bool:
    """Return whether this notebook has checked the exercise, and every part that it checked passed."""
    parts = _parts.get(exercise, {})
    return bool(parts) and all(parts.values())


def note(exercise: str, what: str, own: float, model: float, unit: str) -> None:
    _facts.setdefault(exercise, {})[what] = (own, model, unit)


def debrief(exercise: str, why: str, *, parts: tuple[str, ...] = ("",)) -> None:
    """Show `why` the answer works once every part of the exercise has passed, and a model answer if there is one.

    A model answer is shown if the lab's source lies in a `solutions` folder above the notebook, as in a copy of the
    whole course, or in the folder that THREELOOPS_SOLUTIONS names. An instructor sets that after the deadline.
    Paragraphs of `why` are separated by empty lines, and backticks set code.
    """
    missing = [part for part in parts if not gate.happened(_event(exercise, part))]
    if missing:
        missing_parts = f" ({', '.join(part.replace('_', ' ') for part in missing)})" if parts != ("",) else ""
        notice = f"Opens when the checks of `{exercise}` pass{missing_parts}."
        publish(notice, {"text/html": cards.frame("plain", cards.small(notice))}, widget=_later(exercise, why, parts))
        return
    with noting(debrief=exercise):
        publish(_text(exercise, why), {"text/html": _html(exercise, why)})


def _event(exercise: str, part: str) -> str:
    return f"passed {exercise}/{part}"


def _later(exercise: str, why: str, parts: tuple[str, ...]) -> Any:
    """The live form: it fills itself when the last check passes."""
    if not live():
        return None
    notice = f"Opens when the checks of `{exercise}` pass."
    view = html_widget(cards.frame("plain", cards.small(notice)))

    def look() -> None:
        if all(gate.happened(_event(exercise, part)) for part in parts):
            view.value = _html(exercise, why)

    for part in parts:
        gate.when(_event(exercise, part), look)
    return view


def _text(exercise: str, why: str) -> str:
    rows = [f"{what}: {own}; model answer: {model}" for what, own, model in _comparison(exercise)]
    return "\n".join([f"Why it works ({exercise}): {' '.join(why.split())}", *rows])


def _html(exercise: str, why: str) -> str:
    paragraphs = [cards.inline(" ".join(part.split())) for part in re.split(r"\n\s*\n", why.strip())]
    body = "<b>Why it works</b><br>" + "<br><br>".join(paragraphs)
    if rows := _comparison(exercise):
        cells = "".join(
            f"<tr><td>{escape(what)}</td><td>{escape(own)}</td><td>{escape(model)}</td></tr>"
            for what, own, model in rows
        )
        body += f"<table><tr><th></th><th>yours</th><th>model answer</th></tr>{cells}</table>"
    if model := model_answer(exercise):
        fold = '<summary style="cursor:pointer;font-weight:bold">A model answer</summary>'
        body += f"<details>{fold}{preformatted(model)}</details>"
    return cards.frame("passed", body)


def _comparison(exercise: str) -> list[tuple[str, str, str]]:
    """Return rows of quantity, the reader's and the model answer's value: lines of code, and the numbers that checks
    noted."""
    rows = [
        (what, with_unit(number(own), unit), with_unit(number(model), unit))
        for what, (own, model, unit) in _facts.get(exercise, {}).items()
    ]
    own = _own_answer(exercise)
    model = model_answer(exercise)
    return [*rows, ("lines of code", str(_lines(own)), str(_lines(model)))] if own and model else rows


def _lines(source: str) -> int:
    """Lines that hold code: neither empty, nor a comment, nor a docstring."""
    tree = ast.parse(source)
    documented = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    inside = {
        line
        for node in ast.walk(tree)
        if isinstance(node, documented) and ast.get_docstring(node) is not None
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    lines = enumerate(source.splitlines(), start=1)
    return sum(bool(text.strip()) and not text.lstrip().startswith("#") and at not in inside for at, text in lines)


def _own_answer(exercise: str) -> str:
    """The text of the reader's cell: of the first function that the model answer and the notebook both define."""
    names = [node.name for node in ast.parse(model_answer(exercise)).body if isinstance(node, ast.FunctionDef)]
    for name in names:
        function = vars(sys.modules["__main__"]).get(name)
        code = getattr(getattr(function, "fn", function), "__code__", None)  # of a triton.jit function, its `fn`
        if code is not None and (text := "".join(linecache.getlines(code.co_filename))):
            return text
    return ""
