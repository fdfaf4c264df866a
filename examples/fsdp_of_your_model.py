"""Shard a model of your own with torch's FSDP on 4 virtual GPUs: what each rank holds, sends, and computes."""

import torch
from threeloops.training.cluster import Cluster, one_node
from torch import nn
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def program(shard):
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(128) for _ in range(4)))
    if shard:
        for block in model:
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        loss = model(torch.ones(8, 128)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item(), sum((p.to_local() if shard else p).numel() for p in model.parameters())


for shard in (False, True):
    run = Cluster(one_node("H100 SXM", 4)).run(program, shard)
    loss, elements = run.results[0]
    name = "sharded" if shard else "whole"
    print(f"{name:7}  rank 0 holds {elements:,} parameters and sends {sum(run.bytes[0]):,} bytes, loss {loss:.3f}")
