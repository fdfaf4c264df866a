def all_gather(chunk: torch.Tensor, n: int) -> torch.Tensor:
    """All chunks, one after another, on every rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    chunks = list(torch.zeros(n, dtype=chunk.dtype).tensor_split(size))
    chunks[rank] = chunk.clone()
    for i in range(rank + size, rank + 1, -1):
        operations = [
            dist.P2POp(dist.isend, chunks[i % size], (rank + 1) % size),
            dist.P2POp(dist.irecv, chunks[(i - 1) % size], (rank - 1) % size),
        ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
    return torch.cat(chunks)
