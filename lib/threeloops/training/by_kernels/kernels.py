"""The kernels of a transformer layer and of the head, and the collectives between ranks, as costs of a step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

import numpy as np

from threeloops.inner.predict.silicon import (
    Gemm,
    Prefill,
    QuantizingGemm,
    Ring,
    Sheet,
    collective_seconds,
    fitted,
    gemm_seconds,
    prefill_seconds,
)
from threeloops.inner.predict.silicon import sheet as data_sheet
from threeloops.training.by_kernels.assumptions import Assumptions
from threeloops.training.planning.model import Transformer
from threeloops.training.planning.plan import Machine, Plan

__all__ = ["KernelCosts", "Kernels", "Passes"]

_HOPPER = ("H100 SXM", "H200 SXM")
"""Devices whose table has FlashAttention-3."""
_OPTIMIZER_BYTES = 32
"""Read and written per parameter by AdamW: gradient, master, two moments, all in float32, and the 16-bit weight."""
_LOSS_BYTES = 24
"""Read and written per logit by the loss and its gradient, in float32."""
_VARIANTS = {"A100 SXM 40GB": "A100 SXM 80GB"}
"""Devices with the kernels of another one, and a memory of their own."""
_CONVERTED_BYTES = 3
"""Read and written per weight that is converted from bf16 to fp8."""

_Shape = tuple[float, float, float]
"""Rows, columns, and the length of the sums of a product."""


@dataclass(frozen=True)
class Passes:
    """Seconds of the forward and of the backward pass."""

    forward: float
    backward: float

    @property
    def total(self) -> float:
        return self.forward + self.backward

    def __add__(self, other: "Passes") -> "Passes":
        return Passes(self.forward + other.forward, self.backward + other.backward)


@dataclass(frozen=True)
class KernelCosts:
    """The costs of a step on GPUs called `device`, for `planning.step_time` and `planning.plans`.

    An A100 of 40 GB has the kernels of one of 80 GB, at the bandwidth of its own memory. A call raises LookupError for
    a device whose kernels nobody published, and ValueError for a model with experts.
    """

    device: str
    assumed: Assumptions = Assumptions()

    def __call__(self, model: Transformer, machine: Machine, plan: Plan) -> "Kernels":
        device = _VARIANTS.get(self.device, self.device)
        assumed = self.assumed
        if device != self.device and assumed.bandwidth is None:
            assumed = replace(assumed, bandwidth=_sheet(self.device, None).bandwidth)
        fitted(Gemm, device, "bf16")
        fitted(Prefill, device, "bf16")
        if machine.product_flops is not None:
            fitted(QuantizingGemm, device, "fp8")
        if model.experts:
            raise ValueError(
                f"experts = {model.experts}: expected 0, because the sum of kernels has no backward pass of experts; "
                "planning.Rates has costs of them"
            )
        return Kernels(model, machine, plan, device, assumed)

    def have(self, model: Transformer, machine: Machine) -> bool:
        """Return whether the kernels of this model, on a machine with this arithmetic, are among the published ones."""
        try:
            self(model, machine, Plan(1, 1))
        except (LookupError, ValueError):
            return False
        return True


@dataclass(frozen=True)
class Kernels:
    """The kernels of a plan on one device. Their times replace the rates of `machine`. If `machine.product_flops` is
    given, layers multiply by their weights in fp8. All other products are in bf16."""

    model: Transformer
    machine: Machine
    plan: Plan
    device: str
    assumed: Assumptions

    @cached_property
    def products(self) -> Passes:
        """The matrix products of a layer. Backward has two for each: the gradients of the input and of the weight.
        Frozen weights have no gradient, and adapters have products of their own."""
        model = self.model
        width = model.width
        queries = model.attention_width
        hidden = model.hidden
        tp = self.plan.tp
        shapes = [
            ((queries + 2 * model.kv_width) / tp, width),
            (width, queries / tp),
            *[(hidden / tp, width)] * (model.mlp_matrices - 1),
            (width, hidden / tp),
        ]
        with_tokens = [(self.plan.tokens, outputs, inputs) for outputs, inputs in shapes]
        products = self._multiplied(with_tokens, frozen=bool(model.adapter_rank), fp8=self._fp8)
        if not model.adapter_rank:
            return products
        adapters: list[_Shape] = []
        for outputs, inputs in shapes:
            adapters += [
                (self.plan.tokens, model.adapter_rank, inputs),
                (self.plan.tokens, outputs, model.adapter_rank),
            ]
        return products + self._multiplied(adapters) + self._unpacked

    @property
    def _unpacked(self) -> Passes:
        """The conversion of frozen weights with fewer than 16 bits to 16 bits, before each pass (QLoRA)."""
        if self.model.frozen_bits >= 16:
            return Passes(0.0, 0.0)
        weights = sum(self.model.matrices.values()) / self.plan.tp
        seconds = self._streamed((self.model.frozen_bits / 8 + 2) * weights)
        return Passes(seconds, seconds)

    @cached_property
    def attention(self) -> Passes:
        plan = self.plan
        if self.assumed.attention == "unfused":
            return self._unfused
        heads = self.model.heads / plan.tp
        kv_heads = max(1.0, self.model.kv_heads / plan.tp)
        shape = (plan.microbatch, plan.sequence, heads, kv_heads, self._head_dim)
        seconds = _attention_seconds(self.device, self.sheet.bandwidth, shape)
        seconds /= plan.cp * self._clock  # every rank of cp has an equal part of the pairs
        if self.assumed.attention == "flash2" and self.device in _HOPPER:
            seconds *= self.assumed.flash2
        return Passes(seconds, self.assumed.backward * seconds)

    @cached_property
    def _unfused(self) -> Passes:
        """Batched products, softmax and dropout, each of which reads and writes the scores of all heads."""
        plan = self.plan
        rows = plan.microbatch * self.model.heads / plan.tp * plan.sequence / plan.cp
        head_dim = self._head_dim
        scores = rows * plan.sequence
        forward = self._seconds([(rows, plan.sequence, head_dim), (rows, head_dim, plan.sequence)])
        # Forward: softmax reads and writes, dropout does the same and writes a mask of a byte. Backward: dropout reads
        # a gradient and the mask and writes, softmax reads its output and a gradient and writes.
        return Passes(forward + self._streamed(9 * scores), 2 * forward + self._streamed(11 * scores))

    @cached_property
    def light(self) -> Passes:
        """Norms, residuals, rotary positions and activations of a layer, fused by a compiler. Backward moves twice as
        many bytes."""
        model = self.model
        heads = 2 * (model.attention_width + model.kv_width)
        elements = 10 * model.width + heads + model.mlp_matrices * model.hidden
        seconds = self._streamed(2 * self.plan.tokens * elements / self.plan.tp)
        return Passes(seconds, 2 * seconds)

    @property
    def forward(self) -> float:
        return self._layer.forward

    @property
    def backward(self) -> float:
        return self._layer.backward

    @cached_property
    def _layer(self) -> Passes:
        return self.products + self.attention + self.light

    @cached_property
    def again(self) -> float:
        """Seconds of the part of a layer's forward pass that backward repeats."""
        if self.plan.recompute == "full":
            return self.forward
        if self.plan.recompute == "none":
            return 0.0
        share = self.model.recomputed_flops(1, 0, "selective") / self.model.layer_flops(1, 0)  # without attention
        return share * self.products.forward + self.light.forward

    @cached_property
    def head(self) -> float:
        """Seconds of the head's products, of the loss, and of their backward pass."""
        vocabulary = self.model.vocabulary / self.plan.tp
        shapes = [(self.plan.tokens, vocabulary, self.model.width)]
        product = self._multiplied(shapes, frozen=bool(self.model.adapter_rank))
        return product.total + self._streamed(_LOSS_BYTES * self.plan.tokens * vocabulary)

    def optimizer(self, parameters: float) -> float:
        """Return the seconds of AdamW on so many parameters."""
        return self._streamed(_OPTIMIZER_BYTES * parameters)

    def collective(self, operation: Literal["all_gather", "reduce_scatter"], size: float, axis: str) -> float:
        """Return the seconds of a ring: by the fitted ring inside a node, by a share of the line rate between nodes. If
        nobody measured NCCL on the device, the machine's links count. Of tensor parallelism's rings, only the part that
        is not hidden behind products counts."""
        exposed = 1 - self.assumed.overlap if axis == "tp" else 1.0
        return exposed * self._ring(operation, size, axis)

    def _ring(self, operation: str, size: float, axis: str) -> float:
        ranks = self.plan.groups[axis]
        count = len(ranks)
        if count == 1:
            return 0.0
        link = self.machine.link(ranks)
        nodes, per_node = self.machine.spread(ranks)
        try:
            ring = fitted(Ring, self.device, operation)
        except LookupError:
            inside = link.bandwidth
        else:
            if nodes == 1:
                return _collective_seconds(self.device, operation, count, size)
            inside = ring.reach * self.sheet.link
        together = self.assumed.between * self.machine.between.bandwidth * per_node
        bandwidth = inside if nodes == 1 else min(inside, together)
        return (count - 1) * link.latency + (count - 1) / count * size / bandwidth

    @property
    def sheet(self) -> Sheet:
        """The device's data sheet, or that of its variant."""
        return _sheet(self.device, self.assumed.bandwidth)

    @property
    def _head_dim(self) -> int:
        return self.model.attention_width // self.model.heads

    @property
    def _clock(self) -> float:
        return self.assumed.speed * self.assumed.clock(self.device)

    @property
    def _fp8(self) -> bool:
        return self.machine.product_flops is not None

    def _multiplied(self, shapes: Sequence[_Shape], *, frozen: bool = False, fp8: bool = False) -> Passes:
        """Return both passes of products (tokens, outputs, inputs). In fp8, every pass converts the weights once."""
        to_inputs = [(tokens, inputs, outputs) for tokens, outputs, inputs in shapes]
        to_weights = [] if frozen else [(outputs, inputs, tokens) for tokens, outputs, inputs in shapes]
        passes = Passes(self._seconds(shapes, fp8), self._seconds(to_inputs + to_weights, fp8))
        if not fp8:
            return passes
        converted = self._streamed(_CONVERTED_BYTES * sum(outputs * inputs for _, outputs, inputs in shapes))
        return passes + Passes(converted, converted)

    def _seconds(self, shapes: Sequence[_Shape], fp8: bool = False) -> float:
        return _products_seconds(self.device, self.sheet.bandwidth, tuple(shapes), fp8) / self._clock

    def _streamed(self, size: float) -> float:
        return size / (self.assumed.speed * self.assumed.stream * self.sheet.bandwidth)


