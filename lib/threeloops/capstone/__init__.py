"""Make a plan from a model, a number of tokens, a cluster, a budget and an SLO, and give the reasons for its decisions.

>>> plan = make_plan(read_scenario("70b_pretraining"))
>>> plan.decision("parallelism").choice, plan["training_days"], plan["total_cost"]
>>> [change.change for change in plan.sensitivity if change.decisions]

This package predicts nothing itself. Parallelism and step time come from `training.planning`, failures from
`training.elastic.goodput`, replicas and fleets from `product.fleet`, and accelerators from `hardware`. It adds the
arithmetic that leads from these numbers to a bill, the reasons for the decisions, and the changes that would alter the
decisions.
"""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.capstone.plan import (
        Bars,
        Change,
        CostLine,
        Decision,
        Evidence,
        Figure,
        Gantt,
        Lines,
        Option,
        Plan,
        Quantity,
        Series,
        Span,
        Topic,
    )
    from threeloops.capstone.planner import make_plan
    from threeloops.capstone.scenario import (
        Budget,
        Cluster,
        Infeasible,
        Model,
        Owning,
        Prices,
        Proposal,
        Scenario,
        ScenarioError,
        Serving,
        Training,
        examples,
        read_prices,
        read_scenario,
        scenario_from,
    )
    from threeloops.capstone.sheet import evaluate
    from threeloops.capstone.variations import changed
else:
    import_on_demand(__name__)

__all__ = [
    "Bars", "Budget", "Change", "Cluster", "CostLine", "Decision", "Evidence", "Figure", "Gantt", "Infeasible", "Lines",
    "Model", "Option", "Owning", "Plan", "Prices", "Proposal", "Quantity", "Scenario", "ScenarioError", "Series",
    "Serving", "Span", "Topic", "Training", "changed", "evaluate", "examples", "make_plan", "read_prices",
    "read_scenario", "scenario_from",
]  # fmt: skip
