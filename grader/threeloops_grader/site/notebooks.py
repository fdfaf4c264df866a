"""A lab's page: the released notebook, with the outputs that `make course` got from its demonstrations.

Answers and checks have no outputs here, and a model answer in an output is cut. Explorers and predictions become HTML
that the scripts of the site bring to life.
"""

import ast
import base64
import html
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from threeloops.lab.recording.notes import KEY
from threeloops.lab.recording.states import MIME
from threeloops.lab.widgets.display import preformatted

from threeloops_grader.authoring.labs import Lab, LabError
from threeloops_grader.authoring.manifest import SETUPS, Kind, kind_of, test_title
from threeloops_grader.release.leaks import leaked_lines, secrets
from threeloops_grader.site import explorers

__all__ = ["LabPage", "lab_pages"]

_SHOWN = (*SETUPS, Kind.DEMO)
"""The kinds of cells whose outputs a page shows."""
_ATTACHED = re.compile(r"\(attachment:([\w.-]+)\)")
_DRAWN = re.compile(
    r'<div class="threeloops-drawn"><style>[^<]*</style><div style="display:none">(.*?)</div>'
    r'<img src="data:image/png;base64,[^"]*"[^>]*></div>',
    re.DOTALL,
)
"""A drawing and its still picture, which a browser that shows the site does not need."""
_MODEL_ANSWER = re.compile(
    r"<details><summary[^>]*>A model answer</summary>.*?</details>|<table><tr><th></th><th>yours</th>.*?</table>",
    re.DOTALL,
)
"""A model answer in a debrief, and its comparison with the answer of the run, which is no reader's."""
_NO_GUESS = " · no prediction was made"
"""Words of an output that are true only where the labs were executed. The page says what its own reader guessed."""
_WHOSE = re.compile(r"^Yours: .*\n?", re.MULTILINE)
"""The line of `together` that says which answers are the reader's. On a page all of them are the reference's."""
_HOW_TO_RUN = "*Grey bars are folded cells: run them with Shift+Enter; a click unfolds their code.*"
_HOW_TO_READ = (
    "*Grey bars are folded code, which a tap or a click unfolds. To do the exercises, "
    "[install the course](../../docs/install.md).*"
)
_NO_ANSWER = "YOUR ANSWER HERE"
_DIVES = re.compile(r"(?<!\[)`(\d\d_\w+_dives\.ipynb)`")
_NEXT = re.compile(r"(?<=Next: )`(\d\d_\w+)`")
_CALIBRATION = "<b>Your predictions</b> ·"
_GAP = re.compile(r"\S {3,}\S")
_LONGEST_ROW = 110
_BUSY = re.compile(r"This machine is busy: .*? now\. Times measured here are .*?(?=<|$)", re.DOTALL)
_WAS_BUSY = "The machine that ran this page was busy, so times measured on it are too long, and rates too low."
_TAGS = re.compile(r"<[^>]*>")


@dataclass
class LabPage:
    """A notebook to build a page of, and the files beside it by name."""

    lab: Lab
    notebook: NotebookNode
    pictures: dict[str, bytes] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    """The script with the states of each explorer, by the explorer's name."""
    explorers: list[str] = field(default_factory=list)
    """The explorers as HTML, in order."""


def lab_pages(lab: Lab, executed: Path) -> list[LabPage]:
    """Return the pages of a lab and of its deep dives, from the executed notebooks in the folder `executed`.

    Raises:
        LabError: a notebook was not executed, or is of another state of the lab, or an output would show an answer.
    """
    return [_page(notebook, lab, executed / f"{notebook.stem}.ipynb") for notebook in lab.notebooks]


def _page(notebook: Lab, core: Lab, path: Path) -> LabPage:
    if not path.is_file():
        raise LabError(f"{path} is missing: `make course` executes the labs, and `make site` shows their outputs")
    released = nbformat.read(notebook.released, as_version=4)
    executed = {cell.id: cell for cell in nbformat.read(path, as_version=4).cells}
    page = LabPage(notebook, released)
    for cell in released.cells:
        if cell.cell_type == "markdown":
            _unpack(cell, page)
            cell.source = _for_reading(cell.source)
            continue
        done = executed.get(cell.id)
        shown = kind_of(cell) in _SHOWN
        if done is None or (shown and done.source != cell.source):
            raise LabError(f"{path.name} was executed before {notebook.stem} changed: run `make course` again")
        cell.outputs = list(_outputs(done, page)) if shown else []
        cell.execution_count = None
        tags = set(cell.metadata.get("tags", []))
        if _only_asks(cell.source) or cell.metadata.get("jupyter", {}).get("source_hidden"):
            tags.add("hide-input")
            prompt = _prompt(cell)
            cell.metadata.mystnb = NotebookNode(code_prompt_show=prompt, code_prompt_hide=prompt)
        cell.metadata.tags = sorted(tags)
    _refuse_answers(page, core)
    return page


