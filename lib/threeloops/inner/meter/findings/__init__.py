"""Find faults of a launch: unwritten memory, undefined lanes, and code that breaks the assumptions of the compiler."""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.inner.meter.findings.compiled import Compiled
    from threeloops.inner.meter.findings.finding import (
        Finding,
        FindingKind,
        Incident,
        Incidents,
        amount,
        program_coordinates,
    )
    from threeloops.inner.meter.findings.undefined import UndefinedLanes
    from threeloops.inner.meter.findings.unwritten import NAN_BYTE, Unwritten, Watch
else:
    import_on_demand(__name__)

__all__ = [
    "Compiled", "Finding", "FindingKind", "Incident", "Incidents", "NAN_BYTE", "UndefinedLanes", "Unwritten", "Watch",
    "amount", "program_coordinates",
]  # fmt: skip
