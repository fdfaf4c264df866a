"""The page of claims: the source texts' assertions, and the executed notebooks' findings with links to their cells."""

import html
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from threeloops.lab.predictions.audit import LEVELS, VERDICTS
from threeloops.lab.predictions.claims import Claim, Disagreement, claims, disagreements, sources
from threeloops.lab.text.wording import printed, with_unit

from threeloops_grader.course.execute import CourseReport, audited_cells
from threeloops_grader.pages import pages
from threeloops_grader.pages.navigation import PageLink

__all__ = ["ClaimRow", "html_page", "markdown", "rows"]

_STYLE = """
p.legend, dl { color: var(--soft); font-size: .9rem; } dl { display: grid; grid-template-columns: max-content 1fr;
  gap: .15rem .9rem; margin: .4rem 0 1rem; } dt { font-weight: 600; color: var(--ink); } dd { margin: 0; }
table { table-layout: fixed; overflow-wrap: anywhere; } td.id { white-space: nowrap; }
.how { color: var(--soft); font-size: .87rem; margin-top: .2rem; } .verdict { font-weight: 600; }
.claims th:nth-child(1) { width: 5.2rem; } .claims th:nth-child(2) { width: 31%; } .claims th:nth-child(4) {
  width: 7.5rem; } .claims th:nth-child(5) { width: 6.5rem; }
.changed { color: #8a5a00; } @media (prefers-color-scheme: dark) { .changed { color: #f0b354; } }
@media (max-width: 46rem) { dl { grid-template-columns: 1fr; } }
@media print { :root { color-scheme: light; --ink: #000; --soft: #444; --line: #bbb; --paper: #fff; --good: #145c37;
  --bad: #8c1d18; } .changed { color: #6b4600; } body { font-size: 10pt; max-width: none;
  margin: 0; } tr { break-inside: avoid; } h2 { break-after: avoid; } a { text-decoration: none; } }
"""
_KINDS = {"holds": "good", "corrected": "changed"}


@dataclass(frozen=True)
class ClaimRow:
    """One claim with its audit. `record` is None if the run has none, and `device` is the device that executed the
    lab."""

    claim: Claim
    record: dict[str, Any] | None = None
    href: str = ""
    lab: str = ""
    device: str = ""

    @property
    def found(self) -> str:
        if self.record is None:
            return "no audit" if self.lab else f"lab {self.claim.lab} was not run"
        number = self.record["number"]
        unit = str(self.record["unit"])
        if number is None:
            return "no number"
        return f"{printed(number)}{unit}" if unit[:1] in ("%", "×") else with_unit(printed(number), unit)

    @property
    def level(self) -> str:
        """The level of evidence, with the device if it is a GPU."""
        level = str(self.record["level"]) if self.record else ""
        return f"GPU, {self.device.removeprefix('cuda:')}" if level == "GPU" else level

    @property
    def verdict(self) -> str:
        return str(self.record["verdict"]) if self.record else ""


def rows(report: CourseReport) -> list[ClaimRow]:
    """Return a row per claim, in the order of the list. A claim whose lab was run without an audit of it has no
    record."""
    audits_by_claim: dict[str, tuple[dict[str, Any], str, str]] = {}
    for outcome in report.labs:
        for lab, executed in zip(outcome.lab.notebooks, outcome.executed, strict=True):
            for cell, record in audited_cells(executed.notebook):
                audits_by_claim[record["id"]] = (record, f"labs/{lab.stem}.html#cell-id={cell}", outcome.verified_on)
    titles = {f"{o.lab.number:02}": f"{o.lab.number:02} · {o.lab.title}" for o in report.labs}
    listed = []
    for claim in claims().values():
        title = titles.get(claim.lab, "")
        if claim.id in audits_by_claim:
            record, href, device = audits_by_claim[claim.id]
            listed.append(ClaimRow(claim, record, href, title, device))
        else:
            listed.append(ClaimRow(claim, lab=title))
    return sorted(listed, key=lambda row: row.claim.lab)  # stable: claims about code stand at the end of the list


def _summary(listed: Sequence[ClaimRow]) -> str:
    """Return the number of claims, and the number of each verdict."""
    verdicts = Counter(row.verdict or row.found for row in listed)
    order = [*VERDICTS, *(verdict for verdict in verdicts if verdict not in VERDICTS)]
    counts = ", ".join(f"{verdict}: {verdicts[verdict]}" for verdict in order if verdicts[verdict])
    whole = f"{len(listed)} claims of five source texts, audited by the executed notebooks."
    return f"{whole} {counts[0].upper()}{counts[1:]}."


