"""The kit in a real kernel with no front end, as papermill and nbconvert meet it: the outputs of each cell."""

import base64
import json

import nbformat
import pytest
from nbclient import NotebookClient

VIEW = "application/vnd.jupyter.widget-view+json"
AUDIT = "application/vnd.threeloops.audit+json"

CELLS = {
    "setup": """
from threeloops.lab import audit, check, course_map, explore, figure, hint, predict, progress, show
import torch
def draw(n, kind):
    fig, axes = figure(width=3, height=2)
    axes.plot(range(n))
    axes.set_title(kind)
    return fig""",
    "passed": "with check('online_softmax', 'the online softmax'):\n    check.close(torch.ones(3), [1.0] * 3)",
    "failed": "with check('rmsnorm', 'the norm'):\n"
    "    check.close(\n  torch.zeros(3), [1.0] * 3,\n  hint='no epsilon',\n)",
    "unwritten": "def f():\n    raise NotImplementedError()\nwith check('f', 'an answer'):\n    f()",
    "hint": "hint('online_softmax', 'one', 'two')",
    "predict": "predict('chain', question='how long?', unit='µs', guess=7000)",
    "against": "show.against_prediction('chain', measured=5002, unit='µs', source='model')",
    "table": "show.table([['matmul', 0.5]], ['operation', 'ms'])",
    "audit": "audit('roof-2', 0.99, 'PFLOP/s', 'published', 'corrected', how='the data sheet')",
    "progress": "total = sum(progress(range(1000), 'steps'))",
    "figure": "show.figure(draw(3, 'a title'))",
    "pyplot": "import matplotlib.pyplot as plt\nfig, axes = plt.subplots()\nshow.figure(fig)",
    "map": "show.figure(course_map())",
    "explore": "explorer = explore(draw, n=(2, 10, 1, 4), kind=['ring', 'tree'])\nexplorer",
    "move": """
before = explorer.picture.value
explorer.widgets['n'].value = 9
print(explorer.values, explorer.picture.value == explorer.html and explorer.png != before)""",
}


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The outputs of each cell by its name, and the reader's home."""
    folder = tmp_path_factory.mktemp("work") / "03_triton_fusion"
    folder.mkdir()
    cells = [nbformat.v4.new_code_cell(text.strip()) for text in CELLS.values()]
    notebook = nbformat.v4.new_notebook(cells=cells)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("THREELOOPS_HOME", str(folder.parent / "state"))
        patch.delenv("NBGRADER_EXECUTION", raising=False)
        client = NotebookClient(notebook, timeout=600, allow_errors=True, resources={"metadata": {"path": str(folder)}})
        client.execute()
    return {name: cell.outputs for name, cell in zip(CELLS, notebook.cells, strict=True)}, folder.parent / "state"


def only(outputs) -> dict:
    assert [output.output_type for output in outputs] == ["display_data"], outputs
    return outputs[0].data


def test_importing_says_nothing(executed):
    assert executed[0]["setup"] == []


@pytest.mark.parametrize("name", ["passed", "hint", "predict", "table", "progress"])
def test_a_card_is_one_output_with_html_and_text(executed, name):
    assert set(only(executed[0][name])) == {"text/html", "text/plain"}


@pytest.mark.parametrize("name", ["against", "figure", "pyplot", "map"])
def test_a_figure_is_one_output_with_a_picture_and_text(executed, name):
    data = only(executed[0][name])
    assert set(data) == {"image/png", "text/html", "text/plain"}
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")


def test_progress_ends_at_its_total(executed):
    assert only(executed[0]["progress"])["text/plain"].startswith("steps: 1,000 of 1,000, ")


def test_an_audit_is_a_card_and_its_data(executed):
    data = only(executed[0]["audit"])
    assert set(data) == {"text/html", "text/plain", AUDIT}
    assert data[AUDIT]["id"] == "roof-2" and data[AUDIT]["number"] == 0.99 and data[AUDIT]["verdict"] == "corrected"


def test_an_explorer_is_one_output_with_the_live_view_and_its_static_twin(executed):
    data = only(executed[0]["explore"])
    assert set(data) == {VIEW, "image/png", "text/html", "text/plain"}
    assert set(data[VIEW]) == {"model_id", "version_major", "version_minor"}


def test_a_slider_moves_the_picture_in_the_kernel(executed):
    (output,) = executed[0]["move"]
    assert output.text == "{'n': 9, 'kind': 'ring'} True\n"


def test_a_failed_check_is_shown_as_a_card_and_not_as_a_stack(executed):
    (output,) = executed[0]["failed"]
    assert (output.output_type, output.ename) == ("error", "CheckFailed")
    shown = "\n".join(output.traceback)
    assert (
        "✗ the norm" in shown
        and "hint       no epsilon" in shown
        and "line 2: check.close(torch.zeros(3), [1.0] * 3, hint='no epsilon')" in shown
    )
    assert "Traceback" not in shown and len(output.traceback) < 10
    assert output.evalue.startswith("the norm\n")


def test_an_unwritten_answer_is_shown_as_such(executed):
    (output,) = executed[0]["unwritten"]
    assert output.ename == "CheckFailed" and "f is not written yet" in output.evalue


def test_the_passed_check_and_no_other_is_on_record(executed):
    (kept,) = json.loads((executed[1] / "progress.json").read_text())["courses"].values()
    assert {lab: set(ids) for lab, ids in kept["passed"].items()} == {"03_triton_fusion": {"online_softmax"}}


def test_nothing_is_written_to_stderr(executed):
    streams = [output for outputs in executed[0].values() for output in outputs if output.output_type == "stream"]
    assert all(output.name == "stdout" for output in streams)
