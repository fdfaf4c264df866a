"""The variants of architecture that the course's GPT has, each as our configuration and as transformers'.

>>> model = variant_model("biases")                  # ours, of random weights
>>> theirs = write_variant("biases", folder)         # transformers' model, saved as a folder
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.models.rope_scaling import LinearScaling, Llama3Scaling, YarnScaling

_OURS = {
    "vocabulary_size": 64, "layers": 2, "heads": 4, "kv_heads": 2, "width": 64, "mlp_width": 96, "max_sequence": 64,
    "tied_embeddings": False,
}  # fmt: skip
_THEIRS = {
    "vocab_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64,
    "intermediate_size": 96, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


def _rope(kind: str, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10_000.0, "rope_type": kind, **settings}}


@dataclass(frozen=True)
class Variant:
    """What differs from `_OURS` and from `_THEIRS`, for the architecture that transformers calls `kind`."""

    kind: str
    ours: dict[str, Any]
    theirs: dict[str, Any]


VARIANTS = {
    "llama": Variant("llama", {}, {}),
    "tied": Variant("llama", {"tied_embeddings": True}, {"tie_word_embeddings": True}),
    "all heads their own": Variant("llama", {"kv_heads": 4}, {"num_key_value_heads": 4}),
    "one key head": Variant("llama", {"kv_heads": 1}, {"num_key_value_heads": 1}),
    "odd vocabulary": Variant("llama", {"vocabulary_size": 61}, {"vocab_size": 61}),
    "odd vocabulary, tied": Variant(
        "llama", {"vocabulary_size": 61, "tied_embeddings": True}, {"vocab_size": 61, "tie_word_embeddings": True}
    ),
    "wide heads": Variant("llama", {"head_dim": 24}, {"head_dim": 24}),
    "narrow heads": Variant("qwen2", {"head_dim": 8, "qkv_bias": True}, {"head_dim": 8}),
    "linear positions": Variant("llama", {"rope_scaling": LinearScaling(4.0)}, _rope("linear", factor=4.0)),
    "llama3 positions": Variant(
        "llama",
        {"rope_scaling": Llama3Scaling(8.0, 32, 1.0, 4.0)},
        _rope(
            "llama3",
            factor=8.0,
            original_max_position_embeddings=32,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
        ),
    ),
    "yarn positions": Variant(
        "qwen2",
        {"qkv_bias": True, "rope_scaling": YarnScaling(4.0, 16)},
        _rope("yarn", factor=4.0, original_max_position_embeddings=16),
    ),
    "yarn positions, all set": Variant(
        "llama",
        {"rope_scaling": YarnScaling(2.0, 32, 8.0, 0.5, 1.3, truncate=False)},
        _rope(
            "yarn",
            factor=2.0,
            original_max_position_embeddings=32,
            beta_fast=8.0,
            beta_slow=0.5,
            attention_factor=1.3,
            truncate=False,
        ),
    ),
    "window": Variant("mistral", {"sliding_window": 7}, {"sliding_window": 7}),
    "window of two": Variant("mistral", {"sliding_window": 2}, {"sliding_window": 2}),
    "mistral without a window": Variant("mistral", {}, {"sliding_window": None}),
    "biases and window": Variant(
        "qwen2",
        {"qkv_bias": True, "sliding_window": 9},
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0},
    ),
    "norms of heads": Variant("qwen3", {"qk_norm": True, "head_dim": 16}, {"head_dim": 16}),
    "norms, wide heads, tied": Variant(
        "qwen3",
        {"qk_norm": True, "head_dim": 32, "tied_embeddings": True},
        {"head_dim": 32, "tie_word_embeddings": True},
    ),
    "norms and yarn": Variant(
        "qwen3",
        {"qk_norm": True, "head_dim": 16, "rope_scaling": YarnScaling(4.0, 16)},
        {"head_dim": 16, **_rope("yarn", factor=4.0, original_max_position_embeddings=16)},
    ),
    "norms and window": Variant(
        "qwen3",
        {"qk_norm": True, "head_dim": 16, "sliding_window": 5},
        {"head_dim": 16, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 0},
    ),
    "biases": Variant("qwen2", {"qkv_bias": True}, {}),
    "biases, tied": Variant("qwen2", {"qkv_bias": True, "tied_embeddings": True}, {"tie_word_embeddings": True}),
}
"""By name. A new variant goes here, and every test over all variants covers it."""


def variant_config(name: str, **changes: Any) -> GPTConfig:
    """Our configuration of a variant; `changes` win."""
    return GPTConfig(**{**_OURS, **VARIANTS[name].ours, **changes})


def variant_model(name: str, seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> GPT:
    """Our model of a variant, with random weights, norms and biases, all of which change its logits."""
    torch.manual_seed(seed)
    model = GPT(variant_config(name, **changes))
    _draw(model)
    return model.to(dtype).eval()


def write_variant(name: str, folder: Path, seed: int = 0, **changes: Any) -> Any:
    """The model that transformers makes of a variant, saved by `save_pretrained`."""
    variant = VARIANTS[name]
    return write_model({**_THEIRS, "model_type": variant.kind, **variant.theirs, **changes}, folder, seed)


def write_model(published: dict[str, Any], folder: Path, seed: int = 0) -> Any:
    """The model that transformers makes of a config.json, with random weights, in evaluation mode. It is saved too."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**published)).float()
    _draw(model)
    model.save_pretrained(folder)
    return model.eval()


@torch.no_grad()
def _draw(model: torch.nn.Module) -> None:
    """Larger weights than a fresh model's, so that attention has something to choose from."""
    for name, weight in model.named_parameters():
        weight.normal_(1.0 if "norm" in name else 0.0, 0.15)
