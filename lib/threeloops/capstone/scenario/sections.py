"""The sections of a scenario, which hold a plan's requirements. Each is a dataclass that refuses impossible values.

The names are those of the TOML file, with the unit if there is one. Strings are not read as numbers, and NaN and
infinity are refused, by pydantic's strict mode.
"""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from threeloops.hardware.accelerators import accelerator
from threeloops.models.gpt_config import GPTConfig
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


@dataclass(frozen=True, config=_STRICT)
class Model:
    """[model]: a `preset`, or all six sizes of a decoder-only transformer with a gated MLP."""

    preset: Literal["llama-2-7b", "llama-3-8b", "llama-3-70b", "llama-3-405b"] | None = None
    layers: _Count | None = None
    width: _Count | None = None
    heads: _Count | None = None
    kv_heads: _Count | None = None
    hidden: _Count | None = None
    vocabulary: _Count | None = None

    @model_validator(mode="after")
    def _is_a_transformer(self) -> "Model":
        missing = [name for name in _SIZES if getattr(self, name) is None]
        if self.preset and len(missing) < len(_SIZES):
            given = ", ".join(name for name in _SIZES if name not in missing)
            raise ValueError(f"preset = {self.preset!r} has all sizes: leave out {given}, or the preset")
        if not self.preset and missing:
            raise ValueError(f"{', '.join(missing)} missing: give all six sizes, or preset = {sorted(_PRESETS)}")
        _ = self.transformer  # which checks that heads divide the width
        return self

    @property
    def transformer(self) -> Transformer:
        """The model as the training planner describes it."""
        return Transformer(*(getattr(self, name) for name in _SIZES)) if self.preset is None else _PRESETS[self.preset]

    def gpt(self, sequence: int) -> GPTConfig:
        """Return the model as the serving models describe it."""
        t = self.transformer
        return GPTConfig(t.vocabulary, t.layers, t.heads, t.kv_heads, t.width, t.hidden, sequence, t.tied)


@dataclass(frozen=True, config=_STRICT)
class Training:
    """[training]: `tokens` in all, in steps of `batch` sequences of `sequence` tokens, within `deadline_days`."""

    tokens: _Positive
    batch: _Count
    sequence: _Count
    deadline_days: _Positive


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
    efficiency: _Share = 0.6
    """The share of the data sheet's 16-bit FLOP/s that kernels reach when they wait for nothing."""
    node_mtbf_days: _Positive = 1 / RSC1_PER_NODE_DAY
    """Mean time between failures of one node. Default: Kokolis et al. 2024 (`elastic.goodput.published`)."""
    storage_gbytes: _Positive = 20.0
    """GB/s to storage, of all nodes together, at which a checkpoint is written and read."""
    restart_seconds: _Amount = 600.0
    """The time from a failure to the first step, without reading the checkpoint."""
    repair_hours: _Amount = 24.0
    """The time until a failed node is back."""

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

    utilisation: _Share = 0.7
    """Share of its life in which owned hardware has work, this plan's and other work."""
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
        return self

    def inputs(self) -> list[tuple[str, Any]]:
        """Every key with its value, defaults included, as a file would name it: ("training.tokens", 2e12)."""
        inputs: list[tuple[str, Any]] = [("title", self.title)]
        for section in ("model", "training", "cluster", "budget", "serving", "prices"):
            if (part := getattr(self, section)) is not None:
                inputs += [(f"{section}.{name}", value) for name, value in vars(part).items() if value is not None]
        return inputs
