# expect: rank 0 sends to rank 2
# fails: traffic
def all_gather(chunk: torch.Tensor, n: int) -> torch.Tensor:
    """All chunks, one after another, on every rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = torch.empty(n, dtype=chunk.dtype)
    chunks = whole.tensor_split(size)
    chunks[rank].copy_(chunk)
    sent = [dist.isend(chunk, to) for to in range(size) if to != rank]
    for source in range(size):
        if source != rank:
            dist.recv(chunks[source], source)
    for handle in sent:
        handle.wait()
    return whole
