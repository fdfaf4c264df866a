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
    title: str = ""
    """The title of the check that an exception has ended."""
    lines: list[str] = field(default_factory=list)
    """The call that failed, with its arguments, and the lines of the test and of the student's cells that were
    running. They may tell hidden inputs."""
    where: str = ""
    """The last of these lines if it is known and `lines` are not."""
    printed: str = ""
    student_printed: str = ""
    shown: list[dict[str, str]] = field(default_factory=list)
    full: bool = False
    dead: str = ""
    fault: str = ""
    ended: str = ""

    @property
    def reason(self) -> str:
        """Why it failed, for a person: the card that the student's notebook would show."""
        named = self.error in ("CheckFailed", "NoAnswer", "StudentError")
        text = self.message if named else f"{self.error}: {self.message}".rstrip(": ")
        if self.title and self.error != "NoAnswer":
            text = f"{self.title}\n  raised     {text}"
        if self.lines:
            return "\n".join([text, *(f"  {line}" for line in self.lines)])
        return f"{text} ({self.where})" if self.where and not named else text
