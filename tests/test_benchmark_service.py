"""The service's benchmark: its load is what it says, and a short run has every party and every raw sample."""

import asyncio
import json

import pytest
from threeloops.hardware.capability import probe
from threeloops_grader.machine.provenance import provenance

from benchmarks.service import BARE, FLOOR, OURS, SAMPLE, measure
from benchmarks.service_load import Load, at_once, call, open_loop, serving


def test_every_request_has_a_prompt_of_its_own_and_asks_for_what_the_load_says():
    load = Load(prompt=48, answer=7)
    bodies = [json.loads(load.body(number)) for number in range(50)]
    assert len({body["prompt"] for body in bodies}) == 50
    assert {(len(body["prompt"]), body["max_tokens"], body["stream"]) for body in bodies} == {(48, 7, True)}


def test_the_client_counts_events_and_an_open_loop_does_not_wait_for_answers():
    with serving(["benchmarks.service_sample", "{port}", "floor"]) as server:
        load = Load(prompt=3, answer=5)
        found = asyncio.run(call(server, load.body(0)))
        assert (found.status, found.events) == (200, 6)  # and [DONE]
        assert found.at <= found.first <= found.end
        seconds, calls = asyncio.run(at_once(server, load, 4))
        assert [each.status for each in calls] == [200] * 4 and seconds > 0
        calls = asyncio.run(open_loop(server, load, rate=200, seconds=0.5))
        assert 50 < len(calls) < 150
        moments = [each.at for each in calls]
        assert moments == sorted(moments) and len(set(moments)) == len(moments)
        assert server.memory and min(server.cpu_seconds()) >= 0
    assert asyncio.run(call(server, load.body(0))).status == 0, "a server that is gone gives no answer"


@pytest.mark.slow  # a minute and more; its parts are tested above
def test_a_short_run_has_every_party_and_its_samples():
    result = measure(provenance(probe(), "cpu"), quick=True)
    written = json.loads(result.to_json())
    assert {row["by"] for row in written["series"]} == {OURS, SAMPLE, BARE, FLOOR}
    assert all(row["samples"] for row in written["series"])
    assert result.facts["still alive"] and result.facts["neither"] == 0
