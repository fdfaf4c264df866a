"""Files of `tests/attacks/` that hold a cell: a sentence, keys and values, a blank line, and the cell's text."""

import re
from collections.abc import Set
from dataclasses import fields
from pathlib import Path

from threeloops_grader.authoring.labs import Limits

ATTACKS = Path(__file__).resolve().parents[1] / "attacks"
_TYPES = {field.name: type(field.default) for field in fields(Limits)}


def read(path: Path, keys: Set[str], needed: Set[str] = frozenset()) -> tuple[str, dict[str, str], str]:
    """What the file tries, its keys, and the text with that of the file named by `after` before it.

    Raises ValueError for a header without what is `needed`, or with what is unknown: it would be silently ignored.
    """
    header, _, text = path.read_text(encoding="utf-8").partition("\n\n")
    sentence, *lines = header.splitlines()
    told = [re.fullmatch(r"# ([a-z]+): (.+)", line) for line in lines]
    if not re.fullmatch(r"# [A-Z].*\.", sentence) or not all(found and found[1] in keys for found in told):
        raise ValueError(
            f"{path.name}: expected '# A sentence.' and '# key: value' of {sorted(keys)}, found {header!r}"
        )
    values = {found[1]: found[2] for found in told if found}
    if missing := needed - values.keys():
        raise ValueError(f"{path.name}: expected '# {min(missing)}: …' in its header, found {header!r}")
    before = f"{(ATTACKS / values['after']).read_text(encoding='utf-8')}\n" if "after" in values else ""
    return sentence.removeprefix("# "), values, before + text


def points(values: dict[str, str], usual: float) -> float | None:
    """Those of the other exercise; None where the attack may ruin it."""
    other = values.get("other", str(usual))
    return None if other == "any" else float(other)


def limits(values: dict[str, str]) -> dict[str, float]:
    """Fields of `Limits` that the file changes."""
    words = (word.split("=") for word in values.get("limits", "").split())
    return {name: _TYPES[name](float(value)) for name, value in words}
