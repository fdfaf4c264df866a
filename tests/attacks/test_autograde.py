"""Every attack on the other route, stock `nbgrader autograde`: the same points, and honest neighbours keep theirs."""

import csv
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from attack import ANSWERS, SUBMISSIONS
from grading import QUICK, fresh_course, hand_in, nbgrader, needs, processes_of, submission
from threeloops_grader.release.release import release
from toy_course import SOURCE, make_course

REPOSITORY = Path(__file__).resolve().parents[2]
LIMITS = "memory_mb: 600, processes: 24, disk_mb: 16"
HONEST = ("ada", "zoe")
NAMES = [name for name, attack in ANSWERS.items() if "bwrap" in attack.sandboxes]
ENDLESS = [name for name in NAMES if ANSWERS[name].limits.cell_seconds < QUICK.cell_seconds]
"""Answers that only a deadline ends: in a class of their own, because on this route a lab has one set of limits."""
OTHERS = [name for name in NAMES if name not in ENDLESS]
CLASSES = {
    "endless": ("{cell_seconds: 5, test_seconds: 4, notebook_seconds: 60, " + LIMITS + "}", ENDLESS),
    **{str(n): ("{cell_seconds: 120, test_seconds: 120, " + LIMITS + "}", OTHERS[n::6]) for n in range(6)},
}
"""One of them is graded in every run. Each attack is tried in every run on the route of `threeloops grade`, which
executes submissions by the same function (`test_answers.py`, `test_submissions.py`)."""


@pytest.fixture(
    scope="module", params=["0", *(pytest.param(name, marks=pytest.mark.slow) for name in CLASSES if name != "0")]
)
def graded(request, aims, tmp_path_factory):
    """A class of attackers between two honest students: who was in it, the scores, the log and what was executed."""
    needs("bwrap")
    folder = tmp_path_factory.mktemp("nbgrader")
    limits, names = CLASSES[request.param]
    source, changed = re.subn(r"limits: \{.*\}", f"limits: {limits}", SOURCE)
    assert changed == 1
    with fresh_course(folder, lambda root: make_course(root, source)) as lab:
        shutil.copy(REPOSITORY / "nbgrader_config.py", lab.root)
        (folder / "marks_of_everybody.db").touch()
        release([lab])
        here = {name: ANSWERS[name] for name in names}
        for name, attack in here.items():
            text = attack.aimed({**aims, "ROOT": str(lab.root)})
            hand_in(submission(lab, **({"before": text} if attack.before else {"mean": text})), lab, name)
        for student in HONEST:
            hand_in(lab.master(), lab, student)
        at = list(CLASSES).index(request.param)
        folders = dict(list(SUBMISSIONS.items())[at :: len(CLASSES)])
        for name, module in folders.items():
            own = lab.root / "submitted" / name / lab.slug
            own.mkdir(parents=True)
            module.write(own, lab)
        done = nbgrader(lab.root, "generate_assignment", lab.slug, "--force")
        assert done.returncode == 0, done.stderr
        log = nbgrader(lab.root, "autograde", lab.slug, THREELOOPS_TOKEN="TOKEN").stderr
        exported = nbgrader(lab.root, "export", "--to", "grades.csv")
        assert exported.returncode == 0, exported.stderr
        with (lab.root / "grades.csv").open() as file:
            scores = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
        yield here, folders, scores, log, lab
        assert processes_of(folder) == []


def executed(lab, name: str) -> str:
    """What the graded notebook of a student says."""
    path = lab.root / "autograded" / name / lab.slug / f"{lab.slug}.ipynb"
    if not path.is_file():
        return ""
    cells = nbformat.read(path, as_version=4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    return "\n".join(output.get("text", "") or output.get("evalue", "") for output in outputs)


def test_every_attack_earns_what_an_honest_answer_would(graded):
    here, folders, scores, log, lab = graded
    for name, attack in here.items():
        ruined = (0.0, 15.0, 45.0, 60.0)  # the other exercise has two parts
        expected = {attack.earns + other for other in (ruined if attack.other is None else (attack.other,))}
        assert scores.get(name, 0.0) in expected, f"{name}: {executed(lab, name)}"
    for name, module in folders.items():
        assert scores.get(name, 0.0) == module.EARNS, f"{name}: {executed(lab, name)}"
        assert module.SAYS in log + executed(lab, name), name


def test_their_neighbours_earn_everything(graded):
    *_, scores, _, _ = graded
    assert [scores[name] for name in HONEST] == [100.0] * len(HONEST)
