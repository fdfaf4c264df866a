def sum_through_rank_0(x: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' x, on every rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        received = [torch.empty_like(x) for _ in range(size - 1)]
        handles = [dist.irecv(buffer, source) for source, buffer in enumerate(received, start=1)]
        for handle in handles:
            handle.wait()
        total = torch.stack([x, *received]).sum(0, dtype=x.dtype)
        for handle in [dist.isend(total, to) for to in range(1, size)]:
            handle.wait()
        return total
    dist.isend(x, dst=0).wait()
    answer = torch.zeros_like(x)
    dist.irecv(answer, src=0).wait()
    return answer
