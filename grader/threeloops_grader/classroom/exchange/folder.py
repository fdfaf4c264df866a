"""The folder of the exchange, on a machine that students share."""

import os
import stat
from pathlib import Path

from threeloops_grader.authoring.labs import LabError

__all__ = ["exchange_of", "is_open_to_all", "require_exchange", "shared"]


def exchange_of(root: Path) -> Path:
    """Return the exchange of the course in `root`: a department names a folder that its students can write to."""
    return Path(os.environ.get("THREELOOPS_EXCHANGE", root / "exchange"))


def require_exchange(root: Path) -> None:
    """Check that submissions can be handed in there. Raises LabError if not."""
    exchange = exchange_of(root)
    shared(exchange)
    if not os.access(exchange, os.W_OK | os.X_OK):
        what = "cannot be written to" if exchange.is_dir() else "is not there and cannot be made"
        raise LabError(
            f"the exchange {exchange} {what}; set THREELOOPS_EXCHANGE to a folder that instructors and students share"
        )


def shared(exchange: Path) -> None:
    """Make the folder if it is missing, and let nobody remove or rename other users' files in it.

    nbgrader opens it to everybody (0777), so a student could put a folder of his own in the place of the course's
    folder and collect other students' submissions. It is not a fault if the folder cannot be made, because most
    commands need no exchange.
    """
    try:
        exchange.mkdir(parents=True, exist_ok=True)
        status = exchange.stat()
        if status.st_uid == os.geteuid() and status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            exchange.chmod(stat.S_IMODE(status.st_mode) | stat.S_ISVTX)
    except OSError:
        return


def is_open_to_all(folder: Path) -> bool:
    """Return whether every user of the machine can list the folder and open its files."""
    resolved = folder.resolve()
    above = all(parent.stat().st_mode & stat.S_IXOTH for parent in resolved.parents)
    return above and resolved.stat().st_mode & (stat.S_IROTH | stat.S_IXOTH) == stat.S_IROTH | stat.S_IXOTH
