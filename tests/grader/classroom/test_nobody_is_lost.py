"""After every step of a random term: roster = graded + named as ungraded + missing, and every score is the right one.

A model beside the class knows what each student handed in last, and says who must be in which of the three. The steps
are those of a term in random order: students hand in and hand in again, also files that cannot be graded; somebody
enrols late or is dropped from the roster; grading is killed in the middle.
"""

import csv
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_output
from threeloops_grader.classroom.results.handins import NOT_RUN, not_graded
from threeloops_grader.course.course import submissions
from threeloops_grader.release.release import release
from toy_class import SANDBOX, class_environment, make_class_course, run_threeloops
from toy_course import make_course

STUDENTS = [f"student{n}" for n in range(6)]
SCORES = {"reference": 100.0, "untouched": 0.0, "mistaken": 60.0}
REFUSED = ("cut off", "of another lab", "not a notebook")
GRADING = ("--sandbox", SANDBOX)


@pytest.fixture(scope="module")
def notebooks(tmp_path_factory):
    """The bytes of each kind of submission."""
    lab = make_course(tmp_path_factory.mktemp("made"))
    release([lab])
    made = {name: notebook for name, (notebook, _) in submissions(lab).items()}
    mistaken = nbformat.from_dict(made["reference"])
    next(cell for cell in mistaken.cells if cell.id == "mean").source = "def mean(values):\n    return 1.0"
    texts = {"mistaken": nbformat.writes(mistaken)}
    texts |= {name: nbformat.writes(made[name]) for name in ("reference", "untouched")}
    foreign = json.loads(texts["reference"])
    foreign["metadata"]["threeloops"]["lab"] = "91_other"
    foreign["cells"] = foreign["cells"][:1]
    del foreign["cells"][0]["id"]
    texts |= {"cut off": texts["reference"][:-100], "of another lab": json.dumps(foreign), "not a notebook": "[]"}
    return {name: text.encode() for name, text in texts.items()}


