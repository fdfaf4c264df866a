"""Steps that this course adds to nbgrader's own: a check that allows written answers without points, one that allows
cells that were split or copied, and one that keeps only what students need."""

import copy
import hashlib
import itertools
import json
from functools import cached_property
from typing import Any

from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from nbformat import NotebookNode
from nbgrader.nbgraderformat import MetadataValidator
from nbgrader.nbgraderformat.common import BaseMetadataValidator
from nbgrader.preprocessors import NbGraderPreprocessor

from threeloops_grader.authoring.labs import GOES_ON, KERNELSPEC, OPENING, grade_id
from threeloops_grader.authoring.manifest import Kind, kind_of
from threeloops_grader.authoring.markdown.rubric import criteria, rubric_table
from threeloops_grader.authoring.names import bound, used

__all__ = ["CheckCells", "ForStudents", "OneCellPerName", "content_hash"]

_ROLE = ("grade", "grade_id", "locked", "points", "solution", "task")
_CELL_METADATA = ("tags", "nbgrader", "deletable", "editable", "jupyter")


class CheckCells(NbGraderPreprocessor):
    """nbgrader's CheckCellMetadata, which would refuse a written answer without points: ours carries none."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        """Check a notebook. Raises nbgrader's ValidationError for any other fault of the cells' metadata."""
        checked = copy.deepcopy(nb)
        for cell in checked.cells:
            meta = cell.metadata.get("nbgrader", {})
            if cell.cell_type == "markdown" and meta.get("solution") and not meta.get("grade"):
                cell.metadata.nbgrader = NotebookNode({**meta, "grade": True, "points": 0})
        _Validator().validate_nb(checked)
        return nb, resources


class OneCellPerName(NbGraderPreprocessor):
    """A preprocessor that leaves a name to the last of several cells that have it. The others stay and run."""

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        last = {grade_id(cell): at for at, cell in enumerate(nb.cells)}
        for at, cell in enumerate(nb.cells):
            if grade_id(cell) is not None and last[grade_id(cell)] != at:
                del cell.metadata["nbgrader"]
        return nb, resources


class _SchemaOnce(BaseMetadataValidator):
    """nbgrader has jsonschema check nbgrader's own schema again for each cell, which takes longer than all the rest.
    Here only a cell that does not fit the schema goes that way, for nbgrader's words about it."""

    @cached_property
    def _of_cells(self) -> Validator:
        return validator_for(self.schema)(self.schema)

    def validate_cell(self, cell: NotebookNode) -> None:
        meta = cell.metadata.get("nbgrader", {})
        if meta.get("schema_version") != self.schema_version or not self._of_cells.is_valid(meta):
            super().validate_cell(cell)


class _Validator(MetadataValidator, _SchemaOnce):
    """nbgrader's rules for a notebook. If they ask for the schema of a cell, `_SchemaOnce` comes first."""


class ForStudents(NbGraderPreprocessor):
    """A preprocessor that keeps only what students need in a notebook: the lab's name and minutes, a hash of the
    release, and cells without a history.

    The cell that draws the opening picture is left out, because its picture is attached to the title.
    """

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        nb.cells = [cell for cell in nb.cells if OPENING not in cell.metadata.get("tags", [])]
        for cell in nb.cells:
            cell.metadata = NotebookNode({k: v for k, v in cell.metadata.items() if k in _CELL_METADATA})
        _let_run_all_go_on(nb)
        lab = resources.get("nbgrader", {}).get("assignment", "")
        header = nb.metadata.get("threeloops") or {}
        _show_rubric(nb, header.get("rubric"))
        minutes = {"minutes": header["minutes"]} if "minutes" in header else {}
        ours = {"lab": lab, **minutes, "release": content_hash(nb)}
        nb.metadata = NotebookNode(kernelspec=dict(KERNELSPEC), threeloops=ours)
        nb.nbformat = 4
        nb.nbformat_minor = 5
        return nb, resources


def _show_rubric(nb: NotebookNode, rubric: Any) -> None:
    """Write the rubric below the reflection's question. Its cell keeps its id, by which grading recognises it."""
    for question, answer in itertools.pairwise(nb.cells):
        if rubric and kind_of(answer) is Kind.REFLECTION:
            question.source = question.source.rstrip() + rubric_table(criteria(rubric))


def _let_run_all_go_on(nb: NotebookNode) -> None:
    """Tag the cells that a wrong answer breaks: its own, and demonstrations that use it. JupyterLab continues after
    them."""
    answers = [cell for cell in nb.cells if kind_of(cell) is Kind.SOLUTION]
    names = {name for cell in answers for name in bound(cell.source, imports=False)}
    for cell in nb.cells:
        if cell in answers or (kind_of(cell) is Kind.DEMO and _names(cell) & names):
            cell.metadata.tags = [*cell.metadata.get("tags", []), GOES_ON]


def _names(cell: NotebookNode) -> frozenset[str]:
    try:
        return used(cell.source)
    except SyntaxError:  # a line of IPython's own: what it uses is not known
        return frozenset()


def content_hash(notebook: NotebookNode) -> str:
    """Return 12 hex digits over the parts of a notebook that a person wrote: texts, pictures, roles and tags, but not
    outputs or ids."""
    content = [
        [
            cell.cell_type,
            cell.source.rstrip(),
            {k: v for k, v in cell.metadata.get("nbgrader", {}).items() if k in _ROLE},
            sorted(cell.metadata.get("tags", [])),
            *([cell.attachments] if cell.get("attachments") else []),
        ]
        for cell in notebook.cells
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
