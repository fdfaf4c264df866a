"""Load the model that an operator names: find its files, and set its dtype and the bits of its weights."""

from pathlib import Path

import torch

from threeloops.models.gpt import GPT
from threeloops.models.llama_folder import load_llama_folder
from threeloops.product.quantized import Scheme, quantize
from threeloops.product.quantized.gguf import load_gguf
from threeloops.product.service.engine.messages import EngineSpec
from threeloops.product.text import Tokenizer, load_tokenizer
from threeloops.product.trained import RECIPES, trained

__all__ = ["check_tokens", "files_of", "load_model"]


def files_of(name: str) -> str:
    """Return the folder or file of a model that an operator names, or "" for a model of the course.

    Raises FileNotFoundError if there is none, and ValueError, before any weight is read, if its tokenizer cannot be
    used.
    """
    if name in RECIPES:
        return ""
    if not Path(name).exists():
        raise FileNotFoundError(f"{name!r} is not a folder, a GGUF file, or one of {', '.join(RECIPES)}")
    load_tokenizer(name)
    return name


def load_model(spec: EngineSpec, files: str) -> GPT:
    """Return the model of a spec, from its files, on its device.

    Raises FileNotFoundError, and ValueError for wrong files.
    """
    device = spec.device if spec.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if not files:
        model = trained(spec.model)
    elif Path(files).is_dir():
        model = load_llama_folder(files)
    else:
        model = load_gguf(Path(files), keep_bits=True)
    if spec.dtype != "auto":
        model = model.to(getattr(torch, spec.dtype))
    if spec.quantization != "auto":
        model = quantize(model, scheme=Scheme(bits=int(spec.quantization.removeprefix("int"))))
    return model.to(device).requires_grad_(False)


def check_tokens(tokenizer: Tokenizer, vocabulary: int) -> None:
    """Raise ValueError if the tokenizer ends a text, or begins every text, with a token that the model does not have.

    Other tokens beyond the vocabulary do no harm: a prompt that holds one of them is refused.
    """
    for role, tokens in (("ends a text", tokenizer.end_tokens), ("is put around every text", tokenizer.encode("a"))):
        for token in sorted(tokens):
            if token >= vocabulary:
                text = tokenizer.special(token) or tokenizer.piece(token).decode(errors="replace")
                raise ValueError(
                    f"the token {text!r} {role}, and its number {token} is not one of the model's, 0 to "
                    f"{vocabulary - 1}: correct the folder's tokenizer files and eos_token_id, or resize the model's "
                    "embeddings for it"
                )
