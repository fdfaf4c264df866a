"""The words of the course: `term("warp")` explains one where it is first used, and the glossary page lists them all."""

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

from threeloops.lab.course.loops import labs
from threeloops.lab.widgets import cards
from threeloops.lab.widgets.display import publish

__all__ = ["Term", "glossary", "page", "term"]


@dataclass(frozen=True)
class Term:
    """`meaning` is one to three sentences; `lab` is the number of the lab that explains it."""

    name: str
    meaning: str
    lab: int


@cache
def glossary() -> dict[str, Term]:
    """Every term by its name in lower case, in alphabetical order."""
    text = resources.files(__package__).joinpath("glossary.json").read_text(encoding="utf-8")
    terms = [Term(**entry) for entry in json.loads(text)]
    return {entry.name.lower(): entry for entry in sorted(terms, key=lambda entry: entry.name.lower())}


def term(name: str) -> None:
    """Show the meaning of a word in the course. Raises ValueError with the nearest words if it is not listed."""
    entry = glossary().get(name.strip().lower())
    if entry is None:
        import difflib

        near = difflib.get_close_matches(name.strip().lower(), glossary(), n=3, cutoff=0.5)
        raise ValueError(
            f"term({name!r}): not in the glossary" + (f"; did you mean {' or '.join(near)}?" if near else "")
        )
    where = f"lab {entry.lab:02d}"
    html = f"<b>{cards.inline(entry.name)}</b> · {cards.inline(entry.meaning)} {cards.small(f'({where})')}"
    publish(f"{entry.name}: {entry.meaning} ({where})", {"text/html": cards.frame("plain", html)})


def page() -> str:
    """The glossary in Markdown."""
    titles = {lab.number: lab.title for lab in labs()}
    lines = [
        f"**{entry.name}** — {entry.meaning} *Lab {entry.lab:02d}, {titles[entry.lab]}.*"
        for entry in glossary().values()
    ]
    return "# Glossary\n\n" + "\n\n".join(lines) + "\n"
