"""Predictions of kernels against published measurements: fit the constants, and judge them on shapes left out.

A fifth of the shapes, drawn by a hash, judges: half of them for latent attention, experts and their exchange. Beside
each model stands the present prediction of the library, which uses the data sheet alone, and the nearest shape of the
fit. `python -m benchmarks silicon` judges the constants that the library ships, and those of a new fit. `python -m
benchmarks.silicon` fits and replaces them. The first also writes `reports/silicon.json`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from threeloops.files import replace_text
from threeloops.hardware.measured import MEASURED_BY
from threeloops.inner.predict.silicon import StepHost, bounds, fitted
from threeloops_grader.machine.provenance import Provenance

from benchmarks.result import Result, Series, Unmeasured
from benchmarks.silicon_cases import Case, cases, digest, nearest
from benchmarks.silicon_disaggregated import judged_disaggregated
from benchmarks.silicon_intervals import INTERVALS, from_other_devices, intervals_text
from benchmarks.silicon_report import REPORTS, errors, judged, lines, write_report
from benchmarks.silicon_serving import ENGINES, FITTED_ON, Points, points
from benchmarks.silicon_training import judged_training

__all__ = ["fit", "fit_host", "judged_serving", "measure", "write"]

CONSTANTS = Path(__file__).parent.parent / "lib/threeloops/inner/predict/silicon/constants.json"
_FITTED_ROWS = 1000
"""A fit sees at most so many rows; more change no constant in its third digit."""
_ROBUST = 0.1
"""Rows further off than 10% pull on a fit by their sign alone (Huber)."""
_DIGITS = 4


def fit(case: Case) -> Any:
    """Return the constants that bring the logarithms of prediction and measurement closest, in the sense of Huber."""
    used = np.random.default_rng(0).permutation(np.flatnonzero(~case.held_out))[:_FITTED_ROWS]
    rows = case.rows.rows(used)
    return _solved(case.kind, lambda constants: case.predict(constants, rows), rows["seconds"])


def fit_host(engine: str) -> StepHost:
    """Return the constants of an engine's host, fitted to half of its serving points on H100 and H200."""
    of_engine = points(engine)
    used = of_engine.chosen(~_judges(of_engine) & np.isin(of_engine.rows["device"], FITTED_ON))
    return _solved(StepHost, used.predicted, used.seconds)


def judged_serving(host: Callable[[str], StepHost]) -> dict[str, dict[str, float]]:
    """The errors of the time per output token with the host that this function gives for each engine."""
    of_engines = [points(engine) for engine in ENGINES]
    predicted = np.concatenate([of.predicted(host(of.engine)) for of in of_engines])
    seconds = np.concatenate([of.seconds for of in of_engines])
    judges = np.concatenate([_judges(of) for of in of_engines])
    devices = np.concatenate([of.rows["device"] for of in of_engines])
    known = np.isin(devices, FITTED_ON)
    masks = {"in the fit": ~judges & known, "held out": judges & known, "B200, in no fit": ~known}
    return {name: errors(predicted[mask], seconds[mask]) for name, mask in masks.items()}


def _judges(of_engine: Points) -> np.ndarray:
    """A mask of the points that judge: half of them, by a hash."""
    columns = ("model_path", "device", "gemm_quant_mode", "tp_size", "isl", "osl", "batch_size")
    rows = zip(*(of_engine.rows[column] for column in columns), strict=True)
    return np.array([digest(of_engine.engine, *row) % 2 == 0 for row in rows])


def _solved(kind: type, predict: Callable[[Any], np.ndarray], seconds: np.ndarray) -> Any:
    try:
        from scipy.optimize import least_squares
    except ModuleNotFoundError:
        raise Unmeasured("scipy is not installed: `pip install -r requirements-test.txt` installs it") from None
    names = [constant.name for constant in fields(kind)]
    measured_logs = np.log(seconds)
    limits = bounds(kind)
    low, high = np.log([(limits[name].low, limits[name].high) for name in names]).T
    start = np.log([asdict(kind())[name] for name in names])

    def off(logs: np.ndarray) -> np.ndarray:
        return np.log(predict(kind(**dict(zip(names, np.exp(logs), strict=True))))) - measured_logs

    solved = least_squares(
        off, start, bounds=(low, high), loss="huber", f_scale=_ROBUST, x_scale="jac", diff_step=0.02, max_nfev=40
    )
    rounded = [float(f"{value:.{_DIGITS}g}") for value in np.exp(solved.x)]
    return kind(**dict(zip(names, rounded, strict=True)))


def measure(about: Provenance, *, quick: bool = False) -> Result:
    """Judge every case with the library's constants and with those of a new fit. `quick`: without the fits."""
    series: list[Series] = []
    report = write_report(REPORTS)
    again: dict[str, Any] = {}
    for case in cases():
        constants: Any = fitted(case.kind, case.device, case.variant)
        if not quick:
            again[case.name] = judged(case, fit(case))["held out"]
        held_out = case.held_out
        seconds = case.rows["seconds"][held_out]
        off = np.abs(case.predict(constants, case.rows)[held_out] / seconds - 1)
        series.append(Series(case.name, "fitted model", "|p/m − 1|", tuple(np.round(off, 4).tolist())))
        of_nearest = np.abs(nearest(case) / seconds - 1)
        series.append(
            Series(case.name, "nearest shape", "|p/m − 1|", tuple(np.round(of_nearest, 4).tolist()), peer=True)
        )
    served = judged_serving(lambda engine: fitted(StepHost, "Hopper", engine))
    trained = judged_training()
    apart = judged_disaggregated()
    return Result(
        "silicon",
        about,
        {
            "quick": quick,
            "held out": "a fifth of the shapes, by hash; half of them for latent attention, experts and their exchange",
        },
        series,
        {
            "report": report,
            "fitted again": again,
            "time per output token": served,
            "disaggregated serving": apart,
            "training runs": trained,
            "inside the interval of other devices": {} if quick else from_other_devices(),
        },
        notes=[
            *lines(report),
            *(f"time per output token, {name}: {_listed(table)}" for name, table in served.items()),
            *(f"disaggregated serving, {name}: {_listed(table)}" for name, table in apart.items()),
            *(f"training runs, {name}: {_listed(table)}" for name, table in trained.items()),
            f"times {MEASURED_BY}; all errors are in reports/silicon.json",
            "above: median, lowest and highest error of the held-out shapes",
        ],
    )


def _listed(table: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in table.items())


def write() -> None:
    """Fit every case, and replace the constants of the library."""
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for case in cases():
        table.setdefault(case.kind.__name__, {}).setdefault(case.device, {})[case.variant] = asdict(fit(case))
    table["StepHost"] = {"Hopper": {engine: asdict(StepHost()) for engine in ENGINES}}
    replace_text(CONSTANTS, json.dumps(table, indent=1) + "\n")  # the host is fitted to what these kernels leave
    table["StepHost"] = {"Hopper": {engine: asdict(fit_host(engine)) for engine in ENGINES}}
    replace_text(CONSTANTS, json.dumps(table, indent=1) + "\n")
    replace_text(INTERVALS, intervals_text())


if __name__ == "__main__":
    write()
