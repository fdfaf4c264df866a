"""Published points of DeepSeek-V3 whose prompts are computed on other GPUs than their answers, from kernels.

No constant is fitted to these points: those of the host come from dense models, and those of the kernels from kernels.
Only the skew of the experts' popularity is chosen, among those of the published kernels, on half of the points.

The number of requests in the system is constant: the batch that a point states, in every group that decodes. If the
GPUs that prefill can keep up, all of them are decoded, at that batch. Otherwise the batch is what flows in: requests
come no faster than prompts are computed (`balanced`). The same holds where one set of GPUs does both, but there each
prompt lengthens the step that it joins.

Left out are points in fp4, for which no kernels were published, on GPUs whose kernels nobody timed, and with a worker
of more GPUs than an NVLink domain has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from threeloops.hardware.measured import measured
from threeloops.inner.predict.silicon import StepHost, fitted
from threeloops.product.batching.simulated import LatentKernelCost

from benchmarks.silicon_cases import Row, digest, records
from benchmarks.silicon_report import errors

__all__ = ["Balance", "Pair", "balanced", "chosen_skew", "judged_disaggregated", "pairs", "predictable"]

SKEWS = (0.0, 1.01, 1.2)
"""The exponents with which the published layers of experts were timed."""
_MODEL = "DeepSeek-V3"
_DEVICES = ("H100 SXM", "H200 SXM", "B200")
_DOMAIN = 8
"""GPUs that NVLink joins in such a machine."""
_ALIKE = 1.5
"""Two points have about the same load if their requests per GPU differ by at most this factor."""


@dataclass(frozen=True)
class Balance:
    """The steady state of a point: requests per second, seconds per output token, and requests in a decoding batch."""

    rate: float
    seconds: float
    batch: float


@dataclass(frozen=True)
class Pair:
    """Two points with about the same load, with the output tokens per second and GPU that were measured and predicted:
    of the aggregated one, and of the disaggregated one."""

    measured: tuple[float, float]
    predicted: tuple[float, float]

    @property
    def is_named_rightly(self) -> bool:
        return (self.measured[0] < self.measured[1]) == (self.predicted[0] < self.predicted[1])

    @property
    def margin(self) -> float:
        """How much more the better one reached."""
        return max(self.measured) / min(self.measured) - 1


@cache
def predictable(mode: str) -> tuple[Row, ...]:
    """Return the points whose kernels were all timed, of mode "disagg" or "agg"."""
    rows = records(measured("disaggregated").where(mode=mode, gemm_quant_mode="fp8"))
    return tuple(row for row in rows if _MODEL in row["model_path"] and _is_known(row))


def _is_known(row: Row) -> bool:
    gpus = row["decode_tp"] * row["decode_dp"]
    inside = max(gpus, row["prefill_tp"] * row["prefill_dp"]) <= _DOMAIN
    return row["device"] in _DEVICES and inside and row["decode_expert_tp"] * row["decode_expert_ep"] == gpus


def judged_disaggregated() -> dict[str, dict[str, float]]:
    """The errors of the time per output token, on the half that chose the skew and on the other, and the winners.

    "at the stated batch" takes every request of a point for decoding, as is done for aggregated points.
    """
    skew = chosen_skew()
    rows = predictable("disagg")
    judges = np.array([_judges(row) for row in rows])
    seconds = _published(rows)
    flowing = np.array([balanced(row, skew).seconds for row in rows])
    stated = np.array([_decoding(row, skew).even(row["decode_batch"], _keys(row)) for row in rows])
    aggregated = predictable("agg")
    together = np.array([balanced(row, skew).seconds for row in aggregated])
    found = pairs(skew)
    clear = [pair for pair in found if pair.margin > 0.1]
    return {
        "chose the skew": errors(flowing[~judges], seconds[~judges]),
        "held out": errors(flowing[judges], seconds[judges]),
        "held out, at the stated batch": errors(stated[judges], seconds[judges]),
        "aggregated points beside them": errors(together, _published(aggregated)),
        "pairs": _named(found),
        "pairs that differ by more than 10%": _named(clear),
    }


def chosen_skew() -> float:
    """Return the skew with the least median error on the half of the points that does not judge."""
    rows = [row for row in predictable("disagg") if not _judges(row)]
    seconds = _published(rows)

    def error(skew: float) -> float:
        return errors(np.array([balanced(row, skew).seconds for row in rows]), seconds)["median"]

    return min(SKEWS, key=error)


def pairs(skew: float) -> list[Pair]:
    """Return every pair of an aggregated and a disaggregated point with the same model, GPU, engine, dtype, lengths and
    about the same load."""
    sides: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in predictable("agg"):
        sides[_workload(row)].append(row)
    found = []
    for row in predictable("disagg"):
        for beside in sides[_workload(row)]:
            loads = _requests(row) / _gpus(row), _requests(beside) / _gpus(beside)
            if max(loads) <= _ALIKE * min(loads):
                real = _tokens(beside, _measured_rate(beside)), _tokens(row, _measured_rate(row))
                predicted = _tokens(beside, balanced(beside, skew).rate), _tokens(row, balanced(row, skew).rate)
                found.append(Pair(real, predicted))
    return found


def balanced(row: Row, skew: float) -> Balance:
    """Return the steady state of a point, found by repeating: batch → time per token → rate → batch."""
    return _balanced(tuple(row.items()), skew)


@cache
def _balanced(columns: tuple[tuple[str, Any], ...], skew: float) -> Balance:
    row = dict(columns)
    cost = _decoding(row, skew)
    keys = _keys(row)
    prompt, rate_of_prompts = _prefilling(row, skew)
    share = fitted(StepHost, "Hopper", row["backend"]).prompt
    batch = float(row["decode_batch"])
    mixed = 0.0
    if row["mode"] == "agg":
        alone = cost.even(batch, keys)
        mixed = float(share * (cost.even(batch, keys, row["isl"]) - alone))
    batches = np.geomspace(1.0, batch, 8) if batch > 1 else np.array([batch])
    times = cost.even(batches, keys)
    place = row["decode_workers"] * row["decode_dp"]
    seconds = rate = 0.0
    now = batch
    for _ in range(100):
        seconds = float(np.interp(now, batches, times)) + max(now - 1, 0) / row["osl"] * mixed
        rate = min(_requests(row) / (prompt + row["osl"] * seconds), rate_of_prompts)
        now = (now + min(batch, rate * row["osl"] * seconds / place)) / 2
    return Balance(rate, seconds, now)


def _prefilling(row: Row, skew: float) -> tuple[float, float]:
    """Return the seconds of a prompt by itself, and prompts per second of all GPUs that do nothing else.

    Where the same GPUs decode, a prompt's time is that of the step which it joins, and no other limit is known.
    """
    if row["mode"] == "agg":
        return float(_decoding(row, skew).even(0, 1, row["isl"])), np.inf
    ranks, groups = int(row["prefill_tp"]), int(row["prefill_dp"])
    cost = _cost(row["device"], row["backend"], ranks, groups, ranks * groups, skew)
    seconds = float(cost.even(0, 1, row["isl"]))
    return seconds, row["prefill_workers"] * groups / seconds


def _decoding(row: Row, skew: float) -> LatentKernelCost:
    sizes = (int(row[f"decode_{name}"]) for name in ("tp", "dp", "expert_ep"))
    return _cost(row["device"], row["backend"], *sizes, skew)


@cache
def _cost(device: str, engine: str, ranks: int, groups: int, expert_ranks: int, skew: float) -> LatentKernelCost:
    return LatentKernelCost(
        device=device, engine=engine, ranks=ranks, groups=groups, expert_ranks=expert_ranks, skew=skew
    )


def _judges(row: Row) -> bool:
    columns = ("device", "backend", "isl", "osl", "decode_batch", "decode_workers", "decode_tp", "decode_dp")
    return digest("disaggregated", *(row[column] for column in columns)) % 2 == 0


def _workload(row: Row) -> tuple[object, ...]:
    return tuple(row[column] for column in ("model_path", "device", "backend", "gemm_quant_mode", "isl", "osl"))


def _requests(row: Row) -> float:
    return row["decode_batch"] * row["decode_workers"] * row["decode_dp"]


def _gpus(row: Row) -> float:
    of_kinds: Iterator[float] = (
        row[f"{kind}_workers"] * row[f"{kind}_tp"] * row[f"{kind}_dp"] for kind in ("prefill", "decode")
    )
    return sum(of_kinds)


def _measured_rate(row: Row) -> float:
    """Return the requests per second of a published point, of which each takes the same time."""
    return 1e3 * _requests(row) / (row["silicon_ttft_ms"] + row["osl"] * row["silicon_tpot_ms"])


def _tokens(row: Row, rate: float) -> float:
    """Return the output tokens per second and GPU at so many requests per second."""
    return rate * row["osl"] / _gpus(row)


def _keys(row: Row) -> float:
    return row["isl"] + row["osl"] / 2


def _published(rows: tuple[Row, ...] | list[Row]) -> np.ndarray:
    return np.array([row["silicon_tpot_ms"] for row in rows]) * 1e-3


def _named(found: list[Pair]) -> dict[str, float]:
    """The number of pairs, and the shares in which the winner is named, and in which disaggregation won."""
    return {
        "n": len(found),
        "named rightly": round(float(np.mean([pair.is_named_rightly for pair in found])), 4),
        "disaggregated won": round(float(np.mean([pair.measured[0] < pair.measured[1] for pair in found])), 4),
    }
