"""A GPT as a GGUF file: computed from the file as llama.cpp would, and read back."""

import math
import re
import struct

import gguf
import numpy as np
import pytest
import torch
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.product.quantized import AlreadyQuantizedError, QuantizedLinear, quantize
from threeloops.product.quantized.gguf import (
    GGUFError,
    StoredTensor,
    TensorType,
    decode,
    encode,
    export_gguf,
    load_gguf,
    read_file,
    write_file,
)

TYPES = tuple(TensorType)


def model_of(seed=0, **changes):
    torch.manual_seed(seed)
    changes = {"vocabulary_size": 40, "max_sequence": 32, "rope_base": 500.0, "norm_epsilon": 3e-6, **changes}
    model = GPT(GPTConfig.tiny(**changes)).requires_grad_(False)
    for weight in model.parameters():
        weight += 0.1 * torch.randn(weight.shape)
    return model


def read_tokens(model):
    return torch.randint(model.config.vocabulary_size, (2, 20), generator=torch.Generator().manual_seed(1))


def as_llama_cpp_does(path, tokens):
    """Logits in float64 from what the `gguf` package reads: pairs 2i and 2i + 1 are rotated (LLAMA_ROPE_TYPE_NORM)."""
    reader = gguf.GGUFReader(path)
    value = {name: field.contents() for name, field in reader.fields.items()}
    weights = {
        tensor.name: torch.from_numpy(np.array(gguf.dequantize(tensor.data, tensor.tensor_type))).double()
        for tensor in reader.tensors
    }
    heads, kv_heads = value["llama.attention.head_count"], value["llama.attention.head_count_kv"]
    width, epsilon = value["llama.embedding_length"], value["llama.attention.layer_norm_rms_epsilon"]
    head_dim = value["llama.rope.dimension_count"]
    assert head_dim == width // heads

    def norm(x, name):
        return x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * weights[name].flatten()

    def split(x, count):
        return x.unflatten(-1, (count, head_dim)).transpose(-2, -3)

    def rotate(x):
        places = torch.arange(x.shape[-2], dtype=torch.float64)
        speed = value["llama.rope.freq_base"] ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
        turn = torch.polar(torch.ones(()).double(), torch.outer(places, speed))
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * turn).flatten(-2)

    x = weights["token_embd.weight"][tokens]
    for layer in range(value["llama.block_count"]):
        part = f"blk.{layer}."
        normed = norm(x, part + "attn_norm.weight")
        q, k, v = (
            split(normed @ weights[f"{part}attn_{name}.weight"].T, count)
            for name, count in (("q", heads), ("k", kv_heads), ("v", kv_heads))
        )
        k, v = (each.repeat_interleave(heads // kv_heads, -3) for each in (rotate(k), v))
        scores = rotate(q) @ k.mT / math.sqrt(head_dim)
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        attended = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
        x = x + attended.transpose(-2, -3).flatten(-2) @ weights[part + "attn_output.weight"].T
        normed = norm(x, part + "ffn_norm.weight")
        gate = torch.nn.functional.silu(normed @ weights[part + "ffn_gate.weight"].T)
        x = x + (gate * (normed @ weights[part + "ffn_up.weight"].T)) @ weights[part + "ffn_down.weight"].T
    return norm(x, "output_norm.weight") @ weights.get("output.weight", weights["token_embd.weight"]).T


@pytest.mark.parametrize("changes", [{}, {"kv_heads": 4, "tied_embeddings": False}, {"heads": 2, "kv_heads": 1}])
@pytest.mark.parametrize("type", TYPES, ids=lambda type: type.name)
def test_llama_cpps_formulas_give_the_models_logits(tmp_path, type, changes):
    model = model_of(**changes)
    export_gguf(model, tmp_path / "a.gguf", type)
    tokens = read_tokens(model)
    if type == TensorType.F32:
        torch.testing.assert_close(as_llama_cpp_does(tmp_path / "a.gguf", tokens), model.double()(tokens))
    else:
        loaded = load_gguf(tmp_path / "a.gguf")
        torch.testing.assert_close(as_llama_cpp_does(tmp_path / "a.gguf", tokens), loaded.double()(tokens))


@pytest.mark.parametrize("changes", [{}, {"qkv_bias": True}, {"qk_norm": True, "head_dim": 24}], ids=str)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("keep_bits", [True, False])
def test_a_model_in_f32_comes_back_exactly(tmp_path, tied, keep_bits, changes):
    model = model_of(tied_embeddings=tied, **changes)
    export_gguf(model, tmp_path / "a.gguf")
    back = load_gguf(tmp_path / "a.gguf", keep_bits=keep_bits)
    assert back.config == model.config
    assert (back.head.weight is back.embedding.weight) == tied
    tokens = read_tokens(model)
    assert torch.equal(back(tokens), model(tokens))
    assert all(torch.equal(weight, model.state_dict()[name]) for name, weight in back.state_dict().items())


@pytest.mark.parametrize("type", [TensorType.F16, TensorType.Q8_0, TensorType.Q4_0], ids=lambda type: type.name)
def test_fewer_bits_come_back_as_the_weights_that_they_stand_for(tmp_path, type):
    model = model_of(tied_embeddings=False)
    export_gguf(model, tmp_path / "a.gguf", type)
    back = load_gguf(tmp_path / "a.gguf").state_dict()
    for name, weight in model.state_dict().items():
        kind = type
        if weight.ndim == 1:
            kind = TensorType.F32
        elif type == TensorType.Q4_0 and name in ("embedding.weight", "head.weight"):
            kind = TensorType.Q8_0
        rows = weight.view(-1, weight.shape[-1]).numpy()
        assert np.array_equal(back[name].view(rows.shape).numpy(), decode(encode(rows, kind), kind)), name


@pytest.mark.parametrize("type", [TensorType.Q8_0, TensorType.Q4_0], ids=lambda type: type.name)
@pytest.mark.parametrize("tied", [True, False])
def test_bits_can_be_kept(tmp_path, type, tied):
    model = model_of(tied_embeddings=tied, qkv_bias=True)
    export_gguf(model, tmp_path / "a.gguf", type)
    wide, kept = load_gguf(tmp_path / "a.gguf"), load_gguf(tmp_path / "a.gguf", keep_bits=True)
    layers = {name: module for name, module in kept.named_modules() if isinstance(module, QuantizedLinear)}
    assert len(layers) == 11 and {layer.scheme.group for layer in layers.values()} == {32}
    assert layers["blocks.1.attention.qkv"].scheme.bits == (4 if type == TensorType.Q4_0 else 8)
    assert layers["head"].scheme.bits == 8
    for name, layer in layers.items():
        assert torch.equal(layer.weight, wide.get_submodule(name).weight), name
    assert torch.equal(kept.embedding.weight, wide.embedding.weight)
    tokens = read_tokens(model)
    assert torch.equal(kept(tokens), wide(tokens))


def test_rows_that_are_not_whole_blocks_are_f16(tmp_path):
    model = model_of(mlp_width=72)
    export_gguf(model, tmp_path / "a.gguf", TensorType.Q4_0)
    types = {name: tensor.type.name for name, tensor in read_file(tmp_path / "a.gguf").tensors.items()}
    assert types["blk.0.ffn_down.weight"] == "F16" and types["blk.0.ffn_up.weight"] == "Q4_0"
    assert types["token_embd.weight"] == "Q8_0" and types["blk.1.attn_norm.weight"] == "F32"
    assert load_gguf(tmp_path / "a.gguf", keep_bits=True)(read_tokens(model)).isfinite().all()


def test_metadata_are_those_of_a_llama(tmp_path):
    export_gguf(model_of(), tmp_path / "a.gguf", TensorType.Q8_0, name="small")
    fields = gguf.GGUFReader(tmp_path / "a.gguf").fields
    found = {name: each.contents() for name, each in fields.items() if not name.startswith(("GGUF.", "tokenizer."))}
    keys = gguf.Keys
    expected = {
        keys.General.ARCHITECTURE: "llama",
        keys.General.NAME: "small",
        keys.General.FILE_TYPE: gguf.LlamaFileType.MOSTLY_Q8_0.value,
        keys.General.QUANTIZATION_VERSION: gguf.GGML_QUANT_VERSION,
        keys.LLM.VOCAB_SIZE: 40,
        keys.LLM.CONTEXT_LENGTH: 32,
        keys.LLM.EMBEDDING_LENGTH: 64,
        keys.LLM.BLOCK_COUNT: 2,
        keys.LLM.FEED_FORWARD_LENGTH: 192,
        keys.Attention.HEAD_COUNT: 4,
        keys.Attention.HEAD_COUNT_KV: 2,
        keys.Attention.LAYERNORM_RMS_EPS: np.float32(3e-6),
        keys.Attention.KEY_LENGTH: 16,
        keys.Attention.VALUE_LENGTH: 16,
        keys.Rope.DIMENSION_COUNT: 16,
        keys.Rope.FREQ_BASE: 500.0,
    }
    assert found == {key.format(arch="llama"): value for key, value in expected.items()}


@pytest.mark.parametrize(
    ("architecture", "changes"), [("LLAMA", {}), ("QWEN2", {"qkv_bias": True}), ("QWEN3", {"qk_norm": True})]
)
def test_names_are_those_that_llama_cpp_knows(tmp_path, architecture, changes):
    export_gguf(model_of(tied_embeddings=False, **changes), tmp_path / "a.gguf")
    file, kind = read_file(tmp_path / "a.gguf"), getattr(gguf.MODEL_ARCH, architecture)
    assert file.metadata["general.architecture"] == gguf.MODEL_ARCH_NAMES[kind]
    names = {gguf.TENSOR_NAMES[each] for each in gguf.MODEL_TENSORS[kind]}
    known = {f"{name.format(bid=layer)}.{part}" for name in names for layer in range(2) for part in ("weight", "bias")}
    assert file.tensors.keys() <= known


def changed(path, metadata=None, tensors=None, drop=()):
    """The file with other values or tensors."""
    file = read_file(path)
    values = {key: value for key, value in {**file.metadata, **(metadata or {})}.items() if key not in drop}
    kept = {name: tensor for name, tensor in {**file.tensors, **(tensors or {})}.items() if name not in drop}
    write_file(path.with_name("b.gguf"), values, kept.values())
    return path.with_name("b.gguf")


@pytest.fixture
def path(tmp_path):
    export_gguf(model_of(tied_embeddings=False), tmp_path / "a.gguf")
    return tmp_path / "a.gguf"


def tensor(name, *shape):
    return {
        name: StoredTensor(
            name,
            shape,
            TensorType.F32,
            encode(np.zeros((1, *shape), np.float32).reshape(-1, shape[-1]), TensorType.F32),
        )
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"metadata": {"general.architecture": "gpt2"}}, "general.architecture = 'gpt2': expected one of 'llama', 'q"),
        ({"drop": ["llama.block_count"]}, "has no llama.block_count: expected the model's layers"),
        ({"metadata": {"llama.block_count": 3}}, "has 21 tensors: expected 30 for 3 layers"),
        ({"metadata": {"llama.block_count": 2**32 - 1}}, "has 21 tensors: expected 38654705658 for 4294967295 layers"),
        ({"metadata": {"llama.attention.head_count": 3}}, "describes a model that cannot be built: kv_heads = 2"),
        ({"metadata": {"llama.embedding_length": 0.5}}, "describes a model that cannot be built: width = 0.5"),
        ({"metadata": {"llama.embedding_length": "x"}}, "describes a model that cannot be built: width = 'x'"),
        ({"metadata": {"llama.feed_forward_length": 128}}, r"ffn_gate.weight has shape \(192, 64\): expected \(128"),
        ({"metadata": {"llama.rope.dimension_count": 8}}, "rotates 8 dimensions of 16, for 32 positions"),
        ({"metadata": {"llama.context_length": 2**32 - 1}}, "for 4294967295 positions: expected all 16 dimensions"),
        ({"drop": ["blk.1.attn_k.weight"]}, "has 20 tensors: expected 21"),
        ({"drop": ["blk.1.attn_k.weight"], "tensors": tensor("blk.1.attn_x.weight", 8)},
         "lacks the tensor blk.1.attn_k.weight and has blk.1.attn_x.weight"),
        ({"tensors": tensor("blk.1.attn_k.weight", 64, 32)}, r"blk.1.attn_k.weight has shape \(64, 32\): expected"),
        ({"tensors": tensor("blk.1.attn_norm.weight", 1, 64)}, r"attn_norm.weight has shape \(1, 64\): expected \(64,"),
    ],
)  # fmt: skip
def test_a_file_of_another_model_is_named(path, change, words):
    with pytest.raises(GGUFError, match="b.gguf.*" + words):
        load_gguf(changed(path, **change))


