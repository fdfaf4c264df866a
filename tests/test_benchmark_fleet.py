"""The fleet benchmark: what it says of scaling in virtual time, and that real replicas lose nothing."""

import pytest
from real_fleet import needs_nginx
from threeloops.hardware.probe import probe
from threeloops_grader.machine.provenance import provenance

from benchmarks.fleet import measure
from benchmarks.fleet_policies import CPU, LIVENESS_ALONE, QUEUE, policy_rows, scaled_fleets
from benchmarks.result import Unmeasured


def test_the_claims_of_scaling_on_cpu_and_of_a_liveness_probe_alone():
    fleets = scaled_fleets()
    rows = policy_rows(1200, {name: fleets[name] for name in (QUEUE, CPU, LIVENESS_ALONE)})
    value = {(row.what.split(",")[0], row.by): row.median for row in rows}
    in_time = "share of requests whose first token comes within 1 s"
    assert value[in_time, QUEUE] > 0.8 > 0.5 > value[in_time, CPU]
    assert value[in_time, LIVENESS_ALONE] < value[in_time, QUEUE]
    assert value["restarts of replicas", LIVENESS_ALONE] > 3 and value["restarts of replicas", QUEUE] == 0
    dear = "replica-hours per million output tokens within the SLO"
    assert value[dear, QUEUE] < value[dear, CPU]


def test_without_nginx_it_says_what_is_missing(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(Unmeasured, match="nginx is not installed"):
        measure(provenance(probe(), "cpu"), quick=True)


@pytest.mark.slow  # two traces on real replicas; tests/lib/product/fleet/real has the shorter form
@needs_nginx
def test_real_replicas_lose_nothing_and_the_result_can_be_kept():
    result = measure(provenance(probe(), "cpu"), quick=True)
    value = {(row.what, row.by): row.median for row in result.series}
    lost = [number for (what, _), number in value.items() if what.startswith("requests without an answer")]
    assert lost == [0]
    assert {each.case for each in result.predictions} == {"undisturbed", "a replica killed"}
    assert all(each.predicted > 0 and each.measured > 0 for each in result.predictions)
    assert result.to_json() and result.tables()
