def reduce_scatter(x: torch.Tensor) -> torch.Tensor:
    """Chunk `rank` of the sum of all ranks' x."""
    rank, size = dist.get_rank(), dist.get_world_size()
    lengths = [len(x) // size + (i < len(x) % size) for i in range(size)]
    starts = [sum(lengths[:i]) for i in range(size)]

    def own(i):
        return x[starts[i] : starts[i] + lengths[i]]

    travelling = own((rank - 1) % size).clone()
    for step in range(2, size + 1):
        i = (rank - step) % size
        arrived = torch.empty(lengths[i], dtype=x.dtype)
        handle = dist.isend(travelling, (rank + 1) % size)
        dist.recv(arrived, (rank - 1) % size)
        handle.wait()
        travelling = arrived + own(i)
    return travelling
