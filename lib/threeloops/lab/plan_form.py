"""`plan_form`: change the requirements of a plan, and see its decisions and figures change."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from threeloops.capstone import Model, Plan, Prices, Scenario, changed, make_plan, read_prices
from threeloops.capstone.documents import draw
from threeloops.lab.widgets import style
from threeloops.lab.widgets.display import Piece, capture
from threeloops.lab.widgets.explore import Explorer
from threeloops.lab.widgets.pictures import table
from threeloops.units import readable

__all__ = ["plan_form"]

_MODELS = ("llama-2-7b", "llama-3-8b", "llama-3-70b", "llama-3-405b")
_SHOWN = ("memory", "goodput", "replicas", "ownership")
"""The figures of a plan that the form draws, if the plan has them."""


class _PlanForm(Explorer):
    """The handle that `plan_form` returns: an `Explorer` with the `.plan` of the present values."""

    def __init__(self, scenario: Scenario, prices: Prices) -> None:
        self.scenario = scenario
        self.prices = prices
        self.plan: Plan
        super().__init__(self._draw, _fields(scenario))

    def _draw(self, **values: Any) -> Any:
        """The first figure of the plan; `_show` draws all of them."""
        self.plan = make_plan(_asked(self.scenario, values), self.prices.with_cloud(values["cloud_price_factor"]))
        return draw(self._figures()[0])

    def _figures(self) -> list:
        names = {figure.name: figure for figure in self.plan.figures}
        return [names[name] for name in _SHOWN if name in names]

    def _show(self, figure: Any) -> None:
        pieces = self._decisions()
        self.text = pieces[0].text
        drawn = [(plot.alt, draw(plot)) for plot in self._figures()]
        pictures = [style.html(picture, alt, style.png(picture)) for alt, picture in drawn]
        self.html = "\n".join([f"<p><b>{self._total()}</b></p>", pieces[0].html(), *pictures])
        self.png, self.size = style.png(figure)

    def drawing(self, values: Mapping[str, Any]) -> str:
        """Return the plan of other values as HTML."""
        before = self.plan
        try:
            self._drawn(values)
            pictures = [style.svg(draw(plot), plot.alt, f"plan's {plot.name}", quick=True) for plot in self._figures()]
            return "\n".join([f"<p><b>{self._total()}</b></p>", self._decisions()[0].html(), *pictures])
        finally:
            self.plan = before

    def _decisions(self) -> list[Piece]:
        with capture() as pieces:
            table(
                [[decision.topic, decision.choice, decision.margin] for decision in self.plan.decisions],
                ["", "choice", "margin"],
            )
        return pieces

    def _total(self) -> str:
        cost = f"total cost {readable(self.plan['total_cost'], 'USD')}"
        days = [quantity for quantity in self.plan.quantities if quantity.name == "training_days"]
        return cost + "".join(f", {readable(quantity.value, 'days')} of training" for quantity in days)

    def said(self, values: Mapping[str, Any] | None = None) -> str:
        """Return the present plan as text."""
        return f"plan at {self.state()}: {self._total()}\n{self.text}"


def plan_form(scenario: Scenario, prices: Prices | None = None) -> _PlanForm:
    """Plan a scenario in a form. The reader can change model, GPUs, tokens, demand and the cloud's prices, and sees the
    decisions follow.

    One output holds the form and, for an exported page, the plan of the unchanged scenario. If a change cannot be
    planned, the last plan stays, and the form says what would make it feasible.

    Raises:
        Infeasible: the scenario itself cannot be planned.
    """
    form = _PlanForm(scenario, read_prices() if prices is None else prices)
    form.publish()
    return form


def _fields(scenario: Scenario) -> dict[str, Any]:
    """Return the fields that can be changed, in the form that `explore` takes. The scenario's own value is the
    start."""
    own = scenario.model.preset or "own sizes"
    fields: dict[str, Any] = {"model": [own, *(name for name in _MODELS if name != own)]}
    cluster = scenario.cluster
    if scenario.training is not None:
        step = min(cluster.gpus, cluster.gpus_per_node)
        fields["gpus"] = (step, 4 * cluster.gpus, step, cluster.gpus)
        billions = scenario.training.tokens / 1e9
        fields["billion_tokens"] = (billions / 10, 4 * billions, billions / 10, billions)
    if scenario.serving is not None:
        peak = scenario.serving.peak_requests_per_second
        fields["peak_requests_per_second"] = (peak / 10, 4 * peak, peak / 10, peak)
    return fields | {"cloud_price_factor": (0.25, 3.0, 0.25, 1.0)}


def _asked(scenario: Scenario, values: dict[str, Any]) -> Scenario:
    """Return the scenario with the form's values."""
    edited = scenario
    if values["model"] not in ("own sizes", scenario.model.preset):
        edited = replace(edited, model=Model(preset=values["model"]))
    if scenario.training is not None:
        edited = changed(edited, "cluster.gpus", values["gpus"])
        if values["billion_tokens"] * 1e9 != scenario.training.tokens:
            edited = changed(edited, "training.tokens", values["billion_tokens"] * 1e9)
    if scenario.serving is not None:
        edited = changed(edited, "serving.peak_requests_per_second", values["peak_requests_per_second"])
    return edited
