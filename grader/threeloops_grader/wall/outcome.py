"""The outcome of one cell: written by the grader's half, read by the session. This module does not import torch."""

from dataclasses import dataclass, field

__all__ = ["Outcome"]


@dataclass
class Outcome:
    """The outcome of one cell. `value` is a test's own number if its last line is one, for partial credit.

    `full` says that the student's cell has left too little memory for the cells that follow. `fault` says that the
    machine made the cell fail, so the failure says nothing about the submission. `ended` says that the grader's half
    that ran the cell is gone, by this signal or exit code.
    """

    ok: bool = False
    value: float | None = None
    error: str = ""
    message: str = ""
    quoted: str | None = None
    """The part of `message` that came from the student's side, which then chose `error` and `where` too; else None."""
    unquoted: str = ""
    """The `message` with a mark in place of each quotation."""
    line: int | None = None
    """The last line of the test cell that had begun when the test failed."""
    where: str = ""
    printed: str = ""
    student_printed: str = ""
    shown: list[dict[str, str]] = field(default_factory=list)
    full: bool = False
    dead: str = ""
    fault: str = ""
    ended: str = ""

    @property
    def reason(self) -> str:
        """Why it failed, for a person."""
        text = self.message if self.error in ("CheckFailed", "NoAnswer") else f"{self.error}: {self.message}"
        return text + (f"  [{self.where}]" if self.where and self.error != "CheckFailed" else "")
