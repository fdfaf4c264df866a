"""Audits of claims of the course's source texts: a number, how it was obtained and a verdict, as data and as a card."""

import functools
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from threeloops.lab.text.wording import number as as_text
from threeloops.lab.text.wording import with_unit
from threeloops.lab.widgets import cards
from threeloops.lab.widgets.display import publish
from threeloops.lab.widgets.predict import single_number

__all__ = ["Claim", "MIME", "audit", "claims"]

MIME = "application/vnd.threeloops.audit+json"
_LEVELS = {
    "model": "derived from a model",
    "compiled": "counted in compiled code",
    "CPU": "measured on a CPU",
    "GPU": "measured on a GPU",
    "published": "as published",
}
_VERDICTS = {"holds": "passed", "corrected": "hint", "needs a GPU": "plain", "cannot be tested here": "plain"}


@dataclass(frozen=True)
class Claim:
    """`source` holds letters of the file's "sources", separated by commas; `lab` is a two-digit number."""

    id: str
    lab: str
    source: str
    claim: str


@functools.cache
def _file() -> dict:
    return json.loads(Path(__file__).with_name("claims.json").read_text(encoding="utf-8"))


def claims() -> dict[str, Claim]:
    """Every claim that an audit may settle, by id."""
    return {row["id"]: Claim(**row) for row in _file()["claims"]}


def audit(claim_id: str, number: float | None, unit: str, level: str, verdict: str, how: str = "") -> None:
    """Settle one claim: `number` in `unit` is what the audit found, None only if nothing could be found.

    `level` names the evidence (a key of LEVELS), `verdict` the outcome (a key of VERDICTS), `how` the way there.
    Raises ValueError for an unknown claim, level or verdict, and for an audit that does not say how.
    """
    _show(_settle(claim_id, number, unit, level, verdict, how))


def _settle(claim_id: str, value: float | None, unit: str, level: str, verdict: str, how: str) -> dict:
    """The audit as plain data: what is collected from the executed notebooks."""
    known = claims()
    if claim_id not in known:
        near = [i for i in known if i.split("-")[0] == str(claim_id).split("-")[0]] or known
        raise ValueError(f"claim {claim_id!r} is not in claims.json; there are {', '.join(near)}")
    for name, given, possible in (("level", level, _LEVELS), ("verdict", verdict, _VERDICTS)):
        if given not in possible:
            raise ValueError(f"{name} = {given!r}: expected one of {', '.join(possible)}")
    if not how.strip():
        raise ValueError(f"audit({claim_id!r}): how is empty; say how the number was obtained")
    if value is None and verdict in ("holds", "corrected"):
        raise ValueError(f"audit({claim_id!r}): number = None, yet the verdict is {verdict!r}; give the number found")
    return {
        **asdict(known[claim_id]),
        "number": None if value is None else single_number(value, "number", unit),
        "unit": unit,
        "level": level,
        "verdict": verdict,
        "how": how.strip(),
    }


def _show(record: dict) -> None:
    verdict, level = record["verdict"], _LEVELS[record["level"]]
    found = "no number" if record["number"] is None else with_unit(as_text(record["number"]), record["unit"])
    text = (
        f"audit {record['id']} (source {record['source']}): {record['claim']}\n"
        f"  {verdict}: {found}, {level}\n  how: {record['how']}"
    )
    cite = ", ".join(f"{letter}: {_file()['sources'][letter]}" for letter in record["source"].split(","))
    inline, kind = cards.inline, _VERDICTS[verdict]
    body = (
        f"<b>Claim {inline(record['id'])}</b> · {inline(record['claim'])} {cards.small(f'({cite})')}<br>"
        f'<b style="color:{cards.MARK[kind]}">{inline(verdict)}</b>: <b>{inline(found)}</b> '
        f"{cards.small('· ' + level)}<br>{inline(record['how'])}"
    )
    publish(text, {"text/html": cards.frame(kind, body), MIME: record})
