"""Keys that change what a model computes are read, or refused by name; so is a model that a file cannot describe."""

import numpy as np
import pytest
import torch
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.models.rope_scaling import LinearScaling, Llama3Scaling, YarnScaling
from threeloops.product.quantized.gguf import (
    GGUFError,
    StoredTensor,
    TensorType,
    encode,
    export_gguf,
    load_gguf,
    read_file,
    write_file,
)


@pytest.fixture
def path(tmp_path):
    torch.manual_seed(0)
    export_gguf(GPT(GPTConfig.tiny()), tmp_path / "a.gguf")
    return tmp_path / "a.gguf"


def with_keys(path, tensors=(), **values):
    """The file with other values, of which `rope__x` stands for llama.rope.x."""
    file = read_file(path)
    changed = {f"llama.{key.replace('__', '.')}": value for key, value in values.items()}
    write_file(path, {**file.metadata, **changed}, [*file.tensors.values(), *tensors])
    return path


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"type": "linear", "factor": 4.0}, LinearScaling(4.0)),
        ({"factor": 2.5}, LinearScaling(2.5)),
        ({"type": "linear", "factor": 1.0}, None),
        ({"type": "none", "factor": 4.0}, None),
        ({"type": "yarn", "factor": 4.0, "original_context_length": 64}, YarnScaling(4.0, 64)),
        ({"type": "yarn", "factor": 4.0}, YarnScaling(4.0, 128)),
        ({"type": "yarn", "factor": 4.0, "yarn_beta_fast": 32.0, "yarn_ext_factor": 1.0}, YarnScaling(4.0, 128)),
    ],
    ids=str,
)
def test_scalings_of_rotary_positions_are_read(path, keys, expected):
    found = load_gguf(with_keys(path, **{f"rope__scaling__{key}": value for key, value in keys.items()}))
    assert found.config == GPTConfig.tiny(rope_scaling=expected)


def test_the_old_key_of_a_linear_scaling_is_read(path):
    assert load_gguf(with_keys(path, rope__scale_linear=4.0)).config.rope_scaling == LinearScaling(4.0)


@pytest.mark.parametrize(
    "scaling", [LinearScaling(4.0), YarnScaling(4.0, 32), YarnScaling(8.0, 32, attention_factor=1.25),
                Llama3Scaling(8.0, 64)], ids=str,
)  # fmt: skip
def test_scalings_come_back(path, scaling):
    model = GPT(GPTConfig.tiny(rope_scaling=scaling))
    export_gguf(model, path)
    back = load_gguf(path, config=model.config)
    tokens = torch.arange(100)[None]
    torch.testing.assert_close(back(tokens), model(tokens), rtol=0, atol=1e-6)
    with pytest.raises(GGUFError, match="a.gguf has rope_scaling = .*: expected None; the file belongs to"):
        load_gguf(path, config=GPTConfig.tiny())


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"rope__scaling__type": "longrope"}, "llama.rope.scaling.type = 'longrope': expected 'none', 'linear' or 'y"),
        ({"rope__scaling__factor": -1.0}, "factor = -1.0 in LinearScaling: expected a positive number"),
        ({"rope__scaling__attn_factor": 1.5}, "llama.rope.scaling.attn_factor = 1.5: expected 1; without yarn"),
        (
            {"rope__scaling__yarn_beta_fast": 16.0},
            "llama.rope.scaling.yarn_beta_fast = 16.0: expected 32.0; the",
        ),
        ({"rope__dimension_count": 8}, "rotates 8 dimensions of 16"),
        ({"attention__causal": False}, "llama.attention.causal = False: expected True; the library always uses True"),
        ({"attention__sliding_window": 64}, "llama.attention.sliding_window = 64: expected none; llama.cpp ignores"),
        ({"attention__value_length": 8}, "llama.attention.value_length = 8: expected 16"),
        ({"attention__clamp_kqv": 8.0}, "llama.attention.clamp_kqv = 8.0: expected 0.0"),
        ({"attention__scale": 0.5}, "llama.attention.scale = 0.5: expected no such key"),
        ({"expert_count": 8}, "llama.expert_count = 8: expected 0"),
        ({"expert_used_count": 2}, "llama.expert_used_count = 2: expected 0"),
        ({"logit_scale": 0.5}, "llama.logit_scale = 0.5: expected 1.0"),
        ({"residual_scale": 0.5}, "llama.residual_scale = 0.5: expected no such key"),
        ({"something_new": 1}, "llama.something_new = 1: expected no such key; the library would ignore it"),
        ({"attention__head_count_kv": [2, 1]}, "describes a model that cannot be built"),
    ],
    ids=str,
)
def test_a_key_that_changes_what_is_computed_is_named(path, keys, words):
    with pytest.raises(GGUFError, match="^a.gguf .*" + words):
        load_gguf(with_keys(path, **keys))


