"""The kernels whose predictions are judged: their published rows, formulas, and the present predictions beside them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
from threeloops.hardware import accelerator
from threeloops.hardware.measured import Table, measured
from threeloops.inner import costs
from threeloops.inner.predict import predict
from threeloops.inner.predict.calibration import Calibration
from threeloops.inner.predict.silicon import (
    CustomAllReduce,
    Decode,
    Gemm,
    LatentDecode,
    Prefill,
    QuantizingGemm,
    Ring,
    Sheet,
    SwitchedRing,
    UnsplitDecode,
    collective_seconds,
    custom_all_reduce_seconds,
    decode_seconds,
    gemm_seconds,
    latent_decode_seconds,
    prefill_seconds,
    sheet,
)
from threeloops.inner.predict.silicon.attention import BEFORE_HOPPER
from threeloops.inner.predict.silicon.collectives import OPERATIONS
from threeloops.inner.predict.silicon.experts import (
    Exchange,
    Experts,
    QuantizedExperts,
    exchange_seconds,
    experts_seconds,
    loads,
)
from threeloops.inner.predict.silicon.experts.exchange import PHASES
from threeloops.inner.predict.silicon.latent import LATENT, VALUES
from threeloops.training.collectives import (
    all_to_all_cost,
    ring_all_gather_cost,
    ring_all_reduce_cost,
    ring_reduce_scatter_cost,
)
from threeloops.training.planning.published import node

__all__ = ["Case", "Present", "by_sheet", "cases", "digest", "nearest", "present", "records"]

_WITH_SWITCH = ("H100 SXM", "H200 SXM", "B200")
"""Devices whose NVSwitch adds: it came with its third generation."""
_ENGINES = (
    ("vllm", "vllm/0.24.0", "vLLM_custom_graph"),
    ("trtllm", "trtllm/1.3.0rc20", "TRTLLM"),
    ("sglang", "sglang/0.5.14", "SGLang_CustomAllReduce_graph"),
)
"""Inference engines, and how the table calls them and their kernel inside a CUDA graph."""
_LIBRARIES = {
    "deepep_ht": "DeepEP",
    "deepep_ll": "DeepEP for low latency",
    "deepep_v2_context": "DeepEP v2 for prompts",
    "deepep_v2_generation": "DeepEP v2 while decoding",
}
"""Libraries that exchange tokens, by their name in the table."""
_DTYPES = (("bfloat16", "bf16"), ("fp8", "fp8"))
_RING_COSTS = {
    "all_gather": ring_all_gather_cost,
    "reduce_scatter": ring_reduce_scatter_cost,
    "all_reduce": ring_all_reduce_cost,
}

_TITLES = {
    Gemm: "product",
    QuantizingGemm: "product",
    Prefill: "attention of prompts",
    Decode: "attention while decoding",
    UnsplitDecode: "attention while decoding",
    LatentDecode: "latent attention while decoding",
    Experts: "layer of experts",
    QuantizedExperts: "layer of experts",
    Exchange: "exchange of tokens by",
    Ring: "NCCL",
    SwitchedRing: "NCCL",
    CustomAllReduce: "all-reduce of",
}
"""How a case is called."""

Row = dict[str, Any]
Predict = Callable[[Any, Table], np.ndarray]
"""Constants and rows; the seconds of each."""


@dataclass(frozen=True)
class Case:
    """A kind of kernel on one device: the rows that were measured, and the formula.

    One in `parts` shapes judges. `work` is the least that a row does, and `closed_form` the seconds of a collective by
    the library's formula: the present prediction comes from one of them.
    """

    kind: type
    device: str
    variant: str
    rows: Table
    shape: tuple[str, ...]
    predict: Predict
    work: Callable[[Row], costs.Work] | None = None
    dtype: str = "bf16"
    closed_form: Callable[[Row], float] | None = None
    parts: int = 5

    @property
    def title(self) -> str:
        """The kind of kernel in words."""
        return _TITLES[self.kind]

    @property
    def name(self) -> str:
        return f"{self.title} {self.variant}, {self.device}"

    @cached_property
    def held_out(self) -> np.ndarray:
        """A mask: the same shapes are left out on every device."""
        shapes = zip(*(self.rows[column] for column in self.shape), strict=True)
        return np.array([digest(self.rows.name, *shape) % self.parts == 0 for shape in shapes])


@cache
def cases() -> tuple[Case, ...]:
    """Every kernel and device that is fitted."""
    return (*_products(), *_attention(), *_latent(), *_experts(), *_collectives(), *_exchanges())


@dataclass(frozen=True)
class Present:
    """The library's predictions without the fitted models: by the data sheet or a closed form, and an interval.

    A closed form has no interval, so `low` and `high` are None.
    """

    seconds: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None

    def inside(self, measured_seconds: np.ndarray) -> float | None:
        """The share of the measurements that the interval holds."""
        if self.low is None or self.high is None:
            return None
        return float(((self.low <= measured_seconds) & (measured_seconds <= self.high)).mean())


def present(case: Case, rows: Table) -> Present:
    """The library's predictions of these rows without the fitted models."""
    if not case.work:
        assert case.closed_form
        return Present(np.array([case.closed_form(row) for row in records(rows)]))
    floor, _ = by_sheet(case, rows)
    return Present(floor, *_ends(case, rows, None))


