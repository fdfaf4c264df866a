"""`threeloops class regrade` changes one exercise's automatic points and nothing else, whenever it is cut off; and a
rubric's points stand beside them."""

import csv
import errno
import hashlib
import io
import os
import random
import shutil
import signal
import time
from types import SimpleNamespace

import nbformat
import pytest
from threeloops_grader.authoring.answers import wrong_answers
from threeloops_grader.authoring.labs import Lab, LabError
from threeloops_grader.authoring.manifest import manifest
from threeloops_grader.classroom.deadlines.penalties import Penalties
from threeloops_grader.classroom.enrolment import gradebook
from threeloops_grader.classroom.register.log import lines
from threeloops_grader.classroom.register.pseudonyms import pseudonym, require_key
from threeloops_grader.classroom.register.settings import load
from threeloops_grader.classroom.regrading import execution
from threeloops_grader.classroom.regrading import plan as plans
from threeloops_grader.classroom.regrading import regrade as regrading
from threeloops_grader.classroom.regrading.execution import execute_exercise
from threeloops_grader.classroom.regrading.lock import alone
from threeloops_grader.course.course import submissions
from threeloops_grader.release.release import release
from threeloops_grader.sandbox import bwrap
from toy_class import make_class_course, threeloops
from toy_course import SOURCE

RUBRIC = """\
#     rubric:
#       - {name: evidence, points: 4, text: quotes a number that you measured}
#       - {name: limits, points: 2.5, text: says when the claim fails}
"""
WITH_RUBRIC = SOURCE.replace("#     minutes: 5\n", f"#     minutes: 5\n{RUBRIC}")
DEMAND = '    check.raises(ValueError, mean, [], names="values")\n'
"""The part of mean's test that is repaired: the text of the exercise asks for no such error, says the class."""
SANDBOX = "none" if bwrap.why_not() else "bwrap"
GRADING = ("--sandbox", SANDBOX)


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """A graded class: `ada` is right, `cyd` fails only what is repaired, `bob` fails anyway, `dan` wrote nothing."""
    lab = make_class_course(tmp_path_factory.mktemp("course"), WITH_RUBRIC)
    root = lab.root
    release([lab])
    made = {name: notebook for name, (notebook, _) in submissions(lab).items()}
    people = {"ada": made["reference"], "dan": made["untouched"]}
    for student, wrong in (("bob", "mean__forgets_to_divide"), ("cyd", "mean__accepts_an_empty_list")):
        people[student] = nbformat.from_dict(made["reference"])
        text = next(answer.text for answer in wrong_answers(lab) if answer.name.endswith(wrong))
        next(cell for cell in people[student].cells if cell.id == "mean").source = text
    for student, notebook in people.items():
        (root / "download" / student).mkdir(parents=True)
        nbformat.write(notebook, root / "download" / student / f"{lab.slug}.ipynb")
    (root / "roster.csv").write_text("student_id\n" + "\n".join([*people, "fay"]))
    late = ("--due", "90=2030-01-31 12:00", "--late-percent", "10")
    threeloops(root, "class", "init", "roster.csv", *late)
    threeloops(root, "class", "release", "90")
    threeloops(root, "class", "collect", "90", "--from", "download", "--handed-in", "2030-02-01 11:00")
    threeloops(root, "class", "grade", "90", *GRADING)
    with gradebook(root) as book:
        for student, cell, points in (("cyd", "reflection_evidence", 3.0), ("bob", "mean_test", 12.0)):
            grade = book.find_grade(cell, lab.slug, lab.slug, student)
            grade.manual_score = points
            grade.needs_manual_grade = False
        book.find_comment("reflection_evidence", lab.slug, lab.slug, "cyd").manual_comment = "Which number?"
        book.db.commit()
        Penalties(book, root).refresh()
    lab.source.write_text(lab.source.read_text().replace(DEMAND, ""))
    return lab


@pytest.fixture
def course(graded, tmp_path):
    """A copy of it, after the repair."""
    shutil.copytree(graded.root, tmp_path / "course", symlinks=True)
    return Lab(graded.slug, tmp_path / "course")


