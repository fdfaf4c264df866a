"""What a record repeats of a student's words: nothing that was worded after a hidden test could have shown its inputs.

An answer may print its arguments, raise them as a message, or keep them for a later cell to print or draw. So from the
first hidden test on, output and messages from the student's side are left out. What a check says stays: it names sizes
and expected values on purpose.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass, replace

from grader.outcome import Outcome

_MAX_MESSAGE = 300
"""Characters of a message of Python's or a library's: it may quote a value that the answer returned."""
NOT_SHOWN = "[not shown: it may repeat the inputs of hidden tests]"


@dataclass
class Withholding:
    """Follows one submission's cells in the order in which they run. `begun`: a hidden test has."""

    begun: bool = False

    def public(self, outcome: Outcome, hidden_from: int | None = None) -> Outcome:
        """The outcome as its student may read it. `hidden_from`: the line where a test cell's hidden part starts."""
        if hidden_from is not None and (outcome.ok or outcome.line is None or outcome.line > hidden_from):
            self.begun = True
        return without_words(outcome) if self.begun else outcome


def without_words(outcome: Outcome) -> Outcome:
    """The outcome without what the student's side worded: output, pictures, and the messages of its exceptions."""
    kept = replace(
        outcome,
        student_printed=f"{NOT_SHOWN}\n" if outcome.student_printed else "",
        shown=[{"text/plain": NOT_SHOWN}] if outcome.shown else [],
    )
    if outcome.quoted:
        kept.error, kept.message, kept.where = _nameable(outcome.error), outcome.unquoted, ""
    if kept.error not in ("CheckFailed", "NoAnswer"):
        kept.message = kept.message[:_MAX_MESSAGE]
    return kept


def _nameable(error: str) -> str:
    """The exception's class where it is one of Python's own: any other name could be a message in itself."""
    kind = getattr(builtins, error, None)
    known = isinstance(kind, type) and issubclass(kind, Exception)
    return error if known or error == "CheckFailed" else "Exception"
