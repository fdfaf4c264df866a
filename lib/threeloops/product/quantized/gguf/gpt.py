"""A GPT as a GGUF file of architecture "llama", with the names, sizes and order of rows that llama.cpp expects.

Only one thing is not a matter of names. In the rotary positions of this course, as in Hugging Face's models, dimension
i of a head is rotated with i + head_dim / 2; llama.cpp's "llama" rotates 2i with 2i + 1. So the rows of each head of
queries and keys change their order: row i of ours is their row 2i, row i + head_dim / 2 of ours their row 2i + 1.
(llama.cpp's converter does the same.) The product of a query and a key is a sum over rows, so it stays what it was.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.quantized.gguf.blocks import TensorType, decode, encode, to_quantized_weight, weights_per_block
from threeloops.product.quantized.gguf.container import File, StoredTensor, Value, read_file, write_file
from threeloops.product.quantized.gguf.errors import GGUFError
from threeloops.product.quantized.linear import QuantizedLinear
from threeloops.product.quantized.model import AlreadyQuantizedError

__all__ = ["export_gguf", "load_gguf"]

_SIZES = {
    "vocabulary_size": "llama.vocab_size",
    "layers": "llama.block_count",
    "heads": "llama.attention.head_count",
    "kv_heads": "llama.attention.head_count_kv",
    "width": "llama.embedding_length",
    "mlp_width": "llama.feed_forward_length",
    "max_sequence": "llama.context_length",
    "norm_epsilon": "llama.attention.layer_norm_rms_epsilon",
    "rope_base": "llama.rope.freq_base",
}
_FILE_TYPES = {TensorType.F32: 0, TensorType.F16: 1, TensorType.Q4_0: 2, TensorType.Q8_0: 7}
_LONGEST = 2**24  # positions, of which each has a row of cosines and sines
_NAMES = {
    "attention_norm": "attn_norm",
    "attention.output": "attn_output",
    "mlp_norm": "ffn_norm",
    "mlp.gate": "ffn_gate",
    "mlp.up": "ffn_up",
    "mlp.down": "ffn_down",
}


def export_gguf(model: GPT, path: Path, type: TensorType = TensorType.F32, *, name: str = "threeloops") -> None:
    """Write `model`, whole or not at all. Norms are F32. With Q4_0 the embedding and the head are Q8_0; matrices whose
    rows are not whole blocks of 32 are F16, as llama.cpp makes them.

    The file has no tokeniser ("none"): it takes and gives tokens. Raises AlreadyQuantizedError for a model of few bits.
    """
    quantized = [where for where, module in model.named_modules() if isinstance(module, QuantizedLinear)]
    if quantized:
        raise AlreadyQuantizedError(
            f"{quantized[0]} is quantised: expected the weights that it was made of; export those, to {type.name} here"
        )
    config = model.config
    metadata: dict[str, Value] = {"general.architecture": "llama", "general.name": name}
    metadata |= {key: getattr(config, field) for field, key in _SIZES.items()}
    metadata |= {
        "llama.rope.dimension_count": config.head_dim,
        "general.file_type": _FILE_TYPES[type],
        "general.quantization_version": 2,
        "tokenizer.ggml.model": "none",
    }
    write_file(path, metadata, [_stored(part, rows, type, config.head_dim) for part, rows in _weights(model)])


def _weights(model: GPT) -> Iterator[tuple["_Part", torch.Tensor]]:
    """Every tensor of the file, its rows in our order."""
    for ours, parts in _parts(model.config).items():
        weight = model.get_parameter(ours)
        rows = [part.rows or len(weight) for part in parts]
        yield from zip(parts, weight.split(rows), strict=True)


@dataclass(frozen=True)
class _Part:
    """A tensor of the file that is all of a weight of ours, or so many `rows` of it."""

    name: str
    rows: int | None = None
    turned: bool = False  # by rotary positions


def _parts(config: GPTConfig) -> dict[str, list[_Part]]:
    """Of what each weight of ours is made. A head that is the embedding is not in the file."""
    found = {"embedding.weight": [_Part("token_embd.weight")]}
    query, key, value = config.qkv_widths
    for layer in range(config.layers):
        theirs = f"blk.{layer}"
        found[f"blocks.{layer}.attention.qkv.weight"] = [
            _Part(f"{theirs}.attn_q.weight", query, turned=True),
            _Part(f"{theirs}.attn_k.weight", key, turned=True),
            _Part(f"{theirs}.attn_v.weight", value),
        ]
        for name, named in _NAMES.items():
            found[f"blocks.{layer}.{name}.weight"] = [_Part(f"{theirs}.{named}.weight")]
    found["norm.weight"] = [_Part("output_norm.weight")]
    if not config.tied_embeddings:
        found["head.weight"] = [_Part("output.weight")]
    return found


def _interleaved(rows: int, head_dim: int) -> torch.Tensor:
    """Which row of ours stands at each row of the file: of each head 0, half, 1, half + 1, …"""
    return torch.arange(rows).view(-1, 2, head_dim // 2).transpose(1, 2).flatten()


def _stored(part: _Part, weight: torch.Tensor, type: TensorType, head_dim: int) -> StoredTensor:
    values = weight.detach().float().cpu().numpy()
    if part.turned:
        values = values[_interleaved(len(values), head_dim).numpy()]
    if values.ndim == 1:
        type = TensorType.F32
    elif type == TensorType.Q4_0 and part.name in ("token_embd.weight", "output.weight"):
        type = TensorType.Q8_0
    if values.shape[-1] % weights_per_block(type):
        type = TensorType.F16
    try:
        data = encode(values.reshape(-1, values.shape[-1]), type)
    except ValueError as error:
        raise ValueError(f"{part.name}: {error}") from None
    return StoredTensor(part.name, values.shape, type, data)


def load_gguf(path: Path, *, config: GPTConfig | None = None, keep_bits: bool = False) -> GPT:
    """The GPT of a file: its weights in float32 or, with `keep_bits`, those in Q8_0 and Q4_0 as they are, in layers of
    `QuantizedLinear`. (The embedding is a table to look into, so it is float32.)

    All of the file is checked before a model is made. Raises GGUFError if it is damaged, of another architecture, of
    other sizes than `config` where that is given, or if a tensor is missing, too many, or of another shape.
    """
    file, where = read_file(path), Path(path).name
    found = _config(file, where)
    if config is not None:
        _require_sizes(found, config, where)
        found = config
    _require_tensors(file, found, where)
    model = GPT(found)
    for ours, parts in _parts(found).items():
        stored = [file.tensors[part.name] for part in parts]
        rows = [_our_rows(part, each, found.head_dim) for part, each in zip(parts, stored, strict=True)]
        weight = model.get_parameter(ours)
        with torch.no_grad():
            decoded = [decode(data, each.type) for data, each in zip(rows, stored, strict=True)]
            weight.copy_(torch.from_numpy(np.concatenate(decoded)).view_as(weight))
        kinds = {each.type for each in stored}
        if keep_bits and len(kinds) == 1 and kinds <= {TensorType.Q4_0, TensorType.Q8_0}:
            tied = ours == "embedding.weight" and found.tied_embeddings
            if tied or ours != "embedding.weight":
                _keep(model, "head" if tied else ours.removesuffix(".weight"), np.concatenate(rows), stored[0].type)
    return model


def _our_rows(part: _Part, stored: StoredTensor, head_dim: int) -> np.ndarray:
    """The tensor's bytes, its rows in our order."""
    if not part.turned:
        return stored.data
    rows = np.empty_like(stored.data)
    rows[_interleaved(len(rows), head_dim).numpy()] = stored.data
    return rows


