"""Messages from rank to rank."""

import torch
import torch.distributed as dist

from programs import program
from programs.costs import ALPHA, BETA, Cost, message


def _neighbours():
    rank, world = dist.get_rank(), dist.get_world_size()
    return rank, world, (rank + 1) % world, (rank - 1) % world


@program(ranks=2, cost=message(12) * 2)
def ping_pong():
    """Send a tensor to the other rank and back."""
    x = torch.arange(3.0)
    if dist.get_rank() == 0:
        dist.send(x, dst=1)
        dist.recv(x, src=1)
    else:
        dist.recv(x, src=0)
        dist.send(x * 2, dst=0)
    return x.tolist()


@program(ranks=4, cost=message(8, at_once=4) * 3)
def ring_of_batched_messages():
    """Pass blocks around a ring with batch_isend_irecv."""
    rank, world, following, previous = _neighbours()
    block, total = torch.tensor([rank, rank * 10.0]), torch.zeros(2)
    for step in range(world):
        total += block * (step + 1)
        if step < world - 1:
            received = torch.empty(2)
            operations = [dist.P2POp(dist.isend, block, following), dist.P2POp(dist.irecv, received, previous)]
            for handle in dist.batch_isend_irecv(operations):
                handle.wait()
            block = received
    return total.tolist()


@program(ranks=2, cost=Cost(ALPHA + 3 * 8 / BETA, 3 * 8))
def tags_in_another_order():
    """Receive messages by tag, not in the order in which they were sent."""
    if dist.get_rank() == 0:
        handles = [dist.isend(torch.full((2,), float(tag)), dst=1, tag=tag) for tag in (3, 5, 8)]
        for handle in handles:
            handle.wait()
        return None
    found = {}
    for tag in (8, 3, 5):
        x = torch.zeros(2)
        dist.recv(x, src=0, tag=tag)
        found[tag] = x.tolist()
    return found


@program(ranks=3, refused="no recv_anysource: name the rank to receive from", gloo_runs=True)
def receive_from_any_rank():
    """Receive from any rank, and learn which one sent."""
    if dist.get_rank():
        dist.send(torch.tensor([10.0 * dist.get_rank()]), dst=0)
        return None
    found = {}
    for _ in range(2):
        x = torch.zeros(1)
        source = dist.recv(x)
        found[source] = x.item()
    return sorted(found.items())


@program(ranks=3)
def parameter_server():
    """Rank 0 serves parameters to workers, which push gradients."""
    rank, world = dist.get_rank(), dist.get_world_size()
    weights = torch.ones(4)
    for step in range(3):
        if rank == 0:
            for worker in range(1, world):
                dist.send(weights, dst=worker)
            for worker in range(1, world):
                gradient = torch.empty(4)
                dist.recv(gradient, src=worker)
                weights -= 0.1 * gradient
        else:
            dist.recv(weights, src=0)
            dist.send((weights - rank) * (step + 1), dst=0)
    return weights.tolist()


@program(ranks=4, cost=message(16, at_once=2) + message(16))
def tree_reduction():
    """Write a reduction along a binary tree."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x, step = torch.arange(4.0) + rank, 1
    while step < world:
        if rank % (2 * step) == step:
            dist.send(x, dst=rank - step)
            break
        other = torch.empty(4)
        dist.recv(other, src=rank + step)
        x, step = x + other, 2 * step
    return x.tolist()


@program(ranks=4, cost=message(16, at_once=4) * 2)
def butterfly_all_reduce():
    """Write an all-reduce by recursive doubling."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x, distance = torch.arange(4.0) + rank, 1
    while distance < world:
        received = torch.empty(4)
        sent = dist.isend(x, rank ^ distance)
        dist.recv(received, rank ^ distance)
        sent.wait()
        x, distance = x + received, 2 * distance
    return x.tolist()


