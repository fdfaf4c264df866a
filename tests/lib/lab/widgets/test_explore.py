"""`explore` without a front end: its sliders' specifications, its handle, its errors."""

import ipywidgets
import pytest
from threeloops.lab import explore, figure


def draw(**values):
    fig, axes = figure(width=2, height=1)
    axes.set_title(" ".join(f"{name}={value}" for name, value in values.items()))
    return fig


def test_the_start_state_is_drawn_once(capsys):
    drawn = []

    def counting(**values):
        drawn.append(values)
        return draw(**values)

    explorer = explore(counting, n=(1, 10, 1, 4), share=(0.0, 1.0, 0.1, 0.5), kind=["ring", "tree"])
    assert drawn == [{"n": 4, "share": 0.5, "kind": "ring"}]
    assert capsys.readouterr().out == "explorer at n = 4, share = 0.5, kind = 'ring'\n"
    assert explorer.png.startswith(b"\x89PNG")


def test_moving_a_slider_changes_the_picture_and_moving_back_restores_it():
    explorer = explore(draw, n=(1, 10, 1, 4), kind=["ring", "tree"])
    explorer.attach()
    start = explorer.png
    explorer.widgets["n"].value = 5
    moved = explorer.png
    explorer.widgets["n"].value = 4
    assert explorer.values == {"n": 4, "kind": "ring"}
    assert explorer.png == start != moved
    assert explorer.figure().axes[0].get_title("left") == "n=4 kind=ring"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ((1, 10, 1), r"n = \(1, 10, 1\): expected \(low, high, step, start\)"),
        ((10, 1, 1, 5), "expected low < high"),
        ((1, 10, 0, 5), "step = 0: expected a positive step"),
        ((1, 10, 20, 5), "step = 20"),
        ((1, 10, 1, 11), "start = 11: expected a value from 1 to 10"),
        ((1, 10, 1, float("nan")), "start = nan"),
        (("1", 10, 1, 5), "a list of options, or a widget"),
        ((0, True, 1, 0), "a list of options, or a widget"),
        ([], "at least one option"),
        (5, "n = 5"),
        ("abc", "n = 'abc'"),
    ],
)
def test_a_slider_that_cannot_be_built_is_named(spec, message):
    with pytest.raises(ValueError, match=message):
        explore(draw, n=spec)


def test_an_explorer_without_sliders_is_a_figure():
    with pytest.raises(ValueError, match=r"show\.figure"):
        explore(draw)


def test_a_draw_that_fails_later_keeps_the_last_picture_and_the_reason():
    def fragile(n):
        if n == 7:
            raise ZeroDivisionError("seven")
        return draw(n=n)

    explorer = explore(fragile, n=(1, 10, 1, 4))
    explorer.attach()
    before = explorer.png
    explorer.widgets["n"].value = 7
    assert explorer.png == before and explorer.error == "ZeroDivisionError: seven"
    explorer.widgets["n"].value = 8
    assert explorer.png != before and explorer.error == ""


def test_a_draw_that_fails_at_once_or_draws_nothing_raises():
    with pytest.raises(KeyError):
        explore(lambda n: {}[n], n=(1, 2, 1, 1))
    with pytest.raises(TypeError, match=r"draw\(n = 1\) returned None: expected a matplotlib Figure"):
        explore(lambda n: None, n=(1, 2, 1, 1))


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("n", "n"),
        ("block_size", "block size"),
        ("overhead_us", "overhead (µs)"),
        ("transfer_in_µs", "transfer (µs)"),
        ("memory_gbs", "memory (GB/s)"),
        ("deviation_percent", "deviation (%)"),
        ("recovery_minutes", "recovery (min)"),
        ("hours_between_failures", "hours between failures"),
        ("thousand_tokens_per_gpu", "tokens per GPU (thousands)"),
        ("alpha_us", "α (µs)"),
        ("ms", "ms"),
    ],
)
def test_a_slider_is_labelled_in_words_with_its_unit(name, label):
    explorer = explore(draw, **{name: (1, 10, 1, 4)})
    explorer.attach()
    assert explorer.widgets[name].description == label
    assert explorer.said() == f"explorer at {label} = 4"


def test_a_lab_can_word_a_label_itself():
    explorer = explore(draw, labels={"n": "ranks"}, n=(1, 10, 1, 4), kind=["ring", "tree"])
    explorer.attach()
    assert [widget.description for widget in explorer.widgets.values()] == ["ranks", "kind"]
    with pytest.raises(ValueError, match="labels names m: expected names of sliders, n"):
        explore(draw, labels={"m": "ranks"}, n=(1, 10, 1, 4))


def test_the_live_widgets_drive_the_picture():
    explorer = explore(draw, n=(1, 10, 1, 4), share=(0.0, 1.0, 0.1, 0.5), kind=["ring", "tree"])
    explorer.attach()
    kinds = [type(widget) for widget in explorer.widgets.values()]
    assert kinds == [ipywidgets.IntSlider, ipywidgets.FloatSlider, ipywidgets.Dropdown]
    assert {widget.layout.width for widget in explorer.widgets.values()} == {"28rem"}
    assert {widget.style.description_width for widget in explorer.widgets.values()} == {"initial"}
    before = explorer.picture.value
    explorer.widgets["n"].value = 9
    assert explorer.values["n"] == 9
    assert explorer.picture.value == explorer.html and explorer.png != before
    explorer.widgets["kind"].value = "tree"
    assert explorer.values == {"n": 9, "share": 0.5, "kind": "tree"}


def test_the_widget_shows_the_reason_of_a_failed_draw_escaped():
    def fragile(n):
        if n > 4:
            raise ValueError("<b>too many</b>")
        return draw(n=n)

    explorer = explore(fragile, n=(1, 10, 1, 4))
    explorer.attach()
    explorer.widgets["n"].value = 5
    assert "ValueError: &lt;b&gt;too many&lt;/b&gt;" in explorer.message.value
    explorer.widgets["n"].value = 3
    assert explorer.message.value == ""


def test_a_widget_of_the_author_is_used_as_it_is():
    mine = ipywidgets.BoundedIntText(value=3, min=1, max=9)
    explorer = explore(draw, n=mine)
    explorer.attach()
    mine.value = 5
    assert explorer.values == {"n": 5} and explorer.widgets["n"] is mine
