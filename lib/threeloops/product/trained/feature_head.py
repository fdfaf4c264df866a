"""Train an extra layer that guesses for a trained model, and load the one that comes with the library.

It learns to make the model's features of the next position, and the distribution that the model makes of them (EAGLE,
section 3.2: smooth L1 and cross-entropy). The model itself stays as it is. One step in three also trains the second
guess, which reads the layer's own features.
"""

from pathlib import Path

import torch
from jaxtyping import Int
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from threeloops.models.gpt import GPT
from threeloops.product.decode.feature_head import FeatureHead
from threeloops.product.trained.models import trained
from threeloops.product.trained.text import standard_library

__all__ = ["trained_feature_head"]

# ruff: noqa: F821  the strings are jaxtyping shapes, not forward references

_SHIPPED = Path(__file__).parent / "weights" / "features" / "tiny.safetensors"
_RATE = 8e-3
_WARM_UP = 20


def trained_feature_head() -> FeatureHead:
    """The extra layer of the model "tiny", in float32 on the CPU, in evaluation mode."""
    head = FeatureHead(trained("tiny").config)
    head.load_state_dict({name: value.float() for name, value in load_file(_SHIPPED).items()})
    return head.eval().requires_grad_(False)


def _train(model: GPT, text: Int[Tensor, "train"], steps: int, *, batch: int = 8, sequence: int = 128) -> FeatureHead:
    """Train a head for `model` on `text`. It begins as a copy of the model's last layer.

    Batches depend on the step only, so equal calls give equal weights.
    """
    torch.manual_seed(0)
    head = FeatureHead(model.config)
    head.block.load_state_dict(model.blocks[-1].state_dict())
    head.norm.load_state_dict(model.norm.state_dict())
    optimizer = torch.optim.AdamW(head.parameters(), lr=_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = _RATE * min(1.0, (step + 1) / _WARM_UP) * (1.02 - step / steps)
        generator = torch.Generator().manual_seed(step)
        starts = torch.randint(len(text) - sequence, (batch, 1), generator=generator)
        loss = _loss(model, head, text[starts + torch.arange(sequence)].long(), depth=2 if step % 3 == 2 else 1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return head.eval().requires_grad_(False)


def _loss(model: GPT, head: FeatureHead, tokens: Tensor, depth: int) -> Tensor:
    with torch.no_grad():
        targets = model.hidden(tokens)
        embedded = model.embedding(tokens)
        chances = model.head(targets).softmax(-1)
    features = targets
    losses = []
    for step in range(depth):
        follow = embedded[:, step + 1 :]
        features = head(features[:, : follow.shape[1]], follow, model.rotation(step, follow.shape[1]))
        log_chances = model.head(features).log_softmax(-1)
        losses.append(-(chances[:, step + 1 :] * log_chances).sum(-1).mean())
        losses.append(functional.smooth_l1_loss(features, targets[:, step + 1 :]))
    return torch.stack(losses).sum()


if __name__ == "__main__":
    tiny = trained("tiny")
    seen, unseen = standard_library()
    layer = _train(tiny, seen, steps=1200)
    share = layer.acceptance(tiny, unseen[: 64 * 128].view(64, 128).long())
    _SHIPPED.parent.mkdir(exist_ok=True)
    tensors = {name: value.half().contiguous() for name, value in layer.state_dict().items()}
    save_file(tensors, _SHIPPED, {"acceptance": f"{share:.3f}"})
