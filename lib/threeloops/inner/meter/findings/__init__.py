"""What is wrong with a launch: faults as they are reported, unwritten memory, undefined lanes and what a compiler
may assume."""

from threeloops.inner.meter.findings.compiled import Compiled
from threeloops.inner.meter.findings.finding import (
    Finding,
    FindingKind,
    Incident,
    Incidents,
    amount,
    base_name,
    program_coordinates,
)
from threeloops.inner.meter.findings.undefined import UndefinedLanes
from threeloops.inner.meter.findings.unwritten import NAN_BYTE, Unwritten, Watch

__all__ = [
    "Compiled", "Finding", "FindingKind", "Incident", "Incidents", "NAN_BYTE", "UndefinedLanes", "Unwritten", "Watch",
    "amount", "base_name", "program_coordinates",
]  # fmt: skip
