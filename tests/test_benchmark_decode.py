"""The decoding benchmark: every party is beside its peer, formulas beside what was measured, on the model it says."""

import pytest
import torch
from threeloops_grader.machine.provenance import provenance

from benchmarks import decode


@pytest.fixture(scope="module")
def found():
    from threeloops.hardware.capability import probe

    threads = torch.get_num_threads()
    try:
        return decode.measure(provenance(probe(), "cpu"), quick=True)
    finally:
        torch.set_num_threads(threads)


def test_what_every_party_did_is_compared_with_one_peer(found):
    by_what = {}
    for series in found.series:
        by_what.setdefault(series.what, []).append(series)
    assert len(by_what) == 5, list(by_what)
    for what, each in by_what.items():
        assert sum(series.peer for series in each) == 1 < len(each), what
        assert all(sample > 0 for series in each for sample in series.samples), what


def test_weights_of_few_bits_are_smaller_and_hardly_worse(found):
    sizes = {series.by: series.median for series in found.series if series.what.startswith("bytes")}
    worse = {series.by: series.median for series in found.series if series.what.startswith("perplexity")}
    assert sizes["int4 GPTQ"] < sizes["int8 RTN"] < sizes["bf16"] < sizes["fp32"]
    assert worse["int4 GPTQ"] < 1.02 * worse["bf16"], "the target of the course: within 2% of bfloat16"
    assert 4.25 < found.facts["few bits"]["int4 GPTQ"]["bits per weight"] < 4.5, (
        "a row of 96 has a group of 64 and one of 32"
    )


def test_a_draft_gives_as_many_tokens_per_step_as_the_formula_says_up_to_chance(found):
    steps = {row.case: row for row in found.predictions if row.what == "tokens per step"}
    assert set(steps) == {"its own first layer", "look-up"}
    for name, row in steps.items():
        assert 0 <= found.facts["drafts"][name]["acceptance"] <= 1
        assert abs(row.difference) < 0.5, row
    assert found.settings["model"] == "tiny" and {row.what for row in found.predictions} == {
        "tokens per step",
        "speed-up",
    }