@program(ranks=4, cost=message(8, at_once=4) * 6)
def ring_all_reduce_by_hand():
    """Write the ring all-reduce with isend and recv: reduce-scatter and all-gather."""
    rank, world, following, previous = _neighbours()
    chunks = list((torch.arange(8.0) + rank).chunk(world))
    for step in range(2 * (world - 1)):
        out, into = (rank - step) % world, (rank - step - 1) % world
        received = torch.empty(2)
        sent = dist.isend(chunks[out], following)
        dist.recv(received, previous)
        sent.wait()
        chunks[into] = chunks[into] + received if step < world - 1 else received
    return torch.cat(chunks).tolist()


@program(ranks=3, cost=Cost(2 * ALPHA + 5 * 12 / BETA, 2 * 4 * 12))
def pipelined_ring_broadcast():
    """Broadcast along a chain in pieces, so that all links are busy."""
    rank, world, _, _ = _neighbours()
    data = torch.arange(12.0) if rank == 0 else torch.zeros(12)
    handles = []
    for piece in data.chunk(4):
        if rank > 0:
            dist.recv(piece, src=rank - 1)
        if rank < world - 1:
            handles.append(dist.isend(piece, dst=rank + 1))
    for handle in handles:
        handle.wait()
    return data.tolist()


@program(ranks=3)
def halo_exchange():
    """Exchange the edges of a stencil with both neighbours, and smooth the inside."""
    rank, world, _, _ = _neighbours()
    field = torch.zeros(6)
    field[1:-1] = torch.arange(4.0) + 4 * rank
    for _ in range(2):
        operations = []
        if rank > 0:
            operations += [
                dist.P2POp(dist.isend, field[1:2].clone(), rank - 1),
                dist.P2POp(dist.irecv, field[0:1], rank - 1),
            ]
        if rank < world - 1:
            operations += [
                dist.P2POp(dist.isend, field[-2:-1].clone(), rank + 1),
                dist.P2POp(dist.irecv, field[-1:], rank + 1),
            ]
        for handle in dist.batch_isend_irecv(operations):
            handle.wait()
        field[1:-1] = (field[:-2] + field[1:-1] + field[2:]) / 3
    return field.tolist()


@program(ranks=2)
def shape_before_the_tensor():
    """Send the shape of a tensor before the tensor."""
    if dist.get_rank() == 0:
        x = torch.arange(6.0).reshape(1, 2, 3)
        dist.send(torch.tensor(x.dim()), dst=1)
        dist.send(torch.tensor(x.shape), dst=1)
        dist.send(x, dst=1)
        return x.tolist()
    dimensions = torch.zeros((), dtype=torch.int64)
    dist.recv(dimensions, src=0)
    shape = torch.zeros(int(dimensions), dtype=torch.int64)
    dist.recv(shape, src=0)
    x = torch.empty(*shape.tolist())
    dist.recv(x, src=0)
    return x.tolist()


@program(ranks=3)
def messages_within_a_group():
    """Send within a group to a rank of that group."""
    group = dist.new_group([1, 2])
    x = torch.full((2,), float(dist.get_rank()))
    if dist.get_rank() == 1:
        dist.send(x, group=group, group_dst=1)
    elif dist.get_rank() == 2:
        dist.recv(x, group=group, group_src=0)
    return x.tolist()


@program(ranks=2)
def batched_messages_with_tags():
    """Exchange two tensors in one batch, told apart by their tags."""
    other = 1 - dist.get_rank()
    out = [torch.full((2,), 10.0 * dist.get_rank() + k) for k in range(2)]
    into = [torch.empty(2) for _ in range(2)]
    operations = [dist.P2POp(dist.isend, x, other, tag=k) for k, x in enumerate(out)]
    operations += [dist.P2POp(dist.irecv, x, other, tag=k) for k, x in enumerate(into)]
    for handle in dist.batch_isend_irecv(operations):
        handle.wait()
    return [x.tolist() for x in into]


@program(ranks=2)
def messages_of_other_dtypes():
    """Send booleans, integers and bfloat16."""
    found = []
    for dtype in (torch.bool, torch.int64, torch.bfloat16):
        x = torch.tensor([1, 0, 1]).to(dtype)
        if dist.get_rank() == 0:
            dist.send(x, dst=1)
        else:
            x.zero_()
            dist.recv(x, src=0)
        found.append(x.tolist())
    return found
