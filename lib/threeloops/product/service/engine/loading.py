"""Load the model that an operator names, with the dtype and the bits of its weights, and the engine around it."""

import hashlib
from contextlib import suppress
from pathlib import Path

import torch

from threeloops.models.gpt import GPT
from threeloops.models.llama_folder import load_llama_folder
from threeloops.product.batching import BlockManager, Engine, Policy
from threeloops.product.decode import ModelRunner
from threeloops.product.grammar import Grammars
from threeloops.product.quantized import Scheme, quantize
from threeloops.product.quantized.gguf import load_gguf
from threeloops.product.request import Finish, Request, Sampling
from threeloops.product.service.engine.counting import CountingExecutor
from threeloops.product.service.engine.messages import EngineSpec
from threeloops.product.text import ByteTokenizer, Tokenizer, load_tokenizer
from threeloops.product.trained import RECIPES, trained
from threeloops.resident import use_huge_pages

__all__ = ["files_of", "fingerprint", "load_engine", "words_of"]


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


def _load_model(spec: EngineSpec, files: str) -> GPT:
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


def _check_tokens(tokenizer: Tokenizer, vocabulary: int) -> None:
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


def _grammars_of(files: str, vocabulary: int) -> Grammars | None:
    """Return the compiler for grammars, or None if this model cannot follow grammars. The front then refuses them.

    A model cannot if llguidance is not installed, or if its tokenizer has no end token, because an answer could not end
    where its grammar ends.
    """
    tokenizer = load_tokenizer(files) if files else ByteTokenizer()
    _check_tokens(tokenizer, vocabulary)
    ends = sorted(tokenizer.end_tokens)
    if not ends:
        return None
    with suppress(ImportError):
        return Grammars([tokenizer.piece(token) for token in range(vocabulary)], ends)
    return None


def fingerprint(model: GPT) -> str:
    """Return a hash of the sizes and all weights, in hexadecimal."""
    digest = hashlib.blake2b(repr(model.config).encode(), digest_size=16)
    for name, weight in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.cpu().contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()


def load_engine(spec: EngineSpec, files: str) -> tuple[Engine, GPT]:
    """Load the engine and run a first request, so that no client waits for torch's setup on its first call.

    Its prompt has two tokens, because weights are copied in one way for a single row and in another for several.
    """
    if spec.threads:
        torch.set_num_threads(spec.threads)
    model = _load_model(spec, files)
    grammars = _grammars_of(files, model.config.vocabulary_size)
    runner = ModelRunner(model, spec.blocks, spec.block_size, grammars=grammars)
    blocks = BlockManager(spec.blocks, spec.block_size)
    policy = Policy(max_running=spec.max_running, token_budget=spec.token_budget)
    warm_up = Request("warm-up", (0, 0), Sampling(max_tokens=2))
    Engine(runner, blocks, policy).run([warm_up])
    if warm_up.finish is Finish.ERROR:  # a version that answers nobody must not replace one that does
        raise ValueError(f"it cannot generate: {warm_up.error}")
    if model.head.weight.is_cpu:  # a step on a GPU does not read the weights from here
        use_huge_pages()
    return Engine(CountingExecutor(runner), blocks, policy), model


def words_of(error: Exception) -> str:
    """Return the message of an error, with its type unless it is one that operators cause."""
    words = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    return words if isinstance(error, ValueError | FileNotFoundError) else f"{type(error).__name__}: {words}"
