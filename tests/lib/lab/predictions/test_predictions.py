"""Predictions: asked in a widget, kept, compared with what was found, and what stays folded until they are made."""

import pytest
import torch
from threeloops.lab import audit, calibration, myth, predict, reveal, show
from threeloops.lab.course import journal
from threeloops.lab.predictions import against, gate, questions
from threeloops.lab.predictions import predict as predict_module
from threeloops.lab.widgets import display


@pytest.fixture(autouse=True)
def nothing_asked():
    for state in (questions.asked, questions.guesses, questions.results, gate._happened, gate._waiting, gate._said_in):
        state.clear()


class Page:
    """What a front end would show: the pieces of each output, and the live widget of each."""

    def __init__(self):
        self.pieces = []

    def publish(self, text, bundle=None, metadata=None, widget=None):
        if display._captured:
            display._captured[-1].append(display.Piece(text, bundle or {}, metadata or {}, widget))
        else:
            self.pieces.append(display.Piece(text, bundle or {}, metadata or {}, widget))


@pytest.fixture
def page(monkeypatch, tmp_path):
    """A live page: widgets answer, and nothing is folded for want of a front end."""
    found = Page()
    for module in (predict_module, gate, against, against.pictures, display):
        monkeypatch.setattr(module, "publish", found.publish)
    monkeypatch.setattr("threeloops.lab.predictions.audit.publish", found.publish)
    for module in (predict_module, gate):
        monkeypatch.setattr(module, "live", lambda: True)
    monkeypatch.setenv("THREELOOPS_HOME", str(tmp_path / "state"))
    return found


def texts(widget):
    """All HTML of a widget and of what it holds."""
    return "".join([getattr(widget, "value", "") or "", *map(texts, getattr(widget, "children", ()))])


def form(page):
    card, row = page.pieces[0].widget.children
    return card, *row.children


def test_what_a_question_folds_opens_with_the_guess_and_stays_open(page):
    predict("reuse", "How often is a tile used?", "times")
    with reveal("reuse"):
        print("a tile is used 64 times")
        show.table([["reuse", 64]])
    folded = page.pieces[1].widget
    assert "64" not in texts(folded) and "How often is a tile used?" in texts(folded)
    assert "64 times" in page.pieces[1].bundle["text/html"], "an exported page has no kernel, and shows it"
    _, entry, unit, take, _ = form(page)
    assert unit.value == "times"
    entry.value = "1e2"
    take.click()
    assert questions.guesses == {"reuse": 100.0}
    assert "a tile is used 64 times" in texts(folded) and "<table" in texts(folded)
    with reveal("reuse"):
        show.table([["again", 64]])
    assert page.pieces[-1].widget is None, "later outputs are not folded"


def test_one_cell_says_once_what_its_outputs_wait_for(page, monkeypatch):
    """A figure and a comparison that wait for the same answer stand below one notice."""
    monkeypatch.setattr(gate, "execution", lambda: 7)
    predict("reuse", "How often?", "times")
    with reveal("reuse"):
        show.table([["reuse", 64]])
    show.against_prediction("reuse", 64)
    assert ["How often?" in texts(piece.widget) for piece in page.pieces[1:]] == [True, False]
    monkeypatch.setattr(gate, "execution", lambda: 8)
    show.against_prediction("reuse", 64)
    assert "How often?" in texts(page.pieces[-1].widget), "another cell says it again"
    *_, give_up = form(page)
    give_up.click()
    assert all("64" in texts(piece.widget) for piece in page.pieces[1:])


def test_show_me_opens_without_a_guess(page):
    predict("reuse", "How often?", "times")
    show.against_prediction("reuse", 64)
    *_, give_up = form(page)
    give_up.click()
    assert questions.guesses == {}
    shown = texts(page.pieces[1].widget)
    assert "64 times" in shown and "no prediction was made" in shown


def test_a_number_without_a_guess_is_one_line_and_no_picture(page):
    show.against_prediction("never asked", 12.5, "GB/s", source="model")
    (piece,) = page.pieces
    assert piece.text == "12.5 GB/s · model · no prediction was made"
    assert "svg" not in piece.html() and "image/png" not in piece.bundle


