"""Objects that travel to the student's side as copies, and the classes that exist on both sides."""

import io
import sys
import types
from typing import Any

import cloudpickle

from threeloops_grader.wall.student import MAIN_TWIN

__all__ = ["Pickler"]


class Pickler(cloudpickle.Pickler):
    """Pickle by value, except classes and functions that setup cells define, because they exist on both sides."""

    def __init__(self, file: io.BytesIO, main: types.ModuleType, setup_names: set[str]) -> None:
        super().__init__(file)
        self.main = main
        self.setup_names = setup_names

    def reducer_override(self, obj: Any) -> Any:
        name = getattr(obj, "__qualname__", "")
        is_shared = isinstance(obj, (type, types.FunctionType)) and name in self.setup_names
        if is_shared and self.main.__dict__.get(name) is obj:
            return sys.modules[MAIN_TWIN].lookup, (name,)
        return super().reducer_override(obj)
