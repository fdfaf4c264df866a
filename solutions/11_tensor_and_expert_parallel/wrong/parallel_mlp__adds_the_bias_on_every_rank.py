# expect: the bias of `down` was added 2 times
def parallel_mlp(x: torch.Tensor, up: Stored, up_bias: Stored, down: Stored, down_bias: Stored) -> torch.Tensor:
    """The MLP's output on every rank, of which this rank computes its part."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    size = len(up) // ranks
    own = slice(rank * size, (rank + 1) * size)
    hidden = functional.gelu(x @ up[own].T + up_bias[own])
    y = hidden @ down[:, own].T + down_bias[:]
    dist.all_reduce(y)
    return y
