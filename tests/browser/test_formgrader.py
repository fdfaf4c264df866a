"""The instructor's page: formgrader runs on this repository's configuration and lists the labs."""

import shutil

import nbformat
import pytest
from real_jupyterlab import jupyter_lab
from threeloops_grader.authoring.labs import all_labs, course_root, find_lab
from threeloops_grader.course.course import submissions
from threeloops_grader.release.release import release
from threeloops_grader.sandbox import bwrap
from toy_course import make_course

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """The toy and the first lab, released, so that formgrader's database and folders stay out of the checkout."""
    root = make_course(tmp_path_factory.mktemp("course")).root
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
