"""The last step before nbgrader's pages: reduce an autograded notebook to what such a page may show."""

import html
import secrets
from pathlib import Path

from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell
from nbgrader.preprocessors import NbGraderPreprocessor

from threeloops_grader.pages.page_policy import formgrader_page, static_page

__all__ = ["StudentPage", "TEMPLATES"]

TEMPLATES = str(Path(__file__).parent / "templates")
_SHOWN = ("text/plain", "image/png", "image/jpeg")
_SAID = ("assignment_id", "notebook_id", "student", "first_name", "last_name", "notebook_path")
"""Fields that formgrader's template does not escape, although a student may have named the folder."""


class StudentPage(NbGraderPreprocessor):
    """Cells, text and pictures; no attachments, widgets, HTML outputs or metadata. Adds the page's policy."""

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        nb.metadata = NotebookNode()
        nb.cells = [_plain_cell(cell) for cell in nb.cells]
        if "submission_id" in resources:
            resources["nonce"] = secrets.token_urlsafe(16)
            resources["policy"] = formgrader_page(resources["nonce"])
            resources.update({k: html.escape(resources[k]) for k in _SAID if isinstance(resources.get(k), str)})
        else:
            resources["policy"] = static_page()
        return nb, resources


def _plain_cell(cell: NotebookNode) -> NotebookNode:
    if cell.cell_type == "raw":
        cell = new_markdown_cell(cell.source, id=cell.id)
    cell.pop("attachments", None)
    cell.metadata = NotebookNode({k: v for k, v in cell.metadata.items() if k == "nbgrader"})
    if cell.cell_type == "code":
        cell.outputs = [plain for output in cell.outputs if (plain := _plain_output(output))]
    return cell


def _plain_output(output: NotebookNode) -> NotebookNode | None:
    if output.output_type in ("stream", "error"):
        return output
    output.data = NotebookNode({k: v for k, v in output.data.items() if k in _SHOWN})
    output.metadata = NotebookNode()
    return output if output.data else None
