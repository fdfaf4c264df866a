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

_OURS = {
    "vocabulary_size": 64, "layers": 2, "heads": 4, "kv_heads": 2, "width": 64, "mlp_width": 96, "max_sequence": 64,
    "tied_embeddings": False,
}  # fmt: skip
_THEIRS = {
    "vocab_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64,
    "intermediate_size": 96, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """What differs from `_OURS` and from `_THEIRS`, for the class of transformers whose name begins with `kind`."""

    kind: str
    ours: dict[str, Any]
    theirs: dict[str, Any]


VARIANTS = {
    "llama": Variant("Llama", {}, {}),
    "tied": Variant("Llama", {"tied_embeddings": True}, {"tie_word_embeddings": True}),
    "all heads their own": Variant("Llama", {"kv_heads": 4}, {"num_key_value_heads": 4}),
    "one key head": Variant("Llama", {"kv_heads": 1}, {"num_key_value_heads": 1}),
    "odd vocabulary": Variant("Llama", {"vocabulary_size": 61}, {"vocab_size": 61}),
    "odd vocabulary, tied": Variant(
        "Llama", {"vocabulary_size": 61, "tied_embeddings": True}, {"vocab_size": 61, "tie_word_embeddings": True}
    ),
    "biases": Variant("Qwen2", {"qkv_bias": True}, {}),
    "biases, tied": Variant("Qwen2", {"qkv_bias": True, "tied_embeddings": True}, {"tie_word_embeddings": True}),
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


def variant_of_transformers(name: str, seed: int = 0, **changes: Any) -> Any:
    """The model that transformers makes of a variant, with random weights, in evaluation mode."""
    import transformers

    kind = VARIANTS[name].kind
    config = getattr(transformers, f"{kind}Config")(**{**_THEIRS, **VARIANTS[name].theirs, **changes})
    torch.manual_seed(seed)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    _draw(model)
    return model.eval()


def write_variant(name: str, folder: Path, seed: int = 0, **changes: Any) -> Any:
    """Save that model with `save_pretrained`, and return it."""
    model = variant_of_transformers(name, seed, **changes)
    model.save_pretrained(folder)
    return model


@torch.no_grad()
def _draw(model: torch.nn.Module) -> None:
    """Larger weights than a fresh model's, so that attention has something to choose from."""
    for name, weight in model.named_parameters():
        weight.normal_(1.0 if "norm" in name else 0.0, 0.15)
