"""The reader's predictions: question, guess and result, kept in the journal and in memory for this kernel."""

import math
from dataclasses import dataclass

from threeloops.lab.course import journal
from threeloops.lab.text.numeric import numbers
from threeloops.lab.text.wording import describe, number, with_unit

__all__ = [
    "Answer",
    "Question",
    "asked",
    "found",
    "guess",
    "guesses",
    "register",
    "restore",
    "results",
    "single_number",
]

Answer = float | str


@dataclass(frozen=True)
class Question:
    """A number in `unit` is wanted, or one of `options`. `axis` holds the ends of an axis to point on."""

    key: str
    text: str
    unit: str = ""
    options: tuple[str, ...] = ()
    axis: tuple[float, float] | None = None

    def read(self, answer: object, name: str = "guess") -> Answer:
        """Return the answer as a number or an option. Raises ValueError, which says what was expected."""
        if not self.options:
            return single_number(answer, name, self.unit)
        if type(answer) is not str or answer not in self.options:
            raise ValueError(f"{name} = {describe(answer)}: expected one of {', '.join(map(repr, self.options))}")
        return answer

    def say(self, answer: Answer) -> str:
        return answer if isinstance(answer, str) else with_unit(number(answer), self.unit)


asked: dict[str, Question] = {}
guesses: dict[str, Answer] = {}
results: dict[str, Answer] = {}
"""The measured results, by the key of their question."""


def register(question: Question) -> None:
    """Ask a question. Its guess is forgotten if it answers an earlier wording with answers of another kind."""
    asked[question.key] = question
    if question.key in guesses:
        try:
            question.read(guesses[question.key])
        except ValueError:
            del guesses[question.key]


def restore(question: Question) -> None:
    """Take the guess that the journal holds of an earlier kernel, if it answers this question."""
    entry = journal.predictions().get(question.key, {})
    if question.key not in guesses and entry.get("question") == question.text:
        try:
            guesses[question.key] = question.read(entry.get("guess"))
        except ValueError:
            return


def guess(key: str, answer: Answer) -> None:
    question = asked[key]
    guesses[key] = question.read(answer)
    journal.note_prediction(key, question=question.text, unit=question.unit, guess=guesses[key])


def found(key: str, answer: Answer) -> None:
    """Keep a measured result for the calibration at the end of the lab."""
    results[key] = answer
    if key in guesses:
        journal.note_prediction(key, found=answer)


def single_number(value: object, name: str, unit: str = "") -> float:
    """One finite real number, as Python, numpy or torch hold it."""
    parsed = numbers(value)
    if parsed is None or parsed.shape or parsed.kind not in ("int", "float") or not math.isfinite(parsed.array.item()):
        raise ValueError(f"{name} = {describe(value)}: expected one finite number{unit and f' in {unit}'}")
    return parsed.array.item()
