"""nbgrader's generate_assignment, which also writes the lab's deep dives, and keeps the earlier release if it fails."""

import shutil
from contextlib import suppress
from pathlib import Path

from nbgrader.apps import api, generateassignmentapp
from nbgrader.converters import GenerateAssignment

from threeloops_grader.authoring.labs import LabError, find_lab
from threeloops_grader.release.release import write_dives

__all__ = ["install"]


class _KeepsRelease(GenerateAssignment):
    """Keep the earlier release if generation fails, and write the dives. nbgrader itself empties the release folder
    first, removes it if anything fails, and does not know the dives, which nobody hands in."""

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
    """Return the folder that holds the earlier release until the new one is complete, even if a run is killed."""
    return release.with_name(f".{release.name}{_SUFFIX}")


def install() -> None:
    """Replace nbgrader's class in its command and behind formgrader's button, which have no option for that."""
    generateassignmentapp.GenerateAssignment = api.GenerateAssignment = _KeepsRelease
