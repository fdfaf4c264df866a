"""Sections of a Markdown file: each has one block of code, a text for readers, and keys for the grader.

## name
Prose for readers.
- key: value
```python
print("the code")
```
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["CLOSE", "Form", "Section", "sections"]

CLOSE = "```"
"""The line below a block of code."""
_KEY = re.compile(r"- (\w+):\s*(.*)")


@dataclass(frozen=True)
class Form:
    """The form of the sections in a kind of file: titles, an example of one for messages, and languages of blocks."""

    title: re.Pattern[str]
    example: str
    languages: tuple[str, ...]


@dataclass
class Section:
    """One program. `line` is the line of its heading, and `first` the line on which its code begins.

    `keys` are its `- key: value` lines, and `prose` its other lines above the code.
    """

    title: str
    line: int
    prose: list[str] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)
    language: str = ""
    code: list[str] = field(default_factory=list)
    first: int = 0

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.code)


def sections(text: str, form: Form) -> Iterator[Section]:
    """Yield the sections of a file. Text before the first heading is for readers.

    Raises ValueError, with the line, for a line that does not fit the form.
    """
    section: Section | None = None
    lines = enumerate(text.split("\n"), start=1)
    for number, line in lines:
        if line.startswith("#") and (section or line.startswith("##")):
            if section:
                yield _complete(section, form)
            title = line.removeprefix("## ").rstrip()
            if title == line.rstrip() or not form.title.fullmatch(title):
                raise ValueError(f"line {number}: {line!r}: expected {form.example}")
            section = Section(title, number)
        elif section and (key := _KEY.fullmatch(line.rstrip())):
            if key[1] in section.keys:
                raise ValueError(f"line {number}: {line!r}: {section.title} has this key twice")
            section.keys[key[1]] = key[2]
        elif section and line.startswith(CLOSE):
            language = line.rstrip().removeprefix(CLOSE)
            if language not in form.languages or section.language:
                expected = f"expected one block per section, from {_opening(form)} to {CLOSE}"
                raise ValueError(f"line {number}: {line!r}: {expected}")
            section.language = language
            section.first = number + 1
            section.code = _code(section, lines)
        elif section and line.strip():
            section.prose.append(line.strip())
    if section:
        yield _complete(section, form)


def _code(section: Section, lines: Iterator[tuple[int, str]]) -> list[str]:
    code: list[str] = []
    for _, line in lines:
        if line.rstrip() == CLOSE:
            return code
        code.append(line)
    raise ValueError(f"line {section.first - 1}: the block of {section.title} is not closed with {CLOSE}")


def _complete(section: Section, form: Form) -> Section:
    if not section.language:
        raise ValueError(f"line {section.line}: {section.title} has no code: expected a block {_opening(form)}")
    return section


def _opening(form: Form) -> str:
    return " or ".join(f"{CLOSE}{language}" for language in form.languages)
