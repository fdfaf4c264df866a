"""Predictions: a number written down before the measurement, remembered until the measurement is made."""

import math
from dataclasses import dataclass

from threeloops.lab.text.numeric import numbers
from threeloops.lab.text.wording import describe, number, with_unit
from threeloops.lab.widgets import cards
from threeloops.lab.widgets.display import publish

__all__ = ["predict", "predictions", "single_number"]


@dataclass(frozen=True)
class _Prediction:
    unit: str
    guess: float


predictions: dict[str, _Prediction] = {}
"""What was predicted in this kernel, by key."""


def predict(key: str, question: str, unit: str = "", guess: float | None = None) -> None:
    """Show the question; with `guess`, a number in `unit`, remember the answer. Running it again replaces the guess."""
    if guess is None:
        label = "Predict first"
        answer = f"Write your number{unit and f', in {unit},'} as `guess=` in this cell and run it."
        shown = cards.small(answer)
    else:
        predictions[key] = made = _Prediction(unit, single_number(guess, "guess", unit))
        label, answer = "Your prediction", with_unit(number(made.guess), unit)
        shown = f"<b>{cards.inline(answer)}</b>"
    html = f"<b>{label}</b> · {cards.inline(question)}<br>{shown}"
    publish(f"{label}: {question}\n  {answer}", {"text/html": cards.frame("question", html)})


def single_number(value: object, name: str, unit: str = "") -> float:
    """One finite real number, as Python, numpy or torch hold it."""
    found = numbers(value)
    if found is None or found.shape or found.kind not in ("int", "float") or not math.isfinite(found.array.item()):
        raise ValueError(f"{name} = {describe(value)}: expected one finite number{unit and f' in {unit}'}")
    return found.array.item()
