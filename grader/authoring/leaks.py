"""Does a release hold an answer? The last look before students see it, independent of how it was made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import nbformat

from grader.authoring.labs import Lab
from grader.authoring.regions import KINDS, regions

_WORDS = tuple(f"{side} {kind}" for side in ("BEGIN", "END") for kind in KINDS)


@dataclass(frozen=True)
class Secret:
    """Lines that a student must not receive. One line alone may stand in a hint; in its own cell it may not."""

    what: str
    cell: str
    lines: tuple[str, ...]

    def stands_in(self, text: str, cell: str | None) -> bool:
        if len(self.lines) == 1 and cell != self.cell:
            return False
        lines, n = _lines(text), len(self.lines)
        return any(lines[i : i + n] == self.lines for i in range(len(lines) - n + 1))


def leaks(lab: Lab, released: Path) -> list[str]:
    """One sentence for each file or cell below `released` that holds a solution, a hidden test or a model answer."""
    secrets = _secrets(lab)
    found = []
    for path in sorted(p for p in released.rglob("*") if p.is_file()):
        name = path.relative_to(released).as_posix()
        if path.suffix == ".py" or {"wrong", "right"} & set(path.relative_to(released).parts):
            found.append(f"{name}: sources, wrong answers and right answers are never released")
        if path.suffix == ".ipynb":
            cells = [(cell.id, cell.source) for cell in nbformat.read(path, as_version=4).cells]
        else:
            cells = [(None, path.read_text(encoding="utf-8", errors="replace"))]
        for cell, text in cells:
            where = f"{name}, cell {cell}" if cell else name
            found += [f"{where} holds the words {word!r}" for word in _WORDS if word in text]
            found += [f"{where} holds {secret.what}" for secret in secrets if secret.stands_in(text, cell)]
    return found


def _secrets(lab: Lab) -> list[Secret]:
    secrets = [
        Secret(f"the {'solution' if kind == 'SOLUTION' else 'hidden tests'} of {cell.id}", cell.id, lines)
        for cell in lab.master().cells
        for kind in KINDS
        for region in regions(cell.source, kind)
        if (lines := _lines(region))
    ]
    for folder, first in ((lab.wrong, 1), (lab.right, 0)):  # a wrong answer begins with the words it must earn
        for path in sorted(folder.glob("*.py")):
            if lines := _lines(path.read_text(encoding="utf-8"))[first:]:
                what = f"the {folder.name} answer {path.name}"
                secrets.append(Secret(what, path.stem.partition("__")[0], lines))
    return secrets


def _lines(text: str) -> tuple[str, ...]:
    return tuple(stripped for line in text.split("\n") if (stripped := line.strip()))
