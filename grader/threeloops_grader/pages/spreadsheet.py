"""CSV that spreadsheets show as text, without executing a cell as a formula."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["to_csv"]

# Full-width forms count as formulas in some locales, and spaces before a formula are dropped by some programs.
_FORMULA = re.compile(r"\s*'*\s*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")


def to_csv(rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as CSV text. A text that could run as a formula gets one `'` in front. Every other text reads back
    unchanged.

    A text that is already quoted gets one more, so removing one always gives the text. A single `-` is not a formula.
    """
    out = io.StringIO()
    csv.writer(out).writerows([[_shown(cell) for cell in row] for row in rows])
    return out.getvalue()


def _shown(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value != "-" and _FORMULA.match(value) else value
