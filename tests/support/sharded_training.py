"""What tests of sharded training share: small models, and training of them."""

import torch
import torch.distributed as dist
from threeloops.training.data_parallel import DDP
from threeloops.training.sharded import FSDP, ZeroOptimizer
from torch import nn

STEPS = 20


class Layer(nn.Module):
    """A weight and a bias."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return self.linear(x).tanh()


def layers(width, count=4, dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(*[Layer(width) for _ in range(count)]).to(dtype)


def layer_mb(width, dtype=torch.float32):
    """A bucket of one layer."""
    return (width * width + width) * dtype.itemsize / 2**20


def batch(rank, step, width, dtype=torch.float32, rows=3):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(1000 * step + rank), dtype=dtype)


def loss_of(output):
    return output.square().mean()


def values(module):
    return [p.detach().clone() for p in module.parameters()]


def train(how, width, dtype=torch.float32, steps=STEPS, clip=None, buckets=1, units=None, **options):
    """The parameters after some steps of Adam, data-parallel: `how` is "ddp", 1, 2 or 3. A bucket is `buckets` layers,
    and a unit one."""
    model, cap = layers(width, dtype=dtype), buckets * layer_mb(width, dtype)
    caps = {"bucket_cap_mb": cap, "first_bucket_mb": cap}
    if how == "ddp":
        wrapped = DDP(model, **caps)
        updater = torch.optim.Adam(wrapped.parameters(), lr=0.01)
    elif how == 3:
        wrapped = FSDP(model, model if units is None else units, **options)
        updater = torch.optim.Adam(wrapped.parameters(), lr=0.01)
    else:
        wrapped, updater = model, ZeroOptimizer(model, torch.optim.Adam, stage=how, lr=0.01, **caps, **options)
    for step in range(steps):
        updater.zero_grad()
        loss_of(wrapped(batch(dist.get_rank(), step, width, dtype))).backward()
        if clip is not None and how == "ddp":
            nn.utils.clip_grad_norm_(wrapped.parameters(), clip)
        elif clip is not None:
            (wrapped if how == 3 else updater).clip_grad_norm(clip)
        updater.step()
    if how != 3:
        return values(model)
    with wrapped.full_parameters():
        return values(model)


def alone(ranks, width, dtype=torch.float64, steps=STEPS, clip=None):
    """The same in one process, on the batches of all ranks one after the other."""
    model = layers(width, dtype=dtype)
    updater = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(steps):
        updater.zero_grad()
        loss_of(model(torch.cat([batch(rank, step, width, dtype) for rank in range(ranks)]))).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        updater.step()
    return values(model)
