"""The form of `answers.md`: a section for each answer, with its whole text or with its changes to the reference.

## wrong/softmax__forgets_the_maximum
Large scores overflow.
- expect: overflows
- fails: values, edges
```diff
-    scores = torch.exp(x - x.max())
+    scores = torch.exp(x)
```

## right/softmax__by_the_library
```python
def softmax(x):
    return torch.softmax(x, -1)
```
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from threeloops_grader.authoring.markdown.hunks import SEPARATOR, Hunk, difference, split
from threeloops_grader.authoring.markdown.sections import CLOSE, Form, Section, sections

__all__ = ["ANSWERS", "Draft", "Side", "drafts", "written"]

ANSWERS = "answers.md"
"""The file with a lab's answers other than the reference."""
_CHANGE = "diff"
_WHOLE = "python"
_FORM = Form(
    re.compile(r"(wrong|right)/\w+"),
    "'## wrong/<exercise>__<what_is_wrong>' or '## right/<exercise>__<how>'",
    (_CHANGE, _WHOLE),
)

Side = Literal["right", "wrong"]


@dataclass(frozen=True)
class Draft:
    """An answer in its written form: a whole text, or hunks of a change. `line` is the line of its heading."""

    side: Side
    name: str
    line: int
    keys: Mapping[str, str]
    whole: str | None = None
    hunks: tuple[Hunk, ...] = ()

    @property
    def place(self) -> str:
        """Its place in the course, for messages."""
        return f"{ANSWERS}:{self.line}, {self.side}/{self.name}"

    @property
    def exercise(self) -> str:
        """The exercise that the name begins with; "" if the name does not have two parts."""
        exercise, _, what = self.name.partition("__")
        return exercise if what else ""


def drafts(text: str) -> Iterator[Draft]:
    """Yield the answers of a file, in its order.

    Raises ValueError, with the line, for a line that does not fit the form.
    """
    for section in sections(text, _FORM):
        side, _, name = section.title.partition("/")
        if side == "right" and section.keys:
            raise ValueError(
                f"line {section.line}: {section.title} has the key {min(section.keys)!r}: "
                "a right answer earns all points, so it has no keys"
            )
        change = section.language == _CHANGE
        yield Draft(
            cast(Side, side),
            name,
            section.line,
            section.keys,
            whole=None if change else section.text,
            hunks=_hunks(section) if change else (),
        )


def _hunks(section: Section) -> tuple[Hunk, ...]:
    for number, line in enumerate(section.code, start=section.first):
        if line and line[0] not in "-+ " and line.rstrip() != SEPARATOR:
            raise ValueError(
                f"line {number}: {line!r}: in the change of {section.title}, a line begins with -, + or a space"
            )
    return split(section.code, section.first)


def written(title: str, keys: Mapping[str, str], reference: str, answer: str) -> str:
    """Return the section of an answer, to be added to the file. Its title is `wrong/<name>` or `right/<name>`.

    Raises ValueError if the answer is the reference.
    """
    facts = [f"- {key}: {value}" for key, value in keys.items()]
    lines = [f"## {title}", *facts, f"{CLOSE}{_CHANGE}", *difference(reference, answer), CLOSE]
    return "".join(f"{line}\n" for line in lines)
