"""Pictures of lab 03: bars have the lengths of their bytes, registers and losses."""

from types import SimpleNamespace

import pytest
from matplotlib.colors import to_hex
from threeloops.figures import palette
from threeloops.lab.drawings.inner import fusion
from threeloops.lab.widgets import style

MICROSECOND = 1_000_000  # bytes per µs at a bandwidth of 1e12 bytes/s
TRIPS = [
    ("eager", "add", 2 * MICROSECOND, MICROSECOND),
    ("eager", "gelu", 3 * MICROSECOND, 4 * MICROSECOND),
    ("fused", "both", 5 * MICROSECOND, 6 * MICROSECOND),
]
CODES = {
    1: SimpleNamespace(registers=255, spilled_bytes=576),
    2: SimpleNamespace(registers=217, spilled_bytes=0),
}
MOVED = {"eager": {"matmuls": 2048, "others": 4096}, "own": {"matmuls": 2048, "others": 1024, "kernels": 512}}


def bars_of(axes):
    """(colour, row, left edge, width) of each bar that has a width."""
    return [
        (to_hex(bar.get_facecolor()), round(bar.get_y() + bar.get_height() / 2, 6), bar.get_x(), bar.get_width())
        for bar in axes.patches
        if bar.get_width()
    ]


def words_of(axes):
    return {text.get_text().strip() for text in axes.texts} - {""}


def test_kernels_follow_each_other_and_reads_come_before_writes():
    (axes,) = fusion.draw_moments(TRIPS, 3, 1e12).axes
    assert bars_of(axes) == [
        (palette.sky, 1.0, 0.0, 2.0),
        (palette.orange, 1.0, 2.0, 1.0),
        (palette.sky, 1.0, 3.0, 3.0),
        (palette.orange, 1.0, 6.0, 4.0),
        (palette.sky, 0.0, 0.0, 5.0),
        (palette.orange, 0.0, 5.0, 6.0),
    ]
    assert words_of(axes) == {"add", "gelu", "both", "10 µs", "11 µs"}


def test_frames_share_an_axis_and_show_only_what_has_run():
    frames = [fusion.draw_moments(TRIPS, shown, 1e12).axes[0] for shown in (1, 2, 3)]
    assert len({axes.get_xlim() for axes in frames}) == 1
    assert [len(bars_of(axes)) for axes in frames] == [2, 4, 6]
    assert words_of(frames[0]) == {"add", "3 µs"}


def test_what_does_not_fit_into_registers_is_drawn_beyond_them():
    (axes,) = fusion.draw_registers(CODES, 4096, {"three": 3, "four": 4}).axes
    assert bars_of(axes) == [
        (palette.sky, 0, 0, 255),
        (palette.vermillion, 0, 255, 144),
        (palette.sky, 1, 0, 217),
    ]
    lines = [line.get_xdata()[0] for line in axes.lines]
    assert lines == [384.0, 512.0, 192.0, 256.0, 255]
    assert words_of(axes) == {"255, 144 spilled", "217, none spilled", "limit: 255"}
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1 warp, 32 threads", "2 warps, 64 threads"]
    assert [text.get_text() for text in axes.get_legend().get_texts()][2:] == ["three", "four"]


def test_losses_are_curves_and_bytes_are_stacked_by_kind():
    losses = {"eager": [4.0, 3.0, 2.0], "own": [4.0, 3.1, 2.0]}
    left, right = fusion.draw_training(losses, MOVED).axes
    assert [list(line.get_ydata()) for line in left.lines] == list(losses.values())
    assert words_of(left) == {"eager", "own"}
    assert bars_of(right) == [
        (palette.sky, 0, 0, 2.0),
        (palette.orange, 0, 2.0, 4.0),
        (palette.sky, 1, 0, 2.0),
        (palette.orange, 1, 2.0, 1.0),
        (palette.green, 1, 3.0, 0.5),
    ]
    assert {"6", "4"} <= words_of(right)  # the sums: 6 KiB, and 3.5 KiB


def test_three_kernels_make_three_trips_and_a_fused_one_makes_one():
    (axes,) = fusion.draw_trips("trips").axes
    words = [text.get_text() for text in axes.texts]
    assert words.count("reads") == words.count("writes") == 4
    assert {"3 kernels", "1 kernel", "add", "gelu", "dropout", "add, gelu, dropout"} <= set(words)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: fusion.draw_trips("trips"),
        lambda: fusion.draw_moments(TRIPS, 3, 1e12),
        lambda: fusion.draw_registers(CODES, 4096, {"three": 3}),
        lambda: fusion.draw_training({"eager": [2.0, 1.0]}, MOVED),
    ],
)
def test_it_follows_the_page(draw):
    picture = style.svg(draw(), "fusion")
    assert not [colour for colour in (palette.ink, "#000000", "#ffffff") if colour in picture]
    assert len(picture) < 100_000
