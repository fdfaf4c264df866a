"""Hostile answers on the route of `threeloops grade`: each earns what an honest answer would have earned.

Nobody else notices: an honest submission is graded by the same warm processes afterwards, and at the end of the file no
process, no folder and no control group is left.
"""

import os
from collections.abc import Iterator

import pytest
from attack import ANSWERS
from grading import fresh_course, grade, needs, points, said, submission
from threeloops_grader.sandbox import cgroup


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacks")
    (folder / "marks_of_everybody.db").touch()
    os.environ["THREELOOPS_TOKEN"] = "TOKEN"
    try:
        with fresh_course(folder) as lab:
            yield lab
    finally:
        del os.environ["THREELOOPS_TOKEN"]


def tried() -> Iterator[object]:
    """Each attack in each of its sandboxes. What bubblewrap holds is tried without it too: a third of it in every run,
    all of it in `make test-all`."""
    for number, attack in enumerate(ANSWERS.values()):
        for sandbox in attack.sandboxes:
            is_second = sandbox == "none" and "bwrap" in attack.sandboxes
            marks = [pytest.mark.slow] if is_second and number % 3 else []
            yield pytest.param(attack.name, sandbox, marks=marks)


@pytest.mark.parametrize(("name", "sandbox"), list(tried()))
def test_an_attack_earns_what_an_honest_answer_would(lab, aims, monkeypatch, name, sandbox):
    if sandbox == "ungrouped":
        monkeypatch.setattr(cgroup, "why_not", lambda: "this test makes none")
        sandbox = "bwrap"
    needs(sandbox)
    attack = ANSWERS[name]
    text = attack.aimed({**aims, "ROOT": str(lab.root)})
    answers = {"before": text} if attack.before else {"mean": text}
    record = grade(lab, submission(lab, **answers), sandbox, attack.limits)
    earned = points(record)
    assert earned["mean"] == attack.earns, said(record)
    assert attack.other in (earned["rescale"], None), said(record)
    assert any(words in said(record) for words in attack.says.split(" | ")), said(record)
    assert record.status == "graded"
    honest = grade(lab, submission(lab), sandbox)
    assert points(honest) == {"mean": 40.0, "rescale": 60.0}, said(honest)
    assert honest.notes == []
