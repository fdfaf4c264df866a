"""Data loading, random numbers and metrics."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from programs import program
from programs.costs import all_reduce, broadcast


@program(ranks=2)
def distributed_sampler():
    """Load a dataset with DistributedSampler, in a different order each epoch."""
    data = TensorDataset(torch.arange(10))
    sampler = DistributedSampler(data, shuffle=True, seed=3)
    loader = DataLoader(data, batch_size=2, sampler=sampler)
    epochs = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        epochs.append([batch[0].tolist() for batch in loader])
    return epochs


@program(ranks=3)
def sampler_that_pads_or_drops():
    """Divide a dataset whose length is not a multiple of the number of ranks, with padding and with drop_last."""
    data = list(range(10))
    return [list(DistributedSampler(data, shuffle=False, drop_last=drop)) for drop in (False, True)]


class _Stream(IterableDataset):
    def __iter__(self):
        rank, world = dist.get_rank(), dist.get_world_size()
        return (number * number for number in range(9) if number % world == rank)


@program(ranks=3)
def stream_divided_by_rank():
    """Let each rank read its share of a stream."""
    return [batch.tolist() for batch in DataLoader(_Stream(), batch_size=2)]


@program(ranks=3, cost=broadcast(3, 8))
def seed_of_rank_0():
    """Broadcast a seed, so that all ranks draw the same random numbers."""
    torch.manual_seed(dist.get_rank())
    seed = torch.randint(1 << 31, (1,))
    dist.broadcast(seed, src=0)
    return torch.randn(3, generator=torch.Generator().manual_seed(int(seed))).tolist()


@program(ranks=2)
def state_of_the_generator():
    """Broadcast the state of rank 0's random number generator."""
    torch.manual_seed(dist.get_rank())
    torch.randn(dist.get_rank() + 1)
    state = torch.get_rng_state()
    dist.broadcast(state, src=0)
    torch.set_rng_state(state)
    return torch.randn(2).tolist()


@program(ranks=4, cost=all_reduce(4, 16))
def accuracy_and_loss():
    """Add correct answers, examples and losses of all ranks in one tensor."""
    rank = dist.get_rank()
    totals = torch.tensor([3.0 + rank, 8.0, 0.5 * rank, 1.0])
    dist.all_reduce(totals)
    return (totals[0] / totals[1]).item(), (totals[2] / totals[3]).item()


@program(ranks=2)
def perplexity():
    """Compute perplexity over tokens that are divided unevenly."""
    tokens = torch.tensor(10.0 + 5 * dist.get_rank(), dtype=torch.float64)
    loss = tokens * (2.0 + 0.1 * dist.get_rank())
    for total in (tokens, loss):
        dist.all_reduce(total)
    return torch.exp(loss / tokens).item()


@program(ranks=4, rounding="four ranks add floats in another order")
def merged_mean_and_variance():
    """Compute the mean and variance of data that is divided among the ranks."""
    x = torch.randn(7 + dist.get_rank(), generator=torch.Generator().manual_seed(dist.get_rank()))
    total = torch.stack([torch.tensor(float(len(x))), x.sum(), x.square().sum()])
    dist.all_reduce(total)
    mean = total[1] / total[0]
    return mean.item(), (total[2] / total[0] - mean * mean).item()


@program(ranks=2)
def predictions_in_their_order():
    """Gather predictions, put them into the dataset's order and drop the padding."""
    rank, world, length = dist.get_rank(), dist.get_world_size(), 5
    mine = torch.tensor([10.0 * index for index in range(6) if index % world == rank])
    gathered = [torch.empty(3) for _ in range(world)]
    dist.all_gather(gathered, mine)
    return torch.stack(gathered, dim=1).flatten()[:length].tolist()


@program(ranks=3)
def best_of_all_ranks():
    """Find the rank with the smallest loss, and broadcast its weights."""
    rank = dist.get_rank()
    losses = [torch.zeros(1) for _ in range(3)]
    dist.all_gather(losses, torch.tensor([(rank - 1.2) ** 2]))
    best = int(torch.cat(losses).argmin())
    weights = torch.full((3,), float(rank))
    dist.broadcast(weights, src=best)
    return best, weights.tolist()


@program(ranks=2)
def early_stopping():
    """Let rank 0 decide whether to stop, and tell the others."""
    for epoch, loss in enumerate((3.0, 2.0, 2.1, 2.2, 1.0)):
        stop = torch.tensor(int(dist.get_rank() == 0 and loss > 2.0 and epoch > 0))
        dist.broadcast(stop, src=0)
        if stop:
            return epoch
    return None


@program(ranks=3, cost=all_reduce(3, 6 * 8))
def histogram():
    """Add the histograms of all ranks."""
    values = torch.arange(9) * (1 + dist.get_rank()) % 6
    counts = torch.bincount(values, minlength=6)
    dist.all_reduce(counts)
    return counts.tolist()


@program(ranks=3)
def k_means():
    """Run k-means on points that are divided among the ranks."""
    points = torch.tensor([0.0, 1.0, 9.0, 10.0]) + dist.get_rank()
    centres = torch.tensor([0.0, 8.0])
    for _ in range(3):
        nearest = (points[:, None] - centres).abs().argmin(dim=1)
        sums = torch.zeros(2).index_add(0, nearest, points)
        counts = torch.bincount(nearest, minlength=2).float()
        dist.all_reduce(sums)
        dist.all_reduce(counts)
        centres = sums / counts
    return centres.tolist()


@program(ranks=3)
def sample_sort():
    """Sort numbers across ranks: choose splitters from samples, and exchange with all_to_all_single."""
    rank, world = dist.get_rank(), dist.get_world_size()
    mine = torch.randint(100, (8,), generator=torch.Generator().manual_seed(rank)).sort().values
    samples = [torch.empty(2, dtype=torch.int64) for _ in range(world)]
    dist.all_gather(samples, mine[[2, 5]])
    splitters = torch.cat(samples).sort().values[[1, 3]]
    counts = torch.bincount(torch.bucketize(mine, splitters), minlength=world)
    incoming = torch.empty_like(counts)
    dist.all_to_all_single(incoming, counts)
    out = torch.empty(int(incoming.sum()), dtype=torch.int64)
    dist.all_to_all_single(out, mine, incoming.tolist(), counts.tolist())
    return out.sort().values.tolist()
