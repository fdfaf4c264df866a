# expect: partial sums were not passed on
# fails: values, uneven, traffic
def reduce_scatter(x: torch.Tensor) -> torch.Tensor:
    """Chunk `rank` of the sum of all ranks' x."""
    rank, size = dist.get_rank(), dist.get_world_size()
    chunks, own = x.clone().tensor_split(size), x.tensor_split(size)
    for step in range(size - 1):
        mine = chunks[(rank - 2 - step) % size]
        got = torch.empty_like(mine)
        sent = dist.isend(own[(rank - 1 - step) % size], (rank + 1) % size)
        dist.recv(got, (rank - 1) % size)
        sent.wait()
        mine += got
    return chunks[rank]
