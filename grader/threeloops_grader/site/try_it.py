"""Check a reader's answer to an exercise with the visible checks of the lab, in a folder that has only what they need.

This file runs in a page, under Pyodide. `threeloops_grader.site.in_browser` runs it too, to see which exercises need
nothing but NumPy. So it imports nothing but Python's own library. The folder holds `lab.json`, the lab's data, and the
part of `threeloops` that the lab imports.
"""

import asyncio
import contextlib
import importlib.abc
import io
import json
import linecache
import os
import sys
import threading
import time
import traceback
import types
from pathlib import Path
from typing import Any

__all__: list[str] = []


if sys.platform == "emscripten":
    lock = types.ModuleType("fcntl")
    lock.__dict__.update(LOCK_SH=1, LOCK_EX=2, LOCK_NB=4, LOCK_UN=8, flock=lambda file, how: None)
    sys.modules["fcntl"] = lock  # a page has one process, so nothing else has the learner's record open


def _check(answers: dict[str, str], exercise: str) -> tuple[bool, str]:
    """Run the exercise's checks on these texts of cells, and return whether they passed and what they printed.

    The working directory is the folder. `answers` are the reader's texts by exercise. The others are as released.
    """
    lab = json.loads(Path("lab.json").read_text(encoding="utf-8"))
    module = types.ModuleType("lab")
    sys.modules["lab"] = module
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for number, text in enumerate(lab["setup"]):
            _execute(text, f"preparation {number + 1}", module)
        tests = []
        for other in lab["exercises"]:
            text = answers.get(other["id"], other["starter"])
            if other["id"] == exercise:
                tests = other["tests"]
                failure = _failure(text, "your cell", module)
                break
            with contextlib.suppress(Exception):  # the reader may have left an earlier one half written
                _execute(text, f"the cell of {other['id']}", module)
        failures = [failure] if failure else list(filter(None, (_failure(t, "the check", module) for t in tests)))
        print(*failures, sep="\n")
    return not failures, printed.getvalue().strip()


def _failure(text: str, name: str, module: types.ModuleType) -> str:
    """Execute a cell, and return what went wrong in it, or an empty string."""
    try:
        _execute(text, name, module)
    except Exception as error:
        if type(error).__name__ == "CheckFailed":
            return str(error)
        lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
        at = [f"  line {frame.lineno} of {name}: {frame.line}" for frame in lines[-1:]]
        return "\n".join([*at, "".join(traceback.format_exception_only(error)).strip()])
    return ""


def _execute(text: str, name: str, module: types.ModuleType) -> None:
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), vars(module))


class _OnlyNumPy(importlib.abc.MetaPathFinder):
    """Refuse packages that a page may not have."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] not in (*sys.stdlib_module_names, "numpy", "threeloops"):
            raise ModuleNotFoundError(f"{name} is not in the page", name=name)


def _only_one_thread() -> None:
    """Refuse threads and event loops, which a page does not have either."""
    threading.Thread.start = _refused  # type: ignore[assignment, method-assign]
    asyncio.new_event_loop = _refused  # type: ignore[assignment]


def _refused(*_: Any) -> Any:
    raise RuntimeError("there are no threads and event loops in the page")


def _needs(answers: dict[str, str], most_seconds: float) -> dict[str, Any]:
    """Return the exercises whose checks accept these answers with nothing but NumPy, and all files that were read.

    `most_seconds` is the longest that the checks of an exercise may take.
    """
    sys.meta_path.insert(0, _OnlyNumPy())
    _only_one_thread()
    opened: set[str] = set()
    sys.addaudithook(lambda event, of: opened.add(os.path.realpath(of[0])) if _is_read(event, of) else None)
    lab = json.loads(Path("lab.json").read_text(encoding="utf-8"))
    passed = []
    for exercise in (one["id"] for one in lab["exercises"]):
        began = time.perf_counter()
        try:
            accepted, _ = _check(answers, exercise)
        except Exception:  # the preparation needs more
            break
        if accepted and time.perf_counter() - began <= most_seconds:
            passed.append(exercise)
    specs = [getattr(module, "__spec__", None) for module in list(sys.modules.values())]
    modules = {spec.origin for spec in specs if spec is not None}
    return {"exercises": passed, "modules": sorted(filter(None, modules)), "opened": sorted(opened)}


def _is_read(event: str, of: tuple[Any, ...]) -> bool:
    return event == "open" and isinstance(of[0], str) and (of[1] is None or of[1].startswith("r"))


if __name__ == "__main__":
    given = json.load(sys.stdin)
    print(json.dumps(_needs(given["answers"], given["most_seconds"])))
