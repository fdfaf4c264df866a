"""The picture of a crash, read back from what matplotlib draws."""

import pytest
from matplotlib.colors import to_hex
from threeloops.figures import palette
from threeloops.training.checkpoint.crash import EXT4, Record, crash_states, draw_crash
from threeloops.training.checkpoint.crash.model.operations import Create, Entry, Rename, Saved, Sync, Write

DURABLE, ARRIVED, LOST, NEVER, CALL = (
    palette.green, palette.sky, palette.vermillion, palette.grey, palette.purple,
)  # fmt: skip
START = [Entry("latest", 1, b"old")]
CAREFUL = [
    Create(2, "tmp"), Write(2, "tmp", 0, b"ne"), Write(2, "tmp", 2, b"w"), Sync(2, "tmp"), Rename("tmp", "latest"),
    Sync(0, ""), Saved(),
]  # fmt: skip


def fates(figure):
    """Colour by row."""
    axes = figure.axes[0]
    found = {round(y): to_hex(each.get_facecolor()[0]) for each in axes.collections for _, y in each.get_offsets()}
    return [found[row] for row in sorted(found)]


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def state_of(record, files, rules=None, point=None):
    states = crash_states(record, *([rules] if rules else [])).states
    return next(each for each in states if each.files == files and point in (None, each.point))


@pytest.mark.parametrize(
    ("files", "point", "expected"),
    [
        ({"latest": b"old"}, -1, [NEVER] * 6),
        ({"latest": b"old", "tmp": b"ne"}, 1, [ARRIVED, ARRIVED, NEVER, NEVER, NEVER, NEVER, NEVER]),
        ({"latest": b"old", "tmp": b"\0\0\0"}, 2, [ARRIVED, LOST, NEVER, NEVER, NEVER, NEVER]),
        ({"latest": b"new"}, 4, [ARRIVED, DURABLE, CALL, ARRIVED, NEVER, NEVER]),
        ({"latest": b"new"}, 6, [DURABLE, DURABLE, CALL, DURABLE, CALL, CALL]),
    ],
)
def test_each_operation_has_its_fate(files, point, expected):
    record = Record(START, CAREFUL)
    figure = draw_crash(record, state_of(record, files, point=point))
    assert fates(figure) == expected
    assert "power cut" in texts(figure)


def test_writes_of_one_file_are_one_line_and_the_crash_is_between_lines():
    record = Record(START, CAREFUL)
    figure = draw_crash(record, state_of(record, {"latest": b"new"}, point=4))
    assert "write 3 bytes of tmp in 2 pieces" in texts(figure) and "1 to 2" in texts(figure)
    line = figure.axes[0].lines[0].get_ydata()[0]
    assert line == 3.5, "after the rename, which is the fourth line"


def test_the_title_says_what_was_lost_and_rules_decide_what_is_durable():
    record = Record(START, [CAREFUL[0], CAREFUL[1], CAREFUL[3], Saved()])
    state = state_of(record, {"latest": b"old", "tmp": b"ne"}, EXT4, point=3)
    assert fates(draw_crash(record, state, EXT4)) == [DURABLE, DURABLE, CALL, CALL]
    assert fates(draw_crash(record, state)) == [ARRIVED, DURABLE, CALL, CALL]
    assert draw_crash(record, state).axes[0].get_title(loc="left") == "nothing lost"
    state = state_of(record, {"latest": b"old"}, point=3)
    assert draw_crash(record, state).axes[0].get_title(loc="left") == "create tmp (operation 0) is not on disk"


def test_a_long_record_is_drawn_in_part():
    record = Record([], [Create(n + 1, f"f{n}") for n in range(100)])
    state = crash_states(record, EXT4).states[-1]
    figure = draw_crash(record, state, EXT4)
    assert len(fates(figure)) == 60 and "40 lines more" in figure.axes[0].get_title(loc="left")
