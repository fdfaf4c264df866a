"""Let one command at a time change the points of a lab."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from threeloops_grader.authoring.labs import Lab, LabError
from threeloops_grader.classroom.register.settings import class_folder

__all__ = ["alone"]

_MOST_TEXT = 500


@contextmanager
def alone(lab: Lab, command: str) -> Iterator[int]:
    """Let `command` alone change the points of a lab. Returns the descriptor of the lock. A process that gets this
    descriptor holds the lock as well, also if the command itself was killed.

    Raises LabError that names the command that runs, if one does.
    """
    path = class_folder(lab.root) / f".points_{lab.slug}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            running = file.read(_MOST_TEXT).strip() or "another command that changes points"
            raise LabError(
                f"{running} is running, and changes the points of {lab.slug} as `{command}` does, so nothing was "
                "changed; wait until it ends, and give the command again"
            ) from None
        file.truncate(0)
        file.write(f"`{command}` (process {os.getpid()})")
        file.flush()
        try:
            yield file.fileno()
        finally:
            file.truncate(0)
