"""The hostile kernels in `tests/attacks/kernels/`, one answer to an exercise of the toy kernel lab per file.

A file starts with comment lines: a sentence that says what it tries, then what is not the default of

    # says: words that must stand in the record
    # exercise: softmax         the exercise that it answers; it must earn nothing there
    # other: 40                 points of the other kernel; any: the attack may ruin the student's own second answer
    # limits: test_seconds=4    fields of `Limits` that differ from those of the test
    # after: forge_plan.py      a file of `tests/attacks/` whose text goes before it
"""

import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parents[1] / "attacks"
_KEYS = {"says", "exercise", "other", "limits", "after"}


@dataclass(frozen=True)
class KernelAttack:
    """One hostile answer. `other` is None where the other kernel may earn anything."""

    text: str
    says: str
    exercise: str
    other: float | None
    limits: dict[str, int]


def read(path: Path) -> KernelAttack:
    """Raises ValueError for a header that says something unknown: it would be silently ignored."""
    header, _, text = path.read_text(encoding="utf-8").partition("\n\n")
    sentence, *lines = header.splitlines()
    keys = dict(line.removeprefix("# ").partition(": ")[::2] for line in lines)
    if not re.fullmatch(r"# [A-Z].*\.", sentence) or keys.keys() - _KEYS or not keys.get("says"):
        raise ValueError(f"{path.name}: expected '# A sentence.', '# says: …' and keys of {sorted(_KEYS)}: {header!r}")
    other = keys.get("other", "40")
    before = f"{(HERE / keys['after']).read_text(encoding='utf-8')}\n" if "after" in keys else ""
    return KernelAttack(
        text=before + text,
        says=keys["says"],
        exercise=keys.get("exercise", "softmax"),
        other=None if other == "any" else float(other),
        limits={name: int(value) for name, value in (word.split("=") for word in keys.get("limits", "").split())},
    )


ATTACKS = {path.stem: read(path) for path in sorted((HERE / "kernels").glob("*.py"))}
