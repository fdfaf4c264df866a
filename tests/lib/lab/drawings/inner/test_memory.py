"""Drawings of the memory hierarchy: what they count, and what they show of it."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from threeloops.figures import palette
from threeloops.inner.machine_models.warp import padded, plain
from threeloops.lab.drawings.inner import memory
from threeloops.lab.widgets import style

CURVE = memory.Curve("recorded", [1 << 12, 1 << 20, 1 << 26], [1.0, 4.0, 150.0])
ORDER = [(0, 0), (1, 0), (0, 1), (1, 1)]
TILED = [memory.Tiled(16, 4096, 4096, {"row by row": 3072, "in groups": 2048}),
         memory.Tiled(32, 2048, 2048, {"row by row": 1536, "in groups": 1024})]  # fmt: skip


@pytest.mark.parametrize(
    ("height", "width", "expected"),
    [(1, 4, (4, 32)), (8, 4, (32, 32)), (9, 4, (36, 64)), (8, 2, (16, 32)), (16, 2, (32, 32)), (32, 4, (128, 128))],
)
def test_a_run_that_fills_a_sector_wastes_nothing_on_either_side(height, width, expected):
    """By hand: 32 float32 fill 4 sectors, and a run of 1 to 8 float32 takes one."""
    titles = [axes.get_title("left") for axes in memory.draw_turned_tile(height, width).axes[2:]]
    assert [int(title.split("\n")[1].split()[0]) for title in titles] == list(expected)


def test_the_turned_tile_is_compared_with_one_row_per_program():
    panels = memory.draw_turned_tile(4, 4).axes
    assert [axes.get_title("left").split("\n")[1] for axes in panels] == [
        "4 sectors, 100% used", "32 sectors, 12.5% used", "16 sectors, 100% used", "32 sectors, 50% used",
    ]  # fmt: skip
    wide = [[patch.get_width() for patch in axes.patches] for axes in panels]
    assert wide == [[32, 32], [8, 1], [32, 32], [8, 4]], "the sectors behind the elements"


def test_a_warp_marks_the_sectors_and_the_bytes_that_it_wants():
    axes = memory.draw_warp(("every second element", 8 * np.arange(32))).axes[0]
    assert axes.get_title("left") == "every second element: 8 sectors, 50% of their bytes used"
    bars = [(to_hex(bar.get_facecolor()), bar.get_x(), bar.get_width()) for bar in axes.patches if bar.get_y() < 0.5]
    assert len([x for shade, x, width in bars if shade == palette.orange]) == 8
    assert [x for shade, x, width in bars if shade == palette.blue] == [8 * lane for lane in range(32)]


def test_one_sector_is_not_called_sectors():
    assert "1 sector, 12.5%" in memory.draw_warp(("one", np.zeros(32, int))).axes[0].get_title("left")


def test_levels_name_their_latency_and_the_working_set_that_they_hold():
    here = memory.Curve("here", CURVE.sizes, [2.0, 5.0, 90.0])
    axes = memory.draw_staircase([CURVE, here], [(1.0, 32 << 10), (150.0, 1 << 26)]).axes[0]
    words = {text.get_text() for text in axes.texts}
    assert words == {"recorded", "here", "1 ns, fits 32 KiB", "150 ns, fits at least 64 MiB"}


def test_columns_of_a_plain_tile_lie_in_one_bank():
    panels = memory.draw_banks({"plain": plain, "padded": padded}).axes
    assert [axes.get_title() or axes.get_title("left") for axes in panels] == [
        "plain\na column: 32 rounds",
        "padded\na column: 1 round",
    ]
    banks = [axes.images[0].get_array() for axes in panels]
    assert len(np.unique(banks[0][:, 5])) == 1 and len(np.unique(banks[1][:, 5])) == 32


def test_strips_of_the_first_programs_are_marked():
    axes = memory.draw_order(ORDER, 2).axes[0]
    assert axes.get_title("left") == "The first 2 programs (blue) need 2 + 1 strips"
    marked = [to_hex(bar.get_facecolor()) for bar in axes.patches if bar.get_alpha() == 1.0]
    assert sorted(marked) == sorted([palette.orange, palette.orange, palette.green])


def test_groups_that_cost_more_than_none_are_red():
    axes = memory.draw_groups(8192, {1: 4096, 2: 2048, 4: 5120}, "a cache").axes[0]
    assert [bar.get_height() for bar in axes.patches] == [4, 2, 5]
    assert [to_hex(bar.get_facecolor()) for bar in axes.patches] == [palette.grey, palette.blue, palette.vermillion]


def test_tiles_show_prediction_and_meter_apart():
    rows = [TILED[0]._replace(predicted=8192), TILED[1]]
    predicted, metered, *from_dram = [list(line.get_ydata()) for line in memory.draw_tiles(rows, 512).axes[0].lines]
    assert predicted == [8, 2] and metered == [4, 2]
    assert from_dram[:2] == [[3, 1.5], [2, 1]]


@pytest.mark.parametrize(
    "figure",
    [
        memory.draw_question(CURVE),
        memory.draw_warp(("neighbours", 4 * np.arange(32))),
        memory.draw_staircase([CURVE], []),
        memory.draw_turned_tile(8, 2),
        memory.draw_order(ORDER, 3),
        memory.draw_groups(8192, {1: 4096, 2: 2048}, "a cache"),
        memory.draw_tiles(TILED, 512),
    ],
    ids=["question", "warp", "staircase", "turned", "order", "groups", "tiles"],
)
def test_they_follow_the_page(figure):
    picture = style.svg(figure, "memory")
    assert not [colour for colour in (palette.ink, "#000000", "#ffffff") if colour in picture]
