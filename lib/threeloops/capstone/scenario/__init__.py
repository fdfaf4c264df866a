"""The requirements of a plan, and prices: read from TOML, with errors that name the wrong key."""

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
