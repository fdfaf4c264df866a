"""A GPT as a GGUF file of llama.cpp's "llama", "qwen2" or "qwen3", with its names, its sizes and its order of rows.

Only one thing is not a matter of names. In the rotary positions of this course, as in Hugging Face's models, dimension
i of a head is rotated with i + head_dim / 2; llama.cpp's "llama" rotates 2i with 2i + 1. So in such a file the rows of
each head of queries and keys change their order: row i of ours is their row 2i, row i + head_dim / 2 of ours their row
2i + 1. (llama.cpp's converter does the same.) The product of a query and a key is a sum over rows, so it stays what it
was. The other two architectures rotate as we do.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.models.rope_scaling import Llama3Scaling
from threeloops.product.quantized.gguf.blocks import TensorType, decode, encode, to_quantized_weight, weights_per_block
from threeloops.product.quantized.gguf.container import File, StoredTensor, read_file, write_file
from threeloops.product.quantized.gguf.errors import GGUFError
from threeloops.product.quantized.gguf.metadata import (
    ROPE_FREQUENCIES,
    architecture,
    metadata_of,
    read_config,
    require_same,
)
from threeloops.product.quantized.gguf.vocabulary import Vocabulary, byte_vocabulary, numbered_vocabulary
from threeloops.product.quantized.linear import QuantizedLinear
from threeloops.product.quantized.model import AlreadyQuantizedError

__all__ = ["export_gguf", "load_gguf"]

_FILE_TYPES = {TensorType.F32: 0, TensorType.F16: 1, TensorType.Q4_0: 2, TensorType.Q8_0: 7}
_TURNING = ("llama",)
"""Architectures that rotate neighbours."""
_NAMES = {
    "attention_norm": "attn_norm",
    "attention.output": "attn_output",
    "mlp_norm": "ffn_norm",
    "mlp.gate": "ffn_gate",
    "mlp.up": "ffn_up",
    "mlp.down": "ffn_down",
}
_HEAD_NORMS = {"attention.query_norm": "attn_q_norm", "attention.key_norm": "attn_k_norm"}


def export_gguf(
    model: GPT,
    path: Path,
    type: TensorType = TensorType.F32,
    *,
    name: str = "threeloops",
    vocabulary: Vocabulary | None = None,
) -> None:
    """Write `model`, whole or not at all. Norms and biases are F32. With Q4_0 the embedding and the head are Q8_0;
    matrices whose rows are not whole blocks of 32 are F16, as llama.cpp makes them.

    Without a `vocabulary`, a token of a model of 256 is a byte. A model of another size gets tokens that are written as
    their numbers, <17>, so it runs in llama.cpp on tokens, but not on text.

    Raises AlreadyQuantizedError for a model of few bits, and ValueError naming what a GGUF file cannot hold: a tensor
    that the configuration does not have, a kind of attention that llama.cpp does not compute, a number beyond `type`.
    """
    quantized = [where for where, module in model.named_modules() if isinstance(module, QuantizedLinear)]
    if quantized:
        raise AlreadyQuantizedError(
            f"{quantized[0]} is quantised: expected the weights that it was made of; export those, to {type.name} here"
        )
    config = model.config
    _require_whole(model)
    if vocabulary is None:
        vocabulary = byte_vocabulary() if config.vocabulary_size == 256 else numbered_vocabulary(config.vocabulary_size)
    metadata = metadata_of(config) | {
        "general.name": name,
        "general.file_type": _FILE_TYPES[type],
        "general.quantization_version": 2,
    }
    metadata |= vocabulary.metadata(config.vocabulary_size)
    turns = architecture(config) in _TURNING
    tensors = [_stored(part, rows, type, config.head_dim) for part, rows in _weights(model, turns)]
    if isinstance(config.rope_scaling, Llama3Scaling):
        tensors.append(_frequency_factors(config, config.rope_scaling))
    write_file(path, metadata, tensors)


def _require_whole(model: GPT) -> None:
    """The model has the tensors of its configuration, and no others: not those of one rank, or of a changed layer."""
    with torch.device("meta"):
        expected = {name: tuple(tensor.shape) for name, tensor in GPT(model.config).state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name in {**found, **expected}:
        if found.get(name) != expected.get(name):
            raise ValueError(
                f"{name} has shape {found.get(name, 'none: it is missing')}: expected "
                f"{expected.get(name, 'no such tensor')} by the model's configuration; a GGUF file holds a whole model"
            )
    if model.config.tied_embeddings and not torch.equal(model.head.weight, model.embedding.weight):
        raise ValueError(
            "head.weight differs from embedding.weight in a model with tied_embeddings: expected one matrix; set "
            "tied_embeddings=False in its configuration"
        )


def _frequency_factors(config: GPTConfig, scaling: Llama3Scaling) -> StoredTensor:
    plain = [config.rope_base ** (-2 * pair / config.head_dim) for pair in range(config.head_dim // 2)]
    factors = np.divide(plain, scaling.frequencies(plain, config.rope_base)).astype(np.float32)
    return StoredTensor(ROPE_FREQUENCIES, factors.shape, TensorType.F32, encode(factors[None], TensorType.F32))


def _weights(model: GPT, turns: bool) -> Iterator[tuple["_Part", torch.Tensor]]:
    """Every tensor of the file, its rows in our order."""
    for ours, parts in _parts(model.config, turns).items():
        weight = model.get_parameter(ours)
        rows = [part.rows or len(weight) for part in parts]
        yield from zip(parts, weight.split(rows), strict=True)


@dataclass(frozen=True)
class _Part:
    """A tensor of the file that is all of a weight of ours, or so many `rows` of it."""

    name: str
    rows: int | None = None
    turned: bool = False  # by rotary positions, so that its rows have another order in the file


def _parts(config: GPTConfig, turns: bool) -> dict[str, list[_Part]]:
    """Of what each weight of ours is made. A head that is the embedding is not in the file."""
    found = {"embedding.weight": [_Part("token_embd.weight")]}
    for layer in range(config.layers):
        found |= _parts_of_layer(config, layer, turns)
    found["norm.weight"] = [_Part("output_norm.weight")]
    if not config.tied_embeddings:
        found["head.weight"] = [_Part("output.weight")]
    return found


def _parts_of_layer(config: GPTConfig, layer: int, turns: bool) -> dict[str, list[_Part]]:
    ours, theirs, (query, key, value) = f"blocks.{layer}", f"blk.{layer}", config.qkv_widths
    found = {f"{ours}.{name}.weight": [_Part(f"{theirs}.{named}.weight")] for name, named in _NAMES.items()}
    if config.qk_norm:
        found |= {f"{ours}.{name}.weight": [_Part(f"{theirs}.{named}.weight")] for name, named in _HEAD_NORMS.items()}
    for kind in ("weight", "bias") if config.qkv_bias else ("weight",):
        found[f"{ours}.attention.qkv.{kind}"] = [
            _Part(f"{theirs}.attn_q.{kind}", query, turns),
            _Part(f"{theirs}.attn_k.{kind}", key, turns),
            _Part(f"{theirs}.attn_v.{kind}", value),
        ]
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
    another configuration than `config` where that is given, or if a tensor is missing, too many, or of another shape;
    and for each key that changes what is computed, and that this model does not have.
    """
    file, where = read_file(path), Path(path).name
    found = read_config(file, where)
    if config is not None:
        require_same(found, config, where)
        found = config
    turns = file.metadata["general.architecture"] in _TURNING
    _require_tensors(file, found, turns, where)
    model = GPT(found)
    kept: list[tuple[str, np.ndarray, TensorType]] = []
    for ours, parts in _parts(found, turns).items():
        stored = [file.tensors[part.name] for part in parts]
        weight = model.get_parameter(ours)
        with torch.no_grad():
            values = [decode(each.data, each.type).reshape(each.shape) for each in stored]
            ordered = [_our_rows(part, each, found.head_dim) for part, each in zip(parts, values, strict=True)]
            weight.copy_(torch.from_numpy(np.concatenate(ordered)))
        kinds = {each.type for each in stored}
        if keep_bits and len(kinds) == 1 and kinds <= {TensorType.Q4_0, TensorType.Q8_0} and weight.ndim == 2:
            tied = ours == "embedding.weight" and found.tied_embeddings
            if tied or ours != "embedding.weight":
                rows = [_our_rows(part, each.data, found.head_dim) for part, each in zip(parts, stored, strict=True)]
                name = "head" if tied else ours.removesuffix(".weight")
                kept.append((name, np.concatenate(rows), stored[0].type))
    for name, packed, type in kept:
        parent, _, leaf = name.rpartition(".")
        layer = QuantizedLinear(to_quantized_weight(packed, type), model.get_submodule(name).bias)
        setattr(model.get_submodule(parent), leaf, layer)
    return model


