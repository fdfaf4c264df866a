"""A DeepSpeed configuration, read into plain settings for the optimizers of this package.

Names and defaults are those of DeepSpeed's own documentation (deepspeed.ai, "DeepSpeed Configuration JSON") and of
deepspeed/runtime/zero/config.py. Whatever could change the training, and is not known here, is an error.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

__all__ = ["DeepSpeedConfigError", "DeepSpeedSettings", "LossScale", "from_deepspeed_config"]

_REQUIRED: Any = object()
_ANY = (bool, int, float, str, dict, list, type(None))
_NUMBER = (int, float)

_NO_EFFECT = {
    "steps_per_print": "how often DeepSpeed prints",
    "wall_clock_breakdown": "timings that DeepSpeed prints",
    "dump_state": "what DeepSpeed prints",
    "zero_allow_untested_optimizer": "a safeguard of DeepSpeed's; any optimizer that acts elementwise is right here",
}
_NO_EFFECT_IN_ZERO = {
    "contiguous_gradients": "gradients of a bucket are always contiguous here",
    "ignore_unused_parameters": "a parameter without a gradient is an error here",
    "round_robin_gradients": "of offloading in DeepSpeed",
    "sub_group_size": "of offloading in DeepSpeed",
    "stage3_max_live_parameters": "units and units_in_flight limit what is gathered",
    "stage3_max_reuse_distance": "units and units_in_flight limit what is gathered",
    "stage3_param_persistence_threshold": "the root keeps what belongs to no unit",
    "stage3_gather_16bit_weights_on_model_save": "FSDP.full_parameters() gathers them",
}


class DeepSpeedConfigError(ValueError):
    """A configuration that cannot be followed; the message names the key."""


@dataclass(frozen=True)
class LossScale:
    """Of float16 training. `dynamic` ones double after `window` good steps, and halve after `hysteresis` bad ones."""

    initial: float
    dynamic: bool
    window: int
    hysteresis: int
    smallest: float


@dataclass(frozen=True)
class DeepSpeedSettings:
    """What the configuration asks for. `notes` says what was mapped to something else or has no meaning here."""

    world_size: int
    micro_batch: int
    """Samples per rank and backward."""
    accumulation_steps: int
    stage: int
    reduce_bucket_elements: int
    gather_bucket_elements: int
    units_in_flight: int
    """Of stage 3: 2, or 1 where the configuration does not prefetch."""
    overlap_communication: bool
    dtype: torch.dtype
    """Of parameters and gradients; masters and states are float32."""
    loss_scale: LossScale | None
    gradient_clipping: float | None
    optimizer_class: type[torch.optim.Optimizer] | None
    """None where the configuration leaves it to the program."""
    optimizer_options: dict[str, Any]
    offload_optimizer: str | None
    """Where DeepSpeed would keep the optimizer's states, "cpu" or a folder on NVMe. See `notes`."""
    notes: tuple[str, ...]

    @property
    def train_batch(self) -> int:
        """Samples of all ranks per step."""
        return self.micro_batch * self.accumulation_steps * self.world_size

    @property
    def bucket_cap_mb(self) -> float:
        """`reduce_bucket_elements` in MiB, as `ZeroOptimizer` and `DDP` take it."""
        return self.reduce_bucket_elements * self.dtype.itemsize / 2**20


