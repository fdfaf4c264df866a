# expect: each message holds the whole tensor
# fails: traffic
def reduce_scatter(x: torch.Tensor) -> torch.Tensor:
    """Chunk `rank` of the sum of all ranks' x."""
    rank, size = dist.get_rank(), dist.get_world_size()
    total, travelling = x.clone(), x.clone()
    for _ in range(size - 1):
        got = torch.empty_like(x)
        sent = dist.isend(travelling, (rank + 1) % size)
        dist.recv(got, (rank - 1) % size)
        sent.wait()
        total += got
        travelling = got
    return total.tensor_split(size)[rank]
