"""Say which exercises leak, except those whose answer a lab gives on purpose: `handed_out` in its header."""

from collections.abc import Iterator, Sequence

from threeloops_grader.authoring.labs import Lab, LabError
from threeloops_grader.authoring.manifest import manifest
from threeloops_grader.proposals.search import Leak, Source

__all__ = ["faults"]

_LONGEST = 3000
"""Characters of an answer that a fault shows."""

_COPY = "Show cases with numbers in the visible test and move the formula to a hidden one"
_MENDS: dict[Source, tuple[str, str]] = {
    "notebook": ("notebook", _COPY),
    "ranks": ("notebook", _COPY),
    "library": ("library", "Withhold the module that answers it"),
}
"""The origin of a copied answer for each source, and the way to mend the leak."""


def faults(lab: Lab, leaks: Sequence[Leak], source: Source) -> Iterator[str]:
    """Yield a sentence for each exercise that leaks points and is not handed out."""
    handed_out, (origin, mend) = _handed_out(lab), _MENDS[source]
    for leak in leaks:
        if leak.exercise not in handed_out:
            yield (
                f"{lab.slug}, {leak.exercise}: this answer is copied from the {origin}, and earns {leak.points:g} of "
                f"{leak.of:g} points. {mend}, or say in the header why it is handed out "
                f"(handed_out: {{{leak.exercise}: reason}}).\n{leak.text.strip()[-_LONGEST:]}"
            )


def _handed_out(lab: Lab) -> dict[str, str]:
    """Return the exercises whose answer the lab gives on purpose, with reasons.

    Raises LabError without a reason, and for an exercise that the lab does not have.
    """
    reasons = lab.settings.get("handed_out") or {}
    where = f"lab {lab.slug}, header: handed_out"
    if not isinstance(reasons, dict) or not all(isinstance(why, str) and why.strip() for why in reasons.values()):
        raise LabError(f"{where} is {reasons!r}, expected exercises, each with a reason")
    exercises = {exercise.id for exercise in manifest(lab).exercises}
    if unknown := sorted(set(reasons) - exercises):
        raise LabError(f"{where} names {', '.join(unknown)}, and the lab has only {', '.join(sorted(exercises))}")
    return reasons