def test_a_guess_after_run_all_is_compared_with_what_was_folded(page):
    predict("reuse", "How often?", "times")
    show.against_prediction("reuse", 64)
    assert "no prediction was made" in page.pieces[1].bundle["text/html"], "an exported page has no guess"
    _, entry, _, take, _ = form(page)
    entry.value = "128"
    take.click()
    opened = texts(page.pieces[1].widget)
    assert "2× too high" in opened and "svg" in opened and "no prediction was made" not in opened


def test_a_comparison_inside_what_a_question_folds_knows_the_guess(page):
    predict("reuse", "How often?", "times")
    with reveal("reuse"):
        print("counted")
        show.against_prediction("reuse", 64)
    folded = page.pieces[1].widget
    assert texts(folded).count("How often?") == 1 and "64" not in texts(folded)
    _, entry, _, take, _ = form(page)
    entry.value = "128"
    take.click()
    assert "2× too high" in texts(folded) and "no prediction was made" not in texts(folded)


def test_a_block_inside_another_waits_for_its_own_question(page):
    predict("reuse", "How often?", "times")
    predict("tiles", "How many?", "tiles")
    with reveal("reuse"), reveal("tiles"):
        print("12 tiles")
    gate.happens("prediction reuse")
    assert "12 tiles" not in texts(page.pieces[2].widget) and "How many?" in texts(page.pieces[2].widget)
    gate.happens("prediction tiles")
    assert "12 tiles" in texts(page.pieces[2].widget)


def test_what_is_no_number_is_refused_in_the_form(page):
    predict("reuse", "How often?", "times")
    card, entry, _, take, _ = form(page)
    entry.value = "many"
    take.click()
    assert "guess = &#x27;many&#x27;: expected a number" in card.value and questions.guesses == {}
    entry.value = " "
    take.click()
    assert "Type a number first, such as 0.25 or 3e9" in card.value and questions.guesses == {}
    entry.value = "1,024"
    take.click()
    assert questions.guesses == {"reuse": 1024.0} and "1,024" in texts(page.pieces[0].widget)


def test_an_option_and_a_point_on_an_axis(page):
    predict("bound", "What limits it?", options=("memory", "arithmetic"))
    _, buttons, _, take, _ = form(page)
    take.click()
    assert questions.guesses == {}, "nothing was picked yet"
    buttons.value = "memory"
    take.click()
    assert questions.guesses == {"bound": "memory"}
    page.pieces.clear()
    predict("ridge", "Where is the ridge?", "FLOP/B", axis=(1, 10_000))
    _, slider, _, take, _ = form(page)
    assert type(slider).__name__ == "FloatLogSlider" and slider.value == pytest.approx(100)
    slider.value = 1000
    take.click()
    assert questions.guesses["ridge"] == pytest.approx(1000)


def test_an_error_inside_shows_what_was_there_and_goes_on(page):
    predict("reuse", "How often?", "times")
    with pytest.raises(ZeroDivisionError), reveal("reuse"):
        print("so far")
        raise ZeroDivisionError
    assert page.pieces[-1].text == "so far" and not display._captured


def test_without_a_front_end_nothing_is_folded(capsys):
    predict("reuse", "How often?", "times")
    with reveal("reuse"):
        print("64 times")
    assert "64 times" in capsys.readouterr().out


def test_a_claim_takes_a_verdict_before_its_audit(page):
    myth("fuse-1")
    audit("fuse-1", 1, "kernel", "model", "holds", "counted")
    assert "counted" not in texts(page.pieces[1].widget)
    _, buttons, _, take, _ = form(page)
    assert tuple(buttons.options) == ("fact", "myth")
    buttons.value = "myth"
    take.click()
    assert "counted" in texts(page.pieces[1].widget) and "You said: myth." in texts(page.pieces[1].widget)
    assert questions.results == {"fuse-1": "fact"}


