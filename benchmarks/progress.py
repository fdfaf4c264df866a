"""A line on stderr for each measurement that is finished, so that a benchmark of minutes is seen to be alive."""

import sys
import time

__all__ = ["finished"]

_STARTED = time.monotonic()


def finished(what: str) -> None:
    """Say that `what` is measured, and how many seconds after the program's start."""
    print(f"{time.monotonic() - _STARTED:6.0f} s  {what}", file=sys.stderr, flush=True)
