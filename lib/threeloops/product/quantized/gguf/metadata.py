"""Conversion between a `GPTConfig` and the metadata of a GGUF file: its architecture and that architecture's keys.

llama.cpp reads only the keys that it knows for an architecture and uses defaults for the rest. This module handles
every key of the architecture in one of three ways. It reads the key, skips a key known to change nothing, or raises an
error that names the key. Ignoring an unknown key could give wrong answers without an error. (Source:
`llama_model::load_hparams` and `llama_context` in llama.cpp.)
"""

import dataclasses
import math
from typing import Any

import numpy as np

from threeloops.models.gpt_config import GPTConfig
from threeloops.models.rope_scaling import (
    LinearScaling,
    Llama3Scaling,
    RopeScaling,
    YarnScaling,
    plain_frequencies,
    yarn_amplitude,
)
from threeloops.product.quantized.gguf.blocks import decode
from threeloops.product.quantized.gguf.container import File, Value
from threeloops.product.quantized.gguf.errors import GGUFError

__all__ = [
    "ROPE_FREQUENCIES", "architecture", "frequency_factors", "metadata_of", "read_config", "require_same",
]  # fmt: skip

_ARCHITECTURES = ("llama", "qwen2", "qwen3")
ROPE_FREQUENCIES = "rope_freqs.weight"
"""The name of the tensor that holds Llama 3.1's scaling. llama.cpp divides the rotary frequencies by its elements."""

