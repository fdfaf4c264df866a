"""nbgrader's generate_assignment, which also puts the lab's deep dives next to the generated notebook."""

from contextlib import suppress
from pathlib import Path

from nbgrader.apps import api, generateassignmentapp
from nbgrader.converters import GenerateAssignment

from threeloops_grader.authoring.labs import LabError, find_lab
from threeloops_grader.release.release import write_dives

__all__ = ["install"]


class _WithDives(GenerateAssignment):
    """nbgrader empties the release folder first, and knows nothing of a notebook that is not to be handed in."""

    def init_assignment(self, assignment_id: str, student_id: str) -> None:
        super().init_assignment(assignment_id, student_id)
        with suppress(LabError):  # an assignment that is no lab of the course
            lab = find_lab(assignment_id, Path(self.coursedir.root))
            write_dives(lab, Path(self._format_dest(assignment_id, student_id)))


def install() -> None:
    """Have nbgrader's command and formgrader's button use it, for which they have no option."""
    generateassignmentapp.GenerateAssignment = api.GenerateAssignment = _WithDives