def by_sheet(case: Case, rows: Table) -> tuple[np.ndarray, np.ndarray]:
    """The seconds of these rows by the data sheet: at best, with overlap, and at worst, without."""
    return _ends(case, rows, Calibration(accelerator(case.device).memory_bandwidth))


def _ends(case: Case, rows: Table, calibration: Calibration | None) -> tuple[np.ndarray, np.ndarray]:
    """Both ends of the interval that `predict` gives each row."""
    assert case.work
    device = accelerator(case.device)
    made = [predict(case.work(row), device, dtype=case.dtype, calibration=calibration) for row in records(rows)]
    return np.array([one.low for one in made]), np.array([one.high for one in made])


def nearest(case: Case) -> np.ndarray:
    """The time of the nearest shape in the fit, by the logarithms of its sizes, for each held-out shape."""
    held_out = case.held_out
    logs = np.log2(1 + np.stack([case.rows[column] for column in case.shape], axis=1))
    distances = np.abs(logs[held_out][:, None] - logs[~held_out][None]).sum(-1)
    return case.rows["seconds"][~held_out][distances.argmin(1)]


def digest(*key: object) -> int:
    """A number from 0 to 255 that depends on the key alone."""
    text = "|".join(str(int(part)) if isinstance(part, float) else str(part) for part in key)
    return hashlib.sha256(text.encode()).digest()[0]


def records(rows: Table) -> list[Row]:
    """The rows as dictionaries by column."""
    return [dict(zip(rows.columns, values, strict=True)) for values in zip(*rows.columns.values(), strict=True)]


def _devices(table: Table, *, linked: bool = False) -> list[str]:
    """The devices of a table. `linked`: without those on PCIe, whose topology the tables do not tell."""
    devices = [str(device) for device in np.unique(table["device"])]
    return [device for device in devices if sheet(device).link] if linked else devices


def _products() -> Iterator[Case]:
    table = measured("gemm")
    table = table.rows(np.char.startswith(table["tool"], "trtllm"))
    for device in _devices(table):
        for name, dtype in _DTYPES:
            rows = table.where(device=device)
            if name in rows["gemm_dtype"]:
                yield Case(
                    QuantizingGemm if dtype == "fp8" else Gemm,
                    device,
                    dtype,
                    rows.where(gemm_dtype=name),
                    ("m", "n", "k"),
                    partial(_product, sheet(device)),
                    partial(_product_work, 1 if dtype == "fp8" else 2),
                    dtype,
                )


