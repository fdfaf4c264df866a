"""What a plan is asked for, and what things cost: read from TOML, and refused with the key that is wrong."""

from typing import TYPE_CHECKING

from threeloops import import_on_demand

if TYPE_CHECKING:
    from threeloops.capstone.scenario.prices import Item, Price, Prices
    from threeloops.capstone.scenario.reading import (
        ScenarioError,
        examples,
        read_prices,
        read_scenario,
        scenario_from,
    )
    from threeloops.capstone.scenario.refusal import Infeasible, Problem, Proposal, Refusal
    from threeloops.capstone.scenario.sections import Budget, Cluster, Model, Owning, Scenario, Serving, Training
else:
    import_on_demand(__name__)

__all__ = [
    "Budget", "Cluster", "Infeasible", "Item", "Model", "Owning", "Price", "Prices", "Problem", "Proposal", "Refusal",
    "Scenario", "ScenarioError", "Serving", "Training", "examples", "read_prices", "read_scenario", "scenario_from",
]  # fmt: skip
