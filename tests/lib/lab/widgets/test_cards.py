"""Cards, hints, predictions and tables: their HTML is safe and whole, their text says the same without a notebook."""

import importlib
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from threeloops.lab import hint, predict, show
from threeloops.lab.widgets import cards
from threeloops.lab.widgets.hint import _nested
from threeloops.lab.widgets.predict import predictions

SPITEFUL = "<script>alert('x')</script> & \"quoted\""


class Outline(HTMLParser):
    """Open elements at the time each text is met; every element must be closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open, self.texts = [], {}
        self.feed(html)
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts[data] = list(self.open)


@pytest.fixture
def shown(monkeypatch):
    """What would be displayed: (text, bundle) in order."""
    found = []

    def publish(text, bundle=None, metadata=None):
        found.append((text, bundle or {}))

    for name in ("hint", "predict", "show", "cards"):
        monkeypatch.setattr(importlib.import_module(f"threeloops.lab.widgets.{name}"), "publish", publish)
    return found


@pytest.fixture(autouse=True)
def no_predictions():
    predictions.clear()


def test_each_hint_opens_only_inside_the_one_before():
    outline = Outline(_nested("chain", ("first", "second", "third")))
    depth = {text: tags.count("details") for text, tags in outline.texts.items()}
    assert (depth["first"], depth["second"], depth["third"]) == (1, 2, 3)
    summaries = [text for text, tags in outline.texts.items() if "summary" in tags]
    assert summaries == ["Hint 1 of 3 · chain", "Hint 2 of 3", "Hint 3 of 3"]
    assert [depth[text] for text in summaries] == [1, 2, 3]


def test_backticks_set_code_and_nothing_else_is_markup():
    assert cards.inline("`a < b` & c") == "<code>a &lt; b</code> &amp; c"
    assert cards.inline("a <b>single</b> ` stays") == "a &lt;b&gt;single&lt;/b&gt; ` stays"
    assert Outline(_nested("chain", (SPITEFUL,))).texts[SPITEFUL].count("script") == 0


def test_hints_need_words():
    for hints in ((), ("",), ("first", "  "), (3,)):
        with pytest.raises(ValueError, match="one text or more"):
            hint("chain", *hints)


def test_without_a_notebook_the_first_hint_is_text(capsys):
    hint("chain", "two clocks run", "the later one counts")
    assert capsys.readouterr().out == "hint for chain: two clocks run\n(1 more in the notebook)\n"


def test_a_prediction_is_asked_for_then_remembered(capsys):
    predict("chain", question="how long?", unit="µs")
    assert "Predict first: how long?" in capsys.readouterr().out and not predictions
    predict("chain", question="how long?", unit="µs", guess=7000)
    assert "7,000 µs" in capsys.readouterr().out
    show.against_prediction("chain", measured=torch.tensor(5000.0), unit="µs", source="model")
    out = capsys.readouterr().out
    assert "model: 5000 µs; your prediction: 7,000 µs; the prediction is 1.4× too high: within a factor of two" in out


def test_a_measurement_without_a_prediction_is_still_shown(capsys):
    show.against_prediction("never asked", measured=12.5, unit="GB/s")
    assert "measured here: 12.5 GB/s; no prediction was made" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("guess", "measured", "words"),
    [
        (100.0, 100.0, "exactly"),
        (110.0, 100.0, "1.1× too high: close"),
        (10.0, 100.0, "10× too low: worth a second look"),
        (0.0, 5.0, "off by 5"),
        (-1.0, 1.0, "off by 2"),
    ],
)
def test_the_sentence_about_a_prediction(guess, measured, words):
    assert words in show._confront(guess, measured)


@pytest.mark.parametrize("guess", ["5 ms", True, [1.0], float("nan"), float("inf"), 1j])
def test_a_guess_is_one_finite_number(guess):
    with pytest.raises(ValueError, match=r"guess = .*one finite number in µs"):
        predict("chain", question="how long?", unit="µs", guess=guess)


def test_prediction_and_measurement_share_a_unit():
    predict("chain", question="how long?", unit="µs", guess=1.0)
    with pytest.raises(ValueError, match="predicted in µs, measured in ms"):
        show.against_prediction("chain", measured=1.0, unit="ms")


def test_zero_and_negative_values_are_drawn_too(capsys):
    predict("bubble", question="?", guess=0)
    show.against_prediction("bubble", measured=-3)
    assert "your prediction: 0" in capsys.readouterr().out


def test_bars_of_one_magnitude_start_at_zero():
    """4 beside 8 is half as long; on a log axis its length would depend on where the axis begins."""
    near, far = (show._bars([("model", 4.0, "blue"), ("you", guess, "orange")], "×", "Words") for guess in (8.0, 80.0))
    assert (near.axes[0].get_xscale(), far.axes[0].get_xscale()) == ("linear", "log")
    assert near.axes[0].get_xlim()[0] == 0


@pytest.mark.parametrize("source", ["model", "recorded on one core of a 2-core x86-64 cloud machine, for the course"])
def test_the_verdict_stays_inside_the_picture(source):
    predict("chain", question="how long?", unit="µs", guess=3000.0)
    for verdict in (show._confront(None, 5000.0), show._confront(3000.0, 5000.0)):
        bars = [(source, 5000.0, "blue"), ("your prediction", 3000.0, "orange")]
        fig = show._bars(bars, "µs", verdict)
        fig.draw_without_rendering()
        for axes in fig.axes:
            for text in (fig._suptitle, *axes.get_yticklabels()):
                box = text.get_window_extent()
                assert box.x0 >= 0 and box.x1 <= fig.bbox.width
            assert axes.get_window_extent().width > 0.5 * fig.bbox.width


def test_every_card_is_self_contained_and_escaped(shown):
    hint(SPITEFUL, SPITEFUL, SPITEFUL)
    predict(SPITEFUL, question=SPITEFUL, unit=SPITEFUL)
    predict(SPITEFUL, question=SPITEFUL, unit=SPITEFUL, guess=3)
    show.table([[SPITEFUL, 1]], [SPITEFUL, SPITEFUL], caption=SPITEFUL)
    cards.passed(SPITEFUL, SPITEFUL)
    assert len(shown) == 5
    for text, bundle in shown:
        html = bundle["text/html"]
        assert SPITEFUL in text
        assert any(SPITEFUL in data for data in Outline(html).texts)
        assert not re.search(r"<script|https?:|url\(|<link|<img|\sid=", html)


def test_a_table_aligns_numbers_and_takes_scalars_of_every_origin(capsys):
    show.table([["matmul", 4096, np.float32(0.5)], ["softmax", torch.tensor(128), 12.25]], ["operation", "n", "ms"])
    assert capsys.readouterr().out.split("\n")[:4] == [
        "operation      n     ms",
        "---------  -----  -----",
        "matmul     4,096    0.5",
        "softmax      128  12.25",
    ]


def test_a_table_without_rows_or_header(capsys):
    show.table([], ["a", "b"])
    show.table([[1, 2]])
    show.table([])
    assert capsys.readouterr().out == "a  b\n-  -\n1  2\n\n"


def test_ragged_tables_are_refused():
    with pytest.raises(ValueError, match=r"\[1, 2\] cells"):
        show.table([[1, 2], [3]])
    with pytest.raises(ValueError, match=r"\[1, 2\] cells"):
        show.table([[1, 2]], ["n"])


def test_a_figure_without_a_notebook_is_its_titles(capsys):
    from threeloops.lab import figure

    fig, (left, right) = figure(1, 2)
    left.set_title("one\nline")
    right.set_title("two")
    show.figure(fig)
    assert capsys.readouterr().out == "figure: one line; two\n"


def test_pyplot_forgets_a_figure_that_was_shown():
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    fig, _ = pyplot.subplots()
    assert pyplot.fignum_exists(fig.number)
    show.figure(fig)
    assert not pyplot.fignum_exists(fig.number)