def test_keys_that_change_nothing_are_passed_over(path):
    neutral = {
        "attention__causal": True, "attention__sliding_window": 0, "expert_count": 0, "expert_used_count": 0,
        "attention__clamp_kqv": 0.0, "rope__scaling__finetuned": True, "tensor_data_layout": "Meta AI original pth",
    }  # fmt: skip
    assert load_gguf(with_keys(path, **neutral)).config == GPTConfig.tiny()
    assert load_gguf(with_keys(path, attention__sliding_window=128)).config == GPTConfig.tiny()


def test_a_part_of_a_model_is_refused(path):
    file = read_file(path)
    write_file(path, {**file.metadata, "split.count": 2}, file.tensors.values())
    with pytest.raises(GGUFError, match="one of split.count = 2 files: expected a whole model"):
        load_gguf(path)


def factors(*values):
    data = np.array([values], np.float32)
    return StoredTensor("rope_freqs.weight", data[0].shape, TensorType.F32, encode(data, TensorType.F32))


@pytest.mark.parametrize("values", [(1, 2, 3, 4, 5, 6, 7, 8), (0,) * 8, (1, 8)], ids=str)
def test_factors_of_another_scaling_than_llama_3s_are_refused(path, values):
    with pytest.raises(GGUFError, match="rope_freqs.weight divides .* other than Llama 3.1's for 8192 original"):
        load_gguf(with_keys(path, [factors(*values)]))


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_factors_beside_another_scaling_are_refused(path, kind):
    scaling = Llama3Scaling(8.0, 64)
    export_gguf(GPT(GPTConfig.tiny(rope_scaling=scaling)), path)
    with pytest.raises(GGUFError, match="llama.rope.scaling.factor and rope_freqs.weight: expected one of them"):
        load_gguf(with_keys(path, rope__scaling__factor=2.0, rope__scaling__type=kind))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sliding_window": 100}, "sliding_window = 100: llama.cpp attends to all tokens"),
        ({"qkv_bias": True, "qk_norm": True}, "qk_norm with qkv_bias: llama.cpp has no such architecture"),
        ({"qkv_bias": True, "head_dim": 24}, "head_dim = 24 with qkv_bias: .*'qwen2' expects width / heads = 16"),
        ({"qkv_bias": True, "rope_scaling": Llama3Scaling(8.0, 64)}, "Llama3Scaling.* has it in 'llama' only"),
        ({"rope_scaling": Llama3Scaling(8.0, 64, 2.0)}, "low_frequency_factor = 2.0 in Llama3Scaling: .* with 1.0, wh"),
        ({"rope_scaling": YarnScaling(8.0, 64, beta_fast=16.0)}, "beta_fast = 16.0 in YarnScaling: .* with 32.0, what"),
        ({"rope_scaling": YarnScaling(8.0, 64, truncate=False)}, "truncate = False in YarnScaling: .* with True, what"),
    ],
    ids=str,
)
def test_a_model_that_no_file_describes_is_refused(path, changes, words):
    before = path.read_bytes()
    with pytest.raises(ValueError, match=words):
        export_gguf(GPT(GPTConfig.tiny(**changes)), path)
    assert path.read_bytes() == before


def test_a_window_as_wide_as_the_model_reads_is_none(path):
    model = GPT(GPTConfig.tiny(sliding_window=128))
    export_gguf(model, path)
    assert load_gguf(path).config.sliding_window is None
    assert load_gguf(path, config=model.config).config == model.config
