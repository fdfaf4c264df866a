"""What tests of elastic training share: a small model whose global batch is the same on any number of ranks, and
checkpoints in a folder."""

import os
import pickle
from pathlib import Path

import torch
import torch.distributed as dist
from threeloops.training.cluster import compute, now
from threeloops.training.data_parallel import DDP
from threeloops.training.elastic.recovery import GuardedOptimizer
from threeloops.training.sharded import ZeroOptimizer, reshard
from torch import nn

ROWS, WIDTH, CAP = 12, 5, 200 / 2**20
"""Rows of a global batch: 1, 2, 3, 4 or 6 ranks can share them."""


def model():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(WIDTH, 7), nn.Tanh(), nn.Linear(7, 3), nn.Tanh(), nn.Linear(3, 1)).double()


def batch(step):
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(step), dtype=torch.float64)


def loss_of(net, rows):
    return (net(rows) - rows.sum(1, keepdim=True)).square().mean()


def alone(steps, skip=()):
    """The oracle: one process, the whole batch. Parameters after the steps, and the loss on a further batch."""
    net = model()
    adam = torch.optim.Adam(net.parameters(), lr=0.02)
    for step in range(steps):
        adam.zero_grad()
        loss_of(net, batch(step)).backward()
        if step not in skip:
            adam.step()
    return values(net), loss_of(net, batch(10_000)).item()


def values(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()])


class Replicas:
    """DDP: every member has all of the state, and the first one saves it. A step takes `seconds`."""

    def __init__(self, members, seconds=0.0):
        self.members, self.seconds, self.net = members, seconds, model()
        self.ddp = DDP(self.net, members.group, bucket_cap_mb=CAP, first_bucket_mb=CAP)
        self.adam = torch.optim.Adam(self.net.parameters(), lr=0.02)
        self.optimizer = GuardedOptimizer(self.adam, members, lambda: [p.grad for p in self.net.parameters()])
        self.done = []

    def step(self, number):
        self.optimizer.zero_grad()
        loss = loss_of(self.ddp, batch(number)[self.members.place :: self.members.size])
        compute(self.seconds)
        loss.backward()
        self.optimizer.step()
        self.done.append((number, now()))

    def state(self):
        return (self.net.state_dict(), self.adam.state_dict()) if self.members.place == 0 else None

    def load(self, parts):
        self.net.load_state_dict(parts[0][0])
        self.adam.load_state_dict(parts[0][1])


class Shards(Replicas):
    """ZeRO-2: every member has a part of the optimizer's states."""

    def __init__(self, members, seconds=0.0):
        self.members, self.seconds, self.net = members, seconds, model()
        caps = {"bucket_cap_mb": CAP, "first_bucket_mb": CAP}
        self.adam = ZeroOptimizer(self.net, torch.optim.Adam, members.group, stage=2, lr=0.02, **caps)
        self.ddp, self.done = self.net, []
        self.optimizer = GuardedOptimizer(
            self.adam, members, lambda: [bucket.shard.grad for bucket in self.adam.buckets], replicated=False
        )

    def state(self):
        return self.adam.state_dict()

    def load(self, parts):
        self.adam.load_state_dict(reshard(parts, self.members.place, self.members.size))


class Folder:
    """A part per member, and `latest` names the last step that all members have written."""

    def __init__(self, members, folder, save_seconds=0.0, load_seconds=0.0):
        self.members, self.folder = members, Path(folder)
        self.save_seconds, self.load_seconds = save_seconds, load_seconds

    def save(self, step, part):
        compute(self.save_seconds)
        (self.folder / f"{step} {self.members.place}").write_bytes(pickle.dumps(part))
        dist.barrier(group=self.members.group)
        if self.members.place == 0:
            (self.folder / "new").write_text(f"{step} {self.members.size}")
            os.replace(self.folder / "new", self.folder / "latest")
        dist.barrier(group=self.members.group)

    def load(self):
        if not (self.folder / "latest").exists():
            return None
        compute(self.load_seconds)
        step, size = map(int, (self.folder / "latest").read_text().split())
        return step, [pickle.loads((self.folder / f"{step} {place}").read_bytes()) for place in range(size)]
