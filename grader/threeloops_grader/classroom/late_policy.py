"""The class's late policy in nbgrader's own steps: `autograde` and `generate_feedback` write and show its penalties."""

from pathlib import Path

from nbconvert.exporters.exporter import ResourcesDict
from nbformat import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.preprocessors import AssignLatePenalties, GetGrades

from threeloops_grader.classroom.deadlines.penalties import Penalties

__all__ = ["ClassPenalties", "CurrentGrades"]


class ClassPenalties(AssignLatePenalties):
    """A step of `autograde` that writes the penalties of `class/settings.json` for a student's labs. Without that file,
    nbgrader's own `penalty_method` applies."""

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        if _refresh(resources, Path(self.config.CourseDirectory.root)):
            return nb, resources
        return super().preprocess(nb, resources)


class CurrentGrades(GetGrades):
    """A step of `generate_feedback` that reads a student's points after it brought the late penalty up to date."""

    def preprocess(self, nb: NotebookNode, resources: ResourcesDict) -> tuple[NotebookNode, ResourcesDict]:
        _refresh(resources, Path(self.config.CourseDirectory.root))
        return super().preprocess(nb, resources)


def _refresh(resources: ResourcesDict, root: Path) -> bool:
    """Bring a student's penalties up to date in the gradebook. Returns whether the class has a policy of its own."""
    given = resources["nbgrader"]
    with Gradebook(given["db_url"]) as book:
        penalties = Penalties(book, root)
        penalties.refresh(students=[given["student"]])
        return penalties.is_ours
