"""The time of a step of a model with latent attention and layers of experts (DeepSeek-V3), from its kernels."""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from threeloops.inner.predict.silicon import (
    CustomAllReduce,
    Gemm,
    LatentDecode,
    Prefill,
    QuantizingGemm,
    Sheet,
    StepHost,
    custom_all_reduce_seconds,
    fitted,
    gemm_seconds,
    latent_decode_seconds,
    prefill_seconds,
    sheet,
)
from threeloops.inner.predict.silicon.experts import (
    Exchange,
    QuantizedExperts,
    exchange_seconds,
    experts_seconds,
    loads,
)
from threeloops.product.batching.simulated.steps import StepShape

__all__ = ["LatentKernelCost", "LatentModel"]

_STREAM = 0.8
"""The share of the bandwidth that small kernels and the products of single heads get."""
_ATTENTION_KERNELS = 17
"""Five products, three of them with a kernel that quantizes, attention, its join, and seven small kernels."""
_EXPERT_KERNELS = 9
"""The router, the shared expert's two products with their quantizing, and four kernels around the experts."""
_DENSE_KERNELS = 4
_EXCHANGE = "DeepEP for low latency"


@dataclass(frozen=True)
class LatentModel:
    """The sizes of a model. The defaults are those of DeepSeek-V3 (https://arxiv.org/abs/2412.19437, section 4.2, and
    its published config.json)."""

    layers: int = 61
    dense_layers: int = 3
    width: int = 7168
    heads: int = 128
    head_dim: int = 128
    rotary: int = 64
    query_rank: int = 1536
    latent: int = 512
    experts: int = 256
    top_k: int = 8
    expert_width: int = 2048
    mlp_width: int = 18432
    vocabulary_size: int = 129_280


