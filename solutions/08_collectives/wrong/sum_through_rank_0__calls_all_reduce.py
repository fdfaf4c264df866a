# expect: all_reduce of torch.distributed was called
def sum_through_rank_0(x: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' x, on every rank."""
    total = x.clone()
    dist.all_reduce(total)
    return total
