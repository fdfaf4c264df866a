"""Animations: every frame is in the page, CSS shows one at a time, and what is too long or too large is refused."""

import io
import re

import pytest
from matplotlib.patches import Rectangle
from threeloops.figures import ON_DARK, ON_LIGHT
from threeloops.lab import animate, figure, palette
from threeloops.lab.widgets import animate as animate_module
from threeloops.lab.widgets import style


def bars(n):
    fig, axes = figure(width=4, height=2)
    axes.bar(range(4), [n, 1, 2, 3], color=palette.blue)
    axes.set_title(f"step {n}")
    return fig


@pytest.fixture
def shown(monkeypatch):
    found = []
    monkeypatch.setattr(animate_module, "publish", lambda text, bundle, metadata: found.append((text, bundle)))
    return found


def test_every_frame_is_there_once_and_can_be_picked(shown):
    animate(bars, range(5), seconds=0.4, caption="a bar grows")
    text, bundle = shown[0]
    html = bundle["text/html"]
    assert text == "animation of 5 frames: a bar grows" and set(bundle) == {"text/html", "image/png"}
    assert [f"step {n}" in html for n in range(6)] == [True] * 5 + [False]
    assert html.count("<svg") == 5 and html.count('class="pick"') == 5
    assert "2s step-end infinite" in html and "visibility: visible; } 20.0000%" in html
    assert not re.search(r"<script|https?://(?!www.w3.org)|url\((?!#)", html)


@pytest.mark.parametrize(("still", "number"), [(0, 0), (3, 3), (-2, 3)])
def test_a_reader_who_wants_no_motion_sees_the_still(still, number, shown):
    animate(bars, range(5), still=still)
    html = shown[0][1]["text/html"]
    assert html.partition('<div class="still"')[2].partition("step ")[2][0] == str(number)
    assert html.count('class="still"') == 1


def test_two_animations_on_a_page_do_not_share_names(shown):
    animate(bars, range(3))
    animate(bars, range(4))
    names = [re.search(r'class="(anim-\w+)"', bundle["text/html"])[1] for _, bundle in shown]
    assert names[0] != names[1]


@pytest.mark.parametrize(("frames", "seconds"), [(1, 1.0), (3, 0.0), (61, 1.0), (3, float("nan"))])
def test_too_few_or_too_long(frames, seconds):
    with pytest.raises(ValueError, match="at least 2 frames, and at most 60 s in all"):
        animate(bars, range(frames), seconds=seconds)


def test_too_large(monkeypatch):
    monkeypatch.setattr(animate_module, "_MOST_BYTES", 10_000)
    with pytest.raises(ValueError, match="expected at most 1 MiB"):
        animate(bars, range(3))


def test_a_figure_takes_the_colours_of_its_page():
    picture = style.svg(bars(1), "a bar")
    assert palette.ink not in picture and "#ffffff" not in picture and "currentColor" in picture
    assert palette.blue in picture and 'aria-label="a bar"' in picture
    assert not re.search(r"<style|<metadata|<!DOCTYPE|font-family: (?!sans-serif)", picture)


def test_a_label_on_a_line_gets_the_page_s_colour_behind_it():
    fig, axes = style.figure(width=4, height=2)
    axes.plot([0, 1], [0, 1])
    axes.add_patch(Rectangle((0.6, 0.6), 0.2, 0.2))
    axes.set(xlim=(0, 1), ylim=(0, 1), yticks=[0, 0.5, 1])
    struck, clear, boxed = (
        axes.text(x, y, "label", ha="center", va="center") for x, y in ((0.4, 0.4), (0.2, 0.75), (0.7, 0.7))
    )
    picture = style.svg(fig)
    assert struck.get_bbox_patch() is not None and "fill: var(--jp-layout-color0, Canvas); opacity: 0.85" in picture
    assert clear.get_bbox_patch() is None
    assert boxed.get_bbox_patch() is None, "a text on a bar has the bar behind it"