def _product(device: Sheet, constants: Gemm, rows: Table) -> np.ndarray:
    return gemm_seconds(device, rows["m"], rows["n"], rows["k"], constants)


def _product_work(element: int, row: Row) -> costs.Work:
    return costs.matmul(int(row["m"]), int(row["k"]), int(row["n"]), element)


def _attention() -> Iterator[Case]:
    for kind, name, function in ((Prefill, "attention_prefill", _prefill), (Decode, "attention_decode", _decode)):
        table = measured(name)
        for device in _devices(table):
            shape = ("batch_size", "isl", "step", "num_heads", "num_key_value_heads", "head_dim")
            predicted = partial(function, sheet(device))
            of_device = UnsplitDecode if kind is Decode and device in BEFORE_HOPPER else kind
            yield Case(of_device, device, "bf16", table.where(device=device), shape, predicted, _attention_work)


def _prefill(device: Sheet, constants: Prefill, rows: Table) -> np.ndarray:
    heads = rows["num_heads"], rows["num_key_value_heads"]
    return prefill_seconds(device, rows["batch_size"], rows["isl"], *heads, rows["head_dim"], constants)


def _decode(device: Sheet, constants: Decode, rows: Table) -> np.ndarray:
    keys = rows["isl"] + rows["step"]
    sizes = rows["batch_size"], keys, rows["num_key_value_heads"], rows["head_dim"]
    return decode_seconds(device, *sizes, constants, heads=rows["num_heads"])


def _attention_work(row: Row) -> costs.Work:
    queries = int(row["isl"])
    sizes = int(row["batch_size"]), int(row["num_heads"]), queries, queries + int(row["step"]), int(row["head_dim"])
    return costs.attention(*sizes, kv_heads=int(row["num_key_value_heads"]), causal=True, fused=True)


def _latent() -> Iterator[Case]:
    table = measured("mla_decode")
    for device in _devices(table):
        rows = table.where(device=device)
        shape = ("num_heads", "batch_size", "isl", "step")
        yield Case(
            LatentDecode, device, "bf16", rows, shape, partial(_latent_decode, sheet(device)), _latent_work, parts=2
        )


def _latent_decode(device: Sheet, constants: LatentDecode, rows: Table) -> np.ndarray:
    keys = rows["isl"] + rows["step"]
    return latent_decode_seconds(device, rows["batch_size"], keys, rows["num_heads"], constants)


def _latent_work(row: Row) -> costs.Work:
    keys = row["batch_size"] * (row["isl"] + row["step"])
    moved = 2 * (keys * LATENT + row["batch_size"] * row["num_heads"] * (LATENT + VALUES))
    return costs.Work(float(moved), float(2 * keys * row["num_heads"] * (LATENT + VALUES)))


def _experts() -> Iterator[Case]:
    table = measured("moe")
    skew = [0.0 if name == "balanced" else float(name.rpartition("_")[2]) for name in table["distribution"]]
    table = Table(table.name, table.timing, {**table.columns, "skew": np.array(skew)})
    shape = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_ep_size", "skew")
    for device in _devices(table):
        for name, dtype in _DTYPES:
            yield Case(
                QuantizedExperts if dtype == "fp8" else Experts,
                device,
                dtype,
                table.where(device=device, moe_dtype=name),
                shape,
                partial(_layer_of_experts, sheet(device)),
                partial(_experts_work, 1 if dtype == "fp8" else 2),
                dtype,
                parts=2,
            )


def _layer_of_experts(device: Sheet, constants: Experts, rows: Table) -> np.ndarray:
    spread = loads(rows["num_tokens"], rows["topk"], rows["num_experts"], rows["moe_ep_size"], rows["skew"])
    return experts_seconds(device, rows["num_tokens"], rows["hidden_size"], rows["inter_size"], spread, constants)


