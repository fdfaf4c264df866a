"""Every claim of a lab that exists has an audit in that lab's own sources, before anything is executed."""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from threeloops.lab import claims
from threeloops.lab.predictions.audit import LEVELS, VERDICTS
from threeloops_grader.authoring.labs import all_labs

LABS = all_labs(Path(__file__).resolve().parents[2])


@cache
def calls(lab) -> list[ast.Call]:
    """The calls of `audit` in core and dives."""
    texts = [notebook.source.read_text(encoding="utf-8") for notebook in lab.notebooks]
    nodes = [node for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return [node for node in nodes if isinstance(node.func, ast.Name) and node.func.id == "audit"]


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.slug)
def test_a_lab_audits_its_own_claims_and_no_others(lab):
    own = {claim.id for claim in claims().values() if int(claim.lab) == lab.number}
    assert {call.args[0].value for call in calls(lab)} == own


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.slug)
def test_two_audits_of_one_claim_are_those_with_and_without_a_gpu(lab):
    levels = defaultdict(list)
    for call in calls(lab):
        levels[call.args[0].value].append(ast.unparse(call.args[3]))
    for name, found in levels.items():
        assert len(found) == 1 or (len(found) == 2 and found.count("'GPU'") == 1), (name, found)


@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.slug)
def test_levels_and_verdicts_that_an_audit_may_give_are_known(lab):
    for call in calls(lab):
        for known, argument in ((LEVELS, call.args[3]), (VERDICTS, call.args[4])):
            outcomes = [argument.body, argument.orelse] if isinstance(argument, ast.IfExp) else [argument]
            assert {outcome.value for outcome in outcomes} <= set(known), ast.unparse(call)
