"""The states of an explorer, drawn for pages without a kernel."""

import math
from types import SimpleNamespace

import ipywidgets
import pytest
from threeloops.lab import explore, figure
from threeloops.lab.recording import notes
from threeloops.lab.recording.states import states
from threeloops.lab.widgets.explore import Explorer


def draw(**values):
    fig, axes = figure(width=2, height=1)
    axes.set_title(" ".join(f"{name}={value}" for name, value in values.items()))
    return fig


def picture(drawn, key):
    return "\n".join(drawn["lines"][at] for at in drawn["pictures"][key])


def test_every_state_is_drawn_and_the_explorer_stays_as_it_is():
    explorer = Explorer(draw, {"n": (1, 3, 1, 2), "kind": ["ring", "tree"]})
    drawn = states(explorer)
    assert [control["values"] for control in drawn["controls"]] == [["1", "2", "3"], ["ring", "tree"]]
    assert [control["start"] for control in drawn["controls"]] == [1, 0]
    assert [control["kind"] for control in drawn["controls"]] == ["slider", "options"]
    assert len(drawn["pictures"]) == 6 and not drawn["one_at_a_time"] and not drawn["errors"]
    assert "n=3 kind=tree" in picture(drawn, "2,1") and picture(drawn, "2,1").startswith("<svg")
    assert explorer.values == {"n": 2, "kind": "ring"} and "data:image" not in picture(drawn, "2,1")


def test_pictures_share_the_lines_that_they_have_in_common():
    drawn = states(Explorer(draw, {"n": (1, 9, 1, 2)}))
    whole = sum(len(picture(drawn, key)) for key in drawn["pictures"])
    assert sum(map(len, drawn["lines"])) < whole / 4


def test_a_state_that_cannot_be_drawn_says_why():
    def only_even(n):
        if n % 2:
            raise ValueError(f"n = {n}: expected an even number")
        return draw(n=n)

    drawn = states(Explorer(only_even, {"n": (0, 4, 1, 2)}))
    assert drawn["errors"] == {
        "1": "ValueError: n = 1: expected an even number",
        "3": "ValueError: n = 3: expected an even number",
    }
    assert sorted(drawn["pictures"]) == ["0", "2", "4"]


@pytest.fixture
def few(monkeypatch):
    """Seconds for a sample of eight pictures."""
    monkeypatch.setenv(notes.VARIABLE, "16.0")
    monkeypatch.setattr("threeloops.lab.recording.states._spent", [])
    monkeypatch.setattr("threeloops.lab.recording.states._cost", lambda explorer, choices: (1, 1.0))


def test_a_fine_slider_keeps_its_ends_and_its_start(few):
    (control,) = states(Explorer(draw, {"share": (0.0, 1.0, 0.001, 0.777)}))["controls"]
    assert control["of"] == 1001 and len(control["values"]) <= 9
    assert control["values"][0] == "0" and control["values"][-1] == "1"
    assert control["values"][control["start"]] == "0.777"


def test_of_many_controls_one_moves_at_a_time(few):
    drawn = states(Explorer(draw, dict.fromkeys("abc", (0, 9, 1, 5))))
    assert drawn["one_at_a_time"]
    starts = [str(control["start"]) for control in drawn["controls"]]
    moved = [sum(a != b for a, b in zip(key.split(","), starts, strict=True)) for key in drawn["pictures"]]
    assert max(moved) == 1 and moved.count(0) == 1
    assert {control["of"] for control in drawn["controls"]} == {10}


@pytest.fixture
def slow(monkeypatch):
    """A function that draws for a second of a notebook's 40, and the times at which it began."""
    seconds = []
    monkeypatch.setenv(notes.VARIABLE, "40.0")
    monkeypatch.setattr("threeloops.lab.recording.states._spent", [])
    clock = SimpleNamespace(process_time=lambda: float(len(seconds)))
    monkeypatch.setattr("threeloops.lab.recording.states.time", clock)

    def draw_slowly(**values):
        seconds.append(values)
        return draw(**values)

    return draw_slowly, seconds


def test_explorers_of_a_notebook_share_its_seconds(slow):
    draw_slowly, seconds = slow
    explorers = [Explorer(draw_slowly, {"n": (1, count, 1, 2)}) for count in (20, 30, 30, 4)]
    seconds.clear()
    first, second, third, fourth = map(states, explorers)
    assert len(first["pictures"]) == 20 and first["seconds"] == 22, "whole: 2 to measure it, and 20 states"
    assert 5 <= len(second["pictures"]) <= 9, "30 states do not fit into the rest, and half of it is for a sample"
    assert len(third["pictures"]) >= 3 and third["pictures"]["0"], "half of the rest again"
    assert fourth is None and len(seconds) <= 40 + 3, "the first picture and one more measure the cost at the end"


