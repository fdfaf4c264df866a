"""After every step of a random term: roster = graded + named as ungraded + missing, and every score is the right one.

`class_model.py` says what is right. The steps are those of a term in random order: students hand in and hand in again,
also files that cannot be graded; they get extensions, join groups, enrol late or leave; the policy and the rule for
attempts change; tests are repaired and regraded; points are given by hand. Each command is killed in the middle now and
then, and what it left must be the class before it or after it, or be named.
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
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from datetime import datetime, timedelta
from pathlib import Path

import nbformat
import pytest
from class_model import (
    DUE,
    EARLIER,
    EVERY_LAB,
    LAB,
    POINTS,
    REFLECTION,
    REFUSED,
    UNUSABLE,
    ClassModel,
    Graded,
    Policy,
    Regrade,
)
from nbformat.v4 import new_output
from threeloops_grader.classroom.enrolment import gradebook
from threeloops_grader.classroom.register import log
from threeloops_grader.classroom.register.roster import saved_roster
from threeloops_grader.classroom.results.handins import NOT_RUN, not_graded
from threeloops_grader.classroom.results.scores import class_scores
from threeloops_grader.course.course import submissions
from threeloops_grader.release.release import release
from toy_class import SANDBOX, class_environment, make_class_course, run_threeloops
from toy_course import SOURCE, make_course

STUDENTS = [f"student{n}" for n in range(6)]
GRADING = ("--sandbox", SANDBOX)
DUE_TIME = datetime(2030, 1, 31, 12)
"""The due date of the lab, in UTC."""
CUT_OFF = r"^A regrade of (\w+) was cut off"
OPENED = "90=2030-01-21 12:00"
ANSWERS = {
    "mistaken": ("mean", "def mean(values):\n    return 1.0"),
    "accepts an empty list": ("mean", "def mean(values):\n    return sum(values) / max(len(values), 1)"),
    "ignores the sign": (
        "rescale",
        "def rescale(values, top):\n    values = np.asarray(values, dtype=np.float64)\n"
        "    peak = values.max(initial=0.0)\n    return values * (top / peak) if peak > 0 else values.copy()",
    ),
}
REPAIRS = {
    "mean": "    check.raises(ValueError, mean, []",
    "rescale": "    check.close(rescale(np.array([1.0, -8.0]), 2.0)",
}
"""The beginning of the line of each exercise's tests that a repair removes."""
CHANGES = {"collect": 30, "extend": 8, "groups": 8, "init": 14, "regrade": 90}
"""About how often each command changes a file or folder in a class of this size."""


@pytest.fixture(scope="module")
def notebooks(tmp_path_factory):
    """The bytes of each kind of submission."""
    lab = make_course(tmp_path_factory.mktemp("made"))
    release([lab])
    made = {name: notebook for name, (notebook, _) in submissions(lab).items()}
    texts = {name: nbformat.writes(made[name]) for name in ("reference", "untouched")}
    for kind, (exercise, answer) in ANSWERS.items():
        notebook = nbformat.from_dict(made["reference"])
        next(cell for cell in notebook.cells if cell.id == exercise).source = answer
        texts[kind] = nbformat.writes(notebook)
    assert set(texts) == set(POINTS)
    foreign = json.loads(texts["reference"])
    foreign["metadata"]["threeloops"]["lab"] = "91_other"
    foreign["cells"] = foreign["cells"][:1]
    del foreign["cells"][0]["id"]
    texts |= {"cut off": texts["reference"][:-100], "of another lab": json.dumps(foreign), "not a notebook": "[]"}
    return {name: text.encode() for name, text in texts.items()}


