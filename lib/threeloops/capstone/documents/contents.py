"""Turn a plan into the contents of its document, with sections in the order of a reader's questions."""

import re
from collections import Counter
from collections.abc import Iterable

from threeloops.capstone.documents.deck import slides
from threeloops.capstone.documents.drawing import png
from threeloops.capstone.documents.formats.outline import (
    Block,
    Cell,
    Document,
    Number,
    Paragraph,
    Picture,
    Section,
    Table,
    cleaned,
)
from threeloops.capstone.plan import Evidence, Plan, Quantity
from threeloops.units import readable

__all__ = ["document"]

_PARTS = (
    ("Training", ("training",), ("memory", "schedule", "goodput")),
    ("Serving", ("serving",), ("replicas",)),
    ("Cost", ("prices", "cost"), ("ownership",)),
)
"""A section's title, the topics of its quantities, and the names of its figures."""
_EVIDENCE: dict[Evidence, str] = {
    "given": "the scenario says so",
    "published": "a source with a date says so",
    "estimate": "nobody has published it; the source says how it was estimated",
    "model": "a model of the library computed it, or arithmetic on other quantities",
}
_HOW_TO_READ = (
    "Each choice was made by a model of the library. The margin says how much better it is than the runner-up, or how "
    "far it is from its limit: where the margin is small, look at the sensitivities before you decide."
)
_SENSITIVITY = (
    "Each row changes one assumption and plans again from the start. Cost and days are those of the new plan, and the "
    "last column names what would be decided differently."
)
_LEVELS = "A number of this plan is as good as its origin. There are four levels of evidence:"
_OPERATORS = {"*": " × ", "/": " ÷ ", "+": " + ", "-": " − "}


def document(plan: Plan, date: str = "") -> Document:
    """Return the outline that all formats render. `date` is printed as given. A plan itself has no date."""
    pictures = {figure.name: Picture(figure.name, figure.title, figure.alt, *png(figure)) for figure in plan.figures}
    placed = {name for _, _, names in _PARTS for name in names}
    headline = _headline(plan)
    bill = _bill(plan)
    sections = [
        Section("Summary", (Paragraph(_subtitle(plan) + "."), headline, bill)),
        Section("Decisions", (Paragraph(_HOW_TO_READ), _decisions(plan))),
        *(Section(title, tuple(_part(plan, title, topics, names, pictures))) for title, topics, names in _PARTS),
        Section("More figures", tuple(picture for name, picture in pictures.items() if name not in placed)),
        Section("Sensitivity", (Paragraph(_SENSITIVITY), _sensitivity(plan)) if plan.sensitivity else ()),
        Section("Evidence and sources", tuple(_evidence(plan))),
        Section("Appendix A: the scenario", (_inputs(plan),)),
        Section("Appendix B: all quantities", (_quantities(plan),)),
    ]
    whole = Document(
        _title(plan),
        _subtitle(plan),
        date,
        tuple(section for section in sections if section.blocks),
        slides(plan, pictures, headline, bill),
        plan.quantities,
    )
    return cleaned(whole)


def _title(plan: Plan) -> str:
    return " ".join(cleaned(plan.scenario.title).split()) or "Plan"


def _subtitle(plan: Plan) -> str:
    """Summarise the requirements in one line."""
    asked = []
    scenario = plan.scenario
    if scenario.training:
        tokens = readable(scenario.training.tokens, "tokens")
        asked.append(f"training on {tokens} within {readable(scenario.training.deadline_days, 'days')}")
    if scenario.serving:
        peak = readable(scenario.serving.peak_requests_per_second, "requests/s")
        asked.append(f"serving up to {peak} for {readable(scenario.serving.days, 'days')}")
    model = scenario.model.preset or "a model of one's own"
    return f"A plan for {model}: {', and '.join(asked)}"


def _headline(plan: Plan) -> Table:
    """Return the few numbers that a reader looks for first, beside the requirements."""
    limits: dict[str, Cell] = {}
    scenario = plan.scenario
    given = {quantity.name: quantity for quantity in plan.quantities}
    if scenario.budget.total is not None:
        limits["total_cost"] = Number(scenario.budget.total, scenario.budget.currency)
    if scenario.training:
        limits["training_days"] = Number(scenario.training.deadline_days, "days")
    if "memory_limit" in given:
        limits["memory_per_gpu"] = _number(given["memory_limit"])
    if scenario.serving:
        limits |= {
            "attainment": Number(scenario.serving.slo_share, "share"),
            "tpot": Number(scenario.serving.tpot_seconds, "s"),
            "most_replicas": Number(scenario.serving.maximum_replicas, "replicas"),
        }
    rows = tuple(
        (given[name].label, _number(given[name]), limits.get(name, "–")) for name in _HEADLINE if name in given
    )
    return Table("The plan in numbers", ("Quantity", "Plan", "Limit"), rows, (0.6, 0.2, 0.2))


