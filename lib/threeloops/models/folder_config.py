"""Conversion between the config.json of a folder of weights and a `GPTConfig`.

The sizes of the model are required. Any other missing key of the model gets the default of its class in transformers,
because a config.json may omit a value that equals the default. A feature that the course's GPT lacks raises an error
that names the key, because a model that ignored the feature would give wrong answers without an error.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal

from threeloops.models.gpt_config import GPTConfig
from threeloops.models.rope_scaling import LinearScaling, Llama3Scaling, RopeScaling, YarnScaling, yarn_amplitude

__all__ = ["gpt_config", "published_config"]

_Published = Mapping[str, Any]

_SIZES = {
    "vocabulary_size": "vocab_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "width": "hidden_size",
    "mlp_width": "intermediate_size",
    "max_sequence": "max_position_embeddings",
}
"""The names of the required sizes: ours, and those in config.json."""

_TYPES: dict[str, tuple[str, ...]] = {
    "a whole number": (
        *_SIZES.values(), "num_key_value_heads", "head_dim", "sliding_window", "max_window_layers",
        "original_max_position_embeddings",
    ),
    "a number": (
        "rms_norm_eps", "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow",
        "attention_factor", "mscale", "mscale_all_dim",
    ),
    "true or false": ("tie_word_embeddings", "use_sliding_window", "truncate"),
    "an object": ("rope_scaling", "rope_parameters"),
    "text": ("model_type", "rope_type", "type"),
    "a list of text": ("layer_types",),
}  # fmt: skip
"""The keys of each type. A null passes the check."""

_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "qwen2": {"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28},
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096, "max_window_layers": 28},
}
"""The defaults of missing keys in transformers 5, by `model_type`. Keys without a default are absent."""

_ROPE: dict[str, tuple[type[RopeScaling], dict[str, str]]] = {
    "linear": (LinearScaling, {"factor": "factor"}),
    "llama3": (
        Llama3Scaling,
        {
            "factor": "factor",
            "original_max_position_embeddings": "original_max_sequence",
            "low_freq_factor": "low_frequency_factor",
            "high_freq_factor": "high_frequency_factor",
        },
    ),
    "yarn": (
        YarnScaling,
        {
            "factor": "factor",
            "original_max_position_embeddings": "original_max_sequence",
            "beta_fast": "beta_fast",
            "beta_slow": "beta_slow",
            "attention_factor": "attention_factor",
            "truncate": "truncate",
        },
    ),
}
"""Our class for each `rope_type`, with the keys of config.json that set its fields."""

_ROPE_OPTIONAL = {"beta_fast", "beta_slow", "attention_factor", "truncate"}
_ROPE_IGNORED = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned"}


def gpt_config(published: _Published, kernels: Literal["eager", "fused"] = "eager") -> GPTConfig:
    """Convert the config.json of a Llama, Mistral, Qwen2 or Qwen3 to a `GPTConfig`.

    Raises ValueError, naming the key, if a size is missing, a value has the wrong type, or the course's GPT lacks a
    feature.
    """
    _check_types(published)
    kind = published.get("model_type")
    if kind not in _DEFAULTS:
        raise ValueError(
            f"model_type = {kind!r}: the course's GPT does not support this architecture; expected one of "
            f"{', '.join(_DEFAULTS)}"
        )
    if missing := [name for name in _SIZES.values() if published.get(name) is None]:
        raise ValueError(f"config.json lacks {', '.join(missing)}: expected the sizes of the model; download it again")
    settings = {"rms_norm_eps": 1e-6, **_DEFAULTS[kind], **published}
    _refuse_beyond(kind, settings)
    rope = settings.get("rope_scaling") or settings.get("rope_parameters") or {}
    _check_types(rope)
    return GPTConfig(
        **{ours: settings[theirs] for ours, theirs in _SIZES.items()},
        kv_heads=settings.get("num_key_value_heads") or settings["num_attention_heads"],
        tied_embeddings=bool(settings.get("tie_word_embeddings", False)),
        norm_epsilon=settings["rms_norm_eps"],
        rope_base=float(rope.get("rope_theta") or settings.get("rope_theta") or 10_000.0),
        qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
        head_dim=settings.get("head_dim") or 0,
        sliding_window=_window(kind, settings),
        rope_scaling=_scaling(rope, settings),
        kernels=kernels,
    )


def published_config(config: GPTConfig) -> dict[str, Any]:
    """Convert a `GPTConfig` to a config.json for the transformers class that computes the same.

    Raises ValueError if transformers has no such class.
    """
    kind, architecture = _class_of(config)
    published: dict[str, Any] = {
        "model_type": kind,
        "architectures": [architecture],
        **{theirs: getattr(config, ours) for ours, theirs in _SIZES.items()},
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_epsilon,
        "rope_theta": config.rope_base,
        "tie_word_embeddings": config.tied_embeddings,
        "hidden_act": "silu",
    }
    if config.rope_scaling is not None:
        published["rope_scaling"] = _published_scaling(config.rope_scaling)
    if kind == "mistral":
        published["sliding_window"] = config.sliding_window
    elif config.sliding_window is not None:
        published |= {"use_sliding_window": True, "sliding_window": config.sliding_window, "max_window_layers": 0}
    return published


def _check_types(values: _Published) -> None:
    checks = {
        "a whole number": lambda value: isinstance(value, int) and not isinstance(value, bool),
        "a number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
        "true or false": lambda value: isinstance(value, bool),
        "an object": lambda value: isinstance(value, dict),
        "text": lambda value: isinstance(value, str),
        "a list of text": lambda value: isinstance(value, list) and all(isinstance(text, str) for text in value),
    }
    for expected, names in _TYPES.items():
        for name in names:
            value = values.get(name)
            if value is not None and not checks[expected](value):
                raise ValueError(f"{name} = {value!r} in config.json: expected {expected}")


def _refuse_beyond(kind: str, settings: _Published) -> None:
    beyond = {
        "quantization_config": bool(settings.get("quantization_config")),
        "hidden_act": settings.get("hidden_act", "silu") not in ("silu", "swish"),  # swish is another name of silu
        # Adds a bias to the output projection too. Qwen2's biases are fixed, and transformers ignores the key there.
        "attention_bias": kind != "qwen2" and bool(settings.get("attention_bias")),
        "mlp_bias": bool(settings.get("mlp_bias")),
        "partial_rotary_factor": settings.get("partial_rotary_factor") not in (None, 1),
        "sliding_window": kind == "llama" and settings.get("sliding_window") is not None,  # programs disagree about it
    }
    for name, is_beyond in beyond.items():
        if is_beyond:
            raise ValueError(
                f"{name} = {settings[name]!r} with model_type = {kind!r}: the course's GPT does not support this; "
                "choose a model without it"
            )


def _window(kind: str, settings: _Published) -> int | None:
    """The sliding window that all layers share, or None without one. Raises ValueError if layers differ."""
    layers = settings["num_hidden_layers"]
    window = settings.get("sliding_window")
    first = 0
    if kind in ("qwen2", "qwen3"):
        window = window if settings.get("use_sliding_window") else None
        first = settings["max_window_layers"]
        if window is not None and first is None:
            raise ValueError("max_window_layers = None in config.json: expected a whole number")
    full = window is None or first > 0
    sliding = window is not None and first < layers
    kinds = {name for name, used in (("full_attention", full), ("sliding_attention", sliding)) if used}
    told = set(settings.get("layer_types") or kinds)
    if kind in ("qwen2", "qwen3"):
        kinds = told
    if kinds == told == {"full_attention"}:
        return None
    if kinds == told == {"sliding_attention"} and window is not None:
        return window
    raise ValueError(
        f"the layers use {', '.join(sorted(told))} with sliding_window = {window!r}: the course's GPT has one kind of "
        "attention in all layers; choose a model whose layers are alike"
    )


def _scaling(rope: _Published, settings: _Published) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind != "default" and kind not in _ROPE:
        raise ValueError(
            f"rope_type = {kind!r}: the course's GPT does not support this scaling of positions; expected one of "
            f"default, {', '.join(_ROPE)}"
        )
    if rope.get("partial_rotary_factor") not in (None, 1):
        raise ValueError(
            f"partial_rotary_factor = {rope['partial_rotary_factor']!r}: the course's GPT rotates all dimensions of a "
            "head; choose a model that rotates all of them"
        )
    told = {name: value for name, value in rope.items() if value is not None and name not in _ROPE_IGNORED}
    made, names = _ROPE.get(kind, (None, {}))
    if "original_max_position_embeddings" in names:
        length = settings.get("original_max_position_embeddings")
        told["original_max_position_embeddings"] = length or told.get(
            "original_max_position_embeddings", settings["max_position_embeddings"]
        )
    if kind == "yarn":
        if "factor" not in told and told["original_max_position_embeddings"]:
            told["factor"] = settings["max_position_embeddings"] / told["original_max_position_embeddings"]
        one = told.pop("mscale", None)
        all_dimensions = told.pop("mscale_all_dim", None)
        if one and all_dimensions and "factor" in told and "attention_factor" not in told:
            one, all_dimensions = (yarn_amplitude(told["factor"], weight) for weight in (one, all_dimensions))
            told["attention_factor"] = one / all_dimensions
    if unknown := sorted(told.keys() - names.keys()):
        raise ValueError(
            f"{unknown[0]} = {told[unknown[0]]!r} with rope_type = {kind!r}: the course's GPT does not support this "
            f"setting; expected only {', '.join(names) or 'rope_theta'}"
        )
    if made is None:
        return None
    if missing := [name for name in names if name not in told and name not in _ROPE_OPTIONAL]:
        raise ValueError(f"rope_type {kind!r} needs {', '.join(missing)}, missing in config.json: download it again")
    return made(**{names[name]: value for name, value in told.items()})


def _published_scaling(scaling: RopeScaling) -> dict[str, Any]:
    kind = next(kind for kind, (made, _) in _ROPE.items() if isinstance(scaling, made))
    ours = {theirs: name for name, theirs in _ROPE[kind][1].items()}
    values = {ours[field.name]: getattr(scaling, field.name) for field in fields(scaling)}
    return {"rope_type": kind, **{name: value for name, value in values.items() if value is not None}}


def _class_of(config: GPTConfig) -> tuple[str, str]:
    if config.qkv_bias and config.qk_norm:
        raise ValueError("qkv_bias and qk_norm: no published architecture has both; keep one of them")
    if config.qkv_bias:
        return "qwen2", "Qwen2ForCausalLM"
    if config.qk_norm:
        return "qwen3", "Qwen3ForCausalLM"
    if config.sliding_window is not None or config.width % config.heads:  # LlamaForCausalLM needs a multiple
        return "mistral", "MistralForCausalLM"
    return "llama", "LlamaForCausalLM"
