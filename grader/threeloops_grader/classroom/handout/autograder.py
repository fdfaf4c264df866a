"""The zip file that Gradescope takes as an autograder, and the program that it runs for each submission."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from threeloops.files import replace_text

from threeloops_grader.authoring.labs import SOLUTIONS, Lab, LabError, find_lab
from threeloops_grader.authoring.manifest import test_title
from threeloops_grader.authoring.markdown.answer_file import ANSWERS
from threeloops_grader.classroom.handout.archive import write_zip
from threeloops_grader.classroom.handout.bundle import course_files
from threeloops_grader.grading import records
from threeloops_grader.grading.grade import Options
from threeloops_grader.machine.faults import MachineFault
from threeloops_grader.release.files import files_below
from threeloops_grader.sandbox import bwrap
from threeloops_grader.submissions.submitted import BadSubmission
from threeloops_grader.worklist.grade_class import grade_class

__all__ = ["write_autograder"]

_SETUP = """\
#!/usr/bin/env bash
# Run once by Gradescope, when the autograder is built. Choose Ubuntu 24.04 there, which has Python 3.12.
set -euo pipefail
autograder="${AUTOGRADER:-/autograder}"
cd "$autograder/source/course"
if [ -n "${THREELOOPS_PYTHON:-}" ]; then  # an environment that has the packages already
  mkdir -p "$autograder/venv/bin"
  printf '#!/bin/sh\\nexec "%s" "$@"\\n' "$THREELOOPS_PYTHON" >"$autograder/venv/bin/python"
  chmod +x "$autograder/venv/bin/python"
else
  apt-get update
  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends bubblewrap g++ python3 python3-venv
  python3 scripts/make_venv.py "$autograder/venv" requirements.txt
fi
"""

_RUN = """\
#!/usr/bin/env bash
# Run by Gradescope for each submission.
set -euo pipefail
autograder="${{AUTOGRADER:-/autograder}}"
export THREELOOPS_ROOT="$autograder/source/course"
export PYTHONPATH="$THREELOOPS_ROOT/grader:$THREELOOPS_ROOT/lib"
cd "$THREELOOPS_ROOT"
exec "$autograder/venv/bin/python" -m threeloops_grader.classroom.handout.autograder {slug} \\
  "$autograder/submission" "$autograder/results/results.json"
"""


def write_autograder(path: Path, lab: Lab) -> None:
    """Write the zip: setup.sh, run_autograder, and the course with the sources of this lab alone."""
    files = {f"course/{name}": content for name, content in course_files(lab.root).items()}
    sources = (name for name in files_below(lab.folder) if name != ANSWERS and "__pycache__" not in name)
    files |= {f"course/{SOLUTIONS}/{lab.slug}/{name}": lab.folder / name for name in sources}
    files |= {"setup.sh": _SETUP.encode(), "run_autograder": _RUN.format(slug=lab.slug).encode()}
    files["course/README.md"] = b"Three Loops, for Gradescope\n"  # pyproject.toml names one
    write_zip(path, files, executable=("setup.sh", "run_autograder"))


def _grade_submission(lab: Lab, folder: Path) -> dict[str, Any]:
    """Grade the notebook in Gradescope's folder of a submission; returns the content of results.json.

    Where the container lets no sandbox be made, the submission is graded without one and the result says so.
    """
    notebooks = sorted(path for path in folder.rglob(f"{lab.slug}.ipynb") if path.is_file() and not path.is_symlink())
    if len(notebooks) != 1:
        others = ", ".join(sorted(path.name for path in folder.rglob("*"))[:5]) or "nothing"
        raise BadSubmission(
            f"expected one file {lab.slug}.ipynb, found {len(notebooks)} among {others}; hand in that file"
        )
    sandbox = bwrap.why_not() and "none" or "bwrap"
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch) / "student" / lab.slug
        place.mkdir(parents=True)
        (place / notebooks[0].name).write_bytes(notebooks[0].read_bytes())
        report = grade_class(Path(scratch), lab, Options(sandbox))  # type: ignore[arg-type]
    result = records.gradescope(report.records[0], report.sandbox)
    for test in result["tests"]:
        test["name"] = test_title(test["name"])
    return {**result, "visibility": "visible", "stdout_visibility": "hidden"}


def _main(slug: str, submission: str, results: str) -> None:
    try:
        result = _grade_submission(find_lab(slug), Path(submission))
    except BadSubmission as error:
        result = {"score": 0.0, "output": str(error)}
    except (MachineFault, LabError, OSError) as error:  # without a score Gradescope shows a failed autograder
        sys.exit(f"The autograder failed, and that is no fault of the submission: {error}")
    Path(results).parent.mkdir(parents=True, exist_ok=True)
    replace_text(Path(results), json.dumps(result, indent=1, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])
