"""The sections of a scenario, which hold a plan's requirements. Each is a dataclass that refuses impossible values.

The names are those of the TOML file, with the unit if there is one. Strings are not read as numbers, and NaN and
infinity are refused, by pydantic's strict mode.
"""

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from threeloops.hardware.accelerators import accelerator
from threeloops.models.gpt_config import GPTConfig
from threeloops.training.by_kernels.assumptions import AttentionKernel
from threeloops.training.elastic.goodput import RSC1_PER_NODE_DAY
from threeloops.training.planning import LLAMA_8B, LLAMA_70B, LLAMA_405B, Transformer

__all__ = ["Budget", "Cluster", "Model", "Owning", "Scenario", "Serving", "Training"]

_STRICT = ConfigDict(extra="forbid", strict=True)
_Count = Annotated[int, Field(ge=1)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Share = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]

_PRESETS = {
    "llama-2-7b": Transformer(32, 4096, 32, 32, 11008, 32000),
    "llama-3-8b": LLAMA_8B,
    "llama-3-70b": LLAMA_70B,
    "llama-3-405b": LLAMA_405B,
}
_SIZES = ("layers", "width", "heads", "kv_heads", "hidden", "vocabulary")
_SHAPES = ("gated", "tied", "head_dim", "experts", "experts_per_token", "shared_experts")
_QUANTIZED_BITS = {16: 16.0, 8: 8.0, 4: 4 + 0.127}
"""Bits per frozen weight; with 4, QLoRA's constants take 0.127 bits more (Dettmers et al. 2023, section 3)."""


@dataclass(frozen=True, config=_STRICT)
class Model:
    """[model]: a `preset`, or all six sizes of a decoder-only transformer, and what is special about it."""

    preset: Literal["llama-2-7b", "llama-3-8b", "llama-3-70b", "llama-3-405b"] | None = None
    layers: _Count | None = None
    width: _Count | None = None
    heads: _Count | None = None
    kv_heads: _Count | None = None
    hidden: _Count | None = None
    vocabulary: _Count | None = None
    gated: bool | None = None
    """Whether the MLP has a gate (SwiGLU). Default: true."""
    tied: bool | None = None
    """Whether embedding and head are one matrix. Default: false."""
    head_dim: _Count | None = None
    """The width of one head. Default: width / heads."""
    experts: _Count | None = None
    """The experts that a router chooses from, in each layer; `hidden` is the width of one. Default: one MLP."""
    experts_per_token: _Count | None = None
    shared_experts: _Count | None = None
    """Further experts, of the same width, through which every token passes."""

    @model_validator(mode="after")
    def _is_a_transformer(self) -> "Model":
        missing = [name for name in _SIZES if getattr(self, name) is None]
        given = ", ".join(name for name in (*_SIZES, *_SHAPES) if getattr(self, name) is not None)
        if self.preset and given:
            raise ValueError(f"preset = {self.preset!r} has all sizes: leave out {given}, or the preset")
        if not self.preset and missing:
            raise ValueError(f"{', '.join(missing)} missing: give all six sizes, or preset = {sorted(_PRESETS)}")
        _ = self.transformer  # which checks that heads divide the width
        return self

    @property
    def transformer(self) -> Transformer:
        """The model as the training planner describes it."""
        if self.preset is not None:
            return _PRESETS[self.preset]
        shape = {name: value for name in _SHAPES if (value := getattr(self, name)) is not None}
        return Transformer(*(getattr(self, name) for name in _SIZES), **shape)

    def gpt(self, sequence: int) -> GPTConfig:
        """Return the model as the serving models describe it."""
        t = self.transformer
        return GPTConfig(
            t.vocabulary, t.layers, t.heads, t.kv_heads, t.width, t.hidden, sequence, t.tied, head_dim=t.head_dim
        )


@dataclass(frozen=True, config=_STRICT)
class Training:
    """[training]: `tokens` in all, in steps of `batch` sequences of `sequence` tokens, within `deadline_days`."""

    tokens: _Positive
    batch: _Count
    sequence: _Count
    deadline_days: _Positive
    precision: Literal["bf16", "fp8"] = "bf16"
    """The type of the matmuls with weights. Masters, gradients, attention and head stay as they are."""
    lora_rank: _Count | None = None
    """Train adapters of this rank on every matmul, and freeze all other weights (LoRA). Default: train all weights."""
    base_bits: Literal[16, 8, 4] = 16
    """Bits of each frozen weight; 4 is QLoRA."""

    @model_validator(mode="after")
    def _freezes_only_with_adapters(self) -> "Training":
        if self.base_bits != 16 and self.lora_rank is None:
            raise ValueError(
                f"base_bits = {self.base_bits}: only frozen weights can have fewer than 16 bits; give lora_rank too"
            )
        return self


