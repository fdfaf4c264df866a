"""Lab 05: its texts fit together, and its checks catch what they should, visibly or in the hidden part."""

import hashlib
import json

import numpy as np
import pytest
import torch
from lab_source import exercise_of, load, run_exercise
from threeloops.inner.formats import BFLOAT16, FLOAT16, FLOAT32

LAB = load("05_mixed_precision")
POINTS = {"formats": 25, "scaler": 25, "masters": 25, "fp8": 25}
ONLY_HIDDEN = {
    "formats__a_carry_wraps_around",
    "formats__rounds_twice",
    "fp8__remembers_infinities",
    "masters__threshold_of_half_a_spacing",
    "scaler__no_new_count_at_the_top",
}


def test_four_exercises_share_a_hundred_points():
    assert LAB.points == POINTS
    assert sum(POINTS.values()) == 100


@pytest.mark.parametrize("exercise", POINTS)
def test_the_released_check_still_checks(exercise):
    """Without its hidden part a test cell accepts the reference and refuses the stub, which says that it is one."""
    assert run_exercise(LAB, exercise, LAB.solutions[exercise], hidden=False) is None
    assert "is not written yet" in str(run_exercise(LAB, exercise, LAB.stubs[exercise], hidden=False))


@pytest.mark.parametrize("wrong", LAB.wrong_answers, ids=lambda path: path.stem)
def test_what_only_the_hidden_part_catches(wrong):
    passes_visible = run_exercise(LAB, exercise_of(wrong), wrong.read_text(), hidden=False) is None
    assert passes_visible == (wrong.stem in ONLY_HIDDEN)


@pytest.mark.parametrize("exercise", POINTS)
def test_every_exercise_has_wrong_answers_of_both_kinds(exercise):
    stems = {path.stem for path in LAB.wrong_answers if exercise_of(path) == exercise}
    assert len(stems) >= 3
    assert stems & ONLY_HIDDEN and stems - ONLY_HIDDEN


def test_the_digits_are_what_the_manifest_says():
    folder = LAB.folder / "data"
    (entry,) = json.loads((folder / "MANIFEST.json").read_text())
    contents = (folder / entry["file"]).read_bytes()
    assert (entry["bytes"], entry["sha256"]) == (len(contents), hashlib.sha256(contents).hexdigest())
    with np.load(folder / entry["file"]) as stored:
        images, labels = stored["images"], stored["labels"]
    assert (images.shape, images.min(), images.max()) == ((1797, 8, 8), 0, 16)
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_what_the_text_says_about_numbers():
    assert FLOAT16.epsilon / FLOAT32.epsilon == 8192
    assert BFLOAT16.rounded(1 + 2**-12) == FLOAT16.rounded(1 + 2**-12) == 1.0
    assert (float(BFLOAT16.spacing(1.0)), float(FLOAT16.spacing(1.0))) == (1 / 128, 1 / 1024)
    assert BFLOAT16.rounded([256, 257, 258]).tolist() == [256, 256, 258]
    assert 0 < FLOAT16.rounded(1e-5) < FLOAT16.smallest_normal
    assert FLOAT16.rounded(FLOAT16.smallest_subnormal / 2) == 0.0
    assert round(175e9 * 4 / 3e12 * 1e3) == 233


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_old_amp_names_still_exist_and_are_deprecated():
    with pytest.warns(FutureWarning, match="torch.amp.GradScaler"):
        torch.cuda.amp.GradScaler(enabled=False)
