# expect: two all-gathers
# fails: cost
def parallel_mlp(x: torch.Tensor, up: Stored, up_bias: Stored, down: Stored, down_bias: Stored) -> torch.Tensor:
    """The MLP's output on every rank, of which this rank computes its part."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    size = len(up) // ranks
    own = slice(rank * size, (rank + 1) * size)
    hidden = functional.gelu(x @ up[own].T + up_bias[own])
    hidden = gathered(hidden, ranks)
    part = len(down) // ranks
    rows = slice(rank * part, (rank + 1) * part)
    return gathered(hidden @ down[rows].T + down_bias[rows], ranks)


def gathered(own, ranks):
    parts = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather(parts, own)
    return torch.cat(parts, -1)
