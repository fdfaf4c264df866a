"""Lab 07: its recorded loops are consistent, and its prose says what they and the loops to tune say."""

import ast
import json
import re
import tarfile
from itertools import product, starmap

import pytest
from lab_source import execute, load
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


@pytest.fixture(scope="module")
def given() -> dict:
    """What the setup cell defines, and the reference's `tune`."""
    names: dict = {"__name__": "__main__"}
    execute(LAB.setup, "<setup of lab 07>", names)
    execute(LAB.solutions["tune"], "<tune>", names)
    return names


def test_the_worked_example_of_tuning_is_right(given):
    """30 + 5 + 5 ms per worker, steps of 10 ms: four workers and four samples ahead keep up, and no fewer do."""
    loop = given["Loop"](0.030, 1e8, 0.5e6, 0.005, 0.010, 1e6)

    def seconds(workers, ahead):
        return given["seconds_per_sample"](loop, given["Settings"](workers, ahead))

    assert seconds(4, 4) == pytest.approx(0.010)
    assert seconds(3, 48) > 0.011 and seconds(16, 3) > 0.011


def test_the_loops_to_tune_are_limited_as_the_debrief_says(given):
    """B by its link, D by its step with a fetch of 2%, F by sixteen workers; the samples of E outweigh its workers."""
    loops, best = given["LOOPS"], given["Settings"](16, 48)
    pace = {name: given["seconds_per_sample"](loop, best) for name, loop in loops.items()}
    assert pace["B"] == pytest.approx(loops["B"].sample_bytes / loops["B"].bandwidth)
    few = given["seconds_per_sample"](loops["B"], given["Settings"](5, 48))
    assert few == pytest.approx(pace["B"])
    fetch = loops["D"].latency + loops["D"].sample_bytes / loops["D"].bandwidth + loops["D"].decode
    assert fetch / loops["D"].step == pytest.approx(0.02)
    assert given["tune"](loops["D"]) == given["Settings"](1, 0)
    assert pace["F"] > 1.5 * loops["F"].step
    assert loops["E"].sample_bytes > 5 * loops["E"].worker_bytes


def test_the_memory_of_the_model_answer_is_what_the_debrief_shows_beside_the_readers(given):
    shown = ast.literal_eval(re.search(r"model = (\{.*?\})", LAB.tests["tune"][0])[1])
    loops, tune, memory = given["LOOPS"], given["tune"], given["memory_bytes"]
    assert shown == {name: round(memory(loop, tune(loop)) / 1e6, 1) for name, loop in loops.items()}


def test_the_limits_of_the_loops_are_those_of_all_settings(given):
    limits = ast.literal_eval(re.search(r"limits = (\{.*?\n    \})", LAB.tests["tune"][0], re.S)[1])
    seconds, memory, settings = given["seconds_per_sample"], given["memory_bytes"], given["Settings"]
    for name, loop in given["LOOPS"].items():
        slowest = 1.1 * seconds(loop, settings(16, 48))
        quick = [s for s in starmap(settings, product(range(1, 17), range(49))) if seconds(loop, s) <= slowest]
        assert limits[name] == pytest.approx((slowest, min(memory(loop, s) for s in quick)), rel=1e-9)


def test_more_samples_ahead_never_make_a_loop_slower(given):
    """The check of `tune` searches for the least memory by halving, which needs this."""
    for loop in given["LOOPS"].values():
        for workers in (1, 4, 8, 16):
            took = [given["seconds_per_sample"](loop, given["Settings"](workers, ahead)) for ahead in range(0, 49, 3)]
            assert all(later <= before * (1 + 1e-9) for before, later in zip(took, took[1:], strict=False))


def test_the_worked_example_of_the_sampler_shows_the_order_that_is_given(given):
    order = given["epoch_order"](10, 7, 2).tolist()
    assert order == [1, 5, 3, 4, 6, 9, 0, 8, 2, 7]
    assert (
        f"`epoch_order(10, 7, 2)` is {' '.join(map(str, order))}." in (LAB.folder / f"{LAB.folder.name}.py").read_text()
    )


def test_the_reference_settings_of_the_last_section_are_those_of_the_model_answer(given):
    """512 samples of 16 numbers and a target, eight to a shard, from 30 ms and 4 MB/s."""
    samples = [given["Sample"](f"{i:03}", {"x": bytes(128), "y": bytes(8)}) for i in range(8)]
    loop = given["Loop"](0.030, 4e6, len(given["write_shard"](samples)), 0.004, 0.006, 1e6)
    assert given["tune"](loop) == given["Settings"](7, 7)
    text = (LAB.folder / f"{LAB.folder.name}.py").read_text()
    assert "Settings(7, 7)" in text and 'LOOP = Loop(0.030, 4e6, len(SHARDS["00.tar"]), 0.004, 0.006, 1e6)' in text


def test_a_name_and_the_digits_of_a_number_end_at_the_first_zero_byte_as_in_tarfile(given):
    """What `number` and `checksum` make of a header is what Python's tarfile makes of it."""
    for size in (b"00000000003\0", b"         3  ", b"3\x00777777777\0", bytes(12)):
        header = given["member"]("a.x", b"abc", size=size)[:512]
        info = tarfile.TarInfo.frombuf(header, "utf-8", "strict")
        assert given["number"](header[124:136]) == info.size
        assert given["number"](header[148:156]) == given["checksum"](header) == info.chksum
    assert given["number"](b"0o000000003\0") is None and given["number"](b"-0000000003\0") is None
