"""The time of a step as the sum of its kernels, each predicted by constants fitted to published measurements."""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from threeloops.inner.predict.silicon import (
    CustomAllReduce,
    Decode,
    Gemm,
    Prefill,
    QuantizingGemm,
    Sheet,
    StepHost,
    custom_all_reduce_seconds,
    decode_constants,
    decode_seconds,
    fitted,
    gemm_seconds,
    prefill_seconds,
    sheet,
)
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.batching.simulated.steps import StepShape

__all__ = ["KernelCost"]

_SMALL_KERNELS = 4
"""The kernels of a layer besides products, attention and all-reduce: two norms, rotary positions, activation."""
_STREAM = 0.8
"""The share of the bandwidth that those get."""


@dataclass(frozen=True)
class KernelCost:
    """The cost of a step of `config` on `ranks` GPUs called `device`, split by tensor parallelism.

    `dtype` is that of the products, "bf16" or "fp8". `engine` ("vllm", "trtllm" or "sglang") chooses the all-reduce and
    the time of the host, fitted on H100 and H200. Keys and values have `kv_bytes` each. Raises LookupError for
    a device, dtype or engine whose kernels nobody published, and ValueError for a model that the formulas do not know
    or ranks that do not divide it.
    """

    config: GPTConfig
    device: str = "H100 SXM"
    dtype: str = "bf16"
    ranks: int = 1
    engine: str = "vllm"
    kv_bytes: float = 2.0

    def __post_init__(self) -> None:
        if self.config.sliding_window is not None:
            raise ValueError(
                f"sliding_window = {self.config.sliding_window}: this cost counts every key of a sequence; use a "
                "configuration without a window"
            )
        if self.ranks < 1 or self.config.heads % self.ranks:
            raise ValueError(f"ranks = {self.ranks}: expected a divisor of heads = {self.config.heads}")
        _ = self._products, self.host  # raises what the docstring says
        if self.ranks > 1:
            _ = self._all_reduce

    @cached_property
    def host(self) -> StepHost:
        """The constants of the host, which each step adds to its kernels."""
        return fitted(StepHost, "Hopper", self.engine)

    def __call__(self, step: StepShape) -> float:
        """Return the seconds of a step. A chunk that goes on with a prompt is charged for the keys before it."""
        decoding = [(start, count) for start, count, _ in step.chunks if count == 1]
        chunks = [(start, count) for start, count, _ in step.chunks if count > 1]
        keys = sum(start + 1 for start, _ in decoding) / max(len(decoding), 1)
        busy, kernels = _around_attention(self, step.tokens, step.samples)
        attention = float(self._decoding(np.asarray(len(decoding)), np.asarray(keys)))
        for start, count in chunks:
            attention += float(self._prompt(np.asarray(start + count)))
            if start:
                attention -= float(self._prompt(np.asarray(start)))
        launches = kernels + self.config.layers * (bool(decoding) + len(chunks))
        seconds = busy + self.config.layers * attention + self.host.launch * launches
        return seconds + self.host.step + self.host.sequence * len(decoding)

    def even(self, decodes: np.ndarray, keys: np.ndarray, prompt: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the seconds of all kernels, and their number, for steps whose `decodes` sequences have `keys` keys
        each, beside a whole prompt of `prompt` tokens, or none where that is 0. Time of the host is not included."""
        decodes, keys, prompt = (np.asarray(value, dtype=float) for value in (decodes, keys, prompt))
        busy, kernels = self.around_attention(decodes + prompt, decodes + (prompt > 0))
        attention = np.where(decodes > 0, self._decoding(np.maximum(decodes, 1), keys), 0.0)
        attention = attention + np.where(prompt > 0, self._prompt(np.maximum(prompt, 1)), 0.0)
        layers = self.config.layers
        return busy + layers * attention, kernels + layers * ((decodes > 0).astype(int) + (prompt > 0))

    def around_attention(self, rows: np.ndarray, samples: np.ndarray) -> tuple[np.ndarray, int]:
        """Return the seconds of all kernels but attention, and their number, for steps of so many rows, of which
        `samples` give logits."""
        config = self.config
        ranks = self.ranks
        queries = config.heads * config.head_dim
        kv = config.kv_heads * config.head_dim
        width = config.width
        hidden = config.mlp_width
        shapes = [
            ((queries + 2 * kv) / ranks, width), (width, queries / ranks), (2 * hidden / ranks, width),
            (width, hidden / ranks),
        ]  # fmt: skip
        rows = np.maximum(rows, 1)
        layer = sum(gemm_seconds(self._sheet, rows, n, k, self._products, warm=False) for n, k in shapes)
        moved = 2 * rows * (8 * width + (4 * hidden + 4 * queries) / ranks)
        layer = layer + moved / (_STREAM * self._sheet.bandwidth)
        kernels = len(shapes) * (2 if self.dtype == "fp8" else 1) + _SMALL_KERNELS
        if ranks > 1:
            layer = layer + 2 * custom_all_reduce_seconds(self._sheet, ranks, rows * width * 2, self._all_reduce)
        logits = np.maximum(samples, 1)
        head = gemm_seconds(self._sheet, logits, config.vocabulary_size / ranks, width, self._head, warm=False)
        return config.layers * layer + head, config.layers * kernels + 1

    def _decoding(self, batch: np.ndarray, keys: np.ndarray) -> np.ndarray:
        head_dim = self.config.head_dim
        kv_heads = max(1.0, self.config.kv_heads / self.ranks)
        seconds = decode_seconds(
            self._sheet,
            batch,
            keys,
            kv_heads,
            head_dim,
            self._decode,
            heads=self.config.heads / self.ranks,
            element_bytes=self.kv_bytes,
            warm=False,
        )
        return np.where(batch > 0, seconds, 0.0)

    def _prompt(self, tokens: np.ndarray) -> np.ndarray:
        config = self.config
        heads = config.heads / self.ranks, max(1.0, config.kv_heads / self.ranks)
        return prefill_seconds(self._sheet, 1, tokens, *heads, config.head_dim, self._prefill)

    @cached_property
    def _sheet(self) -> Sheet:
        return sheet(self.device)

    @cached_property
    def _products(self) -> Gemm:
        """The constants of products inside a model, whose launches `StepHost` counts."""
        if self.dtype == "fp8":
            return replace(fitted(QuantizingGemm, self.device, "fp8"), start=0.0, quantize=0.0)
        return replace(fitted(Gemm, self.device, self.dtype), start=0.0)

    @cached_property
    def _head(self) -> Gemm:
        return replace(fitted(Gemm, self.device, "bf16"), start=0.0)

    @cached_property
    def _decode(self) -> Decode:
        return replace(decode_constants(self.device), start=0.0)

    @cached_property
    def _prefill(self) -> Prefill:
        return replace(fitted(Prefill, self.device, "bf16"), start=0.0)

    @cached_property
    def _all_reduce(self) -> CustomAllReduce:
        return fitted(CustomAllReduce, self.device, self.engine)


@lru_cache(maxsize=1 << 14)
def _around_attention(cost: KernelCost, rows: int, samples: int) -> tuple[float, int]:
    """Return `around_attention` of one step. Steps of a run have few different sizes, and each costs milliseconds."""
    seconds, kernels = cost.around_attention(np.asarray(rows), np.asarray(samples))
    return float(seconds), kernels
