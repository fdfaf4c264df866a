"""Folders of weights as transformers writes them give its logits; what our GPT cannot do is refused by name."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.models.llama_folder import load_llama_folder, save_llama_folder

PUBLISHED = Path(__file__).parent / "published"  # made by published/make.py
NAMES = ["llama", "qwen2"]


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(PUBLISHED / "llama", tmp_path / "llama"))


def change(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name):
    expected = load_file(PUBLISHED / name / "expected.tensors")
    model = load_llama_folder(PUBLISHED / name)
    with torch.no_grad():
        torch.testing.assert_close(model(expected["tokens"]), expected["logits"], rtol=1e-4, atol=1e-4)
    assert model.config.qkv_bias == (name == "qwen2") and model.config.tied_embeddings == (name == "qwen2")
    assert not model.training


def test_fused_kernels_compute_a_model_with_biases_too(tmp_path):
    torch.manual_seed(0)
    model, tokens = GPT(GPTConfig.tiny(qkv_bias=True)).eval(), torch.randint(256, (2, 9))
    assert all((block.attention.qkv.bias == 0).all() for block in model.blocks), "biases begin at zero"
    for block in model.blocks:
        torch.nn.init.normal_(block.attention.qkv.bias)
    save_llama_folder(model, tmp_path / "model")
    with torch.no_grad():
        fused = load_llama_folder(tmp_path / "model", kernels="fused")(tokens)
        torch.testing.assert_close(fused, model(tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("changes", [{}, {"tied_embeddings": False}, {"qkv_bias": True}])
def test_what_is_saved_is_loaded_bit_for_bit(tmp_path, changes):
    model = GPT(GPTConfig.tiny(**changes)).bfloat16()
    save_llama_folder(model, tmp_path / "model")
    again = load_llama_folder(tmp_path / "model")
    assert again.config == model.config
    for (name, weight), other in zip(model.state_dict().items(), again.state_dict().values(), strict=True):
        assert weight.dtype == other.dtype and torch.equal(weight, other), name
    assert (again.head.weight is again.embedding.weight) == model.config.tied_embeddings


def test_the_dtype_can_be_chosen(folder):
    assert load_llama_folder(folder, dtype=torch.float64).head.weight.dtype == torch.float64


def test_a_model_that_is_there_is_not_overwritten(folder):
    before = (folder / "config.json").read_bytes()
    with pytest.raises(FileExistsError, match="has a config.json"):
        save_llama_folder(GPT(GPTConfig.tiny()), folder)
    assert (folder / "config.json").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "model_type = 'mamba': expected 'llama', 'mistral' or 'qwen2'"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5}}, "rope_type = 'llama3'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type = 'linear'"),
        ({"model_type": "mistral", "sliding_window": 16}, "sliding_window = 16"),
        ({"model_type": "qwen2", "sliding_window": 16, "use_sliding_window": True}, "sliding_window = 16"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"mlp_bias": True}, "mlp_bias = True"),
        ({"head_dim": 16}, "head_dim = 16"),
    ],
)
def test_what_the_model_does_not_have_is_refused_by_name(folder, changes, message):
    change(folder, **changes)
    with pytest.raises(ValueError, match=message):
        load_llama_folder(folder)


def test_rope_theta_is_read_from_old_and_new_configurations(folder):
    change(folder, rope_parameters=None, rope_theta=123.0)
    assert load_llama_folder(folder).config.rope_base == 123.0
    change(folder, rope_parameters={"rope_theta": 456.0, "rope_type": "default"}, rope_theta=None)
    assert load_llama_folder(folder).config.rope_base == 456.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"intermediate_size": 64},
            r"blocks.0.mlp.gate.weight has shape \(48, 32\); expected \(64, 32\) by config.json",
        ),
        ({"num_hidden_layers": 3}, "blocks.2.attention_norm.weight has shape none: it is missing"),
        ({"num_hidden_layers": 1}, r"blocks.1.\S+ has shape .*; expected no such tensor"),
    ],
)
def test_weights_of_another_model_are_refused(folder, changes, message):
    change(folder, **changes)
    with pytest.raises(ValueError, match=message):
        load_llama_folder(folder)


def test_a_file_cut_short_is_refused(folder):
    part = sorted(folder.glob("*.safetensors"))[-1]
    part.write_bytes(part.read_bytes()[:-10])
    with pytest.raises(ValueError, match=f"{part.name} is no whole safetensors file"):
        load_llama_folder(folder)


def test_a_file_that_is_missing_is_named(folder):
    part = sorted(folder.glob("*.safetensors"))[-1]
    part.unlink()
    with pytest.raises(FileNotFoundError, match=f"{part.name} is named by the index and is not in the folder"):
        load_llama_folder(folder)


def test_an_index_that_points_outside_is_refused(folder):
    index = folder / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    listed["weight_map"]["lm_head.weight"] = "../other.safetensors"
    index.write_text(json.dumps(listed))
    with pytest.raises(FileNotFoundError, match="other.safetensors is named by the index"):
        load_llama_folder(folder)


def test_a_part_of_the_projection_that_is_missing_is_named(folder, tmp_path):
    for path in folder.glob("*.safetensors*"):
        if path.suffix == ".json":
            path.unlink()
            continue
        tensors = {name: value for name, value in load_file(path).items() if "layers.1.self_attn.k_proj" not in name}
        path.unlink()
        if tensors:
            save_file(tensors, path)
    with pytest.raises(ValueError, match="blocks.1.attention.qkv.weight lacks self_attn.k_proj"):
        load_llama_folder(folder)


def test_a_folder_without_weights_is_named(tmp_path):
    shutil.copy(PUBLISHED / "llama" / "config.json", tmp_path)
    with pytest.raises(FileNotFoundError, match="no safetensors files"):
        load_llama_folder(tmp_path)