@pytest.fixture(scope="module")
def results(graded):
    """What the repaired test says, executed once."""
    handed_in = {
        path.parents[1].name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in graded.root.glob(f"submitted/*/{graded.slug}/*.ipynb")
    }
    return execute_exercise(graded, manifest(graded).exercise("mean"), handed_in, SANDBOX, 2)


@pytest.fixture
def quick(monkeypatch, results):
    """`regrade` without another execution."""
    found = lambda lab, exercise, handed_in, *_: {name: results[name] for name in handed_in}  # noqa: E731
    monkeypatch.setattr(regrading, "execute_exercise", found)
    return lambda lab, **more: regrading.regrade(lab, "mean", SANDBOX, 1, **{"keep_higher": False, **more})


def rows(lab) -> dict:
    """Every score and comment of the gradebook."""
    with gradebook(lab.root) as book:
        found = {}
        for submission in book.assignment_submissions(lab.slug):
            for notebook in submission.notebooks:
                found[submission.student_id, "penalty"] = notebook.late_submission_penalty
                for grade in notebook.grades:
                    found[submission.student_id, grade.name] = grade.auto_score, grade.manual_score
                for comment in notebook.comments:
                    found[submission.student_id, comment.name, "comment"] = comment.comment
        return found


def notebooks(lab) -> dict[str, bytes]:
    return {path.parents[1].name: path.read_bytes() for path in lab.root.glob(f"autograded/*/{lab.slug}/*.ipynb")}


def test_one_exercise_is_graded_again_and_nothing_else_changes(course):
    before, graded_before = rows(course), notebooks(course)
    stamps = {path: path.stat().st_mtime_ns for path in course.root.glob("autograded/*/*/*.ipynb")}
    said = threeloops(course.root, "class", "regrade", "90", "mean", *GRADING)
    assert "90_toy mean: 4 submissions regraded, points changed: 1\n  cyd: 0 -> 40\n" in said
    assert "manual points stay and hide the new ones, bob: 12 for mean_test" in said
    after = rows(course)
    assert {key: after[key] for key in after if after[key] != before[key]} == {
        ("cyd", "mean_test"): (40.0, None),
        ("cyd", "penalty"): 10.3,  # a tenth of 40 + 60 + 3: manual points lose as much
    }
    for student, content in notebooks(course).items():
        old = {cell.id: cell for cell in nbformat.reads(graded_before[student].decode(), 4).cells}
        new = {cell.id: cell for cell in nbformat.reads(content.decode(), 4).cells}
        assert [name for name in new if new[name] != old[name]] == ["mean_test"] and list(new) == list(old)
        assert DEMAND not in new["mean_test"].source
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    entry = lines(course.root)[0][-1]
    assert (entry["command"], entry["points"]["cyd"]) == ("class regrade 90 mean", [0.0, 40.0])
    assert entry["fingerprint"]["before"] == lines(course.root)[0][-2]["fingerprint"]["after"]
    assert entry["fingerprint"]["before"] != entry["fingerprint"]["after"]
    threeloops(course.root, "class", "feedback", "90")
    page = (course.root / "feedback/cyd" / course.slug / f"{course.slug}.html").read_text()
    assert "mean: 40 / 40" in page and "reflection (evidence): 3 / 4" in page and "Which number?" in page
    said = threeloops(course.root, "class", "log", "90", "cyd")
    assert "class grade 90: cyd no points -> 60\n" in said and "class regrade 90 mean: cyd 0 -> 40\n" in said


def test_a_rubric_has_a_column_per_criterion_and_students_read_it_first(course):
    threeloops(course.root, "class", "export", "90")
    table = list(csv.DictReader(io.StringIO((course.root / f"class/{course.slug}_moodle.csv").read_text())))
    cyd = next(row for row in table if row["Username"] == "cyd")
    assert (cyd["90_toy reflection evidence"], cyd["90_toy reflection limits"]) == ("3", "0")
    assert "90_toy reflection" not in cyd and cyd["90_toy"] == "56.7"
    question, answer = nbformat.read(course.released, 4).cells[-2:]
    assert answer.id == "reflection" and "| limits | says when the claim fails | 2.5 |" in question.source
    graded = nbformat.reads(notebooks(course)["ada"].decode(), 4).cells[-3:]
    assert [cell.id for cell in graded] == ["reflection", "reflection-evidence", "reflection-limits"]


