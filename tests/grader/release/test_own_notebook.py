"""A command that rewrites a learner's notebook keeps its trust, as Jupyter's own server sees it, and never adds any."""

import json

import pytest
from jupyter_server.services.contents.filemanager import FileContentsManager
from nbformat.v4 import new_output
from threeloops_grader.authoring.labs import find_lab
from threeloops_grader.learner.reset import reset
from threeloops_grader.release.release import release
from threeloops_grader.release.student_copies import start, update
from toy_course import SOURCE, read

DRAWN = new_output("display_data", data={"text/html": "<svg></svg>", "text/plain": "a figure"})


@pytest.fixture
def lab(toy, tmp_path, monkeypatch):
    """A started lab of a learner whom Jupyter does not know yet."""
    monkeypatch.setenv("THREELOOPS_ROOT", str(toy.root))
    monkeypatch.setenv("THREELOOPS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    release([toy])
    start(toy)
    return toy


def save(lab, trusted):
    """Answer, run and save in JupyterLab. An untrusted notebook holds an output that somebody else made."""
    server = FileContentsManager(root_dir=str(lab.root))
    model = server.get(place(lab), type="notebook")
    for cell in model["content"].cells:
        if cell.id in ("mean", "rescale"):
            cell.source, cell.outputs, cell.metadata["trusted"] = "x = 1", [DRAWN], trusted
    server.save({"type": "notebook", "content": model["content"]}, place(lab))


def place(lab, path=None):
    return (path or lab.work).relative_to(lab.root).as_posix()


def trusts(lab, path=None):
    """Whether JupyterLab shows the outputs of all cells in full when it opens the notebook."""
    content = FileContentsManager(root_dir=str(lab.root)).get(place(lab, path), type="notebook")["content"]
    return all(cell.metadata.trusted for cell in content.cells if cell.cell_type == "code")


def release_with(lab, old, new):
    assert old in SOURCE
    lab.source.write_text(SOURCE.replace(old, new))
    release([lab])


def put_output_into_release(lab, **metadata):
    """A release from elsewhere, with a picture in its first code cell."""
    released = json.loads(lab.released.read_text())
    cell = next(cell for cell in released["cells"] if cell["cell_type"] == "code")
    cell["source"] += "\n# changed"
    cell["outputs"], cell["metadata"] = [DRAWN], {**cell["metadata"], **metadata}
    lab.released.write_text(json.dumps(released))


@pytest.mark.parametrize("trusted", [True, False])
def test_reset_leaves_a_notebook_as_trusted_as_it_was(lab, trusted):
    save(lab, trusted)
    assert trusts(lab) is trusted
    assert reset("mean")[1] is not None
    assert trusts(lab) is trusted
    reset("rescale")  # now no output is left that could be dangerous, and still nobody has vouched for the rest
    assert trusts(lab) is trusted


@pytest.mark.parametrize("trusted", [True, False])
def test_update_leaves_a_notebook_and_its_backup_as_trusted_as_they_were(lab, trusted):
    save(lab, trusted)
    release_with(lab, "What is the middle", "Where is the middle")
    result = update(lab)
    assert "Where is the middle" in read(lab.work).cells[0].source
    assert trusts(lab) is trusted and trusts(lab, result.backup) is trusted


@pytest.mark.parametrize("metadata", [{}, {"trusted": True}])
def test_an_output_that_comes_with_a_release_is_not_trusted(lab, metadata):
    save(lab, trusted=True)
    put_output_into_release(lab, **metadata)
    update(lab)
    assert [cell.outputs for cell in read(lab.work).cells if "# changed" in cell.source] == [[DRAWN]]
    assert not trusts(lab)


def test_an_output_of_an_untrusted_notebook_is_not_trusted_because_a_release_says_so(lab):
    save(lab, trusted=False)
    released = json.loads(lab.released.read_text())
    for cell in released["cells"]:
        cell["metadata"]["trusted"] = True
    released["metadata"]["threeloops"]["release"] = "another"
    lab.released.write_text(json.dumps(released))
    assert update(lab).backup
    assert not trusts(lab)


def test_starting_a_lab_trusts_nothing(lab):
    put_output_into_release(lab)
    lab.work.unlink()
    assert start(lab) and not trusts(lab)


def test_commands_work_where_jupyter_can_keep_no_signature(lab, tmp_path, monkeypatch):
    save(lab, trusted=True)
    (tmp_path / "file").touch()
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "file" / "jupyter"))
    released = next(cell.source for cell in read(find_lab("90").released).cells if cell.id == "mean")
    assert reset("mean")[1] is not None
    assert next(cell.source for cell in read(lab.work).cells if cell.id == "mean") == released
