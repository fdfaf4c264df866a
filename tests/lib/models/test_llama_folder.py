"""Folders of weights as transformers writes them give its logits; what our GPT cannot do is refused by name."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from threeloops.models.folder_config import gpt_config
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.models.llama_folder import load_llama_folder, save_llama_folder
from threeloops.product.quantized import Scheme, quantize

PUBLISHED = Path(__file__).parent / "published"  # made by published/make.py
NAMES = ["llama", "qwen2"]


@pytest.fixture
def folder(tmp_path):
    return Path(shutil.copytree(PUBLISHED / "llama", tmp_path / "llama"))


def rope(**settings):
    return {"rope_parameters": None, "rope_scaling": settings}


def in_one_file(folder):
    """All tensors of a folder, whose files and index are removed."""
    tensors = {}
    for path in folder.glob("*.safetensors*"):
        tensors |= load_file(path) if path.suffix == ".safetensors" else {}
        path.unlink()
    return tensors


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
        ({"model_type": None}, "model_type = None"),
        *(
            ({"model_type": kind}, f"model_type = '{kind}': the course's GPT does not support this architecture")
            for kind in ("gemma", "gemma3_text", "phi3", "deepseek_v3", "mixtral", "qwen2_moe", "qwen3_moe", "mamba")
        ),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        (
            rope(rope_type="dynamic", factor=2.0),
            "rope_type = 'dynamic'.* expected one of default, linear, llama3, yarn",
        ),
        (rope(rope_type="longrope", short_factor=[1.0] * 4), "rope_type = 'longrope'"),
        (rope(type="su"), "rope_type = 'su'"),
        (rope(rope_type="default", mrope_section=[2, 1, 1]), "mrope_section = .2, 1, 1. with rope_type"),
        (rope(rope_type="linear", factor=2.0, low_freq_factor=1.0), "low_freq_factor = 1.0 with rope_type"),
        (rope(rope_type="default", partial_rotary_factor=0.5), "partial_rotary_factor = 0.5"),
        ({"partial_rotary_factor": 0.25}, "partial_rotary_factor = 0.25"),
        ({"sliding_window": 16}, "sliding_window = 16 with model_type = 'llama'"),
        (
            {"model_type": "qwen2", "sliding_window": 16, "use_sliding_window": True, "max_window_layers": 1},
            "the layers use full_attention, sliding_attention with sliding_window = 16",
        ),
        (
            {"model_type": "qwen3", "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16},
            "the layers use full_attention, sliding_attention",
        ),
        (
            {"model_type": "qwen3", "layer_types": ["sliding_attention"] * 2},
            "the layers use sliding_attention with sliding_window = None",
        ),
        (
            {"model_type": "mistral", "layer_types": ["full_attention"] * 2},
            "the layers use full_attention with sliding_window = 4096",
        ),
        ({"layer_types": ["linear_attention"] * 2}, "the layers use linear_attention"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"mlp_bias": True}, "mlp_bias = True"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "quantization_config = {'quant_method': 'awq'"),
    ],
)
def test_what_the_model_does_not_have_is_refused_by_name(folder, changes, message):
    change(folder, **changes)
    with pytest.raises(ValueError, match=message):
        load_llama_folder(folder)


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize(
    "missing",
    [
        "num_key_value_heads", "head_dim", "rms_norm_eps", "rope_parameters", "tie_word_embeddings", "sliding_window",
        "use_sliding_window", "max_window_layers", "layer_types", "hidden_act",
    ],
)  # fmt: skip
def test_a_key_that_is_missing_has_the_default_of_the_class_in_transformers(kind, missing):
    from transformers import AutoConfig

    published = {
        "vocab_size": 64, "hidden_size": 128, "intermediate_size": 48, "num_hidden_layers": 30,
        "num_attention_heads": 32, "num_key_value_heads": 16, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
        "head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "tie_word_embeddings": True,
        "hidden_act": "silu",
    }  # fmt: skip
    window = {"mistral": {"sliding_window": 512}}
    for qwen in ("qwen2", "qwen3"):
        window[qwen] = {"sliding_window": 512, "use_sliding_window": True, "max_window_layers": 0}
    published |= window.get(kind, {})
    published.pop(missing, None)
    theirs = AutoConfig.for_model(kind, **published)
    layers = set(getattr(theirs, "layer_types", None) or [])
    if len(layers) > 1:
        with pytest.raises(ValueError, match="the layers use full_attention, sliding_attention"):
            gpt_config({"model_type": kind, **published})
        return
    ours = gpt_config({"model_type": kind, **published})
    assert ours.kv_heads == theirs.num_key_value_heads
    assert ours.head_dim == getattr(theirs, "head_dim", 4)
    assert ours.norm_epsilon == theirs.rms_norm_eps
    assert ours.rope_base == theirs.rope_parameters["rope_theta"]
    assert ours.tied_embeddings == theirs.tie_word_embeddings
    assert ours.sliding_window == getattr(theirs, "sliding_window", None)


@pytest.mark.parametrize(
    "settings",
    [
        {"type": "linear", "factor": 2.0},
        {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        {"type": "yarn", "factor": 4.0, "finetuned": True},
        {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 16},
        {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.3, "beta_fast": None},
        {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.0},
        {"rope_type": "yarn", "factor": 0.5, "attention_factor": 2.0, "mscale": 0.7, "mscale_all_dim": 0.3},
    ],
    ids=str,
)
def test_scaled_positions_are_those_of_transformers(folder, settings):
    """Published configurations leave out some of the settings, or have more of them."""
    from transformers import AutoModelForCausalLM

    change(folder, **rope(**settings))
    theirs, tokens = AutoModelForCausalLM.from_pretrained(folder).eval(), torch.arange(60)[None]
    with torch.no_grad():
        expected = theirs(tokens).logits
        torch.testing.assert_close(load_llama_folder(folder)(tokens), expected, rtol=0, atol=1e-5 * expected.std())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rope_type": "linear"}, "rope_type 'linear' needs factor, missing in config.json"),
        ({"rope_type": "llama3", "factor": 2.0}, "rope_type 'llama3' needs low_freq_factor, high_freq_factor"),
    ],
)
def test_settings_of_positions_that_are_missing_are_named(folder, settings, message):
    change(folder, **rope(**settings))
    with pytest.raises(ValueError, match=message):
        load_llama_folder(folder)


def test_sizes_that_are_missing_are_named(folder):
    change(folder, vocab_size=None, max_position_embeddings=None)
    with pytest.raises(ValueError, match="config.json lacks vocab_size, max_position_embeddings: expected the sizes"):
        load_llama_folder(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": "2"}, "num_hidden_layers = '2' in config.json: expected a whole number"),
        ({"hidden_size": True}, "hidden_size = True in config.json: expected a whole number"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps = '1e-5' in config.json: expected a number"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings = 'false' in config.json: expected true or false"),
        ({"rope_scaling": "linear"}, "rope_scaling = 'linear' in config.json: expected an object"),
        (rope(rope_type="yarn", factor="4"), "factor = '4' in config.json: expected a number"),
        ({"layer_types": "full_attention"}, "layer_types = 'full_attention' in config.json: expected a list of text"),
        ({"model_type": ["llama"]}, "model_type = .'llama'. in config.json: expected text"),
    ],
)
def test_values_of_another_type_are_refused(folder, changes, message):
    change(folder, **changes)
    with pytest.raises(ValueError, match=message):
        load_llama_folder(folder)


@pytest.mark.parametrize("changes", [{"attention_bias": True}, {"max_window_layers": None}], ids=str)
def test_a_key_that_qwen2_does_not_use_changes_nothing(tmp_path, changes):
    """Without use_sliding_window, no layer has a window."""
    folder = Path(shutil.copytree(PUBLISHED / "qwen2", tmp_path / "qwen2"))
    expected = load_llama_folder(folder)
    change(folder, use_sliding_window=False, **changes)
    assert load_llama_folder(folder).config == expected.config
    if changes.get("attention_bias"):
        from transformers import AutoModelForCausalLM

        names = {name for name, _ in AutoModelForCausalLM.from_pretrained(folder).named_parameters()}
        assert not [name for name in names if name.endswith("o_proj.bias")]


def test_a_window_needs_the_number_of_layers_without_it(folder):
    change(folder, model_type="qwen2", use_sliding_window=True, sliding_window=16, max_window_layers=None)
    with pytest.raises(ValueError, match="max_window_layers = None in config.json: expected a whole number"):
        load_llama_folder(folder)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null"])
def test_a_configuration_that_is_no_object_is_refused(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(ValueError, match="config.json is not a JSON object"):
        load_llama_folder(folder)


def test_the_number_of_positions_can_be_chosen(folder):
    expected, longer = load_llama_folder(folder), load_llama_folder(folder, max_sequence=100)
    tokens = torch.arange(100)[None] % 64
    assert longer.config.max_sequence == 100
    with torch.no_grad():
        torch.testing.assert_close(longer(tokens)[:, :60], expected(tokens[:, :60]))
    with pytest.raises(ValueError, match="max_sequence = 0"):
        load_llama_folder(folder, max_sequence=0)


def test_a_folder_without_a_configuration_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="has no config.json: expected a model folder"):
        load_llama_folder(tmp_path)


def test_a_tied_model_with_another_head_is_refused(folder):
    change(folder, tie_word_embeddings=True)
    with pytest.raises(ValueError, match="lm_head.weight differs from model.embed_tokens.weight.* Set tie_word_embedd"):
        load_llama_folder(folder)


def test_a_tied_model_may_have_its_head_twice(folder):
    tensors = in_one_file(folder)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors")
    change(folder, tie_word_embeddings=True)
    model = load_llama_folder(folder)
    assert model.head.weight is model.embedding.weight


def test_tables_of_positions_in_old_folders_are_left_out(folder):
    expected = load_llama_folder(folder)
    tensors = in_one_file(folder)
    tensors |= {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": torch.ones(4) for layer in range(2)}
    save_file(tensors, folder / "model.safetensors")
    for ours, other in zip(load_llama_folder(folder).parameters(), expected.parameters(), strict=True):
        assert torch.equal(ours, other)


def test_another_copy_of_the_weights_beside_them_is_left_out(folder):
    """Mistral's folders have one with its own names of the tensors."""
    save_file(in_one_file(folder), folder / "model.safetensors")
    save_file({"layers.0.attention.wq.weight": torch.ones(2, 2)}, folder / "consolidated.safetensors")
    load_llama_folder(folder)


