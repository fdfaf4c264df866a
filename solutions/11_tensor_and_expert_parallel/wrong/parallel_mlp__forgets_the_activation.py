# expect: the activation is missing
def parallel_mlp(x: torch.Tensor, up: Stored, up_bias: Stored, down: Stored, down_bias: Stored) -> torch.Tensor:
    """The MLP's output on every rank, of which this rank computes its part."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    size = len(up) // ranks
    own = slice(rank * size, (rank + 1) * size)
    hidden = x @ up[own].T + up_bias[own]
    y = hidden @ down[:, own].T
    dist.all_reduce(y)
    return y + down_bias[:]
