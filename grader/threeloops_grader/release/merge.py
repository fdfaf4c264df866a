"""A three-way merge of notebooks by cell id: the student's texts stay, and all other cells get the new text."""

import copy
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from nbformat import NotebookNode

from threeloops_grader.authoring.labs import grade_id, text_id

__all__ = ["Merge", "merge"]


@dataclass
class Merge:
    """The merged notebook, and the keys of the cells that differ from the student's, by reason."""

    notebook: NotebookNode
    renewed: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    """Cells that the student and the release both changed: the student's text is kept."""

    @property
    def changed(self) -> bool:
        return bool(self.renewed or self.added or self.removed)


def merge(base: NotebookNode, student: NotebookNode, new: NotebookNode) -> Merge:
    """Bring a newer release into a student's notebook.

    `base` is the release that the student started from, `new` the one to bring in; none of the three is changed. The
    result follows the order of `new`. Cells that `new` does not know keep their place after the same neighbour: the
    student's own cells always, cells that the release dropped only if the student had edited them.
    """
    before = dict(_keyed(base))
    mine = dict(_keyed(student))
    after = dict(_keyed(new))
    metadata = NotebookNode(copy.deepcopy({**student.metadata, "threeloops": new.metadata.get("threeloops", {})}))
    result = Merge(NotebookNode(nbformat=4, nbformat_minor=5, metadata=metadata, cells=[]))
    own = _own_cells_by_neighbour(before, mine, after, result)
    cells = own[None]
    for key, cell in after.items():
        cells += [*_decide(key, before.get(key), mine.get(key), cell, result), *own[key]]
    result.notebook.cells = _with_unique_ids(cells)
    return result


def _decide(
    key: str, old: NotebookNode | None, mine: NotebookNode | None, new: NotebookNode, result: Merge
) -> Iterator[NotebookNode]:
    """Yield the released cell `key`, in the student's text or in the new one, or nothing if the student deleted it."""
    if mine is None:
        deleted_by_student = old is not None and grade_id(new) is None
        if not deleted_by_student:
            result.added.append(key)
            yield copy.deepcopy(new)
    elif _text(mine) == _text(new):
        if mine.get("attachments") != new.get("attachments"):
            result.renewed.append(key)
            mine = NotebookNode({**mine, "attachments": new.get("attachments", {})})
        yield _in_place_of(mine, new)
    elif old is not None and _text(mine) == _text(old):
        result.renewed.append(key)
        yield copy.deepcopy(new)
    else:
        if old is None or _text(old) != _text(new):
            result.conflicts.append(key)
        yield _in_place_of(mine, new)


def _own_cells_by_neighbour(
    before: dict[str, NotebookNode], mine: dict[str, NotebookNode], after: dict[str, NotebookNode], result: Merge
) -> dict[str | None, list[NotebookNode]]:
    """Return the student's cells that `after` lacks, each under the key of the released cell that it follows."""
    successor = _successors(list(before), list(after))
    own: dict[str | None, list[NotebookNode]] = defaultdict(list)
    neighbour: str | None = None
    for key, cell in mine.items():
        if key in after:
            neighbour = key
        elif key not in before or _text(cell) != _text(before[key]):
            if key in before:
                neighbour = successor.get(key, neighbour)
            own[neighbour].append(copy.deepcopy(cell))
        else:
            result.removed.append(key)
            neighbour = successor.get(key, neighbour)
    return own


def _successors(before: list[str], after: list[str]) -> dict[str, str]:
    """Return the successor of each replaced cell. (Prose whose text changed has a new id.)"""
    successors: dict[str, str] = {}
    for tag, i1, i2, j1, j2 in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "replace":
            successors |= {before[i]: after[min(j1 + i - i1, j2 - 1)] for i in range(i1, i2)}
    return successors


def _keyed(notebook: NotebookNode) -> Iterator[tuple[str, NotebookNode]]:
    """Yield each cell under its grade_id or id. A student's copy of a cell gets a key of its own."""
    seen: Counter[str] = Counter()
    for cell in notebook.cells:
        # text_id finds untouched cells where an editor dropped the ids
        key = grade_id(cell) or cell.get("id") or text_id(cell)
        seen[key] += 1
        yield (key if seen[key] == 1 else f"{key} (copy {seen[key]})"), cell


def _text(cell: NotebookNode) -> tuple[str, str]:
    return cell.cell_type, cell.source.rstrip()


def _in_place_of(mine: NotebookNode, released: NotebookNode) -> NotebookNode:
    """Return the student's text and outputs with the released cell's id and role."""
    cell = copy.deepcopy(mine)
    cell.id = released.id
    cell.metadata = NotebookNode({**cell.metadata, **copy.deepcopy(released.metadata)})
    return cell


def _with_unique_ids(cells: list[NotebookNode]) -> list[NotebookNode]:
    taken: set[str] = set()
    for position, cell in enumerate(cells):
        wanted = cell.get("id") or f"own-{position}"
        cell.id = next(name for name in (wanted, *(f"{wanted}-{n}" for n in range(2, 10_000))) if name not in taken)
        taken.add(cell.id)
    return cells