def _our_rows(part: _Part, rows: np.ndarray, head_dim: int) -> np.ndarray:
    """The tensor's rows, of numbers or of bytes, in our order."""
    if not part.turned:
        return rows
    ordered = np.empty_like(rows)
    ordered[_interleaved(len(rows), head_dim).numpy()] = rows
    return ordered


def _require_tensors(file: File, config: GPTConfig, turns: bool, where: str) -> None:
    """Exactly the tensors of the model, each in its shape. Those of the scaling of positions have been read already."""
    tensors = {name: tensor for name, tensor in file.tensors.items() if name != ROPE_FREQUENCIES}
    per_layer = sum(map(len, _parts_of_layer(config, 0, turns).values()))
    count = config.layers * per_layer + (2 if config.tied_embeddings else 3)
    if len(tensors) != count:  # before so many are listed
        raise GGUFError(
            f"{where} has {len(tensors)} tensors: expected {count}, for {config.layers} layers; it is of another "
            "kind of model"
        )
    with torch.device("meta"):
        shapes = {part.name: tuple(weight.shape) for part, weight in _weights(GPT(config), turns)}
    for name, shape in shapes.items():
        if name not in tensors:
            unknown = sorted(tensors.keys() - shapes.keys())
            raise GGUFError(f"{where} has no tensor {name}, but {unknown[0]}: it is of another kind of model")
        if tensors[name].shape != shape:
            raise GGUFError(f"{where}: {name} has shape {tensors[name].shape}: expected {shape} for its sizes")
