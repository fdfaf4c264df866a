"""Check that a release holds no answer: the last check before students see it, independent of how it was made."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat

from threeloops_grader.authoring.answers import right_answers, wrong_answers
from threeloops_grader.authoring.labs import Lab
from threeloops_grader.authoring.markdown.answer_file import ANSWERS
from threeloops_grader.authoring.regions import KINDS, regions

__all__ = ["Secret", "leaked_lines", "leaks", "secrets"]

_MARKERS = tuple(f"{side} {kind}" for side in ("BEGIN", "END") for kind in KINDS)


@dataclass(frozen=True)
class Secret:
    """Lines that a student must not receive. A single line may appear in a hint, but not in its own cell."""

    what: str
    cell: str
    lines: list[str]

    def is_in(self, page: str, cell: str | None) -> bool:
        """Return whether these lines follow one another in a result of `_page`."""
        if len(self.lines) == 1 and cell != self.cell:
            return False
        return _page(self.lines) in page


def leaks(lab: Lab, released: Path) -> list[str]:
    """Return one sentence for each file or cell below `released` that holds a solution, a hidden test or a model
    answer."""
    hidden = secrets(lab)
    leaked = []
    for path in sorted(p for p in released.rglob("*") if p.is_file()):
        name = path.relative_to(released)
        if path.suffix == ".py" or path.name == ANSWERS:
            leaked.append(f"{name.as_posix()}: sources, wrong answers and right answers are never released")
        if path.suffix == ".ipynb":
            cells = [(cell.id, cell.source) for cell in nbformat.read(path, as_version=4).cells]
        else:
            cells = [(None, path.read_text(encoding="utf-8", errors="replace"))]
        for cell, text in cells:
            where = f"{name.as_posix()}, cell {cell}" if cell else name.as_posix()
            leaked += [f"{where} holds {what}" for what in leaked_lines(hidden, text, cell)]
    return leaked


def secrets(lab: Lab) -> list[Secret]:
    """Return the solutions, hidden tests and model answers of a lab."""
    return [secret for secret in _secrets(lab) if secret.lines]


def leaked_lines(hidden: Iterable[Secret], text: str, cell: str | None) -> list[str]:
    """Return the names of those secrets that a text holds, and of the markers around answers. `cell` is the id of the
    cell that the text belongs to, if any."""
    page = _page(_lines(text))
    held = [secret.what for secret in hidden if secret.is_in(page, cell)]
    return [f"the words {word!r}" for word in _MARKERS if word in text] + held


def _secrets(lab: Lab) -> Iterator[Secret]:
    for cell in lab.master().cells:
        for kind, what in zip(KINDS, ("solution", "hidden tests"), strict=True):
            for region in regions(cell.source, kind):
                yield Secret(f"the {what} of {cell.id}", cell.id, _lines(region))
    for side, answers in (("wrong", wrong_answers(lab)), ("right", right_answers(lab))):
        for answer in answers:
            yield Secret(f"the {side} answer {answer.name}", answer.exercise, _lines(answer.text))


def _page(lines: list[str]) -> str:
    """Return lines as one text. It contains another such text exactly if all lines of that text are among these lines,
    in a row."""
    return "\n" + "".join(f"{line}\n" for line in lines)


def _lines(text: str) -> list[str]:
    return [stripped for line in text.split("\n") if (stripped := line.strip())]
