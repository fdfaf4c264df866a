"""The slides of a plan: one idea on each, and nothing that is not in the document."""

from collections.abc import Mapping

from threeloops.capstone.documents.formats.outline import Number, Picture, Slide, Table
from threeloops.capstone.plan import Plan

__all__ = ["slides"]

_ROWS = 7
"""The rows of a table on one slide, below its header."""


def slides(plan: Plan, pictures: Mapping[str, Picture], headline: Table, bill: Table) -> tuple[Slide, ...]:
    """The slides after the title: the numbers, the decisions, a slide for each figure, the bill, sensitivities and
    sources."""
    deck = _paged("The plan in numbers", headline)
    decided = tuple((decision.topic, decision.choice, decision.margin) for decision in plan.decisions)
    reasons = {
        decision.topic: f"{decision.topic}: {decision.reason} Runner-up: {decision.runner_up}."
        for decision in plan.decisions
    }
    table = Table("Decisions", ("Topic", "Choice", "Margin"), decided, (0.22, 0.4, 0.38))
    for slide in _paged("What is decided", table):
        rows = slide.table.rows if slide.table else ()
        deck.append(Slide(slide.title, table=slide.table, notes="\n".join(reasons[str(row[0])] for row in rows)))
    deck += [Slide(picture.title, picture=picture, notes=picture.alt) for picture in pictures.values()]
    deck += _paged("What it costs", bill)
    changes = tuple(
        (
            change.change,
            "–" if change.cost is None else Number(change.cost, plan.scenario.budget.currency),
            _topics(change.decisions) if change.cost is not None else "no longer feasible",
        )
        for change in plan.sensitivity
    )
    table = Table("Sensitivity", ("If …", "Cost", "What is decided differently"), changes, (0.36, 0.2, 0.44))
    deck += _paged("What would change the plan", table) if changes else []
    return (*deck, Slide("How good are these numbers?", lines=tuple(_origins(plan))))


def _paged(title: str, table: Table) -> list[Slide]:
    """Divide a table into as many slides as its rows need, evenly filled."""
    pages = max(1, -(-len(table.rows) // _ROWS))
    size = -(-len(table.rows) // pages)
    slides = []
    for page in range(pages):
        rows = table.rows[page * size : (page + 1) * size]
        last = page == pages - 1
        part = Table(table.caption, table.header, rows, table.widths, table.total and last)
        slides.append(Slide(title if pages == 1 else f"{title} ({page + 1} of {pages})", table=part))
    return slides


def _topics(decisions: tuple[str, ...]) -> str:
    """ "checkpoint interval: 42 min → 30 min" → "checkpoint interval"."""
    return ", ".join(decision.partition(":")[0] for decision in decisions) or "nothing"


def _origins(plan: Plan) -> list[str]:
    def count(level: str) -> int:
        return sum(quantity.evidence == level for quantity in plan.quantities)

    return [
        f"Given by the scenario: {count('given')} numbers.",
        f"Published, each with its source and date: {count('published')}.",
        f"Estimated, each with its reason: {count('estimate')}.",
        f"Computed by models of the library, or by arithmetic: {count('model')}.",
        "The document lists all of them; the workbook computes the bill from them again.",
    ]