def from_deepspeed_config(config: Mapping[str, Any] | str | Path, world_size: int) -> DeepSpeedSettings:
    """The settings of a configuration, or of the JSON file at a path, on `world_size` data-parallel ranks.

    Raises:
        DeepSpeedConfigError: a key that is not known, a value of the wrong type, batch sizes that do not multiply, or
            something that is not done here; with its name and what to do.
    """
    if isinstance(config, str | Path):
        try:
            config = json.loads(Path(config).read_text())
        except (OSError, ValueError) as error:
            raise DeepSpeedConfigError(f"{config}: expected a JSON file: {error}") from None
    if not isinstance(config, Mapping):
        raise DeepSpeedConfigError(f"the configuration is a {type(config).__name__}: expected an object of keys")
    notes: list[str] = []
    top = _Section("", config, notes)
    micro, accumulation = _batches(top, world_size)
    dtype, loss_scale = _precision(top)
    optimizer_class, options = _optimizer(top)
    clipping = top.take("gradient_clipping", 0.0, _NUMBER)
    if clipping < 0:
        raise DeepSpeedConfigError(f"gradient_clipping = {clipping}: expected a norm above 0, or 0 for none")
    zero = top.section("zero_optimization")
    stage = zero.choose("stage", 0, (0, 1, 2, 3))
    for name in ("reduce_scatter", "allgather_partitions"):
        if not zero.take(name, True, (bool,)):
            raise DeepSpeedConfigError(
                f"zero_optimization.{name} = false: gradients are reduce-scattered and parameters all-gathered here, "
                "with fewer bytes; leave it out"
            )
    overlap = zero.take("overlap_comm", stage == 3, (bool,))
    if not overlap:
        notes.append("zero_optimization.overlap_comm: reductions overlap with backward here in any case")
    prefetch = zero.count("stage3_prefetch_bucket_size", 50_000_000, least=0)
    settings = DeepSpeedSettings(
        world_size, micro, accumulation, stage,
        reduce_bucket_elements=zero.count("reduce_bucket_size", 500_000_000),
        gather_bucket_elements=zero.count("allgather_bucket_size", 500_000_000),
        units_in_flight=2 if prefetch else 1,
        overlap_communication=overlap, dtype=dtype, loss_scale=loss_scale,
        gradient_clipping=float(clipping) or None,
        optimizer_class=optimizer_class, optimizer_options=options,
        offload_optimizer=_offload(zero, notes),
        notes=(),
    )  # fmt: skip
    if settings.gather_bucket_elements != settings.reduce_bucket_elements and stage in (1, 2):
        notes.append("zero_optimization.allgather_bucket_size: parameters are gathered in the buckets of the gradients")
    zero.end(_NO_EFFECT_IN_ZERO)
    top.end(_NO_EFFECT)
    return DeepSpeedSettings(**{**settings.__dict__, "notes": tuple(notes)})


class _Section:
    """One object of the configuration. What nobody takes is refused at its end."""

    def __init__(self, name: str, values: Mapping[str, Any], notes: list[str]) -> None:
        self._prefix, self._left, self._notes = f"{name}." if name else "", dict(values), notes

    def take(self, name: str, default: Any, types: tuple[type, ...]) -> Any:
        value = self._left.pop(name, default)
        if value is _REQUIRED:
            raise DeepSpeedConfigError(f"{self._prefix}{name} is missing")
        if value == "auto" and str not in types:
            raise DeepSpeedConfigError(
                f'{self._prefix}{name} = "auto": that is filled in by the Hugging Face Trainer; write the value'
            )
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            names = " or ".join(each.__name__ for each in types)
            raise DeepSpeedConfigError(f"{self._prefix}{name} = {json.dumps(value)}: expected {names}")
        return value

    def count(self, name: str, default: Any, least: int = 1) -> int:
        """A whole number, which JSON may write as 5e8."""
        value = self.take(name, default, _NUMBER)
        if value != int(value) or value < least:
            raise DeepSpeedConfigError(f"{self._prefix}{name} = {value}: expected a whole number, {least} or more")
        return int(value)

    def choose(self, name: str, default: Any, choices: tuple[Any, ...]) -> Any:
        value = self.take(name, default, _ANY)
        if value not in choices or isinstance(value, bool):
            expected = ", ".join(map(json.dumps, choices))
            raise DeepSpeedConfigError(f"{self._prefix}{name} = {json.dumps(value)}: expected one of {expected}")
        return value

    def section(self, name: str) -> "_Section":
        return _Section(f"{self._prefix}{name}", self.take(name, {}, (dict,)), self._notes)

    def has(self, name: str) -> bool:
        return name in self._left

    def end(self, without_effect: Mapping[str, str] | None = None) -> None:
        for name, why in (without_effect or {}).items():
            if self._left.pop(name, None) is not None:
                self._notes.append(f"{self._prefix}{name} has no effect: {why}")
        if self._left:
            name = next(iter(self._left))
            raise DeepSpeedConfigError(
                f"{self._prefix}{name} is not known here: remove it if training does not depend on it"
            )


