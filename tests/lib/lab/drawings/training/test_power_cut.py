"""The frames of a save: a square for each state that a power cut may leave."""

from threeloops.lab.drawings import draw_power_cut, power_cuts
from threeloops.training.checkpoint.crash import recording

OLD, NEW = b"o" * 1200, b"n" * 1300


def moments(folder, save):
    (folder / "model").write_bytes(OLD)
    with recording(folder) as recorder:
        save(folder)
    return power_cuts(recorder.record, lambda place: (place / "model").read_bytes(), OLD, NEW)


def rename(folder):
    (folder / "new").write_bytes(NEW)
    (folder / "new").replace(folder / "model")


def test_each_state_after_each_operation_has_a_square(tmp_path):
    found = moments(tmp_path, lambda folder: (folder / "model").write_bytes(NEW))
    counts = [{kind: each.verdicts.count(kind) for kind in ("old", "new", "neither")} for each in found]
    # three sectors: 1 + 2 + 4 + 8 contents of four lengths, of which one is the new one, and the old one
    assert counts == [{"old": 1, "new": 0, "neither": 1}, *[{"old": 1, "new": 1, "neither": 14}] * 2]
    assert found[1].operation == "write 1300 bytes of model at 0"


def test_a_rename_without_an_fsync_may_leave_the_new_name_without_its_content(tmp_path):
    after = moments(tmp_path, rename)[2].verdicts
    assert (after.count("neither"), after.count("new"), len(after)) == (14, 1, 31)


def test_a_frame_says_its_counts_and_shows_every_operation(tmp_path):
    found = moments(tmp_path, rename)
    for at in range(len(found)):
        axes = draw_power_cut(found, at, "a title").axes[0]
        texts = [text.get_text() for text in axes.texts]
        assert [each.operation for each in found] == texts[: len(found)]
        assert texts[-1].startswith(f"{len(found[at].verdicts)} states: ")
        assert axes.get_title(loc="left") == "a title"
