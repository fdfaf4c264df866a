# expect: is lost: your answer says that it is kept
# fails: values
def lost(weights: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """Where an update that is not zero leaves a 16-bit weight as it was."""
    if weights.shape != updates.shape:
        raise ValueError(f"weights {tuple(weights.shape)} and updates {tuple(updates.shape)}: expected the same shape")
    return ((weights.float() + updates) == weights.float()) & (updates != 0)
