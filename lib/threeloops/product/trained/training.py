"""Train a model by its recipe, with a learning curve and the course's own checkpoints. A stopped training continues."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from threeloops.models.gpt import GPT
from threeloops.product.trained.recipe import Recipe
from threeloops.training.checkpoint import Checkpointer, LocalStore

# ruff: noqa: F821  the strings are jaxtyping shapes, not forward references

__all__ = ["Row", "held_out_loss", "read_curve", "train"]

_CURVE = "curve.jsonl"


@dataclass(frozen=True)
class Row:
    """One point of a learning curve. Losses are in nats per byte."""

    step: int
    train: float  # mean since the row before
    held_out: float
    rate: float
    seconds: float  # since the training began, in all runs


def train(
    recipe: Recipe,
    text: tuple[Int[Tensor, "train"], Int[Tensor, "held_out"]],
    folder: Path,
    *,
    device: torch.device | str = "cpu",
    report: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """Train to the end, from the last checkpoint in `folder` if there is one, and return the learning curve.

    Batches depend on the seed and the step only, so an interrupted training gives the weights of an uninterrupted one.
    Raises ValueError if the text is shorter than a sequence.
    """
    from threeloops.training.checkpoint.state import TrainingState  # who serves a model starts without all of training

    tokens, held_out = text
    if min(len(tokens), len(held_out)) <= recipe.sequence:
        raise ValueError(
            f"{len(tokens)} and {len(held_out)} bytes of text: expected more than a sequence, {recipe.sequence}"
        )
    torch.manual_seed(recipe.seed)
    model = GPT(recipe.config).to(device)
    decayed = [weight for weight in model.parameters() if weight.ndim > 1]
    others = [weight for weight in model.parameters() if weight.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}],
        lr=recipe.rate,
        betas=(0.9, 0.95),
    )
    training = TrainingState(model, optimizer)
    checkpoints = Checkpointer(LocalStore(folder / "checkpoints"), keep=1, milestones=0)
    curve: list[Row] = []
    if checkpoints.store.directories():
        loaded = checkpoints.load(training.template)
        training.restore(loaded)
        curve = [row for row in read_curve(folder) if row.step <= loaded.step]
    done, began = (curve[-1].step, time.monotonic() - curve[-1].seconds) if curve else (0, time.monotonic())
    losses = []
    for step in range(done, recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = _rate(recipe, step)
        inputs, targets = _batch(recipe, tokens, step, device)
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            loss = model(inputs, targets)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        losses.append(loss.detach())
        if (step + 1) % recipe.every == 0 or step + 1 == recipe.steps:
            row = Row(
                step=step + 1,
                train=torch.stack(losses).mean().item(),
                held_out=held_out_loss(model, held_out[: 64 * recipe.sequence], recipe.sequence),
                rate=_rate(recipe, step),
                seconds=time.monotonic() - began,
            )
            losses.clear()
            curve.append(row)
            (folder / _CURVE).write_text("".join(json.dumps(asdict(row)) + "\n" for row in curve))
            checkpoints.save(step + 1, training.state())
            report(row)
    return curve


def read_curve(folder: Path) -> list[Row]:
    """The learning curve of a training in `folder`; empty if none has begun."""
    path = folder / _CURVE
    return [Row(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


@torch.inference_mode()
def held_out_loss(model: GPT, tokens: Int[Tensor, "tokens"], sequence: int) -> float:
    """Mean cross-entropy in nats per byte, in the dtype of the weights, of windows that do not overlap: each byte is
    predicted from those before it in its window, so the first of a window has no context.
    """
    device = model.head.weight.device
    windows = (len(tokens) - 1) // sequence
    inputs = tokens[: windows * sequence].view(windows, sequence).to(device, torch.int64)
    targets = tokens[1 : windows * sequence + 1].view(windows, sequence).to(device, torch.int64)
    total = sum(
        model(part, wanted).item() * len(part) for part, wanted in zip(inputs.split(16), targets.split(16), strict=True)
    )
    return total / windows


def _rate(recipe: Recipe, step: int) -> float:
    if step < recipe.warm_up:
        return recipe.rate * (step + 1) / recipe.warm_up
    done = (step - recipe.warm_up) / max(1, recipe.steps - recipe.warm_up)
    return recipe.rate * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


def _batch(recipe: Recipe, tokens: Tensor, step: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
    starts = torch.randint(len(tokens) - recipe.sequence, (recipe.batch, 1), generator=generator)
    windows = tokens[starts + torch.arange(recipe.sequence + 1)].to(device, torch.int64)
    return windows[:, :-1], windows[:, 1:]