def test_a_file_of_other_sizes_than_expected_is_named(path):
    config = model_of(tied_embeddings=False).config
    assert load_gguf(path, config=config).config == config
    fused = GPTConfig.tiny(**{**vars(config), "kernels": "fused"})
    assert load_gguf(path, config=fused).config.kernels == "fused"
    for field, value in (("layers", 3), ("rope_base", 501.0), ("tied_embeddings", True), ("norm_epsilon", 1e-5)):
        with pytest.raises(GGUFError, match=f"has {field} = .*: expected {value}; the file belongs to another model"):
            load_gguf(path, config=GPTConfig.tiny(**{**vars(config), field: value}))


def test_what_llama_cpp_has_defaults_for_may_be_missing(path):
    missing = ["llama.vocab_size", "llama.rope.freq_base", "llama.rope.dimension_count"]
    found = load_gguf(changed(path, drop=missing)).config
    assert (found.vocabulary_size, found.rope_base) == (40, 10_000)
    export_gguf(model_of(kv_heads=4), path)
    assert load_gguf(changed(path, drop=["llama.attention.head_count_kv"])).config.kv_heads == 4


def test_a_cut_file_is_refused_as_a_whole(path):
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(GGUFError, match="the file is cut short"):
        load_gguf(path)


def test_a_quantised_model_is_not_rounded_again(path):
    before = path.read_bytes()
    with pytest.raises(AlreadyQuantizedError, match="blocks.0.attention.qkv is quantised"):
        export_gguf(quantize(model_of()), path)
    broken = model_of()
    broken.norm.weight[3] = torch.nan
    with pytest.raises(ValueError, match="output_norm.weight: weights that are not finite"):
        export_gguf(broken, path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("type", "value"), [(TensorType.F16, 65_520.0), (TensorType.Q8_0, -8.4e6), (TensorType.Q4_0, 5.3e5)], ids=str
)
def test_a_weight_beyond_float16_is_named(path, type, value):
    model, before = model_of(tied_embeddings=False), path.read_bytes()
    model.blocks[1].mlp.up.weight[3, 5] = value
    with pytest.raises(
        ValueError, match=re.escape(f"blk.1.ffn_up.weight: a weight of {value:g} is too large for {type.name}: ")
    ):
        export_gguf(model, path, type)
    assert path.read_bytes() == before
    export_gguf(model, path)
    model.blocks[1].mlp.up.weight[3, 5] = 65_519.0  # rounds to the largest float16
    export_gguf(model, path, type)


