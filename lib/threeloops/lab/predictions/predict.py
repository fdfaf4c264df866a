"""`predict`: ask for a guess before the measurement, in a widget. `reveal`: text that stays folded until the guess."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from threeloops.lab.predictions import gate, questions
from threeloops.lab.predictions.questions import Answer, Question
from threeloops.lab.recording.notes import note
from threeloops.lab.widgets import cards
from threeloops.lab.widgets.display import html_widget, live, publish

__all__ = ["predict", "reveal", "reveal_again"]

_EVENT = "prediction {}"
_LOG_AXIS = 100.0
"""An axis that spans at least this factor is logarithmic."""


def predict(
    key: str,
    question: str,
    unit: str = "",
    guess: Answer | None = None,
    *,
    options: tuple[str, ...] = (),
    axis: tuple[float, float] | None = None,
) -> None:
    """Ask for a number in `unit`, one of `options`, or a point between the ends of `axis`.

    `reveal(key)` and `show.against_prediction(key, …)` stay folded until the reader has guessed, or asked to be shown.
    `guess` answers without the widget. A guess of an earlier session is taken from the journal. Without a front end the
    question is printed, and nothing is folded.
    """
    asked = _question(key, question, unit, tuple(options), axis)
    questions.register(asked)
    if guess is not None:
        _answer(asked, guess)
    else:
        questions.restore(asked)
    if key in questions.guesses:
        gate.happens(_EVENT.format(key))
    answer = questions.guesses.get(key)
    text = f"Your prediction: {question}\n  {asked.say(answer)}" if answer is not None else f"Predict first: {question}"
    waiting = answer is None and live()
    data = {"options": list(options), "axis": axis, "unit": unit, "text": question}
    with note(question=_EVENT.format(key), asks=data):
        publish(text, {"text/html": _card(asked)}, widget=_form(asked) if waiting else None)


def reveal(key: str) -> AbstractContextManager[None]:
    """Fold what is shown inside this `with` block until the question `key` is answered.

    A question that was not asked in this kernel folds nothing.
    """
    if key not in questions.asked:
        return nullcontext()
    return gate.folded(_EVENT.format(key), _until(key))


def reveal_again(key: str, show: Callable[[], None]) -> None:
    """Call `show` now, folded, and again when the question `key` is answered, so that it can use the guess."""
    if key not in questions.asked:
        show()
        return
    with note(found=questions.results.get(key)):
        gate.fold(_EVENT.format(key), _until(key), show)


def _until(key: str) -> str:
    return f"Folded until you have answered above: {questions.asked[key].text}"


def _question(key: str, text: str, unit: str, options: tuple[str, ...], axis: tuple[float, float] | None) -> Question:
    if options and (axis or unit):
        raise ValueError(f"predict({key!r}): options = {options}: expected no unit and no axis beside them")
    if options and (len(options) < 2 or len(set(options)) < len(options) or not all(map(str.strip, options))):
        raise ValueError(f"predict({key!r}): options = {options}: expected at least two different texts")
    if axis is not None and not axis[0] < axis[1]:
        raise ValueError(f"predict({key!r}): axis = {axis}: expected (low, high) with low < high")
    return Question(key, text, unit, options, axis)


def _answer(question: Question, answer: object) -> None:
    questions.guess(question.key, question.read(answer))
    gate.happens(_EVENT.format(question.key))


def _card(question: Question, note: str = "") -> str:
    guess = questions.guesses.get(question.key)
    label = "Predict first" if guess is None else "Your prediction"
    body = f"<b>{label}</b> · {cards.inline(question.text)}"
    if guess is not None:
        body += f"<br><b>{cards.inline(question.say(guess))}</b>"
    return cards.frame("question", body + (f"<br>{cards.small(note)}" if note else ""))


def _form(question: Question) -> Any:
    """The live question: an entry, a button that takes the guess, and one that gives up."""
    import ipywidgets

    card = html_widget(_card(question))
    entry = _entry(question)
    whole = {"layout": ipywidgets.Layout(width="auto", flex="0 0 auto")}
    take = ipywidgets.Button(description="This is my guess", button_style="primary", **whole)
    give_up = ipywidgets.Button(description="Show me", **whole)
    unit = ipywidgets.Label(question.unit, **whole)
    row = ipywidgets.HBox([entry, unit, take, give_up], layout=ipywidgets.Layout(flex_flow="row wrap"))
    box = ipywidgets.VBox([card, row]).add_class("threeloops-question")

    def taken(_: Any) -> None:
        try:
            _answer(question, entry.value if question.options or question.axis else _number(entry.value))
        except ValueError as error:
            card.value = _card(question, str(error))
            return
        card.value = _card(question)
        box.children = [card]

    def given_up(_: Any) -> None:
        card.value = _card(question, "No guess this time.")
        box.children = [card]
        gate.happens(_EVENT.format(question.key))

    take.on_click(taken)
    give_up.on_click(given_up)
    return box


def _entry(question: Question) -> Any:
    import ipywidgets

    if question.options:
        layout = ipywidgets.Layout(width="auto", max_width="calc(100% - 4px)")
        return ipywidgets.ToggleButtons(
            options=question.options, value=None, style={"button_width": "auto"}, layout=layout
        )
    if question.axis is None:
        layout = ipywidgets.Layout(width="16rem", max_width="calc(100% - 4px)")
        return ipywidgets.Text(placeholder="a number, such as 0.25 or 3e9", layout=layout)
    low, high = question.axis
    look = {"readout_format": ".3g", "layout": ipywidgets.Layout(width="26rem", max_width="calc(100% - 4px)")}
    if low > 0 and high / low >= _LOG_AXIS:
        ends = {"min": math.log10(low), "max": math.log10(high), "step": 0.01}
        return ipywidgets.FloatLogSlider(value=math.sqrt(low * high), **ends, **look)
    return ipywidgets.FloatSlider(value=(low + high) / 2, min=low, max=high, step=(high - low) / 200, **look)


def _number(text: str) -> float:
    """A number as people type it: 3e9, 1,000, 2 500."""
    if not text.strip():
        raise ValueError("Type a number first, such as 0.25 or 3e9")
    plain = text.replace(",", "").replace(" ", "").replace("_", "")
    try:
        return int(plain) if plain.lstrip("+-").isdecimal() else float(plain)
    except ValueError:
        raise ValueError(f"guess = {text!r}: expected a number, such as 0.25 or 3e9") from None
