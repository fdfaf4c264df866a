"""Lab 00: what its checks forgive and what its data hold."""

import json

from lab_source import load, run_exercise
from threeloops.lab.checking.check import CheckFailed

LAB = load("00_start_here")


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


def test_the_recording_holds_no_hidden_sample():
    recording = json.loads((LAB.folder / "data" / "saxpy_samples.json").read_text())
    assert {sample["dtype"] for sample in recording["samples"]} == {"float32", "float16"}
    assert all(second > 0 for sample in recording["samples"] for second in sample["seconds"])
