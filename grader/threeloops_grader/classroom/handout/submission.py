"""`threeloops submit`: pack a student's notebook for the exchange, Gradescope, Canvas or Moodle."""

from pathlib import Path

from threeloops_grader.authoring.labs import Lab, LabError
from threeloops_grader.authoring.manifest import manifest
from threeloops_grader.classroom.handout.archive import write_zip
from threeloops_grader.grading.records import short_notes
from threeloops_grader.submissions.folder import require_small_notebook
from threeloops_grader.submissions.parse import parse
from threeloops_grader.submissions.rebuild import rebuild
from threeloops_grader.submissions.submitted import BadSubmission

__all__ = ["write_submission"]


def write_submission(lab: Lab) -> tuple[Path, list[str]]:
    """Write `work/<lab>.zip`, which holds the notebook alone. An earlier one is replaced.

    Returns its path, and the notes that grading will have on the cells, for example that an answer was split.

    Raises LabError: there is no copy of the lab, or grading could not read it.
    """
    try:
        content = lab.work.read_bytes()
        require_small_notebook(len(content))
        notebook = parse(content)
        meta = notebook.metadata.get("threeloops")
        of = meta.get("lab") if isinstance(meta, dict) else None
        if of != lab.slug:
            raise BadSubmission(f"it says that it is of lab {of!r}, not {lab.slug}")
        notes = rebuild(notebook, manifest(lab, visible=True)).notes
    except FileNotFoundError:
        raise LabError(f"no file {lab.work}; `threeloops start {lab.number:02d}` makes your copy of the lab") from None
    except BadSubmission as error:
        raise LabError(f"{lab.work} cannot be handed in: {error}") from None
    path = lab.copies / f"{lab.slug}.zip"
    write_zip(path, {f"{lab.slug}.ipynb": content})
    return path, short_notes(notes)