def _batches(top: _Section, world_size: int) -> tuple[int, int]:
    """Micro batch and accumulation steps: train_batch_size is their product with the world size, and one of the three
    may be left out."""
    if world_size < 1:
        raise DeepSpeedConfigError(f"world_size = {world_size}: expected 1 or more")
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    total, micro, accumulation = (top.count(name, _REQUIRED) if top.has(name) else None for name in names)
    if total is None and micro is None:
        raise DeepSpeedConfigError(f"there is neither {names[0]} nor {names[1]}: give two of {', '.join(names)}")
    if micro is None:
        micro = (total or 0) // ((accumulation or 1) * world_size)
    if accumulation is None:
        accumulation = 1 if total is None else total // (micro * world_size) if micro else 1
    if total is not None and total != micro * accumulation * world_size:
        raise DeepSpeedConfigError(
            f"train_batch_size = {total}: expected micro batch · accumulation · ranks = {micro} · {accumulation} · "
            f"{world_size} = {micro * accumulation * world_size}"
        )
    return micro, accumulation


def _precision(top: _Section) -> tuple[torch.dtype, LossScale | None]:
    half, brain = top.section("fp16"), top.section("bf16")
    use_half, use_brain = (section.take("enabled", False, (bool,)) for section in (half, brain))
    static = half.take("loss_scale", 0, _NUMBER)
    scale = LossScale(
        initial=float(static) or 2.0 ** half.take("initial_scale_power", 16, _NUMBER),
        dynamic=not static,
        window=half.count("loss_scale_window", 1000),
        hysteresis=half.count("hysteresis", 2),
        smallest=float(half.take("min_loss_scale", 1, _NUMBER)),
    )
    if half.take("auto_cast", False, (bool,)):
        raise DeepSpeedConfigError("fp16.auto_cast = true: inputs are not cast here; pass them in float16")
    half.end({"initial_scale_power": "loss_scale is a fixed one"})
    brain.end()
    if use_half and use_brain:
        raise DeepSpeedConfigError("fp16.enabled and bf16.enabled are both true: expected one of them")
    return torch.float16 if use_half else torch.bfloat16 if use_brain else torch.float32, scale if use_half else None


def _optimizer(top: _Section) -> tuple[type[torch.optim.Optimizer] | None, dict[str, Any]]:
    if not top.has("optimizer"):
        return None, {}
    section = top.section("optimizer")
    kind = section.choose("type", _REQUIRED, ("Adam", "AdamW"))
    params = section.section("params")
    section.end()
    betas = params.take("betas", [0.9, 0.999], (list,))
    if len(betas) != 2 or not all(isinstance(beta, float) and 0 <= beta < 1 for beta in betas):
        raise DeepSpeedConfigError(f"optimizer.params.betas = {json.dumps(betas)}: expected two numbers from 0 to 1")
    options = {
        "lr": float(params.take("lr", 1e-3, _NUMBER)),
        "betas": tuple(betas),
        "eps": float(params.take("eps", 1e-8, _NUMBER)),
        "weight_decay": float(params.take("weight_decay", 0.0, _NUMBER)),  # torch's AdamW has 0.01
    }
    decoupled = params.take("adam_w_mode", True, (bool,))  # DeepSpeed's Adam is AdamW unless this is false
    params.end({"torch_adam": "the optimizer is torch's in any case"})
    return torch.optim.AdamW if kind == "AdamW" or decoupled else torch.optim.Adam, options


def _offload(zero: _Section, notes: list[str]) -> str | None:
    """Of the optimizer's states, recorded with a note; of parameters, refused."""
    parameters = zero.section("offload_param")
    if (device := parameters.choose("device", "none", ("none", "cpu", "nvme"))) != "none":
        raise DeepSpeedConfigError(
            f'zero_optimization.offload_param.device = "{device}": parameters stay on their devices here; shard them '
            "over more ranks with stage 3"
        )
    states = zero.section("offload_optimizer")
    legacy = zero.take("cpu_offload", False, (bool,))
    device = states.choose("device", "cpu" if legacy else "none", ("none", "cpu", "nvme"))
    folder = states.take("nvme_path", None, (str, type(None)))
    if device == "nvme" and not folder:
        raise DeepSpeedConfigError("zero_optimization.offload_optimizer.nvme_path is missing: name a folder")
    for section in (parameters, states):
        section.end(dict.fromkeys(("pin_memory", "buffer_count", "fast_init"), "of how DeepSpeed copies"))
    if device == "none":
        return None
    notes.append(
        f'zero_optimization.offload_optimizer.device = "{device}": ZeroOptimizer keeps states where parameters are, '
        "cut by the number of ranks; threeloops.inner.memory.offload has an AdamW that keeps them elsewhere"
    )
    return folder if device == "nvme" else "cpu"
