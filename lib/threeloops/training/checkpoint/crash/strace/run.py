"""Recording of a save with strace, which sees Python, C++ and Rust, all threads and all child processes.

>>> record = record_save(folder, save, state)
>>> report = check(record, load)

The save runs in a child process. If strace is not installed or not allowed to trace, the save runs in this process and
`recording` records it. `recording` raises `Escaped` if native code changed the folder.
"""

import functools
import inspect
import os
import pickle
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from threeloops.training.checkpoint.crash.model.operations import MOST_BYTES, Entry, Record
from threeloops.training.checkpoint.crash.model.states import files_after
from threeloops.training.checkpoint.crash.recording.record import Recorder, compare, files_in, recording
from threeloops.training.checkpoint.crash.strace.kernel import Kernel
from threeloops.training.checkpoint.crash.strace.trace import CALLS, MARK, calls

__all__ = ["record_save", "strace_works"]

_OPTIONS = ["-f", "-y", "-qq", "-xx", "-ttt", "-s", str(MOST_BYTES), "--seccomp-bpf", "-e", "signal=none"]
_RAW = "read,readv"
"""Calls whose data strace does not print, because only the number of bytes matters."""


def record_save(folder: str | os.PathLike[str], save: Callable, *arguments: Any) -> Record:
    """Run `save(folder, *arguments)` in a child process and record its changes to the folder.

    `save` may be a generator function. The record begins at its first `yield`. Each later `yield`, and the end of the
    function, means that a save has returned. `save` must be a function of a module or of the script that runs. The
    arguments are pickled. Without strace, the save runs in this process, and its errors are raised as they are.

    Raises:
        Escaped: no recorded call explains the folder's contents, or the save used a call that cannot be replayed, such
            as those of io_uring.
        RuntimeError: the save failed under strace. The message ends with its output to stderr.
        ValueError: strace works, but a child process cannot import `save`, because `save` is a lambda or a function
            within a function.
    """
    folder = Path(os.path.realpath(folder))
    if not strace_works():
        return _recorded_here(folder, save, arguments)
    with tempfile.TemporaryDirectory(prefix="threeloops-strace-") as scratch:
        job, start, trace = (Path(scratch, name) for name in ("job", "start", "trace"))
        job.write_bytes(pickle.dumps((_address(save), str(folder), arguments, str(start), sys.path)))
        script = f"from {__name__} import _child; _child({str(job)!r})"
        strace = ["strace", *_OPTIONS, "-o", str(trace), "-e", f"trace={','.join(CALLS)}", "-e", f"raw={_RAW}"]
        command = [*strace, sys.executable, "-c", script]
        paths = os.pathsep.join(path for path in sys.path if path)
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": paths})
        if done.returncode:
            raise RuntimeError(f"{save.__qualname__} failed in its child process: {done.stderr[-2000:]}")
        entries = msgspec.msgpack.decode(start.read_bytes(), type=list[Entry])
        with trace.open() as lines:
            record = Kernel(str(folder), entries, os.getcwd()).record(calls(lines))
    compare(files_after(record), dict(files_in(str(folder))))
    return record


@functools.cache
def strace_works() -> bool:
    """Check whether strace is installed and may trace a child process."""
    if not shutil.which("strace"):
        return False
    command = ["strace", "-f", "-y", "-qq", "--seccomp-bpf", "-e", "trace=fsync", "-o", os.devnull, "true"]
    return subprocess.run(command, capture_output=True).returncode == 0


def _recorded_here(folder: Path, save: Callable, arguments: tuple) -> Record:
    steps = save(folder, *arguments) if inspect.isgeneratorfunction(save) else None
    if steps is not None:
        next(steps)
    with recording(folder) as recorder:
        if steps is None:
            save(folder, *arguments)
        for _ in steps or ():
            recorder.saved()
    return recorder.record


# In the child


def _child(path: str) -> None:
    address, folder, arguments, start, sys.path[:] = pickle.loads(Path(path).read_bytes())
    save = _found(*address)
    steps = save(Path(folder), *arguments) if inspect.isgeneratorfunction(save) else None
    if steps is not None:
        next(steps)
    Path(start).write_bytes(msgspec.msgpack.encode(Recorder(Path(folder)).record.start))
    _mark("begin")
    if steps is None:
        save(Path(folder), *arguments)
    for _ in steps or ():
        _mark("saved")
    _mark("saved")


def _mark(what: str) -> None:
    try:
        os.open(MARK + what, os.O_RDONLY)
    except NotADirectoryError:
        return


def _address(save: Callable) -> tuple[str, str | None, str]:
    """Return the module of a function, the path of its script if it is in one, and its name."""
    name = getattr(save, "__qualname__", repr(save))
    if "<" in name:
        raise ValueError(f"save = {name}: expected a function of a module, which a child process can import")
    module = sys.modules[save.__module__]
    script = getattr(module, "__file__", None) if save.__module__ == "__main__" else None
    return save.__module__, script, name


def _found(module: str, script: str | None, name: str) -> Any:
    if script:
        return runpy.run_path(script, run_name="__threeloops__")[name]
    return functools.reduce(getattr, name.split("."), import_module(module))