def test_a_guess_of_an_earlier_kernel_is_taken_from_the_journal(page, tmp_path, monkeypatch):
    folder = tmp_path / "03_triton_fusion"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(journal, "in_kernel", lambda: True)
    predict("reuse", "How often?", "times", guess=3)
    show.against_prediction("reuse", 64)
    kept = journal.predictions()["reuse"]
    assert kept == {"question": "How often?", "unit": "times", "guess": 3, "found": 64}
    questions.guesses.clear()
    predict("reuse", "How often?", "times")
    assert questions.guesses == {"reuse": 3}
    questions.guesses.clear()
    predict("reuse", "Another question?", "times")
    assert questions.guesses == {}


def test_calibration_says_how_far_and_in_which_direction(capsys):
    for key, guess, found in (("a", 10, 40), ("b", 30, 40), ("c", 5, 40)):
        predict(key, f"Question {key}?", "GB/s", guess=guess)
        show.against_prediction(key, found)
    predict("d", "Which?", options=("x", "y"), guess="x")
    show.against_prediction("d", "y")
    predict("never guessed", "And this?")
    capsys.readouterr()
    calibration()
    out = capsys.readouterr().out
    assert "4 of 5 questions answered; 0 of 1 choices right; 1 of 3 numbers within a factor of two" in out
    assert "on average your numbers are 3.5× too low" in out  # (4 · 4/3 · 8)^(1/3)
    assert "4× too low" in out and "not this time" in out


def test_calibration_before_anything_was_asked(capsys):
    calibration()
    assert "nothing was asked yet" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"options": ("one",)}, "at least two different texts"),
        ({"options": ("one", "one")}, "at least two different texts"),
        ({"options": ("one", "two"), "unit": "s"}, "no unit and no axis"),
        ({"axis": (3, 1)}, "low < high"),
        ({"options": ("one", "two"), "guess": "three"}, "guess = 'three': expected one of 'one', 'two'"),
    ],
)
def test_a_question_that_cannot_be_asked(how, words):
    with pytest.raises(ValueError, match=words):
        predict("key", "A question?", **how)


def test_a_prediction_is_asked_for_then_remembered(capsys):
    predict("chain", question="how long?", unit="µs")
    assert "Predict first: how long?" in capsys.readouterr().out and not questions.guesses
    predict("chain", question="how long?", unit="µs", guess=7000)
    assert "7,000 µs" in capsys.readouterr().out
    show.against_prediction("chain", measured=torch.tensor(5000.0), unit="µs", source="model")
    out = capsys.readouterr().out
    assert "model: 5,000 µs; your prediction: 7,000 µs; the prediction is 1.4× too high: within a factor of two" in out


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
    assert words in against._confront(guess, measured)


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
    near, far = (
        against._bars([("model", 4.0, "blue"), ("you", guess, "orange")], "×", "Words") for guess in (8.0, 80.0)
    )
    assert (near.axes[0].get_xscale(), far.axes[0].get_xscale()) == ("linear", "log")
    assert near.axes[0].get_xlim()[0] == 0


def test_an_axis_of_nothing_but_zeros_starts_at_zero():
    zeros = against._bars([("counted here", 0.0, "blue"), ("you", 0.0, "orange")], "", "Exactly as predicted")
    assert zeros.axes[0].get_xlim() == (0, 1)


@pytest.mark.parametrize("source", ["model", "recorded on one core of a 2-core x86-64 cloud machine, for the course"])
def test_the_verdict_stays_inside_the_picture(source):
    predict("chain", question="how long?", unit="µs", guess=3000.0)
    bars = [(source, 5000.0, "blue"), ("your prediction", 3000.0, "orange")]
    fig = against._bars(bars, "µs", against._confront(3000.0, 5000.0))
    fig.draw_without_rendering()
    for axes in fig.axes:
        for text in (fig._suptitle, *axes.get_yticklabels()):
            box = text.get_window_extent()
            assert box.x0 >= 0 and box.x1 <= fig.bbox.width
        assert axes.get_window_extent().width > 0.5 * fig.bbox.width
