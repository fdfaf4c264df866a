"""Folders of weights as they are published: config.json and safetensors files, of Llama, Mistral, Qwen2 and Qwen3.

These models have the shape of the course's GPT; `folder_config.py` reads what each does differently.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from threeloops.models.folder_config import gpt_config, published_config
from threeloops.models.gpt import GPT

__all__ = ["load_llama_folder", "save_llama_folder"]

_WHOLE = {"model.embed_tokens": "embedding", "model.norm": "norm", "lm_head": "head"}
_LAYER = {
    "input_layernorm": "attention_norm",
    "self_attn.o_proj": "attention.output",
    "self_attn.q_norm": "attention.query_norm",
    "self_attn.k_norm": "attention.key_norm",
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
    max_sequence: int | None = None,
) -> GPT:
    """The model of a folder, in evaluation mode, in the dtype of the files unless another is named.

    It has `max_position_embeddings` positions, or `max_sequence`: fewer take less memory, and yarn or linear scaling
    may allow more.

    Raises:
        FileNotFoundError: config.json, or a file that the index names, is not there.
        ValueError: the configuration asks for what the course's GPT does not have or lacks a size, or tensors are
            missing, unknown, of another shape or cut short. The message names the first.
    """
    folder = Path(folder)
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"{folder} has no config.json: expected a folder of a model, as transformers saves it")
    config = gpt_config(_read_object(folder / "config.json"), kernels)
    if max_sequence is not None:
        config = replace(config, max_sequence=max_sequence)
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
        embedding = found["embedding.weight"]
        if not torch.equal(found.setdefault("head.weight", embedding), embedding):
            raise ValueError(
                f"{folder}: tie_word_embeddings is true, and lm_head.weight differs from model.embed_tokens.weight. "
                "Programs disagree about which of the two is the head. Set tie_word_embeddings to false in config.json "
                "to use lm_head, or remove that tensor"
            )
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
    """Write a model as the published architecture that computes the same, which transformers, vLLM and others load.

    Raises FileExistsError where there is a model already, and ValueError if no published architecture is like it.
    """
    folder, config = Path(folder), model.config
    published = published_config(config)
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
    published["torch_dtype"] = str(model.head.weight.dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(published, indent=1) + "\n")


def _read_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        found = error
    if not isinstance(found, dict):
        raise ValueError(f"{path} is not a JSON object ({found}): download it again")
    return found


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors of all files, those of the index if there is one. Tables of rotary positions are left out: old
    folders have them, and they follow from the configuration.
    """
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").exists():
        files = ["model.safetensors"]
    elif index.exists():
        files = sorted(set(_read_object(index).get("weight_map", {}).values()))
    else:
        files = sorted(path.name for path in folder.glob("*.safetensors"))
    if not files and (pickles := sorted(path.name for path in folder.glob("*.bin"))):
        raise FileNotFoundError(
            f"{folder}: {pickles[0]} and no safetensors files; a .bin file is a pickle, which can run any program when "
            "it is loaded. Load the folder with transformers and save it again: save_pretrained writes safetensors"
        )
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
                    if not key.endswith("rotary_emb.inv_freq"):
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