def test_a_rubric_outlives_another_release_and_its_points_cannot_change_after_grading(course):
    before = rows(course)
    text = course.source.read_text()
    course.source.write_text(text.replace("when the claim fails", "where the claim fails"))
    threeloops(course.root, "class", "release", "90")
    assert "where the claim fails" in course.released.read_text() and rows(course) == before
    assert not threeloops(course.root, "release", "90", "--check")
    released = course.released.read_bytes()
    for change in (text.replace("2.5", "3"), text.replace(RUBRIC, "")):
        course.source.write_text(change)
        said = threeloops(course.root, "class", "release", "90", code=2)
        assert "the reflection of 90_toy has 6.5 points (evidence 4, limits 2.5) and there are submissions" in said
        assert course.released.read_bytes() == released and rows(course) == before


def test_whoever_would_lose_points_is_named_or_keeps_them(course, quick, results, monkeypatch):
    fewer = {**results, "ada": results["dan"]}
    monkeypatch.setattr(regrading, "execute_exercise", lambda *_: fewer)
    text = notebooks(course)["ada"]
    done = quick(course, keep_higher=True)
    assert done.plan.kept == {"ada": [40.0, 0.0]} and rows(course)["ada", "mean_test"] == (40.0, None)
    assert notebooks(course)["ada"] == text and lines(course.root)[0][-1]["kept"] == {"ada": [40.0, 0.0]}
    done = quick(course)
    assert (done.plan.changes["ada"].old, done.plan.changes["ada"].new) == (40.0, 0.0)
    assert rows(course)["ada", "mean_test"] == (0.0, None)


def test_another_maximum_is_refused_with_the_steps_that_do_it(course, quick):
    before = rows(course), notebooks(course)
    text = course.source.read_text()
    course.source.write_text(text.replace('"points": 40', '"points": 50').replace('"points": 45', '"points": 35'))
    steps = "`threeloops class release 90`, then `threeloops class grade 90 --again`"
    with pytest.raises(LabError, match=r"the gradebook has 40 points for mean_test \(now 50 points\).*" + steps):
        quick(course)
    with gradebook(course.root) as book:  # as after a second release
        book.find_grade_cell("mean_test", course.slug, course.slug).max_score = 50.0
        book.db.commit()
    with pytest.raises(LabError, match=r"the graded notebook of \w+ has 40 points for mean_test \(now 50 points\)"):
        quick(course)
    assert (rows(course), notebooks(course)) == before and not plans.unfinished(course)


def test_submissions_that_are_not_the_graded_ones_are_named(course, quick):
    before = rows(course)
    for student, content in (("cyd", None), ("dan", b"PK")):
        path = course.root / "submitted" / student / course.slug / f"{course.slug}.ipynb"
        path.write_bytes(content or path.read_bytes())
    done = quick(course)
    cyd, dan = done.left_out
    assert cyd == "cyd: a newer submission is not graded yet" and dan.startswith("dan: refused: ")
    assert list(done.plan.changes) == ["ada", "bob"] and rows(course) == before


def test_a_submission_that_arrives_during_the_regrade_keeps_its_turn(course, results, monkeypatch):
    path = course.root / "submitted/cyd" / course.slug / f"{course.slug}.ipynb"

    def arrives(lab, exercise, handed_in, *_):
        path.write_bytes(path.read_bytes() + b"\n")
        return {name: results[name] for name in handed_in}

    monkeypatch.setattr(regrading, "execute_exercise", arrives)
    done = regrading.regrade(course, "mean", SANDBOX, 1, keep_higher=False)
    assert done.left_out == ["cyd: a newer submission is not graded yet"]
    assert rows(course)["cyd", "mean_test"] == (0.0, None) and "cyd" not in lines(course.root)[0][-1]["points"]


def test_a_lab_that_changes_during_the_regrade_is_not_taken_for_a_newer_submission(course, monkeypatch):
    before = rows(course), notebooks(course)
    monkeypatch.setattr(
        execution, "grade_class", lambda *_, **__: course.source.write_text(WITH_RUBRIC + "\n# edited\n")
    )
    with pytest.raises(LabError, match="was changed while mean was regraded, so nobody's points changed"):
        regrading.regrade(course, "mean", SANDBOX, 1, keep_higher=False)
    assert (rows(course), notebooks(course)) == before and not plans.unfinished(course)


