"""The hostile kernels in `tests/attacks/kernels/`, one answer to an exercise of the toy kernel lab per file.

A file starts with comment lines: a sentence that says what it tries, then what is not the default of

    # says: words that must stand in the record
    # exercise: softmax         the exercise that it answers; it must earn nothing there
    # other: 40                 points of the other kernel; any: the attack may ruin the student's own second answer
    # limits: test_seconds=4    fields of `Limits` that differ from those of the test
    # after: forge_recording.py    a file of `tests/attacks/` whose text goes before it
"""

from dataclasses import dataclass
from pathlib import Path

import attack_file

_KEYS = {"says", "exercise", "other", "limits", "after"}


@dataclass(frozen=True)
class KernelAttack:
    """One hostile answer. `other` is None where the other kernel may earn anything."""

    text: str
    says: str
    exercise: str
    other: float | None
    limits: dict[str, float]


def read(path: Path) -> KernelAttack:
    _, values, text = attack_file.read(path, _KEYS, needed={"says"})
    return KernelAttack(
        text=text,
        says=values["says"],
        exercise=values.get("exercise", "softmax"),
        other=attack_file.points(values, 40.0),
        limits=attack_file.limits(values),
    )


ATTACKS = {path.stem: read(path) for path in sorted((attack_file.ATTACKS / "kernels").glob("*.py"))}
