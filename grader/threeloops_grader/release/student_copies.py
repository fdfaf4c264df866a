"""A student's own copy of a lab: `start` makes it, `update` merges a newer release into it, nothing overwrites it."""

import json
import tempfile
from dataclasses import dataclass, field
from filecmp import cmp
from pathlib import Path

from nbformat import NotebookNode
from threeloops.files import replace_text

from threeloops_grader.authoring.labs import BASE, Lab, LabError
from threeloops_grader.release.files import files_below, replace_file, sha256
from threeloops_grader.release.merge import Merge, merge
from threeloops_grader.release.own_notebook import read_notebook, read_own, write_own

__all__ = ["Updated", "start", "update"]


@dataclass
class Updated:
    """The result of `update`. `backup` is None if the notebook did not change."""

    notebook: Path
    merged: Merge
    backup: Path | None = None
    data: list[str] = field(default_factory=list)
    kept_data: list[str] = field(default_factory=list)
    dives: "Updated | None" = None
    """The result for the notebook of deep dives, if there is one."""

    @property
    def message(self) -> str:
        more = [self.dives.message] if self.dives else []
        if not (self.backup or self.data):
            return "\n".join([f"{self.notebook} is up to date with the released lab.", *more])
        lines = [
            f"{self.notebook} is updated: {len(self.merged.renewed)} cells renewed, {len(self.merged.added)} added, "
            f"{len(self.merged.removed)} removed, {len(self.data)} data files renewed. What you wrote was kept."
        ]
        lines += [f"  you and the release both changed cell {key}: yours was kept" for key in self.merged.conflicts]
        lines += [f"  you changed {name}: yours was kept" for name in self.kept_data]
        if self.backup:
            lines.append(f"  your notebook as it was: {self.backup}")
        return "\n".join([*lines, *more])


def start(lab: Lab) -> bool:
    """Copy `labs/NN` to `work/NN`, and its release to `work/.base/`. Returns False if there is a copy already.

    Never overwrites a file. If the student removed only the notebook, the missing files are restored.

    Raises:
        LabError: the lab has not been released.
    """
    if lab.work.exists():
        return False
    read_notebook(lab.released, f"lab {lab.slug} has not been released; run `threeloops release`")
    folder = lab.work.parent
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{lab.slug}.", suffix=".tmp") as scratch:
        half = Path(scratch) / lab.slug
        for name in sorted(files_below(lab.released.parent)):
            replace_file(half / name, lab.released.parent / name)
        _remember(lab)
        if folder.exists():
            for name in sorted(files_below(half) - files_below(folder), key=lambda n: n.endswith(".ipynb")):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (half / name).rename(folder / name)
        else:
            half.rename(folder)
    return True


def update(lab: Lab) -> Updated:
    """Merge the released lab into the student's copy. Their own work is kept, and a backup is written beside it.

    An interrupted run leaves the old notebook or the new one, never half of one, and may be repeated.

    Raises:
        LabError: the lab was not started or not released, or the student's file is not a notebook. Nothing was touched.
    """
    if not lab.work.exists():
        raise LabError(f"{lab.work} does not exist; `threeloops start {lab.slug}` makes it")
    result = _update_notebook(lab)
    for dives in lab.notebooks[1:]:
        if dives.work.exists():
            result.dives = _update_notebook(dives)
    _update_data(lab, result)
    _remember(lab)
    return result


def _update_notebook(lab: Lab) -> Updated:
    new = read_notebook(lab.released, f"lab {lab.slug} has not been released; run `threeloops release`")
    student = read_own(lab.work, f"{lab.work} is missing")
    merged = merge(_read_base(lab), student, new)
    result = Updated(lab.work, merged)
    if merged.changed or merged.notebook.metadata.threeloops != student.metadata.get("threeloops"):
        result.backup = _back_up(lab.work, new.metadata.get("threeloops", {}).get("release", "update"))
        write_own(lab.work, merged.notebook)
    return result


def _read_base(lab: Lab) -> NotebookNode:
    """Return the release that the student's copy came from. Without it no cell counts as untouched, so all are kept."""
    try:
        return read_notebook(_base(lab), "")
    except LabError:
        return NotebookNode(cells=[], metadata=NotebookNode())


def _back_up(notebook: Path, release: str) -> Path:
    for n in range(1, 10_000):
        backup = notebook.with_name(f"{notebook.stem}.before-{release}{'' if n == 1 else f'-{n}'}.ipynb")
        if not backup.exists():
            replace_file(backup, notebook)
            return backup
        if cmp(backup, notebook, shallow=False):
            return backup
    raise LabError(f"{notebook.parent} holds thousands of backups; remove some")


def _update_data(lab: Lab, result: Updated) -> None:
    """Renew the data files that the student did not edit. A file that they deleted comes back."""
    try:
        before = json.loads(_base(lab, ".data.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        before = {}
    for name, digest in _data_hashes(lab).items():
        own = lab.work.parent / name
        if own.exists() and sha256(own) == digest:
            continue
        if own.exists() and sha256(own) != before.get(name):
            result.kept_data.append(name)
            continue
        replace_file(own, lab.released.parent / name)
        result.data.append(name)


def _data_hashes(lab: Lab) -> dict[str, str]:
    """Return hashes of released files that are not notebooks, and of deleted notebooks, which come back."""
    folder = lab.released.parent
    merged = {notebook.released.name for notebook in lab.notebooks if notebook.work.exists()}
    return {name: sha256(folder / name) for name in sorted(files_below(folder) - merged)}


def _base(lab: Lab, suffix: str = ".ipynb") -> Path:
    """Return the release that the student's copy was last brought up to."""
    return lab.copies / BASE / f"{lab.stem}{suffix}"


def _remember(lab: Lab) -> None:
    """Record the release that the student's copy now holds. Called last, so that a run cut short can be repeated."""
    _base(lab).parent.mkdir(parents=True, exist_ok=True)
    replace_text(_base(lab, ".data.json"), json.dumps(_data_hashes(lab), indent=2) + "\n")
    for notebook in lab.notebooks:
        replace_file(_base(notebook), notebook.released)