def _for_reading(text: str) -> str:
    """Return the prose of a lab with links to other pages, and without what only a notebook can do."""
    text = text.replace(_HOW_TO_RUN, _HOW_TO_READ).replace(_NO_ANSWER, "*The notebook has a place for your answer.*")
    return _NEXT.sub(r"[`\1`](../\1/\1.ipynb)", _DIVES.sub(r"[`\1`](\1)", text))


def _only_asks(source: str) -> bool:
    """Return whether a cell does nothing but ask, so that its output says all that its code does."""
    try:
        statements = ast.parse(source).body
    except SyntaxError:  # a cell with a magic
        return False
    calls = [statement.value for statement in statements if isinstance(statement, ast.Expr)]
    asks = [
        call for call in calls if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("predict", "myth")
    ]
    return len(asks) == len(statements) > 0


def _prompt(cell: NotebookNode) -> str:
    """Return the words on the bar of a folded cell."""
    kind = kind_of(cell)
    if _only_asks(cell.source):
        return "Code of the question"
    if kind is Kind.TEST:
        return f"Check: {test_title(cell.id)}"
    return "Code: preparation" if kind in SETUPS else "Code"


def _unpack(cell: NotebookNode, page: LabPage) -> None:
    """Put attached pictures beside the page, and link to them there."""
    for name, bundle in cell.pop("attachments", {}).items():
        ((_, data),) = bundle.items()
        page.pictures[f"{page.lab.stem}_{name}"] = base64.b64decode(data)
    cell.source = _ATTACHED.sub(rf"({page.lab.stem}_\1)", cell.source)


def _outputs(cell: NotebookNode, page: LabPage) -> Iterator[NotebookNode]:
    for output in cell.get("outputs", []):
        if output.output_type == "stream" and output.name == "stdout":
            if printed := _WHOSE.sub("", output.text).rstrip():
                columns = " tl-columns" if _has_columns(printed) else ""
                yield _displayed(f'<div class="tl-text{columns}">{preformatted(printed)}</div>')
        elif output.output_type in ("display_data", "execute_result"):
            yield _displayed(_html(output, page))


def _has_columns(text: str) -> bool:
    """Return whether a text is a table: several short lines with gaps. A narrow screen must not break its lines."""
    lines = text.splitlines()
    return max(map(len, lines)) <= _LONGEST_ROW and sum(bool(_GAP.search(line)) for line in lines) > 1


def _displayed(text: str) -> NotebookNode:
    return nbformat.v4.new_output("display_data", {"text/html": text})


def _html(output: NotebookNode, page: LabPage) -> str:
    """Return an output as HTML, with what a page needs to make it live."""
    notes = output.metadata.get(KEY, {})
    text = (
        output.data.get("text/html") or f'<div class="tl-text">{preformatted(output.data.get("text/plain", ""))}</div>'
    )
    label = html.escape(output.data.get("text/plain", ""), quote=True) if '<div class="anim-' in text else ""
    named = f' role="group" aria-label="{label}"' if label else ""
    text = _DRAWN.sub(lambda drawn: f'<div class="tl-figure"{named}>{explorers.legible(drawn[1])}</div>', text)
    if states := output.data.get(MIME):
        name = f"{page.lab.stem}-{len(page.explorers) + 1}"
        text = explorers.widget(name, states)
        page.states[name] = explorers.script(name, states)
        page.explorers.append(text)
    elif output.data.get("text/plain", "").startswith("explorer at "):
        text += '<p class="tl-note">In the notebook you can change this; this page has no other states of it.</p>'
    if "debrief" in notes:
        text = _MODEL_ANSWER.sub("", text)
        text = f'<details class="tl-debrief"><summary>After the exercise: why it works</summary>{text}</details>'
    if "asks" in notes:
        asks = html.escape(json.dumps(notes["asks"]), quote=True)
        event = html.escape(notes["question"], quote=True)
        text = f'<div class="tl-question" data-event="{event}" data-asks="{asks}">{text}</div>'
    if _CALIBRATION in text:
        text = '<div class="tl-calibration" role="status"></div>'
    text = _BUSY.sub(_WAS_BUSY, text.replace(_NO_GUESS, ""))
    if "until" in notes:
        result = html.escape(json.dumps({"found": notes.get("found")}), quote=True)
        event = html.escape(notes["until"], quote=True)
        text = f'<div class="tl-until" data-event="{event}" data-found="{result}">{text}</div>'
    return text


def _refuse_answers(page: LabPage, core: Lab) -> None:
    """Raise LabError if a cell or an output shows an answer or a hidden test."""
    hidden = secrets(core)
    for cell in page.notebook.cells:
        shown = [output.data["text/html"] for output in cell.get("outputs", [])]
        text = "\n".join([cell.source, *(html.unescape(_TAGS.sub("\n", output)) for output in shown)])
        if leaked := leaked_lines(hidden, text, cell.id):
            raise LabError(f"the page of {page.lab.stem} would show an answer in cell {cell.id}: it holds {leaked[0]}")
