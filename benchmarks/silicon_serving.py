"""The time per output token of published serving points, from the kernels of a step.

A point has so many requests at all times. While one of them makes its output, each of the others passes its prompt
once, which lengthens the step that it joins. The table does not say how requests arrived, so the time to the first
token is not judged. Points whose requests do not fit the memory are left out, because they wait for one another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from threeloops.hardware import accelerator
from threeloops.hardware.measured import Table, measured
from threeloops.inner.predict.silicon import StepHost
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching import KernelCost

__all__ = ["ENGINES", "FITTED_ON", "Points", "points"]

ENGINES = ("sglang", "trtllm", "vllm")
FITTED_ON = ("H100 SXM", "H200 SXM")
_UNSEEN = "B200"
"""No constant of the host was fitted on it."""
_LONGEST = 1 << 17
_MODELS = {
    "Qwen/Qwen3-32B": GPTConfig(
        151936, layers=64, heads=64, kv_heads=8, width=5120, mlp_width=25600, max_sequence=_LONGEST, head_dim=128
    ),
    "Llama-3.1-8B": GPTConfig(
        128256, layers=32, heads=32, kv_heads=8, width=4096, mlp_width=14336, max_sequence=_LONGEST
    ),
    "Llama-3.1-70B": GPTConfig(
        128256, layers=80, heads=64, kv_heads=8, width=8192, mlp_width=28672, max_sequence=_LONGEST
    ),
}
"""The published sizes, by a part of the model's path."""
_DTYPES = {"": "bf16", "fp8": "fp8", "fp8_block": "fp8"}
_MEMORY_SHARE = 0.9
_RESERVED = 3.5e9
"""Bytes of a GPU that an engine keeps for activations and graphs."""


@dataclass(frozen=True)
class Points:
    """Points of one engine. Kernel times are summed, so that the constants of the host can be fitted to them.

    `alone` and `mixed` are the seconds of a step without and with a prompt, and `alone_kernels` and `mixed_kernels` the
    numbers of its kernels.
    """

    engine: str
    rows: Table
    running: np.ndarray
    alone: np.ndarray
    alone_kernels: np.ndarray
    mixed: np.ndarray
    mixed_kernels: np.ndarray

    @property
    def seconds(self) -> np.ndarray:
        """The published time per output token."""
        return self.rows["silicon_tpot_ms"] * 1e-3

    def predicted(self, host: StepHost) -> np.ndarray:
        """The time per output token with these constants of the host."""
        step = self.alone + host.launch * self.alone_kernels + host.step + host.sequence * self.running
        prompt = self.mixed - self.alone + host.launch * (self.mixed_kernels - self.alone_kernels)
        return step + (self.running - 1) / self.rows["osl"] * host.prompt * prompt

    def chosen(self, mask: np.ndarray) -> Points:
        arrays = (self.running, self.alone, self.alone_kernels, self.mixed, self.mixed_kernels)
        return Points(self.engine, self.rows.rows(mask), *(values[mask] for values in arrays))


@cache
def points(engine: str) -> Points:
    """Return the points of an engine that are known models in bf16 or fp8, and fit the memory."""
    table = measured("serving").where(backend=engine)
    parts = []
    for cost, rows in _alike(table, engine):
        running = rows["batch_size"]
        keys = rows["isl"] + rows["osl"] / 2
        alone, alone_kernels = cost.even(running, keys, np.zeros(len(rows)))
        mixed, mixed_kernels = cost.even(running, keys, rows["isl"])
        parts.append(Points(engine, rows, running, alone, alone_kernels, mixed, mixed_kernels))
    columns = {name: np.concatenate([part.rows[name] for part in parts]) for name in table.columns}
    arrays = (
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("running", "alone", "alone_kernels", "mixed", "mixed_kernels")
    )
    return Points(engine, Table(table.name, table.timing, columns), *arrays)


def _alike(table: Table, engine: str) -> Iterator[tuple[KernelCost, Table]]:
    """Yield the rows that share a model, device, dtype and number of GPUs, with their cost."""
    for path in np.unique(table["model_path"]):
        config = next((config for part, config in _MODELS.items() if part in path), None)
        if config is None or "NVFP4" in path:
            continue
        for device in (*FITTED_ON, _UNSEEN):
            for name, dtype in _DTYPES.items():
                for ranks in np.unique(table["tp_size"]):
                    columns = (("model_path", path), ("device", device), ("gemm_quant_mode", name), ("tp_size", ranks))
                    mask = np.all([table[column] == value for column, value in columns], axis=0)
                    cost = KernelCost(config, device, dtype, int(ranks), engine)
                    mask &= table["batch_size"] <= _seats(cost, table)
                    if mask.any():
                        yield cost, table.rows(mask)


def _seats(cost: KernelCost, table: Table) -> np.ndarray:
    """Return how many requests fit the memory."""
    config = cost.config
    element = 1 if cost.dtype == "fp8" else 2
    head = config.vocabulary_size * config.width
    weights = element * (config.matmul_parameters - head) + 2 * 2 * head
    memory = accelerator(cost.device).memory_bytes
    room = cost.ranks * (_MEMORY_SHARE * memory - _RESERVED) - weights
    of_token = 2 * config.layers * config.kv_heads * config.head_dim * cost.kv_bytes
    return room / (of_token * (table["isl"] + table["osl"]))
