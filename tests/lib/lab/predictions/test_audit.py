"""Audits settle known claims, say how, and are data."""

import json

import numpy as np
import pytest
from threeloops.lab import audit, claims
from threeloops.lab.course.loops import labs
from threeloops.lab.predictions.audit import LEVELS, VERDICTS, _settle
from threeloops.lab.predictions.claims import disagreements, sources


def test_the_list_of_claims_is_whole():
    known = claims()
    assert len(known) == 129, "a claim is corrected or split, and never dropped"
    assert all(claim.id == name and claim.claim.strip() for name, claim in known.items())
    assert {claim.lab for claim in known.values()} <= {f"{lab.number:02d}" for lab in labs()}
    letters = {letter for claim in known.values() for letter in claim.source.split(",")}
    assert letters == set(sources()) == set("ABCDEFGHIJKL")


def test_a_contradiction_is_between_the_sources_of_its_claims_or_of_one_with_itself():
    known = claims()
    for each in disagreements():
        letters = {letter for name in each.claims for letter in known[name].source.split(",")}
        assert each.says and set(each.says) <= letters and all(each.says.values()), each
        assert len(each.says) == 1 or len(set(each.says.values())) > 1, each
    named = {name for each in disagreements() for name in each.claims}
    assert {"roof-5", "roof-6", "mem-3", "budg-1", "zero-2", "coll-3"} <= named


def test_the_file_holds_nothing_but_the_claim():
    from importlib.resources import files

    rows = json.loads(files("threeloops.lab.predictions").joinpath("claims.json").read_text(encoding="utf-8"))["claims"]
    assert {frozenset(row) for row in rows} == {frozenset({"id", "lab", "source", "claim"})}
    assert len({row["id"] for row in rows}) == len(rows)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("verdict", VERDICTS)
def test_an_audit_says_the_claim_the_number_the_level_the_verdict_and_the_way(capsys, level, verdict):
    audit("roof-2", np.float64(0.99), "PFLOP/s", level, verdict, how="from the data sheet")
    out = capsys.readouterr().out
    for part in ("roof-2", claims()["roof-2"].claim, verdict, "0.99 PFLOP/s", LEVELS[level], "from the data sheet"):
        assert part in out


def test_the_record_is_plain_json():
    record = _settle("pipe-1", np.int64(3), "steps", "model", "corrected", " counted ")
    assert json.loads(json.dumps(record)) == {
        "id": "pipe-1",
        "claim": claims()["pipe-1"].claim,
        "lab": "12",
        "source": "E",
        "number": 3,
        "unit": "steps",
        "level": "model",
        "verdict": "corrected",
        "how": "counted",
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"claim_id": "roof-99"}, "'roof-99' is not in claims.json; there are roof-1, roof-2"),
        ({"claim_id": "nothing"}, "is not in claims.json"),
        ({"level": "gpu"}, "level = 'gpu': expected one of model, compiled, CPU, GPU, published"),
        ({"verdict": "true"}, "verdict = 'true': expected one of holds"),
        ({"how": " "}, "say how"),
        ({"number": None}, "give the number found"),
        ({"number": float("nan")}, "one finite number"),
        ({"number": True}, "one finite number"),
        ({"number": "0.99"}, "one finite number"),
    ],
)
def test_an_audit_that_settles_nothing_is_refused(change, message):
    call = {"claim_id": "roof-2", "number": 0.99, "unit": "PFLOP/s", "level": "CPU", "verdict": "holds", "how": "x"}
    with pytest.raises(ValueError, match=message):
        audit(**(call | change))


@pytest.mark.parametrize("verdict", ["needs a GPU", "cannot be tested here"])
def test_what_cannot_be_settled_needs_no_number(capsys, verdict):
    audit("ddp-5", None, "", "CPU", verdict, how="a property of the GPU's kernels")
    assert f"{verdict}: no number" in capsys.readouterr().out
