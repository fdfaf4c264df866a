"""Lab 01: its texts fit together, its data are what the manifest says, and its checks catch what they should."""

import hashlib
import json

import pytest
from lab_source import exercise_of, expected_words, load, run_exercise

LAB = load("01_roofline")
EXERCISES = list(LAB.tests)
DATA = LAB.folder / "data"
ONLY_HIDDEN = {
    "intensity__reads_the_shared_keys_for_every_head",
    "intensity__reads_repeated_rows_again",
    "roofline__ignores_the_unit_of_the_rate",
    "roofline__lets_nan_pass",
    "roofline__keeps_the_integer_type",
    "classify__largest_of_three_floors",
    "classify__adds_the_floors",
    "classify__no_tolerance_at_the_roof",
    "account__subtracts_all_descendants",
    "account__peak_at_its_last_moment",
    "account__compares_only_the_names_of_both",
}


def test_four_exercises_share_a_hundred_points():
    assert EXERCISES == ["intensity", "roofline", "classify", "account"]
    assert list(LAB.points.values()) == [25, 25, 25, 25]


@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_reference_passes(exercise):
    assert run_exercise(LAB, exercise, LAB.solutions[exercise]) is None


@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_untouched_cell_fails_and_says_so(exercise):
    error = run_exercise(LAB, exercise, LAB.stubs[exercise])
    assert "is not written yet" in str(error)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_released_check_still_checks(exercise):
    """Without its hidden part a test cell accepts the reference and refuses the stub."""
    assert run_exercise(LAB, exercise, LAB.solutions[exercise], hidden=False) is None
    assert run_exercise(LAB, exercise, LAB.stubs[exercise], hidden=False) is not None


@pytest.mark.parametrize("exercise", EXERCISES)
def test_no_exercise_needs_another(exercise):
    for other in EXERCISES:
        if other != exercise:
            assert run_exercise(LAB, other, LAB.stubs[other], test=exercise) is None


@pytest.mark.parametrize("wrong", LAB.wrong_answers, ids=lambda path: path.stem)
def test_a_wrong_answer_fails_its_own_exercise_in_its_own_words(wrong):
    error = run_exercise(LAB, exercise_of(wrong), wrong.read_text())
    assert type(error).__name__ == "CheckFailed"
    assert expected_words(wrong) in str(error)


@pytest.mark.parametrize("wrong", LAB.wrong_answers, ids=lambda path: path.stem)
def test_a_wrong_answer_costs_no_other_exercise(wrong):
    for other in EXERCISES:
        if other != exercise_of(wrong):
            assert run_exercise(LAB, exercise_of(wrong), wrong.read_text(), test=other) is None


@pytest.mark.parametrize("wrong", LAB.wrong_answers, ids=lambda path: path.stem)
def test_what_only_the_hidden_part_catches(wrong):
    passes_visible = run_exercise(LAB, exercise_of(wrong), wrong.read_text(), hidden=False) is None
    assert passes_visible == (wrong.stem in ONLY_HIDDEN)


def test_every_exercise_has_wrong_answers_of_both_kinds():
    for exercise in EXERCISES:
        stems = {path.stem for path in LAB.wrong_answers if exercise_of(path) == exercise}
        assert len(stems) >= 3
        assert stems & ONLY_HIDDEN and stems - ONLY_HIDDEN


def test_the_data_are_what_the_manifest_says():
    manifest = {entry["file"]: entry for entry in json.loads((DATA / "MANIFEST.json").read_text())}
    assert set(manifest) == {path.name for path in DATA.iterdir()} - {"MANIFEST.json"}
    for name, entry in manifest.items():
        contents = (DATA / name).read_bytes()
        assert (entry["bytes"], entry["sha256"]) == (len(contents), hashlib.sha256(contents).hexdigest()), name
        assert len(contents) < 100_000 and entry["source"] and entry["licence"] and entry["what"]


@pytest.mark.parametrize("path", sorted(DATA.glob("resnet50_*.json")), ids=lambda path: path.stem)
def test_a_trace_is_consistent(path):
    trace = json.loads(path.read_text())
    assert (trace["source"] == "synthetic") == ("synthetic" in path.stem) == ("synthetic" in trace["title"])
    events = trace["events"]
    for index, (_, parent, start, duration, device_us, moved, flops) in enumerate(events):
        assert parent < index and min(duration, device_us, moved, flops) >= 0
        if parent >= 0:
            # Times are rounded to nanoseconds.
            assert (
                events[parent][2] - 0.01 <= start and start + duration <= events[parent][2] + events[parent][3] + 0.01
            )
    assert [event[2] for event in events] == sorted(event[2] for event in events)
    assert [moment for moment, _ in trace["allocations"]] == sorted(moment for moment, _ in trace["allocations"])
    assert any(event[4] for event in events) == (trace["device"] == "cuda")


def test_the_recorded_convolutions_do_the_published_arithmetic():
    """ResNet-50 is 4.09 G multiply-adds an image (He et al. 2015, stride in the 3×3), nearly all in convolutions."""
    for kind in ("eager", "compiled"):
        trace = json.loads((DATA / f"resnet50_cpu_{kind}.json").read_text())
        assert sum(event[6] for event in trace["events"]) / (16 * 2 * 4.09e9) == pytest.approx(1.0, abs=0.01)
