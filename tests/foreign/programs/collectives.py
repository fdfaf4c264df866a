"""Collectives, blocking and asynchronous."""

import datetime
import time

import torch
import torch.distributed as dist

from programs import program
from programs.costs import (
    all_gather,
    all_reduce,
    all_to_all,
    barrier,
    broadcast,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)

_FOUR = all_reduce(4, 4 * 4)


@program(ranks=4, cost=_FOUR + _FOUR + _FOUR)
def sum_max_and_min():
    """Reduce a tensor with SUM, MAX and MIN."""
    rank = dist.get_rank()
    results = []
    for operation in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN):
        x = torch.tensor([1.0, -2.0, 3.0, 0.5]) * (rank + 1)
        dist.all_reduce(x, op=operation)
        results.append(x.tolist())
    return results


@program(ranks=3, cost=all_reduce(3, 3 * 8))
def product():
    """Multiply integers of all ranks with PRODUCT."""
    x = torch.tensor([2, 3, 5]) ** dist.get_rank()
    dist.all_reduce(x, op=dist.ReduceOp.PRODUCT)
    return x.tolist()


@program(ranks=2)
def bitwise_and():
    """Combine flags of all ranks with BAND, BOR and BXOR."""
    results = []
    for operation in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
        flags = torch.tensor([0b1100, 0b1010], dtype=torch.int32) >> dist.get_rank()
        dist.all_reduce(flags, op=operation)
        results.append(flags.tolist())
    return results


@program(ranks=2)
def average():
    """Take the mean of a tensor with AVG."""
    x = torch.arange(4.0) * (dist.get_rank() + 1)
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    return x.tolist()


@program(ranks=4, cost=reduce(4, 64) + broadcast(4, 64))
def reduce_to_root_and_broadcast():
    """Reduce to rank 0 and broadcast the result, as an all-reduce by hand."""
    x = torch.arange(16.0) * (dist.get_rank() + 1)
    dist.reduce(x, dst=0)
    dist.broadcast(x, src=0)
    return x.tolist()


@program(ranks=3, cost=gather(3, 8) + scatter(3, 8))
def gather_to_rank_0_and_scatter_back():
    """Gather on rank 0, process there, and scatter the parts."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = torch.tensor([rank, rank * 10.0])
    parts = [torch.zeros(2) for _ in range(world)] if rank == 0 else None
    dist.gather(mine, parts, dst=0)
    if rank == 0:
        parts = [part * 2 for part in reversed(parts)]
    out = torch.zeros(2)
    dist.scatter(out, parts, src=0)
    return out.tolist()


@program(ranks=4, cost=all_gather(4, 4) + all_gather(4, 4 * 3))
def all_gather_of_uneven_tensors():
    """Gather tensors of different lengths: exchange the lengths, pad, and cut."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = torch.full((rank,), float(rank))
    lengths = [torch.zeros(1, dtype=torch.int32) for _ in range(world)]
    dist.all_gather(lengths, torch.tensor([len(mine)], dtype=torch.int32))
    longest = max(int(length) for length in lengths)
    padded = torch.nn.functional.pad(mine, (0, longest - len(mine)))
    outputs = [torch.zeros(longest) for _ in range(world)]
    dist.all_gather(outputs, padded)
    return [out[: int(length)].tolist() for out, length in zip(outputs, lengths, strict=True)]


@program(ranks=2, cost=all_gather(2, 16))
def all_gather_into_one_tensor():
    """Gather into one concatenated tensor."""
    x = torch.arange(4.0).reshape(2, 2) + 10 * dist.get_rank()
    joined = torch.zeros(4, 2)
    dist.all_gather_into_tensor(joined, x)
    return joined.tolist()


