"""Markdown files of `tests/attacks/`: a section per attack, with a sentence that says what it tries, keys, and a cell.

## exits
Ends the process while the cell runs.
- says: words that must stand in the record
```python
raise SystemExit
```
"""

import re
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, fields
from pathlib import Path

from threeloops_grader.authoring.labs import LabLimits
from threeloops_grader.authoring.markdown.sections import Form, Section, sections

ATTACKS = Path(__file__).resolve().parents[1] / "attacks"
_FORM = Form(re.compile(r"\w+"), "'## <what_it_does>'", ("python",))
_TYPES = {field.name: type(field.default) for field in fields(LabLimits)}


@dataclass(frozen=True)
class WrittenAttack:
    """An attack as its file has it. `text` begins with the text of the file that the key `after` names."""

    name: str
    tries: str
    values: dict[str, str]
    text: str


def read(path: Path, keys: Set[str], needed: Set[str] = frozenset()) -> list[WrittenAttack]:
    """Return all attacks of a file.

    Raises ValueError for a section without what is `needed`, or with what is unknown: it would be silently ignored.
    """
    attacks = list(sections(path.read_text(encoding="utf-8"), _FORM))
    if twice := [title for title, count in Counter(section.title for section in attacks).items() if count > 1]:
        raise ValueError(f"{path.name} has two attacks {twice[0]}; rename one")
    return [_attack(section, f"{path.name}:{section.line}, {section.title}", keys, needed) for section in attacks]


def _attack(section: Section, place: str, keys: Set[str], needed: Set[str]) -> WrittenAttack:
    tries = " ".join(section.prose)
    if not re.fullmatch(r"[A-Z].*\.", tries):
        raise ValueError(f"{place}: expected a sentence that says what it tries, found {tries!r}")
    if unknown := section.keys.keys() - keys:
        raise ValueError(f"{place}: '{min(unknown)}': no such key; the keys are {', '.join(sorted(keys))}")
    if missing := needed - section.keys.keys():
        raise ValueError(f"{place}: expected '- {min(missing)}: …' below its heading")
    after = section.keys.get("after")
    before = f"{(ATTACKS / after).read_text(encoding='utf-8')}\n" if after else ""
    return WrittenAttack(section.title, tries, section.keys, before + section.text)


def points(values: dict[str, str], usual: float) -> float | None:
    """Return the points of the other exercise, or None if the attack may ruin it."""
    other = values.get("other", str(usual))
    return None if other == "any" else float(other)


def limits(values: dict[str, str]) -> dict[str, float]:
    """Return the fields of `LabLimits` that the attack changes."""
    words = (word.split("=") for word in values.get("limits", "").split())
    return {name: _TYPES[name](float(value)) for name, value in words}
