"""The lab kit: what a notebook of the course imports to ask, to check, to show and to audit.

Light on purpose: torch, matplotlib, ipywidgets and IPython are imported by what needs them, when it needs them, and
nothing that a lab withholds is imported at all.
"""

from threeloops.lab import show
from threeloops.lab.audit import audit, claims
from threeloops.lab.check import check
from threeloops.lab.course_map import course_map
from threeloops.lab.explore import explore
from threeloops.lab.failure import CheckFailed
from threeloops.lab.hint import hint
from threeloops.lab.loops import labs
from threeloops.lab.predict import predict
from threeloops.lab.progress import progress
from threeloops.lab.replay import replay
from threeloops.lab.style import figure, palette
from threeloops.lab.wall import by_value, inout, student_side

__all__ = [
    "CheckFailed",
    "audit",
    "by_value",
    "check",
    "claims",
    "course_map",
    "explore",
    "figure",
    "hint",
    "inout",
    "labs",
    "palette",
    "predict",
    "progress",
    "replay",
    "show",
    "student_side",
]
