# expect: the tensor on rank
# fails: values, traffic
def all_gather(chunk: torch.Tensor, n: int) -> torch.Tensor:
    """All chunks, one after another, on every rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    chunks = [torch.empty_like(chunk) for _ in range(size)]
    chunks[rank] = chunk
    for step in range(size - 1):
        sent = dist.isend(chunk, (rank + 1) % size)
        dist.recv(chunks[(rank - step - 1) % size], (rank - 1) % size)
        sent.wait()
    return torch.cat(chunks)[:n]
