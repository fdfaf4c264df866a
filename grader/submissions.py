"""Submissions as they arrive: `DIR/<student>/<lab>/<lab>.ipynb`, nbgrader's own layout, read without trust."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from grader.labs import Lab

MAX_NOTEBOOK_BYTES = 32 << 20
_STUDENT = re.compile(r"[\w@.+-][\w@.+ -]{0,99}")


class BadSubmission(Exception):
    """This student's file cannot be graded; the message says why and what to hand in instead."""


@dataclass(frozen=True)
class Submission:
    """`student` is the folder's name, with what is not printable written as an escape."""

    student: str
    path: Path


def find(folder: Path, lab: Lab) -> list[Submission]:
    """Every student folder, in alphabetical order; also those whose notebook is missing, so that nobody is forgotten.

    Raises:
        FileNotFoundError: `folder` does not exist or holds no student.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder; expected {folder}/<student>/{lab.slug}/{lab.slug}.ipynb")
    found = list(_students(folder, lab))
    if not found:
        raise FileNotFoundError(f"{folder} holds no student; expected {folder}/<student>/{lab.slug}/{lab.slug}.ipynb")
    return found


def _students(folder: Path, lab: Lab) -> Iterator[Submission]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or not (path.is_dir() or path.is_symlink()):
            continue
        yield Submission(_printable(path.name), path / lab.slug / f"{lab.slug}.ipynb")


def _printable(name: str) -> str:
    """A file's name as a record may hold and a terminal may show it."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def read(submission: Submission, folder: Path) -> NotebookNode:
    """The submitted notebook as plain data. Raises BadSubmission as `content` and `parse` do."""
    return parse(content(submission, folder))


def content(submission: Submission, folder: Path) -> bytes:
    """The submitted file. Never opens a link, a pipe or a device, which could lead elsewhere or never end.

    Raises:
        BadSubmission: no file, a link to somewhere else, a name that could leave the folder, a file too large.
    """
    path = submission.path
    if not _STUDENT.fullmatch(submission.student) or ".." in submission.student:
        raise BadSubmission(
            f"the folder's name {submission.student!r} is no student's: use letters, digits and . _ - @"
        )
    for part in (path.parent.parent, path.parent, path):
        if part.is_symlink():
            raise BadSubmission(f"{part.relative_to(folder)} is a symbolic link; hand in the file itself")
    if not path.is_file():
        other = sorted(_printable(p.name) for p in path.parent.glob("*.ipynb")) if path.parent.is_dir() else []
        hint = f"; the folder holds {', '.join(other)}" if other else ""
        raise BadSubmission(f"no file {path.relative_to(folder)}{hint}")
    size = path.stat().st_size
    if size > MAX_NOTEBOOK_BYTES:
        limit = MAX_NOTEBOOK_BYTES >> 20
        raise BadSubmission(f"the notebook has {size / 2**20:.0f} MiB, at most {limit} are read; clear its outputs")
    return path.read_bytes()


def parse(content: bytes) -> NotebookNode:
    """Notebook bytes as data; only JSON is required here, the rest is judged against the manifest.

    Only what grading reads is kept: the text, type, id and nbgrader metadata of each cell.

    Raises:
        BadSubmission: not JSON, or not a JSON object.
    """
    if not content.strip():
        raise BadSubmission("the file is empty; save the notebook again and hand it in")
    try:
        data = json.loads(content)
        if isinstance(data, dict):
            return nbformat.from_dict(_essentials(data))
    except (ValueError, RecursionError) as error:
        raise BadSubmission(f"the file is not JSON ({error}): not a notebook, or one that was cut off") from None
    raise BadSubmission(f"the file holds a JSON {type(data).__name__}, not a notebook")


def _essentials(data: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {"metadata": _only(data.get("metadata"), ("threeloops",))}
    if isinstance(cells := data.get("cells"), list):
        kept["cells"] = [
            {**_only(c, ("id", "cell_type", "source")), "metadata": _only(c.get("metadata"), ("nbgrader", "tags"))}
            for c in cells
            if isinstance(c, dict)
        ]
    return kept


def _only(value: Any, keys: tuple[str, ...]) -> dict[str, Any]:
    return {k: value[k] for k in keys if k in value} if isinstance(value, dict) else {}