class Term:
    """A class, and the model of what must be true of it. `clock` counts hours from the due date."""

    def __init__(self, root: Path, notebooks: dict[str, bytes], seed: int) -> None:
        self.lab = make_class_course(root)
        self.notebooks = notebooks
        self.random = random.Random(seed)
        self.steps: list[str] = [f"seed {seed}"]
        self.model = ClassModel(STUDENTS[:4])
        self.handed_in: dict[str, str] = {}
        self.texts: dict[str, bytes] = {}
        self.clock = -6.25
        self.download = root / "download"
        self.download.mkdir()
        due = f"90={DUE_TIME:%Y-%m-%d %H:%M}"
        self.write_roster(self.model.roster)
        self.model.policy = Policy(percent=13.0, slip_days=2)
        rules = ("--late-percent", "13", "--slip-days", "2", "--reflection", f"{REFLECTION:g}")
        self.command("init", "roster.csv", "--due", due, "--opened", OPENED, *rules)
        self.command("release", "90")
        with gradebook(root) as book:
            book.add_assignment(EARLIER, duedate=self.time(DUE[EARLIER]))
            for student in STUDENTS:
                if hours := self.random.choice((None, -1.25, 20.75, 50.75, 100.75)):
                    self.model.earlier[student] = DUE[EARLIER] + hours
                    book.update_or_create_student(student)
                    with book.db.no_autoflush:
                        book.add_submission(EARLIER, student, timestamp=self.time(DUE[EARLIER] + hours))

    def time(self, hours: float) -> datetime:
        return DUE_TIME + timedelta(hours=hours)

    def command(self, *words: str, codes: tuple[int, ...] = (0,)) -> str:
        self.steps.append(" ".join(words))
        done = run_threeloops(self.lab.root, "class", *words)
        assert done.returncode in codes, f"{self.steps}\n{done.stdout}{done.stderr}"
        assert "SAWarning" not in done.stderr, f"{self.steps}\n{done.stderr}"
        return done.stdout

    def is_killed(self, *words: str, codes: tuple[int, ...] = (0,)) -> bool:
        """Run a command that is killed at one of its first changes to the disk, if it makes as many."""
        at = self.random.randint(1, CHANGES[words[0]])
        self.steps.append(f"{' '.join(words)} [killed at change {at}]")
        done = run_threeloops(self.lab.root, "class", *words, killed_at=at)
        assert done.returncode in (*codes, -signal.SIGKILL), f"{self.steps}\n{done.stdout}{done.stderr}"
        return done.returncode == -signal.SIGKILL

    def run(self, *words: str, change: Callable[[], object], codes: tuple[int, ...] = (0,)) -> str:
        """Run a command that makes the `change`. In between it may be killed, which leaves the class before or after
        it; then the instructor gives it again."""
        before = self.model
        self.model = deepcopy(before)
        change()
        if self.random.random() < 0.3 and self.is_killed(*words, codes=codes):
            self.require_one_of(words[0], before.rows(), self.model.rows())
        return self.command(*words, codes=codes)

    def require_one_of(self, command: str, before: dict, after: dict) -> None:
        """Check what a command that was killed has left. `extend` and `groups` change one file; the others change a
        student at a time, so of them each student's row is the one before or after, or awaits grading. Nobody is lost.
        """
        rows = self.rows()
        about = f"{self.steps}\n{rows}\nnot {before}\nnor {after}"
        if command in ("extend", "groups"):
            assert same(rows, before) or same(rows, after), about
        for student, row in rows.items():
            possible = [table[student] for table in (before, after) if student in table]
            assert (
                row[0] == "ungraded"
                or any(same({0: row}, {0: other}) for other in possible)
                or (row[0] == "graded" and "graded" in [status for status, _ in possible])
            ), about
            assert row[0] != "missing" or "missing" in [status for status, _ in possible], about

    def write_roster(self, roster: list[str]) -> None:
        path = self.lab.root / "roster.csv"
        path.write_text("student_id,email\n" + "".join(f"{name},{name}@u.edu\n" for name in roster))

    def enrol(self, roster: list[str], *options: str, change: Callable[[], object] = lambda: None) -> None:
        """Run `class init` with a roster, and make the `change` that its options ask for."""
        self.write_roster(roster)

        def all_changes() -> None:
            gone = {*self.model.roster, *self.model.dropped} - set(roster)
            self.model.roster, self.model.dropped = roster, sorted(gone)
            change()

        self.run("init", "roster.csv", *options, change=all_changes)

    def change_roster(self) -> None:
        roster = self.model.roster
        others = [name for name in STUDENTS if name not in roster]
        if others and self.random.random() < 0.6:
            roster = [*roster, self.random.choice(others)]
        elif len(roster) > 2:
            gone = self.random.choice(roster)
            roster = [name for name in roster if name != gone]
        self.enrol(roster)

    def change_policy(self) -> None:
        """Choose another late policy or another rule for attempts."""
        choose = self.random.choice
        if choose((True, False)):
            rule = choose(("last", "best", "first 2", "first 3"))
            self.enrol(self.model.roster, "--attempts", rule, change=lambda: self.model.choose(rule))
            return
        policy = Policy(
            choose((7.0, 13.0)),
            choose((40.0, 100.0)),
            choose((0.0, 30.0)),
            choose((3.0, float("inf"))),
            choose((0, 2, 4)),
            choose((1, 2)),
        )
        options = {
            "--late-percent": policy.percent, "--late-most": policy.most, "--grace-minutes": policy.grace_minutes,
            "--closes-days": policy.closes_days, "--slip-days": policy.slip_days, "--slip-most": policy.slip_most,
        }  # fmt: skip
        words = [word for name, value in options.items() for word in (name, f"{value:g}")]
        self.enrol(self.model.roster, *words, change=lambda: setattr(self.model, "policy", policy))

    def hand_in(self) -> None:
        """Put a file of a random kind and in a random form into the folder that is collected."""
        student = self.random.choice(self.model.roster)
        kind = self.random.choice([*POINTS, *POINTS, *REFUSED, UNUSABLE])
        folder = self.download / student
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        mates = [name for name in self.model.mates(student, LAB) if name in self.handed_in and name != student]
        if mates and self.random.random() < 0.5:  # one notebook, handed in by two members
            kind, content = self.handed_in[mates[0]], self.texts[mates[0]]
        else:
            content = self.another(kind)
        form = self.random.choice(("as it is", "renamed", "zipped", "with a copy"))
        name = "homework.ipynb" if form == "renamed" else f"{self.lab.slug}.ipynb"
        if kind == UNUSABLE:
            form, name = "as it is", "homework.pdf"
        self.handed_in[student], self.texts[student] = kind, content
        if form == "zipped":
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w") as archive:
                archive.writestr(name, content)
            name, content = "homework.ZIP", packed.getvalue()
        elif form == "with a copy":
            (folder / f"{self.lab.slug}-Copy1.ipynb").write_bytes(self.notebooks["untouched"])
        (folder / name).write_bytes(content)
        self.steps.append(f"{student} hands in {kind} {form}")

    def another(self, kind: str) -> bytes:
        """A notebook of a kind that nobody has handed in yet."""
        if kind == UNUSABLE:
            return b"%PDF"
        content = self.notebooks[kind]
        return content[: -len(self.steps)] if kind == "cut off" else content + b" " * len(self.steps)

    def collect(self) -> None:
        if not self.handed_in:
            return
        too_many: list[str] = []

        def change() -> None:
            for student, kind in sorted(self.handed_in.items()):
                if not self.model.collect(student, kind, self.texts[student], self.clock):
                    too_many.append(student)

        when = f"{self.time(self.clock):%Y-%m-%d %H:%M}"
        said = self.run("collect", "90", "--from", "download", "--handed-in", when, change=change, codes=(0, 1))
        named = re.findall(r"^not collected: (\w+): \d attempts are there", said, re.MULTILINE)
        assert sorted(named) == sorted(too_many), f"{self.steps}\n{said}"
        shutil.rmtree(self.download)
        self.download.mkdir()
        self.handed_in = {}
        self.clock += self.random.choice((1.5, 9.5, 24.5, 31.5))

    def grade(self) -> None:
        if not self.model.placed:
            return
        again = self.random.random() < 0.2
        self.model.grade(again)
        refused = any(attempt.is_refused for attempt in self.model.placed.values())  # also of those who were dropped
        self.command("grade", "90", *(["--again"] if again else []), *GRADING, codes=(1,) if refused else (0, 1))

    def grade_and_be_killed(self) -> None:
        """Kill grading, and all that it started, at a random moment of its first seconds."""
        if not self.model.placed:
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
        self.see_who_is_graded()

    def see_who_is_graded(self) -> None:
        """After a kill, anybody whose submission can be graded may be graded or not, and with the rule `best` any
        attempt may be in place; nobody else may be graded, and nobody's work is gone."""
        for student, placed in list(self.model.placed.items()):
            text = (self.lab.root / "submitted" / student / LAB / f"{LAB}.ipynb").read_bytes()
            own = self.model.attempts[student] if self.model.rule == "best" else [placed]
            self.model.place(student, next(attempt for attempt in reversed(own) if attempt.text == text))
        for student, attempt in self.model.placed.items():  # also who was dropped
            if not_graded(self.lab, student) != ("", False):
                self.model.graded.pop(student, None)
            elif student not in self.model.graded:
                assert not attempt.is_refused, self.steps
                self.model.graded[student] = Graded(attempt, dict(self.model.versions))

    def repair_and_regrade(self) -> None:
        """Repair the test of an exercise, or take the repair back, and regrade. A regrade that was killed is completed
        by the next one, also if that is for another exercise."""
        exercise = self.random.choice(sorted(REPAIRS))
        if self.random.random() < 0.8:
            self.model.versions[exercise] = 1 - self.model.versions[exercise]
            removed = tuple(line for name, line in REPAIRS.items() if self.model.versions[name])
            text = [line for line in SOURCE.splitlines(keepends=True) if not removed or not line.startswith(removed)]
            assert len(text) == len(SOURCE.splitlines()) - len(removed)
            self.lab.source.write_text("".join(text))
            self.steps.append(f"repair {self.model.versions}")
        keep_higher = self.random.random() < 0.3
        words = ("regrade", "90", exercise, *(["--keep-higher"] if keep_higher else []), *GRADING)
        plan = Regrade(exercise, dict(self.model.versions), keep_higher, dict(self.model.graded))
        logged = len(self.logged())
        if self.random.random() < 0.5:
            self.command(*words, codes=(0, 1))
        elif self.is_killed(*words, codes=(0, 1)):
            self.see_what_is_regraded(plan, logged)
            return
        before, self.model.pending = self.model.pending, None
        if before is not None:
            self.model.regrade(before)
        if before is None or (before.exercise, before.versions) != (exercise, plan.versions):
            self.model.regrade(plan)

    def logged(self) -> list[str]:
        """The exercises of all regrades in the log."""
        entries, faults = log.lines(self.lab.root)
        assert not faults, self.steps
        return [entry["exercise"] for entry in entries if "run" in entry]

    def see_what_is_regraded(self, plan: Regrade, logged: int) -> None:
        """After a kill, the points are those before or after the regrade. If it has not done all, every command says
        that it was cut off."""
        new = self.logged()[logged:]
        said = re.search(CUT_OFF, self.command("check", "90"), re.MULTILINE)
        cut_off = said[1] if said else ""
        before, self.model.pending = self.model.pending, None
        plans = [plan] if before is None else [before, plan]
        for number, regrade in enumerate(plans, start=1):
            if new[:1] == [regrade.exercise]:
                del new[0]
                self.model.regrade(regrade)
                if number < len(plans) or cut_off != regrade.exercise:
                    continue
            elif regrade is before and not cut_off:  # only its file was left to be removed
                self.model.regrade(regrade)
                continue
            if cut_off == regrade.exercise:
                cut_off = ""
                self.model.pending = regrade
                if not same(self.rows(), self.model.rows()):  # the points are written, or else the next check fails
                    self.model.regrade(regrade)
        assert not new and not cut_off, self.steps

    def extend(self) -> None:
        """Give some students more time, or take it back."""
        rows = ["student,lab,due,hours,factor"]
        given: dict[tuple[str, str], tuple[str, float]] = {}
        for student in self.random.sample(
            sorted({*self.model.roster, *self.model.dropped}), self.random.choice((1, 2))
        ):
            scope = self.random.choice((LAB, LAB, EVERY_LAB))
            kind, value = self.random.choice(
                (("due", 30.0), ("hours", 6.0), ("hours", 60.0), ("factor", 1.25), ("none", 0.0))
            )
            cells = {
                "due": f"{self.time(value):%Y-%m-%d %H:%M},,",
                "hours": f",{value:g},",
                "factor": f",,{value:g}",
                "none": "none,,",
            }
            rows.append(f"{student},{scope},{cells[kind]}")
            given[student, scope] = kind, value
        (self.lab.root / "more.csv").write_text("\n".join(rows) + "\n")
        self.steps.append(str(given))
        self.run("extend", "more.csv", change=lambda: self.model.extensions.update(given))

    def group(self) -> None:
        """Put students into groups, or into none."""
        groups: dict[tuple[str, str], str] = {}
        students = sorted({*self.model.roster, *self.model.dropped})
        for scope, label in self.random.choice((((EVERY_LAB, "A"),), ((LAB, "B"),), ((EVERY_LAB, "A"), (LAB, "B")))):
            groups |= dict.fromkeys(((name, scope) for name in self.random.sample(students, 2)), label)
        rows = ["group,student,lab", *(f"{label},{name},{scope}" for (name, scope), label in groups.items())]
        (self.lab.root / "groups.csv").write_text("\n".join(rows) + "\n")
        self.steps.append(str(groups))
        self.run("groups", "groups.csv", change=lambda: setattr(self.model, "groups", groups))

    def mark(self) -> None:
        """Give points for a reflection, as formgrader does."""
        if self.model.graded:
            student = self.random.choice(sorted(self.model.graded))
            points = self.random.choice((0.0, 2.5, REFLECTION))
            with gradebook(self.lab.root) as book:
                grade = book.find_grade("reflection", LAB, LAB, student)
                grade.manual_score, grade.needs_manual_grade = points, False
                book.db.commit()
            self.model.manual[student] = points
            self.steps.append(f"{student} gets {points:g} by hand")

    def rows(self) -> dict[str, tuple[str, float | None]]:
        """Status and score of everybody on the roster, as the commands compute them."""
        with gradebook(self.lab.root) as book:
            rows, _ = class_scores(book, self.lab, saved_roster(self.lab.root / "class/roster.json"))
        return {row.student.id: (row.status, row.score) for row in rows if row.status != "dropped"}

    def table(self) -> dict[str, str]:
        self.command("export", "90")
        path = self.lab.root / f"class/{LAB}_gradescope.csv"
        return {row["SID"]: row[LAB] for row in csv.DictReader(io.StringIO(path.read_text()))}

    def check(self) -> None:
        """Compare the account and the scores with what the model says."""
        wanted = self.model.rows()
        said = self.command("check", "90")
        of = {
            status: {name for name, row in wanted.items() if row[0] == status}
            for status in ("graded", "ungraded", "missing")
        }
        about = f"{self.steps}\n{said}\n{wanted}"
        total = f"{len(wanted)} on the roster = " + " + ".join(f"{len(names)} {status}" for status, names in of.items())
        assert total in said and "handed in, and not on the roster" not in said, about
        assert set(re.findall(r"^ungraded: (\w+): \S", said, re.MULTILINE)) == of["ungraded"], about
        named = re.search(r"^missing: (.*)$", said, re.MULTILINE)
        assert set(named[1].split(", ") if named else ()) == of["missing"], about
        assert set(re.findall(r"^dropped: (\w+): ", said, re.MULTILINE)) == set(self.model.dropped), about
        assert bool(re.search(CUT_OFF, said, re.MULTILINE)) == (self.model.pending is not None), about
        rows = self.rows()
        assert same(rows, wanted), f"{about}\nnot {rows}"
        if self.random.random() < 0.15:
            table = self.table()
            assert list(table) == list(wanted) and all(
                (cell == "") if wanted[name][1] is None else abs(float(cell) - wanted[name][1]) < 0.006
                for name, cell in table.items()
            ), f"{about}\nnot {table}"


def same(rows: dict, others: dict) -> bool:
    """Whether two tables have the same students with the same status, and scores that are equal but for rounding."""
    return rows.keys() == others.keys() and all(
        status == others[name][0] and (score == others[name][1] or abs(score - others[name][1]) < 1e-9)
        for name, (status, score) in rows.items()
    )


STEPS = {
    Term.hand_in: 8,
    Term.collect: 4,
    Term.grade: 3,
    Term.grade_and_be_killed: 1,
    Term.change_roster: 1,
    Term.change_policy: 2,
    Term.repair_and_regrade: 3,
    Term.extend: 2,
    Term.group: 1,
    Term.mark: 2,
}


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
