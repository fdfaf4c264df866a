"""Hostile answers (`attacks/answers.md`) and folders (`attacks/submissions/`), and what must come of them.

A module of `submissions/` has a sentence as its docstring, `SAYS` (words that must stand in the record, or in
nbgrader's log), `EARNS` (points of the whole submission) and `write(folder, lab)`, which fills one student's folder.

The section of an answer has a sentence that says what it tries, then what is not the default of

    - says: words that must stand in the record; of several, "these | or those", one must
    - earns: 0                  points of exercise `mean`, which it answers
    - other: 60                 points of exercise `rescale`, which is answered honestly; any: the attack may ruin it
    - sandboxes: bwrap none     where it is tried; ungrouped: bubblewrap on a machine without control groups
    - limits: memory_mb=512     fields of `LabLimits` that differ from `grading.QUICK`
    - cell: before              it stands in a cell of the student's own, in front of honest answers
    - after: forge.py           a file of this folder whose text goes before it
"""

import importlib.util
import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import attack_file
from grading import QUICK, SANDBOXES
from threeloops_grader.authoring.labs import LabLimits

_KEYS = {"says", "earns", "other", "sandboxes", "limits", "cell", "after"}


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
    limits: LabLimits
    before: bool

    def aimed(self, aims: dict[str, str]) -> str:
        """Its text with words such as PORT replaced by what they stand for on this machine."""
        return re.sub("|".join(aims), lambda word: aims[word[0]], self.text)


def _answer(written: attack_file.WrittenAttack) -> Attack:
    values = written.values
    return Attack(
        name=written.name,
        tries=written.tries,
        text=written.text,
        says=values.get("says", ""),
        earns=float(values.get("earns", 0)),
        other=attack_file.points(values, 60.0),
        sandboxes=tuple(values.get("sandboxes", " ".join(SANDBOXES)).split()),
        limits=replace(QUICK, **attack_file.limits(values)),
        before=values.get("cell") == "before",
    )


ANSWERS = {written.name: _answer(written) for written in attack_file.read(attack_file.ATTACKS / "answers.md", _KEYS)}


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"submission_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SUBMISSIONS = {path.stem: load(path) for path in sorted((attack_file.ATTACKS / "submissions").glob("*.py"))}
