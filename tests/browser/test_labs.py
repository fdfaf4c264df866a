"""The labs in a real browser: each runs from top to bottom, every question unfolds its answer, and every control of
its explorers redraws."""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import TimeoutError
from real_jupyterlab import jupyter_lab
from threeloops_grader.authoring.labs import all_labs, find_lab

pytestmark = pytest.mark.browser

RUN_MS = 1_800_000
WAIT_MS = 600_000
# One of them in every run, the others in the long ones.
LABS = [
    pytest.param(lab.slug, marks=[] if lab.slug.startswith("01") else pytest.mark.slow)
    for lab in all_labs()
    if "explore(" in lab.source.read_text()
]


@pytest.fixture(params=LABS)
def slug(request):
    return request.param


@pytest.fixture
def page(chromium, tmp_path, slug):
    lab = find_lab(slug[:2])
    nbformat.write(lab.master(), tmp_path / f"{slug}.ipynb")
    if lab.data.is_dir():
        shutil.copytree(lab.data, tmp_path / "data")
    with jupyter_lab(tmp_path, tmp_path / ".runtime", THREELOOPS_HOME=str(tmp_path / ".home")) as url:
        page = chromium.new_page(viewport={"width": 1400, "height": 1000})
        page.goto(f"{url}lab/tree/{slug}.ipynb?reset")
        page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=600_000)
        yield page
        page.close()


def run_all(page) -> None:
    """Run All Cells, as the menu does, once the kernel is up; ends when the last cell has."""
    page.wait_for_function("window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel", timeout=600_000)
    page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.ready")
    page.evaluate(
        "() => { jupyterapp.commands.execute('notebook:run-all-cells').then(() => { window.done = true; }); }"
    )
    page.wait_for_function("window.done === true", timeout=RUN_MS)


def moves(control) -> Iterator[None]:
    """Every other option of a list, one after the other; a step of a slider towards its middle; a text without
    its last word, and then with it."""
    tag = control.evaluate("control => control.tagName")
    if tag == "INPUT":
        text = control.input_value()
        for changed in (text.rpartition(" ")[0], text):
            control.fill(changed)
            control.press("Enter")
            yield
    elif tag == "SELECT":
        chosen, options = control.evaluate("control => [control.selectedIndex, control.options.length]")
        for index in (*range(chosen + 1, options), *range(chosen)):
            control.select_option(index=index)
            yield
    else:
        low, at, high = (float(control.get_attribute(f"aria-value{what}")) for what in ("min", "now", "max"))
        control.focus()
        control.press("ArrowRight" if at < (low + high) / 2 else "ArrowLeft")
        yield


def redraws(page, picture, control) -> bool:
    """Whether the picture changes; two options of a list may well look the same."""
    before, text = picture.inner_html(), control.evaluate("control => control.tagName") == "INPUT"
    for _ in moves(control):
        with suppress(TimeoutError):
            page.wait_for_function(
                "([e, html]) => e.innerHTML !== html", arg=[picture.element_handle(), before], timeout=WAIT_MS
            )
            if not text:
                return True
            text, before = False, picture.inner_html()  # go on, and see it come back
    return False


def answer(page) -> None:
    """Guess where one can, and give up at every other question: what was folded opens either way."""
    folded, questions = page.locator(".threeloops-folded"), page.locator(".threeloops-question")
    buttons = questions.locator("button", has_text="This is my guess")
    assert folded.count() > 0 and buttons.count() > 0
    unanswered = questions.filter(has=page.locator("button", has_text="Show me"))
    for number in range(buttons.count()):
        question, left = unanswered.first, unanswered.count()
        question.scroll_into_view_if_needed()
        if question.locator("input[type=text]").count() and number % 2 == 0:
            question.locator("input[type=text]").fill("12.5")
            question.locator("input[type=text]").press("Tab")
            question.locator("button", has_text="This is my guess").click()
        else:
            question.locator("button", has_text="Show me").click()
        unanswered.nth(left - 1).wait_for(state="detached", timeout=WAIT_MS)  # the others move up
    page.wait_for_function("document.querySelectorAll('.threeloops-folded').length === 0", timeout=WAIT_MS)


def test_it_runs_from_top_to_bottom_every_question_unfolds_and_every_control_redraws(page, slug, tmp_path):
    run_all(page)
    assert page.locator('.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stderr"]').count() == 0
    assert page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.error']").count() == 0
    answer(page)
    explorers = page.locator(".threeloops-explorer")
    assert explorers.count() > 0
    target = Path(os.environ.get("THREELOOPS_SCREENSHOTS", tmp_path))
    target.mkdir(parents=True, exist_ok=True)
    for number in range(explorers.count()):
        explorer = explorers.nth(number)
        explorer.scroll_into_view_if_needed()
        picture = explorer.locator(".threeloops-picture").first
        picture.wait_for(timeout=600_000)
        controls = explorer.locator(".noUi-handle, select, .widget-text input")
        assert controls.count() > 0
        for index in range(controls.count()):
            assert redraws(page, picture, controls.nth(index)), f"explorer {number}, control {index}"
        page.screenshot(path=target / f"lab_{slug[:2]}_explorer_{number}.png")
