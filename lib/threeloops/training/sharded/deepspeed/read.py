"""Turn a DeepSpeed configuration into settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch

from threeloops.training.sharded.deepspeed.section import REQUIRED, DeepSpeedConfigError, Section
from threeloops.training.sharded.deepspeed.settings import DeepSpeedSettings, LearningRate, LossScale
from threeloops.training.sharded.deepspeed.source import load

__all__ = ["from_deepspeed_config"]


def from_deepspeed_config(
    config: Mapping[str, Any] | str | Path, world_size: int, auto: Mapping[str, Any] | None = None
) -> DeepSpeedSettings:
    """Read a configuration for `world_size` data-parallel ranks. The package's docstring says which keys are read,
    noted and refused.

    Args:
        config: the keys, or the path of a JSON file, or JSON text, plain or in base64.
        auto: values for keys that are "auto", by their dotted names such as "optimizer.params.lr".

    Raises:
        DeepSpeedConfigError: the configuration cannot be followed. The message names the key, its value, what was
            expected, and what to do.
    """
    if not isinstance(world_size, int) or world_size < 1:
        raise DeepSpeedConfigError(f"world_size = {world_size!r}: expected a whole number, 1 or more")
    if not isinstance(auto or {}, Mapping):
        raise DeepSpeedConfigError(f"auto = {auto!r}: expected a dictionary such as {{'optimizer.params.lr': 3e-4}}")
    top = Section.whole(load(config), auto or {})
    micro, accumulation = _batches(top, world_size)
    dtype, loss_scale = _precision(top)
    optimizer_class, options = _optimizer(top)
    learning_rate = _learning_rate(top, options.get("lr"))
    clipping = top.number("gradient_clipping", 0.0)
    zero = _zero(top)
    stage = zero.choose("stage", 0, (0, 1, 2, 3))
    _dtypes_of_gradients(top, dtype, stage, accumulation)
    for name, what in (
        ("reduce_scatter", "gradients are reduce-scattered"),
        ("allgather_partitions", "parameters are all-gathered"),
    ):
        if not zero.flag(name, True):
            zero.note(name, f" has no effect: {what} here in any case, with the same result")
    overlap = zero.flag("overlap_comm", stage == 3)
    if not overlap:
        zero.note("overlap_comm", " has no effect: reductions overlap with backward here in any case")
    prefetch = zero.count("prefetch_bucket_size", 50_000_000, least=0)
    prefetch = zero.count("stage3_prefetch_bucket_size", prefetch, least=0)
    reduced = zero.count("reduce_bucket_size", 500_000_000)
    gathered = zero.count("allgather_bucket_size", 500_000_000)
    if gathered != reduced and stage in (1, 2):
        zero.note("allgather_bucket_size", " has no effect: parameters are gathered in the buckets of the gradients")
    offload = _offload(zero)
    zero.end()
    top.end()
    return DeepSpeedSettings(
        world_size,
        micro,
        accumulation,
        stage,
        reduce_bucket_elements=reduced,
        gather_bucket_elements=gathered,
        units_in_flight=2 if prefetch else 1,
        overlap_communication=overlap,
        dtype=dtype,
        loss_scale=loss_scale,
        gradient_clipping=clipping or None,
        optimizer_class=optimizer_class,
        optimizer_options=options,
        learning_rate=learning_rate,
        offload_optimizer=offload,
        notes=tuple(top.notes),
    )


def _batches(top: Section, world_size: int) -> tuple[int, int]:
    """Return micro batch and accumulation steps. train_batch_size is their product with the world size, and one of the
    three may be left out."""
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    for name in names:
        if all(top.has(other) and not top.is_open(other) for other in names if other != name):
            top.leave_out(name)
    total, micro, accumulation = (top.count(name, REQUIRED) if top.has(name) else None for name in names)
    if total is None and micro is None:
        raise DeepSpeedConfigError(
            f"there is neither {names[0]} nor {names[1]}: give two of {', '.join(names)}"
            f"{top.near(names[0]) or top.near(names[1])}"
        )
    if total is None:
        return cast(int, micro), accumulation or 1
    given = {names[1]: micro, names[2]: accumulation, "ranks": world_size}
    factors = {name: value for name, value in given.items() if value is not None}
    product = world_size * (micro or 1) * (accumulation or 1)
    if None not in given.values() and total != product:
        raise DeepSpeedConfigError(
            f"train_batch_size = {total}: expected micro batch · accumulation · ranks = {micro} · {accumulation} · "
            f"{world_size} = {product}"
        )
    if total % product:
        raise DeepSpeedConfigError(
            f"train_batch_size = {total}: expected a multiple of {' · '.join(factors)} = "
            f"{' · '.join(map(str, factors.values()))}{f' = {product}' if len(factors) > 1 else ''}"
        )
    return (micro or total // product, accumulation or (total // product if micro else 1))


def _precision(top: Section) -> tuple[torch.dtype, LossScale | None]:
    half = top.section("fp16")
    brain = top.section("bf16" if top.has("bf16") else "bfloat16")
    use_half, use_brain = (section.flag("enabled", False) for section in (half, brain))
    static = half.number("loss_scale", 0)
    power = half.count("initial_scale_power", 16, least=0, most=127)
    scale = LossScale(
        initial=static or 2.0**power,
        dynamic=not static,
        window=half.count("loss_scale_window", 1000),
        hysteresis=half.count("hysteresis", 2),
        smallest=half.number("min_loss_scale", 1),
    )
    half.end(off=not use_half)
    brain.end(off=not use_brain)
    if use_half and use_brain:
        raise DeepSpeedConfigError("fp16.enabled and bf16.enabled are both true: expected one of them")
    return torch.float16 if use_half else torch.bfloat16 if use_brain else torch.float32, scale if use_half else None


_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "bfp16": torch.bfloat16}


def _dtypes_of_gradients(top: Section, dtype: torch.dtype, stage: int, accumulation: int) -> None:
    """Refuse dtypes in which gradients are not sent or added up here."""
    if top.flag("fp32_allreduce", False) and dtype != torch.float32:
        raise top.refusal("fp32_allreduce", True, f"gradients are sent in {dtype} here, as they are; remove it")
    sent = top.choose("communication_data_type", "", ("", *_DTYPES))
    if sent and _DTYPES[sent] != dtype:
        raise top.refusal("communication_data_type", sent, f"gradients are sent in {dtype} here; remove it")
    types = top.section("data_types")
    added = types.choose("grad_accum_dtype", "", ("", *_DTYPES))
    here = torch.float32 if stage == 3 else dtype
    if added and _DTYPES[added] != here and accumulation > 1:
        raise types.refusal(
            "grad_accum_dtype",
            added,
            f"gradients of {accumulation} micro batches add up in {here} here. Remove it, or use "
            f"{'another stage' if stage == 3 else 'stage 3, where they add up in float32'}",
        )
    types.end()


def _optimizer(top: Section) -> tuple[type[torch.optim.Optimizer] | None, dict[str, Any]]:
    if not top.has("optimizer"):
        return None, {}
    section = top.section("optimizer")
    name = section.take("type", REQUIRED, str)
    if name.lower() not in ("adam", "adamw"):
        raise section.refusal(
            "type",
            name,
            'expected one of "Adam", "AdamW". To use another one, remove optimizer from the configuration, and pass '
            "its class to ZeroOptimizer, or FSDP's parameters to it",
        )
    params = section.section("params")
    section.end()
    betas = params.take("betas", [0.9, 0.999], list, tuple)
    if len(betas) != 2 or not all(type(beta) in (int, float) and 0 <= beta < 1 for beta in betas):
        raise params.refusal("betas", betas, "expected two numbers, each 0 or more and below 1")
    options = {
        "lr": params.number("lr", 1e-3),
        "betas": tuple(map(float, betas)),
        "eps": params.number("eps", 1e-8),
        "weight_decay": params.number("weight_decay", 0.0),  # torch's AdamW has 0.01
    }
    decoupled = params.flag("adam_w_mode", True)  # DeepSpeed's Adam is AdamW unless this is false
    params.end()
    return torch.optim.AdamW if name.lower() == "adamw" or decoupled else torch.optim.Adam, options


def _learning_rate(top: Section, rate: float | None) -> LearningRate | None:
    """Read the scheduler; `rate` is the optimizer's own, if the configuration has an optimizer."""
    if not top.has("scheduler"):
        return None
    section = top.section("scheduler")
    kinds = ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR")
    kind = section.take("type", REQUIRED, str)
    if kind not in kinds:
        raise section.refusal(
            "type",
            kind,
            f"expected one of {', '.join(kinds)}. To use another one, remove scheduler from the configuration, and "
            "give the optimizer a scheduler of torch",
        )
    params = section.section("params")
    section.end()
    cosine = kind == "WarmupCosineLR"
    if rate is None and (cosine or (kind == "WarmupLR" and not params.has("warmup_max_lr"))):
        missing = "optimizer.params.lr" if cosine else "scheduler.params.warmup_max_lr"
        raise DeepSpeedConfigError(f"{missing} is missing: write the rate that {kind} warms up to")
    if cosine:
        highest = cast(float, rate)
        first = highest * params.number("warmup_min_ratio", 0.0, most=1)
        last = highest * params.number("cos_min_ratio", 0.0001, most=1)
    else:
        highest = params.number("warmup_max_lr", 1e-3 if kind == "WarmupDecayLR" else rate)
        first = last = params.number("warmup_min_lr", 0.0)
    steps = max(2, params.count("warmup_num_steps", 1000, least=0))
    warmup = params.choose("warmup_type", "log", ("log", "linear"))
    total = None if kind == "WarmupLR" else params.count("total_num_steps", REQUIRED)
    if kind == "WarmupLR" and params.has("total_num_steps"):
        params.take("total_num_steps", None, int, float)
        params.note("total_num_steps", " has no effect: WarmupLR keeps its highest rate")
    params.end()
    return LearningRate(
        first,
        highest,
        last,
        steps,
        total,
        warmup,
        decay="cosine" if cosine else "none" if total is None else "linear",
        initial=0.0 if cosine else first,
    )


