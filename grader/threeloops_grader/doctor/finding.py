"""A finding of the doctor: one thing that was tried, and the next step."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """One thing that works, is missing, or is present and fails. `next_step` is empty if nothing has to be done."""

    name: str
    status: Literal["ok", "missing", "broken"]
    sentence: str
    next_step: str = ""
