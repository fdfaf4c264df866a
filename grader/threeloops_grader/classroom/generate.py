"""nbgrader's generate_assignment, which also writes the lab's deep dives, and keeps the earlier release if it fails."""

from contextlib import suppress
from pathlib import Path

from nbgrader.apps import api, generateassignmentapp
from nbgrader.converters import GenerateAssignment

from threeloops_grader.authoring.labs import LabError, find_lab
from threeloops_grader.release.files import restored_if_it_fails
from threeloops_grader.release.release import write_dives

__all__ = ["install"]


class _KeepsRelease(GenerateAssignment):
    """Keep the earlier release if generation fails, and write the dives. nbgrader itself empties the release folder
    first, removes it if anything fails, and does not know the dives, which nobody hands in."""

    def init_assignment(self, assignment_id: str, student_id: str) -> None:
        super().init_assignment(assignment_id, student_id)
        with suppress(LabError):  # an assignment that is no lab of the course
            lab = find_lab(assignment_id, Path(self.coursedir.root))
            write_dives(lab, Path(self._format_dest(assignment_id, student_id)))

    def convert_notebooks(self) -> None:
        with restored_if_it_fails(Path(self._format_dest(self.coursedir.assignment_id, "."))):
            super().convert_notebooks()


def install() -> None:
    """Replace nbgrader's class in its command and behind formgrader's button, which have no option for that."""
    generateassignmentapp.GenerateAssignment = api.GenerateAssignment = _KeepsRelease
