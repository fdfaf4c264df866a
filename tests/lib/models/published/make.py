"""Makes the folders beside this file with transformers; needs it installed: python make.py

Each holds a random model of a few thousand weights as `save_pretrained` writes it, tokens, and transformers' logits.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
}  # fmt: skip
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False)),
    "qwen2": lambda: Qwen2ForCausalLM(
        Qwen2Config(**SIZES, tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    ),
}


def main() -> None:
    for seed, (name, make) in enumerate(MODELS.items()):
        folder = Path(__file__).parent / name
        torch.manual_seed(seed)
        model = make().eval()
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.3)
        model.save_pretrained(folder, max_shard_size="20KB" if name == "llama" else "5GB")
        (folder / "generation_config.json").unlink(missing_ok=True)
        tokens = torch.randint(SIZES["vocab_size"], (2, 33))
        with torch.no_grad():
            logits = model(tokens).logits
        save_file({"tokens": tokens, "logits": logits}, folder / "expected.tensors")
        print(name, json.loads((folder / "config.json").read_text())["transformers_version"], file=sys.stderr)


if __name__ == "__main__":
    main()
