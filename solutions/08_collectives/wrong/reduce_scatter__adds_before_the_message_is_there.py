# expect: as it was: a step is missing
# fails: values, uneven, traffic
def reduce_scatter(x: torch.Tensor) -> torch.Tensor:
    """Chunk `rank` of the sum of all ranks' x."""
    rank, size = dist.get_rank(), dist.get_world_size()
    chunks = x.clone().tensor_split(size)
    for step in range(size - 1):
        mine = chunks[(rank - 2 - step) % size]
        got = torch.zeros_like(mine)
        sent = dist.isend(chunks[(rank - 1 - step) % size], (rank + 1) % size)
        received = dist.irecv(got, (rank - 1) % size)
        mine += got
        received.wait()
        sent.wait()
    return chunks[rank]
