# expect: messages, 4 ranks
# fails: traffic
def sum_through_rank_0(x: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' x, on every rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    total = x.clone()
    if rank:
        if rank > 1:
            dist.recv(torch.empty(0), 0)
        dist.send(x, 0)
        dist.recv(total, 0)
        return total
    got = torch.empty_like(x)
    for source in range(1, size):
        if source > 1:
            dist.send(torch.empty(0), source)
        dist.recv(got, source)
        total += got
    for to in range(1, size):
        dist.send(total, to)
    return total
