"""Lab 00 without the wall: the reference passes, the stub fails, and each known-wrong answer is caught by name."""

import hashlib
import json

import pytest
from lab_source import exercise_of, expected_words, load, run_exercise
from threeloops.lab.check import CheckFailed

LAB = load("00_start_here")
EXERCISES = list(LAB.solutions)
HIDDEN_ONLY = {
    "capability_report__skips_unknown_entries",
    "capability_report__minus_one_is_the_last_gpu",
    "capability_report__newer_gpus_always_run",
    "capability_report__one_core_has_one_rank",
    "capability_report__a_gpu_listed_twice_counts_once",
    "saxpy_work__divides_by_nothing",
    "saxpy_work__unknown_dtypes_have_four_bytes",
    "repaired_throughput__harmonic_mean_of_rates",
    "repaired_throughput__zip_drops_runs_in_silence",
    "first_prediction__a_full_cache_holds_nothing",
    "first_prediction__knows_two_levels_only",
    "first_prediction__every_element_has_four_bytes",
}


def test_four_exercises_of_25_points():
    assert LAB.points == dict.fromkeys(
        ("capability_report", "saxpy_work", "repaired_throughput", "first_prediction"), 25
    )
    assert set(LAB.tests) == set(LAB.solutions)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_reference_passes(exercise):
    assert run_exercise(LAB, exercise, LAB.solutions[exercise]) is None


@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_reference_passes_what_a_student_sees(exercise):
    assert run_exercise(LAB, exercise, LAB.solutions[exercise], hidden=False) is None


@pytest.mark.parametrize("hidden", [True, False])
@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_untouched_stub_fails(exercise, hidden):
    assert "not written yet" in str(run_exercise(LAB, exercise, LAB.stubs[exercise], hidden=hidden))


@pytest.mark.parametrize("answer", LAB.wrong_answers, ids=lambda path: path.stem)
def test_a_wrong_answer_fails_its_own_check_by_name(answer):
    failure = run_exercise(LAB, exercise_of(answer), answer.read_text())
    assert failure is not None
    assert expected_words(answer) in str(failure)


@pytest.mark.parametrize("answer", LAB.wrong_answers, ids=lambda path: path.stem)
def test_a_wrong_answer_passes_every_other_exercise(answer):
    own = exercise_of(answer)
    for other in set(EXERCISES) - {own}:
        assert run_exercise(LAB, own, answer.read_text(), test=other) is None


@pytest.mark.parametrize("answer", LAB.wrong_answers, ids=lambda path: path.stem)
def test_only_the_hidden_part_catches_the_subtle_ones(answer):
    failure = run_exercise(LAB, exercise_of(answer), answer.read_text(), hidden=False)
    assert (failure is None) == (answer.stem in HIDDEN_ONLY)


def test_each_exercise_has_three_wrong_answers_and_a_subtle_one():
    for exercise in EXERCISES:
        stems = {path.stem for path in LAB.wrong_answers if exercise_of(path) == exercise}
        assert len(stems) >= 3
        assert stems & HIDDEN_ONLY


def test_a_failed_check_speaks_of_the_quantity():
    failure = run_exercise(LAB, "saxpy_work", LAB.solutions["saxpy_work"].replace("3 * n", "2 * n"))
    assert isinstance(failure, CheckFailed)
    assert "bytes of 1000 float32 elements" in str(failure)


def test_larger_of_overhead_and_transfer_is_within_a_factor_of_two():
    """A sound variant, perfect overlap instead of a sum, must not fail: the exercise allows a factor of two."""
    overlap = LAB.solutions["first_prediction"].replace(
        "return machine.overhead + 3 * vector / level.bandwidth",
        "return max(machine.overhead, 3 * vector / level.bandwidth)",
    )
    assert overlap != LAB.solutions["first_prediction"]
    assert run_exercise(LAB, "first_prediction", overlap) is None


def test_the_data_are_what_the_manifest_says():
    entries = json.loads((LAB.folder / "data" / "MANIFEST.json").read_text())
    files = sorted(path.name for path in (LAB.folder / "data").iterdir() if path.name != "MANIFEST.json")
    assert [entry["file"] for entry in entries] == files
    for entry in entries:
        content = (LAB.folder / "data" / entry["file"]).read_bytes()
        assert set(entry) == {"file", "bytes", "sha256", "source", "licence", "what"}
        assert entry["bytes"] == len(content) < 100_000
        assert entry["sha256"] == hashlib.sha256(content).hexdigest()


def test_the_recording_holds_no_hidden_sample():
    recording = json.loads((LAB.folder / "data" / "saxpy_samples.json").read_text())
    assert {sample["dtype"] for sample in recording["samples"]} == {"float32", "float16"}
    assert all(second > 0 for sample in recording["samples"] for second in sample["seconds"])
