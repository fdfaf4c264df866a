"""The errors of every predicted kernel as one JSON document, judged with the constants that the library ships."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from threeloops.files import replace_text
from threeloops.hardware.measured import MEASURED_BY
from threeloops.inner.predict.silicon import Decode, Ring, SwitchedRing, UnsplitDecode, fitted, unidentified

from benchmarks.silicon_cases import Case, cases, nearest, present

__all__ = ["REPORTS", "document", "errors", "judged", "lines", "markdown", "write_report"]

REPORTS = Path(__file__).parent.parent / "reports"

_PARTIES = {
    "in the fit": "in-sample",
    "held out": "held-out",
    "other device": "constants of another device",
    "data sheet": "present predictor",
    "nearest shape": "nearest neighbour",
}
"""The parties of `judged`, and how the document calls them."""
_BESIDE = ("present predictor", "nearest neighbour")
_DEVICES = ("A100 SXM 80GB", "H100 SXM", "H200 SXM", "B200", "L40S")
_COLUMNS = {"n": "n", "mean": "MAPE", "p90": "p90", "bias": "bias", "inside its interval": "inside its interval"}


def errors(predicted: np.ndarray, seconds: np.ndarray) -> dict[str, float]:
    """How far predictions are from measurements: n; mean, median, 90th percentile of |p/m − 1|; median of p/m."""
    off = np.abs(predicted / seconds - 1)
    return {
        "n": len(off),
        "mean": round(float(off.mean()), 4),
        "median": round(float(np.median(off)), 4),
        "p90": round(float(np.quantile(off, 0.9)), 4),
        "bias": round(float(np.median(predicted / seconds)), 4),
    }


def judged(case: Case, constants: Any) -> dict[str, dict[str, float]]:
    """The errors in the fit, on held-out shapes, and of the parties beside it on the same held-out shapes."""
    held_out = case.held_out
    predicted = case.predict(constants, case.rows)
    seconds = case.rows["seconds"]
    table = {
        "in the fit": errors(predicted[~held_out], seconds[~held_out]),
        "held out": errors(predicted[held_out], seconds[held_out]),
        "nearest shape": errors(nearest(case), seconds[held_out]),
    }
    by_sheet = present(case, case.rows.rows(held_out))
    table["data sheet"] = errors(by_sheet.seconds, seconds[held_out])
    inside = by_sheet.inside(seconds[held_out])
    if inside is not None:
        table["data sheet"]["inside its interval"] = round(inside, 4)
    if other := _other_device(case):
        table["other device"] = errors(case.predict(other, case.rows), seconds)
    return table


def _other_device(case: Case) -> Any:
    """The constants of an H100, or for an H100 those of an H200. None if they were not fitted there."""
    kind: type = SwitchedRing if case.kind is Ring and case.variant == "all_reduce" else case.kind
    kind = Decode if kind is UnsplitDecode else kind
    try:
        return fitted(kind, "H200 SXM" if case.device == "H100 SXM" else "H100 SXM", case.variant)
    except LookupError:
        return None


def document() -> dict[str, Any]:
    """Errors by kernel and device, and their means by kind of kernel. An error is a share: 0.08 is 8%."""
    kernels: dict[str, dict[str, Any]] = {}
    for case in cases():
        constants: Any = fitted(case.kind, case.device, case.variant)
        kernels[case.name] = {
            "kind": case.title,
            "device": case.device,
            "judged on": f"1 in {case.parts} shapes, by hash",
            **{
                name: {column: table[key] for key, column in _COLUMNS.items() if key in table}
                for party, table in judged(case, constants).items()
                for name in [_PARTIES[party]]
            },
            "on a bound, so not identified": unidentified(constants),
        }
    return {
        "times": MEASURED_BY,
        "MAPE": "mean of |predicted / measured - 1|",
        "bias": "median of predicted / measured",
        "constants of another device": "those of an H100, or for it those of an H200, with this device's data sheet",
        "present predictor": "predict() by the data sheet, or a closed form for collectives; its interval beside it",
        "kinds": _by_kind(kernels),
        "kernels": kernels,
    }


def write_report(folder: Path) -> dict[str, Any]:
    """Write `silicon.json` into the folder, and return its contents."""
    made = document()
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / "silicon.json", json.dumps(made, indent=1) + "\n")
    return made


def markdown(made: dict[str, Any]) -> str:
    """The held-out errors as the table of `docs/predictions.md`: a row per kind and variant, a column per device."""
    kernels: dict[str, Any] = made["kernels"]
    lines = [
        f"| kernel | {' | '.join(_DEVICES)} | data sheet or closed form | nearest shape | inside `predict()` |",
        f"|---|{'--:|' * len(_DEVICES)}--:|--:|--:|",
    ]
    for title in dict.fromkeys(name.rpartition(", ")[0] for name in kernels):
        members = {device: kernels[f"{title}, {device}"] for device in _DEVICES if f"{title}, {device}" in kernels}
        ours = [f"{members[device]['held-out']['MAPE']:.1%}" if device in members else "" for device in _DEVICES]
        beside = [_ends([of[party]["MAPE"] for of in members.values()]) for party in _BESIDE]
        shares = [of["present predictor"].get("inside its interval") for of in members.values()]
        inside = "" if None in shares else _ends(shares)
        lines.append(f"| {title} | {' | '.join(ours)} | {' | '.join(beside)} | {inside} |")
    return "\n".join(lines) + "\n"


def lines(made: dict[str, Any]) -> list[str]:
    """Every kernel and party in a line of its own, to be printed."""
    return [
        f"{name}, {party}: n {of['n']}, MAPE {of['MAPE']:.1%}, p90 {of['p90']:.1%}, bias {of['bias']:.2f}"
        + (f", {of['inside its interval']:.0%} inside its interval" if "inside its interval" in of else "")
        for name, kernel in made["kernels"].items()
        for party in _PARTIES.values()
        if (of := kernel.get(party))
    ]


def _ends(shares: list[float]) -> str:
    low, high = (f"{end:.0%}" for end in (min(shares), max(shares)))
    return low if low == high else f"{low} … {high}"


def _by_kind(kernels: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The mean over devices and variants of each party's MAPE, and of the share inside the interval."""
    kinds: dict[str, dict[str, Any]] = {}
    for kind in dict.fromkeys(of["kind"] for of in kernels.values()):
        members = [of for of in kernels.values() if of["kind"] == kind]
        kinds[kind] = {
            name: {
                column: round(float(np.mean([of[name][column] for of in members if column in of.get(name, {})])), 4)
                for column in ("MAPE", "inside its interval")
                if any(column in of.get(name, {}) for of in members)
            }
            for name in _PARTIES.values()
        }
    return kinds
