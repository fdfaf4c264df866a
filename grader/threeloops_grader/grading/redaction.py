"""Redact a student's output, so that a record cannot reveal the inputs of a hidden test.

An answer may print its arguments, raise them as a message, or keep them for a later cell to print or draw. So output
and pictures are left out from the first hidden test on. Some words of an exception's message stay, because they help an
honest student. But numbers are hidden, and so are words of hidden tests that no text of the lab shows to students. The
call that failed and the lines of the student's cell are left out. Messages of checks stay unchanged: they name sizes
and expected values on purpose.
"""

import builtins
import re
from dataclasses import dataclass, replace
from typing import Self

from threeloops_grader.authoring.manifest import Manifest
from threeloops_grader.authoring.regions import NOT_SHOWN, regions, without
from threeloops_grader.wall.outcome import Outcome

__all__ = ["Redactor", "reaches"]

_MAX_MESSAGE = 300
"""Characters of a message from Python or a library, which may quote a value that the answer returned."""
_FIRST_WORDS = 60
_LAST_WORDS = 140
"""The number of characters kept of a longer message. A traceback says at its end what happened."""
_WORD = re.compile(r"\d\w*(?:\.\w+)*|\w+")
"""A number, with its point and the digits behind it, or a word."""
_HIDDEN = "[hidden]"
_SEVERAL_HIDDEN = re.compile(r"\[hidden\](?:[-+\s,;:]*\[hidden\])+")
_LINE_NUMBER = re.compile(r", line \d+")


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
        if hidden_from is not None and (outcome.ok or reaches(outcome, hidden_from)):
            self.begun = True
        if not self.begun:
            return outcome
        redacted = replace(
            outcome,
            student_printed=f"{NOT_SHOWN}\n" if outcome.student_printed else "",
            shown=[{"text/plain": NOT_SHOWN}] if outcome.shown else [],
            title="",
            lines=[],
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
        """Return a message, or its beginning and end, without line numbers, and with a mark for each number or hidden
        word that students do not know."""

        def word(match: re.Match[str]) -> str:
            tells = match[0] in self.hidden or any(c.isdigit() for c in match[0])
            return _HIDDEN if tells and match[0] not in self.known else match[0]

        def marked(part: str) -> str:
            return _SEVERAL_HIDDEN.sub(_HIDDEN, _WORD.sub(word, part))

        words = _LINE_NUMBER.sub("", words)
        if len(words) > _FIRST_WORDS + _LAST_WORDS:
            return f"{marked(words[:_FIRST_WORDS])} … {marked(words[-_LAST_WORDS:])}"
        return marked(words)


def reaches(outcome: Outcome, hidden_from: int) -> bool:
    """Return whether a test that failed had reached its hidden part, which starts at this line."""
    return outcome.line is None or outcome.line > hidden_from


def _nameable(error: str) -> str:
    """Return the class of a student's exception if it is one of Python's own: any other name could itself tell
    something."""
    kind = getattr(builtins, error, None)
    return error if isinstance(kind, type) and issubclass(kind, Exception) else "Exception"
