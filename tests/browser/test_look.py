"""What JupyterLab's own styles do to the lab kit's outputs on a narrow window: nothing is cut off, and no word is
broken."""

import nbformat
import pytest
from playwright.sync_api import expect
from real_jupyterlab import jupyter_lab
from threeloops_grader.authoring.labs import KERNELSPEC

pytestmark = pytest.mark.browser

CELLS = (
    "from threeloops.lab import check, debrief, figure, hint, predict, reveal, show",
    "predict('rate', 'How fast is it?', 'GB/s')",
    "predict('disk', 'What is on the disk?', options=('the old file', 'the new one, if the disk was quick', "
    "'neither: half of each, under the name of the new one'))",
    "predict('ridge', 'Where is the ridge?', 'FLOP per byte', axis=(1, 10_000))",
    "with reveal('rate'):\n    show.table([['rate', 21.14789]])\n"
    "show.against_prediction('rate', 21.14789, source='model')",
    "with check('loop', 'the sum'):\n    check.close(1.0, 2.0, what=\"all that the loop's body adds \" * 9)",
    "hint('loop', 'Count.')\ndebrief('loop', 'It counts.')\nshow.figure(figure(width=8)[0])",
)
FOLDED = "with check('loop', 'a folded cell whose first line is long', hidden='other sizes, other types, other names'):"
CARDS = """() => [...document.querySelectorAll('div[style*="border-left:4px"]')].map(e => e.getBoundingClientRect())
    .filter(e => e.width).map(e => [e.left, e.right])"""
WIDE = """() => [...document.querySelectorAll('.jp-Placeholder, .jp-OutputArea-output')]
    .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent.slice(0, 60))"""
CUT_OFF = """() => [...document.querySelectorAll('.threeloops-question > .widget-hbox, .threeloops-question button, '
    + '.threeloops-question .widget-label')].filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)"""


@pytest.fixture(scope="module")
def page(chromium, tmp_path_factory):
    """The notebook at 768 pixels, without a side bar, run from top to bottom."""
    folder = tmp_path_factory.mktemp("look")
    cells = [nbformat.v4.new_code_cell(cell) for cell in CELLS]
    cells.append(
        nbformat.v4.new_code_cell(
            f"{FOLDED}\n    check.true(True, 'no')", metadata={"jupyter": {"source_hidden": True}}
        )
    )
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNELSPEC})
    nbformat.write(notebook, folder / "look.ipynb")
    with jupyter_lab(folder, folder / ".runtime", THREELOOPS_HOME=str(folder / ".home")) as url:
        page = chromium.new_page(viewport={"width": 768, "height": 1500})
        page.goto(f"{url}lab/tree/look.ipynb?reset")
        page.wait_for_function("window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel")
        page.evaluate("jupyterapp.shell.collapseLeft()")
        page.evaluate("jupyterapp.shell.currentWidget.sessionContext.ready")
        page.evaluate("jupyterapp.commands.execute('notebook:run-all-cells')")
        expect(page.locator(".threeloops-question")).to_have_count(3, timeout=60_000)
        expect(page.get_by_text("✗ the sum")).to_be_visible(timeout=60_000)
        yield page
        page.close()


def test_questions_fit_a_narrow_window(page):
    assert page.evaluate(CUT_OFF) == []


def test_cards_of_widgets_and_of_other_outputs_share_their_edges(page):
    assert len({tuple(map(round, edges)) for edges in page.evaluate(CARDS)}) == 1


def test_nothing_scrolls_sideways(page):
    """Neither a figure of 8 inches, nor a folded cell with a long first line."""
    assert page.evaluate(WIDE) == []


def test_a_failed_check_breaks_between_words(page):
    styles = page.locator(".jp-OutputArea-output pre").evaluate_all(
        "all => all.map(e => getComputedStyle(e).wordBreak)"
    )
    assert set(styles) == {"normal"}


def test_a_guess_opens_what_waits_below_one_notice(page):
    expect(page.get_by_text("Folded until you have answered above")).to_have_count(1)
    question = page.locator(".threeloops-question").first
    question.locator("input").fill("42.3")
    question.get_by_role("button", name="This is my guess").click()
    expect(page.get_by_text("The prediction is 2× too high")).to_be_visible()
    expect(page.locator(".threeloops-folded")).to_have_count(0)
