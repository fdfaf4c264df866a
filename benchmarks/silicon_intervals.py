"""The intervals of `predict`: fitted to published times relative to the data sheet, and how many of them they hold."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from threeloops.inner.predict.published import ANY, NOMINAL, Spread

from benchmarks.result import Unmeasured
from benchmarks.silicon_cases import Case, by_sheet, cases, records

__all__ = ["INTERVALS", "Timed", "from_other_devices", "intervals_text", "timed"]

INTERVALS = Path(__file__).parent.parent / "lib/threeloops/inner/predict/intervals.json"
_TAIL = (1 - NOMINAL) / 2
_DIGITS = 4


@dataclass(frozen=True)
class Timed:
    """Measured rows of one case, with their seconds by the data sheet: `best` with overlap, and `worst` without."""

    case: Case

    @cached_property
    def kind(self) -> str:
        """The name of the rows' kind in the table of intervals; empty if it has no entry of its own."""
        assert self.case.work
        kind = self.case.work(records(self.case.rows)[0]).kind
        return f"{kind} {self.case.dtype}" if kind else ""

    @cached_property
    def seconds(self) -> np.ndarray:
        return self.case.rows["seconds"]

    @cached_property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """The seconds by the data sheet at best and at worst."""
        return by_sheet(self.case, self.case.rows)


@cache
def timed() -> tuple[Timed, ...]:
    """Every case for which `predict` knows the least work."""
    return tuple(Timed(case) for case in cases() if case.work)


def intervals_text() -> str:
    """Fit the table of intervals to the rows that fits may see, and return it as JSON."""
    table: dict[str, dict[str, list[float]]] = {}
    for device in (*dict.fromkeys(of.case.device for of in timed()), ANY):
        on_device = [of for of in timed() if device in (of.case.device, ANY)]
        kinds = {
            kind: [of for of in on_device if of.kind == kind] for kind in dict.fromkeys(of.kind for of in on_device)
        }
        kinds.pop("", None)
        table[device] = {kind: _fit(of_kind) for kind, of_kind in kinds.items()}
        table[device][ANY] = _fit(on_device)
    return json.dumps(table, indent=1) + "\n"


def from_other_devices() -> dict[str, float]:
    """The share of each kind's rows on a device in the interval that all other devices give, averaged over devices."""
    shares: dict[str, list[float]] = {}
    for of in timed():
        others = [other for other in timed() if other.kind == of.kind and other.case.device != of.case.device]
        if of.kind and others:
            rows, *ends = _fit(others)
            low, high = Spread(ANY, of.kind, int(rows), *ends).interval(*of.ends)  # type: ignore[arg-type]
            inside = (low <= of.seconds) & (of.seconds <= high)
            shares.setdefault(of.kind, []).append(float(inside.mean()))
    return {kind: round(float(np.mean(values)), 4) for kind, values in shares.items()}


def _fit(group: list[Timed]) -> list[float]:
    """The number of rows, and start and factor of the low and of the high end. Every case has the same weight."""
    used = [~of.case.held_out for of in group]
    logs = np.log(np.concatenate([of.seconds[mask] for of, mask in zip(group, used, strict=True)]))
    weights = np.concatenate([np.full(mask.sum(), 1 / mask.sum()) for mask in used])
    best, worst = (np.concatenate([of.ends[end][mask] for of, mask in zip(group, used, strict=True)]) for end in (0, 1))
    low = _quantile(best, logs, weights, _TAIL)
    high = np.maximum(low, _quantile(worst, logs, weights, 1 - _TAIL))
    return [len(logs), *(float(f"{value:.{_DIGITS}g}") for value in (*low, *high))]


def _quantile(sheet_seconds: np.ndarray, logs: np.ndarray, weights: np.ndarray, share: float) -> np.ndarray:
    """Start and factor with a `share` of the weight below start + factor · sheet_seconds, as seconds and a number."""
    try:
        from scipy.optimize import minimize
    except ModuleNotFoundError:
        raise Unmeasured("scipy is not installed: `pip install -r requirements-test.txt` installs it") from None

    def loss(parameters: np.ndarray) -> float:
        start, factor = np.exp(parameters)
        above = logs - np.log(start + factor * sheet_seconds)
        return float((weights * np.where(above > 0, share * above, (share - 1) * above)).sum() / weights.sum())

    order = np.argsort(sheet_seconds)
    small = logs[order[: len(order) // 5]]
    large = order[-len(order) // 3 :]
    slope = np.quantile(logs[large] - np.log(sheet_seconds[large]), share)
    begin = np.array([np.quantile(small, share), slope])
    starts = (begin, begin - [0.7, 0.0])
    options = {"maxiter": 2000, "xatol": 1e-4, "fatol": 1e-7}
    found = [minimize(loss, start, method="Nelder-Mead", options=options) for start in starts]
    return np.exp(min(found, key=lambda one: one.fun).x)
