"""Folders of weights as they are published: config.json and safetensors files, of Llama, Mistral and Qwen2.

These models have the shape of the course's GPT; Qwen2 adds a bias to queries, keys and values. What a configuration
asks for beyond that (scaled rotary positions, sliding windows, norms of queries and keys, other activations) is refused
by name, because a model that ignores it gives wrong answers without an error.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig

__all__ = ["load_llama_folder", "save_llama_folder"]

_WHOLE = {"model.embed_tokens": "embedding", "model.norm": "norm", "lm_head": "head"}
_LAYER = {
    "input_layernorm": "attention_norm",
    "self_attn.o_proj": "attention.output",
    "post_attention_layernorm": "mlp_norm",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.up",
    "mlp.down_proj": "mlp.down",
}
_QKV = tuple(f"self_attn.{part}_proj" for part in "qkv")
"""Three matrices there, one below the other here. Both rotate dimension i with i + head_dim / 2, so no row moves."""


def load_llama_folder(
    folder: Path | str,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    kernels: Literal["eager", "fused"] = "eager",
) -> GPT:
    """The model of a folder, in evaluation mode, in the dtype of the files unless another is named.

    Raises:
        FileNotFoundError: config.json, or a file that the index names, is not there.
        ValueError: the configuration asks for what the course's GPT does not have, or tensors are missing, unknown, of
            another shape or cut short. The message names the first.
    """
    folder = Path(folder)
    config = _config(json.loads((folder / "config.json").read_text()), kernels)
    with torch.device("meta"):
        model = GPT(config)
    wanted = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    found: dict[str, Tensor] = {}
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in _tensors(folder):
        ours, part = _translate(name)
        if part is None:
            found[ours] = tensor
        else:
            parts.setdefault(ours, {})[part] = tensor
    for ours, three in parts.items():
        if missing := set(_QKV) - three.keys():
            raise ValueError(f"{folder}: {ours} lacks {sorted(missing)[0]}: expected {', '.join(_QKV)} of each layer")
        found[ours] = torch.cat([three[part] for part in _QKV])
    if config.tied_embeddings and "embedding.weight" in found:
        found["head.weight"] = found["embedding.weight"]
    for name in [*wanted, *found]:
        shapes = tuple(found[name].shape) if name in found else None, wanted.get(name)
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"{folder}: {name} has shape {shapes[0] or 'none: it is missing'}; expected "
                f"{shapes[1] or 'no such tensor'} by config.json; are the files of one model?"
            )
    dtype = dtype or found["embedding.weight"].dtype
    model.to_empty(device=device)
    if config.tied_embeddings:
        model.head.weight = model.embedding.weight  # `to_empty` made two of them
    model.to(dtype).load_state_dict(found)
    return model.eval()


def save_llama_folder(model: GPT, folder: Path | str) -> None:
    """Write a model as a Llama (Qwen2 with biases), which transformers, vLLM and others load.

    Raises FileExistsError where there is a model already.
    """
    folder, config = Path(folder), model.config
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "config.json").exists():
        raise FileExistsError(f"{folder} has a config.json: save to another folder, or remove this model first")
    theirs = {ours: name for name, ours in _WHOLE.items()}
    layer_theirs = {ours: name for name, ours in _LAYER.items()}
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        module, kind = name.rsplit(".", 1)
        if module in theirs:
            if not (module == "head" and config.tied_embeddings):
                tensors[f"{theirs[module]}.{kind}"] = tensor.contiguous()
            continue
        _, layer, module = module.split(".", 2)
        if module == "attention.qkv":
            for part, piece in zip(_QKV, tensor.split(config.qkv_widths), strict=True):
                tensors[f"model.layers.{layer}.{part}.{kind}"] = piece.contiguous()
        else:
            tensors[f"model.layers.{layer}.{layer_theirs[module]}.{kind}"] = tensor.contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    kind, architecture = ("qwen2", "Qwen2ForCausalLM") if config.qkv_bias else ("llama", "LlamaForCausalLM")
    described = {
        "model_type": kind,
        "architectures": [architecture],
        "vocab_size": config.vocabulary_size,
        "hidden_size": config.width,
        "intermediate_size": config.mlp_width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "max_position_embeddings": config.max_sequence,
        "rms_norm_eps": config.norm_epsilon,
        "rope_theta": config.rope_base,
        "tie_word_embeddings": config.tied_embeddings,
        "hidden_act": "silu",
        "torch_dtype": str(model.head.weight.dtype).removeprefix("torch."),
    }
    (folder / "config.json").write_text(json.dumps(described, indent=1) + "\n")


def _config(described: Mapping[str, Any], kernels: Literal["eager", "fused"]) -> GPTConfig:
    kind = described.get("model_type")
    if kind not in ("llama", "mistral", "qwen2"):
        raise ValueError(f"model_type = {kind!r}: expected 'llama', 'mistral' or 'qwen2'")
    rope = described.get("rope_parameters") or described.get("rope_scaling") or {}
    width, heads = described["hidden_size"], described["num_attention_heads"]
    beyond = {
        "hidden_act": described.get("hidden_act", "silu") != "silu",
        "rope_type": (rope.get("rope_type") or rope.get("type") or "default") != "default",
        "sliding_window": bool(described.get("sliding_window"))
        and described.get("use_sliding_window", kind == "mistral"),
        "attention_bias": bool(described.get("attention_bias")) and kind != "qwen2",
        "mlp_bias": bool(described.get("mlp_bias")),
        "head_dim": (described.get("head_dim") or width // heads) != width // heads,
    }
    for name, is_beyond in beyond.items():
        if is_beyond:
            value = described.get(name, rope.get(name, rope.get("type")))
            raise ValueError(f"{name} = {value!r}: the course's GPT does not have this; choose a model without it")
    return GPTConfig(
        vocabulary_size=described["vocab_size"],
        layers=described["num_hidden_layers"],
        heads=heads,
        kv_heads=described.get("num_key_value_heads") or heads,
        width=width,
        mlp_width=described["intermediate_size"],
        max_sequence=described["max_position_embeddings"],
        tied_embeddings=described.get("tie_word_embeddings", False),
        norm_epsilon=described.get("rms_norm_eps", 1e-6),
        rope_base=float(rope.get("rope_theta") or described.get("rope_theta", 10_000.0)),
        qkv_bias=kind == "qwen2",
        kernels=kernels,
    )


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of all files, those of the index if there is one."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        files = sorted(path.name for path in folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(
            f"{folder}: no safetensors files; expected model.safetensors, or an index and its files"
        )
    for name in files:
        if Path(name).name != name or not (folder / name).exists():
            raise FileNotFoundError(
                f"{folder}: {name} is named by the index and is not in the folder; download it again"
            )
        try:
            with safe_open(folder / name, "pt") as file:
                for key in file.keys():  # noqa: SIM118  not a dict
                    yield key, file.get_tensor(key)
        except SafetensorError as error:
            raise ValueError(f"{folder / name} is no whole safetensors file ({error}): download it again") from error


def _translate(name: str) -> tuple[str, str | None]:
    """Our name of a tensor, and which of q, k and v it is."""
    module, _, kind = name.rpartition(".")
    if module in _WHOLE:
        return f"{_WHOLE[module]}.{kind}", None
    if module.startswith("model.layers."):
        layer, _, inner = module.removeprefix("model.layers.").partition(".")
        if inner in _QKV:
            return f"blocks.{layer}.attention.qkv.{kind}", inner
        if inner in _LAYER:
            return f"blocks.{layer}.{_LAYER[inner]}.{kind}", None
    return name, None
