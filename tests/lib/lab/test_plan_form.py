"""The form of a plan, without a front end: its fields, what a change does, and a change that cannot be planned."""

import pytest
from threeloops.capstone import changed, make_plan, read_prices, read_scenario
from threeloops.lab.plan_form import plan_form


@pytest.fixture
def form(capsys):
    found = plan_form(read_scenario("7b_finetuning"))
    found.printed = capsys.readouterr().out
    found.attach()
    return found


def test_the_static_twin_is_the_plan_of_the_scenario_as_it_is(form):
    plan = make_plan(read_scenario("7b_finetuning"))
    assert form.plan == plan
    for each in plan.decisions:
        assert each.choice in form.printed and each.topic in form.html
    assert form.html.count("<svg") == 3 and plan.figure("memory").alt in form.html  # memory, goodput, ownership
    assert form.png.startswith(b"\x89PNG")


def test_changes_of_all_fields_give_the_plan_of_the_changed_scenario(form):
    form.widgets["gpus"].value = 16
    assert form.plan["gpus"] == 16 and form.plan.scenario.model.preset == "llama-2-7b"
    form.widgets["billion_tokens"].value = 4.0
    form.widgets["cloud_price_factor"].value = 0.5
    assert form.picture.value == form.html and not form.error
    scenario = changed(changed(read_scenario("7b_finetuning"), "cluster.gpus", 16), "training.tokens", 4e9)
    assert form.plan == make_plan(scenario, read_prices().with_cloud(0.5))
    form.widgets["model"].value = "llama-3-8b"
    assert form.plan.scenario.model.preset == "llama-3-8b" and form.plan["tokens"] == 4e9


def test_what_cannot_be_planned_says_so_below_the_last_plan(form):
    before = form.html
    form.widgets["model"].value = "llama-3-405b"
    assert form.error and form.picture.value == before
    assert "Infeasible" in form.error and form.error.split(":")[0] in form.message.value
    form.widgets["model"].value = "llama-2-7b"
    assert form.html == before and not form.message.value
