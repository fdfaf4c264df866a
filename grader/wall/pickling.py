"""Objects that travel to the student's side as copies, and the classes that exist on both sides."""

import io
import sys
import types
from typing import Any

import cloudpickle

from grader.wall.student import MAIN_TWIN

__all__ = ["Pickler", "install_main_twin"]


class Pickler(cloudpickle.Pickler):
    """By value, except what setup cells define: those classes and functions exist on both sides."""

    def __init__(self, file: io.BytesIO, main: types.ModuleType, setup_names: set[str]) -> None:
        super().__init__(file)
        self.main, self.setup_names = main, setup_names

    def reducer_override(self, obj: Any) -> Any:
        name = getattr(obj, "__qualname__", "")
        is_shared = isinstance(obj, (type, types.FunctionType)) and name in self.setup_names
        if is_shared and self.main.__dict__.get(name) is obj:
            return sys.modules[MAIN_TWIN].lookup, (name,)
        return super().reducer_override(obj)


def _lookup(name: str) -> Any:
    return getattr(sys.modules["__main__"], name)


def install_main_twin(main: types.ModuleType) -> None:
    """Make `main` this process's `__main__`, and let pickles refer to its setup names by module and name."""
    twin = types.ModuleType(MAIN_TWIN)
    lookup = types.FunctionType(_lookup.__code__, globals(), "lookup")
    lookup.__module__, lookup.__qualname__ = MAIN_TWIN, "lookup"
    twin.lookup = lookup  # type: ignore[attr-defined]
    sys.modules[MAIN_TWIN] = twin
    sys.modules["__main__"] = main
