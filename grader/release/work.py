"""A student's own copy of a lab: `start` makes it, `update` brings a newer release into it, nothing overwrites it."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from threeloops.files import replace_text

from grader.authoring.labs import WORK, Lab, LabError
from grader.release.files import files_below, replace_file, sha256
from grader.release.merge import Merge, merge


class WorkError(LabError):
    """The student's copy is not there, or cannot be read."""


@dataclass(frozen=True)
class Started:
    """Where the student's copy lies; `already` where it was there before."""

    notebook: Path
    already: bool

    @property
    def message(self) -> str:
        if self.already:
            return f"You have started this lab already; your copy is {self.notebook} and was not touched."
        return f"Your copy is {self.notebook}. Open it with `make lab`; it is yours, no command overwrites it."


@dataclass
class Updated:
    """What `update` did. `backup` is None where there was nothing to do."""

    notebook: Path
    backup: Path | None = None
    merged: Merge | None = None
    data: list[str] = field(default_factory=list)
    kept_data: list[str] = field(default_factory=list)

    @property
    def message(self) -> str:
        if self.merged is None or not (self.backup or self.data):
            return f"{self.notebook} is up to date with the released lab."
        lines = [
            f"{self.notebook} is updated: {len(self.merged.renewed)} cells renewed, {len(self.merged.added)} added, "
            f"{len(self.merged.removed)} removed, {len(self.data)} data files renewed. What you wrote was kept."
        ]
        lines += [f"  you and the release both changed cell {key}: yours was kept" for key in self.merged.conflicts]
        lines += [f"  you changed {name}: yours was kept" for name in self.kept_data]
        if self.backup:
            lines.append(f"  your notebook as it was: {self.backup}")
        return "\n".join(lines)


def start(lab: Lab) -> Started:
    """Copy `labs/NN` to `work/NN`, and the release it was made from to `work/.base/`. Never overwrites a file.

    Raises:
        LabError: the lab has not been released.
    """
    if lab.work.exists():
        return Started(lab.work, already=True)
    _read(lab.released, f"lab {lab.slug} has not been released; run `threeloops release`")
    folder = lab.work.parent
    half = folder.with_name(f".{lab.slug}.{os.getpid()}.tmp")
    half.mkdir(parents=True)
    try:
        for name in sorted(files_below(lab.released.parent)):
            replace_file(half / name, lab.released.parent / name)
        _remember(lab)
        if folder.exists():  # the student removed the notebook and kept other files: give back what is missing
            for name in sorted(files_below(half) - files_below(folder), key=lambda n: n.endswith(".ipynb")):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (half / name).rename(folder / name)
        else:
            half.rename(folder)
    finally:
        shutil.rmtree(half, ignore_errors=True)
    return Started(lab.work, already=False)


def update(lab: Lab) -> Updated:
    """Merge the released lab into the student's copy; what they wrote is kept, the notebook as it was lies beside it.

    A run that is cut short leaves the old notebook or the new one, never half of one, and may be repeated.

    Raises:
        WorkError: the lab was not started, or the student's file is no notebook. Nothing was touched.
        LabError: the lab has not been released.
    """
    if not lab.work.exists():
        raise WorkError(f"{lab.work} does not exist; `threeloops start {lab.slug}` makes it")
    new = _read(lab.released, f"lab {lab.slug} has not been released; run `threeloops release`")
    student = _read(lab.work, f"{lab.work} is missing")
    merged = merge(_read_base(lab), student, new)
    result = Updated(lab.work, merged=merged)
    if merged.changed or merged.notebook.metadata.threeloops != student.metadata.get("threeloops"):
        result.backup = _back_up(lab.work, new.metadata.get("threeloops", {}).get("release", "update"))
        replace_text(lab.work, nbformat.writes(merged.notebook) + "\n")
    _update_data(lab, result)
    _remember(lab)
    return result


def _read(path: Path, missing: str) -> NotebookNode:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise WorkError(missing) from None
    except UnicodeDecodeError:
        raise WorkError(f"{path} is not text, so no notebook; nothing was changed") from None
    try:
        with warnings.catch_warnings(action="ignore"):  # nbformat repairs copied and missing ids, and says so
            notebook = nbformat.reads(text, as_version=4)
        cells = notebook.cells
    except Exception as error:  # nbformat raises several unrelated types for a damaged file
        reason = str(error).partition("\n")[0][:80]
        raise WorkError(
            f"{path} is not a notebook ({reason}); nothing was changed. Put it aside and start again, or restore it "
            f"from {path.parent}/.ipynb_checkpoints"
        ) from None
    if not all(isinstance(cell.get("source"), str) and isinstance(cell.get("metadata"), dict) for cell in cells):
        raise WorkError(
            f"{path} holds a cell without text or metadata; nothing was changed. Save it in JupyterLab again"
        )
    return notebook


def _read_base(lab: Lab) -> NotebookNode:
    """The release that the student's copy came from. Without it no cell counts as untouched, and all are kept."""
    try:
        return _read(_base(lab), "")
    except WorkError:
        return NotebookNode(cells=[], metadata=NotebookNode())


def _back_up(notebook: Path, release: str) -> Path:
    """Copy a notebook, byte for byte, to a name beside it that is still free."""
    content = notebook.read_bytes()
    for n in range(1, 10_000):
        backup = notebook.with_name(f"{notebook.stem}.before-{release}{'' if n == 1 else f'-{n}'}.ipynb")
        if not backup.exists():
            replace_text(backup, content.decode("utf-8"))
            return backup
        if backup.read_bytes() == content:
            return backup
    raise WorkError(f"{notebook.parent} holds thousands of backups; remove some")


def _update_data(lab: Lab, result: Updated) -> None:
    """Renew the data files that the student did not edit; a file that they deleted comes back."""
    source, target = lab.released.parent, lab.work.parent
    known = _known_data(lab)
    for name in sorted(files_below(source) - {lab.released.name}):
        fresh, own = source / name, target / name
        if own.exists() and sha256(own) == sha256(fresh):
            continue
        if own.exists() and sha256(own) != known.get(name):
            result.kept_data.append(name)
            continue
        replace_file(own, fresh)
        result.data.append(name)


def _base(lab: Lab) -> Path:
    """The release that the student's copy was last brought up to."""
    return lab.root / WORK / ".base" / f"{lab.slug}.ipynb"


def _base_data(lab: Lab) -> Path:
    return _base(lab).with_suffix(".data.json")


def _remember(lab: Lab) -> None:
    """Record the release that the student's copy now holds. Last of all: a run cut short is then simply repeated."""
    _base(lab).parent.mkdir(parents=True, exist_ok=True)
    names = sorted(files_below(lab.released.parent) - {lab.released.name})
    hashes = {name: sha256(lab.released.parent / name) for name in names}
    replace_text(_base_data(lab), json.dumps(hashes, indent=2) + "\n")
    replace_text(_base(lab), lab.released.read_text(encoding="utf-8"))


def _known_data(lab: Lab) -> dict[str, str]:
    try:
        return json.loads(_base_data(lab).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
