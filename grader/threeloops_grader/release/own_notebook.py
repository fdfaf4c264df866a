"""A learner's own notebook as a file: every kind of damage has its own message, and a rewritten notebook stays trusted.

JupyterLab shows the HTML and SVG in a notebook only if Jupyter has signed it, and a signature covers the whole text. A
command that changes the text therefore signs it again, by the same rule that Jupyter follows when it saves a notebook.
"""

import contextlib
import warnings
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.sign import NotebookNotary
from threeloops.files import replace_text

from threeloops_grader.authoring.labs import LabError

__all__ = ["read_notebook", "read_own", "write_own"]

_MARK = "trusted"
"""Jupyter's own key in a code cell's metadata, in memory only: whether the cell's outputs may be shown in full."""


def read_notebook(path: Path, missing: str) -> NotebookNode:
    """Read a notebook that may be anybody's. Its cells carry no mark of trust: nbformat drops one that a file holds.

    Raises:
        LabError: the file is missing, which `missing` explains, or it is not a notebook.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise LabError(missing) from None
    except UnicodeDecodeError:
        raise LabError(f"{path} is not text and so not a notebook; nothing was changed") from None
    try:
        with warnings.catch_warnings(action="ignore"):  # nbformat repairs copied and missing ids, and says so
            notebook = nbformat.reads(text, as_version=4)
        cells = notebook.cells
    except Exception as error:  # nbformat raises several unrelated types for a damaged file
        reason = str(error).partition("\n")[0][:80]
        raise LabError(
            f"{path} is not a notebook ({reason}); nothing was changed. Put it aside and start again, or restore it "
            f"from {path.parent}/.ipynb_checkpoints"
        ) from None
    if not all(isinstance(cell.get("source"), str) and isinstance(cell.get("metadata"), dict) for cell in cells):
        raise LabError(
            f"{path} holds a cell without text or metadata; nothing was changed. Save it in JupyterLab again"
        )
    return notebook


def read_own(path: Path, missing: str) -> NotebookNode:
    """Read a learner's own copy with `read_notebook`. Each code cell is marked with whether Jupyter has signed the
    notebook.

    The marks travel with the cells, so that `write_own` can tell the learner's outputs from the outputs of a release.
    """
    notebook = read_notebook(path, missing)
    signed = _ask_notary(lambda notary: notary.check_signature(notebook))
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.metadata[_MARK] = signed
    return notebook


def write_own(path: Path, notebook: NotebookNode) -> None:
    """Replace the file, and sign it if the notebook was signed before and gained no output since.

    The signature follows the file, so a command that is cut short between the two leaves a notebook that JupyterLab
    does not trust yet; in the other order, Jupyter could trust a text that was never written.
    """
    from_untrusted = any(cell.metadata.get(_MARK) is False for cell in notebook.cells)
    text = nbformat.writes(notebook) + "\n"  # without the marks
    replace_text(path, text)
    if not from_untrusted and _ask_notary(lambda notary: notary.check_cells(notebook)):
        saved = nbformat.reads(text, as_version=4)
        _ask_notary(lambda notary: notary.sign(saved) or True)


def _ask_notary(question: Callable[[NotebookNotary], bool]) -> bool:
    """Return the answer of Jupyter's database of signatures, or False if it cannot be opened. Then nothing is
    trusted."""
    try:
        notary = NotebookNotary()
        with contextlib.closing(notary.store):
            return question(notary)
    except Exception:  # no home folder, a full disk, a damaged database: none of them may fail the command
        return False
