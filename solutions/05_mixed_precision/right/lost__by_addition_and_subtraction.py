def lost(weights: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """Where an update that is not zero leaves a 16-bit weight as it was."""
    if tuple(weights.shape) != tuple(updates.shape):
        raise ValueError(f"{tuple(weights.shape)} is not {tuple(updates.shape)}")
    total = torch.add(weights.to(torch.float32), updates)
    moved = total.to(weights.dtype).float() - weights.float()
    return torch.logical_and(moved == 0, updates.ne(0))