def test_pickled_weights_are_refused(folder):
    torch.save(in_one_file(folder), folder / "pytorch_model.bin")
    with pytest.raises(FileNotFoundError, match="has pytorch_model.bin and no safetensors files: a .bin file is a"):
        load_llama_folder(folder)


def test_a_model_that_no_published_class_computes_is_not_saved(tmp_path):
    model = GPT(GPTConfig.tiny(qkv_bias=True, qk_norm=True))
    with pytest.raises(ValueError, match="qkv_bias and qk_norm: no published architecture has both"):
        save_llama_folder(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def another_head(model):
    model.head = torch.nn.Linear(64, 256, bias=False)
    return model


def an_added_bias(model):
    model.blocks[1].mlp.up.bias = torch.nn.Parameter(torch.ones(192))
    return model


@pytest.mark.parametrize(
    ("change_of", "message"),
    [
        (
            another_head,
            "head.weight differs from embedding.weight in a model with tied_embeddings: expected one matrix",
        ),
        (an_added_bias, r"blocks.1.mlp.up.bias has shape \(192,\): expected no such tensor according to the model's"),
        (
            lambda model: quantize(model, "rtn", Scheme(8, 64)),
            "qkv.weight is missing: .*; pass the whole model in full",
        ),
    ],
    ids=["another head", "an added bias", "quantised"],
)
def test_a_model_that_its_configuration_does_not_describe_is_not_saved(tmp_path, change_of, message):
    model = change_of(GPT(GPTConfig.tiny(tied_embeddings=True)))
    with pytest.raises(ValueError, match=message):
        save_llama_folder(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()


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
            r"blocks.0.mlp.gate.weight has shape \(48, 32\): expected shape \(64, 32\) according to",
        ),
        ({"num_hidden_layers": 3}, r"blocks.2.attention_norm.weight is missing: expected shape \(32,\)"),
        ({"num_hidden_layers": 1}, r"blocks.1.\S+ has shape .*: expected no such tensor"),
    ],
)
def test_weights_of_another_model_are_refused(folder, changes, message):
    change(folder, **changes)
    with pytest.raises(ValueError, match=message):
        load_llama_folder(folder)


def test_a_file_cut_short_is_refused(folder):
    part = sorted(folder.glob("*.safetensors"))[-1]
    part.write_bytes(part.read_bytes()[:-10])
    with pytest.raises(ValueError, match=f"{part.name} is not a whole safetensors file"):
        load_llama_folder(folder)


def test_a_file_that_is_missing_is_named(folder):
    part = sorted(folder.glob("*.safetensors"))[-1]
    part.unlink()
    with pytest.raises(FileNotFoundError, match=f"the index names {part.name}, which is not in the folder"):
        load_llama_folder(folder)


def test_an_index_that_points_outside_is_refused(folder):
    index = folder / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    listed["weight_map"]["lm_head.weight"] = "../other.safetensors"
    index.write_text(json.dumps(listed))
    with pytest.raises(FileNotFoundError, match="the index names ../other.safetensors"):
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
    with pytest.raises(FileNotFoundError, match="has no safetensors files"):
        load_llama_folder(tmp_path)
