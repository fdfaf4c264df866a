# expect: the hidden features were gathered as well
# fails: cost
def parallel_mlp(x: torch.Tensor, up: Stored, up_bias: Stored, down: Stored, down_bias: Stored) -> torch.Tensor:
    """The MLP's output on every rank, of which this rank computes its part."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    size = len(up) // ranks
    own = slice(rank * size, (rank + 1) * size)
    hidden = functional.gelu(x @ up[own].T + up_bias[own])
    parts = [torch.empty_like(hidden) for _ in range(ranks)]
    dist.all_gather(parts, hidden)
    hidden = torch.cat(parts, -1)[:, own].contiguous()
    y = hidden @ down[:, own].T
    dist.all_reduce(y)
    return y + down_bias[:]
