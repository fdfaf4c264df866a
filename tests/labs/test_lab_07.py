"""Lab 07: its recorded loops are consistent, and its prose says what they say."""

import json

import pytest
from lab_source import load
from threeloops.data.loading.diagnosis import diagnose
from threeloops.simulation.pipeline import Interval, Trace

LAB = load("07_feeding_the_gpu")


def recorded() -> list[Trace]:
    loops = json.loads((LAB.folder / "data" / "loops.json").read_text())["loops"]
    return [
        Trace(
            tuple((name, workers) for name, workers in loop["stages"]), tuple(Interval(*i) for i in loop["intervals"])
        )
        for loop in loops
    ]


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
