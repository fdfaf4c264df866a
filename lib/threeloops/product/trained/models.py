"""Trained models by name: two come with the library, and `make model` makes two more in the user's cache."""

import hashlib
import inspect
import json
import os
from dataclasses import asdict
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from threeloops.models import gpt, gpt_config, gpt_operations
from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.places import base_folder
from threeloops.product.trained import training
from threeloops.product.trained.recipe import RECIPES, Recipe
from threeloops.product.trained.text import standard_library
from threeloops.product.trained.training import read_curve
from threeloops.training.checkpoint import Checkpointer, LocalStore

__all__ = ["export", "fingerprint", "folder_of", "from_checkpoints", "trained"]

_SHIPPED = Path(__file__).parent / "weights"


def trained(name: str) -> GPT:
    """A trained model, in float32 on the CPU, in evaluation mode.

    Raises:
        KeyError: no model has this name.
        FileNotFoundError: it was not trained yet on this machine, or for another version of recipe, text or code.
    """
    if name not in RECIPES:
        raise KeyError(f"no model {name!r}: expected one of {', '.join(RECIPES)}")
    if (shipped := _SHIPPED / f"{name}.safetensors").exists():
        return _read(shipped)
    return from_checkpoints(name)


def from_checkpoints(name: str) -> GPT:
    """The model that was trained on this machine, whether or not one of this name comes with the library."""
    recipe = RECIPES[name]
    folder = folder_of(name)
    curve = read_curve(folder)
    if not curve or curve[-1].step < recipe.steps:
        raise FileNotFoundError(
            f"{folder}: {name!r} was trained for {curve[-1].step if curve else 0} of {recipe.steps} steps; "
            "`python -m threeloops.product.trained` trains it (in a checkout: `make model`)"
        )
    model = GPT(recipe.config)
    template = {f"model.{key}": value.detach() for key, value in model.state_dict().items()}
    Checkpointer(LocalStore(folder / "checkpoints")).load(template, strict=False)
    return model.eval()


def folder_of(name: str) -> Path:
    """Return the folder of a trained model, in THREELOOPS_MODELS or the user's cache. Each recipe has its own
    folder."""
    cache = base_folder("cache")
    root = Path(os.environ.get("THREELOOPS_MODELS") or cache / "threeloops" / "models")
    return root / f"{name}-{fingerprint(RECIPES[name], standard_library()[0])}"


def fingerprint(recipe: Recipe, text: Tensor) -> str:
    """16 hexadecimal digits that change with the recipe, the text and the code that makes the weights."""
    digest = hashlib.blake2b(json.dumps(asdict(recipe), sort_keys=True).encode(), digest_size=8)
    for module in (gpt, gpt_config, gpt_operations, training):
        digest.update(inspect.getsource(module).encode())
    digest.update(text.numpy().tobytes())
    return digest.hexdigest()


def export(model: GPT, path: Path, about: dict[str, str]) -> None:
    """Write the weights in float16 as one safetensors file, with the sizes and other metadata."""
    tensors = {name: value.half().contiguous() for name, value in model.state_dict().items() if name != "head.weight"}
    save_file(tensors, path, {"config": json.dumps(vars(model.config)), **about})


def _read(path: Path) -> GPT:
    with safe_open(path, "pt") as file:
        model = GPT(GPTConfig(**json.loads(file.metadata()["config"])))
        tensors = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118  not a dict
    tensors["head.weight"] = tensors["embedding.weight"]
    model.load_state_dict(tensors)
    return model.eval().requires_grad_(False)
