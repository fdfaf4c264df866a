"""The elastic benchmark: simulation within two percent of the closed form, and the claims beside what was published."""

import pytest
from threeloops.hardware.probe import probe
from threeloops_grader.machine.provenance import provenance

from benchmarks.elastic import measure


@pytest.fixture(scope="module")
def result():
    return measure(provenance(probe(), "cpu"), quick=True)


def test_simulated_goodput_is_within_two_percent_of_the_closed_form(result):
    goodput = [each for each in result.predictions if each.what == "share that is useful"]
    assert len(goodput) == 5 and all(abs(each.difference) < 0.02 for each in goodput)
    lost = [each for each in result.predictions if each.what == "share that is not"]
    assert len(lost) == 5 and all(abs(each.difference) < 0.06 for each in lost), (
        "few failures in five years of few nodes"
    )


def test_llama3_predicts_bloom_and_neither_opt_nor_the_largest_jobs_of_rsc1(result):
    off = {(each.by, each.case.partition(",")[0]): each.difference for each in result.predictions[10:]}
    assert abs(off["bloom", "bloom: failures of GPUs per week"]) < 0.2
    assert off["opt", "opt: restarts"] > 2.5
    assert off["rsc1", "16"] == pytest.approx(1.8 / 3.092 - 1, abs=1e-3)


def test_the_claims(result):
    claims = result.facts["claims"]
    assert claims["hours between failures of 10,000 GPUs that fail every 10 years"] == pytest.approx(8.76)
    assert claims["hours between interruptions of 16,384 GPUs, Llama 3 405B"] == pytest.approx(3.09, abs=0.01)
    assert 1 < claims["seconds of a save for which 5 minutes are best, 10,000 GPUs as claimed"] < 2
    rows = result.facts["best intervals beside Young's and Daly's"]
    assert all(row["Daly 2006, higher order: longer by"] <= row["Young 1974: longer by"] for row in rows)
    assert result.to_json() and result.tables()
