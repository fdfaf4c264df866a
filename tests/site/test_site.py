"""The site: a page per released notebook with the outputs of demonstrations, in files and in Chromium."""

from pathlib import Path

import nbformat
import pytest
from site_check import faults_in_browser, faults_in_files, still_controls
from threeloops.lab.recording.states import MIME
from threeloops_grader.authoring.labs import LabError
from threeloops_grader.site.notebooks import lab_pages

WHOLE = Path(__file__).parents[2] / "reports/site/html"
LAB = "labs/90_toy/90_toy.html"
NAMES = [
    LAB,
    "labs/90_toy/90_toy_dives.html",
    "index.html",
    "claims.html",
    "api/inner.meter.html",
    "docs/what_runs.html",
]
browser = pytest.mark.browser


@pytest.fixture
def lab(chromium, site):
    page = chromium.new_page(viewport={"width": 768, "height": 900})
    page.goto((site / LAB).as_uri())
    yield page
    page.close()


def test_no_link_is_broken_nothing_comes_from_another_host_and_no_answer_is_shown(site):
    assert faults_in_files(site) == []


def test_the_check_of_files_names_every_fault(tmp_path):
    script = '<script src="https://cdn.example/x.js"></script>'
    links = '<a href="gone.html">1</a> <a href="#nowhere">2</a> <a id="here" href="#here">3</a>'
    (tmp_path / "page.html").write_text(f"{script} {links} BEGIN SOLUTION")
    assert faults_in_files(tmp_path) == [
        "page.html: loads https://cdn.example/x.js",
        "page.html: a link to gone.html, which does not exist",
        "page.html: a link to #nowhere, which has no such place",
        "page.html: holds 'BEGIN SOLUTION'",
    ]


def test_a_build_deletes_no_file_of_others(site):
    assert (site.parent / "notes.txt").read_text() == "somebody's"


def test_a_page_has_the_outputs_of_demonstrations_and_none_of_checks_or_answers(site):
    text = (site / LAB).read_text()
    assert "the sum is printed" in text and "Because it is the middle." in text
    assert "NotImplementedError" in text and "A model answer" not in text and "✓" not in text
    assert "data:image/png" not in text


def test_an_answer_in_an_output_stops_the_build(site):
    from threeloops_grader.authoring.labs import Lab

    lab = Lab("90_toy", site.parents[2])
    path = site.parents[1] / "executed/90_toy/90_toy.ipynb"
    before = path.read_text()
    notebook = nbformat.reads(before, as_version=4)
    answer = next(cell.source for cell in lab.master().cells if cell.id == "mean")
    demo = next(cell for cell in notebook.cells if any(MIME in o.get("data", {}) for o in cell.get("outputs", [])))
    demo.outputs.append(nbformat.v4.new_output("stream", name="stdout", text=answer.replace("### BEGIN SOLUTION", "")))
    try:
        nbformat.write(notebook, path)
        with pytest.raises(LabError, match="would show an answer in cell"):
            lab_pages(lab, path.parent)
        path.unlink()
        with pytest.raises(LabError, match="`make course` executes the labs"):
            lab_pages(lab, path.parent)
    finally:
        path.write_text(before)


@browser
def test_the_check_of_pages_names_every_fault(chromium, tmp_path):
    (tmp_path / "page.html").write_text(
        '<article><div style="width: 500px">wide</div><p style="font-size: 5px">small</p><img src="data:,">'
        "<svg><text>12</text></svg></article><script>throw new Error('broken')</script>"
    )
    faults = " ".join(faults_in_browser(chromium, tmp_path, ["page.html"], widths=(390,), schemes=("light",)))
    for fault in ("wider than the screen: <div", '1 texts below 9 px: [["small"', "without alt", "drawing without"):
        assert fault in faults
    assert "broken" in faults


@browser
def test_pages_fit_every_screen_and_have_no_errors(chromium, site):
    assert faults_in_browser(chromium, site, NAMES) == []


@browser
@pytest.mark.slow
def test_every_page_of_the_whole_site_fits_every_screen_and_is_without_faults(chromium):
    """The site of `make site`, with every slider of every explorer moved once."""
    if not (WHOLE / "index.html").is_file():
        pytest.skip("there is no site: run `make course` and `make site` first")
    assert faults_in_files(WHOLE) == []
    names = sorted(path.relative_to(WHOLE).as_posix() for path in WHOLE.rglob("*.html"))
    assert faults_in_browser(chromium, WHOLE, names) == []
    assert [
        fault for name in names if name.startswith("labs/") for fault in still_controls(chromium, WHOLE, name)
    ] == []


@browser
def test_a_slider_moved_by_the_keyboard_changes_the_picture(lab):
    explorer = lab.locator(".tl-explorer")
    assert "ring with 3 points" in explorer.locator(".tl-picture").text_content()
    explorer.locator("input").focus()
    lab.keyboard.press("ArrowRight")
    explorer.get_by_text("ring with 4 points").wait_for(timeout=3000)
    assert explorer.locator("output").text_content() == "4"
    explorer.locator("select").select_option("tree")
    explorer.get_by_text("tree with 4 points").wait_for(timeout=3000)


@browser
def test_a_prediction_locks_its_answer_until_a_guess_and_remembers_it(lab):
    hidden = lab.locator(".tl-until", has_text="the sum is printed")
    assert not hidden.is_visible()
    question = lab.locator(".tl-question").nth(1)
    question.locator("input").fill("lots")
    question.get_by_role("button", name="This is my guess").click()
    assert "Type a number first" in question.text_content() and not hidden.is_visible()
    question.locator("input").fill("4")
    lab.keyboard.press("Enter")
    assert hidden.is_visible()
    assert lab.get_by_text("Your guess is 2× too low: within a factor of two.").is_visible()
    lab.reload()
    assert hidden.is_visible()
    lab.locator(".tl-question").nth(1).get_by_role("button", name="Ask me again").click()
    assert not hidden.is_visible()


@browser
def test_an_animation_stands_still_if_the_reader_wants_no_motion(lab):
    moving = lab.locator("[class^=anim-] > .frames > div").first
    assert moving.evaluate("e => getComputedStyle(e).animationName") != "none"
    lab.emulate_media(reduced_motion="reduce")
    assert moving.evaluate("e => getComputedStyle(e).animationName") == "none"
    frames = lab.locator("[class^=anim-] > .frames > div")
    assert frames.evaluate_all("all => all.filter((e) => getComputedStyle(e).visibility === 'visible').length") == 1
