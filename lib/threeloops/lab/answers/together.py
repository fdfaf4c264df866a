"""`together`: the reader's answers as one program, at the end of a lab."""

import ast
import linecache
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from threeloops.lab.answers.debrief import solved
from threeloops.lab.answers.model import model_answer

__all__ = ["together"]


def together(*exercises: str, library: Mapping[str, Any] | None = None) -> SimpleNamespace | None:
    """Return the functions and classes of these exercises, and print whose they are.

    They are the reader's own if the checks of the exercise have passed in this notebook. Otherwise they are the model
    answer's, or those of `library`, if the notebook has no model answers (see `debrief`). `library` has a function per
    exercise, or a mapping of names to functions if their names differ from the exercise's. If there are none either, it
    prints which exercise is missing and returns None:

        if parts := together("classify", "wall_us"):
            print(parts.wall_us(parts.classify(…)))
    """
    own: list[str] = []
    given: list[str] = []
    missing: list[str] = []
    parts: dict[str, Any] = {}
    for exercise in exercises:
        stand_ins = _from(library or {}, exercise)
        if solved(exercise):
            parts |= _own(exercise, stand_ins)
            own.append(exercise)
        elif definitions := _model(exercise) or stand_ins:
            parts |= definitions
            given.append(exercise)
        else:
            missing.append(exercise)
    if missing:
        print(f"This part comes alive when the checks of {_names(missing)} have passed: then run this cell again.")
        return None
    if own:
        print(f"Yours: {_names(own)}.")
    if given:
        print(
            f"Replaced by the reference: {_names(given)}. Once the checks of an exercise have passed, run this cell "
            "again to see your own answer in its place."
        )
    return _Parts(**parts)


class _Parts(SimpleNamespace):
    """The answers by name. Without model answers, nothing lists what else a solved exercise defines, such as `restore`
    beside `capture`: such a name is looked up in the notebook."""

    def __getattr__(self, name: str) -> Any:
        try:
            return vars(sys.modules["__main__"])[name]
        except KeyError:
            raise AttributeError(name) from None


def _own(exercise: str, stand_ins: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the notebook has under the names of the exercise, of its model answer and of its stand-ins."""
    notebook = vars(sys.modules["__main__"])
    names = {exercise, *_defined(model_answer(exercise)), *stand_ins}
    return {name: notebook[name] for name in names if name in notebook}


def _model(exercise: str) -> dict[str, Any]:
    """Return the functions and classes of the model answer. They find all else in the notebook, as the reader's do."""
    text = model_answer(exercise)
    if not text:
        return {}
    place = f"<model answer of {exercise}>"
    linecache.cache[place] = (len(text), None, text.splitlines(keepends=True), place)  # Triton reads a kernel's text
    space = dict(vars(sys.modules["__main__"]))
    exec(compile(text, place, "exec"), space)
    return {name: space[name] for name in _defined(text)}


def _from(library: Mapping[str, Any], exercise: str) -> dict[str, Any]:
    """Return what `library` has for the exercise, by name."""
    given = library.get(exercise, {})
    return dict(given) if isinstance(given, Mapping) else {exercise: given}


def _defined(text: str) -> list[str]:
    return [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]


def _names(exercises: list[str]) -> str:
    return ", ".join(f"`{exercise}`" for exercise in exercises)
