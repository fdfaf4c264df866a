"""Loading and saving of published models: folders with config.json and safetensors files.

The course's GPT computes the architectures Llama, Mistral, Qwen2 and Qwen3. `folder_config.py` reads their differences
from config.json.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from threeloops.models.folder_config import gpt_config, published_config
from threeloops.models.gpt import GPT

__all__ = ["load_llama_folder", "require_whole", "save_llama_folder"]

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
"""The tensors that our model stacks into one matrix, in this order.

Rows keep their order within each tensor, because both models rotate dimension i together with i + head_dim / 2.
"""


def load_llama_folder(
    folder: Path | str,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    kernels: Literal["eager", "fused"] = "eager",
    max_sequence: int | None = None,
) -> GPT:
    """Load the model of a folder, in evaluation mode.

    Args:
        dtype: the dtype of all weights; by default that of the embedding in the files.
        max_sequence: the number of positions; by default `max_position_embeddings`. Fewer take less memory. Yarn or
            linear scaling may allow more.

    Raises:
        FileNotFoundError: the folder has no config.json, no safetensors file, or lacks a file that its index names.
        ValueError: the configuration lacks a size or needs a feature that the course's GPT lacks. Or a tensor is
            missing, unknown, of the wrong shape, or cut short. The message names the first such key or tensor.
    """
    folder = Path(folder)
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"{folder} has no config.json: expected a model folder as transformers saves it")
    config = gpt_config(_read_object(folder / "config.json"), kernels)
    if max_sequence is not None:
        config = replace(config, max_sequence=max_sequence)
    with torch.device("meta"):
        model = GPT(config)
    weights: dict[str, Tensor] = {}
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in _tensors(folder):
        ours, part = _translate(name)
        if part is None:
            weights[ours] = tensor
        else:
            parts.setdefault(ours, {})[part] = tensor
    for ours, three in parts.items():
        if missing := set(_QKV) - three.keys():
            raise ValueError(f"{folder}: {ours} lacks {sorted(missing)[0]}: expected {', '.join(_QKV)} in each layer")
        weights[ours] = torch.cat([three[part] for part in _QKV])
    if config.tied_embeddings and "embedding.weight" in weights:
        embedding = weights["embedding.weight"]
        head = weights.setdefault("head.weight", embedding)
        if head is not embedding and not torch.equal(head, embedding):
            raise ValueError(
                f"{folder}: tie_word_embeddings is true, but lm_head.weight differs from model.embed_tokens.weight. "
                "Programs disagree about which of the two is the head. Set tie_word_embeddings to false in config.json "
                "to use lm_head.weight, or remove lm_head.weight to use the embedding"
            )
    if (difference := _first_difference(weights, model)) is not None:
        raise ValueError(
            f"{folder}: {difference} according to config.json; check that config.json and the safetensors files belong "
            "to the same model"
        )
    dtype = dtype or weights["embedding.weight"].dtype
    model.to_empty(device=device)
    if config.tied_embeddings:
        model.head.weight = model.embedding.weight  # `to_empty` has replaced the shared matrix by two
    model.to(dtype).load_state_dict(weights)
    return model.eval()


def save_llama_folder(model: GPT, folder: Path | str) -> None:
    """Save a model as a folder that transformers, vLLM and other programs load.

    The folder names the published architecture that computes the same.

    Raises:
        FileExistsError: the folder has a config.json already.
        ValueError: no published architecture computes the same, or the tensors are not those of the model's
            configuration, for example because the model is quantised.
    """
    require_whole(model)
    folder = Path(folder)
    config = model.config
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


def require_whole(model: GPT) -> None:
    """Raise ValueError unless the model has exactly the tensors of its configuration, so that a file can hold it.

    A model that is quantised, is split over ranks or has a changed layer does not.
    """
    config = model.config
    with torch.device("meta"):
        whole = GPT(config)
    if (difference := _first_difference(model.state_dict(), whole)) is not None:
        raise ValueError(
            f"{difference} according to the model's configuration; pass the whole model in full precision, with "
            "unchanged layers"
        )
    if config.tied_embeddings and not torch.equal(model.head.weight, model.embedding.weight):
        raise ValueError(
            "head.weight differs from embedding.weight in a model with tied_embeddings: expected one matrix; set "
            "tied_embeddings=False in its configuration"
        )


def _first_difference(tensors: Mapping[str, Tensor], model: GPT) -> str | None:
    """Name the first tensor whose shape is not that of `model`, and both shapes. Return None if all are the same."""
    expected = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    actual = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name in [*expected, *actual]:
        if actual.get(name) != expected.get(name):
            return (
                f"{name} {f'has shape {actual[name]}' if name in actual else 'is missing'}: expected "
                f"{f'shape {expected[name]}' if name in expected else 'no such tensor'}"
            )
    return None


def _read_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        content = error
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object ({content}): download it again")
    return content


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and tensors of a folder.

    They come from model.safetensors if it exists, otherwise from the files that the index names, otherwise from all
    safetensors files. Tables of rotary positions in old folders are skipped, because the configuration determines them.
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
            f"{folder} has {pickles[0]} and no safetensors files: a .bin file is a pickle, which can run any program "
            "when it is loaded. Load the folder with transformers and save it again: save_pretrained writes safetensors"
        )
    if not files:
        raise FileNotFoundError(
            f"{folder} has no safetensors files: expected model.safetensors, or an index and its files"
        )
    for name in files:
        if Path(name).name != name or not (folder / name).exists():
            raise FileNotFoundError(f"{folder}: the index names {name}, which is not in the folder; download it again")
        try:
            with safe_open(folder / name, "pt") as file:
                for key in file.keys():  # noqa: SIM118  not a dict
                    if not key.endswith("rotary_emb.inv_freq"):
                        yield key, file.get_tensor(key)
        except SafetensorError as error:
            raise ValueError(f"{folder / name} is not a whole safetensors file ({error}): download it again") from error


def _translate(name: str) -> tuple[str, str | None]:
    """Translate a published tensor name to ours. The second value says which part of q, k and v it is, if any."""
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
