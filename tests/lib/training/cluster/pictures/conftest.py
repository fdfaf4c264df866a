"""Runs that the pictures are tested on, each made once: what data parallelism, a pipeline and two nodes do."""

import pytest
import torch
import torch.distributed as dist
from threeloops.training.cluster import Cluster, compute, fabric, uniform


def data_parallel():
    """Eight layers, their gradients reduced in pairs while the backward pass goes on."""
    rank = dist.get_rank()
    for layer in range(8):
        compute(1e-4, f"forward {layer}")
    pending = []
    for layer in reversed(range(8)):
        compute(2e-4, f"backward {layer}")
        if layer % 2 == 0:
            pending.append(dist.all_reduce(torch.full((1 << 17,), float(rank)), async_op=True))
    for work in pending:
        work.wait()
    compute(1e-6, "step")


def pipeline():
    """Two microbatches through all ranks and back: point-to-point messages alone."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    x, pending = torch.zeros(1 << 14), []
    for microbatch in range(2):
        if rank > 0:
            dist.recv(x, rank - 1)
        compute(1e-3, f"F{microbatch}")
        if rank < last:
            pending.append(dist.isend(x.clone(), rank + 1))
    for microbatch in range(2):
        if rank < last:
            dist.recv(x, rank + 1)
        compute(2e-3, f"B{microbatch}")
        if rank > 0:
            pending.append(dist.isend(x.clone(), rank - 1))
    for work in pending:
        work.wait()


def two_nodes():
    """Reduce-scatter inside a node, all-reduce across, and the first node alone has a barrier."""
    node, place = divmod(dist.get_rank(), 4)
    inside = [dist.new_group([4 * n + k for k in range(4)]) for n in range(2)][node]
    across = [dist.new_group([k, 4 + k]) for k in range(4)][place]
    part = torch.empty(1 << 12)
    dist.reduce_scatter_tensor(part, torch.ones(1 << 14), group=inside)
    dist.all_reduce(part, group=across)
    if node == 0:
        dist.barrier(group=inside)
        compute(1e-5)


@pytest.fixture(scope="session")
def runs():
    return {
        "data parallel": Cluster(uniform(4)).run(data_parallel),
        "pipeline": Cluster(uniform(3)).run(pipeline),
        "two nodes": Cluster(fabric(2, 4)).run(two_nodes),
    }
