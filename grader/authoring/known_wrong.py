"""A known-wrong answer to an exercise: a file of `wrong/`, whose first lines say what grading it must show."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from grader.authoring.manifest import split_test_id

__all__ = ["KnownWrong"]

_KEYS = ("expect", "fails", "caught")


@dataclass(frozen=True)
class KnownWrong:
    """What the first lines of `<exercise>__<what_is_wrong>.py` say, each a comment of a key and its value:

    - `# expect: ` words of the message that the answer must earn;
    - `# fails: values, edges`: the parts whose points it loses, left out if it loses all;
    - `# caught: hidden`: it passes everything that a student sees.
    """

    path: Path
    expect: str
    fails: tuple[str, ...] = ()
    only_hidden: bool = False

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises ValueError naming the file and the line that says something else."""
        said = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            key, _, value = line.removeprefix("# ").partition(": ")
            if not line.startswith("# ") or key not in _KEYS:
                break
            said[key] = value.strip()
        if not said.get("expect"):
            raise ValueError(f"{path.name}: line 1 must be '# expect: <words of the failing check's message>'")
        if said.get("caught", "hidden") != "hidden":
            raise ValueError(f"{path.name}: '# caught: {said['caught']}': expected hidden, or no such line")
        fails = tuple(part.strip() for part in said["fails"].split(",")) if "fails" in said else ()
        return cls(path, said["expect"], fails, "caught" in said)

    @property
    def exercise(self) -> str:
        return self.path.name.split("__")[0]

    def lost(self, tests: Sequence[str]) -> set[str]:
        """Of the tests of its exercise those that it fails. Raises ValueError for a part that the exercise has not."""
        by_part = {split_test_id(test)[1]: test for test in tests}
        if unknown := set(self.fails) - by_part.keys():
            names = ", ".join(sorted(unknown))
            raise ValueError(f"{self.path.name}: no part {names}; there are {', '.join(by_part)}")
        return {by_part[part] for part in self.fails or by_part}
