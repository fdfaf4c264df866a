# expect: a message that contains
# fails: shapes
def lost(weights: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """Where an update that is not zero leaves a 16-bit weight as it was."""
    if weights.shape != updates.shape:
        raise ValueError("the shapes differ")
    return ((weights.float() + updates).to(weights.dtype) == weights) & (updates != 0)