class Term:
    """A class, and what must be true of it. `collected` and `graded` have each student's kind of submission."""

    def __init__(self, root: Path, notebooks: dict[str, bytes], seed: int) -> None:
        self.lab = make_class_course(root)
        self.notebooks = notebooks
        self.random = random.Random(seed)
        self.steps: list[str] = []
        self.roster = STUDENTS[:4]
        self.handed_in: dict[str, str] = {}
        self.collected: dict[str, str] = {}
        self.graded: dict[str, str] = {}
        (root / "download").mkdir()
        self.enrol()
        self.command("release", "90")

    def command(self, *words: str, codes: tuple[int, ...] = (0,)) -> str:
        self.steps.append(" ".join(words))
        done = run_threeloops(self.lab.root, "class", *words)
        assert done.returncode in codes, f"{self.steps}\n{done.stdout}{done.stderr}"
        return done.stdout

    def enrol(self) -> None:
        path = self.lab.root / "roster.csv"
        path.write_text("student_id,email\n" + "".join(f"{name},{name}@u.edu\n" for name in self.roster))
        self.command("init", "roster.csv")

    def change_roster(self) -> None:
        others = [name for name in STUDENTS if name not in self.roster]
        if others and self.random.random() < 0.6:
            self.roster = [*self.roster, self.random.choice(others)]
        elif len(self.roster) > 2:
            dropped = self.random.choice(self.roster)
            self.roster = [name for name in self.roster if name != dropped]
        self.enrol()

    def hand_in(self) -> None:
        """Put a file of a random kind and in a random form into the folder that is collected."""
        student = self.random.choice(self.roster)
        kind = self.random.choice([*SCORES, *SCORES, *REFUSED])
        folder = self.lab.root / "download" / student
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        content = self.notebooks[kind]
        form = self.random.choice(("as it is", "renamed", "zipped", "with a copy"))
        name = "homework.ipynb" if form == "renamed" else f"{self.lab.slug}.ipynb"
        if form == "zipped":
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w") as archive:
                archive.writestr(name, content)
            name, content = "homework.ZIP", packed.getvalue()
        elif form == "with a copy":
            (folder / f"{self.lab.slug}-Copy1.ipynb").write_bytes(self.notebooks["untouched"])
        (folder / name).write_bytes(content)
        self.handed_in[student] = kind
        self.steps.append(f"{student} hands in {kind} {form}")

    def collect(self) -> None:
        if not self.handed_in:
            return
        self.command("collect", "90", "--from", "download")
        for student, kind in self.handed_in.items():  # also those who were dropped since
            if self.collected.get(student) != kind:
                self.graded.pop(student, None)
            self.collected[student] = kind

    def grade(self) -> None:
        refused = any(kind in REFUSED for kind in self.collected.values())  # also of those who were dropped
        if self.collected:
            self.command("grade", "90", *GRADING, codes=(1,) if refused else (0, 1))
            self.graded = {name: kind for name, kind in self.collected.items() if kind not in REFUSED}

    def grade_and_be_killed(self) -> None:
        """Kill grading, and all that it started, at a random moment of its first seconds."""
        if not self.collected:
            return
        words = [sys.executable, "-m", "threeloops_grader.cli", "class", "grade", "90", *GRADING]
        delay = self.random.uniform(1, 8)
        self.steps.append(f"grade, killed after {delay:.1f} s")
        running = subprocess.Popen(
            words, cwd=self.lab.root, env=class_environment(self.lab.root), start_new_session=True, stdout=-3, stderr=-3
        )
        with suppress(subprocess.TimeoutExpired):
            running.wait(delay)
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait(60)
        self.graded = self.now_graded()

    def now_graded(self) -> dict[str, str]:
        """After a kill, anybody whose submission can be graded may be graded or not; nobody else may."""
        done = {name for name in self.collected if not_graded(self.lab, name) == ("", False)}  # also who was dropped
        gradable = {name: kind for name, kind in self.collected.items() if kind not in REFUSED}
        assert done <= set(gradable), self.steps
        return {name: kind for name, kind in gradable.items() if name in done}

    def table(self) -> list[dict[str, str]]:
        self.command("export", "90")
        path = self.lab.root / f"class/{self.lab.slug}_gradescope.csv"
        return list(csv.DictReader(io.StringIO(path.read_text())))

    def check(self) -> None:
        """Compare the account and the table with what the model says."""
        said = self.command("check", "90")
        graded = {student for student in self.roster if student in self.graded}
        missing = {student for student in self.roster if student not in self.collected}
        ungraded = set(self.roster) - graded - missing
        about = f"{self.steps}\n{said}"
        total = f"{len(self.roster)} on the roster = "
        total += f"{len(graded)} graded + {len(ungraded)} ungraded + {len(missing)} missing"
        assert total in said and "handed in, and not on the roster" not in said, about
        assert set(re.findall(r"^ungraded: (\w+): \S", said, re.MULTILINE)) == ungraded, about
        named = re.search(r"^missing: (.*)$", said, re.MULTILINE)
        assert set(named[1].split(", ") if named else ()) == missing, about
        wanted = dict.fromkeys(ungraded, "") | dict.fromkeys(missing, "0")
        wanted |= {student: f"{SCORES[self.graded[student]]:g}" for student in graded}
        assert {row["SID"]: row[self.lab.slug] for row in self.table()} == wanted, about


STEPS = {Term.hand_in: 6, Term.collect: 3, Term.grade: 2, Term.grade_and_be_killed: 1, Term.change_roster: 1}


def play(root: Path, notebooks: dict[str, bytes], seed: int, steps: int) -> None:
    term = Term(root, notebooks, seed)
    for step in term.random.choices(list(STEPS), weights=list(STEPS.values()), k=steps):
        step(term)
        if step is not Term.hand_in:  # nothing of the class has changed
            term.check()
    term.collect()
    term.grade()
    term.check()


def test_everybody_is_accounted_for_after_each_step_of_a_term(tmp_path, notebooks):
    play(tmp_path, notebooks, seed=44, steps=14)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_everybody_is_accounted_for_in_many_terms(tmp_path, notebooks, seed):
    play(tmp_path, notebooks, seed, steps=40)


def test_a_run_that_was_killed_before_the_tests_leaves_nobody_graded(tmp_path, notebooks):
    """nbgrader writes the notebook once before it executes it, and the gradebook still has the earlier score then."""
    lab = make_course(tmp_path)
    paths = {}
    for folder in ("submitted", "autograded"):
        paths[folder] = lab.root / folder / "ada" / lab.slug / f"{lab.slug}.ipynb"
        paths[folder].parent.mkdir(parents=True)
        paths[folder].write_bytes(notebooks["reference"])
    assert not_graded(lab, "ada") == ("", False)
    written = nbformat.read(paths["autograded"], as_version=4)
    test = next(cell for cell in written.cells if cell.id == "rescale_test_zeros")
    test.outputs = [new_output("error", ename=NOT_RUN, evalue="", traceback=[])]
    nbformat.write(written, paths["autograded"])
    assert not_graded(lab, "ada") == ("a newer submission is not graded yet", False)
