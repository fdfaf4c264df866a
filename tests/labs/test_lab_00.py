"""Lab 00: what its checks forgive, what its text says of the recording, and what its data hold."""

import json
from contextlib import chdir

import pytest
from lab_source import execute, load, run_exercise
from threeloops.lab.checking.check import CheckFailed

LAB = load("00_start_here")
TEXT = (LAB.folder / "00_start_here.py").read_text()


@pytest.fixture(scope="module")
def setup():
    names = {"__name__": "__main__"}
    with chdir(LAB.folder):
        execute(LAB.setup, "<00_start_here setup>", names)
    return names


def test_a_failed_check_speaks_of_the_call_and_of_the_field():
    failure = run_exercise(LAB, "saxpy_work", LAB.solutions["saxpy_work"].replace("3 * n", "2 * n"))
    assert isinstance(failure, CheckFailed)
    assert "saxpy_work(1000, 'float32') at .bytes" in str(failure)


def test_larger_of_overhead_and_transfer_is_within_a_factor_of_two():
    """A sound variant, perfect overlap instead of a sum, must not fail: the exercise allows a factor of two."""
    overlap = LAB.solutions["predict_seconds"].replace(
        "return machine.overhead + 3 * vector / level.bandwidth",
        "return max(machine.overhead, 3 * vector / level.bandwidth)",
    )
    assert overlap != LAB.solutions["predict_seconds"]
    assert run_exercise(LAB, "predict_seconds", overlap) is None


def test_the_text_gives_the_numbers_of_the_recorded_machine(setup):
    machine, flat = setup["RECORDED"], " ".join(TEXT.replace("\n#", " ").split())
    cache, memory = machine.levels
    assert f"overhead of a call is {machine.overhead * 1e6:.2f} µs" in flat
    assert f"the cache streams at {cache.bandwidth / 1e9:.0f} GB/s, " in flat
    assert f"and main memory at {memory.bandwidth / 1e9:.0f} GB/s" in flat
    assert f"half of it: {cache.capacity / 2**20:.0f} MiB" in flat


def test_the_worked_example_of_the_prediction_is_computed(setup):
    """Scaling in place touches one vector and moves two."""
    machine = setup["RECORDED"]
    cache, memory = machine.levels
    assert 4e6 <= cache.capacity < 40e6 / 2
    assert round((machine.overhead + 8e6 / cache.bandwidth) * 1e6) == 50
    assert round((machine.overhead + 80e6 / memory.bandwidth) * 1e3, 1) == 1.8


def test_the_model_answer_is_within_the_factor_that_the_check_notes(setup):
    names = dict(setup)
    execute(LAB.solutions["predict_seconds"], "<answer>", names)
    factors = [
        max(ratio, 1 / ratio)
        for s in names["SAXPY"]
        if not names["on_a_cliff"](s["n"], "float32", names["RECORDED"])
        for ratio in [names["predict_seconds"](s["n"], "float32", names["RECORDED"]) / sorted(s["seconds"])[4]]
    ]
    assert max(factors) == pytest.approx(1.45, abs=0.005)


def test_the_recording_holds_no_hidden_sample():
    recording = json.loads((LAB.folder / "data" / "saxpy_samples.json").read_text())
    assert {sample["dtype"] for sample in recording["samples"]} == {"float32", "float16"}
    assert all(second > 0 for sample in recording["samples"] for second in sample["seconds"])
