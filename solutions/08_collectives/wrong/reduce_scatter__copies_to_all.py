# expect: rank 0 sends to rank 2
# fails: traffic
def reduce_scatter(x: torch.Tensor) -> torch.Tensor:
    """Chunk `rank` of the sum of all ranks' x."""
    rank, size = dist.get_rank(), dist.get_world_size()
    own = x.tensor_split(size)
    total = own[rank].clone()
    sent = [dist.isend(own[to], to) for to in range(size) if to != rank]
    for source in range(size):
        if source != rank:
            got = torch.empty_like(total)
            dist.recv(got, source)
            total += got
    for handle in sent:
        handle.wait()
    return total
