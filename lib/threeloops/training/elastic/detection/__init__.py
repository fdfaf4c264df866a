"""Detection of faults: checksums, a flight recorder, and runs with known losses."""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.training.elastic.detection.canary import (
        Difference,
        compare,
        environment,
        run_canary,
        store_canary,
    )
    from threeloops.training.elastic.detection.silent import (
        checksum,
        cross_check,
        cross_check_cost,
        odd_ranks,
        odd_ranks_cost,
        outlying,
    )
    from threeloops.training.elastic.detection.watchdog import Called, FlightRecorder, Watchdog, diagnose, first_alarm
else:
    import_on_demand(__name__)

__all__ = [
    "Called", "Difference", "FlightRecorder", "Watchdog", "checksum", "compare", "cross_check", "cross_check_cost",
    "diagnose", "environment", "first_alarm", "odd_ranks", "odd_ranks_cost", "outlying", "run_canary", "store_canary",
]  # fmt: skip
