"""Find the notebook that a learner means by the name of a lab or a file."""

from pathlib import Path

from nbformat import NotebookNode

from threeloops_grader.authoring.labs import Lab, LabError, find_lab
from threeloops_grader.submissions.parse import parse
from threeloops_grader.submissions.submitted import BadSubmission

__all__ = ["own_notebook"]


def own_notebook(name: str) -> tuple[Path, NotebookNode, Lab]:
    """Return the file, its content, and the lab that it names.

    Raises:
        LabError: it is a folder, does not exist, is not a notebook, or belongs to no lab of this course. Each case has
            its own sentence.
    """
    path, meant = _path(name)
    if path.is_dir():
        inside = sorted(path.glob("*.ipynb"))
        step = f"name the notebook in it: {inside[0]}" if inside else "it holds no notebook; name a lab or a notebook"
        raise LabError(f"{path} is a folder; {step}")
    try:
        content = parse(path.read_bytes())
    except FileNotFoundError:
        start = meant.slug if meant else "LAB"
        raise LabError(f"no file {path}; `threeloops start {start}` makes your copy of a lab") from None
    except BadSubmission as error:
        raise LabError(f"{path}: {error}") from None
    if not content.get("cells"):
        raise LabError(f"{path} is JSON without cells, so no notebook; `threeloops start LAB` makes your copy of a lab")
    lab = content.metadata.get("threeloops", {}).get("lab") or path.stem
    try:
        return path, content, find_lab(str(lab))
    except LabError as error:
        raise LabError(f"{path} is not a notebook of this course: {error}") from None


def _path(name: str) -> tuple[Path, Lab | None]:
    """Return the named file, if there is one, or else the learner's copy of the lab of that name."""
    path = Path(name)
    try:
        lab = find_lab(name)
    except LabError:
        lab = None
    if lab is not None and not path.is_file() and not name.endswith(".ipynb"):
        return lab.work, lab
    if lab is None and not path.exists() and not name.endswith(".ipynb"):
        find_lab(name)  # says which labs there are
    return path, lab
