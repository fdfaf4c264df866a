"""Predictions of kernels against published measurements: fit the constants, and judge them on shapes left out.

A fifth of the shapes, drawn by a hash, judges. Beside each model stands the present prediction of the library, which
uses the data sheet alone, and the nearest shape of the fit. `python -m benchmarks silicon` judges the constants that
the library ships, and those of a new fit. `python -m benchmarks.silicon` fits and replaces them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from threeloops.files import replace_text
from threeloops.hardware import accelerator
from threeloops.hardware.measured import MEASURED_BY, Table, measured
from threeloops.inner import costs
from threeloops.inner.predict import predict
from threeloops.inner.predict.silicon import (
    CustomAllReduce,
    Decode,
    Gemm,
    Prefill,
    QuantizingGemm,
    Ring,
    StepHost,
    SwitchedRing,
    bounds,
    collective_seconds,
    custom_all_reduce_seconds,
    decode_seconds,
    fitted,
    gemm_seconds,
    prefill_seconds,
    sheet,
    unidentified,
)  # fmt: skip
from threeloops.inner.predict.silicon.collectives import OPERATIONS
from threeloops_grader.machine.provenance import Provenance

from benchmarks.result import Result, Series, Unmeasured
from benchmarks.silicon_serving import ENGINES, FITTED_ON, Points, points

__all__ = ["Case", "cases", "errors", "fit", "fit_host", "judged", "judged_serving", "measure", "write"]

CONSTANTS = Path(__file__).parent.parent / "lib/threeloops/inner/predict/silicon/constants.json"
_FITTED_ROWS = 1000
"""A fit sees at most so many rows; more change no constant in its third digit."""
_ROBUST = 0.1
"""Rows further off than 10% pull on a fit by their sign alone (Huber)."""
_DIGITS = 4
_WITH_SWITCH = ("H100 SXM", "H200 SXM", "B200")
"""Devices whose NVSwitch adds: it came with its third generation."""
_ENGINES = (
    ("vllm", "vllm/0.24.0", "vLLM_custom_graph"),
    ("trtllm", "trtllm/1.3.0rc20", "TRTLLM"),
    ("sglang", "sglang/0.5.14", "SGLang_CustomAllReduce_graph"),
)
"""Inference engines, and how the table calls them and their kernel inside a CUDA graph."""

_TITLES = {
    Gemm: "product",
    QuantizingGemm: "product",
    Prefill: "attention of prompts",
    Decode: "attention while decoding",
    Ring: "NCCL",
    SwitchedRing: "NCCL",
    CustomAllReduce: "all-reduce of",
}
"""How a case is called."""

Predict = Callable[[Any, Table], np.ndarray]
"""Constants and rows; the seconds of each."""


@dataclass(frozen=True)
class Case:
    """A kind of kernel on one device: the rows that were measured, and the formula. `floor`: what the data sheet alone
    predicts, at least and at most, for one row."""

    kind: type
    device: str
    variant: str
    rows: Table
    shape: tuple[str, ...]
    predict: Predict
    floor: Callable[[dict[str, Any]], tuple[float, float]] | None = None

    @property
    def name(self) -> str:
        return f"{_TITLES[self.kind]} {self.variant}, {self.device}"

    @cached_property
    def held_out(self) -> np.ndarray:
        """A mask: the same shapes are left out on every device."""
        shapes = zip(*(self.rows[column] for column in self.shape), strict=True)
        return np.array([_digest(self.rows.name, *shape) % 5 == 0 for shape in shapes])


def cases() -> list[Case]:
    """Every kernel and device that is fitted."""
    return [*_products(), *_attention(), *_collectives()]


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
    return np.array([_digest(of_engine.engine, *row) % 2 == 0 for row in rows])


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
        "nearest shape": errors(_nearest(case), seconds[held_out]),
    }
    if case.floor:
        rows = case.rows.rows(held_out)
        intervals = np.array([case.floor(row) for row in _records(rows)])
        low, high = intervals.T
        table["data sheet"] = errors(low, seconds[held_out])
        inside = (low <= seconds[held_out]) & (seconds[held_out] <= high)
        table["data sheet"]["inside its interval"] = round(float(inside.mean()), 4)
    return table


def measure(about: Provenance, *, quick: bool = False) -> Result:
    """Judge every case with the library's constants and with those of a new fit. `quick`: without the fits."""
    series: list[Series] = []
    facts: dict[str, Any] = {"errors": {}, "fitted again": {}, "on a bound": {}}
    every_case = cases()
    for case in every_case:
        constants: Any = fitted(case.kind, case.device, case.variant)
        facts["errors"][case.name] = judged(case, constants)
        if bound := unidentified(constants):
            facts["on a bound"][case.name] = bound
        if not quick:
            facts["fitted again"][case.name] = judged(case, fit(case))["held out"]
        held_out = case.held_out
        seconds = case.rows["seconds"][held_out]
        off = np.abs(case.predict(constants, case.rows)[held_out] / seconds - 1)
        series.append(Series(case.name, "fitted model", "|p/m − 1|", tuple(np.round(off, 4).tolist())))
        nearest = np.abs(_nearest(case) / seconds - 1)
        series.append(Series(case.name, "nearest shape", "|p/m − 1|", tuple(np.round(nearest, 4).tolist()), peer=True))
    return Result(
        "silicon",
        about,
        {"quick": quick, "held out": "a fifth of the shapes, by hash"},
        series,
        {
            **facts,
            "time per output token": judged_serving(lambda engine: fitted(StepHost, "Hopper", engine)),
            "from H100 by data sheet alone": dict(_carried_over(every_case)),
        },
        notes=[f"times {MEASURED_BY}", "median, lowest and highest error of the held-out shapes"],
    )


