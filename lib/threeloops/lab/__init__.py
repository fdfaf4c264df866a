"""The lab kit: the functions with which a notebook of the course asks, checks, shows and audits.

It is light on purpose. torch, matplotlib, ipywidgets and IPython are imported by the functions that need them, when
they need them. Modules that a lab withholds are not imported at all.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.lab import show
    from threeloops.lab.answers.debrief import debrief
    from threeloops.lab.answers.together import together
    from threeloops.lab.checking.check import check
    from threeloops.lab.checking.failure import CheckFailed
    from threeloops.lab.checking.replay import replay
    from threeloops.lab.checking.wall import by_value, inout, student_side
    from threeloops.lab.course.course_map import course_map
    from threeloops.lab.course.glossary import term
    from threeloops.lab.course.loops import labs
    from threeloops.lab.predictions.against import calibration
    from threeloops.lab.predictions.audit import audit, myth
    from threeloops.lab.predictions.claims import claims
    from threeloops.lab.predictions.predict import predict, reveal
    from threeloops.lab.widgets.animate import animate
    from threeloops.lab.widgets.explore import explore
    from threeloops.lab.widgets.hint import hint
    from threeloops.lab.widgets.progress import progress
    from threeloops.lab.widgets.style import figure, palette
else:
    import_on_demand(__name__)

__all__ = [
    "CheckFailed", "animate", "audit", "by_value", "calibration", "check", "claims", "course_map", "debrief",
    "explore", "figure", "hint", "inout", "labs", "myth", "palette", "predict", "progress", "replay", "reveal",
    "show", "student_side", "term", "together",
]  # fmt: skip
