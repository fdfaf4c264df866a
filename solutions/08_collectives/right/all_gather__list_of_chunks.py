def all_gather(chunk: torch.Tensor, n: int) -> torch.Tensor:
    """All chunks, one after another, on every rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    lengths = [n // size + (1 if i < n % size else 0) for i in range(size)]
    chunks = {rank: chunk}
    for step in range(1, size):
        index = (rank - step) % size
        chunks[index] = torch.zeros(lengths[index], dtype=chunk.dtype)
        receiving = dist.irecv(chunks[index], (rank - 1) % size)
        sending = dist.isend(chunks[(index + 1) % size], (rank + 1) % size)
        receiving.wait()
        sending.wait()
    return torch.cat([chunks[i] for i in range(size)])
