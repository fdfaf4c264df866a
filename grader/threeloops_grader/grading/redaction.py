"""Redact a student's output, so that a record cannot reveal the inputs of a hidden test.

An answer may print its arguments, raise them as a message, or keep them for a later cell to print or draw. So output
and pictures are left out from the first hidden test on. Some words of an exception's message stay, because they help an
honest student. But numbers are removed, and so are words of hidden tests that no text of the lab shows to students.
Messages of checks stay unchanged: they name sizes and expected values on purpose.
"""

import builtins
import re
from dataclasses import dataclass, replace
from typing import Self

from threeloops_grader.authoring.manifest import Manifest
from threeloops_grader.authoring.regions import NOT_SHOWN, regions, without
from threeloops_grader.wall.outcome import Outcome

__all__ = ["Redactor"]

_MAX_MESSAGE = 300
"""Characters of a message from Python or a library, which may quote a value that the answer returned."""
_FIRST_WORDS = 60
_LAST_WORDS = 140
"""The number of characters kept of a longer message. A traceback says at its end what happened."""
_WORD = re.compile(r"\w+")


@dataclass
class Redactor:
    """A redactor, which follows one submission's cells in the order in which they run.

    `known` are the words that students have in the lab, and `hidden` the words of its hidden tests. `begun` is true
    once a hidden test has begun.
    """

    known: frozenset[str] = frozenset()
    hidden: frozenset[str] = frozenset()
    begun: bool = False

    @classmethod
    def of(cls, trusted: Manifest) -> Self:
        texts = [c.source for c in trusted.master.cells]
        public = [without(without(text, "SOLUTION"), "HIDDEN TESTS") for text in texts]
        hidden = [region for text in texts for region in regions(text, "HIDDEN TESTS")]
        return cls(frozenset(_WORD.findall("\n".join(public))), frozenset(_WORD.findall("\n".join(hidden))))

    def redact(self, outcome: Outcome, hidden_from: int | None = None, *, of_lab: bool = True) -> Outcome:
        """Return the outcome in a form that its student may read.

        `hidden_from` is the line where a test cell's hidden part starts. `of_lab` is false for the student's own cells.
        There may be many of them, so not even the first words of their messages are repeated.
        """
        if hidden_from is not None and (outcome.ok or outcome.line is None or outcome.line > hidden_from):
            self.begun = True
        if not self.begun:
            return outcome
        redacted = replace(
            outcome,
            student_printed=f"{NOT_SHOWN}\n" if outcome.student_printed else "",
            shown=[{"text/plain": NOT_SHOWN}] if outcome.shown else [],
        )
        if outcome.quoted is not None:
            words = self._harmless(outcome.quoted) if of_lab else NOT_SHOWN
            redacted.error = outcome.error if outcome.line else _nameable(outcome.error)
            redacted.where = ""
            redacted.message = outcome.unquoted.replace(NOT_SHOWN, words)
        if redacted.error not in ("CheckFailed", "NoAnswer"):
            redacted.message = redacted.message[:_MAX_MESSAGE]
        return redacted

    def _harmless(self, words: str) -> str:
        """Return a message, or its beginning and end, with a dash for each number or hidden word that students do not
        know."""

        def word(match: re.Match[str]) -> str:
            tells = match[0] in self.hidden or any(c.isdigit() for c in match[0])
            return "–" if tells and match[0] not in self.known else match[0]

        if len(words) > _FIRST_WORDS + _LAST_WORDS:
            return f"{_WORD.sub(word, words[:_FIRST_WORDS])} … {_WORD.sub(word, words[-_LAST_WORDS:])}"
        return _WORD.sub(word, words)


def _nameable(error: str) -> str:
    """Return the class of a student's exception if it is one of Python's own: any other name could itself tell
    something."""
    kind = getattr(builtins, error, None)
    return error if isinstance(kind, type) and issubclass(kind, Exception) else "Exception"
