"""Hints that open one at a time, in the notebook and in an exported page alike."""

from threeloops.lab.widgets import cards
from threeloops.lab.widgets.display import publish


def hint(grade_id: str, *hints: str) -> None:
    """Fold `hints` into one another: the second can be opened only inside the first. Backticks set code."""
    if not hints or not all(isinstance(text, str) and text.strip() for text in hints):
        raise ValueError(f"hint({grade_id!r}): expected one text or more, none empty")
    publish(_text(grade_id, hints), {"text/html": cards.frame("hint", nested(grade_id, hints))})


def nested(grade_id: str, hints: tuple[str, ...]) -> str:
    html = ""
    for i in reversed(range(len(hints))):
        label = f"Hint {i + 1} of {len(hints)}" + (f" · {grade_id}" if i == 0 else "")
        style = "margin:.4em 0 0 .9em" if i else ""
        html = (
            f'<details style="{style}"><summary style="cursor:pointer;font-weight:bold">{cards.inline(label)}</summary>'
            f'<div style="margin:.3em 0 .2em 1em">{cards.inline(hints[i])}</div>{html}</details>'
        )
    return html


def _text(grade_id: str, hints: tuple[str, ...]) -> str:
    more = len(hints) - 1
    return f"hint for {grade_id}: {hints[0]}" + (f"\n({more} more in the notebook)" if more else "")
