"""Labs 02, 03 and 04: their texts fit together; their checks catch what they should, visibly or in the hidden part."""

import hashlib
import json

import pytest
from lab_source import exercise_of, load, run_exercise

LABS = {name: load(name) for name in ("02_memory_hierarchy", "03_triton_fusion", "04_flash_attention")}
POINTS = {
    "02_memory_hierarchy": {"latency": 25, "vector_width": 25, "coalescing": 25, "tiles": 25},
    "03_triton_fusion": {"fused_chain": 25, "online_softmax": 25, "rmsnorm": 25, "cross_entropy": 25},
    "04_flash_attention": {"traffic": 20, "merging": 25, "flash": 30, "window": 25},
}
EXERCISES = [(lab, exercise) for lab, points in POINTS.items() for exercise in points]
ONLY_HIDDEN = {
    "02_memory_hierarchy": {
        "latency__only_rotations_of_one_shuffle",
        "vector_width__allocates_the_default_dtype",
        "coalescing__eight_elements_whatever_their_size",
        "tiles__sums_in_float16",
    },
    "03_triton_fusion": {
        "cross_entropy__exponentials_without_the_maximum",
        "cross_entropy__multiplies_the_ignored_row_by_zero",
        "cross_entropy__the_ignored_index_is_minus_100",
        "cross_entropy__trips_over_minus_infinity",
        "fused_chain__backward_forgets_the_scale",
        "online_softmax__no_maximum",
        "rmsnorm__squares_in_float16",
    },
    "04_flash_attention": {
        "flash__groups_are_interleaved",
        "flash__rounds_to_tf32",
        "merging__computes_in_float64",
        "traffic__forgets_the_batch",
        "window__does_not_round_to_a_tile",
        "window__forgets_the_groups",
    },
}


@pytest.mark.parametrize("name", LABS)
def test_four_exercises_share_a_hundred_points(name):
    assert LABS[name].points == POINTS[name]
    assert sum(POINTS[name].values()) == 100


@pytest.mark.parametrize(("name", "exercise"), EXERCISES)
def test_the_released_check_still_checks(name, exercise):
    """Without its hidden part a test cell accepts the reference and refuses the stub, which says that it is one."""
    lab = LABS[name]
    assert run_exercise(lab, exercise, lab.solutions[exercise], hidden=False) is None
    assert "is not written yet" in str(run_exercise(lab, exercise, lab.stubs[exercise], hidden=False))


WRONG = [
    # That the others fail visibly is a kindness to the student; it is looked at in the long runs.
    pytest.param(name, path, id=path.stem, marks=[] if path.stem in ONLY_HIDDEN[name] else pytest.mark.slow)
    for name, lab in LABS.items()
    for path in lab.wrong_answers
]


@pytest.mark.parametrize(("name", "wrong"), WRONG)
def test_what_only_the_hidden_part_catches(name, wrong):
    passes_visible = run_exercise(LABS[name], exercise_of(wrong), wrong.read_text(), hidden=False) is None
    assert passes_visible == (wrong.stem in ONLY_HIDDEN[name])


@pytest.mark.parametrize(("name", "exercise"), EXERCISES)
def test_every_exercise_has_wrong_answers_of_both_kinds(name, exercise):
    stems = {path.stem for path in LABS[name].wrong_answers if exercise_of(path) == exercise}
    assert len(stems) >= 3
    assert stems & ONLY_HIDDEN[name] and stems - ONLY_HIDDEN[name]


def test_the_recorded_chase_is_what_the_manifest_says():
    folder = LABS["02_memory_hierarchy"].folder / "data"
    (entry,) = json.loads((folder / "MANIFEST.json").read_text())
    contents = (folder / entry["file"]).read_bytes()
    assert (entry["bytes"], entry["sha256"]) == (len(contents), hashlib.sha256(contents).hexdigest())
    recorded = json.loads(contents)
    assert recorded["sizes"] == sorted(recorded["sizes"])
    assert len(recorded["sizes"]) == len(recorded["nanoseconds"])
