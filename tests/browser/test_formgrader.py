"""The instructor's page: formgrader runs on this repository's configuration, lists the labs, takes points by rubric,
and names nobody if marking is anonymous."""

import shutil

import nbformat
import pytest
from grading import nbgrader
from real_jupyterlab import jupyter_lab
from threeloops_grader.authoring.labs import all_labs, course_root, find_lab
from threeloops_grader.classroom.enrolment import gradebook
from threeloops_grader.classroom.marking.rubric import set_reflection
from threeloops_grader.classroom.register import settings
from threeloops_grader.classroom.register.log import lines
from threeloops_grader.classroom.register.pseudonyms import pseudonym, require_key
from threeloops_grader.course.course import submissions
from threeloops_grader.release.release import release
from threeloops_grader.sandbox import bwrap
from toy_course import SOURCE, make_course

pytestmark = pytest.mark.browser

RUBRIC = """\
#     rubric:
#       - {name: evidence, points: 4, text: quotes a number that you measured}
#       - {name: limits, points: 2.5, text: says when the claim fails}
"""


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """The toy and the first lab, released, so that formgrader's database and folders stay out of the checkout."""
    source = SOURCE.replace("#     minutes: 5\n", f"#     minutes: 5\n{RUBRIC}")
    root = make_course(tmp_path_factory.mktemp("course"), source).root
    first = find_lab("00")
    shutil.copytree(first.folder, root / "solutions" / first.slug, ignore=shutil.ignore_patterns("*.ipynb"))
    shutil.copy(course_root() / "nbgrader_config.py", root)
    release(all_labs(root))
    return root


@pytest.fixture(scope="module")
def server(course, tmp_path_factory):
    with jupyter_lab(course, tmp_path_factory.mktemp("runtime") / "own", THREELOOPS_ROOT=str(course)) as url:
        yield url


def test_formgrader_lists_every_lab(chromium, course, server):
    page = chromium.new_page(viewport={"width": 1400, "height": 900})
    page.goto(f"{server}formgrader/manage_assignments")
    for lab in all_labs(course):
        page.get_by_text(lab.slug).first.wait_for(timeout=600_000)
    page.close()


def test_its_autograde_button_grades_through_the_wall(chromium, course, server):
    """The button runs our preprocessors inside the Jupyter server: a half-done lab gets its exact points."""
    if reason := bwrap.why_not():
        pytest.skip(f"the button grades in a sandbox only: {reason}")
    lab = find_lab("00", course)
    folder = course / "submitted" / "ada" / lab.slug
    folder.mkdir(parents=True)
    notebook, points = submissions(lab)["half_done"]
    nbformat.write(notebook, folder / f"{lab.slug}.ipynb")
    page = chromium.new_page(viewport={"width": 1400, "height": 900})
    page.goto(f"{server}formgrader/manage_assignments")
    page.locator("tr", has_text=lab.slug).locator("a:has(.glyphicon-education)").click(timeout=600_000)
    page.get_by_text("Successfully created").first.wait_for(timeout=600_000)
    page.goto(f"{server}formgrader/manage_submissions/{lab.slug}/")
    page.locator("tr", has_text="ada").locator(".autograde a").click(timeout=600_000)
    page.get_by_text("Successfully autograded").first.wait_for(timeout=600_000)
    page.goto(f"{server}formgrader/manage_submissions/{lab.slug}/")
    page.locator("tr", has_text="ada").get_by_text(f"{points:g} / 100").first.wait_for(timeout=600_000)
    page.close()


@pytest.fixture
def anonymous(course):
    """The toy, handed in by one student and not graded, whose points are given by a rubric and without a name."""
    lab = find_lab("90", course)
    folder = course / "submitted" / "zelda" / lab.slug
    folder.mkdir(parents=True)
    nbformat.write(submissions(lab)["reference"][0], folder / f"{lab.slug}.ipynb")
    done = nbgrader(course, "generate_assignment", lab.slug, "--force")
    assert done.returncode == 0, done.stderr
    with gradebook(course) as book:
        book.update_or_create_student("zelda", first_name="Zelda", last_name="Fitzgerald")
        set_reflection(book, lab, 0.0)
    settings.save(settings.Settings(anonymous=True), course)
    yield lab, pseudonym(require_key(course), lab.slug, "zelda")
    settings.save(settings.Settings(), course)


def test_points_are_given_by_rubric_to_a_pseudonym(chromium, course, server, anonymous):
    """Its pages and its buttons, with names shown: nowhere does the student's name or id stand."""
    if reason := bwrap.why_not():
        pytest.skip(f"the button grades in a sandbox only: {reason}")
    lab, name = anonymous
    page = chromium.new_page(viewport={"width": 1400, "height": 900})

    def seen() -> str:
        text = page.content()
        assert "zelda" not in text.lower() and "Fitzgerald" not in text
        return text

    page.goto(f"{server}formgrader/manage_submissions/{lab.slug}/")
    page.locator("tr", has_text=name).locator(".autograde a").click(timeout=600_000)
    page.get_by_text("Successfully autograded").first.wait_for(timeout=600_000)
    assert name in seen()
    page.goto(f"{server}formgrader/gradebook/{lab.slug}/{lab.slug}")
    page.get_by_text("Submission #1").first.wait_for(timeout=600_000)
    page.get_by_text("Show All Names").click()
    assert name in seen()
    page.locator("a.name-shown:visible").click()
    page.locator(".navbar .glyphicon.name-hidden").click(timeout=600_000)
    assert name in seen()
    for criterion, points in (("evidence", "3"), ("limits", "99")):  # formgrader gives no more than there is
        with page.expect_response(lambda response: "/api/grade/" in response.url):
            page.locator(f"#reflection_{criterion}").fill(points)
            page.keyboard.press("Tab")
    page.goto(f"{server}formgrader/manage_students")
    page.get_by_text("Marking is anonymous").wait_for(timeout=600_000)
    seen()
    page.close()
    logged = [(entry["command"], entry["note"], entry["points"]["zelda"]) for entry in lines(course)[0]]
    assert logged == [("formgrader", "reflection_evidence", [0, 3]), ("formgrader", "reflection_limits", [0, 2.5])]
    with gradebook(course) as book:
        grades = {grade.name: grade.score for grade in book.find_submission(lab.slug, "zelda").notebooks[0].grades}
    assert grades == {
        "mean_test": 40, "rescale_test_values": 45, "rescale_test_zeros": 15, "reflection_evidence": 3,
        "reflection_limits": 2.5,
    }  # fmt: skip


def test_with_names_formgrader_is_nbgraders_own(chromium, course, server):
    page = chromium.new_page(viewport={"width": 1400, "height": 900})
    page.goto(f"{server}formgrader/manage_students")
    page.get_by_text("Students").first.wait_for(timeout=600_000)
    assert "Marking is anonymous" not in page.content()
    page.close()
