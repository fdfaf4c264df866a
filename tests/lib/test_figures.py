"""Labels on bars: what fits, and what can be read."""

import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from threeloops import figures
from threeloops.figures import figure, fitting, palette, text_inches


@pytest.mark.parametrize(
    ("text", "inches", "shown"),
    [
        ("layer 17", 1.0, "layer 17"),
        ("layer 17", 0.5, "17"),
        ("layer 17", 0.1, ""),
        ("layer 3 of 12", 0.3, "12"),
        ("all_reduce", 0.5, ""),
        ("", 0.0, ""),
    ],
)
def test_a_bar_has_its_name_or_its_number_or_nothing(text, inches, shown):
    assert fitting(text, inches, 9.0) == shown


def test_a_text_grows_with_its_length_and_its_size():
    assert text_inches("abcd", 10.0) == pytest.approx(2 * text_inches("ab", 10.0)) == pytest.approx(4 * 0.6 * 10 / 72)


def labelled(label_colour=palette.ink, **bar):
    """A figure with a bar, and a label in its middle."""
    fig, axes = figure(width=4, height=2)
    axes.barh([0], [5], **bar)
    axes.barh([1], [5], **bar)
    label = axes.text(2.5, 0, "text", ha="center", va="center", color=label_colour)
    figures.colour_labels(fig)
    return label, axes.patches


@pytest.mark.parametrize("name", ["blue", "orange", "green", "vermillion", "purple", "sky", "yellow", "grey"])
@pytest.mark.parametrize("ink", [palette.ink, "white", figures.ON_LIGHT])
def test_a_label_on_a_bar_can_be_read_whatever_its_ink_was(name, ink):
    face = getattr(palette, name)
    label, _ = labelled(ink, color=face)
    assert label.get_color() in (figures.ON_DARK, figures.ON_LIGHT)
    assert figures._contrast(label.get_color(), face) >= 4.5


def test_bars_with_labels_become_solid_in_the_colour_that_they_have_on_white():
    label, bars = labelled(color=palette.sky, alpha=0.5)
    assert label.get_color() == figures.ON_LIGHT
    assert {to_hex(bar.get_facecolor(), keep_alpha=True) for bar in bars} == {"#abdaf4ff"}


@pytest.mark.parametrize(
    ("ink", "bar"),
    [
        (palette.vermillion, {"color": palette.sky}),
        (palette.ink, {"color": palette.sky, "alpha": 0.2}),
        (palette.ink, {"color": "white"}),
        (palette.ink, {"color": "none"}),
    ],
)
def test_labels_in_colour_and_those_on_tints_and_on_the_page_stay(ink, bar):
    label, bars = labelled(ink, **bar)
    assert label.get_color() == ink
    assert bars[0].get_alpha() == bar.get("alpha")


def test_a_label_on_one_of_many_polygons_takes_the_ink_for_that_one():
    fig, axes = figure(width=4, height=2)
    corners = [figures.bar_corners(start, start + 1, 0, 0.5) for start in range(2)]
    axes.add_collection(PolyCollection(corners, facecolors=[palette.blue, palette.yellow]))
    axes.set(xlim=(0, 3), ylim=(-1, 1))
    labels = [axes.text(place, 0, "a", ha="center", va="center") for place in (0.5, 1.5, 2.5)]
    figures.colour_labels(fig)
    assert [label.get_color() for label in labels] == [figures.ON_DARK, figures.ON_LIGHT, palette.ink]