@program(ranks=4, cost=reduce_scatter(4, 4 * 8) + reduce_scatter(4, 4 * 8))
def reduce_scatter_in_both_forms():
    """Reduce-scatter one tensor, and a list of tensors."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x = torch.arange(8.0) * (rank + 1)
    one, two = torch.zeros(2), torch.zeros(2)
    dist.reduce_scatter_tensor(one, x)
    dist.reduce_scatter(two, list(x.chunk(world)), op=dist.ReduceOp.MAX)
    return one.tolist(), two.tolist()


@program(ranks=4, cost=all_to_all(4, 4))
def all_to_all_transposes():
    """Transpose a distributed matrix with all_to_all_single."""
    rank, world = dist.get_rank(), dist.get_world_size()
    row = torch.arange(world, dtype=torch.float32) + 10 * rank
    column = torch.empty(world)
    dist.all_to_all_single(column, row)
    return column.tolist()


@program(ranks=3, cost=all_to_all(3, 8))
def all_to_all_of_lists():
    """Exchange a list of tensors with all_to_all."""
    rank, world = dist.get_rank(), dist.get_world_size()
    given = [torch.tensor([10.0 * rank + to, -1.0]) for to in range(world)]
    taken = [torch.zeros(2) for _ in range(world)]
    dist.all_to_all(taken, given)
    return [each.tolist() for each in taken]


@program(ranks=3)
def all_to_all_with_split_sizes():
    """Exchange parts of different sizes with all_to_all_single."""
    rank, world = dist.get_rank(), dist.get_world_size()
    gives, takes = [rank + to for to in range(world)], [source + rank for source in range(world)]
    out = torch.zeros(sum(takes))
    dist.all_to_all_single(out, torch.arange(float(sum(gives))) + 100 * rank, takes, gives)
    return out.tolist()


@program(ranks=2, cost=all_reduce(2, 32) * 3)
def asynchronous_all_reduces():
    """Start several all-reduces and wait for their handles in a different order."""
    tensors = [torch.full((8,), float(k + dist.get_rank())) for k in range(3)]
    handles = [dist.all_reduce(x, async_op=True) for x in tensors]
    for handle in reversed(handles):
        handle.wait()
    return [x[0].item() for x in tensors]


@program(ranks=2, cost=all_reduce(2, 32))
def futures_with_callbacks():
    """Divide the result of an asynchronous all-reduce in a callback of its future."""
    world = dist.get_world_size()
    x = torch.arange(8.0) + dist.get_rank()
    future = dist.all_reduce(x, async_op=True).get_future()
    mean = future.then(lambda done: [value / world for value in done.value()]).then(lambda done: done.value()[0] + 1)
    return mean.wait().tolist()


@program(ranks=2, cost=all_gather(2, 8))
def asynchronous_all_gather_with_work_between():
    """Compute while an all-gather is under way, and wait before its result is used."""
    out = [torch.zeros(2) for _ in range(2)]
    handle = dist.all_gather(out, torch.ones(2) * dist.get_rank(), async_op=True)
    local = (torch.arange(9.0).reshape(3, 3) @ torch.ones(3)).sum().item()
    handle.wait()
    return local, torch.stack(out).tolist()


@program(ranks=3, cost=barrier(3) + barrier(3))
def barriers():
    """Wait for all ranks, blocking and with a handle."""
    dist.barrier()
    dist.barrier(async_op=True).wait()
    return dist.get_rank()


@program(ranks=2)
def monitored_barrier():
    """Wait for all ranks with monitored_barrier."""
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=20))
    x = torch.ones(1)
    dist.all_reduce(x)
    return x.item()


@program(ranks=2)
def coalesced_all_reduce():
    """Reduce several tensors in one call of all_reduce_coalesced."""
    tensors = [torch.ones(3) * dist.get_rank(), torch.full((2, 2), 4.0)]
    dist.all_reduce_coalesced(tensors)
    return [x.tolist() for x in tensors]


@program(ranks=2)
def every_dtype():
    """Reduce every dtype that training uses, including bfloat16 and int8."""
    results = []
    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64):
        x = torch.tensor([1, 2, 3], dtype=dtype) * (dist.get_rank() + 1)
        dist.all_reduce(x)
        results.append(x.tolist())
    return results


@program(ranks=2)
def boolean_flags():
    """Gather boolean masks, and reduce a flag with MAX as an integer."""
    mask = torch.tensor([True, False]) ^ bool(dist.get_rank())
    masks = [torch.zeros(2, dtype=torch.bool) for _ in range(2)]
    dist.all_gather(masks, mask)
    found = torch.tensor(int(dist.get_rank() == 1))
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return [each.tolist() for each in masks], bool(found)


@program(ranks=2)
def a_scalar_tensor():
    """Reduce a zero-dimensional loss, and gather it."""
    loss = torch.tensor(0.25 * (1 + dist.get_rank()))
    losses = [torch.zeros(()) for _ in range(2)]
    dist.all_gather(losses, loss)
    dist.all_reduce(loss)
    return loss.item(), [each.item() for each in losses]


@program(ranks=2)
def complex_numbers():
    """Reduce complex numbers."""
    x = torch.tensor([1 + 2j, -1j]) * (dist.get_rank() + 1)
    dist.all_reduce(x)
    return torch.view_as_real(x).tolist()


@program(ranks=2)
def a_part_of_a_larger_tensor():
    """Broadcast into rows of a buffer in place."""
    buffer = torch.arange(12.0).reshape(4, 3) * (1 + dist.get_rank())
    dist.broadcast(buffer[1:3], src=1)
    return buffer.tolist()


@program(ranks=2, refused="sends dense tensors of the CPU", gloo_runs=True)
def sparse_all_reduce():
    """Add sparse tensors of an embedding's gradient."""
    rank = dist.get_rank()
    x = torch.sparse_coo_tensor([[rank, 2]], [1.0, 2.0 + rank], (4,))
    dist.all_reduce(x)
    return x.to_dense().tolist()


@program(ranks=2)
def collectives_within_a_coalescing_manager():
    """Start several all-reduces within _coalescing_manager."""
    tensors = [torch.ones(3) * dist.get_rank(), torch.full((2,), 4.0)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for x in tensors:
            dist.all_reduce(x)
    manager.wait()
    return [x.tolist() for x in tensors]


@program(ranks=2)
def collectives_in_inference_mode():
    """Reduce and gather tensors in inference mode."""
    with torch.inference_mode():
        x = torch.arange(4.0) + dist.get_rank()
        dist.all_reduce(x)
        parts = [torch.empty(4) for _ in range(2)]
        dist.all_gather(parts, x)
    return torch.stack(parts).tolist()


@program(ranks=2)
def parameters_in_place():
    """Broadcast a parameter under no_grad, and reduce its data."""
    weight = torch.nn.Parameter(torch.full((3,), float(dist.get_rank())))
    with torch.no_grad():
        dist.broadcast(weight, src=1)
    dist.all_reduce(weight.data, op=dist.ReduceOp.AVG)
    return weight.tolist(), weight.requires_grad


@program(ranks=2)
def polling_a_handle():
    """Ask a handle whether the collective is complete, and go on when it is."""
    x = torch.arange(4.0) + dist.get_rank()
    handle = dist.all_reduce(x, async_op=True)
    while not handle.is_completed():
        time.sleep(1e-3)
    handle.wait()
    return x.tolist()
