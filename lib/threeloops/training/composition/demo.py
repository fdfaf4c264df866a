"""A program for `torchrun` or `srun`: a small GPT with as many kinds of parallelism as the number of processes allows.

torchrun --nproc-per-node 8 -m threeloops.training.cluster threeloops.training.composition.demo:main --backend gloo
"""

import torch
import torch.distributed as dist

from threeloops.models.gpt_config import GPTConfig
from threeloops.training.composition.parallel_gpt import ParallelGPT
from threeloops.training.mesh import Mesh

__all__ = ["main"]

_STEPS = 5
_BATCH = 4
_TOKENS = 32
_MICROBATCHES = 4


def main() -> str:
    """Train on a text that repeats itself; says the mesh and the losses of the last stage."""
    mesh = _mesh_for(dist.get_world_size())
    trainer = ParallelGPT(GPTConfig.tiny(), mesh, _MICROBATCHES)
    optimizer = torch.optim.AdamW(trainer.parameters(), lr=1e-2)
    place = mesh.coordinates(dist.get_rank())
    losses = torch.zeros(_STEPS)
    for step in range(_STEPS):
        generator = torch.Generator().manual_seed(1000 * step + place["dp"])
        text = torch.randint(0, 8, (_BATCH, 1), generator=generator) + torch.arange(_TOKENS + 1) % 8
        optimizer.zero_grad()
        loss = trainer.step(text[:, :-1], text[:, 1:])
        optimizer.step()
        if loss is not None:
            losses[step] = loss / (mesh.axes["dp"] * mesh.axes["tp"])  # once for each rank of the last stage
    dist.all_reduce(losses)
    return f"{mesh}, mean losses {', '.join(f'{loss:.3f}' for loss in losses.tolist())}"


def _mesh_for(ranks: int) -> Mesh:
    """Choose a mesh with two ranks per axis if there are enough ranks: first tp, then pp. The rest is dp."""
    tp = 2 if ranks % 2 == 0 else 1
    pp = 2 if ranks % 4 == 0 else 1
    return Mesh(pp=pp, dp=ranks // (pp * tp), tp=tp)
