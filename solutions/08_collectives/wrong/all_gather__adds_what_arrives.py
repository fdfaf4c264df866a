# expect: the tensor on rank
# fails: values, traffic
def all_gather(chunk: torch.Tensor, n: int) -> torch.Tensor:
    """All chunks, one after another, on every rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = torch.ones(n, dtype=chunk.dtype)
    chunks = whole.tensor_split(size)
    chunks[rank].copy_(chunk)
    for step in range(size - 1):
        sent = dist.isend(chunks[(rank - step) % size], (rank + 1) % size)
        got = torch.empty_like(chunks[(rank - step - 1) % size])
        dist.recv(got, (rank - 1) % size)
        sent.wait()
        chunks[(rank - step - 1) % size].add_(got)
    return whole
