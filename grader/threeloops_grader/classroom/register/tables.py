"""Read a table that a platform exported: find its encoding, separator, heading and columns."""

import csv
import io
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from threeloops_grader.authoring.labs import LabError

__all__ = ["Export", "read_columns", "read_table", "require_no_faults"]

_MAX_BYTES = 16 << 20
_MAX_FAULTS = 20
_TITLE_ROWS = 5
"""The heading is among this many first rows, because some exports begin with a title."""

_IDS = (
    "student_id", "username", "login", "login id", "sis login id", "sid", "student id", "id", "identifier",
    "benutzername", "anmeldename", "nom d'utilisateur", "nombre de usuario",
)  # fmt: skip
"""Headings of the account's name, the preferred one first."""

_COLUMNS = {
    "id": _IDS,
    "first_name": ("first_name", "first name", "firstname", "given name", "vorname", "prénom", "nombre"),
    "last_name": (
        "last_name", "last name", "lastname", "surname", "family name", "nachname", "nom", "nom de famille",
        "apellido(s)", "apellidos",
    ),
    "name": ("name", "full name", "student", "vollständiger name", "nom complet", "nombre completo"),
    "email": (
        "email", "email address", "e-mail", "mail", "e-mail-adresse", "adresse de courriel", "dirección de correo",
        "dirección email",
    ),
    "canvas_id": ("canvas_id",),
    "sis_id": (
        "sis_id", "sis user id", "id number", "orgdefinedid", "student id", "id-nummer", "numéro d'identification",
        "número de id",
    ),
    "section": ("section", "sections"),
    "role": ("role",),
    "status": ("status", "enrolment", "enrollment", "enrolment status", "enrollment status"),
}  # fmt: skip
"""Headings of each field, in English, German, French and Spanish; capitals do not matter."""


@dataclass(frozen=True)
class Export:
    """A table. `column` has the position of each field, and `rows` has each row with the line on which it ends."""

    heading: tuple[str, ...]
    column: dict[str, int]
    rows: list[tuple[int, list[str]]]

    def has(self, *headings: str) -> bool:
        return all(heading in self.heading for heading in headings)


def read_table(path: Path) -> Export:
    """Read a CSV file in UTF-8 or UTF-16, separated by commas, semicolons or tabs.

    Raises LabError: it is not such a file, or no column has ids or email addresses.
    """
    text = _text(path)
    separators = [",", ";", "\t"]
    if text[:4].casefold() == "sep=":  # Excel's line with the separator
        line, _, text = text.partition("\n")
        separators = [line.rstrip()[4:5] or ","]
    tables = []
    errors = []
    for separator in separators:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
        try:
            rows = [(reader.line_num, row) for row in reader]
        except csv.Error as error:
            errors.append(f"{path}, line {reader.line_num}: {error}; is a quote missing?")
        else:
            tables.append(
                max((_from(rows, at) for at in range(min(_TITLE_ROWS, len(rows)))), key=_recognised, default=None)
            )
    readable = [table for table in tables if table is not None]
    best = max(readable, key=_recognised, default=None)
    if best is None or not {"id", "sis_id", "email"} & set(best.column):
        if errors:
            raise LabError(errors[0])
        heading = best.heading if best else ()
        raise LabError(
            f"{path} has no column with the students' ids (found {', '.join(heading)[:300] or 'no heading'}); expected "
            f"one of {', '.join(_IDS)} (the account's name, as nbgrader's exchange knows it), or email addresses"
        )
    return best


def read_columns(path: Path, needed: Sequence[str], optional: Sequence[str]) -> list[tuple[int, dict[str, str]]]:
    """Read an instructor's own CSV file, whose headings are given. Returns each row that is not empty, with its line.

    Raises LabError: it is not such a file, a needed column is missing, or there is another one.
    """
    text = _text(path)
    first = text.partition("\n")[0]
    separator = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader]
    except csv.Error as error:
        raise LabError(f"{path}, line {reader.line_num}: {error}; is a quote missing?") from None
    rows = [(line, row) for line, row in rows if any(row)]
    heading = [cell.casefold() for cell in rows[0][1]] if rows else []
    others = [name for name in heading if name not in (*needed, *optional)]
    missing = [name for name in needed if name not in heading]
    if missing or others or len(set(heading)) < len(heading):
        expected = ", ".join(needed) + (f", and any of {', '.join(optional)}" if optional else "")
        raise LabError(f"{path} has the columns {', '.join(heading)[:300] or '(none)'}; expected {expected}")
    for line, row in rows[1:]:
        if len(row) > len(heading) and any(row[len(heading) :]):
            raise LabError(f"{path}, line {line}: {len(row)} cells, but the heading has {len(heading)}")
    return [(line, dict(zip(heading, row + [""] * len(heading), strict=False))) for line, row in rows[1:]]


def require_no_faults(faults: Sequence[str], path: Path, purpose: str = "be used") -> None:
    """Check that a table has no faults. Raises LabError that lists the first 20, and how many more there are."""
    if faults:
        more = [f"and {len(faults) - _MAX_FAULTS} more"] if len(faults) > _MAX_FAULTS else []
        listed = "\n  ".join([*faults[:_MAX_FAULTS], *more])
        raise LabError(f"{path} cannot {purpose}; nothing was changed:\n  {listed}")


def _text(path: Path) -> str:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise LabError(f"there is no file {path}; nothing was changed") from None
    if size > _MAX_BYTES:
        raise LabError(f"{path} has {size:,} bytes, a table at most {_MAX_BYTES:,}")
    content = path.read_bytes()
    if content.startswith(b"PK\x03\x04"):
        raise LabError(f"{path} is a workbook of Excel or another zip file, not a CSV file; save it as CSV UTF-8")
    if content.lstrip()[:1] == b"<":
        raise LabError(
            f"{path} is a web page, not a CSV file: perhaps a page to log in was downloaded; download the file again"
        )
    encoding = "utf-16" if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        at = error.start
        raise LabError(f"{path} is not in UTF-8 (byte {at} is 0x{content[at]:02x}); save it as CSV UTF-8") from None


def _from(rows: list[tuple[int, list[str]]], at: int) -> Export:
    """Return the table whose heading is row `at`."""
    heading = tuple(" ".join(cell.strip().casefold().split()) for cell in rows[at][1])
    column = {}
    for field, names in _COLUMNS.items():
        positions = [heading.index(name) for name in names if name in heading]
        if positions:
            column[field] = positions[0]
    return Export(heading, column, rows[at + 1 :])


def _recognised(table: Export) -> tuple[int, int]:
    return len(set(table.column.values())), len(table.heading)
