"""Cards, hints, questions and tables: their HTML is safe and whole, their text says the same without a notebook."""

import importlib
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from threeloops.lab import hint, predict, show
from threeloops.lab.predictions import questions
from threeloops.lab.widgets import cards
from threeloops.lab.widgets.hint import _nested

SPITEFUL = "<script>alert('x')</script> & \"quoted\""


class Outline(HTMLParser):
    """Open elements at the time each text is met; every element must be closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open, self.texts = [], {}
        self.feed(html)
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        if tag not in ("br", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts[data] = list(self.open)


@pytest.fixture
def shown(monkeypatch):
    """What would be displayed: (text, bundle) in order."""
    found = []

    def publish(text, bundle=None, metadata=None, widget=None):
        found.append((text, bundle or {}))

    for name in ("widgets.hint", "predictions.predict", "widgets.pictures", "widgets.cards"):
        monkeypatch.setattr(importlib.import_module(f"threeloops.lab.{name}"), "publish", publish)
    return found


@pytest.fixture(autouse=True)
def no_predictions():
    questions.asked.clear()
    questions.guesses.clear()


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


def test_texts_with_line_breaks_break_no_words(shown):
    """JupyterLab's own style for `pre` is `word-break: break-all`."""
    cards.failed("title", ["the loop's body " * 20], "line 3")
    (_, bundle), kit = shown[0], Path(cards.__file__).parents[1]
    assert "word-break:normal" in re.search(r'<pre style="([^"]*)"', bundle["text/html"])[1]
    assert [path.name for path in kit.rglob("*.py") if "<pre" in path.read_text()] == ["display.py"], (
        "write display.preformatted(text) in its place"
    )


def test_the_rest_of_a_long_line_is_indented_like_its_beginning(shown):
    """By the label of a card's line, or by the indentation of any other; as plain text nothing changes."""
    lines = ["  hint       " + "the sign " * 20, "  f returned " + "None " * 20, "plain"]
    cards.failed("title", lines, "")
    (_, bundle) = shown[0]
    assert re.findall(r"padding-left:(\d+)ch;text-indent:-(\d+)ch", bundle["text/html"]) == [
        ("13", "13"),
        ("2", "2"),
        ("0", "0"),
    ]
    assert "\n".join(lines) in "".join(Outline(bundle["text/html"]).texts)


def test_numbers_that_a_lab_has_formatted_are_aligned_as_numbers(capsys):
    show.table([["1,000", "2.11", "no"], ["12", "−80.4", "3 GB"]])
    assert capsys.readouterr().out == "1,000   2.11  no\n   12  −80.4  3 GB\n"


def test_a_table_breaks_long_names_only_after_an_underscore(shown):
    show.table([["aten::max_pool2d"]])
    assert "aten::max_<wbr>pool2d" in shown[0][1]["text/html"]


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


def test_code_and_bold_are_set_and_everything_else_is_text():
    said = cards.inline("a **stream** of `x**2 * y**2` <b>& 2 ** 3 ** 4")
    assert cards.inline("add it *before* the sum, *not* after; 2*3*4, `*args*`, a * b * c and 5* 6*") == (
        "add it <i>before</i> the sum, <i>not</i> after; 2*3*4, <code>*args*</code>, a * b * c and 5* 6*"
    )
    assert said == "a <b>stream</b> of <code>x**2 * y**2</code> &lt;b&gt;&amp; 2 ** 3 ** 4"
