# expect: torch.int32
# fails: values
def lost(weights: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """Where an update that is not zero leaves a 16-bit weight as it was."""
    if weights.shape != updates.shape:
        raise ValueError(f"weights {tuple(weights.shape)} and updates {tuple(updates.shape)}: expected the same shape")
    same = (weights.float() + updates).to(weights.dtype) == weights
    return (same & (updates != 0)).int()
