"""What cannot be done is refused with the smallest change that would do: it does, and a little less does not."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threeloops.capstone import Infeasible, Model, changed, make_plan, read_prices, read_scenario
from threeloops.capstone.costing import Candidate, candidates
from threeloops.capstone.variations import _GRIDS

PRICES = read_prices()


def refusal(scenario):
    with pytest.raises(Infeasible) as error:
        make_plan(scenario)
    return error.value


def is_feasible(scenario):
    return any(isinstance(each, Candidate) for each in candidates(scenario, PRICES).values())


def slightly_less(scenario, key, value):
    """One step back towards what was asked."""
    if key == "cluster.gpus":
        before = scenario.cluster.gpus
        sizes = [n for n in range(before, value) if n <= 8 or n % 8 == 0]
        return sizes[-1]
    return type(value)(round(value - _GRIDS[key], 6))


def check(scenario, *keys):
    """Every proposal does it, with its other changes; the first of each is as small as can be."""
    found = refusal(scenario)
    assert [each.changes[0][0] for each in found.proposals] == list(keys), str(found)
    for each in found.proposals:
        better = scenario
        for key, value in each.changes:
            better = changed(better, key, value)
        assert is_feasible(better), each
        if any(name in _GRIDS or name == "cluster.gpus" for name, _ in each.changes[:1]):
            key, value = each.changes[0]
            assert not is_feasible(changed(better, key, slightly_less(scenario, key, value))), each
        assert all(f"{key} = " in str(found) for key, _ in each.changes)
    return found


def narrow(name, accelerator, **cluster):
    scenario = changed(read_scenario(name), "budget.total", None)
    return replace(scenario, cluster=replace(scenario.cluster, accelerators=(accelerator,), **cluster))


def test_a_model_that_does_not_fit():
    scenario = changed(narrow("70b_pretraining", "H100 SXM", gpus=8), "training.tokens", 1e9)
    found = check(scenario, "cluster.gpus")
    assert found.problem == "memory"
    assert "leanest" in found.reason and "72 GiB of a H100 SXM can be used" in found.reason


def test_a_deadline_that_comes_too_early():
    found = check(changed(narrow("7b_finetuning", "A100"), "training.deadline_days", 0.3),
                  "cluster.gpus", "training.deadline_days")  # fmt: skip
    assert "training takes 0.67" in found.reason
    assert "instead of 8 (" in str(found)


def test_a_budget_that_is_too_small():
    scenario = changed(narrow("7b_finetuning", "H100"), "budget.total", 100.0)
    found = check(scenario, "budget.total", "training.tokens")
    assert found.problem == "budget" and "the budget is 100 USD" in found.reason


def test_a_change_that_needs_more_money_says_so():
    scenario = changed(changed(narrow("7b_finetuning", "H100"), "training.deadline_days", 0.15), "budget.total", 125.0)
    proposals = refusal(scenario).proposals
    assert [[key for key, _ in each.changes] for each in proposals] == [
        ["cluster.gpus", "budget.total"], ["training.deadline_days", "budget.total"],
    ]  # fmt: skip
    for each in proposals:
        better = changed(changed(scenario, *each.changes[0]), *each.changes[1])
        assert is_feasible(better)
        assert not is_feasible(changed(better, "budget.total", each.changes[1][1] - 1))


def test_a_batch_that_cannot_be_divided_leaves_gpus_idle():
    scenario = changed(narrow("7b_finetuning", "H100", gpus=48), "training.batch", 5)
    made = make_plan(changed(scenario, "training.sequence", 4095))
    assert made["gpus_there"] == 48 and made["gpus"] == 5
    assert "43 of 48 GPUs stay idle and are not paid for" in made.decision("parallelism").reason
    assert made["training_gpu_hours"] == pytest.approx(5 * made["training_hours"])


def test_a_cluster_that_fails_all_the_time():
    scenario = changed(narrow("7b_finetuning", "H200"), "cluster.node_mtbf_days", 0.0005)
    found = refusal(scenario)
    assert found.problem == "failures" and "hardly ever work" in found.reason
    key, value = found.proposals[0].changes[0]
    assert key == "cluster.node_mtbf_days" and is_feasible(changed(scenario, key, value))


@settings(max_examples=4, deadline=None, derandomize=True)
@given(
    deadline=st.floats(0.02, 0.15),
    tokens=st.floats(1e9, 3e9),
    batch=st.sampled_from([96, 128, 160]),
    name=st.sampled_from(["H100", "A100"]),
)
def test_proposals_are_minimal_whatever_is_asked(deadline, tokens, batch, name):
    scenario = narrow("7b_finetuning", name)
    scenario = changed(changed(scenario, "training.deadline_days", deadline), "training.tokens", tokens)
    scenario = changed(scenario, "training.batch", batch)
    if not is_feasible(scenario):
        check(scenario, *(each.changes[0][0] for each in refusal(scenario).proposals))


def serving(**changes):
    scenario = narrow("bursty_serving", "L40S")
    changes = {"peak_requests_per_second": 6.0, "bursts": 1, "cold_start_seconds": 60.0, **changes}
    return replace(scenario, serving=replace(scenario.serving, **changes))


def test_a_token_that_cannot_come_so_soon():
    found = refusal(serving(tpot_seconds=0.002))
    assert found.problem == "tpot" and "ms even for one request alone" in found.reason
    key, value = found.proposals[0].changes[0]
    assert key == "serving.tpot_seconds"
    assert is_feasible(serving(tpot_seconds=value)) and not is_feasible(serving(tpot_seconds=value - 0.001))


def test_a_fleet_that_may_not_grow():
    found = refusal(serving(maximum_replicas=1, peak_requests_per_second=40.0))
    assert found.problem == "slo" and "at most 1 replicas" in found.reason
    key, value = found.proposals[0].changes[0]
    assert key == "serving.maximum_replicas" and value > 1


def test_weights_that_fit_no_node_may_fit_in_eight_bits():
    scenario = replace(serving(peak_requests_per_second=0.2), model=Model(preset="llama-3-70b"))
    scenario = replace(scenario, cluster=replace(scenario.cluster, accelerators=("H100",), gpus_per_node=1, gpus=1))
    scenario = replace(scenario, serving=replace(scenario.serving, prompt_tokens=100, output_tokens=100))
    found = refusal(scenario)
    assert found.problem == "memory" and "weights (131.4 GiB in bf16)" in found.reason
    assert found.proposals[0].changes == (("serving.precision", "fp8"),)
    assert is_feasible(changed(scenario, "serving.precision", "fp8"))