def _zero(top: Section) -> Section:
    """The section of ZeRO. In old configurations it is true for stage 1, or false."""
    old = top.take("zero_optimization", {}, dict, bool)
    if isinstance(old, bool):
        top.note("zero_optimization", f" = {str(old).lower()} is an old form of stage {int(old)}")
        old = {"stage": int(old)}
    return top.inside("zero_optimization", old)


def _offload(zero: Section) -> str | None:
    """Read where DeepSpeed would keep the optimizer's states. Here they stay on their devices, as parameters do."""
    old = {name: zero.flag(name, False) for name in ("cpu_offload", "cpu_offload_param")}
    parameters = zero.section("offload_param")
    states = zero.section("offload_optimizer")
    places = []
    for section, name in ((parameters, "cpu_offload_param"), (states, "cpu_offload")):
        device = section.choose("device", "cpu" if old[name] else "none", ("none", "cpu", "nvme"))
        folder = section.take("nvme_path", None, str)
        if device == "nvme" and not folder:
            raise DeepSpeedConfigError(f"{section.name}.nvme_path is missing: name a folder, as DeepSpeed asks for too")
        places.append({"none": None, "cpu": "cpu", "nvme": folder}[device])
        if device != "none":
            section.note("device", _PLACED[section is states])
        section.end()
    return places[1]


_PLACED = (
    " has no effect: parameters stay on their devices here, which needs more memory and keeps results; stage 3 shards "
    "them",
    " has no effect: ZeroOptimizer keeps states where parameters are, cut by the number of ranks. "
    "threeloops.inner.memory.offload has an AdamW that keeps them elsewhere",
)
"""Notes on offloaded parameters, and on offloaded states."""
