def keep_within_capacity(experts: torch.Tensor, capacity: int) -> torch.Tensor:
    """One-hot vectors, and how many came before each (as GShard does it)."""
    tokens, k = experts.shape
    if tokens == 0:
        return torch.zeros(0, k, dtype=torch.bool)
    one_hot = functional.one_hot(experts.transpose(0, 1).reshape(-1))
    before = (one_hot.cumsum(0) - one_hot).mul(one_hot).sum(-1)
    return before.lt(capacity).reshape(k, tokens).transpose(0, 1)
