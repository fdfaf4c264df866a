"""Pickle a program for its ranks."""

import gc
import importlib
import io
import linecache
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle

from threeloops.training.cluster.programs.actor import is_library

__all__ = ["from_bytes", "import_libraries", "label_of", "to_bytes"]


def to_bytes(program: Callable[..., Any], arguments: Sequence[Any], label: Any = None) -> bytes:
    """Pickle the program and its arguments with cloudpickle, together with the search path for modules and the names of
    modules that it uses. The label can be read without unpickling the program. The text of a notebook's cells travels
    too, for tracebacks.

    Functions of a notebook travel by value, in their current state. So do functions of the modules that contain the
    program and functions among its arguments, unless these modules belong to libraries. Other modules are imported on
    the other side, those of libraries once for all runs.

    Raises:
        TypeError: something in the program or its arguments cannot be sent.
    """
    functions = [value for value in (program, *arguments) if isinstance(value, FunctionType)]
    names = {
        function.__module__ for function in functions
    } & sys.modules.keys() - cloudpickle.list_registry_pickle_by_value()
    own = [sys.modules[name] for name in names if name != "__main__" and not _is_of_a_library(name)]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        pickler = _Pickler(file := io.BytesIO())
        pickler.dump((program, tuple(arguments)))
        return pickle.dumps(
            (sorted(pickler.libraries), pickle.dumps((sys.path, pickler.cells(), file.getvalue())), label)
        )
    except (TypeError, pickle.PicklingError) as error:
        raise TypeError(
            f"{getattr(program, '__name__', program)} and what it uses go to the ranks by cloudpickle, and that "
            f"failed: {error}. Make what cannot be sent inside a function that runs on the ranks"
        ) from error
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


def from_bytes(data: bytes) -> tuple[Callable[..., Any], Sequence[Any]]:
    """Return the program given to `to_bytes`, in a process that then finds the same modules."""
    path, cells, program = pickle.loads(pickle.loads(data)[1])
    linecache.cache.update(cells)
    sys.path += [folder for folder in path if folder not in sys.path]
    call: tuple[Callable[..., Any], Sequence[Any]] = pickle.loads(program)
    return call


def label_of(data: bytes) -> Any:
    return pickle.loads(data)[2]


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Notes the libraries' modules from which the things come that it pickles, and the files of functions."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.libraries: set[str] = set()
        self._files: set[str] = set()

    def cells(self) -> dict[str, Any]:
        """Return the entries of linecache for files that exist only there."""
        entries = {name: linecache.cache[name] for name in self._files & linecache.cache.keys()}
        return {name: entry for name, entry in entries.items() if len(entry) > 1 and not os.path.exists(name)}

    def reducer_override(self, thing: Any) -> Any:
        name = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None)
        if isinstance(name, str) and name not in self.libraries and _is_of_a_library(name):
            self.libraries.add(name)
        if isinstance(thing, FunctionType):
            self._files.add(thing.__code__.co_filename)
        if isinstance(thing, ModuleType) and _is_of_a_library(thing.__name__):  # torch's config modules are of a class
            return importlib.import_module, (thing.__name__,)  # of their own, which cloudpickle does not know
        return super().reducer_override(thing)


def _is_of_a_library(name: str) -> bool:
    """Whether a module is imported here and belongs to a library. torch may lie anywhere."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and (name.split(".")[0] == "torch" or is_library(file))


def import_libraries(data: bytes) -> None:
    """Import modules that a program from `to_bytes` names and this process lacks, so that ranks inherit them instead of
    importing them one by one. A module that cannot be imported fails on the rank."""
    if lacking := [name for name in pickle.loads(data)[0] if name not in sys.modules]:
        for name in lacking:
            with suppress(Exception):
                importlib.import_module(name)
        gc.freeze()  # as in prepare_to_fork
