"""Packages to compare with, which may be in this environment or in `.venv-peers`, which `make peers` makes."""

import importlib.util
import sys
from functools import cache

from threeloops_grader.machine.child_process import CODE

__all__ = ["why_absent"]

_PEERS = CODE / ".venv-peers"


@cache
def why_absent(package: str, name: str = "") -> str | None:
    """Return why `package` cannot be imported, or None if it can. `name` is what the message calls it.

    If only `.venv-peers` has the package, its folder goes to the end of the import path. So torch and Triton stay those
    of this environment.
    """
    if importlib.util.find_spec(package) is None:
        sys.path.extend(str(found.parent) for found in _PEERS.glob(f"lib/python*/site-packages/{package}"))
    return None if importlib.util.find_spec(package) else f"{name or package} is not installed; `make peers` does"