_HEADLINE = (
    "gpus", "training_days", "training_days_low", "training_days_high", "memory_per_gpu", "mfu", "useful_share",
    "most_replicas", "tpot", "attainment", "cost_per_million_tokens", "gpu_hour_price", "total_cost", "total_cost_low",
    "total_cost_high", "outlay",
)  # fmt: skip
"""Names of quantities, in the order in which they are shown."""


def _bill(plan: Plan) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (line.label, Number(line.amount, plan.scenario.budget.currency, line.quantity)) for line in plan.costs
    ]
    total = Number(plan["total_cost"], plan.scenario.budget.currency, "total_cost")
    return Table("What it costs", ("Line", "Amount"), (*rows, ("Total", total)), (0.75, 0.25), total=True)


def _decisions(plan: Plan) -> Table:
    rows = tuple(
        (decision.topic, decision.choice, decision.reason, decision.margin, decision.runner_up)
        for decision in plan.decisions
    )
    header = ("Topic", "Choice", "Reason", "Margin", "Runner-up")
    return Table("What is decided, and why", header, rows, (0.14, 0.2, 0.3, 0.18, 0.18))


def _part(
    plan: Plan, title: str, topics: tuple[str, ...], names: Iterable[str], pictures: dict[str, Picture]
) -> Iterable[Block]:
    results = [quantity for quantity in plan.quantities if quantity.topic in topics and quantity.evidence == "model"]
    if results:
        rows = tuple((quantity.label, _number(quantity)) for quantity in results)
        yield Table(f"{title} in numbers", ("Quantity", "Value"), rows, (0.75, 0.25))
    yield from (pictures[name] for name in names if name in pictures)
    if title == "Cost" and plan.options:
        options = tuple(
            (
                option.accelerator,
                _maybe(option.cost, plan),
                _maybe(option.days, "days"),
                _maybe(option.gpus, ""),
                option.note,
            )
            for option in plan.options
        )
        header = ("Accelerator", "Cost", "Days", "GPUs", "Note")
        yield Table("The same scenario on other accelerators", header, options, (0.2, 0.16, 0.12, 0.1, 0.42))


def _sensitivity(plan: Plan) -> Table:
    rows = tuple(
        (
            change.change,
            _maybe(change.cost, plan),
            _maybe(change.days, "days"),
            "; ".join(change.decisions) or "nothing",
        )
        for change in plan.sensitivity
    )
    header = ("If …", "Cost", "Days", "Then this changes")
    return Table("What one changed assumption does", header, rows, (0.24, 0.16, 0.13, 0.47))


def _evidence(plan: Plan) -> Iterable[Block]:
    counts = Counter(quantity.evidence for quantity in plan.quantities)
    yield Paragraph(_LEVELS)
    rows = tuple((level, Number(counts[level], ""), what) for level, what in _EVIDENCE.items())
    yield Table("Levels of evidence", ("Level", "Quantities", "Meaning"), rows, (0.16, 0.14, 0.7))
    computed = tuple((decision.topic, decision.model) for decision in plan.decisions)
    yield Table("What computed each decision", ("Decision", "Model of the library"), computed, (0.3, 0.7))
    sourced = [quantity for quantity in plan.quantities if quantity.evidence in ("published", "estimate")]
    if sourced:
        prices = tuple((quantity.label, _number(quantity), quantity.evidence, quantity.source) for quantity in sourced)
        header = ("Quantity", "Value", "Level", "Source and date")
        yield Table("Published figures and estimates", header, prices, (0.25, 0.17, 0.13, 0.45))


def _inputs(plan: Plan) -> Table:
    rows = tuple((key, _typed(value)) for key, value in plan.scenario.inputs())
    return Table("Every key of the scenario, defaults included", ("Key", "Value"), rows, (0.45, 0.55))


def _quantities(plan: Plan) -> Table:
    labels = {quantity.name: quantity.label for quantity in plan.quantities}
    rows = tuple(
        (quantity.label, _number(quantity), quantity.evidence, _in_words(quantity.formula, labels) or quantity.source)
        for quantity in plan.quantities
    )
    header = ("Quantity", "Value", "Evidence", "Source, or how it follows")
    return Table("Every number of the plan", header, rows, (0.28, 0.17, 0.13, 0.42))


def _number(quantity: Quantity) -> Number:
    return Number(quantity.value, quantity.unit, quantity.name)


def _maybe(value: float | None, unit: str | Plan) -> Cell:
    if value is None:
        return "–"
    return Number(value, unit if isinstance(unit, str) else unit.scenario.budget.currency)


def _typed(value: object) -> str:
    """A value of the scenario as its file has it, without quotes."""
    if isinstance(value, tuple):
        return ", ".join(map(_typed, value))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:,.10g}" if abs(value) < 1e10 else f"{value:.6g}"
    return str(value)


def _in_words(formula: str, labels: dict[str, str]) -> str:
    """ "price * (hours + spare_hours)" → "price per GPU-hour × (hours + hours of spares)"."""
    parts = re.findall(r"[A-Za-z_]\w*|[\d.]+(?:[eE][+-]?\d+)?|[-+*/()]", formula)
    return "".join(labels.get(part, _OPERATORS.get(part, part)) for part in parts)
