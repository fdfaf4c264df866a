"""A lab's `equivalent_mutants.json`: the mutants that no test can tell from the reference, each with its reason.

An entry names its mutant by the exercise, the fault, and the line with it (`Mutant.place`). The fault alone would
not do: `1 → 2 #3` is another mutant as soon as somebody adds a 1 above it.
"""

import json
from collections.abc import Mapping, Sequence

from threeloops_grader.authoring.labs import Lab, LabError
from threeloops_grader.mutation.mutate import Mutant

__all__ = ["equivalent_mutants"]

_KEYS = ("exercise", "fault", "line", "why")


def equivalent_mutants(lab: Lab, made: Mapping[str, Sequence[Mutant]]) -> dict[tuple[str, str], str]:
    """Read the entries about the exercises in `made`, which has the mutants of each: (exercise, fault) → the reason.

    Raises LabError if the file cannot be read, gives no reason, or has an entry that is out of date. The message lists
    every such entry, and how to mend it.
    """
    path = lab.folder / "equivalent_mutants.json"
    entries = _read(lab) if path.exists() else []
    reasons: dict[tuple[str, str], str] = {}
    problems = []
    for exercise, fault, line, why in entries:
        if not why.strip():
            problems.append(f"{exercise}, {fault}: say why no test can tell it from the reference")
        elif (exercise, fault) in reasons:
            problems.append(f"{exercise}, {fault}: stands twice")
        elif exercise in made and (stale := _why_stale(made[exercise], fault, line)):
            problems.append(f"{exercise}, {fault}: {stale}")
        reasons[exercise, fault] = why.strip()
    if problems:
        raise LabError("\n".join([f"{path}:", *problems]))
    return {key: why for key, why in reasons.items() if key[0] in made}


def _read(lab: Lab) -> list[list[str]]:
    path = lab.folder / "equivalent_mutants.json"
    try:
        rows = [[entry[key] for key in _KEYS] for entry in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, KeyError, TypeError) as error:
        raise LabError(f"{path}: expected a list of objects with {', '.join(_KEYS)} ({error})") from None
    if not all(isinstance(value, str) for row in rows for value in row):
        raise LabError(f"{path}: expected a list of objects with {', '.join(_KEYS)}, each of them a text")
    return rows


def _why_stale(made: Sequence[Mutant], fault: str, line: str) -> str:
    named = next((mutant for mutant in made if mutant.fault == fault), None)
    if named is not None and named.place == line:
        return ""
    now = f"is now in the line {named.place!r}" if named is not None else "is not a mutant of the reference"
    moved = ", ".join(repr(mutant.fault) for mutant in made if mutant.place == line)
    advice = f"name it {moved}" if moved else "check by hand whether a mutant of today's reference is meant"
    return f"{now}; the entry is about {line!r}: {advice}"
