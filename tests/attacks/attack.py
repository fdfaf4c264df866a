"""The hostile answers in `answers/` and folders in `submissions/`, one file each, and what grading must make of them.

A module of `submissions/` has a sentence as its docstring, `SAYS` (words that must stand in the record, or in
nbgrader's log), `EARNS` (points of the whole submission) and `write(folder, lab)`, which fills one student's folder.

A file of `answers/` starts with comment lines: a sentence that says what it tries, then what is not the default of

    # says: words that must stand in the record; of several, "these | or those", one must
    # earns: 0                  points of exercise `mean`, which it answers
    # other: 60                 points of exercise `rescale`, which is answered honestly; any: the attack may ruin it
    # sandboxes: bwrap none     where it is tried; ungrouped: bubblewrap on a machine without control groups
    # limits: memory_mb=512     fields of `Limits` that differ from `grading.QUICK`
    # cell: before              it stands in a cell of the student's own, in front of honest answers
    # after: forge.py           a file of this folder whose text goes before it
"""

import importlib.util
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import ModuleType

from grading import QUICK, SANDBOXES

from grader.labs import Limits

HERE = Path(__file__).resolve().parent
_KEYS = {"says", "earns", "other", "sandboxes", "limits", "cell", "after"}
_TYPES = {field.name: type(getattr(QUICK, field.name)) for field in fields(Limits)}


@dataclass(frozen=True)
class Attack:
    """One hostile answer. `other` is None where the attack may or may not ruin the student's own second answer."""

    name: str
    tries: str
    text: str
    says: str
    earns: float
    other: float | None
    sandboxes: tuple[str, ...]
    limits: Limits
    before: bool

    def aimed(self, aims: dict[str, str]) -> str:
        """Its text with words such as PORT replaced by what they stand for on this machine."""
        return re.sub("|".join(aims), lambda found: aims[found[0]], self.text)


def read(path: Path) -> Attack:
    """Raises ValueError for a header that says something unknown: it would be silently ignored."""
    header, _, code = path.read_text(encoding="utf-8").partition("\n\n")
    sentence, *lines = header.splitlines()
    told = dict(_split(line, path) for line in lines)
    if not re.fullmatch(r"# [A-Z].*\.", sentence) or told.keys() - _KEYS:
        raise ValueError(f"{path.name}: expected '# A sentence.' and keys of {sorted(_KEYS)}, found {header!r}")
    changed = dict(word.split("=") for word in told.get("limits", "").split())
    other = told.get("other", "60")
    before = f"{(HERE / told['after']).read_text(encoding='utf-8')}\n" if "after" in told else ""
    return Attack(
        name=path.stem,
        tries=sentence.removeprefix("# "),
        text=before + code,
        says=told.get("says", ""),
        earns=float(told.get("earns", 0)),
        other=None if other == "any" else float(other),
        sandboxes=tuple(told.get("sandboxes", " ".join(SANDBOXES)).split()),
        limits=replace(QUICK, **{name: _TYPES[name](float(value)) for name, value in changed.items()}),
        before=told.get("cell") == "before",
    )


def _split(line: str, path: Path) -> tuple[str, str]:
    found = re.fullmatch(r"# ([a-z]+): (.+)", line)
    if not found:
        raise ValueError(f"{path.name}: {line!r} is no '# key: value'")
    return found[1], found[2]


ANSWERS = {path.stem: read(path) for path in sorted((HERE / "answers").glob("*.py"))}


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"submission_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SUBMISSIONS = {path.stem: load(path) for path in sorted((HERE / "submissions").glob("*.py"))}
