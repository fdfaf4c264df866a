"""The evidence files as results, with the look-ups that a summariser needs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from threeloops_grader.machine.provenance import Provenance

from benchmarks.result import Prediction, Result, Series

FOLDER = Path(__file__).parents[1] / "evidence"

COLLECTED = "evidence"
"""The name of the file that `make evidence` writes; its facts are its parts, by name."""


@dataclass
class Evidence(Result):
    """A result as it was read from `path`, which is relative to the folder of benchmarks."""

    path: str = ""

    @property
    def on_gpu(self) -> bool:
        return self.provenance.device == "cuda"

    @property
    def machine(self) -> str:
        name = re.sub(r"\((R|TM)\)", "", self.provenance.name)
        return name if self.on_gpu else f"{name}, {self.provenance.cores} cores"

    @property
    def date(self) -> str:
        return self.provenance.recorded[:10]

    @property
    def quick(self) -> bool:
        return bool(self.settings.get("quick"))

    def find(self, what: str, by: str) -> Series | None:
        """The samples of a quantity as one party reached them; None if they were not measured."""
        return next((series for series in self.series if (series.what, series.by) == (what, by)), None)

    def quantities(self, pattern: str) -> list[str]:
        """The quantities that contain a match of `pattern`, in the order of their first samples."""
        return [what for what in dict.fromkeys(s.what for s in self.series) if re.search(pattern, what)]

    def parties(self, what: str) -> list[str]:
        return [series.by for series in self.series if series.what == what]

    def predicted(self, what: str, by: str = "", case: str = "") -> list[Prediction]:
        """The predictions of a quantity whose party and case match these patterns."""
        return [p for p in self.predictions if p.what == what and re.search(by, p.by) and re.search(case, p.case)]

    def note(self, pattern: str) -> str:
        """Return the text of the pattern's group in the first matching note, or "" if no note matches."""
        return next((found[1] for note in self.notes if (found := re.search(pattern, note))), "")


def read(path: Path) -> Evidence:
    """An evidence file. Raises ValueError if it is not one."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        about = Provenance(**{each.name: data["provenance"][each.name] for each in fields(Provenance)})
        place = path.relative_to(FOLDER.parent).as_posix() if path.is_relative_to(FOLDER.parent) else path.name
        if "parts" in data:
            return Evidence(COLLECTED, about, {}, [], {part["name"]: part for part in data["parts"]}, path=place)
        series = [
            Series(row["what"], row["by"], row["unit"], tuple(row["samples"]), row["better"], row["peer"])
            for row in data["series"]
        ]
        predictions = [
            Prediction(**{each.name: row[each.name] for each in fields(Prediction)})
            for row in data.get("predictions", [])
        ]
        name, settings, facts, notes = data["benchmark"], data["settings"], data["facts"], data.get("notes", [])
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not an evidence file: {error!r}; `python -m benchmarks NAME` writes one") from None
    return Evidence(name, about, settings, series, facts, predictions, notes, place)


def evidence_files() -> list[Path]:
    """All evidence, without the rows of benchmarks that are not finished."""
    return sorted(FOLDER.glob("*/*.json"))


def current(files: Iterable[Path]) -> list[Evidence]:
    """One result per benchmark and GPU, and one per benchmark for all CPUs; of the graded classes one per lab.

    The full form goes before the quick one, the larger class before the smaller, and then the newest.
    """
    chosen: dict[tuple[str, str, str], Evidence] = {}
    for path in sorted(files):
        evidence = read(path)
        labs = ", ".join(evidence.settings.get("labs", []))
        key = (evidence.machine if evidence.on_gpu else "", evidence.name, labs)
        if key not in chosen or _rank(chosen[key]) < _rank(evidence):
            chosen[key] = evidence
    return list(chosen.values())


def _rank(evidence: Evidence) -> tuple[bool, int, str]:
    return not evidence.quick, evidence.settings.get("class", 0), evidence.provenance.recorded
