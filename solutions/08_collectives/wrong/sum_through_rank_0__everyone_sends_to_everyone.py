# expect: rank 1 sends to rank 2
# fails: traffic
def sum_through_rank_0(x: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' x, on every rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    others = [other for other in range(size) if other != rank]
    sent = [dist.isend(x, other) for other in others]
    total, got = x.clone(), torch.empty_like(x)
    for other in others:
        dist.recv(got, other)
        total += got
    for handle in sent:
        handle.wait()
    return total
