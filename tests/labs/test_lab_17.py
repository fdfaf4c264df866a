"""Lab 17: the numbers of its prose, and that its service is the one that the course measures."""

import asyncio
import functools
import heapq
import math
import re
from importlib.resources import files
from types import SimpleNamespace

import numpy as np
import pytest
from lab_source import execute, load
from threeloops.lab.drawings.product.service import serve
from threeloops.simulation.event_loop import now, run

SOURCE = load("17_production_service")


@functools.cache
def lab():
    """What the setup cells and the reference answers define."""
    names = {"__name__": "__main__"}
    execute(SOURCE.setup, "<lab 17 setup>", names)
    for exercise, text in SOURCE.solutions.items():
        execute(text, f"<lab 17 {exercise}>", names)
    return names


def prose():
    text = (SOURCE.folder / "17_production_service.py").read_text()
    return re.sub(r"\s+", " ", text.replace("\n# ", "\n"))


def loaded(server, rate, requests, seed):
    names = lab()
    seen = run(names["load_test"], server, names["arrivals"](rate, requests, seed))
    return seen, np.array([end - moment for _, moment, end, _ in seen["served"]])


def test_the_sample_server_stands_in_the_text_as_it_is_measured():
    shown = (SOURCE.folder / "17_production_service.py").read_text()
    block = re.search(r"# ```python\n(# class SampleServer.*?)# ```", shown, re.S)[1]
    code = "\n".join(line.removeprefix("#").removeprefix(" ") for line in block.splitlines())
    assert code.rstrip() in SOURCE.setup


def test_the_latencies_that_are_predicted():
    seen, latencies = loaded(lab()["SampleServer"], 20.0, 2000, 3)
    assert f"The average latency is {latencies.mean():.2f} s" in prose()
    assert np.percentile(latencies, 99) > 4 * latencies.mean()
    assert seen["late"] == pytest.approx(0.041, abs=1e-3)
    assert pytest.approx(0.9) == 20 * 0.045


def test_the_worked_example_of_percentiles():
    percentile = lab()["percentile"]
    a, b = {0.1: 90, 0.5: 100, math.inf: 100}, {0.1: 0, 0.5: 10, math.inf: 100}
    assert (percentile([a], 95), percentile([b], 95), percentile([a, b], 95)) == (pytest.approx(0.3), 0.5, 0.5)


def test_the_curves_bend_before_the_server_is_full():
    median, p99 = np.percentile(lab()["simulate_queue"](0.9), [50, 99])
    assert p99 > 3 * median


def test_the_worked_example_of_the_bucket():
    bucket = lab()["TokenBucket"](2.0, 5.0)
    said = [bucket.take(*each) for each in [(5, 0.0), (1, 0.0), (1, 0.4), (1, 0.5), (5, 9.0)]]
    assert said == [0.0, 0.5, pytest.approx(0.1), 0.0, 0.0]


def test_the_worked_example_of_admission():
    full = lab()["Load"](seats=8, running=8, places=20, queued=12, per_second=4.0)
    assert [lab()["admit"](full, deadline, 0.0) for deadline in (10, 2)] == [(200, None), (503, 2)]


def test_the_worked_example_of_a_drain():
    notebook = (SOURCE.folder / "17_production_service_dives.py").read_text()
    cell = next(cell for cell in notebook.split("# %%") if "async def drains(" in cell)
    names = {"asyncio": asyncio, "now": now}
    exec(cell[cell.index("async def drain(") :], names)
    became, _, end = run(names["drains"], {"a": (1.0, 0.0), "b": (3.0, 0.0), "c": (60.0, 0.5)}, 10)
    assert became == {"a": "finished", "b": "finished", "c": "cut off after 10 s"}
    assert end == 10.5


def test_the_service_of_the_readers_pieces_serves_more_with_limits():
    pieces = SimpleNamespace(**{name: lab()[name] for name in ("TokenBucket", "admit", "status", "stream", "Server")})
    alone, limited = (serve(pieces, lab()["Model"](), limits=limits) for limits in (False, True))
    assert limited.counts()["gave up after 1 s"] == 0 and limited.computed == limited.counts()["answered"]
    assert alone.counts()["answered"] < limited.counts()["answered"] and alone.counts()["gave up after 1 s"] > 1000


def test_the_worked_example_of_a_server():
    for moments, spans in (([0.0], [(0.010, 0.051)]), ([0.0] * 5, [(0.0, 0.044), (0.044, 0.085)])):
        seen = run(lab()["load_test"], lab()["Server"], moments, max_batch=4, max_delay=0.010)
        assert [began for began, _ in seen["calls"]] == pytest.approx([began for began, _ in spans])
        ends = sorted({round(end, 6) for _, _, end, _ in seen["served"]})
        assert ends == pytest.approx([end for _, end in spans])


def test_the_repaired_server_keeps_up_and_the_sample_does_not():
    sample, slow = loaded(lab()["SampleServer"], 150.0, 600, 5)
    repaired, fast = loaded(lambda model: lab()["Server"](model, 16, 0.010), 150.0, 600, 5)
    assert sample["late"] > 0.04 > 0.001 > repaired["late"]
    assert np.percentile(slow, 95) > 100 * np.percentile(fast, 95)
    assert "286 requests per second" in prose() and round(16 / 0.056) == 286


def test_the_model_answer_is_as_fast_as_its_debrief_says():
    stated = float(re.search(r"withstands\(1, model=([\d.]+)\)", "".join(SOURCE.tests["Server"]))[1])
    _, seconds = loaded(lambda model: lab()["Server"](model, 16, 0.010), 150.0, 600, 1)
    assert 1e3 * np.percentile(seconds, 95) == pytest.approx(stated, abs=0.05)


def test_after_nine_seconds_nobody_wants_what_a_service_computes_that_accepts_everybody():
    """8 seats, 1 s per request, twice as many arrivals; `overload` counts the same."""
    free, late, in_time = [0.0] * 8, [], []
    for moment in lab()["arrivals"](16.0, 960, 4):
        end = max(moment, heapq.heappop(free)) + 1.0
        heapq.heappush(free, end)
        (in_time if end - moment <= 5 else late).append(end)
    assert max(in_time) < 9 < min(late) and len(in_time) == 64
    assert "nobody wants what it finishes after the first nine seconds" in prose()


def test_the_proxys_directives_stand_in_its_configuration():
    dives = (SOURCE.folder / "17_production_service_dives.py").read_text()
    table = re.search(r"# \| directive \| why \|\n# \|---\|---\|\n((?:# \|.*\n)+)", dives)[1]
    named = [each for row in table.splitlines() for each in re.findall(r"`([^`]+)`", row.split("|")[1])]
    configuration = (files("threeloops.product") / "deploy" / "nginx" / "nginx.conf").read_text()
    assert len(named) >= 10
    for each in named:
        assert re.search(rf"\b{re.escape(each)}\b", configuration), each
