"""Running a module of this library in another Python process, whether the library is installed or not."""

import sys
from pathlib import Path

import threeloops

__all__ = ["command"]

_RUN = (
    "import sys; sys.path[:0] = sys.argv[1:]; import threeloops; del sys.path[: len(sys.argv) - 1]; "
    "from {module} import main; main()"
)


def command(module: str) -> list[str]:
    """The command that calls `main` of a module, from the same copy of the library that this process imported.

    The library's folder is in the search path only until the package is found, so that nothing beside it can shadow
    another module. The current folder, which may hold a student's files, is never in it.
    """
    folders = [str(Path(folder).resolve().parent) for folder in threeloops.__path__]
    return [sys.executable, "-P", "-c", _RUN.format(module=module), *folders]
