# expect: shares memory with
def sum_through_rank_0(x: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' x, on every rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    total = x.clone()
    if rank:
        dist.send(x, 0)
        dist.recv(total, 0)
        return total
    got = torch.empty_like(x)
    handles = [dist.irecv(got, source) for source in range(1, size)]
    for handle in handles:
        handle.wait()
        total += got
    for to in range(1, size):
        dist.send(total, to)
    return total
