"""A plan as data: the decisions and their reasons, every number with its unit and origin, and the data of its figures.

Documents, the command line and the lab read a `Plan`. `make_plan` (`planner.py`) fills it.
"""

from dataclasses import dataclass
from typing import Literal

from threeloops.capstone.scenario import Scenario

__all__ = [
    "Bars", "Change", "CostLine", "Decision", "Evidence", "Figure", "Gantt", "Lines", "Option", "Plan", "Quantity",
    "Series", "Span", "Topic",
]  # fmt: skip

Evidence = Literal["given", "published", "estimate", "model"]
"""The origin of a number: the scenario, a source with a date, a guess with its reason, or a model of the library."""

Topic = Literal["training", "serving", "prices", "cost"]


@dataclass(frozen=True)
class Quantity:
    """One number. With a `formula` it follows from other quantities of the plan, by their names, in arithmetic that
    Python and a spreadsheet share (+ − * / and parentheses). `value` is the formula's result."""

    name: str
    """An identifier, such as "training_gpu_hours": unique in a plan, and fit to be a cell's name."""
    label: str
    value: float
    unit: str
    """"USD", "USD/h", "GPU", "h", "days", "tokens", "bytes", "s", "share"; "" for a plain count."""
    evidence: Evidence
    source: str
    """The key of the scenario, the published source with its date, or the library's model, such as
    "threeloops.training.planning.step_time"."""
    formula: str = ""
    topic: Topic = "training"


@dataclass(frozen=True)
class Decision:
    """One choice. `margin` says how much better it is than the runner-up, or how far from its limit."""

    topic: str
    """"accelerator", "parallelism", "precision", "recomputation", "checkpoint interval", "spares", "fleet", "buy or
    rent", ..."""
    choice: str
    reason: str
    margin: str
    runner_up: str
    """The second choice, or "none" if there is no other."""
    model: str
    """The dotted name of the part of the library that computed it."""


@dataclass(frozen=True)
class CostLine:
    """One line of the bill: `quantity` names the `Quantity` that is its amount in the budget's currency."""

    label: str
    quantity: str
    amount: float


@dataclass(frozen=True)
class Option:
    """One candidate accelerator under the same scenario."""

    accelerator: str
    cost: float | None
    """The cost in the budget's currency, or None if it is not feasible."""
    days: float | None
    """The days of training, or None for serving alone or if it is not feasible."""
    gpus: float | None
    note: str
    """The plan's own words for it: its parallelism, or why it is out."""


@dataclass(frozen=True)
class Change:
    """A row of the sensitivity table: the effects of one change of the scenario."""

    change: str
    """"MTBF halves"."""
    cost: float | None
    """The total cost, or None if the scenario is no longer feasible."""
    days: float | None
    decisions: tuple[str, ...]
    """The decisions that change ("checkpoint interval: 42 min → 30 min"), or why it is not feasible."""


@dataclass(frozen=True)
class Series:
    """Points of one line, or the lengths of one part of every bar."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    step: bool = False
    """Whether y stays until the next x."""


@dataclass(frozen=True)
class Bars:
    """Stacked bars: series `y[i]` is the length of the part `label` of the bar `bars[i]`; `x` is 0, 1, 2, ..."""

    name: str
    title: str
    alt: str
    bars: tuple[str, ...]
    unit: str
    parts: tuple[Series, ...]
    limit: float | None = None
    limit_label: str = ""


@dataclass(frozen=True)
class Span:
    row: int
    start: float
    end: float
    kind: Literal["forward", "backward"]
    text: str
    """The number of the microbatch."""
    chunk: int = 0
    """The number among the rank's model chunks."""


@dataclass(frozen=True)
class Gantt:
    """The intervals of each row, in seconds."""

    name: str
    title: str
    alt: str
    rows: tuple[str, ...]
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Lines:
    """Curves over one axis. `mark` is the x at which the decision lies, or lines cross."""

    name: str
    title: str
    alt: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    log_x: bool = False
    mark: float | None = None
    mark_label: str = ""


Figure = Bars | Gantt | Lines


@dataclass(frozen=True)
class Plan:
    """Names of figures: "memory" (Bars), "schedule" (Gantt), "goodput", "ownership" and "replicas" (Lines); a plan
    without training has no memory, schedule and goodput, and one without serving no replicas."""

    scenario: Scenario
    decisions: tuple[Decision, ...]
    quantities: tuple[Quantity, ...]
    costs: tuple[CostLine, ...]
    """They add up to the quantity "total_cost"."""
    options: tuple[Option, ...]
    """The accelerators of the scenario, cheapest first; those that are not feasible last."""
    sensitivity: tuple[Change, ...]
    figures: tuple[Figure, ...]

    def __getitem__(self, name: str) -> float:
        """The value of the quantity of this name. Raises KeyError with the names that there are."""
        for quantity in self.quantities:
            if quantity.name == name:
                return quantity.value
        raise KeyError(f"{name!r}: expected one of {', '.join(quantity.name for quantity in self.quantities)}")

    def decision(self, topic: str) -> Decision:
        for decision in self.decisions:
            if decision.topic == topic:
                return decision
        raise KeyError(f"{topic!r}: expected one of {', '.join(decision.topic for decision in self.decisions)}")

    def figure(self, name: str) -> Figure:
        for figure in self.figures:
            if figure.name == name:
                return figure
        raise KeyError(f"{name!r}: expected one of {', '.join(figure.name for figure in self.figures)}")
