def all_gather(chunk: torch.Tensor, n: int) -> torch.Tensor:
    """All chunks, one after another, on every rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = chunk.new_empty(n)
    starts = [i * (n // size) + min(i, n % size) for i in range(size + 1)]
    at, travelling = rank, chunk
    whole[starts[rank] : starts[rank + 1]] = chunk
    for _ in range(size - 1):
        handle = dist.isend(travelling, (rank + 1) % size)
        at = (at - 1) % size
        travelling = chunk.new_empty(starts[at + 1] - starts[at])
        dist.recv(travelling, (rank - 1) % size)
        handle.wait()
        whole[starts[at] : starts[at + 1]] = travelling
    return whole