def _experts_work(element: int, row: Row) -> costs.Work:
    """The work of a rank if the experts are chosen equally often."""
    chosen = row["num_tokens"] * row["topk"] / row["moe_ep_size"]
    active = min(row["num_experts"] / row["moe_ep_size"], max(1.0, chosen))
    matrices = 3 * row["hidden_size"] * row["inter_size"]
    moved = element * (active * matrices + 2 * row["num_tokens"] * row["hidden_size"])
    return costs.Work(float(moved), float(2 * chosen * matrices), "experts")


def _collectives() -> Iterator[Case]:
    table = measured("nccl")
    shape = ("num_gpus", "bytes")
    for device in _devices(table, linked=True):
        for operation in OPERATIONS:
            rows = table.where(device=device, op_name=operation, nccl_dtype="half")
            kind = SwitchedRing if operation == "all_reduce" and device in _WITH_SWITCH else Ring
            predicted = partial(_collective, sheet(device), operation)
            formula = partial(_by_formula, device, operation)
            yield Case(kind, device, operation, rows, shape, predicted, closed_form=formula)
    table = measured("custom_all_reduce")
    for device in _devices(table, linked=True):
        for engine, tool, source in _ENGINES:
            try:
                rows = table.where(device=device, tool=tool, kernel_source=source)
            except LookupError:
                continue  # no such engine on this device
            predicted = partial(_custom, sheet(device))
            formula = partial(_by_formula, device, "all_reduce")
            yield Case(CustomAllReduce, device, engine, rows, shape, predicted, closed_form=formula)


def _collective(device: Sheet, operation: str, constants: Ring, rows: Table) -> np.ndarray:
    return collective_seconds(device, operation, rows["num_gpus"], rows["bytes"], constants)


def _custom(device: Sheet, constants: CustomAllReduce, rows: Table) -> np.ndarray:
    return custom_all_reduce_seconds(device, rows["num_gpus"], rows["bytes"], constants)


def _by_formula(device: str, operation: str, row: Row) -> float:
    """The seconds of a ring, or of messages in pairs, by latency and bandwidth of the planner's links."""
    link = node(device, 1.0).inside
    ranks = int(row["num_gpus"])
    elements = int(row["bytes"]) // 2
    if operation == "alltoall":
        return all_to_all_cost([[elements // ranks] * ranks] * ranks, 2, link).seconds
    return _RING_COSTS[operation](elements, 2, ranks, link).seconds


def _exchanges() -> Iterator[Case]:
    table = measured("moe_all_to_all")
    shape = ("num_tokens", "hidden_size", "topk", "num_experts")
    for device in _devices(table, linked=True):
        of_device = table.where(device=device)
        for library, title in _LIBRARIES.items():
            for phase in PHASES:
                rows = of_device.rows((of_device["comm_backend"] == library) & (of_device["phase"] == phase))
                if len(rows):
                    low_latency = library == "deepep_ll"
                    predicted = partial(_exchange, sheet(device), phase, low_latency)
                    formula = partial(_exchange_by_formula, device)
                    variant = f"{title} {phase}"
                    yield Case(Exchange, device, variant, rows, shape, predicted, closed_form=formula, parts=2)


def _exchange(device: Sheet, phase: str, low_latency: bool, constants: Exchange, rows: Table) -> np.ndarray:
    sizes = (rows[column] for column in ("num_tokens", "hidden_size", "topk", "num_experts", "ep_size"))
    return exchange_seconds(device, phase, *sizes, constants, low_latency=low_latency)


def _exchange_by_formula(device: str, row: Row) -> float:
    """The seconds of an all-to-all that sends each token once per expert, in bf16."""
    ranks = int(row["ep_size"])
    elements = int(row["num_tokens"] * row["topk"] * row["hidden_size"]) // ranks
    return all_to_all_cost([[elements] * ranks] * ranks, 2, node(device, 1.0).inside).seconds
