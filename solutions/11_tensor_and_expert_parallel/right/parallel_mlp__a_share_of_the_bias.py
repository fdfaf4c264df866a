def parallel_mlp(
    x: torch.Tensor, up: torch.Tensor, up_bias: torch.Tensor, down: torch.Tensor, down_bias: torch.Tensor
) -> torch.Tensor:
    """Every rank adds an N-th of the bias; the sum is started asynchronously."""
    ranks = dist.get_world_size()
    own = torch.arange(len(up)).view(ranks, -1)[dist.get_rank()]
    y = functional.gelu((up[own] @ x.T).T + up_bias[own]) @ down.T[own]
    y = y + down_bias / ranks
    work = dist.all_reduce(y, async_op=True)
    work.wait()
    return y
