"""The hostile kernels in `tests/attacks/kernels.md`, answers to an exercise of the toy kernel lab.

The section of an attack has a sentence that says what it tries, then what is not the default of

    - says: words that must stand in the record
    - exercise: softmax         the exercise that it answers; it must earn nothing there
    - other: 40                 points of the other kernel; any: the attack may ruin the student's own second answer
    - limits: test_seconds=4    fields of `LabLimits` that differ from those of the test
    - after: forge_recording.py    a file of `tests/attacks/` whose text goes before it
"""

from dataclasses import dataclass

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


def _kernel_attack(written: attack_file.WrittenAttack) -> KernelAttack:
    return KernelAttack(
        text=written.text,
        says=written.values["says"],
        exercise=written.values.get("exercise", "softmax"),
        other=attack_file.points(written.values, 40.0),
        limits=attack_file.limits(written.values),
    )


ATTACKS = {
    written.name: _kernel_attack(written)
    for written in attack_file.read(attack_file.ATTACKS / "kernels.md", _KEYS, needed={"says"})
}
