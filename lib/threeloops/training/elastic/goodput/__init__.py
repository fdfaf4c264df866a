"""The cost of failures: the share of a job's time that is useful, and how often to save.

>>> mtbf = cluster_mtbf(10 * 365 * 86400, 10_000)  # a GPU fails every 10 years, and one of 10,000 every 8.8 hours
>>> best = best_interval(save=30, mtbf=mtbf)
>>> useful_share(best, save=30, recovery=600, mtbf=mtbf)
>>> simulate(Job(10_000, 10 * 365 * 86400, best, save=30, restart=600), 365 * 86400).useful_share
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.training.elastic.goodput.closed_form import (
        cluster_mtbf,
        expected_seconds,
        spares_needed,
        useful_share,
    )
    from threeloops.training.elastic.goodput.intervals import (
        best_interval,
        daly_first_order,
        daly_interval,
        save_worth,
        young_interval,
    )
    from threeloops.training.elastic.goodput.published import (
        LLAMA3_CAUSES,
        MEASURED,
        RSC1_JOBS,
        RSC1_PER_NODE_DAY,
        FailureCount,
        failures_per_node_day,
    )
    from threeloops.training.elastic.goodput.simulate import Account, Job, simulate
else:
    import_on_demand(__name__)

__all__ = [
    "LLAMA3_CAUSES", "MEASURED", "RSC1_JOBS", "RSC1_PER_NODE_DAY", "Account", "FailureCount", "Job", "best_interval",
    "cluster_mtbf", "daly_first_order", "daly_interval", "expected_seconds", "failures_per_node_day", "save_worth",
    "simulate", "spares_needed", "useful_share", "young_interval",
]  # fmt: skip