@lru_cache(maxsize=64)
def _sheet(device: str, bandwidth: float | None) -> Sheet:
    of = data_sheet(device)
    return replace(of, bandwidth=bandwidth) if bandwidth else of


@lru_cache(maxsize=4096)
def _products_seconds(device: str, bandwidth: float, shapes: tuple[_Shape, ...], fp8: bool) -> float:
    """Return the seconds of all these products at the clock of the tables, with operands from memory. In fp8, this
    includes converting one operand."""
    m, n, k = np.array(shapes, dtype=float).T
    constants = fitted(QuantizingGemm, device, "fp8") if fp8 else fitted(Gemm, device, "bf16")
    return float(gemm_seconds(_sheet(device, bandwidth), m, n, k, constants, warm=False).sum())


@lru_cache(maxsize=4096)
def _attention_seconds(device: str, bandwidth: float, shape: tuple[int, int, float, float, int]) -> float:
    """Return the seconds of attention's forward pass at the clock of the tables: sequences, tokens of each, heads,
    heads of keys, and their width."""
    of = _sheet(device, bandwidth)
    return float(prefill_seconds(of, *shape, fitted(Prefill, device, "bf16")))


@lru_cache(maxsize=4096)
def _collective_seconds(device: str, operation: str, count: int, size: float) -> float:
    """Return the seconds of a ring inside a node."""
    return float(collective_seconds(_sheet(device, None), operation, count, size, fitted(Ring, device, operation)))
