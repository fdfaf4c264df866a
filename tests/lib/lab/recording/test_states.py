"""The states of an explorer, drawn for pages without a kernel."""

import math
from types import SimpleNamespace

import ipywidgets
import pytest
from threeloops.lab import figure
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


def test_a_fine_slider_keeps_its_ends_and_its_start(monkeypatch):
    monkeypatch.setattr("threeloops.lab.recording.states._cost", lambda explorer, choices: (1, 1.0))
    (control,) = states(Explorer(draw, {"share": (0.0, 1.0, 0.001, 0.777)}))["controls"]
    assert control["of"] == 1001 and len(control["values"]) <= 9
    assert control["values"][0] == "0" and control["values"][-1] == "1"
    assert control["values"][control["start"]] == "0.777"


def test_of_many_controls_one_moves_at_a_time(monkeypatch):
    monkeypatch.setattr("threeloops.lab.recording.states._cost", lambda explorer, choices: (1, 1.0))
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
    assert 5 <= len(second["pictures"]) <= 8, "30 states do not fit into the rest, and 8 s of it are for a sample"
    assert len(third["pictures"]) >= 5 and third["pictures"]["0"], "less than 8 s are left"
    assert fourth is None and len(seconds) <= 40


def test_few_states_that_take_too_long_are_a_sample(slow):
    draw_slowly, _ = slow
    drawn = states(Explorer(draw_slowly, {"n": (1, 100, 1, 2)}))
    assert len(drawn["pictures"]) <= 8 and drawn["controls"][0]["of"] == 100


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


@pytest.mark.parametrize("spec", [(0.1, 0.7, 0.1, 0.3), (1.0, 2.0, 0.3, 1.5), (-30, 20, 1, 8)])
def test_the_start_is_among_the_values(spec):
    (control,) = states(Explorer(draw, {"x": spec}))["controls"]
    assert math.isclose(float(control["values"][control["start"]]), spec[3], rel_tol=1e-3)


def test_nothing_is_noted_outside_of_a_kernel(monkeypatch):
    monkeypatch.setenv(notes.VARIABLE, "1")
    with notes.note(until="a guess"):
        assert notes.noted({"width": 3}) == {"width": 3}
