"""A program that survives its workers and its nodes: a small GPT that saves, and resumes from what it saved.

torchrun --standalone --nproc-per-node 4 --max-restarts 3 -m threeloops.training.elastic.demo FOLDER

Kill one of its workers (FOLDER holds their process numbers), and torchrun starts all of them again. With two agents
that meet at one endpoint (`--nnodes 1:2 --rdzv-backend c10d --rdzv-endpoint host:port`) kill one with its workers, and
the other goes on alone. FOLDER/log.jsonl has the loss of each step, whoever computed it.

Set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for the agents. By default workers share the agent's store, where addresses of
the workers before them are left under the same names: after a restart gloo finds those, and fails with "connection
refused", until the restarts are used up (pytorch/pytorch issue 135712 is about the same with NCCL).
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from threeloops.models.gpt import GPT
from threeloops.models.gpt_config import GPTConfig
from threeloops.training.checkpoint import Checkpointer, LocalStore
from threeloops.training.checkpoint.state import TrainingState
from threeloops.training.cluster.real import leave_process_groups
from threeloops.training.data_parallel import DDP
from threeloops.training.elastic.grace import RESUME_ME, Grace

__all__ = ["main", "train"]

_SEQUENCES = 12
_TOKENS = 16
"""The size of a global batch, which 1, 2, 3, 4, 6 or 12 ranks can share equally."""


def main() -> None:
    """One worker, as torchrun starts it."""
    parser = argparse.ArgumentParser(prog="python -m threeloops.training.elastic.demo", description=__doc__)
    parser.add_argument("folder", type=Path, help="for checkpoints and the log")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=5, help="steps between two checkpoints")
    parser.add_argument("--step-seconds", type=float, default=0.0, help="make each step so much longer")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    done = train(options.folder, options.steps, options.every, options.step_seconds)
    leave_process_groups()
    sys.exit(0 if done else RESUME_ME)


def train(folder: Path, steps: int, every: int, step_seconds: float = 0.0) -> bool:
    """Go on from the last checkpoint in the folder, to the end or until a SIGTERM; says whether it was the end."""
    rank = dist.get_rank()
    ranks = dist.get_world_size()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"rank {rank}").write_text(str(os.getpid()))
    torch.manual_seed(0)
    model = DDP(GPT(GPTConfig.tiny(max_sequence=_TOKENS)).double())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    training = TrainingState(model, optimizer)
    checkpoints = Checkpointer(LocalStore(folder / "checkpoints"), milestones=0)
    done = 0
    if checkpoints.store.directories():
        loaded = checkpoints.load(training.template)
        training.restore(loaded)
        done = loaded.step
    with Grace() as grace:
        for number in range(done, steps):
            tokens = _batch(number)[rank::ranks]
            logits = model(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(step_seconds)
            mean = loss.detach() / ranks
            dist.all_reduce(mean)
            if rank == 0:
                _log(folder, step=number, loss=mean.item(), ranks=ranks)
            ends = grace.agreed()
            if ends or (number + 1) % every == 0 or number + 1 == steps:
                checkpoints.save(number + 1, training.state())
            if ends and number + 1 < steps:
                return False
    return True


def _batch(number: int) -> Tensor:
    """Texts that count upwards from random letters, the same for a step on any number of ranks."""
    first = torch.randint(0, 200, (_SEQUENCES, 1), generator=torch.Generator().manual_seed(number))
    return first + torch.arange(_TOKENS + 1) % 8


def _log(folder: Path, **what: Any) -> None:
    with open(folder / "log.jsonl", "a") as file:
        file.write(json.dumps({**what, "restarts": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))}) + "\n")


if __name__ == "__main__":
    main()