def test_cells_of_other_exercises_that_changed_are_named_and_left_alone(course, quick):
    text = course.source.read_text()
    course.source.write_text(text.replace("zeros have no peak to divide by", "there is no peak"))
    assert quick(course).others == ["rescale_test_zeros"]


def test_one_command_at_a_time_changes_the_points_of_a_lab(course, quick):
    with alone(course, "threeloops class grade 90"), pytest.raises(LabError) as error:
        quick(course)
    assert str(error.value) == (
        f"`threeloops class grade 90` (process {os.getpid()}) is running, and changes the points of 90_toy as "
        "`threeloops class regrade 90 mean` does, so nothing was changed; wait until it ends, and give the command "
        "again"
    )
    quick(course)
    with alone(course, "threeloops class regrade 90 mean"):
        told = threeloops(course.root, "class", "grade", "90", *GRADING, code=2)
    assert "`threeloops class regrade 90 mean` (process " in told and "wait until it ends" in told


def test_a_full_disk_leaves_a_plan_that_the_next_run_completes(course, quick, monkeypatch):
    write = plans._write_notebook

    def full(path, change):
        if path.parents[1].name == "cyd":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, change)

    monkeypatch.setattr(plans, "_write_notebook", full)
    said = "No space left on device.*A regrade of mean was cut off.*`threeloops class regrade 90 mean` completes it"
    with pytest.raises(LabError, match=said):
        quick(course)
    assert "A regrade of mean was cut off" in threeloops(course.root, "class", "check", "90")
    monkeypatch.setattr(plans, "_write_notebook", write)
    assert quick(course).plan.changes["cyd"].new == 40.0
    assert not plans.unfinished(course) and [e.get("exercise") for e in lines(course.root)[0]].count("mean") == 1


def test_a_killed_regrade_is_said_and_completed(course, quick, tmp_path):
    """SIGKILL at random moments, once or twice; the end is that of an undisturbed run, with one line in the log."""
    expected = Lab(course.slug, tmp_path / "expected")
    shutil.copytree(course.root, expected.root, symlinks=True)
    start = time.monotonic()
    quick(expected)
    length = time.monotonic() - start
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    untouched = rows(course), notebooks(course)
    for number in range(int(os.environ.get("THREELOOPS_KILLS", "12"))):
        lab = Lab(course.slug, tmp_path / f"killed{number}")
        shutil.copytree(course.root, lab.root, symlinks=True)
        for _ in range(chance.choice((1, 2))):
            kill_after(chance.uniform(0, length), lambda lab=lab: quick(lab))
            is_logged = any("run" in entry for entry in lines(lab.root)[0])
            changed = (rows(lab), notebooks(lab)) != untouched
            assert not changed or is_logged or plans.unfinished(lab), seed
        quick(lab)
        assert (rows(lab), notebooks(lab)) == (rows(expected), notebooks(expected)), seed
        points = [entry["points"] for entry in lines(lab.root)[0] if "run" in entry]
        assert points[0]["cyd"] == [0.0, 40.0] and all(point["cyd"] == [40.0, 40.0] for point in points[1:]), seed
        assert lines(lab.root)[1] == [] and not plans.unfinished(lab)


def kill_after(seconds: float, action) -> None:
    child = os.fork()
    if child == 0:
        try:
            action()
        finally:
            os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_plan_does_not_undo_a_grading_that_came_after_it(course, quick, monkeypatch):
    cut_off_and_grade_cyd_again(course, quick, monkeypatch)
    left_out = plans.carry_out(course, plans.read_plan(course))
    assert left_out == ["cyd: graded again since"] and rows(course)["cyd", "mean_test"] == (0.0, None)