def write() -> None:
    """Fit every case, and replace the constants of the library."""
    table: dict[str, dict[str, dict[str, Any]]] = {}
    for case in cases():
        table.setdefault(case.kind.__name__, {}).setdefault(case.device, {})[case.variant] = asdict(fit(case))
    table["StepHost"] = {"Hopper": {engine: asdict(StepHost()) for engine in ENGINES}}
    replace_text(CONSTANTS, json.dumps(table, indent=1) + "\n")  # the host is fitted to what these kernels leave
    table["StepHost"] = {"Hopper": {engine: asdict(fit_host(engine)) for engine in ENGINES}}
    replace_text(CONSTANTS, json.dumps(table, indent=1) + "\n")


def _products() -> Iterator[Case]:
    table = measured("gemm")
    for device in np.unique(table["device"]):
        for dtype, ours in (("bfloat16", "bf16"), ("fp8", "fp8")):
            rows = table.rows(np.char.startswith(table["tool"], "trtllm")).where(device=device)
            if dtype not in rows["gemm_dtype"]:
                continue
            yield Case(
                QuantizingGemm if ours == "fp8" else Gemm,
                str(device),
                ours,
                rows.where(gemm_dtype=dtype),
                ("m", "n", "k"),
                partial(_product, sheet(str(device))),
                partial(_product_by_sheet, str(device), ours),
            )


def _product(device: Any, constants: Gemm, rows: Table) -> np.ndarray:
    return gemm_seconds(device, rows["m"], rows["n"], rows["k"], constants)


def _product_by_sheet(device: str, dtype: str, row: dict[str, Any]) -> tuple[float, float]:
    work = costs.matmul(int(row["m"]), int(row["k"]), int(row["n"]), 1 if dtype == "fp8" else 2)
    predicted = predict(work, accelerator(device), dtype=dtype)
    return predicted.low, predicted.high


def _attention() -> Iterator[Case]:
    for kind, name, function in ((Prefill, "attention_prefill", _prefill), (Decode, "attention_decode", _decode)):
        table = measured(name)
        for device in np.unique(table["device"]):
            rows = table.where(device=device)
            yield Case(
                kind,
                str(device),
                "bf16",
                rows,
                ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim"),
                partial(function, sheet(str(device))),
                partial(_attention_by_sheet, str(device)),
            )


