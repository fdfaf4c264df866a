"""Claims of the course's source texts: myth or fact? Then the audit: a number, how it was obtained and a verdict."""

from dataclasses import asdict

from threeloops.lab.predictions import questions
from threeloops.lab.predictions.claims import Claim, claims, sources
from threeloops.lab.predictions.predict import predict, reveal_again
from threeloops.lab.predictions.questions import single_number
from threeloops.lab.text.wording import printed, with_unit
from threeloops.lab.widgets import cards
from threeloops.lab.widgets.display import publish

__all__ = ["LEVELS", "MIME", "VERDICTS", "audit", "myth"]

MIME = "application/vnd.threeloops.audit+json"
LEVELS = {
    "model": "derived from a model",
    "compiled": "counted in compiled code",
    "CPU": "measured on a CPU",
    "GPU": "measured on a GPU",
    "published": "as published",
}
VERDICTS = {
    "holds": "the claim is right as it stands",
    "corrected": "the claim is wrong, or right only under conditions that it does not name",
    "needs a GPU": "what could be counted without a GPU is given; the claim itself must be measured on one",
    "cannot be tested here": "the course has no means to test it, and says why",
}
_CARDS = {"holds": "passed", "corrected": "hint", "needs a GPU": "plain", "cannot be tested here": "plain"}

_ANSWERS = {"holds": "fact", "corrected": "myth"}


def myth(claim_id: str) -> None:
    """Quote a claim and ask whether it is a fact or a myth; its `audit` stays folded until the reader has said."""
    predict(claim_id, f"Fact or myth? “{_claim(claim_id).claim}”", options=("fact", "myth"))


def _claim(claim_id: str) -> Claim:
    listed = claims()
    if claim_id not in listed:
        near = [i for i in listed if i.split("-")[0] == str(claim_id).split("-")[0]] or listed
        raise ValueError(f"claim {claim_id!r} is not in claims.json; there are {', '.join(near)}")
    return listed[claim_id]


def audit(claim_id: str, number: float | None, unit: str, level: str, verdict: str, how: str = "") -> None:
    """Settle one claim. `number` in `unit` is the audit's result, None only if nothing could be found.

    `level` names the evidence (a key of LEVELS), `verdict` the outcome (a key of VERDICTS), and `how` the method. If
    `myth` has asked, the card stays folded until the reader has answered, and then says who was right.

    Raises ValueError for an unknown claim, level or verdict, and for an audit that does not say how.
    """
    record = _settle(claim_id, number, unit, level, verdict, how)
    if claim_id in questions.asked and verdict in _ANSWERS:
        questions.found(claim_id, _ANSWERS[verdict])
    reveal_again(claim_id, lambda: _show(record))


def _settle(claim_id: str, value: float | None, unit: str, level: str, verdict: str, how: str) -> dict:
    """Return the audit as plain data, which is collected from the executed notebooks."""
    claim = _claim(claim_id)
    for name, given, possible in (("level", level, LEVELS), ("verdict", verdict, VERDICTS)):
        if given not in possible:
            raise ValueError(f"{name} = {given!r}: expected one of {', '.join(possible)}")
    if not how.strip():
        raise ValueError(f"audit({claim_id!r}): how is empty; say how the number was obtained")
    if value is None and verdict in ("holds", "corrected"):
        raise ValueError(f"audit({claim_id!r}): number = None, yet the verdict is {verdict!r}; give the number found")
    return {
        **asdict(claim),
        "number": None if value is None else single_number(value, "number", unit),
        "unit": unit,
        "level": level,
        "verdict": verdict,
        "how": how.strip(),
    }


def _show(record: dict) -> None:
    verdict = record["verdict"]
    level = LEVELS[record["level"]]
    value = "no number" if record["number"] is None else with_unit(printed(record["number"]), record["unit"])
    text = (
        f"audit {record['id']} (source {record['source']}): {record['claim']}\n"
        f"  {verdict}: {value}, {level}\n  how: {record['how']}"
    )
    cite = ", ".join(f"{letter}: {sources()[letter]}" for letter in record["source"].split(","))
    inline = cards.inline
    kind = _CARDS[verdict]
    body = (
        f"<b>Claim {inline(record['id'])}</b> · {inline(record['claim'])} {cards.small(f'({cite})')}<br>"
        f"{cards.coloured(kind, inline(verdict))}: <b>{inline(value)}</b> "
        f"{cards.small('· ' + level)}<br>{inline(record['how'])}"
    )
    if (guess := questions.guesses.get(record["id"])) is not None:
        body += f"<br>{cards.small(f'You said: {guess}.')}"
    publish(text, {"text/html": cards.frame(kind, body), MIME: record})
