"""Compare leaks with those that are known: `known_leaks.json` beside a lab's source, and `handed_out` in its header.

    {"notebook": {"gpu_hours": 12}, "library": {"saxpy_bytes": 10}}

This file lists, for each source, the points that proposed answers earn. A third source is `ranks`. The list may only
get shorter. It is a fault if an exercise leaks more or fewer points than the list says.
"""

import json
from collections.abc import Iterable, Iterator, Sequence

from grader.authoring.labs import Lab, LabError
from grader.authoring.manifest import manifest
from grader.proposals.search import Leak, Source

__all__ = ["faults"]

_LONGEST = 3000
"""Characters of an answer that a fault shows."""

_FILE = "known_leaks.json"
_COPY = "Show cases with numbers in the visible test and move the formula to a hidden one"
_MENDS: dict[Source, tuple[str, str]] = {
    "notebook": ("notebook", _COPY),
    "ranks": ("notebook", _COPY),
    "library": ("library", "Withhold the module that answers it"),
}
"""The origin of a copied answer for each source, and the way to mend the leak."""


def _known_leaks(lab: Lab, source: Source) -> dict[str, float]:
    """Return the points that proposals from this source are known to earn, by exercise.

    Raises LabError if the file is not such a table, or names an exercise that the lab does not have.
    """
    path = lab.folder / _FILE
    if not path.exists():
        return {}
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        tables = {name: {str(each): float(points) for each, points in table.items()} for name, table in known.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise LabError(f"{path}: expected tables of exercises and points, such as notebook ({error})") from None
    if unknown := sorted(tables.keys() - set(_MENDS)):
        raise LabError(f"{path} has a table {', '.join(unknown)}; its tables are {', '.join(_MENDS)}")
    found = tables.get(source, {})
    _require_exercises(lab, str(path), found)
    return found


def _handed_out(lab: Lab) -> dict[str, str]:
    """Return the exercises whose answer the lab gives on purpose, with reasons. Raises LabError without a reason."""
    reasons = lab.settings.get("handed_out") or {}
    if not isinstance(reasons, dict) or not all(isinstance(why, str) and why.strip() for why in reasons.values()):
        raise LabError(f"lab {lab.slug}, header: handed_out is {reasons!r}, expected exercises, each with a reason")
    _require_exercises(lab, f"lab {lab.slug}, header: handed_out", reasons)
    return reasons


def _require_exercises(lab: Lab, where: str, names: Iterable[str]) -> None:
    exercises = {each.id for each in manifest(lab).exercises}
    if unknown := sorted(set(names) - exercises):
        raise LabError(f"{where} names {', '.join(unknown)}, and the lab has only {', '.join(sorted(exercises))}")


def faults(lab: Lab, leaks: Sequence[Leak], source: Source) -> Iterator[str]:
    """Yield a sentence for each exercise that leaks more or fewer points than `known_leaks.json` says."""
    known, handed_out = _known_leaks(lab, source), _handed_out(lab)
    found = {leak.exercise: leak for leak in leaks if leak.exercise not in handed_out}
    for exercise in sorted(found.keys() | known.keys()):
        before, leak = known.get(exercise, 0.0), found.get(exercise)
        points = leak.points if leak else 0.0
        if leak and points > before:
            origin, mend = _MENDS[source]
            yield (
                f"{lab.slug}, {exercise}: this answer is copied from the {origin}, and earns {points:g} of "
                f"{leak.of:g} points, expected {before:g}. {mend}, or say in the header why it is "
                f"handed out (handed_out: {{{exercise}: reason}}).\n{leak.text.strip()[-_LONGEST:]}"
            )
        elif points < before:
            mended = f"set it to {points:g}" if points else "take its line out"
            counted = f"{before:g} points leak (source {source}), and now {points:g} do"
            yield f"{lab.slug}, {exercise}: {_FILE} says that {counted}: {mended}"
