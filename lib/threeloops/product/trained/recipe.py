"""Recipes for training the course's models: all settings that determine the weights, as data."""

from dataclasses import dataclass
from typing import Any

from threeloops.models.gpt_config import GPTConfig

__all__ = ["RECIPES", "Recipe"]


@dataclass(frozen=True)
class Recipe:
    """A model and how it is trained: AdamW, a linear warm-up, then a cosine down to a tenth of the rate."""

    config: GPTConfig
    steps: int
    batch: int  # sequences per step
    sequence: int  # tokens
    rate: float  # peak learning rate
    warm_up: int = 100  # steps
    weight_decay: float = 0.1
    clip: float = 1.0  # norm of the gradient
    every: int = 100  # steps between two rows of the learning curve, and two checkpoints
    seed: int = 0


def _recipe(*, steps: int, batch: int, sequence: int, rate: float, **sizes: Any) -> Recipe:
    """Make a recipe. The model serves no positions beyond those it was trained on."""
    return Recipe(GPTConfig(vocabulary_size=256, max_sequence=sequence, **sizes), steps, batch, sequence, rate)


_SMALL = {"layers": 2, "heads": 4, "kv_heads": 2, "width": 96, "mlp_width": 256}
RECIPES = {
    "model": _recipe(
        steps=1800, batch=8, sequence=512, rate=3e-3, layers=6, heads=6, kv_heads=2, width=192, mlp_width=576
    ),
    "draft": _recipe(steps=1800, batch=8, sequence=512, rate=5e-3, **_SMALL),
    "tiny": _recipe(steps=800, batch=16, sequence=256, rate=5e-3, **_SMALL),
    "tiny_draft": _recipe(
        steps=800, batch=16, sequence=256, rate=8e-3, layers=1, heads=2, kv_heads=1, width=48, mlp_width=128
    ),
}
"""The recipes by name. Each tiny one trains in a minute, and its weights come with the library."""
