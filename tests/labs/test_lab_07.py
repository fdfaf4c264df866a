"""Lab 07: its texts fit together, its checks catch what they should, and its prose says what its data say."""

import hashlib
import json

import pytest
from lab_source import exercise_of, load, run_exercise
from threeloops.data.diagnosis import diagnose
from threeloops.data.pipeline import Interval, Trace

LAB = load("07_feeding_the_gpu")
EXERCISES = ["diagnose", "prefetch", "shards", "resume"]
ONLY_HIDDEN = {
    "diagnose__compares_neighbouring_stages_only",
    "prefetch__cancels_only_when_the_store_fails",
    "resume__counts_a_refused_step",
    "resume__the_last_worker_comes_first",
    "shards__follows_links",
    "shards__groups_by_key_wherever_it_comes",
}


def test_four_exercises_share_a_hundred_points():
    assert LAB.points == dict.fromkeys(EXERCISES, 25)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_released_check_still_checks(exercise):
    """Without its hidden part a test cell accepts the reference and refuses the stub, which says that it is one."""
    assert run_exercise(LAB, exercise, LAB.solutions[exercise], hidden=False) is None
    assert "is not written yet" in str(run_exercise(LAB, exercise, LAB.stubs[exercise], hidden=False))


@pytest.mark.parametrize("exercise", EXERCISES)
def test_no_exercise_needs_another(exercise):
    for other in EXERCISES:
        if other != exercise:
            assert run_exercise(LAB, other, LAB.stubs[other], test=exercise) is None


@pytest.mark.parametrize("wrong", LAB.wrong_answers, ids=lambda path: path.stem)
def test_what_only_the_hidden_part_catches(wrong):
    passes_visible = run_exercise(LAB, exercise_of(wrong), wrong.read_text(), hidden=False) is None
    assert passes_visible == (wrong.stem in ONLY_HIDDEN)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_every_exercise_has_wrong_answers_of_both_kinds(exercise):
    stems = {path.stem for path in LAB.wrong_answers if exercise_of(path) == exercise}
    assert len(stems) >= 3
    assert stems & ONLY_HIDDEN and stems - ONLY_HIDDEN


def recorded() -> list[Trace]:
    loops = json.loads((LAB.folder / "data" / "loops.json").read_text())["loops"]
    return [
        Trace(
            tuple((name, workers) for name, workers in loop["stages"]), tuple(Interval(*i) for i in loop["intervals"])
        )
        for loop in loops
    ]


def test_the_recorded_loops_are_what_the_manifest_says():
    (entry,) = json.loads((LAB.folder / "data" / "MANIFEST.json").read_text())
    contents = (LAB.folder / "data" / entry["file"]).read_bytes()
    assert (entry["bytes"], entry["sha256"]) == (len(contents), hashlib.sha256(contents).hexdigest())


@pytest.mark.parametrize("trace", recorded(), ids=["serial", "one worker", "four workers"])
def test_a_recorded_loop_is_consistent(trace):
    """Each sample passes each stage once and in order, and a worker does one thing at a time."""
    names = [name for name, _ in trace.stages]
    passed = {(i.sample, i.stage): i for i in trace.intervals}
    assert len(passed) == len(trace.intervals) == 48 * len(names)
    for sample in range(48):
        path = [passed[sample, name] for name in names]
        assert all(before.end <= after.start + 2e-6 for before, after in zip(path, path[1:], strict=False))
    for name, workers in trace.stages:
        for worker in range(workers):
            mine = [i for i in trace.by_stage[name] if i.worker == worker]
            assert all(before.end <= after.start for before, after in zip(mine, mine[1:], strict=False))


def test_the_prose_quotes_the_recorded_loops():
    """52 ms to fetch, 2 to decode, 18 to train; 25%, 28% and 97% busy; gains of 1.6 and 2.0."""
    serial, one, four = map(diagnose, recorded())
    means = {name: sum(i.end - i.start for i in each) / 48 for name, each in recorded()[0].by_stage.items()}
    assert means == pytest.approx({"fetch": 0.052, "decode": 0.002, "train": 0.018}, abs=0.0005)
    assert [round(100 * each.utilisation) for each in (serial, one, four)] == [25, 28, 97]
    assert (serial.limit, one.limit, four.limit) == ("fetch", "fetch", "train")
    assert (round(serial.gain["fetch"], 1), round(one.gain["fetch"], 1)) == (1.6, 2.0)
    assert (serial.overlapped, one.overlapped) == (False, True)