@dataclass(frozen=True)
class LatentKernelCost:
    """The cost of a step of `model` with products in fp8 on GPUs called `device`.

    Each of `groups` groups of `ranks` GPUs serves requests of its own: `groups` is the degree of data parallelism in
    attention, and `ranks` that of tensor parallelism. All ranks · groups GPUs share the experts: `expert_ranks` hold
    different ones, and the rest is split by tensor parallelism. A step's shape is that of one group, and all groups
    are taken to have equal steps. `skew` is the exponent of the experts' popularity (`experts.loads`). One NVLink
    domain must hold all GPUs: no link between nodes was published.

    Raises LookupError for a device or an engine whose kernels nobody published, and ValueError for ranks that do not
    divide the model or do not multiply to the GPUs.
    """

    model: LatentModel = LatentModel()
    device: str = "H200 SXM"
    ranks: int = 8
    groups: int = 1
    expert_ranks: int = 1
    engine: str = "trtllm"
    kv_bytes: float = 2.0
    skew: float = 1.2

    def __post_init__(self) -> None:
        model = self.model
        if self.ranks < 1 or model.heads % self.ranks:
            raise ValueError(f"ranks = {self.ranks}: expected a divisor of heads = {model.heads}")
        if self.expert_ranks < 1 or model.experts % self.expert_ranks or self.gpus % self.expert_ranks:
            raise ValueError(
                f"expert_ranks = {self.expert_ranks}: expected a divisor of experts = {model.experts} and of the "
                f"{self.gpus} GPUs"
            )
        _ = self._products, self._attention, self._experts, self.host  # raises what the docstring says

    @property
    def gpus(self) -> int:
        return self.ranks * self.groups

    @cached_property
    def host(self) -> StepHost:
        """The constants of the host, which were fitted to dense models."""
        return fitted(StepHost, "Hopper", self.engine)

    def __call__(self, step: StepShape) -> float:
        """Return the seconds of a step. A chunk that goes on with a prompt is charged for the keys before it."""
        decoding = [start + 1 for start, count, _ in step.chunks if count == 1]
        chunks = [(start, count) for start, count, _ in step.chunks if count > 1]
        keys = sum(decoding) / max(len(decoding), 1)
        busy = _around_attention(self, step.tokens, step.samples)
        attention = float(self._decoding(np.asarray(float(len(decoding))), np.asarray(float(keys))))
        for start, count in chunks:
            attention += float(self._prompt(np.asarray(float(start + count))))
            if start:
                attention -= float(self._prompt(np.asarray(float(start))))
        return busy + self.model.layers * attention + float(self._host_seconds(len(decoding)))

    def even(self, decodes: np.ndarray, keys: float, prompt: float = 0.0) -> np.ndarray:
        """Return the seconds of steps in which `decodes` sequences of each group have `keys` keys each, beside a whole
        prompt of `prompt` tokens in every group, if that is not 0. `decodes` may be means, such as 2.5."""
        decodes = np.asarray(decodes, dtype=float)
        attention = self._decoding(decodes, np.asarray(keys))
        if prompt:
            attention = attention + self._prompt(np.asarray(prompt))
        busy = self.around_attention(decodes + prompt, decodes + bool(prompt))
        return busy + self.model.layers * attention + self._host_seconds(decodes)

    def around_attention(self, rows: np.ndarray, samples: np.ndarray) -> np.ndarray:
        """Return the seconds of all kernels but attention for steps of so many rows in each group, of which `samples`
        give logits."""
        model = self.model
        rows = np.maximum(np.asarray(rows, dtype=float), 1)
        heads = model.heads / self.ranks
        layer = self._product(rows, model.query_rank + model.latent + model.rotary, model.width)
        layer = layer + self._product(rows, heads * (model.head_dim + model.rotary), model.query_rank)
        layer = layer + self._product(rows, model.width, heads * model.head_dim)
        layer = layer + 2 * self._of_heads(rows)
        moved = 2 * rows * (10 * model.width + 4 * heads * (model.head_dim + model.rotary))
        layer = layer + moved / (_STREAM * self._sheet.bandwidth) + self._exchanged(rows)
        dense = self._gated(rows, model.mlp_width / self.ranks)
        logits = np.maximum(np.asarray(samples, dtype=float), 1)
        head = gemm_seconds(
            self._sheet, logits, model.vocabulary_size / self.ranks, model.width, self._wide, warm=False
        )
        sparse = self._routed(rows) + self._gated(rows, model.expert_width / self.ranks)
        return model.layers * layer + (model.layers - model.dense_layers) * sparse + model.dense_layers * dense + head

    def _host_seconds(self, decodes: np.ndarray | int) -> np.ndarray | float:
        model = self.model
        of_layer = _ATTENTION_KERNELS + (2 if self.gpus > 1 else 0)
        sparse = model.layers - model.dense_layers
        kernels = model.layers * of_layer + sparse * _EXPERT_KERNELS + model.dense_layers * _DENSE_KERNELS + 1
        return self.host.step + self.host.launch * kernels + self.host.sequence * decodes

    def _product(self, rows: np.ndarray, outputs: float, inputs: float) -> np.ndarray:
        return gemm_seconds(self._sheet, rows, outputs, inputs, self._products, warm=False)

    def _gated(self, rows: np.ndarray, hidden: float) -> np.ndarray:
        width = self.model.width
        return self._product(rows, 2 * hidden, width) + self._product(rows, width, hidden)

    def _of_heads(self, rows: np.ndarray) -> np.ndarray:
        """Return the seconds of products between each head's vectors and the latent space, in bf16."""
        model = self.model
        weights = model.heads / self.ranks * model.head_dim * model.latent
        computed = 2 * rows * weights / (self._sheet.rate("bf16") * self._wide.reach)
        return np.maximum(computed, 2 * weights / (_STREAM * self._sheet.bandwidth))

    def _exchanged(self, rows: np.ndarray) -> np.ndarray:
        """Return the seconds of a layer's communication: two all-reduces within each group, and dispatch and combine
        between the groups.

        The first layers, which are dense, have no dispatch and no combine, so this is the mean of all layers.
        """
        model = self.model
        seconds = np.zeros(rows.shape)
        if self.ranks > 1:
            size = rows * model.width * 2
            seconds = seconds + 2 * custom_all_reduce_seconds(self._sheet, self.ranks, size, self._all_reduce)
        if self.groups > 1:
            for phase in ("dispatch", "combine"):
                constants = fitted(Exchange, self.device, f"{_EXCHANGE} {phase}")
                spread = (rows, model.width, model.top_k, model.experts, self.gpus)
                exchanged = exchange_seconds(self._sheet, phase, *spread, constants, low_latency=True)
                seconds = seconds + exchanged * (1 - model.dense_layers / model.layers)
        return seconds

    def _routed(self, rows: np.ndarray) -> np.ndarray:
        """Return the seconds of a layer's router and its experts, on the rank with most tokens."""
        model = self.model
        router = gemm_seconds(self._sheet, rows, model.experts, model.width, self._wide, warm=False)
        tokens = np.atleast_1d(np.maximum(np.round(rows * self.groups), 1))
        alike = (np.full(len(tokens), value) for value in (model.top_k, model.experts, self.expert_ranks, self.skew))
        hidden = model.expert_width * self.expert_ranks / self.gpus
        spread = loads(tokens, *alike)
        seconds = experts_seconds(self._sheet, tokens, model.width, hidden, spread, self._experts, warm=False)
        return router + seconds.reshape(rows.shape)

    def _decoding(self, batch: np.ndarray, keys: np.ndarray) -> np.ndarray:
        heads = self.model.heads / self.ranks
        seconds = latent_decode_seconds(
            self._sheet, np.maximum(batch, 1), np.maximum(keys, 1), heads, self._attention, element_bytes=self.kv_bytes
        )
        return np.where(batch > 0, seconds, 0.0)

    def _prompt(self, tokens: np.ndarray) -> np.ndarray:
        """Return the seconds of a prompt's attention.

        No times were published for heads whose queries and keys are wider than their values. So the time for equal
        widths is scaled by the arithmetic, because queries and keys also have the rotary part.
        """
        model = self.model
        heads = model.heads / self.ranks
        alike = prefill_seconds(self._sheet, 1, tokens, heads, heads, model.head_dim, self._prefill)
        return alike * (2 * model.head_dim + model.rotary) / (2 * model.head_dim)

    @cached_property
    def _sheet(self) -> Sheet:
        return sheet(self.device)

    @cached_property
    def _products(self) -> Gemm:
        return replace(fitted(QuantizingGemm, self.device, "fp8"), start=0.0, quantize=0.0)

    @cached_property
    def _wide(self) -> Gemm:
        """The constants of products in bf16: the head, the router, and those of single heads."""
        return replace(fitted(Gemm, self.device, "bf16"), start=0.0)

    @cached_property
    def _attention(self) -> LatentDecode:
        return replace(fitted(LatentDecode, self.device, "bf16"), start=0.0)

    @cached_property
    def _prefill(self) -> Prefill:
        return replace(fitted(Prefill, self.device, "bf16"), start=0.0)

    @cached_property
    def _experts(self) -> QuantizedExperts:
        return fitted(QuantizedExperts, self.device, "fp8")

    @cached_property
    def _all_reduce(self) -> CustomAllReduce:
        return fitted(CustomAllReduce, self.device, self.engine)


@lru_cache(maxsize=1 << 14)
def _around_attention(cost: LatentKernelCost, rows: int, samples: int) -> float:
    """Return `around_attention` of one step. Steps of a run have few different sizes, and each costs milliseconds."""
    return float(cost.around_attention(np.asarray(rows), np.asarray(samples)))
