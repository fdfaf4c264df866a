"""Every picture of a lab shows in JupyterLab: as SVG in a notebook that it trusts, as a still picture in any other."""

import nbformat
import pytest
from nbformat.sign import NotebookNotary
from nbformat.v4 import new_code_cell, new_notebook, new_output
from real_jupyterlab import jupyter_lab
from threeloops.lab import animate, explore, figure, show
from threeloops.lab.widgets.display import capture

pytestmark = pytest.mark.browser

SAW = """() => [...document.querySelectorAll(".jp-OutputArea-output")].map(output => {
    const shown = [...output.querySelectorAll("svg, img")].filter(e => e.checkVisibility({visibilityProperty: true}));
    return {text: output.innerText.trim(), pictures: shown.map(e => [e.tagName.toLowerCase(), e.clientWidth > 100])};
})"""
"""What a reader sees of each output: its words outside of pictures and in SVG, and its pictures."""


def draw(n=3):
    made, axes = figure(width=5, height=2)
    axes.bar(range(n), range(1, n + 1))
    axes.set_title(f"{n} bars")
    return made


def large():
    made, axes = figure()
    axes.scatter(range(20_000), range(20_000))
    return made


SHOWN = {
    "a figure": lambda: show.figure(draw(), "a figure"),
    "an explorer": lambda: explore(draw, n=(1, 9, 1, 3)),
    "an animation": lambda: animate(draw, (2, 3, 4)),
    "a figure that is too large as SVG": lambda: show.figure(large(), "many points"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """JupyterLab with the same outputs in a notebook that this machine has signed and in one that it has not."""
    folder = tmp_path_factory.mktemp("notebooks")
    cells = []
    for name, display in SHOWN.items():
        with capture() as pieces:
            display()
        data = {**pieces[0].bundle, "text/plain": pieces[0].text}
        cells.append(new_code_cell(f"# {name}", outputs=[new_output("display_data", data=data)]))
    home = folder / ".jupyter"
    home.mkdir()
    notary = NotebookNotary(data_dir=str(home))
    for name in ("trusted", "untrusted"):
        notebook = new_notebook(cells=cells, metadata={"title": name})
        nbformat.write(notebook, folder / f"{name}.ipynb")
        if name == "trusted":
            notary.sign(nbformat.read(folder / f"{name}.ipynb", as_version=4))
    notary.store.close()
    with jupyter_lab(folder, folder / ".runtime", JUPYTER_DATA_DIR=str(home)) as url:
        yield url


@pytest.mark.parametrize(
    ("name", "seen"), [("trusted", ["svg", "svg", "svg", "img"]), ("untrusted", ["img", "img", "img", "img"])]
)
def test_every_output_is_one_picture_and_none_is_loose_words(chromium, server, name, seen):
    page = chromium.new_page(viewport={"width": 1200, "height": 2400})
    page.goto(f"{server}lab/tree/{name}.ipynb?reset")
    page.locator(".jp-OutputArea-output").nth(len(SHOWN) - 1).wait_for(timeout=600_000)
    page.wait_for_function("[...document.querySelectorAll('.jp-OutputArea-output img')].every(e => e.complete)")
    outputs = page.evaluate(SAW)
    assert [output["pictures"] for output in outputs] == [[[tag, True]] for tag in seen]
    if name == "untrusted":
        assert not [output["text"] for output in outputs if "bars" in output["text"]]
    page.close()
