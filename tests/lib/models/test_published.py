"""Published configurations, as their config.json has them: our count of parameters is the published one, and a model of
the same shape, scaled down, gives transformers' logits."""

import json

import pytest
import torch
from model_variants import write_model
from threeloops.models.folder_config import gpt_config
from threeloops.models.llama_folder import load_llama_folder

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
SIZES = (
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "max_position_embeddings",
)  # fmt: skip
PUBLISHED = {
    "Llama-2-7b": (
        6_738_415_616,
        ("llama", 32000, 4096, 11008, 32, 32, 32, 4096),
        {"pretraining_tp": 1, "rms_norm_eps": 1e-5, "rope_scaling": None},
    ),
    "vicuna-7b-v1.5-16k": (
        6_738_415_616,
        ("llama", 32000, 4096, 11008, 32, 32, 32, 4096),
        {"rms_norm_eps": 1e-5, "rope_scaling": {"factor": 4.0, "type": "linear"}},
    ),
    "TinyLlama-1.1B": (
        1_100_048_384,
        ("llama", 32000, 2048, 5632, 22, 32, 4, 2048),
        {"attention_bias": False, "rms_norm_eps": 1e-5, "rope_theta": 10000.0},
    ),
    "Llama-3-8B": (
        8_030_261_248,
        ("llama", 128256, 4096, 14336, 32, 32, 8, 8192),
        {"rms_norm_eps": 1e-5, "rope_theta": 500000.0},
    ),
    "Llama-3.1-8B": (
        8_030_261_248,
        ("llama", 128256, 4096, 14336, 32, 32, 8, 131072),
        {"mlp_bias": False, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "rope_scaling": LLAMA3},
    ),
    "Llama-3.2-1B": (
        1_235_814_400,
        ("llama", 128256, 2048, 8192, 16, 32, 8, 131072),
        {
            "head_dim": 64, "tie_word_embeddings": True, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
            "rope_scaling": {**LLAMA3, "factor": 32.0},
        },
    ),
    "Mistral-7B-v0.1": (
        7_241_732_096,
        ("mistral", 32000, 4096, 14336, 32, 32, 8, 32768),
        {"rms_norm_eps": 1e-5, "rope_theta": 10000.0, "sliding_window": 4096},
    ),
    "Mistral-7B-Instruct-v0.3": (
        7_248_023_552,
        ("mistral", 32768, 4096, 14336, 32, 32, 8, 32768),
        {"rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "sliding_window": None},
    ),
    "Mistral-Nemo-Base-2407": (
        12_247_782_400,
        ("mistral", 131072, 5120, 14336, 40, 32, 8, 131072),
        {"head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0, "sliding_window": None},
    ),
    "Qwen2.5-0.5B": (
        494_032_768,
        ("qwen2", 151936, 896, 4864, 24, 14, 2, 32768),
        {
            "max_window_layers": 24, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "sliding_window": 32768,
            "tie_word_embeddings": True, "use_mrope": False, "use_sliding_window": False,
        },
    ),
    "Qwen2.5-7B-Instruct, long": (
        7_615_616_512,
        ("qwen2", 152064, 3584, 18944, 28, 28, 4, 32768),
        {
            "max_window_layers": 28, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "sliding_window": 131072,
            "use_sliding_window": False,
            "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"},
        },
    ),
    "Qwen3-0.6B": (
        596_049_920,
        ("qwen3", 151936, 1024, 3072, 28, 16, 8, 40960),
        {
            "attention_bias": False, "head_dim": 128, "max_window_layers": 28, "rms_norm_eps": 1e-6,
            "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True,
            "use_sliding_window": False,
        },
    ),
    "Qwen3-8B": (
        8_190_735_360,
        ("qwen3", 151936, 4096, 12288, 36, 32, 8, 40960),
        {
            "attention_bias": False, "head_dim": 128, "max_window_layers": 36, "rms_norm_eps": 1e-6,
            "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "use_sliding_window": False,
        },
    ),
    "Qwen3-32B": (
        32_762_123_264,
        ("qwen3", 151936, 5120, 25600, 64, 64, 8, 40960),
        {
            "attention_bias": False, "head_dim": 128, "max_window_layers": 64, "rms_norm_eps": 1e-6,
            "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "use_sliding_window": False,
        },
    ),
}  # fmt: skip
each_model = pytest.mark.parametrize(
    ("parameters", "sizes", "rest"), PUBLISHED.values(), ids=[name.replace(" ", "") for name in PUBLISHED]
)


def scaled_down(published):
    """Two layers, heads of four dimensions and 64 positions. The ratios of all sizes and lengths stay as they are."""
    small = {**published, "num_hidden_layers": 2, "vocab_size": 101, "max_window_layers": 2}
    width = (published.get("head_dim") or published["hidden_size"] // published["num_attention_heads"]) // 4
    for name in ("hidden_size", "intermediate_size", "head_dim"):
        if name in small:
            small[name] //= width
    length = published["max_position_embeddings"] // 64
    small["max_position_embeddings"] = 64
    if small.get("sliding_window"):
        small["sliding_window"] //= length
    if (small.get("rope_scaling") or {}).get("original_max_position_embeddings"):
        original = small["rope_scaling"]["original_max_position_embeddings"] // length
        small["rope_scaling"] = {**small["rope_scaling"], "original_max_position_embeddings": original}
    return small


@each_model
def test_parameters_are_as_many_as_published(parameters, sizes, rest):
    config = gpt_config({**dict(zip(SIZES, sizes, strict=True)), **rest})
    assert config.parameters_count() == parameters


@each_model
def test_a_model_of_this_shape_gives_the_logits_of_transformers(parameters, sizes, rest, tmp_path):
    """Its config.json is the published one, scaled down, not what transformers would write today."""
    published = scaled_down({**dict(zip(SIZES, sizes, strict=True)), **rest})
    theirs, tokens = write_model(published, tmp_path), torch.arange(60)[None]
    (tmp_path / "config.json").write_text(json.dumps(published))
    with torch.no_grad():
        torch.testing.assert_close(load_llama_folder(tmp_path)(tokens), theirs(tokens).logits, rtol=0, atol=1e-5)
