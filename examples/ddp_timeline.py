"""Train with torch's own DDP on 4 virtual GPUs, and draw how its all-reduces overlap with the backward pass."""

import torch
import torch.distributed as dist
from threeloops.training.cluster import Cluster, compute, one_node
from threeloops.training.cluster.pictures import gantt
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Layer(nn.Linear):
    def forward(self, x):
        compute(1e-3, "forward")  # what one layer takes on your GPU: computation is charged, and not timed
        out = super().forward(x)
        out.register_hook(lambda gradient: compute(2e-3, "backward"))
        return out


def program():
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer(1024, 1024) for _ in range(4)))
    ddp = DistributedDataParallel(model, bucket_cap_mb=4)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())  # other data on each rank
    ddp(torch.randn(8, 1024)).square().mean().backward()
    optimizer.step()
    return sum(p.sum().item() for p in model.parameters())


run = Cluster(one_node("H100 SXM", 4)).run(program)
print(f"one step takes {run.seconds * 1e3:.2f} ms, of which 12 ms are computation")
print(f"all ranks have the same parameters: {len(set(run.results)) == 1}")
gantt(run).savefig("ddp.svg")
print("the timeline of each rank: ddp.svg")
