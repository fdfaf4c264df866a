"""Show a measurement beside its prediction, and at the end of a lab, how good the predictions were."""

import math
import re
import textwrap

from threeloops.lab.predictions import questions
from threeloops.lab.predictions.busy import busy_words, show_busy
from threeloops.lab.predictions.predict import reveal_again
from threeloops.lab.predictions.questions import Answer, Question
from threeloops.lab.text.wording import number, with_unit
from threeloops.lab.widgets import cards, pictures, style
from threeloops.lab.widgets.display import publish
from threeloops.lab.widgets.style import palette

__all__ = ["against_prediction", "calibration"]

_CLOSE = 1.25
_NEAR = 2.0
"""Factors within which a guess is called close, and within which it counts as near."""
_TIMED = re.compile(r"(^|/)[mµn]?s$")
"""Units of times and rates."""
_NO_GUESS = "no prediction was made"


def against_prediction(key: str, measured: Answer, unit: str = "", source: str = "measured here") -> None:
    """Show a result beside the prediction for `key`, folded until the reader has predicted it.

    A number, in the unit of the question, is drawn beside the guess, with the factor between the two. Bars start at 0,
    but the axis is logarithmic if one would be more than ten times the other. Without a guess there is nothing to
    compare, so it is one line of text. `source` gives the number's origin: "measured here", "recorded on …" or "model".
    A time or a rate measured here is followed by a notice if the machine is busy. For a question with options,
    `measured` is the correct option.
    """
    question = questions.asked.get(key, Question(key, "", unit))
    if question.unit and unit and question.unit != unit:
        raise ValueError(f"{key}: predicted in {question.unit}, measured in {unit}; give both in the same unit")
    value = question.read(measured, "measured")
    unit = question.unit or unit
    questions.found(key, value)
    timed = not question.options and source.startswith("measured here") and _TIMED.search(unit)
    busy = busy_words() if timed else ""

    def show() -> None:
        guess = questions.guesses.get(key)
        if isinstance(value, str):
            comparison = "as predicted" if guess == value else f"you said: {guess}"
            _show_line(value, f"{source} · {_NO_GUESS if guess is None else comparison}", right=guess == value)
        elif isinstance(guess, str) or guess is None:
            _show_line(with_unit(number(value), unit), f"{source} · {_NO_GUESS}")
        else:
            _show_bars(guess, value, unit, source)
        if busy:
            show_busy(busy)

    reveal_again(key, show)


def _show_line(result: str, about: str, *, right: bool = False) -> None:
    html = f"<b>{cards.inline(result)}</b> {cards.small(f'· {about}')}"
    publish(f"{result} · {about}", {"text/html": cards.frame("passed" if right else "plain", html)})


def _show_bars(guess: float, value: float, unit: str, source: str) -> None:
    verdict = _confront(guess, value)
    bars = [(source, value, palette.blue), ("your prediction", guess, palette.orange)]
    lines = [f"{name}: {with_unit(number(amount), unit)}" for name, amount, _ in bars]
    pictures.figure(_bars(bars, unit, verdict), "; ".join([*lines, verdict]))


def _confront(guess: float, measured: float) -> str:
    """The sentence above the two bars."""
    if guess == measured:
        return "exactly as predicted"
    if guess * measured <= 0:
        return f"the prediction is off by {number(abs(guess - measured))}"
    factor = max(guess / measured, measured / guess)
    side = "too high" if abs(guess) > abs(measured) else "too low"
    closeness = "close" if factor <= _CLOSE else "within a factor of two" if factor <= _NEAR else "worth a second look"
    return f"the prediction is {number(factor, 3)}× {side}: {closeness}"


def _bars(bars, unit: str, verdict: str):
    fig, axes = style.figure(width=7.5, height=1.0 + 0.55 * len(bars))
    names, values, colours = zip(*bars, strict=True)
    drawn = axes.barh([textwrap.fill(name, 24) for name in names], values, color=colours, height=0.62)
    axes.bar_label(drawn, labels=[with_unit(number(v), unit) for v in values], padding=5)
    if 0 < 10 * min(values) < max(values):
        axes.set_xscale("log")
        axes.set_xlim(min(values) / 10, max(values) * 10)
    elif any(values):
        axes.margins(x=0.25)
    else:
        axes.set_xlim(0, 1)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(unit or "value")
    fig.suptitle(verdict[0].upper() + verdict[1:], x=0.01, ha="left", fontsize=11, fontweight="normal")
    return fig


def calibration() -> None:
    """Compare the predictions of this lab with the results: a table, and the overall error."""
    both = [key for key in questions.asked if key in questions.guesses and key in questions.results]
    rows = [_row(questions.asked[key], questions.guesses[key], questions.results[key]) for key in both]
    summary = _summary(both, len(questions.asked))
    if rows:
        pictures.table(rows, ["question", "your guess", "found", "difference"])
    publish(summary, {"text/html": cards.frame("question", f"<b>Your predictions</b> · {cards.inline(summary)}")})


def _row(question: Question, made: Answer, result: Answer) -> tuple[str, str, str, str]:
    if isinstance(result, str) or isinstance(made, str):
        off = "right" if made == result else "not this time"
    elif made * result > 0:
        factor = made / result
        off = "exact" if factor == 1 else f"{number(max(factor, 1 / factor), 3)}× too {'high' if factor > 1 else 'low'}"
    else:
        off = f"off by {number(abs(made - result))}"
    return question.text, question.say(made), question.say(result), off


def _summary(both: list[str], asked: int) -> str:
    """Counts, and the direction in which numbers are off: the geometric mean of guess ÷ found."""
    if not both:
        return (
            f"none of the {asked} questions has both a guess and a measurement yet: guess, then run this cell again"
            if asked
            else "nothing was asked yet"
        )
    pairs = [(questions.guesses[key], questions.results[key]) for key in both]
    picked = [made == result for made, result in pairs if isinstance(made, str)]
    numbers = [(made, result) for made, result in pairs if not isinstance(made, str) and not isinstance(result, str)]
    logs = [math.log(made / result) for made, result in numbers if made * result > 0]
    parts = [f"{len(both)} of {asked} questions answered"]
    if picked:
        parts.append(f"{sum(picked)} of {len(picked)} choices right")
    if logs:
        near = sum(abs(log) <= math.log(_NEAR) * (1 + 1e-9) for log in logs)
        parts.append(f"{near} of {len(logs)} numbers within a factor of two")
        typical = math.exp(sum(logs) / len(logs))
        if len(logs) > 1 and max(typical, 1 / typical) > _CLOSE:
            side = "high" if typical > 1 else "low"
            parts.append(f"on average your numbers are {number(max(typical, 1 / typical), 2)}× too {side}")
    return "; ".join(parts)