def test_few_states_that_take_too_long_are_a_sample(slow):
    draw_slowly, _ = slow
    drawn = states(Explorer(draw_slowly, {"n": (1, 100, 1, 2)}))
    assert len(drawn["pictures"]) <= 20 and drawn["controls"][0]["of"] == 100


def test_controls_with_few_values_keep_all_of_them_and_leave_room_for_the_others(few):
    drawn = states(Explorer(draw, {"kind": ["ring", "tree"], "n": (0, 9, 1, 5), "m": (0, 99, 1, 50)}))
    assert drawn["one_at_a_time"] and [len(control["values"]) for control in drawn["controls"]] == [2, 6, 7]


def test_drawing_stops_at_the_limit_even_if_it_was_estimated_too_low(slow, monkeypatch):
    draw_slowly, seconds = slow
    monkeypatch.setattr("threeloops.lab.recording.states._cost", lambda explorer, choices: (1, 0.01))
    explorer = Explorer(draw_slowly, {"n": (1, 100, 1, 70)})
    seconds.clear()
    drawn = states(explorer)
    assert len(seconds) == len(drawn["pictures"]) == 40 and "69" in drawn["pictures"]


def test_a_control_without_a_list_of_values_has_no_states():
    assert states(Explorer(draw, {"text": ipywidgets.Text("F0 B0")})) is None
    several = ipywidgets.SelectMultiple(options=["ring", "tree"], value=["ring"])
    assert states(Explorer(draw, {"kinds": several})) is None
    for options in ([("a ring", "ring"), ("a tree", "tree")], {"a ring": "ring", "a tree": "tree"}):
        drawn = states(Explorer(draw, {"kind": ipywidgets.Dropdown(options=options)}))
        assert drawn["controls"][0]["values"] == ["ring", "tree"] and len(drawn["pictures"]) == 2
        assert drawn["controls"][0]["kind"] == "options"


def test_a_checkbox_is_a_choice_of_two():
    drawn = states(Explorer(draw, {"sync": ipywidgets.Checkbox(True), "copy": ipywidgets.Checkbox(False)}))
    assert [control["values"] for control in drawn["controls"]] == [["no", "yes"]] * 2
    assert [control["start"] for control in drawn["controls"]] == [1, 0] and len(drawn["pictures"]) == 4


def test_a_slider_of_options_stays_a_slider():
    drawn = states(Explorer(draw, {"tokens": ipywidgets.SelectionSlider(options=[1, 8, 64], value=8)}))
    assert drawn["controls"][0]["kind"] == "slider" and drawn["controls"][0]["values"] == ["1", "8", "64"]


@pytest.mark.parametrize("spec", [(0.1, 0.7, 0.1, 0.3), (1.0, 2.0, 0.3, 1.5), (-30, 20, 1, 8)])
def test_the_start_is_among_the_values(spec):
    (control,) = states(Explorer(draw, {"x": spec}))["controls"]
    assert math.isclose(float(control["values"][control["start"]]), spec[3], rel_tol=1e-3)


def words(**texts):
    if "F9" in texts["rank_1"]:
        raise ValueError("F9: there are 4 microbatches")
    return draw(**texts)


EXAMPLES = {"GPipe": {"rank_0": "F0 B0", "rank_1": "F1 <B1>"}, "too many": {"rank_0": "F0", "rank_1": "F9"}}


def test_an_explorer_with_text_fields_offers_its_examples():
    fields = {name: ipywidgets.Text(text) for name, text in EXAMPLES["GPipe"].items()}
    drawn = states(Explorer(words, fields, examples=EXAMPLES))
    (control,) = drawn["controls"]
    assert control["values"] == ["GPipe", "too many"] and control["start"] == 0 and control["kind"] == "options"
    assert "rank 0: F0 B0\nrank 1: F1 &lt;B1&gt;" in picture(drawn, "0") and "<svg" in picture(drawn, "0")
    assert drawn["errors"] == {"1": "rank 0: F0\nrank 1: F9\n\nValueError: F9: there are 4 microbatches"}
    assert drawn["instead"] == ["rank 0", "rank 1"]


def test_examples_have_all_values_and_begin_with_the_start():
    with pytest.raises(ValueError, match="example 'ring' has n: expected n, kind"):
        explore(draw, n=(1, 3, 1, 2), kind=["ring"], examples={"ring": {"n": 2}})
    with pytest.raises(ValueError, match="the first example has n = 3: expected the start, n = 2"):
        explore(draw, n=(1, 3, 1, 2), examples={"three": {"n": 3}})


def test_nothing_is_noted_outside_of_a_kernel(monkeypatch):
    monkeypatch.setenv(notes.VARIABLE, "1")
    with notes.note(until="a guess"):
        assert notes.noted({"width": 3}) == {"width": 3}
