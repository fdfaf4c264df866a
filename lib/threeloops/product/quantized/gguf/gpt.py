"""Export of a GPT to a GGUF file, and loading of such a file, for llama.cpp's "llama", "qwen2" and "qwen3".

The tensors have llama.cpp's names. In "llama", the rows of queries and keys also have another order. The reason is
rotary positions: this course, like Hugging Face's models, rotates dimension i of a head together with i + head_dim / 2,
but llama.cpp's "llama" rotates 2i together with 2i + 1. So in each head, our row i is row 2i of the file, and our row
i + head_dim / 2 is row 2i + 1. llama.cpp's converter reorders the rows in the same way. The product of a query and a
key is a sum over rows, so the order does not change it. "qwen2" and "qwen3" rotate as this course does.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.models.llama_folder import require_whole
from threeloops.models.rope_scaling import Llama3Scaling
from threeloops.product.quantized.gguf.blocks import TensorType, decode, encode, to_quantized_weight, weights_per_block
from threeloops.product.quantized.gguf.container import File, StoredTensor, read_file, write_file
from threeloops.product.quantized.gguf.errors import GGUFError
from threeloops.product.quantized.gguf.metadata import (
    ROPE_FREQUENCIES,
    architecture,
    frequency_factors,
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
"""Architectures that rotate neighbouring dimensions together."""
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
    """Export `model` to a GGUF file at `path`. If the export fails, `path` stays as it was.

    `type` is the type of the matrices. As in llama.cpp there are exceptions. Norms and biases are F32. With Q4_0, the
    embedding and the head are Q8_0. A matrix whose rows are not whole blocks of 32 is F16.

    Without a `vocabulary`, each token of a model with 256 tokens is a byte. A model with another number of tokens gets
    tokens that are written as their numbers, such as <17>, so llama.cpp runs it on tokens but not on text. In both
    cases the file says that token 0 ends a text.

    Raises:
        AlreadyQuantizedError: the model is already quantised.
        ValueError: a GGUF file cannot hold the model. The reason may be a tensor that its configuration lacks, a
            feature that llama.cpp does not compute, or a number that `type` cannot hold. The message names it.
    """
    quantized = [where for where, module in model.named_modules() if isinstance(module, QuantizedLinear)]
    if quantized:
        raise AlreadyQuantizedError(
            f"{quantized[0]} is quantised: expected a model in full precision; export the model from before its "
            f"quantisation, with type = {type.name}"
        )
    require_whole(model)
    config = model.config
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
        factors = frequency_factors(config, config.rope_scaling).astype(np.float32)
        data = encode(factors[None], TensorType.F32)
        tensors.append(StoredTensor(ROPE_FREQUENCIES, factors.shape, TensorType.F32, data))
    write_file(path, metadata, tensors)


def _weights(model: GPT, turns: bool) -> Iterator[tuple["_Part", torch.Tensor]]:
    """Yield every tensor of the file, with its rows in our order."""
    for ours, parts in _parts(model.config, turns).items():
        weight = model.get_parameter(ours)
        rows = [part.rows or len(weight) for part in parts]
        yield from zip(parts, weight.split(rows), strict=True)


@dataclass(frozen=True)
class _Part:
    """A tensor of the file that holds one of our weights, or `rows` rows of it."""

    name: str
    rows: int | None = None
    turned: bool = False  # rotary positions rotate it, and its rows have another order in the file


def _parts(config: GPTConfig, turns: bool) -> dict[str, list[_Part]]:
    """List the tensors of the file for each of our weights. A tied head has none, because it is the embedding."""
    parts = {"embedding.weight": [_Part("token_embd.weight")]}
    for layer in range(config.layers):
        parts |= _parts_of_layer(config, layer, turns)
    parts["norm.weight"] = [_Part("output_norm.weight")]
    if not config.tied_embeddings:
        parts["head.weight"] = [_Part("output.weight")]
    return parts


def _parts_of_layer(config: GPTConfig, layer: int, turns: bool) -> dict[str, list[_Part]]:
    ours = f"blocks.{layer}"
    theirs = f"blk.{layer}"
    query, key, value = config.qkv_widths
    parts = {f"{ours}.{name}.weight": [_Part(f"{theirs}.{named}.weight")] for name, named in _NAMES.items()}
    if config.qk_norm:
        parts |= {f"{ours}.{name}.weight": [_Part(f"{theirs}.{named}.weight")] for name, named in _HEAD_NORMS.items()}
    for kind in ("weight", "bias") if config.qkv_bias else ("weight",):
        parts[f"{ours}.attention.qkv.{kind}"] = [
            _Part(f"{theirs}.attn_q.{kind}", query, turns),
            _Part(f"{theirs}.attn_k.{kind}", key, turns),
            _Part(f"{theirs}.attn_v.{kind}", value),
        ]
    return parts


def _interleaved(rows: int, head_dim: int) -> torch.Tensor:
    """Return the number of our row for each row of the file: 0, half, 1, half + 1, … in each head."""
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
    """Load the GPT of a GGUF file.

    All weights are converted to float32. With `keep_bits`, matrices in Q8_0 and Q4_0 keep their codes, in layers of
    `QuantizedLinear`. The embedding is a lookup table, so it is float32 in any case.

    The whole file is checked before the model is built.

    Raises:
        GGUFError: the file is damaged or holds another architecture, or its configuration differs from `config`. Or a
            tensor is missing, unexpected or of the wrong shape, or a key asks for an unsupported computation.
    """
    file = read_file(path)
    where = Path(path).name
    file_config = read_config(file, where)
    if config is None:
        config = file_config
    else:
        require_same(file_config, config, where)
    turns = file.metadata["general.architecture"] in _TURNING
    _require_tensors(file, config, turns, where)
    model = GPT(config)
    quantized: list[tuple[str, np.ndarray, TensorType]] = []
    for ours, parts in _parts(config, turns).items():
        stored = [file.tensors[part.name] for part in parts]
        weight = model.get_parameter(ours)
        with torch.no_grad():
            values = [decode(tensor.data, tensor.type).reshape(tensor.shape) for tensor in stored]
            ordered = [_our_rows(part, value, config.head_dim) for part, value in zip(parts, values, strict=True)]
            weight.copy_(torch.from_numpy(np.concatenate(ordered)))
        kinds = {tensor.type for tensor in stored}
        if keep_bits and len(kinds) == 1 and kinds <= {TensorType.Q4_0, TensorType.Q8_0} and weight.ndim == 2:
            tied = ours == "embedding.weight" and config.tied_embeddings
            if tied or ours != "embedding.weight":
                rows = [
                    _our_rows(part, tensor.data, config.head_dim) for part, tensor in zip(parts, stored, strict=True)
                ]
                name = "head" if tied else ours.removesuffix(".weight")
                quantized.append((name, np.concatenate(rows), stored[0].type))
    for name, packed, type in quantized:
        parent, _, leaf = name.rpartition(".")
        layer = QuantizedLinear(to_quantized_weight(packed, type), model.get_submodule(name).bias)
        setattr(model.get_submodule(parent), leaf, layer)
    return model


def _our_rows(part: _Part, rows: np.ndarray, head_dim: int) -> np.ndarray:
    """Reorder the rows of a tensor of the file, which hold numbers or bytes, to our order."""
    if not part.turned:
        return rows
    ordered = np.empty_like(rows)
    ordered[_interleaved(len(rows), head_dim).numpy()] = rows
    return ordered


def _require_tensors(file: File, config: GPTConfig, turns: bool, where: str) -> None:
    """Raise GGUFError unless the file has exactly the tensors of the model, each with its shape.

    The tensor of Llama 3.1's scaling is left out, because `read_config` has checked it.
    """
    tensors = {name: tensor for name, tensor in file.tensors.items() if name != ROPE_FREQUENCIES}
    per_layer = sum(map(len, _parts_of_layer(config, 0, turns).values()))
    count = config.layers * per_layer + (2 if config.tied_embeddings else 3)
    if len(tensors) != count:  # checked first, because a damaged count of layers would make a huge list below
        raise GGUFError(
            f"{where} has {len(tensors)} tensors: expected {count} for {config.layers} layers; the file holds another "
            "kind of model"
        )
    with torch.device("meta"):
        shapes = {part.name: tuple(weight.shape) for part, weight in _weights(GPT(config), turns)}
    for name, shape in shapes.items():
        if name not in tensors:
            unknown = sorted(tensors.keys() - shapes.keys())
            raise GGUFError(f"{where} lacks the tensor {name} and has {unknown[0]}: it holds another kind of model")
        if tensors[name].shape != shape:
            raise GGUFError(f"{where}: {name} has shape {tensors[name].shape}: expected {shape} according to its sizes")
