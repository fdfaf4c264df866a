"""The assertions of the course's source texts, and where they contradict each other: `claims.json` as data."""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Claim", "Disagreement", "claims", "disagreements", "sources"]


@dataclass(frozen=True)
class Claim:
    """`source` holds keys of `sources()`, separated by commas; `lab` is a two-digit number."""

    id: str
    lab: str
    source: str
    claim: str


@dataclass(frozen=True)
class Disagreement:
    """A contradiction about one thing: the statement of each source, by its letter, and the claims whose audits settle
    it.

    If there is only one source, it contradicts itself.
    """

    about: str
    claims: tuple[str, ...]
    says: Mapping[str, str]


@functools.cache
def _file() -> dict:
    return json.loads(Path(__file__).with_name("claims.json").read_text(encoding="utf-8"))


def claims() -> dict[str, Claim]:
    """Every claim that an audit may settle, by id."""
    return {row["id"]: Claim(**row) for row in _file()["claims"]}


def sources() -> dict[str, str]:
    """The titles of the source texts by their letter."""
    return dict(_file()["sources"])


def disagreements() -> tuple[Disagreement, ...]:
    """Return the contradictions between or within the sources, in the order of the course."""
    return tuple(Disagreement(row["about"], tuple(row["claims"]), row["says"]) for row in _file()["disagreements"])
