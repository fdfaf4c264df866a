# expect: each message holds the whole tensor
# fails: traffic
def all_gather(chunk: torch.Tensor, n: int) -> torch.Tensor:
    """All chunks, one after another, on every rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = torch.zeros(n, dtype=chunk.dtype)
    whole.tensor_split(size)[rank].copy_(chunk)
    travelling = whole.clone()
    for _ in range(size - 1):
        got = torch.empty_like(whole)
        sent = dist.isend(travelling, (rank + 1) % size)
        dist.recv(got, (rank - 1) % size)
        sent.wait()
        whole += got
        travelling = got
    return whole
