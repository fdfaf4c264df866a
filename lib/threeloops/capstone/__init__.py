"""From a model, tokens, a cluster, a budget and an SLO to a plan that can be defended, by the library's own models."""

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
)
from threeloops.capstone.scenario import Budget, Cluster, Model, Owning, Scenario, Serving, Training

__all__ = [
    "Bars", "Budget", "Change", "Cluster", "CostLine", "Decision", "Evidence", "Figure", "Gantt", "Lines", "Model",
    "Option", "Owning", "Plan", "Quantity", "Scenario", "Series", "Serving", "Span", "Training",
]  # fmt: skip
