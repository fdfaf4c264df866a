# expect: the sum on rank
# fails: values, traffic
def sum_through_rank_0(x: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' x, on every rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    total = x.clone()
    if rank:
        dist.send(x, 0)
        dist.recv(total, 0)
        return total
    got = torch.empty_like(x)
    for source in range(1, size):
        got.zero_()
        handle = dist.irecv(got, source)
        total += got
        handle.wait()
    for to in range(1, size):
        dist.send(total, to)
    return total
