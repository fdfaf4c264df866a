"""What a forked process does to be one rank, and how its program gets there."""

import ctypes
import faulthandler
import gc
import importlib
import io
import os
import pickle
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle

from threeloops.resident import settle
from threeloops.training.cluster.machine.faults import SlowRank
from threeloops.training.cluster.programs.actor import ActorSocket, is_library
from threeloops.training.cluster.programs.group import register
from threeloops.training.cluster.programs.handles import Rank
from threeloops.training.cluster.programs.printed import bounded_text
from threeloops.training.cluster.programs.world import OwnStore, enter_world, environment

__all__ = [
    "Program", "be_process", "be_rank", "current_rank", "die_with_parent", "from_bytes", "import_libraries", "to_bytes",
]  # fmt: skip

Program = Callable[[], tuple[Callable[..., Any], Sequence[Any], Sequence[SlowRank], bool]]
"""Gives, in the rank's process, the function to run, its arguments, how slow the rank is, and whether its memory is to
be measured."""

_current: Rank | None = None


def current_rank() -> Rank | None:
    """The rank that this process is; None outside of a virtual cluster."""
    return _current


def to_bytes(program: Callable[..., Any], arguments: Sequence[Any], more: Any = None) -> bytes:
    """The program with its arguments, as cloudpickle sends it, where modules are found here, and which it names.

    Functions of a notebook travel by value, as they are now, and so do those of the modules, if they are no library's,
    in which the program and functions among its arguments stand. Other modules are imported over there, those of
    libraries once for all runs.

    Raises:
        TypeError: something among them cannot be sent.
    """
    functions = [each for each in (program, *arguments) if isinstance(each, FunctionType)]
    names = {each.__module__ for each in functions} & sys.modules.keys() - cloudpickle.list_registry_pickle_by_value()
    own = [sys.modules[name] for name in names if name != "__main__" and not _is_of_a_library(name)]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        pickler = _Pickler(file := io.BytesIO())
        pickler.dump((program, tuple(arguments), more))
        return pickle.dumps((sorted(pickler.libraries), pickle.dumps((sys.path, file.getvalue()))))
    except (TypeError, pickle.PicklingError) as error:
        raise TypeError(
            f"{getattr(program, '__name__', program)} and what it uses go to the ranks by cloudpickle, and that "
            f"failed: {error}. Make what cannot be sent inside a function that runs on the ranks"
        ) from error
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


def from_bytes(data: bytes) -> tuple[Callable[..., Any], Sequence[Any], Any]:
    """What was given to `to_bytes`, in a process that then finds the same modules."""
    path, program = pickle.loads(pickle.loads(data)[1])
    sys.path += [folder for folder in path if folder not in sys.path]
    found: tuple[Callable[..., Any], Sequence[Any], Any] = pickle.loads(program)
    return found


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Notes the libraries' modules from which the things come that it pickles."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.libraries: set[str] = set()

    def reducer_override(self, thing: Any) -> Any:
        name = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None)
        if isinstance(name, str) and name not in self.libraries and _is_of_a_library(name):
            self.libraries.add(name)
        return super().reducer_override(thing)


def _is_of_a_library(name: str) -> bool:
    """Whether a module is imported here and belongs to a library. torch may lie anywhere."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and (name.split(".")[0] == "torch" or is_library(file))


def import_libraries(data: bytes) -> None:
    """Import what a program from `to_bytes` names and this process lacks, so that ranks inherit what each would import
    for itself. What cannot be imported fails there."""
    if lacking := [each for each in pickle.loads(data)[0] if each not in sys.modules]:
        for each in lacking:
            with suppress(Exception):
                importlib.import_module(each)
        gc.freeze()  # as in prepare_to_fork


def be_rank(rank: int, ranks: int, descriptors: Sequence[int], program: Program) -> None:
    """Run a program as rank `rank` of `ranks`, and never return. `descriptors` are its socket and the file for what it
    prints."""
    global _current
    connection, printed = descriptors
    die_with_parent()
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    sys.stdout, sys.stderr = (bounded_text(number) for number in (1, 2))
    os.environ.update(environment(rank, ranks))
    # torch 2.13 has new names for two collectives, and 2.11 only the old ones: each rank would print two lines per run.
    old = "reduce_scatter_tensor|all_gather_into_tensor"
    warnings.filterwarnings("ignore", rf"`torch\.distributed\.({old})` is deprecated", FutureWarning)
    actor = ActorSocket(socket.socket(fileno=connection))
    faulthandler.register(signal.SIGUSR1, connection, all_threads=False)  # see Sockets.exchange
    try:
        actor.resume()
        function, arguments, slow, measured = program()
        actor.slow = [fault for fault in slow if fault.rank == rank]
        if measured:
            settle()
            actor.pause()
        _current = Rank(rank, ranks, actor)
        register(_current)
        enter_world(rank, ranks, "virtual", lambda _: OwnStore())
        result = function(*arguments)
        _current.finish()
        actor.end(result=_pickled(result))
        actor.resume()  # until the other side has seen what it wants to see of this process
    except EOFError:
        pass
    except BaseException as error:
        actor.end(_said(error))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def be_process(rank: int, descriptors: Sequence[int], pickled: bytes) -> None:
    """Call a function of this library with a rank's number, in the surroundings of the process that asked for it, and
    never return. `descriptors` are that one's standard output, standard error and current folder."""
    die_with_parent()
    output, errors, folder = descriptors
    status = 1
    try:
        os.dup2(output, 1)
        os.dup2(errors, 2)
        os.fchdir(folder)
        sys.stdout, sys.stderr = (open(number, "w", 1, closefd=False) for number in (1, 2))  # noqa: SIM115
        environment, cores, function = pickle.loads(pickle.loads(pickled)[1])
        os.environ.clear()
        os.environ.update(environment)
        if cores:
            os.sched_setaffinity(0, cores)
        function(rank)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _pickled(result: Any) -> bytes:
    try:
        return cloudpickle.dumps(result)
    except Exception as error:
        raise TypeError(f"the program returned {type(result).__name__}, which cannot be sent: {error}") from None


def _said(error: BaseException) -> str:
    """The exception with the frames of the program; those of libraries say little."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    kept = [frame for frame in frames if not is_library(frame.filename)]
    lines = traceback.format_list(kept or frames) + traceback.format_exception_only(error)
    return "".join(lines).rstrip()


def die_with_parent() -> None:
    """On Linux: be killed when the process that started this one ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
