"""Run a script as a program of a cluster: each rank runs it as under torchrun."""

import atexit
import logging
import multiprocessing.util
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from threeloops.training.cluster.programs.actor import is_library

__all__ = ["script"]


def script(path: str | Path, *arguments: str, module: bool = False) -> Callable[[], None]:
    """Return a program for `Cluster.run` or `run_on_processes` that runs a file unchanged, with `__name__ ==
    "__main__"`.

    Its own `init_process_group`, `destroy_process_group` and `mp.spawn` lead to the ranks of the cluster.

    >>> Cluster(one_node("H100 SXM", 8)).run(script("train.py", "--steps", "10")).seconds

    Args:
        path: the file, or with `module` the name of a module, as after `python -m`.
        arguments: its `sys.argv[1:]`.

    Raises:
        FileNotFoundError: the file does not exist.
    """
    if not module and not Path(path).is_file():
        raise FileNotFoundError(
            f"{path}: no such file. To run a module by its name pass module=True (-m in a terminal)"
        )
    name, folder = str(path) if module else str(Path(path).resolve()), os.getcwd()

    def run_script() -> None:
        os.chdir(folder)
        sys.argv = [name, *arguments]
        sys.path.insert(0, folder if module else str(Path(name).parent))
        _prefer_modules_in(Path(sys.path[0]))
        _forget_exit_functions()
        try:
            if module:
                runpy.run_module(name, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(name, run_name="__main__")
        except SystemExit as end:
            if end.code not in (None, 0):
                raise RuntimeError(f"{path} ended with exit status {end.code}{_line(end)}") from None
        # As an interpreter does at its end, which a rank never reaches: wait for threads and processes that the script
        # has not waited for, and call what it has registered.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()

    return run_script


def _prefer_modules_in(folder: Path) -> None:
    """Let the script import a module of its own folder that has the same name as one of Python's or torch's, as it
    could in an interpreter that has imported nothing yet."""
    for name in [name for name in sys.modules if "." not in name and name != "__main__"]:
        beside = {str(folder / f"{name}.py"), str(folder / name / "__init__.py")}
        if any(map(os.path.isfile, beside)) and getattr(sys.modules[name], "__file__", None) not in beside:
            for module in [module for module in sys.modules if module == name or module.startswith(f"{name}.")]:
                del sys.modules[module]


def _line(end: SystemExit) -> str:
    frames = [frame for frame in traceback.extract_tb(end.__traceback__) if not is_library(frame.filename)]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def _forget_exit_functions() -> None:
    """Forget functions that are called at exit, except those of Python that end processes and write logs. The others
    come from the process that this one is a fork of."""
    atexit._clear()
    atexit.register(logging.shutdown)
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]