_SIZES = {
    "vocabulary_size": "vocab_size",
    "layers": "block_count",
    "heads": "attention.head_count",
    "kv_heads": "attention.head_count_kv",
    "width": "embedding_length",
    "mlp_width": "feed_forward_length",
    "max_sequence": "context_length",
    "head_dim": "attention.key_length",
    "norm_epsilon": "attention.layer_norm_rms_epsilon",
    "rope_base": "rope.freq_base",
}
_ROPE = ("rope.scaling.type", "rope.scaling.factor", "rope.scale_linear", "rope.scaling.attn_factor")
_NEUTRAL: dict[str, tuple[Value, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "logit_scale": (0.0, 1.0),
    "rope.scaling.yarn_beta_fast": (32.0,),
    "rope.scaling.yarn_beta_slow": (1.0,),
    "rope.scaling.yarn_ext_factor": (1.0,),
    "rope.scaling.yarn_attn_factor": (1.0,),
    "rope.scaling.yarn_log_multiplier": (0.0,),
}
"""Keys that are accepted only with these values, which change nothing.

For the last five, llama.cpp uses the value in the file only in other architectures.
"""
_WITHOUT_EFFECT = ("tensor_data_layout", "rope.scaling.finetuned", "rope.scaling.original_context_length")
_LONGEST = 2**24  # positions; each needs a row of cosines and sines


def architecture(config: GPTConfig) -> str:
    """Return llama.cpp's name of the architecture. Raises ValueError if no architecture computes the model."""
    if config.qk_norm and config.qkv_bias:
        raise ValueError("qk_norm with qkv_bias: llama.cpp has no such architecture; publish the model as a folder")
    if config.sliding_window is not None and config.sliding_window < config.max_sequence:
        raise ValueError(
            f"sliding_window = {config.sliding_window}: llama.cpp attends to all tokens in models of this shape, so a "
            "GGUF file would give other answers; publish the model as a folder"
        )
    if config.qkv_bias and config.heads * config.head_dim != config.width:
        raise ValueError(
            f"head_dim = {config.head_dim} with qkv_bias: llama.cpp's 'qwen2' expects width / heads = "
            f"{config.width / config.heads:g}; publish the model as a folder"
        )
    return "qwen3" if config.qk_norm else "qwen2" if config.qkv_bias else "llama"


def metadata_of(config: GPTConfig) -> dict[str, Value]:
    """Describe a configuration by the architecture and its keys.

    Raises ValueError naming the field that a GGUF file cannot describe.
    """
    name = architecture(config)
    values: dict[str, Value] = {key: getattr(config, field) for field, key in _SIZES.items()}
    values["attention.value_length"] = values["rope.dimension_count"] = config.head_dim
    values |= _describe(config.rope_scaling, name)
    return {"general.architecture": name} | {f"{name}.{key}": value for key, value in values.items()}


def _describe(scaling: RopeScaling | None, name: str) -> dict[str, Value]:
    match scaling:
        case None:
            return {}
        case LinearScaling():
            return {"rope.scaling.type": "linear", "rope.scaling.factor": float(scaling.factor)}
        case Llama3Scaling():
            if name != "llama":
                raise ValueError(f"rope_scaling = {scaling}: llama.cpp has it in 'llama' only, not in {name!r}")
            _require_usual(scaling, Llama3Scaling(scaling.factor, scaling.original_max_sequence))
            return {"rope.scaling.original_context_length": scaling.original_max_sequence}
        case YarnScaling():
            factor = scaling.factor
            length = scaling.original_max_sequence
            _require_usual(scaling, YarnScaling(factor, length, attention_factor=scaling.attention_factor))
            return {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": float(factor),
                "rope.scaling.original_context_length": length,
                "rope.scaling.attn_factor": scaling.amplitude / yarn_amplitude(factor),
            }


def frequency_factors(config: GPTConfig, scaling: RopeScaling) -> np.ndarray:
    """Return the numbers by which llama.cpp divides the plain rotary frequencies to get the scaled ones."""
    plain = plain_frequencies(config.head_dim, config.rope_base)
    return np.divide(plain, scaling.frequencies(plain, config.rope_base))


def _require_usual(scaling: RopeScaling, usual: RopeScaling) -> None:
    """Raise ValueError if a number differs from the constant that llama.cpp uses for it regardless of the file."""
    for field in dataclasses.fields(usual):
        value = getattr(scaling, field.name)
        expected = getattr(usual, field.name)
        if value != expected:
            raise ValueError(
                f"{field.name} = {value} in {type(scaling).__name__}: llama.cpp computes with {expected}, whatever the "
                "file says; publish the model as a folder"
            )


def read_config(file: File, where: str) -> GPTConfig:
    """Read the configuration of a file, which errors call `where`.

    A missing key gets llama.cpp's default if there is one. Raises GGUFError naming a required key that is missing, or a
    key that asks for a computation that the library does not support.
    """
    name = file.metadata.get("general.architecture")
    if name not in _ARCHITECTURES:
        raise GGUFError(
            f"{where} has general.architecture = {name!r}: expected one of {', '.join(map(repr, _ARCHITECTURES))}, "
            "the architectures that the library supports"
        )
    if file.metadata.get("split.count", 1) != 1:
        raise GGUFError(
            f"{where} is one of split.count = {file.metadata['split.count']} files: expected a whole model; join the "
            "files with llama-gguf-split --merge"
        )
    values = {key.removeprefix(f"{name}."): v for key, v in file.metadata.items() if key.startswith(f"{name}.")}
    if (embedding := file.tensors.get("token_embd.weight")) is not None:
        values.setdefault("vocab_size", embedding.shape[0])
    values.setdefault("attention.head_count_kv", values.get("attention.head_count", 0))
    values.setdefault("rope.freq_base", 10_000.0)
    values.setdefault("attention.key_length", 0)
    sizes: dict[str, Any] = {}
    for field, key in _SIZES.items():
        if key not in values:
            raise GGUFError(f"{where} has no {name}.{key}: expected the model's {field}; convert the model again")
        sizes[field] = _number(values[key])
    try:
        config = GPTConfig(
            **sizes,
            tied_embeddings="output.weight" not in file.tensors,
            qkv_bias="blk.0.attn_q.bias" in file.tensors,
            qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
            rope_scaling=_scaling(values, where, name),
        )
    except GGUFError:
        raise
    except (ValueError, TypeError) as error:
        raise GGUFError(f"{where} describes a model that cannot be built: {error}") from None
    _require_nothing_else(values, config, where, name)
    if (tensor := file.tensors.get(ROPE_FREQUENCIES)) is not None:
        if config.rope_scaling is not None:
            raise GGUFError(f"{where} has {name}.rope.scaling.factor and {ROPE_FREQUENCIES}: expected one of them")
        factors = decode(tensor.data, tensor.type).ravel()
        config = dataclasses.replace(config, rope_scaling=_llama3(factors, values, config, where))
    return config


def _number(value: Value) -> Any:
    """Round a float to the shortest decimal with the same float32: 1e-6 instead of 9.99999997e-07."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _scaling(values: dict[str, Value], where: str, name: str) -> RopeScaling | None:
    """Read the scaling of rotary positions from the keys. Without a type, a factor means linear scaling."""
    kind = values.get("rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn"):
        raise GGUFError(
            f"{where} has {name}.rope.scaling.type = {kind!r}: expected 'none', 'linear' or 'yarn'; the library does "
            "not support other scalings"
        )
    factor = _number(values.get("rope.scaling.factor", values.get("rope.scale_linear", 0.0))) or 1.0
    attention = _number(values.get("rope.scaling.attn_factor", 1.0))
    if kind == "yarn" and factor != 1:
        return YarnScaling(
            factor,
            values.get("rope.scaling.original_context_length", values["context_length"]),  # type: ignore[arg-type]
            attention_factor=None if attention == 1 else attention * yarn_amplitude(factor),
        )
    if attention != 1:
        raise GGUFError(
            f"{where} has {name}.rope.scaling.attn_factor = {attention}: expected 1; without yarn, or with a factor "
            "of 1, attn_factor must be 1"
        )
    return None if kind == "none" or factor == 1 else LinearScaling(factor)


def _llama3(factors: np.ndarray, values: dict[str, Value], config: GPTConfig, where: str) -> Llama3Scaling:
    """Recover Llama 3.1's scaling from the factors in a file.

    Only `factor` has to be recovered, because all published models share the other numbers. Raises GGUFError if the
    factors come from a different scaling.
    """
    length = values.get("rope.scaling.original_context_length", 8192)
    try:
        scaling = Llama3Scaling(_number(float(factors.max())), length)  # type: ignore[arg-type]
        if np.allclose(factors, frequency_factors(config, scaling), rtol=1e-4):
            return scaling
    except ValueError:
        pass  # a factor or length that is not positive, or a wrong number of factors
    raise GGUFError(
        f"{where}: {ROPE_FREQUENCIES} divides the rotary frequencies by factors other than Llama 3.1's for {length} "
        "original positions: expected Llama 3.1's factors; the library does not support others"
    )


def _require_nothing_else(values: dict[str, Value], config: GPTConfig, where: str, name: str) -> None:
    keys = {*_SIZES.values(), *_WITHOUT_EFFECT, *_ROPE}
    keys |= {"attention.value_length", "rope.dimension_count", "attention.sliding_window"}
    turned = values.get("rope.dimension_count", config.head_dim)
    if turned != config.head_dim or config.max_sequence > _LONGEST:
        raise GGUFError(
            f"{where} rotates {turned} dimensions of {config.head_dim}, for {config.max_sequence} positions: expected "
            f"all {config.head_dim} dimensions, for at most {_LONGEST} positions"
        )
    if (length := values.get("attention.value_length", config.head_dim)) != config.head_dim:
        raise GGUFError(
            f"{where} has {name}.attention.value_length = {length}: expected {config.head_dim}, the length of a key"
        )
    window = values.get("attention.sliding_window", 0)
    if not isinstance(window, int) or 0 < window < config.max_sequence:
        raise GGUFError(
            f"{where} has {name}.attention.sliding_window = {window}: expected none; llama.cpp ignores it in this "
            "architecture, so programs disagree about this file"
        )
    for key, value in values.items():
        if key not in keys and value not in _NEUTRAL.get(key, ()):
            expected = "expected no such key; the library would ignore it"
            if key in _NEUTRAL:
                expected = f"expected {_NEUTRAL[key][-1]}; the library always uses {_NEUTRAL[key][-1]}"
            raise GGUFError(f"{where} has {name}.{key} = {value!r}: {expected}")


def require_same(file_config: GPTConfig, config: GPTConfig, where: str) -> None:
    """Raise GGUFError naming the first field in which a file's configuration differs from the expected one."""
    for field in dataclasses.fields(GPTConfig):
        theirs = getattr(file_config, field.name)
        ours = getattr(config, field.name)
        if field.name == "sliding_window" and (ours or math.inf) >= config.max_sequence:
            continue
        if field.name != "kernels" and not _equal(theirs, ours):
            raise GGUFError(f"{where} has {field.name} = {theirs}: expected {ours}; the file belongs to another model")


def _equal(one: Any, other: Any) -> bool:
    """Compare two values. Floats may differ by their rounding to float32."""
    if dataclasses.is_dataclass(one) and type(one) is type(other):
        return all(_equal(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(one))
    if isinstance(one, float | int) and isinstance(other, float | int):
        return math.isclose(one, other, rel_tol=1e-6)
    return bool(one == other)
