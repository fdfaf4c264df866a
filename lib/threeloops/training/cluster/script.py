"""A script as a program of a cluster: it runs on each rank as torchrun would run it."""

import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["script"]


def script(path: str | Path, *arguments: str, module: bool = False) -> Callable[[], None]:
    """A program for `Cluster.run` or `run_on_processes` that runs a file, unchanged, with `__name__ == "__main__"`.

    Its own `init_process_group`, `destroy_process_group` and `mp.spawn` lead to the ranks of the cluster.

    >>> Cluster(one_node("H100 SXM", 8)).run(script("train.py", "--steps", "10")).seconds

    Args:
        path: of the file, or with `module` the name of a module, as after `python -m`.
        arguments: its `sys.argv[1:]`.

    Raises:
        FileNotFoundError: there is no such file.
    """
    if not module and not Path(path).is_file():
        raise FileNotFoundError(f"{path}: expected a Python script; for the name of a module pass module=True")
    name, folder = str(path) if module else str(Path(path).resolve()), os.getcwd()

    def run_script() -> None:
        os.chdir(folder)
        sys.argv = [name, *arguments]
        sys.path.insert(0, folder if module else str(Path(name).parent))
        try:
            if module:
                runpy.run_module(name, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(name, run_name="__main__")
        except SystemExit as end:
            if end.code not in (None, 0):
                raise RuntimeError(f"{path} ended with exit status {end.code}") from None

    return run_script
