"""Hostile folders among honest ones, on the route of `threeloops grade`: each harms its own record alone."""

import pytest
from attack import SUBMISSIONS
from grading import QUICK, SANDBOXES, fresh_course, hand_in, needs, said
from threeloops_grader.grading.grade import Options
from threeloops_grader.worklist.grade_class import grade_class

HONEST = ("ada", "zoe")


@pytest.fixture(scope="module", params=SANDBOXES)
def records(request, tmp_path_factory):
    """What grading wrote about each folder."""
    needs(request.param)
    folder = tmp_path_factory.mktemp("submissions")
    with fresh_course(folder) as lab:
        for student in HONEST:
            hand_in(lab.master(), lab, student)
        for name, module in SUBMISSIONS.items():
            own = lab.root / "submitted" / name / lab.slug
            own.mkdir(parents=True)
            module.write(own, lab)
        report = grade_class(lab.root / "submitted", lab, Options(request.param, limits=QUICK))
        yield {record.student: record for record in report.records}


@pytest.mark.parametrize("name", SUBMISSIONS)
def test_a_hostile_folder_earns_what_its_answers_are_worth(records, name):
    record, attack = records[name], SUBMISSIONS[name]
    assert record.score == attack.EARNS, said(record)
    assert attack.SAYS in said(record)


def test_its_neighbours_earn_everything(records):
    assert [(records[name].score, records[name].notes) for name in HONEST] == [(100.0, [])] * len(HONEST)