def _prefill(device: Any, constants: Prefill, rows: Table) -> np.ndarray:
    heads = rows["num_heads"], rows["num_key_value_heads"]
    return prefill_seconds(device, rows["batch_size"], rows["isl"], *heads, rows["head_dim"], constants)


def _decode(device: Any, constants: Decode, rows: Table) -> np.ndarray:
    keys = rows["isl"] + rows["step"]
    return decode_seconds(device, rows["batch_size"], keys, rows["num_key_value_heads"], rows["head_dim"], constants)


def _attention_by_sheet(device: str, row: dict[str, Any]) -> tuple[float, float]:
    queries, keys = int(row["isl"]), int(row["isl"] + row["step"])
    sizes = int(row["batch_size"]), int(row["num_heads"]), queries, keys, int(row["head_dim"])
    work = costs.attention(*sizes, kv_heads=int(row["num_key_value_heads"]), causal=True, fused=True)
    predicted = predict(work, accelerator(device), dtype="bf16")
    return predicted.low, predicted.high


def _collectives() -> Iterator[Case]:
    table = measured("nccl")
    for device in np.unique(table["device"]):
        if not sheet(str(device)).link:
            continue  # over PCIe, whose topology the table does not tell
        for operation in OPERATIONS:
            rows = table.where(device=device, op_name=operation, nccl_dtype="half")
            has_switch = operation == "all_reduce" and device in _WITH_SWITCH
            predicted = partial(_collective, sheet(str(device)), operation)
            kind = SwitchedRing if has_switch else Ring
            yield Case(kind, str(device), operation, rows, ("num_gpus", "bytes"), predicted)
    table = measured("custom_all_reduce")
    for device in np.unique(table["device"]):
        if not sheet(str(device)).link:
            continue
        for engine, tool, source in _ENGINES:
            try:
                rows = table.where(device=device, tool=tool, kernel_source=source)
            except LookupError:
                continue  # no such engine on this device
            predicted = partial(_custom, sheet(str(device)))
            yield Case(CustomAllReduce, str(device), engine, rows, ("num_gpus", "bytes"), predicted)


def _collective(device: Any, operation: str, constants: Ring, rows: Table) -> np.ndarray:
    return collective_seconds(device, operation, rows["num_gpus"], rows["bytes"], constants)


def _custom(device: Any, constants: CustomAllReduce, rows: Table) -> np.ndarray:
    return custom_all_reduce_seconds(device, rows["num_gpus"], rows["bytes"], constants)


def _carried_over(every_case: list[Case]) -> Iterator[tuple[str, dict[str, float]]]:
    """Judge the constants of an H100 on all rows of the other devices, with nothing but their data sheets."""
    for case in every_case:
        if case.device != "H100 SXM":
            kind = SwitchedRing if case.kind is Ring and case.variant == "all_reduce" else case.kind
            constants: Any = fitted(kind, "H100 SXM", case.variant)
            yield case.name, errors(case.predict(constants, case.rows), case.rows["seconds"])


def _nearest(case: Case) -> np.ndarray:
    """The time of the nearest shape in the fit, by the logarithms of its sizes, for each held-out shape."""
    held_out = case.held_out
    logs = np.log2(1 + np.stack([case.rows[column] for column in case.shape], axis=1))
    distances = np.abs(logs[held_out][:, None] - logs[~held_out][None]).sum(-1)
    return case.rows["seconds"][~held_out][distances.argmin(1)]


def _records(rows: Table) -> list[dict[str, Any]]:
    return [dict(zip(rows.columns, values, strict=True)) for values in zip(*rows.columns.values(), strict=True)]


def _digest(*key: object) -> int:
    text = "|".join(str(int(part)) if isinstance(part, float) else str(part) for part in key)
    return hashlib.sha256(text.encode()).digest()[0]


if __name__ == "__main__":
    write()