def _contradictions(listed: Sequence[ClaimRow]) -> Iterable[tuple[Disagreement, list[ClaimRow]]]:
    by_id = {row.claim.id: row for row in listed}
    return ((disagreement, [by_id[name] for name in disagreement.claims]) for disagreement in disagreements())


def html_page(listed: Sequence[ClaimRow]) -> str:
    """Return the page: legends, contradictions between sources side by side, and a table per lab."""
    sections = [_legend("Sources", sources()), _legend("Verdicts", VERDICTS), _legend("Evidence", LEVELS)]
    sections.append("<h2>Where sources contradict each other, or themselves</h2>" + _contradiction_table(listed))
    for number in dict.fromkeys(row.claim.lab for row in listed):
        of_lab = [row for row in listed if row.claim.lab == number]
        title = of_lab[0].lab or f"{number} · not in this run"
        sections.append(f"<h2>{_text(title)}</h2>{_claim_table(of_lab)}")
    return pages.page(
        "Claims, audited", _summary(listed), *sections, style=_STYLE, back=[PageLink("All labs", "course.html")]
    )


def _text(text: str) -> str:
    return html.escape(text)


def _legend(title: str, meanings: dict[str, str]) -> str:
    entries = "".join(f"<dt>{_text(name)}</dt><dd>{_text(meaning)}</dd>" for name, meaning in meanings.items())
    return f"<p class='legend'><strong>{_text(title)}</strong></p><dl>{entries}</dl>"


def _table(kind: str, header: Sequence[str], body: Iterable[str]) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in header)
    return f"<table class='{kind}'><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _link(row: ClaimRow, text: str) -> str:
    return f"<a href='{_text(row.href)}'>{_text(text)}</a>" if row.href else _text(text)


def _claim_table(listed: Sequence[ClaimRow]) -> str:
    body = []
    for row in listed:
        how = f"<div class='how'>{_text(row.record['how'])}</div>" if row.record else ""
        kind = _KINDS.get(row.verdict, "" if row.record or not row.lab else "bad")
        source = row.claim.source.replace(",", ", ")
        body.append(
            f"<tr id='{_text(row.claim.id)}'><td class='id'>{_link(row, row.claim.id)}</td>"
            f"<td>{_text(row.claim.claim)} <span class='how'>({_text(source)})</span></td>"
            f"<td data-label='Found'><strong class='{'' if row.record else kind}'>{_text(row.found)}</strong>{how}</td>"
            f"<td data-label='Evidence'>{_text(row.level)}</td>"
            f"<td data-label='Verdict' class='verdict {kind}'>{_text(row.verdict)}</td></tr>"
        )
    return _table("claims", ["Claim", "What the sources assert", "Found", "Evidence", "Verdict"], body)


def _contradiction_table(listed: Sequence[ClaimRow]) -> str:
    body = []
    for disagreement, settled in _contradictions(listed):
        says = "<br>".join(
            f"<strong>{_text(letter)}</strong> {_text(statement)}" for letter, statement in disagreement.says.items()
        )
        results = "<br>".join(f"<a href='#{row.claim.id}'>{row.claim.id}</a> {_text(row.found)}" for row in settled)
        body.append(
            f"<tr><td class='about'>{_text(disagreement.about)}</td><td>{says}</td>"
            f"<td data-label='Found'>{results}</td></tr>"
        )
    return _table("contradictions", ["About", "The sources say", "Found"], body)


def markdown(listed: Sequence[ClaimRow]) -> str:
    """Return the same page in Markdown, for a repository. Every number in it is from an executed notebook."""
    lines = ["# Claims, audited", "", _summary(listed), "", "Generated by `make course`.", ""]
    lines += [f"- **{letter}**: {title}" for letter, title in sources().items()]
    lines += ["", "## Where sources contradict each other, or themselves", ""]
    lines += ["| about | the sources say | found |", "|---|---|---|"]
    for disagreement, settled in _contradictions(listed):
        says = "; ".join(f"**{letter}** {_cell(statement)}" for letter, statement in disagreement.says.items())
        lines.append(
            f"| {disagreement.about} | {says} | {'; '.join(f'{r.claim.id}: {_cell(r.found)}' for r in settled)} |"
        )
    lines += [
        "",
        "## All claims",
        "",
        "| claim | source | asserted | found | evidence | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for row in listed:
        name = f"[{row.claim.id}]({row.href})" if row.href else row.claim.id
        texts = [row.claim.source.replace(",", ", "), row.claim.claim, row.found, row.level, row.verdict]
        lines.append(f"| {name} | {' | '.join(_cell(text) for text in texts)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Return the text within a row of a Markdown table."""
    return " ".join(html.escape(text, quote=False).replace("|", "\\|").replace("*", "\\*").split())
