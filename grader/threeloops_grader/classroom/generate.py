"""nbgrader's generate_assignment, which also writes the lab's deep dives, and loses no earlier release if it fails."""

import shutil
from contextlib import suppress
from pathlib import Path

from nbgrader.apps import api, generateassignmentapp
from nbgrader.converters import GenerateAssignment

from threeloops_grader.authoring.labs import LabError, find_lab
from threeloops_grader.release.release import write_dives

__all__ = ["install"]


class _KeepsRelease(GenerateAssignment):
    """nbgrader empties the release folder first, removes it if anything fails, and knows nothing of a notebook that is
    not to be handed in."""

    def init_destination(self, assignment_id: str, student_id: str) -> bool:
        release = Path(self._format_dest(assignment_id, student_id))
        if self.force and self.coursedir.notebook_id == "*":
            aside = _aside(release)
            if release.is_dir():
                shutil.rmtree(aside, ignore_errors=True)
                release.rename(aside)
        return super().init_destination(assignment_id, student_id)

    def init_assignment(self, assignment_id: str, student_id: str) -> None:
        super().init_assignment(assignment_id, student_id)
        with suppress(LabError):  # an assignment that is no lab of the course
            lab = find_lab(assignment_id, Path(self.coursedir.root))
            write_dives(lab, Path(self._format_dest(assignment_id, student_id)))

    def convert_notebooks(self) -> None:
        try:
            super().convert_notebooks()
        finally:
            for aside in Path(self._format_dest("any", ".")).parent.glob(f".*{_SUFFIX}"):
                release = aside.with_name(aside.name[1:].removesuffix(_SUFFIX))
                if release.is_dir():
                    shutil.rmtree(aside)
                else:
                    aside.rename(release)


_SUFFIX = ".before"


def _aside(release: Path) -> Path:
    """Return where an earlier release waits until the new one stands, also after a run that was killed."""
    return release.with_name(f".{release.name}{_SUFFIX}")


def install() -> None:
    """Have nbgrader's command and formgrader's button use it, for which they have no option."""
    generateassignmentapp.GenerateAssignment = api.GenerateAssignment = _KeepsRelease
