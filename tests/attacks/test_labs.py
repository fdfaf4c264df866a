"""Answers to the labs' exercises that look right and do not do the work: each earns nothing, or what its section says.

The answers to a lab are sections of `labs/<lab>.md`, named `<exercise>__<what it does>`. A section begins with a
sentence. `- earns: 15` follows if the answer does all that some parts ask for. `- needs: bwrap` follows if only
namespaces prevent the attack. The block is the text of the solution cell.
"""

import os

import attack_file
import pytest
from grading import needs, points, said
from threeloops_grader.authoring.labs import find_lab
from threeloops_grader.grading.grade import Options, grade_notebook
from threeloops_grader.sandbox import bwrap
from threeloops_grader.sandbox.pool import Sandbox

ATTACKS = [
    pytest.param(path.stem, written, id=f"{path.stem}__{written.name}")
    for path in sorted((attack_file.ATTACKS / "labs").glob("*.md"))
    for written in attack_file.read(path, {"earns", "needs"})
]


@pytest.mark.parametrize(("slug", "attack"), ATTACKS)
def test_an_answer_that_does_not_do_the_work_earns_nothing(slug: str, attack: attack_file.WrittenAttack) -> None:
    lab = find_lab(slug)
    exercise, _ = attack.name.split("__")
    needs(attack.values.get("needs", "none"))
    sandbox: Sandbox = "none" if bwrap.why_not() and os.environ.get("THREELOOPS_CI") != "1" else "bwrap"
    record = grade_notebook(
        lab.answered({exercise: attack.text}), lab, "student", Options(sandbox=sandbox, only=exercise)
    )
    assert record.status == "graded", said(record)
    assert points(record)[exercise] == float(attack.values.get("earns", 0)), said(record)
