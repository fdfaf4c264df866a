"""`threeloops submit`: pack a student's notebook for the exchange, Gradescope, Canvas or Moodle."""

from pathlib import Path

from threeloops_grader.authoring.labs import Lab, LabError
from threeloops_grader.classroom.handout.archive import write_zip
from threeloops_grader.submissions.folder import require_small_notebook
from threeloops_grader.submissions.parse import parse
from threeloops_grader.submissions.submitted import BadSubmission

__all__ = ["write_submission"]


def write_submission(lab: Lab) -> Path:
    """Write `work/<lab>.zip`, which holds the notebook alone. Returns its path. An earlier one is replaced.

    Raises LabError: there is no copy of the lab, or grading could not read it.
    """
    try:
        content = lab.work.read_bytes()
        require_small_notebook(len(content))
        meta = parse(content).metadata.get("threeloops")
        of = meta.get("lab") if isinstance(meta, dict) else None
        if of != lab.slug:
            raise BadSubmission(f"it says that it is of lab {of!r}, not {lab.slug}")
    except FileNotFoundError:
        raise LabError(f"no file {lab.work}; `threeloops start {lab.number:02d}` makes your copy of the lab") from None
    except BadSubmission as error:
        raise LabError(f"{lab.work} cannot be handed in: {error}") from None
    path = lab.copies / f"{lab.slug}.zip"
    write_zip(path, {f"{lab.slug}.ipynb": content})
    return path
