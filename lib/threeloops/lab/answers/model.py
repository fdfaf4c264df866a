"""The model answers of a lab, if its source lies near the notebook."""

import os
import re
from pathlib import Path

from threeloops.lab.course import journal

__all__ = ["model_answer"]


def model_answer(exercise: str) -> str:
    """Return the solution cell of the lab's source without the markers around the answer, or "" if there is no
    source."""
    source = _source()
    if source is None:
        return ""
    head = re.compile(rf'^# %% .*"grade_id": "{re.escape(exercise)}",.*"solution": true.*\n((?:(?!# %%).*\n)*)', re.M)
    match = head.search(source.read_text(encoding="utf-8") + "\n")
    lines = (
        [line for line in match[1].splitlines() if not re.match(r"\s*### (BEGIN|END) SOLUTION", line)] if match else []
    )
    return "\n".join(lines).strip()


def _source() -> Path | None:
    lab = journal.current_lab()
    if lab is None:
        return None
    folders = [Path(named)] if (named := os.environ.get("THREELOOPS_SOLUTIONS")) else []
    folders += [parent / "solutions" for parent in Path.cwd().parents]
    return next((path for folder in folders if (path := folder / lab / f"{lab}.py").is_file()), None)
