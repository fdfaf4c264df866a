"""Hints that open one at a time, in the notebook and in an exported page alike."""

from threeloops.lab.widgets import cards
from threeloops.lab.widgets.display import publish

__all__ = ["hint"]


def hint(grade_id: str, *hints: str) -> None:
    """Show `hints`, each folded inside the one before it, so that they open one by one. Backticks set code."""
    if not hints or not all(isinstance(text, str) and text.strip() for text in hints):
        raise ValueError(f"hint({grade_id!r}): expected one text or more, none empty")
    more = f"\n({len(hints) - 1} more in the notebook)" if len(hints) > 1 else ""
    publish(f"hint for {grade_id}: {hints[0]}{more}", {"text/html": cards.frame("hint", _nested(grade_id, hints))})


def _nested(grade_id: str, hints: tuple[str, ...]) -> str:
    html = ""
    for i in reversed(range(len(hints))):
        label = f"Hint {i + 1} of {len(hints)}" + (f" · {grade_id}" if i == 0 else "")
        style = "margin:.4em 0 0 .9em" if i else ""
        html = (
            f'<details style="{style}"><summary style="cursor:pointer;font-weight:bold">{cards.inline(label)}</summary>'
            f'<div style="margin:.3em 0 .2em 1em">{cards.inline(hints[i])}</div>{html}</details>'
        )
    return html
