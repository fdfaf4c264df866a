# expect: Deadlock
def all_gather(chunk: torch.Tensor, n: int) -> torch.Tensor:
    """All chunks, one after another, on every rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = torch.empty(n, dtype=chunk.dtype)
    chunks = whole.tensor_split(size)
    chunks[rank].copy_(chunk)
    for step in range(size - 1):
        dist.recv(chunks[(rank - step - 1) % size], (rank - 1) % size)
        dist.send(chunks[(rank - step) % size], (rank + 1) % size)
    return whole
