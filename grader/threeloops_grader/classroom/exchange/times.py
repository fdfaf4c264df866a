"""Times at which submissions were handed in."""

import re
from datetime import datetime, timedelta
from pathlib import Path

from nbgrader.utils import parse_utc

from threeloops_grader.submissions.folder import TIMESTAMP

__all__ = ["noted_time", "utc"]

_OFFSET = re.compile(r"(?P<time>\S+ [0-9:.]+) ?(?P<sign>[+-])(?P<hours>\d\d):?(?P<minutes>\d\d)", re.ASCII)


def utc(text: str) -> datetime:
    """Return a time in nbgrader's form, in UTC and without a zone. nbgrader takes the offset +0100 for 100 seconds.

    Raises ValueError or OverflowError if it is not a time.
    """
    time: datetime
    if not (match := _OFFSET.fullmatch(text.strip())):
        time = parse_utc(text)
        return time
    hours = int(match["sign"] + match["hours"])
    minutes = int(match["sign"] + match["minutes"])
    time = parse_utc(match["time"])
    return time - timedelta(hours=hours, minutes=minutes)


def noted_time(folder: Path) -> datetime | None:
    """Return the time that a hand-in's folder notes, or None without a time or with one that grading refuses."""
    try:
        text = (folder / TIMESTAMP).read_text(encoding="ascii").strip()
        return utc(text) if text else None
    except (OSError, ValueError, OverflowError):
        return None
