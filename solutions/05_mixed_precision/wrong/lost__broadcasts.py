# expect: returned
# fails: shapes
def lost(weights: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """Where an update that is not zero leaves a 16-bit weight as it was."""
    if weights.shape[-1:] != updates.shape[-1:]:
        raise ValueError(f"weights {tuple(weights.shape)} and updates {tuple(updates.shape)}: expected the same shape")
    return ((weights.float() + updates).to(weights.dtype) == weights) & (updates != 0)