@dataclass(frozen=True, config=_STRICT)
class Cluster:
    """[cluster]: nodes of equal GPUs. All `accelerators` are candidates; the plan takes the cheapest that will do."""

    accelerators: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of `threeloops.hardware.accelerators`."""
    gpus: _Count = 8
    """The number of GPUs for training."""
    gpus_per_node: _Count = 8
    link_gbits: _Positive = 400.0
    """Gb/s from each GPU to other nodes, per direction."""
    efficiency: _Share | None = None
    """The share of the data sheet's 16-bit FLOP/s that kernels reach when they wait for nothing. By default, steps are
    predicted from published kernels (`training.by_kernels`), and with 0.6 for accelerators and models without them."""
    attention: AttentionKernel = "flash2"
    """The attention kernel of the training framework. It counts only if published kernels are used."""
    power_limit: _Share = 1.0
    """The power limit of training GPUs, relative to that of their data sheet."""
    speed: _Positive = 1.0
    """The speed of kernels relative to the prediction: a step's predicted seconds divided by your measured ones."""
    node_mtbf_days: _Positive = 1 / RSC1_PER_NODE_DAY
    """Mean time between failures of one node. Default: Kokolis et al. 2024 (`elastic.goodput.published`)."""
    storage_gbytes: _Positive = 20.0
    """GB/s to storage, of all nodes together, at which a checkpoint is written and read."""
    restart_seconds: _Amount = 600.0
    """The time from a failure to the first step, without reading the checkpoint."""
    repair_hours: _Amount = 24.0
    """The time until a failed node is back."""
    checkpoint_stop_seconds: _Amount = 6.3
    """How long a save in the background stops the job at least. Default: 7B parameters on 128 GPUs with
    torch.distributed.checkpoint (PyTorch blog, "Reducing Model Checkpointing Times by Over 10x", 2024)."""
    shortest_interval_seconds: _Amount = 300.0
    """Checkpoints are not written more often than this."""
    kept_checkpoints: _Count = 2
    """The checkpoints that storage must hold at the same time."""

    @model_validator(mode="after")
    def _has_its_accelerators(self) -> "Cluster":
        for name in self.accelerators:
            try:
                accelerator(name)
            except LookupError as error:
                raise ValueError(f"accelerators: {error}") from None
        if self.gpus > self.gpus_per_node and self.gpus % self.gpus_per_node:
            raise ValueError(f"gpus = {self.gpus}: expected a multiple of gpus_per_node = {self.gpus_per_node}")
        return self

    @property
    def nodes(self) -> int:
        return -(-self.gpus // self.gpus_per_node)


@dataclass(frozen=True, config=_STRICT)
class Budget:
    """[budget]: the most that the plan may cost."""

    total: _Positive | None = None
    currency: Literal["USD"] = "USD"


@dataclass(frozen=True, config=_STRICT)
class Serving:
    """[serving]: a bursty day of requests (`fleet.bursty_day`), for `days`, and the promise to its users."""

    peak_requests_per_second: _Positive
    prompt_tokens: _Count
    output_tokens: _Count
    ttft_seconds: _Positive
    """Time to first token, for a share `slo_share` of all requests."""
    tpot_seconds: _Positive
    """Time per output token after the first."""
    slo_share: _Share = 0.9
    days: _Positive = 30.0
    trough: Annotated[float, Field(ge=0, le=1)] = 0.2
    """The quietest rate of the wave, as a share of its peak."""
    bursts: Annotated[int, Field(ge=0, le=24)] = 4
    height: Annotated[float, Field(ge=1, le=10)] = 1.5
    """The largest factor by which a burst multiplies the rate."""
    seed: Annotated[int, Field(ge=0)] = 0
    maximum_replicas: _Count = 64
    precision: Literal["bf16", "fp8", "int8"] = "bf16"
    """The precision of weights, keys and values."""
    reached: _Share = 0.6
    """The share of the data sheet's bandwidth and FLOP/s that the engine reaches."""
    cold_start_seconds: _Amount = 180.0
    """The time from asking for a replica to its first request."""


@dataclass(frozen=True, config=_STRICT)
class Owning:
    """[prices]: the use of owned hardware, and the terms of the cloud."""

    owning: bool = True
    """Whether hardware may be bought."""
    utilisation: _Share | None = None
    """Share of its life in which owned hardware has work, this plan's and other work. Default: this plan's alone."""
    years: _Positive = 4.0
    """The years over which a purchase is written off."""
    discount: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The discount on the cloud's list price for a reservation, as a share."""


@dataclass(frozen=True, config=_STRICT)
class Scenario:
    """Everything that a plan depends on, prices aside. `training`, `serving`, or both."""

    title: Annotated[str, Field(min_length=1, max_length=120)]
    model: Model
    cluster: Cluster
    training: Training | None = None
    serving: Serving | None = None
    budget: Budget = Field(default_factory=Budget)
    prices: Owning = Field(default_factory=Owning)

    @model_validator(mode="after")
    def _asks_for_something(self) -> "Scenario":
        if self.training is None and self.serving is None:
            raise ValueError("neither [training] nor [serving]: add a section for what is to be planned")
        if self.serving is not None and (self.model.experts or self.model.gated is False):
            what = "experts" if self.model.experts else "gated = false"
            raise ValueError(
                f"[serving] of a model with {what}: the serving model has gated MLPs without experts only; plan the "
                "training alone, or give the sizes of a dense model"
            )
        return self

    @property
    def trained(self) -> Transformer:
        """The model as it is trained: with adapters, if [training] asks for them."""
        model = self.model.transformer
        if self.training is None or self.training.lora_rank is None:
            return model
        bits = _QUANTIZED_BITS[self.training.base_bits]
        return replace(model, adapter_rank=self.training.lora_rank, frozen_bits=bits)

    def inputs(self) -> list[tuple[str, Any]]:
        """Every key with its value, defaults included, as a file would name it: ("training.tokens", 2e12)."""
        inputs: list[tuple[str, Any]] = [("title", self.title)]
        for section in ("model", "training", "cluster", "budget", "serving", "prices"):
            if (part := getattr(self, section)) is not None:
                inputs += [(f"{section}.{name}", value) for name, value in vars(part).items() if value is not None]
        return inputs
