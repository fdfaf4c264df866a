"""The configuration of nbgrader for this course, which `nbgrader_config.py` applies."""

import warnings
from pathlib import Path
from typing import Any

from nbgrader.preprocessors import ClearOutput, Execute
from nbgrader.server_extensions.formgrader import handlers
from nbgrader.validator import Validator
from sqlalchemy.exc import SAWarning

from threeloops_grader.classroom import autograde, generate
from threeloops_grader.classroom.exchange.folder import exchange_of, shared
from threeloops_grader.classroom.marking import formgrader
from threeloops_grader.pages.student_page import TEMPLATES
from threeloops_grader.release.preprocessors import CheckCells, OneCellPerName
from threeloops_grader.release.release import IGNORE, PREPROCESSORS

__all__ = ["configure"]


def configure(c: Any, root: Path) -> None:
    """Set all of it on nbgrader's configuration `c`; the course lies in `root`."""
    # nbgrader adds a submission in parts, and queries the gradebook before it has added the first. All are added at the
    # end, so the warning, which SQLAlchemy prints for the first student of each run, is about nothing.
    warnings.filterwarnings("ignore", r"Object of type <Submitted\w+> not in session", SAWarning)

    c.CourseDirectory.root = str(root)
    c.CourseDirectory.course_id = "three_loops"
    c.CourseDirectory.source_directory = "solutions"
    c.CourseDirectory.release_directory = "labs"
    c.CourseDirectory.submitted_directory = "submitted"
    c.CourseDirectory.autograded_directory = "autograded"
    c.CourseDirectory.feedback_directory = "feedback"
    # Sources, wrong answers and other right ones hold the answers: nbgrader would copy them to every student.
    c.CourseDirectory.ignore = IGNORE

    shared(exchange_of(root))
    c.Exchange.root = str(exchange_of(root))
    # Nothing that students leave there is trusted, and one student's files cannot block another's.
    c.ExchangeFactory.collect = "threeloops_grader.classroom.exchange.collect.GuardedCollect"
    # A student hands in the copy that `threeloops start` made.
    c.Exchange.assignment_dir = str(root / "work")

    saved = {"nbgrader.preprocessors.SaveCells": "threeloops_grader.classroom.nbgrader_plugin.SaveCellsAndReflection"}
    c.GenerateAssignment.preprocessors = [saved.get(name, name) for name in PREPROCESSORS]
    generate.install()

    # A submission arrives here rebuilt from the master's own cells (`autograde.install`), so that nbgrader's
    # DeduplicateIds and OverwriteCells, which restore them from the gradebook and trust the rest, have nothing to do.
    c.Autograde.sanitize_preprocessors = [
        "nbgrader.preprocessors.OverwriteKernelspec",
        "threeloops_grader.release.preprocessors.CheckCells",
    ]
    c.Autograde.autograde_preprocessors = [
        "threeloops_grader.classroom.nbgrader_plugin.WalledExecute",
        "nbgrader.preprocessors.IgnorePattern",
        "nbconvert.preprocessors.ClearMetadataPreprocessor",
        "nbgrader.preprocessors.LimitOutput",
        "threeloops_grader.classroom.nbgrader_plugin.ReflectionPoints",
        "nbgrader.preprocessors.SaveAutoGrades",
        "threeloops_grader.classroom.late_policy.ClassPenalties",
        "threeloops_grader.release.preprocessors.CheckCells",
    ]
    # No option reaches the work of nbgrader before the first preprocessor sees a submission, or after an exception.
    autograde.install()
    c.ExportApp.plugin_class = "threeloops_grader.classroom.results.export.SafeCsv"
    # Feedback, and formgrader's page, which runs in the instructor's own Jupyter server: what a student wrote
    # is sanitised after it was rendered, and the page's policy lets nothing run but formgrader's own scripts.
    c.HTMLExporter.extra_template_basedirs = [TEMPLATES, handlers.template_path]
    c.HTMLExporter.template_file = "walled.html.j2"
    c.HTMLExporter.preprocessors = [
        "threeloops_grader.classroom.marking.formgrader.HideStudent",
        "threeloops_grader.pages.student_page.StudentPage",
        "nbconvert.preprocessors.CSSHTMLHeaderPreprocessor",
    ]
    c.HTMLExporter.filters = {
        "markdown2html": "threeloops_grader.pages.student_html.page_markdown",
        "highlight_code": "threeloops_grader.pages.student_html.Highlight",
        "ansi2html": "threeloops_grader.pages.student_html.text_to_html",
        "strip_files_prefix": "threeloops_grader.pages.student_html.as_it_is",
    }
    # Pseudonyms in place of names, if the class's settings ask for them.
    formgrader.install()
    # No hidden test stands in a feedback page, also after the grades are out.
    c.GenerateFeedback.preprocessors = [
        "threeloops_grader.classroom.late_policy.CurrentGrades",
        "threeloops_grader.classroom.nbgrader_plugin.HideTests",
    ]
    # `nbgrader validate`, the Validate button, has a list of its own that no option reaches; nbgrader's own check in it
    # refuses a written answer without points, which each lab has, and a cell that was split or copied.
    Validator.preprocessors.default_args = ([OneCellPerName, CheckCells, ClearOutput, Execute],)
