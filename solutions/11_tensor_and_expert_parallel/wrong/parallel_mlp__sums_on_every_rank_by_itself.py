# expect: every rank has sent all of its term
# fails: cost
def parallel_mlp(x: torch.Tensor, up: Stored, up_bias: Stored, down: Stored, down_bias: Stored) -> torch.Tensor:
    """The MLP's output on every rank, of which this rank computes its part."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    size = len(up) // ranks
    own = slice(rank * size, (rank + 1) * size)
    hidden = functional.gelu(x @ up[own].T + up_bias[own])
    y = hidden @ down[:, own].T
    terms = [torch.empty_like(y) for _ in range(ranks)]
    dist.all_gather(terms, y)
    y = torch.stack(terms).sum(0)
    return y + down_bias[:]
