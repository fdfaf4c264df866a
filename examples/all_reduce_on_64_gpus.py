"""All-reduce 4 MiB on 64 virtual GPUs in 8 nodes, and draw who sends how much to whom."""

import torch
import torch.distributed as dist
from threeloops.training.cluster import Cluster, read_topology
from threeloops.training.cluster.pictures import link_matrix


def program():
    gradient = torch.full((1 << 20,), float(dist.get_rank()))
    dist.all_reduce(gradient)
    return gradient[0].item()


run = Cluster(read_topology("8 x 8 x H100 SXM")).run(program)
print(f"every rank has {set(run.results)}, after {run.seconds * 1e3:.2f} ms on {run.topology.name}")
print(f"{len(run.messages)} messages, {sum(map(sum, run.bytes)) / 2**30:.2f} GiB in all")
link_matrix(run).savefig("all_reduce.svg")
print("who sends how much to whom: all_reduce.svg")