def _keep(model: GPT, name: str, rows: np.ndarray, type: TensorType) -> None:
    path, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(path), leaf, QuantizedLinear(to_quantized_weight(rows, type)))


def _config(file: File, where: str) -> GPTConfig:
    """Sizes, from the file's values. What llama.cpp has defaults for has them here."""
    values = dict(file.metadata)
    if values.get("general.architecture") != "llama":
        raise GGUFError(
            f"{where} has general.architecture = {values.get('general.architecture')!r}: expected 'llama', the only "
            "one that this model computes"
        )
    if (embedding := file.tensors.get("token_embd.weight")) is not None:
        values.setdefault("llama.vocab_size", embedding.shape[0])
    values.setdefault("llama.attention.head_count_kv", values.get("llama.attention.head_count", 0))
    values.setdefault("llama.rope.freq_base", 10_000.0)
    sizes: dict[str, Any] = {}
    for field, key in _SIZES.items():
        if key not in values:
            raise GGUFError(f"{where} has no {key}: expected one for the model's {field}; convert the model anew")
        value = values[key]
        sizes[field] = float(str(np.float32(value))) if isinstance(value, float) else value
    try:
        config = GPTConfig(**sizes, tied_embeddings="output.weight" not in file.tensors)
    except (ValueError, TypeError) as error:
        raise GGUFError(f"{where} is of no model: {error}") from None
    turned = values.get("llama.rope.dimension_count", config.head_dim)
    if turned != config.head_dim or config.max_sequence > _LONGEST:
        raise GGUFError(
            f"{where} rotates {turned} dimensions of {config.head_dim}, for {config.max_sequence} positions: expected "
            f"all, for at most {_LONGEST}"
        )
    return config


def _require_sizes(found: GPTConfig, config: GPTConfig, where: str) -> None:
    for field in (*_SIZES, "tied_embeddings"):
        theirs, ours = getattr(found, field), getattr(config, field)
        if not math.isclose(theirs, ours, rel_tol=1e-6):
            raise GGUFError(f"{where} has {field} = {theirs}: expected {ours}; it is of another model")


def _require_tensors(file: File, config: GPTConfig, where: str) -> None:
    """Exactly the tensors of the model, each in its shape."""
    per_layer = len(_NAMES) + 3
    count = config.layers * per_layer + (2 if config.tied_embeddings else 3)
    if len(file.tensors) != count:  # before so many are listed
        raise GGUFError(
            f"{where} has {len(file.tensors)} tensors: expected {count}, for {config.layers} layers; it is of another "
            "kind of model"
        )
    with torch.device("meta"):
        shapes = {part.name: tuple(weight.shape) for part, weight in _weights(GPT(config))}
    for name, shape in shapes.items():
        if name not in file.tensors:
            unknown = sorted(file.tensors.keys() - shapes.keys())
            raise GGUFError(f"{where} has no tensor {name}, but {unknown[0]}: it is of another kind of model")
        if file.tensors[name].shape != shape:
            raise GGUFError(f"{where}: {name} has shape {file.tensors[name].shape}: expected {shape} for its sizes")
