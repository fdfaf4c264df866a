"""The form of `answers.md`: a section for each answer, with the changes that make it of the reference.

## wrong/softmax__forgets_the_maximum
Large scores overflow.
- expect: overflows
- fails: values, edges
```diff
-    scores = torch.exp(x - x.max())
+    scores = torch.exp(x)
```
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from threeloops_grader.authoring.changes.hunks import SEPARATOR, Hunk, difference, split

__all__ = ["Section", "sections", "written"]

_HEADING = re.compile(r"## (wrong|right)/(\w+)")
_KEY = re.compile(r"- (\w+):\s*(.*)")
_OPEN = "```diff"
_CLOSE = "```"


@dataclass
class Section:
    """One answer. `line` is the line of its heading, and `keys` are its `- key: value` lines."""

    kind: str
    name: str
    line: int
    keys: dict[str, str] = field(default_factory=dict)
    hunks: tuple[Hunk, ...] = ()


def sections(text: str) -> Iterator[Section]:
    """Yield the answers of a file. Text before the first heading is for readers.

    Raises ValueError, with the line, for a line that does not fit the form.
    """
    section: Section | None = None
    lines = enumerate(text.splitlines(), start=1)
    for number, line in lines:
        if line.startswith("#") and (section or line.startswith("##")):
            if section:
                yield _complete(section)
            if not (heading := _HEADING.fullmatch(line.rstrip())):
                raise ValueError(
                    f"line {number}: {line!r}: expected '## wrong/<exercise>__<what_is_wrong>' or '## right/…'"
                )
            section = Section(heading[1], heading[2], number)
        elif section and (key := _KEY.fullmatch(line.rstrip())):
            if section.kind == "right":
                raise ValueError(f"line {number}: {line!r}: a right answer earns all points, so it has no keys")
            if key[1] in section.keys:
                raise ValueError(f"line {number}: {line!r}: {_named(section)} has this key twice")
            section.keys[key[1]] = key[2]
        elif section and line.startswith("```"):
            if line.rstrip() != _OPEN or section.hunks:
                raise ValueError(f"line {number}: {line!r}: expected one block per answer, from {_OPEN} to {_CLOSE}")
            section.hunks = split(_block(section, lines, number), number + 1)
    if section:
        yield _complete(section)


def _block(section: Section, lines: Iterator[tuple[int, str]], opened: int) -> list[str]:
    marked: list[str] = []
    for number, line in lines:
        if line.rstrip() == _CLOSE:
            return marked
        if line and line[0] not in "-+ " and line.rstrip() != SEPARATOR:
            raise ValueError(
                f"line {number}: {line!r}: in the change of {_named(section)}, a line begins with -, + or a space"
            )
        marked.append(line)
    raise ValueError(f"line {opened}: the change of {_named(section)} is not closed with {_CLOSE}")


def _complete(section: Section) -> Section:
    if not section.hunks:
        raise ValueError(f"line {section.line}: {_named(section)} has no change: expected a block {_OPEN}")
    return section


def _named(section: Section) -> str:
    return f"{section.kind}/{section.name}"


def written(title: str, keys: Mapping[str, str], reference: str, answer: str) -> str:
    """Return the section of an answer, to be added to the file. Its title is `wrong/<name>` or `right/<name>`.

    Raises ValueError if the answer is the reference.
    """
    facts = [f"- {key}: {value}" for key, value in keys.items()]
    lines = [f"## {title}", *facts, _OPEN, *difference(reference, answer), _CLOSE]
    return "".join(f"{line}\n" for line in lines)