def test_a_label_on_a_line_of_the_grid_gets_the_page_s_colour_behind_it():
    fig, axes = style.figure(width=4, height=2)
    axes.bar([0.6], [0.9], width=0.2)
    axes.fill_between([0.8, 1], [0.9, 0.9], color=palette.sky, alpha=0.2)
    axes.set(xlim=(0, 1), ylim=(0, 1), yticks=[0, 0.5, 1])
    places = ((0.2, 0.5), (0.2, 0.75), (0.6, 0.5), (0.9, 0.5))
    labels = [axes.text(x, y, "label", ha="center", va="center", size=8) for x, y in places]
    style.svg(fig)
    behind = [label.get_bbox_patch() is not None for label in labels]
    assert behind == [True, False, False, False], "on the grid, between its lines, on a bar, on an area"
    axes.grid(False)
    labels[0].set_bbox(None)
    style.svg(fig)
    assert labels[0].get_bbox_patch() is None, "without a grid"


def test_spaces_of_a_text_are_kept():
    fig, axes = style.figure(width=4, height=2)
    axes.set_title("read: 4   written: 0")
    axes.text(0, 0, " P99")
    picture = style.svg(fig).replace("\N{NO-BREAK SPACE}", "_")
    assert ">read: 4___written: 0</text>" in picture and ">_P99</text>" in picture


def test_a_coloured_text_moves_towards_the_ink_of_the_page_and_a_bar_keeps_its_colour():
    """Blue on a dark page has a contrast of 3.6: too little for a label, enough for a bar."""
    fig, axes = style.figure(width=4)
    axes.bar([0], [1], color=style.palette.blue)
    axes.text(0, 0.5, "a label", color=style.palette.blue)
    drawn = style.svg(fig).lower()
    assert f"fill: color-mix(in srgb, {style.palette.blue} 60%, currentcolor)".lower() in drawn
    assert re.search(rf"<path [^>]*fill: {style.palette.blue}".lower(), drawn)


@pytest.mark.parametrize("ink", [ON_LIGHT, ON_DARK])
def test_a_name_on_a_bar_keeps_its_colour_as_the_bar_does(ink):
    """Bars are the same on a light page and on a dark one, and dark ink mixed with white is grey on every bar."""
    fig, axes = style.figure(width=4)
    axes.text(0, 0.5, "on a bar", color=ink)
    assert f"fill: {ink}" in style.svg(fig)


def test_a_figure_shrinks_only_as_far_as_its_labels_stay_readable():
    """A figure of 8 inches has labels of 11 points; at 34rem they still have almost 8."""
    assert "max-width:100%;min-width:min(576pt,34rem)" in style.svg(style.figure(width=8)[0])
    assert "min-width:min(180pt,34rem)" in style.svg(style.figure(width=2.5)[0]), "a small one is not enlarged"


def test_a_figure_that_would_be_large_as_svg_is_a_picture():
    fig, axes = figure()
    axes.scatter(range(20_000), range(20_000))
    assert style.html(fig, "points", style.png(fig)).startswith('<img src="data:image/png;base64,')


def test_a_page_that_removes_svg_has_a_still_picture_and_not_the_words_of_the_figure():
    """What JupyterLab does with a page that it does not trust: tests/browser/test_untrusted_pictures.py."""
    html = style.html(bars(1), "a bar", style.png(bars(1)))
    removed = re.sub(r"</?(svg|g|path|defs|use|text)\b[^>]*>|<style>.*?</style>", "", html, flags=re.S)
    hidden, seen = re.fullmatch(
        r'<div class="[\w-]+"><div style="display:none">(.*)</div>(.*)</div>', removed, re.S
    ).groups()
    assert "step 1" in hidden and "step 1" not in seen
    assert re.fullmatch(r'<img src="data:image/png;base64,[^"]+" width="384" style="max-width:100%" alt="a bar">', seen)


def test_coordinates_keep_two_decimals_and_texts_all_of_theirs():
    fig, axes = figure(width=4, height=2)
    axes.plot([0, 1 / 3, 1], [0, 2 / 3, 1])
    axes.text(0.5, 0.5, "3.14159")
    picture = style.svg(fig)
    assert ">3.14159</text>" in picture and not re.search(r' d="[^"]*\.\d{3}', picture) and "rotate(" not in picture


def test_a_png_gets_by_with_few_colours():
    import numpy as np
    from PIL import Image

    fig, axes = figure(width=8, height=8)
    axes.imshow(np.random.default_rng(0).random((400, 400)))
    data, size = style.png(fig)
    assert len(data) <= 1_200_000 and Image.open(io.BytesIO(data)).mode == "P" and size == {"width": 768, "height": 768}
    assert len(style.png(bars(1))[0]) < 4_500
