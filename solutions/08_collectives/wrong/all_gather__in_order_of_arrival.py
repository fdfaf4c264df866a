# expect: in the order of their arrival
# fails: values, traffic
def all_gather(chunk: torch.Tensor, n: int) -> torch.Tensor:
    """All chunks, one after another, on every rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    lengths = [len(part) for part in torch.empty(n).tensor_split(size)]
    parts = [chunk]
    for step in range(size - 1):
        got = torch.empty(lengths[(rank - step - 1) % size], dtype=chunk.dtype)
        sent = dist.isend(parts[-1], (rank + 1) % size)
        dist.recv(got, (rank - 1) % size)
        sent.wait()
        parts.append(got)
    return torch.cat(parts)
