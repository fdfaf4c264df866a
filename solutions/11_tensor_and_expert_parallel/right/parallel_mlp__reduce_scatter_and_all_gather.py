def parallel_mlp(x: torch.Tensor, up: Stored, up_bias: Stored, down: Stored, down_bias: Stored) -> torch.Tensor:
    """The two halves of an all-reduce, over the flat output, padded where N does not divide it."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    features = len(up_bias) // ranks
    own = slice(features * rank, features * (rank + 1))
    hidden = functional.gelu(torch.einsum("ti,hi->th", x, up[own]) + up_bias[own])
    terms = torch.einsum("th,oh->to", hidden, down[:, own])
    flat = functional.pad(terms.flatten(), (0, -terms.numel() % ranks))
    part = flat.new_empty(len(flat) // ranks)
    dist.reduce_scatter_tensor(part, flat)
    whole = torch.empty_like(flat)
    dist.all_gather_into_tensor(whole, part)
    return whole[: terms.numel()].view(terms.shape) + down_bias[:]
