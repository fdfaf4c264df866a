"""The class's late policy as nbgrader's plugin: `nbgrader_config.py` names it, and `autograde` applies it."""

from pathlib import Path

from nbgrader.plugins import LateSubmissionPlugin

from threeloops_grader.classroom.register import settings

__all__ = ["ClassLatePolicy"]


class ClassLatePolicy(LateSubmissionPlugin):
    """Takes the penalty from `class/settings.json`; without that file, nbgrader's own `penalty_method` applies."""

    def late_submission_penalty(self, student_id: str, score: float, total_seconds_late: float) -> float | None:
        root = Path(self.config.CourseDirectory.root)
        if not (settings.class_folder(root) / "settings.json").is_file():
            return super().late_submission_penalty(student_id, score, total_seconds_late)
        return settings.load(root).late.penalty(score, total_seconds_late)
