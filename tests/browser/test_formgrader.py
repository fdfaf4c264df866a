"""The instructor's page: formgrader runs on this repository's configuration and lists the labs."""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from conftest import jupyter_lab

from grader.labs import Lab, all_labs, course_root
from grader.release import release

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A copy of the course's sources, released, so that formgrader's database and folders stay out of the checkout."""
    root = tmp_path_factory.mktemp("course")
    shutil.copytree(course_root() / "solutions", root / "solutions", ignore=shutil.ignore_patterns("*.ipynb"))
    shutil.copy(course_root() / "nbgrader_config.py", root)
    release([Lab(lab.slug, root) for lab in all_labs()])
    return root


def test_formgrader_lists_every_lab(chromium, course, tmp_path):
    with jupyter_lab(course, tmp_path / "runtime", THREELOOPS_ROOT=str(course)) as url:
        page = chromium.new_page(viewport={"width": 1400, "height": 900})
        page.goto(f"{url}formgrader/manage_assignments")
        for lab in all_labs(course):
            page.get_by_text(lab.slug).first.wait_for(timeout=60_000)
        page.screenshot(path=tmp_path / "formgrader.png")
        page.close()
