"""Lab 01 in a real browser: it opens, runs from top to bottom, and its explorer follows the slider."""

import os
import shutil
import sys
from pathlib import Path

import nbformat
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from conftest import jupyter_lab

from grader.labs import find_lab

pytestmark = pytest.mark.browser

RUN_MS = 300_000


@pytest.fixture(scope="module")
def page(chromium, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    lab = find_lab("01")
    nbformat.write(lab.master(), folder / f"{lab.slug}.ipynb")
    if lab.data.is_dir():
        shutil.copytree(lab.data, folder / "data")
    with jupyter_lab(folder, folder / ".runtime", THREELOOPS_HOME=str(folder / ".home")) as url:
        page = chromium.new_page(viewport={"width": 1400, "height": 1000})
        page.goto(f"{url}lab/tree/{lab.slug}.ipynb?reset")
        page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=120_000)
        yield page
        page.close()


def run_all(page) -> None:
    """Run All Cells, as the menu does, once the kernel is up; ends when the last cell has."""
    page.wait_for_function("window.jupyterapp?.shell?.currentWidget?.sessionContext?.session?.kernel", timeout=90_000)
    page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.ready")
    page.evaluate(
        "() => { jupyterapp.commands.execute('notebook:run-all-cells').then(() => { window.done = true; }); }"
    )
    page.wait_for_function("window.done === true", timeout=RUN_MS)


def test_it_runs_from_top_to_bottom_and_the_explorer_reacts(page, tmp_path):
    run_all(page)
    assert page.locator('.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stderr"]').count() == 0
    assert page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.error']").count() == 0
    explorer = page.locator(".widget-vbox:has(.widget-image), .jupyter-widgets:has(img)").first
    explorer.scroll_into_view_if_needed()
    picture = explorer.locator("img").first
    picture.wait_for(timeout=60_000)
    before = picture.get_attribute("src")
    slider = explorer.locator(".noUi-handle").first
    slider.focus()
    for _ in range(5):
        slider.press("ArrowRight")
    page.wait_for_function("([e, src]) => e.src !== src", arg=[picture.element_handle(), before], timeout=60_000)
    target = Path(os.environ.get("THREELOOPS_SCREENSHOTS", tmp_path))
    target.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=target / "lab_01_explorer.png")
