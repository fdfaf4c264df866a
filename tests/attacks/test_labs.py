"""Answers to exercises of the labs that look right and do not do the work: each earns nothing, or what its file says.

A file is named `<lab>__<exercise>__<what it does>.py`. It begins with a sentence. `# earns: 15` follows if some parts
are solved, for whose points an honest answer has to do no more. `# needs: bwrap` follows if only namespaces prevent it.
The rest is the text of the solution cell.
"""

import os
from pathlib import Path

import attack_file
import pytest
from grading import needs, points, said
from threeloops_grader.authoring.labs import find_lab
from threeloops_grader.grading.grade import Options, grade_notebook
from threeloops_grader.sandbox import bwrap
from threeloops_grader.sandbox.pool import Sandbox

FILES = sorted((attack_file.ATTACKS / "labs").glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_answer_that_does_not_do_the_work_earns_nothing(path: Path) -> None:
    slug, exercise, _ = path.stem.split("__")
    lab, (_, values, text) = find_lab(slug), attack_file.read(path, {"earns", "needs"})
    needs(values.get("needs", "none"))
    sandbox: Sandbox = "none" if bwrap.why_not() and os.environ.get("THREELOOPS_CI") != "1" else "bwrap"
    record = grade_notebook(lab.answered({exercise: text}), lab, "student", Options(sandbox=sandbox, only=exercise))
    assert record.status == "graded", said(record)
    assert points(record)[exercise] == float(values.get("earns", 0)), said(record)
