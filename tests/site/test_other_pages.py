"""Explorers on pages that are not the site: reports of `make course`, and pages of plain `nbconvert`."""

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from site_check import MOST_BYTES, still_controls
from threeloops.lab.recording.states import MIME
from threeloops_grader.pages.pages import notebook_page

pytestmark = pytest.mark.browser
EXECUTED = Path(__file__).parents[2] / "reports/executed"


@pytest.fixture(scope="module")
def report(site, tmp_path_factory):
    """The page of a report, in a folder of its own."""
    notebook = nbformat.read(site.parents[1] / "executed/90_toy/90_toy.ipynb", as_version=4)
    page = tmp_path_factory.mktemp("report") / "toy.html"
    page.write_text(notebook_page(notebook, "A toy"))
    return page


def converted(notebook, folder):
    """The page that `jupyter nbconvert --to html` makes of an executed notebook."""
    command = [sys.executable, "-m", "nbconvert", "--to", "html", "--output-dir", str(folder), str(notebook)]
    subprocess.run(command, check=True, capture_output=True)
    return folder / f"{notebook.stem}.html"


def controls(chromium, page):
    """How many controls of explorers a reader sees on a page."""
    opened = chromium.new_page()
    opened.goto(page.as_uri())
    seen = opened.locator(".tl-explorer :is(input, select)").all()
    count = sum(control.is_visible() for control in seen)
    opened.close()
    return count


def test_every_control_moves_the_picture_of_a_report(chromium, report):
    assert controls(chromium, report) == 2
    assert still_controls(chromium, report.parent, report.name) == []


def test_every_control_moves_the_picture_of_a_converted_notebook(chromium, site, tmp_path):
    page = converted(site.parents[1] / "executed/90_toy/90_toy.ipynb", tmp_path)
    assert controls(chromium, page) == 2
    assert "jupyter.widget-view" not in page.read_text()
    assert still_controls(chromium, page.parent, page.name) == []


def test_the_picture_of_a_report_is_that_of_the_chosen_values(chromium, report):
    page = chromium.new_page()
    page.goto(report.as_uri())
    explorer = page.locator(".tl-explorer")
    explorer.locator("select").select_option("tree")
    explorer.get_by_text("tree with 3 points").wait_for(timeout=3000)
    explorer.locator("input").focus()
    page.keyboard.press("Home")
    explorer.get_by_text("tree with 1 points").wait_for(timeout=3000)
    assert explorer.locator("output").text_content() == "1"
    page.close()


def test_a_report_runs_no_script_but_that_of_explorers(chromium, report, tmp_path):
    (tmp_path / "x.html").write_text(
        report.read_text().replace(
            "</main>", "<script>document.title = 'ran'</script><img src=x onerror=alert(1)></main>"
        )
    )
    page = chromium.new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: pytest.fail("an event handler ran"))
    page.goto((tmp_path / "x.html").as_uri())
    assert page.title() == "A toy" and [url for url in asked if url.startswith("http")] == []
    assert page.locator(".tl-explorer[data-alive]").count() == 1
    page.close()


def test_without_scripts_a_page_shows_the_first_picture_and_no_controls(chromium, report):
    page = chromium.new_context(java_script_enabled=False).new_page()
    page.goto(report.as_uri())
    assert page.get_by_text("ring with 3 points").first.is_visible()
    assert not page.locator(".tl-controls").is_visible()
    page.close()


@pytest.mark.slow
def test_every_control_of_the_course_moves_its_picture_on_both_kinds_of_pages(chromium, tmp_path):
    """The notebooks that `make course` executed."""
    notebooks = sorted(EXECUTED.glob("*/*.ipynb"))
    if not notebooks:
        pytest.skip("no lab was executed: run `make course` first")
    for path in notebooks:
        notebook = nbformat.read(path, as_version=4)
        outputs = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])]
        count = sum(len(data[MIME]["controls"]) for data in outputs if MIME in data)
        report = tmp_path / f"report_{path.stem}.html"
        report.write_text(notebook_page(notebook, path.stem))
        for page in (report, converted(path, tmp_path)):
            assert controls(chromium, page) == count, page.name
            assert still_controls(chromium, tmp_path, page.name) == []
        assert report.stat().st_size < MOST_BYTES, f"{report.name}: {report.stat().st_size:,} bytes"