def cut_off_and_grade_cyd_again(course, quick, monkeypatch):
    """Cut off a regrade of mean before it changes points. Then change the graded notebook of `cyd`, as grading does."""
    with monkeypatch.context() as broken:
        broken.setattr(plans, "_write_points", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
        with pytest.raises(LabError):
            quick(course)
    path = plans.graded_notebook(course, "cyd")
    path.chmod(0o644)
    path.write_text(path.read_text() + "\n")


def cut_off_with_one_refused_and_one_graded_again(course, quick, monkeypatch):
    """A regrade of mean that was cut off: `dan` was refused before it, and `cyd` was graded again after it."""
    (course.root / "submitted/dan" / course.slug / f"{course.slug}.ipynb").write_bytes(b"PK")
    cut_off_and_grade_cyd_again(course, quick, monkeypatch)


def test_a_completed_regrade_names_all_whom_it_leaves_out(course, quick, monkeypatch):
    cut_off_with_one_refused_and_one_graded_again(course, quick, monkeypatch)
    dan, cyd = quick(course).left_out
    assert dan.startswith("dan: refused: ") and cyd == "cyd: graded again since"


def test_a_regrade_that_completes_one_of_another_exercise_names_whom_that_one_leaves_out(course, quick, monkeypatch):
    cut_off_with_one_refused_and_one_graded_again(course, quick, monkeypatch)
    monkeypatch.setattr(regrading, "execute_exercise", lambda *_: {})
    done = regrading.regrade(course, "rescale", SANDBOX, 1, keep_higher=False)
    assert done.plan.exercise == "rescale"
    assert "cyd: graded again since (in the regrade of mean)" in done.left_out


def test_the_order_of_an_exercises_parts_does_not_change_its_points():
    """A sum of floats depends on their order, and the gradebook's order is random: nobody loses 0.0000000001 points."""
    parts = {"a": 0.1, "b": 0.2, "c": 0.3}
    grades = [SimpleNamespace(name=name, auto_score=parts[name], manual_score=None) for name in "cba"]
    submission = SimpleNamespace(student_id="ada", notebooks=[SimpleNamespace(grades=grades)])
    before = regrading._Class()
    regrading._note_points(before, submission, SimpleNamespace(tests=tuple(parts)))
    assert before.old["ada"] == plans.Change(0.6, parts, {}, "", "").new


def test_a_plan_that_was_carried_out_changes_nothing_and_logs_nothing_twice(course, quick):
    plan = quick(course).plan
    before = rows(course), notebooks(course), lines(course.root)
    plans.write_plan(course, plan)  # as if the run was killed before it removed the file
    assert plans.carry_out(course, plan) == []
    assert (rows(course), notebooks(course), lines(course.root)) == before and not plans.unfinished(course)


def test_a_damaged_plan_is_named_with_the_next_step(course):
    (course.root / "class" / f"regrade_{course.slug}.json").write_text('{"id": "x"')
    with pytest.raises(LabError, match="is damaged .* `threeloops class grade 90 --again`"):
        plans.read_plan(course)


def test_hashes_of_a_plan_are_those_of_the_files(course, quick):
    plan = quick(course).plan
    assert {s: change.after for s, change in plan.changes.items()} == {
        student: hashlib.sha256(content).hexdigest() for student, content in notebooks(course).items()
    }


def test_wrong_arguments(course):
    root = course.root
    assert "has no exercise 'media'; its exercises are mean, rescale" in threeloops(
        root, "class", "regrade", "90", "media", code=2
    )
    assert "there is no lab '91'" in threeloops(root, "class", "log", "91", code=2)
    assert "no line about 90_toy, eve" in threeloops(root, "class", "log", "90", "eve")


def test_a_pseudonym_is_turned_back_and_the_log_says_who_asked(course):
    root = course.root
    assert "no pseudonyms were given" in threeloops(root, "class", "who", "ABCD-EFGH", code=2)
    said = threeloops(root, "class", "init", "roster.csv", "--anonymous")
    assert "Formgrader shows pseudonyms. Keep " in said and "pseudonyms.key" in said
    name = pseudonym(require_key(root), course.slug, "cyd")
    assert threeloops(root, "class", "who", name.lower()) == f"{course.slug} {name.lower()}: cyd\n"
    assert f"class who ({name.lower()})" in threeloops(root, "class", "log", "90", "cyd")
    assert "is nobody's pseudonym in any lab, for the 5 students" in threeloops(
        root, "class", "who", "ABCDEFGH", code=2
    )
    threeloops(root, "class", "init", "roster.csv", "--reflection", "0")
    assert load(root).anonymous, "as it was"
    threeloops(root, "class", "init", "roster.csv", "--no-anonymous")
    assert not load(root).anonymous