def test_what_a_file_would_leave_out_is_named(path):
    """A layer that was changed, one rank's part of a model, or a head that is tied in the configuration alone."""
    before = path.read_bytes()
    biased, part, untied = model_of(), model_of(), model_of()
    biased.blocks[1].mlp.up.bias = torch.nn.Parameter(torch.ones(192))
    part.head.weight = part.embedding.weight = torch.nn.Parameter(torch.ones(20, 64))
    untied.head.weight = torch.nn.Parameter(torch.ones(40, 64))
    for model, words in (
        (
            biased,
            r"blocks.1.mlp.up.bias has shape \(192,\): expected no such tensor according to the model's conf",
        ),
        (part, r"embedding.weight has shape \(20, 64\): expected shape \(40, 64\)"),
        (untied, "head.weight differs from embedding.weight in a model with tied_embeddings"),
    ):
        with pytest.raises(ValueError, match=words):
            export_gguf(model, path)
    assert path.read_bytes() == before


def test_16_bit_models_are_written(tmp_path):
    model = model_of().bfloat16()
    export_gguf(model, tmp_path / "a.gguf")
    assert torch.equal(load_gguf(tmp_path / "a.gguf").norm.weight, model.norm.weight.float())


def test_the_file_is_version_3_and_little_endian(path):
    assert struct.unpack("<4sI", path.read_bytes()[:8]) == (b"GGUF", 3)
